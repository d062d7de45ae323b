//! Servers with one fault each: every fault is detected and counted in the right account, and a
//! stall counts for all users who would have waited.

#![expect(clippy::unwrap_used, reason = "these are tests, also where they share a helper")]

mod connections;
mod http;
mod mixed;
mod server;
mod signed;

use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use handle_loadgen::judge::replay::{ReplayOutcome, replay};
use handle_loadgen::{LoadPattern, QuestionForm, ReferenceData, RunOptions, RunReport, Verify, run};

use server::{FaultyServer, HANDLES, TIMEOUT, answer, names, records, requests_400, right_answer};

/// Runs 400 requests against a server with a fault in each tenth, verified by a file of records.
fn run_with_faults(fault: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> RunReport {
    // The last request gets no fault, because a run does not wait for further datagrams once it has
    // all answers.
    let server = FaultyServer::start(
        move |number, request| {
            if number % 10 == 4 { fault(request) } else { right_answer(request) }
        },
    );
    let records = records();
    run(&requests_400(server.address, records.path()), |_| ControlFlow::Continue(())).unwrap()
}

/// Returns the counts of answered, lost, verified and mismatched requests.
fn sums(report: &RunReport) -> [u64; 4] {
    let verification = report.verification.as_ref().unwrap();
    let accounts = &report.accounts;
    [accounts.answered, accounts.lost, verification.verified, verification.mismatched]
}

#[test]
fn right_answers_are_verified() {
    let report = run_with_faults(right_answer);
    assert_eq!(sums(&report), [400, 0, 400, 0], "{report}");
    // Whether requests are sent in time depends on the machine, not on the answers.
    let on_answers = |reason: &&String| !reason.ends_with("behind schedule");
    assert_eq!(report.invalid.iter().find(on_answers), None, "{report}");
}

#[test]
fn a_wrong_value_is_a_mismatch_and_can_be_sent_again() {
    let report = run_with_faults(|request| answer(request, b"https://example.org/evil"));
    assert_eq!(sums(&report), [400, 0, 360, 40], "{report}");
    assert!(!report.is_valid());
    let mismatches = &report.verification.as_ref().unwrap().mismatches;
    assert_eq!(mismatches.len(), 8);
    let right_server = FaultyServer::start(|_, request| right_answer(request));
    let again = replay(mismatches, right_server.address, false, Duration::from_secs(5)).unwrap();
    assert!(again.iter().all(|again| again.outcome == ReplayOutcome::Right), "{again:?}");
    drop(right_server);
    let wrong_server = FaultyServer::start(|_, request| answer(request, b"https://example.org/evil"));
    let again = replay(mismatches, wrong_server.address, false, Duration::from_secs(5)).unwrap();
    assert!(again.iter().all(|again| again.outcome == ReplayOutcome::SameAgain), "{again:?}");
}

#[test]
fn an_answer_for_another_handle_is_a_mismatch() {
    let report = run_with_faults(|request| {
        let mut datagrams = right_answer(request);
        // The last byte of the handle: after the envelope, the header and its length.
        let last = 20 + 24 + 4 + usize::from(request[47]) - 1;
        datagrams[0][last] ^= 1;
        datagrams
    });
    assert_eq!(sums(&report), [400, 0, 360, 40], "{report}");
}

#[test]
fn a_wrong_id_answers_nothing() {
    let report = run_with_faults(|request| {
        let mut datagrams = answer(request, b"x");
        datagrams[0][8] ^= 0x40;
        datagrams
    });
    assert_eq!(sums(&report), [360, 40, 360, 0], "{report}");
    assert_eq!(report.accounts.unmatched, 40, "{report}");
}

#[test]
fn a_second_answer_is_a_duplicate_even_if_it_is_another() {
    let report = run_with_faults(|request| [right_answer(request), answer(request, b"x")].concat());
    assert_eq!(sums(&report), [400, 0, 400, 0], "{report}");
    assert_eq!(report.accounts.duplicates, 40, "{report}");
}

#[test]
fn an_answer_whose_end_is_missing_is_truncated() {
    let report = run_with_faults(|request| {
        let mut datagrams = answer(request, b"https://example.org/short");
        let len = datagrams[0].len();
        datagrams[0].truncate(len - 10);
        datagrams
    });
    assert_eq!(sums(&report), [400, 0, 360, 40], "{report}");
    assert_eq!((report.accounts.truncated, report.accounts.malformed), (40, 0), "{report}");
}

#[test]
fn fragments_out_of_order_are_reassembled() {
    let report = run_with_faults(|request| {
        let mut datagrams = right_answer(request);
        datagrams.reverse();
        datagrams
    });
    assert_eq!(sums(&report), [400, 0, 400, 0], "{report}");
}

#[test]
fn fragments_that_were_exchanged_are_a_mismatch() {
    let report = run_with_faults(|request| {
        let long = "https://example.org/0".repeat(60);
        let mut datagrams = answer(request, long.as_bytes());
        // Two middle fragments with exchanged numbers.
        let (first, second) = (datagrams[1][15], datagrams[0][15]);
        assert_ne!(first, second);
        datagrams[0][15] = first;
        datagrams[1][15] = second;
        datagrams
    });
    let [answered, lost, _, mismatched] = sums(&report);
    assert_eq!((answered, lost), (400, 0), "{report}");
    assert_eq!(mismatched, 40, "{report}");
}

#[test]
fn a_repeated_piece_in_place_of_another_is_not_an_answer() {
    let report = run_with_faults(|request| {
        let mut datagrams = answer(request, "https://example.org/0".repeat(60).as_bytes());
        datagrams[1] = datagrams[0].clone();
        datagrams
    });
    assert_eq!(sums(&report), [360, 0, 360, 0], "{report}");
    assert_eq!((report.accounts.duplicate_only, report.accounts.fragment_duplicates), (40, 40), "{report}");
}

#[test]
fn late_answers_are_counted_as_late() {
    let mut delayed: Vec<(Instant, Vec<Vec<u8>>)> = Vec::new();
    let server = FaultyServer::start(move |number, request| {
        let mut datagrams = Vec::new();
        if number < 10 {
            delayed.push((Instant::now() + TIMEOUT + Duration::from_millis(150), right_answer(request)));
        } else {
            datagrams = right_answer(request);
        }
        // Later requests deliver the late answers.
        delayed.retain(|(due, late)| {
            let is_due = *due <= Instant::now();
            if is_due {
                datagrams.extend(late.clone());
            }
            !is_due
        });
        datagrams
    });
    let records = records();
    let options = RunOptions {
        load: LoadPattern::Open { rate: NonZeroU64::new(200).unwrap() },
        duration: Duration::from_millis(1000),
        timeout: TIMEOUT,
        verify: Some(Verify::with(ReferenceData::Records(records.path().to_owned()))),
        ..RunOptions::new(server.address, names())
    };
    let report = run(&options, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((report.accounts.late, report.accounts.answered), (10, 190), "{report}");
    assert_eq!(sums(&report)[2], 200, "late answers are judged as well: {report}");
}

#[test]
fn a_first_pass_is_the_reference_for_later_answers() {
    let server = FaultyServer::start(|number, request| {
        // The first pass is correct; the run gets wrong answers about handle 3.
        let question = handle_loadgen::load::question::GeneratedQuestion::of_message(request).unwrap();
        let is_wrong = number >= HANDLES && question.handle.eq_ignore_ascii_case(b"10.5072/3");
        if is_wrong { answer(request, b"changed") } else { right_answer(request) }
    });
    let options = RunOptions {
        load: LoadPattern::Open { rate: NonZeroU64::new(1000).unwrap() },
        duration: Duration::from_millis(200),
        timeout: TIMEOUT,
        verify: Some(Verify::with(ReferenceData::FirstPass)),
        pattern: handle_loadgen::AccessOrder::Sequential,
        forms: vec!["9=plain".parse().unwrap(), "1=case".parse::<QuestionForm>().unwrap()],
        ..RunOptions::new(server.address, names())
    };
    let report = run(&options, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(sums(&report), [200, 0, 190, 10], "{report}");
    let verification = report.verification.as_ref().unwrap();
    assert!(verification.mismatches.iter().all(|mismatch| mismatch.handle.ends_with("/3")), "{report}");
}

/// A server stalls for one second of ten. Users who ask during the stall wait, so the slowest tenth
/// of response times is up to a second, even if the generator sends less meanwhile. The test runs
/// at three times the speed.
#[test]
fn a_stall_is_charged_to_all_who_would_have_waited() {
    const STALL: Duration = Duration::from_millis(333);
    let started = Instant::now();
    let mut stalled = false;
    let server = FaultyServer::start(move |_, request| {
        if !stalled && started.elapsed() > Duration::from_millis(1000) {
            stalled = true;
            thread::sleep(STALL);
        }
        right_answer(request)
    });
    let options = RunOptions {
        // The requests during the stall fill the queue of a socket, but do not exceed it.
        load: LoadPattern::Open { rate: NonZeroU64::new(500).unwrap() },
        duration: Duration::from_millis(3330),
        timeout: Duration::from_secs(2),
        ..RunOptions::new(server.address, names())
    };
    let report = run(&options, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((report.accounts.sent, report.accounts.lost), (1665, 0), "{report}");
    // A tenth of the requests fell into the stall, evenly: half of them waited for half of it or
    // longer.
    let slow = report.response_histogram.iter().filter(|bucket| bucket.from_ns > 150_000_000);
    let slow: u64 = slow.map(|bucket| bucket.count).sum();
    assert!(slow >= 60, "{slow} of 1665 waited for half of the stall: {report}");
    assert!(report.response_ns.max >= 300_000_000, "{report}");
}
