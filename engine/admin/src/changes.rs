//! The changes of the store as lines of JSON, for programs that follow them through a local socket.
//!
//! A program sends one line, a `FeedRequest`, and receives lines until it closes the connection
//! or, unless it follows, has all changes. Every line has a cursor, from which another connection
//! goes on exactly. A page of the log is read at a time and sent before the next one, so a slow
//! reader costs the memory of one page, and no snapshot of the store.

pub mod config;
mod page;

use crate::local_socket::{LocalSocket, LocalSocketConfig};
use crate::state::AdminState;
use config::ChangesConfig;
use page::{FeedPage, FeedRefusal};
use serde::Deserialize;
use serde_json::json;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::watch;

/// Time in which the request has to arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes of the request.
const REQUEST_LEN_MAX: u64 = 8192;
/// Longest wait for a change, after which the log is read again.
const WAIT: Duration = Duration::from_secs(1);

/// The request of a program.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct FeedRequest {
    /// The cursor of the last line that the program has; without it, the feed begins with the next
    /// change.
    after: Option<String>,
    /// Only handles with this prefix, and the prefix itself.
    prefix: Option<String>,
    /// Whether lines have the public values of the record, as they are when the line is made.
    #[serde(default)]
    values: bool,
    /// Whether to wait for further changes.
    #[serde(default)]
    follow: bool,
}

/// Binds the socket at `path`, with the users of `config`.
///
/// # Errors
/// When another process is listening there, a different kind of file has the path, or the
/// directory does not allow it.
pub fn bind(path: &Path, config: &ChangesConfig) -> anyhow::Result<LocalSocket> {
    let config = LocalSocketConfig {
        setting: "changes.socket",
        peer: "a program that follows changes",
        uids: config.uids.clone(),
        connections: config.connections,
    };
    LocalSocket::bind(path, config)
}

/// Sends changes at `socket` until the server stops.
///
/// # Errors
/// When the runtime cannot watch the socket.
pub fn serve(socket: LocalSocket, state: &Arc<AdminState>) -> anyhow::Result<()> {
    let (counting, state) = (Arc::clone(&state.service), Arc::clone(state));
    let timeout = Duration::from_millis(state.config().changes.write_ms.into());
    let (stopping, refuse) = (state.stopping(), move || counting.counters.changes_refused.add());
    socket.serve(stopping, refuse, move |stream, stopping| {
        let state = Arc::clone(&state);
        async move { feed(stream, state, timeout, stopping).await }
    })
}

/// Sends changes on one connection.
async fn feed(
    stream: UnixStream,
    state: Arc<AdminState>,
    timeout: Duration,
    mut stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    let (mut reader, writer) = stream.into_split();
    let mut feed = Feed { state, writer, timeout };
    let request = tokio::time::timeout(REQUEST_TIMEOUT, read_request(&mut reader)).await;
    let request = match request.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))? {
        Ok(request) => Arc::new(request),
        Err(why) => return feed.refuse(&FeedRefusal::Request(why)).await,
    };
    let mut more = [0; 1];
    tokio::select! {
        sent = feed.send_all(&request) => sent,
        // A program that has closed the connection would wait for a change that may never come.
        _ = reader.read(&mut more), if request.follow => Ok(()),
        _ = stopping.wait_for(|&stops| stops) => Ok(()),
    }
}

/// Reads the line with the request; the inner error says what is wrong with it.
async fn read_request(reader: &mut OwnedReadHalf) -> io::Result<Result<FeedRequest, String>> {
    let (mut line, mut limited) = (Vec::new(), reader.take(REQUEST_LEN_MAX));
    while !line.ends_with(b"\n") {
        if limited.read_buf(&mut line).await? == 0 {
            break;
        }
    }
    Ok(serde_json::from_slice(&line).map_err(|error| {
        format!("{error}: send one line with \"after\", \"prefix\", \"values\" and \"follow\"")
    }))
}

/// A connection to which changes are sent.
struct Feed {
    state: Arc<AdminState>,
    writer: tokio::net::unix::OwnedWriteHalf,
    timeout: Duration,
}

impl Feed {
    async fn send_all(&mut self, request: &Arc<FeedRequest>) -> io::Result<()> {
        let (state, begun) = (Arc::clone(&self.state), Arc::clone(request));
        let begin = move || page::begin(&state.service.store, begun.after.as_deref());
        let mut position = match self.run(begin).await? {
            Ok(position) => position,
            Err(refusal) => return self.refuse(&refusal).await,
        };
        self.send(page::position_line(position, "position").as_bytes()).await?;
        loop {
            let (state, request_of) = (Arc::clone(&self.state), Arc::clone(request));
            let read = move || {
                let (prefix, values) = (request_of.prefix.as_deref(), request_of.values);
                page::read(&state.service.store, position, prefix, values)
            };
            let FeedPage { lines, to, is_last } = match self.run(read).await? {
                Ok(page) => page,
                Err(refusal) => return self.refuse(&refusal).await,
            };
            self.send(lines.as_bytes()).await?;
            position = to;
            if !is_last {
                continue;
            }
            if !request.follow {
                return self.send(page::position_line(position, "end").as_bytes()).await;
            }
            let (state, at) = (Arc::clone(&self.state), position.transaction);
            self.run(move || state.service.store.wait_past(at, WAIT)).await?;
        }
    }

    /// Runs `work`, which may block.
    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        tokio::task::spawn_blocking(work).await.map_err(|_| {
            self.state.service.counters.bugs.add();
            io::Error::other("reading the log met a bug")
        })
    }

    async fn refuse(&mut self, refusal: &FeedRefusal) -> io::Result<()> {
        let line = json!({ "error": refusal.code(), "message": refusal.to_string() });
        self.send(format!("{line}\n").as_bytes()).await
    }

    async fn send(&mut self, lines: &[u8]) -> io::Result<()> {
        let sent = tokio::time::timeout(self.timeout, self.writer.write_all(lines)).await;
        sent.unwrap_or_else(|_| {
            self.state.service.counters.changes_late.add();
            Err(ErrorKind::TimedOut.into())
        })
    }
}
