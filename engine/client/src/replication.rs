//! Reads the stream that follows the answer to a replication request: transactions, or all records.
//! A state machine without sockets: received bytes go in, verified items come out.
//!
//! An item is returned when it is complete and, in a signed stream, its signature has been
//! verified. The last item of a dump, [`DumpItem::Done`], has no signature, so whoever controls the
//! connection can end a signed dump early; streams over TLS do not have this weakness.

#[cfg(feature = "tls")]
pub mod connection;
#[cfg(test)]
mod tests;

use handle_auth::PublicKey;
use handle_proto::code::DigestAlgorithm;
use handle_proto::error::{DecodeError, Field};
use handle_proto::wire::cursor::Cursor;
use handle_proto::wire::replication_stream::{
    DUMP_FORMAT, DumpItem, StreamProtection, StreamValues, TransactionItem, TransactionsHeader,
};
use std::fmt;

/// The kind of the stream, which follows from the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamContent {
    /// Transactions.
    Transactions,
    /// All records.
    Dump,
}

/// What secures the connection of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamTransport {
    /// The connection is not secured: the stream has to be signed, or to begin TLS.
    Clear,
    /// TLS with a server whose key has been verified.
    Verified,
}

/// Limits on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLimits {
    /// Most bytes of one item with its signature. Of a longer record, the name is returned, and the
    /// values are passed over.
    pub item_len_max: usize,
}

impl Default for StreamLimits {
    /// Enough for each record that fits into a message, and for longer records of other servers.
    fn default() -> Self {
        Self { item_len_max: 4 << 20 }
    }
}

/// A part of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEvent<'a> {
    /// A TLS handshake follows on the connection. What is received from then on is decrypted before
    /// it is given to the reader; the key of the server has to be verified first.
    BeginTls,
    /// The header of a stream of transactions.
    Header(TransactionsHeader),
    /// An item of a stream of transactions.
    Transaction(TransactionItem<'a>),
    /// An item of a dump.
    Dump(DumpItem<'a>),
}

impl<'a> StreamEvent<'a> {
    /// The values of the item, if it has any.
    const fn values_mut(&mut self) -> Option<&mut StreamValues<'a>> {
        match self {
            Self::Transaction(item) => item.values_mut(),
            Self::Dump(item) => item.values_mut(),
            Self::BeginTls | Self::Header(_) => None,
        }
    }
}

/// Why a stream cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamError {
    /// A part does not decode.
    Decode(DecodeError),
    /// The first four bytes are not the number of a protection.
    UnknownProtection(u32),
    /// The stream is neither signed nor encrypted, and its connection is not secured.
    Unprotected,
    /// Other bytes follow where the TLS handshake has to begin.
    BeforeTls,
    /// The digest of the signatures is not supported.
    Digest,
    /// The stream is signed, and the key of the server is not known.
    NoKey,
    /// A signature is wrong.
    Signature,
    /// An item is longer than allowed, and it is not a record of a stream without signatures.
    TooLong,
    /// Bytes follow the last item.
    AfterEnd,
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decode(error) => write!(f, "a part of the stream does not decode: {error}"),
            Self::UnknownProtection(number) => write!(f, "unknown stream type {number:#010x}"),
            Self::Unprotected => f.write_str("the stream is neither signed nor encrypted"),
            Self::BeforeTls => f.write_str("bytes before the TLS handshake"),
            Self::Digest => f.write_str("the digest of the signatures is not supported"),
            Self::NoKey => f.write_str("the stream is signed, but the key of the server is not known"),
            Self::Signature => f.write_str("a signature of the stream is wrong"),
            Self::TooLong => f.write_str("an item of the stream is longer than allowed"),
            Self::AfterEnd => f.write_str("bytes follow the last item of the stream"),
        }
    }
}

impl std::error::Error for StreamError {}

impl From<DecodeError> for StreamError {
    fn from(error: DecodeError) -> Self {
        Self::Decode(error)
    }
}

/// The part of the stream that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamState {
    Protection,
    DigestName,
    Header,
    Items(ItemFormat),
    /// The values of a record that is too long.
    Skipping {
        format: ItemFormat,
        /// Values whose lengths follow.
        values: usize,
        /// Bytes of the present value that follow.
        bytes: usize,
    },
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ItemFormat {
    Transactions(TransactionsHeader),
    /// The number of the format.
    Dump(u32),
}

/// Reads a stream from bytes as they arrive.
#[derive(Debug)]
pub struct StreamReader {
    content: StreamContent,
    transport: StreamTransport,
    limits: StreamLimits,
    /// The key of the server, for signed streams.
    key: Option<PublicKey>,
    state: StreamState,
    /// The digest of the signatures, in a signed stream.
    signed_with: Option<DigestAlgorithm>,
    buffer: Vec<u8>,
    /// Bytes at the start of `buffer` that have been read.
    at: usize,
}

impl StreamReader {
    /// A reader of the stream that follows an answer.
    #[must_use]
    pub const fn new(
        content: StreamContent,
        transport: StreamTransport,
        key: Option<PublicKey>,
        limits: StreamLimits,
    ) -> Self {
        let state = StreamState::Protection;
        Self { content, transport, limits, key, state, signed_with: None, buffer: Vec::new(), at: 0 }
    }

    /// Adds received bytes. If the caller takes all events from [`next_event`](Self::next_event)
    /// first, the reader keeps at most one item.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.at);
        self.at = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether the last item has been returned.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        matches!(self.state, StreamState::End)
    }

    /// The next part of the stream; `None` if more bytes are needed, or after the last item.
    ///
    /// # Errors
    /// When the stream is invalid. The reader cannot be used after that.
    pub fn next_event(&mut self) -> Result<Option<StreamEvent<'_>>, StreamError> {
        loop {
            let step = match self.state {
                StreamState::Protection => self.read_protection(),
                StreamState::DigestName => self.read_digest_name().map(|()| None),
                StreamState::Header => self.read_header(),
                StreamState::Items(format) if self.is_too_long(format) => return self.begin_to_skip(format),
                StreamState::Items(format) => return self.read_item(format),
                StreamState::Skipping { format, values, bytes } => {
                    if !self.skip(format, values, bytes) {
                        return Ok(None);
                    }
                    Ok(None)
                }
                StreamState::End if self.at < self.buffer.len() => Err(StreamError::AfterEnd),
                StreamState::End => return Ok(None),
            };
            match step {
                Ok(Some(event)) => return Ok(Some(event)),
                Ok(None) => {}
                Err(error) => return self.incomplete_or(error),
            }
        }
    }

    /// `Ok(None)` for a part that is incomplete but not too long.
    fn incomplete_or<T>(&self, error: StreamError) -> Result<Option<T>, StreamError> {
        match error {
            StreamError::Decode(DecodeError::Truncated { .. }) => {
                match self.buffer.len() - self.at <= self.limits.item_len_max {
                    true => Ok(None),
                    false => Err(StreamError::TooLong),
                }
            }
            error => Err(error),
        }
    }

    fn read_protection(&mut self) -> Result<Option<StreamEvent<'static>>, StreamError> {
        let mut cursor = Cursor::new(&self.buffer[self.at..]);
        let number = cursor.u32(Field::ReplicationStream)?;
        let protection =
            StreamProtection::from_number(number).ok_or(StreamError::UnknownProtection(number))?;
        match protection {
            StreamProtection::Signed if self.key.is_none() => return Err(StreamError::NoKey),
            StreamProtection::Transport if self.transport != StreamTransport::Verified => {
                return Err(StreamError::Unprotected);
            }
            StreamProtection::Tls if !cursor.rest().is_empty() => return Err(StreamError::BeforeTls),
            _ => {}
        }
        self.at += cursor.at();
        self.state = match protection {
            StreamProtection::Signed => StreamState::DigestName,
            StreamProtection::Tls | StreamProtection::Transport => StreamState::Header,
        };
        Ok((protection == StreamProtection::Tls).then_some(StreamEvent::BeginTls))
    }

    fn read_digest_name(&mut self) -> Result<(), StreamError> {
        let mut cursor = Cursor::new(&self.buffer[self.at..]);
        let name = cursor.string(Field::ReplicationStream)?;
        let digest = DigestAlgorithm::from_identifier(name)
            .filter(|it| [DigestAlgorithm::SHA1, DigestAlgorithm::SHA256].contains(it));
        self.signed_with = Some(digest.ok_or(StreamError::Digest)?);
        self.at += cursor.at();
        self.state = StreamState::Header;
        Ok(())
    }

    fn read_header(&mut self) -> Result<Option<StreamEvent<'static>>, StreamError> {
        let mut cursor = Cursor::new(&self.buffer[self.at..]);
        let format = match self.content {
            StreamContent::Transactions => ItemFormat::Transactions(TransactionsHeader::read(&mut cursor)?),
            StreamContent::Dump => {
                let invalid = cursor.invalid(Field::ReplicationStream);
                let format = cursor.u32(Field::ReplicationStream)?;
                if !(1..=DUMP_FORMAT).contains(&format) {
                    return Err(invalid.into());
                }
                ItemFormat::Dump(format)
            }
        };
        let block_len = cursor.at();
        self.verify(block_len, &mut cursor)?;
        self.at += cursor.at();
        self.state = StreamState::Items(format);
        Ok(match format {
            ItemFormat::Transactions(header) => Some(StreamEvent::Header(header)),
            ItemFormat::Dump(_) => None,
        })
    }

    fn read_item(&mut self, format: ItemFormat) -> Result<Option<StreamEvent<'_>>, StreamError> {
        let mut cursor = Cursor::new(&self.buffer[self.at..]);
        let (mut event, is_last) = match read(format, &mut cursor) {
            Ok(item) => item,
            Err(error) => return self.incomplete_or(error.into()),
        };
        if event != StreamEvent::Dump(DumpItem::Done)
            && let Err(error) = self.verify(cursor.at(), &mut cursor)
        {
            return self.incomplete_or(error);
        }
        if cursor.at() > self.limits.item_len_max {
            let values = event.values_mut().ok_or(StreamError::TooLong)?;
            *values = values.too_long();
        }
        self.at += cursor.at();
        if is_last {
            self.state = StreamState::End;
        }
        Ok(Some(event))
    }

    /// Whether the next item is incomplete and longer than allowed, in a stream without signatures.
    fn is_too_long(&self, format: ItemFormat) -> bool {
        let received = &self.buffer[self.at..];
        received.len() > self.limits.item_len_max
            && self.signed_with.is_none()
            && matches!(read(format, &mut Cursor::new(received)), Err(DecodeError::Truncated { .. }))
    }

    /// Returns a record whose values are more than is kept, and passes over them. One record does
    /// not end a stream. In a signed stream, whose signatures cover all values, it does.
    fn begin_to_skip(&mut self, format: ItemFormat) -> Result<Option<StreamEvent<'_>>, StreamError> {
        let mut cursor = Cursor::new(&self.buffer[self.at..]);
        let head = match format {
            ItemFormat::Transactions(_) => {
                TransactionItem::read_without_values(&mut cursor).map(StreamEvent::Transaction)
            }
            ItemFormat::Dump(_) => DumpItem::read_without_values(&mut cursor).map(StreamEvent::Dump),
        };
        let mut event = head.map_err(|_| StreamError::TooLong)?;
        self.at += cursor.at();
        let values = event.values_mut().map_or(0, |values| values.len());
        self.state = StreamState::Skipping { format, values, bytes: 0 };
        Ok(Some(event))
    }

    /// Passes over received values; false if more have to be received.
    fn skip(&mut self, format: ItemFormat, mut values: usize, mut bytes: usize) -> bool {
        loop {
            let rest = &self.buffer[self.at..];
            let skipped = bytes.min(rest.len());
            (self.at, bytes) = (self.at + skipped, bytes - skipped);
            self.state = StreamState::Skipping { format, values, bytes };
            if bytes > 0 {
                return false;
            }
            if values == 0 {
                self.state = StreamState::Items(format);
                return true;
            }
            let Some((len, _)) = rest[skipped..].split_first_chunk::<4>() else { return false };
            (self.at, values, bytes) = (self.at + 4, values - 1, u32::from_be_bytes(*len) as usize);
        }
    }

    /// In a signed stream, reads the signature at `cursor`, which is behind a block of `block_len`
    /// bytes, and verifies it.
    fn verify(&self, block_len: usize, cursor: &mut Cursor<'_>) -> Result<(), StreamError> {
        let Some(digest) = self.signed_with else { return Ok(()) };
        let key = self.key.as_ref().ok_or(StreamError::NoKey)?;
        let signature = cursor.string(Field::ReplicationStream)?;
        let block = &self.buffer[self.at..self.at + block_len];
        key.verify(digest, &[block], signature).map_err(|_| StreamError::Signature)
    }
}

/// Reads an item, and returns whether it is the last one.
fn read<'a>(format: ItemFormat, cursor: &mut Cursor<'a>) -> Result<(StreamEvent<'a>, bool), DecodeError> {
    Ok(match format {
        ItemFormat::Transactions(header) => {
            let item = TransactionItem::read(header.format, cursor)?;
            (StreamEvent::Transaction(item), matches!(item, TransactionItem::End { .. }))
        }
        ItemFormat::Dump(format) => {
            let item = DumpItem::read(cursor)?;
            let is_last = item == DumpItem::Done || format == 1 && matches!(item, DumpItem::Source { .. });
            (StreamEvent::Dump(item), is_last)
        }
    })
}
