//! Plain requests of HTTP/1.1, answered without hyper.
//!
//! A connection begins here. A request is plain if its head is one that [`PlainHead`] reads, and if
//! the fast path has its answer. The first request that is not plain, the end of the stream, a
//! timeout and the end of the process are left to hyper, with all bytes that are not answered.
//! hyper keeps the connection until it ends, so each request is read by one of the two from its
//! first byte, and what hyper promises about broken requests holds for all that are not plain.
//!
//! The answers have the bytes that hyper sends for the same requests, and the requests are counted,
//! limited and logged like those. Those of a proxy that names its clients in headers are all for
//! hyper; one that uses the PROXY protocol names them before.

pub mod answer;
pub mod head;

use super::BugGuard;
use super::error::ConnectionError;
use super::request_wait::RequestWait;
use super::served_connection::ServedConnection;
use crate::admission::admit;
use crate::counters::RequestKind;
use crate::fast_path::{PlainHandle, RecordQuery};
use crate::phase::GatewayPhase;
use crate::request_log::{LoggedResponse, RequestLogEntry};
use crate::route::{Route, RoutedPath};
use crate::state::GatewayState;
use answer::AnswerWriter;
use handle_daemon::permits::SourcePermit;
use head::{PlainHead, UnreadHead};
use hyper::StatusCode;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that are read at once, and maximum length of the head of a plain request.
/// The bound of longer heads is never less.
const INPUT_LEN: usize = 8192;
/// Bytes of answers after which they are sent.
const OUTPUT_LEN: usize = 16 << 10;
/// Length from which a body is left to hyper, which can refuse an answer for which there is no
/// capacity.
const BODY_LEN_MAX: usize = 64 << 10;
/// Requests after which other connections of the worker have their turn.
const TURN_REQUESTS: usize = 64;

/// What a worker needs to answer plain requests. Connections use it in turn, so it stays in the
/// caches of the processor, and connections that wait have no buffers.
struct PlainBuffers {
    input: [u8; INPUT_LEN],
    output: Vec<u8>,
    writer: AnswerWriter,
}

thread_local! {
    static BUFFERS: RefCell<Box<PlainBuffers>> = RefCell::new(Box::new(PlainBuffers {
        input: [0; INPUT_LEN],
        output: Vec::new(),
        writer: AnswerWriter::default(),
    }));
}

/// Answers plain requests until the first other one. Returns the bytes of `stream` that were read
/// and not answered.
///
/// # Errors
/// When an answer cannot be written.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    served: &ServedConnection,
    wait: &mut RequestWait<'_>,
) -> Result<Vec<u8>, ConnectionError> {
    if served.is_trusted || served.state.reading.set.is_none() {
        // Its requests come from clients that only the general path knows, or none has an answer
        // here.
        return Ok(Vec::new());
    }
    let mut connection = PlainConnection::new(stream, served);
    poll_fn(|context| {
        let polled = BUFFERS.with_borrow_mut(|buffers| connection.poll(context, buffers));
        if polled.is_ready() || connection.is_sending() || wait.poll_late(context).is_pending() {
            return polled;
        }
        Poll::Ready(Ok(()))
    })
    .await?;
    Ok(connection.unanswered)
}

/// A connection of which all requests have been plain so far.
struct PlainConnection<'s, S> {
    stream: &'s mut S,
    served: &'s ServedConnection,
    /// Bytes that were read and not answered.
    unanswered: Vec<u8>,
    /// Whether there may be a complete head among them.
    has_head: bool,
    /// Answers that wait for the client to read.
    unsent: Vec<u8>,
    /// The reservation that they take.
    reservation: SourcePermit,
    /// How many of their bytes have been written.
    sent_len: usize,
    is_flushed: bool,
    /// Whether the next request is for hyper.
    is_over: bool,
}

impl<'s, S: AsyncRead + AsyncWrite + Unpin> PlainConnection<'s, S> {
    fn new(stream: &'s mut S, served: &'s ServedConnection) -> Self {
        Self {
            stream,
            served,
            reservation: served.state.answers.reservation(served.peer.address),
            unanswered: Vec::new(),
            has_head: false,
            unsent: Vec::new(),
            sent_len: 0,
            is_flushed: true,
            is_over: false,
        }
    }

    /// Whether answers wait for the client to read.
    const fn is_sending(&self) -> bool {
        !self.unsent.is_empty() || !self.is_flushed
    }

    /// Answers requests. Completes when hyper is to read the next one.
    fn poll(&mut self, context: &mut Context<'_>, buffers: &mut PlainBuffers) -> Poll<io::Result<()>> {
        let PlainBuffers { input, output, writer } = buffers;
        let mut answered = 0;
        loop {
            ready!(self.poll_sent(context))?;
            if self.is_over || self.served.state.has_reached(GatewayPhase::Stopping) {
                return Poll::Ready(Ok(()));
            }
            if answered >= TURN_REQUESTS {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let len = ready!(self.poll_received(context, input));
            output.clear();
            let (read, count) = self.answer(&input[..len], writer, output);
            answered += count;
            self.keep(&input[read..len]);
            self.send(context, output)?;
            output.shrink_to(2 * OUTPUT_LEN);
        }
    }

    /// Writes the answers that wait. Completes when there are none.
    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = self.poll_write_all(context);
        self.served.activity.set_writing(sent.is_pending());
        sent
    }

    fn poll_write_all(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent_len < self.unsent.len() {
            let rest = &self.unsent[self.sent_len..];
            self.sent_len += match ready!(Pin::new(&mut *self.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                len => len,
            };
        }
        if !self.unsent.is_empty() {
            (self.unsent, self.sent_len) = (Vec::new(), 0);
            self.reservation = self.served.state.answers.reservation(self.served.peer.address);
        }
        if !self.is_flushed {
            ready!(Pin::new(&mut *self.stream).poll_flush(context))?;
            self.is_flushed = true;
        }
        Poll::Ready(Ok(()))
    }

    /// Writes answers without waiting, and keeps what the client does not take.
    ///
    /// # Errors
    /// Those of the stream, or that too many answers wait for the clients of this source.
    fn send(&mut self, context: &mut Context<'_>, answers: &[u8]) -> io::Result<()> {
        let mut sent_len = 0;
        while sent_len < answers.len() {
            self.is_flushed = false;
            match Pin::new(&mut *self.stream).poll_write(context, &answers[sent_len..]) {
                Poll::Ready(Ok(0)) => return Err(ErrorKind::WriteZero.into()),
                Poll::Ready(written) => sent_len += written?,
                Poll::Pending => {
                    let state = &self.served.state;
                    let limits = state.settings.current().limits.answers();
                    if self.reservation.add(answers.len() - sent_len, limits.bytes).is_err() {
                        state.answers.note_refusal();
                        return Err(ErrorKind::QuotaExceeded.into());
                    }
                    self.unsent.extend_from_slice(&answers[sent_len..]);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Puts the bytes that are not answered into `input`, and further ones of the stream unless
    /// there may be a complete head among the former. Completes with their number.
    ///
    /// The end of the stream and errors are left to hyper, which gets them again.
    fn poll_received(&mut self, context: &mut Context<'_>, input: &mut [u8; INPUT_LEN]) -> Poll<usize> {
        let kept = self.unanswered.len();
        input[..kept].copy_from_slice(&self.unanswered);
        if self.has_head {
            return Poll::Ready(kept);
        }
        let mut reservation = ReadBuf::new(&mut input[kept..]);
        let received = ready!(Pin::new(&mut *self.stream).poll_read(context, &mut reservation));
        let len = reservation.filled().len();
        self.is_over = received.is_err() || len == 0;
        Poll::Ready(kept + len)
    }

    /// Keeps the bytes that are not answered for the next turn, or for hyper.
    fn keep(&mut self, rest: &[u8]) {
        self.unanswered.clear();
        self.unanswered.extend_from_slice(rest);
        if rest.is_empty() {
            self.unanswered = Vec::new();
        }
    }

    /// Answers the plain requests in `input`. Returns how many of its bytes they have, and their
    /// number.
    fn answer(&mut self, input: &[u8], writer: &mut AnswerWriter, output: &mut Vec<u8>) -> (usize, usize) {
        let state = &self.served.state;
        let _guard = BugGuard(state);
        let settings = state.settings.current();
        let Some(set) = state.reading.set.as_ref().filter(|_| !needs_hyper(state)) else {
            self.is_over = true;
            return (0, 0);
        };
        let (now, set) = (Instant::now(), set.current());
        writer.set_time(now);
        let query = RecordQuery { state, set: &set, settings: &settings, counted: None };
        let requests = PlainRequests { served: self.served, query, since: now };
        let (mut read, mut count) = (0, 0);
        self.has_head = false;
        while read < input.len() && !self.is_over {
            if output.len() >= OUTPUT_LEN {
                self.has_head = true;
                break;
            }
            match PlainHead::read(&input[read..]) {
                Ok(head) if requests.answer(&head, writer, output).is_some() => {
                    (read, count) = (read + head.len, count + 1);
                }
                Err(UnreadHead::Incomplete) if input.len() - read < INPUT_LEN => break,
                Ok(_) | Err(_) => self.is_over = true,
            }
        }
        if count > 0 {
            self.served.activity.note_request(now);
        }
        (read, count)
    }
}

/// Whether all requests are for hyper, because their answers end their connections.
fn needs_hyper(state: &GatewayState) -> bool {
    state.is_draining() || state.is_handed_over()
}

/// Plain requests that have arrived together.
#[derive(Clone, Copy)]
struct PlainRequests<'r> {
    served: &'r ServedConnection,
    query: RecordQuery<'r>,
    since: Instant,
}

impl PlainRequests<'_> {
    /// Appends the answer to a request; `None` if the general path has to answer it.
    fn answer(self, head: &PlainHead<'_>, writer: &mut AnswerWriter, output: &mut Vec<u8>) -> Option<()> {
        let path = RoutedPath::parse(head.target);
        let handle = PlainHandle::of(path.variable(head.target))?;
        match path.route {
            Route::Handle if !head.names_html => {
                let redirect = self.query.redirect(handle, writer.unix_s())?;
                self.admit(head, path.route, RequestKind::Proxy, StatusCode::FOUND, 0)?;
                writer.write_redirect(&redirect, head, output);
            }
            Route::Record => {
                let body = self.query.json(handle, writer.unix_s())?;
                let body = body.negotiate(StatusCode::OK, head, self.query.settings);
                let len = body.body.as_ref().map_or(0, |(_, part)| part.bytes().len());
                if len > BODY_LEN_MAX {
                    return None;
                }
                self.admit(head, path.route, RequestKind::Api, StatusCode::OK, len)?;
                writer.write_json(&body, head, output);
            }
            _ => return None,
        }
        Some(())
    }

    /// Counts and logs a request with its answer; `None` if its source is beyond its rate, which
    /// the general path tells it.
    fn admit(
        self,
        head: &PlainHead<'_>,
        route: Route,
        kind: RequestKind,
        status: StatusCode,
        body_len: usize,
    ) -> Option<()> {
        let Self { served, query: RecordQuery { state, settings, .. }, since } = self;
        admit(state, settings, served.peer.address, since).ok()?;
        let status = status.as_u16();
        state.counters.count_request(kind);
        state.counters.count_answer(status);
        if let Some(entry) = RequestLogEntry::of(head.logged(route), served.peer, &settings.request_log) {
            let response = LoggedResponse { status, body_len: Some(body_len as u64), since };
            state.request_log.record(entry, response);
        }
        Some(())
    }
}
