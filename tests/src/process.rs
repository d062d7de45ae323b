//! Runs the programs of this workspace as processes; builds them first if needed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Timeout for every step of a program in a test.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program `name` of package `package`, built as this test is.
///
/// # Panics
/// When it does not build.
#[must_use]
pub fn program(package: &str, name: &str) -> PathBuf {
    // One build at a time, and each once.
    static BUILT: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut built = BUILT.lock().expect("no build panics half-way");
    // The test is target/<profile>/deps/<test>.
    let test = std::env::current_exe().expect("the path of the test");
    let profile = test.ancestors().nth(2).expect("a target directory").to_owned();
    if !built.iter().any(|one| one == name) {
        let mut cargo = Command::new(env!("CARGO"));
        // Cargo chooses features for all that it builds at a time. The whole workspace with an example, which may use the
        // dependencies of tests, gets the features of `cargo test --workspace`: what that has built is not built again.
        cargo.args(["build", "--quiet", "--workspace", "--bin", name, "--example", "resolve"]);
        cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
        cargo.arg("--target-dir").arg(profile.parent().expect("a target directory"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo runs").success(), "{name} of {package} builds");
        built.push(name.to_owned());
    }
    profile.join(name)
}

/// `hdl` with arguments.
#[must_use]
pub fn hdl<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(program("handle-cli", "hdl"));
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs a command to its end.
///
/// # Panics
/// When it cannot be started.
pub fn run(mut command: Command) -> Output {
    command.output().expect("the program starts")
}

/// The standard output of a command that must succeed.
///
/// # Panics
/// When it does not.
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
/// When it was ended by a signal.
pub fn fail(command: Command) -> (i32, String) {
    let output = run(command);
    (output.status.code().expect("an exit code"), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A running program, killed when it is dropped.
#[derive(Debug)]
pub struct RunningProcess(pub Child);

impl RunningProcess {
    /// Starts it.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(mut command: Command) -> Self {
        Self(command.spawn().expect("the program starts"))
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// When that is not possible.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([format!("-{name}"), self.0.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    /// Waits for the end, and returns the exit code; `None` after a signal.
    ///
    /// # Panics
    /// When it does not end.
    pub fn wait(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().expect("a child of ours") {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the program ends");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until `condition` is true.
///
/// # Panics
/// When it does not become true.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
