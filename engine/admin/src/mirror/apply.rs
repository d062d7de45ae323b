//! Applies a stream to the store: checks the order of its items, gathers them in batches of bounded
//! size, and commits each batch together with the position behind it.

use super::error::MirrorError;
use super::position::{DumpProgress, MirrorDumpStep, MirrorPosition};
use super::scope::MirrorScope;
use super::status::MirrorSourceState;
use handle_client::replication::StreamEvent;
use handle_proto::Values;
use handle_proto::fold::folded;
use handle_proto::name::PREFIX_RECORDS;
use handle_proto::wire::replication_stream::{
    DumpItem, StreamValues, TransactionAction, TransactionItem, TransactionStatus,
};
use handle_store::{DumpScope, NamedKind, Store, StoreError, Transaction, check_record, key};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Names that one commit at the end of a dump looks at.
const LOOK_COUNT: usize = 10_000;
/// Time after which a batch is committed although it is small.
const BATCH_TIME: Duration = Duration::from_millis(500);
/// Interval at which `complete_unix_ms` is written while nothing changes.
const TIME_WRITE_MS: u64 = 60_000;

/// Limits on a batch.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    /// Changes.
    pub items: usize,
    /// Bytes of names and values.
    pub bytes: usize,
}

/// A change of the store.
enum MirrorChange {
    Put {
        key: Vec<u8>,
        count: usize,
        values: Vec<u8>,
        unix_ms: Option<u64>,
    },
    Delete(Vec<u8>),
    /// A handle whose record cannot be stored, and stays as it is.
    Name(Vec<u8>),
    Home(Vec<u8>),
    Unhome(Vec<u8>),
}

impl MirrorChange {
    fn len(&self) -> usize {
        match self {
            Self::Put { key, values, .. } => key.len() + values.len(),
            Self::Delete(name) | Self::Name(name) | Self::Home(name) | Self::Unhome(name) => name.len(),
        }
    }
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
    /// The time at the end of the last complete stream of transactions. It may not be written yet.
    heard_unix_ms: u64,
    /// The last transaction before the present stream.
    stream_from: u64,
    batch: Vec<MirrorChange>,
    batch_len: usize,
    batch_begun: Instant,
    /// The status of the transactions in the present stream.
    status: Option<TransactionStatus>,
    /// The rank of the last item of the present dump.
    rank: u8,
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
            if position.scope != described && position.is_followed() {
                let fresh = MirrorPosition::new(described);
                // Its numbers are those of the same log, but some of its records are not here.
                let complete_unix_ms = position.complete_unix_ms;
                position = MirrorPosition { complete_unix_ms, last_id: position.last_id, ..fresh };
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
            heard_unix_ms: 0,
            stream_from: position.last_id,
            position,
            batch: Vec::new(),
            batch_len: 0,
            batch_begun: Instant::now(),
            status: None,
            rank: 0,
        };
        applier.state.set_position(&applier.position);
        Ok(applier)
    }

    /// The position behind the last item.
    #[must_use]
    pub const fn position(&self) -> &MirrorPosition {
        &self.position
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
                let change = self.change_of(handle, action, unix_ms);
                self.position.last_id = id;
                self.position.is_partial = true;
                self.add(change)
            }
        }
    }

    /// The change that a transaction asks for, if it concerns this mirror.
    fn change_of(
        &mut self,
        handle: &[u8],
        action: TransactionAction<'_>,
        unix_ms: u64,
    ) -> Option<MirrorChange> {
        match action {
            TransactionAction::Placeholder => None,
            TransactionAction::Create(values) | TransactionAction::Update(values) => self
                .put(handle, values, Some(unix_ms))
                .filter(|change| matches!(change, MirrorChange::Put { .. })),
            TransactionAction::Delete => {
                let is_ours = self.scope.has(handle);
                is_ours.then(|| MirrorChange::Delete(key(handle, self.store.folds())))
            }
            TransactionAction::Home => self.homed(handle).map(MirrorChange::Home),
            TransactionAction::Unhome => self.homed(handle).map(MirrorChange::Unhome),
            TransactionAction::DeleteAll => {
                // A dump brings what is left in bounded steps.
                self.position.needs_dump = true;
                None
            }
        }
    }

    /// A change that stores the values of a handle.
    fn put(&self, handle: &[u8], values: StreamValues<'_>, unix_ms: Option<u64>) -> Option<MirrorChange> {
        if !self.scope.has(handle) {
            return None;
        }
        let key = key(handle, self.store.folds());
        if let Err(why) = check_record(&key, values.iter()) {
            self.state.note_left_out(&key, &why.to_string());
            return Some(MirrorChange::Name(key));
        }
        let mut encoded = Vec::new();
        values.iter().for_each(|value| value.encode(&mut encoded));
        Some(MirrorChange::Put { key, count: values.len(), values: encoded, unix_ms })
    }

    /// The prefix, if it is taken over.
    fn homed(&self, record: &[u8]) -> Option<Vec<u8>> {
        let record = folded(record);
        let prefix = record.strip_prefix(PREFIX_RECORDS).unwrap_or(&record);
        let is_ours = self.scope.has_prefix(&[PREFIX_RECORDS, prefix].concat());
        is_ours.then(|| prefix.to_vec())
    }

    fn end_transactions(&mut self, unix_ms: Option<u64>) -> Result<(), MirrorError> {
        let found_unix_ms = unix_ms.ok_or(MirrorError::Order("the stream does not say when it was made"))?;
        let known_unix_ms = self.position.complete_unix_ms;
        if found_unix_ms < known_unix_ms {
            return Err(MirrorError::Replayed { found_unix_ms, known_unix_ms });
        }
        match self.status {
            Some(TransactionStatus::NeedsDump) => self.position.needs_dump = true,
            _ => {
                self.position.complete_unix_ms = found_unix_ms;
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
        let change = match item {
            DumpItem::Handle { handle, values } => self.put(handle, values, None),
            DumpItem::Homed(name) => self.homed(name).map(MirrorChange::Home),
            _ => None,
        };
        let dump = self.position.dump.as_mut().ok_or(MirrorError::Order("no dump was requested"))?;
        if let Some((kind, name)) = after {
            dump.after = Some((kind, name.to_vec()));
        }
        dump.records += u64::from(rank == 3);
        self.add(change)
    }

    fn take_dump_source(&mut self, found_unix_ms: u64, txn_id: u64) -> Result<(), MirrorError> {
        let known_unix_ms = self.position.complete_unix_ms;
        if found_unix_ms < known_unix_ms {
            return Err(MirrorError::Replayed { found_unix_ms, known_unix_ms });
        }
        let dump = self.position.dump.as_mut().ok_or(MirrorError::Order("no dump was requested"))?;
        // If a dump that was continued begins again, the first part is as old as it was.
        dump.source.get_or_insert((txn_id, found_unix_ms));
        self.state.note_primary_has(txn_id);
        Ok(())
    }

    fn add(&mut self, change: Option<MirrorChange>) -> Result<(), MirrorError> {
        if self.batch.is_empty() {
            self.batch_begun = Instant::now();
        }
        self.batch_len += change.as_ref().map_or(0, MirrorChange::len);
        self.batch.extend(change);
        let is_full = self.batch.len() >= self.limits.items || self.batch_len >= self.limits.bytes;
        if is_full || !self.batch.is_empty() && self.batch_begun.elapsed() >= BATCH_TIME {
            self.commit()?;
        }
        Ok(())
    }

    /// Commits what was taken so far.
    ///
    /// # Errors
    /// When the store cannot be written, or the mirror has been promoted.
    pub fn commit(&mut self) -> Result<(), MirrorError> {
        let (batch, position) = (std::mem::take(&mut self.batch), self.position.clone());
        self.batch_len = 0;
        let changes_count = batch.len() as u64;
        let changed = self.change(move |transaction, name| {
            let mut changed = 0;
            for change in batch {
                changed += u64::from(apply(transaction, name, position.dump.as_ref(), change)?);
            }
            position.write(transaction, name)?;
            Ok(changed)
        })?;
        self.note_committed();
        self.state.note_applied(changes_count, changed);
        Ok(())
    }

    /// Commits the items before the early end of a stream, if there are any.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn end_cut_stream(&mut self) -> Result<(), MirrorError> {
        if self.batch.is_empty() && self.position == self.committed { Ok(()) } else { self.commit() }
    }

    fn note_committed(&mut self) {
        self.committed.clone_from(&self.position);
        self.state.set_position(&self.position);
    }

    /// Commits the end of a stream of transactions. If the stream had none, only `complete_unix_ms`
    /// has changed, which is not written each time.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn end_transaction_stream(&mut self) -> Result<(), MirrorError> {
        self.heard_unix_ms = self.position.complete_unix_ms;
        let unix_ms = self.committed.complete_unix_ms;
        let is_old = self.heard_unix_ms.saturating_sub(unix_ms) >= TIME_WRITE_MS;
        let before = MirrorPosition { complete_unix_ms: unix_ms, ..self.position.clone() };
        if is_old || !self.batch.is_empty() || before != self.committed { self.commit() } else { Ok(()) }
    }

    /// Drops what was taken and not committed.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn abandon(&mut self) -> Result<(), MirrorError> {
        self.batch.clear();
        self.batch_len = 0;
        let name = self.name.clone();
        let position = self.store.change(move |transaction| MirrorPosition::read(transaction, &name))?;
        self.committed = position.unwrap_or_default();
        let complete_unix_ms = self.committed.complete_unix_ms.max(self.heard_unix_ms);
        self.position = MirrorPosition { complete_unix_ms, ..self.committed.clone() };
        self.state.note_abandoned(&self.position);
        Ok(())
    }

    /// Drops what was taken from a stream that is out of order. What is committed of it stays, but
    /// everything is requested again, since items may be missing: the transactions from its start,
    /// or the whole dump.
    ///
    /// # Errors
    /// When the store cannot be read or written, or the mirror has been promoted.
    pub fn reject(&mut self) -> Result<(), MirrorError> {
        self.abandon()?;
        match &self.position.dump {
            Some(dump) if dump.step == MirrorDumpStep::Receiving => self.begin_dump(),
            None if self.position.last_id > self.stream_from => {
                self.position.last_id = self.stream_from;
                self.commit()
            }
            _ => Ok(()),
        }
    }

    /// Makes a change, unless the mirror has been promoted meanwhile.
    fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Transaction<'_>, &str) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, MirrorError> {
        let name = self.name.clone();
        let made = self.store.change(move |transaction| match MirrorPosition::read(transaction, &name)? {
            Some(position) if !position.is_followed() => Ok(None),
            _ => change(transaction, &name).map(Some),
        })?;
        made.ok_or(MirrorError::Stopped)
    }

    /// Begins a stream of transactions or of records; one after the other is applied.
    pub const fn begin_stream(&mut self) {
        (self.status, self.rank) = (None, 0);
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
            let begun_id = transaction.last_id();
            if !is_logged {
                transaction.begin_log_anew()?;
            }
            let dump = DumpProgress { begun_id, is_logged, ..DumpProgress::default() };
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
        match dump.step {
            MirrorDumpStep::Receiving => return Ok(false),
            MirrorDumpStep::Removing(after) => {
                let (begun_id, scope) = (dump.begun_id, Arc::clone(&self.scope));
                let (last, removed) = self.change(move |transaction, name| {
                    let owns = |handle: &[u8]| scope.owns(handle);
                    let names = DumpScope { primary: name, begun_id, owns: &owns };
                    transaction.remove_unnamed(&names, after.as_deref(), LOOK_COUNT)
                })?;
                self.state.note_removed(removed);
                let step =
                    if last.is_some() { MirrorDumpStep::Removing(last) } else { MirrorDumpStep::Clearing };
                self.set_step(step)?;
            }
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

    fn set_step(&mut self, step: MirrorDumpStep) -> Result<(), MirrorError> {
        if let Some(dump) = &mut self.position.dump {
            dump.step = step;
        }
        self.commit()
    }

    /// Lets the dump count as complete, in the commit after which it may be published.
    fn complete_dump(&mut self, dump: &DumpProgress) -> Result<(), MirrorError> {
        let (last_id, complete_unix_ms) = dump.source.unwrap_or_default();
        let is_logged = dump.is_logged;
        self.position = MirrorPosition {
            last_id,
            complete_unix_ms,
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
        self.note_committed();
        self.state.note_dump();
        // A crash before the end leaves names that the next dump drops.
        while !self.change(|transaction, name| transaction.clear_named(name, LOOK_COUNT))? {}
        Ok(())
    }
}

/// Makes a change; whether the store changed.
fn apply(
    transaction: &mut Transaction<'_>,
    primary: &str,
    dump: Option<&DumpProgress>,
    change: MirrorChange,
) -> Result<bool, StoreError> {
    const UNFIT: StoreError = StoreError::Damaged("values of a stream do not decode");
    let owns = |_: &[u8]| false;
    let scope = dump.map(|dump| DumpScope { primary, begun_id: dump.begun_id, owns: &owns });
    match (change, &scope, dump) {
        (MirrorChange::Put { key, count, values, .. }, Some(scope), Some(dump)) => {
            let values = Values::from_encoded(count, &values).map_err(|_| UNFIT)?;
            transaction.put_dumped(scope, &key, values, dump.is_logged)
        }
        (MirrorChange::Put { key, count, values, unix_ms }, ..) => {
            let values = Values::from_encoded(count, &values).map_err(|_| UNFIT)?;
            transaction.put_mirrored(&key, values, unix_ms)
        }
        (MirrorChange::Delete(key), ..) => transaction.delete(&key),
        (MirrorChange::Name(key), ..) => {
            transaction.note_named(primary, NamedKind::Handle, &key).map(|()| false)
        }
        (MirrorChange::Home(prefix), scope, _) => {
            if scope.is_some() {
                transaction.note_named(primary, NamedKind::Prefix, &prefix)?;
            }
            transaction.home(&prefix)
        }
        (MirrorChange::Unhome(prefix), ..) => transaction.unhome(&prefix),
    }
}
