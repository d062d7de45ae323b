//! Requests that `handled` forwards over a local socket, answered as if their clients had connected
//! here.
//!
//! The number of connections is bounded, and so is the number of requests processed at a time,
//! separately from those of clients that connect here. Only processes of the same user are
//! accepted.

use crate::service::{AdminService, ListPages, ReceivedMessage};
use anyhow::{Context as _, ensure};
use handle_daemon::sessions::Holder;
use handle_daemon::sessions::forward::{ForwardFrame, ForwardedAnswer, PART_LEN, REQUEST_LEN_MAX};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use zeroize::Zeroizing;

/// Settings for requests that `handled` forwards.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct ForwardConfig {
    /// UNIX socket on which `handled`, run by the same user, hands over requests; none when empty.
    pub socket: Option<PathBuf>,
    /// Maximum connections: each request and each listing in progress uses one.
    pub connections: usize,
    /// Forwarded requests that are processed at a time; others wait.
    pub requests: usize,
    /// Whether derived prefixes that a record here delegates are resolved for clients below version
    /// 2.10, which do not understand a referral.
    pub resolve_for_old: bool,
    /// Such resolutions at a time. One more is refused with RC 3.
    pub resolutions: usize,
}

impl Default for ForwardConfig {
    fn default() -> Self {
        Self { socket: None, connections: 64, requests: 16, resolve_for_old: true, resolutions: 8 }
    }
}

impl ForwardConfig {
    /// Resolves a relative path against `directory`.
    #[must_use]
    pub fn relative_to(mut self, directory: &Path) -> Self {
        self.socket = self.socket.map(|socket| directory.join(socket));
        self
    }

    /// Checks what can be checked without opening anything.
    ///
    /// # Errors
    /// Names the setting, and what it should be.
    pub fn check(&self) -> anyhow::Result<()> {
        let bounds = [
            ("connections", self.connections, 1, 1024),
            ("requests", self.requests, 1, 256),
            ("resolutions", self.resolutions, 1, 256),
        ];
        for (name, value, least, most) in bounds {
            ensure!(
                (least..=most).contains(&value),
                "`forward.{name}` is {value}: it must be from {least} to {most}"
            );
        }
        Ok(())
    }
}

/// The bound socket. Its file is removed when this is dropped.
#[derive(Debug)]
pub struct ForwardSocket {
    holder: Holder,
}

impl ForwardSocket {
    /// Binds the socket at `path`, with access for this user only.
    ///
    /// # Errors
    /// When another process is listening there, a different kind of file has the path, or the
    /// directory does not allow it.
    pub fn bind(path: &Path) -> anyhow::Result<Self> {
        let holder = Holder::bind(path, false).and_then(Holder::take_place);
        let holder = holder.with_context(|| {
            format!(
                "cannot take requests of handled at {} (`forward.socket`; check: ls -ld of its directory)",
                path.display()
            )
        })?;
        Ok(Self { holder })
    }

    /// Has `service` answer requests until `stopping` is true.
    ///
    /// # Errors
    /// When the runtime cannot watch the socket.
    pub fn serve(
        self,
        service: &Arc<AdminService>,
        config: &ForwardConfig,
        stopping: watch::Receiver<bool>,
    ) -> anyhow::Result<()> {
        let listener = UnixListener::from_std(self.holder.listener()?)?;
        tokio::spawn(accept(self, listener, Arc::clone(service), config.clone(), stopping));
        Ok(())
    }
}

async fn accept(
    socket: ForwardSocket,
    listener: UnixListener,
    service: Arc<AdminService>,
    config: ForwardConfig,
    mut stopping: watch::Receiver<bool>,
) {
    let connections = Arc::new(Semaphore::new(config.connections));
    let work = Arc::new(Semaphore::new(config.requests));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|&stops| stops) => break,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        let counters = &service.counters;
        let is_own = stream.peer_cred().is_ok_and(|peer| peer.uid() == rustix::process::geteuid().as_raw());
        let place = Arc::clone(&connections).try_acquire_owned();
        let (true, Ok(place)) = (is_own, place) else {
            counters.forwarded_refused.inc();
            tracing::warn!(is_own, "a connection to `forward.socket` is refused");
            continue;
        };
        let (service, work, stopping) = (Arc::clone(&service), Arc::clone(&work), stopping.clone());
        tokio::spawn(async move {
            let _place = place;
            if let Err(error) = talk(stream, &service, &work, stopping).await {
                tracing::debug!(%error, "a connection of handled went away");
            }
        });
    }
    drop(socket);
}

/// Answers on one connection until the peer closes it or the server stops.
async fn talk(
    mut stream: UnixStream,
    service: &Arc<AdminService>,
    work: &Semaphore,
    mut stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut listing: Option<ListPages> = None;
    loop {
        let frame = tokio::select! {
            frame = receive(&mut stream) => frame?,
            _ = stopping.wait_for(|&stops| stops) => return Ok(()),
        };
        let Ok(_permit) = work.acquire().await else { return Ok(()) };
        let (answering, begun) = (Arc::clone(service), listing.take());
        let answered = tokio::task::spawn_blocking(move || match ForwardFrame::decode(&frame)? {
            ForwardFrame::Request(request) => {
                answering.counters.forwarded.inc();
                let replies = answering.answer(ReceivedMessage::from(*request));
                Some(part(replies.first, replies.rest))
            }
            ForwardFrame::Next => Some(part(Vec::new(), begun)),
        });
        let Ok(answered) = answered.await else {
            // A decision that panicked leaves nothing behind; a panic of the writer stops the
            // process.
            service.counters.bugs.inc();
            return Ok(());
        };
        let Some((answer, rest)) = answered else {
            service.counters.forwarded_refused.inc();
            tracing::warn!("cannot parse a request of handled: is it of another version?");
            return Ok(());
        };
        stream.write_all(&answer).await?;
        listing = rest;
    }
}

/// The frame with `messages` and as many pages as are sent together, and the rest of the listing.
fn part(mut messages: Vec<u8>, mut rest: Option<ListPages>) -> (Zeroizing<Vec<u8>>, Option<ListPages>) {
    while messages.len() < PART_LEN
        && let Some(pages) = &mut rest
    {
        if let Some(page) = pages.next_page() {
            messages.extend_from_slice(&page);
        }
        if !pages.has_more() {
            rest = None;
        }
    }
    let messages = Zeroizing::new(messages);
    let answer = match &rest {
        Some(_) => ForwardedAnswer::Part(&messages),
        None => ForwardedAnswer::Last(&messages),
    };
    let mut frame = Zeroizing::new(Vec::with_capacity(4 + 1 + messages.len()));
    frame.extend_from_slice(&[0; 4]);
    answer.encode(&mut frame);
    let len = u32::try_from(frame.len() - 4).unwrap_or(u32::MAX).to_be_bytes();
    frame[..4].copy_from_slice(&len);
    (frame, rest)
}

/// Receives the next frame, without its length.
async fn receive(stream: &mut UnixStream) -> io::Result<Zeroizing<Vec<u8>>> {
    let len = stream.read_u32().await? as usize;
    if len > REQUEST_LEN_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is too long"));
    }
    let mut frame = Zeroizing::new(vec![0; len]);
    stream.read_exact(&mut frame).await?;
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_at_their_edges() {
        let with = |change: fn(&mut ForwardConfig)| {
            let mut config = ForwardConfig::default();
            change(&mut config);
            config.check().is_ok()
        };
        assert!(with(|_| ()));
        assert!(with(|it| it.connections = 1) && with(|it| it.connections = 1024));
        assert!(!with(|it| it.connections = 0) && !with(|it| it.connections = 1025));
        assert!(with(|it| it.requests = 1) && with(|it| it.requests = 256));
        assert!(!with(|it| it.requests = 0) && !with(|it| it.requests = 257));
        assert!(with(|it| it.resolutions = 1) && with(|it| it.resolutions = 256));
        assert!(!with(|it| it.resolutions = 0) && !with(|it| it.resolutions = 257));
        let error = ForwardConfig { requests: 0, ..ForwardConfig::default() }.check().unwrap_err();
        assert!(error.to_string().contains("`forward.requests`"));
    }
}
