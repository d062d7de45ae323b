//! `handle-cache` hands requests that only the responsible service can decide to it, if configured,
//! and keeps nothing of them.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::admin::{
    ADMIN, CHANGE, SECRET, answer_bytes, ask, ask_as, message, respond, root, summarize, url, with_values,
};
use handle_cache::Config;
use handle_cache::policy::AuthenticatedRequests;
use handle_proto::wire::admin::{HandleBody, HandleValues};
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Envelope, Message, Request};
use handle_proto::{OpFlags, ResponseCode as Code};
use handle_tests::admin_server::AdminServer;
use handle_tests::cache_server::TestCache;
use handle_tests::client::{exchange, exchange_over_tcp};
use handle_tests::daemon::free_address;
use handle_tests::session::{ClientSession, NOBODY, pair, set_up_request};
use handle_tests::test_server::{server_key, write_key_file};
use handle_tests::vectors::VectorSource;
use handle_worker::slow::config::ServerKeyConfig;
use serde_json::{Value as Json, json};
use std::net::SocketAddr;
use std::path::Path;

/// The handle with a value that only administrators may read.
const HALF: &str = "TST/HALF";

/// A file that names the server at `address` as the service of the prefix TST.
fn local_info(directory: &Path, address: SocketAddr) -> std::path::PathBuf {
    let text = std::fs::read_to_string(directory.join("siteinfo.json")).unwrap();
    let mut site: Json = serde_json::from_str(&text).unwrap();
    site["servers"].as_array_mut().unwrap().truncate(1);
    site["servers"][0]["address"] = address.ip().to_string().into();
    site["servers"][0]["interfaces"] =
        json!([{ "query": true, "admin": true, "protocol": "TCP", "port": address.port() }]);
    let path = directory.join("local_info.json");
    std::fs::write(&path, json!([{ "nas": ["0.NA/TST"], "site": site }]).to_string()).unwrap();
    path
}

/// A cache that finds the service of `origin`, and hands requests to it.
fn relaying(origin: &AdminServer, change: impl FnOnce(&mut Config)) -> TestCache {
    let file = local_info(origin.directory.path(), origin.address());
    TestCache::of(origin.address(), |config| {
        config.upstream.servers = vec![];
        config.upstream.local_info = Some(file);
        config.policy.authenticated = AuthenticatedRequests::Forward;
        change(config);
    })
}

fn query(handle: &str) -> Request<'_> {
    Request::Resolution(Query { handle: handle.as_bytes(), indexes: Indexes::EMPTY, types: Strings::EMPTY })
}

#[test]
fn values_that_are_not_public_are_read_through_the_cache_and_not_kept() {
    let origin = root(|_| ());
    let cache = relaying(&origin, |_| {});
    let direct = ask_as(origin.address(), ADMIN, SECRET, CHANGE, &query(HALF));
    assert_eq!(direct.code, Code::SUCCESS);
    for _ in 0..2 {
        let through = ask_as(cache.address(), ADMIN, SECRET, CHANGE, &query(HALF));
        assert_eq!((through.code, &through.indexes), (Code::SUCCESS, &direct.indexes));
    }
    let wrong = ask_as(cache.address(), ADMIN, b"wrong", CHANGE, &query(HALF));
    assert_eq!(wrong.code, Code::AUTHENTICATION_FAILED);
    assert_eq!((cache.count("entries"), cache.count("hits"), cache.count("relayed")), (0, 0, 6));
    // What is public is cached, and nothing else is.
    let public = ask(cache.address(), OpFlags::PLAIN_REQUEST, &query(HALF));
    assert!(public.code == Code::SUCCESS && public.indexes.len() < direct.indexes.len(), "{public:?}");
}

#[test]
fn the_answer_to_a_challenge_counts_once_and_in_its_place() {
    let origin = root(|_| ());
    let cache = relaying(&origin, |_| {});
    let challenged = || ask(cache.address(), CHANGE, &query(HALF)).challenge.unwrap();
    let (one, two) = (challenged(), challenged());
    assert_ne!(one.id, two.id);
    let answer = |id, challenge| {
        let bytes =
            answer_bytes(id, ADMIN, handle_proto::wire::auth::SECRET_KEY, &respond(challenge, SECRET));
        summarize(&exchange_over_tcp(cache.address(), &bytes).unwrap()).code
    };
    assert_eq!(answer(one.id, &one), Code::SUCCESS);
    assert_ne!(answer(one.id, &one), Code::SUCCESS, "a replay");
    assert_eq!(answer(two.id, &one), Code::AUTHENTICATION_FAILED, "of another challenge");
    // A number that was never given is an unknown session, as everywhere.
    assert_eq!(answer(two.id ^ 0x1010, &two), Code::SESSION_TIMEOUT);
}

#[test]
fn records_are_changed_through_the_cache_and_the_change_shows_at_once() {
    let origin = root(|_| ());
    let cache = relaying(&origin, |_| {});
    assert_eq!(cache.resolve("TST/new").code, Code::HANDLE_NOT_FOUND);
    with_values(&[url(1)], |values| {
        let create = Request::CreateHandle(HandleValues { handle: b"TST/new", values });
        assert_eq!(
            ask_as(cache.address(), ADMIN, b"wrong", CHANGE, &create).code,
            Code::AUTHENTICATION_FAILED
        );
        assert_eq!(cache.resolve("TST/new").code, Code::HANDLE_NOT_FOUND);
        let created = ask_as(cache.address(), ADMIN, SECRET, CHANGE, &create);
        assert_eq!((created.code, &created.created[..]), (Code::SUCCESS, &b"TST/new"[..]), "{created:?}");
    });
    assert_eq!(cache.resolve("TST/new").code, Code::SUCCESS);
    let delete = Request::DeleteHandle(HandleBody { handle: b"TST/new" });
    assert_eq!(ask_as(cache.address(), ADMIN, SECRET, CHANGE, &delete).code, Code::SUCCESS);
    assert_eq!(cache.resolve("TST/new").code, Code::HANDLE_NOT_FOUND);
}

#[test]
fn what_is_not_handed_over_is_refused() {
    let origin = root(|_| ());
    let cache = relaying(&origin, |config| config.policy.deny = vec!["10.1".to_owned()]);
    let delete = |handle: &'static str| Request::DeleteHandle(HandleBody { handle: handle.as_bytes() });
    // Over UDP, the address of the client is not proven.
    for request in [query(HALF), delete("TST/ITEM-001")] {
        let answer = exchange(cache.address(), &message(Envelope::request(1), CHANGE, &request)).unwrap();
        assert_eq!(summarize(&answer).code, Code::ERROR, "as for all that has to come over TCP");
    }
    let code = |flags, request: &Request<'_>| ask(cache.address(), flags, request).code;
    let no_recursion = CHANGE.without(OpFlags::RECURSIVE);
    assert_eq!(code(no_recursion, &delete("TST/ITEM-001")), Code::SERVER_NOT_RESPONSIBLE);
    assert_eq!(code(no_recursion, &query(HALF)), Code::SERVER_NOT_RESPONSIBLE);
    assert_eq!(code(CHANGE, &delete("10.1/x")), Code::SERVER_NOT_RESPONSIBLE);
    assert_eq!(cache.count("relayed"), 1);
    // In a session with the cache, which ends there.
    let pair = pair();
    let set_up = exchange(cache.address(), &set_up_request(&pair, NOBODY, 60)).expect("an answer");
    let mut session = ClientSession::from_answer(&pair, &set_up, None);
    let request = session.request(5, CHANGE.with(OpFlags::CERTIFY), &delete("TST/ITEM-001"));
    let sealed = session.seal(request);
    for sent in [session.encrypt(&sealed), sealed] {
        let answer = exchange_over_tcp(cache.address(), &sent).expect("an answer");
        assert_ne!(summarize(&session.read(&answer).0).code, Code::SUCCESS);
    }
    assert_eq!(cache.count("relayed"), 1);
    // Unless it is configured, nothing is.
    let referring = TestCache::of(origin.address(), |_| {});
    let code = |request: &Request<'_>| ask(referring.address(), CHANGE, request).code;
    assert_eq!(code(&query(HALF)), Code::SERVER_NOT_RESPONSIBLE);
    assert_eq!(code(&delete("TST/ITEM-001")), Code::PROTOCOL_ERROR);
}

#[test]
fn a_service_that_is_not_there_is_an_error_of_the_cache() {
    let origin = root(|_| ());
    let cache = relaying(&origin, |config| {
        config.upstream.local_info = Some(local_info(origin.directory.path(), free_address()));
    });
    assert_eq!(ask(cache.address(), CHANGE, &query(HALF)).code, Code::SERVER_BUSY);
    assert_eq!(cache.count("relays_failed"), 1);
}

#[test]
fn certified_answers_are_checked_and_signed_by_the_cache() {
    let origin = root(|_| ());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    write_key_file(&file, &VectorSource::Own.document("servers.json")["keys"]["server"]);
    let cache = relaying(&origin, |config| {
        config.server_key = Some(ServerKeyConfig { file, ..ServerKeyConfig::default() });
    });
    let bytes = message(Envelope::request(9), CHANGE.with(OpFlags::CERTIFY), &query(HALF));
    let answer = exchange_over_tcp(cache.address(), &bytes).unwrap();
    let (envelope, rest) = Envelope::split(&answer).unwrap();
    let reply = Message::decode(rest).unwrap();
    assert_eq!(reply.header.response_code, Code::AUTHENTICATION_NEEDED);
    handle_auth::message::verify_message(&envelope, &reply, &server_key("main")).unwrap();
}

#[test]
fn a_source_with_many_wrong_secrets_waits_at_the_cache() {
    // The cache is not limited there, so that it can relay for many.
    let origin = root(|config| config.limits.exempt_sources = vec!["127.0.0.0/8".to_owned()]);
    let cache = relaying(&origin, |config| config.waiting.exempt_sources.clear());
    let read = |secret: &[u8]| ask_as(cache.address(), ADMIN, secret, CHANGE, &query(HALF)).code;
    assert_eq!(read(SECRET), Code::SUCCESS);
    let mut wrong = 0;
    let refused = loop {
        match read(b"wrong") {
            Code::AUTHENTICATION_FAILED if wrong < 60 => wrong += 1,
            code => break code,
        }
    };
    // Six more in each minute.
    assert!((20..40).contains(&wrong) && refused == Code::SERVER_BUSY, "{refused} after {wrong}");
    // No verdict, on right secrets either, until some time has passed.
    let is_refused = || {
        read(b"wrong");
        read(SECRET) == Code::SERVER_BUSY
    };
    assert!((0..5).any(|_| is_refused()));
    assert!(cache.count("secret_guesses") >= wrong && cache.count("secret_guesses_refused") >= 2);
    assert_eq!(cache.resolve(HALF).code, Code::SUCCESS, "what needs no secret");
    let exempt = relaying(&origin, |config| {
        config.waiting.exempt_sources = vec!["127.0.0.1".to_owned()];
    });
    let read = |secret: &[u8]| ask_as(exempt.address(), ADMIN, secret, CHANGE, &query(HALF)).code;
    for _ in 0..30 {
        assert_eq!(read(b"wrong"), Code::AUTHENTICATION_FAILED);
    }
    assert_eq!(read(SECRET), Code::SUCCESS);
}
