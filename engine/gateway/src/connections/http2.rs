//! Connections that speak HTTP/2.

pub mod config;

use super::control_frames::CountedFrames;
use super::error::ConnectionError;
use super::http2_targets::EncodedTargets;
use super::served_connection::ServedConnection;
use crate::phase::{self, GatewayPhase};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::sleep;

/// Serves the requests in `stream`. Without a request for as long as the setting `header_ms` says,
/// the connection ends, and so it does when an answer moves too slowly for `transfer_ms`.
///
/// # Errors
/// When the connection ends because of an error.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    served: Arc<ServedConnection>,
) -> Result<(), ConnectionError> {
    let answering = Arc::clone(&served);
    let service = service_fn(move |request| {
        let served = Arc::clone(&answering);
        async move { served.answer(request).await }
    });
    let limits = &served.settings.limits;
    let builder = served.settings.http2.builder(limits.header_bytes);
    let stream = EncodedTargets::new(CountedFrames::new(stream));
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let (header_timeout, write_timeout) = (served.header_timeout(), limits.transfer_time());
    let mut timer = pin!(sleep(header_timeout));
    let mut draining = pin!(phase::reached(served.state.phase(), GatewayPhase::HandedOver));
    let (mut is_ending, mut is_late) = (false, false);
    poll_fn(|context| {
        loop {
            if let Poll::Ready(result) = connection.as_mut().poll(context) {
                return Poll::Ready(result.map_err(ConnectionError::from));
            }
            let mut ends = false;
            if timer.as_mut().poll(context).is_ready() {
                let stalls_at = served.activity.answers.stall_deadline();
                if stalls_at.is_some_and(|at| at <= Instant::now()) {
                    return Poll::Ready(Err(ConnectionError::Stalled));
                }
                match served.activity.deadline(header_timeout) {
                    Some(deadline) => {
                        let deadline = stalls_at.map_or(deadline, |at| at.min(deadline));
                        timer.as_mut().reset(deadline.into());
                    }
                    None if is_late => return Poll::Ready(Err(ConnectionError::Late)),
                    None => {
                        (ends, is_late) = (true, true);
                        timer.as_mut().reset((Instant::now() + write_timeout).into());
                    }
                }
            } else if served.activity.is_answering()
                && timer.deadline() > (Instant::now() + write_timeout).into()
            {
                // An answer may begin to wait while the connection is not polled.
                timer.as_mut().reset((Instant::now() + write_timeout).into());
            } else if is_ending || draining.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            } else {
                ends = true;
            }
            if ends && !is_ending {
                is_ending = true;
                Pin::as_mut(&mut connection).graceful_shutdown();
            }
        }
    })
    .await
}
