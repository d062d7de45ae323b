//! Numbered lines of bounded length.

use std::io::{self, BufRead, Read as _};
use zeroize::Zeroizing;

/// Most bytes of a line of a batch file, four times those of the longest message.
pub const LINE_LEN_MAX: usize = 1 << 20;
/// Most bytes of a line that is skipped because it is too long. A device without line ends, such as
/// /dev/zero, ends with an error.
const SKIPPED_LEN_MAX: u64 = 1 << 28;

/// Reads lines, and knows the number of the last one.
#[derive(Debug)]
pub struct Lines<R> {
    input: R,
    number: u64,
    /// Cleared at the end, because lines may have secrets.
    line: Zeroizing<Vec<u8>>,
    len_max: usize,
    // Whether the last line is to be returned again.
    is_back: bool,
}

/// The result of reading a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// A line without its end: neither LF nor CR LF.
    Text(&'a str),
    /// A line that is not UTF-8.
    NotUtf8,
    /// A line that is too long; the rest of it was skipped.
    TooLong,
    /// The end of the input.
    End,
}

impl<R: BufRead> Lines<R> {
    /// Reads lines of at most `len_max` bytes from `input`.
    pub fn new(input: R, len_max: usize) -> Self {
        Self { input, number: 0, line: Zeroizing::default(), len_max, is_back: false }
    }

    /// Number of the line read last, from 1.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Makes [`next`](Self::next) return the last line again.
    pub(crate) const fn back(&mut self) {
        self.is_back = true;
    }

    /// The next line.
    pub(crate) fn next(&mut self) -> io::Result<Line<'_>> {
        if !std::mem::take(&mut self.is_back) {
            self.line.clear();
            let limit = self.len_max as u64 + 2;
            if (&mut self.input).take(limit).read_until(b'\n', &mut self.line)? == 0 {
                self.line.clear();
                // At the end, another call returns the end again.
                self.is_back = false;
                return Ok(Line::End);
            }
            self.number += 1;
            if !self.line.ends_with(b"\n") && self.line.len() as u64 == limit {
                self.pass_over()?;
            }
        }
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        // A byte order mark, which some editors write, does not belong to the first line.
        let line = if self.number == 1 { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line };
        Ok(match std::str::from_utf8(line) {
            _ if line.len() > self.len_max => Line::TooLong,
            Ok(text) => Line::Text(text),
            Err(_) => Line::NotUtf8,
        })
    }

    fn pass_over(&mut self) -> io::Result<()> {
        let mut skipped_len = 0;
        while skipped_len < SKIPPED_LEN_MAX {
            let there = self.input.fill_buf()?;
            let end = there.iter().position(|&byte| byte == b'\n');
            let len = end.map_or(there.len(), |at| at + 1);
            if len == 0 {
                return Ok(());
            }
            self.input.consume(len);
            skipped_len += len as u64;
            if end.is_some() {
                return Ok(());
            }
        }
        Err(io::Error::other(format!(
            "line {} is too long: no end within {SKIPPED_LEN_MAX} bytes",
            self.number
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_with_lf_or_cr_lf_or_the_file() {
        let mut lines = Lines::new(&b"\xef\xbb\xbfa\r\n\n b \nc\xff\nd"[..], 10);
        for (number, line) in [
            (1, Line::Text("a")),
            (2, Line::Text("")),
            (3, Line::Text(" b ")),
            (4, Line::NotUtf8),
            (5, Line::Text("d")),
        ] {
            assert_eq!(lines.next().unwrap(), line);
            assert_eq!(lines.number(), number);
        }
        assert_eq!(lines.next().unwrap(), Line::End);
        assert_eq!(lines.next().unwrap(), Line::End);
    }

    #[test]
    fn a_line_may_be_so_long_and_no_longer() {
        for (len, end) in
            [(10, "\n"), (10, "\r\n"), (10, ""), (11, "\n"), (11, ""), (12, ""), (500, "\n"), (500, "")]
        {
            let text = format!("{}{end}next", "x".repeat(len));
            let text = if end.is_empty() { "x".repeat(len) } else { text };
            let mut lines = Lines::new(text.as_bytes(), 10);
            let is_long = lines.next().unwrap() == Line::TooLong;
            assert_eq!(is_long, len > 10, "{len} {end:?}");
            let after = if end.is_empty() { Line::End } else { Line::Text("next") };
            assert_eq!(lines.next().unwrap(), after, "{len} {end:?}");
        }
    }

    #[test]
    fn a_line_without_an_end_ends_with_an_error() {
        let mut lines = Lines::new(io::BufReader::with_capacity(1 << 20, io::repeat(0)), 10);
        assert!(lines.next().unwrap_err().to_string().starts_with("line 1 is too long: no end within"));
    }

    #[test]
    fn a_line_can_be_given_twice() {
        let mut lines = Lines::new(&b"a\nb\n"[..], 10);
        assert_eq!(lines.next().unwrap(), Line::Text("a"));
        lines.back();
        assert_eq!(lines.next().unwrap(), Line::Text("a"));
        assert_eq!(lines.number(), 1);
        assert_eq!(lines.next().unwrap(), Line::Text("b"));
        assert_eq!(lines.number(), 2);
    }
}
