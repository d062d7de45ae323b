//! Who did what, from where, and what came of it: a line for each administrative request, without secrets.
//!
//! Whoever connects can be refused as often as they like, so of refusals only so many a second get a line: of each source
//! a few, so that nobody uses up the lines of all others, and of all together some more. No line is longer than names can
//! be.

use crate::connections::group;
use anyhow::Context as _;
use handle_proto::limit::HANDLE_LEN_MAX;
use handle_proto::wire::list::Reference;
use handle_proto::{Handle, OpCode, ResponseCode};
use serde::Serialize;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most bytes that are written of why something was refused.
const WHY_LEN_MAX: usize = 512;

/// One line.
#[derive(Clone, Copy, Debug)]
pub struct AuditLine<'a> {
    /// From where.
    pub source: SocketAddr,
    /// Who, or who they say they are: the result tells.
    pub identity: Option<Reference<'a>>,
    /// What.
    pub op_code: OpCode,
    /// With which handle.
    pub handle: &'a [u8],
    /// What came of it.
    pub code: ResponseCode,
    /// Why not.
    pub text: &'a str,
}

/// How many refusals of one second get a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditBounds {
    /// Of all.
    pub refusals_per_s: u32,
    /// Of one source: an IPv4 address, or a /64 of IPv6.
    pub refusals_per_source_per_s: u32,
}

/// Where the lines go.
#[derive(Debug)]
pub struct Audit {
    target: Mutex<Target>,
    refusals: Mutex<Refusals>,
}

/// Where lines can go.
#[derive(Debug, Default)]
pub struct Target {
    path: Option<PathBuf>,
    file: Option<File>,
}

impl Target {
    /// The end of the file at `path`, which only its owner may read; the log, where that is not said.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let opened = |path: &Path| {
            let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
            file.with_context(|| format!("cannot write the audit log {}", path.display()))
        };
        Ok(Self { file: path.map(opened).transpose()?, path: path.map(Path::to_owned) })
    }
}

/// Refusals in one second. Of the sources no more are known than refusals get a line.
#[derive(Debug)]
struct Refusals {
    bounds: AuditBounds,
    unix_s: u64,
    written: u32,
    left_out: u64,
    of_source: HashMap<IpAddr, u32>,
}

impl Refusals {
    fn new(bounds: AuditBounds) -> Self {
        Self { bounds, unix_s: 0, written: 0, left_out: 0, of_source: HashMap::new() }
    }

    /// Whether another one gets a line; and how many before it got none, where a new second begins.
    fn admit(&mut self, source: IpAddr, unix_s: u64) -> (bool, u64) {
        let mut left_out = 0;
        if self.unix_s != unix_s {
            left_out = self.left_out;
            *self = Self { unix_s, ..Self::new(self.bounds) };
        }
        let has_room = self.written < self.bounds.refusals_per_s;
        let of_source = self.of_source.get(&source).copied().unwrap_or(0);
        let is_admitted = has_room && of_source < self.bounds.refusals_per_source_per_s;
        if is_admitted {
            self.written += 1;
            self.of_source.insert(source, of_source + 1);
        } else {
            self.left_out += 1;
        }
        (is_admitted, left_out)
    }
}

#[derive(Serialize)]
struct Json<'a> {
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
    /// Lines go to the end of the file at `path`, which only its owner may read; to the log, where that is not said.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn open(path: Option<&Path>, bounds: AuditBounds) -> anyhow::Result<Self> {
        Ok(Self { target: Mutex::new(Target::open(path)?), refusals: Mutex::new(Refusals::new(bounds)) })
    }

    /// From now on, lines go there, and so many of them.
    pub fn put_in_force(&self, target: Target, bounds: AuditBounds) {
        *self.target() = target;
        self.refusals().bounds = bounds;
    }

    /// Opens the file again, after it was renamed.
    ///
    /// # Errors
    /// When it cannot be written; then lines go on to the old one.
    pub fn reopen(&self) -> anyhow::Result<()> {
        let mut target = self.target();
        *target = Target::open(target.path.as_deref())?;
        Ok(())
    }

    /// Writes a line, unless it is of one refusal too many.
    pub fn write(&self, line: &AuditLine<'_>) {
        if line.code != ResponseCode::SUCCESS && !self.admits_refusal(line.source.ip()) {
            return;
        }
        let identity = line.identity.map(|it| format!("{}:{}", it.index, name(it.handle)));
        let json = Json {
            time: now(),
            source: line.source,
            identity,
            operation: line.op_code.name().map_or_else(|| line.op_code.0.to_string(), str::to_owned),
            handle: name(line.handle).to_string(),
            code: line.code.0,
            result: line.code.name().unwrap_or("unknown"),
            why: &line.text[..floor_char_boundary(line.text, WHY_LEN_MAX)],
        };
        let Some(file) = &mut self.target().file else {
            let Json { source, identity, operation, handle, code, result, why, .. } = json;
            tracing::info!(%source, ?identity, operation, handle, code, result, why, "audit");
            return;
        };
        let mut text = serde_json::to_vec(&json).unwrap_or_default();
        text.push(b'\n');
        // In one piece, so that lines of no two writers are mixed up.
        if let Err(error) = file.write_all(&text) {
            tracing::error!(%error, "a line of the audit log is lost");
        }
    }

    fn admits_refusal(&self, source: IpAddr) -> bool {
        let (is_admitted, left_out) =
            self.refusals().admit(group(source), crate::store::now_unix_ms() / 1000);
        if left_out > 0 {
            tracing::warn!(left_out, "more refusals in a second than the audit log takes");
        }
        is_admitted
    }

    fn target(&self) -> MutexGuard<'_, Target> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As much of a name as a name can have.
fn name(handle: &[u8]) -> Handle<'_> {
    Handle(&handle[..handle.len().min(HANDLE_LEN_MAX)])
}

/// The last place in `text`, up to `most`, where it can be cut.
fn floor_char_boundary(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

fn now() -> String {
    let unix_ms = i64::try_from(crate::store::now_unix_ms()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(unix_ms).map_or_else(|_| unix_ms.to_string(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const BOUNDS: AuditBounds = AuditBounds { refusals_per_s: 10, refusals_per_source_per_s: 3 };

    #[test]
    fn lines_say_who_did_what_and_only_the_owner_may_read_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let audit = Audit::open(Some(&path), BOUNDS).unwrap();
        let line = AuditLine {
            source: ([127, 0, 0, 1], 7).into(),
            identity: Some(Reference { handle: b"0.NA/10.1", index: 300 }),
            op_code: OpCode::CREATE_HANDLE,
            handle: b"10.1/\xff\n",
            code: ResponseCode::INVALID_ADMIN,
            text: "lacks add_handle",
        };
        audit.write(&line);
        std::fs::rename(&path, directory.path().join("old")).unwrap();
        audit.reopen().unwrap();
        audit.write(&AuditLine { identity: None, code: ResponseCode::SUCCESS, text: "", ..line });
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
    fn who_is_refused_cannot_fill_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let audit = Audit::open(Some(&path), BOUNDS).unwrap();
        let (handle, text) = (vec![0xff; 250_000], "ä".repeat(250_000));
        let line = AuditLine {
            source: ([127, 0, 0, 1], 7).into(),
            identity: Some(Reference { handle: &handle, index: 300 }),
            op_code: OpCode::DELETE_HANDLE,
            handle: &handle,
            code: ResponseCode::AUTHENTICATION_FAILED,
            text: &text,
        };
        audit.write(&line);
        let len = std::fs::metadata(&path).unwrap().len();
        assert!((2_000..40_000).contains(&len), "{len}");
        assert!(Target::open(Some(directory.path())).is_err(), "a directory");
        let other = directory.path().join("other.jsonl");
        audit.put_in_force(Target::open(Some(&other)).unwrap(), BOUNDS);
        audit.write(&line);
        assert!(other.exists() && std::fs::metadata(&path).unwrap().len() == len);
    }

    #[test]
    fn a_source_uses_up_its_own_lines_and_all_together_have_an_end() {
        let mut refusals = Refusals::new(BOUNDS);
        let [one, other] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        let mut admitted =
            |source, count, unix_s| (0..count).filter(|_| refusals.admit(source, unix_s).0).count();
        assert_eq!(admitted(one, 13, 5), 3);
        assert_eq!(admitted(other, 2, 5), 2, "who floods takes nobody else's");
        assert_eq!((3..9).map(|last| admitted(IpAddr::from([192, 0, 2, last]), 3, 5)).sum::<usize>(), 5);
        assert_eq!(refusals.admit(one, 6), (true, 10 + 13));
        assert_eq!(refusals.admit(one, 7), (true, 0));
    }
}
