use super::*;
use crate::question::Question;
use handle_proto::wire::{Envelope, Header};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Answers requests as a server does, until it is dropped; `bug` says what a datagram does to it.
struct Responder {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// It misses what comes next, as when it is started again.
    Crash,
    /// It answers with a body that is longer than the message.
    Unsound,
    /// It never answers again.
    Death,
}

impl Responder {
    fn start(bug: fn(&[u8]) -> Bug) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let (address, stop) = (socket.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let (mut room, mut is_dead) = ([0; 2048], false);
            let mut missed = 0;
            while !stopped.load(Ordering::Relaxed) {
                let Ok((len, from)) = socket.recv_from(&mut room) else { continue };
                if is_dead || missed > 0 {
                    missed -= i32::from(missed > 0);
                    continue;
                }
                let found = bug(&room[..len]);
                match found {
                    // All three probes.
                    Bug::Crash => missed = 3,
                    Bug::Death => is_dead = true,
                    _ if Question::of_message(&room[..len]).is_some() || found == Bug::Unsound => {
                        let mut answer = room[..len].to_vec();
                        answer[27] = 100;
                        let len = u32::try_from(len - Envelope::LEN).unwrap();
                        answer[16..20].copy_from_slice(&len.to_be_bytes());
                        if found == Bug::Unsound {
                            answer[40] = 0x7f;
                        }
                        socket.send_to(&answer, from).unwrap();
                    }
                    _ => {}
                }
            }
        });
        Self { address, stop, thread: Some(thread) }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

/// Long enough for a healthy server on a busy machine, and three of them for each attempt to break it.
const TIMEOUT: Duration = Duration::from_millis(40);

fn go(bug: fn(&[u8]) -> Bug, cases: u64) -> HostileReport {
    go_within(bug, cases, TIMEOUT)
}

fn go_within(bug: fn(&[u8]) -> Bug, cases: u64, timeout: Duration) -> HostileReport {
    let responder = Responder::start(bug);
    let options = HostileOptions {
        cases,
        rate: 100_000,
        timeout,
        recovery: Duration::from_secs(1),
        findings_max: 1,
        ..HostileOptions::new(responder.address, b"10.1/a".to_vec())
    };
    hostile(&options, |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn a_sound_server_has_no_findings() {
    let report = go_within(|_| Bug::None, 300, Duration::from_secs(5));
    assert!(report.findings.is_empty(), "{report}");
    assert_eq!(report.kinds.iter().map(|count| count.cases).sum::<u64>(), 300);
    assert!(report.kinds.iter().map(|count| count.answered).sum::<u64>() > 10, "{report}");
    assert!(report.to_string().contains("after each of them"));
}

/// The bug that is seeded: a handle whose length has its highest bit set.
fn negative_length(datagram: &[u8]) -> Bug {
    if datagram.get(44).is_some_and(|byte| byte & 0x80 != 0) { Bug::Crash } else { Bug::None }
}

#[test]
fn a_seeded_bug_is_found_and_minimised() {
    let report = go(negative_length, 3000);
    let finding = &report.findings[0];
    assert_eq!((finding.fault, finding.is_repeatable, finding.is_dead), (Fault::Silent, true, false));
    let minimal = finding.minimal_hex.as_ref().unwrap();
    let bytes = data_encoding::HEXLOWER.decode(minimal[0].as_bytes()).unwrap();
    assert!(negative_length(&bytes) == Bug::Crash, "it still breaks the server");
    assert_eq!((minimal.len(), bytes.len()), (1, 45), "nothing behind the byte is needed: {minimal:?}");
    assert!(bytes[..44].iter().all(|byte| *byte == 0), "nor what is before it: {minimal:?}");
    let xml = report.junit();
    assert!(xml.contains("failures=\"1\"") && xml.contains(&minimal[0]), "{xml}");
}

#[test]
fn an_answer_that_cannot_be_read_is_a_finding() {
    let is_one = |datagram: &[u8]| {
        let asks =
            Question::of_message(datagram).is_some_and(|question| question.handle.starts_with(b"0.NA/"));
        if asks { Bug::Unsound } else { Bug::None }
    };
    let report = go(is_one, 5000);
    assert_eq!(report.findings[0].fault, Fault::Unsound, "{report}");
}

#[test]
fn a_server_that_stays_away_ends_it() {
    let report = go(
        |datagram| if datagram.len() < Envelope::LEN + Header::LEN { Bug::Death } else { Bug::None },
        3000,
    );
    assert!(report.findings[0].is_dead && report.findings[0].minimal_hex.is_none(), "{report}");
    assert!(report.to_string().contains("did not come back"), "{report}");
}

#[test]
fn cases_are_paced_and_the_search_ends_with_the_time() {
    let responder = Responder::start(|_| Bug::None);
    let private = HostileOptions::new(responder.address, b"10.1/a".to_vec());
    let slow = HostileOptions { cases: 5, rate: 20, ..private.clone() };
    let report = hostile(&slow, |_| ControlFlow::Continue(())).unwrap();
    assert!(report.duration_s >= 0.2, "four gaps of 50 ms: {}", report.duration_s);
    // A bug in all cases but the probe: to minimise one of them takes hundreds of attempts, a second each.
    let responder = Responder::start(|datagram| match Question::of_message(datagram) {
        Some(question) if question.handle == b"10.1/a" => Bug::None,
        _ => Bug::Crash,
    });
    let options = HostileOptions { rate: 1, duration: Duration::from_secs(3), timeout: TIMEOUT, ..private };
    let options = HostileOptions { target: responder.address, ..options };
    let report = hostile(&options, |_| ControlFlow::Continue(())).unwrap();
    assert!(report.duration_s < 60.0, "{}", report.duration_s);
    assert!(report.findings.iter().all(|finding| !finding.is_dead), "{report}");
}

#[test]
fn only_private_addresses_without_permission() {
    for (address, private) in [
        ("127.0.0.1", true),
        ("10.1.2.3", true),
        ("192.168.0.9", true),
        ("172.31.0.1", true),
        ("169.254.0.1", true),
        ("::1", true),
        ("fd00::1", true),
        ("fe80::1", true),
        ("::ffff:10.0.0.1", true),
        ("8.8.8.8", false),
        ("172.32.0.1", false),
        ("2001:db8::1", false),
        ("::ffff:8.8.8.8", false),
    ] {
        assert_eq!(is_private(address.parse().unwrap()), private, "{address}");
    }
    let options = HostileOptions::new(([192, 0, 2, 1], 2641).into(), b"10.1/a".to_vec());
    let error = hostile(&options, |_| ControlFlow::Continue(())).unwrap_err().to_string();
    assert!(error.contains("--i-am-allowed-to"), "{error}");
}
