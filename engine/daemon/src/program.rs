//! The frame of a program: arguments over settings, `--print-config`, `--check-config`, the refusal
//! to run as root, logs, signals and exit codes. A program implements [`Program`] for what is
//! specific to it, and calls [`run`] from `main`.

use crate::listen::raise_file_limit;
use crate::log::{self, SetLog};
use crate::privileges::{check_user, is_root};
use crate::reload::shown;
use crate::signals::Signals;
use crate::text::explain_shared;
use anyhow::Context as _;
use clap::Parser;
use serde::Serialize;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit code of a wrong configuration or usage.
const USAGE: u8 = 2;

/// Arguments of every program. Those with an environment variable have it under the name of the
/// program, as `HANDLED_CONFIG`.
#[derive(clap::Args, Clone, Debug)]
pub struct CommonArgs {
    /// Configuration file (TOML); `--print-config` shows every setting.
    #[arg(long, short)]
    config: Option<PathBuf>,
    /// Which server of the site this is (its `serverId`).
    #[arg(long)]
    server_id: Option<i32>,
    /// Address to answer on; may be given more than once.
    #[arg(long)]
    listen: Vec<SocketAddr>,
    /// UNIX socket for status, stats, reload and drain.
    #[arg(long)]
    control: Option<PathBuf>,
    /// The user to become once ports are bound, when started as root: a name, or uid:gid.
    #[arg(long)]
    user: Option<String>,
    /// Allow running as root without --user.
    #[arg(long)]
    allow_root: bool,
    /// Check the configuration and all files that it names, print what would be served, and exit.
    #[arg(long)]
    check_config: bool,
    /// Print the configuration in force as TOML, and exit.
    #[arg(long)]
    print_config: bool,
    /// What is logged: error, warn, info, debug or trace.
    #[arg(long)]
    log: Option<String>,
    /// Log as JSON, one object a line.
    #[arg(long)]
    log_json: bool,
}

/// Arguments of [`CommonArgs`] that have an environment variable.
const IN_ENVIRONMENT: [&str; 3] = ["config", "allow_root", "log"];

/// The settings that every program has.
#[derive(Debug)]
pub struct CommonSettings<'c> {
    /// The file with settings that several processes read.
    pub shared: &'c mut Option<PathBuf>,
    /// Which server of the site this is.
    pub server_id: &'c mut Option<i32>,
    /// Addresses to answer on.
    pub listen: &'c mut Vec<SocketAddr>,
    /// Path of the control socket.
    pub control: &'c mut Option<PathBuf>,
    /// The user to become.
    pub user: &'c mut Option<String>,
    /// Whether the program may run as root.
    pub allow_root: &'c mut bool,
    /// What is logged.
    pub log: &'c mut String,
}

/// Overrides a setting with an argument, if the argument is given.
pub fn lay_over<T: Clone>(setting: &mut T, argument: Option<&T>) {
    if let Some(argument) = argument {
        setting.clone_from(argument);
    }
}

/// Overrides an optional setting with an argument, if the argument is given.
pub fn lay_over_optional<T: Clone>(setting: &mut Option<T>, argument: Option<&T>) {
    if argument.is_some() {
        *setting = argument.cloned();
    }
}

impl CommonArgs {
    fn lay_over(&self, settings: CommonSettings<'_>) {
        lay_over_optional(settings.server_id, self.server_id.as_ref());
        lay_over(settings.listen, Some(&self.listen).filter(|listen| !listen.is_empty()));
        lay_over_optional(settings.control, self.control.as_ref());
        lay_over_optional(settings.user, self.user.as_ref());
        *settings.allow_root |= self.allow_root;
        lay_over(settings.log, self.log.as_ref());
    }
}

/// Reads the configuration again, with the arguments of the program over it.
pub type ReadConfig<C> = Box<dyn Fn() -> anyhow::Result<C> + Send + Sync>;

/// What a program receives when it begins to serve.
pub struct Startup<C> {
    /// The signals since the start.
    pub signals: Signals,
    /// Changes what is logged.
    pub set_log: SetLog,
    /// Reads the configuration again.
    pub read_config: ReadConfig<C>,
}

impl<C> fmt::Debug for Startup<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Startup").field("signals", &self.signals).finish_non_exhaustive()
    }
}

/// A program, as its arguments.
pub trait Program: Parser + Send + Sync + 'static {
    /// Its name, which begins its messages.
    const NAME: &'static str;
    /// Its settings.
    type Config: Default + Serialize + 'static;

    /// The arguments that every program has.
    fn common(&self) -> &CommonArgs;

    /// The settings that every program has.
    fn common_settings(config: &mut Self::Config) -> CommonSettings<'_>;

    /// Reads the configuration at `path`.
    ///
    /// # Errors
    /// One sentence with the path.
    fn read(path: &Path) -> anyhow::Result<Self::Config>;

    /// Lays its own arguments over the settings.
    fn lay_over(&self, config: &mut Self::Config);

    /// Checks what can be checked without opening anything.
    ///
    /// # Errors
    /// Names the setting and its allowed values.
    fn check_settings(config: &Self::Config) -> anyhow::Result<()>;

    /// Opens everything that `config` names, and returns one sentence on what would be served.
    ///
    /// # Errors
    /// One sentence with the likely cause.
    fn check(config: &Self::Config) -> anyhow::Result<String>;

    /// Serves until a signal or command stops the program.
    ///
    /// # Errors
    /// Why the program could not start, or has stopped by itself.
    fn serve(config: &Self::Config, startup: Startup<Self::Config>) -> anyhow::Result<()>;
}

/// Runs a program: parses its arguments and does what they ask for. Exit codes are 0 for success, 1
/// for a failure and 2 for a wrong configuration or usage.
#[must_use]
pub fn run<P: Program>() -> ExitCode {
    let program = parse::<P>();
    match run_parsed(program) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, error }) => {
            eprintln!("{}: {error:#}", P::NAME);
            ExitCode::from(code)
        }
    }
}

/// Why a program ends, and its exit code.
struct Failure {
    code: u8,
    error: anyhow::Error,
}

impl Failure {
    const fn usage(error: anyhow::Error) -> Self {
        Self { code: USAGE, error }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self { code: 1, error }
    }
}

fn parse<P: Program>() -> P {
    let prefix = P::NAME.to_uppercase().replace('-', "_");
    let mut command = P::command();
    for argument in IN_ENVIRONMENT {
        // Leaked once per process, because clap requires static names.
        let variable: &'static str = format!("{prefix}_{}", argument.to_uppercase()).leak();
        command = command.mut_arg(argument, |it| it.env(variable));
    }
    let matches = command.get_matches();
    P::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// The settings in force: those of the file, with the arguments over them.
fn configure<P: Program>(program: &P) -> anyhow::Result<P::Config> {
    let mut config = match &program.common().config {
        Some(path) => P::read(path)?,
        None => P::Config::default(),
    };
    program.common().lay_over(P::common_settings(&mut config));
    program.lay_over(&mut config);
    P::check_settings(&config)?;
    Ok(config)
}

fn run_parsed<P: Program>(program: P) -> Result<(), Failure> {
    let mut config = configure(&program).map_err(Failure::usage)?;
    let common = program.common();
    let settings = P::common_settings(&mut config);
    if common.print_config {
        // The shared settings are already part of the configuration that is printed.
        *settings.shared = None;
        print!("{}", shown(&config)?);
        return Ok(());
    }
    if common.check_config {
        return check::<P>(common, &mut config).map_err(Failure::usage);
    }
    if is_root() && settings.user.is_none() && !*settings.allow_root {
        return Err(Failure::usage(anyhow::anyhow!(
            "refusing to run as root: set `user` or pass --user {name} (create the account: useradd --system {name}), \
             or pass --allow-root",
            name = P::NAME
        )));
    }
    let set_log = log::start(settings.log, common.log_json)?;
    let signals = Signals::new().context("cannot listen to signals")?;
    if let Err(error) = raise_file_limit() {
        tracing::warn!(%error, "cannot raise the limit of open files (ulimit -n)");
    }
    let read_config = Box::new(move || configure(&program));
    Ok(P::serve(&config, Startup { signals, set_log, read_config })?)
}

fn check<P: Program>(common: &CommonArgs, config: &mut P::Config) -> anyhow::Result<()> {
    if let Some(user) = P::common_settings(config).user {
        check_user(user)?;
    }
    println!("configuration is good: {}", P::check(config)?);
    if let Some(path) = &common.config {
        println!("{}", explain_shared(path)?);
    }
    Ok(())
}
