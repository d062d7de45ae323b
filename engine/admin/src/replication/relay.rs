//! Messages that `handle-gateway` relays, because their answers may be streams.
//!
//! The gateway has no rights: each client is challenged, and each request is decided with the
//! rights of the client.

use super::StreamRoute;
use super::send::{PartWriter, send_parts_to};
use crate::service::{AdminService, ReceivedMessage, ReplyMessages};
use crate::steps::{run, within};
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
/// When the peer closes the connection or is too slow, the server stops before the message, or the
/// message is malformed or meets a bug.
pub async fn answer(
    connection: LocalConnection,
    service: &Arc<AdminService>,
    mut stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    let LocalConnection { mut reader, writer } = connection;
    let frame = reader.receive_within(REQUEST_LEN_MAX, FRAME_TIMEOUT, &mut stopping).await?;
    service.counters.relayed.add();
    let answering = Arc::clone(service);
    let answered = run(&service.counters, move || {
        let RelayedRequest { route, source, message } = RelayedRequest::decode(&frame)?;
        let route = match route {
            RelayRoute::Http => StreamRoute::Http,
            RelayRoute::Https => StreamRoute::Https,
        };
        Some(answering.answer(ReceivedMessage::over(route, message, SocketAddr::new(source, 0))))
    });
    let Some(replies) = answered.await? else { return Err(ErrorKind::InvalidData.into()) };
    let mut writer = RelayWriter(writer);
    // The answer to a change that has been made is sent even if the server stops.
    within(FRAME_TIMEOUT, writer.write_part(&replies.first)).await?;
    if replies.rest.is_some() || replies.stream.is_some() {
        tokio::select! {
            sent = send_rest(&mut writer, replies, service) => sent?,
            _ = stopping.wait_for(|&stops| stops) => return Ok(()),
        }
    }
    within(FRAME_TIMEOUT, writer.0.send(0, |_| ())).await
}

/// Sends what follows the first message.
async fn send_rest(
    writer: &mut RelayWriter,
    replies: ReplyMessages,
    service: &AdminService,
) -> io::Result<()> {
    let mut rest = replies.rest;
    while let Some(mut pages) = rest {
        let next = run(&service.counters, move || (pages.next_page(), pages)).await?;
        let (Some(page), pages) = next else { break };
        within(FRAME_TIMEOUT, writer.write_part(&page)).await?;
        rest = Some(pages);
    }
    if let (Some(mirrored), Some(replication)) = (replies.stream, service.replication.as_ref()) {
        send_parts_to(writer, *mirrored, replication.send_limits(), &service.counters).await?;
    }
    Ok(())
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
