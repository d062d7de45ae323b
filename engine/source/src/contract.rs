//! What back ends and programs say: records in the JSON of the HTTP API.
//!
//! An answer is about one handle and repeats its name, so that the answer to another question is
//! not taken for this one.

use crate::error::SourceError;
use handle_proto::json::RecordLine;
use handle_proto::{Handle, Values};
use handle_store::{RecordBuf, check_record};
use serde::{Deserialize, Serialize};

/// Reads the record of `key` from the body of an answer over HTTP. `folds` tells whether names that
/// differ in case are equal.
///
/// # Errors
/// When the body is no record, or one of another handle, or not one that can be served.
pub fn read_record(body: &[u8], key: &[u8], folds: bool) -> Result<RecordBuf, SourceError> {
    let text = str::from_utf8(body).map_err(|_| SourceError::Invalid("not UTF-8".to_owned()))?;
    let mut values = Vec::new();
    let line =
        RecordLine::parse(text, &mut values).map_err(|error| SourceError::Invalid(error.to_string()))?;
    if !Handle(line.handle.as_bytes()).is_same(Handle(key), folds) {
        return Err(SourceError::Invalid("the record of another handle".to_owned()));
    }
    checked_record(key, line.values_count, &values)
}

/// The record of `key` with `count` values in wire form.
///
/// # Errors
/// When it is not a record that can be served.
pub fn checked_record(key: &[u8], count: usize, values: &[u8]) -> Result<RecordBuf, SourceError> {
    let values =
        Values::from_encoded(count, values).map_err(|error| SourceError::Invalid(error.to_string()))?;
    check_record(key, values.iter()).map_err(|unfit| SourceError::Invalid(unfit.to_string()))?;
    Ok(RecordBuf::unlogged(values))
}

/// A question to a program: one line.
#[derive(Debug, Serialize)]
struct ProgramQuestion<'a> {
    id: u64,
    handle: &'a str,
}

/// The line that asks a program for the record of `key`.
///
/// # Errors
/// When the name is not UTF-8, which JSON cannot express.
pub fn question_line(id: u64, key: &[u8]) -> Result<String, SourceError> {
    let handle =
        str::from_utf8(key).map_err(|_| SourceError::Invalid("a name that is not UTF-8".to_owned()))?;
    let line = serde_json::to_string(&ProgramQuestion { id, handle });
    line.map(|line| line + "\n").map_err(|error| SourceError::Invalid(error.to_string()))
}

/// The members of an answer of a program besides its record.
#[derive(Debug, Deserialize)]
struct AnswerHead {
    id: u64,
    #[serde(rename = "responseCode")]
    response_code: Option<i64>,
    message: Option<String>,
}

/// An answer of a program: one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramAnswer<'a> {
    /// The number of the question.
    pub id: u64,
    /// What it says.
    pub outcome: ProgramOutcome<'a>,
}

/// What a program says about a handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramOutcome<'a> {
    /// This is its record: a line for [`read_record`].
    Record(&'a [u8]),
    /// There is no such handle (`responseCode` 100).
    NoHandle,
    /// It cannot say (any other `responseCode`), with its `message`.
    Failure(String),
}

impl<'a> ProgramAnswer<'a> {
    /// Reads a line.
    ///
    /// # Errors
    /// When it is not JSON, or has no number.
    pub fn parse(line: &'a [u8]) -> Result<Self, SourceError> {
        let head: AnswerHead =
            serde_json::from_slice(line).map_err(|error| SourceError::Invalid(error.to_string()))?;
        let outcome = match head.response_code {
            None | Some(1) => ProgramOutcome::Record(line),
            Some(100) => ProgramOutcome::NoHandle,
            Some(code) => ProgramOutcome::Failure(match head.message {
                Some(message) => message.chars().take(200).collect(),
                None => format!("`responseCode` {code}"),
            }),
        };
        Ok(Self { id: head.id, outcome })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = r#"{"responseCode":1,"handle":"10.1/a","values":[
        {"index":1,"type":"URL","data":{"format":"string","value":"https://a.example/"},"ttl":60},
        {"index":2,"type":"NOTE","data":"hidden","permissions":"1100"}]}"#;

    #[test]
    fn a_record_is_that_of_the_handle() {
        let record = read_record(BODY.as_bytes(), b"10.1/A", true).unwrap();
        let values: Vec<_> = record.view().values.iter().collect();
        assert_eq!(
            (values.len(), values[0].data, values[0].ttl.seconds),
            (2, &b"https://a.example/"[..], 60)
        );
        assert!(!values[1].is_public());
        for (key, folds) in [(&b"10.1/B"[..], true), (b"10.1/A", false)] {
            let error = read_record(BODY.as_bytes(), key, folds).unwrap_err();
            assert!(matches!(&error, SourceError::Invalid(why) if why.contains("another")), "{error}");
        }
    }

    #[test]
    fn what_breaks_the_contract_is_refused() {
        let value = r#"{"index":1,"type":"URL","data":"x"}"#;
        for body in [
            String::new(),
            "<html>".to_owned(),
            "[]".to_owned(),
            r#"{"handle":"10.1/A"}"#.to_owned(),
            format!(r#"{{"values":[{value}]}}"#),
            format!(r#"{{"handle":"10.1/A","values":[{value},{value}]}}"#),
            format!(r#"{{"handle":"10.1/A","values":[{}]}}"#, value.replace(":1", ":0")),
            format!(r#"{{"handle":"10.1/A","values":[{value}]}} {{}}"#),
            "[".repeat(100_000),
        ] {
            let read = read_record(body.as_bytes(), b"10.1/A", true);
            assert!(matches!(read, Err(SourceError::Invalid(_))), "{:.100}: {read:?}", body);
        }
        assert!(read_record(b"\xff", b"10.1/A", true).is_err());
        let values: Vec<String> = (1..=2049).map(|at| value.replace(":1", &format!(":{at}"))).collect();
        let body =
            |count: usize| format!(r#"{{"handle":"10.1/A","values":[{}]}}"#, values[..count].join(","));
        assert!(read_record(body(2048).as_bytes(), b"10.1/A", true).is_ok());
        let many = read_record(body(2049).as_bytes(), b"10.1/A", true);
        assert!(matches!(&many, Err(SourceError::Invalid(why)) if why.contains("2048")), "{many:?}");
    }

    #[test]
    fn lines_of_programs_have_numbers() {
        fn parse(line: &str) -> Result<(u64, ProgramOutcome<'_>), SourceError> {
            ProgramAnswer::parse(line.as_bytes()).map(|answer| (answer.id, answer.outcome))
        }
        assert_eq!(parse(r#"{"id":7,"responseCode":100}"#), Ok((7, ProgramOutcome::NoHandle)));
        let failure = |text: &str| ProgramOutcome::Failure(text.to_owned());
        assert_eq!(parse(r#"{"id":8,"responseCode":2,"message":"no disk"}"#), Ok((8, failure("no disk"))));
        assert_eq!(parse(r#"{"id":8,"responseCode":2}"#), Ok((8, failure("`responseCode` 2"))));
        let line = r#"{"id":9,"handle":"10.1/A","values":[]}"#;
        assert_eq!(parse(line), Ok((9, ProgramOutcome::Record(line.as_bytes()))));
        for line in ["", "x", "{}", r#"{"id":-1}"#, r#"{"id":"7"}"#, r#"{"id":1}{"id":2}"#] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert_eq!(question_line(3, b"10.1/\"\n").unwrap(), "{\"id\":3,\"handle\":\"10.1/\\\"\\n\"}\n");
        assert!(question_line(3, b"10.1/\xff").is_err());
    }
}
