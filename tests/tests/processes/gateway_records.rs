//! Records that `handle-gateway` changes and lists for callers: limits, and listings in parts.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use data_encoding::BASE64;
use handle_tests::admin_server::{AdminServer, administer};
use handle_tests::gateway_server::{
    GatewayServer, HttpAnswer, described, exchange_over_tls, serve_over_http, use_tls,
};
use handle_tests::vectors::VectorSource;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

/// A gateway with its administration service.
struct ServedPair {
    gateway: GatewayServer,
    _administration: AdminServer,
    _directory: TempDir,
}

impl ServedPair {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let administration = administer("root");
        let (gateway, _) = serve_over_http(VectorSource::Own, "root", |config| {
            config.admin.address = Some(administration.address());
            use_tls(config, directory.path());
        });
        Self { gateway, _administration: administration, _directory: directory }
    }

    fn ask(&self, method: &str, target: &str, body: &str) -> HttpAnswer {
        let caller = BASE64.encode(b"301%3A0.NA/TST:open sesame open");
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Basic {caller}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        described(method, target, &exchange_over_tls(self.gateway.address(), request.as_bytes()))
    }

    fn list(&self, query: &str) -> Json {
        let answer = self.ask("GET", &format!("/api/handles?prefix=TST{query}"), "");
        assert_eq!(answer.status, 200, "{query}: {}", answer.text());
        answer.json()
    }
}

fn names(listing: &Json) -> Vec<&str> {
    listing["handles"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect()
}

#[test]
fn a_record_that_no_message_can_carry_is_refused_as_too_long() {
    let pair = ServedPair::start();
    let put = |len: usize| {
        let body = json!([{ "index": 1, "type": "DESC", "data": "x".repeat(len) }]).to_string();
        pair.ask("PUT", "/api/handles/TST/LONG", &body)
    };
    let stored = put(250_000);
    assert_eq!(stored.status, 201, "{}", stored.text());
    let refused = put(263_000);
    assert_eq!((refused.status, refused.json()["responseCode"].as_i64()), (400, Some(202)));
    assert!(refused.header("retry-after").is_none(), "it would be too long again");
}

#[test]
fn a_listing_is_read_in_parts_by_the_last_name_of_each() {
    let pair = ServedPair::start();
    let whole = pair.list("");
    let all = names(&whole);
    assert!(all.len() > 20, "{}", all.len());
    assert!(whole.get("next").is_none() && whole.get("limit").is_none());
    let (mut found, mut query) = (Vec::new(), "&limit=7".to_owned());
    loop {
        let part = pair.list(&query);
        assert_eq!((&part["totalCount"], &part["limit"]), (&whole["totalCount"], &json!(7)));
        found.extend(names(&part).iter().map(|&name| name.to_owned()));
        let Some(next) = part["next"].as_str() else { break };
        assert_eq!(names(&part).len(), 7);
        let next: String = next.bytes().map(|byte| format!("%{byte:02X}")).collect();
        query = format!("&limit=7&after={next}");
    }
    assert_eq!(found, all);
    assert_eq!(names(&pair.list("&after=")), all, "from the start");
    for bad in ["&limit=0", "&limit=-1", "&limit=x", "&limit=1048576"] {
        let answer = pair.ask("GET", &format!("/api/handles?prefix=TST{bad}"), "");
        assert_eq!((answer.status, answer.json()["responseCode"].as_i64()), (400, Some(4)), "{bad}");
    }
    let most = pair.list("&limit=1048575");
    assert_eq!(names(&most), all);
}
