//! Signatures of values and their certificates, made with other software: `signatures.jsonl`.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_client::signature::{SignatureReport, ValueVerdict, Verifier};
use handle_client::{LookupAnswer, Question};
use handle_proto::{ResponseCode, Value};
use handle_tests::vectors::{check_lines, document, hex, load, require};
use serde_json::Value as Json;

fn answer(handle: &str, values: &Json) -> LookupAnswer {
    let values: Vec<Vec<u8>> = values.as_array().unwrap().iter().map(hex).collect();
    let views = values.iter().map(|bytes| Value::split(bytes).unwrap().0);
    LookupAnswer::new(handle, ResponseCode::SUCCESS, views)
}

fn report(line: &Json) -> SignatureReport {
    let keys = &document("servers.json")["keys"];
    let trusted: Vec<Vec<u8>> = line["trusted"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| hex(&keys[id.as_str().unwrap()]["handle_public_hex"]))
        .collect();
    let now_unix_s = u32::try_from(line["now"].as_u64().unwrap()).unwrap();
    let record = answer(line["handle"].as_str().unwrap(), &line["values_hex"]);
    let mut fetch = |question: &Question| {
        let handle = str::from_utf8(&question.handle).unwrap();
        Some(answer(handle, line["records"].get(handle)?).selected(question))
    };
    Verifier { trusted_keys: &trusted, now_unix_s }.verify(&record, &mut fetch)
}

#[test]
fn vectors_verify_as_their_names_say() {
    let lines = load("signatures.jsonl");
    require(lines.len(), 1, "signatures");
    let lines = lines.into_iter().map(|line| (line["name"].to_string(), line));
    check_lines(lines, |name, line| {
        let report = report(line);
        assert_eq!(report.is_good(), line["good"].as_bool().unwrap(), "{name}: {report:?}");
        let verdicts = line["verdicts"].as_object().unwrap();
        assert_eq!(report.values.len(), verdicts.len(), "{name}: {report:?}");
        for (index, verdict) in &report.values {
            let expected = match verdicts[&index.to_string()].as_str().unwrap() {
                "verified" => ValueVerdict::Verified,
                "bad" => ValueVerdict::BadDigest,
                "unsigned" => ValueVerdict::Unsigned,
                other => panic!("{name}: unknown verdict {other}"),
            };
            assert_eq!(*verdict, expected, "{name}, value {index}: {report:?}");
        }
        let missing: Vec<i64> = report.missing.iter().map(|&index| index.into()).collect();
        assert_eq!(serde_json::json!(missing), line["missing"], "{name}");
    });
}
