//! `hdl`: resolves and administers handles, keeps stores, builds and publishes snapshots, and
//! decodes messages.
//!
//! `commands!` has a row for each command, and [`main`] maps outcomes to exit codes. Some modules
//! have several commands (`service` has `site` and `check`), and others are shared by commands
//! (`input`).
//!
//! What is public here is what `handle-lab` has in common with `hdl`: how lines, tables, errors and
//! answers are printed, completions, and the questions to control sockets and servers.
//!
//! ```
//! use handle_cli::{ExitOutcome, exit_code, output};
//! use std::process::ExitCode;
//!
//! handle_cli::println!("{} in all", output::counted(2, "record", "records"));
//! assert_eq!(exit_code("lab", Ok(ExitOutcome::Good)), ExitCode::SUCCESS);
//! ```
#![forbid(unsafe_code)]

// First, because its macros replace `println!` in the other modules.
#[macro_use]
pub mod output;

mod advice;
mod batch;
mod cache;
mod changes;
mod client;
pub mod completions;
pub mod control;
mod dump;
pub mod exchange;
mod find;
mod handle;
mod homed_prefixes;
pub mod init;
mod input;
mod key;
mod message;
mod mirror;
mod notice;
mod progress;
mod proof;
mod reconcile;
mod reference;
pub mod resolve;
mod root;
mod secret;
mod server;
mod service;
mod share;
mod ship;
mod snapshot;
mod store;
pub mod style;

use clap::{CommandFactory as _, Parser, Subcommand};
use handle_client::administration::{AskError, SessionFailure};
use std::process::ExitCode;

/// The client and operator tool of the Handle System.
///
/// A handle is a name like 10.1045/july95-arms. This tool resolves and administers handles, builds
/// the snapshots that `handled` serves, and decodes protocol messages.
#[derive(Parser, Debug)]
#[command(
    name = "hdl",
    version = handle_fleet::location::VERSION,
    max_term_width = 100,
    after_help = "Start here:
  hdl snapshot publish ./set records.jsonl    publish records for handled to serve
  hdl resolve 10.1000/1 --server 127.0.0.1    ask a server
  hdl resolve hdl:10.1000/1 --trace           find the responsible service, show each step
  hdl init --help                             create a service
  handle-lab demo                             build, serve, resolve and load real records
  handle-lab up                               run a small Handle System for experiments

Every command has --help with examples."
)]
struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    color: style::ColorArgs,
}

/// Makes the commands of their rows: name, arguments with the help in their documentation, and
/// function.
macro_rules! commands {
    ($($name:ident($arguments:ty) => $run:path;)+) => {
        #[derive(Subcommand, Debug)]
        enum Command {
            $($name(Box<$arguments>),)+
        }

        impl Command {
            fn run(&self) -> anyhow::Result<ExitOutcome> {
                match self {
                    $(Self::$name(args) => $run(args),)+
                }
            }
        }
    };
}

// In the order of the help.
commands! {
    Resolve(resolve::Args) => resolve::run;
    Reference(reference::Args) => reference::run;
    Site(service::Args) => service::run;
    Root(root::Args) => root::run;
    Check(service::check::Args) => service::check::run;
    Init(init::Args) => init::run;
    Handle(handle::Args) => handle::run;
    Batch(batch::Args) => batch::run;
    Key(key::Args) => key::run;
    Import(store::import::Args) => store::import::run;
    Export(store::export::Args) => store::export::run;
    Find(find::Args) => find::run;
    Changes(changes::Args) => changes::run;
    Reconcile(reconcile::Args) => reconcile::run;
    Store(store::Args) => store::run;
    Snapshot(snapshot::Args) => snapshot::run;
    Ship(ship::Args) => ship::run;
    Prove(proof::ProveArgs) => proof::prove;
    VerifyProof(proof::VerifyArgs) => proof::verify;
    Mirror(mirror::Args) => mirror::run;
    Message(message::Args) => message::run;
    Control(control::Args) => control::run;
    Cache(cache::Args) => cache::run;
    Completions(completions::Args) => completions::run;
}

/// The command line of `hdl`, for manual pages.
#[must_use]
pub fn command() -> clap::Command {
    Args::command()
}

/// The result of a command, as an exit code. Usage errors are 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitOutcome {
    /// Success.
    Good = 0,
    /// Any failure without a code of its own.
    Failed = 1,
    /// The input is invalid, and nothing was done with it.
    BadInput = 2,
    /// The handle does not exist.
    NotFound = 3,
    /// The handle exists, but has no such value.
    NoValues = 4,
    /// The server is not responsible, or refers to another.
    NotResponsible = 5,
    /// The server answered with another error.
    Refused = 6,
    /// There was no answer.
    NoAnswer = 7,
}

/// A mistake on the command line that clap cannot detect.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Runs `hdl` with the arguments of this process.
#[must_use]
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage_error(&error),
    };
    args.color.choose();
    exit_code("hdl", args.command.run())
}

/// Prints why the command line of a program was not parsed, and returns the exit code. Ends the
/// process after a help or version text.
#[must_use]
pub fn usage_error(error: &clap::Error) -> ExitCode {
    // Help and version texts, which are from this program.
    if !error.use_stderr() {
        error.exit();
    }
    // A usage error quotes arguments, which may come from elsewhere.
    error.render().to_string().lines().for_each(|line| eprintln!("{line}"));
    ExitCode::from(ExitOutcome::BadInput as u8)
}

/// The exit code of a command of `program`. Prints its error, if any, after the name of the
/// program.
#[must_use]
pub fn exit_code(program: &str, done: anyhow::Result<ExitOutcome>) -> ExitCode {
    let done = done.and_then(|outcome| match output::check() {
        Err(error) if !is_broken_pipe(&error) => Err(error),
        Ok(()) | Err(_) => Ok(outcome),
    });
    match done {
        Ok(outcome) => ExitCode::from(outcome as u8),
        // A reader that closes the pipe early, such as `head`, is not a failure.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {error:#}");
            advice::of(&error).iter().for_each(|advice| eprintln!("{program}: {advice}"));
            ExitCode::from(outcome_of(&error) as u8)
        }
    }
}

/// The outcome of a command that ends with an error.
fn outcome_of(error: &anyhow::Error) -> ExitOutcome {
    // A refusal is one whether it concerns the request or the session for it, and although nothing
    // may prove that it is of this server.
    let is_refusal = match error.downcast_ref() {
        Some(AskError::UnprovenRefusal { .. }) => true,
        Some(AskError::NoSession { why, .. }) => matches!(why, SessionFailure::Refused { .. }),
        _ => error.is::<exchange::ServerRefusal>(),
    };
    match () {
        () if error.is::<exchange::NoAnswer>() => ExitOutcome::NoAnswer,
        () if error.is::<UsageError>() => ExitOutcome::BadInput,
        () if is_refusal => ExitOutcome::Refused,
        () => ExitOutcome::Failed,
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    kind == Some(std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn long_descriptions_are_shown() {
        let command = Args::command();
        for name in
            ["reference", "root", "site", "check", "handle", "import", "export", "find", "changes", "ship"]
        {
            let described = command.find_subcommand(name).expect("a command");
            let long = described.get_long_about().map(ToString::to_string).unwrap_or_default();
            assert!(long.contains("\n\n"), "{name}: {long}");
        }
    }
}
