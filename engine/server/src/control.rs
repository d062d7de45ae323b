//! Status, statistics and commands over a UNIX socket: a line in, a line of JSON out.

use crate::server::Shared;
use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The commands, and what each does.
pub const COMMANDS: [(&str, &str); 5] = [
    ("status", "what is served since when, by which workers"),
    ("stats", "counters, in all and for each worker"),
    ("reload", "take the published set now"),
    ("drain", "answer what has arrived, then exit"),
    ("help", "this list"),
];

/// How long a client may take for one line.
const LINE_PATIENCE: Duration = Duration::from_secs(5);
/// How often the listener looks whether it should stop.
const ACCEPT_PATIENCE: Duration = Duration::from_millis(50);

/// A bound control socket; its file is removed when it is dropped.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
    line_len_max: usize,
}

impl Control {
    /// Binds the socket at `path`, for the owner only.
    ///
    /// # Errors
    /// When another process answers there, or the directory does not allow it.
    pub fn bind(path: &Path, line_len_max: usize) -> anyhow::Result<Self> {
        if UnixStream::connect(path).is_ok() {
            bail!(
                "another process answers on the control socket {}; is handled running already?",
                path.display()
            );
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error)
                    .with_context(|| format!("cannot replace the control socket {}", path.display()));
            }
            _ => {}
        }
        let listener = UnixListener::bind(path).with_context(|| {
            format!("cannot create the control socket {} (does its directory exist?)", path.display())
        })?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, path: path.to_owned(), line_len_max })
    }

    /// Serves clients one after the other until the server stops.
    pub fn serve(self, shared: &Shared) {
        while !shared.is_stopped() {
            match self.listener.accept() {
                Ok((client, _)) => {
                    if let Err(error) = self.talk(&client, shared) {
                        tracing::debug!(%error, "a client of the control socket went away");
                    }
                }
                Err(_) => std::thread::sleep(ACCEPT_PATIENCE),
            }
        }
    }

    fn talk(&self, mut client: &UnixStream, shared: &Shared) -> std::io::Result<()> {
        client.set_nonblocking(false)?;
        client.set_read_timeout(Some(LINE_PATIENCE))?;
        client.set_write_timeout(Some(LINE_PATIENCE))?;
        let mut reader = BufReader::new(client);
        let mut line = String::new();
        loop {
            line.clear();
            let len = (&mut reader).take(self.line_len_max as u64).read_line(&mut line)?;
            if len == 0 {
                return Ok(());
            }
            let mut answer = if line.ends_with('\n') || len < self.line_len_max {
                answer(line.trim(), shared)
            } else {
                json!({ "error": format!("a line has at most {} bytes", self.line_len_max) })
            }
            .to_string();
            answer.push('\n');
            client.write_all(answer.as_bytes())?;
            if !line.ends_with('\n') {
                return Ok(());
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Nothing more can be done about a file that does not go.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Carries out one command.
fn answer(command: &str, shared: &Shared) -> Value {
    match command {
        "status" => shared.status(),
        "stats" => shared.shards.to_json(),
        "reload" => match shared.live.reload() {
            Ok(reloaded) => json!({ "ok": true, "generation": shared.live.current().generation(),
                "changed": matches!(reloaded, crate::live::Reloaded::Changed(_)) }),
            Err(error) => json!({ "ok": false, "error": error.to_string(),
                "generation": shared.live.current().generation() }),
        },
        "drain" => {
            shared.drain();
            json!({ "ok": true })
        }
        "help" => COMMANDS.iter().map(|&(name, what)| (name.to_owned(), Value::from(what))).collect(),
        _ => {
            let names = COMMANDS.map(|(name, _)| name).join(", ");
            json!({ "error": format!("unknown command {command:?}; there are: {names}") })
        }
    }
}
