//! Worked examples: one message, value and key agreement of each form, byte by byte. By hand, from
//! the description of the protocol as deployed; the vectors have the same forms with other
//! contents.
//!
//! Requests have the id 0x01020304 and expire at 0x67000000.

use handle_auth::agreement::{Group, KeyPair};
use handle_auth::challenge::{answer_with_secret, request_digest, verify_secret};
use handle_auth::digest::digest;
use handle_auth::kdf::{Pbkdf2Limits, pbkdf2_sha1};
use handle_auth::message::{mac_message, verify_mac_message};
use handle_auth::session::SessionKey;
use handle_proto::code::{Cipher, DigestAlgorithm, HashOption};
use handle_proto::data::Data;
use handle_proto::wire::auth::SecretAnswer;
use handle_proto::wire::credential::CoveredPrefix;
use handle_proto::wire::{Body, Envelope, Message, MessageBuf};
use handle_proto::{Handle, Version};

/// The bytes of hexadecimal text, whatever blanks are in it.
fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    data_encoding::HEXLOWER.decode(digits.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text}"))
}

const QUERY: &str = "020b020b 00000000 01020304 00000000 0000003b
    00000001 00000000 19000000 ffff 0000 67000000 0000001f
    00000013 31302e313034352f6a756c7939352d61726d73 00000000 00000000
    00000000";

const ANSWER_BODY: &str = "00000013 31302e313034352f6a756c7939352d61726d73
    00000001 00000001 2f0d1a00 00 00015180 0e 00000003 55524c
    0000002b 687474703a2f2f7777772e646c69622e6f72672f646c69622f4a756c7939352f303761726d732e68746d6c
    00000000";

/// A message is read and written again as the same bytes, but for its credential, of which examples
/// have none here.
fn is_written_as_read(text: &str) {
    let bytes = hex(text);
    let (envelope, rest) = Envelope::split(&bytes).expect("an envelope");
    assert_eq!(envelope.message_len as usize, rest.len(), "{text}");
    let message = Message::decode(rest).unwrap_or_else(|error| panic!("{error}: {text}"));
    let written =
        match message.decode_body(envelope.version).unwrap_or_else(|error| panic!("{error}: {text}")) {
            Body::Request(request) => MessageBuf::request(&envelope, &message.header, &request),
            Body::Reply(reply) => MessageBuf::reply(&envelope, &message.header, &reply),
        };
    assert_eq!(written.unsigned(), Ok(bytes), "{text}");
}

/// A message of version 2.`minor` with this body and no credential.
fn message(minor: u8, op_code: u32, response_code: u32, flags: &str, body: &str) -> String {
    let body_len = hex(body).len();
    format!(
        "02{minor:02x}020b 00000000 01020304 00000000 {:08x}
         {op_code:08x} {response_code:08x} {flags} ffff 0000 67000000 {body_len:08x} {body} 00000000",
        24 + body_len + 4
    )
}

#[test]
fn messages_are_written_as_they_are_read() {
    is_written_as_read(QUERY);
    is_written_as_read(
        "020b020b 00000000 01020304 00000000 0000004a
         00000001 00000000 d8800000 0007 0000 67000000 0000002e
         00000013 31302e313034352f6a756c7939352d61726d73
         00000002 00000001 0000012c 00000001 00000003 55524c 00000000",
    );
    is_written_as_read(&message(11, 1, 1, "99000000", ANSWER_BODY));
    let digest = "03c8e1664d9dee1641e7fbc664239e649e0e3802adb1433a4ca42bd99f5fed8bdd";
    is_written_as_read(&message(11, 1, 1, "19800000", &format!("{digest} {ANSWER_BODY}")));
    is_written_as_read(&message(11, 1, 100, "19000000", "00000000"));
    is_written_as_read(
        "0203020b 00000000 ffffffff 00000000 00000036
         00000000 00000004 19000000 ffff 0000 67000000 0000001a
         00000016 496e76616c6964206d657373616765206c656e677468 00000000",
    );
    let value = &ANSWER_BODY[ANSWER_BODY.find("00000001 2f0d").expect("the value")..];
    let receiver = "02 00000003 00000001";
    let nonce_and_digest = format!("00000010 {} 00000014 {}", "11".repeat(16), "22".repeat(20));
    for (minor, op_code, flags, body) in [
        (11, 2, "19000000", "00000001 2f"),
        (11, 100, "19000000", &format!("00000006 31302f6e6577 00000001 {value}")),
        (11, 103, "19000000", "00000006 31302f6e6577 00000002 00000001 00000002"),
        (11, 105, "19000000", "00000007 302e4e412f3130"),
        (11, 401, "19000000", "00000001 2f"),
        (11, 402, "19000000", "00000002 0707"),
        (11, 1001, "59000000", &format!("00 0000000000000005 0000000000000006 {receiver}")),
        (8, 1001, "59000000", &format!("0000000000000005 0000000000000006 {receiver}")),
        (11, 1002, "59000000", receiver),
        (11, 1002, "59000000", &format!("{receiver} 00000004 31302f41 00000002")),
        (11, 201, "59800000", &format!("00000006 31302f61646d 0000012c {nonce_and_digest} 00000001 02")),
        (11, 400, "19000000", "0004 00015180 00000006 31302f61646d 0000012c 00000004 01020304 0000"),
    ] {
        is_written_as_read(&message(minor, op_code, 0, flags, body));
    }
    is_written_as_read(&message(11, 1, 302, "19000000", "00000009 302e4e412f302e4e41"));
    is_written_as_read(&message(11, 400, 1, "19000000", "0004 00000003 090909 0000"));
    is_written_as_read(
        "020b020b 00000011 01020304 00000000 00000070
         000000c8 00000000 19000000 ffff 0000 67000000 00000054
         00000009 48535f5345434b4559 00000006 31302f61646d 0000012c
         00000035 22 00000010 f60e2d3d1a704a09675a0311543a2a39 00002710 000000a0
         00000014 142fe28aace50e5203f51ab1f6f238988e8019bd 00000000",
    );
}

#[test]
fn data_are_written_as_they_are_read() {
    for (kind, text) in [
        ("HS_ADMIN", "0c7f 00000007 302e4e412f3130 00000003"),
        ("HS_ADMIN", "0c7f 00000007 302e4e412f3130 00000003 0000"),
        ("HS_VLIST", "00000002 00000004 31302f61 0000012c 00000004 31302f62 00000001"),
        (
            "HS_SITE",
            "0001 020b 0007 80 02 00000000 00000001 00000004 64657363 00000001 78 00000001
             00000001 000000000000000000000000 8497019b 00000003 010203
             00000003 03 01 00000a51 02 00 00000a51 03 02 00001f40",
        ),
    ] {
        let (data, mut written) = (hex(text), vec![]);
        let decoded = Data::try_decode(kind.as_bytes(), &data);
        decoded.unwrap_or_else(|error| panic!("{kind}: {error}")).encode(&mut written);
        assert_eq!(written, data, "{kind}");
    }
}

#[test]
fn requests_are_digested_by_version() {
    let query = hex(QUERY);
    let covered = Message::decode(&query[Envelope::LEN..]).expect("a message").covered;
    for (minor, expected) in [
        (11, "0ea66bd6cc5a41ca5c695d92295a4353ed6e3447ac82dc7050a136a387798569"),
        (7, "0ea66bd6cc5a41ca5c695d92295a4353ed6e3447ac82dc7050a136a387798569"),
        (6, "6413b7ce9ded7f62d413f0e63670ed0699f43931"),
        (1, "6413b7ce9ded7f62d413f0e63670ed0699f43931"),
        (0, "34f303f55bb7f11f414faba90cb05dc4"),
    ] {
        assert_eq!(*request_digest(Version::new(2, minor), covered), hex(expected), "2.{minor}");
    }
}

/// Header and body of a query for `1/a`, sent as message 9 of session 5.
const COVERED: &str =
    "0000000100000000 19000000 ffff0000 67000000 0000000f 00000003 312f61 00000000 00000000";

fn in_session(minor: u8, message_len: u32) -> Envelope {
    let version = Version::new(2, minor);
    Envelope { version, session_id: 5, message_len, ..Envelope::request(0x0102_0304) }
}

#[test]
fn macs_of_sessions_are_made_by_version() {
    let key = hex("a0a1a2a3a4a5a6a7a8a9aaabacadaeaf");
    let covered = hex(COVERED);
    for (minor, algorithm, mac) in [
        (4, "00000001 02", "00000014 7a3a540cdf7cdaffa327bf896b122227e8b837b0"),
        (5, "00000001 02", "00000014 19316875476ae2489a3fd886d343712c1145c6fd"),
        (6, "00000004 53484131", "00000014 19316875476ae2489a3fd886d343712c1145c6fd"),
        (
            7,
            "0000000b 484d41432d534841323536",
            "00000020 2de702d52ab40b5d7fc98a376f9575496bec2ab6b716a63c49680ad5d0d77508",
        ),
        (
            8,
            "0000000b 484d41432d534841323536",
            "00000020 58576d105f987fcd05849ee2b40df44f3c95f5a913cee5b9b9640dd06bdf479e",
        ),
        (
            11,
            "0000000b 484d41432d534841323536",
            "00000020 6d3ed08e30397f51020cf9b856a054713007c0be0a0af6110b88be6b22a6cc3f",
        ),
    ] {
        let envelope = in_session(minor, 0);
        let signed_info = hex(&format!("{algorithm} {mac}"));
        let front = hex("00000000 00000000 00000009 00000006 48535f4d4143");
        let signed_info_len = u32::try_from(signed_info.len()).expect("short").to_be_bytes();
        let credential = [&front[..], &signed_info_len, &signed_info].concat();
        assert_eq!(mac_message(&envelope, 9, &covered, &key), credential, "2.{minor}");
        let len = u32::try_from(credential.len()).expect("short").to_be_bytes();
        let bytes = [&covered[..], &len, &credential].concat();
        let message = Message::decode(&bytes).expect("a message");
        assert!(verify_mac_message(&envelope, &message, &key).is_ok(), "2.{minor}");
    }
}

#[test]
fn signatures_cover_by_version() {
    let covered = hex(COVERED);
    let (sha1, sha256) = (DigestAlgorithm::SHA1, DigestAlgorithm::SHA256);
    for (minor, algorithm, expected) in [
        (1, sha1, "052433bb7ce396918f46c6b579d78d7191eec479"),
        (5, sha1, "052433bb7ce396918f46c6b579d78d7191eec479"),
        (6, sha1, "bbb14c679d9b92207abf0668fcd9a3bca3b1424a"),
        (7, sha256, "db5bf797c03a6bf23a161a4093bfb0d5ea05b1b06ac9ac0e67050e3ed995df4e"),
        (8, sha256, "d1dd48d5516cbc71e98c0ddc29151744f1dd9572dbc6350798033e65ccd30c70"),
        (11, sha256, "4c4e1b4df66db3e251c58930260aa420918c535ad90754ed5e7c1b477b404da4"),
    ] {
        let prefix = CoveredPrefix::of_signature(&in_session(minor, 0), 9);
        let made = digest(algorithm, [prefix.as_bytes(), &covered]).expect("a plain digest");
        assert_eq!(*made, hex(expected), "2.{minor}");
    }
}

#[test]
fn secrets_answer_challenges() {
    let nonce: Vec<u8> = (0..16).collect();
    let (sha1, sha256) = (
        hex("6413b7ce9ded7f62d413f0e63670ed0699f43931"),
        hex("0ea66bd6cc5a41ca5c695d92295a4353ed6e3447ac82dc7050a136a387798569"),
    );
    let rounds = "00002710 000000a0 00000014";
    for (minor, digest, salt, mac) in [
        (11, &sha256, "4c9bd34f2f3e58bf04087e7ae36982c8", "7129849614ef66b2a14da3e0ab9a8efc922b0f4b"),
        (11, &sha256, "f60e2d3d1a704a09675a0311543a2a39", "142fe28aace50e5203f51ab1f6f238988e8019bd"),
        (6, &sha1, "00000000000000000000000000000000", "87b6349875bf93a0ed88d20f2d1b21349b0f56ca"),
    ] {
        let version = Version::new(2, minor);
        let expected = match minor {
            6 => format!("02 {mac}"),
            _ => format!("22 00000010 {salt} {rounds} {mac}"),
        };
        let covered = [&nonce[..], digest];
        let salt = hex(salt).try_into().expect("16 bytes");
        let answer = answer_with_secret(version, version, &covered, b"secret", &salt);
        assert_eq!(answer, hex(&expected), "{expected}");
        let answer = SecretAnswer::decode(&answer).expect("an answer");
        let limits = Pbkdf2Limits::DEFAULT;
        assert_eq!(verify_secret(version, &covered, &answer, b"secret", &limits), Ok(()), "{expected}");
        assert!(verify_secret(version, &covered, &answer, b"Secret", &limits).is_err(), "{expected}");
    }
}

#[test]
fn passwords_are_widened_before_keys_are_made_of_them() {
    let salt: Vec<u8> = (0..16).collect();
    for (password, key) in [
        (&b"\xc3\xa9"[..], "3dc3066c6eb31ce7de57dbd90e09feee2b203610"),
        (b"secret", "c3bb57e6710ca08bf6739a4be1b879d58a2f7f9d"),
        (b"", "6230e70bda713336419a236c4f6fd3d43332333e"),
    ] {
        assert_eq!(**pbkdf2_sha1(password, &salt, 10_000, 20), hex(key), "{password:?}");
    }
}

#[test]
fn keys_are_agreed_on_and_encrypt() {
    let x = hex(&"00112233445566778899aabbccddeeff".repeat(2));
    let y = hex(&"ffeeddccbbaa99887766554433221100".repeat(2));
    let [client, server] = [x, y].map(|private| KeyPair::from_private(Group::oakley_2(), &private));
    let record = client.public_record();
    let front = "0000000a 44485f5055425f4b4559 0000 00000080 6b24f4786422f0a9128efbc808d6d737";
    assert!(record.starts_with(&hex(front)) && record.len() == 286);
    let z = hex("9011ef0257964219cde4124a0ab6c8772f1a0c903398beb15807da2faaac40eb
        6471d27f1df378efb69b2a56e508a8a49c77b4d2474517201d30c51549f2004c
        51a185c5d24751bde22e643de3be6cf19c0e01916a5127ce565be0f7b2efb65d
        fe3b22f998ece3a247c389150feb27091bda84fecf83108652937fcf39cae934");
    assert_eq!(**client.agree(&server.public_record()).expect("the secret"), z);
    assert_eq!(**server.agree(&record).expect("the secret"), z);

    let text = [hex(COVERED), vec![0; 4]].concat();
    let aes = "9011ef0257964219cde4124a0ab6c8772f1a0c903398beb15807da2faaac40eb";
    let ecb = "9eeb2a292f933a1afe7cbd20f44c245a2d53cfb561fffcb0814b3e275b246fb0
        572991ed47b34988228c0ef926f8983e";
    let aes_cbc = "0f0e0d0c0b0a09080706050403020100
        12ef2a36971f539dcd644d63d9a2c0dc1dcf6ddb7adb7e442ac232c0f8cd9c96bf863e0ed1ffda26866d8e8de7a9a465";
    let des_cbc = "0706050403020100
        b2e5c03a3c4a24c81510b4a9418cb9d0cf68564ac6fd8621720be34ff17aae9aaa39a0025387c6edfd836d15c8f02264";
    for (cipher, key, minor, random_at, encrypted) in [
        (Cipher::AES, aes, 11, 0, aes_cbc),
        (Cipher::AES, aes, 3, 0, ecb),
        (Cipher::DES, "9110ef0257974319", 4, 8, des_cbc),
    ] {
        let session = SessionKey::derive(cipher, &z).expect("a key");
        assert_eq!(session.as_bytes(), hex(key));
        let mut random = [0x0f, 0x0e, 0x0d, 0x0c, 0x0b, 0x0a, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0];
        random.rotate_left(random_at);
        let version = Version::new(2, minor);
        assert_eq!(session.encrypt(version, &random, &text), hex(encrypted), "2.{minor}");
        assert_eq!(session.decrypt(version, &hex(encrypted)).expect("the text").to_vec(), text);
    }
    let des_ede = SessionKey::derive(Cipher::DESEDE, &z).expect("a key");
    assert_eq!(des_ede.as_bytes(), hex("9110ef0257974319cde5134a0bb6c8762f1a0d913298bfb0"));
}

#[test]
fn handles_hash_to_servers() {
    for (handle, whole, prefix, suffix) in [
        ("10.1045/july95-arms", 2_053_237_461, 618_843_948, 583_810_194),
        ("10.1045/JULY95-Arms", 2_053_237_461, 618_843_948, 583_810_194),
        ("0.NA/10", 324_503_958, 36_223_079, 781_981_664),
        ("12345/abc", 1_649_572_714, 1_845_997_957, 891_676_978),
        ("noslash", 923_316_370, 36_223_079, 923_316_370),
        ("20.500.12345/\u{e9}", 1_764_701_390, 1_502_227_973, 1_689_532_561),
    ] {
        let hash = |option| Handle(handle.as_bytes()).hash(option);
        assert_eq!(
            (hash(HashOption::Handle), hash(HashOption::Prefix), hash(HashOption::Suffix)),
            (whole, prefix, suffix),
            "{handle}"
        );
    }
}
