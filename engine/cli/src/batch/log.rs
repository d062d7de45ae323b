//! The log of a batch: one line of JSON before and one after each operation, so that a run that was interrupted
//! can go on where it ended.
//!
//! An operation of which only the first line is there may have been done or not: it is asked for once more, and what
//! is found done already then counts as done. Where the server could do nothing, the second line says so: then the
//! operation is asked for as if it had not been begun.

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom, Write as _};
use std::path::Path;

/// What came of an operation. All but the last are final: a run that goes on passes them over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Result {
    /// As asked.
    Done,
    /// The server said no.
    Refused,
    /// It could not be asked for, as when a file is not there.
    Failed,
    /// Nothing was done: it is as if it had not been begun.
    Postponed,
}

/// A line of the log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    /// Line of the operation in the batch file.
    pub(super) line: u64,
    pub(super) operation: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) handle: Option<String>,
    /// Not there yet when the operation begins.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) result: Option<Result>,
    /// Response code of the server.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) message: Option<String>,
}

/// The first line.
#[derive(Serialize, Deserialize)]
struct Header {
    /// SHA-256 of the batch file.
    batch: String,
}

/// What an earlier run has come to: by line, the result, or `None` where an operation was begun.
pub(super) type Earlier = HashMap<u64, Option<Result>>;

/// The log, open for more.
pub(super) struct Log(File);

impl Log {
    /// Begins a log; there must be none.
    pub(super) fn begin(path: &Path, batch: String) -> anyhow::Result<Self> {
        let shown = path.display();
        let file = OpenOptions::new().append(true).create_new(true).open(path);
        let mut log = Self(file.with_context(|| {
            format!("cannot begin the log {shown} (--resume goes on where it ends, --log names another)")
        })?);
        log.write(&Header { batch })?;
        Ok(log)
    }

    /// Opens the log of a run that was interrupted, and reads what that has come to.
    pub(super) fn resume(path: &Path, batch: &str) -> anyhow::Result<(Self, Earlier)> {
        let shown = path.display();
        let mut file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.as_mut().map_err(|error| anyhow::anyhow!("cannot open the log {shown}: {error}"))?;
        let mut reader = BufReader::new(&*file);
        let (mut earlier, mut line, mut whole_len) = (Earlier::new(), String::new(), 0_u64);
        for number in 1.. {
            line.clear();
            let len = reader.read_line(&mut line).with_context(|| format!("{shown}:{number}"))?;
            // The last line may have been cut by whatever ended the run.
            if !line.ends_with('\n') {
                break;
            }
            whole_len += len as u64;
            if number == 1 {
                let header: Header =
                    serde_json::from_str(&line).with_context(|| format!("{shown} is no log of a batch"))?;
                ensure!(
                    header.batch == batch,
                    "{shown} is the log of another batch file, or of one that has changed"
                );
                continue;
            }
            let entry: Entry = serde_json::from_str(&line).with_context(|| format!("{shown}:{number}"))?;
            match entry.result {
                Some(Result::Postponed) => earlier.remove(&entry.line),
                result => earlier.insert(entry.line, result),
            };
        }
        if whole_len == 0 {
            bail!("{shown} is no log of a batch");
        }
        drop(reader);
        file.set_len(whole_len)?;
        let mut file = OpenOptions::new().append(true).open(path)?;
        file.seek(SeekFrom::End(0))?;
        Ok((Self(file), earlier))
    }

    /// Appends a line. It is the kernel's when this returns, so that it survives the process.
    pub(super) fn write(&mut self, line: &impl Serialize) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.0.write_all(&text).context("cannot write the log")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(line: u64, result: Option<Result>) -> Entry {
        Entry { line, operation: "create".to_owned(), handle: None, result, code: None, message: None }
    }

    #[test]
    fn a_log_is_read_up_to_where_it_was_cut() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = Log::begin(&path, "hash".to_owned()).unwrap();
        log.write(&entry(1, None)).unwrap();
        log.write(&entry(1, Some(Result::Done))).unwrap();
        log.write(&entry(5, None)).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let last_len = whole[..whole.len() - 1].iter().rev().take_while(|&&byte| byte != b'\n').count() + 1;
        for cut in 0..=last_len {
            std::fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            let (mut log, earlier) = Log::resume(&path, "hash").unwrap();
            assert_eq!(earlier.get(&1), Some(&Some(Result::Done)), "{cut}");
            assert_eq!(earlier.get(&5), (cut == 0).then_some(&None), "{cut}");
            log.write(&entry(9, Some(Result::Refused))).unwrap();
            let (_, earlier) = Log::resume(&path, "hash").unwrap();
            assert_eq!(earlier.get(&9), Some(&Some(Result::Refused)), "{cut}");
        }
    }

    #[test]
    fn what_was_postponed_was_not_begun() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = Log::begin(&path, "hash".to_owned()).unwrap();
        for (result, expected) in [(None, Some(None)), (Some(Result::Postponed), None), (None, Some(None))] {
            log.write(&entry(1, result)).unwrap();
            let (_, earlier) = Log::resume(&path, "hash").unwrap();
            assert_eq!(earlier.get(&1), expected.as_ref(), "{result:?}");
        }
    }

    #[test]
    fn the_log_of_another_batch_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        drop(Log::begin(&path, "hash".to_owned()).unwrap());
        assert!(Log::begin(&path, "hash".to_owned()).is_err(), "it is there");
        assert!(Log::resume(&path, "other").is_err());
        for text in ["", "x", "{}\n", "{\"batch\":\"hash\"}\nx\n"] {
            std::fs::write(&path, text).unwrap();
            assert!(Log::resume(&path, "hash").is_err(), "{text:?}");
        }
    }
}
