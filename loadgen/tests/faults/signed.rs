//! Signed answers, genuine and forged: with RSA and DSA keys, from a file and from the server's
//! site record.

use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use handle_auth::{Algorithm, PrivateKey};
use handle_loadgen::{KeySource, LoadPattern, ReferenceData, RunOptions, RunReport, Verify, run};
use handle_proto::OpCode;
use handle_proto::data::site::{Address, Interface, InterfaceKind, InterfaceProtocol};
use handle_proto::data::{ServerBuilder, SiteBuilder};
use handle_proto::wire::{Envelope, Header, Message};

use super::server::{FaultyServer, TIMEOUT, joined, names, records, right_answer};
use super::sums;

/// A key of the golden vectors: both records, in the order private and public.
struct KeyRecords {
    private: Vec<u8>,
    public: Vec<u8>,
}

fn keys() -> Vec<KeyRecords> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/credentials.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let vectors = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let keys = vectors.filter_map(|vector| {
        let record = |name: &str| {
            let hex = vector.get(name)?.as_str()?;
            Some(data_encoding::HEXLOWER.decode(hex.as_bytes()).unwrap())
        };
        Some(KeyRecords { private: record("handle_private_hex")?, public: record("handle_public_hex")? })
    });
    keys.collect()
}

/// The datagrams of a message: an envelope with what is in the message, and its signature.
fn signed(request: &[u8], message: &[u8], key: &PrivateKey) -> Vec<Vec<u8>> {
    let (mut envelope, _) = Envelope::split(request).unwrap();
    let covered = &message[..message.len() - 4];
    let credential = handle_auth::message::sign_message(&envelope, 0, covered, key).unwrap();
    let len = u32::try_from(credential.len()).unwrap().to_be_bytes();
    let message = [covered, &len, &credential].concat();
    envelope.message_len = u32::try_from(message.len()).unwrap();
    if message.len() > 492 {
        envelope.flags = handle_proto::wire::envelope::EnvelopeFlags::TRUNCATED;
    }
    let pieces = (0..).zip(message.chunks(492));
    pieces.map(|(sequence, data)| [&Envelope { sequence, ..envelope }.to_bytes(), data].concat()).collect()
}

/// The answer to the request for the site record, with this key in it.
fn site(request: &[u8], public: &[u8]) -> Vec<u8> {
    let (_, message) = Envelope::split(request).unwrap();
    let header = Message::decode(message).unwrap().header;
    let mut site = SiteBuilder::new();
    site.server(ServerBuilder {
        id: 1,
        address: Address([0; 16]),
        public_key: public.to_vec(),
        interfaces: vec![Interface::new(InterfaceKind::QUERY, InterfaceProtocol::UDP, 2641)],
    });
    let body = site.build().into_bytes();
    let response_code = handle_proto::ResponseCode::SUCCESS;
    let header = Header { response_code, body_len: u32::try_from(body.len()).unwrap(), ..header };
    [&header.to_bytes()[..], &body, &[0; 4]].concat()
}

/// Sends a hundred requests for signed answers; each tenth is signed with `forger` instead of
/// `signer`.
fn run_signed(signer: &KeyRecords, forger: &KeyRecords, from_server: bool) -> RunReport {
    let [right, wrong] = [signer, forger].map(|key| Arc::new(PrivateKey::from_record(&key.private).unwrap()));
    let public = signer.public.clone();
    let mut answers = 0;
    let server = FaultyServer::start(move |_, request| {
        let (_, message) = Envelope::split(request).unwrap();
        if Message::decode(message).unwrap().header.op_code == OpCode::GET_SITE_INFO {
            return signed(request, &site(request, &public), &right);
        }
        answers += 1;
        let key = if answers % 10 == 4 { &wrong } else { &right };
        signed(request, &joined(&right_answer(request))[Envelope::LEN..], key)
    });
    let (records, file) = (records(), tempfile::NamedTempFile::new().unwrap());
    std::fs::write(file.path(), &signer.public).unwrap();
    let key = if from_server { KeySource::Server } else { KeySource::File(file.path().to_owned()) };
    let options = RunOptions {
        // Signing is slow in an unoptimised build.
        load: LoadPattern::Open { rate: NonZeroU64::new(50).unwrap() },
        duration: Duration::from_secs(1),
        timeout: 10 * TIMEOUT,
        forms: vec!["certify".parse().unwrap()],
        verify: Some(Verify {
            key: Some(key),
            ..Verify::with(ReferenceData::Records(records.path().to_owned()))
        }),
        ..RunOptions::new(server.address, names())
    };
    run(&options, |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn forged_signatures_are_wrong_whoever_signs() {
    let keys = keys();
    let with = |algorithm| {
        let has_algorithm = |key: &&KeyRecords| {
            PrivateKey::from_record(&key.private).is_ok_and(|key| key.algorithm() == algorithm)
        };
        keys.iter().find(has_algorithm).unwrap()
    };
    let (rsa, dsa) = (with(Algorithm::Rsa), with(Algorithm::Dsa));
    for (signer, forger, from_server) in
        [(rsa, dsa, false), (rsa, dsa, true), (dsa, rsa, false), (dsa, rsa, true)]
    {
        let report = run_signed(signer, forger, from_server);
        assert_eq!(sums(&report), [50, 0, 45, 5], "{report}");
        let mismatches = &report.verification.as_ref().unwrap().mismatches;
        assert!(mismatches.iter().all(|wrong| wrong.difference.starts_with("not signed")), "{report}");
    }
}
