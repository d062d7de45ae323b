//! HTTP/2 on one connection, without its socket: received and sent bytes pass through two buffers.
//!
//! `h2` expects an executor that wakes tasks. No wakers are needed here: after bytes have been
//! received or a request has been added, [`Http2Session::turn`] polls everything.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future as _;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::RecvStream;
use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use http::{HeaderName, Method, Request};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::HttpAnswer;
use super::request::{HttpRequest, MEDIA_TYPE};

/// Bytes that the server may send on a stream before they are acknowledged: the longest answer.
const STREAM_WINDOW: u32 = 8 << 20;
/// Bytes that the server may send on the connection before they are acknowledged.
const CONNECTION_WINDOW: u32 = 64 << 20;
/// Maximum number of streams of a connection until the server announces its limit.
pub(super) const FIRST_STREAMS_MAX: usize = 1;
/// Maximum number of polls of the connection after each receive.
const POLLS_MAX: usize = 64;

/// The bytes between a session and its connection.
#[derive(Debug, Default)]
struct SessionBytes {
    received: VecDeque<u8>,
    to_send: Vec<u8>,
    /// Whether nothing more will be received.
    is_over: bool,
}

/// The session's end of these bytes.
#[derive(Clone, Debug, Default)]
struct SessionPipe(Rc<RefCell<SessionBytes>>);

impl AsyncRead for SessionPipe {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let mut bytes = self.0.borrow_mut();
        if bytes.received.is_empty() {
            return if bytes.is_over { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        let (first, _) = bytes.received.as_slices();
        let len = first.len().min(buffer.remaining());
        buffer.put_slice(&first[..len]);
        bytes.received.drain(..len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SessionPipe {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.0.borrow_mut().to_send.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A request whose answer is not complete.
struct OpenStream {
    request_id: i32,
    state: StreamState,
}

enum StreamState {
    Head(ResponseFuture),
    Body { answer: HttpAnswer, rest: RecvStream },
}

/// A session.
pub(super) struct Http2Session {
    pipe: SessionPipe,
    sender: SendRequest<Bytes>,
    connection: Connection<SessionPipe, Bytes>,
    /// `https` or `http`.
    scheme: &'static str,
    /// Requests beyond the number of streams that the server allows.
    unsent: VecDeque<(i32, Request<()>, Option<Bytes>)>,
    streams: Vec<OpenStream>,
}

impl Http2Session {
    /// Begins a session; `None` if `h2` refuses, which it does only if a socket fails.
    pub(super) fn begin(is_tls: bool) -> Option<Self> {
        let pipe = SessionPipe::default();
        let mut builder = Builder::new();
        builder
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            // Used until the server announces its limit, beyond which it refuses streams.
            .initial_max_send_streams(FIRST_STREAMS_MAX)
            .enable_push(false);
        let mut context = Context::from_waker(Waker::noop());
        let handshake = pin!(builder.handshake(pipe.clone()));
        let Poll::Ready(Ok((sender, connection))) = handshake.poll(&mut context) else { return None };
        let scheme = if is_tls { "https" } else { "http" };
        Some(Self { pipe, sender, connection, scheme, unsent: VecDeque::new(), streams: Vec::new() })
    }

    /// Number of streams that the server allows at a time.
    pub(super) fn streams_max(&self) -> usize {
        self.connection.max_concurrent_send_streams()
    }

    /// Adds a request. A host that is not valid in a URL is an error.
    pub(super) fn request(
        &mut self,
        request_id: i32,
        request: &HttpRequest<'_>,
        host: &str,
    ) -> Result<(), http::Error> {
        let uri = format!("{}://{host}{}", self.scheme, request.path);
        let mut builder = Request::builder().uri(uri);
        if request.body.is_some() {
            let media_type = [http::header::ACCEPT, http::header::CONTENT_TYPE];
            builder = media_type.into_iter().fold(builder.method(Method::POST), with_media_type);
        }
        let body = request.body.map(Bytes::copy_from_slice);
        self.unsent.push_back((request_id, builder.body(())?, body));
        Ok(())
    }

    /// Encodes the added requests.
    pub(super) fn send(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        self.send_requests(&mut context);
        // The next turn reports the end of the session.
        let _ = Pin::new(&mut self.connection).poll(&mut context);
    }

    /// The bytes to send, for the caller to take.
    pub(super) fn drain_to(&mut self, output: &mut Vec<u8>) {
        output.append(&mut self.pipe.0.borrow_mut().to_send);
    }

    /// Takes received bytes; `is_over` tells that no more will follow. Passes each answer to
    /// `take`, an incomplete one as `None`. Returns whether the session is over.
    pub(super) fn turn(
        &mut self,
        received: &mut Vec<u8>,
        is_over: bool,
        mut take: impl FnMut(i32, Option<HttpAnswer>),
    ) -> bool {
        {
            let mut bytes = self.pipe.0.borrow_mut();
            bytes.received.extend(received.drain(..));
            bytes.is_over |= is_over;
        }
        let mut context = Context::from_waker(Waker::noop());
        let mut has_ended = false;
        for _ in 0..POLLS_MAX {
            self.send_requests(&mut context);
            has_ended |= Pin::new(&mut self.connection).poll(&mut context).is_ready();
            self.read_answers(&mut context, &mut take);
            // Reading from streams makes room for more data, and may allow further requests.
            let is_idle = self.pipe.0.borrow().received.is_empty();
            if is_idle || has_ended {
                break;
            }
        }
        self.send_requests(&mut context);
        if !has_ended {
            has_ended = Pin::new(&mut self.connection).poll(&mut context).is_ready();
        }
        has_ended
    }

    fn send_requests(&mut self, context: &mut Context<'_>) {
        while !self.unsent.is_empty() && matches!(self.sender.poll_ready(context), Poll::Ready(Ok(()))) {
            let Some((request_id, request, body)) = self.unsent.pop_front() else { return };
            let Ok((response, mut stream)) = self.sender.send_request(request, body.is_none()) else {
                continue;
            };
            // An error concerns the stream, and its answer shows it.
            let _ = body.map(|body| stream.send_data(body, true));
            self.streams.push(OpenStream { request_id, state: StreamState::Head(response) });
        }
    }

    fn read_answers(&mut self, context: &mut Context<'_>, take: &mut impl FnMut(i32, Option<HttpAnswer>)) {
        let mut at = 0;
        while at < self.streams.len() {
            match self.streams[at].state.poll(context) {
                Poll::Pending => at += 1,
                Poll::Ready(answer) => take(self.streams.swap_remove(at).request_id, answer),
            }
        }
    }
}

impl StreamState {
    /// The complete answer; `None` if it was aborted.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<HttpAnswer>> {
        loop {
            match self {
                Self::Head(response) => match Pin::new(response).poll(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(_)) => return Poll::Ready(None),
                    Poll::Ready(Ok(response)) => {
                        let (head, rest) = response.into_parts();
                        let location = head.headers.get(http::header::LOCATION);
                        let answer = HttpAnswer {
                            status: head.status.as_u16(),
                            location: location.map(|value| value.as_bytes().to_vec()),
                            body: Vec::new(),
                        };
                        *self = Self::Body { answer, rest };
                    }
                },
                Self::Body { answer, rest } => match rest.poll_data(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Ok(data))) => {
                        answer.body.extend_from_slice(&data);
                        // This fails only when the stream is over, and then there is nothing to
                        // release.
                        let _ = rest.flow_control().release_capacity(data.len());
                    }
                    Poll::Ready(Some(Err(_))) => return Poll::Ready(None),
                    Poll::Ready(None) => return Poll::Ready(Some(std::mem::take(answer))),
                },
            }
        }
    }
}

fn with_media_type(builder: http::request::Builder, name: HeaderName) -> http::request::Builder {
    builder.header(name, MEDIA_TYPE)
}
