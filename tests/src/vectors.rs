//! Golden vectors: files of JSON lines, described in `vectors/README.md`.

use data_encoding::HEXLOWER_PERMISSIVE;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Write as _};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

/// The directory that vectors are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VectorSource {
    /// The directory of this repository, regardless of `HANDLE_VECTORS`. It has the keys, records
    /// and servers of other tests.
    Own,
    /// The directory that `HANDLE_VECTORS` names, or else that of this repository. The tests of
    /// vectors read it.
    Selected,
}

impl VectorSource {
    /// A whole document of JSON; `null` where a foreign directory lacks it.
    ///
    /// # Panics
    /// If our own file is missing, or the file is not JSON.
    #[must_use]
    pub fn document(self, file: &str) -> Value {
        match self.text(file) {
            Some((path, text)) => {
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
            }
            None => Value::Null,
        }
    }

    /// The lines of a file; none where a foreign directory lacks it.
    ///
    /// A line of a foreign file that is not JSON becomes an object with nothing but a `name`, so
    /// that it counts as one failure.
    ///
    /// # Panics
    /// If our own file is missing, or has a line that is not JSON.
    #[must_use]
    pub fn lines(self, file: &str) -> Vec<Value> {
        let Some((path, text)) = self.text(file) else { return Vec::new() };
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        lines
            .map(|(at, line)| {
                serde_json::from_str(line).unwrap_or_else(|error| {
                    let name = format!("{}:{}: {error}", path.display(), at + 1);
                    assert!(self.is_foreign(), "{name}");
                    json!({ "name": name })
                })
            })
            .collect()
    }

    fn is_foreign(self) -> bool {
        self == Self::Selected && is_foreign()
    }

    fn text(self, file: &str) -> Option<(PathBuf, String)> {
        let path = self.directory().join(file);
        match std::fs::read_to_string(&path) {
            Ok(text) => Some((path, text)),
            Err(error) if error.kind() == ErrorKind::NotFound && self.is_foreign() => {
                report(&format!("skipped: {} does not exist", path.display()));
                None
            }
            Err(error) => panic!("cannot read vectors {}: {error}", path.display()),
        }
    }

    fn directory(self) -> PathBuf {
        // Another crate includes this file.
        let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let own = above.map(|path| path.join("tests/vectors")).find(|path| path.is_dir());
        let own = own.expect("the vectors of this repository");
        match std::env::var_os("HANDLE_VECTORS").filter(|_| self.is_foreign()) {
            Some(directory) => {
                let directory = own.join("../..").join(directory);
                assert!(directory.is_dir(), "HANDLE_VECTORS: {} is not a directory", directory.display());
                directory
            }
            None => own,
        }
    }
}

/// Whether `HANDLE_VECTORS` names a foreign directory, of which only the format is known.
#[must_use]
pub fn is_foreign() -> bool {
    std::env::var_os("HANDLE_VECTORS").is_some()
}

/// The lines of a file of the selected directory.
///
/// # Panics
/// If our own file is missing, or has a line that is not JSON.
#[must_use]
pub fn load(file: &str) -> Vec<Value> {
    VectorSource::Selected.lines(file)
}

/// A document of the selected directory.
///
/// # Panics
/// If our own file is missing, or the file is not JSON.
#[must_use]
pub fn document(file: &str) -> Value {
    VectorSource::Selected.document(file)
}

/// A document of the own directory, for tests that need its keys, records or servers.
///
/// # Panics
/// If the file is missing or not JSON.
#[must_use]
pub fn fixture(file: &str) -> Value {
    VectorSource::Own.document(file)
}

/// Asserts that the own files have at least `least` of `what`; foreign files may have none.
///
/// # Panics
/// If the own files have fewer.
pub fn require(count: usize, least: usize, what: &str) {
    assert!(is_foreign() || count >= least, "{count} {what} in the vectors, expected at least {least}");
}

/// The outcome of lines whose server `servers.json` lacks.
pub const NO_SERVER: LineOutcome = LineOutcome::Skipped("its server is not in servers.json");

/// Whether `servers.json` has the server `name`. If not, reports `lines` as skipped.
///
/// # Panics
/// If our own file lacks the server.
#[must_use]
pub fn has_server(name: &str, lines: &[Value]) -> bool {
    let has_server = document("servers.json")["servers"][name].is_object();
    assert!(has_server || is_foreign(), "servers.json has no server {name}");
    if !has_server {
        let mut checks = LineChecks::default();
        lines.iter().for_each(|line| checks.record(line["name"].as_str().unwrap_or("?"), NO_SERVER));
        checks.finish();
    }
    has_server
}

/// Prints a line that the test harness does not capture, because it is the result of a run with
/// foreign vectors.
fn report(line: &str) {
    if is_foreign() {
        // Standard error is closed, so nothing can be reported.
        let _ = writeln!(std::io::stderr(), "{line}");
    } else {
        println!("{line}");
    }
}

/// The outcome of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineOutcome {
    /// The result is as the line states.
    AsStated,
    /// The result differs from the reference in this permitted way.
    Permitted(&'static str),
    /// The line was not checked, for this reason.
    Skipped(&'static str),
}

impl From<()> for LineOutcome {
    fn from((): ()) -> Self {
        Self::AsStated
    }
}

/// The lines that one test checks. A failure does not stop the check of further lines.
///
/// [`finish`](Self::finish) prints how many lines differed in a permitted way or were skipped, by
/// kind, and panics with the failures, if there are any.
#[derive(Debug, Default)]
#[must_use = "failures are reported by `finish`"]
pub struct LineChecks {
    checked: usize,
    failures: Vec<String>,
    permitted: BTreeMap<&'static str, Vec<String>>,
    skipped: BTreeMap<&'static str, Vec<String>>,
}

impl LineChecks {
    /// Checks the line called `name`; a panic of `check` is its failure.
    pub fn check<R: Into<LineOutcome>>(&mut self, name: &str, check: impl FnOnce() -> R) {
        match catch_panic(|| check().into()) {
            Ok(outcome) => self.record(name, outcome),
            Err(why) => self.fail(name, &why),
        }
    }

    /// Records the outcome of the line called `name`.
    pub fn record(&mut self, name: &str, outcome: LineOutcome) {
        self.checked += 1;
        match outcome {
            LineOutcome::AsStated => {}
            LineOutcome::Permitted(kind) => self.permitted.entry(kind).or_default().push(name.to_owned()),
            LineOutcome::Skipped(why) => self.skipped.entry(why).or_default().push(name.to_owned()),
        }
    }

    /// Records the failure of the line called `name`.
    pub fn fail(&mut self, name: &str, why: &str) {
        self.checked += 1;
        self.failures.push(format!("{name}: {why}"));
    }

    /// Number of lines checked.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.checked
    }

    /// Number of lines that differed in this permitted way.
    #[must_use]
    pub fn permitted(&self, kind: &str) -> usize {
        self.permitted.get(kind).map_or(0, Vec::len)
    }

    /// Reports everything.
    ///
    /// # Panics
    /// If a line failed.
    pub fn finish(self) {
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("vectors");
        for (what, kinds) in [("permitted difference", &self.permitted), ("skipped", &self.skipped)] {
            for (kind, names) in kinds {
                let (count, first) = (names.len(), names[..names.len().min(NAMES_SHOWN_MAX)].join(", "));
                let more = if count > NAMES_SHOWN_MAX { ", ..." } else { "" };
                report(&format!("{test}: {what}: {kind}: {count} of {} lines: {first}{more}", self.checked));
            }
        }
        let (count, failures) = (self.failures.len(), self.failures.join("\n"));
        assert!(count == 0, "{count} of {} lines fail:\n{failures}", self.checked);
    }
}

/// Maximum number of lines that are named in each count.
const NAMES_SHOWN_MAX: usize = 5;

/// The result of `run`, or the message of its panic.
///
/// # Errors
/// If `run` panicked.
pub fn catch_panic<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    std::panic::catch_unwind(AssertUnwindSafe(run)).map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("panicked").to_owned()
    })
}

/// Checks every line, with its name for failures.
///
/// # Panics
/// If a line fails.
pub fn check_lines<R: Into<LineOutcome>>(
    lines: impl IntoIterator<Item = (String, Value)>,
    mut check: impl FnMut(&str, &Value) -> R,
) {
    let mut checks = LineChecks::default();
    for (name, line) in lines {
        checks.check(&name, || check(&name, &line));
    }
    checks.finish();
}

/// Checks every line of this kind in `file`; our own file must have some.
///
/// # Panics
/// If a line fails, or our own file has none.
pub fn check_kind<R: Into<LineOutcome>>(file: &str, kind: &str, mut check: impl FnMut(&str, &Value) -> R) {
    let lines = load(file);
    let mut checks = LineChecks::default();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| line["kind"] == kind) {
        let name = line["name"].as_str().map_or_else(|| format!("{file}:{}", at + 1), str::to_owned);
        checks.check(&name, || check(&name, line));
    }
    require(checks.count(), 1, kind);
    checks.finish();
}

/// Checks that every line of `file` has one of these kinds.
///
/// # Panics
/// If a line has another kind.
pub fn check_kinds(file: &str, kinds: &[&str]) {
    let mut checks = LineChecks::default();
    for (at, line) in load(file).iter().enumerate() {
        let kind = line["kind"].as_str();
        checks.check(&format!("{file}:{}", at + 1), || {
            assert!(
                kind.is_some_and(|kind| kinds.contains(&kind)),
                "unknown kind {kind:?}: {}",
                line["name"]
            );
        });
    }
    checks.finish();
}

/// A byte string: a JSON string for UTF-8, or `{"hex": ...}` for other bytes.
///
/// # Panics
/// If the value is neither.
#[must_use]
pub fn bytes(v: &Value) -> Vec<u8> {
    match v {
        Value::String(text) => text.clone().into_bytes(),
        other => hex(&other["hex"]),
    }
}

/// Decodes hexadecimal text.
///
/// # Panics
/// If the text is not hexadecimal.
#[must_use]
pub fn hex(v: &Value) -> Vec<u8> {
    let text = v.as_str().unwrap_or_else(|| panic!("not hexadecimal: {v}"));
    HEXLOWER_PERMISSIVE.decode(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The inverse of [`bytes()`].
#[must_use]
pub fn byte_string(b: &[u8]) -> Value {
    match std::str::from_utf8(b) {
        Ok(text) => json!(text),
        Err(_) => json!({ "hex": HEXLOWER_PERMISSIVE.encode(b) }),
    }
}

/// Writes the site record of a server in `servers.json`, which is text or JSON.
///
/// # Panics
/// When the file cannot be written.
pub fn write_site(server: &Value, path: &Path) {
    let text = server["site"].as_str().map_or_else(|| server["site"].to_string(), str::to_owned);
    std::fs::write(path, text).expect("the site record is written");
}
