//! Redirects and pages of `handle-gateway` from outside.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::gateway::site_of;
use handle_gateway::pages::{CONTENT_SECURITY_POLICY, ICON_PATH, STYLE_PATH};
use handle_gateway::{Config, Gateway};
use handle_proto::Value;
use handle_snapshot::builder::Builder;
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::writer::{HomedPrefixes, LayerOptions};
use handle_tests::gateway_server::{GatewayServer, HttpAnswer, config, described, exchange, get};

/// A value by its type and text.
pub(crate) type Text = (&'static str, &'static str);

/// Two locations, one of them for scripts.
const LOCATIONS: &str = "<locations><location id=\"a\" href=\"https://a.example/\" weight=\"1\"/>\
    <location id=\"b\" href_template=\"https://b.example/{hdl}\" http_sc=\"307\" weight=\"0\"/>\
    <location id=\"c\" href=\"https://c.example/\" http_role=\"conneg\" weight=\"0\"/></locations>";

/// A location, and a record of another service with more of them.
const FAR: &str = "<locations include=\"5678/more\"><location href=\"https://near.example/\"/></locations>";

/// Records under the prefix 1234, in ascending order.
const RECORDS: [(&str, &[Text]); 10] = [
    (
        "0.na/1234",
        &[(
            "10320/loc",
            "<locations><location view=\"ns\" href=\"https://ns.example/\" weight=\"0\"/></locations>",
        )],
    ),
    ("1234/alias", &[("URL", "https://example.org/never"), ("HS_ALIAS", "1234/second")]),
    ("1234/far", &[("10320/loc", FAR)]),
    ("1234/loc", &[("URL", "https://example.org/loc"), ("10320/loc", LOCATIONS)]),
    ("1234/loop", &[("HS_ALIAS", "1234/LOOP")]),
    ("1234/plain", &[("URL", "https://example.org/plain"), ("DESC", "<script>alert(1)</script>")]),
    ("1234/script", &[("URL", " JavaScript:alert(document.cookie)")]),
    ("1234/second", &[("HS_ALIAS", "1234/target")]),
    ("1234/target", &[("URL", "https://example.org/target")]),
    ("1234/void", &[("HS_ALIAS", "1234/nothing")]),
];

/// A gateway over [`RECORDS`].
fn gateway_of_records(change: impl FnOnce(&mut Config)) -> GatewayServer {
    gateway_of(&RECORDS, &["1234", "0.NA"], change)
}

/// A gateway over records in ascending order, and the homed prefixes.
pub(crate) fn gateway_of(
    records: &[(&str, &[Text])],
    prefixes: &[&str],
    change: impl FnOnce(&mut Config),
) -> GatewayServer {
    let directory = tempfile::tempdir().unwrap();
    let set = directory.path().join("set");
    std::fs::create_dir(&set).unwrap();
    let mut homed = HomedPrefixes::default();
    for prefix in prefixes {
        homed.add(prefix.as_bytes());
    }
    let options = LayerOptions { seed: 1, folds: true, created_unix_ms: 1_763_800_000_000 };
    let mut publisher = SetPublisher::open(&set).unwrap();
    let published = publisher.publish_base(7, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options).homed(homed);
        for (at, (handle, texts)) in records.iter().enumerate() {
            let values = (1..)
                .zip(*texts)
                .map(|(index, (kind, text))| Value::new(index, kind.as_bytes(), text.as_bytes()));
            builder.add(at as u64, handle.as_bytes(), values)?;
        }
        builder.finish(file)
    });
    published.unwrap();
    let mut config = Config { snapshot: Some(set), ..config() };
    change(&mut config);
    let gateway = Gateway::start(&config).unwrap();
    GatewayServer { gateway, directory }
}

/// Fails unless an answer is a page of this status that browsers are asked to protect.
fn is_page(answer: &HttpAnswer, status: u16) {
    assert_eq!((answer.status, answer.header("content-type")), (status, Some("text/html;charset=utf-8")));
    assert_eq!(answer.header("content-security-policy"), Some(CONTENT_SECURITY_POLICY));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    assert!(answer.list("vary").contains("Accept-Language") && answer.text().starts_with("<!DOCTYPE html>"));
}

#[test]
fn the_form_leads_to_handles_in_the_language_of_the_browser() {
    let served = gateway_of_records(|_| ());
    let address = served.address();
    let form = get(address, "/", "");
    is_page(&form, 200);
    assert_eq!(form.header("content-language"), Some("en"));
    assert!(form.text().contains("name=\"hdl\""));
    assert_eq!(
        get(address, "/", "Accept-Language: fr-CH, en;q=0.5\r\n").header("content-language"),
        Some("fr")
    );
    assert!(get(address, "/?hdl=1234%2Fx%22", "").text().contains("value=\"1234/x&#34;\""));
    for (path, kind) in [(STYLE_PATH, "text/css;charset=utf-8"), (ICON_PATH, "image/svg+xml")] {
        assert!(form.text().contains(&format!("\"/{path}\"")), "{path}");
        let file = get(address, &format!("/{path}"), "");
        assert_eq!((file.status, file.header("content-type")), (200, Some(kind)));
        assert_eq!(file.header("cache-control"), Some("max-age=86400"));
        let tag = format!("If-None-Match: {}\r\n", file.header("etag").unwrap());
        assert_eq!(get(address, &format!("/{path}"), &tag).status, 304);
    }
    let send = |fields: &str| {
        let head = "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/x-www-form-urlencoded\r\n";
        let request = format!("{head}Content-Length: {}\r\n\r\n{fields}", fields.len());
        described("POST", "/", &exchange(address, request.as_bytes()))
    };
    let location = |fields: &str| send(fields).header("location").map(str::to_owned);
    assert_eq!(location("hdl=hdl%3A1234%2Fplain").as_deref(), Some("https://example.org/plain"));
    assert_eq!(location("hdl=1234%2Falias&auth=true").as_deref(), Some("/1234/target?auth=true"));
    assert_eq!(send("hdl=1234%2Floc&locatt=id:b").status, 303, "the fields are not for the target");
    is_page(&send("hdl=1234%2Fplain&noredirect=true"), 200);
    is_page(&send("hdl="), 200);
    is_page(&send("hdl=https%3A%2F%2Felsewhere.example%2Fx"), 400);
}

#[test]
fn redirects_to_this_gateway_do_not_repeat_what_host_a_client_has_made_up() {
    let location = |served: &GatewayServer| {
        let request = "GET /1234/alias HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
        let answer = described("GET", "/1234/alias", &exchange(served.address(), request.as_bytes()));
        assert_eq!(answer.status, 301);
        assert!(!answer.text().contains("evil.example"), "{}", answer.text());
        answer.header("location").unwrap().to_owned()
    };
    assert_eq!(location(&gateway_of_records(|_| ())), "/1234/target");
    let named = gateway_of_records(|config| config.proxy.hosts = vec!["hdl.example.org".to_owned()]);
    assert_eq!(location(&named), "http://hdl.example.org/1234/target");
    let based = gateway_of_records(|config| config.proxy.base_url = Some("https://a.example/p/".to_owned()));
    assert_eq!(location(&based), "https://a.example/p/1234/target");
}

#[test]
fn handles_lead_to_their_targets() {
    let served = gateway_of_records(|_| ());
    let ask = |target: &str, headers: &str| {
        let answer = get(served.address(), target, headers);
        (answer.status, answer.header("location").unwrap_or_default().to_owned())
    };
    for (target, status, location) in [
        ("/1234/plain", 302, "https://example.org/plain"),
        ("/doi:1234/PLAIN?urlappend=%3Fa%3D1", 302, "https://example.org/plain?a=1"),
        ("/1234/plain?redirectionHeaders", 200, "https://example.org/plain"),
        ("/1234/plain?locatt=view:ns", 302, "https://ns.example/"),
        ("/1234/alias?index=2", 404, ""),
        ("/1234/alias?a=%20b", 301, "/1234/target?a=%20b"),
        ("/1234/alias?ignore_aliases", 302, "https://example.org/never"),
        ("/1234/alias?type=URL", 302, "https://example.org/never"),
        ("/1234/loc", 302, "https://a.example/"),
        ("/1234/loc?locatt=id:b", 307, "https://b.example/1234%2Floc"),
        ("/1234/loop", 404, ""),
        ("/1234/void", 404, ""),
        ("/1234/script", 200, ""),
        ("/1234/script?urlappend=https://example.org/", 200, ""),
        ("/5678/elsewhere", 400, ""),
    ] {
        assert_eq!(ask(target, ""), (status, location.to_owned()), "{target}");
    }
    let negotiated = get(served.address(), "/1234/loc", "Accept: application/json\r\n");
    assert_eq!(negotiated.header("location"), Some("https://c.example/"));
    assert!(negotiated.list("vary").contains("Accept"));
    let plain = get(served.address(), "/1234/plain", "");
    assert_eq!((plain.body.len(), plain.header("vary")), (0, Some("Origin")));
    assert_eq!(plain.header("cache-control"), Some("max-age=86400"));
    assert!(plain.header("expires").unwrap().ends_with(" GMT"));
    let browser = get(served.address(), "/1234/plain", "Accept: text/html,*/*;q=0.8\r\n");
    assert!(browser.text().contains("href=\"https://example.org/plain\""));
    assert_eq!(browser.header("content-security-policy"), Some(CONTENT_SECURITY_POLICY));
}

#[test]
fn records_and_errors_are_shown_as_pages() {
    let served = gateway_of_records(|_| ());
    let page = |target: &str| get(served.address(), target, "Accept: text/html\r\n");
    let record = page("/1234/plain?noredirect");
    is_page(&record, 200);
    assert!(record.text().contains("&#60;script&#62;alert(1)") && !record.text().contains("<script"));
    assert!(record.text().contains("<h1") && record.text().contains("https://example.org/plain"));
    let aliased = page("/1234/alias?noredirect");
    is_page(&aliased, 200);
    assert!(aliased.text().contains("1234/target") && aliased.text().contains("1234/alias"));
    let script = page("/1234/script");
    is_page(&script, 200);
    assert!(!script.text().contains("href=\"JavaScript") && !script.text().contains("href=\" JavaScript"));
    let missing = page("/1234/nothing");
    is_page(&missing, 404);
    assert_eq!(missing.header("cache-control"), Some("max-age=30"));
    for (target, status) in [("/1234/plain?type=EMAIL", 404), ("/1234/%zz", 400), ("/1234/loop", 404)] {
        is_page(&page(target), status);
    }
    let list = page("/1234/loc?action=showurls");
    assert_eq!(list.header("content-type"), Some("text/xml;charset=utf-8"));
    assert_eq!(list.text().matches("<location ").count(), 5);
    let api = get(served.address(), "/api/handles/1234/alias", "");
    assert_eq!(page("/1234/alias?action=api").json(), api.json());
    assert_eq!(page("/1234/nothing?action=api").json()["responseCode"], 100);
}

#[test]
fn redirects_from_the_set_do_not_depend_on_other_services() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let files = tempfile::tempdir().unwrap();
    let served = gateway_of_records(|config| {
        config.upstream.resolver_site = Some(site_of(unused, files.path()));
        config.upstream.timeout_ms = 500;
    });
    let ask = |target: &str| get(served.address(), target, "");
    let questions_count = || served.gateway.state().counters.upstream_questions.get();
    assert_eq!((ask("/1234/loc").status, questions_count()), (302, 0));
    let partial = ask("/1234/far");
    assert_eq!((partial.header("location"), questions_count()), (Some("https://near.example/"), 1));
    assert_eq!(partial.header("cache-control"), Some("max-age=0"), "made without the missing record");
    let failed = ask("/5678/more");
    assert!(matches!(failed.status, 502 | 504), "{}", failed.status);
    is_page(&failed, failed.status);
    assert_eq!(failed.header("retry-after"), Some("5"));
}
