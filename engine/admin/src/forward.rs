//! Requests that `handled` forwards over a local socket, answered as if their clients had connected
//! here.
//!
//! The number of connections is bounded, and so is the number of requests processed at a time,
//! separately from those of clients that connect here. Only processes of the same user are
//! accepted.

pub mod config;

use crate::local_socket::{LocalSocket, LocalSocketConfig};
use crate::service::{AdminService, ListPages, ReceivedMessage};
use config::ForwardConfig;
use handle_daemon::sessions::forward::{ForwardFrame, ForwardedAnswer, PART_LEN, REQUEST_LEN_MAX};
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, watch};
use zeroize::Zeroizing;

/// Binds the socket at `path`, with access for this user only.
///
/// # Errors
/// When another process is listening there, a different kind of file has the path, or the
/// directory does not allow it.
pub fn bind(path: &Path, config: &ForwardConfig) -> anyhow::Result<LocalSocket> {
    let config = LocalSocketConfig {
        setting: "forward.socket",
        peer: "handled",
        uids: Vec::new(),
        connections: config.connections,
    };
    LocalSocket::bind(path, config)
}

/// Has `service` answer the requests at `socket` until `stopping` is true.
///
/// # Errors
/// When the runtime cannot watch the socket.
pub fn serve(
    socket: LocalSocket,
    service: &Arc<AdminService>,
    config: &ForwardConfig,
    stopping: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let (counting, service) = (Arc::clone(service), Arc::clone(service));
    let work = Arc::new(Semaphore::new(config.requests));
    let refuse = move || counting.counters.forwarded_refused.add();
    socket.serve(stopping, refuse, move |stream, stopping| {
        let (service, work) = (Arc::clone(&service), Arc::clone(&work));
        async move { answer(stream, &service, &work, stopping).await }
    })
}

/// Answers on one connection until the peer closes it or the server stops.
async fn answer(
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
        let Ok(permit) = work.acquire().await else { return Ok(()) };
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
        // Others go on while `handled` takes the answer.
        drop(permit);
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
