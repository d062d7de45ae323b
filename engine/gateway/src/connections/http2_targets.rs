//! The targets of requests in the bytes of a connection of HTTP/2.
//!
//! h2 resets the stream of a request whose `:path` has characters that it does not accept. Clients
//! that send such paths, as curl does, write them as HPACK literals that are not added to the
//! dynamic table. The value of such a literal can be replaced without knowing anything about the
//! other fields, so it is percent-encoded here. A path that is added to the table stays as it is,
//! because its length decides what leaves the table. RFC 7541 section 6, RFC 9113 section 6.2.

mod huffman;
#[cfg(test)]
mod tests;

use super::stream::take_ahead;
use super::target_bytes::{encoded, is_encoded};
use huffman::HuffmanBytes;
use std::borrow::Cow;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Length of the preface of a client.
pub(super) const PREFACE_LEN: usize = 24;
/// Length of the header of a frame.
pub(super) const HEADER_LEN: usize = 9;
/// Maximum length of the payload of a frame that is looked at, and of what it becomes. A server
/// accepts at least this.
const PAYLOAD_LEN_MAX: usize = 16_384;
/// The type of a frame that begins a request.
const HEADERS: u8 = 1;
/// The flags of such a frame.
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;
/// Bytes that are read at once while the rest of a frame is missing.
const PART_LEN: usize = 4096;

/// The stream of a client of HTTP/2 in which the targets of requests are percent-encoded.
#[derive(Debug)]
pub struct EncodedTargets<S> {
    stream: S,
    /// Bytes that pass unseen: the preface, or the rest of the payload of a frame.
    unseen: usize,
    /// The start of a frame of which more has to arrive.
    incomplete: Vec<u8>,
    /// Bytes for the next reads.
    ahead: Vec<u8>,
}

/// Where a look at bytes has stopped.
enum FoundFrame {
    /// A frame begins here, and more of it has to arrive.
    Incomplete(usize),
    /// The frame of this length here becomes another one.
    Encoded(usize, usize, Vec<u8>),
}

impl<S> EncodedTargets<S> {
    /// The stream of a client, from its preface on.
    #[must_use]
    pub const fn new(stream: S) -> Self {
        Self { stream, unseen: PREFACE_LEN, incomplete: Vec::new(), ahead: Vec::new() }
    }

    /// Looks for a frame that cannot pass as it is; `None` if all of `bytes` can.
    fn find(&mut self, bytes: &[u8]) -> Option<FoundFrame> {
        let mut at = self.unseen.min(bytes.len());
        self.unseen -= at;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let Some((header, _)) = rest.split_first_chunk::<HEADER_LEN>() else {
                return Some(FoundFrame::Incomplete(at));
            };
            let payload_len = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
            let len = HEADER_LEN + payload_len;
            if header[3] == HEADERS && payload_len <= PAYLOAD_LEN_MAX {
                let Some(frame) = rest.get(..len) else { return Some(FoundFrame::Incomplete(at)) };
                if let Some(encoded) = with_encoded_path(frame) {
                    return Some(FoundFrame::Encoded(at, len, encoded));
                }
            }
            let passed = len.min(rest.len());
            (at, self.unseen) = (at + passed, len - passed);
        }
        None
    }

    /// Takes bytes, which begin with a frame, for the next reads.
    fn take(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        loop {
            match self.find(rest) {
                None => {
                    self.ahead.extend_from_slice(rest);
                    return;
                }
                Some(FoundFrame::Incomplete(at)) => {
                    self.ahead.extend_from_slice(&rest[..at]);
                    self.incomplete = rest[at..].to_vec();
                    return;
                }
                Some(FoundFrame::Encoded(at, len, encoded)) => {
                    self.ahead.extend_from_slice(&rest[..at]);
                    self.ahead.extend_from_slice(&encoded);
                    rest = &rest[at + len..];
                }
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for EncodedTargets<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // Without a byte, the stream would be over.
        while !take_ahead(&mut this.ahead, buffer) {
            if this.incomplete.is_empty() {
                let before = buffer.filled().len();
                ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
                let received = &buffer.filled()[before..];
                let Some(FoundFrame::Incomplete(at) | FoundFrame::Encoded(at, ..)) = this.find(received)
                else {
                    return Poll::Ready(Ok(()));
                };
                let rest = received[at..].to_vec();
                buffer.set_filled(before + at);
                this.take(&rest);
                if at > 0 {
                    return Poll::Ready(Ok(()));
                }
            } else {
                let mut part = [MaybeUninit::uninit(); PART_LEN];
                let mut part = ReadBuf::uninit(&mut part);
                ready!(Pin::new(&mut this.stream).poll_read(context, &mut part))?;
                let mut bytes = std::mem::take(&mut this.incomplete);
                match part.filled() {
                    // The client has closed the connection within a frame.
                    [] => this.ahead = bytes,
                    part => {
                        bytes.extend_from_slice(part);
                        this.take(&bytes);
                    }
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for EncodedTargets<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The frame with its path percent-encoded; `None` if it stays as it is.
fn with_encoded_path(frame: &[u8]) -> Option<Vec<u8>> {
    let (header, payload) = frame.split_first_chunk::<HEADER_LEN>()?;
    let (mut start, mut end) = (0, payload.len());
    if header[4] & PADDED != 0 {
        (start, end) = (1, end.checked_sub((*payload.first()?).into())?);
    }
    if header[4] & PRIORITY != 0 {
        start += 5;
    }
    let block = payload.get(start..end)?;
    let found = path_value(block)?;
    if !found.string.has_encoded() {
        return None;
    }
    let path = found.string.decode()?;
    let Cow::Owned(path) = encoded(&path) else { return None };
    let value_at = HEADER_LEN + start + found.at;
    let mut changed = frame[..value_at].to_vec();
    put_integer(path.len(), &mut changed);
    changed.extend_from_slice(&path);
    changed.extend_from_slice(&frame[value_at + found.len..]);
    let len =
        u32::try_from(changed.len() - HEADER_LEN).ok().filter(|&len| len as usize <= PAYLOAD_LEN_MAX)?;
    changed[..3].copy_from_slice(&len.to_be_bytes()[1..]);
    Some(changed)
}

/// A string of a block of fields.
#[derive(Clone, Copy, Debug)]
struct FieldString<'b> {
    bytes: &'b [u8],
    is_huffman: bool,
}

impl<'b> FieldString<'b> {
    /// Whether it has a byte that is percent-encoded. Nearly no path has one, so nothing is kept.
    fn has_encoded(self) -> bool {
        match self.is_huffman {
            true => HuffmanBytes::new(self.bytes).any(is_encoded),
            false => self.bytes.iter().copied().any(is_encoded),
        }
    }

    fn is(self, expected: &[u8]) -> bool {
        if !self.is_huffman {
            return self.bytes == expected;
        }
        let mut bytes = HuffmanBytes::new(self.bytes);
        bytes.by_ref().eq(expected.iter().copied()) && bytes.is_whole()
    }

    fn decode(self) -> Option<Cow<'b, [u8]>> {
        match self.is_huffman {
            true => huffman::decode(self.bytes).map(Cow::Owned),
            false => Some(Cow::Borrowed(self.bytes)),
        }
    }
}

/// Where the value of the path is in a block.
#[derive(Clone, Copy, Debug)]
struct PathValue<'b> {
    /// Start of the string, with its length.
    at: usize,
    /// Length of both.
    len: usize,
    string: FieldString<'b>,
}

/// Reads a block of fields from its start.
#[derive(Clone, Copy, Debug)]
struct BlockReader<'b> {
    block: &'b [u8],
    at: usize,
}

/// The first path in a block that is a literal and not added to the dynamic table.
fn path_value(block: &[u8]) -> Option<PathValue<'_>> {
    let mut reader = BlockReader { block, at: 0 };
    loop {
        let first = *block.get(reader.at)?;
        // The bits of the kind of field, and those of the number behind them.
        let number_bits = match first.leading_zeros() {
            0 => 7,
            1 => 6,
            2 => 5,
            _ => 4,
        };
        let number = reader.integer(number_bits)?;
        if matches!(number_bits, 7 | 5) {
            // A field of a table, or the size of the dynamic table.
            continue;
        }
        let is_path = match number {
            0 => reader.string()?.is(b":path"),
            // Both have this name in the static table.
            number => matches!(number, 4 | 5),
        };
        let at = reader.at;
        let string = reader.string()?;
        if is_path {
            let is_added = number_bits == 6;
            return (!is_added).then_some(PathValue { at, len: reader.at - at, string });
        }
    }
}

impl<'b> BlockReader<'b> {
    /// An integer whose first bits are the last `bits` of a byte. RFC 7541 section 5.1.
    fn integer(&mut self, bits: u32) -> Option<usize> {
        let first = usize::from(*self.block.get(self.at)?);
        self.at += 1;
        let max = (1 << bits) - 1;
        let mut number = first & max;
        if number < max {
            return Some(number);
        }
        for shift in [0, 7, 14] {
            let byte = usize::from(*self.block.get(self.at)?);
            self.at += 1;
            number += (byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// A string. RFC 7541 section 5.2.
    fn string(&mut self) -> Option<FieldString<'b>> {
        let is_huffman = self.block.get(self.at)? & 0x80 != 0;
        let len = self.integer(7)?;
        let bytes = self.block.get(self.at..)?.get(..len)?;
        self.at += len;
        Some(FieldString { bytes, is_huffman })
    }
}

/// Appends the length of a string that is not compressed.
fn put_integer(len: usize, out: &mut Vec<u8>) {
    let low = |number: usize| u8::try_from(number & 0x7f).unwrap_or_default();
    if len < 0x7f {
        return out.push(low(len));
    }
    out.push(0x7f);
    let mut rest = len - 0x7f;
    while rest >= 0x80 {
        out.push(low(rest) | 0x80);
        rest >>= 7;
    }
    out.push(low(rest));
}
