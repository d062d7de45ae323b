//! The keys and dates of removals, as they are stored.

use super::StoreError;

/// The priority of changes that were made here.
pub(super) const OWN_PRIORITY: u32 = 0;

/// What was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RemovalKind {
    /// A handle was deleted.
    Handle = 0,
    /// A prefix was released.
    Prefix = 1,
}

/// Number and time of the last change of a handle or prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastChange {
    /// The transaction that made it.
    pub id: u64,
    /// Its time, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The priority of the site that made it; 0 for this one.
    pub priority: u32,
}

impl LastChange {
    pub(super) fn encode(self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&self.id.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.unix_ms.to_be_bytes());
        bytes[16..].copy_from_slice(&self.priority.to_be_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let decoded = || {
            let (&id, rest) = bytes.split_first_chunk()?;
            let (&unix_ms, rest) = rest.split_first_chunk()?;
            let priority = u32::from_be_bytes(rest.try_into().ok()?);
            Some(Self { id: u64::from_be_bytes(id), unix_ms: u64::from_be_bytes(unix_ms), priority })
        };
        decoded().ok_or(StoreError::Damaged("the date of a change does not decode"))
    }
}

/// A key of the table: the kind, and the name as stored. Names of prefixes are without `0.NA/`.
pub(super) struct RemovalKey(Vec<u8>);

impl RemovalKey {
    pub(super) fn new(kind: RemovalKind, name: &[u8]) -> Self {
        Self([&[kind as u8], name].concat())
    }

    pub(super) fn handle(key: &[u8]) -> Self {
        Self::new(RemovalKind::Handle, key)
    }

    pub(super) fn prefix(prefix: &[u8]) -> Self {
        Self::new(RemovalKind::Prefix, prefix)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}
