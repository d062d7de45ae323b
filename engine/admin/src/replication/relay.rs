//! Messages that `handle-gateway` relays, because their answers may be streams.
//!
//! The gateway has no rights: each client is challenged, and each request is decided with the
//! rights of the client. Connections, and requests in progress, are limited.

use super::ReplicationConfig;
use super::StreamRoute;
use super::send::send;
use crate::local_socket::{LocalSocket, LocalSocketConfig};
use crate::service::{AdminService, ReceivedMessage, ReplyMessages};
use handle_daemon::relay::{HEAD_LEN, RelayHead, RelayRoute};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::watch;
use zeroize::Zeroizing;

/// Binds the socket at `path`.
///
/// # Errors
/// When another process is listening there, a different kind of file has the path, or the
/// directory does not allow it.
pub fn bind(path: &Path, config: &ReplicationConfig) -> anyhow::Result<LocalSocket> {
    let config = LocalSocketConfig {
        setting: "replication.socket",
        peer: "handle-gateway",
        uids: config.socket_uids.clone(),
        connections: config.socket_connections,
    };
    LocalSocket::bind(path, config)
}

/// Has `service` answer the messages at `socket` until `stopping` is true.
///
/// # Errors
/// When the runtime cannot watch the socket.
pub fn serve(
    socket: LocalSocket,
    service: &Arc<AdminService>,
    config: &ReplicationConfig,
    stopping: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let (counting, service) = (Arc::clone(service), Arc::clone(service));
    let timeout = Duration::from_millis(config.write_ms.into());
    let refuse = move || counting.counters.relayed_refused.add();
    socket.serve(stopping, refuse, move |stream, stopping| {
        let service = Arc::clone(&service);
        async move { answer(stream, &service, timeout, stopping).await }
    })
}

/// Answers the message of a connection.
async fn answer(
    mut stream: UnixStream,
    service: &Arc<AdminService>,
    timeout: Duration,
    mut stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    let (head, message) = within(timeout, receive(&mut stream)).await?;
    service.counters.relayed.add();
    let route = match head.route {
        RelayRoute::Http => StreamRoute::Http,
        RelayRoute::Https => StreamRoute::Https,
    };
    let (answering, source) = (Arc::clone(service), SocketAddr::new(head.source, 0));
    let answered =
        tokio::task::spawn_blocking(move || answering.answer(ReceivedMessage::over(route, &message, source)));
    let Ok(replies) = answered.await else {
        // A decision that panicked leaves nothing behind; a panic of the writer stops the process.
        service.counters.bugs.add();
        return Ok(());
    };
    tokio::select! {
        sent = send_replies(&mut stream, replies, service, timeout) => sent,
        _ = stopping.wait_for(|&stops| stops) => Ok(()),
    }
}

async fn send_replies(
    stream: &mut UnixStream,
    replies: ReplyMessages,
    service: &AdminService,
    timeout: Duration,
) -> io::Result<()> {
    within(timeout, stream.write_all(&replies.first)).await?;
    let mut rest = replies.rest;
    while let Some(mut pages) = rest {
        let next = tokio::task::spawn_blocking(move || (pages.next_page(), pages)).await;
        let Ok((Some(page), pages)) = next else { break };
        within(timeout, stream.write_all(&page)).await?;
        rest = Some(pages);
    }
    if let (Some(mirrored), Some(replication)) = (replies.stream, service.replication()) {
        send(stream, *mirrored, replication.send_limits(), &service.counters).await?;
    }
    within(timeout, stream.shutdown()).await
}

/// Receives the head and the message.
async fn receive(stream: &mut UnixStream) -> io::Result<(RelayHead, Zeroizing<Vec<u8>>)> {
    let mut head = [0; HEAD_LEN];
    stream.read_exact(&mut head).await?;
    let head = RelayHead::decode(&head).ok_or(ErrorKind::InvalidData)?;
    let mut message = Zeroizing::new(vec![0; head.message_len]);
    stream.read_exact(&mut message).await?;
    Ok((head, message))
}

async fn within<T>(timeout: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}
