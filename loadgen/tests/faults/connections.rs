//! The same faults over connections.

use std::ops::ControlFlow;
use std::time::Duration;

use handle_loadgen::{Protocol, RunOptions, RunReport, StreamTransport, Streams, run};

use super::server::{
    ConnectionServer, ServerAction, TIMEOUT, answer, joined, records, requests_400, right_answer,
};
use super::sums;

fn write_right_answer(request: &[u8]) -> ServerAction {
    ServerAction::Write(joined(&right_answer(request)))
}

fn write_wrong_answer(request: &[u8]) -> ServerAction {
    ServerAction::Write(joined(&answer(request, b"https://example.org/evil")))
}

/// Runs 400 requests over connections with up to `pipeline` pending requests, with a fault in each
/// tenth.
fn run_with_faults(
    pipeline: usize,
    fault: impl Fn(&[u8]) -> Vec<ServerAction> + Send + 'static,
) -> RunReport {
    let server = ConnectionServer::start(move |number, request| {
        if number % 10 == 4 { fault(request) } else { vec![write_right_answer(request)] }
    });
    let records = records();
    let streams = Streams { connections: 64, pipeline, ..Streams::pooled(Protocol::Tcp) };
    let options = RunOptions {
        transport: StreamTransport::Stream(streams),
        ..requests_400(server.address, records.path())
    };
    run(&options, |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn a_wrong_value_is_a_mismatch() {
    let report = run_with_faults(4, |request| vec![write_wrong_answer(request)]);
    assert_eq!(sums(&report), [400, 0, 360, 40], "{report}");
}

#[test]
fn a_wrong_id_answers_nothing() {
    let report = run_with_faults(1, |request| {
        let mut bytes = joined(&right_answer(request));
        bytes[8] ^= 0x40;
        vec![ServerAction::Write(bytes)]
    });
    assert_eq!(sums(&report), [360, 40, 360, 0], "{report}");
    assert_eq!(report.accounts.unmatched, 40, "{report}");
    assert_eq!(
        report.connections.unwrap().given_up,
        40,
        "connections without an answer are given up: {report}"
    );
}

#[test]
fn a_second_answer_is_a_duplicate_even_if_it_is_another() {
    let report = run_with_faults(1, |request| vec![write_right_answer(request), write_wrong_answer(request)]);
    assert_eq!(sums(&report), [400, 0, 400, 0], "{report}");
    assert_eq!(report.accounts.duplicates, 40, "{report}");
}

#[test]
fn late_answers_are_counted_as_late() {
    let report =
        run_with_faults(1, |request| vec![ServerAction::Wait(TIMEOUT * 3 / 2), write_right_answer(request)]);
    let accounts = &report.accounts;
    assert_eq!((accounts.answered, accounts.late, accounts.lost), (360, 40, 0), "{report}");
    assert_eq!(sums(&report)[2], 400, "late answers are judged as well: {report}");
}

#[test]
fn an_answer_whose_end_is_missing_is_truncated() {
    let report = run_with_faults(1, |request| {
        let mut bytes = joined(&right_answer(request));
        bytes.truncate(bytes.len() - 10);
        vec![ServerAction::Write(bytes), ServerAction::Close]
    });
    assert_eq!(sums(&report), [400, 0, 360, 40], "{report}");
    assert_eq!((report.accounts.truncated, report.accounts.malformed), (40, 0), "{report}");
}

#[test]
fn answers_in_pieces_and_in_another_order_are_reassembled() {
    let report = run_with_faults(1, |request| {
        let bytes = joined(&right_answer(request));
        let (first, rest) = bytes.split_at(13);
        let (second, third) = rest.split_at(31);
        let pause = || ServerAction::Wait(Duration::from_millis(2));
        let write = |bytes: &[u8]| ServerAction::Write(bytes.to_vec());
        vec![write(first), pause(), write(second), pause(), write(third)]
    });
    assert_eq!(sums(&report), [400, 0, 400, 0], "{report}");
    // On one connection, so that there is a next answer to wait for.
    let server = ConnectionServer::start(|number, request| match number % 10 {
        4 => vec![ServerAction::KeepBack(joined(&right_answer(request)))],
        _ => vec![write_right_answer(request)],
    });
    let records = records();
    let streams = Streams { connections: 1, pipeline: 64, ..Streams::pooled(Protocol::Tcp) };
    let options = RunOptions {
        transport: StreamTransport::Stream(streams),
        timeout: Duration::from_secs(5),
        ..requests_400(server.address, records.path())
    };
    let report = run(&options, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(sums(&report), [400, 0, 400, 0], "{report}");
}
