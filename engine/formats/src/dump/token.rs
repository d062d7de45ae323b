//! The words, texts and symbols of SQL, as far as dumps use them.

use super::{COLUMNS_MAX, DumpError, DumpField, FIELD_LEN_MAX, hex};
use std::io::{self, BufRead};

/// A token of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// A word or a number.
    Word(Vec<u8>),
    /// A name in quotes.
    Name(Vec<u8>),
    /// A text in quotes.
    Text(Vec<u8>),
    /// Any other character.
    Symbol(u8),
    End,
}

/// Reads a dump token by token.
#[derive(Debug)]
pub(super) struct Tokens<R> {
    input: R,
    line: u64,
    /// Whether a backslash in a text is an escape: in MySQL always, in PostgreSQL only in texts
    /// that begin with `E`.
    is_mysql: bool,
    /// Whether the tool has named itself, and whether it has said that the dump is complete.
    is_named: bool,
    is_complete: bool,
}

impl<R: BufRead> Tokens<R> {
    pub(super) const fn new(input: R) -> Self {
        Self { input, line: 1, is_mysql: false, is_named: false, is_complete: false }
    }

    pub(super) const fn line(&self) -> u64 {
        self.line
    }

    pub(super) const fn lacks_end(&self) -> bool {
        self.is_named && !self.is_complete
    }

    fn peek(&mut self) -> io::Result<Option<u8>> {
        Ok(self.input.fill_buf()?.first().copied())
    }

    fn bump(&mut self) -> io::Result<Option<u8>> {
        let byte = self.peek()?;
        if let Some(byte) = byte {
            self.input.consume(1);
            self.line += u64::from(byte == b'\n');
        }
        Ok(byte)
    }

    pub(super) fn next(&mut self) -> Result<Token, DumpError> {
        loop {
            let Some(byte) = self.bump()? else { return Ok(Token::End) };
            match byte {
                _ if byte.is_ascii_whitespace() => {}
                b'#' => self.comment()?,
                b'-' if self.peek()? == Some(b'-') => self.comment()?,
                b'/' if self.peek()? == Some(b'*') => self.long_comment()?,
                b'\'' => return self.text(b'\'', self.is_mysql).map(Token::Text),
                b'"' => return self.text(b'"', false).map(Token::Name),
                b'`' => {
                    // Only MySQL quotes in this way.
                    self.is_mysql = true;
                    return self.text(b'`', false).map(Token::Name);
                }
                _ if is_of_word(byte) => return self.word(byte).map(Token::Word),
                _ => return Ok(Token::Symbol(byte)),
            }
        }
    }

    /// Whether a quoted text follows.
    pub(super) fn is_quote(&mut self) -> io::Result<bool> {
        while self.peek()? == Some(b' ') {
            self.bump()?;
        }
        Ok(self.peek()? == Some(b'\''))
    }

    /// Reads a text. Backslashes are escapes if `has_escapes` is set or the dialect has them.
    pub(super) fn literal(&mut self, has_escapes: bool) -> Result<Token, DumpError> {
        self.bump()?;
        self.text(b'\'', has_escapes || self.is_mysql).map(Token::Text)
    }

    fn word(&mut self, first: u8) -> Result<Vec<u8>, DumpError> {
        let mut word = vec![first];
        while let Some(byte) = self.peek()?.filter(|&byte| is_of_word(byte)) {
            self.bump()?;
            self.push(&mut word, byte)?;
        }
        Ok(word)
    }

    /// Reads the text up to its closing quote; two quotes stand for one.
    fn text(&mut self, quote: u8, has_escapes: bool) -> Result<Vec<u8>, DumpError> {
        let mut text = Vec::new();
        loop {
            let line = self.line;
            let mut next = || self.bump()?.ok_or(DumpError::Expected("the end of a text", line));
            let byte = match next()? {
                b'\\' if has_escapes => escaped(next()?),
                byte if byte == quote => {
                    if self.peek()? != Some(quote) {
                        break;
                    }
                    self.bump()?;
                    quote
                }
                byte => byte,
            };
            self.push(&mut text, byte)?;
        }
        // The form in which PostgreSQL writes bytes. A text of MySQL may look the same and be a
        // text.
        match text.strip_prefix(b"\\x") {
            Some(digits) if !has_escapes => Ok(hex(digits).unwrap_or(text)),
            _ => Ok(text),
        }
    }

    fn push(&self, text: &mut Vec<u8>, byte: u8) -> Result<(), DumpError> {
        if text.len() == FIELD_LEN_MAX {
            return Err(DumpError::TooLong(self.line));
        }
        text.push(byte);
        Ok(())
    }

    fn comment(&mut self) -> io::Result<()> {
        let mut text = Vec::new();
        while let Some(byte) = self.bump()?.filter(|&byte| byte != b'\n') {
            // The first lines of a dump name the tool, and are short.
            if text.len() < 80 {
                text.push(byte.to_ascii_lowercase());
            }
        }
        let says = |name: &[u8]| text.windows(name.len()).any(|part| part == name);
        let is_mysql = says(b"mysql dump") || says(b"mariadb dump");
        self.is_mysql |= is_mysql;
        // With the version of the tool, or `complete` at the end.
        self.is_named |= is_mysql || says(b"postgresql database dump");
        self.is_complete |= says(b"dump completed") || says(b"database dump complete");
        Ok(())
    }

    fn long_comment(&mut self) -> Result<(), DumpError> {
        let mut last = b' ';
        self.bump()?;
        loop {
            let byte = self.bump()?.ok_or(DumpError::Expected("the end of a comment", self.line))?;
            if (last, byte) == (b'*', b'/') {
                return Ok(());
            }
            last = byte;
        }
    }

    /// Skips the rest of the line.
    pub(super) fn end_line(&mut self) -> io::Result<()> {
        while self.bump()?.is_some_and(|byte| byte != b'\n') {}
        Ok(())
    }

    /// Reads a row of COPY: a line with tabs between its fields. Returns whether there is one.
    /// After the last row is the line `\.`, or the end if rows are `bare`.
    ///
    /// # Errors
    /// When the input ends earlier, among others.
    pub(super) fn copied(&mut self, row: &mut Vec<DumpField>, bare: bool) -> Result<bool, DumpError> {
        let (mut field, mut is_null) = (Vec::new(), false);
        loop {
            let byte = self.bump()?;
            let is_end = byte == Some(b'\n');
            match byte {
                None if bare && row.is_empty() && field.is_empty() && !is_null => return Ok(false),
                None if bare => return Err(DumpError::Expected("the end of a row", self.line)),
                None => return Err(DumpError::Expected("the line `\\.` after the rows", self.line)),
                Some(b'\n' | b'\t') => {
                    if row.len() == COLUMNS_MAX {
                        return Err(DumpError::Expected("the end of a row", self.line));
                    }
                    let bytes = std::mem::take(&mut field);
                    let bytes = match bytes.strip_prefix(b"\\x").and_then(hex) {
                        Some(bytes) => bytes,
                        None => bytes,
                    };
                    row.push((!is_null).then_some(bytes));
                    is_null = false;
                    if is_end {
                        return Ok(true);
                    }
                }
                Some(b'\\') => match self.bump()? {
                    Some(b'.') if row.is_empty() && field.is_empty() => {
                        self.end_line()?;
                        return Ok(false);
                    }
                    Some(b'N') => is_null = true,
                    Some(byte) => self.push(&mut field, escaped(byte))?,
                    None => return Err(DumpError::Expected("the end of a field", self.line)),
                },
                Some(byte) => self.push(&mut field, byte)?,
            }
        }
    }
}

const fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'+' | b'$') || byte >= 0x80
}

/// The byte that an escape with a backslash stands for.
const fn escaped(byte: u8) -> u8 {
    match byte {
        b'0' => 0,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'f' => 12,
        b'v' => 11,
        b'Z' => 26,
        other => other,
    }
}
