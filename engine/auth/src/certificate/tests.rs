use super::*;
use crate::handshake::SignedHandshake;
use crate::testing::{Handshake, handshakes, public_record};
use handle_proto::data::PublicKey;

fn tlv(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let len = u16::try_from(content.len()).unwrap();
    let [high, low] = len.to_be_bytes();
    let head = match len {
        0..=127 => vec![tag, low],
        128..=255 => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    [head, content].concat()
}

/// The object identifier of an attribute.
fn kind(name: &str) -> Vec<u8> {
    match name {
        "UID" => tlv(6, &[&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 0x01]]),
        "CN" => tlv(6, &[&[0x55, 0x04, 0x03]]),
        "O" => tlv(6, &[&[0x55, 0x04, 0x0a]]),
        _ => panic!("{name}"),
    }
}

const UTF8: u8 = 12;
const PRINTABLE: u8 = 19;
const T61: u8 = 20;
const IA5: u8 = 22;
const BMP: u8 = 30;

/// An attribute of a subject: name, tag and text.
type Attribute<'a> = (&'a str, u8, &'a [u8]);

/// A certificate with this subject and the key of the vectors.
fn certificate(subject: &[Attribute<'_>]) -> Vec<u8> {
    let attribute =
        |(name, tag, text): &Attribute<'_>| tlv(0x31, &[&tlv(0x30, &[&kind(name), &tlv(*tag, &[text])])]);
    let subject: Vec<u8> = subject.iter().flat_map(attribute).collect();
    let Handshake { messages, .. } = handshakes().into_iter().next().unwrap();
    let of_vectors = SignedHandshake::parse(&messages).unwrap().certificate;
    // From its algorithm on, the key is the last part before the extensions.
    let (_, key) = subject_and_key(of_vectors).unwrap();
    let key = pkcs8::der::Encode::to_der(&key).unwrap();
    let algorithm = tlv(0x30, &[&tlv(6, &[&[0x2a, 0x03]])]);
    let signed = tlv(
        0x30,
        &[&tlv(2, &[&[1]]), &algorithm, &tlv(0x30, &[]), &tlv(0x30, &[]), &tlv(0x30, &[&subject]), &key],
    );
    tlv(0x30, &[&signed, &algorithm, &tlv(3, &[&[0, 1]])])
}

fn identity(subject: &[Attribute<'_>]) -> Result<String, CertificateError> {
    let certificate = certificate(subject);
    CallerCertificate::parse(&certificate).map(|certificate| certificate.identity.to_string())
}

#[test]
fn the_identity_is_the_uid_or_else_the_common_name() {
    let is = |subject: &[Attribute<'_>], expected: &str| {
        assert_eq!(identity(subject).as_deref(), Ok(expected), "{subject:?}");
    };
    is(&[("UID", UTF8, b"300:0.NA/TST")], "300:0.NA/TST");
    is(&[("CN", PRINTABLE, b"300:0.NA/TST")], "300:0.NA/TST");
    is(&[("O", UTF8, b"x"), ("CN", UTF8, b"a name"), ("UID", IA5, b"301:10.1/a:b")], "301:10.1/a:b");
    is(&[("UID", UTF8, b"0.NA/TST")], "0:0.NA/TST");
    is(&[("CN", UTF8, "7:10.1/\u{fc}".as_bytes())], "7:10.1/\u{fc}");
}

#[test]
fn a_subject_without_one_identity_is_refused() {
    let none = Err(CertificateError::Identity);
    let long = vec![b'a'; HANDLE_LEN_MAX + 1];
    assert_eq!(identity(&[("UID", UTF8, &long[1..])]).map(|it| it.len()), Ok(HANDLE_LEN_MAX + 2));
    let subjects: [&[Attribute<'_>]; 13] = [
        &[],
        &[("O", UTF8, b"300:0.NA/TST")],
        &[("UID", UTF8, b"")],
        &[("UID", UTF8, b"300:")],
        &[("UID", UTF8, b"99999999999:10.1/a")],
        &[("UID", UTF8, &long)],
        &[("UID", UTF8, b"\xff")],
        &[("UID", PRINTABLE, "\u{fc}".as_bytes())],
        &[("UID", T61, b"300:0.NA/TST")],
        &[("UID", BMP, b"\x003")],
        // It would depend on the reader which of them counts.
        &[("UID", UTF8, b"300:0.NA/TST"), ("UID", UTF8, b"301:0.NA/TST")],
        &[("CN", UTF8, b"300:0.NA/TST"), ("CN", UTF8, b"300:0.NA/TST")],
        &[("UID", BMP, b"\x003"), ("CN", UTF8, b"300:0.NA/TST")],
    ];
    for subject in subjects {
        assert_eq!(identity(subject), none, "{subject:?}");
    }
}

#[test]
fn a_certificate_is_read_whole_or_not_at_all() {
    let whole = certificate(&[("UID", UTF8, b"300:0.NA/TST")]);
    let read = CallerCertificate::parse(&whole).unwrap();
    assert_eq!(read.key, public_record("admin_rsa"));
    assert!(PublicKey::decode(&read.key).is_ok());
    for len in 0..whole.len() {
        assert_eq!(CallerCertificate::parse(&whole[..len]), Err(CertificateError::Malformed), "cut to {len}");
    }
    let longer = [&whole[..], &[0]].concat();
    assert_eq!(CallerCertificate::parse(&longer), Err(CertificateError::Malformed));
}

#[test]
fn a_key_that_no_record_has_is_named() {
    // The algorithm of the key becomes another one.
    let rsa = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
    let mut other = certificate(&[("UID", UTF8, b"300:0.NA/TST")]);
    let at = other.windows(rsa.len()).position(|bytes| bytes == rsa).unwrap();
    other[at + rsa.len() - 1] = 10;
    assert_eq!(CallerCertificate::parse(&other), Err(CertificateError::Key));
}
