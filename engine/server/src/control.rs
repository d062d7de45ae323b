//! Status, statistics and commands over a UNIX socket: a line in, a line of JSON out.

use crate::server::ServerState;
use crate::takeover;
use anyhow::{Context as _, bail};
use handle_daemon::socket::bind_for_owner;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The commands, and what each does.
pub const COMMANDS: [(&str, &str); 8] = [
    ("status", "what is served since when, by which workers"),
    ("stats", "counters and times, in all and for each worker, and who asks most"),
    ("reload", "read the configuration again, and take the published set now"),
    ("reopen-log", "open the file of the query log again, after it was renamed"),
    ("drain", "answer what has arrived, then exit"),
    ("restart", "start this program once more, and let it take over without loss"),
    ("take-over", "what the new process says to get the sockets"),
    ("help", "this list"),
];

/// How long a client may be silent.
const LINE_PATIENCE: Duration = Duration::from_secs(5);
/// Clients at a time.
const CLIENTS_MAX: usize = 16;
/// How long clients may take to go when the server stops.
const GOODBYE_PATIENCE: Duration = Duration::from_millis(500);
/// How long nobody is accepted after that has failed, and how often a client's thread looks whether it should stop.
const ACCEPT_PATIENCE: Duration = Duration::from_millis(50);

/// A bound control socket; its file is removed when it is dropped.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
    /// Where the socket is now, if another process still has its place.
    beside: Option<PathBuf>,
    line_len_max: usize,
    /// Another process has the path now.
    is_replaced: bool,
}

impl Control {
    /// Binds the socket at `path`, for the owner only; with `take_over`, beside it, until
    /// [`take_place`](Self::take_place).
    ///
    /// # Errors
    /// When another process answers there, or the directory does not allow it.
    pub fn bind(path: &Path, take_over: bool, line_len_max: usize) -> anyhow::Result<Self> {
        let place = path;
        let beside = take_over.then(|| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            path.with_file_name(format!(".{name}.{}", std::process::id()))
        });
        let path = beside.as_deref().unwrap_or(path);
        if UnixStream::connect(path).is_ok() {
            bail!(
                "another process answers on the control socket {}; is handled running already?",
                path.display()
            );
        }
        match std::fs::symlink_metadata(path) {
            Ok(file) if file.file_type().is_socket() => std::fs::remove_file(path)
                .with_context(|| format!("cannot replace the control socket {}", path.display()))?,
            Ok(_) => bail!(
                "{} is there and is no socket; the control socket needs a path of its own",
                path.display()
            ),
            Err(_) => {}
        }
        let listener = bind_for_owner(path).with_context(|| {
            format!("cannot create the control socket {} (check: ls -ld of its directory)", path.display())
        })?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, path: place.to_owned(), beside, line_len_max, is_replaced: false })
    }

    /// Takes the place of the process that was taken over from.
    ///
    /// # Errors
    /// When the directory does not allow it.
    pub fn take_place(&mut self) -> anyhow::Result<()> {
        if let Some(beside) = &self.beside {
            std::fs::rename(beside, &self.path)
                .with_context(|| format!("cannot replace the control socket {}", self.path.display()))?;
            self.beside = None;
        }
        Ok(())
    }

    /// Serves clients, each in a thread, until the server stops.
    pub fn serve(mut self, shared: &Arc<ServerState>) {
        let clients = Arc::new(AtomicUsize::new(0));
        while !shared.is_stopped() {
            let client = match self.listener.accept() {
                Ok((client, _)) => client,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    shared.shutdown.wait_for(self.listener.as_fd(), None);
                    continue;
                }
                Err(_) => {
                    std::thread::sleep(ACCEPT_PATIENCE);
                    continue;
                }
            };
            if clients.load(Ordering::Relaxed) >= CLIENTS_MAX {
                // Closed at once; whoever it is may come again.
                continue;
            }
            clients.fetch_add(1, Ordering::Relaxed);
            let (shared, clients, len_max) = (Arc::clone(shared), Arc::clone(&clients), self.line_len_max);
            let thread = std::thread::Builder::new().name("control-client".into()).spawn(move || {
                if let Err(error) = talk(&client, &shared, len_max) {
                    tracing::debug!(%error, "a client of the control socket went away");
                }
                clients.fetch_sub(1, Ordering::Relaxed);
            });
            if let Err(error) = thread {
                tracing::warn!(%error, "no thread for a client of the control socket");
            }
        }
        self.is_replaced = shared.is_handed_over();
        // They see the same, and say what they have to say.
        let since = Instant::now();
        while clients.load(Ordering::Relaxed) > 0 && since.elapsed() < GOODBYE_PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Answers the lines of one client until it goes, is silent for too long, or the server stops.
fn talk(mut client: &UnixStream, shared: &ServerState, line_len_max: usize) -> std::io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(ACCEPT_PATIENCE))?;
    client.set_write_timeout(Some(LINE_PATIENCE))?;
    let mut reader = BufReader::new(client);
    let (mut line, mut since) = (Vec::new(), Instant::now());
    while !shared.is_stopped() && since.elapsed() < LINE_PATIENCE {
        let room = (line_len_max - line.len()) as u64;
        match (&mut reader).take(room).read_until(b'\n', &mut line) {
            Ok(0) if line.is_empty() => return Ok(()),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(error) => return Err(error),
        }
        let is_whole = line.ends_with(b"\n");
        if line == b"take-over\n" {
            return takeover::hand_over(client, &mut reader, shared);
        }
        let mut said = match is_whole || line.len() < line_len_max {
            true => answer(String::from_utf8_lossy(&line).trim(), shared),
            false => json!({ "error": format!("a line has at most {line_len_max} bytes") }),
        }
        .to_string();
        said.push('\n');
        client.write_all(said.as_bytes())?;
        if !is_whole {
            return Ok(());
        }
        line.clear();
        since = Instant::now();
    }
    Ok(())
}

impl Drop for Control {
    fn drop(&mut self) {
        if !self.is_replaced {
            // Nothing more can be done about a file that does not go.
            let _ = std::fs::remove_file(self.beside.as_ref().unwrap_or(&self.path));
        }
    }
}

/// Carries out one command.
fn answer(command: &str, shared: &ServerState) -> Value {
    match command {
        "status" => shared.status(),
        "stats" => shared.stats(),
        "reload" => shared.reload(),
        "reopen-log" if shared.reopen_log() => json!({ "ok": true }),
        "reopen-log" => json!({ "ok": false, "error": "there is no query log" }),
        "drain" => {
            shared.drain();
            json!({ "ok": true })
        }
        "restart" => takeover::restart(shared),
        "help" => COMMANDS.iter().map(|&(name, what)| (name.to_owned(), Value::from(what))).collect(),
        _ => {
            let names = COMMANDS.map(|(name, _)| name).join(", ");
            json!({ "error": format!("unknown command {command:?}; there are: {names}") })
        }
    }
}
