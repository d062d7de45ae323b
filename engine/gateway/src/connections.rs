//! Connections, from their first bytes to their end.
//!
//! - [`prelude`]: which protocols a connection speaks: TLS by its first byte, HTTP/2 by its preface
//!   or by what was negotiated in the handshake, else HTTP/1.1.
//! - [`http1`], [`http2`]: hyper, with the timeouts and the limits of a connection around it.
//! - [`stream`]: the streams below them.
//! - [`body`]: the bodies of responses.
//! - [`activity`]: what these tell each other about the requests of a connection.

pub mod activity;
pub mod body;
pub mod http1;
pub mod http2;
pub mod prelude;
pub mod stream;

use crate::admission;
use crate::config::Config;
use crate::route::HttpPeer;
use crate::server::GatewayState;
use activity::{ConnectionActivity, RunningRequest};
use body::ConnectionBody;
use hyper::body::Incoming;
use hyper::{Request, Response};
use prelude::{ConnectionProtocol, read_prelude};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use stream::ClientStream;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

/// Why a connection has ended before its time.
#[derive(Debug)]
pub enum ConnectionError {
    /// The first bytes, or the handshake of TLS, did not arrive in time.
    Late,
    /// Reading, writing or the handshake of TLS failed.
    Io(std::io::Error),
    /// The client broke the rules of HTTP.
    Http(hyper::Error),
    /// The head of a request did not arrive in time.
    HeadLate,
    /// The head of a request was too long.
    HeadTooLong,
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late => f.write_str("the connection was not set up in time"),
            Self::Io(error) => error.fmt(f),
            Self::Http(error) => error.fmt(f),
            Self::HeadLate => f.write_str("the head of a request did not arrive in time"),
            Self::HeadTooLong => f.write_str("the head of a request is too long"),
        }
    }
}

impl std::error::Error for ConnectionError {}

impl From<std::io::Error> for ConnectionError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<hyper::Error> for ConnectionError {
    fn from(error: hyper::Error) -> Self {
        Self::Http(error)
    }
}

/// A connection that is ready for requests.
#[derive(Debug)]
pub struct ServedConnection {
    /// State shared by all parts.
    pub state: Arc<GatewayState>,
    /// The settings at its start.
    pub settings: Arc<Config>,
    /// The client.
    pub peer: HttpPeer,
    /// Its requests.
    pub activity: Arc<ConnectionActivity>,
}

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
        Self { state, settings, peer: HttpPeer { address, is_tls }, activity }
    }

    /// Answers a request.
    async fn answer(&self, request: Request<Incoming>) -> Response<ConnectionBody> {
        let _guard = BugGuard(&self.state);
        let running = RunningRequest::begin(&self.activity);
        admission::answer(self, request).await.map(|body| ConnectionBody::new(body, running))
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(self.settings.limits.header_ms.into())
    }
}

/// Serves a connection until it ends.
///
/// # Errors
/// When it ends because of an error or a timeout.
pub async fn serve(
    stream: TcpStream,
    address: IpAddr,
    state: Arc<GatewayState>,
    stopping: watch::Receiver<bool>,
) -> Result<(), ConnectionError> {
    let settings = state.settings.current_shared();
    // Without it, small answers wait for the client's acknowledgements.
    let _ = stream.set_nodelay(true);
    let patience = Duration::from_millis(settings.limits.header_ms.into());
    let write_patience = Duration::from_millis(settings.limits.write_ms.into());
    let begin = async {
        let mut stream = ClientStream::new(stream, write_patience);
        let protocol = read_prelude(&mut stream, state.tls.is_some(), settings.http2.enabled).await?;
        Ok::<_, std::io::Error>((stream, protocol))
    };
    let (stream, protocol) = timeout(patience, begin).await.map_err(|_| ConnectionError::Late)??;
    let served = |is_tls| ServedConnection::new(Arc::clone(&state), Arc::clone(&settings), address, is_tls);
    match (protocol, &state.tls) {
        (ConnectionProtocol::Tls, Some(tls)) => {
            let accepted = timeout(patience, tls.acceptor().accept(stream)).await;
            let stream = accepted.map_err(|_| ConnectionError::Late)??;
            match stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                true => http2::serve(stream, Arc::new(served(true)), stopping).await,
                false => http1::serve(stream, &served(true), stopping).await,
            }
        }
        (ConnectionProtocol::Http2, _) => http2::serve(stream, Arc::new(served(false)), stopping).await,
        _ => http1::serve(stream, &served(false), stopping).await,
    }
}

/// Waits until the process is told to stop.
async fn until_told_to_stop(mut stopping: watch::Receiver<bool>) {
    // An error means that the process is gone.
    drop(stopping.wait_for(|&stops| stops).await);
}
