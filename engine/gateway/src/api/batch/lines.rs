//! The lines of a body, as they arrive.

use crate::body_collection::append;
use crate::connections::request_body::RequestBody;
use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use std::time::Duration;
use zeroize::Zeroizing;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The body did not arrive completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BrokenBody;

/// A line that is neither blank nor a comment, and its number, from 1 on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BodyLine {
    pub(super) number: u32,
    /// The text; `None` if it is longer than allowed.
    pub(super) text: Option<Vec<u8>>,
}

/// Reads the lines of a body.
#[derive(Debug)]
pub(super) struct LineReader {
    /// The body; `None` once all of it has been read.
    body: Option<RequestBody>,
    buffer: Zeroizing<Vec<u8>>,
    /// Start of the next line.
    start: usize,
    /// End of the bytes after `start` that have no line end.
    scanned: usize,
    number: u32,
    line_len_max: usize,
    /// Whether the line is too long, so that its bytes are not kept.
    is_too_long: bool,
    /// Timeout for each part of the body.
    patience: Duration,
}

impl LineReader {
    /// Reads a body that arrives.
    pub(super) fn of_body(body: RequestBody, line_len_max: usize, patience: Duration) -> Self {
        Self { body: Some(body), ..Self::of_bytes(Zeroizing::default(), line_len_max, patience) }
    }

    /// Reads a body that has arrived.
    pub(super) const fn of_bytes(
        buffer: Zeroizing<Vec<u8>>,
        line_len_max: usize,
        patience: Duration,
    ) -> Self {
        Self {
            body: None,
            buffer,
            start: 0,
            scanned: 0,
            number: 0,
            line_len_max,
            is_too_long: false,
            patience,
        }
    }

    /// The next line that is neither blank nor a comment (`#`), as `handle_formats::input` reads
    /// lines; `None` after the last line.
    ///
    /// # Errors
    /// When the rest of the body does not arrive.
    pub(super) async fn next(&mut self) -> Result<Option<BodyLine>, BrokenBody> {
        loop {
            if let Some(line) = self.take_line() {
                if line.text.as_ref().is_none_or(|text| !matches!(text.trim_ascii(), [] | [b'#', ..])) {
                    return Ok(Some(line));
                }
                continue;
            }
            let Some(body) = &mut self.body else { return Ok(None) };
            match tokio::time::timeout(self.patience, body.frame()).await {
                Ok(frame) => self.put(frame.transpose().map_err(|_| BrokenBody)?),
                Err(_) => return Err(BrokenBody),
            }
        }
    }

    /// If there is no whole line, waits for more of the body. Returns false if nothing arrives
    /// within `patience`.
    pub(super) async fn has_more_within(&mut self, patience: Duration) -> Result<bool, BrokenBody> {
        if self.line_end().is_some() {
            return Ok(true);
        }
        let Some(body) = &mut self.body else { return Ok(true) };
        match tokio::time::timeout(patience, body.frame()).await {
            Ok(frame) => {
                self.put(frame.transpose().map_err(|_| BrokenBody)?);
                Ok(true)
            }
            Err(_) => Ok(false),
        }
    }

    /// Adds a part of the body; `None` is its end.
    fn put(&mut self, frame: Option<hyper::body::Frame<Bytes>>) {
        let Some(frame) = frame else {
            self.body = None;
            return;
        };
        // Trailers are ignored.
        if let Ok(data) = frame.into_data() {
            self.buffer.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
            append(&mut self.buffer, &data);
        }
    }

    /// The end of the line that begins at `start`.
    fn line_end(&mut self) -> Option<usize> {
        let found = self.buffer[self.scanned..].iter().position(|&byte| byte == b'\n');
        let end = found.map(|at| self.scanned + at);
        self.scanned = end.unwrap_or(self.buffer.len());
        end
    }

    fn take_line(&mut self) -> Option<BodyLine> {
        let end = match self.line_end() {
            Some(end) => end,
            None if self.body.is_none() && (self.start < self.buffer.len() || self.is_too_long) => {
                self.buffer.len()
            }
            None => {
                if self.buffer.len() - self.start > self.line_len_max {
                    self.is_too_long = true;
                }
                if self.is_too_long {
                    self.buffer.clear();
                    (self.start, self.scanned) = (0, 0);
                }
                return None;
            }
        };
        self.number = self.number.saturating_add(1);
        let text = &self.buffer[self.start..end];
        let fits = !self.is_too_long && text.len() <= self.line_len_max;
        // A byte order mark, which some programs write, does not belong to the first line.
        let text = match text.strip_prefix(BYTE_ORDER_MARK) {
            Some(rest) if self.number == 1 => rest,
            _ => text,
        };
        let line = BodyLine { number: self.number, text: fits.then(|| text.to_vec()) };
        self.is_too_long = false;
        self.start = self.buffer.len().min(end + 1);
        self.scanned = self.start;
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::body::Frame;

    /// The lines of a body that arrives in parts of `part_len` bytes.
    fn lines(text: &str, part_len: usize, line_len_max: usize) -> Vec<(u32, Option<String>)> {
        let mut reader = LineReader::of_bytes(Zeroizing::default(), line_len_max, Duration::ZERO);
        let mut found = Vec::new();
        for part in text.as_bytes().chunks(part_len) {
            reader.put(Some(Frame::data(Bytes::copy_from_slice(part))));
            // While the body is arriving, the part after the last line end waits.
            while let Some(end) = reader.line_end() {
                assert!(end < reader.buffer.len());
                found.extend(reader.take_line());
            }
            if reader.buffer.len() - reader.start > line_len_max || reader.is_too_long {
                reader.is_too_long = true;
                reader.buffer.clear();
                (reader.start, reader.scanned) = (0, 0);
            }
        }
        reader.put(None);
        found.extend(std::iter::from_fn(|| reader.take_line()));
        let text = |line: BodyLine| (line.number, line.text.map(|text| String::from_utf8(text).unwrap()));
        found.into_iter().map(text).collect()
    }

    #[test]
    fn lines_are_the_same_however_the_body_is_cut() {
        let text = "a\n\nlong line here\nb\r\nc";
        let whole = |max| -> Vec<(u32, Option<String>)> {
            let line = |(at, line): (usize, &str)| {
                (u32::try_from(at).unwrap() + 1, (line.len() <= max).then(|| line.to_owned()))
            };
            text.split('\n').enumerate().map(line).collect()
        };
        for part_len in 1..=text.len() {
            for max in [3, 13, 14, 100] {
                assert_eq!(lines(text, part_len, max), whole(max), "parts of {part_len}, lines of {max}");
            }
        }
        let marked = lines("\u{feff}a\n\u{feff}b", 1, 9);
        assert_eq!(marked, [(1, Some("a".to_owned())), (2, Some("\u{feff}b".to_owned()))]);
        assert_eq!(lines("", 1, 3), []);
        assert_eq!(lines("abcd", 1, 3), [(1, None)], "too long, and without an end");
    }
}
