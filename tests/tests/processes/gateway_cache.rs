//! `handle-gateway` with a `handle-cache` between it and other services, named by
//! `upstream.resolver_site`.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use super::gateway::front_of;
use handle_gateway::Gateway;
use handle_proto::Value;
use handle_proto::value::Ttl;
use handle_tests::cache_server::TestCache;
use handle_tests::gateway_server::get;
use handle_tests::upstream_server::{AnswerManner, UpstreamServer};
use std::time::Duration;
use tempfile::TempDir;

/// A caching server, and a directory for the site record that names it.
struct CacheInFront {
    cache: TestCache,
    directory: TempDir,
}

impl CacheInFront {
    fn start(upstream: &UpstreamServer) -> Self {
        let cache = TestCache::of(upstream.address, |_| ());
        Self { cache, directory: tempfile::tempdir().unwrap() }
    }

    /// A gateway that asks the cache about every handle.
    fn gateway(&self) -> Gateway {
        front_of(self.cache.address(), self.directory.path())
    }
}

fn value(index: i32, target: &str) -> Value<'_> {
    Value { ttl: Ttl::relative(1000), ..Value::new(index, b"URL", target.as_bytes()) }
}

/// Status of the JSON API for a handle, and the data of its first value.
fn first_value(gateway: &Gateway, target: &str) -> (u16, String) {
    let answer = get(gateway.addresses()[0], target, "");
    let data = match answer.status {
        200 => answer.json()["values"][0]["data"]["value"].as_str().unwrap().to_owned(),
        _ => String::new(),
    };
    (answer.status, data)
}

fn found(target: &str) -> (u16, String) {
    (200, target.to_owned())
}

#[test]
fn gateways_share_what_a_cache_has_asked_for() {
    let upstream = UpstreamServer::start();
    upstream.set("10.1/x", &[value(1, "https://one.example/")]);
    let cache = CacheInFront::start(&upstream);
    let gateways = [cache.gateway(), cache.gateway()];
    let mut asked = vec![];
    for gateway in &gateways {
        assert_eq!(first_value(gateway, "/api/handles/10.1/x"), found("https://one.example/"));
        let redirect = get(gateway.addresses()[0], "/10.1/x", "");
        assert_eq!((redirect.status, redirect.header("location")), (302, Some("https://one.example/")));
        assert_eq!(get(gateway.addresses()[0], "/api/handles/10.1/none", "").status, 404);
        asked.push((upstream.asked(), cache.cache.count("misses")));
    }
    assert_eq!(asked[0], asked[1], "the second gateway asks for nothing that the cache does not have");
    assert!(asked[0].1 >= 2 && cache.cache.count("hits") >= 2, "{asked:?}");
    // Browsers and caches behind the gateway get what is left of the TTL in the cache.
    std::thread::sleep(Duration::from_millis(2100));
    let late = get(cache.gateway().addresses()[0], "/api/handles/10.1/x", "");
    let max_age = late.header("cache-control").unwrap().strip_prefix("max-age=").unwrap();
    assert!(max_age.parse::<u32>().unwrap() < 1000, "{max_age}");
}

#[test]
fn a_gateway_gets_long_records_and_fresh_ones_through_a_cache() {
    let upstream = UpstreamServer::start();
    let texts: Vec<String> =
        (0..100).map(|n| format!("https://one.example/{n}{}", "x".repeat(200))).collect();
    let values: Vec<Value<'_>> = (1..).zip(&texts).map(|(index, text)| value(index, text)).collect();
    upstream.set("10.1/long", &values);
    upstream.set("10.1/x", &[value(1, "https://one.example/")]);
    let cache = CacheInFront::start(&upstream);
    let [one, two] = [cache.gateway(), cache.gateway()];
    let long = get(one.addresses()[0], "/api/handles/10.1/long", "").json();
    assert_eq!(long["values"].as_array().unwrap().len(), 100, "{long}");
    assert_eq!(first_value(&one, "/api/handles/10.1/x"), found("https://one.example/"));
    upstream.set("10.1/x", &[value(1, "https://two.example/")]);
    assert_eq!(first_value(&one, "/api/handles/10.1/x"), found("https://one.example/"), "cached");
    assert_eq!(first_value(&one, "/api/handles/10.1/x?auth"), found("https://two.example/"), "asked again");
    assert_eq!(
        first_value(&two, "/api/handles/10.1/x"),
        found("https://two.example/"),
        "replaced in the cache"
    );
}

#[test]
fn a_new_gateway_answers_from_the_cache_when_no_service_does() {
    let upstream = UpstreamServer::start();
    upstream.set("10.1/x", &[value(1, "https://one.example/")]);
    let cache = CacheInFront::start(&upstream);
    assert_eq!(first_value(&cache.gateway(), "/api/handles/10.1/x"), found("https://one.example/"));
    upstream.behave(AnswerManner::Silent);
    let new = cache.gateway();
    assert_eq!(first_value(&new, "/api/handles/10.1/x"), found("https://one.example/"));
    let (status, _) = first_value(&new, "/api/handles/10.1/unknown");
    assert!(matches!(status, 502 | 504), "{status}");
}
