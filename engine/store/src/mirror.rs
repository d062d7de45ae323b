//! The store of a mirror: its position in the stream of each primary, which changes in the same
//! transactions as the records, and what a dump in progress has named.
//!
//! A record that a dump names is either written, and then has a later transaction than the dump, or
//! equal to the one here, and then its name is noted. At the end of the dump, all others are
//! removed.

use super::record::StoreRecord;
use super::snapshot::RenumberedRange;
use super::tables::{ALL_KEYS, StoreTable, names};
use super::transaction::Transaction;
use super::{StoreError, StoreRecords as _, StoreSnapshot};
use handle_proto::Values;
use std::ops::{Bound, ControlFlow};

/// What a dump names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NamedKind {
    /// A handle.
    Handle = 0,
    /// A homed prefix.
    Prefix = 1,
}

/// The records that a dump has to name to keep them.
#[derive(Clone, Copy)]
pub struct DumpScope<'a> {
    /// The name of the primary.
    pub primary: &'a str,
    /// The last transaction before the dump.
    pub begun_id: u64,
    /// Whether the primary has to name this handle or the record of this prefix.
    pub owns: &'a dyn Fn(&[u8]) -> bool,
}

/// The outcome of storing a record of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpedRecord {
    /// The same values were here.
    Unchanged,
    /// It was written, and replaced nothing from before the dump.
    New,
    /// It was written in place of a record from before the dump.
    Replaced,
}

impl DumpedRecord {
    /// The outcome of another change, which may have changed nothing.
    #[must_use]
    pub const fn from_changed(changed: bool) -> Self {
        if changed { Self::New } else { Self::Unchanged }
    }
}

/// Records from before a dump: see [`StoreSnapshot::older_records`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OlderRecords {
    /// Their names.
    pub names: Vec<Vec<u8>>,
    /// The last record that was looked at; `None` if there are no further ones.
    pub last: Option<Vec<u8>>,
}

/// Whether no transaction after `begun_id` has written the record. A damaged one counts as old, so
/// that it is replaced or removed.
fn is_older(stored: &[u8], begun_id: u64) -> bool {
    StoreRecord::decode(stored).map_or(0, |record| record.id) <= begun_id
}

impl StoreSnapshot {
    /// Looks at the records after the name `after`, and returns those from before the dump that
    /// `scope` owns: up to `most` names, of up to `looked_at` records.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn older_records(
        &self,
        scope: &DumpScope<'_>,
        after: Option<&[u8]>,
        most: usize,
        looked_at: usize,
    ) -> Result<OlderRecords, StoreError> {
        let mut older = OlderRecords::default();
        for (nth, stored) in self.records_under(b"", after)?.enumerate() {
            let stored = stored?;
            let name = stored.handle();
            if is_older(stored.as_bytes(), scope.begun_id) && (scope.owns)(name) {
                older.names.push(name.to_vec());
            }
            if older.names.len() == most || nth + 1 == looked_at {
                older.last = Some(name.to_vec());
                break;
            }
        }
        Ok(older)
    }
}

/// The key of a noted name.
fn noted_key(primary: &str, kind: NamedKind, name: &[u8]) -> Vec<u8> {
    // The name of a primary has no such byte.
    [primary.as_bytes(), &[0, kind as u8], name].concat()
}

impl Transaction<'_> {
    /// The position with `primary`, as it was last set.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn mirror_position(&self, primary: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let row = self.tables.get(StoreTable::Mirrors, primary.as_bytes())?;
        Ok(row.map(|row| row.get(1..).unwrap_or_default().to_vec()))
    }

    /// The names of all primaries with a position, and the positions.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn mirror_positions(&self) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let mut positions = Vec::new();
        self.tables.each(StoreTable::Mirrors, ALL_KEYS, &mut |name, row| {
            let name = String::from_utf8_lossy(name).into_owned();
            positions.push((name, row.get(1..).unwrap_or_default().to_vec()));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(positions)
    }

    /// Sets the position with `primary`. Nothing is published while `is_dumping`: a dump is in
    /// progress, a stream of transactions has been applied in part, or nothing is complete yet.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set_mirror_position(
        &mut self,
        primary: &str,
        position: &[u8],
        is_dumping: bool,
    ) -> Result<(), StoreError> {
        let row = [&[u8::from(is_dumping)], position].concat();
        self.tables.insert(StoreTable::Mirrors, primary.as_bytes(), &row)?;
        self.count_dumps()
    }

    /// Drops the positions with all primaries but those of these names.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn keep_mirror_positions(&mut self, primaries: &[String]) -> Result<(), StoreError> {
        let mut dropped = self.mirror_positions()?;
        dropped.retain(|(name, _)| !primaries.contains(name));
        if dropped.is_empty() {
            return Ok(());
        }
        for (name, _) in &dropped {
            self.tables.remove(StoreTable::Mirrors, name.as_bytes())?;
        }
        self.count_dumps()
    }

    fn count_dumps(&mut self) -> Result<(), StoreError> {
        let mut dumps = 0;
        self.tables.each(StoreTable::Mirrors, ALL_KEYS, &mut |_, row| {
            dumps += u64::from(row.first().is_some_and(|&is_dumping| is_dumping != 0));
            Ok(ControlFlow::Continue(()))
        })?;
        self.put_number(names::MIRROR_DUMPS, dumps)?;
        self.writes_count += 1;
        Ok(())
    }

    /// Stores the values that a primary has sent for `key`; false if they are here already. The
    /// change has the time `unix_ms` of the primary, if it is known.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn put_mirrored(
        &mut self,
        key: &[u8],
        values: Values<'_>,
        unix_ms: Option<u64>,
    ) -> Result<bool, StoreError> {
        let before = self.record(key)?;
        if before.as_ref().is_some_and(|before| before.view().values == values) {
            return Ok(false);
        }
        self.put_at(key, values, before.as_ref(), unix_ms)?;
        Ok(true)
    }

    /// The number of records.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn records_count(&self) -> Result<u64, StoreError> {
        self.tables.len(StoreTable::Records)
    }

    /// Stores the values that a dump has for `key`, unless they are here already. With `is_logged`
    /// false, the log has no entry, and the record is written in any case; the caller starts the
    /// log again before and after.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn put_dumped(
        &mut self,
        scope: &DumpScope<'_>,
        key: &[u8],
        values: Values<'_>,
        is_logged: bool,
    ) -> Result<DumpedRecord, StoreError> {
        let written = |id: Option<u64>| match id {
            Some(id) if id <= scope.begun_id => DumpedRecord::Replaced,
            _ => DumpedRecord::New,
        };
        if !is_logged {
            self.writes_count += 1;
            return self.put_unlogged(key, values).map(written);
        }
        let before = self.record(key)?;
        match &before {
            Some(before) if before.view().values == values => {
                if before.view().id <= scope.begun_id {
                    self.note_named(scope.primary, NamedKind::Handle, key)?;
                }
                Ok(DumpedRecord::Unchanged)
            }
            _ => {
                self.put_at(key, values, before.as_ref(), None)?;
                Ok(written(before.map(|before| before.view().id)))
            }
        }
    }

    /// Notes that a dump has named a handle or a prefix.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn note_named(&mut self, primary: &str, kind: NamedKind, name: &[u8]) -> Result<(), StoreError> {
        self.writes_count += 1;
        self.tables.insert(StoreTable::MirrorNamed, &noted_key(primary, kind, name), &[])
    }

    /// Deletes those of these records that are still [older](StoreSnapshot::older_records) than the
    /// dump, and that it has not named. Returns their number.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn remove_unnamed(&mut self, scope: &DumpScope<'_>, older: Vec<Vec<u8>>) -> Result<u64, StoreError> {
        let unnamed = self.unnamed(scope, NamedKind::Handle, older, |key| (scope.owns)(key))?;
        self.tables.prefetch(StoreTable::Records, unnamed.iter().map(Vec::as_slice))?;
        let mut removed = 0;
        for key in unnamed {
            let stored = self.tables.get(StoreTable::Records, &key)?;
            if stored.is_some_and(|stored| is_older(&stored, scope.begun_id)) {
                removed += u64::from(self.delete(&key)?);
            }
        }
        Ok(removed)
    }

    /// Releases the homed prefixes that the dump has to name and has not named.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn release_unnamed(&mut self, scope: &DumpScope<'_>) -> Result<(), StoreError> {
        let mut homed = Vec::new();
        self.tables.each(StoreTable::Homed, ALL_KEYS, &mut |prefix, _| {
            homed.push(prefix.to_vec());
            Ok(ControlFlow::Continue(()))
        })?;
        let owns = |prefix: &[u8]| (scope.owns)(&[handle_proto::name::PREFIX_RECORDS, prefix].concat());
        let gone = self.unnamed(scope, NamedKind::Prefix, homed, owns)?;
        for prefix in &gone {
            self.unhome(prefix)?;
        }
        Ok(())
    }

    /// Those of `found` that the dump has to name and has not named.
    fn unnamed(
        &self,
        scope: &DumpScope<'_>,
        kind: NamedKind,
        mut found: Vec<Vec<u8>>,
        owns: impl Fn(&[u8]) -> bool,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        found.retain(|name| owns(name));
        let noted: Vec<_> = found.iter().map(|name| noted_key(scope.primary, kind, name)).collect();
        self.tables.prefetch(StoreTable::MirrorNamed, noted.iter().map(Vec::as_slice))?;
        let mut unnamed = Vec::new();
        for (name, noted) in found.into_iter().zip(noted) {
            if self.tables.get(StoreTable::MirrorNamed, &noted)?.is_none() {
                unnamed.push(name);
            }
        }
        Ok(unnamed)
    }

    /// Drops up to `most` of the names that dumps of `primary` have noted; whether none is left.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn clear_named(&mut self, primary: &str, most: usize) -> Result<bool, StoreError> {
        let start = [primary.as_bytes(), &[0]].concat();
        let end = [primary.as_bytes(), &[1]].concat();
        let (mut keys, range) = (Vec::new(), (Bound::Included(&*start), Bound::Excluded(&*end)));
        self.tables.each(StoreTable::MirrorNamed, range, &mut |key, _| {
            keys.push(key.to_vec());
            Ok(if keys.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        for key in &keys {
            self.tables.remove(StoreTable::MirrorNamed, key)?;
        }
        self.writes_count += u64::from(!keys.is_empty());
        Ok(keys.len() < most)
    }

    /// Makes the numbers of transactions go on above `above`, and their times after
    /// `not_before_ms`. The log starts again, so that a mirror of a lost primary continues here
    /// only if it has all that this store has.
    pub(super) fn renumber(&mut self, above: u64, not_before_ms: u64) -> Result<RenumberedRange, StoreError> {
        let from = self.last_id;
        self.renumber_from(above.saturating_sub(1), not_before_ms);
        self.begin_log_anew()?;
        self.put_number(names::RENUMBERED_FROM, from)?;
        self.put_number(names::RENUMBERED_TO, self.last_id)?;
        Ok(RenumberedRange { from, to: self.last_id })
    }
}
