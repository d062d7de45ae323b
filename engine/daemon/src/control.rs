//! The control socket: a line with a command in, a line of JSON out, over a UNIX socket for the
//! owner only.
//!
//! A process implements [`ControlCommands`] for its commands; this module does the networking and
//! enforces the limits.

use crate::clients::{LOOK_INTERVAL, serve_clients};
use crate::shutdown::Shutdown;
use crate::socket::bind_for_owner;
use serde_json::{Value, json};
use std::fmt;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time that a client may be silent.
const LINE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of concurrent clients.
const CLIENTS_MAX: usize = 16;
/// Time that clients have to finish when the process stops.
const GOODBYE_TIMEOUT: Duration = Duration::from_millis(500);
/// The command that lists the commands; every process has it.
const HELP: (&str, &str) = ("help", "this list");

/// A command: its name, and what it does.
pub type CommandHelp = (&'static str, &'static str);

/// A client of the control socket, as a reader of lines.
pub type ControlReader<'c> = BufReader<&'c UnixStream>;

/// The commands of a process.
pub trait ControlCommands: Send + Sync + 'static {
    /// All commands but `help`, in the order in which `help` lists them.
    fn commands(&self) -> Vec<CommandHelp>;

    /// Runs `command`; `None` when there is no such command.
    fn run(&self, command: &str) -> Option<Value>;

    /// Runs a command that takes more than one line of input or output, and then ends the
    /// connection. `None` when `command` is not of this kind.
    fn converse(
        &self,
        _command: &str,
        _client: &UnixStream,
        _reader: &mut ControlReader<'_>,
    ) -> Option<io::Result<()>> {
        None
    }

    /// Maximum length of a line, in bytes.
    fn line_len_max(&self) -> usize;

    /// Whether another process now has the path of the socket.
    fn is_replaced(&self) -> bool {
        false
    }
}

/// Reason why the control socket cannot be bound.
#[derive(Debug)]
pub enum ControlError {
    /// Another process answers at the path.
    InUse {
        /// The path.
        path: PathBuf,
        /// The program that is probably running.
        program: &'static str,
    },
    /// The file at the path is not a socket.
    NotASocket(PathBuf),
    /// An old socket cannot be replaced.
    Replace(PathBuf, io::Error),
    /// The socket cannot be created.
    Create(PathBuf, io::Error),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { path, program } => write!(
                f,
                "another process answers on the control socket {}; is {program} running already?",
                path.display()
            ),
            Self::NotASocket(path) => write!(
                f,
                "{} exists and is not a socket; choose another path for the control socket",
                path.display()
            ),
            Self::Replace(path, _) => write!(f, "cannot replace the control socket {}", path.display()),
            Self::Create(path, _) => write!(
                f,
                "cannot create the control socket {} (check: ls -ld of its directory)",
                path.display()
            ),
        }
    }
}

impl std::error::Error for ControlError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::InUse { .. } | Self::NotASocket(_) => None,
            Self::Replace(_, error) | Self::Create(_, error) => Some(error),
        }
    }
}

/// A bound control socket. Its file is removed when this is dropped, unless another process has
/// replaced it.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Path of the file until this process replaces another one.
    private_path: Option<PathBuf>,
    is_replaced: bool,
}

impl ControlSocket {
    /// Binds the socket of `program` at `path`, for the owner only. With `take_over`, it is bound
    /// beside `path` until [`move_into_place`](Self::move_into_place) is called.
    ///
    /// # Errors
    /// When another process answers at `path`, or the directory is not writable.
    pub fn bind(path: &Path, take_over: bool, program: &'static str) -> Result<Self, ControlError> {
        let private_path = take_over.then(|| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            path.with_file_name(format!(".{name}.{}", std::process::id()))
        });
        let file = private_path.as_deref().unwrap_or(path);
        if UnixStream::connect(file).is_ok() {
            return Err(ControlError::InUse { path: file.to_owned(), program });
        }
        match std::fs::symlink_metadata(file) {
            Ok(found) if found.file_type().is_socket() => {
                std::fs::remove_file(file).map_err(|error| ControlError::Replace(file.to_owned(), error))?;
            }
            Ok(_) => return Err(ControlError::NotASocket(file.to_owned())),
            Err(_) => {}
        }
        let create = |error| ControlError::Create(file.to_owned(), error);
        let listener = bind_for_owner(file).map_err(create)?;
        listener.set_nonblocking(true).map_err(create)?;
        Ok(Self { listener, path: path.to_owned(), private_path, is_replaced: false })
    }

    /// Moves the socket to the path of the previous process.
    ///
    /// # Errors
    /// When the directory is not writable.
    pub fn move_into_place(&mut self) -> Result<(), ControlError> {
        if let Some(private_path) = &self.private_path {
            std::fs::rename(private_path, &self.path)
                .map_err(|error| ControlError::Replace(self.path.clone(), error))?;
            self.private_path = None;
        }
        Ok(())
    }

    /// Serves clients until `shutdown` has stopped.
    pub fn serve(mut self, shutdown: &Arc<Shutdown>, commands: &Arc<impl ControlCommands>) {
        let (of_clients, stop) = (Arc::clone(commands), Arc::clone(shutdown));
        let talk = move |client| {
            if let Err(error) = talk(&client, &*of_clients, &stop) {
                tracing::debug!(%error, "a client of the control socket went away");
            }
        };
        serve_clients(&self.listener, "control-client", shutdown, || CLIENTS_MAX, GOODBYE_TIMEOUT, talk);
        self.is_replaced = commands.is_replaced();
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if !self.is_replaced {
            // A file that cannot be removed is replaced by the next process.
            let _ = std::fs::remove_file(self.private_path.as_ref().unwrap_or(&self.path));
        }
    }
}

/// Answers the lines of one client until it disconnects, is silent for too long, or the process
/// stops.
fn talk(mut client: &UnixStream, commands: &impl ControlCommands, shutdown: &Shutdown) -> io::Result<()> {
    client.set_read_timeout(Some(LOOK_INTERVAL))?;
    client.set_write_timeout(Some(LINE_TIMEOUT))?;
    let len_max = commands.line_len_max();
    let mut reader = BufReader::new(client);
    let (mut line, mut since) = (Vec::new(), Instant::now());
    while !shutdown.is_stopped() && since.elapsed() < LINE_TIMEOUT {
        let capacity = (len_max - line.len()) as u64;
        match (&mut reader).take(capacity).read_until(b'\n', &mut line) {
            Ok(0) if line.is_empty() => return Ok(()),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(error) => return Err(error),
        }
        let is_whole = line.ends_with(b"\n");
        let text = String::from_utf8_lossy(&line);
        let command = text.trim();
        if is_whole && let Some(ended) = commands.converse(command, client, &mut reader) {
            return ended;
        }
        let mut reply = match is_whole || line.len() < len_max {
            true => answer(command, commands),
            false => json!({ "error": format!("a line has at most {len_max} bytes") }),
        }
        .to_string();
        reply.push('\n');
        client.write_all(reply.as_bytes())?;
        if !is_whole {
            return Ok(());
        }
        line.clear();
        since = Instant::now();
    }
    Ok(())
}

/// Answers one command.
fn answer(command: &str, commands: &impl ControlCommands) -> Value {
    let all = || commands.commands().into_iter().chain([HELP]);
    if command == HELP.0 {
        return all().map(|(name, what)| (name.to_owned(), Value::from(what))).collect();
    }
    commands.run(command).unwrap_or_else(|| {
        let names: Vec<&str> = all().map(|(name, _)| name).collect();
        json!({ "error": format!("unknown command {command:?}; there are: {}", names.join(", ")) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo;

    impl ControlCommands for Echo {
        fn commands(&self) -> Vec<CommandHelp> {
            vec![("status", "says ok")]
        }

        fn run(&self, command: &str) -> Option<Value> {
            (command == "status").then(|| json!({ "ok": true }))
        }

        fn converse(
            &self,
            command: &str,
            mut client: &UnixStream,
            reader: &mut ControlReader<'_>,
        ) -> Option<io::Result<()>> {
            (command == "repeat").then(|| {
                let mut line = String::new();
                reader.read_line(&mut line)?;
                client.write_all(line.as_bytes())
            })
        }

        fn line_len_max(&self) -> usize {
            64
        }
    }

    /// Returns all answers to `lines`.
    fn ask(path: &Path, lines: &str) -> String {
        let mut client = UnixStream::connect(path).unwrap();
        client.write_all(lines.as_bytes()).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut reply = String::new();
        client.read_to_string(&mut reply).unwrap();
        reply
    }

    #[test]
    fn a_line_gets_a_line_until_the_process_stops() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let socket = ControlSocket::bind(&path, false, "echo").unwrap();
        let (shutdown, commands) = (Arc::new(Shutdown::new().unwrap()), Arc::new(Echo));
        std::thread::scope(|scope| {
            scope.spawn(|| socket.serve(&shutdown, &commands));
            assert_eq!(ask(&path, "status\n status \nstatus"), "{\"ok\":true}\n".repeat(3));
            assert_eq!(ask(&path, "help\n"), "{\"status\":\"says ok\",\"help\":\"this list\"}\n");
            assert!(ask(&path, "stop\n").contains("unknown command \\\"stop\\\"; there are: status, help"));
            assert!(ask(&path, &"x".repeat(70)).contains("a line has at most 64 bytes"));
            assert_eq!(ask(&path, "repeat\nthis\nnot that\n"), "this\n");
            let error = ControlSocket::bind(&path, false, "echo").unwrap_err().to_string();
            assert!(error.ends_with("is echo running already?"), "{error}");
            let mut next = ControlSocket::bind(&path, true, "echo").unwrap();
            assert_eq!(ask(&path, "status\n"), "{\"ok\":true}\n", "it is not replaced yet");
            shutdown.stop();
            next.move_into_place().unwrap();
        });
        let other = directory.path().join("file");
        std::fs::write(&other, "").unwrap();
        let error = ControlSocket::bind(&other, false, "echo").unwrap_err();
        assert!(matches!(error, ControlError::NotASocket(_)), "{error}");
    }
}
