//! Requests that `handled` forwards, answered as if their clients had connected here.
//!
//! The number of requests processed at a time is bounded, separately from those of clients that
//! connect here.

pub mod config;

use crate::service::{AdminService, ListPages, ReceivedMessage};
use crate::steps::{run, within};
use handle_daemon::takeover::IdleConnections;
use handle_local::connection::LocalConnection;
use handle_local::forward::{ForwardFrame, ForwardedAnswer, PART_LEN, REQUEST_LEN_MAX};
use handle_local::frame;
use handle_local::kind::LocalKind;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use zeroize::Zeroizing;

/// Time for `handled` to read an answer, for which a thread of it waits.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a frame that has begun to arrive: `handled` sends it at once.
const FRAME_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers on one connection until the peer closes it or the server stops. A connection without a
/// request is then among those that are `idle`.
///
/// # Errors
/// When the connection fails, or its peer closes it or does not read.
pub async fn answer(
    mut connection: LocalConnection,
    service: &Arc<AdminService>,
    work: &Semaphore,
    idle: &IdleConnections,
    mut stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut listing: Option<ListPages> = None;
    loop {
        if !connection.begins(&mut stopping).await? {
            // The next process continues with it, unless a listing is in progress.
            if listing.is_none()
                && let Some(stream) = connection.into_stream()
            {
                idle.keep(stream.into_std()?);
            }
            return Ok(());
        }
        let frame = within(FRAME_TIMEOUT, connection.reader.receive(REQUEST_LEN_MAX)).await?;
        let Ok(permit) = work.acquire().await else { return Ok(()) };
        let (answering, begun) = (Arc::clone(service), listing.take());
        let answered = run(&service.counters, move || match ForwardFrame::decode(&frame)? {
            ForwardFrame::Request(request) => {
                answering.counters.forwarded.add();
                let replies = answering.answer(ReceivedMessage::from(*request));
                Some(part(replies.first, replies.rest))
            }
            ForwardFrame::Next => Some(part(Vec::new(), begun)),
        });
        let Some((answer, rest)) = answered.await? else {
            service.counters.local_refused.add();
            tracing::warn!("cannot parse a request of handled: is it of another version?");
            return Ok(());
        };
        // Others go on while `handled` takes the answer.
        drop(permit);
        within(WRITE_TIMEOUT, connection.writer.send_frame(&answer)).await?;
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
    let frame = frame::encode(LocalKind::Forward, 1 + messages.len(), |content| answer.encode(content));
    (frame, rest)
}
