//! The log of a batch: one line of JSON before and one after each operation, so that a run that was interrupted
//! can go on where it ended.
//!
//! An operation of which only the first line is there may have been done or not: it is asked for once more, and what
//! is found done already then counts as done. Where the server could do nothing, the second line says so: then the
//! operation is asked for as if it had not been begun.

use crate::output::hex;
use anyhow::{Context as _, bail, ensure};
use handle_proto::printable::Printable;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::collections::HashMap;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Permissions of a log: handles, and what servers say of them, are its owner's alone.
pub(super) const MODE: u32 = 0o600;

/// What came of an operation. All but the last are final: a run that goes on passes them over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LoggedResult {
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
pub(super) struct LogLine {
    /// Line of the operation in the batch file.
    pub(super) line: u64,
    pub(super) operation: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) handle: Option<String>,
    /// Not there yet when the operation begins.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) result: Option<LoggedResult>,
    /// Response code of the server.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) message: Option<String>,
}

/// The first line: which batch file this is the log of.
///
/// The file may hold secrets that are easily guessed, and a plain digest of it would confirm a guess;
/// each log has a key of its own, so that nothing can be computed beforehand or compared between logs.
#[derive(Serialize, Deserialize)]
struct LogHeader {
    /// The key, in hexadecimal.
    key: String,
    /// HMAC-SHA256 of the batch file under that key, in hexadecimal.
    batch: String,
}

/// The HMAC of the whole file, which is then at its beginning again.
fn keyed_digest(key: &[u8], batch: &mut File) -> io::Result<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).map_err(io::Error::other)?;
    let mut room = vec![0; 1 << 16];
    batch.rewind()?;
    loop {
        match batch.read(&mut room)? {
            0 => break,
            len => mac.update(&room[..len]),
        }
    }
    batch.rewind()?;
    Ok(hex(&mac.finalize().into_bytes()))
}

/// What an earlier run has come to: by line, the result, or `None` where an operation was begun.
pub(super) type EarlierResults = HashMap<u64, Option<LoggedResult>>;

/// The log, open for more.
pub(super) struct BatchLog(File);

impl BatchLog {
    /// Begins the log of a batch file; there must be none. It is its owner's alone.
    pub(super) fn begin(path: &Path, batch: &mut File) -> anyhow::Result<Self> {
        let shown = path.display();
        let file = OpenOptions::new().append(true).create_new(true).mode(MODE).open(path);
        let mut log = Self(file.with_context(|| {
            format!("cannot begin the log {shown} (--resume goes on where it ends, --log names another)")
        })?);
        let key: [u8; 32] = handle_auth::random();
        let batch = keyed_digest(&key, batch).context("cannot read the batch file")?;
        log.write(&LogHeader { key: hex(&key), batch })?;
        Ok(log)
    }

    /// Opens the log of a run that was interrupted, and reads what that has come to.
    pub(super) fn resume(path: &Path, batch: &mut File) -> anyhow::Result<(Self, EarlierResults)> {
        let shown = path.display();
        let mut file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.as_mut().map_err(|error| anyhow::anyhow!("cannot open the log {shown}: {error}"))?;
        file.set_permissions(Permissions::from_mode(MODE))
            .with_context(|| format!("cannot set the permissions of {shown}"))?;
        let mut reader = BufReader::new(&*file);
        let (mut earlier, mut line, mut whole_len) = (EarlierResults::new(), String::new(), 0_u64);
        for number in 1.. {
            line.clear();
            let len = reader.read_line(&mut line).with_context(|| format!("{shown}:{number}"))?;
            // The last line may have been cut by whatever ended the run.
            if !line.ends_with('\n') {
                break;
            }
            whole_len += len as u64;
            if number == 1 {
                let header: LogHeader =
                    serde_json::from_str(&line).with_context(|| format!("{shown} is no log of a batch"))?;
                let key = data_encoding::HEXLOWER
                    .decode(header.key.as_bytes())
                    .ok()
                    .with_context(|| format!("{shown} is no log of a batch"))?;
                let digest = keyed_digest(&key, batch).context("cannot read the batch file")?;
                ensure!(
                    header.batch == digest,
                    "{shown} is the log of another batch file, or of one that has changed"
                );
                continue;
            }
            let entry: LogLine = serde_json::from_str(&line).with_context(|| format!("{shown}:{number}"))?;
            match entry.result {
                Some(LoggedResult::Postponed) => earlier.remove(&entry.line),
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
        let text = serde_json::to_string(line)?;
        let line = format!("{}\n", Printable(text));
        self.0.write_all(line.as_bytes()).context("cannot write the log")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(line: u64, result: Option<LoggedResult>) -> LogLine {
        LogLine { line, operation: "create".to_owned(), handle: None, result, code: None, message: None }
    }

    fn batch_of(text: &str) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_log_is_its_owners_alone_and_confirms_no_guess_of_the_batch() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("log"), directory.path().join("other"));
        let mut batch = batch_of("AUTHENTICATE SECKEY:301:10.1/a\n1234\n");
        for path in [&path, &other] {
            drop(BatchLog::begin(path, &mut batch).unwrap());
        }
        assert_eq!(mode(&path), 0o600);
        let header = |path| -> LogHeader { serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap() };
        assert_ne!(header(&path).batch, header(&other).batch, "each log has a key of its own");
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        BatchLog::resume(&path, &mut batch).unwrap();
        assert_eq!(mode(&path), 0o600, "also one that was begun otherwise");
    }

    #[test]
    fn a_log_is_read_up_to_where_it_was_cut() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut batch = batch_of("x");
        let mut log = BatchLog::begin(&path, &mut batch).unwrap();
        log.write(&entry(1, None)).unwrap();
        log.write(&entry(1, Some(LoggedResult::Done))).unwrap();
        log.write(&entry(5, None)).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let last_len = whole[..whole.len() - 1].iter().rev().take_while(|&&byte| byte != b'\n').count() + 1;
        for cut in 0..=last_len {
            std::fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            let (mut log, earlier) = BatchLog::resume(&path, &mut batch).unwrap();
            assert_eq!(earlier.get(&1), Some(&Some(LoggedResult::Done)), "{cut}");
            assert_eq!(earlier.get(&5), (cut == 0).then_some(&None), "{cut}");
            log.write(&entry(9, Some(LoggedResult::Refused))).unwrap();
            let (_, earlier) = BatchLog::resume(&path, &mut batch).unwrap();
            assert_eq!(earlier.get(&9), Some(&Some(LoggedResult::Refused)), "{cut}");
        }
    }

    #[test]
    fn what_was_postponed_was_not_begun() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut batch = batch_of("x");
        let mut log = BatchLog::begin(&path, &mut batch).unwrap();
        for (result, expected) in
            [(None, Some(None)), (Some(LoggedResult::Postponed), None), (None, Some(None))]
        {
            log.write(&entry(1, result)).unwrap();
            let (_, earlier) = BatchLog::resume(&path, &mut batch).unwrap();
            assert_eq!(earlier.get(&1), expected.as_ref(), "{result:?}");
        }
    }

    #[test]
    fn the_log_of_another_batch_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut batch = batch_of("x");
        drop(BatchLog::begin(&path, &mut batch).unwrap());
        assert!(BatchLog::begin(&path, &mut batch).is_err(), "it is there");
        assert!(BatchLog::resume(&path, &mut batch_of("y")).is_err());
        let header = std::fs::read_to_string(&path).unwrap();
        for text in ["", "x", "{}\n", "{\"key\":\"x\",\"batch\":\"\"}\n", &format!("{header}x\n")] {
            std::fs::write(&path, text).unwrap();
            assert!(BatchLog::resume(&path, &mut batch).is_err(), "{text:?}");
        }
    }
}
