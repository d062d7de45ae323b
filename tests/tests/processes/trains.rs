//! Trains of requests get the same answers as single datagrams, and every datagram is counted.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_net::{DatapathChoice, Peer, SocketOptions, open};
use handle_proto::Value;
use handle_proto::limit::FRAGMENTS_MAX;
use handle_proto::wire::Envelope;
use handle_snapshot::set::publisher::SetPublisher;
use handle_tests::client::request;
use handle_tests::records::{self, Record};
use handle_tests::test_server;
use handle_worker::Server;
use handle_worker::config::{Config, Datapath};
use handle_worker::counters::{Counter, Counters};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Position of the expiration in the first datagram of an answer, which depends on the time of the
/// request.
const EXPIRES_AT: Range<usize> = Envelope::LEN + 16..Envelope::LEN + 20;
const SOON: Duration = Duration::from_secs(10);

/// The datagrams of each answer, in their order, by request id.
type AnswerDatagrams = BTreeMap<i32, Vec<Vec<u8>>>;

/// Sends all requests and waits for all answers.
fn ask(server: SocketAddr, requests: &[Vec<u8>], options: &SocketOptions) -> AnswerDatagrams {
    let mut datapath = open(DatapathChoice::Portable, options).unwrap().path;
    for request in requests {
        let copy = |buffer: &mut [u8]| {
            buffer.copy_from_slice(request);
            request.len()
        };
        datapath.outbox().push(Peer::to(server), request.len(), copy).unwrap();
    }
    assert_eq!(datapath.flush().unwrap().sent as usize, requests.len());
    let (mut answers, mut complete, end) = (AnswerDatagrams::new(), 0, Instant::now() + SOON);
    while complete < requests.len() {
        assert!(Instant::now() < end, "{complete} of {} are answered", requests.len());
        for train in datapath.wait(Duration::from_millis(100)).unwrap().inbox.iter() {
            for bytes in train.segments() {
                let (envelope, _) = Envelope::split(bytes).unwrap();
                let answer = answers.entry(envelope.request_id).or_default();
                answer.push(bytes.to_vec());
                let len: usize = answer.iter().map(|bytes| bytes.len() - Envelope::LEN).sum();
                complete += usize::from(len == envelope.message_len as usize);
            }
        }
    }
    // Datagrams of one answer may overtake each other in trains.
    for datagrams in answers.values_mut() {
        datagrams.sort_by_key(|bytes| Envelope::split(bytes).unwrap().0.sequence);
        datagrams[0][EXPIRES_AT].fill(0);
    }
    answers
}

fn requests<'a>(handles: impl IntoIterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    (1..).zip(handles).map(|(id, handle)| request(handle, id)).collect()
}

fn serve(records: &[Record], change: impl FnOnce(&mut Config)) -> (Server, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    records::publish(&mut SetPublisher::open(directory.path()).unwrap(), records, 1);
    let mut config = test_server::config(directory.path(), Datapath::Auto);
    change(&mut config);
    (Server::start(&config).unwrap(), directory)
}

/// Stops the server, checks that every datagram is counted once, and returns the sums of
/// `counters`.
fn account<const N: usize>(server: Server, counters: [fn(&Counters) -> &Counter; N]) -> [u64; N] {
    let shards = server.shared().shards.clone();
    server.stop().unwrap();
    let all = shards.to_json()["total"].clone();
    let count = |name: &str| all[name].as_u64().unwrap();
    assert_eq!(count("datagrams_received"), count("requests_answered"), "{all}");
    assert_eq!(count("dropped_bug") + count("dropped_send_refused") + count("dropped_send_full"), 0, "{all}");
    counters.map(|counter| shards.sum(counter))
}

fn check_answers_to_trains(datapath: Datapath) {
    let records = records::load();
    let (server, _directory) = serve(&records, |config| config.datapath = datapath);
    let handles = records.iter().map(|record| record.handle.as_bytes()).chain([&b"10.1016/not there"[..]]);
    let requests = requests(handles.cycle().take(2000));
    let local = SocketOptions::new(([127, 0, 0, 1], 0).into());
    let address = server.addresses()[0];
    let in_trains = ask(address, &requests, &local);
    let mut one_at_a_time = AnswerDatagrams::new();
    for chunk in requests.chunks(200) {
        one_at_a_time.extend(ask(address, chunk, &local.clone().one_at_a_time()));
    }
    assert_eq!(in_trains.len(), requests.len());
    assert_eq!(in_trains, one_at_a_time);
    let [received, sent, trains_in, trains_out, refused] = account(
        server,
        [
            |c| &c.datagrams_received,
            |c| &c.datagrams_sent,
            |c| &c.trains_received,
            |c| &c.trains_sent,
            |c| &c.trains_refused,
        ],
    );
    let datagrams: usize = in_trains.values().chain(one_at_a_time.values()).map(Vec::len).sum();
    assert_eq!((received, sent, refused), (4000, datagrams as u64, 0));
    assert!(trains_in > 10 && trains_in < 1000, "{trains_in}");
    assert!(trains_out > 100 && trains_out < 2000, "{trains_out}");
}

#[test]
fn trains_are_answered_like_single_datagrams_on_the_portable_datapath() {
    check_answers_to_trains(Datapath::Portable);
}

#[test]
fn trains_are_answered_like_single_datagrams_on_the_datapath_of_this_machine() {
    check_answers_to_trains(Datapath::Auto);
}

/// Records with answers of several datagrams each, requested in one train.
#[test]
fn long_answers_to_a_train_all_arrive_with_a_small_outbox() {
    let data = [b'x'; 400];
    let mut records = Vec::new();
    for n in 0..64 {
        let mut values = Vec::new();
        (1..=10).for_each(|index| Value::new(index, b"TEXT", &data).encode(&mut values));
        records.push(Record { handle: format!("10.5/long-{n:02}"), values, values_count: 10 });
    }
    let requests = requests(records.iter().map(|record| record.handle.as_bytes()));
    for outbox_datagrams in [FRAGMENTS_MAX, 4096] {
        let (server, _directory) = serve(&records, |config| {
            config.limits.outbox_datagrams = outbox_datagrams;
            config.limits.answer_datagrams = 16;
        });
        let options = SocketOptions::new(([127, 0, 0, 1], 0).into());
        let answers = ask(server.addresses()[0], &requests, &options);
        assert_eq!(answers.len(), 64);
        let first_len: usize = answers[&1].iter().map(Vec::len).sum();
        for (id, datagrams) in &answers {
            assert_eq!(datagrams.len(), 9, "{id}");
            assert_eq!(datagrams.iter().map(Vec::len).sum::<usize>(), first_len, "{id}");
            let sequence: Vec<_> =
                datagrams.iter().map(|bytes| Envelope::split(bytes).unwrap().0.sequence).collect();
            assert_eq!(sequence, (0..9).collect::<Vec<_>>(), "{id}");
        }
        let [sent, trains] = account(server, [|c| &c.datagrams_sent, |c| &c.trains_sent]);
        assert_eq!(sent, 576);
        assert!(trains < 100, "{trains}");
    }
}

#[test]
fn trains_can_be_switched_off() {
    let records = records::load();
    let (server, _directory) = serve(&records, |config| config.trains = false);
    let requests = requests(records[..200].iter().map(|record| record.handle.as_bytes()));
    let status = server.shared().status();
    assert_eq!(status["workers"][0]["receives_trains"], false);
    assert_eq!(status["workers"][0]["sends_trains"], false);
    let answers = ask(server.addresses()[0], &requests, &SocketOptions::new(([127, 0, 0, 1], 0).into()));
    assert_eq!(answers.len(), 200);
    let [received, trains_in, trains_out] =
        account(server, [|c| &c.datagrams_received, |c| &c.trains_received, |c| &c.trains_sent]);
    assert_eq!((received, trains_in, trains_out), (200, 0, 0));
}
