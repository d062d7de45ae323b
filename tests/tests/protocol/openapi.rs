//! The OpenAPI document of `handle-gateway` is one, and has the paths and methods that are served.
//! That it describes the answers is checked where answers are tested.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::http::{administered, published};
use handle_formats::bundle::{BundleContact, archive};
use handle_gateway::route::{Route, RouteGroup};
use handle_proto::data::Site;
use handle_tests::gateway_server::{
    HttpAnswer, ask_over_tls, described, exchange_over_tls, get, serve_over_http, use_tls,
};
use handle_tests::json_schema::{follow, unknown_keyword};
use handle_tests::openapi::{described_path, document, undescribed};
use handle_tests::registrar::RegistrationPages;
use handle_tests::vectors::{VectorSource, fixture, hex};
use regex::Regex;
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

const METHODS: [&str; 4] = ["GET", "POST", "PUT", "DELETE"];

/// All parts of the document, with the name of the member that each is.
fn parts() -> Vec<(&'static str, &'static Json)> {
    let (mut parts, mut at) = (vec![("", document())], 0);
    while let Some(&(name, json)) = parts.get(at) {
        match json {
            Json::Object(members) => parts.extend(members.iter().map(|(name, json)| (name.as_str(), json))),
            Json::Array(items) => parts.extend(items.iter().map(|item| (name, item))),
            _ => {}
        }
        at += 1;
    }
    parts
}

#[test]
fn the_document_has_the_routes_of_the_program() {
    let routes: BTreeSet<(String, String)> = Route::described()
        .flat_map(|route| route.allowed().split(", ").map(move |method| (route, method)))
        .map(|(route, method)| (route.path().to_owned(), method.to_owned()))
        .filter(|(_, method)| METHODS.contains(&method.as_str()))
        .collect();
    let paths = document()["paths"].as_object().unwrap();
    let described: BTreeSet<(String, String)> = paths
        .iter()
        .flat_map(|(path, item)| item.as_object().unwrap().keys().map(|method| (path.clone(), method)))
        .map(|(path, method)| (path, method.to_ascii_uppercase()))
        .filter(|(_, method)| method != "PARAMETERS")
        .collect();
    assert_eq!(described, routes);
    for path in paths.keys() {
        let example = path.split('{').next().unwrap().to_owned() + if path.contains('{') { "x" } else { "" };
        assert_eq!(described_path(&example), Some(path.as_str()), "{example}");
    }
}

#[test]
fn the_parts_of_the_document_refer_to_each_other() {
    assert_eq!(document()["openapi"], "3.1.0");
    assert_eq!(document()["info"]["version"], env!("CARGO_PKG_VERSION"), "the version of this release");
    let (mut names, mut used) = (BTreeSet::new(), BTreeSet::new());
    for (_, part) in parts() {
        assert!(!follow(document(), part).is_null() || part.is_null(), "{part}");
        used.extend(part["$ref"].as_str());
        if let Some(name) = part["operationId"].as_str() {
            assert!(names.insert(name), "{name} names two operations");
            let statuses = part["responses"].as_object().unwrap().keys();
            assert!(statuses.is_sorted(), "the responses of {name} are in the order of their status");
        }
    }
    assert!(names.len() > 30, "{names:?}");
    for (kind, members) in document()["components"].as_object().unwrap() {
        for name in members.as_object().unwrap().keys().filter(|_| kind != "securitySchemes") {
            let reference = format!("#/components/{kind}/{name}");
            assert!(used.contains(reference.as_str()), "{reference} is not used");
        }
    }
}

#[test]
fn every_keyword_of_the_schemas_is_checked() {
    let mut count = 0;
    for (name, part) in parts() {
        let schemas: Vec<&Json> = match name {
            "schema" | "x-line-schema" => vec![part],
            "schemas" => part.as_object().unwrap().values().collect(),
            _ => continue,
        };
        count += schemas.len();
        for schema in schemas {
            assert_eq!(unknown_keyword(schema), None, "{schema}");
        }
    }
    assert!(count > 100, "{count} schemas");
}

#[test]
fn what_is_not_described_is_found() {
    let answer = |status, kind: &str, body: &str| HttpAnswer {
        status,
        headers: vec![("Content-Type".to_owned(), kind.to_owned())],
        body: body.as_bytes().to_vec(),
    };
    let json = "application/json;charset=utf-8";
    let good = answer(404, json, r#"{"responseCode":100,"handle":"a/b"}"#);
    assert_eq!(undescribed("GET", "/api/handles/a/b?index=1", &good), None);
    assert_eq!(undescribed("HEAD", "/api/handles/a/b", &answer(404, json, "")), None);
    let call = answer(404, "application/javascript;charset=utf-8", r#"f({"responseCode":100});"#);
    assert_eq!(undescribed("GET", "/api/handles/a/b?callback=f", &call), None);
    for (method, target, wrong) in [
        ("GET", "/api/handles/a/b", answer(418, json, "{\"responseCode\":4}")),
        ("GET", "/api/handles/a/b", answer(404, json, r#"{"responseCode":100,"hanlde":"a/b"}"#)),
        ("GET", "/api/handles/a/b", answer(404, json, r#"{"handle":"a/b"}"#)),
        ("GET", "/api/handles/a/b", answer(404, json, "no JSON")),
        ("GET", "/api/handles/a/b", answer(404, "text/html", "x")),
        ("GET", "/api/handles/a/b", answer(404, json, "")),
        ("GET", "/api/handles/a/b", answer(401, json, "{}")),
        ("GET", "/api/handles/a/b", answer(401, json, "")),
        ("GET", "/api/nothing", answer(200, json, "{}")),
        ("PUT", "/api/site", answer(200, json, "{}")),
        ("POST", "/api/batch", answer(200, "application/x-ndjson", "{\"line\":1}\n")),
        ("GET", "/a/b", answer(502, "image/png", "x")),
    ] {
        assert!(undescribed(method, target, &wrong).is_some(), "{method} {target}: {wrong:?}");
    }
    let mut unexpected = good;
    unexpected.headers.push(("Retry-After".to_owned(), "1".to_owned()));
    assert!(undescribed("GET", "/api/handles/a/b", &unexpected).is_some());
}

/// The names of the parameters of queries that these files and directories of the gateway read:
/// what the pattern of each finds as `name`.
fn parameters_read(sources: &[(&str, &str)]) -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine");
    let mut names = BTreeSet::new();
    for (source, pattern) in sources {
        let (path, pattern) = (root.join(source), Regex::new(pattern).unwrap());
        let files: Vec<PathBuf> = match path.is_dir() {
            true => std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect(),
            false => vec![path],
        };
        for file in files.iter().filter(|file| file.extension().is_some_and(|end| end == "rs")) {
            let text = std::fs::read_to_string(file).unwrap();
            // Tests stand at the end of a file.
            let code = text.split("#[cfg(test)]").next().unwrap();
            names.extend(pattern.captures_iter(code).map(|found| found["name"].to_owned()));
        }
    }
    names
}

/// The names of parameters in queries of the paths that `is_meant` selects.
fn parameters_described(is_meant: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let paths = document()["paths"].as_object().unwrap().iter().filter(|(path, _)| is_meant(path));
    let lists = paths.flat_map(|(_, item)| {
        let operations = item.as_object().unwrap().values().map(|operation| &operation["parameters"]);
        operations.chain([&item["parameters"]]).filter_map(Json::as_array).flatten()
    });
    let parameters = lists.map(|parameter| follow(document(), parameter));
    let of_query = parameters.filter(|parameter| parameter["in"] == "query");
    of_query.map(|parameter| parameter["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_parameter_that_is_read_is_described() {
    let calls = r#"parameters\s*\.(first|flag|all)\("(?<name>\w+)"\)"#;
    let read = parameters_read(&[
        ("gateway/src/api", calls),
        ("gateway/src/selection.rs", calls),
        ("gateway/src/api/listing.rs", r#"number\("(?<name>\w+)"\)"#),
        ("gateway/src/api/verifications.rs", r#""(?<name>nonce|cnonce|alg|signature)""#),
        ("client/src/administration/record_change.rs", r#"ALLOW_ORPHANS: &str = "(?<name>\w+)""#),
    ]);
    for name in ["after", "limit", "page", "prefix", "publicOnly", "doNotRefer"] {
        assert!(read.contains(name), "{name}: {read:?}");
    }
    assert_eq!(
        read,
        parameters_described(|path| path.starts_with("/api/") || path.starts_with("/hrls/")),
        "of the JSON API"
    );
    let read = parameters_read(&[("gateway/src/redirect/parameters.rs", r#""(?<name>\w+)"( if [^=]*)? =>"#)]);
    // Values of `action`.
    let values = ["showurls", "showvalues", "api", "redirect"].map(str::to_owned);
    let read: BTreeSet<String> = read.difference(&BTreeSet::from(values)).cloned().collect();
    assert_eq!(read, parameters_described(|path| path == "/{handle}"), "of the proxy");
    let queries = r#"query\s*\.(first|flag)\("(?<name>\w+)"\)"#;
    let read =
        parameters_read(&[("console/src/admin_pages", queries), ("console/src/registration", queries)]);
    let is_page = |path: &str| path.starts_with("/admin/") || path.starts_with("/register");
    assert_eq!(read, parameters_described(is_page), "of pages");
}

/// The answer to a request without a body.
fn ask(address: SocketAddr, method: &str, target: &str, headers: &str) -> HttpAnswer {
    ask_over_tls(address, method, target, headers, "")
}

/// The archive of a service with the site record of a server of the vectors.
fn site_bundle() -> Vec<u8> {
    let site = hex(&fixture("servers.json")["servers"]["root"]["site_hex"]);
    let server = Site::decode(&site).unwrap().servers.iter().next().unwrap();
    archive(&site, server.public_key, &BundleContact::default()).unwrap()
}

#[test]
fn every_route_is_served_with_its_methods_and_without_others() {
    let directory = tempfile::tempdir().unwrap();
    let set = directory.path().join("set");
    let (administration, _) = administered(&set);
    published(&set);
    let (served, _) = serve_over_http(VectorSource::Selected, "root", |config| {
        config.snapshot = Some(set.clone());
        config.admin.address = Some(administration.address());
        config.admin.socket = administration.config.local.socket.clone();
        config.admin.search = true;
        config.agencies.prefixes = vec!["10.5072 DataCite".to_owned()];
        config.pages.help_url = Some("https://example.org/".to_owned());
        config.registration.directory = Some(directory.path().join("requests"));
        config.registration.reviewers = vec!["301:0.NA/TST".to_owned()];
        use_tls(config, directory.path());
    });
    let address = served.address();
    let application = RegistrationPages { address }.stored(&[("email", "a@example.org")], &site_bundle());
    let shown = get(address, "/api/openapi.json", "");
    assert_eq!((shown.status, &shown.json()), (200, document()));
    let form = "Content-Type: application/x-www-form-urlencoded\r\nOrigin: https://localhost\r\n";
    let body = "id=301%3A0.NA%2FTST&secret=open+sesame+open";
    let sign_in = format!(
        "POST /admin/sign-in HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{form}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let signed_in = described("POST", "/admin/sign-in", &exchange_over_tls(address, sign_in.as_bytes()));
    let cookie = signed_in.header("set-cookie").expect("a session").split(';').next().unwrap();
    let cookie = format!("Cookie: {cookie}\r\n");
    for route in Route::described() {
        let target = route.path().replace("{handle}", "TST/NOTHING").replace("{names}", "10.5072");
        let target = target.replace("{token}", "token");
        let target = target.replace("{identity}", "300:0.NA/TST");
        let target = target.replace("/admin/record", "/admin/record?handle=TST/HALF");
        let target = match target.as_str() {
            "/register/request" => application.path.clone(),
            path if path.starts_with("/admin/registration") && path != "/admin/registrations" => {
                format!("{path}?id={}", application.id)
            }
            _ => target,
        };
        let is_page = matches!(route.group(), RouteGroup::Admin(_));
        for method in METHODS {
            let answer = ask(address, method, &target, &cookie);
            let is_unknown = answer.status == 405 || answer.text().contains("Unknown HTTP API endpoint");
            let is_listed = route.allowed().split(", ").any(|listed| listed == method);
            let shown = format!("{method} {target}: {} {}", answer.status, answer.text());
            match (is_listed, method) {
                (true, "GET") if is_page && route == Route::AdminSignIn => assert_eq!(answer.status, 303),
                (true, "GET") if is_page => assert_eq!(answer.status, 200, "{shown}"),
                (false, "GET") if is_page => assert_eq!(answer.status, 404, "{shown}"),
                (true, _) => assert!(!is_unknown, "{shown}"),
                // A form without the token of its page is refused, whatever its path.
                (false, "POST") if is_page => assert_eq!(answer.status, 403, "{shown}"),
                (false, _) => assert!(is_unknown || matches!(answer.status, 400 | 404), "{shown}"),
            }
        }
        let allow = ask(address, "OPTIONS", &target, "").list("allow");
        assert_eq!(allow, route.allowed(), "{target}");
    }
    assert_eq!(ask(address, "GET", "/api/openapi.yaml", "").status, 404);
}
