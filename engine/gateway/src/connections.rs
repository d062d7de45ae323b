//! Connections, from their first bytes to their end.
//!
//! - [`prelude`]: the protocol of a connection: TLS by its first byte, HTTP/2 by its preface or the
//!   negotiation in the handshake, else HTTP/1.1.
//! - [`certificate`]: the certificate of the client, where clients may show one.
//! - [`plain`]: a strict reader of plain requests, in front of hyper.
//! - [`http1`], [`http2`]: hyper, with the timeouts and the limits of a connection around it.
//! - [`target_bytes`], [`http1_targets`], [`http2_targets`]: characters in targets that clients
//!   should have percent-encoded.
//! - [`request_wait`]: the timeout while a connection waits for a request.
//! - [`stream`]: the streams below them.
//! - [`request_body`]: the bodies of requests, and the handling of parts that no endpoint reads.
//! - [`body`]: the bodies of responses.
//! - [`served_connection`]: a connection that is ready for requests. [`error`]: why one has failed.
//! - [`activity`]: what these tell each other about the requests of a connection.

pub mod activity;
pub mod body;
pub mod certificate;
mod control_frames;
pub mod error;
pub mod http1;
pub mod http1_targets;
pub mod http2;
pub mod http2_targets;
pub mod plain;
pub mod prelude;
pub mod request_body;
pub mod request_wait;
pub mod served_connection;
pub mod stream;
pub mod target_bytes;

use crate::admission::{self, Admission, OpenRequest, answer_at_once};
use crate::callers::CallerNonce;
use crate::config::Config;
use crate::listeners::ListenerKind;
use crate::peer::HttpPeer;
use crate::reply::GatewayResponse;
use crate::state::GatewayState;
use crate::tls::client_certificate::ShownCertificate;
use activity::{ConnectionActivity, RunningRequest};
use body::ConnectionBody;
use certificate::ConnectionCertificate;
use error::ConnectionError;
use handle_daemon::permits::{PermitLimits, SourcePermit};
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response, StatusCode, Version};
use prelude::{ConnectionProtocol, read_prelude, read_proxy_header};
use request_body::{RequestBody, UnreadRest};
use served_connection::ServedConnection;
use socket2::SockRef;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use stream::ClientStream;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Bytes of a connection that the kernel keeps although the client has no window for them, besides
/// those that are under way.
const UNSENT_LEN: u32 = 64 << 10;

/// Counts a bug if it is dropped by a panic.
struct BugGuard<'s>(&'s GatewayState);

impl Drop for BugGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.counters.bugs.add();
        }
    }
}

impl ServedConnection {
    fn new(state: Arc<GatewayState>, settings: Arc<Config>, address: IpAddr, is_tls: bool) -> Self {
        let activity = Arc::new(ConnectionActivity::new(settings.limits.header_bytes));
        let is_trusted = state.settings.networks().trusted.contains(address);
        let peer = HttpPeer::new(address, is_tls);
        Self { state, settings, peer, is_trusted, certificate: None, activity }
    }

    /// Answers a request, without polling a future if nothing has to be waited for.
    fn answer(&self, request: Request<Incoming>) -> ResponseFuture<'_> {
        let _guard = BugGuard(&self.state);
        let now = Instant::now();
        let (mut parts, body) = request.into_parts();
        let version = parts.version;
        let (body, rest) = RequestBody::new(&parts, body, self.settings.limits.closing(), &self.activity);
        let (request, made) = match answer_at_once(self, &mut parts, rest.is_some(), now) {
            Admission::Answered(response) => return self.at_once(version, response, now),
            Admission::Open(request, made) => (request, made),
        };
        let (source, head_len) = (request.peer.address, admission::head_len(&parts));
        let has_rest = rest.is_some();
        let answer = move |request: OpenRequest| async move {
            let _guard = BugGuard(&self.state);
            let running = RunningRequest::begin(&self.activity);
            let mut response = request.answer(self, parts, body, made).await;
            if let Some(rest) = rest {
                discard_rest(&rest, version, &mut response).await;
            }
            self.prepare(version, response).map(|body| ConnectionBody::new(body, running))
        };
        // Requests that wait for others count as well: a client may send many on one connection,
        // each with a long head.
        let mut reservation = self.state.answers.reservation(source);
        let limits = self.state.settings.current().limits.answers();
        if reservation.add(future_len(&answer) + head_len, limits.bytes).is_ok() {
            // The futures of requests are large, and this one is moved.
            let answered = Box::pin(answer(request));
            return ResponseFuture::Later { answered, _reservation: reservation };
        }
        let mut response = request.refuse(self);
        if has_rest && version < Version::HTTP_2 {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        self.at_once(version, response, now)
    }

    /// An answer that nothing waits for.
    fn at_once(&self, version: Version, response: GatewayResponse, now: Instant) -> ResponseFuture<'_> {
        self.activity.note_request(now);
        ResponseFuture::AtOnce(Some(self.prepare(version, response).map(ConnectionBody::whole)))
    }

    /// Adds what depends on the connection.
    fn prepare(&self, version: Version, mut response: GatewayResponse) -> GatewayResponse {
        self.end_if_handed_over(version, &mut response);
        // With HTTP/1.1, an answer waits when its connection does.
        if version == Version::HTTP_2
            && let Some(answer) = response.body().counted()
        {
            self.activity.answers.add(answer);
        }
        response
    }

    /// Ends a connection of HTTP/1.1 with this answer, if another process has taken over: the
    /// client connects to that one. HTTP/2 has a frame for it.
    fn end_if_handed_over<B>(&self, version: Version, response: &mut Response<B>) {
        if version < Version::HTTP_2 && self.state.is_handed_over() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }

    fn header_timeout(&self) -> Duration {
        Duration::from_millis(self.settings.limits.header_ms.into())
    }
}

/// Bytes of the future that `make` returns.
const fn future_len<A, F>(_make: &impl FnOnce(A) -> F) -> usize {
    size_of::<F>()
}

/// Discards what is unread of the body of an answered request. If that is not possible, a
/// connection of HTTP/1.1 ends with the answer.
async fn discard_rest<B>(rest: &UnreadRest, version: Version, response: &mut Response<B>) {
    let is_http1 = version < Version::HTTP_2;
    let ends = is_http1 && response.headers().contains_key(header::CONNECTION);
    let is_late = response.status() == StatusCode::REQUEST_TIMEOUT;
    if !rest.discard(!ends && !is_late).await && is_http1 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
}

/// The response to a request.
enum ResponseFuture<'a> {
    /// A finished response; `None` once it has been taken.
    AtOnce(Option<Response<ConnectionBody>>),
    /// A response that is being made.
    Later {
        answered: Pin<Box<dyn Future<Output = Response<ConnectionBody>> + Send + 'a>>,
        /// What this takes.
        _reservation: SourcePermit,
    },
}

impl Future for ResponseFuture<'_> {
    type Output = Result<Response<ConnectionBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::AtOnce(response) => {
                response.take().map_or(Poll::Pending, |response| Poll::Ready(Ok(response)))
            }
            Self::Later { answered, .. } => answered.as_mut().poll(context).map(Ok),
        }
    }
}

/// Serves a connection until it ends.
///
/// # Errors
/// When it ends because of an error or a timeout.
pub async fn serve(
    stream: TcpStream,
    address: IpAddr,
    kind: ListenerKind,
    state: Arc<GatewayState>,
) -> Result<(), ConnectionError> {
    let settings = state.settings.current_shared();
    let is_trusted = state.settings.networks().trusted.contains(address);
    let is_proxied = is_trusted && settings.proxies.proxy_protocol;
    // A proxy has connections of many clients.
    let per_source = if is_trusted { usize::MAX } else { settings.limits.connections_per_source };
    // The total is limited by the permits of the workers.
    let limits = |per_source| PermitLimits { all: usize::MAX, per_holder: per_source };
    let take = |address, per_source| {
        let permit = state.connections.take(address, limits(per_source)).ok();
        if permit.is_none() {
            state.counters.connections_refused.add();
        }
        permit
    };
    let mut permit = take(address, per_source);
    if permit.is_none() {
        return Ok(());
    }
    // Without `TCP_NODELAY`, small answers wait for acknowledgements of the client.
    let _ = stream.set_nodelay(true);
    // What the kernel keeps for a client that does not read is in no bound of this process.
    let _ = SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_LEN);
    let header_timeout = Duration::from_millis(settings.limits.header_ms.into());
    let write_timeout = settings.limits.transfer_time();
    let closing = settings.limits.closing();
    let mut stream = ClientStream::new(stream, write_timeout, closing, state.phase());
    let client = match is_proxied {
        true => in_time(header_timeout, read_proxy_header(&mut stream)).await?,
        false => None,
    };
    if let Some(client) = client {
        permit = take(client, settings.limits.connections_per_source);
        if permit.is_none() {
            return Ok(());
        }
    }
    let start = ConnectionStart { state, settings, address: client.unwrap_or(address) };
    let ended = match kind {
        ListenerKind::Plain => start.serve(stream).await,
        ListenerKind::Certificates => start.serve_with_certificate(stream).await,
    };
    drop(permit);
    ended
}

/// A connection before its first byte.
struct ConnectionStart {
    state: Arc<GatewayState>,
    /// The settings now.
    settings: Arc<Config>,
    /// The client.
    address: IpAddr,
}

impl ConnectionStart {
    fn served(&self, is_tls: bool) -> ServedConnection {
        ServedConnection::new(Arc::clone(&self.state), Arc::clone(&self.settings), self.address, is_tls)
    }

    fn header_timeout(&self) -> Duration {
        Duration::from_millis(self.settings.limits.header_ms.into())
    }

    /// Serves a connection in the protocol that its first bytes show.
    async fn serve(self, mut stream: ClientStream) -> Result<(), ConnectionError> {
        let tls = self.state.tls.as_ref();
        let prelude = read_prelude(&mut stream, tls.is_some(), self.settings.http2.enabled);
        match (in_time(self.header_timeout(), prelude).await?, tls) {
            (ConnectionProtocol::Tls, Some(tls)) => {
                let Some(stream) = in_time(self.header_timeout(), tls.accept(stream)).await? else {
                    return Ok(());
                };
                match stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                    true => http2::serve(stream, Arc::new(self.served(true))).await,
                    false => http1::serve(stream, &self.served(true)).await,
                }
            }
            (ConnectionProtocol::Http2, _) => http2::serve(stream, Arc::new(self.served(false))).await,
            _ => http1::serve(stream, &self.served(false)).await,
        }
    }

    /// Serves a connection whose client may show a certificate.
    async fn serve_with_certificate(self, stream: ClientStream) -> Result<(), ConnectionError> {
        let Some(tls) = &self.state.tls else { return Ok(()) };
        let len_max = self.settings.tls.client_certificates.handshake_bytes;
        let handshake = tls.accept_certificate(stream, self.nonce(), len_max);
        let (stream, shown) = in_time(self.header_timeout(), handshake).await?;
        let mut served = self.served(true);
        // The certificate of a proxy is not that of the clients whose requests it sends.
        let shown = if served.is_trusted { ShownCertificate::OfProxy } else { shown };
        served.certificate = Some(Arc::new(ConnectionCertificate::new(Arc::clone(&self.state), shown)));
        http1::serve(stream, &served).await
    }

    /// A nonce for the handshake; `None` when `handle-admin` does not answer.
    async fn nonce(&self) -> Option<CallerNonce> {
        self.state.writing.admin.as_ref()?.callers()?.nonce().await
    }
}

/// Waits for a read at the start of a connection, at most `header_timeout`.
async fn in_time<T>(
    header_timeout: Duration,
    read: impl Future<Output = io::Result<T>>,
) -> Result<T, ConnectionError> {
    Ok(timeout(header_timeout, read).await.map_err(|_| ConnectionError::Late)??)
}

#[cfg(test)]
mod tests;
