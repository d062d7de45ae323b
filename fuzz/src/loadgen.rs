//! The inputs of the load generator: recordings, answers over HTTP, and schedules.

use handle_loadgen::load::phases;
use handle_loadgen::load::question::GeneratedQuestion;
use handle_loadgen::load::recording::{Recording, access_log, pcap};
use handle_loadgen::load::schedule::{Arrivals, Schedule};
use handle_loadgen::load::stream::http::{self, ParsedAnswer};
use handle_loadgen::load::stream::json;
use handle_proto::ResponseCode;
use handle_proto::limit::UDP_MESSAGE_LEN_MAX;
use handle_proto::wire::query::QueryAnswer;
use handle_proto::wire::{Envelope, Message};

/// Requests of a capture are complete, occur in it unchanged, and are the first ones of a longer
/// capture.
pub fn capture(bytes: &[u8]) {
    const PORT: u16 = 2641;
    let is_capture = handle_formats::capture::is_capture(bytes);
    let Ok(recording) = pcap::read(bytes, PORT) else { return };
    assert!(is_capture, "a capture that can be read is not recognised as one");
    for request in &recording.requests {
        assert!(request.content.len() <= UDP_MESSAGE_LEN_MAX, "{} bytes", request.content.len());
        assert!(GeneratedQuestion::of_message(&request.content).is_some(), "{:02x?}", request.content);
        let mut parts = bytes.windows(request.content.len());
        assert!(parts.any(|part| part == request.content), "{:02x?} is not in the capture", request.content);
    }
    if let Ok(first) = pcap::read(&bytes[..bytes.len() / 2], PORT) {
        assert_eq!(first.requests, recording.requests[..first.requests.len()]);
    }
}

/// Each line of an access log is a request or counted as skipped, independent of other lines.
pub fn access_log(bytes: &[u8]) {
    let read = |bytes| access_log::read(bytes).expect("no line is too long");
    let whole = read(bytes);
    let lines = || bytes.split(|byte| *byte == b'\n');
    let count = lines().filter(|line| !line.trim_ascii().is_empty()).count();
    assert_eq!(whole.requests.len() as u64 + whole.skipped, count as u64);
    let mut each = Recording::default();
    for line in lines().map(read) {
        each.requests.extend(line.requests);
        each.skipped += line.skipped;
    }
    assert_eq!(each, whole, "line by line");
}

/// The end of an answer over HTTP does not depend on how it is split, and delivered bytes are never
/// withdrawn.
pub fn http_answer(bytes: &[u8]) {
    // The framing matters, not the length of the body.
    let bytes = &bytes[..bytes.len().min(1024)];
    let whole = http::parse(bytes, false);
    if let ParsedAnswer::Whole { body, used, .. } = &whole {
        assert!(*used <= bytes.len() && body.len() <= *used, "{} bytes of {used}", body.len());
    }
    for len in 0..bytes.len() {
        match http::parse(&bytes[..len], false) {
            ParsedAnswer::Partial => {}
            parsed => assert_eq!(parsed, whole, "cut to {len}"),
        }
    }
    match (http::parse(bytes, true), whole) {
        (ParsedAnswer::Partial, _) => panic!("an answer is incomplete at the end of the connection"),
        (ParsedAnswer::Whole { used, .. }, ParsedAnswer::Partial) => {
            assert_eq!(used, bytes.len(), "bytes are left over at the end of the connection")
        }
        (at_end, ParsedAnswer::Whole { .. }) => assert_eq!(
            at_end,
            http::parse(bytes, false),
            "the end of the connection changes a complete answer"
        ),
        _ => {}
    }
}

/// An answer of the JSON API becomes a message with its code for every request id, and the code
/// does not depend on whether its values are wanted.
pub fn json_answer(bytes: &[u8]) {
    const ID: i32 = 77;
    let code = |with_values| {
        let message = json::message(bytes, ID, with_values)?;
        let (envelope, rest) = Envelope::split(&message).expect("the message has an envelope");
        assert_eq!((envelope.request_id, envelope.message_len as usize), (ID, rest.len()));
        let message = Message::decode(rest).expect("the message decodes");
        let is_found = message.header.response_code == ResponseCode::SUCCESS;
        assert_eq!(
            message.body.is_empty(),
            !(with_values && is_found),
            "values are present without being requested, or missing"
        );
        if with_values && is_found {
            let answer = QueryAnswer::decode(message.body).expect("the answer decodes");
            assert!(answer.values.iter().count() == answer.values.len());
        }
        Some(message.header.response_code)
    };
    let (with_values, bare) = (code(true), code(false));
    assert!(
        with_values.is_none() || with_values == bare,
        "the code is {with_values:?} with values and {bare:?} without"
    );
}

/// Phases of a schedule parse the same line by line, and requests are due in order until its end.
pub fn schedule_file(bytes: &[u8]) {
    const REQUESTS_MAX: u64 = 1000;
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let parsed = phases::read(text);
    let each: Result<Vec<_>, _> =
        text.lines().map(|line| phases::read(line).map_err(|bad| bad.reason)).collect();
    assert_eq!(parsed.clone().map_err(|bad| bad.reason), each.map(|phases| phases.concat()), "line by line");
    let Ok(phases) = parsed else { return };
    let lasts_s: f64 = phases.iter().map(|phase| phase.duration.as_secs_f64()).sum();
    // Options beyond these limits are refused before a run.
    if lasts_s > 7.0 * 86_400.0 || phases.iter().any(|phase| phase.from.max(phase.to) > 1e9) {
        return;
    }
    let schedule = Schedule::phases(&phases, Arrivals::Even);
    let (mut share, mut last_ns) = (schedule.share(0, 1), 0);
    for number in 0..schedule.count().min(REQUESTS_MAX) {
        let due_ns = share.due_ns().expect("as many requests are due as the schedule counts");
        assert!((last_ns..=schedule.end_ns()).contains(&due_ns), "{number} at {due_ns}, after {last_ns}");
        last_ns = due_ns;
        share.advance();
    }
}
