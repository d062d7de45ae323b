//! The load generator accepts the answers of the reference, over the native protocol and the JSON
//! API: `conversations.jsonl` and `http.jsonl`, compared with `records.json`.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::Write as _;
use std::ops::ControlFlow;

use handle_loadgen::judge::expect::{AnsweredQuestion, compare};
use handle_loadgen::judge::expected_records::ExpectedRecords;
use handle_loadgen::load::fragments::{FragmentOutcome, FragmentTable};
use handle_loadgen::load::question::GeneratedQuestion;
use handle_loadgen::load::stream::json::message;
use handle_proto::json::RecordLine;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::query::QueryAnswer;
use handle_proto::wire::{Envelope, Message};
use handle_proto::{Handle, ResponseCode, fold};
use handle_tests::vectors::{
    LineOutcome, NO_SERVER, bytes, check_lines, document, hex, is_foreign, load, require,
};
use serde_json::{Value as Json, json};

/// Categories of ordinary queries. The load generator does not send messages of the others.
const QUERY_CATEGORIES: [&str; 10] = [
    "all_values",
    "by_index",
    "by_type",
    "by_index_and_type",
    "handle_names",
    "not_homed",
    "prefix_handles",
    "prefix_referral",
    "public_only_off",
    "flags",
];

/// A record that the server generates, which is in no file.
const STATUS: &[u8] = b"0.SITE/STATUS";

/// Whether a record of foreign vectors cannot be published, or its JSON has other values for the
/// reference.
fn is_left_out(record: &Json) -> bool {
    let line = json!({"handle": record["handle"], "values": record["values"]}).to_string();
    let is_exact = record["json_does_not_round_trip"].as_array().is_none_or(Vec::is_empty);
    let mut indexes: Vec<_> =
        record["values"].as_array().into_iter().flatten().map(|value| value["index"].as_i64()).collect();
    let count = indexes.len();
    indexes.sort_unstable();
    indexes.dedup();
    let is_published =
        indexes.len() == count && indexes.iter().all(|index| index.is_some_and(|index| index > 0));
    !is_exact || !is_published || RecordLine::parse(&line, &mut Vec::new()).is_err()
}

/// The folded handles of the records that are left out.
fn left_out() -> Vec<Vec<u8>> {
    let records = document("records.json");
    let records = records.as_array().into_iter().flatten();
    let left_out = records.filter(|record| is_foreign() && is_left_out(record));
    left_out.map(|record| fold::folded(&Handle(&bytes(&record["handle"])).looked_up())).collect()
}

/// The records of the prefixes homed at a server.
fn records(server: &Json) -> ExpectedRecords {
    let homed: Vec<_> = server["homed_prefixes"].as_array().unwrap().iter().map(bytes).collect();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for record in document("records.json").as_array().into_iter().flatten() {
        let handle = bytes(&record["handle"]);
        let is_homed = homed.contains(&Handle(&Handle(&handle).looked_up()).prefix_record());
        if is_homed && !(is_foreign() && is_left_out(record)) {
            let line = json!({"handle": record["handle"], "values": record["values"]});
            writeln!(file, "{line}").unwrap();
        }
    }
    ExpectedRecords::read(file.path(), || ControlFlow::Continue(())).unwrap()
}

/// Envelope and message of an answer in one or more units.
fn reassembled(units: &[Vec<u8>]) -> Option<(Envelope, Vec<u8>)> {
    let mut fragments = FragmentTable::new();
    for unit in units {
        let (envelope, data) = Envelope::split(unit).ok()?;
        if !envelope.flags.has(EnvelopeFlags::TRUNCATED) || envelope.message_len <= 492 {
            return Some((envelope, data[..envelope.message_len as usize].to_vec()));
        }
        if units.len() == 1 {
            return Some((envelope, data.to_vec()));
        }
        if let FragmentOutcome::Complete(at) = fragments.put(&envelope, data, 0, 0) {
            return Some((envelope, fragments.complete(at).to_vec()));
        }
    }
    None
}

#[test]
fn vectors_answers_of_the_reference_are_right() {
    let servers = document("servers.json");
    let [of_main, of_root] = ["main", "root"].map(|name| {
        let server = &servers["servers"][name];
        (server.is_object() || !is_foreign()).then(|| records(server))
    });
    let (mut right, left_out) = (0, left_out());
    let lines = load("conversations.jsonl").into_iter().map(|line| (line["name"].to_string(), line));
    check_lines(lines, |_, line| {
        let units = |member: &str| line[member].as_array().into_iter().flatten().map(hex).collect::<Vec<_>>();
        let (requests, answered) = (units("request_hex"), units("response_hex"));
        let source = match line["server"].as_str() {
            Some("main") => &of_main,
            Some("root") => &of_root,
            _ => return LineOutcome::AsStated,
        };
        let Some(source) = source else { return NO_SERVER };
        let is_query = QUERY_CATEGORIES.contains(&line["category"].as_str().unwrap());
        let question = requests
            .first()
            .filter(|_| requests.len() == 1)
            .and_then(|request| GeneratedQuestion::of_message(request));
        let (Some(question), Some((envelope, message)), true) = (question, reassembled(&answered), is_query)
        else {
            return LineOutcome::AsStated;
        };
        if left_out.contains(&fold::folded(&Handle(question.handle).looked_up())) {
            return LineOutcome::Skipped("its record cannot be published");
        }
        if fold::folded(question.handle) == STATUS {
            return LineOutcome::AsStated;
        }
        let decoded = Message::decode(&message).unwrap();
        let answered = AnsweredQuestion { question: &question, envelope: &envelope, message: &message };
        match compare(&answered, &decoded, source) {
            Ok(()) => right += 1,
            Err(difference) => panic!("{difference}"),
        }
        LineOutcome::AsStated
    });
    require(right, 301, "right answers");
}

/// The bytes of the values of a record that `entries` describes in JSON.
fn wire(records: &Json, handle: &[u8], entries: &[Json]) -> Vec<u8> {
    let wanted = fold::folded(&Handle(handle).looked_up());
    let mut records = records.as_array().unwrap().iter();
    let record = records.find(|record| fold::folded(&bytes(&record["handle"])) == wanted).unwrap();
    let (values, wire) = (record["values"].as_array().unwrap(), record["values_hex"].as_array().unwrap());
    let at = |entry: &Json| values.iter().position(|value| value["index"] == entry["index"]).unwrap();
    entries.iter().flat_map(|entry| hex(&wire[at(entry)])).collect()
}

#[test]
fn vectors_of_json_answers_stand_for_the_same_answers() {
    let records = document("records.json");
    let (mut right, left_out) = (0, left_out());
    let lines = load("http.jsonl").into_iter().map(|line| (line["name"].to_string(), line));
    check_lines(lines, |_, line| {
        let is_query = matches!(line["category"].as_str().unwrap(), "get" | "params");
        let target = line["target"].as_str().unwrap();
        let body = line["body"].as_str().filter(|_| is_query && target.starts_with("/api/handles/"));
        // Answers wrapped in a call of a script function are left out.
        let Some(body) = body.filter(|body| body.starts_with('{')) else { return LineOutcome::AsStated };
        let reply: Json = serde_json::from_str(body).unwrap();
        let message = message(body.as_bytes(), 7, true).unwrap_or_else(|| panic!("{line}"));
        let (_, message) = Envelope::split(&message).unwrap();
        let message = Message::decode(message).unwrap();
        let code = message.header.response_code;
        assert_eq!(Some(i64::from(code.0)), reply["responseCode"].as_i64(), "{line}");
        if code == ResponseCode::SUCCESS {
            let answer = QueryAnswer::decode(message.body).unwrap();
            assert_eq!(answer.handle, bytes(&reply["handle"]), "{line}");
            if left_out.contains(&fold::folded(&Handle(answer.handle).looked_up())) {
                return LineOutcome::Skipped("its record cannot be published");
            }
            let expected = wire(&records, answer.handle, reply["values"].as_array().unwrap());
            assert!(answer.values.as_bytes() == expected, "not {expected:02x?}");
            right += 1;
        }
        LineOutcome::AsStated
    });
    require(right, 51, "right answers");
}
