//! Runs the programs of this workspace as processes; builds them first if needed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Timeout for every step of a program in a test.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The path of the program `name` of package `package`, built with the profile of this test.
///
/// # Panics
/// If the build fails.
#[must_use]
pub fn program(package: &str, name: &str) -> PathBuf {
    // Builds run one at a time, and once for each program.
    static BUILT: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut built = BUILT.lock().expect("no build has panicked");
    // The path of the test is target/<profile>/deps/<test>.
    let test = std::env::current_exe().expect("the path of the test");
    let profile = test.ancestors().nth(2).expect("a target directory").to_owned();
    if !built.iter().any(|one| one == name) {
        let mut cargo = Command::new(env!("CARGO"));
        // Cargo selects features for all packages of a build together. The whole workspace with an
        // example has the features of `cargo test --workspace`, so that nothing is built twice.
        cargo.args(["build", "--quiet", "--workspace", "--bin", name, "--example", "resolve"]);
        cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
        // Variables that describe this package: build scripts that look at some of them, as ring's,
        // would run again, and everything above would be built again.
        for (name, _) in std::env::vars_os() {
            let is_described = name.to_str().is_some_and(|name| {
                name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "OUT_DIR"
            });
            if is_described {
                cargo.env_remove(name);
            }
        }
        cargo.arg("--target-dir").arg(profile.parent().expect("a target directory"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo runs").success(), "{name} of {package} builds");
        built.push(name.to_owned());
    }
    profile.join(name)
}

/// `hdl` with these arguments.
#[must_use]
pub fn hdl<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(program("handle-cli", "hdl"));
    command.args(args).stdin(Stdio::null());
    command
}

/// `handle-lab` with these arguments.
#[must_use]
pub fn handle_lab<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(program("handle-lab", "handle-lab"));
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs a command to its end.
///
/// # Panics
/// If the program cannot be started.
pub fn run(mut command: Command) -> Output {
    command.output().expect("the program starts")
}

/// The standard output of a command that succeeds.
///
/// # Panics
/// If the command fails.
pub fn succeed(command: Command) -> String {
    let shown = format!("{command:?}");
    let output = run(command);
    assert!(
        output.status.success(),
        "{shown}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The exit code and the standard error of a command.
///
/// # Panics
/// If a signal ended the command.
pub fn fail(command: Command) -> (i32, String) {
    let output = run(command);
    (output.status.code().expect("an exit code"), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A running program, killed when it is dropped.
#[derive(Debug)]
pub struct RunningProcess(pub Child);

impl RunningProcess {
    /// Starts a program.
    ///
    /// # Panics
    /// If the program cannot be started.
    #[must_use]
    pub fn start(mut command: Command) -> Self {
        Self(command.spawn().expect("the program starts"))
    }

    /// Sends a signal to the process.
    ///
    /// # Panics
    /// If the signal cannot be sent.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([format!("-{name}"), self.0.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    /// Waits until the process exits and returns its exit code, or `None` after a signal.
    ///
    /// # Panics
    /// If the process does not exit in time.
    pub fn wait(&mut self) -> Option<i32> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.0.try_wait().expect("a child of ours") {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the program does not exit");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        // The process may have exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until `condition` is true; `what` names it in the failure.
///
/// # Panics
/// If it does not become true in time.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
