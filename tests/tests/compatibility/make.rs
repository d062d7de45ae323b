//! Makes the files of this version.

use crate::configurations;
use crate::corpus::{copy_all, directory, read_records};
use handle_admin::mirror::position::MirrorPosition;
use handle_admin::pull::position::PullPosition;
use handle_auth::PublisherSigner;
use handle_cache::entry::RECORD;
use handle_cache::saved;
use handle_cache::table::{CachedRecordTable, EntryStamp};
use handle_console::registration::request::{RegistrationRequest, RequestOrigin, RequestState, RequestToken};
use handle_fleet::{FleetUrl, SetShipper, ShipLimits, StorageConfig, location};
use handle_proto::data::{PrivateKey, PublicKey, SiteBuilder};
use handle_proto::wire::list::Values;
use handle_snapshot::proof::RecordProof;
use handle_snapshot::set::manifest::Manifest;
use handle_snapshot::set::statement::StatementSigner;
use handle_snapshot::set::storage::create_directory;
use handle_snapshot::set::{SetTree, read_manifest};
use handle_snapshot::{
    Builder, HomedPrefixes, LayerOptions, LoadMode, NameRule, PublishedSet, SetPublisher, Sha256Sum,
};
use handle_store::{Store, StoreConfig};
use handle_tests::client::TestClient;
use handle_tests::process::{hdl, program, run, succeed};
use handle_tests::records::Record;
use handle_tests::records_server::RecordsServer;
use handle_tests::test_server;
use handle_tests::vectors::{VectorSource, hex};
use handle_worker::Server;
use handle_worker::config::Datapath;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// The files and directories of a version.
pub(crate) const NAMES: [&str; 15] = [
    "absent.proof",
    "batch.txt",
    "batch.txt.log",
    "cache",
    "configurations",
    "expected.json",
    "last-set",
    "present.proof",
    "publisher.bin",
    "query.log",
    "records.jsonl",
    "registrations",
    "reports",
    "sets",
    "shipped",
];

/// A time for everything that has one, so that files are the same each time they are made.
const NOW_UNIX_MS: u64 = 1_760_000_000_000;
const SEED: u64 = 7;
const PREFIXES: [&str; 3] = ["10.5072", "1234", "20.500.12345"];
/// A handle that is in the base of each set and deleted by the layer above it.
const DELETED: &str = "10.5072/deleted";
/// A handle that a template computes.
const TEMPLATED: (&str, &str) = ("1234/base@5", "1234/base|5");
/// Handles that are asked for while queries are logged.
const QUERIES: usize = 3;

/// Signs with a key of the vectors, whose signatures are always the same.
#[derive(Debug)]
struct Signer(PublisherSigner);

impl StatementSigner for Signer {
    fn signer(&self) -> Sha256Sum {
        Sha256Sum(self.0.name())
    }

    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        self.0.sign(message).map_err(|error| error.to_string())
    }
}

/// The files that are made, and the records in them.
struct Maker {
    dir: PathBuf,
    records: Vec<Record>,
}

impl Maker {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Writes the public key of the publisher, and returns what signs.
    fn signer(&self) -> Arc<Signer> {
        let servers = VectorSource::Own.document("servers.json");
        let bytes = hex(&servers["keys"]["server"]["handle_private_hex"]);
        let key = PrivateKey::decode(&bytes).unwrap();
        fs::write(self.path("publisher.bin"), key.public().unwrap().to_bytes()).unwrap();
        Arc::new(Signer(PublisherSigner::new(&key).unwrap()))
    }

    /// Publishes the records in two layers: a base with the first third and what is deleted, and a
    /// delta, which is long enough that machines read its steps. Calls `published` after each.
    fn publish(
        &self,
        dir: &Path,
        folds: bool,
        signer: Option<&Arc<Signer>>,
        mut published: impl FnMut(),
    ) -> Manifest {
        create_directory(dir).unwrap();
        let mut publisher = SetPublisher::open(dir).unwrap();
        if let Some(signer) = signer {
            publisher.sign_with(Arc::clone(signer) as _);
        }
        let (first, second) = self.records.split_at(self.records.len() / 3);
        for (now, records) in [(NOW_UNIX_MS, first), (NOW_UNIX_MS + 1000, second)] {
            let is_base = now == NOW_UNIX_MS;
            let options = LayerOptions { seed: SEED, folds, created_unix_ms: now };
            let write = |file, temp_dir: &Path| {
                let mut builder = Builder::new(temp_dir, options);
                if is_base {
                    let mut homed = HomedPrefixes::default();
                    for prefix in PREFIXES.iter().chain(&["0.NA"]) {
                        homed.add(prefix.as_bytes());
                    }
                    builder = builder.homed(homed);
                }
                for record in records {
                    let values = Values::from_encoded(record.values_count, &record.values).unwrap();
                    builder.add(1, record.handle.as_bytes(), values)?;
                }
                match is_base {
                    true => {
                        builder.add(1, DELETED.as_bytes(), [handle_proto::Value::new(1, b"URL", b"x")])?
                    }
                    false => builder.delete(1, DELETED.as_bytes())?,
                }
                builder.finish(file)
            };
            match is_base {
                true => drop(publisher.publish_base(now, write).unwrap().clone()),
                false => drop(publisher.publish_delta(now, write).unwrap().clone()),
            }
            publisher.renew_statement(now + 500).unwrap();
            published();
        }
        drop(publisher);
        remove_locks(dir);
        read_manifest(dir).unwrap()
    }

    fn sets(&self) -> serde_json::Value {
        let signer = self.signer();
        let described = |manifest: &Manifest| {
            json!({
                "generation": manifest.generation,
                "names": manifest.names.map(NameRule::word),
                "root": manifest.root.to_string(),
            })
        };
        let signed = self.publish(&self.path("sets/signed"), true, Some(&signer), || ());
        let exact = self.publish(&self.path("sets/exact"), false, None, || ());
        fs::write(self.path("last-set"), signed.statement().unwrap().encode()).unwrap();
        let set = PublishedSet::open(&self.path("sets/signed"), LoadMode::Map).unwrap();
        let tree = SetTree::of(&set).unwrap();
        for (name, handle) in [("present.proof", &*self.records[0].handle), ("absent.proof", DELETED)] {
            let proof = RecordProof {
                path: tree.path(handle.as_bytes()).unwrap(),
                signed: signed.statement().unwrap(),
            };
            fs::write(self.path(name), proof.encode()).unwrap();
        }
        self.ship(&signer);
        json!({ "sets/signed": described(&signed), "sets/exact": described(&exact) })
    }

    /// Ships the signed set after each publication.
    fn ship(&self, signer: &Arc<Signer>) {
        let directory = tempfile::tempdir().unwrap();
        let (set, store) = (directory.path().join("set"), directory.path().join("store"));
        create_directory(&set).unwrap();
        let url: FleetUrl = format!("file://{}", store.display()).parse().unwrap();
        let mut shipped = 0;
        self.publish(&set, true, Some(signer), || {
            shipped += 1;
            let storage = location::open(&url, &StorageConfig::default()).unwrap();
            let limits = ShipLimits { sets_kept: 2, grace: Duration::ZERO, steps_len: 1 << 20 };
            SetShipper::open(storage, "store", &set, limits).unwrap().ship().unwrap();
            let copy = self.path(&format!("shipped/{shipped}"));
            copy_all(&store, &copy);
            fs::remove_file(copy.join(".lock")).unwrap();
        });
    }

    /// Makes a store, and returns the number of its last transaction.
    fn store(&self) -> u64 {
        let directory = tempfile::tempdir().unwrap();
        let config = StoreConfig::at(&directory.path().join("store.redb"));
        let store = Store::create(&config, true).unwrap();
        let mut bulk = store.bulk(directory.path(), 1 << 20);
        PREFIXES.iter().for_each(|prefix| bulk.home(prefix.as_bytes()));
        for record in &self.records {
            let values = Values::from_encoded(record.values_count, &record.values).unwrap();
            bulk.add(record.handle.as_bytes(), values).unwrap();
        }
        bulk.finish(|_| ()).unwrap();
        let value = [handle_proto::Value::new(1, b"URL", b"x")];
        let mut encoded = Vec::new();
        value[0].encode(&mut encoded);
        store
            .change(move |transaction| {
                transaction.put(DELETED.as_bytes(), Values::from_encoded(1, &encoded).unwrap())
            })
            .unwrap();
        store.change(|transaction| transaction.delete(DELETED.as_bytes()).map(drop)).unwrap();
        store.change(|tx| MirrorPosition::new("all".to_owned()).write(tx, "main")).unwrap();
        store.change(|tx| PullPosition::new("all").write(tx, "catalogue")).unwrap();
        let last = store.snapshot().unwrap().last_id().unwrap();
        drop(store);
        let packed = zstd::encode_all(&*fs::read(&config.file).unwrap(), 19).unwrap();
        fs::write(self.path("store.redb.zst"), packed).unwrap();
        last
    }

    fn cache(&self) {
        let table = CachedRecordTable::new(1 << 20);
        for (record, at) in self.records.iter().zip(1_u64..) {
            let (mut public, mut values_count) = (Vec::new(), 0);
            for value in Values::from_encoded(record.values_count, &record.values).unwrap().iter() {
                if value.is_public() {
                    value.encode(&mut public);
                    values_count += 1;
                }
            }
            let stored_unix_s = u32::try_from(NOW_UNIX_MS / 1000).unwrap();
            let stamp = EntryStamp { stored_unix_s, ttl_s: 86_400, values_count, kind: RECORD, flags: 0 };
            let key = record.handle.to_ascii_uppercase();
            assert!(table.insert(at << 56, key.as_bytes(), stamp, &public), "{key}");
        }
        let mut file = fs::File::create(self.path("cache")).unwrap();
        saved::write(&table, &mut file).unwrap();
    }

    fn registration(&self) {
        let token = RequestToken::parse("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8").unwrap();
        let origin = RequestOrigin { token, unix_s: NOW_UNIX_MS / 1000, source: [192, 0, 2, 1].into() };
        let key = fs::read(self.path("publisher.bin")).unwrap();
        PublicKey::decode(&key).unwrap();
        let site = SiteBuilder::new().build().as_bytes().to_vec();
        let mut request = RegistrationRequest::new(origin, site, key);
        request.details.note = "two\nlines \"quoted\" ü".to_owned();
        request.state = RequestState::Accepted {
            prefix: "10.5072".to_owned(),
            by: "300:0.NA/10".to_owned(),
            unix_s: NOW_UNIX_MS / 1000,
        };
        fs::create_dir(self.path("registrations")).unwrap();
        fs::write(self.path(&format!("registrations/{}.json", request.id())), request.encode()).unwrap();
    }

    fn configurations(&self) {
        fs::create_dir_all(self.path("configurations/init")).unwrap();
        for (process, text) in configurations::defaults() {
            fs::write(self.path(&format!("configurations/{process}.toml")), text).unwrap();
        }
        let directory = tempfile::tempdir().unwrap();
        let site = directory.path().join("site");
        let mut init = hdl(["init"]);
        init.arg(&site).args(["--prefix", "10.5072", "--address", "192.0.2.1", "--plain"]);
        succeed(init);
        for process in ["handled", "handle-admin", "handle-gateway"] {
            let file = format!("{process}.toml");
            copy_all(&site.join(&file), &self.path(&format!("configurations/init/{file}")));
        }
    }

    /// Logs queries at a server, and measures it.
    fn logs_and_reports(&self) {
        fs::create_dir(self.path("reports")).unwrap();
        let mut config = test_server::config(&self.path("sets/signed"), Datapath::Auto);
        config.query_log.path = Some(self.path("query.log"));
        let server = Server::start(&config).unwrap();
        let mut client = TestClient::new(server.addresses()[0]);
        for record in &self.records[..QUERIES] {
            client.resolve(record.handle.as_bytes()).unwrap();
        }
        server.stop().unwrap();
        config.query_log.path = None;
        let server = Server::start(&config).unwrap();
        let loadgen = |args: &[&str], report: &str| {
            let mut command = Command::new(program("handle-loadgen", "handle-loadgen"));
            command.args(args).arg("--json").arg(self.path(report)).arg("--quiet");
            // A run beside other load may be invalid, and its report is one all the same.
            assert!(matches!(run(command).status.code(), Some(0 | 3)), "{args:?}");
            leave_out_the_machine(&self.path(report));
        };
        let target = server.addresses()[0].to_string();
        let handle = self.records[0].handle.clone();
        loadgen(
            &["run", "--target", &target, "--template", &handle, "--rate", "50", "--duration", "5s"],
            "reports/run.json",
        );
        loadgen(&["limit", "--duration", "2s"], "reports/limit.json");
        server.stop().unwrap();
    }

    /// Carries out a batch file and keeps its log. Some of its operations may be refused.
    fn batch(&self) {
        let server = RecordsServer::start();
        let text = fs::read_to_string(directory().join("batch.txt")).unwrap();
        let text = text.replace("PORT", &server.address.port().to_string());
        fs::write(self.path("batch.txt"), text).unwrap();
        let mut batch = hdl(["batch", "--server", &server.address.to_string(), "--allow-cleartext-secrets"]);
        batch.arg(self.path("batch.txt")).arg("--log").arg(self.path("batch.txt.log"));
        let output = run(batch);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Replaces what a report says about the machine that made it.
fn leave_out_the_machine(report: &Path) {
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    for (name, value) in [("command", json!(["handle-loadgen"])), ("kernel", "Linux".into())] {
        json["environment"][name] = value;
    }
    json["environment"]["cpu_model"] = "a processor".into();
    fs::write(report, json.to_string() + "\n").unwrap();
}

/// Files by which processes exclude each other are not part of a set.
fn remove_locks(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !["MANIFEST", "HEARTBEAT"].contains(&name) && !name.ends_with(".layer") {
            fs::remove_file(path).unwrap();
        }
    }
}

/// With `MAKE_FILES=1` in the environment, this makes the files of the version in `Cargo.toml`, in
/// a folder of that name. It fails if the folder exists: what a release has written is not changed
/// any more.
#[test]
fn the_files_of_this_version_are_made() {
    if std::env::var_os("MAKE_FILES").is_none() {
        return;
    }
    let dir = directory().join(env!("CARGO_PKG_VERSION"));
    fs::create_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let records = read_records(&directory().join("records.jsonl"));
    copy_all(&directory().join("records.jsonl"), &dir.join("records.jsonl"));
    let maker = Maker { dir, records };
    let sets = maker.sets();
    let transactions = maker.store();
    maker.cache();
    maker.registration();
    maker.configurations();
    maker.logs_and_reports();
    maker.batch();
    let expected = json!({
        "batch": ["authenticate", "sessionsetup", "create", "add", "modify", "remove", "delete", "home"],
        "deleted": [DELETED],
        "prefixes": PREFIXES,
        "proofs": { "present.proof": maker.records[0].handle, "absent.proof": DELETED },
        "queries": QUERIES,
        "refused": {},
        "sets": sets,
        "templated": { TEMPLATED.0: TEMPLATED.1 },
        "transactions": transactions,
    });
    let text = serde_json::to_string_pretty(&expected).unwrap() + "\n";
    fs::write(maker.path("expected.json"), text).unwrap();
}
