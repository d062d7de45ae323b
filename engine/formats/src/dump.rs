//! The tables `handles` and `nas` of a reference server that keeps its records in a database, as
//! `mysqldump` or `pg_dump` writes them.
//!
//! One row is one value. Consecutive rows of one handle become one record. If a handle occurs again
//! later, as in a dump of PostgreSQL after rows were changed, that is a further part of its record,
//! with its other values: the caller puts the parts together.

mod token;

use handle_proto::sql::{VALUE_COLUMNS, read_references};
use handle_proto::value::{Ttl, Value};
use handle_proto::{Permissions, ValueBuf};
use std::fmt;
use std::io::{self, BufRead};
use token::{Token, Tokens};

/// Most bytes of one field: those of the longest message, as hexadecimal digits with escapes.
pub const FIELD_LEN_MAX: usize = 1 << 20;
/// Most values of one record.
pub const VALUES_COUNT_MAX: usize = 65_536;
/// Most columns of a table.
const COLUMNS_MAX: usize = 64;
/// The columns of the table, in the order in which it is made.
const COLUMNS: [&str; VALUE_COLUMNS.len() + 1] = {
    let mut columns = ["handle"; VALUE_COLUMNS.len() + 1];
    columns.split_at_mut(1).1.copy_from_slice(&VALUE_COLUMNS);
    columns
};

/// An item of a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A homed prefix.
    Homed(Vec<u8>),
    /// Values of one handle: its record, or a part of it.
    Record(Vec<u8>, Vec<ValueBuf>),
}

/// Why reading a dump fails.
#[derive(Debug)]
#[non_exhaustive]
pub enum DumpError {
    /// It cannot be read.
    Io(io::Error),
    /// This was expected on this line.
    Expected(&'static str, u64),
    /// A column of the row that ends on this line is invalid.
    Column(&'static str, u64),
    /// A field is longer than [`FIELD_LEN_MAX`], or a record has more than [`VALUES_COUNT_MAX`]
    /// values.
    TooLong(u64),
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Expected(what, line) => write!(f, "line {line}: expected {what}"),
            Self::Column(name, line) => write!(f, "line {line}: the column {name} of a row is invalid"),
            Self::TooLong(line) => write!(f, "line {line}: a field or a record is too long"),
        }
    }
}

impl std::error::Error for DumpError {}

impl From<io::Error> for DumpError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Reads a dump from start to end.
#[derive(Debug)]
pub struct Dump<R> {
    tokens: Tokens<R>,
    table: Option<DumpTable>,
    /// The record whose rows are being collected.
    gathered: Option<(Vec<u8>, Vec<ValueBuf>)>,
}

/// The rows that are being read.
#[derive(Debug)]
struct DumpTable {
    is_prefixes: bool,
    form: RowForm,
    /// The positions of the used columns.
    columns: [Option<usize>; COLUMNS.len()],
}

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowForm {
    /// Those of a statement, in parentheses.
    Statement,
    /// Lines with tabs, up to the line `\.`.
    Copy,
    /// The same up to the end of the file.
    Bare,
}

/// A field of a row; `None` is NULL.
type DumpField = Option<Vec<u8>>;

impl<R: BufRead> Dump<R> {
    /// Reads `input`.
    pub const fn new(input: R) -> Self {
        Self { tokens: Tokens::new(input), table: None, gathered: None }
    }

    /// Reads `input`, which has nothing but rows of `handles` with all columns, as `\copy` of psql
    /// writes them.
    pub fn of_rows(input: R) -> Self {
        let table = DumpTable { is_prefixes: false, form: RowForm::Bare, columns: positions(&[], false) };
        Self { table: Some(table), ..Self::new(input) }
    }

    /// Whether a file that begins like this has nothing but rows of `handles`.
    #[must_use]
    pub fn has_bare_rows(begin: &[u8]) -> bool {
        let line = begin.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let mut fields = line.split(|&byte| byte == b'\t');
        let is_number = |field: &[u8]| !field.is_empty() && field.iter().all(u8::is_ascii_digit);
        fields.nth(1).is_some_and(is_number)
            && fields.nth(1).is_some()
            && fields.next().is_some_and(|kind| matches!(kind, b"0" | b"1" | b"\\N"))
    }

    /// Whether the tool that wrote the dump named itself at the beginning, and the line is missing
    /// that it writes at the end. The dump may then lack whole statements.
    pub const fn lacks_end(&self) -> bool {
        self.tokens.lacks_end()
    }

    /// Number of the line read last.
    pub const fn line(&self) -> u64 {
        self.tokens.line()
    }

    /// The next prefix or record; `None` at the end.
    ///
    /// # Errors
    /// When a statement about one of the tables is invalid. Reading cannot continue then.
    #[expect(clippy::should_implement_trait, reason = "reading cannot continue after an error")]
    pub fn next(&mut self) -> Result<Option<Item>, DumpError> {
        loop {
            let Some(table) = self.table.take() else {
                match self.statement()? {
                    Some(table) => self.table = Some(table),
                    None => {
                        return Ok(self.gathered.take().map(|(handle, values)| Item::Record(handle, values)));
                    }
                }
                continue;
            };
            let Some(row) = self.row(&table)? else { continue };
            let given = self.take(&table, &row)?;
            self.table = Some(table);
            if given.is_some() {
                return Ok(given);
            }
        }
    }

    /// Takes a row, and returns the item that it completes.
    fn take(&mut self, table: &DumpTable, row: &[DumpField]) -> Result<Option<Item>, DumpError> {
        let line = self.line();
        let columns = Columns { row, positions: &table.columns, line };
        let handle = columns.bytes(0)?;
        if table.is_prefixes {
            return Ok(Some(Item::Homed(handle.to_vec())));
        }
        let value = columns.value()?;
        match &mut self.gathered {
            Some((same, values)) if same == handle => {
                values.push(value);
                if values.len() > VALUES_COUNT_MAX { Err(DumpError::TooLong(line)) } else { Ok(None) }
            }
            other => {
                let whole = other.replace((handle.to_vec(), vec![value]));
                Ok(whole.map(|(handle, values)| Item::Record(handle, values)))
            }
        }
    }

    /// Skips everything up to rows of one of the two tables.
    fn statement(&mut self) -> Result<Option<DumpTable>, DumpError> {
        loop {
            let is_copy = match self.tokens.next()? {
                Token::End => return Ok(None),
                // `mysqldump --replace` writes REPLACE in place of INSERT.
                Token::Word(word) if word.eq_ignore_ascii_case(b"INSERT") => false,
                Token::Word(word) if word.eq_ignore_ascii_case(b"REPLACE") => false,
                Token::Word(word) if word.eq_ignore_ascii_case(b"COPY") => true,
                other => {
                    self.pass_over(other)?;
                    continue;
                }
            };
            if let Some(table) = self.begin(is_copy)? {
                return Ok(Some(table));
            }
        }
    }

    /// Reads, after INSERT, REPLACE or COPY, the table, its columns, and everything up to the first
    /// row.
    fn begin(&mut self, is_copy: bool) -> Result<Option<DumpTable>, DumpError> {
        let mut name = Vec::new();
        let mut token = self.tokens.next()?;
        // The last name before the columns or the rows is that of the table.
        while let Token::Word(word) | Token::Name(word) = token {
            if [&b"VALUES"[..], b"FROM"].iter().any(|end| word.eq_ignore_ascii_case(end)) {
                token = Token::Word(word);
                break;
            }
            name = word;
            token = self.tokens.next()?;
            if token == Token::Symbol(b'.') {
                token = self.tokens.next()?;
            }
        }
        let is_prefixes = name.eq_ignore_ascii_case(b"nas");
        if !is_prefixes && !name.eq_ignore_ascii_case(b"handles") {
            self.pass_over(token)?;
            if is_copy {
                while self.tokens.copied(&mut Vec::new(), false)? {}
            }
            return Ok(None);
        }
        let mut names = Vec::new();
        if token == Token::Symbol(b'(') {
            loop {
                match self.tokens.next()? {
                    Token::Word(name) | Token::Name(name) if names.len() < COLUMNS_MAX => names.push(name),
                    Token::Symbol(b',') => {}
                    Token::Symbol(b')') => break,
                    _ => return Err(DumpError::Expected("the name of a column", self.line())),
                }
            }
            token = self.tokens.next()?;
        }
        let wanted: &[u8] = if is_copy { b"FROM" } else { b"VALUES" };
        match token {
            Token::Word(word) if word.eq_ignore_ascii_case(wanted) => {}
            _ => return Err(DumpError::Expected("the rows", self.line())),
        }
        if is_copy {
            self.pass_over(Token::Word(Vec::new()))?;
            self.tokens.end_line()?;
        }
        let form = if is_copy { RowForm::Copy } else { RowForm::Statement };
        Ok(Some(DumpTable { is_prefixes, form, columns: positions(&names, is_prefixes) }))
    }

    /// The next row; `None` after the last one.
    fn row(&mut self, table: &DumpTable) -> Result<Option<Vec<DumpField>>, DumpError> {
        let mut row = Vec::new();
        if table.form != RowForm::Statement {
            return Ok(self.tokens.copied(&mut row, table.form == RowForm::Bare)?.then_some(row));
        }
        loop {
            match self.tokens.next()? {
                Token::Symbol(b'(') => break,
                Token::Symbol(b',') => {}
                Token::Symbol(b';') => return Ok(None),
                _ => return Err(DumpError::Expected("a row", self.line())),
            }
        }
        loop {
            let field = self.tokens.next()?;
            if row.len() == COLUMNS_MAX {
                return Err(DumpError::Expected("the end of a row", self.line()));
            }
            match field {
                Token::Word(word) if word.eq_ignore_ascii_case(b"NULL") => row.push(None),
                // A prefix for the character set, as in `_binary 'x'`, or for the form, as in
                // `X'ff'` and `E'a'`.
                Token::Word(mark) if self.tokens.is_quote()? => {
                    let Token::Text(text) = self.tokens.literal(mark.eq_ignore_ascii_case(b"E"))? else {
                        return Err(DumpError::Expected("a text", self.line()));
                    };
                    let is_hex = mark.eq_ignore_ascii_case(b"X");
                    let text = if is_hex {
                        hex(&text).ok_or(DumpError::Expected("hex", self.line()))?
                    } else {
                        text
                    };
                    row.push(Some(text));
                }
                Token::Word(word) => row.push(Some(match word.strip_prefix(b"0x") {
                    Some(digits) => hex(digits).ok_or(DumpError::Expected("hex", self.line()))?,
                    None => word,
                })),
                Token::Text(text) => row.push(Some(text)),
                _ => return Err(DumpError::Expected("a field", self.line())),
            }
            match self.tokens.next()? {
                Token::Symbol(b',') => {}
                Token::Symbol(b')') => return Ok(Some(row)),
                _ => return Err(DumpError::Expected("a comma or the end of a row", self.line())),
            }
        }
    }

    /// Skips the rest of a statement that begins with `token`.
    fn pass_over(&mut self, mut token: Token) -> Result<(), DumpError> {
        while !matches!(token, Token::Symbol(b';') | Token::End) {
            token = self.tokens.next()?;
        }
        Ok(())
    }
}

/// The positions of the columns of a table. Without names, the columns are in the order of its
/// definition.
fn positions(names: &[Vec<u8>], is_prefixes: bool) -> [Option<usize>; COLUMNS.len()] {
    std::array::from_fn(|at| {
        if names.is_empty() {
            return Some(at);
        }
        let wanted = if is_prefixes { "na" } else { COLUMNS[at] };
        names.iter().position(|name| name.eq_ignore_ascii_case(wanted.as_bytes()))
    })
}

/// A row of `handles`, by column.
struct Columns<'a> {
    row: &'a [DumpField],
    positions: &'a [Option<usize>; COLUMNS.len()],
    line: u64,
}

impl<'a> Columns<'a> {
    fn field(&self, column: usize) -> Option<&'a [u8]> {
        self.row.get(self.positions[column]?)?.as_deref()
    }

    fn wrong(&self, column: usize) -> DumpError {
        DumpError::Column(COLUMNS[column], self.line)
    }

    fn bytes(&self, column: usize) -> Result<&'a [u8], DumpError> {
        self.field(column).ok_or_else(|| self.wrong(column))
    }

    fn number(&self, column: usize) -> Result<i64, DumpError> {
        let text = std::str::from_utf8(self.field(column).unwrap_or(b"0")).ok();
        text.and_then(|text| text.trim().parse().ok()).ok_or_else(|| self.wrong(column))
    }

    /// A bit. NULL is 0, as in every column for deployed servers.
    fn is_set(&self, column: usize) -> Result<bool, DumpError> {
        match self.field(column).unwrap_or(b"0") {
            b"1" | b"t" | b"true" | b"TRUE" | b"\x01" | b"y" => Ok(true),
            b"0" | b"f" | b"false" | b"FALSE" | b"\0" | b"n" => Ok(false),
            _ => Err(self.wrong(column)),
        }
    }

    fn value(&self) -> Result<ValueBuf, DumpError> {
        self.bytes(1)?;
        let index = i32::try_from(self.number(1)?).map_err(|_| self.wrong(1))?;
        // An empty text may have become NULL.
        let (kind, data) = (self.field(2).unwrap_or_default(), self.field(3).unwrap_or_default());
        let ttl_kind = u8::try_from(self.number(4)?).map_err(|_| self.wrong(4))?;
        let ttl = Ttl { kind: ttl_kind, seconds: i32::try_from(self.number(5)?).map_err(|_| self.wrong(5))? };
        // Deployed servers write times after 2038 as negative numbers.
        let unix_s = self.number(6)?;
        let timestamp = i32::try_from(unix_s).map(i32::cast_unsigned);
        let timestamp = timestamp.or_else(|_| u32::try_from(unix_s)).map_err(|_| self.wrong(6))?;
        let bits = [8, 9, 10, 11]
            .into_iter()
            .try_fold(0, |bits, column| Ok::<u8, DumpError>(bits << 1 | u8::from(self.is_set(column)?)))?;
        let mut storage = Vec::new();
        let references = self.field(7).unwrap_or_default();
        let references = read_references(references, &mut storage).ok_or_else(|| self.wrong(7))?;
        let permissions = Permissions(bits);
        Ok((&Value { index, timestamp, ttl, permissions, kind, data, references }).into())
    }
}

fn hex(digits: &[u8]) -> Option<Vec<u8>> {
    data_encoding::HEXLOWER_PERMISSIVE.decode(digits).ok()
}

#[cfg(test)]
mod tests;
