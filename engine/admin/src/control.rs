//! Status, statistics and commands over a UNIX socket: a line in, a line of JSON out.

use crate::costly::CostlyWork;
use crate::publish::{Command, NoCommand, StorePublisher};
use crate::server::AdminState;
use crate::settings::reload;
use anyhow::{Context as _, bail};
use handle_daemon::socket::bind_for_owner;
use serde_json::{Value, json};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// The commands, and what each does.
pub const COMMANDS: [(&str, &str); 6] = [
    ("status", "what is kept and served since when"),
    ("stats", "counters, and what waits now"),
    ("reload", "read the configuration again; what cannot change while serving is named"),
    ("reopen-log", "open the file of the audit log again, after it was renamed"),
    ("drain", "answer what has arrived, then exit"),
    ("help", "this list"),
];

/// How long a client may be silent.
const LINE_PATIENCE: Duration = Duration::from_secs(5);
/// Clients at a time.
const CLIENTS_MAX: usize = 16;

/// A bound control socket; its file is removed when it is dropped.
#[derive(Debug)]
pub struct Control {
    listener: Option<std::os::unix::net::UnixListener>,
    path: PathBuf,
}

impl Control {
    /// Binds the socket at `path`, for the owner only.
    ///
    /// # Errors
    /// When another process answers there, or the directory does not allow it.
    pub fn bind(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        if UnixStream::connect(path).is_ok() {
            bail!("another process answers on the control socket {shown}; is handle-admin running already?");
        }
        match std::fs::symlink_metadata(path) {
            Ok(file) if file.file_type().is_socket() => std::fs::remove_file(path)
                .with_context(|| format!("cannot replace the control socket {shown}"))?,
            Ok(_) => bail!("{shown} is there and is no socket; the control socket needs a path of its own"),
            Err(_) => {}
        }
        let listener = bind_for_owner(path).with_context(|| {
            format!("cannot create the control socket {shown} (check: ls -ld of its directory)")
        })?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener: Some(listener), path: path.to_owned() })
    }

    /// Begins to listen, inside of a runtime.
    ///
    /// # Errors
    /// When the runtime cannot watch it.
    pub fn listen(mut self) -> anyhow::Result<(UnixListener, Self)> {
        let listener = self.listener.take().context("the control socket is in use")?;
        Ok((UnixListener::from_std(listener)?, self))
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Nothing more can be done about a file that does not go.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves clients until the server stops.
pub async fn serve((listener, _control): (UnixListener, Control), shared: Arc<AdminState>) {
    let clients = Arc::new(Semaphore::new(CLIENTS_MAX));
    let mut stopping = shared.stopping();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|&stops| stops) => return,
        };
        // Closed at once where there are too many; whoever it is may come again.
        let (Ok((client, _)), Ok(place)) = (accepted, Arc::clone(&clients).try_acquire_owned()) else {
            continue;
        };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            if let Err(error) = talk(client, &shared).await {
                tracing::debug!(%error, "a client of the control socket went away");
            }
            drop(place);
        });
    }
}

async fn talk(client: tokio::net::UnixStream, shared: &Arc<AdminState>) -> std::io::Result<()> {
    let len_max = shared.config().limits.control_line_bytes;
    let (reader, mut writer) = client.into_split();
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = Vec::new();
        let mut bounded = (&mut reader).take(len_max as u64);
        let Ok(read) = timeout(LINE_PATIENCE, bounded.read_until(b'\n', &mut line)).await else {
            return Ok(());
        };
        if read? == 0 {
            return Ok(());
        }
        let is_whole = line.ends_with(b"\n") || line.len() < len_max;
        let mut said = match is_whole {
            true => answer(String::from_utf8_lossy(&line).trim(), shared).await,
            false => json!({ "error": format!("a line has at most {len_max} bytes") }),
        }
        .to_string();
        said.push('\n');
        let written = timeout(LINE_PATIENCE, writer.write_all(said.as_bytes())).await;
        written.unwrap_or(Ok(()))?;
        if !is_whole {
            return Ok(());
        }
    }
}

async fn answer(command: &str, shared: &Arc<AdminState>) -> Value {
    match command {
        "status" | "stats" => {
            let (shared, is_status) = (Arc::clone(shared), command == "status");
            let asked = move || if is_status { status(&shared) } else { stats(&shared) };
            tokio::task::spawn_blocking(asked)
                .await
                .unwrap_or_else(|error| json!({ "error": error.to_string() }))
        }
        "reload" => {
            let shared = Arc::clone(shared);
            tokio::task::spawn_blocking(move || reload(&shared))
                .await
                .unwrap_or_else(|error| json!({ "ok": false, "error": error.to_string() }))
        }
        "reopen-log" => match shared.service.audit.reopen(shared.config().audit_files()) {
            Ok(()) => json!({ "ok": true }),
            Err(error) => json!({ "ok": false, "error": format!("{error:#}") }),
        },
        "drain" => {
            shared.drain();
            json!({ "ok": true })
        }
        "help" => COMMANDS
            .iter()
            .chain(&Command::WORDS)
            .map(|&(name, what)| (name.to_owned(), Value::from(what)))
            .collect(),
        _ => match command.parse::<Command>() {
            Ok(command) => publish(command, shared).await,
            Err(error @ NoCommand::Rest { .. }) => json!({ "error": error.to_string() }),
            Err(NoCommand::Word(_)) => {
                let names: Vec<&str> =
                    COMMANDS.iter().chain(&Command::WORDS).map(|(name, _)| *name).collect();
                json!({ "error": format!("unknown command {command:?}; there are: {}", names.join(", ")) })
            }
        },
    }
}

/// Tells publishing what an operator wants.
async fn publish(command: Command, shared: &Arc<AdminState>) -> Value {
    let shared = Arc::clone(shared);
    let obey = move || match &shared.publisher {
        Some(publishing) => publishing.command(command).map_err(|error| error.to_string()),
        None => Err("nothing is published: `publish.directory` is not said".to_owned()),
    };
    match tokio::task::spawn_blocking(obey).await {
        Ok(Ok(done)) => json!({ "ok": true, "done": done }),
        Ok(Err(error)) => json!({ "ok": false, "error": error }),
        Err(error) => json!({ "ok": false, "error": error.to_string() }),
    }
}

/// What is kept, by whom it is served.
fn status(shared: &AdminState) -> Value {
    let (service, config) = (&shared.service, shared.config());
    let store = match service.store.stats() {
        Ok(stats) => json!(stats),
        Err(error) => json!({ "error": error.to_string() }),
    };
    let health = shared.health.look(&service.store);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "started_unix_ms": shared.started_unix_ms(),
        "listen": config.listen,
        "draining": shared.is_draining(),
        "store": {
            "file": service.store.file(),
            "folds": service.store.folds(),
            "content": store,
            "failure": service.store.failure(),
        },
        "disks": shared.disks.look(&config),
        "publish": shared.publisher.as_ref().map(StorePublisher::status),
        "health": match health {
            Ok(took) => json!({ "ok": true, "probe_us": u64::try_from(took.as_micros()).unwrap_or(u64::MAX) }),
            Err(why) => json!({ "ok": false, "why": why }),
        },
        "site": {
            "serial": service.site.view().serial,
            "primary": service.site.is_primary(),
            "server": service.site.server_at() + 1,
            "servers": service.site.servers_count(),
        },
        "signs": service.sealer.key.as_ref().map(|key| format!("{:?}", key.public())),
    })
}

fn stats(shared: &AdminState) -> Value {
    let (service, counters) = (&shared.service, &shared.service.counters);
    let (commits, changes) = service.store.commits();
    let challenges = service.challenges();
    let counts = challenges.counts();
    let (units, refused, waiting) = service.costly().map(CostlyWork::counts).unwrap_or_default();
    json!({
        "requests": counters.requests_count(),
        "requests_working": shared.connections.working(&shared.config().tcp),
        "connections": { "open": shared.connections.count(), "accepted": counters.connections.get(),
            "refused": counters.connections_refused.get(), "timed_out": counters.connections_timed_out.get(),
            "evicted": counters.connections_evicted.get(), "input_bytes": shared.connections.input_len() },
        "audit": service.audit.counts().into_iter().map(|(event, count)| (event.to_owned(), count.into()))
            .collect::<serde_json::Map<_, Value>>(),
        "store": { "commits": commits, "changes": changes, "waiting": service.store.waiting(),
            "errors": counters.store_errors.get(), "last_transaction": service.store.last_id() },
        "challenges": { "issued": counts.issued, "answered": counts.taken, "expired": counts.expired,
            "displaced": counts.displaced,
            "waiting": challenges.len(), "bytes": challenges.bytes() },
        "costly": { "units": units, "refused": refused, "waiting": waiting },
        "bugs": counters.bugs.get(),
    })
}
