//! Tables as spreadsheets save them: a header line, then a line for each value.
//!
//! The columns are `handle`, `index`, `type` and `data`, and optionally `ttl`, `permissions` and
//! `timestamp`, in any order. Rows of one handle follow each other. A table with the column
//! `handle` only is a list of names.

use super::LINE_LEN_MAX;
use super::json_values::pass_line;
use handle_proto::json::Json;
use serde_json::json;
use std::fmt;
use std::io::{self, BufRead};

/// Separators of columns that are recognised; any other one is named by a line `sep=`.
const SEPARATORS: [u8; 3] = [b',', b';', b'\t'];

/// The separator that a header line has, or names; `None` if the line is neither.
pub(super) fn separator_of(line: &[u8]) -> Option<u8> {
    if let Some(separator) = named_separator(line) {
        return Some(separator);
    }
    let is_handle = |field: &[u8]| {
        let field = field.trim_ascii();
        let field = field.strip_prefix(b"\"").and_then(|field| field.strip_suffix(b"\"")).unwrap_or(field);
        field.trim_ascii().eq_ignore_ascii_case(b"handle")
    };
    SEPARATORS.into_iter().find(|separator| line.split(|byte| byte == separator).any(is_handle))
}

/// The separator in a line `sep=;`.
fn named_separator(line: &[u8]) -> Option<u8> {
    let line = line.strip_prefix(b"\"").and_then(|line| line.strip_suffix(b"\"")).unwrap_or(line);
    match line {
        [name @ .., separator] if name.eq_ignore_ascii_case(b"sep=") => Some(*separator),
        // White space at the end of the line is not part of what is passed.
        name if name.eq_ignore_ascii_case(b"sep=") => Some(b'\t'),
        _ => None,
    }
}

/// Why a table cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum CsvError {
    /// It cannot be read.
    Io(io::Error),
    /// The header line has no such column.
    NoColumn(&'static str),
}

impl fmt::Display for CsvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::NoColumn(name) => {
                write!(
                    f,
                    "there is no column {name}: the first line names the columns handle, index, type and data, with \
                     commas, semicolons or tabs between them"
                )
            }
        }
    }
}

impl std::error::Error for CsvError {}

impl From<io::Error> for CsvError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsvRow {
    /// Number of its first line, from 1.
    pub line: u64,
    /// The handle.
    pub handle: String,
    /// The value as the JSON of the REST API has it, with text for data and index; or why there is
    /// none. Null in a list of names.
    pub value: Result<Json, &'static str>,
}

/// The optional columns.
const OPTIONAL: [&str; 3] = ["ttl", "permissions", "timestamp"];

/// Reads a table row by row.
#[derive(Debug)]
pub struct CsvTable<R> {
    records: CsvRecords<R>,
    columns: CsvColumns,
}

/// The positions of the columns.
#[derive(Debug)]
struct CsvColumns {
    handle: usize,
    /// `index`, `type` and `data`; `None` in a list of names.
    value: Option<[usize; 3]>,
    optional: [Option<usize>; OPTIONAL.len()],
}

impl<R: BufRead> CsvTable<R> {
    /// Reads the header. Comments, blank lines and a line `sep=` may come before it.
    ///
    /// # Errors
    /// When the table cannot be read, or lacks a column.
    pub fn new(input: R) -> Result<Self, CsvError> {
        Self::bounded(input, LINE_LEN_MAX)
    }

    /// The same for rows of at most `len_max` bytes.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn bounded(input: R, len_max: usize) -> Result<Self, CsvError> {
        let mut records = CsvRecords { len_max, ..CsvRecords::new(input) };
        // A line is one field for a separator that does not occur.
        records.separator = b'\n';
        let mut named = None;
        let header = loop {
            if !records.next_record()? {
                return Err(CsvError::NoColumn("handle"));
            }
            match named_separator(&records.text) {
                Some(separator) => named = Some(separator),
                None => break std::mem::take(&mut records.text),
            }
        };
        records.separator = named.or_else(|| separator_of(&header)).unwrap_or(b',');
        let mut header = CsvRecords { separator: records.separator, ..CsvRecords::new(&header[..]) };
        header.next_record()?;
        let columns = CsvColumns::of(&header)?;
        Ok(Self { records, columns })
    }

    /// Whether there are values, and not handles only.
    pub const fn has_values(&self) -> bool {
        self.columns.value.is_some()
    }

    /// The next row; `None` after the last one.
    ///
    /// # Errors
    /// When the table cannot be read, or ends inside quotes.
    pub fn next_row(&mut self) -> Result<Option<CsvRow>, CsvError> {
        while self.records.next_record()? {
            // Spreadsheets save rows without content, too.
            if self.records.fields().any(|field| !field.is_empty()) {
                return Ok(Some(self.row()));
            }
        }
        Ok(None)
    }

    fn row(&self) -> CsvRow {
        let field = |at: usize| str::from_utf8(self.records.fields().nth(at).unwrap_or_default());
        let handle = self.records.fields().nth(self.columns.handle).unwrap_or_default();
        let value = || -> Result<Json, std::str::Utf8Error> {
            str::from_utf8(handle)?;
            let Some([index, kind, data]) = self.columns.value else { return Ok(Json::Null) };
            let mut value =
                json!({ "index": field(index)?.trim(), "type": field(kind)?.trim(), "data": field(data)? });
            for (name, at) in OPTIONAL.into_iter().zip(self.columns.optional) {
                let text = at.map(field).transpose()?.map(str::trim).filter(|text| !text.is_empty());
                let Some(text) = text else { continue };
                let seconds = text.parse::<u32>().ok().filter(|_| name == "ttl");
                value[name] = seconds.map_or_else(|| text.into(), Json::from);
            }
            Ok(value)
        };
        CsvRow {
            line: self.records.record_line,
            handle: String::from_utf8_lossy(handle).trim().to_owned(),
            value: value().map_err(|_| "the row is not UTF-8: save the table as CSV in UTF-8"),
        }
    }
}

impl CsvColumns {
    fn of<R: BufRead>(header: &CsvRecords<R>) -> Result<Self, CsvError> {
        let at = |name: &str| {
            header.fields().position(|column| column.trim_ascii().eq_ignore_ascii_case(name.as_bytes()))
        };
        let required = |name| at(name).ok_or(CsvError::NoColumn(name));
        let handle = required("handle")?;
        let value = match header.fields().count() {
            1 => None,
            _ => Some([required("index")?, required("type")?, required("data")?]),
        };
        Ok(Self { handle, value, optional: OPTIONAL.map(at) })
    }
}

/// Reads records of fields, as RFC 4180 describes them, with any separator and any line end. Lines
/// that begin with `#` are comments, and blank lines are skipped.
#[derive(Debug)]
struct CsvRecords<R> {
    input: R,
    separator: u8,
    /// Number of the line that is being read, and of the first one of the record.
    line: u64,
    record_line: u64,
    /// The fields, one after the other, and their ends.
    text: Vec<u8>,
    ends: Vec<usize>,
    len_max: usize,
}

/// Where the reader is in a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldState {
    Start,
    Plain,
    Quoted,
    /// Behind a quotation mark in quotes: their end, or the first of two that stand for one.
    Quote,
}

impl<R: BufRead> CsvRecords<R> {
    const fn new(input: R) -> Self {
        Self {
            input,
            separator: b',',
            line: 1,
            record_line: 0,
            text: Vec::new(),
            ends: Vec::new(),
            len_max: LINE_LEN_MAX,
        }
    }

    fn fields(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.text[start..end])
    }

    fn bump(&mut self) -> io::Result<Option<u8>> {
        let byte = self.input.fill_buf()?.first().copied();
        if let Some(byte) = byte {
            self.input.consume(1);
            self.line += u64::from(byte == b'\n');
        }
        Ok(byte)
    }

    /// Reads the next record; returns whether there is one.
    fn next_record(&mut self) -> io::Result<bool> {
        use FieldState::{Plain, Quote, Quoted, Start};
        self.text.clear();
        self.ends.clear();
        let mut next = loop {
            self.record_line = self.line;
            match self.bump()? {
                None => return Ok(false),
                Some(b'\n' | b'\r') => {}
                Some(b'#') => {
                    pass_line(&mut self.input)?;
                    self.line += 1;
                }
                byte => break byte,
            }
        };
        let mut state = Start;
        loop {
            match (state, next) {
                (Quoted, None) => {
                    let why = format!("line {}: a quotation mark does not end", self.record_line);
                    return Err(io::Error::other(why));
                }
                (Quoted, Some(b'"')) => state = Quote,
                (Quote, Some(b'"')) => {
                    self.text.push(b'"');
                    state = Quoted;
                }
                (Start, Some(b'"')) => state = Quoted,
                (_, None | Some(b'\n')) if state != Quoted => {
                    let start = self.ends.last().copied().unwrap_or(0);
                    if state == Plain && self.text.len() > start && self.text.ends_with(b"\r") {
                        self.text.pop();
                    }
                    self.ends.push(self.text.len());
                    return Ok(true);
                }
                (_, Some(byte)) if state != Quoted && byte == self.separator => {
                    self.ends.push(self.text.len());
                    state = Start;
                }
                (Quote, Some(b'\r')) => {}
                (_, Some(byte)) => {
                    self.text.push(byte);
                    state = if state == Quoted { Quoted } else { Plain };
                }
                (_, None) => return Ok(false),
            }
            if self.text.len() + self.ends.len() > self.len_max {
                let why = format!("line {}: the row is longer than {} bytes", self.record_line, self.len_max);
                return Err(io::Error::other(why));
            }
            next = self.bump()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &[u8]) -> Result<Vec<CsvRow>, CsvError> {
        let mut table = CsvTable::new(text)?;
        std::iter::from_fn(|| table.next_row().transpose()).collect()
    }

    fn row(line: u64, handle: &str, value: Json) -> CsvRow {
        CsvRow { line, handle: handle.to_owned(), value: Ok(value) }
    }

    #[test]
    fn tables_of_every_country_are_read() {
        let expected = [
            row(2, "a/1", json!({"index": "1", "type": "URL", "data": "x, y; z", "ttl": 60})),
            row(4, "a/2", json!({"index": "2", "type": "DESC", "data": "5\" disk\nand more"})),
        ];
        for separator in [",", ";", "\t"] {
            let text = [
                "handle,index,type,data,ttl\r\n",
                "a/1,1,URL,\"x| y^ z\",60\r\n",
                ",,,,\r\n",
                "a/2, 2 ,DESC,\"5\"\" disk\nand more\",\r\n",
            ];
            let text = text.concat().replace(',', separator).replace('|', ",").replace('^', ";");
            assert_eq!(rows(text.as_bytes()).unwrap(), expected, "{separator:?}");
        }
        let named = "sep=|\nData|HANDLE|Index|\"Type\"\nx|a/1|1|URL\n# comment\n\ny|a/1|2|URL\n";
        let url = |index: &str, data: &str| json!({"index": index, "type": "URL", "data": data});
        assert_eq!(
            rows(named.as_bytes()).unwrap(),
            [row(3, "a/1", url("1", "x")), row(6, "a/1", url("2", "y"))]
        );
        let names = rows(b"# names\nhandle\na/1\na/2").unwrap();
        assert_eq!(names, [row(3, "a/1", Json::Null), row(4, "a/2", Json::Null)]);
    }

    #[test]
    fn what_is_no_table_is_said() {
        for (text, missing) in [("", "handle"), ("handle,index,type\n", "data"), ("a,b\n", "handle")] {
            let error = rows(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("there is no column {missing}: ")), "{error}");
        }
        let latin = rows(b"handle,index,type,data\na/\xe9,1,URL,x\na/1,1,URL,\xe9\n").unwrap();
        assert!(latin.iter().all(|row| row.value.is_err()), "{latin:?}");
        let mut endless = b"handle,index,type,data\na/1,1,URL,\"".to_vec();
        endless.resize(LINE_LEN_MAX + 100, b'x');
        assert!(rows(&endless).unwrap_err().to_string().contains("line 2: the row is longer"));
        for cut in [&b"handle,index,type,data\na/1,1,URL,\"x\n"[..], b"handle,\"index"] {
            assert!(rows(cut).unwrap_err().to_string().contains("does not end"));
        }
        let odd = rows(b"handle,index,type,data\na/1,1,URL,5\" disk\na/2,1,URL,\"a\"b\na/3,1\n").unwrap();
        let data: Vec<_> = odd.iter().map(|row| row.value.as_ref().unwrap()["data"].clone()).collect();
        assert_eq!(data, ["5\" disk", "ab", ""]);
    }
}
