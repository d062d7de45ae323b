//! `handled` as a process, and commands on control sockets.

use crate::process::{RunningProcess, program, until};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// `handled` without arguments, permitted to run as root.
#[must_use]
pub fn handled() -> Command {
    let mut command = Command::new(program("handle-server", "handled"));
    command.stdin(Stdio::null()).env("HANDLED_ALLOW_ROOT", "true");
    command
}

/// A free port of loopback, for UDP and TCP.
///
/// Each call returns another port, from below the range of ports that the kernel assigns
/// (`ip_local_port_range`), so that it stays free.
///
/// # Panics
/// If no port is free.
#[must_use]
pub fn free_address() -> SocketAddr {
    const FIRST: u32 = 12_000;
    const COUNT: u32 = 18_000;
    static PORTS_GIVEN: AtomicU32 = AtomicU32::new(0);
    // Concurrent processes start at different ports.
    let begin = std::process::id().wrapping_mul(101);
    (0..COUNT)
        .map(|_| {
            let turn = PORTS_GIVEN.fetch_add(1, Ordering::Relaxed);
            let port = FIRST + begin.wrapping_add(turn) % COUNT;
            SocketAddr::from((Ipv4Addr::LOCALHOST, u16::try_from(port).expect("below 30,000")))
        })
        .find(|&address| UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok())
        .expect("a free port")
}

/// Answer to a command on a control socket; `Null` without an answer.
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

/// A process started by a process of the test; killed when this is dropped.
#[derive(Debug)]
pub struct Successor {
    /// Number of the process.
    pub pid: Value,
}

impl Drop for Successor {
    fn drop(&mut self) {
        // The process may have exited.
        let _ = Command::new("kill").args(["-KILL", &self.pid.to_string()]).stderr(Stdio::null()).status();
    }
}

/// A running server process.
#[derive(Debug)]
pub struct Daemon {
    /// The process.
    pub process: RunningProcess,
    /// Control socket of the process.
    pub control: PathBuf,
}

impl Daemon {
    /// Starts `command`, whose control socket is `control`, and waits until it serves.
    ///
    /// # Panics
    /// If the process exits or does not serve in time.
    #[must_use]
    pub fn start(command: Command, control: &Path) -> Self {
        let mut daemon = Self { process: RunningProcess::start(command), control: control.to_owned() };
        let pid = daemon.process.0.id();
        until("the process serves", || {
            if let Some(status) = daemon.process.0.try_wait().expect("a child of ours") {
                panic!("the process exited: {status}");
            }
            let status = daemon.ask("status");
            status["pid"] == pid && status["state"] == "serving"
        });
        daemon
    }

    /// Answer to a command on the control socket.
    #[must_use]
    pub fn ask(&self, command: &str) -> Value {
        ask(&self.control, command)
    }
}
