//! `handle-admin`: keeps the records of a service, and changes them for their administrators.

use anyhow::{Context as _, anyhow};
use clap::Parser;
use handle_admin::config::Config;
use handle_admin::remote::RemoteServices;
use handle_admin::server::{Server, check_set, read_identity, site_differences};
use handle_admin::settings::{AdminHooks, ReadConfig, reload};
use handle_admin::store::{Store, StoreError};
use handle_daemon::listen::raise_file_limit;
use handle_daemon::log;
use handle_daemon::privileges::{check_user, is_root};
use handle_daemon::reload::shown;
use sd_notify::NotifyState;
use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Keeps the authoritative records of a service, and changes them for their administrators.
///
/// It answers the handle protocol over TCP on a port of its own, which the site record names as the interface for
/// administration. A change is acknowledged when it is on the disk. Flags win over the configuration file.
///
/// Signals: SIGTERM and SIGINT answer what has arrived and stop; SIGHUP opens the audit log
/// again and reloads the configuration.
///
/// Exit codes: 0 stopped as told, 1 failed, 2 configuration or usage.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "handle-admin",
    version,
    max_term_width = 100,
    after_help = "Examples:
  handle-admin --config /etc/handled/handle-admin.toml --check-config
  handle-admin --config /etc/handled/handle-admin.toml
  echo status | socat - UNIX:/run/handle-admin/control.sock"
)]
struct Args {
    /// Configuration file (TOML); `--print-config` shows every setting.
    #[arg(long, short, env = "HANDLE_ADMIN_CONFIG")]
    config: Option<PathBuf>,
    /// The file of the store.
    #[arg(long)]
    store: Option<PathBuf>,
    /// Site record of this service, as JSON.
    #[arg(long)]
    site: Option<PathBuf>,
    /// Which server of the site this is (its `serverId`).
    #[arg(long)]
    server_id: Option<i32>,
    /// Address to answer on, over TCP; may be given more than once.
    #[arg(long)]
    listen: Vec<SocketAddr>,
    /// UNIX socket for status, stats, reload and drain.
    #[arg(long)]
    control: Option<PathBuf>,
    /// The user to become once ports are bound, when started as root: a name, or uid:gid.
    #[arg(long)]
    user: Option<String>,
    /// Serve as root all the same, without --user.
    #[arg(long, env = "HANDLE_ADMIN_ALLOW_ROOT")]
    allow_root: bool,
    /// Check configuration, site record, server key, store and published set, say what would be served, and exit.
    #[arg(long)]
    check_config: bool,
    /// Print the configuration in force as TOML, and exit.
    #[arg(long)]
    print_config: bool,
    /// What is logged: error, warn, info, debug or trace.
    #[arg(long, env = "HANDLE_ADMIN_LOG")]
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
        if let Some(store) = &self.store {
            config.store.file.clone_from(store);
        }
        if let Some(site) = &self.site {
            config.site.clone_from(site);
        }
        if self.control.is_some() {
            config.control.clone_from(&self.control);
        }
        if self.user.is_some() {
            config.user.clone_from(&self.user);
        }
        if !self.listen.is_empty() {
            config.listen.clone_from(&self.listen);
        }
        if let Some(log) = &self.log {
            config.log.clone_from(log);
        }
        config.server_id = self.server_id.or(config.server_id);
        config.allow_root |= self.allow_root;
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
    if args.check_config {
        return check(&args, &config).map_or_else(|error| fail(&error, 2), |()| ExitCode::SUCCESS);
    }
    let done = if args.print_config {
        // What is shared is printed with the rest.
        shown(&Config { shared: None, ..config }).map(|text| print!("{text}"))
    } else if is_root() && config.user.is_none() && !config.allow_root {
        let error = anyhow!(
            "this does not serve as root: say which user to become (`user`, --user handle-admin; make one: \
             useradd --system handle-admin), or that root is meant (`allow_root`, --allow-root)"
        );
        return fail(&error, 2);
    } else {
        serve(args, &config)
    };
    done.map_or_else(|error| fail(&error, 1), |()| ExitCode::SUCCESS)
}

fn fail(error: &anyhow::Error, code: u8) -> ExitCode {
    eprintln!("handle-admin: {error:#}");
    ExitCode::from(code)
}

fn check(args: &Args, config: &Config) -> anyhow::Result<()> {
    if let Some(user) = &config.user {
        check_user(user)?;
    }
    let (site, key) = read_identity(config)?;
    for difference in site_differences(config, &site) {
        eprintln!("handle-admin: warning: {difference}");
    }
    RemoteServices::open(&config.elsewhere)?;
    let records = match Store::open_to_read(&config.store) {
        Ok(store) => {
            let stats = store.stats()?;
            drop(store);
            let file = &config.store.file;
            File::options().write(true).open(file).with_context(|| {
                format!("the store {0} cannot be written (who may: ls -l {0})", file.display())
            })?;
            format!("{} records under {} homed prefixes", stats.records, stats.homed_prefixes)
        }
        // Asked before a reload: the process that serves has looked at it.
        Err(StoreError::Locked(path)) => format!("records not looked at, for {} is in use", path.display()),
        Err(error) => return Err(error.into()),
    };
    if let Some(directory) = &config.publish.directory {
        check_set(directory)?;
    }
    println!(
        "configuration is good: {records}, for server {} of {} in the site, {}, on {}",
        site.server_at() + 1,
        site.servers_count(),
        if key.is_some() { "with a key to sign" } else { "without a key to sign" },
        config.listen.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    );
    if let Some(path) = &args.config {
        println!("{}", handle_daemon::text::explain_shared(path)?);
    }
    Ok(())
}

fn serve(args: Args, config: &Config) -> anyhow::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    // To look through the store takes a while, and nothing is under way until it serves.
    let is_starting = Arc::new(AtomicBool::new(true));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register_conditional_shutdown(signal, 0, Arc::clone(&is_starting))?;
    }
    let set_log = Some(log::start(&config.log, args.log_json)?);
    let read_config: Option<ReadConfig> = Some(Box::new(move || args.config()));
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    if let Err(error) = raise_file_limit() {
        tracing::warn!(%error, "the limit of open files stays as it is (ulimit -n)");
    }
    let server = Server::start_with(config, AdminHooks { read_config, set_log })?;
    is_starting.store(false, Ordering::SeqCst);
    // Without a service manager there is nobody to tell.
    let _ = sd_notify::notify(&[NotifyState::MainPid(std::process::id()), NotifyState::Ready]);
    tracing::info!(addresses = ?server.addresses(), last_transaction = server.shared().service.store.last_id(), "serving");
    if config.sessions.enabled && config.sessions.socket.is_none() {
        tracing::info!(
            "sessions are known to this process alone; deployed clients set them up with handled, and administer only where \
             both have the same `sessions.socket`"
        );
    }
    while !server.is_finished() {
        for signal in signals.pending() {
            if signal != SIGHUP {
                server.shared().drain();
                continue;
            }
            if let Err(error) = server.shared().service.audit.reopen(server.shared().config().audit_files()) {
                tracing::error!("{error:#}");
            }
            let said = reload(server.shared());
            tracing::info!(%said, "reloaded");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
    tracing::info!("stopping: answering what has arrived");
    let failure = server.failure();
    server.stop();
    // Started again, the store is read from the disk as it is there, and publishing goes on where the set is.
    failure.map_or(Ok(()), |why| Err(anyhow!(why)))
}
