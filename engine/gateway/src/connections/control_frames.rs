//! A bound on the frames of HTTP/2 that ask for nothing but cost an answer or a lookup: PING,
//! SETTINGS, WINDOW_UPDATE, PRIORITY, empty DATA and unknown ones. Without it, a client keeps a
//! worker busy with 17 bytes a frame and never asks for anything that a limit counts.

use super::http2_targets::{HEADER_LEN, PREFACE_LEN};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Control frames that a client may send at once.
const CREDIT_MAX: u64 = 1000;
/// Control frames that a client may send in a second besides, whatever it transfers.
const CREDIT_PER_S: u64 = 100;
/// Bytes of a transfer, in either direction, for which a client may send one more: clients open the
/// windows of a transfer as it proceeds.
const BYTES_PER_CREDIT: u64 = 1024;

/// Follows the frames in the bytes of a client.
#[derive(Debug)]
struct FrameCounter {
    head: [u8; HEADER_LEN],
    head_len: usize,
    /// Bytes left of the preface or of the payload of a frame.
    payload_left: usize,
    credit: u64,
    /// Bytes transferred that have not become credit.
    bytes: u64,
    since: Instant,
}

impl FrameCounter {
    const fn new(now: Instant) -> Self {
        Self {
            head: [0; HEADER_LEN],
            head_len: 0,
            payload_left: PREFACE_LEN,
            credit: CREDIT_MAX,
            bytes: 0,
            since: now,
        }
    }

    /// Reads further bytes of the client; false if they have too many control frames.
    fn read(&mut self, mut bytes: &[u8], now: Instant) -> bool {
        while !bytes.is_empty() {
            let skipped = self.payload_left.min(bytes.len());
            (self.payload_left, bytes) = (self.payload_left - skipped, &bytes[skipped..]);
            let taken = (HEADER_LEN - self.head_len).min(bytes.len());
            self.head[self.head_len..self.head_len + taken].copy_from_slice(&bytes[..taken]);
            (self.head_len, bytes) = (self.head_len + taken, &bytes[taken..]);
            if self.head_len == HEADER_LEN {
                self.head_len = 0;
                if !self.count(now) {
                    return false;
                }
            }
        }
        true
    }

    /// Counts the frame whose head is complete.
    fn count(&mut self, now: Instant) -> bool {
        /// RFC 9113 section 6: these carry requests or end them.
        const DATA: u8 = 0;
        const HEADERS: u8 = 1;
        const RST_STREAM: u8 = 3;
        const GOAWAY: u8 = 7;
        const CONTINUATION: u8 = 9;
        let [high, middle, low, kind, ..] = self.head;
        let len = u32::from_be_bytes([0, high, middle, low]);
        self.payload_left = len as usize;
        match kind {
            DATA if len > 0 => self.transfer(len.into()),
            HEADERS | RST_STREAM | GOAWAY | CONTINUATION => {}
            _ => return self.spend(now),
        }
        true
    }

    const fn transfer(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn spend(&mut self, now: Instant) -> bool {
        let elapsed_ms = u64::try_from(now.saturating_duration_since(self.since).as_millis());
        let earned = elapsed_ms.unwrap_or(u64::MAX).saturating_mul(CREDIT_PER_S) / 1000;
        if earned > 0 {
            self.since = now;
        }
        let earned = earned.saturating_add(self.bytes / BYTES_PER_CREDIT);
        self.bytes %= BYTES_PER_CREDIT;
        self.credit = self.credit.saturating_add(earned).min(CREDIT_MAX);
        let is_left = self.credit > 0;
        self.credit = self.credit.saturating_sub(1);
        is_left
    }
}

/// A connection whose control frames are counted. Reading fails beyond the bound.
#[derive(Debug)]
pub(super) struct CountedFrames<S> {
    stream: S,
    counter: FrameCounter,
}

impl<S> CountedFrames<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, counter: FrameCounter::new(Instant::now()) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedFrames<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        Poll::Ready(match self.counter.read(&buffer.filled()[before..], Instant::now()) {
            true => Ok(()),
            false => Err(io::Error::other("too many control frames")),
        })
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedFrames<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.counter.transfer(written as u64);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, slices))?;
        self.counter.transfer(written as u64);
        Poll::Ready(Ok(written))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn frame(kind: u8, payload_len: u32) -> Vec<u8> {
        let [_, high, middle, low] = payload_len.to_be_bytes();
        let mut frame = vec![high, middle, low, kind, 0, 0, 0, 0, 1];
        frame.resize(HEADER_LEN + payload_len as usize, 0);
        frame
    }

    /// How many frames are read of many in a row, in pieces of `piece_len` bytes.
    fn read(frame: &[u8], piece_len: usize, counter: &mut FrameCounter, now: Instant) -> usize {
        (0..10_000).take_while(|_| frame.chunks(piece_len).all(|piece| counter.read(piece, now))).count()
    }

    fn begun(now: Instant) -> FrameCounter {
        let mut counter = FrameCounter::new(now);
        assert!(counter.read(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", now));
        counter
    }

    #[test]
    fn floods_of_control_frames_end_however_they_are_cut() {
        let now = Instant::now();
        for (kind, len) in [(0, 0), (2, 5), (4, 0), (4, 6), (6, 8), (8, 4), (77, 0)] {
            for piece_len in [1, 7, 100] {
                let counted = read(&frame(kind, len), piece_len, &mut begun(now), now);
                assert_eq!(counted, usize::try_from(CREDIT_MAX).unwrap(), "type {kind}, {len} bytes");
            }
        }
        for (kind, len) in [(0, 100), (1, 30), (3, 4), (9, 10)] {
            assert_eq!(read(&frame(kind, len), 13, &mut begun(now), now), 10_000, "type {kind}");
        }
    }

    #[test]
    fn time_and_transfers_allow_further_ones() {
        let now = Instant::now();
        let mut counter = begun(now);
        let update = frame(8, 4);
        assert_eq!(read(&update, 13, &mut counter, now), 1000);
        assert_eq!(read(&update, 13, &mut counter, now + Duration::from_millis(500)), 50);
        counter.transfer(64 << 10);
        assert_eq!(read(&update, 13, &mut counter, now + Duration::from_millis(500)), 64);
        assert_eq!(read(&update, 13, &mut counter, now + Duration::from_secs(3600)), 1000, "at most");
    }
}
