//! `http.jsonl`: the same answers as the reference over HTTP, or a difference of a permitted kind.
//!
//! A kind is a rule on the request and the reference's answer, in [`KINDS`], and a row of
//! `docs/conformance.md`; a test compares the two. A line of no kind must have the same status, the
//! same body apart from the parts that are listed as nondeterministic, and the same headers where
//! they matter.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use data_encoding::BASE64;
use handle_auth::PrivateKey;
use handle_auth::digest::mac;
use handle_auth::kdf::pbkdf2_sha1;
use handle_auth::message::verify_message;
use handle_proto::ResponseCode;
use handle_proto::code::DigestAlgorithm;
use handle_proto::wire::{Envelope, Header, Message};
use handle_tests::admin_server::{AdminServer, administer_from};
use handle_tests::gateway_server::{HttpAnswer, exchange, exchange_over_tls, serve_over_http, use_tls};
use handle_tests::openapi::require_described;
use handle_tests::test_server::{OmittedHandles, server_key_in};
use handle_tests::vectors::{self, LineChecks, LineOutcome, VectorSource, bytes, has_server, hex, load};
use serde_json::Value as Json;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

/// A kind of difference that is permitted.
struct Kind {
    name: &'static str,
    /// Whether a line is of this kind.
    applies: fn(&Json) -> bool,
    /// Whether our answer is as this kind allows.
    is_right: fn(&Json, &HttpAnswer) -> bool,
    /// How many lines of our own file differ so.
    lines_count: usize,
}

fn target(line: &Json) -> &str {
    line["target"].as_str().unwrap_or_default()
}

fn body_text(line: &Json) -> &str {
    line["body"].as_str().unwrap_or_default()
}

fn header<'l>(headers: &'l Json, name: &str) -> Option<&'l str> {
    let mut headers = headers.as_array()?.iter();
    headers.find(|header| header[0].as_str().is_some_and(|it| it.eq_ignore_ascii_case(name)))?[1].as_str()
}

fn is_same_status(line: &Json, answer: &HttpAnswer) -> bool {
    line["status"] == answer.status
}

/// The code in a body of JSON.
fn code(json: &Json) -> Option<i64> {
    json["responseCode"].as_i64()
}

/// The name of the function that a query asks for.
fn callback(line: &Json) -> Option<&str> {
    let (_, query) = target(line).split_once('?')?;
    query.split('&').find_map(|part| part.strip_prefix("callback="))
}

/// All kinds, as in `docs/conformance.md`. The first that applies to a line and is true of its
/// answer counts.
const KINDS: [Kind; 13] = [
    Kind {
        name: "own words",
        applies: |line| {
            body_text(line).contains("\"message\":\"java.") || body_text(line).contains("\"message\":\"com.")
        },
        is_right: |line, answer| {
            let reference: Json = serde_json::from_str(body_text(line)).unwrap_or_default();
            is_same_status(line, answer) && code(&reference) == code(&answer.json())
        },
        lines_count: 21,
    },
    Kind {
        name: "paths are UTF-8",
        applies: |line| body_text(line).contains('\u{fffd}'),
        is_right: |_, answer| answer.status == 400,
        lines_count: 2,
    },
    Kind {
        name: "functions have names",
        applies: |line| callback(line).is_some_and(|name| name.is_empty() || name.contains(['%', '[', '('])),
        is_right: |_, answer| answer.status == 400 && code(&answer.json()) == Some(4),
        lines_count: 2,
    },
    Kind {
        name: "no trace",
        applies: |line| line["method"] == "TRACE",
        is_right: |_, answer| answer.status == 405 && answer.body.is_empty(),
        lines_count: 1,
    },
    Kind {
        name: "methods that are allowed",
        applies: |line| header(&line["response_headers"], "Allow").is_some(),
        is_right: |line, answer| {
            let allowed = answer.list("allow");
            is_same_status(line, answer) && allowed.contains("OPTIONS") && !allowed.contains("TRACE")
        },
        lines_count: 2,
    },
    Kind {
        name: "entity tags",
        applies: |line| header(&line["request_headers"], "If-None-Match").is_some() && line["status"] == 200,
        is_right: |_, answer| {
            answer.status == 304 && answer.header("etag").is_some() && answer.body.is_empty()
        },
        lines_count: 1,
    },
    Kind {
        name: "credentials that nothing needs",
        applies: |line| {
            let is_read = line["method"] == "GET" && !target(line).contains("publicOnly");
            is_read && line["status"] == 401 && header(&line["request_headers"], "Authorization").is_some()
        },
        is_right: |_, answer| answer.status == 200,
        lines_count: 1,
    },
    Kind {
        name: "rights before proofs",
        applies: |line| line["status"] == 401 && header(&line["request_headers"], "Authorization").is_some(),
        is_right: |_, answer| answer.status == 403 && code(&answer.json()) == Some(400),
        lines_count: 3,
    },
    Kind {
        name: "refusals say why",
        applies: |line| line["status"] == 401 || line["status"] == 403,
        is_right: |line, answer| {
            let (theirs, ours) = (header(&line["response_headers"], "WWW-Authenticate"), answer.json());
            let is_challenged = theirs.is_none() == answer.header("www-authenticate").is_none();
            let reference: Json = serde_json::from_str(body_text(line)).unwrap_or_default();
            let has_same_code = body_text(line).is_empty() || code(&reference) == code(&ours);
            let says_why = ours["message"].as_str().is_some_and(|message| !message.is_empty());
            is_same_status(line, answer) && is_challenged && has_same_code && says_why
        },
        lines_count: 20,
    },
    Kind {
        name: "values that nobody may read",
        applies: |line| body_text(line).contains("\"permissions\":\"0000\""),
        is_right: |line, answer| {
            let mut reference: Json = serde_json::from_str(body_text(line)).unwrap_or_default();
            if let Some(values) = reference["values"].as_array_mut() {
                values.retain(|value| value["permissions"] != "0000");
            }
            is_same_status(line, answer) && reference == answer.json()
        },
        lines_count: 6,
    },
    Kind {
        name: "messages past their end",
        applies: |line| {
            let is_message = line["category"] == "native" && !line["body"].is_null();
            is_message && String::from_utf8_lossy(&bytes(&line["body"])).contains("java.lang.")
        },
        is_right: |_, answer| answer.status == 200 && answer.body.get(24..28) == Some(&[0, 0, 0, 2]),
        lines_count: 1,
    },
    Kind {
        name: "unknown operations",
        applies: |line| {
            let is_message = line["category"] == "native" && !line["body"].is_null();
            is_message && String::from_utf8_lossy(&bytes(&line["body"])).contains("HandleException (")
        },
        is_right: |line, answer| match (message(&bytes(&line["body"])), message(&answer.body)) {
            (Some((their_envelope, theirs)), Some((envelope, ours))) => {
                let expected = Header {
                    expiration: ours.header.expiration,
                    body_len: ours.header.body_len,
                    response_code: ResponseCode::ERROR,
                    ..theirs.header
                };
                let message_len = envelope.message_len;
                is_same_status(line, answer)
                    && envelope == Envelope { message_len, ..their_envelope }
                    && ours.header == expected
            }
            _ => false,
        },
        lines_count: 2,
    },
    Kind {
        name: "pages in other words",
        applies: |line| {
            header(&line["response_headers"], "Content-Type")
                .is_some_and(|kind| kind.starts_with("text/html"))
        },
        is_right: |line, answer| {
            let location = header(&line["response_headers"], "Location");
            is_same_status(line, answer) && location == answer.header("location")
        },
        lines_count: 6,
    },
];

/// The sessions of the reference, and ours in their place.
#[derive(Default)]
struct SessionNames {
    /// By the id of the reference.
    ours: HashMap<String, SessionPair>,
}

/// A session of the reference, and ours in its place.
struct SessionPair {
    our_id: String,
    our_nonce: Vec<u8>,
    reference_nonce: Vec<u8>,
}

impl SessionNames {
    /// Notes the session of an answer.
    fn learn(&mut self, line: &Json, answer: &HttpAnswer) {
        let expected: Json = serde_json::from_str(body_text(line)).unwrap_or_default();
        let ours = answer.json();
        let texts = |json: &Json| {
            let nonce = BASE64.decode(json["nonce"].as_str()?.as_bytes()).unwrap();
            Some((json["sessionId"].as_str()?.to_owned(), nonce))
        };
        if let (Some((id, reference_nonce)), Some((our_id, our_nonce))) = (texts(&expected), texts(&ours)) {
            self.ours.insert(id, SessionPair { our_id, our_nonce, reference_nonce });
        }
    }

    /// The request of a line with our session, and with a proof over our nonce. It is wrong where
    /// the recorded proof is.
    fn translated(&self, line: &Json) -> Json {
        let mut line = line.clone();
        for header in line["request_headers"].as_array_mut().into_iter().flatten() {
            let text = header[1].as_str().unwrap_or_default().to_owned();
            if header[0] != "Authorization" || !text.starts_with("Handle ") {
                continue;
            }
            let Some(id) = field(&text, "sessionId") else { continue };
            let Some(session) = self.ours.get(id) else { continue };
            let mut ours = text.replace(id, &session.our_id);
            if let Some(signature) = field(&text, "signature") {
                let mut our_signature = proof(&text, &session.our_nonce);
                if BASE64.encode(&proof(&text, &session.reference_nonce)) != signature {
                    our_signature[0] ^= 1;
                }
                ours = ours.replace(signature, &BASE64.encode(&our_signature));
            }
            header[1] = ours.into();
        }
        line
    }
}

/// A field of credentials.
fn field<'t>(credentials: &'t str, name: &str) -> Option<&'t str> {
    let (_, rest) = credentials.split_once(&format!("{name}=\""))?;
    rest.split('"').next()
}

/// The proof that these credentials have, over another nonce of the server.
fn proof(credentials: &str, nonce: &[u8]) -> Vec<u8> {
    let of = |name| field(credentials, name).unwrap();
    let bytes = |name| BASE64.decode(of(name).as_bytes()).unwrap();
    let client_nonce = bytes("cnonce");
    let covered = [nonce, &client_nonce[..]];
    let algorithm = DigestAlgorithm::from_identifier(of("alg").as_bytes());
    if of("type") == "HS_PUBKEY" {
        let record =
            hex(&VectorSource::Own.document("servers.json")["keys"]["admin_rsa"]["handle_private_hex"]);
        return PrivateKey::from_record(&record).unwrap().sign(algorithm.unwrap(), &covered).unwrap();
    }
    match algorithm {
        Some(algorithm) => mac(algorithm, SECRET, &covered).unwrap().to_vec(),
        None => {
            let (iterations, bits): (u32, usize) =
                (of("iterations").parse().unwrap(), of("length").parse().unwrap());
            let key = pbkdf2_sha1(SECRET, &bytes("salt"), iterations, bits / 8);
            mac(DigestAlgorithm::HMAC_SHA1, &key, &covered).unwrap().to_vec()
        }
    }
}

/// The secret of 301:0.NA/TST.
const SECRET: &[u8] = b"open sesame open";

fn request_body(line: &Json) -> Vec<u8> {
    if line["request_body"].is_null() { Vec::new() } else { bytes(&line["request_body"]) }
}

/// The bytes of the request of a line. Characters of a target are sent as bytes of Latin 1, as they
/// were.
fn request(line: &Json) -> Vec<u8> {
    let mut request = line["method"].as_str().unwrap().as_bytes().to_vec();
    request.push(b' ');
    request.extend(target(line).chars().map(|c| u8::try_from(u32::from(c)).unwrap()));
    request.extend(format!(" {}\r\n", line["http_version"].as_str().unwrap()).bytes());
    let mut headers = String::new();
    for header in line["request_headers"].as_array().unwrap() {
        headers.push_str(&format!("{}: {}\r\n", header[0].as_str().unwrap(), header[1].as_str().unwrap()));
    }
    request.extend(headers.bytes());
    request.extend(b"\r\n");
    request.extend(request_body(line));
    request
}

fn ask(address: SocketAddr, line: &Json, sessions: &SessionNames) -> HttpAnswer {
    let exchange = if line["scheme"] == "https" { exchange_over_tls } else { exchange };
    let bytes = exchange(address, &request(&sessions.translated(line)));
    let answer = HttpAnswer::split(&bytes, line["method"] == "HEAD");
    answer.unwrap_or_else(|| panic!("no answer: {}", String::from_utf8_lossy(&bytes))).0
}

/// All values of a header of the reference, joined by commas.
fn header_list(headers: &Json, name: &str) -> String {
    let headers = headers.as_array().into_iter().flatten();
    let named = headers.filter(|header| header[0].as_str().is_some_and(|it| it.eq_ignore_ascii_case(name)));
    named.filter_map(|header| header[1].as_str()).collect::<Vec<_>>().join(", ")
}

/// The schemes of challenges, and the errors in them.
fn schemes(challenges: &str) -> Vec<&str> {
    let error = challenges.split_once("error=").map(|(_, error)| error);
    let named = ["Basic realm=", "Handle sessionId="].into_iter().filter(|it| challenges.contains(it));
    named.chain(error).collect()
}

/// Where the number of a session or of a challenge is in an envelope.
const SESSION_ID: std::ops::Range<usize> = 4..8;

/// A message over HTTP with its envelope.
fn message(bytes: &[u8]) -> Option<(Envelope, Message<'_>)> {
    let (envelope, rest) = Envelope::split(bytes).ok()?;
    Some((envelope, Message::decode(rest).ok()?))
}

fn is_challenge(bytes: &[u8]) -> bool {
    message(bytes).is_some_and(|(_, it)| it.header.response_code == ResponseCode::AUTHENTICATION_NEEDED)
}

fn is_signed(bytes: &[u8]) -> bool {
    message(bytes).is_some_and(|(_, message)| !message.credential.is_empty())
}

/// Whether a message is signed with the key of the server.
fn verifies(bytes: &[u8]) -> bool {
    let key = server_key_in(VectorSource::Selected, "root");
    message(bytes).is_some_and(|(envelope, message)| verify_message(&envelope, &message, &key).is_ok())
}

/// How our answer differs from the reference's; `None` if it does not.
fn difference(line: &Json, answer: &HttpAnswer) -> Option<String> {
    if !is_same_status(line, answer) {
        return Some(format!("status {}, not {}", answer.status, line["status"]));
    }
    let expected = &line["response_headers"];
    for name in
        ["Content-Type", "Location", "Access-Control-Allow-Origin", "Access-Control-Allow-Methods", "Allow"]
    {
        let (expected, ours) = (header(expected, name), answer.header(name));
        // The reference repeats the name of the request, which clients add to a path themselves.
        let completed = ours.filter(|ours| name == "Location" && ours.starts_with('/')).and_then(|path| {
            let host = header(&line["request_headers"], "Host")?;
            Some(format!("{}://{host}{path}", line["scheme"].as_str()?))
        });
        if completed.is_some() && completed.as_deref() == expected {
            continue;
        }
        // A header that the reference does not send says more.
        if expected.is_some() && expected != ours {
            return Some(format!("{name}: {ours:?}, not {expected:?}"));
        }
    }
    if schemes(&header_list(expected, "WWW-Authenticate")) != schemes(&answer.list("www-authenticate")) {
        return Some(format!("WWW-Authenticate: {}", answer.list("www-authenticate")));
    }
    let is_varied = header(expected, "Vary").is_some_and(|vary| vary.contains("Accept-Encoding"));
    let is_json = header(expected, "Content-Type").is_some_and(|kind| kind.contains("json"));
    if is_varied && is_json && !answer.list("vary").contains("Accept-Encoding") {
        return Some(format!("Vary: {}", answer.list("vary")));
    }
    if line["body_omitted"] == true {
        return None;
    }
    let parts = line["nondeterministic"].as_array().into_iter().flatten();
    if parts.clone().any(|part| part["name"] == "body json") {
        let (mut expected, mut ours) = (serde_json::from_str(body_text(line)).unwrap(), answer.json());
        for pointer in parts.filter_map(|part| part["pointer"].as_str()) {
            for json in [&mut expected, &mut ours] {
                *json.pointer_mut(pointer).unwrap_or(&mut Json::Null) = Json::Null;
            }
        }
        return (expected != ours).then(|| format!("body {ours}\nnot {expected}"));
    }
    let (expected, mut ours) = (bytes(&line["body"]), answer.body.clone());
    if is_signed(&expected) && !verifies(&ours) {
        return Some("no signature of the server".to_owned());
    }
    let mut masked = expected.clone();
    if is_challenge(&expected) {
        // Challenges have numbers of their own.
        [&mut masked, &mut ours].into_iter().for_each(|bytes| bytes[SESSION_ID].fill(0));
    }
    for part in parts {
        let range = |name: &str| part[name].as_u64().and_then(|at| usize::try_from(at).ok());
        if let (Some(start), Some(end)) = (range("start"), range("end")) {
            for bytes in [&mut masked, &mut ours] {
                bytes.iter_mut().take(end).skip(start).for_each(|byte| *byte = 0);
            }
        }
    }
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (masked != ours).then(|| format!("body {}\nnot {}", shown(&ours), shown(&expected)))
}

/// Time in which a change is visible.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(5);

fn check(address: SocketAddr, line: &Json, sessions: &mut SessionNames) -> LineOutcome {
    let deadline = Instant::now() + PUBLISHED_WITHIN;
    let is_read_back = line["method"] == "GET" && matches!(line["category"].as_str(), Some("put" | "delete"));
    loop {
        let answer = ask(address, line, sessions);
        sessions.learn(line, &answer);
        require_described(line["method"].as_str().unwrap_or_default(), target(line), &answer);
        let Some(difference) = difference(line, &answer) else { return LineOutcome::AsStated };
        let kind = KINDS.iter().find(|kind| (kind.applies)(line) && (kind.is_right)(line, &answer));
        match kind {
            Some(kind) => return LineOutcome::Permitted(kind.name),
            None if is_read_back && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10))
            }
            None => panic!("{difference}"),
        }
    }
}

/// The administration process, which publishes to the set that the gateway serves.
pub(crate) fn administered(set: &Path) -> (AdminServer, OmittedHandles) {
    std::fs::create_dir(set).unwrap();
    let set = set.to_owned();
    administer_from(VectorSource::Selected, "root", |config| {
        config.publish.directory = Some(set.clone());
        config.publish.interval_ms = 1;
        config.local.socket = Some(set.with_file_name("admin.socket"));
    })
}

/// Waits until a set has been published.
pub(crate) fn published(set: &Path) {
    let deadline = Instant::now() + PUBLISHED_WITHIN;
    while !set.join("MANIFEST").exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn vectors_over_http_are_answered_as_by_the_reference() {
    let lines = load("http.jsonl");
    if !has_server("root", &lines) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let set = directory.path().join("set");
    let (administration, left_out) = administered(&set);
    published(&set);
    let (served, _) = serve_over_http(VectorSource::Selected, "root", |config| {
        config.snapshot = Some(set.clone());
        config.admin.address = Some(administration.address());
        config.admin.socket = administration.config.local.socket.clone();
        config.sessions.md5 = true;
        use_tls(config, directory.path());
    });
    let (mut checks, mut sessions) = (LineChecks::default(), SessionNames::default());
    for line in lines {
        let name = line["name"].as_str().unwrap_or("?").to_owned();
        if left_out.has(&serde_json::from_str::<Json>(body_text(&line)).unwrap_or_default()["handle"]) {
            checks.record(&name, LineOutcome::Skipped("its record cannot be published"));
            continue;
        }
        checks.check(&name, || check(served.address(), &line, &mut sessions));
    }
    vectors::require(checks.count(), 300, "exchanges over HTTP");
    let counts: Vec<_> = KINDS.iter().map(|kind| (kind.name, checks.permitted(kind.name))).collect();
    checks.finish();
    if !vectors::is_foreign() {
        assert_eq!(counts, KINDS.map(|kind| (kind.name, kind.lines_count)), "lines that differ");
    }
}

#[test]
fn vectors_over_http_differ_in_the_kinds_that_the_document_lists() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/conformance.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, table) = text.split_once("<!-- kinds of exchanges over HTTP -->").unwrap();
    let rows = table.trim_start().lines().take_while(|line| line.starts_with('|')).skip(2);
    let documented: Vec<&str> = rows.map(|row| row.split('|').nth(1).unwrap().trim()).collect();
    assert_eq!(documented, KINDS.map(|kind| kind.name));
}
