//! Certificates of `handle-gateway` by ACME: issued by Pebble, kept while the authority is away,
//! renewed under load, and authorities that fail.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_gateway::acme::AcmeChallenge;
use handle_gateway::tls::certificate::CertificateFacts;
use handle_gateway::{Config, Gateway};
use handle_tests::acme_authority::{
    FalseAnswer, FalseAuthority, Pebble, PebbleOptions, account_id, connect, has_pebble,
};
use handle_tests::daemon::free_address;
use handle_tests::gateway_server::{config, get, serve_over_http};
use handle_tests::process::until;
use handle_tests::vectors::VectorSource;
use rustls::ClientConfig;
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

const NAMES: [&str; 2] = ["one.example.net", "two.example.net"];
const HANDLE: &str = "/api/handles/10.5072/URL-ONE";
const YEAR_S: u64 = 365 * 24 * 3600;

/// A gateway that may be started several times, with its files.
struct AcmeSetup {
    config: Config,
    files: TempDir,
}

impl AcmeSetup {
    /// With the authority at `url`, whose own certificate `ca_file` verifies.
    fn new(listen: SocketAddr, url: String, ca_file: PathBuf) -> Self {
        let files = tempfile::tempdir().unwrap();
        // The gateway of this line publishes the set.
        let (served, _) = serve_over_http(VectorSource::Own, "root", |_| ());
        let settings = served.gateway.state().settings.current_shared();
        let mut config = Config {
            site: settings.site.clone(),
            snapshot: settings.snapshot.clone(),
            server_id: settings.server_id,
            listen: vec![listen],
            ..config()
        };
        served.gateway.stop().unwrap();
        for (from, name) in [(&mut config.site, "site.json"), (&mut config.snapshot, "set")] {
            let path = files.path().join(name);
            std::fs::rename(from.as_ref().unwrap(), &path).unwrap();
            *from = Some(path);
        }
        let acme = &mut config.tls.acme;
        acme.domains = NAMES.map(str::to_owned).to_vec();
        (acme.directory, acme.ca_file) = (url, Some(ca_file));
        acme.contact = vec!["mailto:admin@example.net".to_owned()];
        acme.state_directory = Some(files.path().join("acme"));
        acme.terms_agreed = true;
        Self { config, files }
    }

    fn of_pebble(listen: SocketAddr, pebble: &Pebble) -> Self {
        Self::new(listen, pebble.url(), pebble.ca_file())
    }

    fn start(&self) -> Gateway {
        Gateway::start(&self.config).unwrap()
    }

    fn state_directory(&self) -> PathBuf {
        self.files.path().join("acme")
    }
}

fn options(listen: SocketAddr) -> PebbleOptions {
    let port = listen.port();
    PebbleOptions {
        http_port: port,
        tls_port: port,
        validity_s: YEAR_S,
        external_account: None,
        refused_nonces: 0,
    }
}

/// The status of an answer over TLS, and the certificate of the handshake.
fn get_over_tls(
    address: SocketAddr,
    client: &Arc<ClientConfig>,
    name: &'static str,
) -> std::io::Result<(String, Vec<u8>)> {
    let (mut stream, certificate) = connect(address, client, name)?;
    write!(stream, "GET {HANDLE} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok((answer.get(..12).unwrap_or_default().to_owned(), certificate))
}

fn last_error(gateway: &Gateway) -> String {
    let acme = gateway.state().tls.as_ref().unwrap().acme().unwrap().to_json();
    acme["last_error"].as_str().unwrap_or_default().to_owned()
}

fn orders(gateway: &Gateway) -> (u64, u64) {
    let counters = &gateway.state().counters;
    (counters.certificate_orders.get(), counters.certificate_order_failures.get())
}

/// Orders a certificate now, as the operator's command does.
fn order(gateway: &Gateway) {
    gateway.state().tls.as_ref().unwrap().acme().unwrap().request();
}

/// Waits for the success of an order. After each failure beyond `failures`, the next order is made
/// at once.
fn until_ordered(gateway: &Gateway, failures: u64, mut is_there: impl FnMut() -> bool) {
    let mut seen = failures;
    until("an order succeeds", || {
        let now = orders(gateway).1;
        assert!(now < failures + 5, "{}", last_error(gateway));
        if now > seen {
            seen = now;
            order(gateway);
        }
        is_there()
    });
}

fn until_issued(gateway: &Gateway) {
    until_ordered(gateway, 0, || gateway.state().certificate_expires_unix_s() > 0);
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[test]
fn a_certificate_is_issued_and_kept_while_the_authority_is_away() {
    if !has_pebble() {
        return;
    }
    let listen = free_address();
    let mut pebble = Pebble::start(options(listen));
    let mut setup = AcmeSetup::of_pebble(listen, &pebble);
    setup.config.tls.acme.challenge = AcmeChallenge::TlsAlpn01;
    let gateway = setup.start();
    until_issued(&gateway);
    let client = pebble.client();
    let certificates = NAMES.map(|name| {
        let (answer, certificate) = get_over_tls(listen, &client, name).unwrap();
        assert_eq!(answer, "HTTP/1.1 200", "{name}");
        certificate
    });
    let facts = CertificateFacts::read(&certificates[0]).unwrap();
    assert_eq!(facts.expires_unix_s, gateway.state().certificate_expires_unix_s());
    assert_eq!(gateway.state().tls.as_ref().unwrap().facts().unwrap(), facts);
    for file in ["account.json", "certificate.pem"] {
        assert_eq!(mode(&setup.state_directory().join(file)), 0o600, "{file}");
    }
    assert!(gateway.state().tls.as_ref().unwrap().acme().unwrap().challenges().is_empty());
    gateway.stop().unwrap();
    pebble.stop();

    let gateway = setup.start();
    assert_eq!(get_over_tls(listen, &client, NAMES[0]).unwrap().1, certificates[0], "at once");
    assert_eq!(orders(&gateway), (0, 0), "the certificate is not due");
    // Until the authority is there again, an order that an operator asks for fails.
    order(&gateway);
    until("an order fails", || orders(&gateway).1 > 0);
    until("the reason is shown", || last_error(&gateway).contains("cannot connect to 127.0.0.1"));
    assert_eq!(get_over_tls(listen, &client, NAMES[1]).unwrap().1, certificates[0]);
    pebble.resume();
    order(&gateway);
    until("the order succeeds", || gateway.state().tls.as_ref().unwrap().facts().unwrap() != facts);
    until("the reason is removed", || last_error(&gateway).is_empty());
    gateway.stop().unwrap();
}

#[test]
fn without_a_certificate_http_is_served_and_handshakes_are_refused() {
    // No authority is at this address.
    let (listen, authority) = (free_address(), free_address());
    let directory = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate =
        rcgen::CertificateParams::new([NAMES[0].to_owned()]).unwrap().self_signed(&key).unwrap();
    let ca_file = directory.path().join("ca.pem");
    std::fs::write(&ca_file, certificate.pem()).unwrap();
    let setup = AcmeSetup::new(listen, format!("https://{authority}/dir"), ca_file);
    let gateway = setup.start();
    assert_eq!(get(listen, HANDLE, "").status, 200);
    let client = Arc::new(handle_tests::gateway_server::tls_client(&[]));
    let error = get_over_tls(listen, &client, NAMES[0]).unwrap_err();
    assert!(error.to_string().contains("AccessDenied"), "an alert: {error}");
    until("an order fails", || orders(&gateway).1 == 1);
    order(&gateway);
    until("another order fails", || orders(&gateway).1 == 2);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(orders(&gateway), (2, 2), "with pauses");
    assert_eq!(gateway.state().certificate_expires_unix_s(), 0);
    gateway.stop().unwrap();
    // A damaged certificate is as none.
    let path = setup.state_directory().join("certificate.pem");
    handle_auth::file::create_secret_file(&path, b"damaged").unwrap();
    assert_eq!(get(setup.start().addresses()[0], HANDLE, "").status, 200);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = format!("{:#}", Gateway::start(&setup.config).unwrap_err());
    assert!(error.contains("run chmod 600"), "{error}");
}

#[test]
fn an_account_is_used_again_and_made_anew_where_the_authority_has_lost_it() {
    if !has_pebble() {
        return;
    }
    let listen = free_address();
    let key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    let mut pebble = Pebble::start(PebbleOptions {
        external_account: Some(("kid-1", key)),
        refused_nonces: 20,
        ..options(listen)
    });
    let mut setup = AcmeSetup::of_pebble(listen, &pebble);
    setup.config.tls.acme.challenge = AcmeChallenge::Http01;
    // The authority wants an account that was made elsewhere.
    let gateway = setup.start();
    until("the order is refused", || last_error(&gateway).contains("externalAccount"));
    gateway.stop().unwrap();
    let key_file = setup.files.path().join("external-account");
    handle_auth::file::create_secret_file(&key_file, key.as_bytes()).unwrap();
    setup.config.tls.acme.external_account_id = Some("kid-1".to_owned());
    setup.config.tls.acme.external_account_key = Some(key_file);
    let gateway = setup.start();
    until_issued(&gateway);
    let account = account_id(&setup.state_directory());
    let renew = |gateway: &Gateway| {
        let before = std::fs::read(setup.state_directory().join("certificate.pem")).unwrap();
        let failures = orders(gateway).1;
        order(gateway);
        until_ordered(gateway, failures, || {
            std::fs::read(setup.state_directory().join("certificate.pem")).unwrap() != before
        });
    };
    renew(&gateway);
    assert_eq!(account_id(&setup.state_directory()), account);
    gateway.stop().unwrap();
    let gateway = setup.start();
    renew(&gateway);
    assert_eq!(account_id(&setup.state_directory()), account, "after a restart");
    // Pebble has its accounts in memory.
    pebble.stop();
    pebble.resume();
    renew(&gateway);
    assert_ne!(account_id(&setup.state_directory()), account);
    gateway.stop().unwrap();
}

#[test]
fn another_way_to_check_names_is_tried_when_one_fails() {
    if !has_pebble() {
        return;
    }
    let listen = free_address();
    let pebble = Pebble::start(PebbleOptions { tls_port: free_address().port(), ..options(listen) });
    let mut setup = AcmeSetup::of_pebble(listen, &pebble);
    setup.config.request_rate.requests_per_s = 1;
    setup.config.request_rate.burst = 1;
    let gateway = setup.start();
    until("the first order fails", || orders(&gateway).1 == 1);
    // It stays until the second order succeeds, which begins minutes later, or on command.
    let error = last_error(&gateway);
    assert!(error.contains("tls-alpn-01"), "{error}");
    until_issued(&gateway);
    let (_, failures) = orders(&gateway);
    assert_eq!(failures, 1, "{}", last_error(&gateway));
    gateway.stop().unwrap();
}

#[test]
fn no_handshake_fails_while_certificates_are_renewed_by_acme() {
    const CERTIFICATES: usize = 4;
    if !has_pebble() {
        return;
    }
    let listen = free_address();
    // Each certificate is renewed after half of its validity.
    let pebble = Pebble::start(PebbleOptions { validity_s: 6, ..options(listen) });
    let setup = AcmeSetup::of_pebble(listen, &pebble);
    let gateway = setup.start();
    until_issued(&gateway);
    let client = pebble.client();
    let (ends, handshakes) = (AtomicBool::new(false), AtomicU64::new(0));
    let seen: Mutex<BTreeSet<Vec<u8>>> = Mutex::default();
    std::thread::scope(|scope| {
        for name in NAMES {
            let client = &client;
            let (ends, handshakes, seen) = (&ends, &handshakes, &seen);
            scope.spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    // A session of the last handshake would be used again, without a certificate.
                    let mut fresh = ClientConfig::clone(client);
                    fresh.resumption = rustls::client::Resumption::disabled();
                    match get_over_tls(listen, &Arc::new(fresh), name) {
                        Ok((answer, certificate)) => {
                            assert_eq!(answer, "HTTP/1.1 200");
                            seen.lock().unwrap().insert(certificate);
                        }
                        Err(error) => panic!("after {handshakes:?} handshakes: {error}"),
                    }
                    handshakes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        until("the certificate is renewed", || {
            seen.lock().map_or(usize::MAX, |seen| seen.len()) >= CERTIFICATES
        });
        ends.store(true, Ordering::Relaxed);
    });
    println!("{handshakes:?} handshakes, {} certificates", seen.lock().unwrap().len());
    assert_eq!(gateway.state().counters.connections_failed.get(), 0);
    assert_eq!(orders(&gateway).1, 0, "{}", last_error(&gateway));
    gateway.stop().unwrap();
}

#[test]
fn authorities_that_fail_cost_the_certificate_and_nothing_else() {
    let problem = r#"{"type":"urn:ietf:params:acme:error:serverInternal","detail":"out of order"}"#;
    for (answer, expected) in [
        (FalseAnswer::Bytes(b"garbage\r\n\r\n".to_vec()), "no valid answer over HTTP"),
        (FalseAnswer::Bytes(Vec::new()), "no valid answer over HTTP"),
        (FalseAnswer::Status(500, problem.to_owned()), "JSON"),
        (FalseAnswer::Status(200, "{".to_owned()), "JSON"),
        (
            FalseAnswer::Status(
                200,
                r#"{"newNonce":"http://x/","newAccount":"https://x/","newOrder":"x"}"#.to_owned(),
            ),
            "not a URL of HTTPS",
        ),
        (FalseAnswer::Endless, "the answer has more than 1048576 bytes"),
    ] {
        let authority = FalseAuthority::start(answer.clone());
        let listen = free_address();
        let setup = AcmeSetup::new(listen, authority.url(), authority.ca_file());
        let gateway = setup.start();
        until("an order fails", || orders(&gateway).1 == 1);
        order(&gateway);
        until("another order fails", || orders(&gateway).1 == 2);
        until("the error is shown", || !last_error(&gateway).is_empty());
        let error = last_error(&gateway);
        assert!(error.contains(expected), "{answer:?}: {error}");
        assert!(authority.requests() >= 2);
        assert_eq!(get(listen, HANDLE, "").status, 200);
        gateway.stop().unwrap();
    }
}
