//! `handle-cache` from outside: what it answers, whom it asks, and what happens when those are
//! slow, dead or lying.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_cache::Config;
use handle_cache::entry::{AnswerTtl, set_ttl};
use handle_cache::program::CacheStartup;
use handle_proto::value::Ttl;
use handle_proto::wire::list::{Indexes, Strings, Values};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Body, Envelope, Header, Message, Reply, Request, Response};
use handle_proto::{OpCode, OpFlags, Permissions, ResponseCode, Value, Version};
use handle_tests::cache_server::{TestCache, code, config};
use handle_tests::client::{ReceivedReply, TestClient, exchange, exchange_over_tcp, request};
use handle_tests::liar::{ForgedAnswer, LiarServer, site_at};
use handle_tests::process::until;
use handle_tests::session::{ClientSession, NOBODY, pair, set_up_request};
use handle_tests::test_server::{serve, server_key, write_key_file};
use handle_tests::upstream_server::{AnswerManner, UpstreamServer};
use handle_tests::vectors::{self, VectorSource};
use handle_worker::config::Datapath;
use handle_worker::slow::config::ServerKeyConfig;
use serde_json::Value as Json;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

fn start(upstream: &UpstreamServer) -> TestCache {
    TestCache::of(upstream.address, |_| {})
}

fn url(target: &'static str) -> Value<'static> {
    Value::new(1, b"URL", target.as_bytes())
}

fn with_ttl(value: Value<'static>, ttl_s: i32) -> Value<'static> {
    Value { ttl: Ttl::relative(ttl_s), ..value }
}

/// The data of the values of an answer.
fn data(reply: &ReceivedReply) -> Vec<String> {
    let values = Values::from_encoded(reply.values_count, &reply.values).unwrap();
    values.iter().map(|value| String::from_utf8_lossy(value.data).into_owned()).collect()
}

/// The TTL of the first value.
fn ttl_s(reply: &ReceivedReply) -> i32 {
    Values::from_encoded(reply.values_count, &reply.values).unwrap().iter().next().unwrap().ttl.seconds
}

#[test]
fn one_question_serves_all_that_ask_for_any_values_in_any_spelling_of_the_prefix() {
    let upstream = UpstreamServer::start();
    upstream.set("Abc/x", &[url("https://one.example/"), Value::new(2, b"EMAIL", b"a@a.example")]);
    let cache = start(&upstream);
    for handle in ["Abc/x", "aBC/x", "ABC/x"] {
        let reply = cache.resolve(handle);
        assert_eq!((reply.code, reply.handle), (ResponseCode::SUCCESS, handle.as_bytes().to_vec()));
        assert_eq!(reply.values_count, 2);
    }
    let one = cache.ask("abc/x", &[2], OpFlags::PLAIN_REQUEST);
    assert_eq!(code(&one), ResponseCode::SUCCESS);
    assert!(one.windows(11).any(|window| window == b"a@a.example"));
    assert_eq!(code(&cache.ask("abc/x", &[9], OpFlags::PLAIN_REQUEST)), ResponseCode::VALUES_NOT_FOUND);
    let over_tcp = exchange_over_tcp(cache.address(), &request(b"abc/x", 9)).unwrap();
    assert_eq!(code(&over_tcp), ResponseCode::SUCCESS);
    assert_eq!(upstream.asked(), 1);
    assert_eq!((cache.count("hits"), cache.count("misses"), cache.count("entries")), (5, 1, 1));
    // The suffix may matter: the service decides.
    assert_eq!(cache.resolve("abc/X").code, ResponseCode::SUCCESS);
    assert_eq!(upstream.asked(), 2);
}

#[test]
fn what_does_not_change_by_waiting_is_not_said_to_be_busy() {
    for (said, expected) in [
        (ResponseCode::SERVER_NOT_RESPONSIBLE, ResponseCode::SERVER_NOT_RESPONSIBLE),
        (ResponseCode::SERVER_BUSY, ResponseCode::SERVER_BUSY),
    ] {
        let upstream = UpstreamServer::start();
        upstream.behave(AnswerManner::Code(said));
        let cache = start(&upstream);
        // Also while the failure is remembered.
        for _ in 0..2 {
            assert_eq!(cache.resolve("10.1/elsewhere").code, expected, "{said:?}");
        }
    }
}

#[test]
fn the_time_to_live_counts_down_and_ends() {
    let upstream = UpstreamServer::start();
    upstream.set("10.1/long", &[with_ttl(url("https://one.example/"), 100)]);
    upstream.set("10.1/short", &[with_ttl(url("https://one.example/"), 1)]);
    upstream.set("10.1/never", &[with_ttl(url("https://one.example/"), 0)]);
    let cache = start(&upstream);
    assert_eq!(ttl_s(&cache.resolve("10.1/long")), 100);
    assert_eq!(ttl_s(&cache.resolve("10.1/short")), 1);
    std::thread::sleep(Duration::from_millis(2100));
    let left_s = ttl_s(&cache.resolve("10.1/long"));
    assert!((90..=98).contains(&left_s), "{left_s}");
    let asked = upstream.asked();
    upstream.set("10.1/short", &[with_ttl(url("https://two.example/"), 1)]);
    assert_eq!(data(&cache.resolve("10.1/short")), ["https://two.example/"]);
    assert_eq!(upstream.asked(), asked + 1);
    // A value for this answer only.
    for _ in 0..2 {
        assert_eq!(ttl_s(&cache.resolve("10.1/never")), 0);
    }
    assert_eq!(upstream.asked(), asked + 3);
    assert_eq!(cache.count("not_stored"), 2);
}

#[test]
fn negative_answers_are_kept_for_their_own_time() {
    let upstream = UpstreamServer::start();
    upstream.set("10.1/empty", &[]);
    let cache = TestCache::of(upstream.address, |config| config.cache.negative_s = 1);
    for _ in 0..3 {
        assert_eq!(cache.resolve("10.1/none").code, ResponseCode::HANDLE_NOT_FOUND);
        assert_eq!(cache.resolve("10.1/empty").code, ResponseCode::VALUES_NOT_FOUND);
    }
    let asked = upstream.asked();
    assert!((2..=4).contains(&asked), "{asked} datagrams, with a second that may have passed");
    std::thread::sleep(Duration::from_millis(2100));
    upstream.set("10.1/none", &[url("https://new.example/")]);
    assert_eq!(data(&cache.resolve("10.1/none")), ["https://new.example/"]);
}

#[test]
fn a_record_in_the_last_tenth_of_its_time_is_renewed_before_it_ends() {
    let upstream = UpstreamServer::start();
    upstream.set("10.1/x", &[with_ttl(url("https://one.example/"), 10)]);
    let cache = start(&upstream);
    // One question, and twice from the cache: a name that is asked for often.
    (0..3).for_each(|_| assert!((9..=10).contains(&ttl_s(&cache.resolve("10.1/x")))));
    upstream.set("10.1/x", &[with_ttl(url("https://two.example/"), 10)]);
    upstream.behave(AnswerManner::Slow(Duration::from_millis(100)));
    std::thread::sleep(Duration::from_millis(9100));
    let begun = Instant::now();
    let reply = cache.resolve("10.1/x");
    // If the clock of seconds has turned once more, the record has just ended.
    if data(&reply) == ["https://one.example/"] {
        assert!(begun.elapsed() < Duration::from_millis(90), "nobody waits for the renewal");
        until("the renewal", || data(&cache.resolve("10.1/x")) == ["https://two.example/"]);
        assert_eq!(cache.count("renewals"), 1);
    }
}

#[test]
fn expired_records_are_shown_while_nobody_answers_and_new_ones_soon_after() {
    let upstream = UpstreamServer::start();
    upstream.set("10.1/x", &[with_ttl(url("https://one.example/"), 1)]);
    let cache = TestCache::of(upstream.address, |config| {
        config.upstream.timeout_ms = 600;
        config.cache.stale_after_ms = 100;
    });
    assert_eq!(data(&cache.resolve("10.1/x")), ["https://one.example/"]);
    upstream.behave(AnswerManner::Silent);
    std::thread::sleep(Duration::from_millis(2100));
    let begun = Instant::now();
    let stale = cache.resolve("10.1/x");
    assert_eq!((data(&stale), ttl_s(&stale)), (vec!["https://one.example/".to_owned()], 30));
    assert!(begun.elapsed() < Duration::from_millis(550), "before the question has failed");
    // From now on no request waits, and other names fail within the time limit.
    for _ in 0..10 {
        let begun = Instant::now();
        assert_eq!(ttl_s(&cache.resolve("10.1/x")), 30);
        assert!(begun.elapsed() < Duration::from_millis(90));
    }
    let begun = Instant::now();
    assert_eq!(cache.resolve("10.1/other").code, ResponseCode::SERVER_BUSY);
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert!(cache.count("stale_answers") >= 11 && cache.count("failures") >= 1);
    upstream.set("10.1/x", &[with_ttl(url("https://two.example/"), 1)]);
    upstream.set("10.1/other", &[url("https://other.example/")]);
    upstream.behave(AnswerManner::Honest);
    let returned = Instant::now();
    until("the new record", || data(&cache.resolve("10.1/x")) == ["https://two.example/"]);
    assert!(returned.elapsed() < Duration::from_secs(3), "{:?}", returned.elapsed());
    until("the other record", || cache.resolve("10.1/other").code == ResponseCode::SUCCESS);
}

#[test]
fn a_dead_service_is_asked_by_few_and_others_are_answered_meanwhile() {
    let upstream = UpstreamServer::start();
    let cache = TestCache::of(upstream.address, |config| {
        (config.upstream.timeout_ms, config.upstream.failure_ms) = (300, 60_000);
    });
    upstream.behave(AnswerManner::Silent);
    for n in 0..3 {
        assert_eq!(cache.resolve(&format!("10.1/{n}")).code, ResponseCode::SERVER_BUSY);
    }
    let (asked, begun) = (cache.count("questions"), Instant::now());
    for n in 3..50 {
        assert_eq!(cache.resolve(&format!("10.1/{n}")).code, ResponseCode::SERVER_BUSY);
    }
    assert!(begun.elapsed() < Duration::from_secs(3), "nobody waits");
    assert_eq!((cache.count("questions"), cache.count("questions_refused")), (asked, 47));
    upstream.set("10.2/x", &[url("https://one.example/")]);
    upstream.behave(AnswerManner::Honest);
    assert_eq!(data(&cache.resolve("10.2/x")), ["https://one.example/"], "another prefix");
}

#[test]
fn expired_records_are_not_shown_beyond_their_bound() {
    let upstream = UpstreamServer::start();
    upstream.set("10.1/x", &[with_ttl(url("https://one.example/"), 1)]);
    let cache = TestCache::of(upstream.address, |config| {
        config.upstream.timeout_ms = 300;
        (config.cache.stale_after_ms, config.cache.stale_s) = (50, 1);
    });
    assert_eq!(cache.resolve("10.1/x").code, ResponseCode::SUCCESS);
    upstream.behave(AnswerManner::Silent);
    std::thread::sleep(Duration::from_millis(3100));
    assert_eq!(cache.resolve("10.1/x").code, ResponseCode::SERVER_BUSY);
}

#[test]
fn what_was_not_asked_or_comes_from_elsewhere_does_not_enter() {
    let upstream = UpstreamServer::start();
    upstream.set("10.1/x", &[url("https://true.example/")]);
    let cache = TestCache::of(upstream.address, |config| {
        (config.upstream.timeout_ms, config.upstream.failure_ms) = (700, 0);
    });
    for manner in [
        AnswerManner::OtherPort,
        AnswerManner::OtherId,
        AnswerManner::OtherHandle,
        AnswerManner::Garbage,
        AnswerManner::Truncated,
        AnswerManner::Code(ResponseCode::ERROR),
    ] {
        upstream.behave(manner);
        assert_eq!(cache.resolve("10.1/x").code, ResponseCode::SERVER_BUSY, "{manner:?}");
        assert_eq!(cache.count("entries"), 0, "{manner:?}");
    }
    upstream.behave(AnswerManner::Honest);
    assert_eq!(data(&cache.resolve("10.1/x")), ["https://true.example/"]);
}

#[test]
fn private_values_never_enter() {
    let upstream = UpstreamServer::start();
    let private = Value { permissions: Permissions::ADMIN_READ, ..Value::new(2, b"KEY", b"secret") };
    upstream.set("10.1/x", &[url("https://one.example/"), private]);
    let cache = start(&upstream);
    for _ in 0..2 {
        assert_eq!(data(&cache.resolve("10.1/x")), ["https://one.example/"]);
        let asked_for = cache.ask("10.1/x", &[2], OpFlags::PLAIN_REQUEST);
        assert_eq!(code(&asked_for), ResponseCode::VALUES_NOT_FOUND);
    }
    assert!(!cache.run("cache-get 10.1/x").to_string().contains("secret"));
    // Only the responsible service can challenge the client.
    let all = cache.ask("10.1/x", &[], OpFlags::PLAIN_REQUEST.without(OpFlags::PUBLIC_ONLY));
    assert_eq!(code(&all), ResponseCode::SERVER_NOT_RESPONSIBLE);
}

#[test]
fn an_authoritative_request_passes_the_cache_and_renews_it() {
    let upstream = UpstreamServer::start();
    upstream.set("10.1/x", &[url("https://one.example/")]);
    let cache = start(&upstream);
    let _ = cache.resolve("10.1/x");
    upstream.set("10.1/x", &[url("https://two.example/")]);
    assert_eq!(data(&cache.resolve("10.1/x")), ["https://one.example/"]);
    let answer = cache.ask("10.1/x", &[], OpFlags::PLAIN_REQUEST.with(OpFlags::AUTHORITATIVE));
    let (header, _) = Header::split(&answer[Envelope::LEN..]).unwrap();
    assert!(answer.windows(20).any(|window| window == b"https://two.example/"));
    assert!(!header.flags.has(OpFlags::AUTHORITATIVE), "the cache has no authority");
    assert_eq!(data(&cache.resolve("10.1/x")), ["https://two.example/"]);
}

#[test]
fn an_operator_sees_and_removes_what_is_known() {
    let upstream = UpstreamServer::start();
    for handle in ["10.1/x", "10.1/y", "10.2/x"] {
        upstream.set(handle, &[url("https://one.example/")]);
    }
    let cache = start(&upstream);
    for handle in ["10.1/x", "10.1/X", "10.1/y", "10.2/x", "10.2/none"] {
        let _ = cache.resolve(handle);
    }
    let shown = cache.run("cache-get 10.1/x");
    assert_eq!(shown["entries"].as_array().unwrap().len(), 2, "{shown}");
    assert_eq!(shown["entries"][0]["values"][0]["data"], "https://one.example/");
    assert_eq!(cache.run("cache-get 10.2/none")["entries"][0]["exists"], false);
    assert_eq!(cache.run("cache-purge 10.1/x")["removed"], 2);
    assert_eq!(cache.run("cache-get 10.1/x")["entries"], serde_json::json!([]));
    assert_eq!(cache.run("cache-purge 10.2/")["removed"], 2);
    assert_eq!(cache.count("entries"), 1);
    assert_eq!(cache.run("cache-purge-all")["removed"], 1);
    assert_eq!((cache.count("entries"), cache.count("purged")), (0, 5));
    assert_eq!(cache.run("cache-purge")["ok"], false);
    assert_eq!(cache.run("cache-top 5")["ok"], true);
    let asked = upstream.asked();
    let _ = cache.resolve("10.1/x");
    assert_eq!(upstream.asked(), asked + 1);
}

#[test]
fn an_answer_from_before_a_purge_is_not_stored_after_it() {
    for purge in ["cache-purge 10.1/X", "cache-purge 10.1/", "cache-purge-all"] {
        let upstream = UpstreamServer::start();
        upstream.set("10.1/x", &[url("https://one.example/")]);
        let cache = start(&upstream);
        upstream.behave(AnswerManner::Slow(Duration::from_millis(700)));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| cache.resolve("10.1/x"));
            until("the question", || upstream.asked() > 0);
            upstream.set("10.1/x", &[url("https://two.example/")]);
            upstream.behave(AnswerManner::Honest);
            let _ = cache.run(purge);
            // Who asks after the purge does not wait for the question from before it.
            assert_eq!(data(&cache.resolve("10.1/x")), ["https://two.example/"], "{purge}");
            assert_eq!(data(&waiting.join().unwrap()).len(), 1, "{purge}");
        });
        assert_eq!(data(&cache.resolve("10.1/x")), ["https://two.example/"], "{purge}");
        assert_eq!(cache.count("questions"), 2, "{purge}");
    }
}

#[test]
fn memory_stays_within_its_bound_whatever_is_asked() {
    let upstream = UpstreamServer::start();
    let text = "x".repeat(1000);
    for n in 0..2000 {
        upstream.set(&format!("10.1/{n}"), &[Value::new(1, b"TEXT", text.as_bytes())]);
    }
    let cache = TestCache::of(upstream.address, |config| config.cache.bytes = 1 << 20);
    for n in 0..2000 {
        assert_eq!(cache.resolve(&format!("10.1/{n}")).code, ResponseCode::SUCCESS);
        assert!(cache.count("entry_bytes") <= 1 << 20);
    }
    assert_eq!(cache.count("memory_bytes"), 1 << 20);
    assert!(cache.count("evictions") > 100 && cache.count("entries") > 50);
}

#[test]
fn the_cache_survives_a_restart_and_a_damaged_file_does_no_harm() {
    let upstream = UpstreamServer::start();
    upstream.set("10.1/x", &[url("https://one.example/")]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("cache");
    let start = || TestCache::of(upstream.address, |config| config.cache.file = Some(file.clone()));
    let first = start();
    assert_eq!(data(&first.resolve("10.1/x")), ["https://one.example/"]);
    assert_eq!(first.resolve("10.1/none").code, ResponseCode::HANDLE_NOT_FOUND);
    first.server.stop().unwrap();
    let asked = upstream.asked();
    let second = start();
    until("the entries", || second.count("restored") == 2);
    assert_eq!(data(&second.resolve("10.1/x")), ["https://one.example/"]);
    assert_eq!(second.resolve("10.1/none").code, ResponseCode::HANDLE_NOT_FOUND);
    assert_eq!(upstream.asked(), asked, "nobody was asked");
    second.server.stop().unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let third = start();
    assert_eq!(data(&third.resolve("10.1/x")), ["https://one.example/"]);
    assert_eq!((third.count("restored"), upstream.asked()), (0, asked + 1));
}

#[test]
fn rules_by_prefix_deny_forward_and_rename() {
    let (upstream, other) = (UpstreamServer::start(), UpstreamServer::start());
    for (server, target) in [(&upstream, "https://one.example/"), (&other, "https://other.example/")] {
        ["10.1/x", "10.2/x", "10.3/x"].iter().for_each(|handle| server.set(handle, &[url(target)]));
    }
    upstream.set("10.5/x", &[url("https://renamed.example/")]);
    let cache = TestCache::of(upstream.address, |config| {
        config.policy.deny = vec!["10.1".to_owned()];
        config.policy.forward = vec![format!("10.2={}", other.address)];
        config.policy.alias = vec!["10.4=10.5".to_owned()];
    });
    assert_eq!(cache.resolve("10.1/x").code, ResponseCode::SERVER_NOT_RESPONSIBLE);
    assert_eq!((upstream.asked(), cache.count("denied")), (0, 1));
    for _ in 0..2 {
        assert_eq!(data(&cache.resolve("10.2/x")), ["https://other.example/"]);
        assert_eq!(data(&cache.resolve("10.3/x")), ["https://one.example/"]);
        let renamed = cache.resolve("10.4/x");
        assert_eq!(data(&renamed), ["https://renamed.example/"]);
        assert_eq!(renamed.handle, b"10.4/x");
    }
    assert_eq!((upstream.asked(), other.asked()), (2, 1));
}

#[test]
fn homed_prefixes_of_a_published_set_are_answered_from_it_and_others_resolved() {
    let (origin, upstream) = (serve("main", Datapath::Portable), UpstreamServer::start());
    upstream.set("10.1/x", &[url("https://one.example/")]);
    upstream.set("TST/SIZE-492", &[url("https://wrong.example/")]);
    let cache = TestCache::of(upstream.address, |config| {
        config.snapshot = Some(origin.directory.path().join("set"));
    });
    let expected = TestClient::new(origin.address()).resolve(b"TST/SIZE-492").unwrap();
    assert_eq!(expected.code, ResponseCode::SUCCESS);
    assert_eq!(cache.resolve("TST/SIZE-492"), expected);
    assert_eq!(cache.resolve("TST/there-is-no-such-handle").code, ResponseCode::HANDLE_NOT_FOUND);
    assert_eq!((upstream.asked(), cache.count("misses")), (0, 0));
    for _ in 0..2 {
        assert_eq!(data(&cache.resolve("10.1/x")), ["https://one.example/"]);
    }
    assert_eq!((upstream.asked(), cache.count("hits")), (1, 1));
}

#[test]
fn a_reload_changes_how_long_records_are_kept() {
    let upstream = UpstreamServer::start();
    upstream.set("10.1/x", &[with_ttl(url("https://one.example/"), 100)]);
    let config = config(upstream.address);
    let mut changed = config.clone();
    changed.cache.ttl_s_max = 7;
    changed.upstream.questions = 512;
    let startup =
        CacheStartup { read_config: Box::new(move || Ok(changed.clone())), set_log: Box::new(|_| Ok(())) };
    let (server, service) = handle_cache::program::start(&config, Some(startup)).unwrap();
    let cache = TestCache { server, service };
    let _ = cache.resolve("10.1/x");
    assert_eq!(cache.run("cache-get 10.1/x")["entries"][0]["ttl_s"], 100);
    let report = cache.run("reload");
    assert_eq!(report["settings_changed"], serde_json::json!(["cache.ttl_s_max"]), "{report}");
    assert_eq!(report["settings_not_changed"], serde_json::json!(["upstream.questions"]), "{report}");
    let _ = cache.run("cache-purge-all");
    let _ = cache.resolve("10.1/x");
    assert_eq!(cache.run("cache-get 10.1/x")["entries"][0]["ttl_s"], 7);
}

#[test]
fn answers_are_certified_with_the_key_of_the_cache() {
    let upstream = UpstreamServer::start();
    upstream.set("10.1/x", &[url("https://one.example/")]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    write_key_file(&file, &VectorSource::Own.document("servers.json")["keys"]["server"]);
    let cache = TestCache::of(upstream.address, |config| {
        config.server_key = Some(ServerKeyConfig { file, ..ServerKeyConfig::default() });
    });
    let flags = OpFlags::PLAIN_REQUEST.with(OpFlags::CERTIFY).with(OpFlags::REQUEST_DIGEST);
    // The first one misses, the second one hits.
    for _ in 0..2 {
        let answer = cache.ask("10.1/x", &[1], flags);
        let (envelope, rest) = Envelope::split(&answer).unwrap();
        assert_eq!(code(&answer), ResponseCode::SUCCESS);
        let message = Message::decode(rest).unwrap();
        handle_auth::message::verify_message(&envelope, &message, &server_key("main")).unwrap();
    }
    assert_eq!((upstream.asked(), cache.count("hits")), (1, 1));
}

/// A cache that wants signatures of the server in `directory`, at `address`.
fn certifying(directory: &Path, address: SocketAddr, change: impl FnOnce(&mut Config)) -> TestCache {
    TestCache::of(address, |config| {
        config.upstream.servers = vec![];
        config.upstream.resolver_site = Some(site_at(directory, address));
        (config.upstream.timeout_ms, config.upstream.failure_ms) = (1000, 0);
        config.upstream.certified = true;
        change(config);
    })
}

#[test]
fn certified_answers_enter_and_others_do_not() {
    let truth = serve("main", Datapath::Portable);
    let directory = truth.directory.path();
    let honest = certifying(directory, truth.address(), |_| {});
    for _ in 0..2 {
        assert_eq!(honest.resolve("10.5072/URL-ONE").code, ResponseCode::SUCCESS);
        assert_eq!(honest.resolve("10.5072/none").code, ResponseCode::HANDLE_NOT_FOUND);
    }
    assert_eq!((honest.count("entries"), honest.count("hits")), (2, 2));
    assert_eq!(honest.run("cache-get 10.5072/URL-ONE")["entries"][0]["certified"], true);
    let lies = [
        ForgedAnswer::Changed,
        ForgedAnswer::Unsigned,
        ForgedAnswer::WrongDigest,
        ForgedAnswer::Expired,
        ForgedAnswer::OtherHandle,
        ForgedAnswer::OtherOperation,
        ForgedAnswer::OtherRequest,
        ForgedAnswer::Request,
        ForgedAnswer::Garbage,
    ];
    let is_about_signature =
        |lie| matches!(lie, ForgedAnswer::Changed | ForgedAnswer::Unsigned | ForgedAnswer::WrongDigest);
    for lie in lies {
        let liar = LiarServer::start(truth.address(), &directory.join("privkey.bin"), lie);
        let all = certifying(directory, liar.address, |_| {});
        let one = certifying(directory, liar.address, |config| {
            config.upstream.certified = false;
            config.policy.certified = vec!["10.5072".to_owned()];
        });
        // The rule for the record that is shown counts as well.
        let alias = certifying(directory, liar.address, |config| {
            config.upstream.certified = false;
            config.policy.certified = vec!["10.5072".to_owned()];
            config.policy.alias = vec!["10.6=10.5072".to_owned()];
        });
        for (cache, handle) in [(all, "10.5072/URL-ONE"), (one, "10.5072/URL-ONE"), (alias, "10.6/URL-ONE")] {
            assert_eq!(cache.resolve(handle).code, ResponseCode::SERVER_BUSY, "{lie:?}");
            assert_eq!((cache.count("entries"), cache.count("failures")), (0, 1), "{lie:?}");
            assert_eq!(cache.count("uncertified"), u64::from(is_about_signature(lie)), "{lie:?}");
        }
        // The client is told as well, also while the failure is remembered.
        let remembering = certifying(directory, liar.address, |config| config.upstream.failure_ms = 60_000);
        let reason = if is_about_signature(lie) { &b"a valid signature"[..] } else { b"has answered" };
        for _ in 0..2 {
            let answer = remembering.ask("10.5072/URL-ONE", &[], OpFlags::PLAIN_REQUEST);
            let text = String::from_utf8_lossy(&answer);
            assert!(answer.windows(reason.len()).any(|window| window == reason), "{lie:?}: {text}");
        }
        assert_eq!(remembering.count("questions"), 1, "{lie:?}");
    }
}

#[test]
fn entries_that_were_not_certified_do_not_come_back_when_they_must_be() {
    let truth = serve("main", Datapath::Portable);
    let directory = tempfile::tempdir().unwrap();
    let start = |certified| {
        certifying(truth.directory.path(), truth.address(), |config| {
            config.upstream.certified = certified;
            config.cache.file = Some(directory.path().join("cache"));
        })
    };
    for (certified, restored) in [(false, 0), (true, 0), (true, 1), (false, 1)] {
        let cache = start(certified);
        // Whatever comes back is there before the file is written again.
        assert_eq!(cache.resolve("10.5072/URL-ONE").code, ResponseCode::SUCCESS);
        until("the entry", || cache.count("restored") == restored);
        cache.server.stop().unwrap();
    }
}

#[test]
fn sessions_with_the_cache_are_answered_for_misses_and_hits() {
    let upstream = UpstreamServer::start();
    upstream.set("10.1/x", &[url("https://one.example/")]);
    let cache = start(&upstream);
    let pair = pair();
    let set_up = exchange(cache.address(), &set_up_request(&pair, NOBODY, 60)).expect("an answer");
    let mut session = ClientSession::from_answer(&pair, &set_up, None);
    let certified = OpFlags::PLAIN_REQUEST.with(OpFlags::CERTIFY);
    let cases = ["10.1/x", "10.1/x", "10.1/y", "10.1/y"].into_iter().zip(1..);
    for (handle, id) in cases {
        for (flags, is_encrypted) in [(certified, false), (certified.with(OpFlags::ENCRYPT), true)] {
            let query = Query { handle: handle.as_bytes(), indexes: Indexes::EMPTY, types: Strings::EMPTY };
            let request = session.request(id, flags, &Request::Resolution(query));
            let sealed = session.seal(request);
            let sent = if is_encrypted { session.encrypt(&sealed) } else { sealed };
            let answer = exchange(cache.address(), &sent).expect("an answer");
            let (answer, protection) = session.read(&answer);
            assert_eq!((protection.mac, protection.encrypted), (true, is_encrypted), "{handle} {id}");
            let expected =
                if handle == "10.1/x" { ResponseCode::SUCCESS } else { ResponseCode::HANDLE_NOT_FOUND };
            assert_eq!(code(&answer), expected, "{handle} {id}");
        }
    }
    assert_eq!(upstream.asked(), 2);
}

/// The requests of the open conversations that a cache answers as the origin does: public values,
/// outside sessions, about a handle that the origin is responsible for.
fn conversations() -> Vec<(String, String, Vec<u8>)> {
    let lines = VectorSource::Own.lines("conversations.jsonl");
    let request = |line: &Json| {
        // A case-sensitive server tells prefixes apart by their case, which no cache does.
        let is_compared = ["main", "secondary"].iter().any(|name| line["server"] == *name);
        if !is_compared || line["response_hex"].is_null() {
            return None;
        }
        let units = line["request_hex"].as_array()?;
        let [unit] = units.as_slice() else { return None };
        let bytes = vectors::hex(unit);
        let (envelope, rest) = Envelope::split(&bytes).ok()?;
        if rest.len() != envelope.message_len as usize
            || envelope.session_id != 0
            || envelope.flags.0 & 0xe0 != 0
        {
            return None;
        }
        let message = Message::decode(rest).ok()?;
        // An unreadable request has an answer with another id.
        message.decode_body(envelope.version).ok()?;
        let header = message.header;
        let is_public = header.flags.has(OpFlags::PUBLIC_ONLY.with(OpFlags::RECURSIVE))
            && !header.flags.has(OpFlags::CERTIFY)
            && header.op_code == OpCode::RESOLUTION
            && header.response_code == ResponseCode::RESERVED;
        is_public.then_some(bytes)
    };
    let named = |line: &Json| {
        let text = |member: &str| line[member].as_str().unwrap_or_default().to_owned();
        Some((text("name"), text("server"), request(line)?))
    };
    lines.iter().filter_map(named).collect()
}

/// The parts of an answer that a cache repeats: version, ids, code, flags but for authority, and
/// body but for relative TTLs.
fn repeated(answer: &[u8]) -> (Envelope, ResponseCode, OpFlags, Vec<u8>) {
    let (envelope, rest) = Envelope::split(answer).unwrap();
    let message = Message::decode(rest).unwrap();
    let flags = message.header.flags.without(OpFlags::AUTHORITATIVE);
    let mut body = rest[Header::LEN..].to_vec();
    if let Ok(Body::Reply(Reply { response: Response::Answer(answer), .. })) =
        message.decode_body(envelope.version)
    {
        // The values are followed by an empty credential.
        let values_len: usize = answer.values.iter().map(|value| value.encoded_len()).sum();
        let end = body.len() - 4;
        set_ttl(&mut body[end - values_len..end], AnswerTtl::Stale(0));
    }
    (envelope, message.header.response_code, flags, body)
}

#[test]
fn open_conversations_through_the_cache_are_those_of_the_origin() {
    let lines = conversations();
    let (mut servers, mut compared) = (std::collections::BTreeMap::new(), 0);
    for (name, server, request) in &lines {
        let (origin, cache) = servers.entry(server).or_insert_with(|| {
            let origin = serve(server, Datapath::Portable);
            let cache = TestCache::of(origin.address(), |_| {});
            (origin, cache)
        });
        let Some(expected) = exchange(origin.address(), request) else { continue };
        let repeats = [ResponseCode::SUCCESS, ResponseCode::HANDLE_NOT_FOUND, ResponseCode::VALUES_NOT_FOUND];
        if !repeats.contains(&code(&expected))
            || Envelope::split(&expected).unwrap().0.version < Version::new(2, 1)
        {
            continue;
        }
        // The first one may miss, the second one hits.
        for attempt in ["missing", "known"] {
            let answer = exchange(cache.address(), request).expect("an answer");
            assert_eq!(repeated(&answer), repeated(&expected), "{name}, {attempt}");
        }
        let expected = exchange_over_tcp(origin.address(), request).expect("an answer over TCP");
        let answer = exchange_over_tcp(cache.address(), request).expect("an answer over TCP");
        assert_eq!(repeated(&answer), repeated(&expected), "{name}, over TCP");
        compared += 1;
    }
    println!("{compared} of {} conversations", lines.len());
    assert_eq!(compared, 320, "of {} conversations", lines.len());
}
