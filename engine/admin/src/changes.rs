//! The changes of the store as lines of JSON, for programs that follow them.
//!
//! A program sends a frame with one line, a `FeedRequest`, and receives lines, as the contents of
//! frames, until it closes the connection or, unless it follows, has all changes. Every line has a
//! cursor, from which another connection goes on exactly. A page of the log is read at a time and
//! sent before the next one, so a slow reader costs the memory of one page, and no snapshot of the
//! store.

mod page;

use crate::state::AdminState;
use handle_local::connection::{FrameWriter, LocalConnection};
use handle_local::kind::LocalKind;
use page::{FeedPage, FeedRefusal};
use serde::Deserialize;
use serde_json::json;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// Time in which the request has to arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
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

/// Sends changes on one connection.
///
/// # Errors
/// When the connection fails or its peer is too slow.
pub async fn feed(
    connection: LocalConnection,
    state: &Arc<AdminState>,
    mut stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    let LocalConnection { mut reader, writer } = connection;
    let timeout = Duration::from_millis(state.config().local.changes_write_ms.into());
    let threads = Arc::new(Semaphore::new(1));
    let mut feed = Feed { state: Arc::clone(state), writer, timeout, threads: Arc::clone(&threads) };
    let request_len_max = LocalKind::Changes.request_len_max();
    let line = reader.receive_within(request_len_max, REQUEST_TIMEOUT, &mut stopping).await?;
    let request = match serde_json::from_slice::<FeedRequest>(&line) {
        Ok(request) => Arc::new(request),
        Err(error) => {
            let why = format!("{error}: send one line with \"after\", \"prefix\", \"values\" and \"follow\"");
            return feed.refuse(&FeedRefusal::Request(why)).await;
        }
    };
    let ended = tokio::select! {
        sent = feed.send_all(&request) => sent,
        // A program that has closed the connection would wait for a change that may never come.
        _ = reader.closed(), if request.follow => Ok(()),
        _ = stopping.wait_for(|&stops| stops) => Ok(()),
    };
    // Its thread may still wait. The connection counts until then, or a program that connects again
    // and again would have them all.
    drop(threads.acquire().await);
    ended
}

/// A connection to which changes are sent.
struct Feed {
    state: Arc<AdminState>,
    writer: FrameWriter,
    timeout: Duration,
    /// The only thread of the connection, as a permit that its work holds.
    threads: Arc<Semaphore>,
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
        run_alone(&self.threads, work).await.map_err(|()| {
            self.state.service.counters.bugs.add();
            io::Error::other("reading the log met a bug")
        })
    }

    async fn refuse(&mut self, refusal: &FeedRefusal) -> io::Result<()> {
        let line = json!({ "error": refusal.code(), "message": refusal.to_string() });
        self.send(format!("{line}\n").as_bytes()).await
    }

    /// Sends lines, in as many frames as their length needs.
    async fn send(&mut self, lines: &[u8]) -> io::Result<()> {
        for part in lines.chunks(LocalKind::Changes.reply_len_max()) {
            let sent = self.writer.send(part.len(), |content| content.extend_from_slice(part));
            tokio::time::timeout(self.timeout, sent).await.unwrap_or_else(|_| {
                self.state.service.counters.changes_late.add();
                Err(ErrorKind::TimedOut.into())
            })?;
        }
        Ok(())
    }
}

/// Runs `work` on a thread, with the only permit of `threads` until it ends, even if its caller no
/// longer waits for it.
async fn run_alone<T: Send + 'static>(
    threads: &Arc<Semaphore>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ()> {
    let permit = Arc::clone(threads).acquire_owned().await.map_err(|_| ())?;
    let work = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        work()
    });
    work.await.map_err(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_thread_that_nobody_waits_for_any_more_counts_until_its_work_ends() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let threads = Arc::new(Semaphore::new(1));
            let (release, released) = mpsc::channel::<()>();
            let given_up = run_alone(&threads, move || released.recv().is_err());
            let given_up = tokio::time::timeout(Duration::from_millis(20), given_up).await;
            assert!(given_up.is_err() && threads.try_acquire().is_err(), "the work goes on");
            drop(release);
            drop(threads.acquire().await.unwrap());
            assert_eq!(run_alone(&threads, || 7).await, Ok(7));
            let bug = run_alone(&threads, || -> u8 { panic!("a bug of the test") }).await;
            assert_eq!((bug, threads.available_permits()), (Err(()), 1));
        });
    }
}
