//! Runs `handled`, `handle-admin`, `handle-gateway` or `handle-cache` as a separate process of this
//! program, for `handle-lab demo`, `serve` and `up`.

use anyhow::{Context as _, bail, ensure};
use handle_cli::{ExitOutcome, output};
use handle_daemon::settings::SettingSection as _;
use handle_gateway::Gateway;
use handle_worker::Server;
use handle_worker::config::Config;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Serves: prints the address on the first line, and stops at the end of standard input.
pub(crate) fn serve(config: &Config) -> anyhow::Result<ExitOutcome> {
    serve_queries(Server::start(config)?)
}

fn serve_queries(server: Server) -> anyhow::Result<ExitOutcome> {
    let shared = Arc::clone(server.shared());
    serve_until_input_ends(server.addresses()[0], move || shared.drain(), || server.is_finished())?;
    server.stop()?;
    Ok(ExitOutcome::Good)
}

/// Options of a caching server.
#[derive(clap::Args, Debug)]
pub(crate) struct CacheArgs {
    #[arg(long)]
    config: PathBuf,
}

/// Serves from a cache, as [`serve`] does from a set.
pub(crate) fn serve_cache(args: &CacheArgs) -> anyhow::Result<ExitOutcome> {
    let config = handle_cache::Config::read(&args.config)?;
    let (server, _cache) = handle_cache::program::start(&config, None)?;
    serve_queries(server)
}

/// Options of the administration.
#[derive(clap::Args, Debug)]
pub(crate) struct AdminArgs {
    #[arg(long)]
    config: PathBuf,
}

/// Accepts changes, as [`serve`] answers queries.
pub(crate) fn serve_admin(args: &AdminArgs) -> anyhow::Result<ExitOutcome> {
    let config: handle_admin::config::Config = handle_daemon::settings::file::read(&args.config)?;
    config.check()?;
    let server = handle_admin::server::Server::start(&config)?;
    let shared = Arc::clone(server.shared());
    serve_until_input_ends(server.addresses()[0], move || shared.drain(), || server.is_finished())?;
    server.stop();
    Ok(ExitOutcome::Good)
}

/// Prints `address`, has the server `drain` at the end of standard input, and waits until it
/// `is_finished`.
fn serve_until_input_ends(
    address: SocketAddr,
    drain: impl FnOnce() + Send + 'static,
    is_finished: impl Fn() -> bool,
) -> anyhow::Result<()> {
    println!("{address}");
    output::check()?;
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drain();
    });
    while !is_finished() {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Options of a gateway process.
#[derive(clap::Args, Debug)]
pub(crate) struct GatewayArgs {
    #[arg(long)]
    config: PathBuf,
    /// The core to run on.
    #[arg(long)]
    core: Option<usize>,
}

/// Serves over HTTP: prints the address on the first line, and stops at the end of standard input.
pub(crate) fn serve_gateway(args: &GatewayArgs) -> anyhow::Result<ExitOutcome> {
    // Threads run on the core of the thread that starts them.
    if let Some(core) = args.core {
        handle_loadgen::pin_to_core(core).with_context(|| format!("cannot run on core {core}"))?;
    }
    let gateway = Gateway::start(&handle_gateway::Config::read(&args.config)?)?;
    let state = Arc::clone(gateway.state());
    serve_until_input_ends(gateway.addresses()[0], move || state.drain(), || gateway.is_finished())?;
    gateway.stop()?;
    Ok(ExitOutcome::Good)
}

/// A server process, ended when it is dropped.
pub(crate) struct ServerProcess {
    child: Child,
    /// The address at which it answers.
    pub(crate) address: SocketAddr,
    /// Its control socket.
    pub(crate) control: PathBuf,
}

impl ServerProcess {
    /// Starts this program as a gateway with a configuration.
    pub(crate) fn start_gateway(
        config: &Path,
        core: Option<usize>,
        control: PathBuf,
    ) -> anyhow::Result<Self> {
        let core = core.map(|core| format!("--core={core}"));
        let args = ["gateway-server".as_ref(), "--config".as_ref(), config.as_os_str()];
        Self::start(args.into_iter().chain(core.as_ref().map(AsRef::as_ref)), control)
    }

    /// Starts this program with arguments that make it [serve], and returns once it answers.
    pub(crate) fn start<S: AsRef<OsStr>>(
        args: impl IntoIterator<Item = S>,
        control: PathBuf,
    ) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the server process")?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("the server process has an output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let Ok(address) = line.trim().parse() else {
            let status = child.wait()?;
            bail!("the server process did not start ({status}); see its message above");
        };
        Ok(Self { child, address, control })
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Stops it in order.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait()?;
        ensure!(status.success(), "the server process ended with {status}");
        Ok(())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(3);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
