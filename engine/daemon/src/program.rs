//! The frame of a program: arguments over settings, `--print-config`, `--check-config`, the refusal
//! to run as root, logs, signals and exit codes. A program implements [`Program`] for what is
//! specific to it, and calls [`run`] from `main`.

use crate::listen::raise_file_limit;
use crate::log::{self, SetLog};
use crate::privileges::{check_user, is_root};
use crate::settings::{SettingSection, file};
use crate::signals::Signals;
use anyhow::Context as _;
use clap::Parser;
use serde::Serialize;
use std::fmt;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use toml::Value;

/// Exit code of a wrong configuration or usage.
const USAGE: u8 = 2;

/// Arguments of every program. An argument overrides the setting of its name. Those with an
/// environment variable have it under the name of the program, as `HANDLED_CONFIG`.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct CommonArgs {
    /// Configuration file (TOML); `--print-config` shows every setting.
    #[arg(long, short)]
    #[serde(skip)]
    config: Option<PathBuf>,
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
    #[serde(skip)]
    check_config: bool,
    /// Print the configuration in force as TOML, and exit.
    #[arg(long)]
    #[serde(skip)]
    print_config: bool,
    /// What is logged: error, warn, info, debug or trace.
    #[arg(long)]
    log: Option<String>,
    /// Log as JSON, one object a line.
    #[arg(long)]
    #[serde(skip)]
    log_json: bool,
}

/// Arguments of [`CommonArgs`] that have an environment variable.
const IN_ENVIRONMENT: [&str; 3] = ["config", "allow_root", "log"];

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

/// A program, as its arguments. Serialized, a field overrides the setting of its name: for a
/// setting in a section, the field is renamed to the dotted name.
pub trait Program: Parser + Serialize + Send + Sync + 'static {
    /// Its name, which begins its messages.
    const NAME: &'static str;
    /// Its settings, with those that [`settings!`](crate::settings!) declares for every process.
    type Config: SettingSection + 'static;

    /// The arguments that every program has.
    fn common(&self) -> &CommonArgs;

    /// Runs the command that the arguments name, if they name one, and returns what it prints. The
    /// program then ends without serving.
    fn run_command(&self) -> Option<anyhow::Result<String>> {
        None
    }

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
            log::say(format_args!("{}: {error:#}", P::NAME));
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

/// The command line of a program, as its help shows it.
#[must_use]
pub fn command<P: Program>() -> clap::Command {
    let prefix = P::NAME.to_uppercase().replace('-', "_");
    let mut command = P::command();
    for argument in IN_ENVIRONMENT {
        // Leaked, because clap requires static names; a process makes few command lines.
        let variable: &'static str = format!("{prefix}_{}", argument.to_uppercase()).leak();
        command = command.mut_arg(argument, |it| it.env(variable));
    }
    if !has_setting::<P::Config>("listen") {
        command = command.mut_arg("listen", |it| it.hide(true));
    }
    command
}

fn parse<P: Program>() -> P {
    let matches = command::<P>().get_matches();
    P::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// Whether the program has a setting of this name.
fn has_setting<C: SettingSection>(name: &str) -> bool {
    C::tables("").iter().flat_map(|table| &table.rows).any(|row| row.name == name)
}

/// The settings in force: those of the file, with the arguments over them.
fn configure<P: Program>(program: &P) -> anyhow::Result<P::Config> {
    let config = match &program.common().config {
        Some(path) => file::read(path)?,
        None => P::Config::default(),
    };
    let config: P::Config = file::overlay(&config, program).context("in the arguments")?;
    config.check()?;
    Ok(config)
}

/// The account of all processes in the units of `docs/operations`: they read what each other
/// writes.
const ACCOUNT: &str = "handled";

fn run_parsed<P: Program>(program: P) -> Result<(), Failure> {
    if let Some(done) = program.run_command() {
        return Ok(print(&done?)?);
    }
    let config = configure(&program).map_err(Failure::usage)?;
    let common = program.common();
    if common.print_config {
        return Ok(print(&file::print(&config).map_err(anyhow::Error::from)?)?);
    }
    let settings = file::to_table(&config).map_err(anyhow::Error::from)?;
    let text = |name| settings.get(name).and_then(Value::as_str);
    if common.check_config {
        return check::<P>(common, &config, text("user")).map_err(Failure::usage);
    }
    let may_be_root = text("user").is_some() || settings["allow_root"].as_bool() == Some(true);
    if is_root() && !may_be_root {
        return Err(Failure::usage(anyhow::anyhow!(
            "refusing to run as root: set `user` or pass --user {ACCOUNT} (create the account: useradd --system {ACCOUNT}), \
             or pass --allow-root"
        )));
    }
    let set_log =
        log::start(text("log").unwrap_or_default(), common.log_json).map_err(anyhow::Error::from)?;
    let signals = Signals::new().context("cannot listen to signals")?;
    if let Err(error) = raise_file_limit() {
        tracing::warn!(%error, "cannot raise the limit of open files (ulimit -n)");
    }
    let read_config = Box::new(move || configure(&program));
    Ok(P::serve(&config, Startup { signals, set_log, read_config })?)
}

/// Prints to standard output. Unlike `print!`, an error does not panic.
fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    printed.context("cannot write to standard output")
}

fn check<P: Program>(common: &CommonArgs, config: &P::Config, user: Option<&str>) -> anyhow::Result<()> {
    if let Some(user) = user {
        check_user(user)?;
    }
    print(&format!("configuration is good: {}\n", P::check(config)?))?;
    if let Some(path) = common.config.as_ref().filter(|_| has_setting::<P::Config>("shared")) {
        print(&format!("{}\n", file::explain_shared(path)?))?;
    }
    Ok(())
}
