//! `handled` as a process, and what it says on its control socket.

use crate::process::{Running, program, until};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// `handled`, without arguments; as root, too.
#[must_use]
pub fn handled() -> Command {
    let mut command = Command::new(program("handle-server", "handled"));
    command.stdin(Stdio::null()).env("HANDLED_ALLOW_ROOT", "true");
    command
}

/// A port of loopback that was free a moment ago, for datagrams and for connections.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn free_address() -> SocketAddr {
    loop {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let address = socket.local_addr().expect("an address");
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
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
    pub process: Running,
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
        let mut daemon = Self { process: Running::start(command), control: control.to_owned() };
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
