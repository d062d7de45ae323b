//! `handled`: serves a published set of handle records over UDP and TCP.

use anyhow::{Context as _, anyhow};
use clap::Parser;
use handle_daemon::listen::raise_file_limit;
use handle_daemon::log;
use handle_daemon::reload::shown;
use handle_server::Server;
use handle_server::config::{Config, Datapath};
use handle_server::first_set;
use handle_server::privileges::{check_user, is_root};
use handle_server::server::{ReadConfig, ServerHooks, ServerState, open_live, read_site};
use handle_server::slow;
use handle_server::takeover::SuccessorProgram;
use handle_server::watchdog::Watchdog;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// Serves a published set of handle records over UDP and TCP.
///
/// The set is a directory that `hdl snapshot publish` fills. A new set is taken while serving, without
/// losing a request. Flags win over the configuration file.
///
/// Signals: SIGTERM and SIGINT answer what has arrived and stop; SIGHUP reads the configuration again, as
/// far as it can change while serving, takes the published set now, and opens the query log again.
///
/// Exit codes: 0 stopped as told, 1 failed, 2 configuration or usage.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "handled",
    version,
    max_term_width = 100,
    after_help = "Examples:
  handled --snapshot ./set --listen 127.0.0.1:2641
  handled --config /etc/handled/handled.toml --check-config
  handled --config /etc/handled/handled.toml --take-over
  echo status | socat - UNIX:/run/handled/control.sock"
)]
struct Args {
    /// Configuration file (TOML); `--print-config` shows every setting.
    #[arg(long, short, env = "HANDLED_CONFIG")]
    config: Option<PathBuf>,
    /// Directory of the published set.
    #[arg(long)]
    snapshot: Option<PathBuf>,
    /// Site record of this service, as JSON.
    #[arg(long)]
    site: Option<PathBuf>,
    /// Which server of the site this is (its `serverId`).
    #[arg(long)]
    server_id: Option<i32>,
    /// Address to answer on, over UDP and TCP; may be given more than once.
    #[arg(long)]
    listen: Vec<SocketAddr>,
    /// Worker threads for each address; 0 for one on each core.
    #[arg(long)]
    workers: Option<usize>,
    /// How datagrams are moved.
    #[arg(long, value_enum)]
    datapath: Option<Datapath>,
    /// UNIX socket for status, stats, reload and drain.
    #[arg(long)]
    control: Option<PathBuf>,
    /// Share the ports with other processes of this user: for handing over, on purpose.
    #[arg(long)]
    share_port: bool,
    /// Take over from the handled behind the control socket, if there is one: go on with its sockets,
    /// without losing a request, and let it go.
    #[arg(long)]
    take_over: bool,
    /// Copy the set into memory instead of mapping its files.
    #[arg(long)]
    copy_to_memory: bool,
    /// Check configuration, site record and every byte of the published set, say what would be served,
    /// and exit.
    #[arg(long)]
    check_config: bool,
    /// Print the configuration in force as TOML, and exit.
    #[arg(long)]
    print_config: bool,
    /// The user to become once ports are bound, when started as root: a name, or uid:gid.
    #[arg(long)]
    user: Option<String>,
    /// Serve as root all the same, without --user.
    #[arg(long, env = "HANDLED_ALLOW_ROOT")]
    allow_root: bool,
    /// What is logged: error, warn, info, debug or trace.
    #[arg(long, env = "HANDLED_LOG")]
    log: Option<String>,
    /// Log as JSON, one object a line.
    #[arg(long)]
    log_json: bool,
}

impl Args {
    fn config(&self) -> anyhow::Result<Config> {
        let mut config = match &self.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        };
        if let Some(snapshot) = &self.snapshot {
            config.snapshot.clone_from(snapshot);
        }
        if self.site.is_some() {
            config.site.clone_from(&self.site);
        }
        if self.control.is_some() {
            config.control.clone_from(&self.control);
        }
        if !self.listen.is_empty() {
            config.listen.clone_from(&self.listen);
        }
        config.server_id = self.server_id.or(config.server_id);
        config.workers = self.workers.unwrap_or(config.workers);
        config.datapath = self.datapath.unwrap_or(config.datapath);
        config.copy_to_memory |= self.copy_to_memory;
        config.share_port |= self.share_port;
        config.take_over |= self.take_over;
        config.allow_root |= self.allow_root;
        if self.user.is_some() {
            config.user.clone_from(&self.user);
        }
        if let Some(log) = &self.log {
            config.log.clone_from(log);
        }
        config.check()?;
        Ok(config)
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let config = match args.config() {
        Ok(config) => config,
        Err(error) => return fail(&error, 2),
    };
    let done = if args.print_config {
        // What is shared is printed with the rest.
        shown(&Config { shared: None, ..config }).map(|text| print!("{text}"))
    } else if args.check_config {
        return check(&args, &config).map_or_else(|error| fail(&error, 2), |()| ExitCode::SUCCESS);
    } else if is_root() && config.user.is_none() && !config.allow_root {
        let error = anyhow!(
            "this does not serve as root: say which user to become (`user`, --user handled; make one: \
             useradd --system handled), or that root is meant (`allow_root`, --allow-root)"
        );
        return fail(&error, 2);
    } else {
        serve(args, &config)
    };
    done.map_or_else(|error| fail(&error, 1), |()| ExitCode::SUCCESS)
}

fn fail(error: &anyhow::Error, code: u8) -> ExitCode {
    eprintln!("handled: {error:#}");
    ExitCode::from(code)
}

fn check(args: &Args, config: &Config) -> anyhow::Result<()> {
    if let Some(user) = &config.user {
        check_user(user)?;
    }
    if config.pin {
        // Those that workers come to: each has a socket for each address.
        let workers_count = if config.workers == 0 { config.cores.len() } else { config.workers };
        config
            .cores
            .iter()
            .take(workers_count * config.listen.len())
            .try_for_each(|&core| check_core(core))?;
    }
    let site = read_site(config)?;
    slow::open_signer(config, &site)?;
    for difference in site.differences() {
        eprintln!("handled: warning: {difference}");
    }
    let live = open_live(config)?;
    let set = live.current();
    set.verify()?;
    println!(
        "configuration is good: generation {} with {} layers, {} bytes, for server {} of {} in the site, on {}",
        set.generation(),
        set.layers().len(),
        set.bytes_mapped(),
        site.service().server_at + 1,
        site.service().servers_count,
        config.listen.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    );
    if let Some(path) = &args.config {
        println!("{}", handle_daemon::text::explain_shared(path)?);
    }
    Ok(())
}

/// Whether a worker could run on `core`, asked by a thread that is given up for it.
fn check_core(core: usize) -> anyhow::Result<()> {
    let pinned = std::thread::spawn(move || handle_net::pin_to_core(core)).join();
    let pinned = pinned.map_err(|_| anyhow!("the thread that tried panicked"))?;
    pinned.with_context(|| format!("`cores`: cannot run on core {core} (which are allowed: taskset -p $$)"))
}

/// How this program was started, for its successor.
fn program() -> Option<SuccessorProgram> {
    let take_over = OsString::from("--take-over");
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).filter(|it| *it != take_over).collect();
    arguments.push(take_over);
    // Asked now: once the file is replaced, the kernel calls it deleted.
    Some(SuccessorProgram { path: std::env::current_exe().ok()?, arguments })
}

/// Bugs that a datagram can reach are counted, and the first of them shown; the log is not the sender's.
fn quiet_panics() {
    const SHOWN_MAX: u32 = 10;
    static SHOWN: AtomicU32 = AtomicU32::new(0);
    let show = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if SHOWN.fetch_add(1, Ordering::Relaxed) < SHOWN_MAX {
            show(panic);
        }
    }));
}

fn serve(args: Args, config: &Config) -> anyhow::Result<()> {
    let set_log = Some(log::start(&config.log, args.log_json)?);
    let read_config: Option<ReadConfig> = Some(Box::new(move || args.config()));
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot listen to signals")?;
    quiet_panics();
    if let Err(error) = raise_file_limit() {
        tracing::warn!(%error, "the limit of open files stays as it is (ulimit -n)");
    }
    let is_told_to_stop = || signals.pending().any(|signal| signal != SIGHUP);
    if !first_set::wait_for_set(config, is_told_to_stop)? {
        return Ok(());
    }
    let server = Server::start_with(config, ServerHooks { program: program(), read_config, set_log })?;
    // Without a service manager there is nobody to tell.
    let _ = sd_notify::notify(&[
        NotifyState::MainPid(std::process::id()),
        NotifyState::Ready,
        NotifyState::Status("serving"),
    ]);
    tracing::info!(addresses = ?server.addresses(), generation = server.shared().live.current().generation(), "serving");
    let mut watchdog = sd_notify::watchdog_enabled()
        .map(|patience| Watchdog::new(server.shared(), patience, Instant::now()));
    heed(signals, server.shared())?;
    while !server.shared().has_ended() && !server.shared().is_draining() {
        if watchdog.as_mut().is_some_and(|it| it.is_due(server.shared(), Instant::now())) {
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        }
        server.shared().wait(watchdog.as_ref().map(Watchdog::interval));
    }
    // After a hand-over the service goes on.
    if !server.shared().is_handed_over() {
        let _ = sd_notify::notify(&[NotifyState::Stopping]);
    }
    let drained = server.shared().is_draining();
    tracing::info!("stopping: answering what has arrived");
    server.stop()?;
    anyhow::ensure!(drained, "all workers have stopped by themselves; the log says why");
    Ok(())
}

/// Starts the thread that does what signals say; it ends with the process.
fn heed(mut signals: Signals, shared: &Arc<ServerState>) -> anyhow::Result<()> {
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            if signal == SIGHUP {
                shared.reopen_log();
                let said = shared.reload();
                tracing::info!(%said, "reloaded");
            } else {
                shared.drain();
            }
        }
    });
    thread.map(drop).context("cannot start the thread that listens to signals")
}
