use super::*;
use crate::testing::{private_key, public_record};
use crate::{LookupAnswer, Question};
use data_encoding::{BASE64, BASE64URL_NOPAD};
use handle_auth::{PrivateKey, PublicKey};
use handle_proto::code::DigestAlgorithm;
use handle_proto::data::PublicKey as KeyRecord;
use handle_proto::json::{Json, public_key_to_jwk};
use handle_proto::{Permissions, ResponseCode, ValueBuf};
use serde_json::json;
use std::collections::HashMap;

const NOW: u32 = 1_700_000_000;
const HANDLE: &str = "10.1045/x";

fn compact(alg: &str, payload: &Json, key: &PrivateKey) -> String {
    let header = BASE64URL_NOPAD.encode(json!({ "alg": alg }).to_string().as_bytes());
    let covered = format!("{header}.{}", BASE64URL_NOPAD.encode(payload.to_string().as_bytes()));
    let signature = key.sign(DigestAlgorithm::SHA256, &[covered.as_bytes()]).unwrap();
    format!("{covered}.{}", BASE64URL_NOPAD.encode(&signature))
}

fn jwk(id: &str) -> Json {
    let record = public_record(id);
    public_key_to_jwk(&KeyRecord::decode(&record).unwrap()).unwrap()
}

fn value(index: i32, kind: &str, data: &str) -> ValueBuf {
    ValueBuf::from(&Value::new(index, kind.as_bytes(), data.as_bytes()))
}

/// A record, the certificates of its chain, and the trusted key.
struct Scene {
    values: Vec<ValueBuf>,
    certificates: HashMap<String, Vec<ValueBuf>>,
    trusted: Vec<Vec<u8>>,
}

fn certificate(
    subject: &str,
    issuer: &str,
    key: &str,
    signer: &str,
    permission: Json,
    chain: &[&str],
) -> String {
    let payload = json!({
        "publicKey": jwk(key), "perms": [permission], "chain": chain, "iss": issuer, "sub": subject,
        "nbf": NOW - 1000, "exp": NOW + 1000, "iat": NOW - 900,
    });
    compact("RS256", &payload, &private_key(signer))
}

/// The payload of the signature of a record.
fn signature(values: &[ValueBuf]) -> Json {
    let digests: Vec<Json> = values
        .iter()
        .map(|value| {
            let digest = value_digest(ValueDigest::Sha256, &value.view());
            json!({ "index": value.view().index, "digest": BASE64.encode(&digest) })
        })
        .collect();
    json!({
        "digests": { "alg": "SHA-256", "digests": digests },
        "chain": ["300:0.NA/10.1045", "0.0/0.0"],
        "iss": "300:0.NA/10.1045", "sub": HANDLE, "nbf": NOW - 10, "exp": NOW + 10, "iat": NOW - 5,
    })
}

/// Root key `server` signs the certificate of key `mirror` for 0.NA/10.1045, which signs the
/// record.
fn scene() -> Scene {
    let values = vec![value(1, "URL", "https://example.org/"), value(2, "EMAIL", "a@b")];
    let everything = json!({ "perm": "everything" });
    let own = json!({ "perm": "thisHandle", "handle": "0.NA/10.1045" });
    let root = certificate("300:0.0/0.0", "300:0.0/0.0", "server", "server", everything, &[]);
    let middle = certificate("300:0.NA/10.1045", "300:0.0/0.0", "mirror", "server", own, &[]);
    let signed = compact("RS256", &signature(&values), &private_key("mirror"));
    let certificates = HashMap::from([
        ("0.0/0.0".to_owned(), vec![value(400, "HS_CERT", &root)]),
        ("0.NA/10.1045".to_owned(), vec![value(300, "HS_CERT", &middle)]),
    ]);
    let mut scene = Scene { values, certificates, trusted: vec![public_record("server")] };
    scene.values.push(value(9, "HS_SIGNATURE", &signed));
    scene
}

impl Scene {
    fn report(&self) -> SignatureReport {
        self.report_counting(&std::cell::Cell::new(0))
    }

    /// As [`report`](Self::report), counting the certificates that are fetched.
    fn report_counting(&self, questions_count: &std::cell::Cell<usize>) -> SignatureReport {
        let answer = LookupAnswer::new(HANDLE, ResponseCode::SUCCESS, self.values.iter().map(ValueBuf::view));
        let mut fetch = |question: &Question| {
            questions_count.set(questions_count.get() + 1);
            let values = self.certificates.get(str::from_utf8(&question.handle).unwrap())?;
            let all = LookupAnswer::new(
                question.handle.clone(),
                ResponseCode::SUCCESS,
                values.iter().map(ValueBuf::view),
            );
            Some(all.selected(question))
        };
        Verifier { trusted_keys: &self.trusted, now_unix_s: NOW }.verify(&answer, &mut fetch)
    }

    /// Signs again, with another payload.
    fn sign(&mut self, change: impl FnOnce(&mut Json)) -> &mut Self {
        let mut payload = signature(&self.values[..2]);
        change(&mut payload);
        self.values[2] = value(9, "HS_SIGNATURE", &compact("RS256", &payload, &private_key("mirror")));
        self
    }

    fn refused(&self) -> SignatureError {
        let report = self.report();
        assert!(!report.is_good());
        assert!(report.values.iter().all(|(_, verdict)| *verdict == ValueVerdict::Unsigned));
        assert!(!report.refused[0].1.to_string().is_empty());
        report.refused[0].1.clone()
    }
}

#[test]
fn a_record_is_good_when_a_chain_leads_to_a_trusted_key() {
    let report = scene().report();
    assert_eq!(report.refused, []);
    assert_eq!(report.values, [(1, ValueVerdict::Verified), (2, ValueVerdict::Verified)]);
    assert!(report.is_good());
}

#[test]
fn changed_added_and_removed_values_are_reported() {
    let mut scene = scene();
    scene.values[0] = value(1, "URL", "https://evil.example/");
    let report = scene.report();
    assert_eq!((report.values[0], report.is_good()), ((1, ValueVerdict::BadDigest), false));
    scene.values[0] = value(7, "URL", "https://example.org/");
    let report = scene.report();
    assert_eq!((report.values[0], report.missing.as_slice()), ((7, ValueVerdict::Unsigned), &[1][..]));
    // An attacker who forges a value may mark it as not public.
    let hidden = Value { permissions: Permissions::ADMIN_READ, ..Value::new(8, b"X", b"y") };
    let mut scene = self::scene();
    scene.values.push(ValueBuf::from(&hidden));
    let report = scene.report();
    assert_eq!((report.values[2], report.is_good()), ((8, ValueVerdict::Unsigned), false));
}

#[test]
fn values_with_equal_indexes_are_not_verified() {
    for at in [0, 1, 3] {
        let mut scene = scene();
        scene.values.insert(at, value(1, "URL", "https://evil.example/"));
        let report = scene.report();
        assert!(!report.is_good());
        let of_one: Vec<_> = report.values.iter().filter(|(index, _)| *index == 1).collect();
        assert_eq!(of_one, [&(1, ValueVerdict::BadDigest); 2]);
    }
}

#[test]
fn the_timestamp_of_a_value_is_not_signed_and_its_ttl_is() {
    let mut scene = scene();
    let text = Value::new(1, b"URL", b"https://example.org/");
    scene.values[0] = ValueBuf::from(&Value { timestamp: 77, ..text });
    assert!(scene.report().is_good());
    scene.values[0] = ValueBuf::from(&Value { ttl: handle_proto::value::Ttl::relative(1), ..text });
    assert!(!scene.report().is_good());
}

#[test]
fn a_key_that_is_not_trusted_ends_no_chain() {
    let mut scene = scene();
    scene.trusted = vec![public_record("mirror")];
    assert_eq!(scene.refused(), SignatureError::Untrusted);
    scene.trusted = vec![];
    assert_eq!(scene.refused(), SignatureError::Untrusted);
    // Trusted keys count at the root only.
    let everything = json!({ "perm": "everything" });
    let own = certificate("300:0.NA/10.1045", "300:0.NA/10.1045", "mirror", "mirror", everything, &[]);
    scene.certificates.insert("0.NA/10.1045".to_owned(), vec![value(300, "HS_CERT", &own)]);
    scene.trusted = vec![public_record("mirror")];
    assert_eq!(scene.refused(), SignatureError::Untrusted);
}

#[test]
fn each_link_needs_its_key_its_dates_and_its_permission() {
    let mut scene = scene();
    assert_eq!(scene.sign(|payload| payload["exp"] = (NOW - 1).into()).refused(), SignatureError::Dates);
    assert!(scene.sign(|payload| payload["exp"] = NOW.into()).report().is_good());
    assert_eq!(scene.sign(|payload| payload["nbf"] = (NOW + 1).into()).refused(), SignatureError::Dates);
    assert_eq!(scene.sign(|payload| payload["sub"] = "10.1045/y".into()).refused(), SignatureError::Subject);
    let nobody = "300:0.NA/nobody";
    let refused = scene.sign(|payload| payload["iss"] = nobody.into()).refused();
    assert_eq!(refused, SignatureError::NoCertificate(nobody.to_owned()));

    let mut scene = self::scene();
    let middle =
        |permission| certificate("300:0.NA/10.1045", "300:0.0/0.0", "mirror", "server", permission, &[]);
    for (permission, is_good) in [
        (json!({ "perm": "handlesUnderThisPrefix", "handle": "0.NA/10.1045" }), true),
        (json!({ "perm": "thisHandle", "handle": "10.1045/X" }), false),
        (json!({ "perm": "derivedPrefixes", "handle": "0.NA/10" }), true),
        (json!({ "perm": "derivedPrefixes", "handle": "0.NA/10.1045" }), false),
        (json!({ "perm": "handlesUnderThisPrefix", "handle": "0.NA/10" }), false),
        (json!({ "perm": "anything" }), false),
    ] {
        let link = value(300, "HS_CERT", &middle(permission.clone()));
        scene.certificates.insert("0.NA/10.1045".to_owned(), vec![link]);
        assert_eq!(scene.report().is_good(), is_good, "{permission}");
    }
    let forged = certificate(
        "300:0.NA/10.1045",
        "300:0.0/0.0",
        "mirror",
        "mirror",
        json!({ "perm": "everything" }),
        &[],
    );
    scene.certificates.insert("0.NA/10.1045".to_owned(), vec![value(300, "HS_CERT", &forged)]);
    assert_eq!(scene.refused(), SignatureError::Jws(JwsError::Wrong));
}

#[test]
fn a_circle_of_certificates_ends() {
    let mut scene = scene();
    let everything = || json!({ "perm": "everything" });
    let one = certificate("300:0.NA/10.1045", "300:0.NA/A", "mirror", "mirror", everything(), &[]);
    let two = certificate("300:0.NA/A", "300:0.NA/10.1045", "mirror", "mirror", everything(), &[]);
    scene.certificates.insert("0.NA/10.1045".to_owned(), vec![value(300, "HS_CERT", &one)]);
    scene.certificates.insert("0.NA/A".to_owned(), vec![value(300, "HS_CERT", &two)]);
    assert_eq!(scene.sign(|payload| payload["chain"] = json!([])).refused(), SignatureError::Circle);
}

#[test]
fn the_length_of_a_chain_is_bounded_and_links_count_once() {
    // The next certificate of the same handle signs each one, so that the link is the handle alone
    // each time.
    let scene_of = |count: usize, link: &dyn Fn(usize) -> String| {
        let mut scene = scene();
        let everything = || json!({ "perm": "everything" });
        let name =
            |number: usize| if number == 0 { "300:0.0/0.0".to_owned() } else { format!("{number}:0.NA/A") };
        let key = |number: usize| if number == 0 { "server" } else { "mirror" };
        let certificates = (1..=count).map(|number| {
            let next = number - 1;
            let text = certificate(&name(number), &name(next), "mirror", key(next), everything(), &[]);
            value(i32::try_from(number).unwrap(), "HS_CERT", &text)
        });
        scene.certificates.insert("0.NA/A".to_owned(), certificates.collect());
        let mut chain: Vec<String> = (1..=count).rev().map(link).collect();
        chain.push("0.0/0.0".to_owned());
        scene.sign(|payload| (payload["iss"], payload["chain"]) = (name(count).into(), json!(chain)));
        scene
    };
    assert!(scene_of(2, &|number| format!("{number}:0.NA/A")).report().is_good());
    assert_eq!(scene_of(2, &|_| "0.NA/A".to_owned()).refused(), SignatureError::Circle);
    assert!(scene_of(49, &|number| format!("{number}:0.NA/A")).report().is_good());
    assert_eq!(scene_of(50, &|number| format!("{number}:0.NA/A")).refused(), SignatureError::TooLong);
}

#[test]
fn a_record_of_many_signatures_asks_for_a_bounded_number_of_certificates() {
    let mut scene = scene();
    let signed = scene.values.pop().unwrap();
    // Each names its own unknown issuer; the valid signature comes first or last.
    let unknown = |index: i32| {
        let mut payload = signature(&scene.values);
        (payload["iss"], payload["chain"]) = (format!("300:0.NA/{index}").into(), json!([]));
        value(index, "HS_SIGNATURE", &compact("RS256", &payload, &private_key("mirror")))
    };
    let most = i32::try_from(CERTIFICATES_FETCHED_MAX).unwrap();
    let unknown: Vec<ValueBuf> = (100..100 + most + 1).map(unknown).collect();
    let questions_count = std::cell::Cell::new(0);
    let mut report = |values: Vec<ValueBuf>| {
        scene.values.truncate(2);
        scene.values.extend(values);
        questions_count.set(0);
        scene.report_counting(&questions_count)
    };
    let first = report([vec![signed.clone()], unknown.clone()].concat());
    assert!(first.is_good(), "{first:?}");
    assert_eq!(questions_count.get(), CERTIFICATES_FETCHED_MAX);
    assert_eq!(first.refused.last().unwrap().1, SignatureError::TooManyCertificates);
    // The valid one takes two certificates: with this many before it the limit is just met, with
    // one more it is exceeded.
    let most = CERTIFICATES_FETCHED_MAX;
    assert!(report([unknown[..most - 2].to_vec(), vec![signed.clone()]].concat()).is_good());
    assert!(!report([unknown[..most - 1].to_vec(), vec![signed]].concat()).is_good());
}

#[test]
fn the_newest_certificate_of_an_issuer_counts() {
    let mut scene = scene();
    let mut values = scene.certificates["0.NA/10.1045"].clone();
    let everything = json!({ "perm": "everything" });
    let old = json!({
        "publicKey": jwk("admin_rsa"), "perms": [everything], "iss": "300:0.0/0.0", "sub": "300:0.NA/10.1045",
        "iat": NOW - 5000,
    });
    values.insert(0, value(299, "HS_CERT", &compact("RS256", &old, &private_key("server"))));
    let others = certificate("301:0.NA/10.1045", "300:0.0/0.0", "admin_rsa", "server", everything, &[]);
    values.push(value(301, "HS_CERT", &others));
    scene.certificates.insert("0.NA/10.1045".to_owned(), values);
    // A link that is a handle without an index.
    assert!(scene.sign(|payload| payload["chain"] = json!(["0.NA/10.1045"])).report().is_good());
    // A link to a value that is not a certificate.
    let refused = scene.sign(|payload| payload["chain"] = json!(["7:0.NA/10.1045"])).refused();
    assert!(matches!(refused, SignatureError::NoCertificate(_)), "{refused}");
}

#[test]
fn compact_and_json_forms_are_read() {
    let (key, public) = (private_key("mirror"), PublicKey::from_record(&public_record("mirror")).unwrap());
    let payload = json!({ "iss": "a", "sub": "b" });
    let text = compact("RS256", &payload, &key);
    let parts: Vec<&str> = text.split('.').collect();
    let long = json!({
        "payload": parts[1],
        "signatures": [{ "protected": parts[0], "signature": parts[2] }, { "protected": 3 }],
    });
    for form in [text.clone(), long.to_string(), format!("{text}\n")] {
        let jws = Jws::parse(form.as_bytes()).unwrap();
        assert_eq!((jws.payload(), jws.verify(&public)), (&payload, Ok(())));
        assert_eq!(
            jws.verify(private_key("admin_dsa").public()),
            Err(JwsError::Wrong),
            "the kind of the key"
        );
    }
    let dsa = private_key("admin_dsa2048");
    assert_eq!(Jws::parse(compact("DS256", &payload, &dsa).as_bytes()).unwrap().verify(dsa.public()), Ok(()));
}

#[test]
fn the_algorithm_determines_kind_of_key_and_digest() {
    let (key, dsa) = (private_key("mirror"), private_key("admin_dsa2048"));
    let payload = json!({ "iss": "a", "sub": "b" });
    for alg in ["none", "HS256", "ES256", "RS224", "RS", ""] {
        let error = Jws::parse(compact(alg, &payload, &key).as_bytes()).unwrap_err();
        assert_eq!(error, JwsError::Algorithm(alg.to_owned()));
    }
    // The start of the name determines the kind of key, the end the digest.
    for (alg, signer) in [("RSA256", &key), ("RS-256", &key), ("DSA-SHA256", &dsa)] {
        let jws = Jws::parse(compact(alg, &payload, signer).as_bytes()).unwrap();
        assert_eq!(jws.verify(signer.public()), Ok(()), "{alg}");
    }
}

#[test]
fn malformed_compact_forms_are_refused() {
    let (key, public) = (private_key("mirror"), PublicKey::from_record(&public_record("mirror")).unwrap());
    let payload = json!({ "iss": "a", "sub": "b" });
    let text = compact("RS256", &payload, &key);
    let parts: Vec<&str> = text.split('.').collect();
    for len in 0..text.len() {
        let cut = Jws::parse(&text.as_bytes()[..len]);
        assert!(cut.is_err() || cut.unwrap().verify(&public).is_err(), "cut to {len}");
    }
    let part = |at: usize, with: &str| {
        let mut parts = parts.clone();
        parts[at] = with;
        parts.join(".")
    };
    let encoded = |json: &str| BASE64URL_NOPAD.encode(json.as_bytes());
    // Not an object, no algorithm, an algorithm that is not a text; not base64url, with padding,
    // with excess bits.
    for header in [r#""RS256""#, "[]", "{}", r#"{"alg":256}"#, r#"{"alg":null}"#, r#"{"ALG":"RS256"}"#] {
        assert!(
            matches!(Jws::parse(part(0, &encoded(header)).as_bytes()), Err(JwsError::Malformed(_))),
            "{header}"
        );
    }
    for (at, with) in [(0, "e30="), (1, "e3+/"), (1, "e30 "), (2, "QR"), (2, "Q"), (1, ""), (1, "\u{0}")] {
        assert!(
            matches!(Jws::parse(part(at, with).as_bytes()), Err(JwsError::Malformed(_))),
            "{at} {with:?}"
        );
    }
    for bad in ["", "a.b", "a.b.c.d", "{}", "{", "\u{e9}.b.c", r#"{"payload": "", "signatures": []}"#] {
        assert!(matches!(Jws::parse(bad.as_bytes()), Err(JwsError::Malformed(_))), "{bad}");
    }
}

#[test]
fn malformed_json_forms_are_refused() {
    let (key, public) = (private_key("mirror"), PublicKey::from_record(&public_record("mirror")).unwrap());
    let payload = json!({ "iss": "a", "sub": "b" });
    let text = compact("RS256", &payload, &key);
    let parts: Vec<&str> = text.split('.').collect();
    let long = |json: Json| Jws::parse(json.to_string().as_bytes());
    for bad in [
        json!({ "payload": parts[1], "signatures": { "protected": parts[0], "signature": parts[2] } }),
        json!({ "payload": parts[1], "signatures": [{ "header": parts[0], "signature": parts[2] }] }),
        json!({ "payload": payload, "signatures": [{ "protected": parts[0], "signature": parts[2] }] }),
        json!({ "payload": parts[1], "protected": parts[0], "signature": parts[2] }),
        json!({ "signatures": [{ "protected": parts[0], "signature": parts[2] }] }),
    ] {
        assert!(matches!(long(bad.clone()), Err(JwsError::Malformed(_))), "{bad}");
    }
    // The first signature counts, even if the second is valid.
    let second = json!({
        "payload": parts[1],
        "signatures": [
            { "protected": parts[0], "signature": parts[1] },
            { "protected": parts[0], "signature": parts[2] },
        ],
    });
    assert_eq!(long(second).unwrap().verify(&public), Err(JwsError::Wrong));
}

#[test]
fn permissions_cover_the_handles_of_the_table() {
    let covers = |permitted, own: &str, handle: &str| {
        Permission { permitted, handle: own.to_owned() }.covers(handle_proto::Handle(handle.as_bytes()))
    };
    use SigningScope::*;
    for (permitted, own, handle, expected) in [
        (Everything, "", "10.1045/x", true),
        (ThisHandle, "10.1045/x", "10.1045/x", true),
        (ThisHandle, "10.1045/x", "10.1045/y", false),
        (ThisHandle, "0.NA/10.1045", "0.na/10.1045", true),
        (ThisHandle, "0.NA/10.1045", "10.1045/x", true),
        (ThisHandle, "0.NA/10.1045", "10.1045.1/x", false),
        (DerivedPrefixes, "0.NA/10", "0.NA/10.1045", true),
        (DerivedPrefixes, "0.NA/10", "10.1045/x", true),
        (DerivedPrefixes, "0.NA/10", "10/x", false),
        (DerivedPrefixes, "0.NA/10", "0.NA/10", false),
        (DerivedPrefixes, "0.NA/10", "0.NA/10.", false),
        (DerivedPrefixes, "0.NA/10", "0.NA/100.1", false),
        (DerivedPrefixes, "", ".x/y", false),
        (HandlesUnderThisPrefix, "0.NA/10", "10/x", true),
        (HandlesUnderThisPrefix, "0.NA/10", "0.NA/10", false),
        (HandlesUnderThisPrefix, "10/x", "10/x", false),
    ] {
        assert_eq!(covers(permitted, own, handle), expected, "{permitted:?} {own} {handle}");
    }
}
