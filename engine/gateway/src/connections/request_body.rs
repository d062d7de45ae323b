//! The body of a request, and the handling of a part that no endpoint reads.
//!
//! A request may be answered before its body has arrived. What follows on the connection is then
//! the rest of the body, so it is received and discarded before the answer is sent, within
//! [`ClosingLimits`]. If that is not possible, a connection of HTTP/1.1 ends with the answer, which
//! says so; over HTTP/2, the client is asked to stop sending.
//!
//! Common clients need this. Those that send head and body apart would use a connection again that
//! the server has closed without a word, and curl 7.88 reports a stream that is reset before its
//! body has been sent instead of the answer.

use super::activity::{ConnectionActivity, RunningRequest};
use super::stream::ClosingLimits;
use http_body_util::BodyExt as _;
use hyper::Version;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header;
use hyper::http::request::Parts;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::time::timeout;

/// The body of a request.
#[derive(Debug)]
pub struct RequestBody {
    /// `None` once it has ended, or after an error.
    incoming: Option<Incoming>,
    has_begun: bool,
    /// `None` if the request has no body.
    rest: Option<Arc<UnreadRest>>,
}

/// What the connection of a request has to know about its body.
#[derive(Debug)]
pub struct UnreadRest {
    state: Mutex<RestState>,
    is_http1: bool,
    /// Whether the client waits for permission to send the body.
    is_expecting: bool,
    /// Whether the connection ends with the answer anyway.
    is_last: bool,
    limits: ClosingLimits,
    activity: Arc<ConnectionActivity>,
}

/// Where the body is.
#[derive(Debug)]
enum RestState {
    /// It is being read, or has been read.
    Reading,
    /// It is not read any more, and has not ended.
    Left { incoming: Incoming, has_begun: bool },
    /// It has failed.
    Broken,
    /// The request has been answered; no task waits for the rest.
    Answered,
}

impl RequestBody {
    /// The body of the request `parts`, and the state that its connection keeps unless there is no
    /// body.
    #[must_use]
    pub fn new(
        parts: &Parts,
        incoming: Incoming,
        limits: ClosingLimits,
        activity: &Arc<ConnectionActivity>,
    ) -> (Self, Option<Arc<UnreadRest>>) {
        if incoming.is_end_stream() {
            return (Self { incoming: None, has_begun: false, rest: None }, None);
        }
        let names = |name: header::HeaderName, token: &str| {
            let mut lists = parts.headers.get_all(name).iter().filter_map(|list| list.to_str().ok());
            lists.any(|list| list.split(',').any(|part| part.trim().eq_ignore_ascii_case(token)))
        };
        let is_http1 = parts.version < Version::HTTP_2;
        let is_last = match parts.version {
            Version::HTTP_11 => names(header::CONNECTION, "close"),
            Version::HTTP_10 => !names(header::CONNECTION, "keep-alive"),
            _ => false,
        };
        let rest = Arc::new(UnreadRest {
            state: Mutex::new(RestState::Reading),
            is_http1,
            is_expecting: names(header::EXPECT, "100-continue"),
            is_last,
            limits,
            activity: Arc::clone(activity),
        });
        let body = Self { incoming: Some(incoming), has_begun: false, rest: Some(Arc::clone(&rest)) };
        (body, Some(rest))
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let unread = self.incoming.take().filter(|body| !body.is_end_stream());
        if let (Some(incoming), Some(rest)) = (unread, &self.rest) {
            rest.leave(incoming, self.has_begun);
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.has_begun = true;
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        let polled = Pin::new(incoming).poll_frame(context);
        match &polled {
            Poll::Ready(None) => self.incoming = None,
            Poll::Ready(Some(Err(_))) => {
                self.incoming = None;
                if let Some(rest) = &self.rest {
                    *rest.state() = RestState::Broken;
                }
            }
            Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl UnreadRest {
    fn state(&self) -> MutexGuard<'_, RestState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a body that is not read any more until its request is answered; after that, discards
    /// it beside the answer.
    fn leave(&self, incoming: Incoming, has_begun: bool) {
        let mut state = self.state();
        if !matches!(*state, RestState::Answered) {
            *state = RestState::Left { incoming, has_begun };
            return;
        }
        // Without a runtime, the process ends.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (running, limits) = (RunningRequest::begin(&self.activity), self.limits);
        runtime.spawn(async move {
            discard(incoming, limits).await;
            drop(running);
        });
    }

    /// Discards the rest of the body, unless it is still read beside the answer. Returns false if
    /// the connection has to end with the answer.
    ///
    /// `may_wait` is false for a client that is too slow already.
    pub async fn discard(&self, may_wait: bool) -> bool {
        let (incoming, has_begun) = match std::mem::replace(&mut *self.state(), RestState::Answered) {
            RestState::Reading | RestState::Answered => return true,
            RestState::Broken => return false,
            RestState::Left { incoming, has_begun } => (incoming, has_begun),
        };
        if self.is_http1 && self.is_last {
            // What the client still sends is discarded when the connection is closed.
            return false;
        }
        // Reading would ask the client for a body that is not needed.
        let would_ask = self.is_expecting && !has_begun;
        may_wait && !would_ask && discard(incoming, self.limits).await
    }
}

/// Receives the rest of a body. Returns false if it does not end within `limits`.
async fn discard(mut incoming: Incoming, limits: ClosingLimits) -> bool {
    let bytes_max = limits.bytes as u64;
    if incoming.size_hint().lower() > bytes_max {
        return false;
    }
    let received = async {
        let mut bytes = 0;
        while let Some(frame) = incoming.frame().await {
            let Ok(frame) = frame else { return false };
            bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
            if bytes > bytes_max {
                return false;
            }
        }
        true
    };
    timeout(limits.time, received).await.unwrap_or(false)
}
