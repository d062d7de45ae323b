//! The exchanges of `credentials.jsonl` in which a client of the reference sets a session up and uses it: the same
//! steps to our server, with MACs and encryption of the session that comes of them, end in the same bytes - or in what
//! is said here.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::message::verify_mac_message;
use handle_auth::session::SessionKey;
use handle_auth::{PrivateKey, PublicKey};
use handle_daemon::sessions::config::CipherName;
use handle_proto::code::Cipher;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::{Body, Envelope, Message, Reply, Response};
use handle_proto::{OpCode, ResponseCode};
use handle_server::config::Datapath;
use handle_tests::admin_server::administer_with;
use handle_tests::client::{exchange, exchange_over_tcp};
use handle_tests::session::{ClientSession, SessionExchange, recorded_pair};
use handle_tests::test_server::{serve_with, server_key};
use handle_tests::transcripts::{answer_to, is_hidden, lines, plain, private_keys, raw};
use handle_tests::vectors::hex;
use serde_json::Value as Json;
use std::collections::HashMap;
use std::net::SocketAddr;

/// What has to be the same: operation, code, flags, body and MAC, without what varies.
fn shape(bytes: &[u8], session_id: i32) -> (OpCode, ResponseCode, u32, Vec<u8>, bool) {
    let (envelope, rest) = Envelope::split(bytes).unwrap();
    let message = Message::decode(rest).unwrap();
    let Body::Reply(reply) = message.decode_body(envelope.version).unwrap() else { panic!("a reply") };
    let body = match reply.response {
        // The nonce is another each time, and so is the digest, by the number of the session in nothing but the MAC.
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
    let Ok(Body::Reply(Reply { response: Response::Challenge(asked), digest, .. })) = body else {
        return None;
    };
    Some((envelope.session_id, asked.nonce.to_vec(), digest?.digest.to_vec()))
}

/// The recorded message as one in `session`, protected in the same way; a wrong MAC stays one.
fn in_session(bytes: &[u8], recorded_key: &[u8], session: &ClientSession) -> Vec<u8> {
    let (envelope, rest) = Envelope::split(bytes).unwrap();
    let message = Message::decode(rest).unwrap();
    let message_len = u32::try_from(rest.len()).unwrap();
    let flags = EnvelopeFlags::default();
    let moved = Envelope { session_id: session.id, flags, message_len, ..envelope };
    let ours = [&moved.to_bytes()[..], rest].concat();
    let Ok(Some(credential)) = message.decode_credential() else { return ours };
    let mut ours = session.numbered(ours, credential.counter);
    if verify_mac_message(&envelope, &message, recorded_key).is_err() {
        *ours.last_mut().unwrap() ^= 1;
    }
    ours
}

/// Whom the steps are sent to, and how.
struct Peer {
    address: SocketAddr,
    exchange: SessionExchange,
    /// Whether it does what it is asked to administer.
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
    let mut challenge = None;
    for (at, step) in steps.iter().enumerate().skip(1) {
        let case = format!("{name} step {at}: {}", step["note"]);
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
                    // That of the answer to what cannot be read.
                    ..Envelope::request(-1)
                };
                [&envelope.to_bytes()[..], &text].concat()
            }
            Some(recorded) => {
                let op_code = Message::decode(&recorded[Envelope::LEN..]).unwrap().header.op_code;
                let mut recorded = recorded;
                if op_code.is_admin() && !peer.administers {
                    // It is refused as what cannot be read is, by an answer to no request in particular.
                    recorded[8..12].fill(0xff);
                }
                let message = match (&challenge, op_code) {
                    (Some(challenge), OpCode::RESPONSE_TO_CHALLENGE) => {
                        answer_to(line, keys, &recorded, challenge)
                    }
                    _ => recorded,
                };
                let message = in_session(&message, &recorded_key, &session);
                if is_hidden(&raw(step, "send")) { session.hidden(&message) } else { message }
            }
        };
        // A message that was never protected is no copy, and one that was is sent as it was.
        let received = exchange(&sent).unwrap_or_else(|| panic!("{case}: no answer"));
        let note = step["note"].as_str().unwrap();
        if note.starts_with("an administrative request") && !peer.administers {
            assert_eq!(code(&received), ResponseCode::PROTOCOL_ERROR, "{case}: here are only queries");
            continue;
        }
        if note.starts_with("a request after the termination") {
            assert_eq!(code(&received), ResponseCode::SESSION_TIMEOUT, "{case}: its challenge is taken, too");
            continue;
        }
        let (ours, protection) = session.read(&received);
        let reference = plain(step, "receive").unwrap();
        assert_eq!(shape(&ours, session.id), shape(&reference, recorded_id), "{case}");
        assert_eq!(protection.hidden, is_hidden(&raw(step, "receive")), "{case}");
        if let Some(asked) = challenge_of(&ours) {
            assert_eq!(asked.0, session.id, "{case}");
            challenge = Some(asked);
        }
    }
}

fn code(bytes: &[u8]) -> ResponseCode {
    Message::decode(&bytes[Envelope::LEN..]).unwrap().header.response_code
}

/// Replays all sessions; how many.
fn replay_all(peer: &Peer) -> usize {
    let (keys, server_key) = (private_keys(), server_key("root"));
    let lines = lines("transcript");
    let sessions = lines.iter().filter(|line| !line["client_dh"].is_null());
    let count = sessions.map(|line| replay(peer, line, &keys, &server_key)).count();
    assert!(count > 0, "there are transcripts");
    count
}

fn sessions_end_as_recorded(datapath: Datapath, exchange: SessionExchange) {
    // The oldest of the recorded clients know DES alone.
    let served = serve_with("root", datapath, |config| {
        config.sessions.ciphers = vec![CipherName::Aes, CipherName::Des];
        config.sessions.old_versions = true;
    });
    let count = replay_all(&Peer { address: served.address(), exchange, administers: false });
    let sessions = served.server.shared().slow.as_ref().unwrap().sessions.as_ref().unwrap().to_json();
    assert_eq!((&sessions["opened"], &sessions["ended"]), (&count.into(), &count.into()));
    assert_eq!(sessions["open"], 0);
}

#[test]
fn vectors_sessions_with_the_process_that_administers() {
    let administered = administer_with("root", |config| {
        config.sessions.ciphers = vec![CipherName::Aes, CipherName::Des];
        config.sessions.old_versions = true;
    });
    let count =
        replay_all(&Peer { address: administered.address(), exchange: exchange_over_tcp, administers: true });
    let counts = administered.server().shared().service.sessions().unwrap().own().counts();
    assert_eq!((counts.opened, counts.ended), (count as u64, count as u64));
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

/// Keys encrypted with RSA, in the recorded exchanges and ours: refused, and no session comes of it.
#[test]
fn vectors_sessions_with_other_exchanges_are_refused() {
    let served = serve_with("root", Datapath::Portable, |_| ());
    let mut count = 0;
    for line in lines("transcript") {
        if !line["name"].as_str().unwrap().starts_with("live/session/rsa_") {
            continue;
        }
        let answer = exchange(served.address(), &hex(&line["steps"][0]["send_hex"])).unwrap();
        assert_eq!(code(&answer), ResponseCode::SESSION_FAILED, "{}", line["name"]);
        assert_eq!(
            line["final_response_code"],
            ResponseCode::SESSION_FAILED.0,
            "{}: in the end",
            line["name"]
        );
        count += 1;
    }
    assert_eq!(count, 2);
}
