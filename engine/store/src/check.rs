//! Consistency checks of a store, and its statistics.

use super::StoreRecords as _;
use super::index::IndexCheck;
use super::record::StoreRecord;
use super::snapshot::StoreSnapshot;
use super::{StoreError, check_record, is_record_of_homed_prefix, is_responsible, key};
use handle_proto::Handle;
use serde::Serialize;
use std::fmt;

/// Counts and sizes of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StoreStats {
    /// Records.
    pub records: u64,
    /// Values in them.
    pub values: u64,
    /// Bytes of names and values.
    pub bytes: u64,
    /// Homed prefixes.
    pub homed_prefixes: u64,
    /// The last transaction.
    pub last_transaction: u64,
    /// Transactions in the log.
    pub log_transactions: u64,
    /// The last transaction that is not in the log any more.
    pub log_base: u64,
}

/// An inconsistency in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreFinding {
    /// The bytes stored under this name are not a record.
    DamagedRecord(Vec<u8>),
    /// The service would look the record up under another name.
    WrongName(Vec<u8>),
    /// The record exceeds a limit; the text says which.
    UnfitRecord(Vec<u8>, String),
    /// The prefix is not homed, so the record is not served.
    NotHomed(Vec<u8>),
    /// The record of a homed prefix. It is not served, because its location is at the registry; its
    /// keys and groups count.
    CopyOfPrefixRecord(Vec<u8>),
    /// The record names a transaction after the last one.
    FromTheFuture(Vec<u8>),
    /// The index of this type does not have the rows of the records.
    WrongIndex(Vec<u8>),
    /// An entry of the log does not decode.
    DamagedLog,
    /// A transaction is missing in the log, or is after the last one.
    LogGap(u64),
    /// An entry has an earlier time than its predecessor.
    LogTime(u64),
}

impl StoreFinding {
    /// Whether data is lost or wrong, rather than only not served.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        !matches!(self, Self::NotHomed(_) | Self::CopyOfPrefixRecord(_))
    }
}

impl fmt::Display for StoreFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DamagedRecord(name) => write!(f, "{}: the record does not decode", Handle(name)),
            Self::WrongName(name) => {
                write!(f, "{}: stored under a name that is not looked for", Handle(name))
            }
            Self::UnfitRecord(name, why) => write!(f, "{}: {why}", Handle(name)),
            Self::NotHomed(name) => write!(f, "{}: the prefix is not homed", Handle(name)),
            Self::CopyOfPrefixRecord(name) => {
                write!(f, "{}: a copy of a record that the registry serves", Handle(name))
            }
            Self::FromTheFuture(name) => write!(f, "{}: names a transaction after the last", Handle(name)),
            Self::WrongIndex(kind) => write!(
                f,
                "the index of type {} differs from the records: take the type out of `index.types`, start handle-admin, \
                 and add it again",
                Handle(kind)
            ),
            Self::DamagedLog => f.write_str("log: an entry does not decode"),
            Self::LogGap(id) => write!(f, "log: transaction {id} is where another should be"),
            Self::LogTime(id) => write!(f, "log: transaction {id} is earlier than the one before"),
        }
    }
}

/// The statistics, without reading the records.
pub(super) fn stats(snapshot: &StoreSnapshot) -> Result<StoreStats, StoreError> {
    // Each change keeps these counts.
    let (values, bytes) = snapshot.content()?;
    Ok(StoreStats {
        values,
        bytes,
        records: snapshot.records_count()?,
        homed_prefixes: snapshot.homed()?.len() as u64,
        last_transaction: snapshot.last_id()?,
        log_transactions: snapshot.log_count()?,
        log_base: snapshot.log_base()?,
    })
}

/// Reads all records and the log, and reports each inconsistency to `found`.
pub(super) fn check(
    snapshot: &StoreSnapshot,
    mut found: impl FnMut(StoreFinding),
) -> Result<StoreStats, StoreError> {
    let mut stats = StoreStats { values: 0, bytes: 0, ..stats(snapshot)? };
    let mut index = IndexCheck::new(snapshot)?;
    for stored in snapshot.records()? {
        let stored = stored?;
        let name = stored.handle();
        let Ok(record) = stored.record() else {
            found(StoreFinding::DamagedRecord(name.to_vec()));
            continue;
        };
        stats.values += record.values.len() as u64;
        stats.bytes += (name.len() + record.values.as_bytes().len()) as u64;
        index.add_record(&stored);
        check_one(snapshot, name, &record, stats.last_transaction, &mut found)?;
    }
    index.finish(snapshot, &mut found)?;
    check_log(snapshot, &stats, found)?;
    Ok(stats)
}

fn check_one(
    snapshot: &StoreSnapshot,
    name: &[u8],
    record: &StoreRecord<'_>,
    last_id: u64,
    found: &mut impl FnMut(StoreFinding),
) -> Result<(), StoreError> {
    if key(name, snapshot.folds()) != name {
        found(StoreFinding::WrongName(name.to_vec()));
    }
    if let Err(why) = check_record(name, record.values.iter()) {
        found(StoreFinding::UnfitRecord(name.to_vec(), why.to_string()));
    }
    if record.id > last_id {
        found(StoreFinding::FromTheFuture(name.to_vec()));
    }
    if !is_responsible(snapshot, name)? {
        found(match is_record_of_homed_prefix(snapshot, name)? {
            true => StoreFinding::CopyOfPrefixRecord(name.to_vec()),
            false => StoreFinding::NotHomed(name.to_vec()),
        });
    }
    Ok(())
}

fn check_log(
    snapshot: &StoreSnapshot,
    stats: &StoreStats,
    mut found: impl FnMut(StoreFinding),
) -> Result<(), StoreError> {
    let (mut next_id, mut unix_ms) = (stats.log_base + 1, 0);
    for entry in snapshot.log_after(0)? {
        let entry = match entry {
            Err(StoreError::Damaged(_)) => {
                found(StoreFinding::DamagedLog);
                next_id += 1;
                continue;
            }
            entry => entry?,
        };
        if entry.id != next_id {
            found(StoreFinding::LogGap(entry.id));
        }
        if entry.unix_ms < unix_ms {
            found(StoreFinding::LogTime(entry.id));
        }
        (next_id, unix_ms) = (entry.id + 1, entry.unix_ms);
    }
    if next_id != stats.last_transaction + 1 {
        found(StoreFinding::LogGap(stats.last_transaction));
    }
    Ok(())
}
