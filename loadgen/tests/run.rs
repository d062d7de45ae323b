//! Whole runs in-process, against a server that misbehaves a known number of times, on both
//! datapaths.

#![expect(clippy::unwrap_used, reason = "these are tests, also where they share a helper")]

#[path = "../../tests/src/needs.rs"]
#[expect(unreachable_pub, reason = "shared with the tests of the whole tree")]
mod needs;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use handle_loadgen::load::find_max::{RateBound, Search, find_max};
use handle_loadgen::{
    Error, LimitOptions, LimitReport, LoadPattern, NameOptions, ReferenceData, RunOptions, RunReport, Verify,
    limit, run,
};
use handle_net::{DatapathChoice, SocketOptions};
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::query::Query;
use handle_proto::wire::{Envelope, Header, Message};
use handle_proto::{ResponseCode, Value};
use handle_snapshot::{
    Builder, HomedPrefixes, LayerOptions, LoadMode, PublishedSet, SetPublisher, fold_key, hash_key,
};

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
/// Long enough for a loaded machine.
const TIMEOUT: Duration = Duration::from_millis(400);
const LATE: Duration = Duration::from_millis(550);

/// Runs each test on each datapath that opens on this system.
macro_rules! on_both_paths {
    ($($promise:ident),* $(,)?) => {
        mod portable {
            $(#[test] fn $promise() { super::$promise(handle_net::DatapathChoice::Portable) })*
        }
        mod uring {
            $(#[test] fn $promise() {
                match handle_net::open(handle_net::DatapathChoice::Uring, &super::SocketOptions::new(super::LOOPBACK)) {
                    Ok(_) => super::$promise(handle_net::DatapathChoice::Uring),
                    Err(_) => assert!(!super::needs::has(super::needs::TestNeed::IoUring, false)),
                }
            })*
        }
    };
}

on_both_paths!(
    counts_what_happened_exactly,
    a_closed_loop_counts_as_exactly,
    a_silent_server_is_reported,
    verifies_while_sets_are_published,
    wrong_and_stale_answers_are_mismatches,
    stops_early_and_counts_the_rest,
    measures_a_limit,
    sends_from_the_requested_number_of_addresses,
);

/// Answers on a socket until it is dropped.
struct RunServer {
    stop: &'static AtomicBool,
    thread: Option<thread::JoinHandle<()>>,
    address: SocketAddr,
}

impl RunServer {
    /// `answer` gets the number of the request and the request, and returns datagrams with their
    /// delays.
    fn start(mut answer: impl FnMut(u64, &[u8]) -> Vec<(Duration, Vec<u8>)> + Send + 'static) -> Self {
        Self::start_seeing(move |number, _, request| answer(number, request))
    }

    /// The same, where `answer` also gets the address of the client.
    fn start_seeing(
        mut answer: impl FnMut(u64, SocketAddr, &[u8]) -> Vec<(Duration, Vec<u8>)> + Send + 'static,
    ) -> Self {
        let socket = UdpSocket::bind(LOOPBACK).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let stop: &'static AtomicBool = Box::leak(Box::default());
        let address = socket.local_addr().unwrap();
        let thread = thread::spawn(move || {
            let mut later = VecDeque::<(Instant, Vec<u8>, SocketAddr)>::new();
            let (mut number, mut buffer) = (0, [0; 600]);
            while !stop.load(Ordering::Relaxed) {
                match socket.recv_from(&mut buffer) {
                    Ok((len, from)) => {
                        for (delay, bytes) in answer(number, from, &buffer[..len]) {
                            if delay.is_zero() {
                                socket.send_to(&bytes, from).unwrap();
                            } else {
                                later.push_back((Instant::now() + delay, bytes, from));
                            }
                        }
                        number += 1;
                    }
                    Err(error) => assert!(matches!(error.kind(), ErrorKind::WouldBlock), "{error}"),
                }
                // All delays of one test are equal, so this is the order in which they expire.
                while later.front().is_some_and(|(due, ..)| *due <= Instant::now()) {
                    let (_, bytes, from) = later.pop_front().unwrap();
                    socket.send_to(&bytes, from).unwrap();
                }
            }
        });
        Self { stop, thread: Some(thread), address }
    }
}

impl Drop for RunServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// An answer with `code` and `body`, in as many datagrams as needed.
fn answer(request: &[u8], code: ResponseCode, body: &[u8]) -> Vec<Vec<u8>> {
    let (mut envelope, message) = Envelope::split(request).unwrap();
    let (mut header, _) = Header::split(message).unwrap();
    (header.response_code, header.body_len) = (code, u32::try_from(body.len()).unwrap());
    let message = [&header.to_bytes(), body, &[0; 4]].concat();
    envelope.message_len = u32::try_from(message.len()).unwrap();
    if message.len() > 492 {
        envelope.flags = EnvelopeFlags::TRUNCATED;
    }
    (0..)
        .zip(message.chunks(492))
        .map(|(sequence, data)| [&Envelope { sequence, ..envelope }.to_bytes(), data].concat())
        .collect()
}

fn options(choice: DatapathChoice, target: SocketAddr) -> RunOptions {
    let handles = (0..50).map(|i| format!("10.5072/{i}").into_bytes()).collect();
    RunOptions {
        load: LoadPattern::Open { rate: NonZeroU64::new(1000).unwrap() },
        duration: Duration::from_millis(500),
        timeout: TIMEOUT,
        threads: 2,
        datapath: choice,
        ..RunOptions::new(target, NameOptions::List(handles))
    }
}

fn run_reporting(options: &RunOptions) -> RunReport {
    run(options, |second| {
        eprintln!("{second}");
        ControlFlow::Continue(())
    })
    .unwrap()
}

/// Misbehaves by the number of the request: of each twenty, thirteen are answered normally.
fn misbehave(number: u64, request: &[u8]) -> Vec<(Duration, Vec<u8>)> {
    let plain = || answer(request, ResponseCode::SUCCESS, &[0; 60]).remove(0);
    let now = |bytes| (Duration::ZERO, bytes);
    match number % 20 {
        0 => vec![],
        1 => vec![now(plain()), now(plain()), now(plain())],
        2 => vec![(LATE, plain())],
        3 => {
            let mut bytes = plain();
            // A body longer than the message.
            bytes[41] = 0x7f;
            vec![now(bytes)]
        }
        4 => vec![now(answer(request, ResponseCode::HANDLE_NOT_FOUND, &[0; 4]).remove(0))],
        5 => {
            let mut pieces = answer(request, ResponseCode::SUCCESS, &[7; 3000]);
            pieces.rotate_left(2);
            pieces.push(pieces[0].clone());
            pieces.into_iter().map(now).collect()
        }
        6 => {
            let mut bytes = plain();
            bytes[8] ^= 0x20;
            vec![now(bytes), now(plain()), now(b"noise".to_vec())]
        }
        _ => vec![now(plain())],
    }
}

fn counts_what_happened_exactly(choice: DatapathChoice) {
    let server = RunServer::start(misbehave);
    let report = run_reporting(&options(choice, server.address));
    let accounts = &report.accounts;
    let codes: Vec<_> = accounts.codes.iter().map(|code| (code.code, code.count)).collect();
    assert_eq!((accounts.scheduled, accounts.sent, accounts.not_sent), (500, 500, 0), "{report}");
    assert_eq!((accounts.lost, accounts.late, accounts.answered), (25, 25, 450), "{report}");
    assert_eq!((codes, accounts.malformed), (vec![(1, 400), (100, 25)], 25), "{report}");
    assert_eq!(accounts.truncated, 0, "{report}");
    assert_eq!((accounts.duplicates, accounts.unmatched), (50, 50), "{report}");
    assert_eq!(accounts.fragment_duplicates, 25, "{report}");
    // Eighteen of twenty are one datagram, or none, and so on.
    assert_eq!(accounts.datagrams, 25 * (3 + 1 + 1 + 1 + 8 + 3 + 13), "{report}");
    assert_eq!(report.response_ns.count, 450);
    assert_eq!(report.schedule_error_ns.count, 500);
    assert_eq!(report.seconds.iter().map(|second| second.sent).sum::<u64>(), 500);
    assert_eq!(report.seconds.last().unwrap().lost_so_far, 25);
}

fn a_closed_loop_counts_as_exactly(choice: DatapathChoice) {
    let server = RunServer::start(misbehave);
    let options = RunOptions { load: LoadPattern::Closed { window: 3 }, ..options(choice, server.address) };
    let report = run_reporting(&options);
    let accounts = &report.accounts;
    assert_eq!(accounts.scheduled, accounts.sent);
    let of_each_20 = |at| accounts.sent.saturating_sub(at).div_ceil(20);
    assert_eq!((accounts.lost, accounts.late), (of_each_20(0), of_each_20(2)), "{report}");
    assert_eq!(accounts.malformed, of_each_20(3), "{report}");
    assert_eq!(accounts.duplicates, 2 * of_each_20(1), "{report}");
    assert_eq!(report.schedule_error_ns.count, 0, "there is no schedule");
    assert!(report.to_string().contains("closed loop"), "{report}");
}

fn a_silent_server_is_reported(choice: DatapathChoice) {
    // Bound, so that no other process gets the port, and silent.
    let silent = UdpSocket::bind(LOOPBACK).unwrap();
    let options = RunOptions {
        duration: Duration::from_millis(20),
        timeout: Duration::from_millis(50),
        ..options(choice, silent.local_addr().unwrap())
    };
    let report = run_reporting(&options);
    assert_eq!((report.accounts.sent, report.accounts.lost), (20, 20));
    assert!(report.invalid.iter().any(|reason| reason.contains("no answer from")), "{report}");
}

fn stops_early_and_counts_the_rest(choice: DatapathChoice) {
    let server = RunServer::start(|_, request| {
        vec![(Duration::ZERO, answer(request, ResponseCode::SUCCESS, &[]).remove(0))]
    });
    let options = RunOptions { duration: Duration::from_secs(60), ..options(choice, server.address) };
    let report = run(&options, |_| ControlFlow::Break(())).unwrap();
    let accounts = &report.accounts;
    assert_eq!(accounts.scheduled, 60_000);
    assert_eq!(accounts.sent + accounts.behind_schedule, 60_000);
    assert!((900..10_000).contains(&accounts.sent), "{report}");
    assert!(report.invalid.contains(&"stopped early".to_owned()), "{report}");
    assert!(
        report.invalid.iter().all(|reason| !reason.contains("not sent")),
        "unsent requests of a stopped run are not a fault: {report}"
    );
}

fn measures_a_limit(choice: DatapathChoice) {
    let options = LimitOptions {
        request_len: 64,
        answer_len: 180,
        duration: Duration::from_millis(200),
        window: 32,
        datapath: choice,
        cores: None,
    };
    let report = limit(&options, |_| ControlFlow::Continue(())).unwrap();
    assert!(report.answers_per_s > 1000.0, "{report}");
    let file = tempfile::NamedTempFile::new().unwrap();
    serde_json::to_writer(&file, &report).unwrap();
    let read = LimitReport::read(file.path()).unwrap();
    assert_eq!(read.sent, report.sent);
    let error = limit(&LimitOptions { request_len: 60, ..options }, |_| ControlFlow::Continue(()));
    assert!(matches!(error, Err(Error::Option(_))));
}

/// With more or fewer addresses than threads, the server sees all addresses, and each thread has a
/// port.
fn sends_from_the_requested_number_of_addresses(choice: DatapathChoice) {
    for (sources, threads) in [(40, 3), (2, 3)] {
        let peers = Arc::<Mutex<BTreeMap<SocketAddr, u64>>>::default();
        let noted = Arc::clone(&peers);
        let server = RunServer::start_seeing(move |_, from, request| {
            *noted.lock().unwrap().entry(from).or_default() += 1;
            at_once(answer(request, ResponseCode::SUCCESS, &[0; 60]))
        });
        let cores = handle_net::usable_cores().unwrap();
        let options = RunOptions { sources, threads, cores, ..options(choice, server.address) };
        let report = run_reporting(&options);
        assert_eq!((report.accounts.answered, report.setting.sources), (500, sources), "{report}");
        let peers = peers.lock().unwrap();
        let addresses: BTreeSet<_> = peers.keys().map(SocketAddr::ip).collect();
        let expected: BTreeSet<IpAddr> =
            (2..).take(usize::from(sources)).map(|last: u8| [127, 0, 0, last].into()).collect();
        assert_eq!(addresses, expected);
        let ports: BTreeSet<_> = peers.keys().map(SocketAddr::port).collect();
        assert_eq!(ports.len(), threads, "{peers:?}");
        assert_eq!(
            peers.len(),
            usize::from(sources).max(threads),
            "each address belongs to one thread: {peers:?}"
        );
        let (min, max) = (peers.values().min(), peers.values().max());
        assert!(max <= min.map(|min| 2 * min).as_ref(), "{peers:?}");
    }
}

/// With a server that answers 300 requests per second and drops the others, a rate near this limit
/// is found.
#[test]
fn the_highest_rate_is_that_of_the_server() {
    const LIMIT: f64 = 300.0;
    let (started, mut taken) = (Instant::now(), 0.0);
    let server = RunServer::start(move |_, request| {
        // Unused capacity is not kept for later.
        let earned = started.elapsed().as_secs_f64() * LIMIT;
        taken = f64::max(taken, earned - 10.0);
        if taken + 1.0 > earned {
            return vec![];
        }
        taken += 1.0;
        at_once(answer(request, ResponseCode::SUCCESS, &[0; 60]))
    });
    let search = Search {
        rate_min: 50,
        rate_max: 100_000,
        loss_max: 0.1,
        p99_max: Duration::from_secs(1),
        precision: 0.1,
        trial: Duration::from_millis(400),
        confirm: Duration::from_millis(600),
        repeat: 3,
    };
    let options = options(DatapathChoice::Auto, server.address);
    let mut trials = 0;
    let found = find_max(
        &search,
        |rate, duration| {
            let load = LoadPattern::Open { rate: NonZeroU64::new(rate).unwrap() };
            run(&RunOptions { load, duration, threads: 1, ..options.clone() }, |_| ControlFlow::Continue(()))
        },
        |trial, is_good| {
            trials += 1;
            eprintln!("{trial} {is_good}");
        },
    )
    .unwrap();
    // With the permitted loss and the answered burst. A loaded machine may find less.
    let rate = found.rate.expect("the lowest rates are good");
    assert!((50..=400).contains(&rate), "{found}");
    assert_eq!(found.confirmations.len(), 3, "{found}");
    assert_eq!(trials, found.trials.len() + found.confirmations.len(), "{found}");
    let (low, high) = found.answered_per_s.unwrap();
    assert!(low <= high && high <= 400.0, "{found}");
    // Unless the generator was late before the server lost any request.
    let was_too_high = found.trials.iter().any(|trial| trial.loss > 0.1);
    assert!(was_too_high || found.bound == RateBound::Generator, "{found}");
    assert!(found.to_string().contains("3 runs: "), "{found}");
}

fn unix_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// Publishes a set of sixty handles the first time, and changes every third of them later.
///
/// Some answers take several datagrams, and one handle comes and goes.
fn publish(publisher: &mut SetPublisher, number: usize) {
    let is_base = publisher.manifest().is_none();
    let first = LayerOptions { seed: 9, folds: true, created_unix_ms: unix_ms() };
    let layer_options = publisher.options(unix_ms()).unwrap_or(first);
    let build = |file, temp: &Path| {
        let mut builder = Builder::new(temp, layer_options);
        if is_base {
            let mut homed = HomedPrefixes::default();
            homed.add(b"10.5072");
            builder = builder.homed(homed);
        }
        for i in (0..60).filter(|i| is_base || i % 3 == 0) {
            let handle = format!("10.5072/Handle-{i}");
            let url = format!("https://example.org/{i}/{number}").repeat(1 + i % 7 * 4);
            if i == 57 && number % 2 == 1 {
                builder.delete(0, handle.as_bytes())?;
            } else {
                let values = [Value::new(1, b"URL", url.as_bytes()), Value::new(2, b"URL", b"same")];
                builder.add(0, handle.as_bytes(), values)?;
            }
        }
        builder.finish(file)
    };
    if is_base {
        publisher.publish_base(unix_ms(), build).unwrap();
    } else {
        publisher.publish_delta(unix_ms(), build).unwrap();
    }
}

/// The right answer from `set`.
fn answer_from(set: &PublishedSet, request: &[u8]) -> Vec<Vec<u8>> {
    let message = Message::decode(&request[Envelope::LEN..]).unwrap();
    let handle = Query::decode(message.body).unwrap().handle;
    let mut key = handle.to_vec();
    fold_key(&mut key, set.records().folds());
    match set.records().find(hash_key(set.layers()[0].seed(), &key), &key).unwrap() {
        None => answer(request, ResponseCode::HANDLE_NOT_FOUND, &[0; 4]),
        Some(record) => {
            let len = |len: usize| u32::try_from(len).unwrap().to_be_bytes();
            let body =
                [&len(handle.len()), handle, &len(record.public_count()), record.public_bytes()].concat();
            answer(request, ResponseCode::SUCCESS, &body)
        }
    }
}

fn at_once(datagrams: Vec<Vec<u8>>) -> Vec<(Duration, Vec<u8>)> {
    datagrams.into_iter().map(|bytes| (Duration::ZERO, bytes)).collect()
}

fn verified(choice: DatapathChoice, target: SocketAddr, dir: &Path) -> RunOptions {
    RunOptions {
        names: NameOptions::Snapshot(dir.to_owned()),
        verify: Some(Verify::with(ReferenceData::Snapshot(dir.to_owned()))),
        ..options(choice, target)
    }
}

fn verifies_while_sets_are_published(choice: DatapathChoice) {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = SetPublisher::open(dir.path()).unwrap();
    publish(&mut publisher, 0);
    let mut set = PublishedSet::open(dir.path(), LoadMode::Map).unwrap();
    let server = RunServer::start(move |_, request| {
        set = PublishedSet::reopen(&set).unwrap();
        at_once(answer_from(&set, request))
    });
    let options =
        RunOptions { duration: Duration::from_secs(1), ..verified(choice, server.address, dir.path()) };
    let report = thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..15 {
                thread::sleep(Duration::from_millis(50));
                publish(&mut publisher, number);
            }
        });
        run_reporting(&options)
    });
    let verification = report.verification.as_ref().unwrap();
    let accounts = &report.accounts;
    assert_eq!((accounts.sent, accounts.lost, verification.mismatched), (1000, 0, 0), "{report}");
    assert_eq!(verification.verified + verification.undecided, 1000, "{report}");
    assert!(verification.generations + verification.generations_missed > 5, "{report}");
    if verification.generations_missed == 0 {
        assert_eq!(verification.undecided, 0, "{report}");
        // On a loaded machine the generator may have been late.
        assert!(report.invalid.iter().all(|reason| reason.ends_with("behind schedule")), "{report}");
    }
    assert_eq!(report.setting.handles, 60);
    let codes: Vec<_> = accounts.codes.iter().map(|code| code.code).collect();
    assert!(codes == [1, 100] || codes == [1], "{report}");
}

fn wrong_and_stale_answers_are_mismatches(choice: DatapathChoice) {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = SetPublisher::open(dir.path()).unwrap();
    publish(&mut publisher, 0);
    let set = PublishedSet::open(dir.path(), LoadMode::Map).unwrap();
    let of_server = set.clone();
    let server = RunServer::start(move |number, request| {
        let mut datagrams = answer_from(&of_server, request);
        if number % 10 == 9 {
            // The index of the first value, after the handle and the count.
            let handle_len = usize::from(request[47]);
            datagrams[0][48 + handle_len + 4 + 3] ^= 0x40;
        }
        at_once(datagrams)
    });
    let options = verified(choice, server.address, dir.path());
    let report = run_reporting(&options);
    let verification = report.verification.as_ref().unwrap();
    assert_eq!((verification.verified, verification.mismatched), (450, 50), "{report}");
    assert_eq!(verification.mismatches.len(), 8);
    assert!(report.invalid.contains(&"wrong answers: 50 of 500".to_owned()), "{report}");
    drop(server);

    let server = RunServer::start(move |_, request| at_once(answer_from(&set, request)));
    let options =
        RunOptions { duration: Duration::from_secs(1), ..verified(choice, server.address, dir.path()) };
    let report = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(200));
            publish(&mut publisher, 1);
        });
        run_reporting(&options)
    });
    let verification = report.verification.as_ref().unwrap();
    assert!(verification.mismatched > 0 && verification.verified > 600, "{report}");
    for mismatch in &verification.mismatches {
        assert!(mismatch.difference.starts_with("from a set that had been replaced"), "{report}");
    }
}
