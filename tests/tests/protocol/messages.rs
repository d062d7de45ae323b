//! Every message of `messages.jsonl` decodes to the stated fields and is encoded from them again.

use handle_proto::wire::fragment;
use handle_proto::wire::reassembly::{Reassembly, ReassemblyLimits, ReassemblyOutcome};
use handle_proto::wire::stream::{Stream, StreamFront, split};
use handle_proto::wire::{Envelope, Message};
use handle_tests::fields::{message_fields, to_message};
use handle_tests::process::{hdl, run};
use handle_tests::vectors::{LineChecks, check_lines, hex, is_foreign, load, require};
use serde_json::Value as Json;

/// Largest message in a stream, in bytes.
const STREAM_MESSAGE_LEN_MAX: u32 = 1 << 18;

/// The lines of the file, each with its name for failures.
fn lines() -> Vec<(String, Json)> {
    let lines = load("messages.jsonl");
    require(lines.len(), 1, "messages");
    lines.into_iter().map(|line| (format!("{} ({})", line["name"], line["version"]), line)).collect()
}

/// The stated fields without the member that records what the reference did.
fn stated(line: &Json) -> Json {
    let mut fields = line["fields"].clone();
    fields.as_object_mut().expect("an object").remove("library_decode");
    fields
}

/// The lines whose bytes are exactly one message. Vectors of other implementations may have others,
/// which would hide the messages behind them in a stream.
fn whole_lines() -> Vec<(String, Json)> {
    let mut lines = lines();
    let is_whole = |line: &Json| {
        let text = line["hex"].as_str().unwrap_or_default();
        let bytes = data_encoding::HEXLOWER_PERMISSIVE.decode(text.as_bytes()).unwrap_or_default();
        matches!(split(&bytes, STREAM_MESSAGE_LEN_MAX), Ok(StreamFront::Message(_, [])))
    };
    lines.retain(|(_, line)| !is_foreign() || is_whole(line));
    lines
}

fn decodes(line: &Json) -> bool {
    line["fields"]["library_decode"] == "ok"
}

#[test]
fn vectors_messages_decode_to_the_stated_fields() {
    check_lines(lines(), |name, line| {
        let decoded = message_fields(&hex(&line["hex"]));
        if decodes(line) {
            let decoded = decoded.unwrap_or_else(|error| panic!("{name}: {error:?}"));
            assert_eq!(decoded, stated(line), "{name}");
        } else {
            assert!(
                decoded.is_err(),
                "{name}: must be refused like in the reference: {}",
                line["fields"]["library_decode"]
            );
        }
    });
}

#[test]
fn vectors_messages_are_encoded_from_their_fields() {
    check_lines(lines().into_iter().filter(|(_, line)| decodes(line)), |name, line| {
        let encoded = to_message(&stated(line));
        if line["reencodes_identically"] == true {
            assert_eq!(encoded, hex(&line["hex"]), "{name}");
            return;
        }
        // A prefix referral of an old version decodes as an error and is encoded as one. Only the
        // parts that an error does not have, and the lengths, differ.
        let mut expected = stated(line);
        let decoded = message_fields(&encoded).unwrap_or_else(|error| panic!("{name}: {error:?}"));
        assert_eq!(expected["response_code_after_decode"], 7, "{name}");
        for (part, length) in [("envelope", "message_length"), ("header", "body_length")] {
            expected[part][length] = decoded[part][length].clone();
        }
        assert_eq!(decoded, expected, "{name}");
        assert!(encoded.len() < hex(&line["hex"]).len(), "{name}");
    });
}

#[test]
fn vectors_messages_are_cut_into_the_same_datagrams() {
    check_lines(lines(), |name, line| {
        let message = hex(&line["hex"]);
        let (envelope, rest) = Envelope::split(&message).expect("an envelope");
        let datagrams: Vec<_> = fragment::cut(&envelope)
            .map(|fragment| [&fragment.envelope[..], &rest[fragment.range]].concat())
            .collect();
        match line.get("datagrams_hex") {
            Some(expected) => {
                let expected: Vec<_> = expected.as_array().expect("a list").iter().map(hex).collect();
                assert_eq!(datagrams, expected, "{name}");
            }
            None => assert_eq!(datagrams, [message], "{name}"),
        }
    });
}

#[test]
fn vectors_messages_come_together_from_datagrams_in_any_order() {
    let limits = ReassemblyLimits {
        messages_max: 2,
        messages_per_sender_max: 1,
        bytes_max: 1 << 20,
        age_ms_max: 5_000,
    };
    let mut table = Reassembly::new(limits);
    check_lines(lines(), |name, line| {
        let Some(datagrams) = line.get("datagrams_hex") else { return };
        let datagrams: Vec<_> = datagrams.as_array().expect("a list").iter().map(hex).collect();
        let count = datagrams.len();
        for first in 0..count {
            // Backwards from each datagram in turn; all but the last are received twice.
            let order: Vec<_> = (0..count).map(|at| (first + count - at) % count).collect();
            let mut whole = None;
            for (position, &at) in order.iter().enumerate() {
                for _ in 0..if position + 1 == count { 1 } else { 2 } {
                    assert_eq!(whole, None, "{name}");
                    match table.accept("sender", &datagrams[at], 0) {
                        Ok(ReassemblyOutcome::Complete(bytes)) => whole = Some(bytes),
                        Ok(ReassemblyOutcome::Incomplete) => {}
                        other => panic!("{name}: {other:?}"),
                    }
                }
            }
            assert_eq!(whole, Some(hex(&line["hex"])), "{name}");
        }
    });
    assert!(table.is_empty());
}

#[test]
fn vectors_messages_are_found_in_a_stream_of_all() {
    let messages: Vec<_> = whole_lines().iter().map(|(_, line)| hex(&line["hex"])).collect();
    let (mut stream, mut decoded) = (Stream::new(STREAM_MESSAGE_LEN_MAX), vec![]);
    for mut piece in messages.concat().chunks(333) {
        while !piece.is_empty() {
            let (taken, message) = stream.feed(piece).expect("a stream");
            decoded.extend(message.map(<[u8]>::to_vec));
            piece = &piece[taken..];
        }
    }
    assert_eq!(stream.finish(), Ok(()));
    assert!(decoded == messages);
}

#[test]
fn vectors_messages_cut_anywhere_are_refused_or_unsigned() {
    check_lines(lines(), |name, line| {
        let bytes = hex(&line["hex"]);
        let message = &bytes[Envelope::LEN..];
        let whole = Message::decode(message);
        if whole.is_err() && !decodes(line) {
            return;
        }
        let body_end = whole.expect("a message").covered.len();
        for len in (0..message.len()).step_by(if message.len() > 600 { 37 } else { 1 }) {
            let cut = Message::decode(&message[..len]);
            let is_unsigned = (body_end..body_end + 4).contains(&len);
            assert_eq!(cut.is_ok(), is_unsigned, "{name} cut to {len}: {cut:?}");
            let front = split(&bytes[..Envelope::LEN + len], STREAM_MESSAGE_LEN_MAX);
            assert_eq!(front, Ok(StreamFront::Needs(message.len() - len)), "{name} cut to {len}");
        }
    });
}

#[test]
fn vectors_messages_are_taken_apart_by_the_tool() {
    // All messages in one stream; then those with datagrams, joined and one to a paragraph.
    let directory = tempfile::tempdir().expect("a directory");
    let whole: Vec<Json> = whole_lines().into_iter().map(|(_, line)| line).collect();
    let stream: String = whole.iter().map(|line| line["hex"].as_str().expect("hex")).collect();
    let (cut, datagrams): (Vec<_>, Vec<_>) = whole
        .iter()
        .filter_map(|line| Some((line.clone(), line.get("datagrams_hex")?.as_array()?.clone())))
        .unzip();
    let datagrams = datagrams.iter().flatten().map(|one| one.as_str().expect("hex"));
    let datagrams = datagrams.collect::<Vec<_>>().join("\n\n");
    let train = datagrams.replace('\n', "");
    let cases = [("stream", stream, whole), ("train", train, cut.clone()), ("datagrams", datagrams, cut)];
    let mut checks = LineChecks::default();
    for (name, text, expected) in cases.into_iter().filter(|(_, _, expected)| !expected.is_empty()) {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("a file");
        let args = ["message", "decode", "--json", "--file", path.to_str().expect("UTF-8")];
        let output = run(hdl(args));
        let shown = String::from_utf8(output.stdout).expect("UTF-8");
        for (shown, line) in shown.lines().zip(&expected).filter(|(_, line)| decodes(line)) {
            checks.check(&format!("{name}: {}", line["name"]), || {
                let shown: Json = serde_json::from_str(shown).expect("JSON");
                assert_eq!(shown, stated(line));
            });
        }
        checks.check(name, || {
            assert_eq!(shown.lines().count(), expected.len());
            let all_decode = expected.iter().all(decodes);
            assert_eq!(output.status.code(), Some(if all_decode { 0 } else { 1 }));
        });
    }
    checks.finish();
}
