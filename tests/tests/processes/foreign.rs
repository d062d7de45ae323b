//! The load generator against a foreign server: a small Python responder that shares no code with
//! ours.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use handle_loadgen::hostile::{HostileOptions, hostile};
use handle_loadgen::{
    LoadPattern, NameOptions, QuestionForm, ReferenceData, RunOptions, RunReport, StreamTransport, Streams,
    Verify, run,
};
use handle_tests::needs::{TestNeed, has};
use serde_json::{Value as Json, json};
use sha1::{Digest as _, Sha1};
use sha2::Sha256;

/// The responder, which exits when its standard input is closed.
struct Responder {
    child: Child,
    ports: Json,
    records: tempfile::NamedTempFile,
}

impl Responder {
    /// Returns `None` if there is no Python.
    fn start() -> Option<Self> {
        let mut records = tempfile::NamedTempFile::new().unwrap();
        for number in 0..50 {
            writeln!(records, "{}", record(number)).unwrap();
        }
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/responder/responder.py");
        let started = Command::new("python3")
            .arg(script)
            .arg(records.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        if !has(TestNeed::Python, started.is_ok()) {
            return None;
        }
        let mut child = started.unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        Some(Self { child, ports: serde_json::from_str(&line).unwrap(), records })
    }

    fn address(&self, name: &str) -> SocketAddr {
        ([127, 0, 0, 1], u16::try_from(self.ports[name].as_u64().unwrap()).unwrap()).into()
    }

    fn load(&self, name: &str, transport: StreamTransport, forms: &[&str]) -> RunReport {
        let forms = forms.iter().map(|form| form.parse::<QuestionForm>().unwrap()).collect();
        let options = RunOptions {
            transport,
            load: LoadPattern::Open { rate: NonZeroU64::new(200).unwrap() },
            duration: Duration::from_secs(1),
            timeout: Duration::from_secs(5),
            verify: Some(Verify::with(ReferenceData::Records(self.records.path().to_owned()))),
            forms,
            ..RunOptions::new(self.address(name), NameOptions::File(self.records.path().to_owned()))
        };
        run(&options, |_| ControlFlow::Continue(())).unwrap()
    }

    fn ask(&self, message: &[u8]) -> Vec<u8> {
        handle_tests::client::exchange(self.address("udp"), message).expect("an answer")
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

/// A record with values of several types, one that is not public, and sometimes one of several
/// datagrams.
fn record(number: usize) -> Json {
    let handle = format!("20.500.1/Name-{number}");
    let long = "x".repeat(if number.is_multiple_of(7) { 2000 } else { 20 });
    let stamp = "2019-03-07T12:46:07Z";
    let text = |index: usize, kind: &str, text: &str| {
        let data = json!({"format": "string", "value": text});
        json!({"index": index, "type": kind, "data": data, "ttl": 86400, "timestamp": stamp})
    };
    let mut secret = text(3, "NOTE", "not for everyone");
    secret["permissions"] = if number.is_multiple_of(5) { "0100" } else { "1100" }.into();
    let admin = json!({"format": "admin", "value": {
        "handle": "0.NA/20.500.1", "index": 200, "permissions": "111111110011"
    }});
    let admin = json!({"index": 100, "type": "HS_ADMIN", "data": admin, "ttl": 3600, "timestamp": stamp});
    json!({"handle": handle, "values": [text(1, "URL", "https://example.org/"), text(2, "DESC.en", &long), secret, admin]})
}

fn assert_all_verified(report: &RunReport) {
    let verification = report.verification.as_ref().unwrap();
    assert_eq!((verification.verified, verification.mismatched), (200, 0), "{report}");
    assert!(report.accounts.lost == 0 && report.accounts.malformed == 0, "{report}");
}

const MIX: [&str; 5] = ["5=plain", "2=case", "1=miss", "1=type:URL+index:3", "1=type:DESC."];

/// Questions about public values and others; without an identity, the latter are challenged or
/// refused.
const WITH_REFUSALS: [&str; 4] = ["2=plain", "1=all", "1=all+index:3", "1=all+type:URL"];

fn streams(name: &str, change: impl FnOnce(&mut Streams)) -> StreamTransport {
    let mut transport: StreamTransport = name.parse().unwrap();
    if let StreamTransport::Stream(streams) = &mut transport {
        change(streams);
    }
    transport
}

#[test]
fn a_foreign_server_is_loaded_and_verified_over_datagrams() {
    let Some(responder) = Responder::start() else { return };
    for transport in ["udp", "udp-trains"] {
        assert_all_verified(&responder.load("udp", transport.parse().unwrap(), &MIX));
    }
    let report = responder.load("udp", "udp".parse().unwrap(), &WITH_REFUSALS);
    assert_all_verified(&report);
    let codes: Vec<_> = report.accounts.codes.iter().map(|code| code.code).collect();
    assert_eq!(codes, [1, 401, 402], "{report}");
}

#[test]
fn a_foreign_server_is_loaded_and_verified_over_connections() {
    let Some(responder) = Responder::start() else { return };
    let kept = responder.load("tcp", streams("tcp", |streams| streams.pipeline = 4), &MIX);
    assert_all_verified(&kept);
    assert!(kept.connections.unwrap().begun <= 16, "connections are kept: {kept}");
    let closed = streams("tcp", |streams| (streams.requests, streams.connections) = (1, 64));
    let closed = responder.load("tcp", closed, &WITH_REFUSALS);
    assert_all_verified(&closed);
    assert_eq!(closed.connections.unwrap().begun, 200, "one request each: {closed}");
}

#[test]
fn a_foreign_server_is_loaded_and_verified_over_http() {
    let Some(responder) = Responder::start() else { return };
    assert_all_verified(&responder.load("http", "http".parse().unwrap(), &MIX));
    assert_all_verified(&responder.load("http", "http-json".parse().unwrap(), &MIX));
}

/// The responder is useful only if it does not share our errors and does not answer every message.
/// It reassembles requests and refuses malformed ones.
#[test]
fn the_foreign_server_keeps_to_the_protocol() {
    let Some(responder) = Responder::start() else { return };
    let good = handle_tests::client::request(b"20.500.1/name-7", 77);
    let code = |answer: &[u8]| i32::from_be_bytes(answer[24..28].try_into().unwrap());
    assert_eq!(code(&responder.ask(&good)), 1);
    let mut unknown_operation = good.clone();
    unknown_operation[20..24].copy_from_slice(&77i32.to_be_bytes());
    assert_eq!(code(&responder.ask(&unknown_operation)), 5, "operation not supported");
    let mut lying = good.clone();
    lying[44..48].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(code(&responder.ask(&lying)), 4, "a handle longer than the message");
    // The request digest in the answer uses the algorithm of the version.
    for (minor, algorithm, len) in [(11, 3, 32), (7, 3, 32), (6, 2, 20), (1, 2, 20)] {
        let mut digested = handle_tests::client::request(b"20.500.1/none", 78);
        (digested[3], digested[29]) = (minor, digested[29] | 0x80);
        let covered = &digested[20..digested.len() - 4];
        let expected: Vec<u8> =
            if len == 32 { Sha256::digest(covered).to_vec() } else { Sha1::digest(covered).to_vec() };
        let answer = responder.ask(&digested);
        assert_eq!(answer[44..answer.len() - 4], [&[algorithm], &expected[..]].concat(), "version 2.{minor}");
        assert_eq!((code(&answer), answer[29] & 0x80, expected.len()), (100, 0x80, len));
    }
    // A request in two fragments, the second one first.
    let (head, message) = good.split_at(20);
    let fragment = |number: u32, part: &[u8]| {
        let mut head = head.to_vec();
        head[2] |= 0x20;
        head[12..16].copy_from_slice(&number.to_be_bytes());
        [&head, part].concat()
    };
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    for part in [fragment(1, &message[30..]), fragment(0, &message[..30])] {
        socket.send_to(&part, responder.address("udp")).unwrap();
    }
    let mut buffer = [0; 600];
    let (len, _) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!((len, code(&buffer[..len])), (512, 1), "the first fragment of a long answer");
}

#[test]
fn a_foreign_server_survives_hostile_requests() {
    let Some(responder) = Responder::start() else { return };
    let options = HostileOptions {
        cases: 1000,
        rate: 2000,
        timeout: Duration::from_secs(5),
        ..HostileOptions::new(responder.address("udp"), b"20.500.1/name-1".to_vec())
    };
    let report = hostile(&options, |_| ControlFlow::Continue(())).unwrap();
    assert!(report.findings.is_empty(), "{report}");
}
