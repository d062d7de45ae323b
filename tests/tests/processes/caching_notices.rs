//! `handle-admin` tells `handle-cache` of each set, and the records that it has changed are then
//! asked for anew.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_cache::Config;
use handle_daemon::notice::{
    ChangedHandles, HELLO_LEN, MachineHello, NoticeKey, NoticeSession, NoticeSide, PROOF_LEN,
    PublicationNotice, challenge,
};
use handle_proto::value::Ttl;
use handle_proto::{ResponseCode, Value};
use handle_tests::cache_server::TestCache;
use handle_tests::client::ReceivedReply;
use handle_tests::fleet::write_secret;
use handle_tests::process::until;
use handle_tests::upstream_server::{AnswerManner, UpstreamServer};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// The side of `handle-admin`.
struct TestPublisher {
    listener: TcpListener,
    key: NoticeKey,
}

/// A connection of a machine, which has proven the key.
struct TestConnection(TcpStream, NoticeSession);

impl TestPublisher {
    fn start(directory: &Path) -> Self {
        let file = directory.join("notice-key");
        write_secret(&file, &"k".repeat(64));
        Self { listener: TcpListener::bind("127.0.0.1:0").unwrap(), key: NoticeKey::read(&file).unwrap() }
    }

    fn accept(&self) -> TestConnection {
        let (mut stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut hello = [0; HELLO_LEN];
        stream.read_exact(&mut hello).unwrap();
        let (nonce, hello) = ([7; 32], MachineHello::parse(&hello).unwrap());
        assert!(hello.wants_names);
        let session = NoticeSession::new(&self.key, &hello, &nonce);
        stream.write_all(&challenge(&nonce, &session)).unwrap();
        let mut proof = [0; PROOF_LEN];
        stream.read_exact(&mut proof).unwrap();
        assert!(session.is_proof(NoticeSide::Machine, &proof));
        TestConnection(stream, session)
    }
}

impl TestConnection {
    fn notify(&mut self, generation: u64) {
        self.notify_changes(generation, None);
    }

    fn notify_changes(&mut self, generation: u64, names: Option<&[&str]>) {
        let changed = names.map(|names| {
            let mut changed = ChangedHandles::default();
            names.iter().for_each(|name| assert!(changed.add(name.as_bytes())));
            changed
        });
        let notice = self.1.seal(PublicationNotice { epoch: 1, generation }, changed.as_ref());
        self.0.write_all(&notice).unwrap();
    }
}

/// A configuration that waits for notices about 10.1.
fn notified(config: &mut Config, publisher: &TestPublisher, directory: &Path) {
    config.notify.address = publisher.listener.local_addr().unwrap().to_string();
    config.notify.key_file = Some(directory.join("notice-key"));
    (config.notify.retry_ms, config.notify.silence_ms) = (20, 60_000);
    config.policy.notified = vec!["10.1".to_owned()];
    config.policy.notified_s = 0;
    config.upstream.timeout_ms = 500;
}

/// A cache that has got the first notice, and both sides of it.
struct NotifiedCache {
    directory: TempDir,
    upstream: UpstreamServer,
    publisher: TestPublisher,
    cache: TestCache,
    connection: TestConnection,
}

impl NotifiedCache {
    fn start(change: impl FnOnce(&mut Config)) -> Self {
        let (directory, upstream) = (tempfile::tempdir().unwrap(), UpstreamServer::start());
        let publisher = TestPublisher::start(directory.path());
        let cache = TestCache::of(upstream.address, |config| {
            notified(config, &publisher, directory.path());
            change(config);
        });
        let mut connection = publisher.accept();
        connection.notify(1);
        until("the first notice", || cache.count("notices") == 1);
        Self { directory, upstream, publisher, cache, connection }
    }
}

fn url(target: &str) -> Value<'_> {
    Value { ttl: Ttl::relative(86_400), ..Value::new(1, b"URL", target.as_bytes()) }
}

fn shows(reply: &ReceivedReply, text: &str) -> bool {
    reply.values.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn records_are_asked_for_anew_after_each_set_that_is_announced() {
    let NotifiedCache { directory: _directory, upstream, publisher, cache, mut connection } =
        NotifiedCache::start(|_| {});
    // An entry of the second of the notice counts as older than it.
    std::thread::sleep(Duration::from_millis(1100));
    let set = |text| ["10.1/x", "10.2/x"].iter().for_each(|handle| upstream.set(handle, &[url(text)]));
    set("https://one.example/");
    for _ in 0..3 {
        assert_eq!(cache.resolve("10.1/none").code, ResponseCode::HANDLE_NOT_FOUND);
        for handle in ["10.1/x", "10.2/x"] {
            assert!(shows(&cache.resolve(handle), "https://one.example/"));
        }
    }
    assert_eq!(cache.count("questions"), 3);
    // The same set again changes nothing.
    connection.notify(1);
    set("https://two.example/");
    upstream.set("10.1/none", &[url("https://new.example/")]);
    assert!(shows(&cache.resolve("10.1/x"), "https://one.example/"));
    connection.notify(2);
    until("the second notice", || cache.count("notices") == 2);
    assert!(shows(&cache.resolve("10.1/x"), "https://two.example/"));
    assert!(shows(&cache.resolve("10.1/none"), "https://new.example/"));
    assert!(shows(&cache.resolve("10.2/x"), "https://one.example/"), "another prefix");
    // A set that was announced while there was no connection is noticed with the next one.
    drop(connection);
    let mut connection = publisher.accept();
    until("the failure", || cache.count("notify_failures") == 1);
    std::thread::sleep(Duration::from_millis(1100));
    assert!(shows(&cache.resolve("10.1/x"), "https://two.example/"));
    set("https://three.example/");
    connection.notify(4);
    until("the notice", || cache.count("notices") == 3);
    assert!(shows(&cache.resolve("10.1/x"), "https://three.example/"));
    // If no server answers, the old record is better than none.
    upstream.behave(AnswerManner::Silent);
    connection.notify(5);
    until("the notice", || cache.count("notices") == 4);
    assert!(shows(&cache.resolve("10.1/x"), "https://three.example/"));
    assert!(cache.count("stale_answers") > 0);
    cache.server.stop().unwrap();
}

#[test]
fn an_answer_from_before_a_notice_is_not_stored_after_it() {
    let NotifiedCache { directory: _directory, upstream, publisher: _publisher, cache, mut connection } =
        NotifiedCache::start(|config| config.upstream.timeout_ms = 20_000);
    upstream.set("10.1/x", &[url("https://one.example/")]);
    upstream.behave(AnswerManner::Slow(Duration::from_millis(2500)));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| cache.resolve("10.1/x"));
        until("the question", || upstream.asked() > 0);
        upstream.set("10.1/x", &[url("https://two.example/")]);
        upstream.behave(AnswerManner::Honest);
        connection.notify(2);
        until("the second notice", || cache.count("notices") == 2);
        assert_eq!(waiting.join().unwrap().code, ResponseCode::SUCCESS);
    });
    assert!(shows(&cache.resolve("10.1/x"), "https://two.example/"));
}

#[test]
fn only_the_records_that_a_notice_names_are_asked_for_anew() {
    let NotifiedCache { directory: _directory, upstream, publisher: _publisher, cache, mut connection } =
        NotifiedCache::start(|_| {});
    std::thread::sleep(Duration::from_millis(1100));
    let set = |text| ["10.1/x", "10.1/y"].iter().for_each(|handle| upstream.set(handle, &[url(text)]));
    set("https://one.example/");
    ["10.1/x", "10.1/y"].iter().for_each(|handle| {
        assert!(shows(&cache.resolve(handle), "https://one.example/"));
    });
    set("https://two.example/");
    connection.notify_changes(2, Some(&["10.1/X"]));
    until("the second notice", || cache.count("notices") == 2);
    assert!(shows(&cache.resolve("10.1/x"), "https://two.example/"));
    assert!(shows(&cache.resolve("10.1/y"), "https://one.example/"), "it has not changed");
    assert_eq!((cache.count("handles_notified"), cache.count("notices_of_all")), (1, 1));
    cache.server.stop().unwrap();
}
