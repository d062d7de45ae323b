//! Sets that prove themselves: signatures, ages and proofs, as operators use them.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::ResponseCode;
use handle_server::Server;
use handle_server::config::Datapath;
use handle_tests::client::TestClient;
use handle_tests::process::{fail, hdl, succeed, until};
use handle_tests::test_server;
use serde_json::Value as Json;
use std::path::PathBuf;
use std::process::Command;
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
        let file = self.path("records.jsonl");
        std::fs::write(&file, records.join("\n")).unwrap();
        let mut publish = hdl(["snapshot", "publish"]);
        publish.arg(self.path("set")).arg(file);
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
