//! Requests that `handled` forwards over a local socket, answered as if their clients had connected
//! here.
//!
//! The number of connections is bounded, and so is the number of requests processed at a time,
//! separately from those of clients that connect here. Only processes of the same user are
//! accepted.

use crate::service::{AdminService, ListPages, ReceivedMessage};
use anyhow::Context as _;
use handle_daemon::sessions::Holder;
use handle_daemon::sessions::forward::{ForwardFrame, ForwardedAnswer, PART_LEN, REQUEST_LEN_MAX};
use handle_daemon::settings;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use zeroize::Zeroizing;

settings! {
    /// Requests that `handled` forwards ([forwarding.md](forwarding.md)).
    pub struct ForwardConfig {
        /// UNIX socket at which `handled`, running as the same user, forwards requests; none if not
        /// set.
        restart socket: Option<PathBuf> = None;
        /// Connections to this socket at a time. Each request and each listing in progress uses
        /// one.
        restart connections: usize = 64, 1..=1024;
        /// Forwarded requests in progress at a time; others wait.
        restart requests: usize = 16, 1..=256;
        /// Resolve derived prefixes that a record here delegates for clients below version 2.10,
        /// which do not understand a referral.
        restart resolve_for_old: bool = true;
        /// Such resolutions at a time. One more gets RC 3.
        restart resolutions: usize = 8, 1..=256;
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
            counters.forwarded_refused.add();
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
                answering.counters.forwarded.add();
                let replies = answering.answer(ReceivedMessage::from(*request));
                Some(part(replies.first, replies.rest))
            }
            ForwardFrame::Next => Some(part(Vec::new(), begun)),
        });
        let Ok(answered) = answered.await else {
            // A decision that panicked leaves nothing behind; a panic of the writer stops the
            // process.
            service.counters.bugs.add();
            return Ok(());
        };
        let Some((answer, rest)) = answered else {
            service.counters.forwarded_refused.add();
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
