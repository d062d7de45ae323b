//! What shipping and fetching need of a store of objects.

use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::path::Path;

/// Identifies the content of an object at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectTag {
    /// The entity tag.
    pub e_tag: Option<String>,
    /// The version, in stores that compare it instead.
    pub version: Option<String>,
}

/// A small object that was read.
#[derive(Clone, Debug)]
pub struct StoredObject {
    /// Its content.
    pub bytes: Bytes,
    /// Its tag.
    pub tag: ObjectTag,
}

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRow {
    /// Its name.
    pub name: String,
    /// Its length in bytes.
    pub len: u64,
    /// When it was written, Unix milliseconds, by the clock of the store.
    pub written_unix_ms: u64,
}

/// When an object is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutCondition {
    /// In any case.
    Always,
    /// If there is none.
    Absent,
    /// If its content is that of this tag.
    Unchanged(ObjectTag),
}

/// Why a store does not do what it was asked for. The text names the object.
#[derive(Debug)]
pub struct FleetStoreError {
    /// Name of the object; empty for the whole store.
    pub name: String,
    /// The reason.
    pub kind: FleetStoreErrorKind,
}

/// Why a store does not do what it was asked for.
#[derive(Debug)]
pub enum FleetStoreErrorKind {
    /// There is no such object.
    NotFound,
    /// Its content is that of the given tag.
    NotModified,
    /// The condition for writing it is not met.
    Condition,
    /// It is longer than allowed.
    TooLong,
    /// The store sent another number of bytes than requested.
    OtherLength,
    /// Anything else: the action that failed, as in "read", and the error.
    Failed(&'static str, String),
}

impl fmt::Display for FleetStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match &self.kind {
            FleetStoreErrorKind::NotFound => write!(f, "{name}: no such object"),
            FleetStoreErrorKind::NotModified => write!(f, "{name}: not modified"),
            FleetStoreErrorKind::Condition => write!(f, "{name}: another process has written it"),
            FleetStoreErrorKind::TooLong => write!(f, "{name}: the object is too long"),
            FleetStoreErrorKind::OtherLength => {
                write!(f, "{name}: the store sent another number of bytes than requested")
            }
            FleetStoreErrorKind::Failed(doing, error) => write!(f, "cannot {doing} {name}: {error}"),
        }
    }
}

impl std::error::Error for FleetStoreError {}

impl FleetStoreError {
    pub(crate) fn new(name: &str, kind: FleetStoreErrorKind) -> Self {
        Self { name: name.to_owned(), kind }
    }

    pub(crate) fn failed(name: &str, doing: &'static str, error: impl fmt::Display) -> Self {
        Self::new(name, FleetStoreErrorKind::Failed(doing, error.to_string()))
    }

    /// Whether there is no such object.
    #[must_use]
    pub const fn is_not_found(&self) -> bool {
        matches!(self.kind, FleetStoreErrorKind::NotFound)
    }

    /// Whether the content of the object is that of the given tag.
    #[must_use]
    pub const fn is_not_modified(&self) -> bool {
        matches!(self.kind, FleetStoreErrorKind::NotModified)
    }

    /// Whether the condition for writing was not met.
    #[must_use]
    pub const fn is_condition(&self) -> bool {
        matches!(self.kind, FleetStoreErrorKind::Condition)
    }
}

/// A store of objects with plain names. Every call blocks until it is done.
pub trait FleetStore: Send + Sync + fmt::Debug {
    /// Reads a small object of at most `len_max` bytes. With `known`, an object with this tag is
    /// not read again.
    ///
    /// # Errors
    /// `NotFound`, `NotModified`, `TooLong`, or a failure.
    fn read(
        &self,
        name: &str,
        len_max: usize,
        known: Option<&ObjectTag>,
    ) -> Result<StoredObject, FleetStoreError>;

    /// Reads a range of an object, all of which must be there.
    ///
    /// # Errors
    /// `NotFound`, `OtherLength`, or a failure.
    fn read_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, FleetStoreError>;

    /// The length of an object; `None` if there is none.
    ///
    /// # Errors
    /// A failure.
    fn len(&self, name: &str) -> Result<Option<u64>, FleetStoreError>;

    /// Writes a small object, durably and in one step, and returns its tag.
    ///
    /// # Errors
    /// `Condition`, or a failure.
    fn put(&self, name: &str, bytes: Bytes, condition: &PutCondition) -> Result<ObjectTag, FleetStoreError>;

    /// Writes a file of `len` bytes as an object, durably and in one step.
    ///
    /// # Errors
    /// A failure.
    fn put_file(&self, name: &str, file: &Path, len: u64) -> Result<(), FleetStoreError>;

    /// All objects.
    ///
    /// # Errors
    /// A failure.
    fn list(&self) -> Result<Vec<ObjectRow>, FleetStoreError>;

    /// Removes an object. It is no error if there is none.
    ///
    /// # Errors
    /// A failure.
    fn remove(&self, name: &str) -> Result<(), FleetStoreError>;
}
