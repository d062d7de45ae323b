//! Keys, signatures, MACs, challenges and sessions: `credentials.jsonl`.
//!
//! Every line verifies or fails as it states, with both backends:
//! `engine/auth/tests/credentials.rs` runs this file with AWS-LC.
//! Weaknesses of the reference that are visible in its bytes, and our behaviour:
//!
//! - MACs of versions 2.5 and 2.6 do not cover the counter, and signatures up to 2.6 not the
//!   request id. Peers check them so, and so do we:
//!   [`vectors_macs_of_sessions_verify_and_are_made_as_stated`].
//! - The reference bounds neither the rounds of PBKDF2 nor the length of the derived key, which may
//!   become empty. We accept 1 to 1,000,000 rounds and 128 to 512 bits.
//! - Both refuse the digest of another request: [`vectors_challenges_are_answered_and_verified`].
//! - With a DSA key of 2048 bits the reference cannot sign below 2.11. We sign with SHA-256, which
//!   it verifies.
//! - We refuse key files encrypted with single DES.
//! - We refuse session keys encrypted with RSA (modes 1 and 2 of session set-ups).
//! - The reference accepts an answer to a challenge twice. The table of challenges prevents that;
//!   see [`vectors_answers_in_transcripts_are_verified`].

use handle_auth::agreement::KeyPair;
use handle_auth::keyfile::{self, KeyFileError};
use handle_auth::session::SessionKey;
use handle_auth::{KeyError, Pbkdf2Limits, PrivateKey, PublicKey, challenge, digest, kdf, message, pem};
use handle_proto::code::{Cipher, DigestAlgorithm};
use handle_proto::data::keyfile::Scheme;
use handle_proto::data::{self, PrivateKeyBuf};
use handle_proto::wire::auth::{self, Challenge, SecretAnswer, SignedAnswer};
use handle_proto::wire::counter::SeenCounters;
use handle_proto::wire::cursor::Cursor;
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::session::{self, KeyExchange};
use handle_proto::wire::{Body, Envelope, Message, Reply, Request, Response};
use handle_proto::{Field, OpCode, ResponseCode, Version};
use handle_tests::server_keys::server_key_in;
use handle_tests::session::recorded_pair;
use handle_tests::transcripts::{plain, raw};
use handle_tests::vectors::{
    LineOutcome, NO_SERVER, VectorSource, check_kind, check_kinds, document, hex, is_foreign, load, require,
};
use serde_json::Value as Json;
use std::collections::HashMap;

fn check_each<R: Into<LineOutcome>>(kind: &str, check: impl FnMut(&str, &Json) -> R) {
    check_kind("credentials.jsonl", kind, check);
}

/// Signatures over MD5, which the reference accepts.
const MD5_REFUSED: LineOutcome = LineOutcome::Permitted("signatures over MD5 are refused");
/// Keys of unsupported sizes.
const SIZE_REFUSED: LineOutcome = LineOutcome::Permitted("keys of other sizes are refused");
/// Keys derived in more rounds, or to another length, than we accept.
const ROUNDS_REFUSED: LineOutcome = LineOutcome::Permitted("PBKDF2 is bounded");
/// Private key files encrypted with single DES.
const DES_REFUSED: LineOutcome = LineOutcome::Permitted("key files under DES are refused");
/// Lines whose key is missing or of an unsupported size.
const NO_KEY: LineOutcome = LineOutcome::Skipped("the key is missing or of a refused size");

/// The keys that `parse` reads from `member` of their lines, by id.
fn keys_of<K>(member: &str, parse: impl Fn(&[u8]) -> Option<K>) -> HashMap<String, K> {
    let lines = load("credentials.jsonl");
    let keys = lines.iter().filter(|line| line["kind"] == "key");
    keys.filter_map(|line| Some((line["key_id"].as_str()?.to_owned(), parse(&hex(&line[member]))?))).collect()
}

/// Public keys by id.
fn public_keys() -> HashMap<String, PublicKey> {
    keys_of("handle_public_hex", |record| PublicKey::from_record(record).ok())
}

/// Private keys by id.
fn private_keys() -> HashMap<String, PrivateKey> {
    keys_of("handle_private_hex", |record| PrivateKey::from_record(record).ok())
}

/// Splits a stream unit into envelope and message.
fn split_message(bytes: &[u8]) -> (Envelope, Message<'_>) {
    let (envelope, rest) = Envelope::split(bytes).expect("an envelope");
    (envelope, Message::decode(rest).expect("a message"))
}

#[test]
fn vectors_keys_are_used_or_refused_by_their_size() {
    check_each("key", |name, line| {
        let private = PrivateKey::from_record(&hex(&line["handle_private_hex"]));
        let public = PublicKey::from_record(&hex(&line["handle_public_hex"]));
        let bits = line["bits"].as_u64().expect("bits");
        if is_foreign() && matches!(public, Err(KeyError::Size { .. })) {
            return SIZE_REFUSED;
        }
        let public = public.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(public.bits() as u64, bits, "{name}");
        if line["algorithm"] == "RSA" && !matches!(bits, 2048 | 3072 | 4096) {
            let accepted = "2048, 3072 or 4096 bits";
            let bits = usize::try_from(bits).expect("bits");
            let error = KeyError::Size { algorithm: "RSA", bits, accepted };
            assert_eq!(private.err(), Some(error), "{name}");
            return SIZE_REFUSED;
        }
        let private = private.unwrap_or_else(|error| panic!("{name}: {error}"));
        let signature = private.sign(DigestAlgorithm::SHA256, &[name.as_bytes()]).expect(name);
        public.verify(DigestAlgorithm::SHA256, &[name.as_bytes()], &signature).expect(name);
        LineOutcome::AsStated
    });
}

#[test]
fn vectors_signatures_verify_as_stated() {
    let keys = public_keys();
    check_each("signed_message", |name, line| {
        let Some(key) = keys.get(line["key_id"].as_str().expect(name)) else { return NO_KEY };
        let bytes = hex(&line["hex"]);
        let (envelope, message) = split_message(&bytes);
        let verdict = message::verify_message(&envelope, &message, key);
        if verdict.is_err() && line["verifies"] == true && is_over_md5(&message) {
            return MD5_REFUSED;
        }
        assert_eq!(verdict.is_ok(), line["verifies"] == true, "{name}: {verdict:?}");
        LineOutcome::AsStated
    });
}

/// Whether the signature of a message is over MD5.
fn is_over_md5(message: &Message<'_>) -> bool {
    let credential = message.decode_credential().ok().flatten();
    let digest = credential.and_then(|credential| credential.digest_algorithm());
    matches!(digest, Some(DigestAlgorithm::MD5 | DigestAlgorithm::OLD_MD5))
}

/// Our own vectors have no signatures over MD5; foreign vectors may.
#[test]
fn vectors_signatures_over_md5_are_refused() {
    let (private_keys, public_keys) = (private_keys(), public_keys());
    for (id, key) in private_keys {
        for digest in [DigestAlgorithm::MD5, DigestAlgorithm::OLD_MD5] {
            assert!(key.sign(digest, &[b"signed"]).is_err(), "{id}");
            let signature = key.sign(DigestAlgorithm::SHA256, &[b"signed"]).expect("a signature");
            assert!(public_keys[&id].verify(digest, &[b"signed"], &signature).is_err(), "{id}");
        }
    }
}

#[test]
fn vectors_signatures_are_made_again() {
    let keys = private_keys();
    let mut same = 0;
    check_each("signed_message", |name, line| {
        let (Some(key), Some(stated)) = (keys.get(line["key_id"].as_str().expect(name)), line.get("fields"))
        else {
            return;
        };
        let bytes = hex(&line["hex"]);
        let (envelope, message) = split_message(&bytes);
        let counter = i32::try_from(line["session_counter"].as_i64().expect(name)).expect(name);
        let ours = message::sign_message(&envelope, counter, message.covered, key).expect(name);
        let signed = Message { credential: &ours, ..message };
        message::verify_message(&envelope, &signed, key.public()).expect(name);
        // RSA signatures are deterministic, so with the same digest ours equals that of the
        // reference.
        let digest = stated["credential"]["digest_algorithm"].as_str().map(str::as_bytes);
        let ours_digest = key.digest_for(envelope.version);
        if digest.and_then(DigestAlgorithm::from_identifier) == Some(ours_digest)
            && line["signature_algorithm"].as_str().is_some_and(|text| text.ends_with("RSA"))
        {
            assert_eq!(ours, message.credential, "{name}");
            same += 1;
        }
    });
    require(same, 7, "deterministic signatures");
}

#[test]
fn vectors_of_old_versions_sign_the_same_for_any_request_id() {
    let keys = private_keys();
    check_each("signed_message", |name, line| {
        let Some(key) = keys.get(line["key_id"].as_str().expect(name)) else { return };
        let Some(0) = line["session_counter"].as_i64() else { return };
        if key.algorithm() != handle_auth::Algorithm::Rsa {
            return;
        }
        let bytes = hex(&line["hex"]);
        let (envelope, message) = split_message(&bytes);
        let with_id = |request_id| {
            let envelope = Envelope { request_id, ..envelope };
            message::sign_message(&envelope, 0, message.covered, key).expect(name)
        };
        assert_eq!(with_id(1) != with_id(2), message::covers_request_id(envelope.version), "{name}");
        assert_eq!(message::covers_request_id(envelope.version), envelope.version >= Version::new(2, 7));
    });
}

#[test]
fn vectors_macs_of_sessions_verify_and_are_made_as_stated() {
    check_each("mac_message", |name, line| {
        let bytes = hex(&line["hex"]);
        let (envelope, message) = split_message(&bytes);
        let key = hex(&line["session_key_hex"]);
        let verdict = message::verify_mac_message(&envelope, &message, &key);
        assert_eq!(verdict.is_ok(), line["verifies"] == true, "{name}: {verdict:?}");
        if line.get("fields").is_some() {
            let counter = i32::try_from(line["session_counter"].as_i64().expect(name)).expect(name);
            assert_eq!(message::mac_message(&envelope, counter, message.covered, &key), message.credential);
        }
    });
}

#[test]
fn vectors_digests_are_those_of_the_reference() {
    check_each("digest", |name, line| {
        let algorithm = code(&line["code"]);
        let computed = digest::digest(algorithm, [&hex(&line["data_hex"])[..]]).expect(name);
        assert_eq!(*computed, hex(&line["digest_hex"]), "{name}");
    });
}

#[test]
fn vectors_macs_are_those_of_the_reference() {
    check_each("mac", |name, line| {
        let algorithm = match line["algorithm_name"].as_str() {
            Some(written) => DigestAlgorithm::from_identifier(written.as_bytes()),
            None => Some(code(&line["code"])),
        };
        let (key, bytes) = (hex(&line["key_hex"]), hex(&line["data_hex"]));
        let computed = algorithm.and_then(|algorithm| digest::mac(algorithm, &key, &[&bytes]));
        let stated = line["mac_hex"].as_str().map(|_| hex(&line["mac_hex"]));
        assert_eq!(computed.as_deref(), stated.as_deref(), "{name}");
    });
}

fn code(number: &Json) -> DigestAlgorithm {
    DigestAlgorithm(u8::try_from(number.as_u64().expect("a code")).expect("a code"))
}

#[test]
fn vectors_keys_are_the_same_as_pem() {
    check_each("key", |name, line| {
        let text = |member: &str| line[member].as_str().expect(name).trim_end().to_owned();
        let (spki, pkcs8) = (text("spki_pem"), text("pkcs8_pem"));
        let (public, private) = (hex(&line["handle_public_hex"]), hex(&line["handle_private_hex"]));
        assert_eq!(pem::decode_public_key(spki.as_bytes()).expect(name), public, "{name}");
        let written = pem::encode_public_key(&data::PublicKey::decode(&public).expect(name)).expect(name);
        assert_eq!(written.trim_end(), spki, "{name}");
        assert_eq!(keyfile::decode(pkcs8.as_bytes(), None).expect(name).as_bytes(), private, "{name}");
        let written = pem::encode_private_key(&data::PrivateKey::decode(&private).expect(name)).expect(name);
        assert_eq!(written.trim_end(), pkcs8, "{name}");
    });
}

/// Types 0 and 2 are single DES, which we refuse; all others decrypt as stated.
#[test]
fn vectors_private_key_files_open_as_stated() {
    check_each("private_key_file", |name, line| {
        let file = hex(&line["file_hex"]);
        let passphrase = line["passphrase"].as_str().map(str::as_bytes);
        let opened = keyfile::decode(&file, passphrase);
        if let Some(scheme @ (0 | 2)) = line["encryption_type"].as_u64() {
            let legacy = Scheme(u32::try_from(scheme).expect(name));
            assert_eq!(opened.err(), Some(KeyFileError::Legacy(legacy)), "{name}");
            return DES_REFUSED;
        }
        if line["decrypted_hex"].is_null() {
            assert!(matches!(opened, Err(KeyFileError::Frame(_))), "{name}");
            return LineOutcome::AsStated;
        }
        let key = opened.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(key.as_bytes(), hex(&line["decrypted_hex"]), "{name}");
        if passphrase.is_none() {
            assert_eq!(**keyfile::plain(&key.view()), file, "{name}");
            return LineOutcome::AsStated;
        }
        assert_eq!(keyfile::decode(&file, None).err(), Some(KeyFileError::PassphraseNeeded), "{name}");
        let wrong = keyfile::decode(&file, Some(b"wrong")).err();
        assert_eq!(wrong, Some(KeyFileError::Undecryptable), "{name}");
        LineOutcome::AsStated
    });
}

#[test]
fn vectors_derived_keys_are_those_of_the_reference() {
    check_each("pbkdf2", |name, line| {
        let number = |member: &str| u32::try_from(line[member].as_u64().expect(name)).expect(name);
        let (iterations, key_bits) = (number("iterations"), number("key_bits"));
        let (password, salt) = (hex(&line["password_hex"]), hex(&line["salt_hex"]));
        let Some(key_len) = Pbkdf2Limits::DEFAULT.key_len(iterations, key_bits) else {
            assert!(!(1..=1_000_000).contains(&iterations) || !(128..=512).contains(&key_bits), "{name}");
            return ROUNDS_REFUSED;
        };
        let key = kdf::pbkdf2_sha1(&password, &salt, iterations, key_len);
        assert_eq!(**key, hex(&line["derived_key_hex"]), "{name}");
        if line["mac_encoding_hex"].is_null() {
            return LineOutcome::AsStated;
        }
        let (code, bytes) = (code(&line["mac_code"]), hex(&line["data_hex"]));
        let stated = [&[code.0], &hex(&line["mac_encoding_hex"])[..]].concat();
        let computed = digest::mac(DigestAlgorithm::HMAC_SHA1, &key, &[&bytes]).expect(name);
        let mut ours = Vec::new();
        SecretAnswer::Pbkdf2 { salt: &salt, iterations, key_bits, mac: &computed }.encode(&mut ours);
        assert_eq!(ours, stated, "{name}");
        let answer = SecretAnswer::decode(&stated).expect(name);
        let covered = [&bytes[..16], &bytes[16..]];
        let limits = Pbkdf2Limits::DEFAULT;
        let verdict = challenge::verify_secret(Version::CURRENT, &covered, &answer, &password, &limits);
        assert_eq!(verdict, Ok(()), "{name}");
        LineOutcome::AsStated
    });
}

#[test]
fn vectors_secrets_hash_as_in_the_reference() {
    check_each("secret_key_encoding", |name, line| {
        let secret = line["secret"].as_str().expect(name).as_bytes();
        assert_eq!(secret, hex(&line["plain_hex"]), "{name}");
        assert_eq!(**challenge::hashed_secret(secret), hex(&line["hashed_hex"]), "{name}");
    });
}

/// The digest and the challenge in a reply.
fn challenge_in<'a>(envelope: &Envelope, message: &Message<'a>) -> (RequestDigest<'a>, Challenge<'a>) {
    match message.decode_body(envelope.version) {
        Ok(Body::Reply(Reply { digest: Some(digest), response: Response::Challenge(challenge), .. })) => {
            (digest, challenge)
        }
        other => panic!("not a challenge: {other:?}"),
    }
}

/// Every answer of the reference is right or wrong as stated, and deterministic answers equal ours.
/// We also answer with DSA keys of 2048 bits, which the reference cannot.
#[test]
fn vectors_challenges_are_answered_and_verified() {
    let (public_keys, private_keys) = (public_keys(), private_keys());
    check_each("challenge", |name, line| {
        let (request, challenge) = (hex(&line["request_hex"]), hex(&line["challenge_hex"]));
        let (_, request) = split_message(&request);
        let (envelope, message) = split_message(&challenge);
        let (digest, challenge) = challenge_in(&envelope, &message);
        let is_ours = challenge::check_request_digest(&digest, request.covered).is_ok();
        if !is_ours {
            // The reference refuses the digest of another request as well.
            assert!(line["answer_hex"].is_null() && !line["error"].is_null(), "{name}");
            return LineOutcome::AsStated;
        }
        let covered = challenge.covered(&digest);
        let (version, suggested) = (envelope.version, envelope.effective_suggested());
        let stated = line["answer_hex"].as_str().map(|_| hex(&line["answer_hex"]));
        if line["auth_type"] == "HS_SECKEY" {
            let (secret, stated) = (hex(&line["secret_hex"]), stated.expect(name));
            let answer = SecretAnswer::decode(&stated).expect(name);
            let limits = Pbkdf2Limits::DEFAULT;
            let verdict = challenge::verify_secret(version, &covered, &answer, &secret, &limits);
            if let SecretAnswer::Pbkdf2 { iterations, key_bits, .. } = answer
                && limits.key_len(iterations, key_bits).is_none()
            {
                assert!(verdict.is_err(), "{name}");
                return ROUNDS_REFUSED;
            }
            assert_eq!(verdict.is_ok(), line["correct"] == true, "{name}: {verdict:?}");
            let salt = match answer {
                SecretAnswer::Pbkdf2 { salt, .. } => salt.try_into().expect(name),
                _ => [0; 16],
            };
            let ours = challenge::answer_with_secret(version, suggested, &covered, &secret, &salt);
            assert_eq!(ours, stated, "{name}");
            return LineOutcome::AsStated;
        }
        let id = line["key_id"].as_str().expect(name);
        let (Some(private), Some(public)) = (private_keys.get(id), public_keys.get(id)) else {
            return NO_KEY;
        };
        let ours = challenge::answer_with_key(version, &covered, private).expect(name);
        let verify = |answer: &[u8]| {
            let answer = SignedAnswer::decode(answer).expect(name);
            challenge::verify_public(&covered, &answer, public)
        };
        assert_eq!(verify(&ours), Ok(()), "{name}");
        match stated {
            Some(stated) if line["answer_is_deterministic"] == true => assert_eq!(ours, stated, "{name}"),
            Some(stated) => assert_eq!(verify(&stated).is_ok(), line["correct"] == true, "{name}"),
            // The reference signs with SHA-1, which is too short for a DSA key of more than 1024
            // bits.
            None => {
                assert!(public.algorithm() == handle_auth::Algorithm::Dsa && public.bits() > 1024, "{name}")
            }
        }
        LineOutcome::AsStated
    });
}

/// Answers to challenges in recorded exchanges are right where the server accepted them. The
/// server's table of challenges refuses the one that was sent twice and accepted twice.
#[test]
fn vectors_answers_in_transcripts_are_verified() {
    let (public_keys, mut accepted, mut refused) = (public_keys(), 0, 0);
    check_each("transcript", |name, line| {
        let steps = line["steps"].as_array().expect(name);
        let mut pending: Option<(Vec<u8>, Vec<u8>)> = None;
        for step in steps {
            let Some(sent) = plain(step, "send") else { continue };
            let (envelope, message) = split_message(&sent);
            if let Ok(Body::Request(Request::AnswerChallenge(answer))) = message.decode_body(envelope.version)
                && let Some((reply, request)) = &pending
            {
                let (envelope, challenge) = split_message(reply);
                let (digest, challenge) = challenge_in(&envelope, &challenge);
                let (_, request) = split_message(request);
                challenge::check_request_digest(&digest, request.covered).expect(name);
                let (covered, identity) = (challenge.covered(&digest), &line["identity"]);
                let verdict = if answer.auth_type == auth::SECRET_KEY {
                    let secret = hex(&identity["secret_hex"]);
                    let answer = SecretAnswer::decode(answer.signed_response).expect(name);
                    let limits = Pbkdf2Limits::DEFAULT;
                    challenge::verify_secret(envelope.version, &covered, &answer, &secret, &limits)
                } else {
                    let Some(key) = public_keys.get(identity["key_id"].as_str().expect(name)) else {
                        return NO_KEY;
                    };
                    let answer = SignedAnswer::decode(answer.signed_response).expect(name);
                    challenge::verify_public(&covered, &answer, key)
                };
                // Checked with the identity's own secret or key; in some lines the record holds
                // another.
                assert_eq!(verdict, Ok(()), "{name}");
                // In foreign vectors only the code of the reference tells which answers are wrong.
                let is_wrong =
                    !is_foreign() && ["wrong_secret", "wrong_key"].iter().any(|case| name.contains(case));
                let received = plain(step, "receive").expect(name);
                let (_, received) = split_message(&received);
                let is_refused = received.header.response_code.0 == 403;
                assert!(is_refused || !is_wrong, "{name}");
                if is_refused { refused += 1 } else { accepted += 1 }
            }
            if !step["receive_hex"].is_null() {
                let received = plain(step, "receive").expect(name);
                if split_message(&received).1.header.response_code.0 == 402 {
                    pending = Some((received.clone(), sent.clone()));
                }
            }
        }
        LineOutcome::AsStated
    });
    require(accepted, 51, "accepted answers");
    require(refused, 4, "refused answers");
}

#[test]
fn vectors_keys_open_after_encryption() {
    check_each("key", |name, line| {
        let key = PrivateKeyBuf::from_bytes(hex(&line["handle_private_hex"])).expect(name);
        let file = keyfile::encrypt(&key.view(), name.as_bytes());
        assert_eq!(keyfile::decode(&file, Some(name.as_bytes())).expect(name).as_bytes(), key.as_bytes());
    });
}

fn cipher(value: &Json) -> Cipher {
    Cipher(i32::try_from(value.as_i64().expect("a cipher")).expect("a cipher"))
}

#[test]
fn vectors_diffie_hellman_agrees_as_stated() {
    check_each("dh_agreement", |name, line| {
        let [client, server] = ["client", "server"].map(|side| recorded_pair(&line[side]));
        let [client_record, server_record] = [&client, &server].map(KeyPair::public_record);
        assert_eq!(client_record, hex(&line["client"]["handle_public_hex"]), "{name}");
        assert_eq!(server_record, hex(&line["server"]["handle_public_hex"]), "{name}");
        let secret = client.agree(&server_record).expect(name);
        assert_eq!(server.agree(&client_record).expect(name), secret, "{name}");
        assert_eq!(**secret, hex(&line["shared_secret_hex"]), "{name}");
        for (member, cipher) in [("des", Cipher::DES), ("desede", Cipher::DESEDE), ("aes", Cipher::AES)] {
            let key = SessionKey::derive(cipher, &secret).expect(name);
            assert_eq!(key.as_bytes(), hex(&line["session_keys_hex"][member]), "{name} {member}");
        }
        let des = SessionKey::derive(Cipher::DES, &secret).expect(name);
        assert_eq!(des.as_bytes(), hex(&line["legacy_des_key_hex"]), "{name}");
    });
}

/// Both sides of a set-up by Diffie-Hellman, and the signature that protects it. In the other
/// modes, which our server refuses, the key is encrypted with RSA; only the form of the plaintext
/// is checked.
#[test]
fn vectors_sessions_are_set_up_as_stated() {
    let keys = public_keys();
    check_each("session_setup", |name, line| {
        let stated = hex(&line["session_key_hex"]);
        let cipher = cipher(&line["encryption_algorithm"]);
        let (request, response) = (hex(&line["request_hex"]), hex(&line["response_hex"]));
        let (request_envelope, request) = split_message(&request);
        let (envelope, response) = split_message(&response);
        assert_eq!(envelope.session_id, line["session_id"], "{name}");
        if line["mode"] != 4 {
            let (version, since) = (envelope.version, session::SessionKey::ENCRYPTED_KEY_SINCE);
            let text = hex(&line["decrypted_hex"]);
            // If the client encrypts, the cipher precedes the key.
            let key = if line["mode"] == 2 {
                &text[..]
            } else {
                session::SessionKey::decode(&text, version, since).expect(name).key
            };
            assert_eq!(key, stated, "{name}");
            assert_eq!(SessionKey::new(cipher, key.to_vec()).expect(name).as_bytes(), stated, "{name}");
            return LineOutcome::AsStated;
        }
        let Ok(Body::Request(Request::SessionSetup(setup))) = request.decode_body(request_envelope.version)
        else {
            panic!("{name}: not a set-up");
        };
        let KeyExchange::DiffieHellman(client_record) = setup.exchange else {
            panic!("{name}: another mode")
        };
        let server = recorded_pair(&line["server"]);
        let secret = server.agree(client_record).expect(name);
        assert_eq!(SessionKey::derive(cipher, &secret).expect(name).as_bytes(), stated, "{name}");

        let Some(key) = keys.get(line["server_signing_key_id"].as_str().expect(name)) else { return NO_KEY };
        message::verify_message(&envelope, &response, key).expect(name);
        let (answered, record) = server_record(&envelope, &response);
        assert_eq!(answered, cipher, "{name}");
        assert_eq!(record, server.public_record(), "{name}");
        let secret = recorded_pair(&line["client"]).agree(&record).expect(name);
        assert_eq!(SessionKey::derive(cipher, &secret).expect(name).as_bytes(), stated, "{name}");
        LineOutcome::AsStated
    });
}

/// The cipher and the server's key record in the answer to a set-up.
fn server_record(envelope: &Envelope, message: &Message<'_>) -> (Cipher, Vec<u8>) {
    let Ok(Body::Reply(Reply { response: Response::Session(answer), .. })) =
        message.decode_body(envelope.version)
    else {
        panic!("not the answer to a set-up");
    };
    let (version, since) = (envelope.version, session::SessionKey::DIFFIE_HELLMAN_SINCE);
    let key = session::SessionKey::decode(answer.data, version, since).expect("a record");
    (key.cipher, key.key.to_vec())
}

/// Ciphertexts decrypt as stated, also those with a change that only a MAC detects.
#[test]
fn vectors_encrypted_messages_decrypt_as_stated() {
    check_each("encrypted_message", |name, line| {
        let bytes = hex(&line["hex"]);
        let (envelope, rest) = Envelope::split(&bytes).expect(name);
        assert!(envelope.flags.has(EnvelopeFlags::ENCRYPTED), "{name}");
        let cipher = cipher(&line["encryption_algorithm"]);
        let key = SessionKey::new(cipher, hex(&line["session_key_hex"])).expect(name);
        let text = key.decrypt(envelope.version, rest);
        if line["decrypts"] == false {
            assert_eq!(text, None, "{name}");
            return;
        }
        let text = text.expect(name);
        assert_eq!(**text, hex(&line["plaintext_message_hex"]), "{name}");
        if line.get("tampered").is_some() {
            return;
        }
        let iv = hex(&line["iv_hex"]);
        let mut random = [0; 16];
        random[..iv.len()].copy_from_slice(&iv);
        let computed = key.encrypt(envelope.version, &random, &text);
        assert_eq!(computed, [iv, hex(&line["ciphertext_hex"])].concat(), "{name}");
        let whole = handle_proto::wire::message::encrypted(&envelope, &[&computed]).expect(name);
        assert_eq!(whole, bytes, "{name}");
    });
}

/// The blocks of a replication stream, each followed by its signature.
#[test]
fn vectors_signed_streams_verify_block_by_block() {
    let keys = public_keys();
    check_each("signed_stream", |name, line| {
        let bytes = hex(&line["hex"]);
        let Some(id) = line["key_id"].as_str() else {
            assert_eq!(bytes[..4], u32::MAX.to_be_bytes(), "{name}: not signed");
            return LineOutcome::AsStated;
        };
        let Some(key) = keys.get(id) else { return NO_KEY };
        let mut cursor = Cursor::new(&bytes);
        assert_eq!(cursor.u32(Field::Replication), Ok(0), "{name}: signed");
        let algorithm = DigestAlgorithm::from_identifier(cursor.string(Field::Replication).expect(name));
        let is_md5 = matches!(algorithm, Some(DigestAlgorithm::MD5 | DigestAlgorithm::OLD_MD5));
        let blocks = line["blocks_hex"].as_array().expect(name);
        for (at, block) in blocks.iter().enumerate() {
            let block = cursor.bytes(hex(block).len(), Field::Replication).expect(name);
            let signature = cursor.string(Field::Replication).expect(name);
            let verdict = key.verify(algorithm.expect(name), &[block], signature);
            if is_md5 && verdict.is_err() {
                return MD5_REFUSED;
            }
            assert_eq!(verdict.is_ok(), line["blocks_verify"][at] == true, "{name} block {at}: {verdict:?}");
        }
        LineOutcome::AsStated
    });
}

/// Complete sessions with a server: the agreed key, the MACs of both directions, the encrypted
/// messages and the counters.
#[test]
fn vectors_sessions_in_transcripts_are_followed() {
    let (mut sessions, mut macs, mut replays, mut decrypted) = (0, 0, 0, 0);
    check_each("transcript", |name, line| {
        if line["client_dh"].is_null() {
            return LineOutcome::AsStated;
        }
        let server = line["server"].as_str().unwrap_or_default();
        if !document("servers.json")["servers"][server].is_object() {
            return NO_SERVER;
        }
        sessions += 1;
        let stated = hex(&line["session_key_hex"]);
        let key = SessionKey::new(cipher(&line["encryption_algorithm"]), stated.clone()).expect(name);
        let mut from_server = SeenCounters::new();
        let mut from_client = SeenCounters::new();
        for (at, step) in line["steps"].as_array().expect(name).iter().enumerate() {
            let case = format!("{name} step {at}: {}", step["note"]);
            for side in ["send", "receive"] {
                if step[format!("{side}_hex")].is_null() {
                    continue;
                }
                let raw = raw(step, side);
                let Some(bytes) = plain(step, side) else {
                    let (envelope, rest) = Envelope::split(&raw).expect(&case);
                    assert_eq!(key.decrypt(envelope.version, rest), None, "{case}");
                    assert_eq!(plain_code(step), ResponseCode::SESSION_FAILED, "{case}");
                    continue;
                };
                let (envelope, message) = split_message(&bytes);
                if envelope.flags.has(EnvelopeFlags::ENCRYPTED) {
                    let text = key.decrypt(envelope.version, &raw[Envelope::LEN..]).expect(&case);
                    assert_eq!(**text, bytes[Envelope::LEN..], "{case}");
                    decrypted += 1;
                }
                if message.header.op_code == OpCode::SESSION_SETUP && side == "receive" {
                    let server = server_key_in(VectorSource::Selected, server);
                    message::verify_message(&envelope, &message, &server).expect(&case);
                    let (answered, record) = server_record(&envelope, &message);
                    let secret = recorded_pair(&line["client_dh"]).agree(&record).expect(&case);
                    let derived = SessionKey::derive(answered, &secret).expect(&case);
                    assert_eq!(derived, key, "{case}");
                }
                let Ok(Some(credential)) = message.decode_credential() else { continue };
                if !credential.is_mac() {
                    continue;
                }
                let verdict = message::verify_mac_message(&envelope, &message, &stated);
                if side == "receive" {
                    verdict.expect(&case);
                    assert!(from_server.accept(credential.counter), "{case}");
                    assert_ne!(step["mac_of_answer_verifies"], false, "{case}");
                    macs += 1;
                    continue;
                }
                // Version 2.5 is the first with counters.
                let is_new = envelope.version < Version::new(2, 5) || from_client.accept(credential.counter);
                let code = plain_code(step);
                match verdict {
                    Err(_) => assert_eq!(code, ResponseCode::INVALID_SESSION_KEY, "{case}"),
                    Ok(_) if !is_new => {
                        assert_eq!(code, ResponseCode::SESSION_MESSAGE_REJECTED, "{case}");
                        replays += 1;
                    }
                    Ok(_) => {
                        assert_ne!(code, ResponseCode::INVALID_SESSION_KEY, "{case}");
                        assert_ne!(code, ResponseCode::SESSION_MESSAGE_REJECTED, "{case}");
                        macs += 1;
                    }
                }
            }
        }
        LineOutcome::AsStated
    });
    let counts =
        [("sessions", sessions, 9), ("MACs", macs, 61), ("copies", replays, 4), ("encrypted", decrypted, 11)];
    counts.into_iter().for_each(|(name, count, least)| require(count, least, name));
}

/// The response code of a step.
fn plain_code(step: &Json) -> ResponseCode {
    split_message(&plain(step, "receive").expect("in the clear")).1.header.response_code
}

#[test]
fn vectors_have_known_kinds() {
    const KINDS: [&str; 14] = [
        "key",
        "digest",
        "mac",
        "pbkdf2",
        "secret_key_encoding",
        "private_key_file",
        "signed_message",
        "mac_message",
        "challenge",
        "dh_agreement",
        "session_setup",
        "encrypted_message",
        "signed_stream",
        "transcript",
    ];
    check_kinds("credentials.jsonl", &KINDS);
}
