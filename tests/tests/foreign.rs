//! The load generator against a server that is not ours: a small responder in Python that shares no code with us.

#![expect(clippy::unwrap_used, reason = "these are tests, also where they share a helper")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use handle_loadgen::hostile::{HostileOptions, hostile};
use handle_loadgen::{Form, Load, Names, Report, RunOptions, Transport, Truth, Verify, run};
use serde_json::{Value as Json, json};

/// The responder, which ends with its standard input.
struct Responder {
    child: Child,
    ports: Json,
    records: tempfile::NamedTempFile,
}

impl Responder {
    /// `None` where there is no Python.
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
        let Ok(mut child) = started else {
            eprintln!("not tested: there is no python3");
            return None;
        };
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        Some(Self { child, ports: serde_json::from_str(&line).unwrap(), records })
    }

    fn address(&self, name: &str) -> SocketAddr {
        ([127, 0, 0, 1], u16::try_from(self.ports[name].as_u64().unwrap()).unwrap()).into()
    }

    fn load(&self, name: &str, transport: &str, forms: &[&str]) -> Report {
        let forms = forms.iter().map(|form| form.parse::<Form>().unwrap()).collect();
        let options = RunOptions {
            transport: transport.parse::<Transport>().unwrap(),
            load: Load::Open { rate: NonZeroU64::new(200).unwrap() },
            duration: Duration::from_secs(1),
            timeout: Duration::from_secs(5),
            verify: Some(Verify::with(Truth::Records(self.records.path().to_owned()))),
            forms,
            ..RunOptions::new(self.address(name), Names::File(self.records.path().to_owned()))
        };
        run(&options, |_| ControlFlow::Continue(())).unwrap()
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

/// Values of several types, one that is not public, and now and then a text of several datagrams.
fn record(number: usize) -> Json {
    let handle = format!("20.500.1/Name-{number}");
    let long = "x".repeat(if number.is_multiple_of(7) { 2000 } else { 20 });
    let stamp = "2019-03-07T12:46:07Z";
    let text = |index: usize, kind: &str, text: &str| {
        let data = json!({"format": "string", "value": text});
        json!({"index": index, "type": kind, "data": data, "ttl": 86400, "timestamp": stamp})
    };
    let mut secret = text(3, "NOTE", "not for everyone");
    secret["permissions"] = "1100".into();
    let admin = json!({"format": "admin", "value": {
        "handle": "0.NA/20.500.1", "index": 200, "permissions": "111111110011"
    }});
    let admin = json!({"index": 100, "type": "HS_ADMIN", "data": admin, "ttl": 3600, "timestamp": stamp});
    json!({"handle": handle, "values": [text(1, "URL", "https://example.org/"), text(2, "DESC.en", &long), secret, admin]})
}

fn all_verified(report: &Report) {
    let verification = report.verification.as_ref().unwrap();
    assert_eq!((verification.verified, verification.mismatched), (200, 0), "{report}");
    assert!(report.accounts.lost == 0 && report.accounts.malformed == 0, "{report}");
}

const MIX: [&str; 5] = ["5=plain", "2=case", "1=miss", "1=type:URL+index:3", "1=type:DESC."];

#[test]
fn a_foreign_server_is_loaded_and_verified_over_every_transport() {
    let Some(responder) = Responder::start() else { return };
    for (name, transport) in [("udp", "udp"), ("udp", "udp-trains"), ("http", "http-json")] {
        all_verified(&responder.load(name, transport, &MIX));
    }
}

#[test]
fn a_foreign_server_that_closes_each_connection_is_loaded() {
    let Some(responder) = Responder::start() else { return };
    let mut transport: Transport = "tcp".parse().unwrap();
    if let Transport::Stream(streams) = &mut transport {
        (streams.requests, streams.connections) = (1, 64);
    }
    let options = RunOptions {
        transport,
        load: Load::Open { rate: NonZeroU64::new(200).unwrap() },
        duration: Duration::from_secs(1),
        timeout: Duration::from_secs(5),
        verify: Some(Verify::with(Truth::FirstPass)),
        ..RunOptions::new(responder.address("tcp"), Names::File(responder.records.path().to_owned()))
    };
    let report = run(&options, |_| ControlFlow::Continue(())).unwrap();
    all_verified(&report);
    assert_eq!(report.connections.unwrap().begun, 200, "{report}");
}

#[test]
fn a_foreign_server_survives_hostile_requests_or_is_found_out() {
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
