//! Where a store is: a directory, or a bucket of object storage.

use crate::config::StorageConfig;
use crate::directory::DirectoryStore;
use crate::store::FleetStore;
use handle_daemon::server_key::{SecretFileError, read_secret};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use url::Url;
use zeroize::Zeroizing;

/// Start of the names of environment variables that are options of object storage.
const OPTION_PREFIXES: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];
/// Schemes of object storage.
const SCHEMES: [&str; 9] = ["s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "https"];

/// The location of a store: `file:///directory`, `s3://bucket/path`, `gs://bucket/path`,
/// `az://container/path`, or an `https` URL of one of these. A path without a scheme is a
/// directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FleetUrl {
    /// A directory.
    Directory(PathBuf),
    /// A path in a bucket.
    Bucket(Url),
}

/// Why a store cannot be opened.
#[derive(Debug)]
pub enum LocationError {
    /// The text is not the location of a store: the text, and why.
    Url(String, &'static str),
    /// The file with credentials cannot be read.
    Credentials(SecretFileError),
    /// A line of the file with credentials is not `NAME=value`: its number.
    CredentialsLine(PathBuf, usize),
    /// The options do not fit the store.
    Options(String),
    /// The system has no more threads.
    Runtime(std::io::Error),
}

impl fmt::Display for LocationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(text, why) => write!(f, "cannot use {text:?} as the place of sets: {why}"),
            Self::Credentials(error) => write!(f, "cannot read the credentials of object storage: {error}"),
            Self::CredentialsLine(path, line) => {
                write!(f, "{}, line {line}: expected NAME=value", path.display())
            }
            Self::Options(error) => write!(f, "cannot use object storage: {error}"),
            Self::Runtime(error) => write!(f, "cannot start the thread for object storage: {error}"),
        }
    }
}

/// Without a source, because the text includes it already.
impl std::error::Error for LocationError {}

impl fmt::Display for FleetUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "file://{}", path.display()),
            Self::Bucket(url) => url.fmt(f),
        }
    }
}

impl FromStr for FleetUrl {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<Self, LocationError> {
        let error = |why| LocationError::Url(text.to_owned(), why);
        let Some((scheme, _)) = text.split_once("://") else {
            return match text.is_empty() {
                true => Err(error("it is empty")),
                false => Ok(Self::Directory(text.into())),
            };
        };
        let url = Url::parse(text).map_err(|_| error("it is not a URL"))?;
        if !url.username().is_empty() || url.password().is_some() {
            // Without the text, which has a password.
            let why = "it has a password: credentials belong into a file or the environment";
            return Err(LocationError::Url(format!("{scheme}://..."), why));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(LocationError::Url(format!("{scheme}://..."), "it has a query or a fragment"));
        }
        match scheme {
            "file" => url.to_file_path().map(Self::Directory).map_err(|()| error("it is not a path")),
            scheme if SCHEMES.contains(&scheme) => Ok(Self::Bucket(url)),
            _ => Err(error(
                "write file:///DIRECTORY, s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH",
            )),
        }
    }
}

/// Opens a store. No request is made.
///
/// # Errors
/// When credentials or options cannot be used.
pub fn open(url: &FleetUrl, config: &StorageConfig) -> Result<Arc<dyn FleetStore>, LocationError> {
    match url {
        FleetUrl::Directory(path) => Ok(Arc::new(DirectoryStore::new(path))),
        FleetUrl::Bucket(url) => open_bucket(url, config, options(config)?),
    }
}

/// Whether this build can use object storage.
const HAS_OBJECT_STORAGE: bool = cfg!(feature = "object-storage");

/// What `--version` of a program prints that ships or fetches: whether it can use buckets as well.
pub const VERSION: &str = match HAS_OBJECT_STORAGE {
    true => concat!(env!("CARGO_PKG_VERSION"), " (with object storage)"),
    false => concat!(env!("CARGO_PKG_VERSION"), " (without object storage)"),
};

#[cfg(feature = "object-storage")]
fn open_bucket(
    url: &Url,
    config: &StorageConfig,
    options: StorageOptions,
) -> Result<Arc<dyn FleetStore>, LocationError> {
    Ok(Arc::new(crate::bucket::BucketStore::open(url, config, options)?))
}

#[cfg(not(feature = "object-storage"))]
fn open_bucket(
    url: &Url,
    _: &StorageConfig,
    _: StorageOptions,
) -> Result<Arc<dyn FleetStore>, LocationError> {
    let why = "this program is built without object storage (feature `object-storage`)";
    Err(LocationError::Url(url.to_string(), why))
}

/// Names of options in lower case, and their values.
pub(crate) type StorageOptions = Vec<(String, Zeroizing<String>)>;

/// The options in the environment, and after them those of the file.
fn options(config: &StorageConfig) -> Result<StorageOptions, LocationError> {
    let in_environment = std::env::vars_os().filter_map(|(name, value)| {
        let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
        let is_option = OPTION_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        is_option.then(|| (name.to_ascii_lowercase(), Zeroizing::new(value)))
    });
    let mut options: StorageOptions = in_environment.collect();
    if let Some(path) = &config.credentials_file {
        let bytes = read_secret(path).map_err(LocationError::Credentials)?;
        options.extend(parse_options(path, &bytes)?);
    }
    Ok(options)
}

fn parse_options(path: &Path, bytes: &[u8]) -> Result<StorageOptions, LocationError> {
    let text = std::str::from_utf8(bytes).map_err(|_| LocationError::CredentialsLine(path.to_owned(), 1))?;
    let mut options = StorageOptions::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) =
            line.split_once('=').ok_or_else(|| LocationError::CredentialsLine(path.to_owned(), number))?;
        let value = value.trim();
        let unquoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value);
        options.push((name.trim().to_ascii_lowercase(), Zeroizing::new(unquoted.to_owned())));
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_directories_or_buckets_without_credentials() {
        let parse = |text: &str| text.parse::<FleetUrl>();
        assert_eq!(parse("file:///mnt/a%20b").unwrap(), FleetUrl::Directory("/mnt/a b".into()));
        assert_eq!(parse("./sets").unwrap(), FleetUrl::Directory("./sets".into()));
        for bucket in
            ["s3://bucket/path", "gs://b", "az://container/p", "https://a.s3.us-east-1.amazonaws.com"]
        {
            assert!(matches!(parse(bucket), Ok(FleetUrl::Bucket(_))), "{bucket}");
        }
        for wrong in ["", "ftp://host/path", "file://host/path", "s3://b/p?x=1", "s3://b/p#x", "://"] {
            let error = parse(wrong).unwrap_err();
            assert!(matches!(error, LocationError::Url(..)), "{wrong}: {error}");
        }
        let error = parse("s3://user:hunter2@bucket/").unwrap_err().to_string();
        assert!(error.contains("credentials belong into a file") && !error.contains("hunter2"), "{error}");
    }

    #[cfg(not(feature = "object-storage"))]
    #[test]
    fn a_build_without_object_storage_refuses_a_bucket_and_says_so() {
        let url: FleetUrl = "s3://bucket/path".parse().unwrap();
        let error = open(&url, &StorageConfig::default()).unwrap_err().to_string();
        assert!(error.contains("s3://bucket/path") && error.contains("object-storage"), "{error}");
    }

    #[test]
    fn options_are_lines_of_names_and_values() {
        let parse = |text: &str| parse_options(Path::new("file"), text.as_bytes());
        let read = parse("# storage\nAWS_REGION = eu-1\n\nAWS_SECRET_ACCESS_KEY=\"a=b\"\n").unwrap();
        let read: Vec<_> = read.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(read, [("aws_region", "eu-1"), ("aws_secret_access_key", "a=b")]);
        let error = parse("A=1\nsecret words").unwrap_err().to_string();
        assert!(error.contains("line 2") && !error.contains("secret"), "{error}");
    }
}
