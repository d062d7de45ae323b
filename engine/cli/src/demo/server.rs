//! `handled` as a process of its own, which is this program again.

use super::{Args, cores};
use crate::Outcome;
use anyhow::{Context as _, bail, ensure};
use handle_loadgen::Choice;
use handle_server::Server;
use handle_server::config::{Config, Datapath};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What the server process of the demo is told.
#[derive(clap::Args, Debug)]
pub(crate) struct ServerArgs {
    #[arg(long)]
    snapshot: PathBuf,
    #[arg(long)]
    control: PathBuf,
    #[arg(long)]
    datapath: Choice,
}

/// The server process: says where it listens, and ends when its standard input does.
pub(crate) fn serve(args: &ServerArgs) -> anyhow::Result<Outcome> {
    let cores = cores()?;
    let config = Config {
        snapshot: args.snapshot.clone(),
        control: Some(args.control.clone()),
        listen: vec![([127, 0, 0, 1], 0).into()],
        workers: 1,
        cores: cores.map(|(server, _)| server).into_iter().collect(),
        pin: cores.is_some(),
        datapath: match args.datapath {
            Choice::Auto => Datapath::Auto,
            Choice::Uring => Datapath::Uring,
            Choice::Portable => Datapath::Portable,
        },
        ..Config::default()
    };
    let server = Server::start(&config)?;
    println!("{}", server.addresses()[0]);
    std::io::stdout().flush()?;
    std::thread::spawn({
        let shared = std::sync::Arc::clone(server.shared());
        move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            shared.drain();
        }
    });
    while !server.is_finished() {
        std::thread::sleep(Duration::from_millis(20));
    }
    server.stop()?;
    Ok(Outcome::Good)
}

/// The server process, ended when it is dropped.
pub(super) struct ServerProcess {
    child: Child,
    /// Where it answers.
    pub(super) address: SocketAddr,
    /// Its control socket.
    pub(super) control: PathBuf,
}

impl ServerProcess {
    /// Starts it, and returns once it answers.
    pub(super) fn start(args: &Args, set: &Path, control: PathBuf) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find the program that runs")?;
        let mut child = Command::new(program)
            .arg("demo-server")
            .args(["--snapshot".as_ref(), set.as_os_str(), "--control".as_ref(), control.as_os_str()])
            .args(["--datapath", &args.datapath.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the server process")?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("the server process has an output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let Ok(address) = line.trim().parse() else {
            let status = child.wait()?;
            bail!("the server process did not start ({status}); it says why above");
        };
        Ok(Self { child, address, control })
    }

    /// Ends it in order.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
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
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
