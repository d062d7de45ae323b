//! The audit log: one line for each administrative request, with requester, source and result. It
//! contains no secrets.
//!
//! Anyone who can connect can cause refusals without limit. The lines of requests that were
//! refused, needed no signature or changed nothing are therefore bounded: in number, for each
//! source and in total, and in bytes. Lines left out are counted, and a summary line reports their
//! number (`bounds`). A change always gets its line.
//!
//! The file is rotated when it reaches its maximum size ([`file`]). When its disk is nearly full,
//! bounded lines are left out; when the disk is full, lines of changes go to the log of the
//! process, and are counted as lost.

mod bounds;
mod file;

pub use bounds::AuditBounds;
pub use file::FileBounds;

use anyhow::Context as _;
use bounds::{BoundedKind, BoundsSummary, LineGate};
use file::AuditFile;
use handle_auth::source;
use handle_proto::limit::HANDLE_LEN_MAX;
use handle_proto::wire::list::Reference;
use handle_proto::{Handle, OpCode, ResponseCode};
use serde::Serialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum bytes of the text of a refusal in a line.
const WHY_LEN_MAX: usize = 512;
/// Maximum bytes of a name in a bounded line.
const NAME_LEN_MAX: usize = 256;
/// Interval at which the number of lines left out is reported.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(60);

/// One line of the audit log.
#[derive(Clone, Copy, Debug)]
pub struct AuditLine<'a> {
    /// The address of the client.
    pub source: SocketAddr,
    /// The identity of the requester, proven or claimed; the result tells which.
    pub identity: Option<Reference<'a>>,
    /// The operation.
    pub op_code: OpCode,
    /// The handle of the request.
    pub handle: &'a [u8],
    /// The response code.
    pub code: ResponseCode,
    /// The text of a refusal.
    pub text: &'a str,
    /// Whether the request changed the store.
    pub changed: bool,
}

impl AuditLine<'_> {
    /// Why the line is bounded; `None` for a line that is always written.
    fn bounded(&self) -> Option<BoundedKind> {
        if self.code != ResponseCode::SUCCESS {
            Some(BoundedKind::Refused)
        } else if self.identity.is_none() {
            Some(BoundedKind::Anonymous)
        } else if !self.changed && self.op_code.changes_records() {
            Some(BoundedKind::Unchanged)
        } else {
            None
        }
    }
}

/// The audit log.
#[derive(Debug)]
pub struct Audit {
    target: Mutex<AuditTarget>,
    gate: Mutex<LineGate>,
    summarised: Mutex<Instant>,
    is_disk_low: AtomicBool,
    written: AtomicU64,
    left_out: AtomicU64,
    lost: AtomicU64,
}

/// The destination of lines.
#[derive(Debug, Default)]
pub struct AuditTarget(Option<AuditFile>);

impl AuditTarget {
    /// Opens the file at `path` for appending, readable only by its owner; without a path, lines go
    /// to the log of the process.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn open(path: Option<&Path>, bounds: FileBounds) -> anyhow::Result<Self> {
        let opened = |path: &Path| {
            AuditFile::open(path, bounds)
                .with_context(|| format!("cannot write the audit log {}", path.display()))
        };
        path.map(opened).transpose().map(Self)
    }

    fn path(&self) -> Option<PathBuf> {
        self.0.as_ref().map(|file| file.path().to_owned())
    }
}

#[derive(Serialize)]
struct AuditJson<'a> {
    time: String,
    source: SocketAddr,
    identity: Option<String>,
    operation: String,
    handle: String,
    code: i32,
    result: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    why: &'a str,
}

impl Audit {
    /// Opens the audit log. Lines are appended to the file at `path`, readable only by its owner;
    /// without a path, they go to the log of the process.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn open(path: Option<&Path>, files: FileBounds, bounds: AuditBounds) -> anyhow::Result<Self> {
        Ok(Self {
            target: Mutex::new(AuditTarget::open(path, files)?),
            gate: Mutex::new(LineGate::new(bounds)),
            summarised: Mutex::new(Instant::now()),
            is_disk_low: AtomicBool::new(false),
            written: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        })
    }

    /// Puts another destination and other limits in force.
    pub fn put_in_force(&self, target: AuditTarget, bounds: AuditBounds) {
        *self.target() = target;
        self.gate().set(bounds);
    }

    /// Writes a summary if one is due, and opens the file again after another program has renamed
    /// it.
    ///
    /// # Errors
    /// When the file cannot be opened; lines continue to go to the old one.
    pub fn reopen(&self, files: FileBounds) -> anyhow::Result<()> {
        self.summarise();
        let mut target = self.target();
        let path = target.path();
        *target = AuditTarget::open(path.as_deref(), files)?;
        Ok(())
    }

    /// Sets whether the disk of the file is nearly full. While it is, bounded lines are left out.
    pub fn set_disk_low(&self, is_low: bool) {
        self.is_disk_low.store(is_low, Ordering::Relaxed);
    }

    /// The numbers of lines written, left out, and lost because of write errors.
    #[must_use]
    pub fn counts(&self) -> [(&'static str, u64); 3] {
        let counts = [("written", &self.written), ("left_out", &self.left_out), ("lost", &self.lost)];
        counts.map(|(event, count)| (event, count.load(Ordering::Relaxed)))
    }

    /// Writes a line, unless it is bounded and exceeds its limit.
    pub fn write(&self, line: &AuditLine<'_>) {
        let bounded = line.bounded();
        let name_len_max = if bounded.is_some() { NAME_LEN_MAX } else { HANDLE_LEN_MAX };
        let name = |handle: &[u8]| Handle(&handle[..handle.len().min(name_len_max)]).to_string();
        let json = AuditJson {
            time: now(),
            source: line.source,
            identity: line.identity.map(|it| format!("{}:{}", it.index, name(it.handle))),
            operation: line.op_code.name().map_or_else(|| line.op_code.0.to_string(), str::to_owned),
            handle: name(line.handle),
            code: line.code.0,
            result: line.code.name().unwrap_or("unknown"),
            why: &line.text[..floor_char_boundary(line.text, WHY_LEN_MAX)],
        };
        let mut text = serde_json::to_vec(&json).unwrap_or_default();
        text.push(b'\n');
        if let Some(bounded) = bounded
            && !self.admits(line.source, text.len() as u64, bounded)
        {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.append(&text, || {
            let AuditJson { source, identity, operation, handle, code, result, why, .. } = &json;
            tracing::info!(%source, identity = %identity.as_deref().unwrap_or("-"), operation, handle, code, result, why, "audit");
        });
        self.summarise_if_due();
    }

    /// Reports the number of lines left out, if the last report is old enough.
    pub fn summarise_if_due(&self) {
        let mut last = self.summarised.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed() >= SUMMARY_INTERVAL {
            *last = Instant::now();
            drop(last);
            self.summarise();
        }
    }

    /// Reports the number of lines left out since the last report.
    pub fn summarise(&self) {
        let Some(summary) = self.gate().take_summary() else { return };
        let BoundsSummary { left_out, refused, anonymous, unchanged } = summary;
        tracing::warn!(left_out, refused, anonymous, unchanged, "lines were left out of the audit log");
        let json = SummaryJson { time: now(), summary };
        let mut text = serde_json::to_vec(&json).unwrap_or_default();
        text.push(b'\n');
        self.append(&text, || ());
    }

    fn admits(&self, source: SocketAddr, len: u64, bounded: BoundedKind) -> bool {
        let unix_s = handle_daemon::clock::now_unix_ms() / 1000;
        let mut gate = self.gate();
        if self.is_disk_low.load(Ordering::Relaxed) {
            gate.leave_out(bounded);
            return false;
        }
        gate.admit(source::of(source.ip()), unix_s, len, bounded)
    }

    /// Appends a line to the file. Without a file, `log` writes the line to the log of the process;
    /// if writing fails, the line goes to the log of the process unchanged.
    fn append(&self, text: &[u8], log: impl FnOnce()) {
        let mut target = self.target();
        let Some(file) = &mut target.0 else {
            self.written.fetch_add(1, Ordering::Relaxed);
            return log();
        };
        match file.append(text) {
            Ok(()) => self.written.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                let line = String::from_utf8_lossy(text);
                tracing::error!(%error, line = line.trim_end(), "cannot write to the audit log");
                self.lost.fetch_add(1, Ordering::Relaxed)
            }
        };
    }

    fn target(&self) -> MutexGuard<'_, AuditTarget> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gate(&self) -> MutexGuard<'_, LineGate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Serialize)]
struct SummaryJson {
    time: String,
    #[serde(flatten)]
    summary: BoundsSummary,
}

/// The last character boundary in `text` at or before `most`.
fn floor_char_boundary(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

fn now() -> String {
    let unix_ms = i64::try_from(handle_daemon::clock::now_unix_ms()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(unix_ms).map_or_else(|_| unix_ms.to_string(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const FILES: FileBounds = FileBounds { bytes_max: 1 << 20, files_max: 1 };
    const BOUNDS: AuditBounds = AuditBounds { lines_per_s: 10, lines_per_source_per_s: 3, bytes_per_s: 4096 };

    #[test]
    fn lines_name_requester_and_operation_and_are_private_to_the_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let audit = Audit::open(Some(&path), FILES, BOUNDS).unwrap();
        let line = AuditLine {
            source: ([127, 0, 0, 1], 7).into(),
            identity: Some(Reference { handle: b"0.NA/10.1", index: 300 }),
            op_code: OpCode::CREATE_HANDLE,
            handle: b"10.1/\xff\n",
            code: ResponseCode::INVALID_ADMIN,
            text: "lacks add_handle",
            changed: false,
        };
        audit.write(&line);
        std::fs::rename(&path, directory.path().join("old")).unwrap();
        audit.reopen(FILES).unwrap();
        audit.write(&AuditLine {
            identity: None,
            code: ResponseCode::SUCCESS,
            text: "",
            changed: true,
            ..line
        });
        let read = |name: &str| -> serde_json::Value {
            let text = std::fs::read_to_string(directory.path().join(name)).unwrap();
            assert_eq!(text.lines().count(), 1, "{text}");
            serde_json::from_str(&text).unwrap()
        };
        let (old, new) = (read("old"), read("audit.jsonl"));
        assert_eq!(old["identity"], "300:0.NA/10.1");
        assert_eq!(old["why"], "lacks add_handle");
        assert_eq!((&old["code"], &new["code"]), (&400.into(), &1.into()));
        assert!(new["identity"].is_null() && new.get("why").is_none());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn refused_requests_cannot_fill_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let audit = Audit::open(Some(&path), FILES, BOUNDS).unwrap();
        let (handle, text) = (vec![0xff; 250_000], "ä".repeat(250_000));
        let line = AuditLine {
            source: ([127, 0, 0, 1], 7).into(),
            identity: Some(Reference { handle: &handle, index: 300 }),
            op_code: OpCode::DELETE_HANDLE,
            handle: &handle,
            code: ResponseCode::AUTHENTICATION_FAILED,
            text: &text,
            changed: false,
        };
        audit.write(&line);
        let len = std::fs::metadata(&path).unwrap().len();
        assert!((500..6_000).contains(&len), "{len}");
        let error = AuditTarget::open(Some(directory.path()), FILES).map(drop).unwrap_err();
        assert!(format!("{error:#}").contains("directory"), "{error:#}");
        let other = directory.path().join("other.jsonl");
        audit.put_in_force(AuditTarget::open(Some(&other), FILES).unwrap(), BOUNDS);
        audit.write(&line);
        assert!(other.exists() && std::fs::metadata(&path).unwrap().len() == len);
    }
}
