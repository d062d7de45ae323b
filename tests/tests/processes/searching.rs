//! Handles are found by their public values: with `hdl find`, and at `/hrls/handles` by callers who
//! may list them.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::gateway_batch::{ADMINISTRATOR, administered, gateway_at};
use handle_proto::{Permissions, Value, Values};
use handle_tests::admin_server::AdminServer;
use handle_tests::daemon::ask as ask_control;
use handle_tests::gateway_server::{GatewayServer, HttpAnswer, ask_over_tls};
use handle_tests::process::{fail, hdl, succeed, until};
use serde_json::{Value as Json, json};
use std::path::PathBuf;
use std::process::Command;

/// `305:0.NA/TST`, which may not list.
const READER: &str = "Basic MzA1JTNBMC5OQS9UU1Q6cmVhZCBvbmx5IGFkbWlu";
/// `301:0.NA/TST` with a wrong secret.
const WRONG: &str = "Basic MzAxJTNBMC5OQS9UU1Q6d3Jvbmc=";

struct SearchService {
    admin: AdminServer,
    gateway: GatewayServer,
}

impl SearchService {
    /// A service whose index of URLs and checksums is complete.
    fn start(change: impl FnOnce(&mut handle_admin::config::Config)) -> Self {
        let admin = administered(|config| {
            config.control = Some(config.store.file.with_file_name("control.sock"));
            config.index.types = vec!["URL".to_owned(), "checksum".to_owned()];
            change(config);
        });
        let socket = admin.config.local.socket.clone().unwrap();
        let gateway = gateway_at(socket, |config| {
            config.admin.search = true;
            config.admin.address = Some(admin.address());
        });
        let service = Self { admin, gateway };
        service.put("TST/found-1", "https://found.example/1", Permissions::DEFAULT);
        service.put("TST/found-2", "https://found.example/2", Permissions::DEFAULT);
        service.put("TST/hidden", "https://found.example/3", Permissions::ADMIN_READ);
        // A prefix of others.
        service.put("10.999/found-4", "https://found.example/4", Permissions::DEFAULT);
        until("the index is complete", || {
            let status = ask_control(&service.control(), "status");
            let index = status["index"].as_array().unwrap();
            index.len() == 2 && index.iter().all(|it| it["state"] == "complete")
        });
        service
    }

    fn control(&self) -> PathBuf {
        self.admin.config.control.clone().unwrap()
    }

    fn put(&self, handle: &str, url: &str, permissions: Permissions) {
        let (handle, url) = (handle_store::key(handle.as_bytes(), true), url.to_owned());
        let put = move |transaction: &mut handle_store::Transaction<'_>| {
            let url = Value { permissions, ..Value::new(1, b"URL", url.as_bytes()) };
            let mut storage = Vec::new();
            let values = Values::build([url, Value::new(2, b"CHECKSUM", b"99")], &mut storage);
            transaction.put(&handle, values)
        };
        self.admin.server().shared().service.store.change(put).unwrap();
    }

    fn find(&self, arguments: &[&str]) -> Command {
        let mut command = hdl(["find", "--socket"]);
        command.arg(self.control()).args(arguments);
        command
    }

    fn search(&self, caller: &str, query: &str) -> HttpAnswer {
        let header = if caller.is_empty() { String::new() } else { format!("Authorization: {caller}\r\n") };
        ask_over_tls(self.gateway.address(), "GET", &format!("/hrls/handles?{query}"), &header, "")
    }

    fn found(&self, query: &str) -> Json {
        let answer = self.search(ADMINISTRATOR, query);
        assert_eq!(answer.status, 200, "{query}: {}", answer.text());
        answer.json()
    }
}

#[test]
fn the_owner_of_the_control_socket_finds_all_handles() {
    let service = SearchService::start(|_| ());
    let lines = |arguments: &[&str]| succeed(service.find(arguments));
    assert_eq!(lines(&["type=URL", "value=https://found.example/1"]), "TST/FOUND-1\n");
    assert_eq!(
        lines(&["url=https://found.example/*", "CHECKSUM=99"]),
        "10.999/FOUND-4\nTST/FOUND-1\nTST/FOUND-2\n",
        "by the index of checksums"
    );
    assert_eq!(lines(&["URL=https://found.example/*", "--prefix", "10.999"]), "10.999/FOUND-4\n");
    let first = succeed(service.find(&["URL=https://found.example/*", "--limit", "1", "--json"]));
    let first: Json = serde_json::from_str(&first).unwrap();
    assert_eq!(first["handles"], json!(["TST/FOUND-1"]));
    let next = first["next"].as_str().unwrap();
    assert_eq!(lines(&["URL=https://found.example/*", "--after", next]), "TST/FOUND-2\n10.999/FOUND-4\n");
    let (code, text) = fail(service.find(&["URL=https://found.example/*", "--limit", "2"]));
    assert!(code == 0 && text.contains("there may be more: --after "), "{text}");
    assert_eq!(fail(service.find(&["URL=https://found.example/3"])), (3, String::new()), "it is not public");
    let (code, text) = fail(service.find(&["EMAIL=a@b"]));
    assert!(code == 6 && text.contains("EMAIL are not indexed"), "{text}");
    let (code, text) = fail(service.find(&["URL=*", "--after", "x"]));
    assert!(code == 6 && text.contains("after"), "{text}");
    let (code, text) = fail(service.find(&["URL"]));
    assert!(code == 2 && text.contains("is not TYPE=VALUE"), "{text}");
    assert!(ask_control(&service.control(), "find {}")["error"].as_str().unwrap().contains("where"));
}

#[test]
fn callers_find_what_they_may_list_in_pages() {
    let service = SearchService::start(|_| ());
    assert_eq!(service.found("URL=https://found.example/*"), json!(["TST/FOUND-1", "TST/FOUND-2"]));
    assert_eq!(service.found("URL=https://found.example/2&CHECKSUM=99"), json!(["TST/FOUND-2"]));
    assert_eq!(service.found("URL=https://found.example/*&CHECKSUM=98"), json!([]));
    assert_eq!(service.found("URL=*found.example*&prefix=TST"), json!(["TST/FOUND-1", "TST/FOUND-2"]));
    assert_eq!(service.found("URL=*found.example*&prefix=10.999"), json!([]));
    for (page, expected) in [(0, json!(["TST/FOUND-1"])), (1, json!(["TST/FOUND-2"])), (2, json!([]))] {
        let query = format!("URL=https://found.example/*&limit=1&page={page}");
        assert_eq!(service.found(&query), expected);
    }
    let reader = service.search(READER, "URL=https://found.example/*");
    assert_eq!((reader.status, reader.json()), (200, json!([])), "may not list");
    let slash = ask_over_tls(
        service.gateway.address(),
        "HEAD",
        "/hrls/handles/?URL=x",
        &format!("Authorization: {ADMINISTRATOR}\r\n"),
        "",
    );
    assert_eq!(slash.status, 200, "with a slash at the end, as pyhandle may be configured");
}

#[test]
fn a_search_without_capacity_for_its_answer_is_refused_before_it_is_made() {
    let service = SearchService::start(|_| ());
    let state = service.gateway.gateway.state();
    let searches = || service.admin.server().shared().service.counters.searches.get();
    let query = "URL=https://found.example/*&limit=1000";
    assert_eq!(service.found(query), json!(["TST/FOUND-1", "TST/FOUND-2"]));
    let made = searches();
    let limits = state.settings.current().limits.answers().bytes;
    let mut unread = state.answers.reservation(std::net::Ipv4Addr::LOCALHOST.into());
    let others = limits.per_holder - 24_000;
    assert!(unread.add(others, limits).is_ok(), "as by other answers that are not read");
    for more in ["", "&retrieverecords=true"] {
        let refused = service.search(ADMINISTRATOR, &format!("{query}{more}"));
        assert_eq!((refused.status, refused.json()["responseCode"].as_i64()), (503, Some(3)), "{more}");
    }
    assert_eq!(searches(), made, "handle-admin was not asked");
    assert_eq!(service.found("URL=https://found.example/*&limit=10"), json!(["TST/FOUND-1", "TST/FOUND-2"]));
    drop(unread);
    assert_eq!(service.found(query), json!(["TST/FOUND-1", "TST/FOUND-2"]));
}

#[test]
fn searches_without_rights_and_wrong_ones_are_refused() {
    let service = SearchService::start(|_| ());
    let query = "URL=https://found.example/*";
    let anonymous = service.search("", query);
    assert_eq!(anonymous.status, 401);
    assert!(anonymous.list("www-authenticate").contains("Basic"));
    let wrong = service.search(WRONG, query);
    assert_eq!((wrong.status, wrong.json()["responseCode"].as_i64()), (401, Some(403)));
    assert!(wrong.text().contains("Wrong secret, or unknown identity"), "{}", wrong.text());
    for (query, status, part) in [
        ("", 400, "No values to find"),
        ("EMAIL=x", 501, "EMAIL are not indexed"),
        ("URL=x&limit=0", 400, "a page ends within 100000"),
        ("URL=x&limit=50000&page=1", 200, "[]"),
        ("URL=x&limit=200000", 200, "[]"),
        ("URL=x&limit=200000&page=1", 400, "a page ends within 100000"),
        ("URL=x&retrieveRecords=true", 400, "retrieveRecords is neither a parameter"),
        ("URL=x&offset=3", 400, "types with an index: URL, checksum"),
        ("URL=x&HS_ADMIN=*&21.T11148/abc=1", 200, "[]"),
        ("URL=x&limit=50000&page=2", 400, "a page ends within 100000"),
        ("URL=x&limit=x", 400, "not a number"),
        ("URL=*****", 400, "at most 4 stars"),
    ] {
        let answer = service.search(ADMINISTRATOR, query);
        assert_eq!(answer.status, status, "{query}: {}", answer.text());
        assert!(answer.text().contains(part), "{query}: {}", answer.text());
    }
    let header = format!("Authorization: {ADMINISTRATOR}\r\n");
    let posted = ask_over_tls(service.gateway.address(), "POST", "/hrls/handles?URL=x", &header, "");
    assert_eq!((posted.status, posted.header("allow")), (405, Some("GET, HEAD, OPTIONS")));
}

#[test]
fn a_search_has_bounds_and_can_be_open_to_everybody() {
    let service = SearchService::start(|config| {
        config.index.open = true;
        config.index.values = 1;
    });
    let found = service.search("", "URL=https://found.example/*");
    assert_eq!(found.json(), json!(["TST/FOUND-1", "TST/FOUND-2", "10.999/FOUND-4"]), "one value at a time");
    for number in 0..210 {
        service.put(&format!("TST/many-{number}"), "https://many.example/", Permissions::DEFAULT);
    }
    let refused = service.search("", "URL=https://many.example/&EMAIL=x");
    assert!(refused.status == 400 && refused.text().contains("too many values"), "{}", refused.text());
    let few = SearchService::start(|_| ());
    for number in 0..99 {
        few.put(&format!("10.2.{number}/found"), "https://found.example/5", Permissions::DEFAULT);
    }
    let refused = few.search(ADMINISTRATOR, "URL=https://found.example/*");
    assert!(refused.status == 400 && refused.text().contains("more than 100 prefixes"), "{}", refused.text());
    assert_eq!(few.found("URL=https://found.example/*&prefix=TST").as_array().unwrap().len(), 2);
}

#[test]
fn records_are_found_with_their_handles() {
    let service = SearchService::start(|_| ());
    let found = service.found("URL=https://found.example/*&retrieverecords=true");
    let handles: Vec<&String> = found.as_object().unwrap().keys().collect();
    assert_eq!(handles, ["TST/FOUND-1", "TST/FOUND-2"]);
    let values = json!([
        { "index": 1, "type": "URL", "value": "https://found.example/1" },
        { "index": 2, "type": "CHECKSUM", "value": "99" },
    ]);
    assert_eq!(found["TST/FOUND-1"], values);
    assert_eq!(service.found("URL=https://none.example/&retrieverecords"), json!({}));
    let few = service.found("URL=https://found.example/*&retrieverecords=true&limit=1");
    assert_eq!(few.as_object().unwrap().len(), 1);
    let no = service.found("URL=https://found.example/1&retrieverecords=false");
    assert_eq!(no, json!(["TST/FOUND-1"]));
}

#[test]
fn the_paths_of_reverse_lookup_are_those_of_deployed_servers() {
    let service = SearchService::start(|_| ());
    let ask = |target: &str, caller: &str| {
        let header = if caller.is_empty() { String::new() } else { format!("Authorization: {caller}\r\n") };
        ask_over_tls(service.gateway.address(), "GET", target, &header, "")
    };
    let of_prefix = ask("/hrls/handles/TST?URL=https://found.example/*", ADMINISTRATOR);
    assert_eq!((of_prefix.status, of_prefix.json()), (200, json!(["TST/FOUND-1", "TST/FOUND-2"])));
    assert_eq!(ask("/hrls/handles/10.999?URL=https://found.example/*", ADMINISTRATOR).json(), json!([]));
    let ping = ask("/hrls/ping", ADMINISTRATOR);
    assert_eq!((ping.status, ping.text()), (200, "OK\n".to_owned()));
    assert_eq!([ask("/hrls/ping", "").status, ask("/hrls/ping", WRONG).status], [401, 401]);
    let open = SearchService::start(|config| config.index.open = true);
    let ping = ask_over_tls(open.gateway.address(), "GET", "/hrls/ping", "", "");
    assert_eq!((ping.status, ping.text()), (200, "OK\n".to_owned()), "everybody may search");
    let silent = gateway_at(service.admin.config.local.socket.clone().unwrap(), |_| ());
    for target in ["/hrls/handles?URL=x", "/hrls/handles/TST?URL=x", "/hrls/ping"] {
        let off = ask_over_tls(silent.address(), "GET", target, "", "");
        assert_eq!(
            (off.status, off.json()["responseCode"].as_i64()),
            (501, Some(5)),
            "{target}: {}",
            off.text()
        );
    }
}
