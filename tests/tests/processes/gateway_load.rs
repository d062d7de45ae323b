//! The load generator and the gateway: redirects and records over HTTP/1.1 and HTTP/2, plain and
//! with TLS, each answer compared with the set.

use handle_gateway::{Config, Gateway};
use handle_loadgen::load::stream::tls::TlsTrust;
use handle_loadgen::{
    HttpVersion, LoadPattern, NameOptions, Protocol, ReferenceData, RunOptions, StreamTransport, Streams,
    Verify, run,
};
use handle_proto::Value;
use handle_snapshot::builder::Builder;
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::writer::{HomedPrefixes, LayerOptions};
use handle_tests::gateway_server::{config, use_tls};
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

const RECORDS: u64 = 500;

/// Publishes records with URLs, with addresses only, and with an alias.
pub(crate) fn publish(set: &Path) {
    std::fs::create_dir(set).expect("a directory for the set");
    let mut homed = HomedPrefixes::default();
    homed.add(b"20.500.1");
    let options = LayerOptions { seed: 1, folds: true, created_unix_ms: 1 };
    let mut publisher = SetPublisher::open(set).expect("the directory is empty");
    let published = publisher.publish_base(1, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options).homed(homed);
        for number in 0..RECORDS {
            let handle = format!("20.500.1/{number}");
            let (kind, text): (&[u8], _) = match number % 10 {
                7 => (b"EMAIL", "somebody@example.org".to_owned()),
                8 => (b"HS_ALIAS", "20.500.1/1".to_owned()),
                _ => (b"URL", format!("https://example.org/{number}?a=b c")),
            };
            builder.add(number, handle.as_bytes(), [Value::new(1, kind, text.as_bytes())])?;
        }
        builder.finish(file)
    });
    published.expect("the set is published");
}

#[test]
fn every_redirect_and_record_of_the_gateway_is_verified_over_every_version() {
    let directory = tempfile::tempdir().expect("a directory");
    let set = directory.path().join("set");
    publish(&set);
    let mut config = Config { snapshot: Some(set.clone()), ..config() };
    use_tls(&mut config, directory.path());
    let gateway = Gateway::start(&config).expect("the gateway starts");
    for protocol in [Protocol::Redirect, Protocol::Json] {
        for (version, tls) in [
            (HttpVersion::Http1, None),
            (HttpVersion::Http2, None),
            (HttpVersion::Http1, Some(TlsTrust::Any)),
            (HttpVersion::Http2, Some(TlsTrust::Any)),
        ] {
            let case = format!("{protocol:?}, HTTP/{version}, TLS {}", tls.is_some());
            let streams = Streams { version, connections: 4, pipeline: 4, ..Streams::pooled(protocol) };
            let options = RunOptions {
                transport: StreamTransport::Stream(streams),
                tls,
                load: LoadPattern::Open { rate: NonZeroU64::new(1000).expect("not 0") },
                duration: Duration::from_millis(500),
                timeout: Duration::from_secs(5),
                forms: ["8=plain", "1=miss", "1=type:URL"].map(|form| form.parse().expect("a form")).to_vec(),
                verify: Some(Verify::with(ReferenceData::Snapshot(set.clone()))),
                ..RunOptions::new(gateway.addresses()[0], NameOptions::Snapshot(set.clone()))
            };
            let report = run(&options, |_| ControlFlow::Continue(())).expect("the load runs");
            // A machine with other work may send fewer requests than the 500 that are scheduled.
            let verified = report.verification.as_ref().map_or(0, |verification| verification.verified);
            let (sent, lost) = (report.accounts.sent, report.accounts.lost);
            assert!(sent > 0 && (verified, lost) == (sent, 0), "{case}: {report}");
        }
    }
    gateway.stop().expect("the gateway stops");
}
