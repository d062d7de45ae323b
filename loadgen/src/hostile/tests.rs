use super::*;
use crate::load::question::GeneratedQuestion;
use handle_proto::wire::{Envelope, Header};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Answers requests as a server does, until it is dropped; `bug` decides how a datagram breaks it.
struct Responder {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ServerBug {
    None,
    /// It receives nothing for a while, as during a restart.
    Crash,
    /// It answers with a body that is longer than the message.
    Unsound,
    /// It never answers again.
    Death,
}

impl Responder {
    fn start(bug: fn(&[u8]) -> ServerBug) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let (address, stop) = (socket.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let (mut buffer, mut is_dead) = ([0; 2048], false);
            let mut missed = 0;
            while !stopped.load(Ordering::Relaxed) {
                let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
                if is_dead || missed > 0 {
                    missed -= i32::from(missed > 0);
                    continue;
                }
                let found = bug(&buffer[..len]);
                match found {
                    // All three probes.
                    ServerBug::Crash => missed = 3,
                    ServerBug::Death => is_dead = true,
                    _ if GeneratedQuestion::of_message(&buffer[..len]).is_some()
                        || found == ServerBug::Unsound =>
                    {
                        let mut answer = buffer[..len].to_vec();
                        answer[27] = 100;
                        let len = u32::try_from(len - Envelope::LEN).unwrap();
                        answer[16..20].copy_from_slice(&len.to_be_bytes());
                        if found == ServerBug::Unsound {
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

/// Long enough for a healthy server on a loaded machine; each attempt takes three of them.
const TIMEOUT: Duration = Duration::from_millis(40);

fn attack(bug: fn(&[u8]) -> ServerBug, cases: u64) -> HostileReport {
    attack_within(bug, cases, TIMEOUT)
}

fn attack_within(bug: fn(&[u8]) -> ServerBug, cases: u64, timeout: Duration) -> HostileReport {
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
    let report = attack_within(|_| ServerBug::None, 300, Duration::from_secs(5));
    assert!(report.findings.is_empty(), "{report}");
    assert_eq!(report.kinds.iter().map(|count| count.cases).sum::<u64>(), 300);
    assert!(report.kinds.iter().map(|count| count.answered).sum::<u64>() > 10, "{report}");
    assert!(report.to_string().contains("after each case"));
}

/// The rules that build servers rely on: numbers agree with the elements, each test has a name and
/// a class, and at most one failure.
#[test]
fn the_verdict_is_junit_xml() {
    let finding = |kind, fault| HostileFinding {
        case: 7,
        kind,
        fault,
        is_repeatable: true,
        is_dead: false,
        datagrams_hex: vec!["00ff".to_owned()],
        minimal_hex: Some(vec!["ff".to_owned()]),
    };
    let mut report =
        HostileReport::new(&HostileOptions::new(([127, 0, 0, 1], 2641).into(), b"10.1/a".to_vec()));
    report.duration_s = 2.5;
    (0..9).for_each(|_| report.count(KINDS[0], true));
    report.findings = vec![
        finding(KINDS[0], ServerFault::Silent),
        finding(KINDS[0], ServerFault::Unsound),
        finding(KINDS[1], ServerFault::Silent),
    ];
    let xml = report.junit();
    let document = roxmltree::Document::parse(&xml).unwrap();
    let root = document.root_element();
    assert!(root.has_tag_name("testsuites"), "{xml}");
    let suites: Vec<_> = root.children().filter(roxmltree::Node::is_element).collect();
    assert!(suites.len() == 1 && suites[0].has_tag_name("testsuite"), "{xml}");
    let cases: Vec<_> = suites[0].children().filter(|node| node.has_tag_name("testcase")).collect();
    let number =
        |node: &roxmltree::Node<'_, '_>, name| node.attribute(name).unwrap().parse::<usize>().unwrap();
    for node in [&root, &suites[0]] {
        assert_eq!((number(node, "tests"), cases.len()), (KINDS.len(), KINDS.len()));
        assert_eq!((number(node, "failures"), number(node, "errors")), (2, 0));
        assert_eq!(node.attribute("time"), Some("2.500"));
    }
    let names: std::collections::BTreeSet<_> =
        cases.iter().map(|case| case.attribute("name").unwrap()).collect();
    assert_eq!(names.len(), KINDS.len(), "names of tests repeat");
    let failures: Vec<_> = cases
        .iter()
        .map(|case| case.children().filter(|node| node.has_tag_name("failure")).count())
        .collect();
    assert_eq!((failures[0], failures[1], failures[2..].iter().sum::<usize>()), (1, 1, 0), "{xml}");
    let failure = cases[0].first_element_child().unwrap();
    assert!(failure.attribute("message").unwrap().contains("2 findings") && failure.has_attribute("type"));
    assert_eq!(failure.text().unwrap().trim().lines().count(), 2, "a finding does not have one line: {xml}");
    assert_eq!(cases[0].attribute("classname"), Some("handle-loadgen.hostile"));
    assert!(suites[0].attribute("timestamp").unwrap().len() == "2026-11-20T20:53:00".len(), "{xml}");
    assert_eq!(cases[0].attribute("time"), Some("0"), "most readers require a time");
}

/// The seeded bug: a handle whose length has its highest bit set.
fn negative_length(datagram: &[u8]) -> ServerBug {
    if datagram.get(44).is_some_and(|byte| byte & 0x80 != 0) { ServerBug::Crash } else { ServerBug::None }
}

#[test]
fn a_seeded_bug_is_found_and_minimised() {
    let report = attack(negative_length, 3000);
    let finding = &report.findings[0];
    assert_eq!((finding.fault, finding.is_repeatable, finding.is_dead), (ServerFault::Silent, true, false));
    let minimal = finding.minimal_hex.as_ref().unwrap();
    let bytes = data_encoding::HEXLOWER.decode(minimal[0].as_bytes()).unwrap();
    assert!(negative_length(&bytes) == ServerBug::Crash, "the minimised case does not break the server");
    assert_eq!(
        (minimal.len(), bytes.len()),
        (1, 45),
        "bytes after the last needed one are left: {minimal:?}"
    );
    assert!(
        bytes[..44].iter().all(|byte| *byte == 0),
        "unneeded bytes before it are not cleared: {minimal:?}"
    );
    let xml = report.junit();
    let document = roxmltree::Document::parse(&xml).unwrap();
    let failure = document.descendants().find(|node| node.has_tag_name("failure")).unwrap();
    assert!(failure.text().unwrap().contains(&minimal[0]), "{xml}");
}

#[test]
fn an_answer_that_cannot_be_read_is_a_finding() {
    let is_one = |datagram: &[u8]| {
        let asks = GeneratedQuestion::of_message(datagram)
            .is_some_and(|question| question.handle.starts_with(b"0.NA/"));
        if asks { ServerBug::Unsound } else { ServerBug::None }
    };
    let report = attack(is_one, 5000);
    assert_eq!(report.findings[0].fault, ServerFault::Unsound, "{report}");
}

#[test]
fn a_server_that_does_not_recover_ends_the_run() {
    let report = attack(
        |datagram| {
            if datagram.len() < Envelope::LEN + Header::LEN { ServerBug::Death } else { ServerBug::None }
        },
        3000,
    );
    assert!(report.findings[0].is_dead && report.findings[0].minimal_hex.is_none(), "{report}");
    assert!(report.to_string().contains("did not recover"), "{report}");
}

#[test]
fn cases_are_paced_and_the_search_ends_with_the_time() {
    let responder = Responder::start(|_| ServerBug::None);
    let private = HostileOptions::new(responder.address, b"10.1/a".to_vec());
    let slow = HostileOptions { cases: 5, rate: 20, ..private.clone() };
    let report = hostile(&slow, |_| ControlFlow::Continue(())).unwrap();
    assert!(report.duration_s >= 0.2, "four gaps of 50 ms: {}", report.duration_s);
    // The bug hits all cases except the probe: minimising one takes hundreds of attempts of a
    // second each.
    let responder = Responder::start(|datagram| match GeneratedQuestion::of_message(datagram) {
        Some(question) if question.handle == b"10.1/a" => ServerBug::None,
        _ => ServerBug::Crash,
    });
    let options = HostileOptions { rate: 1, duration: Duration::from_secs(3), timeout: TIMEOUT, ..private };
    let options = HostileOptions { target: responder.address, ..options };
    let report = hostile(&options, |_| ControlFlow::Continue(())).unwrap();
    assert!(report.duration_s < 60.0, "{}", report.duration_s);
    assert!(report.findings.iter().all(|finding| !finding.is_dead), "{report}");
}

#[test]
fn only_private_addresses_without_permission() {
    // Each range at both ends, and the addresses next to them.
    for (address, private) in [
        ("9.255.255.255", false),
        ("10.0.0.0", true),
        ("10.255.255.255", true),
        ("11.0.0.0", false),
        ("100.64.0.1", false),
        ("126.255.255.255", false),
        ("127.0.0.0", true),
        ("127.255.255.255", true),
        ("128.0.0.0", false),
        ("169.253.255.255", false),
        ("169.254.0.0", true),
        ("169.254.255.255", true),
        ("169.255.0.0", false),
        ("172.15.255.255", false),
        ("172.16.0.0", true),
        ("172.31.255.255", true),
        ("172.32.0.0", false),
        ("192.167.255.255", false),
        ("192.168.0.0", true),
        ("192.168.255.255", true),
        ("192.169.0.0", false),
        ("0.0.0.0", false),
        ("8.8.8.8", false),
        ("224.0.0.1", false),
        ("255.255.255.255", false),
        ("::", false),
        ("::1", true),
        ("::2", false),
        ("::10.0.0.1", false),
        ("64:ff9b::10.0.0.1", false),
        ("2001:db8::1", false),
        ("fbff:ffff::1", false),
        ("fc00::", true),
        ("fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", true),
        ("fe00::", false),
        ("fe7f::1", false),
        ("fe80::", true),
        ("febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff", true),
        ("fec0::", false),
        ("ff02::1", false),
        ("::ffff:10.0.0.1", true),
        ("::ffff:127.0.0.1", true),
        ("::ffff:172.32.0.0", false),
        ("::ffff:8.8.8.8", false),
    ] {
        assert_eq!(is_private(address.parse().unwrap()), private, "{address}");
    }
    let options = HostileOptions::new(([192, 0, 2, 1], 2641).into(), b"10.1/a".to_vec());
    let error = hostile(&options, |_| ControlFlow::Continue(())).unwrap_err().to_string();
    assert!(error.contains("--i-am-allowed-to"), "{error}");
}
