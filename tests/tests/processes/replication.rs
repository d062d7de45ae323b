//! Transactions and records for mirrors, received as a mirror receives them: in every protection
//! and version, split by hash, resumed, by slow receivers and by those without permission.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::PrivateKey;
use handle_client::replication::connection::ReceiveError;
use handle_proto::wire::replication::{DumpHandles, Progress, Receiver, RetrieveTransactions};
use handle_proto::wire::{Envelope, Message, Request};
use handle_proto::{Handle, HashOption, ResponseCode, Value, Values, Version};
use handle_store::{LogBounds, Transaction};
use handle_tests::admin_server::{AdminServer, administer_with};
use handle_tests::client::exchange_over_tcp;
use handle_tests::process::until;
use handle_tests::replication::{PullOutcome, TestReceiver, WHOLE};
use handle_tests::test_server::server_key_record;
use handle_tests::transcripts::private_keys;
use handle_tests::vectors::VectorSource;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const SIGNED: Version = Version::new(2, 7);
const ENCRYPTED: Version = Version::new(2, 8);

fn key() -> &'static PrivateKey {
    static KEY: OnceLock<PrivateKey> = OnceLock::new();
    KEY.get_or_init(|| private_keys().remove("admin_rsa").unwrap())
}

fn receiver(server: &AdminServer, version: Version) -> TestReceiver<'static> {
    TestReceiver {
        server: server.address(),
        server_key: server_key_record(VectorSource::Own, "root"),
        handle: b"0.NA/TST",
        index: 300,
        key: key(),
        version,
        timeout: Duration::from_secs(20),
    }
}

fn root() -> AdminServer {
    administer_with("root", |_| ())
}

fn change(server: &AdminServer, make: impl FnOnce(&mut Transaction<'_>) + Send + 'static) {
    let changed = server.server().shared().service.store.change(move |transaction| {
        make(transaction);
        Ok(())
    });
    changed.unwrap();
}

fn put(server: &AdminServer, handle: &str, data: &str) {
    let (handle, data) = (handle.to_owned(), data.to_owned());
    change(server, move |transaction| {
        let mut buffer = Vec::new();
        let values = Values::build([Value::new(1, b"URL", data.as_bytes())], &mut buffer);
        transaction.put(handle.as_bytes(), values).unwrap();
    });
}

fn delete(server: &AdminServer, handle: &'static str) {
    change(server, move |transaction| assert!(transaction.delete(handle.as_bytes()).unwrap()));
}

fn last_id(server: &AdminServer) -> u64 {
    server.server().shared().service.store.last_id()
}

/// Items without values and dates.
fn heads(items: &[String]) -> Vec<String> {
    let head = |item: &String| {
        let words: Vec<_> = item.split(' ').collect();
        match words[0] {
            "end" | "queue-date" | "done" => words[0].to_owned(),
            "handle" | "homed" | "date" | "prefix-date" => words[..2].join(" "),
            "source" => words[0].to_owned(),
            _ => words[..words.len().min(3)].join(" "),
        }
    };
    items.iter().map(head).collect()
}

#[test]
fn transactions_have_current_values_and_skip_what_is_void() {
    let server = root();
    let base = last_id(&server);
    put(&server, "TST/A", "one");
    put(&server, "TST/B", "gone");
    put(&server, "TST/A", "two");
    delete(&server, "TST/B");
    put(&server, "TST/C", "old");
    delete(&server, "TST/C");
    put(&server, "TST/C", "new");
    change(&server, |transaction| {
        transaction.home(b"77.1").unwrap();
        transaction.unhome(b"77.1").unwrap();
    });
    let now = i64::MAX / 2;
    for version in [Version::new(2, 3), SIGNED, ENCRYPTED, Version::new(2, 9), Version::CURRENT] {
        let items = receiver(&server, version).transactions(base.cast_signed(), now, WHOLE).items();
        let id = |n: u64| base + n;
        let expected = [
            "OneSource Sending".to_owned(),
            format!("create {} TST/A", id(1)),
            format!("update {} TST/A", id(3)),
            format!("delete {} TST/B", id(4)),
            format!("create {} TST/C", id(5)),
            format!("create {} TST/C", id(7)),
            format!("home {} 0.NA/77.1", id(8)),
            format!("unhome {} 0.NA/77.1", id(9)),
            "end".to_owned(),
        ];
        assert_eq!(heads(&items), expected, "{version:?}");
        let values = |at: usize| items[at].rsplit(' ').next().unwrap().to_owned();
        assert_eq!(values(1), values(2), "both have the values of now");
        assert!(values(1).ends_with(&data_encoding::HEXLOWER.encode(b"two\0\0\0\0")), "{}", values(1));
    }
    let after = receiver(&server, ENCRYPTED).transactions(base.cast_signed() + 7, now, WHOLE).items();
    assert_eq!(after.len(), 4, "{after:?}");
    let none = receiver(&server, ENCRYPTED).transactions(base.cast_signed() + 9, now, WHOLE).items();
    assert_eq!(heads(&none), ["OneSource Sending", "end"]);
}

#[test]
fn a_receiver_of_all_queues_gets_the_own_queue_of_the_source() {
    let server = administer_with("root", |config| {
        config.replication.site_name = Some("1:TST/SVC".to_owned());
    });
    let base = last_id(&server);
    put(&server, "TST/A", "one");
    let ask = |state: &str| {
        let progress = Progress::AllSources { state: state.as_bytes() };
        let request = RetrieveTransactions { progress, receiver: WHOLE };
        receiver(&server, Version::CURRENT).pull(&Request::RetrieveTxnLog(request))
    };
    let state = format!(
        r#"{{"replicationServerStates":{{"0:1:TST/SVC":{{"lastTxnId":{base},"lastTimestamp":99999999999999}}}},"ownName":"1:TST/MIRROR"}}"#
    );
    let items = ask(&state).items();
    let create = format!("create {} TST/A", base + 1);
    let expected = ["AllSources Sending", "queue 0:1:TST/SVC", &create, "queue-date", "end"];
    assert_eq!(heads(&items), expected);
    let items = ask("{\"ownName\":\"1:TST/SVC\"}").items();
    assert_eq!(heads(&items), ["AllSources Sending", "end"], "nobody gets his own transactions");
    let items = ask("{}").items();
    assert_eq!(heads(&items), ["AllSources NeedsDump", "end"], "an import is not in the log");
    assert!(matches!(ask("[]"), PullOutcome::Refused(ResponseCode::PROTOCOL_ERROR)));
}

#[test]
fn a_receiver_that_is_behind_the_log_is_asked_to_dump() {
    let server = root();
    (0..5).for_each(|n| put(&server, &format!("TST/N{n}"), "x"));
    let items = receiver(&server, ENCRYPTED).transactions(0, 7, WHOLE).items();
    assert_eq!(items, ["OneSource NeedsDump", "end 7"], "the date is that of the request");
    let store = &server.server().shared().service.store;
    let bounds = LogBounds { before_unix_ms: 0, transactions_max: Some(2) };
    assert!(store.prune_log(bounds, 100).unwrap() > 0);
    let start = store.snapshot().unwrap().log_start().unwrap();
    let (base, start_ms) = (start.base.cast_signed(), start.unix_ms.unwrap().cast_signed());
    let ask = |id: i64, ms: i64| receiver(&server, ENCRYPTED).transactions(id, ms, WHOLE).items();
    assert_eq!(ask(base - 1, start_ms - 1)[0], "OneSource NeedsDump");
    assert_eq!(ask(base, start_ms - 1)[0], "OneSource Sending", "it has all that is dropped");
    assert_eq!(ask(base - 1, start_ms).len(), 4, "it is complete up to the start of the log");
    assert_eq!(ask(base + 3, start_ms)[0], "OneSource NeedsDump", "it follows a lost state");
}

#[test]
fn a_dump_has_every_record_once_however_it_is_protected() {
    let server = root();
    put(&server, "TST/A", "one");
    let mut all = vec![];
    for version in [SIGNED, ENCRYPTED] {
        let items = receiver(&server, version).dump(None, WHOLE).items();
        let records: Vec<_> = items.iter().filter(|item| item.starts_with("handle ")).cloned().collect();
        let store = &server.server().shared().service.store;
        assert_eq!(records.len() as u64, store.stats().unwrap().records);
        assert!(items[0].starts_with("source ") && items[0].ends_with(&format!(" {}", last_id(&server))));
        assert_eq!(items.last().unwrap(), "done");
        let homed = items.iter().filter(|item| item.starts_with("homed ")).count();
        assert_eq!(homed as u64, store.stats().unwrap().homed_prefixes);
        all.push(items[1..].to_vec());
    }
    assert_eq!(all[0], all[1]);
}

#[test]
fn a_dump_goes_on_after_every_kind_of_item() {
    let server =
        administer_with("root", |config| config.replication.site_name = Some("1:TST/SVC".to_owned()));
    put(&server, "TST/A", "one");
    put(&server, "TST/GONE", "one");
    delete(&server, "TST/GONE");
    change(&server, |transaction| {
        transaction.home(b"77.1").unwrap();
        transaction.home(b"77.2").unwrap();
        transaction.unhome(b"77.2").unwrap();
    });
    let items = receiver(&server, ENCRYPTED).dump(None, WHOLE).items();
    let kinds = ["source", "date", "prefix-date", "handle", "homed", "done"];
    let place = |item: &String| kinds.iter().position(|kind| item.split(' ').next() == Some(kind)).unwrap();
    assert!(items.iter().map(place).is_sorted(), "{items:?}");
    let of_kind = |kind: &str| items.iter().filter(|item| item.split(' ').next() == Some(kind)).count();
    assert_eq!(of_kind("date"), of_kind("handle") + 1, "a deleted handle has a date");
    assert_eq!(of_kind("prefix-date"), 2);
    for (at, item) in items.iter().enumerate().skip(1).take(items.len() - 2) {
        let mut words = item.split(' ');
        let kind = match words.next().unwrap() {
            "date" => 0,
            "prefix-date" => 1,
            "handle" => 2,
            _ => 3,
        };
        // Names with blanks would need another form of items.
        let Some(name) = words.next().filter(|_| at % 7 == 1 || kind % 2 == 1 || at + 2 == items.len())
        else {
            continue;
        };
        if item.matches(' ').count() > 2 {
            continue;
        }
        let rest = receiver(&server, ENCRYPTED).dump(Some((name.as_bytes(), kind)), WHOLE).items();
        assert_eq!(rest, items[at + 1..], "after {item}");
    }
    let unknown = receiver(&server, ENCRYPTED).dump(Some((b"TST/A", 4)), WHOLE);
    assert!(matches!(unknown, PullOutcome::Refused(ResponseCode::PROTOCOL_ERROR)), "{unknown:?}");
}

#[test]
fn each_server_of_a_mirror_gets_the_handles_that_hash_to_it() {
    let server = root();
    let base = last_id(&server).cast_signed();
    (0..20).for_each(|n| put(&server, &format!("TST/N{n}"), "x"));
    change(&server, |transaction| assert!(transaction.home(b"77.1").unwrap()));
    for option in [HashOption::Prefix, HashOption::Suffix, HashOption::Handle] {
        let (mut transactions, mut records) = (0, 0);
        for server_at in 0..3 {
            let share = Receiver { hash_option: option as u8, servers_count: 3, server_at };
            let has =
                |name: &str| Handle(name.as_bytes()).server_at(option, 3) == Some(server_at.cast_unsigned());
            let items = receiver(&server, ENCRYPTED).transactions(base, i64::MAX / 2, share).items();
            let names: Vec<_> = items.iter().filter(|it| it.starts_with("create ")).collect();
            assert!(names.iter().all(|item| has(item.split(' ').nth(2).unwrap())), "{names:?}");
            assert!(items.iter().any(|item| item.starts_with("home ")), "homing concerns every server");
            transactions += names.len();
            let items = receiver(&server, ENCRYPTED).dump(None, share).items();
            records += items.iter().filter(|item| item.starts_with("handle ")).count();
        }
        assert_eq!(transactions, 20, "{option:?}");
        assert_eq!(records as u64, server.server().shared().service.store.stats().unwrap().records);
    }
    for (hash_option, servers_count, server_at) in [(3, 1, 0), (2, 0, 0), (2, 1, 1), (2, 2, -1), (2, -1, 0)] {
        let share = Receiver { hash_option, servers_count, server_at };
        let refused = receiver(&server, ENCRYPTED).dump(None, share);
        assert!(matches!(refused, PullOutcome::Refused(ResponseCode::PROTOCOL_ERROR)), "{share:?}");
    }
}

#[test]
fn only_authorised_identities_get_a_stream() {
    let server = root();
    let authorised = receiver(&server, ENCRYPTED);
    let other = PrivateKey::from_record(handle_auth::generate::rsa(2048).unwrap().as_bytes()).unwrap();
    let code = |outcome: PullOutcome| match outcome {
        PullOutcome::Refused(code) => code,
        other => panic!("{other:?}"),
    };
    let wrong_key = TestReceiver { key: &other, server_key: authorised.server_key.clone(), ..authorised };
    assert_eq!(code(wrong_key.dump(None, WHOLE)), ResponseCode::AUTHENTICATION_FAILED);
    let stranger = TestReceiver { index: 301, key: key(), server_key: Vec::new(), ..wrong_key };
    assert_eq!(code(stranger.dump(None, WHOLE)), ResponseCode::INVALID_ADMIN);
    assert_eq!(code(stranger.transactions(0, 0, WHOLE)), ResponseCode::INVALID_ADMIN);
    let off = administer_with("root", |config| config.replication.enabled = false);
    assert_eq!(code(receiver(&off, ENCRYPTED).dump(None, WHOLE)), ResponseCode::OPERATION_NOT_SUPPORTED);
    let secondary = administer_with("secondary", |_| ());
    let at_secondary = receiver(&secondary, ENCRYPTED);
    assert_eq!(code(at_secondary.transactions(0, 0, WHOLE)), ResponseCode::OPERATION_NOT_SUPPORTED);
    assert_eq!(code(at_secondary.dump(None, WHOLE)), ResponseCode::SERVER_NOT_RESPONSIBLE);
}

/// Begins a dump whose stream is not read.
fn stall(receiver: &TestReceiver<'_>) -> TcpStream {
    let request = Request::DumpHandles(DumpHandles { receiver: WHOLE, start: None });
    let challenge = exchange_over_tcp(receiver.server, &receiver.first_message(&request)).unwrap();
    let mut stream = TcpStream::connect(receiver.server).unwrap();
    stream.write_all(&receiver.second_message(&challenge)).unwrap();
    let mut envelope = [0; Envelope::LEN];
    stream.read_exact(&mut envelope).unwrap();
    let mut message = vec![0; Envelope::split(&envelope).unwrap().0.message_len as usize];
    stream.read_exact(&mut message).unwrap();
    assert_eq!(Message::decode(&message).unwrap().header.response_code, ResponseCode::SUCCESS);
    stream
}

#[test]
fn a_receiver_that_does_not_read_loses_its_permit_in_time() {
    let server = administer_with("root", |config| {
        config.replication.streams = 1;
        config.replication.write_ms = 1500;
    });
    let receiver = receiver(&server, ENCRYPTED);
    let mut stalled = stall(&receiver);
    // It never begins the TLS handshake.
    let refused = receiver.dump(None, WHOLE);
    assert!(matches!(refused, PullOutcome::Refused(ResponseCode::SERVER_BUSY)), "{refused:?}");
    let started = Instant::now();
    until("the place is free", || matches!(receiver.dump(None, WHOLE), PullOutcome::Complete(_)));
    assert!(started.elapsed() < Duration::from_secs(10));
    let mut rest = Vec::new();
    stalled.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, 0x544C_5300_u32.to_be_bytes());
    let counters = &server.server().shared().service.counters;
    assert_eq!(counters.streams_failed.get(), 1);
    assert!(counters.streams_refused.get() >= 1);
}

#[test]
fn one_identity_leaves_permits_for_others() {
    let server = administer_with("root", |config| {
        config.replication.streams = 2;
    });
    let receiver = receiver(&server, ENCRYPTED);
    let stalled = stall(&receiver);
    let refused = receiver.dump(None, WHOLE);
    assert!(matches!(refused, PullOutcome::Refused(ResponseCode::SERVER_BUSY)), "{refused:?}");
    drop(stalled);
    until("the place is free", || matches!(receiver.dump(None, WHOLE), PullOutcome::Complete(_)));
}

#[test]
fn a_stream_is_over_when_its_time_is_over() {
    let server = administer_with("root", |config| config.replication.stream_ms = 1);
    let outcome = receiver(&server, SIGNED).dump(None, WHOLE);
    assert!(matches!(outcome, PullOutcome::Broken(_, ReceiveError::Connection(_))), "{outcome:?}");
}

#[test]
fn metrics_and_status_show_what_each_mirror_has() {
    let server = root();
    let receiver = receiver(&server, ENCRYPTED);
    put(&server, "TST/A", "one");
    let last = last_id(&server);
    drop(receiver.dump(None, WHOLE).items());
    put(&server, "TST/A", "two");
    let metrics = || handle_admin::observe::metrics(server.server().shared()).unwrap();
    let labels = "{identity=\"300:0.NA/TST\",server=\"0\"}";
    for (name, number) in [("transaction", last), ("lag", 1)] {
        let line = format!("handle_admin_receiver_{name}{labels} {number}");
        assert!(metrics().contains(&line), "{line}: {}", metrics());
    }
    drop(receiver.transactions(last.cast_signed(), i64::MAX / 2, WHOLE).items());
    let no_lag = format!("handle_admin_receiver_lag{labels} 0");
    until("the end of the stream is counted", || metrics().contains(&no_lag));
    assert!(metrics().contains("handle_admin_stream_transactions_total 1"), "{}", metrics());
    let status = handle_daemon::control::ControlCommands::run(&**server.server().shared(), "status").unwrap();
    assert_eq!(status["mirrors"][0]["identity"], "300:0.NA/TST");
    assert_eq!(status["mirrors"][0]["behind"], 0);
    assert_eq!(status["mirrors"][0]["progress"]["dumps"], 1);
}
