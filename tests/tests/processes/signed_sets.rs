//! Sets that prove themselves: signatures, ages and proofs, as operators use them.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_daemon::clock::now_unix_ms;
use handle_gateway::Gateway;
use handle_proto::ResponseCode;
use handle_snapshot::proof::RecordProof;
use handle_snapshot::set::SetTree;
use handle_snapshot::{LoadMode, PublishedSet, SetPublisher};
use handle_tests::client::TestClient;
use handle_tests::fleet::{TestFleet, TestPublisher, TestSigner};
use handle_tests::gateway_server;
use handle_tests::http::get;
use handle_tests::process::{fail, hdl, succeed, until};
use handle_tests::test_server;
use handle_worker::Server;
use handle_worker::config::Datapath;
use serde_json::Value as Json;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const RECORD: &str = r#"{"handle":"10.1/a","values":[{"index":1,"type":"URL","data":"https://a.example/"}]}"#;
const OTHER: &str = r#"{"handle":"10.1/b","values":[{"index":1,"type":"URL","data":"https://b.example/"}]}"#;

/// A directory with the keys of two publishers, and a set.
struct SignedSets(TempDir);

impl SignedSets {
    fn new() -> Self {
        let sets = Self(tempfile::tempdir().unwrap());
        for name in ["first", "second"] {
            let mut generate = hdl(["key", "generate", "--plain"]);
            generate.arg(sets.private(name)).arg(sets.public(name));
            succeed(generate);
        }
        sets
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn private(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}-private.bin"))
    }

    fn public(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}-public.bin"))
    }

    /// Publishes the records, signed with the key of this name.
    fn publish(&self, key: Option<&str>, records: &[&str]) {
        self.publish_with(key, records, &[]);
    }

    fn publish_with(&self, key: Option<&str>, records: &[&str], options: &[&str]) {
        let file = self.path("records.jsonl");
        std::fs::write(&file, records.join("\n")).unwrap();
        let mut publish = hdl(["snapshot", "publish"]);
        publish.arg(self.path("set")).arg(file).args(options);
        if let Some(key) = key {
            publish.arg("--key").arg(self.private(key));
        }
        succeed(publish);
    }

    fn prove(&self, handle: &str) -> Command {
        let mut prove = hdl(["prove"]);
        prove.arg(self.path("set")).arg(handle);
        prove
    }

    fn verify(&self, key: &str, options: &[&str]) -> Command {
        let mut verify = hdl(["verify-proof"]);
        verify.arg(self.path("proof")).arg("--key").arg(self.public(key)).args(options);
        verify
    }
}

#[test]
fn only_sets_of_accepted_publishers_are_served_and_only_while_they_are_fresh() {
    let sets = SignedSets::new();
    sets.publish(None, &[RECORD]);
    let mut config = test_server::config(&sets.path("set"), Datapath::Auto);
    config.publishers.keys = vec![sets.public("first")];
    config.publishers.age_max_s = 3;
    config.publishers.refuse_stale = true;
    let refused = format!("{:#}", Server::start(&config).unwrap_err());
    assert!(refused.contains("not signed"), "{refused}");
    sets.publish(Some("second"), &[RECORD]);
    let refused = format!("{:#}", Server::start(&config).unwrap_err());
    assert!(refused.contains("accepted publisher"), "{refused}");

    sets.publish(Some("first"), &[RECORD]);
    let server = Server::start(&config).unwrap();
    let code = |handle: &str| {
        TestClient::new(server.addresses()[0]).resolve(handle.as_bytes()).expect("an answer").code
    };
    assert_eq!(code("10.1/a"), ResponseCode::SUCCESS);
    sets.publish(Some("second"), &[RECORD, OTHER]);
    until("the set is stale", || {
        let code = code("10.1/b");
        assert_ne!(code, ResponseCode::SUCCESS, "the set of another publisher is served");
        code == ResponseCode::SERVER_BUSY
    });
    assert_eq!(code("10.1/a"), ResponseCode::SERVER_BUSY);
    sets.publish(Some("first"), &[RECORD, OTHER]);
    until("a new set is served", || code("10.1/b") == ResponseCode::SUCCESS);
    assert_eq!(code("10.1/a"), ResponseCode::SUCCESS);
}

#[test]
fn a_kept_generation_proves_what_it_had() {
    let sets = SignedSets::new();
    sets.publish(Some("first"), &[RECORD]);
    SetPublisher::open(&sets.path("set")).unwrap().keep().unwrap();
    sets.publish(Some("first"), &[OTHER]);
    for (generation, handle, exit) in
        [("1", "10.1/a", 0), ("1", "10.1/b", 3), ("2", "10.1/a", 3), ("2", "10.1/b", 0)]
    {
        let mut prove = sets.prove(handle);
        let proof = prove.args(["--generation", generation]).output().unwrap();
        assert_eq!(proof.status.code(), Some(exit), "{generation} {handle}: {proof:?}");
        std::fs::write(sets.path("proof"), &proof.stdout).unwrap();
        let verified = sets.verify("first", &["--handle", handle, "--json"]).output().unwrap();
        assert_eq!(verified.status.code(), Some(exit), "{generation} {handle}: {verified:?}");
        let said: Json = serde_json::from_slice(&verified.stdout).unwrap();
        assert_eq!(said["generation"].to_string(), generation);
    }
    let mut prove = sets.prove("10.1/a");
    prove.args(["--generation", "7"]);
    let (_, refused) = fail(prove);
    assert!(refused.contains("MANIFEST-0000000007: this generation is not kept"), "{refused}");
}

#[test]
fn a_proof_convinces_whoever_has_the_public_key() {
    let sets = SignedSets::new();
    sets.publish(None, &[RECORD]);
    let (_, refused) = fail(sets.prove("10.1/a"));
    assert!(refused.contains("not signed"), "{refused}");
    sets.publish(Some("first"), &[RECORD, OTHER]);
    for (handle, exit) in [("10.1/a", 0), ("10.1/B", 0), ("10.1/c", 3), ("20/a", 3)] {
        let proof = sets.prove(handle).output().unwrap();
        assert_eq!(proof.status.code(), Some(exit), "{handle}");
        std::fs::write(sets.path("proof"), &proof.stdout).unwrap();
        let verified =
            sets.verify("first", &["--handle", handle, "--max-age", "600", "--json"]).output().unwrap();
        assert_eq!(verified.status.code(), Some(exit), "{handle}: {verified:?}");
        let said: Json = serde_json::from_slice(&verified.stdout).unwrap();
        assert_eq!((&said["is_present"], &said["generation"]), (&(exit == 0).into(), &2.into()), "{said}");
        assert_eq!(said["handle"], handle.to_uppercase());
        let shown = sets.verify("first", &[]).output().unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert_eq!(shown.contains("is not in generation 2"), exit == 3, "{shown}");
        assert_eq!(shown.contains("https://"), exit == 0, "{shown}");
        for (key, options, why) in [
            ("second", &[][..], "not signed with the key"),
            ("first", &["--handle", "10.1/other"], "not about"),
        ] {
            let (_, refused) = fail(sets.verify(key, options));
            assert!(refused.contains(why), "{refused}");
        }
    }
    let mut proof = std::fs::read(sets.path("proof")).unwrap();
    let last = proof.len() - 2;
    proof[last] = if proof[last] == b'0' { b'1' } else { b'0' };
    std::fs::write(sets.path("proof"), proof).unwrap();
    assert!(fail(sets.verify("first", &[])).1.contains("proves nothing"));
}

/// A proof with true siblings and the true statement, whose key no name has in this set.
#[test]
fn absence_of_a_record_that_is_there_cannot_be_proven_under_another_spelling() {
    let names: Vec<String> = (0..40).map(|n| format!("10.1/record-{n}")).collect();
    let line = |name: &String| RECORD.replace("10.1/a", name);
    let records: Vec<String> = names.iter().map(line).collect();
    let records: Vec<&str> = records.iter().map(String::as_str).collect();
    let sets = SignedSets::new();
    sets.publish(Some("first"), &records);
    let set = PublishedSet::open(&sets.path("set"), LoadMode::Map).unwrap();
    let tree = SetTree::of(&set).unwrap();
    for name in &names {
        let path = tree.path_to(name.clone().into_bytes()).unwrap();
        assert!(!path.is_present() && path.root() == Some(tree.root()), "the path is true");
        let forged = RecordProof { path, signed: set.manifest().statement().unwrap() };
        std::fs::write(sets.path("proof"), forged.encode()).unwrap();
        for options in [&["--handle", name.as_str()][..], &["--handle", &name.to_uppercase()], &[]] {
            let (code, refused) = fail(sets.verify("first", options));
            assert!(code == 1 && refused.contains("proves nothing"), "{name}: {code} {refused}");
        }
    }
}

#[test]
fn proofs_of_a_set_that_distinguishes_case_answer_for_the_asked_spelling_only() {
    let sets = SignedSets::new();
    let upper = OTHER.replace("10.1/b", "10.1/B");
    sets.publish_with(Some("first"), &[RECORD, &upper], &["--case-sensitive"]);
    for (asked, exit) in [("10.1/a", 0), ("10.1/A", 3), ("10.1/B", 0), ("10.1/b", 3), ("10.1/x", 3)] {
        let proof = sets.prove(asked).output().unwrap();
        assert_eq!(proof.status.code(), Some(exit), "{asked}: {proof:?}");
        std::fs::write(sets.path("proof"), &proof.stdout).unwrap();
        let verified = sets.verify("first", &["--handle", asked, "--json"]).output().unwrap();
        assert_eq!(verified.status.code(), Some(exit), "{asked}: {verified:?}");
        let said: Json = serde_json::from_slice(&verified.stdout).unwrap();
        assert_eq!((&said["handle"], &said["names"]), (&asked.into(), &"exact".into()), "{said}");
        for other in ["10.1/a", "10.1/A", "10.1/B", "10.1/b"].iter().filter(|other| **other != asked) {
            let (code, refused) = fail(sets.verify("first", &["--handle", other]));
            assert!(
                code == 1 && refused.contains(&format!("not about {other}")),
                "{asked} {other}: {refused}"
            );
        }
    }
}

#[test]
fn the_page_of_a_key_has_the_fingerprint_that_hdl_prints() {
    let sets = SignedSets::new();
    let mut generate = hdl(["key", "generate", "--plain"]);
    generate.arg(sets.private("third")).arg(sets.public("third"));
    let printed = succeed(generate);
    let fingerprint = printed.lines().find_map(|line| line.strip_prefix("fingerprint ")).expect("a line");
    let mut inspect = hdl(["key", "show"]);
    inspect.arg(sets.public("third"));
    assert!(succeed(inspect).contains(fingerprint), "{fingerprint}");
    let key = data_encoding::HEXUPPER.encode(&std::fs::read(sets.public("third")).unwrap());
    let data = format!(r#"{{"format":"hex","value":"{key}"}}"#);
    let record =
        format!(r#"{{"handle":"10.1/key","values":[{{"index":1,"type":"HS_PUBKEY","data":{data}}}]}}"#);
    sets.publish(None, &[&record]);
    let mut config = gateway_server::config();
    config.snapshot = Some(sets.path("set"));
    let gateway = Gateway::start(&config).unwrap();
    let page = gateway_server::get(gateway.addresses()[0], "/10.1/key?noredirect", "Accept: text/html\r\n");
    assert!(page.text().contains(&format!("<code>{fingerprint}</code>")), "{fingerprint} in {}", page.text());
    gateway.stop().unwrap();
}

/// Maximum age of statements in the tests below, milliseconds.
const AGE_MAX_MS: u64 = 2000;

/// A signed set on which `handled` answers while it is stale, and one and a gateway do not.
struct AgingSet {
    publisher: TestPublisher,
    fleet: TestFleet,
    answering: Server,
    refusing: Server,
    gateway: Gateway,
}

impl AgingSet {
    fn start() -> Self {
        let (fleet, signer) = (TestFleet::new(), TestSigner::generate());
        signer.write_public(&fleet.path("public.bin"));
        let mut publisher = fleet.publisher("set", Some(&signer));
        publisher.publish(0..3, "first", true);
        let loopback: SocketAddr = ([127, 0, 0, 1], 0).into();
        let start = |refuses| {
            let mut config = test_server::config(&publisher.dir, Datapath::Auto);
            config.publishers.keys = vec![fleet.path("public.bin")];
            (config.publishers.age_max_s, config.publishers.refuse_stale) = (AGE_MAX_MS / 1000, refuses);
            config.observe.http = Some(loopback);
            Server::start(&config).unwrap()
        };
        let (answering, refusing) = (start(false), start(true));
        let mut config = gateway_server::config();
        config.snapshot = Some(publisher.dir.clone());
        config.publishers.keys = vec![fleet.path("public.bin")];
        (config.publishers.age_max_s, config.publishers.refuse_stale) = (AGE_MAX_MS / 1000, true);
        config.observe.http = Some(loopback);
        let gateway = Gateway::start(&config).unwrap();
        Self { publisher, fleet, answering, refusing, gateway }
    }

    /// Makes a statement, and waits until all processes have it.
    fn renew(&mut self) -> u64 {
        let now = now_unix_ms();
        assert!(self.publisher.publisher().renew_statement(now).unwrap());
        until("the statement arrives", || {
            let gateway = self.gateway.state().reading.set.as_ref().unwrap().freshness().signed_unix_ms();
            [&self.answering, &self.refusing]
                .map(|server| server.shared().live.freshness().signed_unix_ms())
                .iter()
                .all(|&signed| signed == Some(now) && gateway == signed)
        });
        now
    }

    /// What the health check and the metrics of each process say: whether the set is stale.
    fn are_stale(&self) -> [bool; 3] {
        [
            (self.answering.http_address(), "handled"),
            (self.refusing.http_address(), "handled"),
            (self.gateway.http_address(), "handle_gateway"),
        ]
        .map(|(address, prefix)| {
            // A moment may lie between the two answers.
            let metric = |body: &str| {
                let line = format!("{prefix}_snapshot_stale ");
                body.lines().find_map(|it| it.strip_prefix(&line)).expect("the metric") != "0"
            };
            let address = address.unwrap();
            loop {
                let before = metric(&get(address, "/metrics").unwrap().body);
                let health = get(address, "/readyz").unwrap();
                if metric(&get(address, "/metrics").unwrap().body) == before {
                    assert_eq!(health.status, if before { 503 } else { 200 }, "{}", health.body);
                    assert_eq!(health.body.contains("the set is stale"), before, "{}", health.body);
                    break before;
                }
            }
        })
    }

    /// Checks that no process says that the set is stale, unless the statement has just become too
    /// old.
    fn is_fresh_since(&self, signed: u64) {
        let stale = self.are_stale();
        let now = now_unix_ms();
        assert!(stale == [false; 3] || now > signed + AGE_MAX_MS, "{stale:?} after {} ms", now - signed);
    }

    fn code(server: &Server) -> ResponseCode {
        TestClient::new(server.addresses()[0]).resolve(b"10.5072/1").expect("an answer").code
    }

    fn status_of_gateway(&self) -> u16 {
        gateway_server::get(self.gateway.addresses()[0], "/api/handles/10.5072/1", "").status
    }
}

#[test]
fn health_metrics_and_answers_change_when_a_statement_passes_its_maximum_age_and_not_before() {
    let mut set = AgingSet::start();
    // Renewed statements keep a set fresh beyond the maximum age of the first.
    let until_ms = now_unix_ms() + AGE_MAX_MS + 1000;
    let mut signed = set.renew();
    while now_unix_ms() < until_ms {
        signed = set.renew();
        set.is_fresh_since(signed);
        std::thread::sleep(Duration::from_millis(100));
    }
    loop {
        set.is_fresh_since(signed);
        let (before, stale) = (now_unix_ms(), set.are_stale());
        if before > signed + AGE_MAX_MS {
            assert_eq!(stale, [true; 3], "{} ms", before - signed);
            break;
        }
        let (codes, status) = ([&set.answering, &set.refusing].map(AgingSet::code), set.status_of_gateway());
        if now_unix_ms() <= signed + AGE_MAX_MS {
            assert_eq!((codes, status), ([ResponseCode::SUCCESS; 2], 200));
        }
    }
    until("handled refuses", || AgingSet::code(&set.refusing) == ResponseCode::SERVER_BUSY);
    until("the gateway refuses", || set.status_of_gateway() == 503);
    assert_eq!(AgingSet::code(&set.answering), ResponseCode::SUCCESS, "it only reports the age");
    let signed = set.renew();
    set.is_fresh_since(signed);
    until("handled answers again", || AgingSet::code(&set.refusing) == ResponseCode::SUCCESS);
    until("the gateway answers again", || set.status_of_gateway() == 200);
    set.gateway.stop().unwrap();
}

#[test]
fn a_statement_from_tomorrow_is_refused_and_shown_and_the_next_right_one_is_taken() {
    const DAY_MS: u64 = 86_400_000;
    let mut set = AgingSet::start();
    let signed = set.renew();
    let shown = |set: &AgingSet| {
        let gateway = set.gateway.state().reading.set.as_ref().unwrap().to_json();
        [set.answering.shared().live.to_json(), set.refusing.shared().live.to_json(), gateway]
    };
    let are_ahead = |set: &AgingSet| {
        let all = shown(set);
        all.iter().all(|one| one["statement_ahead_s"].as_u64() >= Some(86_000))
    };
    // The clock of the publisher is a day ahead.
    assert!(set.publisher.publisher().renew_statement(now_unix_ms() + DAY_MS).unwrap());
    until("the statement is refused", || are_ahead(&set));
    assert!(shown(&set).iter().all(|one| one["signed_unix_ms"] == signed), "{:?}", shown(&set));
    let metric = get(set.answering.http_address().unwrap(), "/metrics").unwrap().body;
    assert!(metric.contains("handled_snapshot_statement_ahead_seconds 86"), "{metric}");
    // Then the publisher dies, and the set becomes stale as it does without the statement.
    until("the set is stale", || set.are_stale() == [true; 3]);
    until("handled refuses", || AgingSet::code(&set.refusing) == ResponseCode::SERVER_BUSY);
    // It comes back, and its clock is right.
    let signed = set.renew();
    set.is_fresh_since(signed);
    until("handled answers again", || AgingSet::code(&set.refusing) == ResponseCode::SUCCESS);
    until("nothing is ahead", || shown(&set).iter().all(|one| one["statement_ahead_s"] == 0));
    // A whole set from tomorrow is not served, also not after a start, and the next one is.
    let generation = |set: &AgingSet| set.answering.shared().live.current().generation();
    let before = generation(&set);
    set.publisher.publish_at(now_unix_ms() + DAY_MS, 5..6, "tomorrow", false);
    until("the set is refused", || are_ahead(&set));
    assert!(shown(&set)[0]["last_error"].to_string().contains("ahead of the clock"), "{:?}", shown(&set));
    assert_eq!(generation(&set), before);
    let mut config = test_server::config(&set.publisher.dir, Datapath::Auto);
    config.publishers.keys = vec![set.fleet.path("public.bin")];
    let refused = format!("{:#}", Server::start(&config).unwrap_err());
    assert!(refused.contains("ahead of the clock"), "{refused}");
    set.publisher.publish(6..7, "today", false);
    until("the next set is served", || generation(&set) == before + 2);
    until("nothing is ahead", || shown(&set).iter().all(|one| one["statement_ahead_s"] == 0));
    set.gateway.stop().unwrap();
}

#[test]
fn a_manifest_that_is_older_than_the_set_in_service_is_refused() {
    let mut set = AgingSet::start();
    let manifest = set.fleet.path("set").join("MANIFEST");
    let first = std::fs::read(&manifest).unwrap();
    set.publisher.publish(3..4, "second", false);
    let generations = |set: &AgingSet| {
        let mapped = set.gateway.state().reading.set.as_ref().unwrap().current().generation();
        [set.answering.shared().live.current().generation(), mapped]
    };
    until("the second generation is served", || generations(&set) == [2; 2]);
    let replaced = set.fleet.path("set").join("MANIFEST.old");
    std::fs::write(&replaced, first).unwrap();
    std::fs::rename(&replaced, &manifest).unwrap();
    until("the older manifest is refused", || {
        let handled = set.answering.shared().live.to_json();
        let gateway = set.gateway.state().reading.set.as_ref().unwrap().to_json();
        [handled, gateway].iter().all(|shown| shown["last_error"].to_string().contains("older"))
    });
    assert_eq!(generations(&set), [2; 2]);
    let kept = TestClient::new(set.answering.addresses()[0]).resolve(b"10.5072/3").expect("an answer");
    assert_eq!(kept.code, ResponseCode::SUCCESS);
    set.gateway.stop().unwrap();
}

#[test]
fn a_set_that_is_older_than_the_last_one_served_is_refused_after_a_restart() {
    let sets = SignedSets::new();
    let manifest = sets.path("set").join("MANIFEST");
    let (mut config, mut gateway) =
        (test_server::config(&sets.path("set"), Datapath::Auto), gateway_server::config());
    gateway.snapshot = Some(sets.path("set"));
    config.publishers.keys = vec![sets.public("first")];
    gateway.publishers.keys = vec![sets.public("first")];
    config.publishers.last_set_file = Some(sets.path("last-set-of-handled"));
    gateway.publishers.last_set_file = Some(sets.path("last-set-of-gateway"));
    let code = |server: &Server, handle: &[u8]| {
        TestClient::new(server.addresses()[0]).resolve(handle).expect("an answer").code
    };

    sets.publish(Some("first"), &[RECORD]);
    let older = std::fs::read(&manifest).unwrap();
    let running = (Server::start(&config).unwrap(), Gateway::start(&gateway).unwrap());
    sets.publish(Some("first"), &[RECORD, OTHER]);
    until("the second set is stored", || {
        ["last-set-of-handled", "last-set-of-gateway"].iter().all(|file| {
            let stored = std::fs::read_to_string(sets.path(file)).unwrap();
            stored.contains("\ngeneration 2\n")
        })
    });
    assert_eq!(code(&running.0, b"10.1/b"), ResponseCode::SUCCESS);
    running.1.stop().unwrap();
    drop(running.0);

    let newer = std::fs::read(&manifest).unwrap();
    std::fs::write(&manifest, older).unwrap();
    for (refused, file) in [
        (Server::start(&config).map(drop), "last-set-of-handled"),
        (Gateway::start(&gateway).map(drop), "last-set-of-gateway"),
    ] {
        let refused = format!("{:#}", refused.unwrap_err());
        assert!(refused.contains("older than generation 2") && refused.contains(file), "{refused}");
    }
    // The same set is served again, and an older one if the operator removes the file.
    std::fs::write(&manifest, newer).unwrap();
    drop(Server::start(&config).unwrap());
    sets.publish(Some("second"), &[RECORD]);
    let refused = format!("{:#}", Server::start(&config).map(drop).unwrap_err());
    assert!(refused.contains("publisher"), "the set of another publisher: {refused}");
    sets.publish(Some("first"), &[RECORD, OTHER]);
    let third = std::fs::read(&manifest).unwrap();
    sets.publish(Some("first"), &[RECORD, OTHER]);
    drop(Server::start(&config).unwrap());
    std::fs::write(&manifest, third).unwrap();
    let refused = format!("{:#}", Server::start(&config).map(drop).unwrap_err());
    assert!(refused.contains("older than generation"), "{refused}");
    std::fs::remove_file(sets.path("last-set-of-handled")).unwrap();
    let server = Server::start(&config).unwrap();
    assert_eq!(code(&server, b"10.1/b"), ResponseCode::SUCCESS);
}
