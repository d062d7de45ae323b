//! Lines from chunks of any length, each within a bound.

/// Bytes that are kept of a line that is too long, to find the handle in them.
const HEAD_LEN: usize = 8192;

/// A line without its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SplitLine<'l> {
    /// A whole line.
    Whole(&'l [u8]),
    /// The start of a line that was too long. The rest was dropped.
    TooLong(Vec<u8>),
}

/// Splits chunks into lines. At most one line and one chunk are kept.
#[derive(Debug)]
pub(crate) struct LineSplitter {
    bytes_max: usize,
    buffer: Vec<u8>,
    /// Where the next line begins in the buffer.
    begin: usize,
    /// Bytes of the buffer in which no end of a line was found.
    searched: usize,
    /// The start of a line that is too long and has not ended yet.
    skipped: Option<Vec<u8>>,
}

impl LineSplitter {
    /// Splits into lines of at most `bytes_max` bytes.
    pub(crate) const fn new(bytes_max: usize) -> Self {
        Self { bytes_max, buffer: Vec::new(), begin: 0, searched: 0, skipped: None }
    }

    /// Adds what was received.
    pub(crate) fn push(&mut self, chunk: &[u8]) {
        self.buffer.drain(..self.begin);
        self.searched -= self.begin;
        self.begin = 0;
        self.buffer.extend_from_slice(chunk);
    }

    /// The next line that has ended.
    pub(crate) fn next_line(&mut self) -> Option<SplitLine<'_>> {
        let Some(len) = self.buffer[self.searched..].iter().position(|&byte| byte == b'\n') else {
            self.searched = self.buffer.len();
            if self.skipped.is_some() {
                self.begin = self.searched;
            } else if self.searched - self.begin > self.bytes_max {
                self.skipped = Some(head(&self.buffer[self.begin..]));
                self.begin = self.searched;
            }
            return None;
        };
        let (begin, end) = (self.begin, self.searched + len);
        (self.begin, self.searched) = (end + 1, end + 1);
        let line = &self.buffer[begin..end];
        Some(match self.skipped.take() {
            Some(start) => SplitLine::TooLong(start),
            None if line.len() > self.bytes_max => SplitLine::TooLong(head(line)),
            None => SplitLine::Whole(line.strip_suffix(b"\r").unwrap_or(line)),
        })
    }
}

fn head(line: &[u8]) -> Vec<u8> {
    line[..line.len().min(HEAD_LEN)].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &[u8], chunk_len: usize, bytes_max: usize) -> Vec<Result<Vec<u8>, usize>> {
        let (mut splitter, mut lines) = (LineSplitter::new(bytes_max), Vec::new());
        for chunk in text.chunks(chunk_len) {
            splitter.push(chunk);
            while let Some(line) = splitter.next_line() {
                lines.push(match line {
                    SplitLine::Whole(line) => Ok(line.to_vec()),
                    SplitLine::TooLong(head) => Err(head.len()),
                });
            }
            assert!(splitter.buffer.len() <= bytes_max + 2 * chunk_len, "{}", splitter.buffer.len());
        }
        lines
    }

    #[test]
    fn lines_are_the_same_in_chunks_of_any_length() {
        let long = vec![b'x'; 3 * HEAD_LEN];
        let text = [
            b"a\n\nbcd\r\n",
            &b"y".repeat(10)[..],
            b"\n",
            &b"z".repeat(11)[..],
            b"\n",
            &long,
            b"\nend\nrest",
        ];
        let text = text.concat();
        for chunk_len in [1, 2, 3, 7, 11, 100, HEAD_LEN, text.len()] {
            let lines = split(&text, chunk_len, 10);
            let heads: Vec<usize> = lines.iter().filter_map(|line| line.as_ref().err().copied()).collect();
            assert!(heads[0] == 11 && (11..=HEAD_LEN).contains(&heads[1]), "{chunk_len}: {heads:?}");
            let whole: Vec<_> = lines.into_iter().filter_map(Result::ok).collect();
            assert_eq!(whole, [&b"a"[..], b"", b"bcd", b"yyyyyyyyyy", b"end"], "{chunk_len}");
        }
    }
}
