//! Moves a store to another location, in another engine or the same, while it changes.
//!
//! A copy of a snapshot is followed by the changes of the log, so that the copy lags behind by
//! moments only. [`finish`](StoreMove::finish) then holds changes back, brings the copy level, and
//! marks the old store as moved. Identity, numbers, log and dates are those of the old store, so
//! the publisher, mirrors and cursors go on. The index of values is not copied but built again.
//!
//! - A copy cannot be opened before it is finished, and a store cannot be written after it was
//!   moved. So at every moment one of both, at most, takes changes.
//! - Of a move that is interrupted, the copy stays. Another one goes on from there; a copy of the
//!   snapshot that is incomplete begins again.

use super::filling::filling_order;
use super::log::LogEntry;
use super::removal_keys::{LastChange, RemovalKey, RemovalKind};
use super::tables::{ALL_KEYS, SnapshotTables, StoreEngine, StoreTable, WriteTables, names, number_in};
use super::transaction::Transaction;
use super::{Store, StoreConfig, StoreError, StoreRecords as _, StoreSnapshot};
use handle_proto::name::PREFIX_RECORDS;
use serde::Serialize;
use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// Bytes of rows in one commit of the copy.
const COMMIT_BYTES: usize = 16 << 20;
/// Transactions that one step follows.
const STEP_CHANGES: usize = 1000;
/// Removals that one step drops because the old store has dropped them.
const STEP_REMOVALS: usize = 1000;

/// The tables that a snapshot shows, without `Meta` and `Index`.
const SHOWN: [StoreTable; 5] =
    [StoreTable::Homed, StoreTable::HomedDates, StoreTable::Removals, StoreTable::Log, StoreTable::Records];
/// The tables that are copied while changes are held back.
const OTHERS: [StoreTable; 9] = [
    StoreTable::Mirrors,
    StoreTable::MirrorNamed,
    StoreTable::BulkKeys,
    StoreTable::BulkNumbers,
    StoreTable::BulkResults,
    StoreTable::BulkOwned,
    StoreTable::BulkOwners,
    StoreTable::Imports,
    StoreTable::Pulls,
];
/// The numbers that are copied. Others are those of the engine, of the index or of the move.
const NUMBERS: [&str; 15] = [
    names::FOLDS,
    names::IDENTITY,
    names::LAST_ID,
    names::LAST_MS,
    names::LOG_BASE,
    names::LOG_BASE_MS,
    names::LOG_ANEW,
    names::VALUES,
    names::BYTES,
    names::BULK_LAST,
    names::BULK_RESULTS_COUNT,
    names::MIRROR_DUMPS,
    names::RENUMBERED_FROM,
    names::RENUMBERED_TO,
    names::PROBE,
];

/// How far a copy is: a number in its `Meta`, which a store that is no copy does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
enum CopyState {
    /// Rows of the snapshot are missing.
    Copying = 1,
    /// It has the state after its last transaction.
    Following = 2,
    /// It has everything; only the old store is not known to be marked as moved.
    Level = 3,
}

impl CopyState {
    const fn from_number(number: u64) -> Option<Self> {
        match number {
            1 => Some(Self::Copying),
            2 => Some(Self::Following),
            3 => Some(Self::Level),
            _ => None,
        }
    }
}

/// What was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MoveSummary {
    /// Records.
    pub records: u64,
    /// Transactions in the log.
    pub log_transactions: u64,
    /// The last transaction.
    pub last_transaction: u64,
}

/// A move in progress.
#[derive(Debug)]
pub struct StoreMove<'s> {
    from: &'s Store,
    to: StoreEngine,
    state: CopyState,
    /// The last transaction that the copy has; 0 before it has any.
    position: u64,
}

/// Rows of a table: their number and the sum of their hashes.
type TableSum = (u64, u64);

impl<'s> StoreMove<'s> {
    /// Begins a move to a location where there is nothing yet or a file that was never used, or
    /// goes on with one that was interrupted.
    ///
    /// # Errors
    /// When the location has another store, or cannot be written.
    pub fn begin(from: &'s Store, to: &StoreConfig) -> Result<Self, StoreError> {
        let engine = match Self::create(to, from.folds()) {
            Ok(engine) => engine,
            Err(StoreError::Exists(path)) => {
                let engine = StoreEngine::open(to, false)?;
                let tables = engine.snapshot()?;
                let number = |name: &str| {
                    let number = tables.get(StoreTable::Meta, name.as_bytes())?;
                    Ok::<_, StoreError>(number.map_or(0, |number| number_in(&number)))
                };
                let is_used = number(names::LAST_ID)? > 0
                    || has_rows(&tables, StoreTable::Records)?
                    || has_rows(&tables, StoreTable::Homed)?;
                match CopyState::from_number(number(names::COPY_STATE)?) {
                    // A database may be in use by another process.
                    None if is_used || to.is_in_database() => return Err(StoreError::Exists(path)),
                    // Made for the copy by hand.
                    None => write(&engine, |tables| put_state(tables, Some(CopyState::Copying)))?,
                    Some(CopyState::Copying) => {}
                    Some(_) if number(names::IDENTITY)? == from.identity() => {}
                    Some(_) => return Err(StoreError::OtherCopy),
                }
                drop(tables);
                engine
            }
            Err(error) => return Err(error),
        };
        let mut begun = Self { from, to: engine, state: CopyState::Copying, position: 0 };
        begun.read_state()?;
        Ok(begun)
    }

    /// Makes the tables of the copy. A process that is killed leaves no tables or those of a copy,
    /// but never an empty store, which in a database could be that of another process.
    pub(crate) fn create(to: &StoreConfig, folds: bool) -> Result<StoreEngine, StoreError> {
        StoreEngine::create(to, folds, Some((names::COPY_STATE, CopyState::Copying as u64)))
    }

    fn read_state(&mut self) -> Result<(), StoreError> {
        let tables = self.to.snapshot()?;
        let number = |name: &str| {
            let number = tables.get(StoreTable::Meta, name.as_bytes())?;
            Ok::<_, StoreError>(number.map_or(0, |number| number_in(&number)))
        };
        self.state = CopyState::from_number(number(names::COPY_STATE)?).unwrap_or(CopyState::Copying);
        self.position = if self.state == CopyState::Copying { 0 } else { number(names::LAST_ID)? };
        Ok(())
    }

    /// Copies or follows for one step; returns the number of transactions that the copy lags
    /// behind, which is `None` as long as the snapshot is not copied. `progress` gets the number of
    /// copied records, and stops the copy by returning false.
    ///
    /// # Errors
    /// When a store cannot be read or written.
    pub fn step(&mut self, progress: impl FnMut(u64) -> bool) -> Result<Option<u64>, StoreError> {
        let snapshot = self.from.snapshot()?;
        let is_known = self.position >= snapshot.log_base()? && self.position <= snapshot.last_id()?;
        if self.state == CopyState::Copying || !is_known {
            // Bulk imports and dumps of mirrors are not in the log.
            return match self.copy(&snapshot, progress)? {
                true => Ok(Some(self.from.last_id().saturating_sub(self.position))),
                false => Ok(None),
            };
        }
        self.follow(&snapshot)?;
        Ok(Some(self.from.last_id().saturating_sub(self.position)))
    }

    /// Copies all that a snapshot shows; false if `progress` has stopped it.
    fn copy(
        &mut self,
        snapshot: &StoreSnapshot,
        mut progress: impl FnMut(u64) -> bool,
    ) -> Result<bool, StoreError> {
        self.state = CopyState::Copying;
        write(&self.to, |tables| {
            put_state(tables, Some(CopyState::Copying))?;
            let all = SHOWN.into_iter().chain(OTHERS).chain([StoreTable::RemovalIds, StoreTable::Index]);
            all.into_iter().try_for_each(|table| tables.remove_range(table, ALL_KEYS).map(drop))
        })?;
        let mut records = 0;
        for table in SHOWN {
            let mut batch = Vec::new();
            let mut bytes = 0;
            let rows =
                snapshot.tables.rows(table, ALL_KEYS, |key, value| Ok((key.to_vec(), value.to_vec())))?;
            for row in rows {
                let (key, value) = row?;
                bytes += key.len() + value.len();
                records += u64::from(table == StoreTable::Records);
                batch.push((key, value));
                if bytes >= COMMIT_BYTES {
                    self.write_rows(table, &batch)?;
                    batch.clear();
                    bytes = 0;
                    if !progress(records) {
                        return Ok(false);
                    }
                }
            }
            self.write_rows(table, &batch)?;
        }
        write(&self.to, |tables| {
            put_numbers(tables, snapshot)?;
            put_state(tables, Some(CopyState::Following))
        })?;
        self.read_state()?;
        Ok(true)
    }

    /// Adds rows of a table to the copy, which does not have them.
    fn write_rows(&self, table: StoreTable, rows: &[(Vec<u8>, Vec<u8>)]) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        write(&self.to, |tables| {
            tables.assume_absent(table, rows.iter().map(|(key, _)| &**key));
            for at in filling_order(rows.len()) {
                let (key, value) = &rows[at];
                tables.insert(table, key, value)?;
                if table == StoreTable::Removals {
                    tables.insert(StoreTable::RemovalIds, &value[..8.min(value.len())], key)?;
                }
            }
            Ok(())
        })
    }

    /// Follows the log of `snapshot` for one step.
    fn follow(&mut self, snapshot: &StoreSnapshot) -> Result<(), StoreError> {
        let entries: Vec<LogEntry> =
            snapshot.log_after(self.position)?.take(STEP_CHANGES).collect::<Result<_, _>>()?;
        let to = entries.last().map_or(self.position, |entry| entry.id);
        let is_level = to == snapshot.last_id()?;
        write(&self.to, |tables| {
            follow_entries(tables, snapshot, &entries)?;
            if is_level {
                drop_old_rows(tables, snapshot)?;
                put_numbers(tables, snapshot)?;
            } else {
                tables.insert(StoreTable::Meta, names::LAST_ID.as_bytes(), &to.to_be_bytes())?;
            }
            put_state(tables, Some(CopyState::Following))
        })?;
        (self.position, self.state) = (to, CopyState::Following);
        Ok(())
    }

    /// Brings the copy level with a snapshot, and compares all rows of both. Changes go on
    /// meanwhile.
    ///
    /// # Errors
    /// When a store cannot be read or written, or the copy differs.
    pub fn verify(&mut self) -> Result<MoveSummary, StoreError> {
        let snapshot = loop {
            self.step(|_| true)?;
            let snapshot = self.from.snapshot()?;
            while self.position >= snapshot.log_base()? && self.position < snapshot.last_id()? {
                self.follow(&snapshot)?;
            }
            if self.state == CopyState::Following && self.position == snapshot.last_id()? {
                self.follow(&snapshot)?;
                break snapshot;
            }
        };
        let (copy, hasher) = (StoreSnapshot::new(self.to.snapshot()?, snapshot.folds()), RandomState::new());
        for table in SHOWN {
            if sum(&snapshot, table, &hasher)? != sum(&copy, table, &hasher)? {
                return Err(StoreError::CopyDiffers);
            }
        }
        summary(&copy)
    }

    /// Compares the copy, holds changes back, brings the copy level, and marks the old store as
    /// moved. It then takes no changes any more, and the copy can be opened.
    ///
    /// # Errors
    /// When a store cannot be read or written, or the copy differs. The old store then goes on.
    pub fn finish(mut self) -> Result<MoveSummary, StoreError> {
        self.verify()?;
        let hold = self.from.hold();
        // All changes that were queued before are committed after it.
        hold.change(|_| Ok(()))?;
        loop {
            let snapshot = self.from.snapshot()?;
            while self.state != CopyState::Following || self.position < snapshot.last_id()? {
                self.step(|_| true)?;
            }
            self.follow(&snapshot)?;
            drop(snapshot);
            let position = self.position;
            let to = Arc::new(self.to);
            let copy = Arc::clone(&to);
            // A failure of the copy is none of this store.
            let moved = hold.change(move |transaction| Ok(transaction.move_to(&copy, position)))?;
            self.to = Arc::into_inner(to).ok_or(StoreError::Failed)?;
            let moved = moved?;
            // Another process may have changed a database.
            if moved {
                break;
            }
        }
        hold.keep();
        let copy = StoreSnapshot::new(self.to.snapshot()?, self.from.folds());
        let summary = summary(&copy)?;
        drop(copy);
        write(&self.to, |tables| put_state(tables, None))?;
        Ok(summary)
    }
}

impl Store {
    /// Finishes a move from the store at `from`, which is marked as moved, to the one at `to`, if
    /// only the mark of the copy is left; false if that is not so.
    ///
    /// # Errors
    /// When a store cannot be read or written.
    pub fn finish_move(from: &StoreConfig, to: &StoreConfig) -> Result<bool, StoreError> {
        let (old, copy) = (StoreEngine::open(from, true)?, StoreEngine::open(to, false)?);
        let number = |engine: &StoreEngine, name: &str| {
            let number = engine.snapshot()?.get(StoreTable::Meta, name.as_bytes())?;
            Ok::<_, StoreError>(number.map_or(0, |number| number_in(&number)))
        };
        let is_level = number(&copy, names::COPY_STATE)? == CopyState::Level as u64;
        let is_same = number(&old, names::IDENTITY)? == number(&copy, names::IDENTITY)?
            && number(&old, names::LAST_ID)? == number(&copy, names::LAST_ID)?;
        if !is_level || !is_same || number(&old, names::MOVED)? == 0 {
            return Ok(false);
        }
        write(&copy, |tables| put_state(tables, None))?;
        Ok(true)
    }
}

impl Transaction<'_> {
    /// Copies the tables that snapshots do not show, and marks this store as moved; false if the
    /// copy is not level.
    fn move_to(&mut self, to: &StoreEngine, position: u64) -> Result<bool, StoreError> {
        if self.last_id() != position {
            return Ok(false);
        }
        let old = &self.tables;
        write(to, |tables| {
            for table in OTHERS {
                tables.remove_range(table, ALL_KEYS)?;
                old.each(table, ALL_KEYS, &mut |key, value| {
                    tables.insert(table, key, value)?;
                    Ok(ControlFlow::Continue(()))
                })?;
            }
            for name in NUMBERS {
                if let Some(number) = old.get(StoreTable::Meta, name.as_bytes())? {
                    tables.insert(StoreTable::Meta, name.as_bytes(), &number)?;
                }
            }
            put_state(tables, Some(CopyState::Level))
        })?;
        self.put_number(names::MOVED, 1)?;
        self.writes_count += 1;
        Ok(true)
    }
}

/// Runs `work` in a transaction of a copy.
fn write(
    engine: &StoreEngine,
    work: impl FnOnce(&mut WriteTables<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let begun = engine.begin_write()?;
    let worked = begun.tables().and_then(|mut tables| work(&mut tables));
    match worked {
        Ok(()) => begun.commit(),
        Err(error) => begun.abort().and(Err(error)),
    }
}

fn has_rows(tables: &SnapshotTables, table: StoreTable) -> Result<bool, StoreError> {
    let mut rows = tables.rows(table, ALL_KEYS, |_, _| Ok(()))?;
    rows.next().transpose().map(|row| row.is_some())
}

fn put_state(tables: &mut WriteTables<'_>, state: Option<CopyState>) -> Result<(), StoreError> {
    let name = names::COPY_STATE.as_bytes();
    match state {
        Some(state) => tables.insert(StoreTable::Meta, name, &(state as u64).to_be_bytes()),
        None => tables.remove(StoreTable::Meta, name).map(drop),
    }
}

/// Gives the copy the numbers of a snapshot.
fn put_numbers(tables: &mut WriteTables<'_>, snapshot: &StoreSnapshot) -> Result<(), StoreError> {
    for name in NUMBERS {
        if let Some(number) = snapshot.tables.get(StoreTable::Meta, name.as_bytes())? {
            tables.insert(StoreTable::Meta, name.as_bytes(), &number)?;
        }
    }
    Ok(())
}

/// Gives what the entries are about the state of the snapshot, and adds the entries.
fn follow_entries(
    tables: &mut WriteTables<'_>,
    snapshot: &StoreSnapshot,
    entries: &[LogEntry],
) -> Result<(), StoreError> {
    let (mut handles, mut prefixes) = (BTreeSet::new(), BTreeSet::new());
    for entry in entries {
        let bytes = LogEntry::encode(entry.unix_ms, entry.action, &entry.handle);
        tables.insert(StoreTable::Log, &entry.id.to_be_bytes(), &bytes)?;
        match entry.action.is_about_homing() {
            true => _ = prefixes.insert(&entry.handle[PREFIX_RECORDS.len().min(entry.handle.len())..]),
            false => _ = handles.insert(&*entry.handle),
        }
    }
    for handle in handles {
        put_or_remove(tables, snapshot, StoreTable::Records, handle)?;
        put_removal(tables, snapshot, &RemovalKey::new(RemovalKind::Handle, handle))?;
    }
    for prefix in prefixes {
        put_or_remove(tables, snapshot, StoreTable::Homed, prefix)?;
        put_or_remove(tables, snapshot, StoreTable::HomedDates, prefix)?;
        put_removal(tables, snapshot, &RemovalKey::new(RemovalKind::Prefix, prefix))?;
    }
    Ok(())
}

fn put_or_remove(
    tables: &mut WriteTables<'_>,
    snapshot: &StoreSnapshot,
    table: StoreTable,
    key: &[u8],
) -> Result<(), StoreError> {
    match snapshot.tables.get(table, key)? {
        Some(value) => tables.insert(table, key, &value),
        None => tables.remove(table, key).map(drop),
    }
}

fn put_removal(
    tables: &mut WriteTables<'_>,
    snapshot: &StoreSnapshot,
    key: &RemovalKey,
) -> Result<(), StoreError> {
    if let Some(before) = tables.remove(StoreTable::Removals, key.as_bytes())? {
        tables.remove(StoreTable::RemovalIds, &LastChange::decode(&before)?.id.to_be_bytes())?;
    }
    let Some(date) = snapshot.tables.get(StoreTable::Removals, key.as_bytes())? else { return Ok(()) };
    tables.insert(StoreTable::Removals, key.as_bytes(), &date)?;
    tables.insert(StoreTable::RemovalIds, &LastChange::decode(&date)?.id.to_be_bytes(), key.as_bytes())
}

/// Drops what the old store has dropped: the start of the log, and the oldest removals.
fn drop_old_rows(tables: &mut WriteTables<'_>, snapshot: &StoreSnapshot) -> Result<(), StoreError> {
    let base = snapshot.log_base()?.to_be_bytes();
    tables.remove_range(StoreTable::Log, (Bound::Unbounded, Bound::Included(&base[..])))?;
    while tables.len(StoreTable::Removals)? > snapshot.removals_count()? {
        let mut oldest = Vec::new();
        tables.each(StoreTable::RemovalIds, ALL_KEYS, &mut |_, key| {
            oldest.push(key.to_vec());
            let is_full = oldest.len() == STEP_REMOVALS;
            Ok(if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        let before = tables.len(StoreTable::Removals)?;
        for key in oldest {
            let (&kind, name) = key.split_first().ok_or(StoreError::CopyDiffers)?;
            let kind = if kind == 0 { RemovalKind::Handle } else { RemovalKind::Prefix };
            put_removal(tables, snapshot, &RemovalKey::new(kind, name))?;
        }
        if tables.len(StoreTable::Removals)? == before {
            return Err(StoreError::CopyDiffers);
        }
    }
    Ok(())
}

fn sum(snapshot: &StoreSnapshot, table: StoreTable, hasher: &RandomState) -> Result<TableSum, StoreError> {
    let hasher = hasher.clone();
    let rows = snapshot.tables.rows(table, ALL_KEYS, move |key, value| Ok(hasher.hash_one((key, value))))?;
    let (mut count, mut sum) = (0, 0_u64);
    for hash in rows {
        (count, sum) = (count + 1, sum.wrapping_add(hash?));
    }
    Ok((count, sum))
}

fn summary(copy: &StoreSnapshot) -> Result<MoveSummary, StoreError> {
    Ok(MoveSummary {
        records: copy.records_count()?,
        log_transactions: copy.log_count()?,
        last_transaction: copy.last_id()?,
    })
}
