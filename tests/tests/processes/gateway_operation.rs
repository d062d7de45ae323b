//! Operation of `handle-gateway` from outside: proxies in front of it, rates of requests, the log
//! of requests, compression, the fast path, and certificates.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_gateway::Config;
use handle_gateway::proxies::{ClientHeader, SchemeHeader};
use handle_gateway::reload::reload;
use handle_gateway::request_log::RequestLogFormat;
use handle_tests::gateway_server::{
    GatewayServer, HttpAnswer, exchange, exchange_over_tls, get, serve_over_http, use_tls, write_tls,
};
use handle_tests::vectors::VectorSource;
use serde_json::Value as Json;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const HANDLE: &str = "/api/handles/10.5072/URL-ONE";

fn gateway(change: impl FnOnce(&mut Config)) -> GatewayServer {
    serve_over_http(VectorSource::Own, "root", change).0
}

/// A gateway of which every source may make two requests.
fn limited(change: impl FnOnce(&mut Config)) -> GatewayServer {
    gateway(|config| {
        (config.request_rate.requests_per_s, config.request_rate.burst) = (1, 2);
        change(config);
    })
}

/// The answers to three requests that are sent together on a connection that begins with these
/// bytes, so that they come at one time.
fn three(served: &GatewayServer, begin: &[u8], headers: &str) -> Vec<HttpAnswer> {
    let request = |last: &str| format!("GET {HANDLE} HTTP/1.1\r\nHost: x\r\n{headers}{last}\r\n");
    let requests = [request(""), request(""), request("Connection: close\r\n")].concat();
    let bytes = exchange(served.address(), &[begin, requests.as_bytes()].concat());
    let mut rest = &bytes[..];
    std::iter::from_fn(|| {
        let (answer, after) = HttpAnswer::split(rest, false)?;
        rest = after;
        Some(answer)
    })
    .collect()
}

fn statuses(served: &GatewayServer, begin: &[u8], headers: &str) -> Vec<u16> {
    three(served, begin, headers).iter().map(|answer| answer.status).collect()
}

#[test]
fn a_source_that_asks_too_often_gets_the_time_to_come_back() {
    let served = limited(|_| ());
    let refused = three(&served, b"", "Origin: https://a.example\r\n").remove(2);
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    assert_eq!(refused.json()["responseCode"], 3);
    assert_eq!(refused.header("access-control-allow-origin"), Some("https://a.example"));
    assert_eq!(served.gateway.state().counters.requests_limited.get(), 1);
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(get(served.address(), HANDLE, "").status, 200);
    let exempt = limited(|config| config.request_rate.exempt = vec!["127.0.0.0/8".to_owned()]);
    assert_eq!(statuses(&exempt, b"", ""), [200; 3]);
    let off = gateway(|config| config.request_rate.burst = 1);
    assert_eq!(statuses(&off, b"", ""), [200; 3], "there is no limit by default");
}

#[test]
fn proxies_are_believed_if_they_are_listed() {
    let trusting = |header| {
        limited(|config| {
            config.proxies.trusted = vec!["127.0.0.1".to_owned(), "10.0.0.0/8".to_owned()];
            config.proxies.header = header;
        })
    };
    let served = trusting(ClientHeader::XForwardedFor);
    for client in ["192.0.2.1", "192.0.2.2", "2001:db8::1"] {
        // The client itself may have written what stands in front.
        let header = format!("X-Forwarded-For: 203.0.113.9, {client}, 10.0.0.7\r\n");
        assert_eq!(statuses(&served, b"", &header), [200, 200, 429], "{client}");
    }
    let served = trusting(ClientHeader::Forwarded);
    let header = "Forwarded: for=192.0.2.1;proto=https\r\nX-Forwarded-For: 192.0.2.9\r\n";
    assert_eq!(statuses(&served, b"", header), [200, 200, 429]);
    assert_eq!(get(served.address(), HANDLE, "Forwarded: for=192.0.2.9\r\n").status, 200);
    let wary = limited(|_| ());
    let requests = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|client| {
        let end = if client.ends_with('3') { "Connection: close\r\n" } else { "" };
        format!("GET {HANDLE} HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {client}\r\n{end}\r\n")
    });
    let bytes = exchange(wary.address(), requests.concat().as_bytes());
    let limited = String::from_utf8_lossy(&bytes).matches("HTTP/1.1 429 ").count();
    assert_eq!(limited, 1, "any client can send the header");
}

/// The status of a question for restricted values, which is 401 where credentials are accepted and
/// 403 elsewhere, and the start of the URL to which an alias leads.
fn confidentiality(served: &GatewayServer, is_tls: bool, headers: &str) -> (u16, String) {
    let ask = |target: &str| {
        let request =
            format!("GET {target} HTTP/1.1\r\nHost: hdl.example\r\nConnection: close\r\n{headers}\r\n");
        let bytes = match is_tls {
            true => exchange_over_tls(served.address(), request.as_bytes()),
            false => exchange(served.address(), request.as_bytes()),
        };
        HttpAnswer::split(&bytes, false).unwrap().0
    };
    let status = ask("/api/handles/TST/HALF?publicOnly=false").status;
    let aliased = ask("/TST/ALIAS");
    let location = aliased.header("location").unwrap_or_else(|| panic!("{}", aliased.text()));
    let (scheme, rest) = location.split_once("://").unwrap();
    assert!(rest.starts_with("hdl.example/"), "{location}");
    (status, scheme.to_owned())
}

#[test]
fn the_scheme_of_a_client_is_believed_from_listed_proxies_only_and_its_credentials_if_that_is_set() {
    let files = tempfile::tempdir().unwrap();
    let start = |proxy: &str, scheme: SchemeHeader, credentials: bool| {
        gateway(|config| {
            config.proxies.trusted = vec![proxy.to_owned()];
            config.proxy.hosts = vec!["hdl.example".to_owned()];
            (config.proxies.scheme, config.proxies.credentials) = (scheme, credentials);
            use_tls(config, files.path());
        })
    };
    let (http, https) = (|status| (status, "http".to_owned()), |status| (status, "https".to_owned()));
    let [secure, plain] = ["https", "http"].map(|scheme| format!("X-Forwarded-Proto: {scheme}\r\n"));
    let own = "127.0.0.1";
    for (proxy, scheme, credentials) in [
        (own, SchemeHeader::Off, false),
        ("192.0.2.1", SchemeHeader::XForwardedProto, true),
        (own, SchemeHeader::Forwarded, true),
    ] {
        let served = start(proxy, scheme, credentials);
        for headers in ["", &*secure, &*plain] {
            let case = format!("{proxy} {scheme:?} {headers}");
            assert_eq!(confidentiality(&served, false, headers), http(403), "{case}");
            assert_eq!(confidentiality(&served, true, headers), https(401), "{case}");
        }
    }
    for credentials in [false, true] {
        let served = start(own, SchemeHeader::XForwardedProto, credentials);
        let status = if credentials { 401 } else { 403 };
        assert_eq!(confidentiality(&served, false, &secure), https(status), "{credentials}");
        assert_eq!(confidentiality(&served, false, &plain), http(403));
        assert_eq!(confidentiality(&served, false, ""), http(403));
        assert_eq!(confidentiality(&served, true, &secure), https(401));
        assert_eq!(confidentiality(&served, true, &plain), http(403), "the client has no TLS");
        // What the client has written stands in front.
        assert_eq!(confidentiality(&served, false, &format!("{secure}{plain}")), http(403));
    }
    let served = start(own, SchemeHeader::Forwarded, true);
    let header = "Forwarded: for=203.0.113.9;proto=http, for=192.0.2.1;proto=https\r\n";
    assert_eq!(confidentiality(&served, false, header), https(401));
    let header = "Forwarded: for=203.0.113.9;proto=https, for=192.0.2.1;proto=http\r\n";
    assert_eq!(confidentiality(&served, false, header), http(403));
}

/// A header of version 2 of the PROXY protocol.
fn version_2(command: u8, client: [u8; 4]) -> Vec<u8> {
    let addresses = [&client[..], &[127, 0, 0, 1], &[0x30, 0x39, 0, 80]].concat();
    let len = u16::try_from(addresses.len()).unwrap().to_be_bytes();
    [b"\r\n\r\n\0\r\nQUIT\n", &[0x20 | command, 0x11][..], &len, &addresses].concat()
}

#[test]
fn connections_through_the_proxy_protocol_are_those_of_the_clients_that_it_names() {
    let served = limited(|config| {
        config.proxies.trusted = vec!["127.0.0.1".to_owned()];
        config.proxies.proxy_protocol = true;
        config.limits.connections_per_source = 1;
        config.limits.header_ms = 2000;
    });
    let version_1 = b"PROXY TCP4 192.0.2.1 127.0.0.1 4711 80\r\n";
    let begins = [
        version_1.to_vec(),
        b"PROXY TCP6 2001:db8::1 ::1 4711 80\r\n".to_vec(),
        version_2(1, [192, 0, 2, 2]),
    ];
    for begin in &begins {
        assert_eq!(statuses(&served, begin, ""), [200, 200, 429], "{}", String::from_utf8_lossy(begin));
    }
    assert_eq!(statuses(&served, &version_2(0, [0; 4]), ""), [200, 200, 429], "of the proxy itself");
    for bad in [&b""[..], b"PROXY TCP4 192.0.2.1\r\n", b"PROXY NONSENSE\r\n", b"\r\n\r\n\0\r\nQUIX\n"] {
        assert!(statuses(&served, bad, "").is_empty(), "{}", String::from_utf8_lossy(bad));
    }
    // Limits of connections are those of the client.
    let open = |client: &str| {
        let mut stream = TcpStream::connect(served.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        stream.write_all(format!("PROXY TCP4 {client} 127.0.0.1 1 80\r\n").as_bytes()).unwrap();
        stream
    };
    let is_closed = |stream: &mut TcpStream| matches!(stream.read(&mut [0; 1]), Ok(0));
    let mut first = open("192.0.2.50");
    assert!(!is_closed(&mut first));
    assert!(is_closed(&mut open("192.0.2.50")) && !is_closed(&mut open("192.0.2.51")));
    let untrusting = gateway(|config| {
        config.proxies.trusted = vec!["192.0.2.0/24".to_owned()];
        config.proxies.proxy_protocol = true;
    });
    assert_eq!(statuses(&untrusting, version_1, ""), [400]);
    assert_eq!(statuses(&untrusting, b"", ""), [200; 3]);
}

/// The lines of a file, once it has as many.
fn lines(path: &Path, count: usize) -> Vec<String> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if lines.len() >= count || Instant::now() > deadline {
            return lines;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn requests_are_logged_without_what_is_secret() {
    let files = tempfile::tempdir().unwrap();
    let path = files.path().join("requests.log");
    let served = gateway(|config| {
        config.request_log.format = RequestLogFormat::Json;
        config.request_log.path = Some(path.clone());
        config.request_log.whole_addresses = true;
        config.proxies.trusted = vec!["127.0.0.1".to_owned()];
    });
    let header = "Authorization: Basic c2VjcmV0\r\nX-Forwarded-For: 192.0.2.7\r\nUser-Agent: t/1\r\n";
    let _ = get(served.address(), &format!("{HANDLE}?callback=secret"), header);
    let _ = get(served.address(), "/10.5072/URL-ONE", "");
    let _ = get(served.address(), "/%zz", "");
    let logged: Vec<Json> = lines(&path, 3).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |name: &str| logged.iter().map(|line| line[name].clone()).collect::<Vec<_>>();
    assert_eq!(of("path"), [HANDLE, "/10.5072/URL-ONE", "/%zz"]);
    assert_eq!(of("status"), [200, 302, 400]);
    assert_eq!(of("address"), ["192.0.2.7", "127.0.0.1", "127.0.0.1"]);
    assert_eq!(logged[0]["user_agent"], "t/1");
    assert!(logged[0]["bytes"].as_u64().unwrap() > 10 && logged[1]["bytes"] == 0);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("secret") && !text.contains("c2VjcmV0"), "{text}");
    let old = files.path().join("requests.log.1");
    std::fs::rename(&path, &old).unwrap();
    assert_eq!(reload(served.gateway.state())["ok"], true);
    let _ = get(served.address(), "/10.5072/URL-ONE", "");
    assert_eq!((lines(&path, 1).len(), lines(&old, 3).len()), (1, 3), "a reload opens the file again");
    served.gateway.stop().unwrap();
}

#[test]
fn bodies_are_encoded_as_the_client_prefers_and_each_has_a_tag() {
    let served = gateway(|_| ());
    let long = "/api/handles/0.NA/TST";
    let plain = get(served.address(), long, "");
    let mut tags = vec![plain.header("etag").unwrap().to_owned()];
    for (accepted, coding) in [
        ("gzip", "gzip"),
        ("gzip, br", "br"),
        ("gzip, br, zstd", "zstd"),
        ("gzip;q=0.8, br;q=0.9, zstd;q=0.1", "br"),
        ("*;q=0.1, gzip", "gzip"),
    ] {
        let header = format!("Accept-Encoding: {accepted}\r\n");
        let answer = get(served.address(), long, &header);
        assert_eq!(answer.header("content-encoding"), Some(coding), "{accepted}");
        assert!(answer.list("vary").contains("Accept-Encoding") && answer.body.len() < plain.body.len() / 2);
        let tag = answer.header("etag").unwrap().to_owned();
        let again = get(served.address(), long, &format!("{header}If-None-Match: {tag}\r\n"));
        assert_eq!((again.status, again.header("etag")), (304, Some(tag.as_str())), "{accepted}");
        assert_eq!(
            get(served.address(), long, &format!("If-None-Match: {tag}\r\n")).status,
            200,
            "{accepted}"
        );
        tags.push(tag);
    }
    tags.sort();
    tags.dedup();
    assert_eq!(tags.len(), 4, "one for each coding");
}

#[test]
fn plain_requests_get_what_the_general_path_answers() {
    for name in ["root", "main"] {
        let (served, _) = serve_over_http(VectorSource::Own, name, |_| ());
        let servers = VectorSource::Own.document("servers.json");
        let records = servers["servers"][name]["records"].as_array().cloned().unwrap_or_default();
        let named = records.iter().filter_map(|record| record["handle"].as_str().map(str::to_owned));
        let handles: Vec<String> = named
            .chain(
                ["10.5072/URL-ONE", "10.5072/url-one", "10.5072/NONE", "0.NA/TST", "1.2/x"]
                    .map(str::to_owned),
            )
            .collect();
        let mut differ = Vec::new();
        for handle in
            handles.iter().filter(|handle| handle.is_ascii() && !handle.contains([' ', '%', '?', '#']))
        {
            for begin in ["/", "/api/handles/"] {
                for headers in [
                    "",
                    "Accept: */*\r\nOrigin: https://a.example\r\nAccept-Encoding: gzip\r\n",
                    "Accept: text/html\r\n",
                ] {
                    // A question mark leads to the general path.
                    let shown = |mark: &str| {
                        let mut answer = get(served.address(), &format!("{begin}{handle}{mark}"), headers);
                        answer.headers.retain(|(name, _)| !matches!(name.as_str(), "date" | "expires"));
                        answer.headers.sort();
                        // Pages show how long they took.
                        if answer.header("content-type") == Some("text/html;charset=utf-8") {
                            answer = HttpAnswer { status: answer.status, headers: vec![], body: vec![] };
                        }
                        answer
                    };
                    if shown("") != shown("?") {
                        differ.push(format!("{begin}{handle} {headers:?}"));
                    }
                }
            }
        }
        assert!(differ.is_empty(), "{name}: {}", differ.join("\n"));
        assert!(handles.len() > 4, "{name} has records");
    }
}

#[test]
fn no_handshake_fails_while_certificates_are_replaced() {
    let files = tempfile::tempdir().unwrap();
    let served = gateway(|config| use_tls(config, files.path()));
    let (ends, handshakes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    let request =
                        format!("GET {HANDLE} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
                    let bytes = exchange_over_tls(served.address(), request.as_bytes());
                    assert!(bytes.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&bytes));
                    handshakes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for number in 1..=20 {
            write_tls(files.path(), number);
            served.gateway.state().tls.as_ref().unwrap().reload().unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert!(handshakes.load(Ordering::Relaxed) > 20);
    assert_eq!(served.gateway.state().counters.connections_failed.get(), 0);
}
