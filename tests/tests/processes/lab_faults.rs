//! Faulty servers and sites in the lab. The answer comes from another server within the steps that
//! `docs/resolution.md` names, and false answers are detected where signatures are requested.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_client::driver::now;
use handle_client::exchange::AttemptError;
use handle_client::lookup::{Client, LookupOptions};
use handle_client::question::AnswerWants;
use handle_client::trace::{LookupEvent, LookupStep};
use handle_client::{BlockingDriver, LookupError, Question};
use handle_proto::Handle;
use handle_proto::data::site::{InterfaceProtocol, SiteBuf};
use handle_tests::lab::LabProcess;
use handle_tests::liar::{ForgedAnswer, LiarServer};
use handle_tests::process::{fail, succeed};
use handle_tests::records::{self, Record};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The lab of tests that do not change it.
fn lab() -> &'static LabProcess {
    static LAB: OnceLock<LabProcess> = OnceLock::new();
    LAB.get_or_init(LabProcess::up)
}

fn certified(handle: &str) -> Question {
    let wants = AnswerWants { certified: true, ..AnswerWants::default() };
    Question { wants, ..Question::all(handle.as_bytes()) }
}

const TRACED: LookupOptions = LookupOptions {
    keeps_answer: true,
    use_cache: true,
    target: handle_client::lookup::LookupTarget::Responsible,
    identity: None,
    session_timeout_s: None,
    recursion_count: 0,
    allows_recursion: true,
    allowances: handle_client::Allowances::NONE,
    aliases_max: 0,
    trace: true,
    service_only: false,
};

/// The servers that failed for the handle itself, with the errors.
fn failed(events: &[LookupEvent]) -> Vec<(SocketAddr, AttemptError)> {
    let of_handle = events.iter().filter(|event| event.depth == 0);
    of_handle
        .filter_map(|event| match &event.step {
            LookupStep::Failed { target, error, .. } => Some((target.address, *error)),
            _ => None,
        })
        .collect()
}

/// Number of requests sent for the handle itself.
fn sent_count(events: &[LookupEvent]) -> usize {
    events.iter().filter(|event| event.depth == 0 && matches!(event.step, LookupStep::Asked { .. })).count()
}

/// The server of each site that is responsible for a handle.
fn responsible(lab: &LabProcess, handle: &str) -> [SocketAddr; 3] {
    ["primary", "secondary", "mirror"].map(|site| {
        let at = lab.site(site).view().server_at(Handle(handle.as_bytes())).unwrap();
        lab.addresses(site)[at]
    })
}

/// Makes `first` the preferred server.
fn prefer(client: &Client, lab: &LabProcess, handle: &str, first: SocketAddr) {
    for server in responsible(lab, handle).into_iter().filter(|&server| server != first) {
        client.times.note(server, 30_000, now());
    }
}

/// The site with its first server at another address and only with these protocols.
fn moved(site: &SiteBuf, to: SocketAddr, protocols: &[InterfaceProtocol]) -> SiteBuf {
    let mut site = site.edit();
    let server = &mut site.servers[0];
    server.address = to.ip().into();
    server.interfaces.retain(|interface| protocols.contains(&interface.protocol));
    server.interfaces.iter_mut().for_each(|interface| interface.port_number = to.port().into());
    site.build()
}

/// A client that knows two sites of the service: one at `to`, which is asked first, and an
/// unmodified one.
fn client_of(lab: &LabProcess, to: SocketAddr, protocols: &[InterfaceProtocol]) -> Client {
    let mut client = lab.client();
    client.preferences.protocols = protocols.to_vec();
    client.overrides.add(b"0.NA/10.1016", moved(&lab.site("mirror"), to, protocols));
    client.overrides.add(b"0.NA/10.1016", lab.site("secondary"));
    lab.addresses("secondary").into_iter().for_each(|server| client.times.note(server, 30_000, now()));
    client
}

fn elsevier_records() -> impl Iterator<Item = Record> {
    records::load().into_iter().filter(|record| record.handle.starts_with("10.1016/"))
}

#[test]
fn false_answers_are_detected_and_another_site_answers() {
    let lab = lab();
    let truth = lab.addresses("mirror")[0];
    let is_signature = |error| matches!(error, AttemptError::Signature(_));
    let is_silence = |error| error == AttemptError::Silence;
    let is_other = |error| matches!(error, AttemptError::NotOurs(_));
    let lies: [(ForgedAnswer, &dyn Fn(AttemptError) -> bool); 12] = [
        (ForgedAnswer::Changed, &is_signature),
        (ForgedAnswer::Unsigned, &is_signature),
        (ForgedAnswer::Replayed, &is_signature),
        // Answers to other requests are ignored, because anybody can send them.
        (ForgedAnswer::OtherRequest, &is_silence),
        (ForgedAnswer::Garbage, &is_silence),
        (ForgedAnswer::Silent, &is_silence),
        (ForgedAnswer::Late(Duration::from_millis(1_500)), &is_silence),
        (ForgedAnswer::WrongDigest, &|error| error == AttemptError::Digest),
        (ForgedAnswer::Expired, &|error| error == AttemptError::Expired),
        (ForgedAnswer::OtherHandle, &is_other),
        (ForgedAnswer::OtherOperation, &is_other),
        (ForgedAnswer::Request, &is_other),
    ];
    for (lie, is_expected) in lies {
        let liar = LiarServer::start(truth, &lab.key_file("mirror"), lie);
        let mut client = client_of(lab, liar.address, &[InterfaceProtocol::UDP]);
        // The liar is asked twice; more attempts would prove no more.
        client.timeout.udp_ms =
            if is_expected(AttemptError::Silence) { vec![200, 800] } else { vec![20_000] };
        let client = Arc::new(client);
        let mut driver = BlockingDriver::new(Arc::clone(&client));
        let mut records = elsevier_records();
        if lie == ForgedAnswer::Replayed {
            // The first answer is true.
            let first = records.next().unwrap();
            let answer = driver.resolve(&certified(&first.handle), &TRACED).outcome.unwrap();
            assert_eq!(answer.from, Some(liar.address));
            first.assert_is(answer.values());
        }
        let record = records.next().unwrap();
        let resolved = driver.resolve(&certified(&record.handle), &TRACED);
        let answer = resolved.outcome.unwrap();
        record.assert_is(answer.values());
        assert!(answer.certified && lab.addresses("secondary").contains(&answer.from.unwrap()), "{lie:?}");
        let failed = failed(&resolved.events);
        assert!(
            matches!(failed[..], [(at, error)] if at == liar.address && is_expected(error)),
            "{lie:?}: {failed:?}"
        );
        let tries = if is_expected(AttemptError::Silence) { 2 } else { 1 };
        assert_eq!(sent_count(&resolved.events), tries + 1, "{lie:?}");
    }
}

#[test]
fn false_answers_of_the_only_server_are_refused() {
    let lab = lab();
    for lie in [
        ForgedAnswer::Changed,
        ForgedAnswer::Unsigned,
        ForgedAnswer::WrongDigest,
        ForgedAnswer::Expired,
        ForgedAnswer::OtherHandle,
    ] {
        let liar = LiarServer::start(lab.addresses("mirror")[0], &lab.key_file("mirror"), lie);
        let mut client = lab.client();
        let udp = [InterfaceProtocol::UDP];
        client.overrides.add(b"0.NA/10.1016", moved(&lab.site("mirror"), liar.address, &udp));
        let record = elsevier_records().next().unwrap();
        let outcome =
            BlockingDriver::new(Arc::new(client)).resolve(&certified(&record.handle), &TRACED).outcome;
        let error = outcome.unwrap_err();
        assert!(
            matches!(&error, LookupError::AllFailed { attempts: 1, server, .. } if *server == liar.address),
            "{lie:?}: {error}"
        );
    }
}

#[test]
fn a_slow_answer_is_accepted_before_the_time_limit() {
    let lab = lab();
    let late = ForgedAnswer::Late(Duration::from_millis(400));
    let liar = LiarServer::start(lab.addresses("mirror")[0], &lab.key_file("mirror"), late);
    let mut client = client_of(lab, liar.address, &[InterfaceProtocol::UDP]);
    client.timeout.udp_ms = vec![100, 30_000];
    let record = elsevier_records().next().unwrap();
    let resolved = BlockingDriver::new(Arc::new(client)).resolve(&certified(&record.handle), &TRACED);
    let answer = resolved.outcome.unwrap();
    record.assert_is(answer.values());
    assert_eq!((answer.from, sent_count(&resolved.events)), (Some(liar.address), 2));
}

#[test]
fn a_server_that_accepts_connections_and_does_not_answer_is_skipped() {
    let lab = lab();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = client_of(lab, listener.local_addr().unwrap(), &[InterfaceProtocol::TCP]);
    client.timeout.tcp_ms = 2_000;
    let record = elsevier_records().next().unwrap();
    let resolved = BlockingDriver::new(Arc::new(client)).resolve(&certified(&record.handle), &TRACED);
    record.assert_is(resolved.outcome.unwrap().values());
    assert_eq!(failed(&resolved.events), [(listener.local_addr().unwrap(), AttemptError::Silence)]);
}

#[test]
fn all_sites_are_asked_over_udp_before_any_over_tcp() {
    let lab = lab();
    // This address does not answer over UDP, and the real server answers over TCP.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut client = client_of(lab, silent.local_addr().unwrap(), &[InterfaceProtocol::UDP]);
    client.preferences.protocols = vec![InterfaceProtocol::UDP, InterfaceProtocol::TCP];
    client.timeout.udp_ms = vec![200, 800];
    let record = elsevier_records().next().unwrap();
    let resolved = BlockingDriver::new(Arc::new(client)).resolve(&certified(&record.handle), &TRACED);
    let answer = resolved.outcome.unwrap();
    record.assert_is(answer.values());
    let protocols: Vec<_> = resolved
        .events
        .iter()
        .filter_map(|event| match &event.step {
            LookupStep::Asked { target, .. } => Some(target.protocol),
            _ => None,
        })
        .collect();
    assert_eq!(protocols, [InterfaceProtocol::UDP; 3], "twice to the silent one, once to the other");
}

/// Resolves some handles, with one failed request for each responsible server that is down.
fn resolve_some(lab: &LabProcess, case: &str, skip: usize, gone: &[SocketAddr]) {
    let mut client = lab.client();
    client.timeout.tcp_ms = 5_000;
    let mut driver = BlockingDriver::new(Arc::new(client));
    for record in records::load().iter().skip(skip).step_by(90).take(15) {
        let resolved = driver.resolve(&certified(&record.handle), &TRACED);
        let answer = resolved.outcome.unwrap_or_else(|error| panic!("{case}: {}: {error}", record.handle));
        record.assert_is(answer.values());
        let is_gone = |server: &SocketAddr| gone.contains(server);
        let responsible = responsible(lab, &record.handle);
        assert!(answer.from.is_some_and(|from| responsible.contains(&from) && !is_gone(&from)), "{case}");
        // Only responsible servers are asked, those that are down once at most, and no other fails.
        let failed = failed(&resolved.events);
        let gone_count = responsible.iter().filter(|server| is_gone(server)).count();
        assert!(failed.len() <= gone_count, "{case}: {failed:?}");
        assert!(failed.iter().all(|(server, error)| is_gone(server) && *error == AttemptError::Unreachable));
        assert_eq!(sent_count(&resolved.events), failed.len() + 1, "{case}");
    }
}

#[test]
fn any_server_may_be_silent_or_gone() {
    let lab = LabProcess::up();
    for (site, servers_count) in [("primary", 4), ("secondary", 2), ("mirror", 1)] {
        let view = lab.site(site);
        for at in 0..servers_count {
            let records = records::load();
            let is_on_server =
                |record: &&Record| view.view().server_at(Handle(record.handle.as_bytes())) == Some(at);
            let record = records.iter().find(is_on_server).unwrap();
            let server = lab.addresses(site)[at];
            let mut client = lab.client();
            client.timeout.udp_ms = vec![150, 600];
            prefer(&client, &lab, &record.handle, server);
            lab.signal_one(site, at, "STOP");
            let resolved = BlockingDriver::new(Arc::new(client)).resolve(&certified(&record.handle), &TRACED);
            lab.signal_one(site, at, "CONT");
            record.assert_is(resolved.outcome.unwrap().values());
            assert_eq!(failed(&resolved.events), [(server, AttemptError::Silence)]);
            // Twice to the stopped server and once to another, or twice if that is slow to sign.
            assert!((3..=4).contains(&sent_count(&resolved.events)), "{:?}", resolved.events);
        }
    }
    let record = elsevier_records().next().unwrap();
    let authoritative = || lab.hdl(&["resolve", &record.handle, "--authoritative"]);
    succeed(authoritative());
    let mut gone = vec![];
    for (site, servers_count) in [("primary", 4), ("secondary", 2)] {
        for at in 0..servers_count {
            lab.kill(site, at);
            gone.push(lab.addresses(site)[at]);
            resolve_some(&lab, &format!("{site} {} is down", at + 1), gone.len(), &gone);
        }
        // Other sites answer, but not with the authority of a primary one.
        succeed(lab.hdl(&["resolve", &record.handle]));
        let (exit, error) = fail(authoritative());
        assert_eq!(exit, 7, "{error}");
    }
    // The last server of the service.
    lab.kill("mirror", 0);
    let (exit, error) = fail(lab.hdl(&["resolve", &record.handle]));
    assert_eq!(exit, 7, "{error}");
    assert!(error.contains("none of 6 attempts") && error.contains("hdl site shows"), "{error}");
    // A service with one server fails with it, and the error names the step.
    for (site, handle, step) in
        [("derived", "20.500.LAB/hello", "0.NA/20.500.LAB"), ("registry", "10.9999/x", "0.NA/10.9999")]
    {
        let address = lab.addresses(site)[0];
        lab.kill(site, 0);
        let (exit, error) = fail(lab.hdl(&["resolve", handle]));
        assert!(exit == 7 && error.contains("connection refused") && error.contains(step), "{error}");
        assert!(error.contains("none of 2 attempts") && error.contains(&address.to_string()), "{error}");
    }
}
