//! The HTTP front: paths of requests, locations, and redirects to them.

use handle_client::administration::IdentityKey;
use handle_console::parameters::Parameters;
use handle_gateway::accept::AcceptTypes;
use handle_gateway::api::basic::basic;
use handle_gateway::api::batch::message_of_line;
use handle_gateway::api::body::ApiFormat;
use handle_gateway::api::change::values_of_body;
use handle_gateway::api::scheme::{HandleCredentials, HandleProof, OldDigests, identity};
use handle_gateway::identifiers::{IdentifierMatch, IdentifierRules, IdentifierTarget};
use handle_gateway::input::InputRules;
use handle_gateway::location::{LOCATIONS_MAX, LocationCriteria, LocationSet, XML_LEN_MAX, handle_url};
use handle_gateway::redirect::{
    AliasChain, ProxyDecision, ProxyParameters, ProxyRequest, ProxyStep, RedirectRules, SCHEMES, choose,
    next_step,
};
use handle_gateway::sessions::SessionId;
use handle_gateway::target;
use handle_proto::json::Json;
use handle_proto::limit::HANDLE_LEN_MAX;
use handle_proto::wire::auth::{PUBLIC_KEY, SecretAnswer, SignedAnswer};
use handle_proto::wire::guard::ChangeGuard;
use handle_proto::wire::{Envelope, Message, Request};
use handle_proto::{Handle, Value, ValueBuf};

/// A path names a handle of limited length, or none. The URL of the handle is printable ASCII and
/// names the same handle.
pub fn proxy_path(bytes: &[u8]) {
    for charset_modifier in [false, true] {
        let rules = InputRules::new(&["hdl.example.org".to_owned()], charset_modifier, &[]);
        let Ok(reference) = rules.handle_of_path(bytes) else { continue };
        assert!((1..=HANDLE_LEN_MAX).contains(&reference.handle.len()));
        let handle = reference.handle;
        let url = handle_url(Handle(handle.as_bytes()), "/hdl:");
        assert!(url.bytes().all(|byte| byte.is_ascii_graphic()), "{url}");
        // Encoded blanks around a name count as blanks.
        let is_blank = |c: char| matches!(c, ' ' | '\t' | '\n' | '\r');
        if !handle.starts_with(is_blank) && !handle.ends_with(is_blank) {
            assert_eq!(rules.handle_of_path(url.as_bytes()).map(|again| again.handle), Ok(handle), "{url}");
        }
    }
}

/// A redirect is a URL of an allowed scheme in printable ASCII, the number of locations is limited,
/// and the list of locations can be read back.
///
/// Input: the query of a request, and the data of a 10320/loc value, with a line feed between them.
pub fn location(bytes: &[u8]) {
    let (query, data) = match bytes.iter().position(|&byte| byte == b'\n') {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (&b""[..], bytes),
    };
    let query = String::from_utf8_lossy(query);
    let (parameters, rules) = (ProxyParameters::parse(&query), RedirectRules::default());
    let accept = AcceptTypes::parse(&query);
    let request = ProxyRequest {
        query: &query,
        accept: Some(&accept),
        address: Some([192, 0, 2, 1].into()),
        country: Some("de"),
        random: bytes.iter().fold(0, |sum: u64, byte| sum.rotate_left(8) ^ u64::from(*byte)),
        ..ProxyRequest::new("https://hdl.example.org/", &parameters, &rules)
    };
    let values =
        [Value::new(1, b"10320/loc", data), Value::new(2, b"URL", data), Value::new(3, b"URL", b"urn:x:y")];
    let handle = Handle(b"10.1045/x");
    let mut chain = AliasChain::new(handle.0);
    let step = next_step(&request, &values, &mut chain);
    let mut set = LocationSet::of_record(values);
    set.inherit(values);
    assert!(set.candidates().count() <= 2 * LOCATIONS_MAX + 2);
    let xml = set.to_xml();
    if set.candidates().count() <= LOCATIONS_MAX && xml.len() <= XML_LEN_MAX {
        let again = LocationSet::of_record([Value::new(1, b"10320/loc", xml.as_bytes())]);
        assert_eq!(again.to_xml(), xml, "the list changes when it is read back");
    }
    if let Some(location) = set.choose(&LocationCriteria::default()) {
        assert!(location.target(handle).is_some());
    }
    let decision = match step {
        ProxyStep::Locate(locations) => choose(&request, &locations, handle),
        ProxyStep::Answer(decision) => decision,
        ProxyStep::FollowAlias(_) => panic!("no value is an alias"),
    };
    if let ProxyDecision::Redirect(redirect) = decision {
        assert!(redirect.location.bytes().all(|byte| byte.is_ascii_graphic()), "{redirect:?}");
        let scheme = redirect.location.split(':').next().unwrap_or_default().to_ascii_lowercase();
        assert!(SCHEMES.contains(&scheme.as_str()), "{redirect:?}");
    }
}

/// The path of a request, its query, its `Accept` and its body, with line feeds between them: a
/// path leads to no other host or directory than its rule says; parameters and types are limited;
/// values of a body decode.
pub fn http_request(bytes: &[u8]) {
    let mut parts = bytes.splitn(4, |&byte| byte == b'\n');
    let mut next = || parts.next().unwrap_or_default();
    let [path, query, accept] = [next(), next(), next()].map(String::from_utf8_lossy);
    let body = next();
    if let Ok(decoded) = target::decode(&path) {
        let encoded: String = decoded.bytes().map(|byte| format!("%{byte:02X}")).collect();
        assert_eq!(target::decode(&encoded).as_deref(), Ok(&*decoded), "{path}");
    }
    let rule = |pattern: Option<&str>, template: Option<&str>, backend: Option<&str>| IdentifierTarget {
        path: "id:".to_owned(),
        pattern: pattern.map(str::to_owned),
        template: template.map(str::to_owned),
        backend: backend.map(str::to_owned),
        ..IdentifierTarget::default()
    };
    for rule in [
        rule(Some("([a-z]+)/(.*)"), Some("https://fixed.example/dir/{1}/{2}"), None),
        rule(None, None, Some("http://127.0.0.1:1/dir/{0}?id={0}")),
    ] {
        let rules = IdentifierRules::open(&[rule]).expect("a valid rule");
        let url = match rules.find(&path, &SCHEMES.map(str::to_owned)) {
            Some(IdentifierMatch::Redirect(url)) => {
                url.strip_prefix("https://fixed.example").expect("the host of the rule").to_owned()
            }
            Some(IdentifierMatch::Ask(_, path)) => path,
            Some(IdentifierMatch::Invalid) | None => continue,
        };
        assert!(url.starts_with("/dir/") && url.bytes().all(|byte| byte.is_ascii_graphic()), "{url}");
        assert!(!url.split(['/', '?']).any(|segment| matches!(segment, "." | "..")), "{url}");
        assert!(!url.contains(['#', '\\', '&']), "{url}");
    }
    let parameters = Parameters::parse(&query);
    assert!(parameters.all("index").count() <= 4096);
    let _ = (ApiFormat::of(&parameters), ProxyParameters::parse(&query));
    assert!(AcceptTypes::parse(&accept).iter().all(|kind| kind.len() <= accept.len()));
    for value in values_of_body(body, "10.1045/x").into_iter().flatten() {
        let again = ValueBuf::from_bytes(value.as_bytes().to_vec()).expect("a value");
        assert_eq!((again.view(), again.view().timestamp), (value.view(), 0));
    }
}

/// A proof names an identity that can be written again, and has the form of an answer to a
/// challenge.
fn check_proof(proof: &HandleProof) {
    let handle = str::from_utf8(&proof.handle).expect("the handle is part of a text");
    assert_eq!(identity(&format!("{}:{handle}", proof.index)), Some((proof.index, handle)));
    assert!(proof.index >= 0 && !handle.is_empty(), "{proof:?}");
    let mut again = Vec::new();
    if proof.auth_type == PUBLIC_KEY {
        SignedAnswer::decode(&proof.signed_response).expect("a signature").encode(&mut again);
    } else {
        SecretAnswer::decode(&proof.signed_response).expect("a MAC").encode(&mut again);
    }
    assert_eq!(again, proof.signed_response, "{proof:?}");
}

/// Credentials of a caller, from a header and from a body: they name a session by its only text,
/// and a proof has the form that `handle-admin` verifies. MD5 is a proof only where it is allowed.
/// What the scheme `Basic` reads, `Handle` does not.
///
/// Input: the value of `Authorization`, and the body of a request about a session, with a line feed
/// between them.
pub fn http_credentials(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |&byte| byte == b'\n');
    let header = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let body: Json = serde_json::from_slice(parts.next().unwrap_or_default()).unwrap_or_default();
    let of_header = HandleCredentials::of_header(&header);
    if let Some(found) = basic(&header) {
        assert!(of_header.is_none() && !found.handle.is_empty() && found.index >= 0, "{header}");
        let IdentityKey::Secret(secret) = &found.key else { panic!("{header}: not a secret") };
        assert!(secret.len() < header.len());
    }
    for credentials in of_header.iter().chain([&HandleCredentials::of_json(&body)]) {
        if let Some(session) = credentials.session() {
            assert!(credentials.names_session() && SessionId::parse(&session.secret_text()) == Some(session));
        }
        let (strict, lenient) = (
            credentials.proof(OldDigests::default()),
            credentials.proof(OldDigests { md5: true, sha1: true }),
        );
        for proof in [&strict, &lenient].into_iter().flatten() {
            assert!(
                credentials.is_proof() && credentials.client_nonce().as_ref() == Some(&proof.client_nonce)
            );
            check_proof(proof);
        }
        assert!(strict.is_err() || strict == lenient, "{strict:?}");
    }
}

/// Lines of a batch: a change is a message of the handle protocol about its handle, complete and
/// within the limits.
///
/// Input: lines.
pub fn http_batch(bytes: &[u8]) {
    for (number, line) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        let Some((handle, message)) = message_of_line(number, line) else { continue };
        assert!(handle.contains('/') && handle.len() <= HANDLE_LEN_MAX, "{handle}");
        let (envelope, rest) = Envelope::split(&message).expect("an envelope");
        assert_eq!(envelope.message_len as usize, rest.len());
        let decoded = Message::decode(rest).expect("a message");
        let (guard, body) = ChangeGuard::split(decoded.body).expect("a guard or none");
        assert!(!guard.has_conditions(), "{handle}: a batch has no conditions");
        let request = Request::decode(decoded.header.op_code, envelope.version, body).expect("a request");
        let named = match request {
            Request::CreateHandle(body) | Request::AddValue(body) | Request::ModifyValue(body) => body.handle,
            Request::RemoveValue(body) => body.handle,
            Request::DeleteHandle(body) => body.handle,
            other => panic!("{handle}: {other:?}"),
        };
        assert_eq!(named, handle.as_bytes());
    }
}
