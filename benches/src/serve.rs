//! Servers in separate processes, so that their processor time is separate from that of the load.
//!
//! A measuring program starts itself again with other arguments. The child prints the address that
//! it answers on and serves until its standard input ends.

use crate::requests::noted_answer_len;
use crate::sets;
use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use handle_net::{Datapath, DatapathChoice, DatapathKind, SocketOptions, open, pin_to_core};
use handle_proto::ResponseCode;
use handle_worker::Server;
use handle_worker::config::{self, Config, ServerLimits};
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest wait for a datagram; after it, a server checks whether it should stop.
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_millis(20);

/// Returns the path of this program and the name of the running command, to start both again.
///
/// # Errors
/// When the program has no path or runs without a command.
pub fn this_command() -> anyhow::Result<[OsString; 2]> {
    let command = std::env::args_os().nth(1).context("the name of a command")?;
    Ok([std::env::current_exe()?.into_os_string(), command])
}

/// A server in another process. Dropping it stops it.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    /// Address on which it answers.
    pub address: SocketAddr,
}

impl Child {
    /// Starts this program again with `args`, and waits for its address.
    ///
    /// # Errors
    /// When it does not start or ends without an address; the reason is on standard error.
    pub fn start(args: &[String]) -> anyhow::Result<Self> {
        Self::start_below(&[], args)
    }

    /// As [`start`](Self::start), with a command in front that runs the program, if it is not
    /// empty.
    ///
    /// # Errors
    /// As for `start`.
    pub fn start_below(wrapper: &[String], args: &[String]) -> anyhow::Result<Self> {
        let words: Vec<OsString> = wrapper.iter().map(Into::into).chain(this_command()?).collect();
        let mut process = Command::new(&words[0])
            .args(&words[1..])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let out = process.stdout.take().context("standard output was piped")?;
        BufReader::new(out).read_line(&mut line)?;
        match line.trim().parse() {
            Ok(address) => Ok(Self { process, address }),
            Err(_) => {
                let (status, arguments) = (process.wait()?, args.join(" "));
                anyhow::bail!("{} (`{arguments}` ended with {status})", line.trim())
            }
        }
    }

    /// Returns its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The end of its input stops it. It has no state to save, so failures do not matter.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// In the child: prints the address on which it answers.
///
/// # Errors
/// When standard output is closed.
pub fn announce(address: SocketAddr) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{address}")?;
    Ok(out.flush()?)
}

/// In the child: waits until the parent closes standard input.
pub fn wait_for_end() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// In the child: serves on loopback, on `core` if possible, by calling `turn` for each batch.
///
/// # Errors
/// When the datapath does not open or fails.
pub fn on_path(
    kind: DatapathKind,
    core: Option<usize>,
    turn: impl FnMut(&mut dyn Datapath) -> std::io::Result<()> + Send,
) -> anyhow::Result<()> {
    on_path_with(kind, core, &ServerLimits::default(), turn)
}

/// Does the same with other limits.
///
/// # Errors
/// When the datapath does not open or fails.
pub fn on_path_with(
    kind: DatapathKind,
    core: Option<usize>,
    limits: &ServerLimits,
    mut turn: impl FnMut(&mut dyn Datapath) -> std::io::Result<()> + Send,
) -> anyhow::Result<()> {
    let (started, starting) = std::sync::mpsc::channel();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        let worker = scope.spawn(move || -> anyhow::Result<()> {
            pin(core);
            // A datapath stays on the thread that opened it.
            let mut path = open_with(kind, limits)?;
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

/// Opens a datapath of this kind on loopback, as the server does.
///
/// # Errors
/// When the kernel does not support this kind.
pub fn open_loopback(kind: DatapathKind) -> anyhow::Result<Box<dyn Datapath>> {
    open_with(kind, &ServerLimits::default())
}

fn open_with(kind: DatapathKind, limits: &ServerLimits) -> anyhow::Result<Box<dyn Datapath>> {
    let choice = match kind {
        DatapathKind::Uring => DatapathChoice::Uring,
        DatapathKind::Portable => DatapathChoice::Portable,
    };
    let options = SocketOptions {
        batch_len: limits.batch_datagrams,
        batch_segments: limits.batch_segments,
        outbox_datagrams: limits.outbox_datagrams,
        outbox_len: limits.outbox_bytes,
        socket_receive_buffer_len: limits.socket_receive_bytes,
        socket_send_buffer_len: limits.socket_send_bytes,
        ..SocketOptions::new(SocketAddr::from(([127, 0, 0, 1], 0)))
    };
    let path = open(choice, &options)?.path;
    ensure!(path.kind() == kind, "asked for {kind}, got {}", path.kind());
    Ok(path)
}

/// Pins the thread to `core`; only warns if that fails, because the measurement is still useful.
pub fn pin(core: Option<usize>) {
    if let Some(core) = core
        && let Err(error) = pin_to_core(core)
    {
        eprintln!("not pinned to core {core}: {error}");
    }
}

/// A server that answers every datagram without a lookup.
pub struct EchoServer {
    answer: Vec<u8>,
    /// Length of each answer; `None` for the length noted in the request.
    len: Option<usize>,
}

impl EchoServer {
    /// Creates a server whose answers have `len` bytes.
    #[must_use]
    pub fn of_len(len: usize) -> Self {
        Self { answer: success(len), len: Some(len) }
    }

    /// Creates a server whose answers have the lengths that
    /// [`note_answer_lens`](crate::requests::Requests::note_answer_lens) noted.
    #[must_use]
    pub fn of_noted_lens() -> Self {
        Self { answer: success(2048), len: None }
    }

    /// Answers a batch.
    ///
    /// # Errors
    /// When the datapath fails.
    pub fn turn(&mut self, path: &mut dyn Datapath) -> std::io::Result<()> {
        let batch = path.wait(TIMEOUT_MAX)?;
        if batch.inbox.is_empty() {
            return Ok(());
        }
        for datagram in batch.inbox.iter() {
            for request in datagram.segments() {
                let len = self.len.unwrap_or_else(|| noted_answer_len(request));
                let copy = |buffer: &mut [u8]| {
                    buffer.copy_from_slice(&self.answer[..len]);
                    // The client recognises an answer by the request id.
                    if let (Some(id), Some(id_bytes)) = (request.get(8..12), buffer.get_mut(8..12)) {
                        id_bytes.copy_from_slice(id);
                    }
                    len
                };
                // The outbox has capacity for more than a batch.
                let _ = batch.outbox.push(datagram.peer, len, copy);
            }
        }
        path.flush().map(drop)
    }
}

/// Makes an answer that has only the response code for success.
fn success(len: usize) -> Vec<u8> {
    let mut answer = vec![0; len.max(28)];
    answer[24..28].copy_from_slice(&ResponseCode::SUCCESS.0.to_be_bytes());
    answer
}

/// In the child: serves the set of `records` generated records on loopback, with one worker on
/// `core`.
///
/// # Errors
/// When it does not start.
pub fn handled(records: u64, path: ServePath, core: usize, limits: ServerLimits) -> anyhow::Result<()> {
    published(&sets::directory(records), path, vec![core], limits)
}

/// In the child: serves the set published in `directory` on loopback, with a worker on each of
/// `cores`.
///
/// # Errors
/// When it does not start.
pub fn published(
    directory: &std::path::Path,
    path: ServePath,
    cores: Vec<usize>,
    limits: ServerLimits,
) -> anyhow::Result<()> {
    let mut config = Config {
        snapshot: directory.to_owned(),
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        workers: cores.len(),
        cores,
        datapath: path.datapath(),
        limits,
        ..Config::default()
    };
    // Peers of trains have other addresses of loopback. Few names of one length, asked for millions
    // of times, would reach the limit of equal answers to a network.
    config.rate_limit.exempt = vec!["127.0.0.0/8".parse()?];
    let server = Server::start(&config)?;
    sets::warm(&server.shared().live.current());
    announce(*server.addresses().first().context("an address")?)?;
    wait_for_end();
    server.stop()
}

/// A datapath as an argument of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ServePath {
    /// io_uring.
    Uring,
    /// recvmmsg and sendmmsg.
    Portable,
}

impl ServePath {
    /// Returns the spelling of the argument.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uring => "uring",
            Self::Portable => "portable",
        }
    }

    /// Returns the datapath.
    #[must_use]
    pub const fn kind(self) -> DatapathKind {
        match self {
            Self::Uring => DatapathKind::Uring,
            Self::Portable => DatapathKind::Portable,
        }
    }

    /// Returns the setting of the server.
    #[must_use]
    pub const fn datapath(self) -> config::Datapath {
        match self {
            Self::Uring => config::Datapath::Uring,
            Self::Portable => config::Datapath::Portable,
        }
    }
}
