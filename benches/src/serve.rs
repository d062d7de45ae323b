//! Servers in processes of their own, so that what they use can be told from what the load uses.
//!
//! A measuring program starts itself again with other arguments. The child prints the address that it
//! answers on and serves until its standard input ends.

use anyhow::{Context as _, ensure};
use handle_net::{Choice, Datapath, Kind, Options, open, pin_to_core};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a server waits for a datagram before it looks whether it should stop.
const PATIENCE_MAX: Duration = Duration::from_millis(20);

/// A server in another process. Dropping it stops it.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    /// Where it answers.
    pub address: SocketAddr,
}

impl Child {
    /// Starts this program again with `args`, and waits for its address.
    ///
    /// # Errors
    /// When it does not start, or ends without an address; it says why on standard error.
    pub fn start(args: &[String]) -> anyhow::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let out = process.stdout.take().context("it was piped")?;
        BufReader::new(out).read_line(&mut line)?;
        match line.trim().parse() {
            Ok(address) => Ok(Self { process, address }),
            Err(_) => {
                let (status, what) = (process.wait()?, args.join(" "));
                anyhow::bail!("{} (`{what}` ended with {status})", line.trim())
            }
        }
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The end of its input tells it to stop; it has nothing to lose, so failures do not matter.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// In the child: says that `address` is answered on.
///
/// # Errors
/// When nobody listens.
pub fn announce(address: SocketAddr) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{address}")?;
    Ok(out.flush()?)
}

/// In the child: waits until the parent has had enough.
pub fn wait_for_end() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// In the child: serves on loopback, on `core` if that is possible, by handing each batch to `turn`.
///
/// # Errors
/// When the path does not open, or fails.
pub fn on_path(
    kind: Kind,
    core: Option<usize>,
    mut turn: impl FnMut(&mut dyn Datapath) -> std::io::Result<()> + Send,
) -> anyhow::Result<()> {
    let (started, starting) = std::sync::mpsc::channel();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        let worker = scope.spawn(move || -> anyhow::Result<()> {
            pin(core);
            // A path stays on the thread that opened it.
            let mut path = open_loopback(kind)?;
            started.send(path.local_addr()?)?;
            while !stop.load(Ordering::Relaxed) {
                turn(&mut *path)?;
            }
            Ok(())
        });
        if let Ok(address) = starting.recv() {
            announce(address)?;
            wait_for_end();
        }
        stop.store(true, Ordering::Relaxed);
        worker.join().map_err(|_| anyhow::anyhow!("the worker panicked"))?
    })
}

/// Opens a path of this kind on loopback, as the server does.
///
/// # Errors
/// When this kind does not work here.
pub fn open_loopback(kind: Kind) -> anyhow::Result<Box<dyn Datapath>> {
    let choice = match kind {
        Kind::Uring => Choice::Uring,
        Kind::Portable => Choice::Portable,
    };
    let options = Options::new(SocketAddr::from(([127, 0, 0, 1], 0))).one_at_a_time();
    let path = open(choice, &options)?.path;
    ensure!(path.kind() == kind, "asked for {kind}, got {}", path.kind());
    Ok(path)
}

/// Stays on `core` where this process may; a measurement without is worth less, but is one.
pub fn pin(core: Option<usize>) {
    if let Some(core) = core
        && let Err(error) = pin_to_core(core)
    {
        eprintln!("not pinned to core {core}: {error}");
    }
}

/// One turn of an echo: every datagram is answered with `answer`.
///
/// # Errors
/// When the path is of no more use.
pub fn echo_turn(path: &mut dyn Datapath, answer: &[u8]) -> std::io::Result<()> {
    let batch = path.wait(PATIENCE_MAX)?;
    if batch.inbox.is_empty() {
        return Ok(());
    }
    for datagram in batch.inbox.iter() {
        let copy = |room: &mut [u8]| {
            room.copy_from_slice(answer);
            answer.len()
        };
        // The outbox has room for more than a batch.
        let _ = batch.outbox.push(datagram.peer, answer.len(), copy);
    }
    path.flush().map(drop)
}
