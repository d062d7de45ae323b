//! Runs over HTTP/1.1 and HTTP/2, plain and with TLS, against a small gateway: redirects, the JSON
//! API, and gateways that redirect elsewhere, show a wrong certificate or close connections.

#![expect(clippy::unwrap_used, reason = "these are tests, also where they share a helper")]

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use handle_loadgen::load::stream::tls::{KeyPin, TlsTrust};
use handle_loadgen::show::html;
use handle_loadgen::show::report::StatusCount;
use handle_loadgen::{
    HttpVersion, LoadPattern, NameOptions, Protocol, ReferenceData, RunOptions, RunReport, StreamTransport,
    Streams, Verify, run,
};
use handle_proto::Value;
use handle_proto::json::{record_to_json, text};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ParsedCertificate;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

const HANDLES: usize = 30;
/// Streams that the gateway allows on a connection of HTTP/2.
const STREAMS_MAX: u32 = 8;
const CERTIFICATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/tls/certificate.pem");
const KEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/tls/key.pem");

/// How a gateway serves.
#[derive(Clone, Copy, Debug, Default)]
struct GatewayManner {
    version: HttpVersion,
    is_tls: bool,
    /// It redirects to another target than the URL of the record.
    misleads: bool,
    /// It closes a connection after this many requests, even with pending ones.
    requests_max: Option<usize>,
    /// It does not offer HTTP/2 in TLS.
    hides_http2: bool,
}

/// Serves until the process ends; returns the address.
fn start(manner: GatewayManner) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    std::thread::spawn(move || {
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let acceptor = TlsAcceptor::from(tls(manner));
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let acceptor = acceptor.clone();
                tokio::task::spawn_local(async move {
                    if !manner.is_tls {
                        serve(stream, manner).await;
                    } else if let Ok(stream) = acceptor.accept(stream).await {
                        serve(stream, manner).await;
                    }
                });
            }
        });
    });
    address
}

fn tls(manner: GatewayManner) -> Arc<ServerConfig> {
    let certificate = CertificateDer::from_pem_file(CERTIFICATE).unwrap();
    let key = PrivateKeyDer::from_pem_file(KEY).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
    if !manner.hides_http2 {
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    }
    Arc::new(config)
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + 'static, manner: GatewayManner) {
    let answered = AtomicUsize::new(0);
    let service = service_fn(|request: Request<Incoming>| {
        let number = answered.fetch_add(1, Ordering::Relaxed);
        async move {
            // Answers leave out of order, and in several turns of the connection.
            tokio::time::sleep(Duration::from_micros(number as u64 % 3 * 200)).await;
            Ok::<_, Infallible>(answer(&request, manner))
        }
    });
    let io = TokioIo::new(stream);
    let is_spent = async {
        match manner.requests_max {
            Some(requests_max) => {
                while answered.load(Ordering::Relaxed) < requests_max {
                    tokio::time::sleep(Duration::from_micros(100)).await;
                }
            }
            None => std::future::pending().await,
        }
    };
    // A client that closes the connection early is not an error here.
    match manner.version {
        HttpVersion::Http1 => tokio::select! {
            _ = http1::Builder::new().serve_connection(io, service) => {}
            () = is_spent => {}
        },
        HttpVersion::Http2 => {
            let mut builder = http2::Builder::new(LocalExecutor);
            builder.max_concurrent_streams(STREAMS_MAX);
            tokio::select! {
                _ = builder.serve_connection(io, service) => {}
                () = is_spent => {}
            }
        }
    }
}

fn answer(request: &Request<Incoming>, manner: GatewayManner) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    let api = path.strip_prefix("/api/handles/");
    let name = api.unwrap_or_else(|| path.strip_prefix('/').unwrap());
    let name: Vec<u8> = percent_encoding::percent_decode_str(name).collect();
    let url = url(&name);
    let mut response = Response::new(Full::default());
    match (api, url) {
        (Some(_), Some(url)) => {
            let mut json = record_to_json(&name, [Value::new(1, b"URL", &url)]);
            json["responseCode"] = 1.into();
            *response.body_mut() = Full::from(text(&json).into_bytes());
        }
        (None, Some(url)) => {
            let url = if manner.misleads { b"https://example.org/evil".to_vec() } else { url };
            *response.status_mut() = StatusCode::FOUND;
            response.headers_mut().insert(header::LOCATION, url.try_into().unwrap());
        }
        (_, None) => {
            *response.status_mut() = StatusCode::NOT_FOUND;
            let json = format!(r#"{{"responseCode":100,"handle":"{}"}}"#, String::from_utf8_lossy(&name));
            *response.body_mut() = Full::from(json.into_bytes());
        }
    }
    response
}

fn name(number: usize) -> Vec<u8> {
    format!("10.5072/a b/{number}").into_bytes()
}

/// The only value of a handle; some are long.
fn url(handle: &[u8]) -> Option<Vec<u8>> {
    let number: usize = String::from_utf8_lossy(handle).rsplit('/').next()?.parse().ok()?;
    let times = if number % 10 == 7 { 500 } else { 1 };
    (number < HANDLES).then(|| format!("https://example.org/{number}").repeat(times).into_bytes())
}

fn records() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let line =
        |number| text(&record_to_json(&name(number), [Value::new(1, b"URL", &url(&name(number)).unwrap())]));
    std::fs::write(file.path(), (0..HANDLES).map(line).collect::<Vec<_>>().join("\n")).unwrap();
    file
}

fn run_over(
    target: SocketAddr,
    streams: Streams,
    tls: Option<TlsTrust>,
    change: impl FnOnce(RunOptions) -> RunOptions,
) -> RunReport {
    let records = records();
    let options = RunOptions {
        transport: StreamTransport::Stream(streams),
        tls,
        load: LoadPattern::Open { rate: NonZeroU64::new(500).unwrap() },
        duration: Duration::from_millis(600),
        timeout: Duration::from_secs(5),
        forms: vec!["9=plain".parse().unwrap(), "1=miss".parse().unwrap()],
        verify: Some(Verify::with(ReferenceData::Records(records.path().to_owned()))),
        threads: 2,
        ..RunOptions::new(target, NameOptions::List((0..HANDLES).map(name).collect()))
    };
    run(&change(options), |_| ControlFlow::Continue(())).unwrap()
}

fn authorities() -> TlsTrust {
    TlsTrust::Authorities(PathBuf::from(CERTIFICATE))
}

#[test]
fn redirects_and_records_are_verified_over_every_version() {
    for protocol in [Protocol::Redirect, Protocol::Json] {
        for version in [HttpVersion::Http1, HttpVersion::Http2] {
            for is_tls in [false, true] {
                let target = start(GatewayManner { version, is_tls, ..GatewayManner::default() });
                let streams = Streams { version, ..Streams::pooled(protocol) };
                let report = run_over(target, streams, is_tls.then(authorities), |options| options);
                let case = format!("{protocol:?} over {version}, TLS {is_tls}: {report}");
                assert_eq!(report.verification.as_ref().unwrap().verified, 300, "{case}");
                assert!(report.connections.unwrap().begun <= 32, "{case}");
                let found = if protocol == Protocol::Redirect { 302 } else { 200 };
                let statuses: Vec<_> = report.statuses.iter().map(|status| status.status).collect();
                assert_eq!(statuses, [found, 404], "{case}");
                assert_eq!(report.statuses.iter().map(|status| status.count).sum::<u64>(), 300, "{case}");
                let setting = report.setting.streams.as_ref().unwrap();
                assert_eq!(setting.http_version.as_deref(), Some(&*version.to_string()), "{case}");
                assert_eq!(setting.tls.is_some(), is_tls, "{case}");
                let page = html::page(&serde_json::to_value(&report).unwrap()).unwrap();
                assert!(page.contains("Answers by HTTP status"), "{case}");
            }
        }
    }
}

#[test]
fn streams_share_a_connection_as_far_as_the_gateway_allows() {
    for is_tls in [false, true] {
        let manner = GatewayManner { version: HttpVersion::Http2, is_tls, ..GatewayManner::default() };
        let streams = Streams {
            version: HttpVersion::Http2,
            connections: 1,
            pipeline: 64,
            ..Streams::pooled(Protocol::Json)
        };
        let closed = |options| RunOptions { load: LoadPattern::Closed { window: 64 }, ..options };
        let report = run_over(start(manner), streams, is_tls.then_some(TlsTrust::Any), closed);
        let (answered, verification) = (report.accounts.answered, report.verification.as_ref().unwrap());
        assert!(answered > 100 && verification.verified == answered, "{report}");
        assert_eq!((report.accounts.lost, report.connections.unwrap().begun), (0, 2), "{report}");
    }
}

#[test]
fn redirects_to_another_target_are_wrong() {
    for version in [HttpVersion::Http1, HttpVersion::Http2] {
        let target = start(GatewayManner { version, misleads: true, ..GatewayManner::default() });
        let streams = Streams { version, ..Streams::pooled(Protocol::Redirect) };
        let report = run_over(target, streams, None, |options| options);
        let verification = report.verification.as_ref().unwrap();
        let found = report.statuses.iter().find(|status| status.status == 302).unwrap().count;
        assert_eq!((verification.mismatched, verification.undecided), (found, 0), "{report}");
        assert!(verification.mismatches[0].difference.contains("URL of the record"), "{report}");
        assert!(!report.is_valid());
    }
}

#[test]
fn a_first_pass_learns_the_targets_of_redirects() {
    let target = start(GatewayManner::default());
    let first_pass = |options| RunOptions { verify: Some(Verify::with(ReferenceData::FirstPass)), ..options };
    let report = run_over(target, Streams::pooled(Protocol::Redirect), None, first_pass);
    assert_eq!(report.verification.as_ref().unwrap().verified, 300, "{report}");
}

#[test]
fn certificates_must_meet_the_requirement() {
    let target = start(GatewayManner { is_tls: true, ..GatewayManner::default() });
    let certificate = CertificateDer::from_pem_file(CERTIFICATE).unwrap();
    let key = ParsedCertificate::try_from(&certificate).unwrap().subject_public_key_info();
    let streams = Streams::pooled(Protocol::Redirect);
    for trust in [TlsTrust::Any, TlsTrust::Pin(KeyPin::of(&key)), authorities()] {
        let report = run_over(target, streams, Some(trust.clone()), |options| options);
        assert_eq!(report.accounts.answered, 300, "{trust}: {report}");
    }
    let briefly = |options| RunOptions { timeout: Duration::from_millis(300), ..options };
    let other_host =
        |options| RunOptions { host: Some("handles.example.org:443".to_owned()), ..briefly(options) };
    let reports = [
        run_over(target, streams, Some(TlsTrust::Pin(KeyPin::of(b"another"))), briefly),
        run_over(target, streams, Some(authorities()), other_host),
    ];
    for report in reports {
        let connections = report.connections.unwrap();
        assert_eq!((report.accounts.answered, connections.established), (0, 0), "{report}");
        assert!(connections.failed > 0, "{report}");
        assert!(report.invalid.iter().any(|reason| reason.contains("certificate")), "{report}");
    }
}

#[test]
fn a_gateway_without_http2_is_named_as_the_reason() {
    let manner = GatewayManner { is_tls: true, hides_http2: true, ..GatewayManner::default() };
    let streams = Streams { version: HttpVersion::Http2, ..Streams::pooled(Protocol::Redirect) };
    let briefly = |options| RunOptions { timeout: Duration::from_millis(300), ..options };
    let report = run_over(start(manner), streams, Some(TlsTrust::Any), briefly);
    assert_eq!(report.accounts.answered, 0, "{report}");
    assert!(report.first_failure.as_ref().unwrap().contains("does not offer HTTP/2"), "{report}");
}

#[test]
fn requests_on_a_connection_that_is_closed_are_lost_and_counted() {
    for version in [HttpVersion::Http1, HttpVersion::Http2] {
        for is_tls in [false, true] {
            let manner =
                GatewayManner { version, is_tls, requests_max: Some(20), ..GatewayManner::default() };
            let streams =
                Streams { version, connections: 2, pipeline: 4, ..Streams::pooled(Protocol::Redirect) };
            let fast = |options| RunOptions {
                load: LoadPattern::Closed { window: 8 },
                timeout: Duration::from_millis(500),
                ..options
            };
            let report = run_over(start(manner), streams, is_tls.then_some(TlsTrust::Any), fast);
            let (accounts, connections) = (&report.accounts, report.connections.unwrap());
            let case = format!("over {version}, TLS {is_tls}: {report}");
            assert!(accounts.answered > 0 && connections.begun > 4, "{case}");
            assert_eq!(report.verification.as_ref().unwrap().mismatched, accounts.malformed, "{case}");
            let counted: u64 = report.statuses.iter().map(|StatusCount { count, .. }| count).sum();
            assert_eq!(counted, accounts.answered + accounts.late - accounts.malformed, "{case}");
        }
    }
}

/// Runs the tasks of a connection of HTTP/2 on this thread.
#[derive(Clone, Copy)]
struct LocalExecutor;

impl<F> hyper::rt::Executor<F> for LocalExecutor
where
    F: Future<Output = ()> + 'static,
{
    fn execute(&self, task: F) {
        tokio::task::spawn_local(task);
    }
}
