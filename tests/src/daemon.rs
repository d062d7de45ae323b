//! `handled` as a process, and what it says on its control socket.

use crate::process::{RunningProcess, program, until};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// `handled`, without arguments; as root, too.
#[must_use]
pub fn handled() -> Command {
    let mut command = Command::new(program("handle-server", "handled"));
    command.stdin(Stdio::null()).env("HANDLED_ALLOW_ROOT", "true");
    command
}

/// A port of loopback for a process to listen on, for datagrams and for connections.
///
/// No other caller gets it, and no socket takes it in passing: it lies below the range that the
/// kernel picks from (`ip_local_port_range`), where a port that was free a moment ago need not be
/// free any more.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn free_address() -> SocketAddr {
    const FIRST: u32 = 12_000;
    const COUNT: u32 = 18_000;
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Processes that run side by side begin at different places.
    let begin = std::process::id().wrapping_mul(101);
    (0..COUNT)
        .map(|_| {
            let turn = GIVEN.fetch_add(1, Ordering::Relaxed);
            let port = FIRST + begin.wrapping_add(turn) % COUNT;
            SocketAddr::from((Ipv4Addr::LOCALHOST, u16::try_from(port).expect("below 30,000")))
        })
        .find(|&address| UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok())
        .expect("a free port")
}

/// What the process behind a control socket answers to a command; `Null` when it does not.
#[must_use]
pub fn ask(control: &Path, command: &str) -> Value {
    let ask = || -> std::io::Result<Value> {
        let mut stream = UnixStream::connect(control)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        writeln!(stream, "{command}")?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    };
    ask().unwrap_or(json!(null))
}

/// A process that one of ours has started; killed when this is dropped.
#[derive(Debug)]
pub struct Successor {
    /// Its number.
    pub pid: Value,
}

impl Drop for Successor {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = Command::new("kill").args(["-KILL", &self.pid.to_string()]).stderr(Stdio::null()).status();
    }
}

/// A process that serves.
#[derive(Debug)]
pub struct Daemon {
    /// The process.
    pub process: RunningProcess,
    /// Its control socket.
    pub control: PathBuf,
}

impl Daemon {
    /// Starts `command`, which names `control`, and waits until it serves.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn start(command: Command, control: &Path) -> Self {
        let mut daemon = Self { process: RunningProcess::start(command), control: control.to_owned() };
        let pid = daemon.process.0.id();
        until("it serves", || {
            if let Some(status) = daemon.process.0.try_wait().expect("a child of ours") {
                panic!("it ended: {status}");
            }
            let status = daemon.ask("status");
            status["pid"] == pid && status["state"] == "serving"
        });
        daemon
    }

    /// What it answers to a command.
    #[must_use]
    pub fn ask(&self, command: &str) -> Value {
        ask(&self.control, command)
    }
}
