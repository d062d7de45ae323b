//! Sessions recorded in `credentials.jsonl` with a client of the reference.
//!
//! The same steps are sent to our server, with MACs and encryption under our own session key. The
//! answers have the same bytes, except where a comment here states a difference.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::message::verify_mac_message;
use handle_auth::session::SessionKey;
use handle_auth::{PrivateKey, PublicKey};
use handle_proto::code::Cipher;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::{Body, Envelope, Message, Reply, Response};
use handle_proto::{OpCode, ResponseCode};
use handle_session::config::CipherName;
use handle_tests::admin_server::administer_from;
use handle_tests::client::{exchange, exchange_over_tcp};
use handle_tests::session::{ClientSession, SessionExchange, recorded_pair};
use handle_tests::test_server::{OmittedHandles, serve_from, server_key_in};
use handle_tests::transcripts::{answer_to, is_encrypted, lines, plain, private_keys, raw};
use handle_tests::vectors::{LineChecks, LineOutcome, VectorSource, has_server, hex, is_foreign, require};
use handle_worker::config::Datapath;
use serde_json::Value as Json;
use std::collections::HashMap;
use std::net::SocketAddr;

/// The parts of an answer that must match: operation, code, flags, body, and whether there is a
/// MAC.
fn shape(bytes: &[u8], session_id: i32) -> (OpCode, ResponseCode, u32, Vec<u8>, bool) {
    let (envelope, rest) = Envelope::split(bytes).unwrap();
    let message = Message::decode(rest).unwrap();
    let Body::Reply(reply) = message.decode_body(envelope.version).unwrap() else { panic!("a reply") };
    let body = match reply.response {
        // Nonce and digest differ in each session.
        Response::Challenge(_) => vec![],
        Response::Failure(failure) => {
            let text = String::from_utf8(failure.message.to_vec()).unwrap();
            text.replace(&format!("session {session_id}"), "session").into_bytes()
        }
        _ => message.covered[24..].to_vec(),
    };
    let header = message.header;
    (header.op_code, header.response_code, header.flags.0, body, !message.credential.is_empty())
}

fn challenge_of(answer: &[u8]) -> Option<(i32, Vec<u8>, Vec<u8>)> {
    let (envelope, rest) = Envelope::split(answer).unwrap();
    let body = Message::decode(rest).unwrap().decode_body(envelope.version);
    let Ok(Body::Reply(Reply { response: Response::Challenge(challenge), digest, .. })) = body else {
        return None;
    };
    Some((envelope.session_id, challenge.nonce.to_vec(), digest?.digest.to_vec()))
}

/// Moves a recorded message into `session` with the same protection; a wrong MAC stays wrong.
fn in_session(bytes: &[u8], recorded_key: &[u8], session: &ClientSession) -> Vec<u8> {
    let (envelope, rest) = Envelope::split(bytes).unwrap();
    let message = Message::decode(rest).unwrap();
    let message_len = u32::try_from(rest.len()).unwrap();
    let flags = EnvelopeFlags::default();
    let moved = Envelope { session_id: session.id, flags, message_len, ..envelope };
    let ours = [&moved.to_bytes()[..], rest].concat();
    let Ok(Some(credential)) = message.decode_credential() else { return ours };
    let mut ours = session.add_mac(ours, credential.counter);
    if verify_mac_message(&envelope, &message, recorded_key).is_err() {
        *ours.last_mut().unwrap() ^= 1;
    }
    ours
}

/// The server under test and how to reach it.
struct Peer {
    address: SocketAddr,
    exchange: SessionExchange,
    /// Whether the server performs administrative operations.
    administers: bool,
}

fn replay(peer: &Peer, line: &Json, keys: &HashMap<String, PrivateKey>, key: &PublicKey) {
    let name = line["name"].as_str().unwrap();
    let recorded_key = hex(&line["session_key_hex"]);
    let recorded_id = i32::try_from(line["session_id"].as_i64().unwrap()).unwrap();
    let steps = line["steps"].as_array().unwrap();
    let set_up = hex(&steps[0]["send_hex"]);
    let exchange = |message: &[u8]| (peer.exchange)(peer.address, message);
    let answer = exchange(&set_up).unwrap();
    let pair = recorded_pair(&line["client_dh"]);
    let mut session = ClientSession::from_answer(&pair, &answer, Some(key));
    assert_eq!(i64::from(session.key.cipher().0), line["encryption_algorithm"], "{name}");
    assert_eq!(session.version.to_string(), line["session_version"].as_str().unwrap(), "{name}");
    let (mut challenge, mut is_over) = (None, false);
    for (at, step) in steps.iter().enumerate().skip(1) {
        let case = format!("{name} step {at}: {}", step["note"]);
        let sent_op_code = plain(step, "send")
            .map(|recorded| Message::decode(&recorded[Envelope::LEN..]).unwrap().header.op_code);
        let sent = match plain(step, "send") {
            None => {
                let other = SessionKey::new(Cipher::AES, vec![0x55; 32]).unwrap();
                let text = other.encrypt(session.version, &[7; 16], &[0x11; 200]);
                let message_len = u32::try_from(text.len()).unwrap();
                let flags = EnvelopeFlags::ENCRYPTED;
                let envelope = Envelope {
                    version: session.version,
                    session_id: session.id,
                    flags,
                    message_len,
                    // The request number of the answer to an unreadable message.
                    ..Envelope::request(-1)
                };
                [&envelope.to_bytes()[..], &text].concat()
            }
            Some(recorded) => {
                let op_code = Message::decode(&recorded[Envelope::LEN..]).unwrap().header.op_code;
                let mut recorded = recorded;
                if op_code.is_admin() && !peer.administers {
                    // The operation is refused like an unreadable message, by an answer without a
                    // request number.
                    recorded[8..12].fill(0xff);
                }
                let message = match (&challenge, op_code) {
                    (Some(challenge), OpCode::RESPONSE_TO_CHALLENGE) => {
                        answer_to(line, keys, &recorded, challenge)
                    }
                    _ => recorded,
                };
                let message = in_session(&message, &recorded_key, &session);
                if is_encrypted(&raw(step, "send")) { session.encrypt(&message) } else { message }
            }
        };
        let received = exchange(&sent).unwrap_or_else(|| panic!("{case}: no answer"));
        if sent_op_code.is_some_and(OpCode::is_admin) && !peer.administers {
            assert_eq!(
                code(&received),
                ResponseCode::PROTOCOL_ERROR,
                "{case}: the server only answers queries"
            );
            continue;
        }
        if is_over {
            assert_eq!(
                code(&received),
                ResponseCode::SESSION_TIMEOUT,
                "{case}: the session and its challenge are gone"
            );
            continue;
        }
        is_over |= sent_op_code == Some(OpCode::SESSION_TERMINATE);
        let (ours, protection) = session.read(&received);
        let reference = plain(step, "receive").unwrap();
        assert_eq!(shape(&ours, session.id), shape(&reference, recorded_id), "{case}");
        assert_eq!(protection.encrypted, is_encrypted(&raw(step, "receive")), "{case}");
        if let Some(parts) = challenge_of(&ours) {
            assert_eq!(parts.0, session.id, "{case}");
            challenge = Some(parts);
        }
    }
}

fn code(bytes: &[u8]) -> ResponseCode {
    Message::decode(&bytes[Envelope::LEN..]).unwrap().header.response_code
}

/// Replays all sessions and returns how many were opened.
fn replay_all(peer: &Peer, left_out: &OmittedHandles) -> usize {
    let (keys, server_key) = (private_keys(), server_key_in(VectorSource::Selected, "root"));
    let (mut checks, mut count) = (LineChecks::default(), 0);
    for line in lines("transcript").iter().filter(|line| !line["client_dh"].is_null()) {
        let name = line["name"].as_str().unwrap_or("?");
        let mut steps = line["steps"].as_array().into_iter().flatten();
        let is_left_out = steps.any(|step| left_out.contains_handle_of(&step["send_fields"]));
        if is_left_out || left_out.has(&line["identity"]["handle"]) {
            checks.record(name, LineOutcome::Skipped("its record cannot be published"));
            continue;
        }
        if line["identity"]["key_id"].as_str().is_some_and(|id| !keys.contains_key(id)) {
            checks.record(name, LineOutcome::Skipped("the key is missing or of a refused size"));
            continue;
        }
        checks.check(name, || replay(peer, line, &keys, &server_key));
        count += 1;
    }
    require(count, 1, "sessions");
    checks.finish();
    count
}

fn sessions_end_as_recorded(datapath: Datapath, exchange: SessionExchange) {
    if !has_server("root", &lines("transcript")) {
        return;
    }
    // The oldest of the recorded clients only know DES.
    let served = serve_from(VectorSource::Selected, "root", datapath, |config| {
        config.sessions.ciphers = vec![CipherName::Aes, CipherName::Des];
        config.sessions.old_versions = true;
    });
    let peer = Peer { address: served.address(), exchange, administers: false };
    let count = replay_all(&peer, &served.left_out);
    let sessions = served.server.shared().slow.as_ref().unwrap().sessions.as_ref().unwrap().to_json();
    assert_eq!(sessions["opened"], count);
    // Sessions recorded by other implementations may stay open.
    assert!(
        is_foreign() || (&sessions["ended"], &sessions["open"]) == (&count.into(), &0.into()),
        "{sessions}"
    );
}

#[test]
fn vectors_sessions_with_the_process_that_administers() {
    if !has_server("root", &lines("transcript")) {
        return;
    }
    let (administered, left_out) = administer_from(VectorSource::Selected, "root", |config| {
        config.sessions.ciphers = vec![CipherName::Aes, CipherName::Des];
        config.sessions.old_versions = true;
    });
    let peer = Peer { address: administered.address(), exchange: exchange_over_tcp, administers: true };
    let count = replay_all(&peer, &left_out);
    let counts = administered.server().shared().service.proof.sessions().unwrap().own().counts();
    assert_eq!(counts.opened, count as u64);
    assert!(is_foreign() || counts.ended == count as u64, "{} of {count} ended", counts.ended);
}

#[test]
fn vectors_sessions_over_udp() {
    sessions_end_as_recorded(Datapath::Portable, exchange);
}

#[test]
fn vectors_sessions_over_udp_on_the_datapath_of_this_machine() {
    sessions_end_as_recorded(Datapath::Auto, exchange);
}

#[test]
fn vectors_sessions_over_tcp() {
    sessions_end_as_recorded(Datapath::Portable, exchange_over_tcp);
}

/// Set-ups with a session key encrypted with RSA are refused.
#[test]
fn vectors_sessions_with_other_exchanges_are_refused() {
    if !has_server("root", &lines("transcript")) {
        return;
    }
    let served = serve_from(VectorSource::Selected, "root", Datapath::Portable, |_| ());
    let mut checks = LineChecks::default();
    for line in lines("transcript").iter().filter(|line| line["client_dh"].is_null()) {
        let Some(first) = line["steps"][0]["send_hex"].as_str().map(|_| hex(&line["steps"][0]["send_hex"]))
        else {
            continue;
        };
        let message = first.get(Envelope::LEN..).unwrap_or_default();
        if Message::decode(message).is_ok_and(|message| message.header.op_code == OpCode::SESSION_SETUP) {
            checks.check(line["name"].as_str().unwrap_or("?"), || {
                let answer = exchange(served.address(), &first).unwrap();
                assert_eq!(code(&answer), ResponseCode::SESSION_FAILED);
                if line["final_response_code"] == ResponseCode::SESSION_FAILED.0 {
                    LineOutcome::AsStated
                } else {
                    LineOutcome::Permitted("session keys by RSA")
                }
            });
        }
    }
    require(checks.count(), 2, "session set-ups by RSA");
    let permitted = checks.permitted("session keys by RSA");
    checks.finish();
    assert!(is_foreign() || permitted == 0, "the reference ends with the same code");
}
