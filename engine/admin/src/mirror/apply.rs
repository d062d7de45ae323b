//! Applies a stream to the store: checks the order of its items, gathers them in batches of bounded
//! size, and commits each batch together with the position behind it.

use super::batch::{AppliedCounts, BatchedKind, ChangeBatch};
use super::error::MirrorError;
use super::position::{DumpProgress, MirrorDumpStep, MirrorPosition};
use super::scope::MirrorScope;
use super::status::MirrorSourceState;
use handle_client::replication::StreamEvent;
use handle_daemon::clock::now_unix_ms;
use handle_proto::wire::replication_stream::{
    DumpItem, StreamValues, TransactionAction, TransactionItem, TransactionStatus,
};
use handle_store::{BegunChange, DumpScope, OlderRecords, Store, StoreError, Transaction, check_record, key};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Names that one commit at the end of a dump looks at.
const LOOK_COUNT: usize = 10_000;
/// Records that one step at the end of a dump reads before it checks whether to stop.
const SCAN_COUNT: usize = 1_000_000;
/// Time after which a batch is committed although it is small.
const BATCH_TIME: Duration = Duration::from_millis(500);
/// Interval at which times are written while nothing changes.
const TIME_WRITE_MS: u64 = 60_000;

/// Limits on a batch.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    /// Changes; in a dump, records are bounded by their bytes only.
    pub items: usize,
    /// Bytes of names and values.
    pub bytes: usize,
    /// Bytes of names and values in a dump.
    pub dump_bytes: usize,
}

impl BatchLimits {
    /// The limits in a dump. Each change has a name, so their number is bounded, too.
    const fn of_dumps(self) -> Self {
        Self { items: usize::MAX, bytes: self.dump_bytes, ..self }
    }
}

/// A batch that the writer of the store has been given.
struct BegunCommit {
    change: BegunChange<Result<CommittedBatch, MirrorError>>,
    /// The position behind the batch.
    position: MirrorPosition,
}

/// A batch that is in the store.
struct CommittedBatch {
    batch: ChangeBatch,
    counts: AppliedCounts,
    /// See [`DumpProgress::older_left`].
    older_left: Option<u64>,
}

/// The times of a position.
#[derive(Clone, Copy)]
struct HeardTimes {
    complete_unix_ms: u64,
    contact_unix_ms: u64,
}

/// Applies the streams of one server of a primary.
pub struct StreamApplier {
    store: Arc<Store>,
    /// The name of the server, under which the position is kept.
    name: String,
    scope: Arc<MirrorScope>,
    limits: BatchLimits,
    state: Arc<MirrorSourceState>,
    /// The position behind the items in `batch`.
    position: MirrorPosition,
    /// The position of the last commit.
    committed: MirrorPosition,
    /// The times at the end of the last complete stream of transactions, as in a position. They may
    /// not be written yet.
    heard: Option<HeardTimes>,
    /// The time of the primary in its last answer, which may be too far ahead to be stored; 0 if
    /// not known. The primary gets its own time back: by that of the position, the start of its
    /// log could stay ahead of what is here, and every request end in a dump.
    stated_unix_ms: u64,
    /// When the present stream was requested.
    asked_unix_ms: u64,
    /// The clock of this machine.
    clock: fn() -> u64,
    /// The last transaction before the present stream.
    stream_from: u64,
    batch: ChangeBatch,
    batch_begun: Instant,
    /// The batch before, which is being committed while this one is gathered.
    begun_commit: Option<BegunCommit>,
    /// The memory of a batch that was committed.
    spare_batch: ChangeBatch,
    /// The status of the transactions in the present stream.
    status: Option<TransactionStatus>,
    /// The rank of the last item of the present dump.
    rank: u8,
    /// Whether a prefix was homed or released since [`take_homing`](Self::take_homing).
    has_homing: bool,
}

impl std::fmt::Debug for StreamApplier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamApplier").field("name", &self.name).finish_non_exhaustive()
    }
}

impl StreamApplier {
    /// Reads the position from the store. If other records are to be taken than before, or nothing
    /// has been taken yet, a dump comes first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn open(
        store: Arc<Store>,
        name: &str,
        scope: Arc<MirrorScope>,
        limits: BatchLimits,
        state: Arc<MirrorSourceState>,
    ) -> Result<Self, StoreError> {
        let described = scope.describe();
        let source = name.to_owned();
        let position = store.change(move |transaction| {
            let mut position = MirrorPosition::read(transaction, &source)?.unwrap_or_default();
            // A time that was stored before the clock here was set back.
            position.complete_unix_ms = MirrorPosition::believed(position.complete_unix_ms, now_unix_ms());
            if position.scope != described && position.is_followed() {
                let fresh = MirrorPosition::new(described);
                // Its numbers are those of the same log, but some of its records are not here.
                let MirrorPosition { complete_unix_ms, contact_unix_ms, last_id, epoch, .. } = position;
                position = MirrorPosition { complete_unix_ms, contact_unix_ms, last_id, epoch, ..fresh };
                position.write(transaction, &source)?;
            }
            Ok(position)
        })?;
        let applier = Self {
            store,
            name: name.to_owned(),
            scope,
            limits,
            state,
            committed: position.clone(),
            heard: None,
            stated_unix_ms: 0,
            asked_unix_ms: 0,
            clock: now_unix_ms,
            stream_from: position.last_id,
            position,
            batch: ChangeBatch::default(),
            batch_begun: Instant::now(),
            begun_commit: None,
            spare_batch: ChangeBatch::default(),
            status: None,
            rank: 0,
            has_homing: false,
        };
        applier.state.set_position(&applier.position);
        Ok(applier)
    }

    /// The position behind the last item.
    #[must_use]
    pub const fn position(&self) -> &MirrorPosition {
        &self.position
    }

    /// The time, by the clock of the primary, up to which all its transactions are here.
    #[must_use]
    pub fn last_query_unix_ms(&self) -> u64 {
        self.position.complete_unix_ms.max(self.stated_unix_ms)
    }

    /// Takes the time from `clock` in place of the clock of this machine.
    #[cfg(test)]
    pub(super) const fn use_clock(&mut self, clock: fn() -> u64) {
        self.clock = clock;
    }

    /// The homed prefixes in the store.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(super) fn homed(&self) -> Result<Vec<Vec<u8>>, StoreError> {
        self.store.snapshot()?.homed()
    }

    /// Whether the primary has sent a change of a homed prefix since this was last asked.
    pub(super) const fn take_homing(&mut self) -> bool {
        std::mem::replace(&mut self.has_homing, false)
    }

    /// Takes an item of a stream.
    ///
    /// # Errors
    /// When the item is not in order, or the store cannot be written. The stream must not be
    /// continued then; see [`abandon`](Self::abandon) and [`reject`](Self::reject).
    pub fn take(&mut self, event: StreamEvent<'_>) -> Result<(), MirrorError> {
        match event {
            StreamEvent::BeginTls => Ok(()),
            StreamEvent::Header(header) => {
                self.status = Some(header.status);
                Ok(())
            }
            StreamEvent::Transaction(item) => self.take_transaction(item),
            StreamEvent::Dump(item) => self.take_dump_item(item),
        }
    }

    fn take_transaction(&mut self, item: TransactionItem<'_>) -> Result<(), MirrorError> {
        match item {
            TransactionItem::Queue(_) | TransactionItem::QueueDate(_) => {
                Err(MirrorError::Order("transactions of several queues were not requested"))
            }
            TransactionItem::End { unix_ms } => self.end_transactions(unix_ms),
            TransactionItem::Transaction { .. } if self.status != Some(TransactionStatus::Sending) => {
                Err(MirrorError::Order("transactions follow although a dump is necessary"))
            }
            TransactionItem::Transaction { id, handle, action, unix_ms } => {
                if id <= self.position.last_id || i64::try_from(id).is_err() {
                    return Err(MirrorError::Order(
                        "a transaction does not have a higher number than the last",
                    ));
                }
                self.state.note_primary_has(id);
                self.begin_batch();
                self.add_transaction(handle, action, unix_ms);
                self.position.last_id = id;
                self.position.is_partial = true;
                self.commit_if_full()
            }
        }
    }

    /// Adds the change that a transaction asks for, if it concerns this mirror.
    fn add_transaction(&mut self, handle: &[u8], action: TransactionAction<'_>, unix_ms: u64) {
        match action {
            TransactionAction::Placeholder => {}
            TransactionAction::Create(values) | TransactionAction::Update(values) => {
                let unix_ms = MirrorPosition::believed(unix_ms, (self.clock)());
                self.put(handle, values, Some(unix_ms));
            }
            TransactionAction::Delete => {
                if self.scope.has(handle) {
                    self.batch.push(BatchedKind::Delete, &key(handle, self.store.folds()));
                }
            }
            TransactionAction::Home => self.push_prefix(BatchedKind::Home, handle),
            TransactionAction::Unhome => self.push_prefix(BatchedKind::Unhome, handle),
            // A dump brings what is left in bounded steps.
            TransactionAction::DeleteAll => self.position.needs_dump = true,
        }
    }

    /// Adds a change that stores the values of a handle. In a dump, the name of a record that
    /// cannot be stored is noted.
    fn put(&mut self, handle: &[u8], values: StreamValues<'_>, unix_ms: Option<u64>) {
        if !self.scope.has(handle) {
            return;
        }
        let key = key(handle, self.store.folds());
        let why = match (values.fault(), check_record(&key, values.iter())) {
            (None, Ok(())) => {
                let kind = BatchedKind::Put { values_count: values.len(), unix_ms };
                return self.batch.push_record(kind, &key, values.iter());
            }
            (Some(fault), _) => fault.to_string(),
            (None, Err(unfit)) => unfit.to_string(),
        };
        self.state.note_left_out(&key, &why);
        if self.position.dump.is_some() {
            self.batch.push(BatchedKind::Name, &key);
        }
    }

    /// Adds a change of the prefix with this record, if it is taken over.
    fn push_prefix(&mut self, kind: BatchedKind, record: &[u8]) {
        self.has_homing = true;
        if let Some(prefix) = self.scope.homed_prefix(record) {
            self.batch.push(kind, &prefix);
        }
    }

    fn end_transactions(&mut self, unix_ms: Option<u64>) -> Result<(), MirrorError> {
        let found_unix_ms = unix_ms.ok_or(MirrorError::Order("the stream does not say when it was made"))?;
        match self.status {
            Some(TransactionStatus::NeedsDump) => self.position.needs_dump = true,
            // The clock of the primary was set back, and its store may be another one: it is asked
            // again with the time of the position, and decides whether the transactions suffice.
            _ if found_unix_ms < self.stated_unix_ms
                && self.position.complete_unix_ms < self.stated_unix_ms =>
            {
                self.stated_unix_ms = 0;
            }
            _ => {
                self.stated_unix_ms = found_unix_ms;
                // The numbers of transactions are their order. The clock of the primary may be
                // wrong, also back, and this does not keep its transactions from being applied.
                let now_unix_ms = (self.clock)();
                self.state.note_clock(found_unix_ms, now_unix_ms);
                self.position.complete_unix_ms = MirrorPosition::believed(found_unix_ms, now_unix_ms);
                self.position.contact_unix_ms = self.asked_unix_ms;
                self.position.is_partial = false;
            }
        }
        Ok(())
    }

    fn take_dump_item(&mut self, item: DumpItem<'_>) -> Result<(), MirrorError> {
        let (rank, after) = match item {
            DumpItem::OtherSites(_) => (0, None),
            DumpItem::Source { unix_ms, txn_id } => return self.take_dump_source(unix_ms, txn_id),
            DumpItem::HandleDate(date) => (1, Some((0, date.name))),
            DumpItem::PrefixDate(date) => (2, Some((1, date.name))),
            DumpItem::Handle { handle, .. } => (3, Some((2, handle))),
            DumpItem::Homed(name) => (4, Some((3, name))),
            DumpItem::Done => (5, None),
        };
        if rank < self.rank {
            return Err(MirrorError::Order("the kinds of items are mixed"));
        }
        self.rank = rank;
        let dump = self.position.dump.as_mut().ok_or(MirrorError::Order("no dump was requested"))?;
        if let Some((kind, name)) = after {
            let (last_kind, last) = dump.after.get_or_insert_default();
            *last_kind = kind;
            last.clear();
            last.extend_from_slice(name);
        }
        dump.records += u64::from(rank == 3);
        self.begin_batch();
        match item {
            DumpItem::Handle { handle, values } => self.put(handle, values, None),
            DumpItem::Homed(name) => self.push_prefix(BatchedKind::Home, name),
            _ => {}
        }
        self.commit_if_full()
    }

    fn take_dump_source(&mut self, found_unix_ms: u64, txn_id: u64) -> Result<(), MirrorError> {
        let now_unix_ms = (self.clock)();
        self.state.note_clock(found_unix_ms, now_unix_ms);
        let stated_unix_ms = found_unix_ms;
        let found_unix_ms = MirrorPosition::believed(found_unix_ms, now_unix_ms);
        let (known_unix_ms, last_id) = (self.position.complete_unix_ms, self.position.last_id);
        // Lower numbers alone are those of a store that has replaced the one before, and an earlier
        // time alone that of a clock that was set back.
        if txn_id < last_id && found_unix_ms < known_unix_ms {
            return Err(MirrorError::Replayed { txn_id, last_id });
        }
        let dump = self.position.dump.as_mut().ok_or(MirrorError::Order("no dump was requested"))?;
        // If a dump that was continued begins again, the first part is as old as it was.
        if dump.source.is_none() {
            dump.source = Some((txn_id, found_unix_ms));
            self.stated_unix_ms = stated_unix_ms;
        }
        if dump.contact_unix_ms == 0 {
            dump.contact_unix_ms = self.asked_unix_ms;
        }
        self.state.note_primary_has(txn_id);
        Ok(())
    }

    /// Notes the time, if the next change is the first of its batch.
    fn begin_batch(&mut self) {
        if self.batch.is_empty() {
            self.batch_begun = Instant::now();
        }
    }

    fn commit_if_full(&mut self) -> Result<(), MirrorError> {
        let limits = if self.position.dump.is_some() { self.limits.of_dumps() } else { self.limits };
        let is_full = self.batch.len() >= limits.items || self.batch.bytes_len() >= limits.bytes;
        let is_late = !self.batch.is_empty() && self.batch_begun.elapsed() >= BATCH_TIME;
        if is_full || is_late { self.begin_commit() } else { Ok(()) }
    }

    /// Gives the batch to the writer of the store, after the batch before has been committed.
    fn begin_commit(&mut self) -> Result<(), MirrorError> {
        self.end_commit()?;
        let (batch, position) = (std::mem::take(&mut self.batch), self.position.clone());
        std::mem::swap(&mut self.batch, &mut self.spare_batch);
        let behind = position.clone();
        let change = self.begin_change(move |transaction, name, stored| {
            let counts = batch.apply(transaction, name, behind.dump.as_ref())?;
            let mut position = behind;
            // What is gathered meanwhile does not know yet what this batch replaces.
            let older_left = stored.dump.and_then(|dump| dump.older_left);
            let older_left = older_left.map(|count| count.saturating_sub(counts.replaced));
            if let Some(dump) = &mut position.dump {
                dump.older_left = older_left;
            }
            position.write(transaction, name)?;
            Ok(CommittedBatch { batch, counts, older_left })
        })?;
        self.begun_commit = Some(BegunCommit { change, position });
        Ok(())
    }

    /// Waits until the batch that was given to the writer is durable.
    ///
    /// # Errors
    /// When the store cannot be written, or the mirror has been promoted.
    pub(super) fn end_commit(&mut self) -> Result<(), MirrorError> {
        let Some(BegunCommit { change, position }) = self.begun_commit.take() else { return Ok(()) };
        let CommittedBatch { mut batch, counts, older_left } = change.wait()??;
        batch.clear();
        self.spare_batch = batch;
        self.committed = position;
        for position in [&mut self.position, &mut self.committed] {
            if let Some(dump) = &mut position.dump {
                dump.older_left = older_left;
            }
        }
        self.state.set_position(&self.committed);
        self.state.note_applied(counts);
        Ok(())
    }

    /// Commits what was taken so far.
    ///
    /// # Errors
    /// When the store cannot be written, or the mirror has been promoted.
    pub fn commit(&mut self) -> Result<(), MirrorError> {
        self.begin_commit()?;
        self.end_commit()
    }

    /// Commits the items before the early end of a stream, if there are any.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn end_cut_stream(&mut self) -> Result<(), MirrorError> {
        self.end_commit()?;
        if self.batch.is_empty() && self.position == self.committed { Ok(()) } else { self.commit() }
    }

    fn note_committed(&mut self) {
        self.committed.clone_from(&self.position);
        self.state.set_position(&self.position);
    }

    /// Commits the end of a stream of transactions. If the stream had none, only times have
    /// changed, which are not written each time.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn end_transaction_stream(&mut self) -> Result<(), MirrorError> {
        self.end_commit()?;
        let MirrorPosition { complete_unix_ms, contact_unix_ms, .. } = self.position;
        self.heard = Some(HeardTimes { complete_unix_ms, contact_unix_ms });
        // By either clock, which may also be set back.
        let is_old = complete_unix_ms.abs_diff(self.committed.complete_unix_ms) >= TIME_WRITE_MS
            || contact_unix_ms.abs_diff(self.committed.contact_unix_ms) >= TIME_WRITE_MS;
        let MirrorPosition { complete_unix_ms, contact_unix_ms, .. } = self.committed;
        let before = MirrorPosition { complete_unix_ms, contact_unix_ms, ..self.position.clone() };
        if is_old || !self.batch.is_empty() || before != self.committed { self.commit() } else { Ok(()) }
    }

    /// Drops what was taken and not committed.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn abandon(&mut self) -> Result<(), MirrorError> {
        self.batch.clear();
        // The writer makes changes in their order, so the position is that behind this batch, if it
        // can be committed.
        self.begun_commit = None;
        let name = self.name.clone();
        let position = self.store.change(move |transaction| MirrorPosition::read(transaction, &name))?;
        self.committed = position.unwrap_or_default();
        self.position = self.committed.clone();
        if let Some(HeardTimes { complete_unix_ms, contact_unix_ms }) = self.heard {
            (self.position.complete_unix_ms, self.position.contact_unix_ms) =
                (complete_unix_ms, contact_unix_ms);
        }
        self.state.note_abandoned(&self.position);
        Ok(())
    }

    /// Drops what was taken from a stream that is out of order. What is committed of it stays, but
    /// everything is requested again, since items may be missing: the transactions from its start,
    /// or the whole dump.
    ///
    /// # Errors
    /// When the store cannot be read or written, the mirror has been promoted, or another process
    /// follows.
    pub fn reject(&mut self) -> Result<(), MirrorError> {
        let epoch = self.committed.epoch;
        self.abandon()?;
        if self.committed.epoch != epoch {
            return Err(MirrorError::Superseded);
        }
        match &self.position.dump {
            Some(dump) if dump.step == MirrorDumpStep::Receiving => self.begin_dump(),
            None if self.position.last_id > self.stream_from => {
                self.position.last_id = self.stream_from;
                self.commit()
            }
            _ => Ok(()),
        }
    }

    /// Follows with this epoch of a lease from now on, from the position in the store: a process
    /// with a lower epoch makes no more changes.
    ///
    /// # Errors
    /// When the store cannot be written, the mirror has been promoted, or a process with a higher
    /// epoch follows.
    pub fn take_over(&mut self, epoch: u64) -> Result<(), MirrorError> {
        let (name, scope) = (self.name.clone(), self.scope.describe());
        let taken = self.store.change(move |transaction| {
            let read = MirrorPosition::read(transaction, &name)?;
            let mut position = read.unwrap_or_else(|| MirrorPosition::new(scope));
            if !position.is_followed() {
                return Ok(Err(MirrorError::Stopped));
            }
            if position.epoch > epoch {
                return Ok(Err(MirrorError::Superseded));
            }
            position.epoch = epoch;
            position.write(transaction, &name)?;
            Ok(Ok(()))
        })?;
        taken?;
        // The other process may have got further than this one knows.
        (self.heard, self.stated_unix_ms) = (None, 0);
        self.abandon()
    }

    /// Makes a change, unless the mirror has been promoted meanwhile, or another process follows.
    fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Transaction<'_>, &str) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, MirrorError> {
        self.begin_change(move |transaction, name, _| change(transaction, name))?.wait()?
    }

    /// As [`change`](Self::change), without waiting for the result. The change gets the position in
    /// the store.
    fn begin_change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Transaction<'_>, &str, MirrorPosition) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<BegunChange<Result<T, MirrorError>>, MirrorError> {
        let (name, epoch) = (self.name.clone(), self.committed.epoch);
        let begun = self.store.begin_change(move |transaction| {
            let stored = MirrorPosition::read(transaction, &name)?;
            match &stored {
                Some(position) if !position.is_followed() => return Ok(Err(MirrorError::Stopped)),
                Some(position) if position.epoch != epoch => return Ok(Err(MirrorError::Superseded)),
                _ => {}
            }
            change(transaction, &name, stored.unwrap_or_default()).map(Ok)
        });
        Ok(begun?)
    }

    /// Begins a stream of transactions or of records, before it is requested; one after the other
    /// is applied.
    pub fn begin_stream(&mut self) {
        (self.status, self.rank) = (None, 0);
        self.asked_unix_ms = (self.clock)();
        self.stream_from = self.position.last_id;
    }

    /// Begins a dump from the start. Nothing is published until it is complete.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn begin_dump(&mut self) -> Result<(), MirrorError> {
        while !self.change(|transaction, name| transaction.clear_named(name, LOOK_COUNT))? {}
        let (before, is_logged) = (self.position.clone(), self.position.complete_unix_ms > 0);
        self.position = self.change(move |transaction, name| {
            let (begun_id, older_left) = (transaction.last_id(), transaction.records_count()?);
            if !is_logged {
                transaction.begin_log_anew()?;
            }
            let older_left = Some(older_left);
            let dump = DumpProgress { begun_id, is_logged, older_left, ..DumpProgress::default() };
            let position = MirrorPosition { dump: Some(dump), ..before };
            position.write(transaction, name)?;
            Ok(position)
        })?;
        self.note_committed();
        Ok(())
    }

    /// Notes that all items of the dump are here.
    ///
    /// # Errors
    /// When the dump did not say which transaction follows it, or the store cannot be written.
    pub fn end_dump_items(&mut self) -> Result<(), MirrorError> {
        let dump = self.position.dump.as_mut().ok_or(MirrorError::Order("no dump was requested"))?;
        if dump.source.is_none() {
            return Err(MirrorError::Order("the dump does not say which transactions follow it"));
        }
        dump.step = MirrorDumpStep::Removing(None);
        self.commit()
    }

    /// Takes one step after the items of the dump; false after the last one.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn finish_dump(&mut self) -> Result<bool, MirrorError> {
        let Some(dump) = self.position.dump.clone() else { return Ok(false) };
        match &dump.step {
            MirrorDumpStep::Receiving => return Ok(false),
            MirrorDumpStep::Removing(after) => self.remove_unnamed(&dump, after.as_deref())?,
            MirrorDumpStep::Clearing => {
                let (begun_id, scope) = (dump.begun_id, Arc::clone(&self.scope));
                self.change(move |transaction, name| {
                    let owns = |record: &[u8]| scope.owns_prefix(record);
                    transaction.release_unnamed(&DumpScope { primary: name, begun_id, owns: &owns })
                })?;
                self.complete_dump(&dump)?;
            }
        }
        Ok(true)
    }

    /// Removes the records after the name `after` that are from before the dump and that it did not
    /// name, up to a bound.
    fn remove_unnamed(&mut self, dump: &DumpProgress, after: Option<&[u8]>) -> Result<(), MirrorError> {
        let older = if dump.older_left == Some(0) {
            OlderRecords::default()
        } else {
            let scope = Arc::clone(&self.scope);
            let owns = |handle: &[u8]| scope.owns(handle);
            let names = DumpScope { primary: &self.name, begun_id: dump.begun_id, owns: &owns };
            self.store.snapshot()?.older_records(&names, after, LOOK_COUNT, SCAN_COUNT)?
        };
        if let Some(dump) = &mut self.position.dump {
            dump.step = match &older.last {
                Some(last) => MirrorDumpStep::Removing(Some(last.clone())),
                None => MirrorDumpStep::Clearing,
            };
        }
        if older.names.is_empty() && older.last.is_some() {
            // Looking again after a crash costs less than a commit for each step.
            return Ok(());
        }
        let (begun_id, position) = (dump.begun_id, self.position.clone());
        let removed = self.change(move |transaction, name| {
            let names = DumpScope { primary: name, begun_id, owns: &|_| true };
            let removed = transaction.remove_unnamed(&names, older.names)?;
            position.write(transaction, name)?;
            Ok(removed)
        })?;
        self.state.note_removed(removed);
        self.note_committed();
        Ok(())
    }

    /// Lets the dump count as complete, in the commit after which it may be published.
    fn complete_dump(&mut self, dump: &DumpProgress) -> Result<(), MirrorError> {
        let (last_id, complete_unix_ms) = dump.source.unwrap_or_default();
        let is_logged = dump.is_logged;
        self.position = MirrorPosition {
            last_id,
            complete_unix_ms,
            contact_unix_ms: dump.contact_unix_ms,
            needs_dump: false,
            dump: None,
            is_partial: false,
            ..self.position.clone()
        };
        let position = self.position.clone();
        self.change(move |transaction, name| {
            if !is_logged {
                transaction.begin_log_anew()?;
            }
            position.write(transaction, name)
        })?;
        self.heard = None;
        self.note_committed();
        self.state.note_dump();
        // A crash before the end leaves names that the next dump drops.
        while !self.change(|transaction, name| transaction.clear_named(name, LOOK_COUNT))? {}
        Ok(())
    }
}
