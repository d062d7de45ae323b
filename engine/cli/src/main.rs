//! `hdl`: resolve handles, build and publish snapshots, look into messages.
//!
//! One file for each command; `main` only knows their names and what their outcomes mean to a shell.
#![forbid(unsafe_code)]

// First, for the others print with it.
#[macro_use]
mod output;

mod advice;
mod batch;
mod client;
mod control;
mod demo;
mod dump;
mod exchange;
mod handle;
mod handled_process;
mod homed_prefixes;
mod init;
mod input;
mod key;
mod lab;
mod message;
mod notice;
mod progress;
mod reference;
mod resolve;
mod root;
mod secret;
mod server;
mod service;
mod share;
mod snapshot;
mod store;
mod style;

use clap::{CommandFactory as _, Parser, Subcommand};
use std::process::ExitCode;

/// The client and operator tool of the Handle System.
///
/// Handles are names like 10.1045/july95-arms. This tool asks servers for their values, makes the
/// snapshots that `handled` serves, and takes protocol messages apart.
#[derive(Parser, Debug)]
#[command(
    name = "hdl",
    version,
    max_term_width = 100,
    after_help = "Start here:
  hdl demo                                    build, serve, resolve and load real records, and see
  hdl snapshot publish ./set records.jsonl    publish records for handled to serve
  hdl resolve 10.1000/1 --server 127.0.0.1    ask a server
  hdl resolve hdl:10.1000/1 --trace           find the responsible service, and see how
  hdl init --help                             begin a service of your own
  hdl lab up                                  a small Handle System to learn with, and to break

Every command has --help with examples."
)]
struct Args {
    #[command(subcommand)]
    command: Command,
    /// When to use colours: on a terminal, where NO_COLOR is not set; always; never.
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value_t,
        global = true,
        hide_possible_values = true
    )]
    color: style::ColorChoice,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Find the values of handles, from the responsible service or from a server.
    Resolve(Box<resolve::Args>),
    /// Say which handle a reference means, and print its two best forms.
    Reference(reference::Args),
    /// Show the sites and servers of the service that is responsible for a handle or a prefix.
    Site(service::Args),
    /// Show where the global service is, or get its records anew.
    Root(root::Args),
    /// Ask every server of a service for the same handle, and say who disagrees.
    Check(service::check::Args),
    /// Make everything that handled and handle-admin need to begin.
    Init(Box<init::Args>),
    /// Create, change, delete, get and list handles.
    Handle(Box<handle::Args>),
    /// Carry out the operations of a batch file.
    Batch(Box<batch::Args>),
    /// Make keys, change their form, and look at them.
    Key(key::Args),
    /// Take records into a store, from files or another server.
    Import(Box<store::import::Args>),
    /// Write all records of a store or of a published set.
    Export(store::export::Args),
    /// Look after the store of handle-admin.
    Store(store::Args),
    /// Build, publish, check and look into snapshots.
    Snapshot(snapshot::Args),
    /// Take protocol messages apart.
    Message(message::Args),
    /// Ask a running handled or handle-admin for its state, or tell it something.
    Control(control::Args),
    /// The whole system in one command: build, serve, resolve, load, publish while loading.
    Demo(demo::Args),
    /// A small Handle System on loopback: nine servers in five sites, with real records.
    Lab(lab::Args),
    /// Print completions for a shell.
    #[command(after_help = "Example:\n  hdl completions bash > /etc/bash_completion.d/hdl")]
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Serve: what `hdl demo` starts as a process of its own.
    #[command(hide = true)]
    DemoServer(demo::ServerArgs),
    /// Serve: what `hdl lab` starts as processes of their own.
    #[command(hide = true)]
    LabServer(lab::ServerArgs),
}

/// What a command came to, as an exit code. Usage errors are 2, of clap and [`UsageError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitOutcome {
    /// As asked.
    Good = 0,
    /// Something failed that is not listed below.
    Failed = 1,
    /// What was given does not read, and nothing was done with it.
    BadInput = 2,
    /// There is no such handle.
    NotFound = 3,
    /// The handle is there, but no such value.
    NoValues = 4,
    /// The server is not responsible, or names another.
    NotResponsible = 5,
    /// The server answered with another error.
    Refused = 6,
    /// No answer came.
    NoAnswer = 7,
}

/// A mistake on the command line that clap does not know of.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        // Help and versions, which are this program's own text.
        Err(error) if !error.use_stderr() => error.exit(),
        // A usage error shows arguments, which may come from elsewhere.
        Err(error) => {
            error.render().to_string().lines().for_each(|line| eprintln!("{line}"));
            return ExitCode::from(ExitOutcome::BadInput as u8);
        }
    };
    style::choose(args.color);
    let done = match args.command {
        Command::Resolve(args) => resolve::run(&args),
        Command::Init(args) => init::run(&args),
        Command::Handle(args) => handle::run(&args),
        Command::Batch(args) => batch::run(&args),
        Command::Key(args) => key::run(&args),
        Command::Import(args) => store::import::run(&args),
        Command::Export(args) => store::export::run(&args),
        Command::Store(args) => store::run(&args),
        Command::Snapshot(args) => snapshot::run(args),
        Command::Message(args) => message::run(&args),
        Command::Control(args) => control::run(&args),
        Command::Reference(args) => reference::run(&args),
        Command::Site(args) => service::run(&args),
        Command::Root(args) => root::run(&args),
        Command::Check(args) => service::check::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Lab(args) => lab::run(&args),
        Command::LabServer(args) => lab::serve(&args),
        Command::DemoServer(args) => demo::serve(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "hdl", &mut script);
            output::lines(String::from_utf8_lossy(&script).trim_end());
            Ok(ExitOutcome::Good)
        }
    };
    let done = done.and_then(|outcome| match output::check() {
        Err(error) if !is_broken_pipe(&error) => Err(error),
        Ok(()) | Err(_) => Ok(outcome),
    });
    match done {
        Ok(outcome) => ExitCode::from(outcome as u8),
        // A reader that has seen enough, as `head` does, is not a failure.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hdl: {error:#}");
            advice::of(&error).iter().for_each(|advice| eprintln!("hdl: {advice}"));
            let outcome = match () {
                () if error.is::<exchange::NoAnswer>() => ExitOutcome::NoAnswer,
                () if error.is::<UsageError>() => ExitOutcome::BadInput,
                () => ExitOutcome::Failed,
            };
            ExitCode::from(outcome as u8)
        }
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
}
