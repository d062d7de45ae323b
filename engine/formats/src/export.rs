//! The JSON export of a reference server: homed prefixes, and all records as members of one object.
//!
//! ```json
//! {"homedPrefixes":["0.NA/20.500.1"],
//!  "handleRecords":{"20.500.1/HELLO":{"handle":"20.500.1/HELLO","values":[]}}}
//! ```
//!
//! The object is as large as the store, so it is not parsed as a whole: the text around the records
//! is parsed byte by byte, and each record is returned as text.

use std::fmt;
use std::io::{self, BufRead};

/// Most bytes of the text of one record, and of the list of prefixes.
pub const TEXT_LEN_MAX: usize = 16 << 20;

/// Reads an export from start to end.
#[derive(Debug)]
pub struct Export<R> {
    input: R,
    /// Bytes read so far.
    at: u64,
    place: ExportSection,
    /// Homed prefixes that were not returned yet.
    homed: Vec<String>,
    text: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExportSection {
    Begin,
    /// After a member of the outer object.
    Outer,
    /// Before the first record.
    First,
    /// After a record.
    Records,
    End,
}

/// An item of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A homed prefix.
    Homed(String),
    /// A record as JSON.
    Record(&'a str),
}

/// Why reading an export fails.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExportError {
    /// It cannot be read.
    Io(io::Error),
    /// This was expected after this many bytes.
    Expected(&'static str, u64),
    /// The text of a record or of the prefixes, which ends at or after this byte, is too long.
    TooLong(u64),
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Expected(what, at) => write!(f, "at byte {at}: expected {what}"),
            Self::TooLong(at) => write!(f, "at byte {at}: longer than {TEXT_LEN_MAX} bytes"),
        }
    }
}

impl std::error::Error for ExportError {}

impl From<io::Error> for ExportError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl<R: BufRead> Export<R> {
    /// Reads `input`.
    pub const fn new(input: R) -> Self {
        Self { input, at: 0, place: ExportSection::Begin, homed: Vec::new(), text: Vec::new() }
    }

    /// Bytes read so far.
    pub const fn at(&self) -> u64 {
        self.at
    }

    /// The next prefix or record; `None` at the end.
    ///
    /// # Errors
    /// When the input is not such an export. Reading cannot continue then.
    #[expect(clippy::should_implement_trait, reason = "an item borrows from the reader")]
    pub fn next(&mut self) -> Result<Option<Item<'_>>, ExportError> {
        loop {
            if let Some(prefix) = self.homed.pop() {
                return Ok(Some(Item::Homed(prefix)));
            }
            match self.place {
                ExportSection::Begin => {
                    self.symbol(b'{', "an object")?;
                    self.place = ExportSection::Outer;
                    if self.peek()? != Some(b'}') {
                        self.member()?;
                    }
                }
                ExportSection::Outer => match self.bump()? {
                    Some(b',') => self.member()?,
                    Some(b'}') => match self.bump()? {
                        None => self.place = ExportSection::End,
                        Some(_) => return Err(ExportError::Expected("the end", self.at)),
                    },
                    _ => return Err(ExportError::Expected("a comma or a brace", self.at)),
                },
                ExportSection::First | ExportSection::Records => {
                    match (self.peek()?, self.place == ExportSection::First) {
                        // No comma precedes the first one.
                        (Some(b'"'), true) => return self.record().map(Some),
                        (Some(b','), false) => {
                            self.bump()?;
                            return self.record().map(Some);
                        }
                        (Some(b'}'), _) => {
                            self.bump()?;
                            self.place = ExportSection::Outer;
                        }
                        _ => return Err(ExportError::Expected("a record or a brace", self.at)),
                    }
                }
                ExportSection::End => return Ok(None),
            }
        }
    }

    /// Reads a member of the outer object up to its value; of a used member, up to the content of
    /// the value.
    fn member(&mut self) -> Result<(), ExportError> {
        self.name()?;
        match &std::mem::take(&mut self.text)[..] {
            b"\"handleRecords\"" => {
                self.symbol(b'{', "an object of records")?;
                self.place = ExportSection::First;
            }
            b"\"homedPrefixes\"" => {
                self.value(true)?;
                let list = serde_json::from_slice(&self.text);
                self.homed = list.map_err(|_| ExportError::Expected("a list of prefixes", self.at))?;
                self.homed.reverse();
            }
            _ => self.value(false)?,
        }
        Ok(())
    }

    /// Reads a member of the records. Its name is repeated in the record.
    fn record(&mut self) -> Result<Item<'_>, ExportError> {
        self.place = ExportSection::Records;
        self.name()?;
        self.value(true)?;
        match std::str::from_utf8(&self.text) {
            Ok(text) => Ok(Item::Record(text)),
            Err(_) => Err(ExportError::Expected("UTF-8", self.at)),
        }
    }

    /// Reads the name of a member and the colon after it.
    fn name(&mut self) -> Result<(), ExportError> {
        if self.peek()? != Some(b'"') {
            return Err(ExportError::Expected("a name", self.at));
        }
        self.value(true)?;
        self.symbol(b':', "a colon")
    }

    fn symbol(&mut self, symbol: u8, what: &'static str) -> Result<(), ExportError> {
        match self.bump()? {
            Some(byte) if byte == symbol => Ok(()),
            _ => Err(ExportError::Expected(what, self.at)),
        }
    }

    /// Takes the next byte that is not white space.
    fn bump(&mut self) -> io::Result<Option<u8>> {
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
    fn peek(&mut self) -> io::Result<Option<u8>> {
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
    fn value(&mut self, keeps: bool) -> Result<(), ExportError> {
        self.text.clear();
        self.peek()?;
        let (mut depth, mut is_string, mut is_escaped) = (0_u32, false, false);
        loop {
            let bytes = self.input.fill_buf()?;
            if bytes.is_empty() {
                return Err(ExportError::Expected("the rest of a value", self.at));
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
            if self.text.len() > TEXT_LEN_MAX {
                return Err(ExportError::TooLong(self.at));
            }
            if end.is_some() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::BufReader;

    fn read(text: &[u8], room: usize) -> Result<Vec<String>, ExportError> {
        let mut export = Export::new(BufReader::with_capacity(room, text));
        let mut items = Vec::new();
        while let Some(item) = export.next()? {
            items.push(match item {
                Item::Homed(prefix) => format!("homed {prefix}"),
                Item::Record(text) => text.to_owned(),
            });
        }
        Ok(items)
    }

    const EXPORT: &str = r#" {"version" : {"a":[1,"}"]}, "homedPrefixes" : ["0.NA/20.500.1","0.NA/10"],
 "handleRecords":{ "A" : {"handle":"a\"}","values":[]} ,"B\"":{"handle":"b"}, "" : 7 }, "n":1 ,"t":true} "#;

    #[test]
    fn records_come_one_by_one_however_the_bytes_come() {
        let expected = [
            "homed 0.NA/20.500.1",
            "homed 0.NA/10",
            r#"{"handle":"a\"}","values":[]}"#,
            r#"{"handle":"b"}"#,
            "7 ",
        ];
        for room in [1, 2, 7, 64, 1 << 16] {
            assert_eq!(read(EXPORT.as_bytes(), room).unwrap(), expected, "{room}");
        }
    }

    #[test]
    fn an_export_may_be_empty() {
        for text in ["{}", " { } ", r#"{"handleRecords":{}}"#, r#"{"homedPrefixes":[],"handleRecords":{ }}"#]
        {
            assert_eq!(read(text.as_bytes(), 64).unwrap(), [""; 0], "{text}");
        }
    }

    #[test]
    fn refuses_every_truncation() {
        let text = EXPORT.trim_end();
        for len in 0..text.len() {
            assert!(read(&text.as_bytes()[..len], 16).is_err(), "cut to {len}");
        }
    }

    #[test]
    fn what_is_no_export_is_refused() {
        for text in [
            "[]",
            "7",
            "{]",
            "{\"handleRecords\":[]}",
            "{\"homedPrefixes\":7}",
            "{} {}",
            "{,}",
            "{\"handleRecords\":{,}}",
            "{\"handleRecords\":{} \"a\":1}",
        ] {
            assert!(read(text.as_bytes(), 64).is_err(), "{text}");
        }
    }

    #[test]
    fn a_record_may_be_so_long_and_no_longer() {
        for (len, fits) in [(TEXT_LEN_MAX, true), (TEXT_LEN_MAX + 1, false)] {
            let text = format!("{{\"handleRecords\":{{\"a\":\"{}\"}}}}", "x".repeat(len - 2));
            assert_eq!(read(text.as_bytes(), 1 << 16).is_ok(), fits, "{len}");
        }
    }

    proptest! {
        #[test]
        fn what_json_reads_is_taken_apart_to_the_same(names in prop::collection::vec(".*", 0..6), prefixes: Vec<String>) {
            let mut records = serde_json::Map::new();
            for name in &names {
                records.insert(name.clone(), serde_json::json!({ "handle": name, "values": [[{"a": name}]] }));
            }
            let json = serde_json::json!({ "homedPrefixes": prefixes, "handleRecords": records.clone() });
            let items = read(json.to_string().as_bytes(), 5).unwrap();
            let homed = prefixes.iter().map(|prefix| format!("homed {prefix}"));
            let expected: Vec<_> = homed.chain(records.values().map(ToString::to_string)).collect();
            prop_assert_eq!(items, expected);
        }
    }
}
