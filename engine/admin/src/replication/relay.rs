//! Messages that `handle-gateway` relays, because their answers may be streams.
//!
//! The gateway has no rights: each client is challenged, and each request is decided with the
//! rights of the client.

use super::StreamRoute;
use super::send::{PartWriter, send_parts_to};
use crate::service::{AdminService, ReceivedMessage, ReplyMessages};
use handle_local::connection::{FrameWriter, LocalConnection};
use handle_local::relay::{PART_LEN_MAX, REQUEST_LEN_MAX, RelayRoute, RelayedRequest};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Time for the gateway to send a message without a stream, and to read one part of an answer.
const FRAME_TIMEOUT: Duration = Duration::from_secs(60);

/// Answers the message of a connection.
///
/// # Errors
/// When the peer closes the connection or is too slow, or the message is malformed.
pub async fn answer(
    connection: LocalConnection,
    service: &Arc<AdminService>,
    mut stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    let LocalConnection { mut reader, writer } = connection;
    let frame = within(FRAME_TIMEOUT, reader.receive(REQUEST_LEN_MAX)).await?;
    service.counters.relayed.add();
    let answering = Arc::clone(service);
    let answered = tokio::task::spawn_blocking(move || {
        let RelayedRequest { route, source, message } = RelayedRequest::decode(&frame)?;
        let route = match route {
            RelayRoute::Http => StreamRoute::Http,
            RelayRoute::Https => StreamRoute::Https,
        };
        Some(answering.answer(ReceivedMessage::over(route, message, SocketAddr::new(source, 0))))
    });
    let Ok(replies) = answered.await else {
        // A decision that panicked leaves nothing behind; a panic of the writer stops the process.
        service.counters.bugs.add();
        return Ok(());
    };
    let Some(replies) = replies else { return Err(ErrorKind::InvalidData.into()) };
    tokio::select! {
        sent = send_replies(RelayWriter(writer), replies, service) => sent,
        _ = stopping.wait_for(|&stops| stops) => Ok(()),
    }
}

async fn send_replies(
    mut writer: RelayWriter,
    replies: ReplyMessages,
    service: &AdminService,
) -> io::Result<()> {
    within(FRAME_TIMEOUT, writer.write_part(&replies.first)).await?;
    let mut rest = replies.rest;
    while let Some(mut pages) = rest {
        let next = tokio::task::spawn_blocking(move || (pages.next_page(), pages)).await;
        let Ok((Some(page), pages)) = next else { break };
        within(FRAME_TIMEOUT, writer.write_part(&page)).await?;
        rest = Some(pages);
    }
    if let (Some(mirrored), Some(replication)) = (replies.stream, service.replication.as_ref()) {
        send_parts_to(&mut writer, *mirrored, replication.send_limits(), &service.counters).await?;
    }
    within(FRAME_TIMEOUT, writer.0.send(0, |_| ())).await
}

/// Writes the parts of an answer as frames.
struct RelayWriter(FrameWriter);

impl PartWriter for RelayWriter {
    async fn write_part(&mut self, part: &[u8]) -> io::Result<()> {
        for part in part.chunks(PART_LEN_MAX) {
            self.0.send(part.len(), |content| content.extend_from_slice(part)).await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn within<T>(timeout: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}
