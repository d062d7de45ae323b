//! The JSON export of a reference server: homed prefixes, and all records as members of one object.
//!
//! ```json
//! {"homedPrefixes":["0.NA/20.500.1"],
//!  "handleRecords":{"20.500.1/HELLO":{"handle":"20.500.1/HELLO","values":[]}}}
//! ```
//!
//! The object is as large as the store, so it is not parsed as a whole: the text around the records
//! is parsed byte by byte, and each record is returned as text.

use crate::json_scanner::JsonScanner;
pub use crate::json_scanner::{JsonTextError, TEXT_LEN_MAX};
use std::io::BufRead;

/// Reads an export from start to end.
#[derive(Debug)]
pub struct Export<R> {
    scanner: JsonScanner<R>,
    section: ExportSection,
    /// Homed prefixes that were not returned yet.
    homed: Vec<String>,
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

impl<R: BufRead> Export<R> {
    /// Reads `input`.
    pub const fn new(input: R) -> Self {
        Self::bounded(input, TEXT_LEN_MAX)
    }

    /// Reads `input`, whose records have at most `len_max` bytes.
    pub const fn bounded(input: R, len_max: usize) -> Self {
        Self { scanner: JsonScanner::new(input, len_max), section: ExportSection::Begin, homed: Vec::new() }
    }

    /// Bytes read so far.
    pub const fn at(&self) -> u64 {
        self.scanner.at()
    }

    /// The next prefix or record; `None` at the end.
    ///
    /// # Errors
    /// When the input is not such an export. Reading cannot continue then.
    #[expect(clippy::should_implement_trait, reason = "an item borrows from the reader")]
    pub fn next(&mut self) -> Result<Option<Item<'_>>, JsonTextError> {
        loop {
            if let Some(prefix) = self.homed.pop() {
                return Ok(Some(Item::Homed(prefix)));
            }
            match self.section {
                ExportSection::Begin => {
                    self.scanner.symbol(b'{', "an object")?;
                    self.section = ExportSection::Outer;
                    if self.scanner.peek()? != Some(b'}') {
                        self.member()?;
                    }
                }
                ExportSection::Outer => match self.scanner.bump()? {
                    Some(b',') => self.member()?,
                    Some(b'}') => match self.scanner.bump()? {
                        None => self.section = ExportSection::End,
                        Some(_) => return Err(JsonTextError::Expected("the end", self.at())),
                    },
                    _ => return Err(JsonTextError::Expected("a comma or a brace", self.at())),
                },
                ExportSection::First | ExportSection::Records => {
                    match (self.scanner.peek()?, self.section == ExportSection::First) {
                        // No comma precedes the first one.
                        (Some(b'"'), true) => return self.record().map(Some),
                        (Some(b','), false) => {
                            self.scanner.bump()?;
                            return self.record().map(Some);
                        }
                        (Some(b'}'), _) => {
                            self.scanner.bump()?;
                            self.section = ExportSection::Outer;
                        }
                        _ => return Err(JsonTextError::Expected("a record or a brace", self.at())),
                    }
                }
                ExportSection::End => return Ok(None),
            }
        }
    }

    /// Reads a member of the outer object up to its value; of a used member, up to the content of
    /// the value.
    fn member(&mut self) -> Result<(), JsonTextError> {
        self.name()?;
        match self.scanner.text() {
            b"\"handleRecords\"" => {
                self.scanner.symbol(b'{', "an object of records")?;
                self.section = ExportSection::First;
            }
            b"\"homedPrefixes\"" => {
                self.scanner.value(true)?;
                let list = serde_json::from_slice(self.scanner.text());
                self.homed = list.map_err(|_| JsonTextError::Expected("a list of prefixes", self.at()))?;
                self.homed.reverse();
            }
            _ => self.scanner.value(false)?,
        }
        Ok(())
    }

    /// Reads a member of the records. Its name is repeated in the record.
    fn record(&mut self) -> Result<Item<'_>, JsonTextError> {
        self.section = ExportSection::Records;
        self.name()?;
        self.scanner.value(true)?;
        match std::str::from_utf8(self.scanner.text()) {
            Ok(text) => Ok(Item::Record(text)),
            Err(_) => Err(JsonTextError::Expected("UTF-8", self.at())),
        }
    }

    /// Reads the name of a member and the colon after it.
    fn name(&mut self) -> Result<(), JsonTextError> {
        if self.scanner.peek()? != Some(b'"') {
            return Err(JsonTextError::Expected("a name", self.at()));
        }
        self.scanner.value(true)?;
        self.scanner.symbol(b':', "a colon")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::BufReader;

    fn read(text: &[u8], capacity: usize) -> Result<Vec<String>, JsonTextError> {
        let mut export = Export::new(BufReader::with_capacity(capacity, text));
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
        for capacity in [1, 2, 7, 64, 1 << 16] {
            assert_eq!(read(EXPORT.as_bytes(), capacity).unwrap(), expected, "{capacity}");
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
