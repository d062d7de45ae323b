use super::*;
use crate::certificate::CallerCertificate;
use crate::testing::{Handshake, handshakes, public_key, public_record};

#[test]
fn handshakes_of_deployed_clients_have_their_certificate_and_verify_with_its_key_alone() {
    for Handshake { name, key_id, identity, scheme, messages, signature } in handshakes() {
        let handshake = SignedHandshake::parse(&messages).unwrap();
        // The random bytes follow the header and the version of the second message.
        let hello_len = usize::from(messages[2]) << 8 | usize::from(messages[3]);
        assert_eq!(&handshake.server_random[..], &messages[4 + hello_len + 6..][..32], "{name}");
        let certificate = CallerCertificate::parse(handshake.certificate).ok();
        let shown = certificate.as_ref().map(|it| (it.identity.to_string(), it.key.clone()));
        assert_eq!(shown, identity.map(|identity| (identity, public_record(&key_id))), "{name}");
        let proof = HandshakeProof { messages: &messages, scheme, signature: &signature };
        for other in ["admin_rsa", "client_rsa", "server", "rsa1024", "admin_dsa2048"] {
            assert_eq!(proof.is_made_with(&public_key(other)), other == key_id, "{name} {other}");
        }
        let mut changed = messages.clone();
        for at in [0, 5, 4 + hello_len + 10, messages.len() - 1] {
            changed[at] ^= 1;
            let proof = HandshakeProof { messages: &changed, ..proof };
            assert!(!proof.is_made_with(&public_key(&key_id)), "{name} changed at {at}");
            changed[at] ^= 1;
        }
        for code in HandshakeSignature::ALL.map(|it| it as u16).into_iter().chain([0, 0x0201, 0x0403]) {
            let proof = HandshakeProof { scheme: code, ..proof };
            assert_eq!(proof.is_made_with(&public_key(&key_id)), code == scheme, "{name} {code:04x}");
        }
    }
}

fn message(code: u8, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[code][..], &len[1..], body].concat()
}

fn server_hello() -> Vec<u8> {
    [&[3, 3][..], &[7; 32], &[0, 0xc0, 0x2f, 0]].concat()
}

fn certificates(list: &[&[u8]]) -> Vec<u8> {
    // Lengths in three bytes, as those of messages.
    let list: Vec<u8> = list.iter().flat_map(|certificate| message(0, certificate)[1..].to_vec()).collect();
    message(0, &list)[1..].to_vec()
}

/// The messages of a small handshake: codes and bodies.
fn small() -> [(u8, Vec<u8>); 8] {
    [
        (1, [&[3, 3][..], &[1; 32]].concat()),
        (2, server_hello()),
        (11, certificates(&[b"server"])),
        (12, vec![1]),
        (13, vec![2]),
        (14, vec![]),
        (11, certificates(&[b"client", b"issuer"])),
        (16, vec![3; 33]),
    ]
}

fn joined(messages: &[(u8, Vec<u8>)]) -> Vec<u8> {
    messages.iter().flat_map(|(code, body)| message(*code, body)).collect()
}

fn with(at: usize, body: Vec<u8>) -> Result<(), HandshakeError> {
    let mut messages = small();
    messages[at].1 = body;
    SignedHandshake::parse(&joined(&messages)).map(|_| ())
}

#[test]
fn a_handshake_is_read_whole_or_not_at_all() {
    let bytes = joined(&small());
    let read = SignedHandshake::parse(&bytes);
    assert_eq!(read, Ok(SignedHandshake { server_random: &[7; 32], certificate: b"client" }));
    for len in 0..bytes.len() {
        let error = SignedHandshake::parse(&bytes[..len]).unwrap_err();
        assert!(matches!(error, HandshakeError::Truncated(_)), "cut to {len}: {error}");
    }
    assert_eq!(SignedHandshake::parse(&[&bytes[..], &[0]].concat()), Err(HandshakeError::Trailing));
}

#[test]
fn messages_come_once_and_in_their_order() {
    for at in 0..8 {
        let mut without = small().to_vec();
        without.remove(at);
        let is_order = |messages: &[_]| {
            let error = SignedHandshake::parse(&joined(messages)).unwrap_err();
            matches!(
                error,
                HandshakeError::Order(_) | HandshakeError::Truncated(_) | HandshakeError::Trailing
            )
        };
        assert!(is_order(&without), "without {at}");
        let mut twice = small().to_vec();
        twice.insert(at, twice[at].clone());
        assert!(is_order(&twice), "twice {at}");
        let mut swapped = small().to_vec();
        swapped.swap(at, (at + 1) % 8);
        assert!(is_order(&swapped), "swapped {at}");
        for code in [0, 3, 4, 15, 20, 22, 254] {
            let mut other = small();
            other[at].0 = code;
            assert_eq!(SignedHandshake::parse(&joined(&other)), Err(HandshakeError::Order(MESSAGES[at])));
        }
    }
}

#[test]
fn fields_and_lengths_that_do_not_fit_are_refused() {
    let malformed = |message| Err(HandshakeError::Malformed(message));
    let version = |message| Err(HandshakeError::Version(message));
    use HandshakeMessage::{Certificate, ClientHello, ServerHello, ServerHelloDone};
    assert_eq!(with(0, vec![3]), version(ClientHello));
    assert_eq!(with(0, [&[3, 1][..], &[1; 32]].concat()), version(ClientHello));
    // DTLS, whose messages have another form.
    assert_eq!(with(0, [&[0xfe, 0xfd][..], &[1; 32]].concat()), version(ClientHello));
    assert_eq!(with(5, vec![0]), malformed(ServerHelloDone));
    let hello = server_hello();
    for len in 0..hello.len() {
        assert_eq!(with(1, hello[..len].to_vec()), malformed(ServerHello), "cut to {len}");
    }
    assert_eq!(with(1, [&[3, 4][..], &hello[2..]].concat()), version(ServerHello));
    let followed = |by: &[u8]| with(1, [&hello[..], by].concat());
    assert_eq!(followed(&[0, 0]), Ok(()));
    assert_eq!(followed(&[0, 2, 1, 1]), Ok(()));
    for extensions in [&[0][..], &[0, 1], &[0, 2, 1], &[0, 0, 0]] {
        assert_eq!(followed(extensions), malformed(ServerHello), "{extensions:?}");
    }
    let in_session =
        |len: u8| with(1, [&hello[..34], &[len], &vec![9; usize::from(len)], &hello[35..]].concat());
    assert_eq!((in_session(32), in_session(33)), (Ok(()), malformed(ServerHello)));
    assert_eq!(with(6, certificates(&[])), Err(HandshakeError::NoCertificate));
    let two = certificates(&[b"client", b"issuer"]);
    for len in 0..two.len() {
        assert_eq!(with(6, two[..len].to_vec()), malformed(Certificate), "cut to {len}");
    }
    assert_eq!(with(6, [&two[..], &[0]].concat()), malformed(Certificate));
    assert_eq!(with(6, certificates(&[b"client", b""])), malformed(Certificate));
    assert_eq!(with(6, certificates(&[b"", b"client"])), malformed(Certificate));
    // A length that reaches behind the list.
    assert_eq!(with(6, vec![0, 0, 4, 0, 0, 2, 1]), malformed(Certificate));
}

#[test]
fn a_handshake_has_a_longest_length() {
    let rest = joined(&small()).len() - small()[3].1.len();
    let longest = vec![0; HANDSHAKE_LEN_MAX - rest];
    assert_eq!(with(3, longest.clone()), Ok(()));
    assert_eq!(with(3, [&longest[..], &[0]].concat()), Err(HandshakeError::TooLong));
}

#[test]
fn a_handshake_of_another_protocol_is_none() {
    // TLS 1.3 signs a digest, after spaces and a text; the handle protocol, nonces and messages.
    let tls13 = [&[0x20; 64][..], b"TLS 1.3, client CertificateVerify\0", &[1; 32]].concat();
    for other in [&tls13[..], &[1; 36], b"", &[0; 64]] {
        assert!(SignedHandshake::parse(other).is_err(), "{other:?}");
    }
}
