//! The exchanges of `credentials.jsonl` in which a client of the reference proves who it is and reads or administers: the
//! same steps to our servers, with answers to their own challenges, end in the same bytes - or in what a row says.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::message::verify_message;
use handle_auth::{PrivateKey, PublicKey};
use handle_proto::ResponseCode;
use handle_proto::wire::{Body, Envelope, Message, Reply, Response};
use handle_server::config::Datapath;
use handle_tests::admin_server::administer;
use handle_tests::client::{exchange, exchange_over_tcp};
use handle_tests::session::SessionExchange;
use handle_tests::test_server::{serve, server_key};
use handle_tests::transcripts::{answer_to, lines, private_keys};
use handle_tests::vectors::hex;
use serde_json::Value as Json;
use std::collections::HashMap;
use std::net::SocketAddr;

/// Where we do the safe thing, and the reference does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KnownDifference {
    /// The last answer has this code.
    Code(ResponseCode),
    /// The last answer lacks the value with this index, which nobody may read.
    Lacks(i32),
}

const DIFFERS: [(&str, KnownDifference); 7] = [
    ("live/secret/read_half_whole", KnownDifference::Lacks(3)),
    ("live/public_rsa/read_half_whole", KnownDifference::Lacks(3)),
    // A challenge is taken by the first answer.
    ("live/secret/replayed_answer", KnownDifference::Code(ResponseCode::AUTHENTICATION_TIMEOUT)),
    ("live/public/replayed_answer", KnownDifference::Code(ResponseCode::AUTHENTICATION_TIMEOUT)),
    // The key that fits says which index is meant, without a session too.
    ("live/public/index_zero", KnownDifference::Code(ResponseCode::SUCCESS)),
    // Transactions and records are not given out over the network.
    ("live/admin/dump_handles_2.7", KnownDifference::Code(ResponseCode::OPERATION_NOT_SUPPORTED)),
    ("live/admin/retrieve_txn_2.7", KnownDifference::Code(ResponseCode::OPERATION_NOT_SUPPORTED)),
];

/// A message without what varies: session, expiration, nonce, signature, and the lengths they are in.
fn fixed(bytes: &[u8], key: &PublicKey) -> (Envelope, Vec<u8>, bool) {
    let (mut envelope, rest) = Envelope::split(bytes).unwrap();
    let message = Message::decode(rest).unwrap();
    let is_signed = !message.credential.is_empty();
    if is_signed {
        verify_message(&envelope, &message, key).expect("its signature is right");
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

fn indexes(reply: &Reply<'_>) -> Vec<i32> {
    match reply.response {
        Response::Answer(answer) => answer.values.iter().map(|value| value.index).collect(),
        _ => vec![],
    }
}

/// Whether whoever may not, or has not the key, is told who lacks what.
fn says_why(reply: &Reply<'_>) -> bool {
    let refuses = [ResponseCode::INVALID_ADMIN, ResponseCode::AUTHENTICATION_FAILED].contains(&reply.code);
    refuses && matches!(reply.response, Response::Failure(failure) if !failure.message.is_empty())
}

fn replay(
    address: SocketAddr,
    exchange: SessionExchange,
    line: &Json,
    keys: &HashMap<String, PrivateKey>,
    key: &PublicKey,
) {
    let name = line["name"].as_str().unwrap();
    let differs = DIFFERS.iter().find(|(other, _)| *other == name).map(|(_, differs)| *differs);
    let steps = line["steps"].as_array().unwrap();
    let (mut challenge, mut answer) = (None, vec![]);
    for (at, step) in steps.iter().enumerate() {
        let recorded = hex(&step["send_hex"]);
        let sent = match (at, &challenge) {
            (0, _) => recorded,
            (1, Some(challenge)) => {
                answer = answer_to(line, keys, &recorded, challenge);
                answer.clone()
            }
            _ => answer.clone(),
        };
        let received = exchange(address, &sent).unwrap_or_else(|| panic!("{name}: no answer"));
        let ours = reply(&received);
        if let Response::Challenge(asked) = ours.response {
            let (envelope, _) = Envelope::split(&received).unwrap();
            let digest = ours.digest.unwrap().digest.to_vec();
            assert!(envelope.session_id > 0, "{name}");
            challenge = Some((envelope.session_id, asked.nonce.to_vec(), digest));
        }
        let reference = hex(&step["receive_hex"][0]);
        match differs.filter(|_| at + 1 == steps.len()) {
            // The reference does not say why.
            None if says_why(&ours) => assert_eq!(ours.code, reply(&reference).code, "{name}, step {at}"),
            None => assert_eq!(fixed(&received, key), fixed(&reference, key), "{name}, step {at}"),
            Some(KnownDifference::Code(code)) => {
                assert_eq!(ours.code, code, "{name}");
                assert_ne!(reply(&reference).code, code, "{name}: it is no difference");
            }
            Some(KnownDifference::Lacks(index)) => {
                let mut expected = indexes(&reply(&reference));
                expected.retain(|&other| other != index);
                assert_eq!(indexes(&ours), expected, "{name}");
                assert_ne!(indexes(&reply(&reference)), expected, "{name}: it is no difference");
            }
        }
    }
}

fn authenticated_reads_end_as_recorded(datapath: Datapath, exchange: SessionExchange) {
    let server_key = server_key("root");
    let keys = private_keys();
    let served = serve("root", datapath);
    let reads = lines("transcript").into_iter().filter(|line| {
        let name = line["name"].as_str().unwrap();
        name.starts_with("live/secret/") || name.starts_with("live/public")
    });
    let mut count = 0;
    for line in reads {
        replay(served.address(), exchange, &line, &keys, &server_key);
        count += 1;
    }
    assert!(count > 0, "there are transcripts");
    let challenges = &served.server.shared().slow.as_ref().unwrap().to_json()["challenges"];
    assert_eq!(challenges["displaced"], 0);
}

#[test]
fn vectors_transcripts_of_administration_and_of_reads_where_records_are_administered() {
    let server_key = server_key("root");
    let (keys, administered) = (private_keys(), administer("root"));
    let mut count = 0;
    for line in lines("transcript") {
        let name = line["name"].as_str().unwrap();
        if !name.starts_with("live/session/") {
            replay(administered.address(), exchange_over_tcp, &line, &keys, &server_key);
            count += usize::from(name.starts_with("live/admin/"));
        }
    }
    assert!(count > 0, "there are transcripts of administration");
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
