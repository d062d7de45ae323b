//! A publisher whose sets are shipped, and machines that fetch them.

use crate::bucket_server::BucketServer;
use handle_auth::{PublisherKey, PublisherSigner, generate};
use handle_daemon::clock::now_unix_ms;
use handle_fleet::{
    FetchLimits, FleetStore, FleetUrl, SetFetcher, SetShipper, ShipLimits, StorageConfig, location,
};
use handle_proto::Value;
use handle_snapshot::set::manifest::{MANIFEST, Manifest, ManifestSeal};
use handle_snapshot::set::statement::{AcceptedPublishers, StatementSigner};
use handle_snapshot::set::storage::create_directory;
use handle_snapshot::set::{PublishedSet, SetTree, read_manifest};
use handle_snapshot::{Builder, HomedPrefixes, LayerOptions, LoadMode, SetPublisher, Sha256Sum};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tempfile::TempDir;

/// A key that signs sets.
#[derive(Debug)]
pub struct TestSigner(PublisherSigner, PublisherKey, Vec<u8>);

impl TestSigner {
    /// A new key.
    ///
    /// # Panics
    /// If no key can be generated.
    #[must_use]
    pub fn generate() -> Arc<Self> {
        let private = generate::rsa(2048).expect("a key");
        let record = private.view().public().expect("a public key").to_bytes();
        let signer = PublisherSigner::new(&private.view()).expect("a key that signs");
        let verifier = PublisherKey::from_record(&record).expect("a key that verifies");
        Arc::new(Self(signer, verifier, record))
    }

    /// Writes the public key to a file, as the setting `publishers.keys` names it.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn write_public(&self, path: &Path) {
        std::fs::write(path, &self.2).expect("the public key is written");
    }

    /// Accepts only sets signed with this key.
    #[must_use]
    pub fn accepted(&self) -> AcceptedPublishers {
        let key = self.1.clone();
        AcceptedPublishers::new(Box::new(move |signer, message, signature| {
            key.has_signed(&signer.0, message, signature)
        }))
    }
}

impl StatementSigner for TestSigner {
    fn signer(&self) -> Sha256Sum {
        Sha256Sum(self.0.name())
    }

    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        self.0.sign(message).map_err(|error| error.to_string())
    }
}

/// Publishes sets of records in a directory.
pub struct TestPublisher {
    publisher: SetPublisher,
    /// The directory.
    pub dir: PathBuf,
}

impl std::fmt::Debug for TestPublisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestPublisher").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl TestPublisher {
    /// Publishes in `dir`, which is created.
    ///
    /// # Panics
    /// If the directory cannot be used.
    #[must_use]
    pub fn open(dir: &Path, signer: Option<&Arc<TestSigner>>) -> Self {
        create_directory(dir).expect("a directory");
        let mut publisher = SetPublisher::open(dir).expect("a directory to publish in");
        if let Some(signer) = signer {
            publisher.sign_with(Arc::clone(signer) as _);
        }
        Self { publisher, dir: dir.to_owned() }
    }

    /// Publishes these records with this text, as the whole set or on top of it.
    ///
    /// # Panics
    /// If they cannot be published.
    pub fn publish(&mut self, records: Range<usize>, text: &str, is_base: bool) -> Manifest {
        self.publish_at(now_unix_ms(), records, text, is_base)
    }

    /// The same at this time of its clock.
    ///
    /// # Panics
    /// If they cannot be published.
    pub fn publish_at(&mut self, now: u64, records: Range<usize>, text: &str, is_base: bool) -> Manifest {
        let seed = 7;
        let options = LayerOptions { seed, folds: true, created_unix_ms: now };
        let write = |file, dir: &Path| {
            let mut homed = HomedPrefixes::default();
            homed.add(b"10.5072");
            let mut builder = Builder::new(dir, options);
            if is_base {
                builder = builder.homed(homed);
            }
            for at in records {
                let (handle, data) = (format!("10.5072/{at}"), format!("https://{at}.example/{text}"));
                builder.add(1, handle.as_bytes(), [Value::new(1, b"URL", data.as_bytes())])?;
            }
            builder.finish(file)
        };
        let published = match is_base {
            true => self.publisher.publish_base(now, write),
            false => self.publisher.publish_delta(now, write),
        };
        published.expect("a set").clone()
    }

    /// Replaces the published MANIFEST by what a program writes that knows only version 1 of it.
    ///
    /// # Panics
    /// If there is no set, or it cannot be replaced.
    pub fn write_version_1(&mut self, signer: &TestSigner) -> Manifest {
        let published = read_manifest(&self.dir).expect("a set");
        let signed_unix_ms = now_unix_ms();
        let unsigned = Manifest { names: None, seal: None, ..published };
        let statement = unsigned.state(signed_unix_ms, signer.signer());
        let signature = statement.sign(signer).expect("a key that signs").signature;
        let seal = ManifestSeal { signed_unix_ms, signer: signer.signer(), signature };
        let first = Manifest { seal: Some(seal), ..unsigned };
        std::fs::write(self.dir.join(MANIFEST), first.encode()).expect("the MANIFEST is written");
        self.publisher.refresh().expect("a set");
        first
    }

    /// The publisher of the directory.
    pub fn publisher(&mut self) -> &mut SetPublisher {
        &mut self.publisher
    }
}

/// Directories of a publisher, a store and a machine. The store is a directory, or object storage.
#[derive(Debug)]
pub struct TestFleet {
    /// Opened once: a client of object storage reads the certificates of the host.
    store: OnceLock<Arc<dyn FleetStore>>,
    bucket: Option<BucketServer>,
    dirs: TempDir,
}

impl Default for TestFleet {
    fn default() -> Self {
        Self::new()
    }
}

/// Writes a file that only its owner may read.
///
/// # Panics
/// If it cannot be written.
pub fn write_secret(path: &Path, text: &str) {
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    std::io::Write::write_all(&mut file.expect("a file"), text.as_bytes()).expect("a file");
}

impl TestFleet {
    /// Empty directories, and a directory as the store.
    ///
    /// # Panics
    /// If there is no capacity for them.
    #[must_use]
    pub fn new() -> Self {
        let fleet =
            Self { store: OnceLock::new(), bucket: None, dirs: tempfile::tempdir().expect("a directory") };
        create_directory(&fleet.path("set")).expect("a directory");
        fleet
    }

    /// Empty directories, and object storage as the store.
    ///
    /// # Panics
    /// If there is no capacity for them.
    #[must_use]
    pub fn over_s3() -> Self {
        let fleet = Self::new();
        let bucket = BucketServer::start(&fleet.path("buckets"));
        write_secret(&fleet.path("credentials"), &bucket.options());
        Self { bucket: Some(bucket), ..fleet }
    }

    /// The server of the object storage.
    ///
    /// # Panics
    /// If the store is a directory.
    #[must_use]
    pub const fn bucket(&self) -> &BucketServer {
        self.bucket.as_ref().expect("object storage")
    }

    /// The location of the store, as programs get it.
    #[must_use]
    pub fn url(&self) -> String {
        match self.bucket {
            Some(_) => "s3://sets/fleets/mine".to_owned(),
            None => format!("file://{}", self.path("store").display()),
        }
    }

    /// The directory in which the store keeps its objects.
    #[must_use]
    pub fn store_dir(&self) -> PathBuf {
        self.path(if self.bucket.is_some() { "buckets/sets/fleets/mine" } else { "store" })
    }

    /// Settings of object storage that fail after a second.
    #[must_use]
    pub fn storage(&self) -> StorageConfig {
        StorageConfig {
            credentials_file: self.bucket.as_ref().map(|_| self.path("credentials")),
            timeout_ms: 1000,
            ..StorageConfig::default()
        }
    }

    /// A path among the directories.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dirs.path().join(name)
    }

    /// A publisher of the directory `name`.
    #[must_use]
    pub fn publisher(&self, name: &str, signer: Option<&Arc<TestSigner>>) -> TestPublisher {
        TestPublisher::open(&self.path(name), signer)
    }

    /// The store.
    ///
    /// # Panics
    /// If it cannot be opened.
    #[must_use]
    pub fn store(&self) -> Arc<dyn FleetStore> {
        let open = || {
            let url: FleetUrl = self.url().parse().expect("a place");
            location::open(&url, &self.storage()).expect("a store")
        };
        Arc::clone(self.store.get_or_init(open))
    }

    /// Ships from the directory `name` to the store, without steps.
    ///
    /// # Panics
    /// If the store cannot be used.
    #[must_use]
    pub fn shipper(&self, name: &str) -> SetShipper {
        self.shipper_with_steps(name, 0)
    }

    /// Ships from the directory `name` to the store, with steps of at most so many bytes.
    ///
    /// # Panics
    /// If the store cannot be used.
    #[must_use]
    pub fn shipper_with_steps(&self, name: &str, steps_len: usize) -> SetShipper {
        let limits = ShipLimits { sets_kept: 2, grace: Duration::ZERO, steps_len };
        SetShipper::open(self.store(), "store", &self.path(name), limits).expect("a store")
    }

    /// Fetches from the store to the directory `set`.
    ///
    /// # Panics
    /// If the directory cannot be used.
    #[must_use]
    pub fn fetcher(&self, accepted: Option<AcceptedPublishers>) -> SetFetcher {
        let limits = FetchLimits { chunk_len: 64 << 10, ..FetchLimits::default() };
        SetFetcher::open(self.store(), &self.path("set"), accepted, limits).expect("a directory")
    }
}

/// Opens and verifies the set in a directory in full, its root included, and returns its manifest;
/// `None` if there is no set.
///
/// # Panics
/// If the set is not complete and intact.
#[must_use]
pub fn verified(dir: &Path) -> Option<Manifest> {
    read_manifest(dir).ok()?;
    let set = PublishedSet::open(dir, LoadMode::Map).expect("a complete set");
    set.verify().expect("an intact set");
    assert_eq!(SetTree::of(&set).expect("intact records").root(), set.manifest().root);
    Some(set.manifest().clone())
}
