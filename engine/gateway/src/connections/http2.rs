//! Connections that speak HTTP/2.

use super::control_frames::CountedFrames;
use super::http2_targets::EncodedTargets;
use super::{ConnectionError, ServedConnection};
use crate::phase::{self, GatewayPhase};
use handle_daemon::settings;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::sleep;

settings! {
    /// HTTP/2, beside HTTP/1.1: over TLS where the client prefers it, and on plain connections
    /// whose clients begin with its preface. `limits` apply as well.
    pub struct Http2Config {
        /// Serve HTTP/2.
        restart enabled: bool = true;
        /// Requests in progress on a connection.
        live streams: u32 = 100, 1..=1 << 16;
        /// Requests that a client may cancel before they are handled. Beyond this number, the
        /// connection is closed.
        live resets: usize = 20, 1..=1 << 16;
        /// Requests of a connection that may be reset because the client violated the protocol.
        /// Beyond this number, the connection is closed.
        live errors: usize = 256, 1..=1 << 16;
        /// Flow-control window of a request body, in bytes.
        live stream_window_bytes: u32 = 256 << 10, 65_535..=1 << 30;
        /// Flow-control window of all request bodies of a connection, in bytes.
        live connection_window_bytes: u32 = 1 << 20, 65_535..=1 << 30;
        /// Maximum length of a frame.
        live frame_bytes: u32 = 16_384, 16_384..=16_777_215;
        /// Bytes of an answer that are buffered for a client that does not read.
        live send_bytes: usize = 256 << 10, 16_384..=1 << 30;
    }
}

impl Http2Config {
    fn builder(&self, header_bytes: usize) -> Builder<TokioExecutor> {
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.streams)
            .max_pending_accept_reset_streams(self.resets)
            .max_local_error_reset_streams(self.errors)
            .initial_stream_window_size(self.stream_window_bytes)
            .initial_connection_window_size(self.connection_window_bytes)
            .max_frame_size(self.frame_bytes)
            .max_send_buf_size(self.send_bytes)
            // h2 refuses heads that are as long as this.
            .max_header_list_size(u32::try_from(header_bytes + 1).unwrap_or(u32::MAX));
        builder
    }
}

/// Serves the requests in `stream`. Without a request for as long as the setting `header_ms` says,
/// the connection ends, and so it does when an answer moves too slowly for `write_ms`.
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
    let (header_timeout, write_timeout) =
        (served.header_timeout(), Duration::from_millis(limits.write_ms.into()));
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
                // An answer may begin to wait while nobody polls the connection.
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
