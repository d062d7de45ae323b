//! The streams that follow the answers to replication requests: transactions, or all records. Not
//! in the RFCs.
//!
//! A stream begins with its [`StreamProtection`]. A header and items follow; the end of each item
//! is the end of a block. In a signed stream, each block is followed by the signature over it,
//! except [`DumpItem::Done`].

use super::cursor::Cursor;
use super::put;
use crate::error::{DecodeError, Field};
use crate::value::Value;
use alloc::vec::Vec;

/// The digest that signed streams of deployed servers name.
pub const DIGEST_NAME: &[u8] = b"SHA1";

/// The protection of a stream, from its first four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum StreamProtection {
    /// Each block is followed by a signature of the server key.
    Signed = 0,
    /// Blocks without signatures, after a TLS handshake on the same connection.
    Tls = 0x544C_5300,
    /// Blocks without signatures, on a transport that is secure.
    Transport = 0xFFFF_FFFF,
}

impl StreamProtection {
    /// The protection with this number; `None` for an unknown one.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Signed),
            0x544C_5300 => Some(Self::Tls),
            0xFFFF_FFFF => Some(Self::Transport),
            _ => None,
        }
    }

    /// The four bytes on the wire.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 4] {
        (self as u32).to_be_bytes()
    }
}

/// The origin of the transactions in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum TransactionFormat {
    /// Transactions of the source itself.
    OneSource = 1,
    /// Transactions of all queues that the source knows, with the names of the queues.
    AllSources = 2,
}

/// Whether transactions follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum TransactionStatus {
    /// No transactions follow: the receiver has to request all records.
    NeedsDump = 1,
    /// The transactions after the receiver's last one follow.
    Sending = 2,
}

/// The header of a stream of transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionsHeader {
    /// The format of the items.
    pub format: TransactionFormat,
    /// Whether transactions follow.
    pub status: TransactionStatus,
}

impl TransactionsHeader {
    /// Reads the header.
    ///
    /// # Errors
    /// When it is cut short, or has an unknown number.
    pub fn read(cursor: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let invalid = cursor.invalid(Field::ReplicationStream);
        let format = match cursor.u32(Field::ReplicationStream)? {
            1 => TransactionFormat::OneSource,
            2 => TransactionFormat::AllSources,
            _ => return Err(invalid),
        };
        let status = match cursor.u32(Field::ReplicationStream)? {
            1 => TransactionStatus::NeedsDump,
            2 => TransactionStatus::Sending,
            _ => return Err(invalid),
        };
        Ok(Self { format, status })
    }

    /// Appends the header to `out`.
    pub fn encode(self, out: &mut Vec<u8>) {
        put::u32(out, self.format as u32);
        put::u32(out, self.status as u32);
    }
}

/// The format of a dump that deployed servers write; in format 1, [`DumpItem::Source`] is the last
/// item.
pub const DUMP_FORMAT: u32 = 2;

/// Why a record of a stream cannot be taken over as it is. The items after it are read
/// nevertheless: the length of each value says where the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamRecordFault {
    /// The value at this position, from 0 on, does not decode.
    Value(usize),
    /// The record is longer than the reader accepts, and its values were passed over.
    TooLong,
}

impl core::fmt::Display for StreamRecordFault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Value(nth) => write!(f, "its value number {} does not decode", nth + 1),
            Self::TooLong => f.write_str("it is longer than an item of a stream may be"),
        }
    }
}

/// Values in a stream. Unlike in messages, each value is preceded by its length, and there may be
/// more than a message can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamValues<'a> {
    count: usize,
    bytes: &'a [u8],
    fault: Option<StreamRecordFault>,
}

impl<'a> StreamValues<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let count = cursor.u32(Field::Values)? as usize;
        let (start, mut fault) = (cursor.at(), None);
        for nth in 0..count {
            let bytes = cursor.string(Field::Value)?;
            if !matches!(Value::split(bytes), Ok((_, []))) {
                fault.get_or_insert(StreamRecordFault::Value(nth));
            }
        }
        Ok(Self { count, bytes: cursor.since(start), fault })
    }

    /// Reads the number of values, which are passed over.
    fn read_count(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let count = cursor.u32(Field::Values)? as usize;
        Ok(Self { count, bytes: &[], fault: Some(StreamRecordFault::TooLong) })
    }

    /// The same values, of a record that is too long.
    #[must_use]
    pub const fn too_long(self) -> Self {
        Self { bytes: &[], fault: Some(StreamRecordFault::TooLong), ..self }
    }

    /// Why the record cannot be taken over as it is; `None` if all its values are here.
    #[must_use]
    pub const fn fault(self) -> Option<StreamRecordFault> {
        self.fault
    }

    /// Writes `values` into `storage` and borrows them from there.
    pub fn build<'v>(values: impl IntoIterator<Item = Value<'v>>, storage: &'a mut Vec<u8>) -> Self {
        storage.clear();
        let mut count = 0;
        for value in values {
            let start = storage.len();
            put::u32(storage, 0);
            value.encode(storage);
            let len = put::len(storage.len() - start - 4).to_be_bytes();
            storage[start..start + 4].copy_from_slice(&len);
            count += 1;
        }
        Self { count, bytes: storage, fault: None }
    }

    fn encode(self, out: &mut Vec<u8>) {
        put::count(out, self.count);
        out.extend_from_slice(self.bytes);
    }

    /// The number of values.
    #[must_use]
    pub const fn len(self) -> usize {
        self.count
    }

    /// Whether there are no values.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.count == 0
    }

    /// The values in order, up to the first one that does not decode.
    pub fn iter(self) -> impl Iterator<Item = Value<'a>> {
        let mut cursor = Cursor::new(self.bytes);
        core::iter::from_fn(move || {
            let bytes = cursor.string(Field::Value).ok()?;
            Value::split(bytes).ok().map(|(value, _)| value)
        })
    }
}

/// The change that a transaction made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionAction<'a> {
    /// No change: the number is unused.
    Placeholder,
    /// The handle was created. The values are the current ones when the stream is sent.
    Create(StreamValues<'a>),
    /// The handle was deleted.
    Delete,
    /// The values of the handle were replaced. The values are the current ones when the stream is
    /// sent.
    Update(StreamValues<'a>),
    /// The prefix was homed.
    Home,
    /// The prefix was released.
    Unhome,
    /// All handles were deleted.
    DeleteAll,
}

impl TransactionAction<'_> {
    const fn number(&self) -> u8 {
        match self {
            Self::Placeholder => 0,
            Self::Create(_) => 1,
            Self::Delete => 2,
            Self::Update(_) => 3,
            Self::Home => 4,
            Self::Unhome => 5,
            Self::DeleteAll => 6,
        }
    }
}

/// An item of a stream of transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionItem<'a> {
    /// The last item. In format 1, with the date for the next request.
    End {
        /// Milliseconds since 1970; `None` in format 2.
        unix_ms: Option<u64>,
    },
    /// A transaction.
    Transaction {
        /// Its number.
        id: u64,
        /// The handle; for a prefix, the name of its record.
        handle: &'a [u8],
        /// The change.
        action: TransactionAction<'a>,
        /// Its date in milliseconds since 1970.
        unix_ms: u64,
    },
    /// The name of the queue to which the following transactions belong. Format 2 only.
    Queue(&'a [u8]),
    /// The date up to which the current queue is complete. Format 2 only.
    QueueDate(u64),
}

impl<'a> TransactionItem<'a> {
    /// Reads the next item of a stream in `format`.
    ///
    /// # Errors
    /// `Truncated` if more bytes are needed; any other error is final.
    pub fn read(format: TransactionFormat, cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        const FIELD: Field = Field::ReplicationStream;
        let invalid = cursor.invalid(FIELD);
        Ok(match (cursor.u8(FIELD)?, format) {
            (0, TransactionFormat::OneSource) => Self::End { unix_ms: Some(cursor.u64(FIELD)?) },
            (0, TransactionFormat::AllSources) => Self::End { unix_ms: None },
            (1, _) => {
                let (id, handle) = (cursor.u64(FIELD)?, cursor.string(Field::Handle)?);
                let (number, unix_ms) = (cursor.u8(FIELD)?, cursor.u64(FIELD)?);
                let action = match number {
                    0 => TransactionAction::Placeholder,
                    1 => TransactionAction::Create(StreamValues::read(cursor)?),
                    2 => TransactionAction::Delete,
                    3 => TransactionAction::Update(StreamValues::read(cursor)?),
                    4 => TransactionAction::Home,
                    5 => TransactionAction::Unhome,
                    6 => TransactionAction::DeleteAll,
                    _ => return Err(invalid),
                };
                Self::Transaction { id, handle, action, unix_ms }
            }
            (2, TransactionFormat::AllSources) => Self::Queue(cursor.string(FIELD)?),
            (3, TransactionFormat::AllSources) => Self::QueueDate(cursor.u64(FIELD)?),
            _ => return Err(invalid),
        })
    }

    /// Reads the next item up to the number of its values, if it has values.
    ///
    /// # Errors
    /// When it has none, or this part is incomplete or invalid.
    pub fn read_without_values(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        const FIELD: Field = Field::ReplicationStream;
        let invalid = cursor.invalid(FIELD);
        if cursor.u8(FIELD)? != 1 {
            return Err(invalid);
        }
        let (id, handle) = (cursor.u64(FIELD)?, cursor.string(Field::Handle)?);
        let (number, unix_ms) = (cursor.u8(FIELD)?, cursor.u64(FIELD)?);
        let action = match number {
            1 => TransactionAction::Create(StreamValues::read_count(cursor)?),
            3 => TransactionAction::Update(StreamValues::read_count(cursor)?),
            _ => return Err(invalid),
        };
        Ok(Self::Transaction { id, handle, action, unix_ms })
    }

    /// The values of the item, if it has any.
    pub const fn values_mut(&mut self) -> Option<&mut StreamValues<'a>> {
        match self {
            Self::Transaction {
                action: TransactionAction::Create(values) | TransactionAction::Update(values),
                ..
            } => Some(values),
            _ => None,
        }
    }

    /// Appends the item to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::End { unix_ms } => {
                out.push(0);
                unix_ms.into_iter().for_each(|unix_ms| put::u64(out, unix_ms));
            }
            Self::Transaction { id, handle, action, unix_ms } => {
                out.push(1);
                put::u64(out, id);
                put::string(out, handle);
                out.push(action.number());
                put::u64(out, unix_ms);
                if let TransactionAction::Create(values) | TransactionAction::Update(values) = action {
                    values.encode(out);
                }
            }
            Self::Queue(name) => {
                out.push(2);
                put::string(out, name);
            }
            Self::QueueDate(unix_ms) => {
                out.push(3);
                put::u64(out, unix_ms);
            }
        }
    }
}

/// The last change of a handle or of a homed prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeDate<'a> {
    /// The handle; for a prefix, the name of its record.
    pub name: &'a [u8],
    /// The date in milliseconds since 1970.
    pub unix_ms: u64,
    /// The priority of the site that made the change, which decides between equal dates.
    pub priority: u32,
}

impl<'a> ChangeDate<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            name: cursor.string(Field::Handle)?,
            unix_ms: cursor.u64(Field::ReplicationStream)?,
            priority: cursor.u32(Field::ReplicationStream)?,
        })
    }
}

/// An item of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpItem<'a> {
    /// The date and the transaction of the source from which to continue after the dump.
    Source {
        /// Milliseconds since 1970.
        unix_ms: u64,
        /// The last transaction that the dump is certain to include.
        txn_id: u64,
    },
    /// A handle with its values.
    Handle {
        /// The handle as stored.
        handle: &'a [u8],
        /// Its values.
        values: StreamValues<'a>,
    },
    /// The name of the record of a homed prefix.
    Homed(&'a [u8]),
    /// The last change of a handle, which may be its deletion.
    HandleDate(ChangeDate<'a>),
    /// The last change of a homed prefix, which may be its release.
    PrefixDate(ChangeDate<'a>),
    /// The state of the source towards other sites, as text.
    OtherSites(&'a [u8]),
    /// The last item. It is never signed.
    Done,
}

impl<'a> DumpItem<'a> {
    /// Reads the next item.
    ///
    /// # Errors
    /// `Truncated` if more bytes are needed; any other error is final.
    pub fn read(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        const FIELD: Field = Field::ReplicationStream;
        let invalid = cursor.invalid(FIELD);
        Ok(match cursor.u8(FIELD)? {
            0 => Self::Source { unix_ms: cursor.u64(FIELD)?, txn_id: cursor.u64(FIELD)? },
            1 => Self::Handle { handle: cursor.string(Field::Handle)?, values: StreamValues::read(cursor)? },
            2 => Self::Homed(cursor.string(Field::Handle)?),
            3 => Self::HandleDate(ChangeDate::read(cursor)?),
            4 => Self::PrefixDate(ChangeDate::read(cursor)?),
            5 => Self::OtherSites(cursor.string(FIELD)?),
            0xFF => Self::Done,
            _ => return Err(invalid),
        })
    }

    /// Reads the next item up to the number of its values, if it has values.
    ///
    /// # Errors
    /// When it has none, or this part is incomplete or invalid.
    pub fn read_without_values(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let invalid = cursor.invalid(Field::ReplicationStream);
        match cursor.u8(Field::ReplicationStream)? {
            1 => {
                let handle = cursor.string(Field::Handle)?;
                Ok(Self::Handle { handle, values: StreamValues::read_count(cursor)? })
            }
            _ => Err(invalid),
        }
    }

    /// The values of the item, if it has any.
    pub const fn values_mut(&mut self) -> Option<&mut StreamValues<'a>> {
        match self {
            Self::Handle { values, .. } => Some(values),
            _ => None,
        }
    }

    /// Appends the item to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let date = |out: &mut Vec<u8>, date: &ChangeDate<'_>| {
            put::string(out, date.name);
            put::u64(out, date.unix_ms);
            put::u32(out, date.priority);
        };
        match self {
            Self::Source { unix_ms, txn_id } => {
                out.push(0);
                put::u64(out, *unix_ms);
                put::u64(out, *txn_id);
            }
            Self::Handle { handle, values } => {
                out.push(1);
                put::string(out, handle);
                values.encode(out);
            }
            Self::Homed(name) => {
                out.push(2);
                put::string(out, name);
            }
            Self::HandleDate(of) => {
                out.push(3);
                date(out, of);
            }
            Self::PrefixDate(of) => {
                out.push(4);
                date(out, of);
            }
            Self::OtherSites(text) => {
                out.push(5);
                put::string(out, text);
            }
            Self::Done => out.push(0xFF),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn values(storage: &mut Vec<u8>) -> StreamValues<'_> {
        StreamValues::build([Value::new(1, b"URL", b"http://a"), Value::new(7, b"", b"")], storage)
    }

    /// Each prefix of an item is incomplete, and the whole is read with nothing left.
    fn check<T: PartialEq + core::fmt::Debug>(
        bytes: &[u8],
        item: &T,
        read: impl for<'b> Fn(&mut Cursor<'b>) -> Result<bool, DecodeError>,
    ) {
        for len in 0..bytes.len() {
            let error = read(&mut Cursor::new(&bytes[..len])).unwrap_err();
            assert!(matches!(error, DecodeError::Truncated { .. }), "{item:?} cut to {len}: {error}");
        }
        let mut cursor = Cursor::new(bytes);
        assert_eq!(read(&mut cursor), Ok(true), "{item:?}");
        assert!(cursor.rest().is_empty(), "{item:?}");
    }

    #[test]
    fn transactions_round_trip_and_refuse_every_truncation() {
        use TransactionAction as Action;
        use TransactionFormat::{AllSources, OneSource};
        let mut storage = vec![];
        let values = values(&mut storage);
        assert_eq!(values.len(), 2);
        assert_eq!(values.iter().map(|value| value.index).collect::<Vec<_>>(), [1, 7]);
        let transaction =
            |action| TransactionItem::Transaction { id: 1 << 40, handle: b"10.1/A", action, unix_ms: 9 };
        let actions = [
            Action::Placeholder,
            Action::Create(values),
            Action::Delete,
            Action::Update(values),
            Action::Home,
            Action::Unhome,
            Action::DeleteAll,
        ];
        let mut items: Vec<_> = actions
            .into_iter()
            .flat_map(|it| [(OneSource, transaction(it)), (AllSources, transaction(it))])
            .collect();
        items.extend([
            (OneSource, TransactionItem::End { unix_ms: Some(77) }),
            (AllSources, TransactionItem::End { unix_ms: None }),
            (AllSources, TransactionItem::Queue(b"0:1:10/svc")),
            (AllSources, TransactionItem::QueueDate(5)),
        ]);
        for (format, item) in items {
            let mut bytes = vec![];
            item.encode(&mut bytes);
            check(&bytes, &item, |cursor| {
                TransactionItem::read(format, cursor).map(|read| {
                    let mut again = vec![];
                    read.encode(&mut again);
                    again == bytes
                })
            });
        }
        for (format, kind) in [(OneSource, 2), (OneSource, 3), (OneSource, 4), (AllSources, 4)] {
            let bytes = [&[kind][..], &[0; 20]].concat();
            let refused = TransactionItem::read(format, &mut Cursor::new(&bytes)).unwrap_err();
            assert!(matches!(refused, DecodeError::Invalid { .. }), "{kind}: {refused}");
        }
    }

    #[test]
    fn dumps_round_trip_and_refuse_every_truncation() {
        let mut storage = vec![];
        let values = values(&mut storage);
        let date = ChangeDate { name: b"0.NA/10.1", unix_ms: 5, priority: 6 };
        for item in [
            DumpItem::Source { unix_ms: 1, txn_id: 2 },
            DumpItem::Handle { handle: b"10.1/A", values },
            DumpItem::Homed(b"0.NA/10.1"),
            DumpItem::HandleDate(date),
            DumpItem::PrefixDate(date),
            DumpItem::OtherSites(b"{}"),
            DumpItem::Done,
        ] {
            let mut bytes = vec![];
            item.encode(&mut bytes);
            check(&bytes, &item, |cursor| {
                DumpItem::read(cursor).map(|read| {
                    let mut again = vec![];
                    read.encode(&mut again);
                    again == bytes
                })
            });
        }
        for kind in 6..0xFF {
            assert!(matches!(DumpItem::read(&mut Cursor::new(&[kind])), Err(DecodeError::Invalid { .. })));
        }
    }

    #[test]
    fn headers_and_protections_round_trip() {
        for (format, status) in [(1, 1), (1, 2), (2, 1), (2, 2), (3, 2), (1, 3), (0, 0)] {
            let mut bytes = vec![];
            put::u32(&mut bytes, format);
            put::u32(&mut bytes, status);
            match TransactionsHeader::read(&mut Cursor::new(&bytes)) {
                Ok(header) => {
                    let mut again = vec![];
                    header.encode(&mut again);
                    assert_eq!(again, bytes);
                }
                Err(error) => {
                    assert!(format == 3 || status != 1 && status != 2, "{format} {status}: {error}")
                }
            }
        }
        for protection in [StreamProtection::Signed, StreamProtection::Tls, StreamProtection::Transport] {
            let number = u32::from_be_bytes(protection.to_bytes());
            assert_eq!(StreamProtection::from_number(number), Some(protection));
        }
        assert_eq!(StreamProtection::from_number(1), None);
    }

    #[test]
    fn records_of_any_number_of_values_are_read_and_lengths_that_lie_are_truncated() {
        use crate::limit::VALUES_COUNT_MAX;
        let (mut storage, mut bytes) = (vec![], vec![]);
        let all = (1..=VALUES_COUNT_MAX + 1).map(|nth| Value::new(i32::try_from(nth).unwrap(), b"URL", b"x"));
        let values = StreamValues::build(all, &mut storage);
        DumpItem::Handle { handle: b"10.1/A", values }.encode(&mut bytes);
        let mut cursor = Cursor::new(&bytes);
        let Ok(DumpItem::Handle { values, .. }) = DumpItem::read(&mut cursor) else { panic!("a record") };
        assert_eq!((values.len(), values.iter().count(), values.fault()), (2049, 2049, None));
        assert!(cursor.rest().is_empty());
        let lying = [&bytes[..11], &[0xff; 4]].concat();
        let refused = DumpItem::read(&mut Cursor::new(&lying)).unwrap_err();
        assert!(matches!(refused, DecodeError::Truncated { .. }), "{refused}");
        let mut head = DumpItem::read_without_values(&mut Cursor::new(&bytes)).unwrap();
        assert_eq!(
            head.values_mut().map(|it| (it.len(), it.fault())),
            Some((2049, Some(StreamRecordFault::TooLong)))
        );
    }

    #[test]
    fn a_value_that_does_not_decode_is_reported_and_what_follows_is_read() {
        let mut storage = vec![];
        Value::new(1, b"URL", b"x").encode(&mut storage);
        let good = storage.clone();
        storage.push(0);
        let mut bytes = vec![1];
        put::string(&mut bytes, b"10.1/A");
        put::count(&mut bytes, 3);
        [&good, &storage, &good[..5].to_vec()].iter().for_each(|value| put::string(&mut bytes, value));
        DumpItem::Done.encode(&mut bytes);
        let mut cursor = Cursor::new(&bytes);
        let Ok(DumpItem::Handle { values, .. }) = DumpItem::read(&mut cursor) else { panic!("a record") };
        assert_eq!(
            (values.len(), values.fault()),
            (3, Some(StreamRecordFault::Value(1))),
            "a byte after the value"
        );
        assert_eq!(DumpItem::read(&mut cursor), Ok(DumpItem::Done));
    }
}
