//! The changes that share one commit, gathered from a stream.

use super::position::DumpProgress;
use handle_proto::{Value, Values};
use handle_store::{DumpScope, DumpedRecord, NamedKind, StoreError, Transaction, filling_order};

/// A change of the store, of the name with which it is gathered.
#[derive(Clone, Copy, Debug)]
pub(super) enum BatchedKind {
    /// The handle gets the values behind its name. The change has this time at the primary, if it
    /// is known.
    Put {
        /// Number of values.
        values_count: usize,
        /// Milliseconds since 1970.
        unix_ms: Option<u64>,
    },
    /// The handle is deleted.
    Delete,
    /// The record of the handle cannot be stored, and stays as it is.
    Name,
    /// The prefix is homed.
    Home,
    /// The prefix is released.
    Unhome,
}

/// A change of a batch.
#[derive(Clone, Copy)]
struct MirrorChange<'b> {
    kind: BatchedKind,
    name: &'b [u8],
    values: &'b [u8],
}

#[derive(Clone, Copy, Debug)]
struct BatchedChange {
    kind: BatchedKind,
    /// The end of the name in the bytes of the batch, and that of the values behind it.
    name_end: usize,
    end: usize,
}

/// Changes in their order, with names and values in one piece of memory.
#[derive(Debug, Default)]
pub(super) struct ChangeBatch {
    bytes: Vec<u8>,
    changes: Vec<BatchedChange>,
}

/// Numbers of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AppliedCounts {
    /// Those in the batch.
    pub(super) items: u64,
    /// Those that changed the store.
    pub(super) changed: u64,
    /// Records from before the dump that were replaced.
    pub(super) replaced: u64,
}

impl ChangeBatch {
    /// Adds a change of `name`.
    pub(super) fn push(&mut self, kind: BatchedKind, name: &[u8]) {
        self.push_record(kind, name, std::iter::empty());
    }

    /// Adds a change of `name` with values.
    pub(super) fn push_record<'v>(
        &mut self,
        kind: BatchedKind,
        name: &[u8],
        values: impl Iterator<Item = Value<'v>>,
    ) {
        self.bytes.extend_from_slice(name);
        let name_end = self.bytes.len();
        values.for_each(|value| value.encode(&mut self.bytes));
        self.changes.push(BatchedChange { kind, name_end, end: self.bytes.len() });
    }

    /// The number of changes.
    pub(super) const fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether there are no changes.
    pub(super) const fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The bytes of names and values.
    pub(super) const fn bytes_len(&self) -> usize {
        self.bytes.len()
    }

    /// Forgets the changes, and keeps the memory for others.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.changes.clear();
    }

    fn change(&self, at: usize) -> MirrorChange<'_> {
        let start = at.checked_sub(1).map_or(0, |before| self.changes[before].end);
        let BatchedChange { kind, name_end, end } = self.changes[at];
        MirrorChange { kind, name: &self.bytes[start..name_end], values: &self.bytes[name_end..end] }
    }

    fn iter(&self) -> impl Iterator<Item = MirrorChange<'_>> {
        (0..self.len()).map(|at| self.change(at))
    }

    /// The positions of the changes, in the order in which they are made: records of a dump that
    /// are sorted and new fill the pages of the store.
    fn order(&self, dump: Option<&DumpProgress>) -> Box<dyn Iterator<Item = usize>> {
        let is_put = |change: MirrorChange<'_>| matches!(change.kind, BatchedKind::Put { .. });
        let is_new = dump.is_some_and(|dump| !dump.is_logged) && self.iter().all(is_put);
        match is_new && self.iter().is_sorted_by(|before, change| before.name < change.name) {
            true => Box::new(filling_order(self.len())),
            false => Box::new(0..self.len()),
        }
    }

    /// Makes the changes in `transaction`, in the course of this dump if there is one.
    pub(super) fn apply(
        &self,
        transaction: &mut Transaction<'_>,
        primary: &str,
        dump: Option<&DumpProgress>,
    ) -> Result<AppliedCounts, StoreError> {
        let is_read = |kind| matches!(kind, BatchedKind::Put { .. } | BatchedKind::Delete);
        let records = self.iter().filter(|change| is_read(change.kind)).map(|change| change.name);
        transaction.prefetch_records(records)?;
        let mut counts = AppliedCounts { items: self.len() as u64, ..AppliedCounts::default() };
        for at in self.order(dump) {
            let made = apply(transaction, primary, dump, self.change(at))?;
            counts.changed += u64::from(made != DumpedRecord::Unchanged);
            counts.replaced += u64::from(made == DumpedRecord::Replaced);
        }
        Ok(counts)
    }
}

/// Makes a change.
fn apply(
    transaction: &mut Transaction<'_>,
    primary: &str,
    dump: Option<&DumpProgress>,
    MirrorChange { kind, name, values }: MirrorChange<'_>,
) -> Result<DumpedRecord, StoreError> {
    const UNFIT: StoreError = StoreError::Damaged("values of a stream do not decode");
    let changed = match (kind, dump) {
        (BatchedKind::Put { values_count, unix_ms }, _) => {
            let values = Values::from_encoded(values_count, values).map_err(|_| UNFIT)?;
            let Some(dump) = dump else {
                return transaction.put_mirrored(name, values, unix_ms).map(DumpedRecord::from_changed);
            };
            let owns = |_: &[u8]| false;
            let scope = DumpScope { primary, begun_id: dump.begun_id, owns: &owns };
            return transaction.put_dumped(&scope, name, values, dump.is_logged);
        }
        (BatchedKind::Delete, _) => transaction.delete(name)?,
        (BatchedKind::Name, _) => {
            transaction.note_named(primary, NamedKind::Handle, name)?;
            false
        }
        (BatchedKind::Home, dump) => {
            if dump.is_some() {
                transaction.note_named(primary, NamedKind::Prefix, name)?;
            }
            transaction.home(name)?
        }
        (BatchedKind::Unhome, _) => transaction.unhome(name)?,
    };
    Ok(DumpedRecord::from_changed(changed))
}
