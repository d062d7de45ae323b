//! Tests that both drivers behave alike.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[cfg(feature = "tokio")]
use super::asynchronous::AsyncDriver;
use super::loopback::Loopback;
use super::{BlockingDriver, ResolvedQuestion};
use crate::bootstrap::Root;
use crate::exchange::AttemptError;
use crate::lookup::world::{server_key, value};
use crate::lookup::{Client, LookupError, LookupOptions};
use crate::plan::InterfacePurpose;
use crate::refresh::{RefreshError, RenewalGuard};
use crate::testing::public_record;
use crate::{LookupAnswer, Question, SharedAnswer};
use handle_proto::ValueBuf;
use handle_proto::data::site::{Address, InterfaceKind, InterfaceProtocol};
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

const TURN: Duration = Duration::from_millis(5);
const TIMEOUT_TURNS: usize = 12_000;

const UDP: InterfaceProtocol = InterfaceProtocol::UDP;
const TCP: InterfaceProtocol = InterfaceProtocol::TCP;
const HTTP: InterfaceProtocol = InterfaceProtocol::HTTP;
const HTTPS: InterfaceProtocol = InterfaceProtocol::HTTPS;

type RenewFunction = fn(Arc<Client>) -> Option<Result<(), RefreshError>>;
type AskFunction = fn(&Arc<Client>, &[Question], &LookupOptions) -> Vec<ResolvedQuestion>;

/// Resolves all questions at the same time with blocking sockets: a thread for each.
fn blocking(client: &Arc<Client>, questions: &[Question], options: &LookupOptions) -> Vec<ResolvedQuestion> {
    std::thread::scope(|scope| {
        let ask = |question| {
            scope.spawn(move || BlockingDriver::new(Arc::clone(client)).resolve(question, options))
        };
        let asking: Vec<_> = questions.iter().map(ask).collect();
        asking.into_iter().map(|asking| asking.join().unwrap()).collect()
    })
}

/// The same with tokio: one thread for all.
#[cfg(feature = "tokio")]
fn asynchronous(
    client: &Arc<Client>,
    questions: &[Question],
    options: &LookupOptions,
) -> Vec<ResolvedQuestion> {
    runtime().block_on(async {
        let driver = AsyncDriver::new(Arc::clone(client));
        let mut asking = tokio::task::JoinSet::new();
        for (at, question) in questions.iter().cloned().enumerate() {
            let (driver, options) = (driver.clone(), options.clone());
            asking.spawn(async move { (at, driver.resolve(&question, &options).await) });
        }
        let mut resolved = asking.join_all().await;
        resolved.sort_by_key(|(at, _)| *at);
        resolved.into_iter().map(|(_, resolved)| resolved).collect()
    })
}

#[cfg(feature = "tokio")]
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn renew_blocking(client: Arc<Client>) -> Option<Result<(), RefreshError>> {
    BlockingDriver::new(client).renew_if_due()
}

#[cfg(feature = "tokio")]
fn renew_asynchronous(client: Arc<Client>) -> Option<Result<(), RefreshError>> {
    runtime().block_on(async { AsyncDriver::new(client).renew_if_due().await })
}

#[cfg(feature = "tokio")]
const DRIVERS: &[(&str, AskFunction, RenewFunction)] =
    &[("blocking", blocking, renew_blocking), ("tokio", asynchronous, renew_asynchronous)];
#[cfg(not(feature = "tokio"))]
const DRIVERS: &[(&str, AskFunction, RenewFunction)] = &[("blocking", blocking, renew_blocking)];

fn records() -> Vec<(&'static str, Vec<ValueBuf>)> {
    vec![("10.A/X", vec![value(1, b"URL", b"https://example.org/")])]
}

fn client(root: Root) -> Arc<Client> {
    let mut client = Client::new(root);
    client.timeout.udp_ms = vec![200, 200];
    client.timeout.tcp_ms = 20_000;
    Arc::new(client)
}

fn certified(handle: &str) -> Question {
    let mut question = Question::all(handle.as_bytes());
    question.wants.certified = true;
    question
}

fn one(ask: AskFunction, root: Root, question: &Question) -> Result<SharedAnswer, LookupError> {
    let mut resolved = ask(&client(root), std::slice::from_ref(question), &LookupOptions::default());
    resolved.remove(0).outcome
}

fn is_good(answer: &LookupAnswer) -> bool {
    answer.certified && answer.values().iter().any(|value| value.data == b"https://example.org/")
}

#[test]
fn a_handle_is_resolved_over_every_protocol() {
    let server = Loopback::new(Duration::ZERO);
    for &(name, ask, _) in DRIVERS {
        for protocol in [UDP, TCP, HTTP, HTTPS] {
            let site = server.site(&[protocol], server_key()).build();
            let root = server.serves(&site, records());
            let answer = one(ask, root, &certified("10.a/x"));
            let answer = answer.unwrap_or_else(|error| panic!("{name} over {protocol:?}: {error}"));
            assert!(is_good(&answer), "{name} over {protocol:?}: {answer:?}");
        }
    }
}

#[test]
fn a_server_that_answers_is_asked_once() {
    let server = Loopback::new(Duration::ZERO);
    let site = server.site(&[UDP], server_key()).build();
    for &(name, ask, _) in DRIVERS {
        let mut client = Client::new(server.serves(&site, records()));
        // A lost datagram would be repeated only after the test has failed.
        client.timeout.udp_ms = vec![20_000, 20_000];
        let since = std::time::Instant::now();
        let resolved = ask(&Arc::new(client), &[Question::all(b"10.a/x")], &LookupOptions::default());
        assert!(resolved[0].outcome.is_ok(), "{name}");
        assert!(since.elapsed() < Duration::from_secs(10), "{name}: {:?}", since.elapsed());
    }
}

#[test]
fn silent_or_refusing_servers_lead_to_the_next_protocol() {
    let server = Loopback::new(Duration::ZERO);
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for &(name, ask, _) in DRIVERS {
        let mut site = server.site(&[TCP, HTTP], server_key());
        let (mut gone, mut mute) = (site.servers[0].interfaces[0], site.servers[0].interfaces[0]);
        (gone.protocol, gone.port_number) = (TCP, 1);
        (mute.protocol, mute.port_number) = (UDP, silent.local_addr().unwrap().port().into());
        site.servers[0].interfaces[0] = gone;
        site.servers[0].interfaces.push(mute);
        let root = server.serves(&site.build(), records());
        let answer = one(ask, root, &certified("10.a/x")).unwrap();
        assert!(is_good(&answer) && answer.from.is_some(), "{name}");
    }
}

#[test]
fn over_https_only_the_key_of_the_site_counts() {
    let server = Loopback::new(Duration::ZERO);
    let (other, dsa) = (public_record("mirror"), public_record("admin_dsa2048"));
    for &(name, ask, _) in DRIVERS {
        for (key, expected) in [
            (server_key(), None),
            // TLS does not support such keys, so the certificate has another key and proves
            // nothing.
            (dsa.as_slice(), None),
            (other.as_slice(), Some(AttemptError::Certificate)),
            (&[], Some(AttemptError::NoKey)),
        ] {
            let site = server.site(&[HTTPS], key).build();
            let root = server.serves(&site, records());
            let outcome = one(ask, root, &Question::all(b"10.a/x"));
            match (outcome, expected) {
                (Ok(answer), None) => assert!(!answer.certified, "{name}"),
                (Err(LookupError::AllFailed { last, .. }), Some(expected)) => {
                    assert_eq!(last, expected, "{name}")
                }
                (outcome, expected) => panic!("{name}: {outcome:?} instead of {expected:?}"),
            }
        }
        // A server without TLS is reported differently from one with TLS.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut site = server.site(&[HTTPS], server_key());
        site.servers[0].interfaces[0].port_number = listener.local_addr().unwrap().port().into();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            }
        });
        let root = server.serves(&site.build(), records());
        let error = one(ask, root, &Question::all(b"10.a/x")).unwrap_err();
        let LookupError::AllFailed { last, .. } = error else { panic!("{name}: {error}") };
        assert!(matches!(last, AttemptError::Tls | AttemptError::Ended), "{name}: {last}");
    }
}

#[test]
fn names_are_looked_up_and_ipv4_follows_a_refused_ipv6() {
    let server = Loopback::new(Duration::ZERO);
    for &(name, ask, _) in DRIVERS {
        let mut named = server.site(&[UDP], server_key());
        named.servers[0].address = Address::UNSPECIFIED;
        named.attribute("domain", "localhost");
        let mut both = server.site(&[TCP], server_key());
        // Unreachable addresses: the range for documentation, RFC 3849.
        both.attribute("alt_addr", "2001:db8::1");
        for site in [named, both] {
            let root = server.serves(&site.build(), records());
            let answer = one(ask, root, &certified("10.a/x"));
            let answer = answer.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(is_good(&answer) && answer.from.unwrap().is_ipv4(), "{name}");
        }
        let mut nameless = server.site(&[UDP], server_key());
        nameless.servers[0].address = Address::UNSPECIFIED;
        // A label that is invalid in names.
        nameless.attribute("domain", "a..b");
        let error = one(ask, server.serves(&nameless.build(), records()), &certified("10.a/x")).unwrap_err();
        let LookupError::AllFailed { last: AttemptError::NoAddress, .. } = error else {
            panic!("{name}: {error}")
        };
    }
}

#[test]
fn servers_that_are_known_by_name_are_found_at_its_addresses() {
    let server = Loopback::new(Duration::ZERO);
    let found = |name: &str| {
        let mut named = server.site(&[TCP], server_key());
        named.servers[0].address = Address::UNSPECIFIED;
        named.attribute("domain", name);
        let mut driver = BlockingDriver::new(client(server.serves(&named.build(), records())));
        let purpose = InterfacePurpose { kind: InterfaceKind::ADMIN, primary_only: true };
        driver.servers(b"10.a/x", purpose, false)
    };
    let servers = found("localhost").unwrap();
    assert!(!servers.is_empty() && servers.iter().all(|server| server.address.ip().is_loopback()));
    // A label that is invalid in names.
    let error = found("a..b").unwrap_err();
    assert!(matches!(error, LookupError::AllFailed { last: AttemptError::NoAddress, .. }), "{error}");
}

#[test]
fn each_answer_has_the_spelling_of_its_question() {
    for &(name, ask, _) in DRIVERS {
        let server = Loopback::new(Duration::from_millis(50));
        let site = server.site(&[TCP], server_key()).build();
        let client = client(server.serves(&site, records()));
        let questions = ["10.a/x", "10.A/x"].map(|handle| Question::all(handle.as_bytes()));
        // In the first round one lookup is in flight for both, in the second both answers are
        // cached.
        for _ in 0..2 {
            for (question, resolved) in
                questions.iter().zip(ask(&client, &questions, &LookupOptions::default()))
            {
                assert_eq!(resolved.outcome.unwrap().handle, question.handle, "{name}");
            }
        }
    }
}

#[test]
fn equal_questions_share_a_request_and_others_run_in_parallel() {
    for &(name, ask, _) in DRIVERS {
        let server = Loopback::new(Duration::from_millis(50));
        let site = server.site(&[TCP], server_key()).build();
        let client = client(server.serves(&site, records()));
        let resolved = ask(&client, &vec![Question::all(b"10.a/x"); 50], &LookupOptions::default());
        assert!(resolved.iter().all(|resolved| resolved.outcome.is_ok()), "{name}");
        assert_eq!(server.world.lock().unwrap().replied_count, 2, "{name}: the prefix, and the handle");
        let others: Vec<_> = (0..100).map(|number| Question::all(format!("10.a/{number}"))).collect();
        let resolved = ask(&client, &others, &LookupOptions::default());
        for (question, resolved) in others.iter().zip(resolved) {
            let answer = resolved.outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(answer.handle, question.handle, "{name}");
        }
        let hits = client.cache.stats().hits;
        ask(&client, &others, &LookupOptions::default());
        assert_eq!(client.cache.stats().hits, hits + 100, "{name}: nothing is asked for again");
    }
}

#[cfg(feature = "tokio")]
#[test]
fn a_dropped_question_leaves_its_flight_to_others() {
    let server = Loopback::new(Duration::from_millis(100));
    let site = server.site(&[TCP], server_key()).build();
    let client = client(server.serves(&site, records()));
    let outcome = runtime().block_on(async {
        let driver = AsyncDriver::new(client);
        let question = Question::all(b"10.a/x");
        let first = tokio::spawn({
            let (driver, question) = (driver.clone(), question.clone());
            async move { driver.resolve(&question, &LookupOptions::default()).await }
        });
        tokio::task::yield_now().await;
        let second = tokio::spawn(async move { driver.resolve(&question, &LookupOptions::default()).await });
        tokio::task::yield_now().await;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        second.await.unwrap().outcome
    });
    assert_eq!(outcome.unwrap().values().len(), 1);
}

#[test]
fn a_due_global_service_is_renewed_and_written() {
    let server = Loopback::new(Duration::ZERO);
    let site = server.site(&[TCP], server_key()).build();
    let directory = tempfile::tempdir().unwrap();
    for &(name, _, renew) in DRIVERS {
        let mut root = server.serves(&site, crate::testing::signed_root(&site));
        root.trusted_keys = vec![server_key().to_vec()];
        root.updated_unix_ms = Some(1_000);
        let path = directory.path().join(name);
        let due = |root: Root| {
            let mut client = Client::new(root);
            client.renewal.file = Some(path.clone());
            Arc::new(client)
        };
        let client = due(root.clone());
        renew(Arc::clone(&client)).expect("it is due").unwrap();
        let written = Root::read(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(client.root.get().updated_unix_ms, written.updated_unix_ms);
        assert!(written.updated_unix_ms > root.updated_unix_ms);
        assert_eq!(written.trusted_keys, root.trusted_keys);
        assert!(renew(client).is_none(), "not due any more");
        // Signed with another key: nothing changes.
        std::fs::remove_file(&path).unwrap();
        root.trusted_keys = vec![public_record("mirror")];
        let client = due(root.clone());
        assert!(matches!(renew(Arc::clone(&client)), Some(Err(RefreshError::Unverified(..)))));
        assert_eq!(client.root.get().updated_unix_ms, root.updated_unix_ms);
        assert!(!path.exists());
        assert!(RenewalGuard::begin(&client, super::now()).is_none(), "not again at once");
    }
}

#[test]
fn a_question_starts_a_due_renewal_and_does_not_wait() {
    let server = Loopback::new(Duration::ZERO);
    let site = server.site(&[TCP], server_key()).build();
    let mut all = crate::testing::signed_root(&site);
    all.extend(records());
    let mut root = server.serves(&site, all);
    root.trusted_keys = vec![server_key().to_vec()];
    root.updated_unix_ms = Some(1_000);
    let is_new = |client: &Client| client.root.get().updated_unix_ms > Some(1_000);
    let question = Question::all(b"10.a/x");
    let one = client(root.clone());
    assert!(
        BlockingDriver::new(Arc::clone(&one)).resolve(&question, &LookupOptions::default()).outcome.is_ok()
    );
    let is_renewed = (0..TIMEOUT_TURNS).any(|_| {
        std::thread::sleep(TURN);
        is_new(&one)
    });
    assert!(is_renewed);
    #[cfg(feature = "tokio")]
    runtime().block_on(async {
        let one = client(root);
        let driver = AsyncDriver::new(Arc::clone(&one));
        assert!(driver.resolve(&question, &LookupOptions::default()).await.outcome.is_ok());
        for _ in 0..TIMEOUT_TURNS {
            if is_new(&one) {
                return;
            }
            tokio::time::sleep(TURN).await;
        }
        panic!("nothing new");
    });
}
