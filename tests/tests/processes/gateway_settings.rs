//! Settings of the proxy of `handle-gateway`, seen from outside: countries, names, contacts,
//! agencies, and identifiers that are not handles.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::gateway::site_of;
use crate::gateway_proxy::gateway_of;
use handle_gateway::reload::reload;
use handle_gateway::settings::GatewayHooks;
use handle_gateway::{Config, Gateway};
use handle_tests::country_file::country_file;
use handle_tests::gateway_server::get;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const HERE: &str = "<locations><location href=\"https://de.example/\" country=\"DE\"/>\
    <location href=\"https://fr.example/\" country=\"fr\"/><location href=\"https://other.example/\"/></locations>";

const NAMESPACE: &str = "<namespace><contact>pids@example.org</contact><status>inactive</status>\
    <statusmsg>This prefix has moved.</statusmsg></namespace>";

/// Records under the prefixes 1234, 5678 and `jis@x`, in ascending order.
const RECORDS: &[(&str, &[(&str, &str)])] = &[
    ("0.na/1234", &[("HS_NAMESPACE", NAMESPACE)]),
    ("1234/country", &[("10320/loc", HERE)]),
    ("1234/news", &[("URL", "news:comp.dcom"), ("DESC", "x")]),
    ("1234/url", &[("URL", "https://example.org/url")]),
    ("1234/日本", &[("URL", "https://example.org/ja")]),
    ("5678/x", &[("URL", "https://example.org/x")]),
    ("latin1@x/y", &[("URL", "https://example.org/literal")]),
];

#[test]
fn countries_choose_locations_and_a_damaged_file_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("countries.mmdb");
    let loopback = Ipv4Addr::new(127, 0, 0, 0);
    std::fs::write(&path, country_file(&[(loopback, 8, "DE"), (Ipv4Addr::new(192, 0, 2, 0), 24, "FR")]))
        .unwrap();
    let served =
        gateway_of(RECORDS, &["1234", "0.NA"], |config| config.country_database = Some(path.clone()));
    let config = served.gateway.state().settings.current_shared();
    drop(served);
    let read = {
        let config = Config::clone(&config);
        Box::new(move || Ok(config.clone()))
    };
    // The set is in a directory that is gone with the gateway.
    let served = gateway_of(RECORDS, &["1234", "0.NA"], |_| ());
    let hooks = GatewayHooks { read_config: Some(read), ..GatewayHooks::default() };
    let snapshot = served.gateway.state().settings.current().snapshot.clone();
    let gateway = Gateway::start_with(&Config { snapshot, ..Config::clone(&config) }, hooks).unwrap();
    let location = || {
        let answer = get(gateway.addresses()[0], "/1234/country", "");
        assert!(answer.header("cache-control").unwrap().starts_with("private, "), "{answer:?}");
        answer.header("location").unwrap().to_owned()
    };
    assert_eq!(location(), "https://de.example/");
    std::fs::write(&path, country_file(&[(loopback, 8, "FR")])).unwrap();
    assert_eq!(reload(gateway.state())["ok"], true);
    assert_eq!(location(), "https://fr.example/");
    for damaged in [&b""[..], b"not a database", &country_file(&[(loopback, 8, "DE")])[..100]] {
        std::fs::write(&path, damaged).unwrap();
        let report = reload(gateway.state());
        assert_eq!(report["ok"], false, "{report}");
        assert!(report["error"].as_str().unwrap().contains("`country_database`"), "{report}");
        assert_eq!(location(), "https://fr.example/", "the old one stays in force");
    }
    std::fs::write(&path, country_file(&[(Ipv4Addr::new(192, 0, 2, 0), 24, "FR")])).unwrap();
    assert_eq!(reload(gateway.state())["ok"], true);
    assert_eq!(location(), "https://other.example/", "the country is not known");
}

#[test]
fn a_missing_file_of_countries_is_named_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("none.mmdb");
    let served = gateway_of(RECORDS, &["1234"], |_| ());
    let snapshot = served.gateway.state().settings.current().snapshot.clone();
    let listen = vec![([127, 0, 0, 1], 0).into()];
    let config = Config { snapshot, listen, country_database: Some(path.clone()), ..Config::default() };
    let error = Gateway::start(&config).unwrap_err().to_string();
    assert!(error.starts_with("`country_database`: cannot read "), "{error}");
    assert!(error.contains(path.to_str().unwrap()) && !error.contains('\n'), "{error}");
}

#[test]
fn names_and_schemes_are_those_of_the_settings() {
    let served = gateway_of(RECORDS, &["1234", "0.NA", "5678"], |config| {
        config.pages.service_name = "Identifiers of Example".to_owned();
        config.pages.contact = Some("help@example.org".to_owned());
        config.pages.help_url = Some("https://example.org/help?a=b".to_owned());
        config.proxy.schemes = vec!["http".to_owned(), "https".to_owned()];
        config.proxy.hosts = vec!["pid.example.org".to_owned()];
        config.proxy.reference_hosts = vec!["old.example.org".to_owned()];
    });
    let page = |target: &str| get(served.address(), target, "Accept: text/html\r\n");
    assert!(page("/").text().contains("Identifiers of Example"));
    let help = page("/help.html");
    assert_eq!((help.status, help.header("location")), (302, Some("https://example.org/help?a=b")));
    let missing = page("/1234/none");
    assert_eq!(missing.status, 404);
    for text in ["pids@example.org", "This prefix has moved."] {
        assert!(missing.text().contains(text), "the namespace of the prefix says so: {}", missing.text());
    }
    assert!(
        page("/5678/none").text().contains("help@example.org"),
        "without a namespace, the contact of the settings"
    );
    let news = page("/1234/news");
    assert_eq!((news.status, news.header("location")), (200, None));
    let without = gateway_of(RECORDS, &["1234"], |config| config.proxy.schemes = vec!["ftp".to_owned()]);
    assert_eq!(get(without.address(), "/1234/url", "").status, 200, "nothing is redirected to https");
}

#[test]
fn an_encoding_before_a_handle_counts_if_it_is_switched_on() {
    let prefixes = ["1234", "0.NA", "latin1@x"];
    let (on, off) = (
        gateway_of(RECORDS, &prefixes, |config| config.proxy.charset_modifier = true),
        gateway_of(RECORDS, &prefixes, |_| ()),
    );
    for (target, with, without) in [
        ("/jis@1234/%1B$BF%7CK%5C%1B(B", 302, 400),
        ("/sjis@1234/%93%FA%96%7B", 302, 400),
        ("/sjis@1234/%93", 400, 400),
        ("/nonsense@1234/x", 400, 400),
        ("/1234/%E6%97%A5%E6%9C%AC", 302, 302),
        ("/latin1@x/y", 302, 302),
    ] {
        let status = |address: SocketAddr| get(address, target, "").status;
        assert_eq!((status(on.address()), status(off.address())), (with, without), "{target}");
    }
    assert_eq!(get(on.address(), "/latin1@x/y", "").header("location"), Some("https://example.org/literal"));
}

#[test]
fn agencies_are_named_by_prefix_in_the_form_of_doi_org() {
    let served = gateway_of(RECORDS, &["1234", "0.NA"], |config| {
        config.agencies.prefixes = vec!["1234 Example Agency".to_owned()];
    });
    let answer = get(served.address(), "/doiRA/1234,1234%2Furl,1234/none,9999/x,%20", "");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json;charset=utf-8")));
    let expected = serde_json::json!([
        { "DOI": "1234", "RA": "Example Agency" },
        { "DOI": "1234/url", "RA": "Example Agency" },
        { "DOI": "1234/none", "status": "DOI does not exist" },
        { "DOI": "9999/x", "status": "Unknown prefix" },
        { "DOI": "", "status": "Invalid DOI" },
    ]);
    assert_eq!(answer.json(), expected);
    let many = get(served.address(), &format!("/doiRA/{}", ["1234"; 101].join(",")), "").json();
    assert_eq!(many.as_array().unwrap().len(), 100);
    let without = gateway_of(RECORDS, &["1234"], |_| ());
    assert_eq!(
        get(without.address(), "/doiRA/1234", "").header("content-type"),
        Some("text/html;charset=utf-8")
    );
}

#[test]
fn the_names_of_one_request_for_agencies_have_one_deadline() {
    // It takes questions and does not answer them.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let site = site_of(silent.local_addr().unwrap(), directory.path());
    let served = gateway_of(RECORDS, &["1234", "0.NA"], |config| {
        config.agencies.prefixes = vec!["9 Example Agency".to_owned()];
        config.upstream.resolver_site = Some(site);
        config.upstream.timeout_ms = 400;
    });
    let names: Vec<String> = (0..30).map(|number| format!("9.{number}/x")).collect();
    let since = Instant::now();
    let answer = get(served.address(), &format!("/doiRA/{}", names.join(",")), "");
    let took = since.elapsed();
    assert!(took > Duration::from_millis(300) && took < Duration::from_millis(1600), "{took:?}");
    let expected = names.iter().map(|name| serde_json::json!({ "DOI": name, "RA": "Example Agency" }));
    assert_eq!(answer.json(), serde_json::Value::from_iter(expected));
}

/// A back end that answers every request with these bytes after a time, and its address. The heads
/// of requests are sent to the receiver.
fn backend(answer: Vec<u8>, after: Duration) -> (SocketAddr, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, heads) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 4096];
            let len = stream.read(&mut head).unwrap_or_default();
            if sender.send(String::from_utf8_lossy(&head[..len]).into_owned()).is_err() {
                return;
            }
            std::thread::sleep(after);
            let _ = stream.write_all(&answer);
        }
    });
    (address, heads)
}

fn target(text: &str) -> Vec<handle_gateway::identifiers::IdentifierTarget> {
    vec![toml::from_str(text).unwrap()]
}

#[test]
fn other_identifiers_are_served_by_templates_and_back_ends() {
    let with = |rule: String| gateway_of(RECORDS, &["1234"], |config| config.target = target(&rule));
    let served = with(
        "path = 'ark:'\npattern = '([0-9]{5})/(.+)'\ntemplate = 'https://n2t.example/{1}/{2}'".to_owned(),
    );
    let ask = |target: &str| get(served.address(), target, "");
    assert_eq!(ask("/ark:12345/a%20b").header("location"), Some("https://n2t.example/12345/a%20b"));
    assert_eq!(ask("/ark:12345/..%2Fx").status, 400);
    assert_eq!(ask("/1234/url").header("location"), Some("https://example.org/url"));

    let json = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n{\"a\": 1}";
    let (address, heads) = backend(json.to_vec(), Duration::ZERO);
    let served = with(format!("path = 'orcid/'\nbackend = 'http://{address}/people?id={{0}}'"));
    let answer =
        get(served.address(), "/orcid/0000-1&admin=true", "Accept: application/json\r\nCookie: secret\r\n");
    assert_eq!((answer.status, answer.text().as_str()), (200, "{\"a\": 1}"));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("content-security-policy"), Some("sandbox; default-src 'none'"));
    let head = heads.recv().unwrap();
    assert!(head.starts_with("GET /people?id=0000-1%26admin%3Dtrue HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("accept: application/json") && !head.to_lowercase().contains("cookie"), "{head}");
    assert_eq!(get(served.address(), "/orcid/..%2F..%2Fadmin", "").status, 400);
    assert!(heads.try_recv().is_err(), "nothing was asked");
}

#[test]
fn back_ends_are_bounded_and_their_redirects_are_not_followed() {
    let rule = |address: SocketAddr| {
        format!("path = 'x/'\nbackend = 'http://{address}/{{0}}'\ntimeout_ms = 300\nbytes_max = 1000")
    };
    let ask = |answer: &str, after| {
        let (address, _heads) = backend(answer.as_bytes().to_vec(), after);
        let served = gateway_of(RECORDS, &["1234"], |config| config.target = target(&rule(address)));
        let since = Instant::now();
        let answer = get(served.address(), "/x/1", "");
        assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
        answer
    };
    let long = format!("HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n{}", "x".repeat(1001));
    for (answer, after, status) in [
        (&*long, Duration::ZERO, 502),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", Duration::from_millis(800), 504),
        ("no HTTP at all", Duration::ZERO, 502),
        ("HTTP/1.1 500 Failed\r\nContent-Length: 0\r\n\r\n", Duration::ZERO, 502),
        (
            "HTTP/1.1 302 Found\r\nLocation: javascript:alert(1)\r\nContent-Length: 0\r\n\r\n",
            Duration::ZERO,
            502,
        ),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", Duration::ZERO, 404),
    ] {
        let got = ask(answer, after);
        assert_eq!(got.status, status, "{answer}");
        assert_eq!(got.header("retry-after").is_some(), status >= 502, "{answer}");
    }
    let internal = TcpListener::bind("127.0.0.1:0").unwrap();
    internal.set_nonblocking(true).unwrap();
    let url = format!("http://{}/secret", internal.local_addr().unwrap());
    let got =
        ask(&format!("HTTP/1.1 302 Found\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n"), Duration::ZERO);
    assert_eq!((got.status, got.header("location")), (302, Some(&*url)), "the client may follow it");
    assert!(internal.accept().is_err(), "the gateway does not");
}

/// An authority, and the certificates that it issues.
struct TestAuthority(rcgen::CertifiedIssuer<'static, rcgen::KeyPair>);

impl TestAuthority {
    fn new() -> Self {
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        Self(rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap())
    }

    /// A server with a certificate for `name`.
    fn server(&self, name: &str, has_expired: bool) -> Arc<rustls::ServerConfig> {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        if has_expired {
            params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        }
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        Arc::new(builder.with_single_cert(vec![certificate.der().clone()], key).unwrap())
    }
}

/// What a back end over TLS does after the handshake.
#[derive(Clone, Copy)]
enum TlsBehaviour {
    Answers,
    /// It reads the request, and no more.
    IsSilent,
    /// It does not even shake hands.
    HoldsHandshake,
}

/// A back end over TLS. The heads of requests are sent to the receiver.
fn backend_over_tls(
    config: &Arc<rustls::ServerConfig>,
    behaviour: TlsBehaviour,
) -> (SocketAddr, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, heads) = std::sync::mpsc::channel();
    let config = Arc::clone(config);
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            if matches!(behaviour, TlsBehaviour::HoldsHandshake) {
                held.push(stream);
                continue;
            }
            let connection = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = rustls::StreamOwned::new(connection, stream);
            let mut head = [0; 4096];
            // The client ends the handshake if it does not trust the certificate.
            let Ok(len) = stream.read(&mut head) else { continue };
            if len == 0 || sender.send(String::from_utf8_lossy(&head[..len]).into_owned()).is_err() {
                continue;
            }
            if matches!(behaviour, TlsBehaviour::IsSilent) {
                held.push(stream.sock);
                continue;
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    (address, heads)
}

#[test]
fn back_ends_over_tls_are_verified() {
    let directory = tempfile::tempdir().unwrap();
    let [trusted, other] = [(); 2].map(|()| TestAuthority::new());
    let ca_file = directory.path().join("ca.pem");
    std::fs::write(&ca_file, trusted.0.pem()).unwrap();
    let ask = |server: &Arc<rustls::ServerConfig>, behaviour, host: &str, ca_file: Option<&Path>| {
        let (address, heads) = backend_over_tls(server, behaviour);
        let mut rule = format!(
            "path = 'x/'\nbackend = 'https://{host}:{}/a?id={{0}}'\ntimeout_ms = 700\n",
            address.port()
        );
        if let Some(ca_file) = ca_file {
            rule.push_str(&format!("ca_file = '{}'\n", ca_file.display()));
        }
        let served = gateway_of(RECORDS, &["1234"], |config| config.target = target(&rule));
        let answer = get(served.address(), "/x/1", "");
        (answer, heads.try_recv().ok())
    };
    let (answers, ca) = (TlsBehaviour::Answers, Some(&*ca_file));
    let good = trusted.server("localhost", false);
    let (answer, head) = ask(&good, answers, "localhost", ca);
    assert_eq!((answer.status, answer.text().as_str()), (200, "ok"));
    let head = head.unwrap();
    assert!(head.starts_with("GET /a?id=1 HTTP/1.1\r\n") && head.contains("host: localhost:"), "{head}");
    // An address is verified like a name.
    let by_address = trusted.server("127.0.0.1", false);
    assert_eq!(ask(&by_address, answers, "127.0.0.1", ca).0.status, 200);
    // Nothing is sent to a back end that is not trusted.
    for (what, server, host, ca) in [
        ("another authority", &other.server("localhost", false), "localhost", ca),
        ("authorities of the host", &good, "localhost", None),
        ("another name", &trusted.server("parts.example", false), "localhost", ca),
        ("a name for an address", &good, "127.0.0.1", ca),
        ("an expired certificate", &trusted.server("localhost", true), "localhost", ca),
    ] {
        let (answer, head) = ask(server, answers, host, ca);
        assert_eq!((answer.status, head), (502, None), "{what}");
        assert!(answer.header("retry-after").is_some(), "{what}");
        assert!(answer.text().contains("no trusted connection"), "{what}: {}", answer.text());
    }
    for behaviour in [TlsBehaviour::IsSilent, TlsBehaviour::HoldsHandshake] {
        let since = Instant::now();
        assert_eq!(ask(&good, behaviour, "localhost", ca).0.status, 504);
        assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    }
    // A server of plain HTTP where TLS is expected.
    let (address, _heads) = backend(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec(), Duration::ZERO);
    let rule = format!(
        "path = 'x/'\nbackend = 'https://localhost:{}/{{0}}'\nca_file = '{}'",
        address.port(),
        ca_file.display()
    );
    let served = gateway_of(RECORDS, &["1234"], |config| config.target = target(&rule));
    assert_eq!(get(served.address(), "/x/1", "").status, 502);
}

#[test]
fn authorities_of_back_ends_are_read_again_and_a_damaged_file_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let ca_file = directory.path().join("ca.pem");
    let [first, second] = [(); 2].map(|()| TestAuthority::new());
    std::fs::write(&ca_file, first.0.pem()).unwrap();
    let [(old, _old_heads), (new, _new_heads)] = [&first, &second]
        .map(|authority| backend_over_tls(&authority.server("localhost", false), TlsBehaviour::Answers));
    let rules = [("old", old), ("new", new)].map(|(path, address)| {
        let backend = format!("backend = 'https://localhost:{}/{{0}}'", address.port());
        target(&format!("path = '{path}/'\n{backend}\nca_file = '{}'", ca_file.display())).remove(0)
    });
    let served = gateway_of(RECORDS, &["1234"], |_| ());
    let snapshot = served.gateway.state().settings.current().snapshot.clone();
    let config = Config {
        snapshot,
        target: rules.to_vec(),
        ..Config::clone(&served.gateway.state().settings.current_shared())
    };
    let read = {
        let config = config.clone();
        Box::new(move || Ok(config.clone()))
    };
    let hooks = GatewayHooks { read_config: Some(read), ..GatewayHooks::default() };
    let gateway = Gateway::start_with(&config, hooks).unwrap();
    let statuses = || ["/old/1", "/new/1"].map(|path| get(gateway.addresses()[0], path, "").status);
    assert_eq!(statuses(), [200, 502]);
    std::fs::write(&ca_file, "no certificate").unwrap();
    let report = reload(gateway.state());
    assert!(report["error"].as_str().unwrap().contains("ca.pem"), "{report}");
    assert_eq!((report["ok"].clone(), statuses()), (false.into(), [200, 502]));
    std::fs::write(&ca_file, second.0.pem()).unwrap();
    assert_eq!(reload(gateway.state())["ok"], true);
    assert_eq!(statuses(), [502, 200]);
    // A file that is missing at the start is named.
    drop(gateway);
    std::fs::remove_file(&ca_file).unwrap();
    let error = format!("{:#}", Gateway::start(&config).unwrap_err());
    assert!(error.contains("ca.pem") && error.contains("\"old/\""), "{error}");
}
