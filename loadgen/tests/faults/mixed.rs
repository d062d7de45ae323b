//! Any mixture of faults, over any transport and under any load: the accounts add up, and the
//! report matches what the server did.

use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use handle_loadgen::load::schedule::Phase;
use handle_loadgen::random::RandomGenerator;
use handle_loadgen::{
    LoadPattern, Protocol, ReferenceData, RunOptions, RunReport, StreamTransport, Streams, Verify, run,
};

use super::http;
use super::server::{
    ConnectionServer, FaultyServer, ServerAction, answer, joined, names, records, right_answer,
};

/// Number of runs of the property, each with its own seed.
const SEEDS: u64 = 32;
const LATE: Duration = Duration::from_millis(150);

/// Counts of the server.
#[derive(Debug, Default)]
struct RequestLog {
    requests: AtomicU64,
    /// Datagrams sent, or answers on connections.
    answers: AtomicU64,
}

fn random_datagrams(request: &[u8], random: &mut RandomGenerator) -> Vec<Vec<u8>> {
    let mut datagrams = right_answer(request);
    match random.below(16) {
        0 => datagrams.clear(),
        1 => datagrams.extend(right_answer(request)),
        2 => datagrams.reverse(),
        3 => datagrams[0].truncate(60),
        4 => datagrams[0][8] ^= 0x40,
        // A body longer than the message.
        5 => datagrams[0][41] = 0x7f,
        6 => datagrams.insert(0, b"noise".to_vec()),
        7 => drop(datagrams.remove(0)),
        8 => datagrams.insert(0, datagrams[0].clone()),
        9 => datagrams = answer(request, b"https://example.org/evil"),
        // Another code, and an invalid one.
        10 => datagrams[0][27] = 100,
        11 => datagrams[0][24] = 0xff,
        _ => {}
    }
    datagrams
}

fn random_actions(request: &[u8], random: &mut RandomGenerator) -> Vec<ServerAction> {
    let mut bytes = joined(&right_answer(request));
    let choice = random.below(16);
    match choice {
        0 => return vec![],
        1 => return vec![ServerAction::Write(bytes.clone()), ServerAction::Write(bytes)],
        2 => return vec![ServerAction::Write(bytes), ServerAction::Close],
        3 => return vec![ServerAction::Close],
        4 => bytes.truncate(60),
        5 => bytes[8] ^= 0x40,
        6 => bytes[41] = 0x7f,
        7 => bytes = joined(&answer(request, b"https://example.org/evil")),
        8 => bytes[24] = 0xff,
        9 => return vec![ServerAction::Wait(LATE * 3 / 2), ServerAction::Write(bytes)],
        _ => {}
    }
    let mut actions = vec![ServerAction::Write(bytes)];
    if choice == 4 {
        actions.push(ServerAction::Close);
    }
    actions
}

/// Passes the number of answers among `actions` to `note`.
fn count_answers(actions: Vec<ServerAction>, note: impl Fn(usize)) -> Vec<ServerAction> {
    note(actions.iter().filter(|action| matches!(action, ServerAction::Write(_))).count());
    actions
}

fn load(random: &mut RandomGenerator) -> (LoadPattern, bool) {
    let duration = Duration::from_millis(150);
    let rate = NonZeroU64::new(400).unwrap();
    match random.below(4) {
        0 => (LoadPattern::Open { rate }, false),
        1 => (LoadPattern::Open { rate }, true),
        2 => {
            let ramp = Phase { duration, from: 100.0, to: 500.0 };
            (
                LoadPattern::Phases(vec![
                    ramp,
                    Phase::constant(0.0, duration / 3),
                    Phase::constant(300.0, duration),
                ]),
                false,
            )
        }
        _ => (LoadPattern::Closed { window: 5 }, false),
    }
}

fn run_mixture(seed: u64) {
    let (log, mut random) = (Arc::new(RequestLog::default()), RandomGenerator::new(seed, 1));
    let (noted, mut faults) = (Arc::clone(&log), RandomGenerator::new(seed, 2));
    let note = move |answers: usize| {
        noted.requests.fetch_add(1, Ordering::Relaxed);
        noted.answers.fetch_add(answers as u64, Ordering::Relaxed);
    };
    let (load, poisson) = load(&mut random);
    let records = records();
    let options = |target, transport| RunOptions {
        transport,
        load: load.clone(),
        poisson,
        duration: Duration::from_millis(300),
        timeout: LATE,
        verify: Some(Verify {
            every: 1 + u32::try_from(seed % 3).unwrap(),
            ..Verify::with(ReferenceData::Records(records.path().to_owned()))
        }),
        threads: 1 + usize::try_from(seed % 3).unwrap(),
        seed,
        ..RunOptions::new(target, names())
    };
    let go_on = |_: &_| ControlFlow::Continue(());
    let (pipeline, requests) = if random.below(2) == 0 { (4, 0) } else { (1, 1) };
    let streams = |protocol| {
        StreamTransport::Stream(Streams { connections: 32, pipeline, requests, ..Streams::pooled(protocol) })
    };
    let report = match random.below(4) {
        0 => {
            let server = ConnectionServer::start(move |_, request| {
                count_answers(random_actions(request, &mut faults), &note)
            });
            run(&options(server.address, streams(Protocol::Tcp)), go_on).unwrap()
        }
        1 => {
            let protocol = if random.below(2) == 0 { Protocol::Http } else { Protocol::Json };
            let server = ConnectionServer::start_with(http::read_request, move |_, request| {
                count_answers(
                    http::random_actions(protocol, request, &mut faults, ServerAction::Wait(LATE * 3 / 2)),
                    &note,
                )
            });
            run(&options(server.address, streams(protocol)), go_on).unwrap()
        }
        _ => {
            let server = FaultyServer::start(move |_, request| {
                let datagrams = random_datagrams(request, &mut faults);
                note(datagrams.len());
                datagrams
            });
            let trains = random.below(2) == 0;
            run(&options(server.address, StreamTransport::Udp { trains }), go_on).unwrap()
        }
    };
    check(&report, &log, seed);
}

fn check(report: &RunReport, log: &RequestLog, seed: u64) {
    let accounts = &report.accounts;
    let case = format!("seed {seed}, {log:?}: {report}");
    // The sums in the documents.
    let codes: u64 = accounts.codes.iter().map(|code| code.count).sum();
    assert_eq!(accounts.scheduled, accounts.sent + accounts.not_sent, "{case}");
    assert_eq!(accounts.not_sent, accounts.behind_schedule + accounts.refused + accounts.blocked, "{case}");
    assert_eq!(
        accounts.sent,
        accounts.answered + accounts.late + accounts.duplicate_only + accounts.lost,
        "{case}"
    );
    assert_eq!(accounts.answered, codes + accounts.malformed + accounts.truncated, "{case}");
    let seen = report.verification.as_ref().unwrap();
    let compared = seen.verified + seen.mismatched + seen.undecided + seen.unjudged;
    assert_eq!(accounts.answered + accounts.late, compared, "{case}");
    // The server received no more than was sent, and nothing was received that it did not send.
    let (requests, answers) = (log.requests.load(Ordering::Relaxed), log.answers.load(Ordering::Relaxed));
    assert!(requests <= accounts.sent && requests >= accounts.answered + accounts.late, "{case}");
    assert!(accounts.datagrams <= answers, "{case}");
    // All duplicate figures are equal.
    assert_eq!(
        (report.response_ns.count, report.service_ns.count),
        (accounts.answered, accounts.answered),
        "{case}"
    );
    let bars: u64 = report.response_histogram.iter().map(|bucket| bucket.count).sum();
    assert_eq!(bars, accounts.answered, "{case}");
    let sum = |of: fn(&handle_loadgen::SecondCounts) -> u64| report.seconds.iter().map(of).sum::<u64>();
    let seconds = [sum(|second| second.sent), sum(|second| second.answered), sum(|second| second.late)];
    assert_eq!(seconds, [accounts.sent, accounts.answered, accounts.late], "{case}");
    assert_eq!(sum(|second| second.mismatched), seen.mismatched, "{case}");
    let lost = accounts.lost + accounts.duplicate_only;
    assert_eq!(report.seconds.last().unwrap().lost_so_far, lost.cast_signed(), "{case}");
    let is_open = report.setting.model == "open loop";
    let due = accounts.sent + accounts.refused + accounts.blocked;
    assert_eq!(report.schedule_error_ns.count, if is_open { due } else { 0 }, "{case}");
    assert_eq!(report.pacing.is_some(), is_open, "{case}");
    if !report.steps.is_empty() {
        let sum =
            |of: fn(&handle_loadgen::show::steps::PhaseStep) -> u64| report.steps.iter().map(of).sum::<u64>();
        let steps = [sum(|step| step.sent), sum(|step| step.answered), sum(|step| step.late)];
        assert_eq!(steps, [accounts.sent, accounts.answered, accounts.late], "{case}");
        assert_eq!(sum(|step| step.unanswered), accounts.lost + accounts.duplicate_only, "{case}");
    }
    if let Some(connections) = report.connections {
        assert!(connections.established + connections.failed <= connections.begun, "{case}");
    }
}

#[test]
fn the_accounts_add_up_whatever_the_server_does() {
    // In parallel, because they mostly wait.
    thread::scope(|scope| {
        for first in 0..4 {
            scope.spawn(move || (first..SEEDS).step_by(4).for_each(run_mixture));
        }
    });
}
