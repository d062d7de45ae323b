//! Listings of all records and of changes: what a source whose records are copied says, line by
//! line, or row by row.
//!
//! A page ends with a line that says so. Without it, the page has broken off, however the
//! connection ended.

use crate::error::SourceError;
use handle_proto::Values;
use handle_proto::json::RecordLine;
use handle_store::{RecordBuf, check_record};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer as _, Serialize};
use std::fmt;

/// Most bytes of the name of a cursor in a listing or among changes.
pub const CURSOR_LEN_MAX: usize = 1024;

/// A source that lists its records.
pub trait ListedSource: fmt::Debug + Send {
    /// Begins a page of all records: the first one, or that after the cursor `after`.
    ///
    /// # Errors
    /// When the source does not answer, or refuses to.
    fn list<'s>(&'s mut self, after: Option<&str>) -> Result<Box<dyn SourcePage + 's>, SourceError>;

    /// Begins a page of the changes since the cursor `since`. Without it, the page has no changes
    /// and ends with the present cursor.
    ///
    /// # Errors
    /// When the source does not answer, or refuses to.
    fn changes<'s>(&'s mut self, since: Option<&str>) -> Result<Box<dyn SourcePage + 's>, SourceError>;
}

/// A page that is being read.
pub trait SourcePage {
    /// The next item. Nothing follows one that ends the page.
    ///
    /// # Errors
    /// When the page breaks off, or is not what a page can be.
    fn next_item(&mut self) -> Result<PageItem, SourceError>;
}

/// An item of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageItem {
    /// The record of this handle.
    Record(Vec<u8>, RecordBuf),
    /// This handle does not exist, or not any more.
    Absent(Vec<u8>),
    /// A record that cannot be stored.
    Unfit(UnfitItem),
    /// The page is over.
    End(PageEnd),
    /// The cursor is too old: changes since then are not known any more.
    Expired,
    /// The source does not report changes.
    NoChanges,
}

/// A record that cannot be stored, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfitItem {
    /// Its handle; `None` if the line is too long to find it.
    pub handle: Option<Vec<u8>>,
    /// The reason, for the log.
    pub why: String,
}

/// The end of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageEnd {
    /// The cursor up to which the page goes.
    pub cursor: Option<String>,
    /// Whether there is another page.
    pub has_more: bool,
}

/// A page that consists of one item.
#[derive(Debug)]
pub(crate) struct SingleItem(pub(crate) PageItem);

impl SourcePage for SingleItem {
    fn next_item(&mut self) -> Result<PageItem, SourceError> {
        Ok(self.0.clone())
    }
}

/// The members of a line besides its values.
#[derive(Debug, Deserialize)]
struct LineHead {
    id: Option<u64>,
    handle: Option<String>,
    #[serde(rename = "responseCode")]
    response_code: Option<i64>,
    message: Option<String>,
    cursor: Option<String>,
    more: Option<bool>,
    #[serde(default)]
    expired: bool,
}

/// A line of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedLine {
    /// The number of the question that it answers, in lines of programs.
    pub id: Option<u64>,
    /// What it says.
    pub item: PageItem,
}

impl ListedLine {
    /// Reads a line.
    ///
    /// # Errors
    /// When it is not JSON, says nothing that is known, or that the source cannot answer.
    pub fn parse(line: &[u8]) -> Result<Self, SourceError> {
        let text = str::from_utf8(line).map_err(|_| SourceError::Invalid("not UTF-8".to_owned()))?;
        let head: LineHead =
            serde_json::from_str(text).map_err(|error| SourceError::Invalid(error.to_string()))?;
        let id = head.id;
        let item = match (head.handle, head.response_code) {
            (Some(handle), None | Some(1)) => read_listed(handle, text),
            (Some(handle), Some(100)) => PageItem::Absent(handle.into_bytes()),
            (Some(handle), Some(code)) => unfit(handle, refusal(code, head.message)),
            (None, Some(5)) => PageItem::NoChanges,
            (None, Some(code)) if code != 1 => return Err(SourceError::Refused(refusal(code, head.message))),
            (None, _) if head.expired => PageItem::Expired,
            (None, _) => match head.more {
                Some(has_more) => PageItem::End(PageEnd { cursor: checked_cursor(head.cursor)?, has_more }),
                None => return Err(SourceError::Invalid("a line without `handle` and `more`".to_owned())),
            },
        };
        Ok(Self { id, item })
    }

    /// The item for a line of which only the start is known, because it is too long.
    #[must_use]
    pub fn too_long(start: &[u8]) -> UnfitItem {
        let handle = handle_at_start(start).map(String::into_bytes);
        UnfitItem { handle, why: SourceError::TooLong.to_string() }
    }
}

fn refusal(code: i64, message: Option<String>) -> String {
    message.map_or_else(|| format!("`responseCode` {code}"), |message| message.chars().take(200).collect())
}

fn unfit(handle: String, why: String) -> PageItem {
    PageItem::Unfit(UnfitItem { handle: Some(handle.into_bytes()), why })
}

/// The record in a line that is about `handle`.
fn read_listed(handle: String, text: &str) -> PageItem {
    let mut encoded = Vec::new();
    let line = match RecordLine::parse(text, &mut encoded) {
        Ok(line) => line,
        Err(error) => return unfit(handle, error.to_string()),
    };
    listed_record(handle.into_bytes(), line.values_count, &encoded)
}

/// The item of a record with `count` values in wire form.
pub(crate) fn listed_record(handle: Vec<u8>, count: usize, encoded: &[u8]) -> PageItem {
    let unfit = |handle, why| PageItem::Unfit(UnfitItem { handle: Some(handle), why });
    let values = match Values::from_encoded(count, encoded) {
        Ok(values) => values,
        Err(error) => return unfit(handle, error.to_string()),
    };
    match check_record(&handle, values.iter()) {
        Ok(()) => PageItem::Record(handle, RecordBuf::unlogged(values)),
        Err(why) => unfit(handle, why.to_string()),
    }
}

/// A cursor within its bound.
///
/// # Errors
/// When it is too long, or has characters that not all kinds of sources can be told.
pub(crate) fn checked_cursor(cursor: Option<String>) -> Result<Option<String>, SourceError> {
    match &cursor {
        Some(text) if text.len() > CURSOR_LEN_MAX || text.chars().any(char::is_control) => {
            let why = format!("a `cursor` of more than {CURSOR_LEN_MAX} bytes, or with control characters");
            Err(SourceError::Invalid(why))
        }
        _ => Ok(cursor),
    }
}

/// The value of `handle` in the start of an object, if it is complete there.
fn handle_at_start(start: &[u8]) -> Option<String> {
    struct HandleVisitor<'f>(&'f mut Option<String>);

    impl<'de> Visitor<'de> for HandleVisitor<'_> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(name) = map.next_key::<String>()? {
                if name == "handle" {
                    *self.0 = Some(map.next_value()?);
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(())
        }
    }

    let mut found = None;
    // The start of an object ends in an error, behind what was found.
    let _ = serde_json::Deserializer::from_slice(start).deserialize_map(HandleVisitor(&mut found));
    found
}

/// A question to a program for a page: one line.
#[derive(Debug, Default, Serialize)]
struct PageQuestion<'a> {
    id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    list: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<&'a str>,
}

/// The line that asks a program for a page of all records, or of the changes.
pub(crate) fn page_question(id: u64, is_listing: bool, cursor: Option<&str>) -> Result<String, SourceError> {
    let question = match is_listing {
        true => PageQuestion { id, list: Some(true), after: cursor, ..PageQuestion::default() },
        false => PageQuestion { id, changes: Some(true), since: cursor, ..PageQuestion::default() },
    };
    let line = serde_json::to_string(&question);
    line.map(|line| line + "\n").map_err(|error| SourceError::Invalid(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(line: &str) -> Result<PageItem, SourceError> {
        ListedLine::parse(line.as_bytes()).map(|line| line.item)
    }

    fn unfit_of(line: &str) -> UnfitItem {
        match item(line) {
            Ok(PageItem::Unfit(unfit)) => unfit,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn lines_are_records_deletions_or_the_end() {
        let value = r#"{"index":1,"type":"URL","data":"x"}"#;
        let line = format!(r#"{{"id":7,"handle":"10.1/a","values":[{value}]}}"#);
        let read = ListedLine::parse(line.as_bytes()).unwrap();
        let PageItem::Record(handle, record) = read.item else { panic!("{line}") };
        assert_eq!((read.id, &handle[..], record.view().values.len()), (Some(7), &b"10.1/a"[..], 1));
        assert_eq!(
            item(r#"{"handle":"10.1/a","responseCode":100}"#),
            Ok(PageItem::Absent(b"10.1/a".to_vec()))
        );
        let end = |cursor: Option<&str>, has_more| {
            Ok(PageItem::End(PageEnd { cursor: cursor.map(str::to_owned), has_more }))
        };
        assert_eq!(item(r#"{"cursor":"7","more":true}"#), end(Some("7"), true));
        assert_eq!(item(r#"{"more":false}"#), end(None, false));
        assert_eq!(item(r#"{"expired":true}"#), Ok(PageItem::Expired));
        assert_eq!(item(r#"{"responseCode":5}"#), Ok(PageItem::NoChanges));
    }

    #[test]
    fn a_record_that_cannot_be_stored_is_named_and_other_lines_end_the_page() {
        let value = r#"{"index":1,"type":"URL","data":"x"}"#;
        for (line, why) in [
            (format!(r#"{{"handle":"10.1/a","values":[{value},{value}]}}"#), "index 1"),
            (format!(r#"{{"handle":"10.1/a","values":[{}]}}"#, value.replace(":1", ":0")), "below 1"),
            (r#"{"handle":"10.1/a","values":7}"#.to_owned(), ""),
            (r#"{"handle":"10.1/a"}"#.to_owned(), "values"),
            (r#"{"handle":"10.1/a","responseCode":2,"message":"no disk"}"#.to_owned(), "no disk"),
        ] {
            let unfit = unfit_of(&line);
            assert_eq!(unfit.handle.as_deref(), Some(&b"10.1/a"[..]), "{line}");
            assert!(unfit.why.contains(why), "{line}: {}", unfit.why);
        }
        for line in ["", "x", "{}", "[]", r#"{"cursor":"7"}"#, r#"{"handle":"10.1/a","values":[]"#, "<html>"]
        {
            assert!(matches!(item(line), Err(SourceError::Invalid(_))), "{line}");
        }
        assert_eq!(item(r#"{"responseCode":2}"#), Err(SourceError::Refused("`responseCode` 2".to_owned())));
        for (cursor, is_read) in [
            ("x".repeat(CURSOR_LEN_MAX), true),
            ("x".repeat(CURSOR_LEN_MAX + 1), false),
            ("\\n".into(), false),
        ] {
            assert_eq!(item(&format!(r#"{{"cursor":"{cursor}","more":true}}"#)).is_ok(), is_read, "{cursor}");
        }
    }

    #[test]
    fn the_handle_of_a_line_that_is_too_long_is_found_at_its_start() {
        for (start, handle) in [
            (r#"{"handle":"10.1/a","values":[{"index":1,"ty"#, Some("10.1/a")),
            (r#"{"id":7,"handle":"10.1/a"}"#, Some("10.1/a")),
            (r#"{"handle":"10.1/a"#, None),
            (r#"{"values":[{"index":1"#, None),
            ("xxxx", None),
        ] {
            let found = ListedLine::too_long(start.as_bytes()).handle;
            assert_eq!(found.as_deref(), handle.map(str::as_bytes), "{start}");
        }
    }

    #[test]
    fn questions_for_pages_are_lines() {
        let question = |is_listing, cursor| page_question(3, is_listing, cursor).unwrap();
        assert_eq!(question(true, None), "{\"id\":3,\"list\":true}\n");
        assert_eq!(question(true, Some("a\"")), "{\"id\":3,\"list\":true,\"after\":\"a\\\"\"}\n");
        assert_eq!(question(false, None), "{\"id\":3,\"changes\":true}\n");
        assert_eq!(question(false, Some("7")), "{\"id\":3,\"changes\":true,\"since\":\"7\"}\n");
    }
}
