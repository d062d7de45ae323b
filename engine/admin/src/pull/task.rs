//! Stores what a source lists: checks each record, gathers changes, and commits them in batches
//! together with the position.

use super::PullLimits;
use super::error::PullError;
use super::named::{NamedHandles, SortedHandles};
use super::position::{PullPosition, RefusedDeletions, may_delete};
use super::status::{PullChanges, PullState, RejectReason};
use crate::operation::OperationBounds;
use handle_daemon::clock::now_unix_ms;
use handle_proto::Value;
use handle_proto::name::is_control;
use handle_source::PulledSource;
use handle_source::listing::{PageEnd, PageItem, UnfitItem};
use handle_store::{
    LogAction, LogEntry, PulledChange, RecordBuf, Store, StoreError, StoreSnapshot, Transaction, key,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Time after which a commit is tried again that found the queue of changes full.
const BUSY_INTERVAL: Duration = Duration::from_millis(20);

/// The rules under which records are stored.
#[derive(Clone, Copy)]
pub struct PullRules<'r> {
    /// Whether this server of the site has a handle.
    pub has: &'r dyn Fn(&[u8]) -> bool,
    /// The bounds of records.
    pub bounds: OperationBounds,
    /// Whether the process stops.
    pub stops: &'r dyn Fn() -> bool,
}

/// Changes by key: a record, or `None` for a deletion. The last one of a key counts.
type PullBatch = BTreeMap<Vec<u8>, Option<RecordBuf>>;

/// A key and its record, or `None` for a deletion.
type PullChange = (Vec<u8>, Option<RecordBuf>);

/// What a page is about.
pub enum PageKind<'n> {
    /// All records, whose names are noted.
    Listing(&'n mut NamedHandles),
    /// Changes.
    Changes,
}

/// What follows after an item was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageStep {
    /// Further items of the page.
    More,
    /// The page is over.
    End(PageEnd),
    /// Changes since the cursor are not known.
    Lost,
}

/// A change of the position, in the commit of the records that it is about.
#[derive(Clone, Debug)]
pub enum PositionStep {
    /// Records of a comparison, or of a page of changes that goes on.
    Records {
        /// In a comparison, the last transaction before it.
        begun_id: Option<u64>,
    },
    /// All changes up to this cursor are here.
    Polled {
        /// The cursor.
        cursor: String,
        /// When it was asked for, in milliseconds since 1970.
        unix_ms: u64,
    },
    /// Changes are not known any more: everything has to be compared.
    Lost,
    /// All records have been compared.
    Compared {
        /// The cursor among the changes before the comparison.
        cursor: Option<String>,
        /// Records that were listed.
        records: u64,
        /// When the comparison began, in milliseconds since 1970.
        unix_ms: u64,
        /// What was not deleted.
        refused: Option<RefusedDeletions>,
        /// The accepted deletions that counted.
        accepted: Option<u64>,
    },
}

impl PositionStep {
    fn apply(self, position: &mut PullPosition) {
        match self {
            Self::Records { begun_id } => position.begun_id = position.begun_id.or(begun_id),
            Self::Polled { cursor, unix_ms } => {
                (position.cursor, position.pulled_unix_ms) = (Some(cursor), Some(unix_ms));
            }
            Self::Lost => (position.cursor, position.compared_unix_ms) = (None, None),
            Self::Compared { cursor, records, unix_ms, refused, accepted } => {
                (position.cursor, position.records, position.refused) = (cursor, records, refused);
                (position.compared_unix_ms, position.pulled_unix_ms) = (Some(unix_ms), Some(unix_ms));
                if refused.is_none() {
                    position.begun_id = None;
                }
                if position.accepted == accepted {
                    position.accepted = None;
                }
            }
        }
    }
}

/// Handles in the store, compared with a listing.
#[derive(Clone, Copy, Debug, Default)]
struct UnnamedHandles {
    /// Those that the listing has not named.
    unnamed: u64,
    /// Those of them that were there before the comparison.
    unnamed_before: u64,
    /// All that were there before it.
    before: u64,
}

/// Stores what one source lists.
#[derive(Debug)]
pub struct PullTask {
    store: Arc<Store>,
    state: Arc<PullState>,
    name: String,
    scope: String,
    starts: Vec<Vec<u8>>,
    has_others: bool,
    limits: PullLimits,
    delete_percent: u32,
    position: PullPosition,
    batch: PullBatch,
    batch_bytes: usize,
    /// The last transaction of the store before the comparison.
    begun_id: u64,
    /// Records of this turn that cannot be stored, and those of them without a handle.
    rejected: u64,
    unnamed: u64,
}

impl PullTask {
    /// The task for `source`.
    #[must_use]
    pub fn new(source: &PulledSource, store: Arc<Store>, state: Arc<PullState>) -> Self {
        Self {
            store,
            state,
            name: source.name.clone(),
            scope: source.scope.clone(),
            starts: source.starts.clone(),
            has_others: source.has_others,
            limits: PullLimits::new(source),
            delete_percent: source.config.delete_percent,
            position: PullPosition::new(&source.scope),
            batch: PullBatch::new(),
            batch_bytes: 0,
            begun_id: 0,
            rejected: 0,
            unnamed: 0,
        }
    }

    /// How far the source has been copied.
    #[must_use]
    pub const fn position(&self) -> &PullPosition {
        &self.position
    }

    /// Reads the position, and drops what was gathered and not committed.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn begin(&mut self) -> Result<(), StoreError> {
        (self.batch, self.batch_bytes) = (PullBatch::new(), 0);
        (self.rejected, self.unnamed) = (0, 0);
        let stored = PullPosition::of(&self.store, &self.name)?;
        // Of another cursor or other prefixes, nothing is known.
        let turn = stored.as_ref().map_or(0, |stored| stored.turn);
        let same = stored.filter(|stored| stored.scope == self.scope);
        self.position = same.unwrap_or_else(|| PullPosition { turn, ..PullPosition::new(&self.scope) });
        self.state.set_position(&self.position);
        Ok(())
    }

    /// Begins a comparison.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn begin_compare(&mut self) -> Result<(), StoreError> {
        let last_id = self.store.snapshot()?.last_id()?;
        self.begun_id = self.position.begun_id.unwrap_or(last_id);
        Ok(())
    }

    /// Takes an item of a page.
    ///
    /// # Errors
    /// When a full batch cannot be committed.
    pub fn take(
        &mut self,
        item: PageItem,
        kind: &mut PageKind<'_>,
        rules: &PullRules<'_>,
    ) -> Result<PageStep, PullError> {
        match item {
            PageItem::End(end) => return Ok(PageStep::End(end)),
            PageItem::Expired | PageItem::NoChanges => return Ok(PageStep::Lost),
            PageItem::Unfit(UnfitItem { handle: None, why }) => {
                self.unnamed += 1;
                self.reject(None, RejectReason::Unfit, &why);
            }
            PageItem::Unfit(UnfitItem { handle: Some(handle), why }) => {
                if let Some(key) = self.key_of(&handle, rules) {
                    self.reject(Some(&key), RejectReason::Unfit, &why);
                    note(kind, &key);
                }
            }
            PageItem::Record(handle, record) => {
                if let Some(key) = self.key_of(&handle, rules) {
                    note(kind, &key);
                    match check(&key, &record, &rules.bounds) {
                        Ok(()) => self.put(key, Some(record)),
                        Err(why) => self.reject(Some(&key), RejectReason::Unfit, &why),
                    }
                    self.commit_full(kind)?;
                }
            }
            // A listing deletes what it does not name.
            PageItem::Absent(_) if matches!(kind, PageKind::Listing(_)) => {}
            PageItem::Absent(handle) => {
                if let Some(key) = self.key_of(&handle, rules) {
                    self.put(key, None);
                    self.commit_full(kind)?;
                }
            }
        }
        self.state.note_item();
        Ok(PageStep::More)
    }

    /// The key of a handle that is copied; others are counted if they should not be there.
    fn key_of(&mut self, handle: &[u8], rules: &PullRules<'_>) -> Option<Vec<u8>> {
        let key = key(handle, self.store.folds());
        if !self.starts.iter().any(|start| key.starts_with(start)) {
            if !self.has_others {
                self.reject(Some(handle), RejectReason::Foreign, "the prefix is not one of the source");
            }
            return None;
        }
        // Other servers of the site copy the others.
        (rules.has)(&key).then_some(key)
    }

    fn reject(&mut self, handle: Option<&[u8]>, reason: RejectReason, why: &str) {
        self.state.note_rejected(handle, reason, why, self.rejected);
        self.rejected += 1;
    }

    fn put(&mut self, key: Vec<u8>, record: Option<RecordBuf>) {
        self.batch_bytes += key.len() + record.as_ref().map_or(0, RecordBuf::len);
        self.batch.insert(key, record);
    }

    fn commit_full(&mut self, kind: &PageKind<'_>) -> Result<(), PullError> {
        let is_full =
            self.batch.len() >= self.limits.commit_records || self.batch_bytes >= self.limits.commit_bytes;
        match is_full {
            true => self.commit(match kind {
                PageKind::Listing(_) => self.compared_records(),
                PageKind::Changes => PositionStep::Records { begun_id: None },
            }),
            false => Ok(()),
        }
    }

    const fn compared_records(&self) -> PositionStep {
        PositionStep::Records { begun_id: Some(self.begun_id) }
    }

    /// Commits what was gathered and differs from what is stored, with a change of the position.
    ///
    /// # Errors
    /// When the store cannot be written, or another process has copied meanwhile.
    pub fn commit(&mut self, step: PositionStep) -> Result<(), PullError> {
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        let changes = self.differing(batch)?;
        self.commit_changes(changes, step)
    }

    /// Commits changes with a change of the position, if either is one.
    fn commit_changes(&mut self, changes: Vec<PullChange>, step: PositionStep) -> Result<(), PullError> {
        let changes_nothing = match &step {
            PositionStep::Records { .. } => true,
            PositionStep::Polled { cursor, .. } => self.position.cursor.as_ref() == Some(cursor),
            PositionStep::Lost | PositionStep::Compared { .. } => false,
        };
        if changes.is_empty() && changes_nothing {
            return Ok(());
        }
        let changes = Arc::new(changes);
        loop {
            let (name, before) = (self.name.clone(), self.position.clone());
            let (step, changes) = (step.clone(), Arc::clone(&changes));
            let committed =
                self.store.change(move |transaction| apply(transaction, &name, before, &changes, step));
            match committed {
                Ok(Some((position, made))) => {
                    self.position = position;
                    self.state.set_position(&self.position);
                    self.state.note_changes(made);
                    return Ok(());
                }
                Ok(None) => return Err(PullError::Superseded),
                Err(StoreError::Busy) => std::thread::sleep(BUSY_INTERVAL),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Those of `batch` that the store does not have.
    fn differing(&self, batch: PullBatch) -> Result<Vec<PullChange>, StoreError> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<Vec<u8>> = batch.keys().cloned().collect();
        let stored = self.store.snapshot()?.records_of(&keys)?;
        let changes = batch.into_iter().zip(stored);
        let differs = |((_, new), stored): &(PullChange, Option<RecordBuf>)| match (new, stored) {
            (Some(new), Some(stored)) => new.view().values != stored.view().values,
            (new, stored) => new.is_some() || stored.is_some(),
        };
        Ok(changes.filter(differs).map(|(change, _)| change).collect())
    }

    /// Counts the handles in `snapshot` that were not named.
    fn count_unnamed(
        &self,
        named: &SortedHandles,
        snapshot: &StoreSnapshot,
    ) -> Result<UnnamedHandles, StoreError> {
        let mut found = UnnamedHandles::default();
        for start in &self.starts {
            for stored in snapshot.records_under(start, None)? {
                found.before += 1;
                found.unnamed += u64::from(!named.has(stored?.handle()));
            }
        }
        found.unnamed_before = found.unnamed;
        // Without the log since then, all count as handles that were there before.
        if found.unnamed == 0 || self.begun_id < snapshot.log_base()? {
            return Ok(found);
        }
        let mut created = NamedHandles::default();
        for entry in snapshot.log_after(self.begun_id)? {
            let LogEntry { action, handle, .. } = entry?;
            if action == LogAction::Create && self.starts.iter().any(|start| handle.starts_with(start)) {
                created.add(&handle);
            }
        }
        let created = created.sorted();
        (found.before, found.unnamed_before) = (0, 0);
        for start in &self.starts {
            for stored in snapshot.records_under(start, None)? {
                let stored = stored?;
                if !created.has(stored.handle()) {
                    found.before += 1;
                    found.unnamed_before += u64::from(!named.has(stored.handle()));
                }
            }
        }
        Ok(found)
    }

    /// Deletes the handles in `snapshot` that were not named.
    fn delete_unnamed(&mut self, named: &SortedHandles, snapshot: &StoreSnapshot) -> Result<(), PullError> {
        let mut gone = Vec::new();
        for start in self.starts.clone() {
            for stored in snapshot.records_under(&start, None)? {
                let stored = stored?;
                if !named.has(stored.handle()) {
                    gone.push((stored.handle().to_vec(), None));
                }
                if gone.len() >= self.limits.commit_records {
                    self.commit_changes(std::mem::take(&mut gone), self.compared_records())?;
                }
            }
        }
        self.commit_changes(gone, self.compared_records())
    }

    /// Ends a comparison: deletes what was not named, unless it is too much.
    ///
    /// # Errors
    /// When the store cannot be read or written, or it is not known what was named.
    pub fn end_compare(
        &mut self,
        named: &SortedHandles,
        cursor: Option<String>,
        unix_ms: u64,
    ) -> Result<(), PullError> {
        self.commit(self.compared_records())?;
        if self.unnamed > 0 {
            return Err(PullError::UnnamedRecords(self.unnamed));
        }
        // An operator may have accepted deletions meanwhile.
        let stored = PullPosition::of(&self.store, &self.name)?;
        let accepted = stored.and_then(|stored| stored.accepted);
        let snapshot = self.store.snapshot()?;
        let found = self.count_unnamed(named, &snapshot)?;
        let (gone, before) = (found.unnamed, found.before);
        let is_refused = found.unnamed > 0
            && accepted.is_none_or(|accepted| gone > accepted)
            && !may_delete(found.unnamed_before, before, self.delete_percent);
        let refused = RefusedDeletions { deletions: gone, records: before, unix_ms: now_unix_ms() };
        if is_refused {
            let (source, percent) = (&self.name, self.delete_percent);
            tracing::error!(
                source,
                deletions = gone,
                records = before,
                percent,
                "a source leaves out so many handles that none is deleted (`hdl control \
                 accept-deletions`)"
            );
        } else if gone > 0 {
            self.delete_unnamed(named, &snapshot)?;
        }
        drop(snapshot);
        let (records, refused) = (named.len() as u64, is_refused.then_some(refused));
        self.commit(PositionStep::Compared { cursor, records, unix_ms, refused, accepted })
    }
}

fn note(kind: &mut PageKind<'_>, key: &[u8]) {
    if let PageKind::Listing(named) = kind {
        named.add(key);
    }
}

/// Makes changes in one transaction, if no other process has copied since the position `before`.
fn apply(
    transaction: &mut Transaction<'_>,
    name: &str,
    before: PullPosition,
    changes: &[PullChange],
    step: PositionStep,
) -> Result<Option<(PullPosition, PullChanges)>, StoreError> {
    let stored = PullPosition::read(transaction, name)?;
    if stored.as_ref().map_or(0, |stored| stored.turn) != before.turn {
        return Ok(None);
    }
    // A command may have changed it, unless it is that of another cursor.
    let mut position = stored.filter(|stored| stored.scope == before.scope).unwrap_or(before);
    let mut made = PullChanges::default();
    transaction.prefetch_records(changes.iter().map(|(key, _)| &**key))?;
    for (key, record) in changes {
        match record {
            Some(record) => match transaction.put_pulled(key, record)? {
                PulledChange::Created => made.created += 1,
                PulledChange::Replaced => made.replaced += 1,
                PulledChange::Same => {}
            },
            None => made.deleted += u64::from(transaction.delete(key)?),
        }
    }
    position.turn += 1;
    step.apply(&mut position);
    position.write(transaction, name)?;
    Ok(Some((position, made)))
}

/// Checks a record against the bounds of records that clients store.
fn check(key: &[u8], record: &RecordBuf, bounds: &OperationBounds) -> Result<(), String> {
    let (values, Ok(name)) = (record.view().values, str::from_utf8(key)) else {
        return Err("the handle is not UTF-8".to_owned());
    };
    if key.len() > bounds.handle_bytes {
        return Err(format!("the handle has more than {} bytes", bounds.handle_bytes));
    }
    if !bounds.control_characters && name.chars().any(is_control) {
        return Err("the handle has a control character".to_owned());
    }
    if values.len() > bounds.values {
        return Err(format!("there are more than {} values", bounds.values));
    }
    if values.iter().any(|value| value.references.len() > bounds.references) {
        return Err(format!("a value has more than {} references", bounds.references));
    }
    let len: usize = values.iter().map(|value: Value<'_>| value.encoded_len()).sum();
    match len > bounds.record_bytes {
        true => Err(format!("the record has {len} bytes; at most {} are stored", bounds.record_bytes)),
        false => Ok(()),
    }
}
