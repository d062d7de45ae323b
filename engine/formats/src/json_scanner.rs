//! JSON that is longer than memory: the text around its parts is read byte by byte, and each part
//! is kept as text.

use std::fmt;
use std::io::{self, BufRead};

/// Most bytes of the text of one part, as a record or a list of prefixes.
pub const TEXT_LEN_MAX: usize = 16 << 20;

/// Why JSON cannot be read part by part.
#[derive(Debug)]
#[non_exhaustive]
pub enum JsonTextError {
    /// It cannot be read.
    Io(io::Error),
    /// This was expected after this many bytes.
    Expected(&'static str, u64),
    /// The text of a part, which ends at or after this byte, is longer than this.
    TooLong(u64, usize),
}

impl fmt::Display for JsonTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Expected(what, at) => write!(f, "at byte {at}: expected {what}"),
            Self::TooLong(at, len_max) => write!(f, "at byte {at}: longer than {len_max} bytes"),
        }
    }
}

impl std::error::Error for JsonTextError {}

impl From<io::Error> for JsonTextError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Reads JSON symbol by symbol.
#[derive(Debug)]
pub(crate) struct JsonScanner<R> {
    input: R,
    /// Bytes read so far.
    at: u64,
    text: Vec<u8>,
    text_len_max: usize,
}

impl<R: BufRead> JsonScanner<R> {
    pub(crate) const fn new(input: R, text_len_max: usize) -> Self {
        Self { input, at: 0, text: Vec::new(), text_len_max }
    }

    /// Bytes read so far.
    pub(crate) const fn at(&self) -> u64 {
        self.at
    }

    /// The text that [`value`](Self::value) has kept.
    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Takes the next symbol, which has to be this one.
    pub(crate) fn symbol(&mut self, symbol: u8, what: &'static str) -> Result<(), JsonTextError> {
        match self.bump()? {
            Some(byte) if byte == symbol => Ok(()),
            _ => Err(JsonTextError::Expected(what, self.at)),
        }
    }

    /// Takes the next byte that is not white space.
    pub(crate) fn bump(&mut self) -> io::Result<Option<u8>> {
        self.peek()?;
        self.take()
    }

    fn take(&mut self) -> io::Result<Option<u8>> {
        let byte = self.input.fill_buf()?.first().copied();
        if byte.is_some() {
            self.consume(1);
        }
        Ok(byte)
    }

    fn consume(&mut self, len: usize) {
        self.input.consume(len);
        self.at += len as u64;
    }

    /// Skips white space and returns the next byte without taking it.
    pub(crate) fn peek(&mut self) -> io::Result<Option<u8>> {
        loop {
            let bytes = self.input.fill_buf()?;
            let blanks = bytes.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            let next = bytes.get(blanks).copied();
            let is_end = bytes.is_empty();
            self.consume(blanks);
            if next.is_some() || is_end {
                return Ok(next);
            }
        }
    }

    /// Takes one value of any kind, and keeps its text in `text` if requested.
    pub(crate) fn value(&mut self, keeps: bool) -> Result<(), JsonTextError> {
        self.text.clear();
        self.peek()?;
        let (mut depth, mut is_string, mut is_escaped) = (0_u32, false, false);
        loop {
            let bytes = self.input.fill_buf()?;
            if bytes.is_empty() {
                return Err(JsonTextError::Expected("the rest of a value", self.at));
            }
            let mut end = None;
            for (at, &byte) in bytes.iter().enumerate() {
                if is_string {
                    match byte {
                        _ if is_escaped => is_escaped = false,
                        b'\\' => is_escaped = true,
                        b'"' => {
                            is_string = false;
                            if depth == 0 {
                                end = Some(at + 1);
                                break;
                            }
                        }
                        _ => {}
                    }
                    continue;
                }
                match byte {
                    b'"' => is_string = true,
                    b'{' | b'[' => depth += 1,
                    // The end of the structure around a number or a word.
                    b'}' | b']' | b',' if depth == 0 => {
                        end = Some(at);
                        break;
                    }
                    b'}' | b']' => {
                        depth -= 1;
                        if depth == 0 {
                            end = Some(at + 1);
                            break;
                        }
                    }
                    _ => {}
                }
            }
            let len = end.unwrap_or(bytes.len());
            if keeps {
                self.text.extend_from_slice(&bytes[..len]);
            }
            self.consume(len);
            if self.text.len() > self.text_len_max {
                return Err(JsonTextError::TooLong(self.at, self.text_len_max));
            }
            if end.is_some() {
                return Ok(());
            }
        }
    }
}
