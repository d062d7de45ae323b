//! Changes that `handle-admin` makes only if the record is in a state that the client names, or
//! keeps an administrator: `If-Match` and `If-None-Match` of PUT and DELETE, and the administrators
//! of records that are replaced. Also what refused callers are told.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_tests::admin_server::{AdminServer, administer_with};
use handle_tests::gateway_server::{GatewayServer, HttpAnswer, ask_over_tls, get, serve_over_http, use_tls};
use handle_tests::process::until;
use handle_tests::vectors::VectorSource;
use serde_json::{Value as Json, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;

/// `301:0.NA/TST`, which has every right.
const ADMINISTRATOR: &str = "Authorization: Basic MzAxJTNBMC5OQS9UU1Q6b3BlbiBzZXNhbWUgb3Blbg==\r\n";
/// `305:0.NA/TST`, which may only read.
const READER: &str = "Authorization: Basic MzA1JTNBMC5OQS9UU1Q6cmVhZCBvbmx5IGFkbWlu\r\n";
const STRANGER: &str = "Authorization: Basic MzAxJTNBMC5OQS9UU1Q6d3Jvbmc=\r\n";

/// A gateway over the set that its administration service publishes.
struct Service {
    gateway: GatewayServer,
    _admin: AdminServer,
    _directory: TempDir,
}

impl Service {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let set = directory.path().join("set");
        std::fs::create_dir(&set).unwrap();
        let admin = administer_with("root", |config| {
            config.administrators.server.push("301:0.NA/TST".to_owned());
            config.publish.directory = Some(set.clone());
        });
        until("a set is published", || set.join("MANIFEST").exists());
        let (gateway, _) = serve_over_http(VectorSource::Own, "root", |config| {
            config.snapshot = Some(set);
            config.admin.address = Some(admin.address());
            config.admin.visible_ms = 10_000;
            use_tls(config, directory.path());
        });
        Self { gateway, _admin: admin, _directory: directory }
    }

    fn ask(&self, caller: &str, method: &str, target: &str, conditions: &str, body: &Json) -> HttpAnswer {
        let headers = format!("{caller}{conditions}Content-Type: application/json\r\n");
        let body = if method == "PUT" { body.to_string() } else { String::new() };
        ask_over_tls(self.gateway.address(), method, target, &headers, &body)
    }

    fn put(&self, name: &str, url: &str, conditions: &str) -> HttpAnswer {
        self.ask(ADMINISTRATOR, "PUT", &target(name), conditions, &record(url))
    }

    /// The value of `ETag` in an answer to GET.
    fn tag(&self, query: &str, headers: &str) -> String {
        let answer = get(self.gateway.address(), &target(query), headers);
        assert_eq!(answer.status, 200, "{query}: {}", answer.text());
        answer.header("etag").unwrap().to_owned()
    }

    fn url(&self, name: &str) -> Option<String> {
        let answer = get(self.gateway.address(), &target(name), "");
        (answer.status == 200)
            .then(|| answer.json()["values"][0]["data"]["value"].as_str().unwrap().to_owned())
    }
}

fn target(name: &str) -> String {
    format!("/api/handles/TST/{name}")
}

fn record(url: &str) -> Json {
    json!([
        { "index": 1, "type": "URL", "data": url },
        { "index": 2, "type": "DESC", "data": "not for everybody", "permissions": "1100" },
        { "index": 3, "type": "DESC", "data": "long enough to be compressed ".repeat(100) },
        administrator(100, 301),
    ])
}

/// An HS_ADMIN value at `index` with the key at `key`.
fn administrator(index: u32, key: u32) -> Json {
    let value = json!({ "handle": "0.NA/TST", "index": key, "permissions": "111111111111" });
    json!({ "index": index, "type": "HS_ADMIN", "data": { "format": "admin", "value": value } })
}

fn if_match(tag: &str) -> String {
    format!("If-Match: {tag}\r\n")
}

#[test]
fn a_record_is_created_only_if_it_is_absent() {
    let service = Service::start();
    let absent = "If-None-Match: *\r\n";
    assert_eq!(service.put("absent", "https://example.org/first", absent).status, 201);
    let refused = service.put("absent", "https://example.org/second", absent);
    assert_eq!(refused.status, 412, "{}", refused.text());
    assert_eq!(refused.json()["responseCode"], 412);
    assert!(refused.text().contains("conditional on its absence"), "{}", refused.text());
    assert_eq!(service.url("absent").unwrap(), "https://example.org/first");
    let value = json!([{ "index": 7, "type": "URL", "data": "https://example.org/7" }]);
    let values = service.ask(ADMINISTRATOR, "PUT", &target("absent?index=7"), absent, &value);
    assert_eq!(values.status, 412, "the record is there: {}", values.text());
    assert_eq!(service.ask(ADMINISTRATOR, "DELETE", &target("absent"), absent, &json!(null)).status, 412);
    assert_eq!(service.put("absent", "https://example.org/third", "").status, 200, "without a condition");
    let nothing = service.put("not-there", "https://example.org/", "If-Match: *\r\n");
    assert_eq!((nothing.status, service.url("not-there")), (412, None), "{}", nothing.text());
}

#[test]
fn a_change_of_another_state_than_the_one_read_is_refused() {
    let service = Service::start();
    assert_eq!(service.put("state", "https://example.org/1", "").status, 201);
    let read = service.tag("state", "");
    assert_eq!(service.put("state", "https://example.org/2", &if_match(&read)).status, 200);
    for (method, query) in [("PUT", "state"), ("DELETE", "state"), ("DELETE", "state?index=1")] {
        let stale =
            service.ask(ADMINISTRATOR, method, &target(query), &if_match(&read), &record("https://lost/"));
        assert_eq!(stale.status, 412, "{method} {query}: {}", stale.text());
        assert_eq!(service.url("state").unwrap(), "https://example.org/2", "{method} {query}");
    }
    let value = json!([{ "index": 1, "type": "URL", "data": "https://example.org/3" }]);
    let put_value =
        |tag: &str| service.ask(ADMINISTRATOR, "PUT", &target("state?index=1"), &if_match(tag), &value);
    assert_eq!(put_value(&read).status, 412);
    let now = service.tag("state", "");
    assert_eq!(put_value(&format!("\"other\", {now}")).status, 200);
    let unchanged = format!("If-None-Match: {}\r\n", service.tag("state", ""));
    assert_eq!(service.put("state", "https://example.org/4", &unchanged).status, 412);
    let last = if_match(&service.tag("state", ""));
    assert_eq!(service.ask(ADMINISTRATOR, "DELETE", &target("state"), &last, &json!(null)).status, 200);
    assert_eq!(service.url("state"), None);
}

#[test]
fn every_answer_with_all_public_values_has_a_tag_that_conditions_take() {
    let service = Service::start();
    assert_eq!(service.put("tagged", "https://example.org/0", "").status, 201);
    let over_tls = |query: &str, headers: &str| {
        let answer = ask_over_tls(service.gateway.address(), "GET", &target(query), headers, "");
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.header("etag").unwrap().to_owned()
    };
    let plain = service.tag("tagged", "");
    let complete = [
        plain.clone(),
        service.tag("Tagged", ""),
        service.tag("tagged?pretty", ""),
        service.tag("tagged?auth", "Accept-Encoding: gzip\r\n"),
        service.tag("tagged", "Accept-Encoding: br\r\n"),
        service.tag("tagged", "Accept-Encoding: zstd\r\n"),
        over_tls("tagged", ADMINISTRATOR),
        over_tls("tagged?publicOnly=true", ADMINISTRATOR),
    ];
    for (at, tag) in complete.iter().enumerate() {
        // The same record again, so that nothing is written and every tag stays valid.
        let same = service.put("tagged", "https://example.org/0", &if_match(tag));
        assert_eq!(same.status, 200, "{at}: {tag}: {}", same.text());
    }
    assert_ne!(complete[6], plain, "a caller is shown more");
    let filtered =
        [service.tag("tagged?index=1", ""), service.tag("tagged?type=URL&type=DESC&type=HS_ADMIN", "")];
    for tag in filtered.iter().chain([&format!("W/{plain}"), &"\"unknown\"".to_owned()]) {
        let refused = service.put("tagged", "https://example.org/0", &if_match(tag));
        assert_eq!(refused.status, 412, "{tag}: {}", refused.text());
    }
}

#[test]
fn rights_come_before_conditions() {
    let service = Service::start();
    assert_eq!(service.put("rights", "https://example.org/", "").status, 201);
    let tag = service.tag("rights", "");
    for condition in [if_match(&tag), if_match("\"stale\"")] {
        let refused = service.ask(READER, "PUT", &target("rights"), &condition, &record("https://other/"));
        assert_eq!(refused.status, 403, "{condition}: {}", refused.text());
        let wrong = service.ask(STRANGER, "PUT", &target("rights"), &condition, &record("https://other/"));
        assert_eq!(wrong.status, 401, "{condition}: {}", wrong.text());
    }
    let many = if_match(&vec!["\"x\""; 65].join(","));
    assert_eq!(service.put("rights", "https://other/", &many).status, 400);
    assert_eq!(service.url("rights").unwrap(), "https://example.org/");
}

/// Of many that read the same state, one may change it: the writer decides.
#[test]
fn of_many_changes_of_one_state_one_is_made() {
    let service = Service::start();
    assert_eq!(service.put("race", "https://example.org/0", "").status, 201);
    for round in 0..5 {
        let tag = if_match(&service.tag("race", ""));
        let made = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for rival in 0..4 {
                let (service, tag, made) = (&service, &tag, &made);
                scope.spawn(move || {
                    let url = format!("https://example.org/{round}/{rival}");
                    match service.put("race", &url, tag).status {
                        200 => drop(made.fetch_add(1, Ordering::Relaxed)),
                        status => assert_eq!(status, 412),
                    }
                });
            }
        });
        assert_eq!(made.into_inner(), 1, "round {round}");
    }
}

impl Service {
    /// The keys of the administrators of a record, by index of their values.
    fn administrators(&self, name: &str) -> Vec<(u64, u64)> {
        let target = target(&format!("{name}?type=HS_ADMIN"));
        let answer = ask_over_tls(self.gateway.address(), "GET", &target, ADMINISTRATOR, "").json();
        let of = |value: &Json| Some((value["index"].as_u64()?, value["data"]["value"]["index"].as_u64()?));
        answer["values"]
            .as_array()
            .unwrap()
            .iter()
            .map(|value| of(value).expect("an administrator"))
            .collect()
    }

    fn replace(&self, query: &str, values: &Json) -> u16 {
        let answer = self.ask(ADMINISTRATOR, "PUT", &target(query), "", values);
        if answer.status == 400 {
            assert!(answer.text().contains("last HS_ADMIN"), "{}", answer.text());
        }
        answer.status
    }
}

#[test]
fn a_record_that_is_replaced_keeps_the_administrators_that_the_request_does_not_name() {
    let service = Service::start();
    let url = |url: &str| json!({ "index": 1, "type": "URL", "data": url });
    let hidden = {
        let mut hidden = administrator(101, 302);
        hidden["permissions"] = "1100".into();
        hidden
    };
    let first = json!([url("https://example.org/0"), administrator(100, 301), hidden]);
    assert_eq!(service.put("kept", "", "").status, 201);
    assert_eq!(service.replace("kept", &first), 200);
    assert_eq!(service.replace("kept", &json!([url("https://example.org/1")])), 200);
    assert_eq!(service.url("kept").unwrap(), "https://example.org/1");
    assert_eq!(service.administrators("kept"), [(100, 301), (101, 302)]);
    assert_eq!(service.replace("kept", &json!([url("https://example.org/1"), administrator(7, 301)])), 200);
    assert_eq!(service.administrators("kept"), [(7, 301)], "the request names all administrators");
    let taken = json!([{ "index": 7, "type": "URL", "data": "https://example.org/2" }]);
    assert_eq!(service.replace("kept", &taken), 400);
    assert_eq!(service.url("kept").unwrap(), "https://example.org/1");
    assert_eq!(service.replace("kept?allow_orphans", &taken), 200);
    assert_eq!(service.administrators("kept"), []);
    // By value, as deployed: who names the index of an administrator means it.
    assert_eq!(service.replace("kept", &json!([url("https://example.org/3"), administrator(7, 301)])), 200);
    let removed = service.ask(ADMINISTRATOR, "DELETE", &target("kept?index=7"), "", &json!(null));
    assert_eq!((removed.status, service.administrators("kept")), (200, vec![]));
}

#[test]
fn data_of_predefined_types_given_as_text_are_parsed_or_refused() {
    let service = Service::start();
    let put = |name: &str, kind: &str, data: &Json| {
        let values =
            json!([{ "index": 1, "type": "URL", "data": "x" }, { "index": 9, "type": kind, "data": data }]);
        service.ask(ADMINISTRATOR, "PUT", &target(name), "", &values)
    };
    let admin = r#"{"handle":"0.NA/TST","index":301,"permissions":"011111110011"}"#;
    for (at, (kind, text, format)) in [
        ("HS_ADMIN", admin, "admin"),
        ("HS_ADMIN", "301:0.NA/TST", "admin"),
        ("HS_VLIST", "300:0.NA/TST;301:0.NA/TST", "vlist"),
        ("HS_PUBKEY", r#"{"kty":"RSA","n":"wQ","e":"AQAB"}"#, "key"),
        ("URL", "{}", "string"),
    ]
    .into_iter()
    .enumerate()
    {
        for (form, data) in
            [json!(text), json!({ "format": "string", "value": text })].into_iter().enumerate()
        {
            let name = format!("typed-{at}-{form}");
            let answer = put(&name, kind, &data);
            assert_eq!(answer.status, 201, "{kind} {data}: {}", answer.text());
            let shown = get(service.gateway.address(), &target(&name), "").json();
            assert_eq!(shown["values"][1]["data"]["format"], format, "{shown}");
        }
    }
    for kind in ["HS_ADMIN", "HS_VLIST", "HS_SITE", "HS_PUBKEY"] {
        for data in [json!("text"), json!(""), json!("{}"), json!({ "format": "string", "value": "text" })] {
            let answer = put("refused", kind, &data);
            assert_eq!(answer.status, 400, "{kind} {data}: {}", answer.text());
            assert!(answer.text().contains("values[1]: data"), "{}", answer.text());
        }
        // Bytes are taken as they are, as deployed.
        let name = format!("bytes-{kind}");
        assert_eq!(put(&name, kind, &json!({ "format": "base64", "value": "AAAA" })).status, 201, "{kind}");
    }
    assert_eq!(service.url("refused"), None);
}

#[test]
fn every_refusal_of_a_caller_says_why() {
    let service = Service::start();
    assert_eq!(service.put("refused", "https://example.org/", "").status, 201);
    let unknown = "Authorization: Basic MzAxJTNBVFNUL05PQk9EWS1IRVJFOng=\r\n";
    let malformed = "Authorization: Basic ***\r\n";
    let ended = "Authorization: Handle sessionId=\"ended\"\r\n";
    for (method, target) in [
        ("PUT", target("refused")),
        ("DELETE", target("refused")),
        ("GET", "/api/handles/TST/HALF?publicOnly=false".to_owned()),
        ("GET", "/api/handles?prefix=TST".to_owned()),
        ("GET", "/api/prefixes".to_owned()),
        ("DELETE", "/api/prefixes?prefix=0.NA/TST".to_owned()),
    ] {
        for (caller, part) in [
            (STRANGER, "Wrong secret, or unknown identity"),
            (malformed, "Credentials cannot be read"),
            (ended, "Unknown or ended session"),
            (unknown, ""),
            (READER, ""),
        ] {
            let answer = service.ask(caller, method, &target, "", &record("https://other/"));
            if (200..300).contains(&answer.status) {
                continue;
            }
            let message = answer.json()["message"].as_str().unwrap_or_default().to_owned();
            let case = format!("{method} {target} {caller}: {} {}", answer.status, answer.text());
            assert!(
                matches!(answer.status, 401 | 403) && !message.is_empty() && message.contains(part),
                "{case}"
            );
        }
    }
    let lacking = service.ask(READER, "DELETE", &target("refused"), "", &json!(null));
    assert!(lacking.text().contains("305:0.NA/TST lacks"), "{}", lacking.text());
    for (method, path) in [("GET", "/api/sessions/this"), ("DELETE", "/api/sessions/this")] {
        let answer = service.ask(ended, method, path, "", &json!(null));
        assert!(answer.status < 500 || answer.status == 501, "{}", answer.text());
    }
}
