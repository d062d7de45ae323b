//! A command that checks a set before it goes live.
//!
//! The command gets a directory with the candidate set: links to the layers, and a MANIFEST. If the
//! command does not exit with 0 in time, the set is refused and the old one stays.

use super::settings::CheckConfig;
use handle_snapshot::set::manifest::{MANIFEST, Manifest};
use std::fmt;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Prefix of the names of candidate directories.
const CANDIDATE: &str = "candidate-";
/// Bytes kept from the end of the command's output.
const SAID_LEN_MAX: u64 = 512;
/// Interval at which to check whether the command has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// Why a set may not go live.
#[derive(Debug)]
#[non_exhaustive]
pub enum CheckError {
    /// The command refused the set.
    Refused {
        /// The exit status of the command.
        status: ExitStatus,
        /// The end of its standard error.
        output: String,
    },
    /// The command did not end in time.
    Timeout(Duration),
    /// The publisher ends, and the command with it.
    Stopped,
    /// The command could not be run.
    Io {
        /// The step that failed, as in "cannot start the command".
        doing: &'static str,
        /// The error of the system.
        error: io::Error,
    },
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { status, output } if output.is_empty() => {
                write!(f, "the check refused the set: {status}")
            }
            Self::Refused { status, output } => write!(f, "the check refused the set: {status}: {output}"),
            Self::Timeout(after) => {
                write!(f, "the check of the set did not end within {} s", after.as_secs())
            }
            Self::Stopped => f.write_str("the publisher ended during the check of the set"),
            Self::Io { doing, error } => write!(f, "the set cannot be checked: cannot {doing}: {error}"),
        }
    }
}

impl core::error::Error for CheckError {}

/// Runs the command, if there is one, to decide whether `candidate`, whose layers are in `dir`, may
/// go live. The command is killed when `stops` becomes true.
///
/// # Errors
/// When the command refuses the set, cannot be run or is killed.
pub(crate) fn ask(
    config: &CheckConfig,
    dir: &Path,
    candidate: &Manifest,
    stops: &AtomicBool,
) -> Result<(), CheckError> {
    let [program, args @ ..] = config.command.as_slice() else { return Ok(()) };
    let io = |doing| move |error| CheckError::Io { doing, error };
    // In the same directory, since hard links do not cross file systems.
    let view = tempfile::Builder::new().prefix(CANDIDATE).tempdir_in(dir).map_err(io("make a directory"))?;
    for layer in &candidate.layers {
        let linked = std::fs::hard_link(dir.join(&layer.file), view.path().join(&layer.file));
        linked.map_err(io("link a layer"))?;
    }
    std::fs::write(view.path().join(MANIFEST), candidate.encode()).map_err(io("write the manifest"))?;
    let mut output = tempfile::tempfile().map_err(io("make a file for its output"))?;
    let child_output = output.try_clone().map_err(io("make a file for its output"))?;
    let mut command = Command::new(program);
    command.args(args).arg(view.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(child_output);
    let mut child = command.spawn().map_err(io("start the command"))?;
    let deadline = Instant::now() + Duration::from_secs(config.timeout_s);
    let status = loop {
        if let Some(status) = child.try_wait().map_err(io("wait for the command"))? {
            break status;
        }
        let has_stopped = stops.load(Ordering::Relaxed);
        if has_stopped || Instant::now() >= deadline {
            child.kill().and_then(|()| child.wait()).map_err(io("end the command"))?;
            return Err(match has_stopped {
                true => CheckError::Stopped,
                false => CheckError::Timeout(Duration::from_secs(config.timeout_s)),
            });
        }
        std::thread::sleep(LOOK_INTERVAL);
    };
    if status.success() {
        return Ok(());
    }
    Err(CheckError::Refused { status, output: tail(&mut output).map_err(io("read its output"))? })
}

/// The end of a file.
fn tail(file: &mut std::fs::File) -> io::Result<String> {
    let len = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(len.saturating_sub(SAID_LEN_MAX)))?;
    let mut bytes = Vec::new();
    file.take(SAID_LEN_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim().replace('\n', "; "))
}

/// Removes candidate directories that a killed process has left behind.
///
/// # Errors
/// When a directory cannot be read or removed.
pub(crate) fn clean(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let is_candidate = entry.file_name().to_string_lossy().starts_with(CANDIDATE);
        if is_candidate && entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_snapshot::{Builder, HomedPrefixes, LayerOptions, SetPublisher};

    fn config(command: &[&str]) -> CheckConfig {
        let command = command.iter().map(|&word| word.into()).collect();
        CheckConfig { command, timeout_s: 60, ..CheckConfig::default() }
    }

    fn published() -> (tempfile::TempDir, Manifest) {
        let dir = tempfile::tempdir().unwrap();
        let mut publisher = SetPublisher::open(dir.path()).unwrap();
        let options = LayerOptions { seed: 1, folds: true, created_unix_ms: 1 };
        let base = |file, temp_dir: &Path| {
            Builder::new(temp_dir, options).homed(HomedPrefixes::default()).finish(file)
        };
        let manifest = publisher.publish_base(1, base).unwrap().clone();
        (dir, manifest)
    }

    #[test]
    fn the_command_gets_the_candidate_and_decides() {
        let (dir, manifest) = published();
        let ask = |command: &[&str]| ask(&config(command), dir.path(), &manifest, &AtomicBool::new(false));
        ask(&[]).unwrap();
        ask(&["true"]).unwrap();
        let layer = &manifest.layers[0].file;
        let looks = format!("test -s \"$1/{layer}\" && cmp \"$1/MANIFEST\" \"$1/../MANIFEST\"");
        ask(&["sh", "-c", &looks, "sh"]).unwrap();
        let refused = ask(&["sh", "-c", "echo no good >&2; exit 3"]).unwrap_err().to_string();
        assert!(refused.contains("no good") && refused.contains('3'), "{refused}");
        let long = ask(&["sh", "-c", "yes refused | head -c 100000 >&2; exit 1"]).unwrap_err().to_string();
        assert!(long.len() < 700 && long.contains("refused; refused"), "{long}");
        assert!(matches!(ask(&["/no/such/program"]), Err(CheckError::Io { .. })));
        let left = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 3, "the layer, LOCK and MANIFEST");
    }

    #[test]
    fn a_command_that_does_not_end_is_killed() {
        let (dir, manifest) = published();
        let config = CheckConfig { timeout_s: 0, ..config(&["sh", "-c", "exec sleep 1000"]) };
        let ask = |config: &CheckConfig, stops| ask(config, dir.path(), &manifest, &AtomicBool::new(stops));
        assert!(matches!(ask(&config, false), Err(CheckError::Timeout(_))));
        let config = CheckConfig { timeout_s: 1000, ..config };
        assert!(matches!(ask(&config, true), Err(CheckError::Stopped)));
    }

    #[test]
    fn leftover_candidates_are_removed() {
        let (dir, _) = published();
        std::fs::create_dir(dir.path().join("candidate-x")).unwrap();
        std::fs::write(dir.path().join("candidate-x/file"), "x").unwrap();
        std::fs::write(dir.path().join("candidate-file"), "x").unwrap();
        clean(dir.path()).unwrap();
        assert!(!dir.path().join("candidate-x").exists() && dir.path().join("candidate-file").exists());
    }
}
