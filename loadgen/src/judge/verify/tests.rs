use super::*;
use crate::judge::expect::EachValue;
use crate::load::question::QuestionForm;
use handle_auth::{Algorithm, PrivateKey};
use handle_proto::value::Permissions;
use handle_proto::wire::Header;
use handle_proto::{OpCode, OpFlags, ResponseCode, Value};
use std::collections::HashMap;

const MS: i64 = 1_000_000;
const STALENESS_NS: i64 = 100 * MS;

/// A set in memory: a count and bytes that stand for values.
#[derive(Debug, Default)]
struct FakeSet(HashMap<&'static [u8], (u32, &'static [u8])>);

impl ContentSource for FakeSet {
    fn content_of(&self, handle: &[u8]) -> Result<SetContent<'_>, String> {
        Ok(match self.0.get(handle) {
            Some((0, _)) => SetContent::NothingPublic,
            Some(&(count, bytes)) => SetContent::Values { count, bytes },
            None if handle.starts_with(b"10.9/") => SetContent::Remote,
            None => SetContent::Absent,
        })
    }
}

fn set(values: &'static [u8]) -> Arc<dyn ContentSource> {
    Arc::new(FakeSet(HashMap::from([(&b"10.1/a"[..], (2, values)), (&b"10.1/private"[..], (0, &b""[..]))])))
}

pub(crate) fn message(code: ResponseCode, body: &[u8]) -> Vec<u8> {
    let header = Header {
        op_code: OpCode::RESOLUTION,
        response_code: code,
        flags: OpFlags::PLAIN_REQUEST,
        site_serial: 1,
        recursion_count: 0,
        reserved: 0,
        expiration: 0,
        body_len: u32::try_from(body.len()).unwrap(),
    };
    [&header.to_bytes(), body, &[0; 4]].concat()
}

pub(crate) fn values(handle: &[u8], count: u8, values: &[u8]) -> Vec<u8> {
    let len = u8::try_from(handle.len()).unwrap();
    message(ResponseCode::SUCCESS, &[&[0, 0, 0, len], handle, &[0, 0, 0, count], values].concat())
}

fn judge(verifier: &mut AnswerVerifier, handle: &[u8], times_ms: (i64, i64), message: &[u8]) -> AnswerCounts {
    let mut counts = AnswerCounts::default();
    let answered = AnsweredQuestion {
        question: &GeneratedQuestion::plain(handle),
        envelope: &Envelope::request(5),
        message,
    };
    verifier.judge(answered, times_ms.0 * MS, times_ms.1 * MS, &mut counts);
    counts
}

fn verdict(counts: &AnswerCounts) -> (u64, u64, u64) {
    (counts.verified, counts.mismatched, counts.undecided)
}

const RIGHT: (u64, u64, u64) = (1, 0, 0);
const WRONG: (u64, u64, u64) = (0, 1, 0);
const UNDECIDED: (u64, u64, u64) = (0, 0, 1);
const WAITS: (u64, u64, u64) = (0, 0, 0);

#[test]
fn only_the_contents_of_the_set_are_right() {
    let mut verifier =
        AnswerVerifier::new(Arc::new(SharedTimeline::fixed(set(b"values"))), VerifyRules::new(STALENESS_NS));
    let error = |code| message(code, &[0; 4]);
    for (handle, answer, difference) in [
        (&b"10.1/a"[..], values(b"10.1/a", 2, b"values"), None),
        (b"10.1/private", error(ResponseCode::VALUES_NOT_FOUND), None),
        (b"10.1/gone", error(ResponseCode::HANDLE_NOT_FOUND), None),
        (b"10.9/other", error(ResponseCode::SERVER_NOT_RESPONSIBLE), None),
        (b"0.NA/10.1.2", error(ResponseCode::PREFIX_REFERRAL), None),
        (b"10.1.2", error(ResponseCode::PREFIX_REFERRAL), None),
        (b"10.1/a", values(b"10.1/A", 2, b"values"), Some("spells it differently")),
        (b"10.1/a", values(b"10.1/a", 3, b"values"), Some("3, expected 2")),
        (b"10.1/a", values(b"10.1/a", 2, b"valves"), Some("differ from byte 3 on")),
        (b"10.1/a", values(b"10.1/a", 2, b"value"), Some("differ from byte 5 on")),
        (b"10.1/a", values(b"10.1/a", 2, b"values!"), Some("differ from byte 6 on")),
        (b"10.1/a", error(ResponseCode::SERVER_BUSY), Some("3(server too busy), expected 1(success)")),
        (b"10.1/a", error(ResponseCode::PREFIX_REFERRAL), Some("expected 1(success)")),
        (b"10.1/private", values(b"10.1/private", 0, b""), Some("expected 200(values not found)")),
        (b"10.1/gone", values(b"10.1/gone", 0, b""), Some("expected 100(handle not found)")),
        (b"10.1/gone", error(ResponseCode::PREFIX_REFERRAL), Some("expected 100(handle not found)")),
        (b"10.1/a", b"short".to_vec(), Some("cannot be decoded")),
        (b"10.1/a", message(ResponseCode::SUCCESS, &[0, 0, 0, 9, 1]), Some("cannot be decoded")),
    ] {
        verifier.mismatches.clear();
        let counts = judge(&mut verifier, handle, (0, 1), &answer);
        let expected = if difference.is_none() { RIGHT } else { WRONG };
        assert_eq!(verdict(&counts), expected, "{} {answer:?}", Handle(handle));
        if let Some(difference) = difference {
            let found = &verifier.mismatches[0].difference;
            assert!(found.contains(difference), "{found} does not say {difference}");
        }
    }
}

#[test]
fn the_digest_of_the_request_is_not_compared() {
    let mut verifier =
        AnswerVerifier::new(Arc::new(SharedTimeline::fixed(set(b"values"))), VerifyRules::new(STALENESS_NS));
    let plain = values(b"10.1/a", 2, b"values");
    let body = &plain[Header::LEN..plain.len() - 4];
    let with = |digest: &[u8]| {
        let mut message = message(ResponseCode::SUCCESS, &[digest, body].concat());
        message[9] |= 0x80;
        message
    };
    for (digest, expected) in [
        ([&[3][..], &[7; 32]].concat(), RIGHT),
        ([&[2][..], &[7; 20]].concat(), RIGHT),
        ([&[0, 0, 0, 16][..], &[7; 16]].concat(), RIGHT),
        ([&[3][..], &[7; 31]].concat(), WRONG),
        (vec![9], WRONG),
        (vec![], WRONG),
    ] {
        let counts = judge(&mut verifier, b"10.1/a", (0, 1), &with(&digest));
        assert_eq!(verdict(&counts), expected, "{digest:?}");
    }
}

#[test]
fn the_first_mismatches_are_kept_with_their_bytes() {
    let mut verifier =
        AnswerVerifier::new(Arc::new(SharedTimeline::fixed(set(b"values"))), VerifyRules::new(STALENESS_NS));
    let answer = values(b"10.1/a", 2, b"valves");
    let mut counts = AnswerCounts::default();
    for _ in 0..20 {
        let (question, envelope) = (GeneratedQuestion::plain(b"10.1/a"), Envelope::request(77));
        let answered = AnsweredQuestion { question: &question, envelope: &envelope, message: &answer };
        verifier.judge(answered, MS, 2 * MS, &mut counts);
    }
    let (mismatches, _) = verifier.finish(&mut counts);
    assert_eq!((counts.mismatched, mismatches.len()), (20, MISMATCHES_MAX));
    let first = &mismatches[0];
    assert_eq!((&*first.handle, first.request_id, first.sent_ns), ("10.1/a", 77, MS));
    assert_eq!(first.answer_hex, hex(&answer));
    let request = data_encoding::HEXLOWER.decode(first.request_hex.as_bytes()).unwrap();
    let decoded_question = GeneratedQuestion::of_message(&request).unwrap();
    assert_eq!((decoded_question.handle, decoded_question.is_plain()), (&b"10.1/a"[..], true));
    assert_eq!(Envelope::split(&request).unwrap().0.request_id, 77);
    assert_eq!((first.expected_code, first.expected_count), (Some(1), 2));
    assert_eq!(first.expected_values_hex, hex(b"values"));
}

fn generation(number: u64, from_ms: i64, values: Option<&'static [u8]>) -> SetGeneration {
    SetGeneration { number, from_ns: from_ms * MS, until_ns: i64::MAX, source: values.map(set) }
}

/// Set 1 from the start; set 2 was made at 1000 and was in place at 1010.
fn two_sets() -> Timeline {
    let mut timeline = Timeline::fixed(set(b"old"));
    timeline.publish(generation(2, 1000, Some(b"new")), 1010 * MS, i64::MIN);
    timeline
}

#[test]
fn an_answer_may_be_from_any_set_that_was_current_meanwhile() {
    let watch = Arc::new(SharedTimeline::new(two_sets(), i64::MAX));
    let mut verifier = AnswerVerifier::new(watch, VerifyRules::new(STALENESS_NS));
    let (old, new) = (values(b"10.1/a", 2, b"old"), values(b"10.1/a", 2, b"new"));
    for (sent, received, old_is, new_is) in [
        (900, 999, RIGHT, WRONG),
        (900, 1000, RIGHT, RIGHT),
        (1009, 1020, RIGHT, RIGHT),
        (1110, 1120, RIGHT, RIGHT),
        (1111, 1120, WRONG, RIGHT),
    ] {
        let times = (sent, received);
        assert_eq!(verdict(&judge(&mut verifier, b"10.1/a", times, &old)), old_is, "old at {times:?}");
        assert_eq!(verdict(&judge(&mut verifier, b"10.1/a", times, &new)), new_is, "new at {times:?}");
    }
    assert_eq!(verifier.staleness_max_ns, 100 * MS, "the largest accepted staleness");
    let stale = verifier.mismatches.iter().find(|mismatch| mismatch.sent_ns == 1111 * MS).unwrap();
    assert_eq!(stale.difference, "from a set that had been replaced 101 ms before the request was sent");
}

#[test]
fn an_answer_from_an_unseen_set_waits_for_the_next_check() {
    let watch = Arc::new(SharedTimeline::new(Timeline::fixed(set(b"old")), 900 * MS));
    let mut verifier = AnswerVerifier::new(Arc::clone(&watch), VerifyRules::new(STALENESS_NS));
    let new = values(b"10.1/a", 2, b"new");
    let lie = values(b"10.1/a", 2, b"lie");
    let mut counts = judge(&mut verifier, b"10.1/a", (1000, 1020), &new);
    counts.add(&judge(&mut verifier, b"10.1/a", (1000, 1021), &lie));
    assert_eq!(verdict(&counts), WAITS);
    assert!(!verifier.is_settled());
    watch.set_complete(1020 * MS);
    verifier.refresh(&mut counts);
    assert_eq!(
        verdict(&counts),
        WAITS,
        "the check began when the answer arrived, and may have missed its set"
    );
    watch.update(two_sets());
    watch.set_complete(1021 * MS);
    verifier.refresh(&mut counts);
    assert_eq!(verdict(&counts), (1, 0, 0));
    watch.set_complete(1022 * MS);
    verifier.refresh(&mut counts);
    assert_eq!(verdict(&counts), (1, 1, 0));
    assert!(verifier.is_settled());
}

#[test]
fn an_answer_from_a_missed_set_is_not_called_wrong() {
    let mut timeline = Timeline::fixed(set(b"old"));
    timeline.publish(generation(2, 1000, None), 1000 * MS, i64::MIN);
    timeline.publish(generation(3, 1050, Some(b"new")), 1060 * MS, i64::MIN);
    let mut verifier = AnswerVerifier::new(
        Arc::new(SharedTimeline::new(timeline, i64::MAX)),
        VerifyRules::new(STALENESS_NS),
    );
    let other = values(b"10.1/a", 2, b"???");
    for (sent, expected) in [(900, WRONG), (1020, UNDECIDED), (1160, UNDECIDED), (1161, WRONG)] {
        let counts = judge(&mut verifier, b"10.1/a", (sent, sent + 1), &other);
        assert_eq!(verdict(&counts), expected, "sent at {sent}");
    }
}

#[test]
fn answers_after_the_last_check_are_undecided() {
    let watch = Arc::new(SharedTimeline::new(Timeline::fixed(set(b"old")), 0));
    let mut verifier = AnswerVerifier::new(watch, VerifyRules::new(STALENESS_NS));
    let mut counts = judge(&mut verifier, b"10.1/a", (10, 20), &values(b"10.1/a", 2, b"new"));
    verifier.finish(&mut counts);
    assert_eq!(verdict(&counts), UNDECIDED);
}

#[test]
fn old_sets_are_dropped_by_time_and_by_number() {
    let mut timeline = Timeline::default();
    for n in 0..3000 {
        timeline.publish(generation(n, 0, None), i64::try_from(n).unwrap(), i64::MIN);
    }
    assert_eq!(timeline.0.len(), GENERATIONS_MAX);
    timeline.publish(generation(3000, 0, None), 3000, 2995);
    assert_eq!(timeline.0.len(), 7, "sets that ended at 2995 to 3000, and the newest");
    assert_eq!(timeline.newest().unwrap().number, 3000);
}

/// One record with values of all kinds.
#[derive(Debug)]
struct MixedRecord(Vec<u8>);

fn mixed() -> Vec<Value<'static>> {
    let with = |index, kind, permissions| Value { permissions, ..Value::new(index, kind, b"x") };
    let admin = Permissions::ADMIN_READ;
    vec![
        with(1, b"URL", Permissions::DEFAULT),
        with(2, b"EMAIL", admin),
        with(3, b"URL", Permissions::DEFAULT),
        with(4, b"SECRET", Permissions(0)),
    ]
}

fn encoded(values: &[Value<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    values.iter().for_each(|value| value.encode(&mut bytes));
    bytes
}

impl ContentSource for MixedRecord {
    fn content_of(&self, _: &[u8]) -> Result<SetContent<'_>, String> {
        Ok(SetContent::Values { count: 2, bytes: &self.0 })
    }

    fn each_value(&self, _: &[u8], each: EachValue<'_>) -> Result<(), String> {
        mixed().iter().for_each(|value| each(value, &encoded(&[*value])));
        Ok(())
    }
}

#[test]
fn lists_and_permissions_decide_the_expected_answer() {
    let mixed = mixed();
    let public = encoded(&[mixed[0], mixed[2]]);
    let watch = Arc::new(SharedTimeline::fixed(Arc::new(MixedRecord(public.clone()))));
    let url_and_3 = values(b"10.1/a", 2, &public);
    let only_3 = values(b"10.1/a", 1, &encoded(&mixed[2..3]));
    let error = |code| message(code, &[0; 4]);
    for (form, answer, expected) in [
        ("plain", &url_and_3, RIGHT),
        ("type:url", &url_and_3, RIGHT),
        ("type:url", &only_3, WRONG),
        ("index:3", &only_3, RIGHT),
        ("index:3+index:2", &only_3, RIGHT),
        ("index:2", &error(ResponseCode::VALUES_NOT_FOUND), RIGHT),
        ("type:NONE", &error(ResponseCode::VALUES_NOT_FOUND), RIGHT),
        ("type:NONE", &url_and_3, WRONG),
        ("all", &error(ResponseCode::AUTHENTICATION_NEEDED), RIGHT),
        ("all", &url_and_3, WRONG),
        ("all+index:3", &only_3, RIGHT),
        ("all+index:4", &error(ResponseCode::INSUFFICIENT_PERMISSIONS), RIGHT),
        ("all+index:4", &error(ResponseCode::AUTHENTICATION_NEEDED), WRONG),
    ] {
        let form: QuestionForm = form.parse().unwrap();
        let mut verifier = AnswerVerifier::new(Arc::clone(&watch), VerifyRules::new(0));
        let mut counts = AnswerCounts::default();
        let question = form.question(b"10.1/a");
        let answered =
            AnsweredQuestion { question: &question, envelope: &Envelope::request(5), message: answer };
        verifier.judge(answered, 0, 1, &mut counts);
        assert_eq!(verdict(&counts), expected, "{form}: {:?}", verifier.mismatches);
        for wrong in &verifier.mismatches {
            let (code, values) = match &*form.to_string() {
                "1=type:url" => (1, hex(&public)),
                "1=type:NONE" => (200, String::new()),
                "1=all" => (402, String::new()),
                _ => (401, String::new()),
            };
            assert_eq!((wrong.expected_code, &wrong.expected_values_hex), (Some(code), &values), "{form}");
        }
    }
}

/// The keys of the golden vectors that can sign.
fn vector_keys() -> Vec<PrivateKey> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/credentials.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let keys = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let records = keys.filter_map(|key| Some(key.get("handle_private_hex")?.as_str()?.to_owned()));
    let decoded = records.map(|hex| data_encoding::HEXLOWER.decode(hex.as_bytes()).unwrap());
    decoded.filter_map(|record| PrivateKey::from_record(&record).ok()).collect()
}

#[test]
fn requested_signatures_are_checked() {
    let keys = vector_keys();
    for algorithm in [Algorithm::Rsa, Algorithm::Dsa] {
        assert!(keys.iter().any(|key| key.algorithm() == algorithm), "{algorithm:?}");
    }
    keys.iter().for_each(signatures_are_checked_with);
}

fn signatures_are_checked_with(key: &PrivateKey) {
    let (envelope, plain) = (Envelope::request(9), values(b"10.1/a", 2, b"values"));
    let covered = &plain[..plain.len() - 4];
    let credential = handle_auth::message::sign_message(&envelope, 0, covered, key).unwrap();
    let len = u32::try_from(credential.len()).unwrap().to_be_bytes();
    let signed = [covered, &len, &credential].concat();
    let mut forged = signed.clone();
    *forged.last_mut().unwrap() ^= 1;
    let rules = VerifyRules { key: Some(Arc::new(key.public().clone())), ..VerifyRules::new(0) };
    for (form, message, expected) in [
        ("certify", &signed, RIGHT),
        ("certify", &plain, WRONG),
        ("certify", &forged, WRONG),
        ("plain", &plain, RIGHT),
    ] {
        let form: QuestionForm = form.parse().unwrap();
        let mut verifier =
            AnswerVerifier::new(Arc::new(SharedTimeline::fixed(set(b"values"))), rules.clone());
        let mut counts = AnswerCounts::default();
        let question = form.question(b"10.1/a");
        verifier.judge(
            AnsweredQuestion { question: &question, envelope: &envelope, message },
            0,
            1,
            &mut counts,
        );
        assert_eq!(verdict(&counts), expected, "{form}");
        assert!(
            verifier.mismatches.iter().all(|wrong| wrong.expected_code.is_none()),
            "code and values do not make an unsigned answer right"
        );
    }
}

#[test]
fn answers_outside_the_sample_are_counted() {
    let rules = VerifyRules { every: 10, ..VerifyRules::new(0) };
    let mut verifier = AnswerVerifier::new(Arc::new(SharedTimeline::fixed(set(b"values"))), rules);
    let mut counts = AnswerCounts::default();
    let judged = (0..95).filter(|_| verifier.is_next(&mut counts)).count();
    assert_eq!((judged, counts.unjudged), (10, 85));
}
