//! The items of a stream, in order, from one snapshot of the store. Between two items, only a
//! position is kept, so a stream of any length needs the memory of one record.

use super::receivers::{ReceiverKey, Receivers};
use super::stream::BlockWriter;
use handle_auth::SignError;
use handle_proto::name::PREFIX_RECORDS;
use handle_proto::wire::replication::StartingPoint;
use handle_proto::wire::replication_stream::{
    ChangeDate, DUMP_FORMAT, DumpItem, StreamValues, TransactionAction, TransactionFormat, TransactionItem,
    TransactionStatus, TransactionsHeader,
};
use handle_proto::{Handle, HashOption, fold};
use handle_store::{
    LastChange, LogAction, LogEntry, RemovalKind, StoreError, StoreRecords as _, StoreSnapshot, key,
};
use std::fmt;

/// Why a stream ends early.
#[derive(Debug)]
pub enum SourceError {
    /// The store cannot be read.
    Store(StoreError),
    /// A block cannot be signed.
    Sign(SignError),
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::Sign(error) => write!(f, "cannot sign a block: {error}"),
        }
    }
}

impl std::error::Error for SourceError {}

impl From<StoreError> for SourceError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<SignError> for SourceError {
    fn from(error: SignError) -> Self {
        Self::Sign(error)
    }
}

/// The handles that a server of the receiving site gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverShare {
    /// The part of a handle that is hashed.
    pub hash_option: HashOption,
    /// Number of servers of the site.
    pub servers_count: u32,
    /// Position of the server.
    pub server_at: u32,
}

impl ReceiverShare {
    /// Whether a handle hashes to this server.
    #[must_use]
    pub fn has(self, handle: &[u8]) -> bool {
        Handle(handle).server_at(self.hash_option, self.servers_count) == Some(self.server_at)
    }
}

/// The items of a stream.
#[derive(Debug)]
pub enum StreamSource {
    /// Transactions.
    Transactions(TransactionSource),
    /// All records.
    Dump(DumpSource),
}

/// Numbers of items that were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ItemCounts {
    /// Transactions.
    pub transactions: u64,
    /// Records of a dump.
    pub records: u64,
}

impl StreamSource {
    /// Writes items until `out` is full; false after the last one.
    pub(super) fn write(&mut self, out: &mut BlockWriter) -> Result<bool, SourceError> {
        match self {
            Self::Transactions(source) => source.write(out),
            Self::Dump(source) => source.write(out),
        }
    }

    /// The items that were written so far.
    pub(super) const fn counts(&self) -> ItemCounts {
        match self {
            Self::Transactions(source) => ItemCounts { transactions: source.count, records: 0 },
            Self::Dump(source) => ItemCounts { transactions: 0, records: source.count },
        }
    }

    /// Notes what the receiver is sent; whether the answer equals the previous one, or is a
    /// comparison that a mirror makes at intervals, so that the audit log has no line of it.
    pub(super) fn is_repeated(&self, receivers: &Receivers) -> bool {
        match self {
            Self::Transactions(source) => {
                let needs_dump = source.header.status == TransactionStatus::NeedsDump;
                !receivers.note_news(&source.receiver, (needs_dump, source.last_id))
            }
            Self::Dump(source) => source.has_homed_only,
        }
    }

    /// Notes that the receiver has received the whole stream.
    pub(super) fn record_end(&self, receivers: &Receivers) {
        match self {
            Self::Transactions(source) if source.header.status == TransactionStatus::Sending => {
                receivers.received_transactions(&source.receiver, source.last_id);
            }
            Self::Transactions(_) => {}
            Self::Dump(source) if source.has_homed_only => {}
            Self::Dump(source) => receivers.received_dump(&source.receiver, source.last_id),
        }
    }
}

/// The transactions that are sent.
#[derive(Debug)]
pub struct TransactionRange {
    /// The name of the queue; `None` if it belongs to the receiver itself.
    pub queue: Option<Vec<u8>>,
    /// The last transaction that the receiver has.
    pub after: u64,
    /// The time up to which the receiver has every transaction.
    pub last_query_unix_ms: i64,
    /// A time before the snapshot was taken.
    pub now_unix_ms: u64,
}

/// The next part of a stream of transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransactionStep {
    Header,
    Queue,
    /// Transactions after this one.
    After(u64),
    QueueDate,
    End,
    Finished,
}

/// The transactions of the log.
#[derive(Debug)]
pub struct TransactionSource {
    snapshot: StoreSnapshot,
    header: TransactionsHeader,
    range: TransactionRange,
    share: ReceiverShare,
    receiver: ReceiverKey,
    last_id: u64,
    /// The time up to which the stream is complete.
    complete_unix_ms: u64,
    step: TransactionStep,
    count: u64,
    buffer: Vec<u8>,
}

impl TransactionSource {
    /// # Errors
    /// When the store cannot be read.
    pub(super) fn new(
        snapshot: StoreSnapshot,
        header: TransactionsHeader,
        range: TransactionRange,
        share: ReceiverShare,
        receiver: ReceiverKey,
    ) -> Result<Self, StoreError> {
        let last_id = snapshot.last_id()?;
        // The clock may have been set back since the last transaction.
        let complete_unix_ms = complete_unix_ms(&snapshot, range.now_unix_ms)?;
        let (step, buffer) = (TransactionStep::Header, Vec::new());
        Ok(Self {
            snapshot,
            header,
            range,
            share,
            receiver,
            last_id,
            complete_unix_ms,
            step,
            count: 0,
            buffer,
        })
    }

    fn write(&mut self, out: &mut BlockWriter) -> Result<bool, SourceError> {
        while !out.is_full() {
            let sends = self.header.status == TransactionStatus::Sending;
            self.step = match self.step {
                TransactionStep::Header => {
                    out.block(|bytes| self.header.encode(bytes))?;
                    let has_queue = sends && self.range.queue.is_some();
                    if has_queue { TransactionStep::Queue } else { TransactionStep::End }
                }
                TransactionStep::Queue => {
                    self.write_queue_name(out)?;
                    TransactionStep::After(self.range.after)
                }
                TransactionStep::After(id) => self.write_transactions(id, out)?,
                TransactionStep::QueueDate => {
                    let date = TransactionItem::QueueDate(self.complete_unix_ms);
                    out.block(|bytes| date.encode(bytes))?;
                    TransactionStep::End
                }
                TransactionStep::End => {
                    let item = self.end();
                    out.block(|bytes| item.encode(bytes))?;
                    TransactionStep::Finished
                }
                TransactionStep::Finished => return Ok(false),
            };
        }
        Ok(true)
    }

    fn write_queue_name(&self, out: &mut BlockWriter) -> Result<(), SourceError> {
        match (&self.range.queue, self.header.format) {
            (Some(name), TransactionFormat::AllSources) => {
                out.block(|bytes| TransactionItem::Queue(name).encode(bytes))
            }
            _ => Ok(()),
        }
    }

    /// The last item. A receiver that has to request all records gets back the time that it sent.
    fn end(&self) -> TransactionItem<'static> {
        let unix_ms = match (self.header.format, self.header.status) {
            (TransactionFormat::AllSources, _) => None,
            (_, TransactionStatus::NeedsDump) => Some(self.range.last_query_unix_ms.cast_unsigned()),
            (_, TransactionStatus::Sending) => Some(self.complete_unix_ms),
        };
        TransactionItem::End { unix_ms }
    }

    fn write_transactions(&mut self, id: u64, out: &mut BlockWriter) -> Result<TransactionStep, SourceError> {
        let mut last = id;
        for entry in self.snapshot.log_after(id)? {
            if out.is_full() {
                return Ok(TransactionStep::After(last));
            }
            let entry = entry?;
            last = entry.id;
            if entry.action.is_about_homing() || self.share.has(&entry.handle) {
                self.write_transaction(&entry, out)?;
            }
        }
        Ok(match self.header.format {
            TransactionFormat::OneSource => TransactionStep::End,
            TransactionFormat::AllSources => TransactionStep::QueueDate,
        })
    }

    /// Writes a transaction with the current values, unless a later one makes it void: the record
    /// was deleted or exists again, or a later transaction of the stream has the same values.
    fn write_transaction(&mut self, entry: &LogEntry, out: &mut BlockWriter) -> Result<(), SourceError> {
        let item = |action, unix_ms| TransactionItem::Transaction {
            id: entry.id,
            handle: &entry.handle,
            action,
            unix_ms,
        };
        let removed_ms =
            |kind, name| Ok::<_, StoreError>(unix_ms_of(entry, self.snapshot.removal(kind, name)?));
        let prefix = Handle(&entry.handle).homed_prefix();
        let item = match entry.action {
            LogAction::Create | LogAction::Update => {
                let Some(record) = self.snapshot.record(&entry.handle)? else { return Ok(()) };
                let record = record.view();
                if entry.action == LogAction::Update && record.id > entry.id {
                    return Ok(());
                }
                let values = StreamValues::build(record.values.iter(), &mut self.buffer);
                let unix_ms = if record.id == entry.id { record.unix_ms } else { entry.unix_ms };
                let action = match entry.action {
                    LogAction::Create => TransactionAction::Create(values),
                    _ => TransactionAction::Update(values),
                };
                self.count += 1;
                return out.block(|bytes| item(action, unix_ms).encode(bytes));
            }
            LogAction::Delete => {
                if self.snapshot.record(&entry.handle)?.is_some() {
                    return Ok(());
                }
                item(TransactionAction::Delete, removed_ms(RemovalKind::Handle, &entry.handle)?)
            }
            LogAction::Home => item(TransactionAction::Home, entry.unix_ms),
            LogAction::Unhome => item(TransactionAction::Unhome, removed_ms(RemovalKind::Prefix, prefix)?),
        };
        self.count += 1;
        out.block(|bytes| item.encode(bytes))
    }
}

/// The time up to which `snapshot` has all transactions. It is not before the start of the log,
/// also while the clock is behind it: who has everything up to there needs no dump.
fn complete_unix_ms(snapshot: &StoreSnapshot, now_unix_ms: u64) -> Result<u64, StoreError> {
    let start_unix_ms = snapshot.log_start()?.unix_ms.unwrap_or(0);
    Ok(now_unix_ms.max(snapshot.last_unix_ms()?).max(start_unix_ms))
}

/// The date of a transaction. Changes of one handle within a millisecond have the same time in the
/// log, but different dates, so the last change of a handle has the date in `last`.
fn unix_ms_of(entry: &LogEntry, last: Option<LastChange>) -> u64 {
    last.filter(|last| last.id == entry.id).map_or(entry.unix_ms, |last| last.unix_ms)
}

/// The kinds of items of a dump, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DumpStep {
    Header,
    Source,
    HandleDates,
    PrefixDates,
    Handles,
    Homed,
    Done,
    Finished,
}

impl DumpStep {
    const fn next(self) -> Self {
        match self {
            Self::Header => Self::Source,
            Self::Source => Self::HandleDates,
            Self::HandleDates => Self::PrefixDates,
            Self::PrefixDates => Self::Handles,
            Self::Handles => Self::Homed,
            Self::Homed => Self::Done,
            Self::Done | Self::Finished => Self::Finished,
        }
    }
}

/// Where a dump begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpPosition {
    /// The step after the header.
    step: DumpStep,
    /// The last name that the receiver has, as stored.
    after: Option<Vec<u8>>,
}

impl DumpPosition {
    /// The start.
    pub const START: Self = Self { step: DumpStep::Source, after: None };

    /// The position after the last item that the receiver has; `None` if it has an unknown kind.
    #[must_use]
    pub fn after(start: StartingPoint<'_>, folds: bool, has_dates: bool) -> Option<Self> {
        let handle = || key(start.item, folds);
        let prefix = || fold::folded(Handle(start.item).homed_prefix());
        let (step, after) = match start.kind {
            // The receiver has dates from another source; this one does not send any.
            0 | 1 if !has_dates => return Some(Self { step: DumpStep::Handles, after: None }),
            0 => (DumpStep::HandleDates, handle()),
            1 => (DumpStep::PrefixDates, prefix()),
            2 => (DumpStep::Handles, handle()),
            3 => (DumpStep::Homed, prefix()),
            _ => return None,
        };
        Some(Self { step, after: Some(after) })
    }
}

/// All records.
#[derive(Debug)]
pub struct DumpSource {
    snapshot: StoreSnapshot,
    share: ReceiverShare,
    receiver: ReceiverKey,
    has_dates: bool,
    unix_ms: u64,
    last_id: u64,
    begin: DumpStep,
    /// Whether this is all homed prefixes and nothing else, with which a receiver compares its own.
    has_homed_only: bool,
    step: DumpStep,
    /// The last name of this step.
    after: Option<Vec<u8>>,
    count: u64,
    buffer: Vec<u8>,
}

impl DumpSource {
    /// # Errors
    /// When the store cannot be read.
    pub(super) fn new(
        snapshot: StoreSnapshot,
        begin: DumpPosition,
        has_dates: bool,
        now_unix_ms: u64,
        share: ReceiverShare,
        receiver: ReceiverKey,
    ) -> Result<Self, StoreError> {
        let last_id = snapshot.last_id()?;
        let unix_ms = complete_unix_ms(&snapshot, now_unix_ms)?;
        let DumpPosition { step: begin, after } = begin;
        let has_homed_only = begin == DumpStep::Homed && after.as_ref().is_some_and(Vec::is_empty);
        let (step, buffer) = (DumpStep::Header, Vec::new());
        Ok(Self {
            snapshot,
            share,
            receiver,
            has_dates,
            unix_ms,
            last_id,
            begin,
            has_homed_only,
            step,
            after,
            count: 0,
            buffer,
        })
    }

    fn write(&mut self, out: &mut BlockWriter) -> Result<bool, SourceError> {
        while !out.is_full() {
            let is_over = match self.step {
                DumpStep::Header => {
                    out.block(|bytes| bytes.extend_from_slice(&DUMP_FORMAT.to_be_bytes()))?;
                    self.step = self.begin;
                    continue;
                }
                DumpStep::Source => {
                    let item = DumpItem::Source { unix_ms: self.unix_ms, txn_id: self.last_id };
                    out.block(|bytes| item.encode(bytes))?;
                    true
                }
                DumpStep::HandleDates => !self.has_dates || self.write_handle_dates(out)?,
                DumpStep::PrefixDates => !self.has_dates || self.write_prefix_dates(out)?,
                DumpStep::Handles => self.write_handles(out)?,
                DumpStep::Homed => self.write_homed(out)?,
                DumpStep::Done => {
                    out.unsigned(|bytes| DumpItem::Done.encode(bytes));
                    true
                }
                DumpStep::Finished => return Ok(false),
            };
            if is_over {
                self.step = self.step.next();
                self.after = None;
            }
        }
        Ok(true)
    }

    /// Writes records; true after the last one.
    fn write_handles(&mut self, out: &mut BlockWriter) -> Result<bool, SourceError> {
        for stored in self.snapshot.records_under(b"", self.after.as_deref())? {
            if out.is_full() {
                return Ok(false);
            }
            let stored = stored?;
            let handle = stored.handle();
            if self.share.has(handle) {
                let values = StreamValues::build(stored.record()?.values.iter(), &mut self.buffer);
                out.block(|bytes| DumpItem::Handle { handle, values }.encode(bytes))?;
                self.count += 1;
            }
            set_position(&mut self.after, handle);
        }
        Ok(true)
    }

    /// Writes the last changes of records and of deleted handles, by name; true after the last one.
    fn write_handle_dates(&mut self, out: &mut BlockWriter) -> Result<bool, SourceError> {
        let mut records = self.snapshot.records_under(b"", self.after.as_deref())?.peekable();
        let mut removals =
            self.snapshot.removals_after(RemovalKind::Handle, self.after.as_deref())?.peekable();
        loop {
            if out.is_full() {
                return Ok(false);
            }
            let is_removal_next = match (records.peek(), removals.peek()) {
                (None, None) => return Ok(true),
                (Some(Ok(record)), Some(Ok((name, _)))) => name.as_slice() < record.handle(),
                (Some(Err(_)), _) => false,
                (None, Some(_)) | (Some(_), Some(Err(_))) => true,
                (Some(_), None) => false,
            };
            let next = if is_removal_next {
                removals.next().transpose()?.map(|(name, last)| (name, last.unix_ms, last.priority))
            } else {
                let stored = records.next().transpose()?;
                stored
                    .map(|it| Ok::<_, StoreError>((it.handle().to_vec(), it.record()?.unix_ms, 0)))
                    .transpose()?
            };
            let Some((name, unix_ms, priority)) = next else { return Ok(true) };
            let date = ChangeDate { name: &name, unix_ms, priority };
            out.block(|bytes| DumpItem::HandleDate(date).encode(bytes))?;
            set_position(&mut self.after, &name);
        }
    }

    /// Writes the last changes of homed and released prefixes, by name; true after the last one.
    fn write_prefix_dates(&mut self, out: &mut BlockWriter) -> Result<bool, SourceError> {
        let homed = self.snapshot.homed_dates()?;
        let removals =
            self.snapshot.removals_after(RemovalKind::Prefix, None)?.collect::<Result<Vec<_>, _>>()?;
        let mut all = [homed, removals].concat();
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        let start = self.after.clone();
        for (prefix, last) in all.iter().filter(|(name, _)| Some(name) > start.as_ref()) {
            if out.is_full() {
                return Ok(false);
            }
            let name = [PREFIX_RECORDS, prefix].concat();
            let date = ChangeDate { name: &name, unix_ms: last.unix_ms, priority: last.priority };
            out.block(|bytes| DumpItem::PrefixDate(date).encode(bytes))?;
            set_position(&mut self.after, prefix);
        }
        Ok(true)
    }

    /// Writes homed prefixes; true after the last one.
    fn write_homed(&mut self, out: &mut BlockWriter) -> Result<bool, SourceError> {
        let start = self.after.clone();
        for prefix in self.snapshot.homed()?.iter().filter(|name| Some(*name) > start.as_ref()) {
            if out.is_full() {
                return Ok(false);
            }
            let name = [PREFIX_RECORDS, prefix].concat();
            out.block(|bytes| DumpItem::Homed(&name).encode(bytes))?;
            set_position(&mut self.after, prefix);
        }
        Ok(true)
    }
}

/// Sets the last name to `name`, in the same memory.
fn set_position(after: &mut Option<Vec<u8>>, name: &[u8]) {
    let kept = after.get_or_insert_default();
    kept.clear();
    kept.extend_from_slice(name);
}
