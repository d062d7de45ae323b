//! Authenticated reads and changes recorded in `credentials.jsonl` with a client of the reference.
//!
//! The same steps are sent to our servers, with answers to our own challenges. The replies have the
//! same bytes, or differ as [`KnownDifference`] permits.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::message::verify_message;
use handle_auth::{PrivateKey, PublicKey};
use handle_client::replication::{StreamContent, StreamEvent, StreamLimits, StreamReader, StreamTransport};
use handle_proto::wire::replication_stream::{DumpItem, TransactionItem};
use handle_proto::wire::{Body, Envelope, Message, Reply, Response};
use handle_proto::{OpCode, Permissions, ResponseCode, Value, ValueBuf};
use handle_tests::admin_server::administer_from;
use handle_tests::client::{exchange, exchange_over_tcp};
use handle_tests::session::SessionExchange;
use handle_tests::test_server::{OmittedHandles, serve_from, server_key_in};
use handle_tests::transcripts::{answer_to, first_op_code, lines, private_keys};
use handle_tests::vectors::{LineChecks, LineOutcome, VectorSource, has_server, hex, is_foreign, require};
use handle_worker::config::Datapath;
use serde_json::Value as Json;
use std::collections::HashMap;
use std::net::SocketAddr;

/// An intended difference from the reference, with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KnownDifference {
    /// The last answer has this code.
    Code(&'static str, ResponseCode),
    /// The last answer lacks the values that nobody may read.
    Withheld(&'static str),
}

/// The difference that a transcript may end with, from the last request and its recorded reply.
fn known_difference(line: &Json, last_sent: &[u8], last_received: &[u8]) -> Option<KnownDifference> {
    use KnownDifference::{Code, Withheld};
    let (_, rest) = Envelope::split(last_sent).unwrap();
    let op_code = Message::decode(rest).unwrap().header.op_code;
    let steps = line["steps"].as_array().unwrap();
    let is_repeated = |step: &Json| step["send_hex"] == steps[steps.len() - 1]["send_hex"];
    let (identity, reference) = (&line["identity"], reply(last_received));
    // A challenge can be answered once.
    if op_code == OpCode::RESPONSE_TO_CHALLENGE && steps[..steps.len() - 1].iter().any(is_repeated) {
        return Some(Code("an answer given twice", ResponseCode::AUTHENTICATION_TIMEOUT));
    }
    // Index 0 means any key of the record that fits, also outside sessions.
    if identity["index"] == 0
        && identity["key_id"].is_string()
        && reference.code == ResponseCode::INVALID_ADMIN
    {
        return Some(Code("index 0 and a public key", ResponseCode::SUCCESS));
    }
    let has_unreadable = |reply: &Reply<'_>| match reply.response {
        Response::Answer(answer) => answer.values.iter().any(|value| !is_readable(&value)),
        _ => false,
    };
    has_unreadable(&reference).then_some(Withheld("values that nobody may read"))
}

/// Whether anybody may read a value.
fn is_readable(value: &Value<'_>) -> bool {
    value.permissions.0 & (Permissions::ADMIN_READ.0 | Permissions::PUBLIC_READ.0) != 0
}

/// A message without the parts that vary: session, expiration, nonce, signature, and its length.
fn fixed_parts(bytes: &[u8], key: &PublicKey) -> (Envelope, Vec<u8>, bool) {
    let (mut envelope, rest) = Envelope::split(bytes).unwrap();
    let message = Message::decode(rest).unwrap();
    let is_signed = !message.credential.is_empty();
    if is_signed {
        verify_message(&envelope, &message, key).expect("the signature is valid");
    }
    let mut covered = message.covered.to_vec();
    covered[16..20].fill(0);
    if message.header.response_code == ResponseCode::AUTHENTICATION_NEEDED {
        let at = covered.len() - 16;
        covered[at..].fill(0);
        envelope.session_id = 0;
    }
    envelope.message_len = 0;
    (envelope, covered, is_signed)
}

fn reply(bytes: &[u8]) -> Reply<'_> {
    let (envelope, rest) = Envelope::split(bytes).unwrap();
    match Message::decode(rest).unwrap().decode_body(envelope.version).unwrap() {
        Body::Reply(reply) => reply,
        other => panic!("{other:?}"),
    }
}

fn values(reply: &Reply<'_>) -> Vec<Vec<u8>> {
    let Response::Answer(answer) = reply.response else { return vec![] };
    let readable = answer.values.iter().filter(is_readable);
    let encoded = readable.map(|value| ValueBuf::from(&value).as_bytes().to_vec());
    encoded.collect()
}

/// Whether a refusal has a text with the reason.
fn gives_reason(reply: &Reply<'_>) -> bool {
    let refuses = [ResponseCode::INVALID_ADMIN, ResponseCode::AUTHENTICATION_FAILED].contains(&reply.code);
    refuses && matches!(reply.response, Response::Failure(failure) if !failure.message.is_empty())
}

fn replay(
    address: SocketAddr,
    exchange: SessionExchange,
    line: &Json,
    keys: &HashMap<String, PrivateKey>,
    key: &PublicKey,
) -> LineOutcome {
    let name = line["name"].as_str().unwrap();
    let steps = line["steps"].as_array().unwrap();
    let (mut challenge, mut answer) = (None, vec![]);
    for (at, step) in steps.iter().enumerate() {
        let recorded = hex(&step["send_hex"]);
        let sent = match (at, &challenge) {
            (0, _) => recorded.clone(),
            (1, Some(challenge)) => {
                answer = answer_to(line, keys, &recorded, challenge);
                answer.clone()
            }
            _ => answer.clone(),
        };
        let received = exchange(address, &sent).unwrap_or_else(|| panic!("{name}: no answer"));
        let ours = reply(&received);
        if let Response::Challenge(contents) = ours.response {
            let (envelope, _) = Envelope::split(&received).unwrap();
            let digest = ours.digest.unwrap().digest.to_vec();
            assert!(envelope.session_id > 0, "{name}");
            challenge = Some((envelope.session_id, contents.nonce.to_vec(), digest));
        }
        let reference = hex(&step["receive_hex"][0]);
        let is_same = if gives_reason(&ours) {
            // The reference gives no reason.
            ours.code == reply(&reference).code
        } else {
            fixed_parts(&received, key) == fixed_parts(&reference, key)
        };
        if is_same {
            continue;
        }
        let difference = known_difference(line, &recorded, &reference).filter(|_| at + 1 == steps.len());
        match difference {
            None => {
                assert_eq!(fixed_parts(&received, key), fixed_parts(&reference, key), "{name}, step {at}")
            }
            Some(KnownDifference::Code(kind, code)) => {
                assert_eq!(ours.code, code, "{name}: {kind}");
                return LineOutcome::Permitted(kind);
            }
            Some(KnownDifference::Withheld(kind)) => {
                assert_eq!(
                    (ours.code, values(&ours)),
                    (ResponseCode::SUCCESS, values(&reply(&reference))),
                    "{name}"
                );
                return LineOutcome::Permitted(kind);
            }
        }
    }
    LineOutcome::AsStated
}

/// Replays the selected transcripts and compares the number of permitted differences of each kind.
fn replay_all(
    is_replayed: fn(&Json) -> bool,
    (address, left_out): (SocketAddr, &OmittedHandles),
    exchange: SessionExchange,
    kinds: &[(&str, usize)],
) {
    let (server_key, keys) = (server_key_in(VectorSource::Selected, "root"), private_keys());
    let mut checks = LineChecks::default();
    for line in lines("transcript").into_iter().filter(|line| line["client_dh"].is_null()) {
        let name = line["name"].as_str().unwrap_or("?").to_owned();
        if !is_replayed(&line) {
            continue;
        }
        let usable = |id: &str| keys.contains_key(id);
        let is_left_out = left_out.contains_handle_of(&line["steps"][0]["send_fields"]);
        if is_left_out || left_out.has(&line["identity"]["handle"]) {
            checks.record(&name, LineOutcome::Skipped("its record cannot be published"));
        } else if line["identity"]["key_id"].as_str().is_some_and(|id| !usable(id)) {
            checks.record(&name, LineOutcome::Skipped("the key is missing or of a refused size"));
        } else {
            checks.check(&name, || replay(address, exchange, &line, &keys, &server_key));
        }
    }
    require(checks.count(), 1, "transcripts");
    let counts: Vec<_> = kinds.iter().map(|&(kind, count)| (kind, checks.permitted(kind), count)).collect();
    checks.finish();
    for (kind, count, expected) in counts {
        assert!(is_foreign() || count == expected, "{kind}: {count} lines differ, expected {expected}");
    }
}

/// Whether a transcript is an authenticated read.
fn is_authenticated_read(line: &Json) -> bool {
    first_op_code(line) == OpCode::RESOLUTION
}

/// Whether a transcript reads or administers; `sessions.rs` replays those that set up sessions.
fn is_read_or_change(line: &Json) -> bool {
    first_op_code(line) != OpCode::SESSION_SETUP
}

fn authenticated_reads_end_as_recorded(datapath: Datapath, exchange: SessionExchange) {
    if !has_server("root", &lines("transcript")) {
        return;
    }
    let served = serve_from(VectorSource::Selected, "root", datapath, |_| ());
    let kinds =
        [("values that nobody may read", 2), ("an answer given twice", 2), ("index 0 and a public key", 1)];
    replay_all(is_authenticated_read, (served.address(), &served.left_out), exchange, &kinds);
    let challenges = &served.server.shared().slow.as_ref().unwrap().to_json()["challenges"];
    assert_eq!(challenges["displaced"], 0);
}

#[test]
fn vectors_transcripts_of_administration_and_of_reads_where_records_are_administered() {
    if !has_server("root", &lines("transcript")) {
        return;
    }
    let (administered, left_out) = administer_from(VectorSource::Selected, "root", |_| ());
    let kinds =
        [("values that nobody may read", 2), ("an answer given twice", 2), ("index 0 and a public key", 1)];
    replay_all(is_read_or_change, (administered.address(), &left_out), exchange_over_tcp, &kinds);
}

#[test]
fn vectors_transcripts_of_authenticated_reads_over_udp() {
    authenticated_reads_end_as_recorded(Datapath::Portable, exchange);
}

#[test]
fn vectors_transcripts_of_authenticated_reads_over_tcp() {
    authenticated_reads_end_as_recorded(Datapath::Portable, exchange_over_tcp);
}

#[test]
fn vectors_transcripts_of_authenticated_reads_over_tcp_on_the_datapath_of_this_machine() {
    authenticated_reads_end_as_recorded(Datapath::Auto, exchange_over_tcp);
}

#[test]
fn vectors_streams_for_mirrors_are_read_and_verified() {
    if !has_server("root", &lines("transcript")) {
        return;
    }
    let (key, mut checks) = (server_key_in(VectorSource::Selected, "root"), LineChecks::default());
    for line in lines("transcript") {
        let step = line["steps"].as_array().into_iter().flatten().find(|step| step["stream_hex"].is_string());
        let Some(step) = step else { continue };
        let name = line["name"].as_str().unwrap_or("?").to_owned();
        let content = match first_op_code(&line) {
            OpCode::DUMP_HANDLES => StreamContent::Dump,
            _ => StreamContent::Transactions,
        };
        checks.check(&name, || {
            let limits = StreamLimits::default();
            let mut reader = StreamReader::new(content, StreamTransport::Clear, Some(key.clone()), limits);
            let (bytes, mut names) = (hex(&step["stream_hex"]), vec![]);
            for piece in bytes.chunks(1000) {
                reader.feed(piece);
                while let Some(event) = reader.next_event().unwrap() {
                    names.extend(handle_of(&event));
                }
            }
            assert!(reader.is_complete(), "{name}: the stream has an end");
            let recorded = step["stream_records"].as_array().into_iter().flatten();
            let recorded: Vec<_> = recorded.filter_map(|record| record["handle"].as_str()).collect();
            assert_eq!(names, recorded, "{name}");
            LineOutcome::AsStated
        });
    }
    require(checks.count(), 2, "streams");
    checks.finish();
}

/// The handle that an item is about.
fn handle_of(event: &StreamEvent<'_>) -> Option<String> {
    match event {
        StreamEvent::Dump(DumpItem::Handle { handle, .. } | DumpItem::Homed(handle))
        | StreamEvent::Transaction(TransactionItem::Transaction { handle, .. }) => {
            Some(String::from_utf8_lossy(handle).into_owned())
        }
        _ => None,
    }
}
