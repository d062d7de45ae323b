//! Object storage: S3 and compatible, Google Cloud Storage, Azure.

use crate::config::StorageConfig;
use crate::location::{LocationError, StorageOptions};
use crate::store::{
    FleetStore, FleetStoreError, FleetStoreErrorKind, ObjectRow, ObjectTag, PutCondition, StoredObject,
};
use bytes::Bytes;
use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path as ObjectPath;
use object_store::{
    BackoffConfig, ClientOptions, Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt as _,
    ObjectStoreScheme, PutMode, PutOptions, PutPayload, RetryConfig, UpdateVersion, WriteMultipart,
};
use std::fs::File;
use std::future::Future;
use std::io::Read as _;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::{Builder, Runtime};
use url::Url;

/// Least bytes of a part of an upload. S3 requires 5 MiB.
const PART_LEN_MIN: u64 = 8 << 20;
/// Most parts of an upload. S3 allows 10,000.
const PARTS_MAX: u64 = 9000;
/// Parts that are uploaded at a time.
const PARTS_AT_A_TIME: usize = 4;
/// Most characters of an error of object storage, which may quote a whole page.
const ERROR_LEN_MAX: usize = 300;

/// A path in a bucket as a store.
#[derive(Debug)]
pub struct BucketStore {
    store: Arc<dyn ObjectStore>,
    prefix: ObjectPath,
    runtime: Runtime,
}

/// Applies the options that the builder knows.
macro_rules! with_options {
    ($builder:expr, $options:expr) => {{
        let mut builder = $builder;
        for (name, value) in &$options {
            if let Ok(key) = name.parse() {
                builder = builder.with_config(key, value.as_str());
            }
        }
        builder
    }};
}

impl BucketStore {
    /// The store at `url`. No request is made.
    ///
    /// # Errors
    /// When the options do not fit the store.
    pub fn open(url: &Url, config: &StorageConfig, options: StorageOptions) -> Result<Self, LocationError> {
        // It is no error if the process has another default already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let refused = |error: &dyn std::fmt::Display| LocationError::Options(short(error));
        let (scheme, prefix) = ObjectStoreScheme::parse(url).map_err(|error| refused(&error))?;
        let client = ClientOptions::new()
            .with_timeout(config.timeout())
            .with_connect_timeout(config.connect_timeout());
        let retry = RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: config.retries,
            retry_timeout: config.timeout(),
        };
        let url = url.as_str();
        let store: Result<Arc<dyn ObjectStore>, Error> = match scheme {
            ObjectStoreScheme::AmazonS3 => {
                let builder = AmazonS3Builder::new().with_client_options(client).with_retry(retry);
                with_options!(builder.with_url(url), options)
                    .with_conditional_put(S3ConditionalPut::ETagMatch)
                    // Objects are removed one at a time, which every compatible store can do.
                    .with_disable_bulk_delete(true)
                    .build()
                    .map(|store| Arc::new(store) as _)
            }
            ObjectStoreScheme::GoogleCloudStorage => {
                let builder = GoogleCloudStorageBuilder::new().with_client_options(client).with_retry(retry);
                with_options!(builder.with_url(url), options).build().map(|store| Arc::new(store) as _)
            }
            ObjectStoreScheme::MicrosoftAzure => {
                let builder = MicrosoftAzureBuilder::new().with_client_options(client).with_retry(retry);
                with_options!(builder.with_url(url), options).build().map(|store| Arc::new(store) as _)
            }
            _ => return Err(LocationError::Options("it is not a known kind of object storage".to_owned())),
        };
        let store = store.map_err(|error| refused(&error))?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("storage")
            .enable_all()
            .build()
            .map_err(LocationError::Runtime)?;
        Ok(Self { store, prefix, runtime })
    }

    fn path(&self, name: &str) -> ObjectPath {
        self.prefix.clone().join(name)
    }

    /// Waits for a request in the calling thread, while the thread of the runtime moves its bytes.
    fn wait<T>(&self, request: impl Future<Output = T>) -> T {
        self.runtime.handle().block_on(request)
    }

    /// Uploads a file in parts.
    async fn upload(&self, name: &str, file: &Path, len: u64) -> Result<(), UploadError> {
        let part_len = PART_LEN_MIN.max(len.div_ceil(PARTS_MAX));
        let mut file = File::open(file).map_err(UploadError::File)?;
        let started = self.store.put_multipart(&self.path(name)).await?;
        let part = usize::try_from(part_len).unwrap_or(usize::MAX);
        let mut upload = WriteMultipart::new_with_chunk_size(started, part);
        let sent = async {
            let mut left = len;
            while left > 0 {
                let wanted = left.min(part_len);
                let mut bytes = vec![0; usize::try_from(wanted).unwrap_or(usize::MAX)];
                // Reading from the disk takes less time than sending; other threads have requests
                // of their own.
                file.read_exact(&mut bytes).map_err(UploadError::File)?;
                left -= wanted;
                upload.wait_for_capacity(PARTS_AT_A_TIME).await?;
                upload.put(bytes.into());
            }
            Ok(())
        };
        match sent.await {
            Ok(()) => upload.finish().await.map(|_| ()).map_err(UploadError::Store),
            Err(error) => {
                // The parts cost space until then; what cannot be aborted is removed by a rule of
                // the bucket.
                let _ = upload.abort().await;
                Err(error)
            }
        }
    }
}

/// Why a file is not uploaded.
enum UploadError {
    File(std::io::Error),
    Store(Error),
}

impl From<Error> for UploadError {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

/// The start of an error, on one line.
fn short(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    let text: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.chars().filter(|c| !c.is_control()).take(ERROR_LEN_MAX).collect()
}

fn error_of(name: &str, doing: &'static str) -> impl Fn(Error) -> FleetStoreError {
    move |error| {
        let kind = match error {
            Error::NotFound { .. } => FleetStoreErrorKind::NotFound,
            Error::NotModified { .. } => FleetStoreErrorKind::NotModified,
            Error::AlreadyExists { .. } | Error::Precondition { .. } => FleetStoreErrorKind::Condition,
            error => FleetStoreErrorKind::Failed(doing, short(&error)),
        };
        FleetStoreError::new(name, kind)
    }
}

impl FleetStore for BucketStore {
    fn read(
        &self,
        name: &str,
        len_max: usize,
        known: Option<&ObjectTag>,
    ) -> Result<StoredObject, FleetStoreError> {
        let if_none_match = known.and_then(|tag| tag.e_tag.clone());
        let range = Some(GetRange::Bounded(0..len_max as u64 + 1));
        let options = GetOptions { if_none_match, range, ..GetOptions::default() };
        let read = async {
            let found = self.store.get_opts(&self.path(name), options).await?;
            let tag = ObjectTag { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
            Ok((found.meta.size, tag, found.bytes().await?))
        };
        let (len, tag, bytes) = self.wait(read).map_err(error_of(name, "read"))?;
        if len > len_max as u64 {
            return Err(FleetStoreError::new(name, FleetStoreErrorKind::TooLong));
        }
        Ok(StoredObject { bytes, tag })
    }

    fn read_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, FleetStoreError> {
        let len = range.end.saturating_sub(range.start);
        let bytes = self.wait(self.store.get_range(&self.path(name), range));
        let bytes = bytes.map_err(error_of(name, "read"))?;
        if bytes.len() as u64 != len {
            return Err(FleetStoreError::new(name, FleetStoreErrorKind::OtherLength));
        }
        Ok(bytes)
    }

    fn len(&self, name: &str) -> Result<Option<u64>, FleetStoreError> {
        match self.wait(self.store.head(&self.path(name))) {
            Ok(found) => Ok(Some(found.size)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error_of(name, "look at")(error)),
        }
    }

    fn put(&self, name: &str, bytes: Bytes, condition: &PutCondition) -> Result<ObjectTag, FleetStoreError> {
        let mode = match condition {
            PutCondition::Always => PutMode::Overwrite,
            PutCondition::Absent => PutMode::Create,
            PutCondition::Unchanged(ObjectTag { e_tag, version }) => {
                PutMode::Update(UpdateVersion { e_tag: e_tag.clone(), version: version.clone() })
            }
        };
        let options = PutOptions { mode, ..PutOptions::default() };
        let path = self.path(name);
        let put = self.wait(self.store.put_opts(&path, PutPayload::from_bytes(bytes), options));
        let put = put.map_err(error_of(name, "write"))?;
        Ok(ObjectTag { e_tag: put.e_tag, version: put.version })
    }

    fn put_file(&self, name: &str, file: &Path, len: u64) -> Result<(), FleetStoreError> {
        if len <= PART_LEN_MIN {
            let bytes = std::fs::read(file).map_err(|error| FleetStoreError::failed(name, "read", error))?;
            return self.put(name, bytes.into(), &PutCondition::Always).map(|_| ());
        }
        self.wait(self.upload(name, file, len)).map_err(|error| match error {
            UploadError::File(error) => FleetStoreError::failed(name, "read", error),
            UploadError::Store(error) => error_of(name, "write")(error),
        })
    }

    fn list(&self) -> Result<Vec<ObjectRow>, FleetStoreError> {
        let listed = self.wait(self.store.list_with_delimiter(Some(&self.prefix)));
        let listed = listed.map_err(error_of("the bucket", "list"))?;
        let rows = listed.objects.into_iter().filter_map(|object| {
            Some(ObjectRow {
                name: object.location.filename()?.to_owned(),
                len: object.size,
                written_unix_ms: u64::try_from(object.last_modified.timestamp_millis()).unwrap_or_default(),
            })
        });
        Ok(rows.collect())
    }

    fn remove(&self, name: &str) -> Result<(), FleetStoreError> {
        match self.wait(self.store.delete(&self.path(name))) {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error_of(name, "remove")(error)),
        }
    }
}
