//! `handle-lab`: the whole system in one command, for a first look, and small Handle Systems on
//! loopback, for learning and testing.
//!
//! - [`demo`]: builds, serves, resolves and loads real records.
//! - [`up`]: nine servers in five sites, a gateway and a cache.
//! - [`serve`]: a test service for programs that use handles.
//! - [`replicas`]: a primary, its mirror and a fleet, to be broken on purpose.
//!
//! The servers of `demo`, `serve` and `up` run in processes of this program, which are its hidden
//! commands.
#![forbid(unsafe_code)]

// Its macros replace `println!` and `eprintln!`.
#[macro_use]
extern crate handle_cli;

mod demo;
mod end;
mod manuals;
mod registry;
mod replicas;
mod serve;
mod server_process;
mod up;

use clap::{Parser, Subcommand};
use handle_cli::style::ColorArgs;
use handle_cli::{exit_code, usage_error};
use std::process::ExitCode;

/// Runs small Handle Systems on loopback, for a first look and for experiments.
#[derive(Parser, Debug)]
#[command(
    name = "handle-lab",
    version,
    max_term_width = 100,
    after_help = "Start here:
  handle-lab demo                               build, serve, resolve and load real records
  handle-lab up                                 run a small Handle System for experiments
  handle-lab serve --prefix 20.500.12345        run a service for tests of other programs
  handle-lab replicas --dir /tmp/replicas       run a primary with a mirror and a fleet

Every command has --help with examples."
)]
struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    color: ColorArgs,
}

#[derive(Subcommand, Debug)]
enum Command {
    Demo(demo::Args),
    /// Run a small Handle System: nine servers in five sites, a gateway and a cache.
    ///
    /// Creates the sites with real records, starts their servers, and prints commands to try. Runs
    /// until it is interrupted (^C), until --seconds have passed, or until standard input ends
    /// (^D). If standard input is closed from the start, as in a container or a unit, it is
    /// ignored. Stops the servers at the end, and removes all files unless --dir is given.
    #[command(after_help = "Examples:
  handle-lab up
  handle-lab up --dir /tmp/lab
  handle-lab up --records my.jsonl --json
  handle-lab up --dir /tmp/lab --seconds 600 &
  hdl resolve 10.1016/j.rcae.2013.04.001 --root /tmp/lab/bootstrap_handles --trace --certify
  hdl check 10.1016/lab-new --root /tmp/lab/bootstrap_handles")]
    Up(up::Args),
    /// Run a test service for programs that use handles, as Dataverse, DSpace and pyhandle.
    ///
    /// Starts a registry, a server, its administration and a gateway with TLS, whose administrator
    /// has a key and a secret, and prints what clients need. Runs until it is interrupted (^C),
    /// until --seconds have passed, or until standard input ends (^D); a standard input that is
    /// closed from the start is ignored. Then all files are removed, unless --directory is given.
    #[command(after_help = "Examples:
  handle-lab serve --prefix 20.500.12345
  handle-lab serve --prefix 20.500.12345 --env-file handle.env --json
  handle-lab serve --prefix 20.500.12345 --port 2641 --admin-port 2642 --gateway-port 8000 \\
      --directory /tmp/handles")]
    Serve(serve::Args),
    /// Run a primary, a mirror of it and a fleet of two machines, to break them on purpose.
    ///
    /// Each process is one that operators run: handle-admin, handled, handle-fetch and
    /// hdl ship --follow, which have to be installed beside handle-lab. Runs until it is
    /// interrupted (^C), until --seconds have passed, or until standard input ends (^D); a standard
    /// input that is closed from the start is ignored. A process that ends is started again, unless
    /// it was stopped with `handle-lab stop`.
    #[command(after_help = "Examples:
  handle-lab replicas --dir /tmp/replicas
  handle-lab look --dir /tmp/replicas
  handle-lab stop mirror --dir /tmp/replicas")]
    Replicas(replicas::ReplicasArgs),
    /// Show what each process of `handle-lab replicas` serves, and its error.
    #[command(after_help = "Example:
  handle-lab look --dir /tmp/replicas

Exit codes: 0 all servers give the same text, 1 they do not.")]
    Look(replicas::LookArgs),
    /// Change the record of `handle-lab replicas` at its primary.
    #[command(after_help = "Example:
  handle-lab change hello --dir /tmp/replicas")]
    Change(replicas::ChangeArgs),
    /// Kill a process of `handle-lab replicas`, which stays stopped.
    #[command(after_help = "Example:
  handle-lab stop primary --dir /tmp/replicas")]
    Stop(replicas::ProcessArgs),
    /// Start a process of `handle-lab replicas` that was stopped.
    #[command(after_help = "Example:
  handle-lab start primary --dir /tmp/replicas")]
    Start(replicas::ProcessArgs),
    /// Change a byte of the newest layer in the place of the fleet.
    #[command(after_help = "Example:
  handle-lab damage --dir /tmp/replicas")]
    Damage(replicas::DirectoryArgs),
    /// Remove the newest layer from the place of the fleet, so that it is shipped again.
    #[command(after_help = "Example:
  handle-lab repair --dir /tmp/replicas")]
    Repair(replicas::DirectoryArgs),
    /// Write manual pages and completions of all programs, for a package or after a build.
    ///
    /// The directory is laid out as /usr/share: man/man1 and man/man8, and completions for bash,
    /// zsh and fish where these shells look for them.
    #[command(after_help = "Examples:
  handle-lab manuals ~/.local/share
  handle-lab manuals /usr/local/share")]
    Manuals(manuals::ManualsArgs),
    /// Serve; the server process of `demo`.
    #[command(hide = true)]
    DemoServer(demo::ServerArgs),
    /// Serve; a server process of `up` and `serve`.
    #[command(hide = true)]
    LabServer(up::ServerArgs),
    /// Run a program; the parent of a process of `replicas`.
    #[command(hide = true)]
    LabKeep(replicas::KeptArgs),
    /// Serve over HTTP; the gateway of `demo`, `serve` and `up`.
    #[command(hide = true)]
    GatewayServer(server_process::GatewayArgs),
    /// Accept changes; the administration of `serve`.
    #[command(hide = true)]
    AdminServer(server_process::AdminArgs),
    /// Serve from a cache; the caching server of `up`.
    #[command(hide = true)]
    CacheServer(server_process::CacheArgs),
}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage_error(&error),
    };
    args.color.choose();
    let done = match args.command {
        Command::Demo(args) => demo::run(&args),
        Command::Up(args) => up::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Replicas(args) => replicas::run(&args),
        Command::Look(args) => replicas::look(&args),
        Command::Change(args) => replicas::change(&args),
        Command::Stop(args) => replicas::stop(&args),
        Command::Start(args) => replicas::start(&args),
        Command::Damage(args) => replicas::damage(&args),
        Command::Repair(args) => replicas::repair(&args),
        Command::Manuals(args) => manuals::write(&args),
        Command::DemoServer(args) => demo::serve(&args),
        Command::LabServer(args) => up::serve(&args),
        Command::LabKeep(args) => replicas::keep(&args),
        Command::GatewayServer(args) => server_process::serve_gateway(&args),
        Command::AdminServer(args) => server_process::serve_admin(&args),
        Command::CacheServer(args) => server_process::serve_cache(&args),
    };
    exit_code("handle-lab", done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent_and_described() {
        let mut command = Args::command();
        command.build();
        for name in ["demo", "up", "serve", "replicas"] {
            let described = command.find_subcommand(name).expect("a command");
            let long = described.get_long_about().map(ToString::to_string).unwrap_or_default();
            assert!(long.contains("\n\n"), "{name}: {long}");
        }
        command.debug_assert();
    }
}
