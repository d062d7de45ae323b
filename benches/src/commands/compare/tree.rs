//! A tree of the project that is built, and runs its own programs.

use anyhow::{Context as _, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A built tree.
#[derive(Debug)]
pub(super) struct BuiltTree {
    /// What it is called in messages.
    pub(super) name: &'static str,
    /// The commit, and whether there are changes above it.
    pub(super) commit: String,
    /// The directory with the programs.
    programs: PathBuf,
    /// The manifest of the comparison with other servers, if the tree has it.
    has_rivals_package: bool,
}

impl BuiltTree {
    /// Builds this tree, as it is.
    pub(super) fn current(profile: &str, has_rivals: bool) -> anyhow::Result<Self> {
        let root = root()?;
        let is_changed = !git(&root, &["status", "--porcelain", "--untracked-files=no"])?.is_empty();
        let commit = git(&root, &["rev-parse", "--short=8", "HEAD"])?;
        let commit = if is_changed { format!("{commit} with changes") } else { commit };
        Self::build("current", commit, &root, profile, has_rivals)
    }

    /// Builds a commit in a worktree, which is made if it is missing.
    pub(super) fn of_commit(name: &str, profile: &str, has_rivals: bool) -> anyhow::Result<Self> {
        let root = root()?;
        let commit = git(&root, &["rev-parse", "--short=8", &format!("{name}^{{commit}}")])?;
        let tree = root.join("target/compare").join(&commit);
        if !tree.join("Cargo.toml").exists() {
            // A worktree whose directory was removed is still known.
            git(&root, &["worktree", "prune"])?;
            let path = tree.to_str().context("a path that is text")?;
            git(&root, &["worktree", "add", "--detach", path, &commit])?;
        }
        Self::build("base", commit, &tree, profile, has_rivals)
    }

    fn build(
        name: &'static str,
        commit: String,
        root: &Path,
        profile: &str,
        has_rivals: bool,
    ) -> anyhow::Result<Self> {
        eprintln!("building {name}, {commit}");
        cargo(root, profile, &["-p", "handle-benches", "--bin", "handle-bench"])?;
        let rivals = root.join("benches/rivals");
        let has_rivals_package = rivals.join("Cargo.toml").exists();
        if has_rivals && has_rivals_package {
            cargo(&rivals, profile, &[])?;
        }
        let directory = if profile == "dev" { "debug" } else { profile };
        Ok(Self { name, commit, programs: root.join("target").join(directory), has_rivals_package })
    }

    /// `handle-bench` of this tree, with the sets of this tree.
    pub(super) fn bench(&self) -> Command {
        self.program("handle-bench")
    }

    /// The program that compares with other servers; before there was a package for it, it was part
    /// of `handle-bench`.
    pub(super) fn rivals(&self) -> Command {
        self.program(if self.has_rivals_package { "handle-rivals" } else { "handle-bench" })
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        // Two trees may write sets differently.
        command.env_remove("HANDLE_BENCH_FIXTURES");
        command
    }
}

/// The root of this tree.
fn root() -> anyhow::Result<PathBuf> {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().context("the source of this program")
}

fn cargo(directory: &Path, profile: &str, args: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new("cargo");
    command.args(["build", "--locked", "--quiet", "--profile", profile]).args(args);
    command.current_dir(directory).env_remove("CARGO_TARGET_DIR");
    let status = command.status().context("cannot run cargo")?;
    ensure!(status.success(), "cargo build in {} failed", directory.display());
    Ok(())
}

/// The standard output of git in a directory.
fn git(directory: &Path, args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").args(args).current_dir(directory).output().context("cannot run git")?;
    ensure!(
        output.status.success(),
        "git {}: {}",
        args.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
