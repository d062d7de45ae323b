//! Keys, key files, and answers to challenges.

use handle_auth::agreement::{Group, KeyPair, respond};
use handle_auth::certificate::CallerCertificate;
use handle_auth::handshake::{HandshakeProof, HandshakeSignature, SignedHandshake};
use handle_auth::{Algorithm, Pbkdf2Limits, PrivateKey, PublicKey, VerifyError};
use handle_auth::{challenge, digest, kdf, keyfile, pem};
use handle_proto::Version;
use handle_proto::code::DigestAlgorithm;
use handle_proto::data;
use handle_proto::wire::auth::{SecretAnswer, SignedAnswer};

/// Number of rounds that keeps a run short.
const ITERATIONS_MAX: u32 = 16;

/// A key file that opens holds a private key. The key can be read back from every form in which it
/// is written, and the signatures of an RSA key verify with its public half.
pub fn key_file(bytes: &[u8]) {
    let Ok(opened) = keyfile::decode_within(bytes, Some(b"pass phrase"), ITERATIONS_MAX) else { return };
    let key = opened.view();
    let again = keyfile::decode(&keyfile::plain(&key), None).expect("the plain key file decodes");
    assert_eq!(again.view(), key);
    let encrypted = keyfile::encrypt_with(&key, b"pass", 1, &[1; 16], &[2; 16]);
    assert_eq!(
        keyfile::decode(&encrypted, Some(b"pass")).expect("the encrypted key file decodes").view(),
        key
    );
    if let Ok(text) = pem::encode_private_key(&key) {
        let again = keyfile::decode(text.as_bytes(), None).expect("the PEM text decodes");
        assert_eq!(again.view(), key);
    }
    if let Some(public) = key.public() {
        let text = pem::encode_public_key(&public).expect("an RSA key has a PEM form");
        assert_eq!(pem::decode_public_key(text.as_bytes()), Ok(public.to_bytes()));
    }
    let Ok(key) = PrivateKey::new(&key) else { return };
    let signature = key.sign(DigestAlgorithm::SHA256, &[bytes]);
    // The q of a DSA key is not checked to be prime; with a composite q some signatures do not
    // verify.
    if key.algorithm() == Algorithm::Rsa {
        let signature = signature.expect("the RSA key signs");
        assert_eq!(key.public().verify(DigestAlgorithm::SHA256, &[bytes], &signature), Ok(()));
    }
}

/// Splits off up to `len` bytes.
fn take<'a>(bytes: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(len.min(bytes.len()));
    *bytes = rest;
    taken
}

/// Input: one byte of minor version, 16 of nonce, 20 of digest, one byte of the length of a secret,
/// the secret, and an answer. The answer is accepted exactly if it follows from the secret. The
/// answer that we make is accepted, and with no other secret.
pub fn challenge_answer(mut bytes: &[u8]) {
    let minor = take(&mut bytes, 1).first().map_or(11, |byte| byte % 12);
    let version = Version::new(2, minor);
    let covered = [take(&mut bytes, 16), take(&mut bytes, 20)];
    let secret_len = take(&mut bytes, 1).first().map_or(0, |byte| usize::from(byte % 32));
    let secret = take(&mut bytes, secret_len);
    let limits = Pbkdf2Limits { iterations_max: ITERATIONS_MAX, ..Pbkdf2Limits::DEFAULT };
    let verify = |bytes: &[u8], secret: &[u8]| {
        let answer = SecretAnswer::decode(bytes).map_err(VerifyError::Malformed)?;
        challenge::verify_secret(version, &covered, &answer, secret, &limits)
    };
    assert_eq!(verify(bytes, secret).is_ok(), is_right(version, covered, bytes, secret));

    let older = version.min(Version::new(2, 6));
    let ours = challenge::answer_with_secret(older, older, &covered, secret, &[0; 16]);
    if older == version {
        assert_eq!(verify(&ours, secret), Ok(()));
        assert_eq!(verify(&ours, &[secret, b"x"].concat()), Err(VerifyError::Wrong));
    }
    public_answer(covered, bytes);
}

/// Plain definition of a right answer.
fn is_right(version: Version, covered: [&[u8]; 2], answer: &[u8], secret: &[u8]) -> bool {
    let mac = |code| digest::mac(DigestAlgorithm(code), secret, &covered);
    if answer.len() == 16 {
        return version < Version::new(2, 1) && mac(1).is_some_and(|mac| *mac == *answer);
    }
    match answer {
        [code @ (1 | 2 | 3 | 0x12 | 0x13), stated @ ..] => mac(*code).is_some_and(|mac| *mac == *stated),
        [0x22, ..] => match SecretAnswer::decode(answer) {
            Ok(SecretAnswer::Pbkdf2 { salt, iterations, key_bits, mac: stated })
                if (1..=ITERATIONS_MAX).contains(&iterations)
                    && (128..=512).contains(&key_bits)
                    && key_bits % 8 == 0 =>
            {
                let key = kdf::pbkdf2_sha1(secret, salt, iterations, key_bits as usize / 8);
                let made = digest::mac(DigestAlgorithm::HMAC_SHA1, &key, &covered);
                made.is_some_and(|made| *made == *stated)
            }
            _ => false,
        },
        _ => false,
    }
}

/// Asserts that an answer does not verify with a key that has signed nothing.
fn public_answer(covered: [&[u8]; 2], answer: &[u8]) {
    let Ok(answer) = SignedAnswer::decode(answer) else { return };
    let key = PublicKey::new(&data::PublicKey::Rsa {
        e: data::key::Number::new(&[1, 0, 1]),
        n: data::key::Number::new(&[0xc5; 256]),
    });
    let key = key.expect("the key has a usual size");
    assert!(challenge::verify_public(&covered, &answer, &key).is_err());
}

/// With a Diffie-Hellman key, both sides get the same secret or both reject the key. An RSA or DSA
/// key verifies only what its private half has signed.
///
/// Input: the record of a public key.
pub fn key_agreement(bytes: &[u8]) {
    if let Ok(key) = PublicKey::from_record(bytes) {
        assert!(key.verify(DigestAlgorithm::SHA256, &[b"unsigned"], bytes).is_err());
    }
    // Larger keys take longer and test nothing else.
    let bits = 512..=1024;
    let Ok((server_record, secret)) = respond(bytes, &bits, &[0x5a; 64]) else { return };
    let Ok(data::PublicKey::Dh { y, p, g }) = data::PublicKey::decode(bytes) else {
        panic!("agreed with a key of another kind")
    };
    assert_eq!(secret.len(), p.as_bytes().len());
    let group = Group::new(p, g, &bits).expect("the group was accepted before");
    let server = KeyPair::new(group.clone(), &[0x5a; 64]);
    assert_eq!(server.public_record(), server_record);
    assert_eq!(server.agree(&data::PublicKey::Dh { y, p, g }.to_bytes()).as_ref(), Ok(&secret));
    // A client with the private value gets the same result as the server.
    let client = KeyPair::new(group, &[0x77; 64]);
    let reached = client.agree(&server_record);
    let other = server.agree(&client.public_record());
    assert!(reached == other || reached.is_err() || other.is_err());
}

/// The signed messages of a handshake are those of the plain definition, and neither shorter nor
/// longer bytes are a handshake. A certificate in them, or alone, is read whole: its identity and
/// key are contained in it, and the key has not signed what is here.
///
/// Input: the messages, or a certificate.
pub fn handshake(bytes: &[u8]) {
    let certificate = match SignedHandshake::parse(bytes) {
        Err(_) => bytes,
        Ok(SignedHandshake { server_random, certificate }) => {
            let messages = plain_messages(bytes).expect("whole messages");
            let codes: Vec<u8> = messages.iter().map(|(code, _)| *code).collect();
            assert_eq!(codes, [1, 2, 11, 12, 13, 14, 11, 16]);
            assert_eq!(&messages[1].1[2..34], server_random);
            // Two lengths of three bytes are in front of it.
            assert!(messages[6].1[6..].starts_with(certificate));
            assert!(SignedHandshake::parse(&bytes[..bytes.len() - 1]).is_err());
            assert!(SignedHandshake::parse(&[bytes, &[0]].concat()).is_err());
            certificate
        }
    };
    let Ok(CallerCertificate { identity, key }) = CallerCertificate::parse(certificate) else { return };
    assert!(CallerCertificate::parse(&certificate[..certificate.len() - 1]).is_err());
    assert!(CallerCertificate::parse(&[certificate, &[0]].concat()).is_err());
    assert!(certificate.windows(identity.handle.len()).any(|part| part == identity.handle));
    assert!(data::PublicKey::decode(&key).is_ok());
    let Ok(key) = PublicKey::from_record(&key) else { return };
    for scheme in HandshakeSignature::ALL {
        let proof = HandshakeProof { messages: bytes, scheme: scheme as u16, signature: identity.handle };
        assert!(!proof.is_made_with(&key));
    }
}

/// Plain definition of a sequence of messages: codes and bodies.
fn plain_messages(mut bytes: &[u8]) -> Option<Vec<(u8, &[u8])>> {
    let mut messages = Vec::new();
    while let [code, a, b, c, rest @ ..] = bytes {
        let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        messages.push((*code, rest.get(..len)?));
        bytes = &rest[len..];
    }
    bytes.is_empty().then_some(messages)
}
