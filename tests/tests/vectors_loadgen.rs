//! What the load generator says of the answers of the reference, over the native protocol and the JSON API:
//! `conversations.jsonl` and `http.jsonl`, by `records.json`.

#![expect(clippy::unwrap_used, reason = "these are tests, also where they share a helper")]

use std::io::Write as _;
use std::ops::ControlFlow;

use handle_loadgen::expect::{AnsweredQuestion, compare};
use handle_loadgen::expected_records::ExpectedRecords;
use handle_loadgen::fragments::{FragmentOutcome, FragmentTable};
use handle_loadgen::question::GeneratedQuestion;
use handle_loadgen::stream::json::message;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::query::QueryAnswer;
use handle_proto::wire::{Envelope, Message};
use handle_proto::{Handle, ResponseCode, fold};
use handle_tests::vectors::{bytes, document, hex, load};
use serde_json::{Value as Json, json};

/// What people ask for. The other categories are about messages that a load generator does not send.
const ASKED: [&str; 10] = [
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

/// A record that no file has: the server makes it up.
const STATUS: &[u8] = b"0.SITE/STATUS";

/// The records of the prefixes that are homed at a server.
fn records(server: &Json) -> ExpectedRecords {
    let homed: Vec<_> = server["homed_prefixes"].as_array().unwrap().iter().map(bytes).collect();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for record in document("records.json").as_array().unwrap() {
        let handle = bytes(&record["handle"]);
        if homed.contains(&Handle(&Handle(&handle).looked_up()).prefix_record()) {
            let line = json!({"handle": record["handle"], "values": record["values"]});
            writeln!(file, "{line}").unwrap();
        }
    }
    ExpectedRecords::read(file.path(), || ControlFlow::Continue(())).unwrap()
}

/// The envelope and the message of an answer, whatever it came in.
fn whole(units: &[Vec<u8>]) -> Option<(Envelope, Vec<u8>)> {
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
fn the_answers_of_the_reference_are_right() {
    let servers = document("servers.json");
    let [of_main, of_root] = ["main", "root"].map(|name| records(&servers["servers"][name]));
    let (mut right, mut wrong) = (0, Vec::new());
    for line in load("conversations.jsonl") {
        let units = |of: &str| line[of].as_array().into_iter().flatten().map(hex).collect::<Vec<_>>();
        let (asked, answered) = (units("request_hex"), units("response_hex"));
        let source = match line["server"].as_str() {
            Some("main") => &of_main,
            Some("root") => &of_root,
            _ => continue,
        };
        let is_asked = ASKED.contains(&line["category"].as_str().unwrap());
        let question = asked
            .first()
            .filter(|_| asked.len() == 1)
            .and_then(|request| GeneratedQuestion::of_message(request));
        let (Some(question), Some((envelope, message)), true) = (question, whole(&answered), is_asked) else {
            continue;
        };
        if fold::folded(question.handle) == STATUS {
            continue;
        }
        let decoded = Message::decode(&message).unwrap();
        let answered = AnsweredQuestion { question: &question, envelope: &envelope, message: &message };
        match compare(&answered, &decoded, source) {
            Ok(()) => right += 1,
            Err(difference) => wrong.push(format!("{}: {difference}", line["name"])),
        }
    }
    assert!(right > 300 && wrong.is_empty(), "{right} right, {} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// The bytes of these values of a record, which are told as JSON.
fn wire(records: &Json, handle: &[u8], told: &[Json]) -> Vec<u8> {
    let wanted = fold::folded(&Handle(handle).looked_up());
    let mut records = records.as_array().unwrap().iter();
    let record = records.find(|record| fold::folded(&bytes(&record["handle"])) == wanted).unwrap();
    let (values, wire) = (record["values"].as_array().unwrap(), record["values_hex"].as_array().unwrap());
    let at = |told: &Json| values.iter().position(|value| value["index"] == told["index"]).unwrap();
    told.iter().flat_map(|told| hex(&wire[at(told)])).collect()
}

#[test]
fn the_json_of_the_reference_stands_for_the_same_answers() {
    let records = document("records.json");
    let (mut right, mut wrong) = (0, Vec::new());
    for line in load("http.jsonl") {
        let is_asked = matches!(line["category"].as_str().unwrap(), "get" | "params");
        let target = line["target"].as_str().unwrap();
        let body = line["body"].as_str().filter(|_| is_asked && target.starts_with("/api/handles/"));
        // What is wrapped for a script is not asked for.
        let Some(body) = body.filter(|body| body.starts_with('{')) else { continue };
        let told: Json = serde_json::from_str(body).unwrap();
        let message = message(body.as_bytes(), 7, true).unwrap_or_else(|| panic!("{line}"));
        let (_, message) = Envelope::split(&message).unwrap();
        let message = Message::decode(message).unwrap();
        let code = message.header.response_code;
        assert_eq!(Some(i64::from(code.0)), told["responseCode"].as_i64(), "{line}");
        if code == ResponseCode::SUCCESS {
            let answer = QueryAnswer::decode(message.body).unwrap();
            assert_eq!(answer.handle, bytes(&told["handle"]), "{line}");
            let expected = wire(&records, answer.handle, told["values"].as_array().unwrap());
            match answer.values.as_bytes() == expected {
                true => right += 1,
                false => wrong.push(format!("{}: not {expected:02x?}", line["name"])),
            }
        }
    }
    assert!(right > 50 && wrong.is_empty(), "{right} right, {} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
