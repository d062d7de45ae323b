//! Text files whose lines are a name, a space and a value, in a fixed order.

use crate::format::Sha256Sum;
use core::fmt::Write as _;
use std::string::String;
use std::vec::Vec;

/// Reads lines that all end with a line feed.
pub(crate) struct LineReader<'a> {
    rest: &'a str,
}

impl<'a> LineReader<'a> {
    /// `None` if the bytes are not UTF-8, or the last line has no line feed.
    pub(crate) fn new(bytes: &'a [u8]) -> Option<Self> {
        let rest = core::str::from_utf8(bytes).ok()?;
        rest.ends_with('\n').then_some(Self { rest })
    }

    pub(crate) const fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next line, whatever it is.
    pub(crate) fn next(&mut self) -> Option<&'a str> {
        let (line, rest) = self.rest.split_once('\n')?;
        self.rest = rest;
        Some(line)
    }

    /// The text behind `name` and a space.
    pub(crate) fn field(&mut self, name: &str) -> Option<&'a str> {
        self.next()?.strip_prefix(name)?.strip_prefix(' ')
    }

    /// As [`field`](Self::field), but does not consume a line with another name.
    #[cfg(feature = "build")]
    pub(crate) fn field_if(&mut self, name: &str) -> Option<&'a str> {
        let before = self.rest;
        let field = self.field(name);
        if field.is_none() {
            self.rest = before;
        }
        field
    }

    pub(crate) fn decimal(&mut self, name: &str) -> Option<u64> {
        parse_decimal(self.field(name)?)
    }

    pub(crate) fn digest(&mut self, name: &str) -> Option<Sha256Sum> {
        Sha256Sum::parse(self.field(name)?)
    }
}

/// A number without sign and leading zeros.
pub(crate) fn parse_decimal(text: &str) -> Option<u64> {
    let is_canonical =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_canonical)
}

/// Bytes as two lower-case hexadecimal digits each; at least one.
pub(crate) fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    if text.is_empty() || !text.len().is_multiple_of(2) || !text.bytes().all(is_digit) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

pub(crate) fn hex_text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        write!(text, "{byte:02x}").expect("writing to a string does not fail");
    }
    text
}
