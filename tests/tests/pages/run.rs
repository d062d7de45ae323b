//! Runs the blocks of a page in its order, in an empty directory, in one shell.
//!
//! The shell is in namespaces of its own, made by `tests/pages/enter.sh`: ports, addresses and
//! directories are those that the page names, and nothing stays.

use crate::page::{Block, Marker, RunDetails, compare_output, read_blocks};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Time for one page, in seconds.
const PAGE_SECONDS_MAX: u32 = 240;

/// Root of the repository.
pub(crate) fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Whether namespaces can be made here.
pub(crate) fn has_namespaces() -> bool {
    let mut command = unshare();
    let output = command.args(["ip", "link", "set", "lo", "up"]).stdin(Stdio::null()).output();
    output.is_ok_and(|output| output.status.success())
}

/// `unshare` with all namespaces of a page.
pub(crate) fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command
}

/// Runs a page with the programs of a directory.
///
/// # Panics
/// If a command fails or prints something else than the page says.
pub(crate) fn run_page(name: &str, programs: &Path) {
    let checkout = checkout();
    let blocks = read_blocks(&checkout.join(name)).unwrap_or_else(|error| panic!("{error}"));
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    for name in ["page", "output"] {
        std::fs::create_dir(directory.path().join(name)).unwrap();
        std::fs::set_permissions(directory.path().join(name), PermissionsExt::from_mode(0o777)).unwrap();
    }
    let mut script = std::fs::read_to_string(checkout.join("tests/pages/begin.sh")).unwrap();
    script.extend(blocks.iter().map(|block| write_file(block, directory.path())));
    script.extend(blocks.iter().map(|block| write_block(block, directory.path())));
    std::fs::write(directory.path().join("run.sh"), script).unwrap();
    let mut command = Command::new("timeout");
    let unshare = unshare();
    command
        .args(["--signal", "KILL"])
        .arg(PAGE_SECONDS_MAX.to_string())
        .arg(unshare.get_program())
        .args(unshare.get_args());
    command.arg("sh").arg(checkout.join("tests/pages/enter.sh")).arg(directory.path());
    let output = command.arg(programs).arg(&checkout).stdin(Stdio::null()).output().unwrap();
    let read = |line: usize| {
        let path = directory.path().join("output").join(line.to_string());
        String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
    };
    if !output.status.success() {
        let is_begun = |line: &usize| directory.path().join("output").join(line.to_string()).exists();
        let line = blocks.iter().map(|block| block.line).rfind(is_begun).unwrap_or_default();
        let shown = String::from_utf8_lossy(&output.stderr).into_owned();
        panic!("{name}:{line}: {}\n{}{shown}", output.status, read(line));
    }
    for block in &blocks {
        if let Some(Marker::Run(details)) = &block.marker {
            check_output(name, block, details, &read(block.line));
        }
    }
}

/// Writes the files of a block; returns its part of the script.
fn write_block(block: &Block, directory: &Path) -> String {
    let line = block.line;
    match &block.marker {
        Some(Marker::Run(details)) => {
            std::fs::write(directory.join(format!("{line}.sh")), add_waits(&block.commands())).unwrap();
            let prepared =
                details.preparations.iter().map(|name| format!("source $CHECKOUT/tests/pages/{name}.sh\n"));
            let (script, output) = (format!("/media/test/{line}.sh"), format!("/media/test/output/{line}"));
            let part = if details.is_background {
                // Its input does not end while the page runs.
                format!("sleep infinity | bash -e {script} >{output} 2>&1 &\nprinted {output} $!\n")
            } else if details.is_failure {
                format!("if source {script} >{output} 2>&1; then echo 'did not fail' >&2; exit 1; fi\n")
            } else {
                format!("source {script} >{output} 2>&1\n")
            };
            prepared.chain([part]).collect()
        }
        Some(Marker::Addition(path)) => {
            std::fs::write(directory.join(format!("{line}.part")), &block.text).unwrap();
            format!("cat /media/test/{line}.part >>{path}\n")
        }
        Some(Marker::Check(name)) => {
            std::fs::write(directory.join(format!("{line}.part")), &block.text).unwrap();
            let output = format!("/media/test/output/{line}");
            format!("BLOCK=/media/test/{line}.part\nsource $CHECKOUT/tests/pages/{name}.sh >{output} 2>&1\n")
        }
        _ => String::new(),
    }
}

/// Writes a block that is a file; returns its part of the beginning of the script.
fn write_file(block: &Block, directory: &Path) -> String {
    let Some(Marker::File(path)) = &block.marker else { return String::new() };
    std::fs::write(directory.join(format!("{}.file", block.line)), &block.text).unwrap();
    format!("mkdir -p \"$(dirname {path})\"\ncp /media/test/{}.file {path}\n", block.line)
}

/// The commands, each in the background followed by a wait until it listens.
fn add_waits(commands: &str) -> String {
    let mut typed = String::new();
    for line in commands.lines() {
        typed += line;
        typed.push('\n');
        if line.split(" #").next().unwrap().trim_end().ends_with(" &") {
            typed += "started $!\n";
        }
    }
    typed
}

fn check_output(name: &str, block: &Block, details: &RunDetails, output: &str) {
    let place = format!("{name}:{}", block.line);
    for printed in &details.printed {
        assert!(output.contains(printed.as_str()), "{place}: no `{printed}` in:\n{output}");
    }
    if !details.output_varies
        && let Err(line) = compare_output(&block.shown_output(), output)
    {
        panic!("{place}: not printed: {line}\nprinted:\n{output}");
    }
}
