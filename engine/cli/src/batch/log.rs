//! The log of a batch: one line of JSON before and one after each operation, so that an interrupted
//! run can be resumed.
//!
//! An operation with only the first line may or may not have been done. It is requested again, and
//! a result that shows that the operation was done counts as done. If the server could not do
//! anything, the second line says so, and the operation is treated as if it had never begun.

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

/// Permissions of a log. It holds handles and answers of servers, which only the owner may read.
pub(super) const MODE: u32 = 0o600;

/// The result of an operation. All but the last are final: a resumed run skips these operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LoggedResult {
    /// Done as requested.
    Done,
    /// The server refused the operation.
    Refused,
    /// The operation could not be requested, for example because a file does not exist.
    Failed,
    /// Nothing was done: the operation counts as not begun.
    Postponed,
}

/// A line of the log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LogLine {
    /// The line of the operation in the batch file.
    pub(super) line: u64,
    pub(super) operation: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) handle: Option<String>,
    /// Absent on the line that is written before the operation.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) result: Option<LoggedResult>,
    /// The response code of the server.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) message: Option<String>,
}

/// The version of the format of logs.
const VERSION: u32 = 1;

/// The part of the first line by which the version is known, whatever else it has.
#[derive(Deserialize)]
struct LogVersion {
    version: u32,
}

/// The first line, which identifies the batch file of this log.
///
/// The batch file may hold secrets that are easy to guess, and a plain digest would confirm a
/// guess. Each log therefore has its own key, so that digests cannot be precomputed or compared
/// between logs.
#[derive(Serialize, Deserialize)]
struct LogHeader {
    /// The version of the format.
    version: u32,
    /// The key, in hexadecimal.
    key: String,
    /// HMAC-SHA256 of the batch file under that key, in hexadecimal.
    batch: String,
}

/// The HMAC of the whole file. Afterwards the file is at its beginning again.
fn keyed_digest(key: &[u8], batch: &mut File) -> io::Result<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).map_err(io::Error::other)?;
    let mut buffer = vec![0; 1 << 16];
    batch.rewind()?;
    loop {
        match batch.read(&mut buffer)? {
            0 => break,
            len => mac.update(&buffer[..len]),
        }
    }
    batch.rewind()?;
    Ok(hex(&mac.finalize().into_bytes()))
}

/// The state of an earlier run: the result by line, or `None` for an operation that began but has
/// no result.
pub(super) type EarlierResults = HashMap<u64, Option<LoggedResult>>;

/// The log, open for appending.
pub(super) struct BatchLog(File);

impl BatchLog {
    /// Creates the log of a batch file, which must not exist yet. Only its owner may read it.
    pub(super) fn begin(path: &Path, batch: &mut File) -> anyhow::Result<Self> {
        let shown = path.display();
        let file = OpenOptions::new().append(true).create_new(true).mode(MODE).open(path);
        let mut log = Self(file.with_context(|| {
            format!(
                "cannot create the log {shown} (continue it with --resume, or choose another file with --log)"
            )
        })?);
        let key: [u8; 32] = handle_auth::random();
        let batch = keyed_digest(&key, batch).context("cannot read the batch file")?;
        log.write(&LogHeader { version: VERSION, key: hex(&key), batch })?;
        Ok(log)
    }

    /// Opens the log of an interrupted run and reads its results.
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
            // The last line may be incomplete, because the run was interrupted.
            if !line.ends_with('\n') {
                break;
            }
            whole_len += len as u64;
            if number == 1 {
                let header = read_header(&line, path)?;
                let key = data_encoding::HEXLOWER
                    .decode(header.key.as_bytes())
                    .ok()
                    .with_context(|| format!("{shown} is not the log of a batch"))?;
                let digest = keyed_digest(&key, batch).context("cannot read the batch file")?;
                ensure!(
                    header.batch == digest,
                    "{shown} belongs to another batch file, or the batch file has changed"
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
            bail!("{shown} is not the log of a batch");
        }
        drop(reader);
        file.set_len(whole_len)?;
        let mut file = OpenOptions::new().append(true).open(path)?;
        file.seek(SeekFrom::End(0))?;
        Ok((Self(file), earlier))
    }

    /// Appends a line. When this returns, the kernel has the line, so that it survives the process.
    pub(super) fn write(&mut self, line: &impl Serialize) -> anyhow::Result<()> {
        let text = serde_json::to_string(line)?;
        let line = format!("{}\n", Printable(text));
        self.0.write_all(line.as_bytes()).context("cannot write the log")
    }
}

/// Reads the first line of the log at `path`.
fn read_header(line: &str, path: &Path) -> anyhow::Result<LogHeader> {
    let shown = path.display();
    let not_a_log = || format!("{shown} is not the log of a batch");
    let LogVersion { version } = serde_json::from_str(line).with_context(not_a_log)?;
    ensure!(
        version == VERSION,
        "{shown} has format {version}, and this program reads format {VERSION}: resume with the version of hdl that \
         wrote it, or a later one"
    );
    serde_json::from_str(line).with_context(not_a_log)
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
        let there = format!("{:#}", BatchLog::begin(&path, &mut batch).map(drop).unwrap_err());
        assert!(there.contains("exists"), "{there}");
        let other = format!("{:#}", BatchLog::resume(&path, &mut batch_of("y")).map(drop).unwrap_err());
        assert!(other.contains("another batch"), "{other}");
        let header = std::fs::read_to_string(&path).unwrap();
        for text in ["", "x", "{}\n", "{\"key\":\"x\",\"batch\":\"\"}\n", &format!("{header}x\n")] {
            std::fs::write(&path, text).unwrap();
            assert!(BatchLog::resume(&path, &mut batch).is_err(), "{text:?}");
        }
    }
}
