//! Requests of this process to HTTP servers, plain or over TLS: a connection for each.

use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body, Bytes};
use hyper::client::conn::http1;
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A server that is asked over HTTP.
#[derive(Clone, Debug)]
pub struct HttpOrigin {
    /// Name or address.
    host: String,
    port: u16,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum OutboundError {
    /// The host is not a name or an address.
    Host(String),
    /// There is no connection.
    Connect(String, io::Error),
    /// The handshake of TLS failed.
    Handshake(String, io::Error),
    /// The answer is not HTTP, or the connection failed.
    Http(Box<dyn StdError + Send + Sync>),
    /// The body of the answer is too long.
    TooLong(usize),
}

impl fmt::Display for OutboundError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host) => write!(f, "{host:?} is not the name of a host"),
            Self::Connect(server, error) => write!(f, "cannot connect to {server}: {error}"),
            Self::Handshake(server, error) => write!(f, "cannot set up TLS with {server}: {error}"),
            Self::Http(error) => write!(f, "no valid answer over HTTP: {error}"),
            Self::TooLong(bytes_max) => write!(f, "the answer has more than {bytes_max} bytes"),
        }
    }
}

impl std::error::Error for OutboundError {}

impl HttpOrigin {
    /// The server of a URL whose host and port are these, over TLS with the configuration `tls`.
    ///
    /// # Errors
    /// When `host` cannot be the name in a certificate.
    pub fn new(host: &str, port: u16, tls: Option<Arc<ClientConfig>>) -> Result<Self, OutboundError> {
        let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let named = |tls| {
            let name = ServerName::try_from(host.to_owned());
            name.map(|name| (tls, name)).map_err(|_| OutboundError::Host(host.to_owned()))
        };
        Ok(Self { host: host.to_owned(), port, tls: tls.map(named).transpose()? })
    }

    /// The value of `Host`.
    #[must_use]
    pub fn authority(&self) -> String {
        let default_port = if self.tls.is_some() { 443 } else { 80 };
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == default_port { host } else { format!("{host}:{}", self.port) }
    }

    /// Sends a request, whose URL has a path only, and receives an answer whose body has at most
    /// `bytes_max` bytes. The caller limits the time.
    ///
    /// # Errors
    /// When there is no such answer.
    pub async fn exchange<B>(
        &self,
        mut request: Request<B>,
        bytes_max: usize,
    ) -> Result<Response<Bytes>, OutboundError>
    where
        B: Body + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let headers = request.headers_mut();
        let host = HeaderValue::from_str(&self.authority());
        headers.insert(header::HOST, host.map_err(|_| OutboundError::Host(self.host.clone()))?);
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        let server = || format!("{}:{}", self.host, self.port);
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
        let stream = stream.map_err(|error| OutboundError::Connect(server(), error))?;
        let Some((tls, name)) = &self.tls else { return exchange(stream, request, bytes_max).await };
        let stream = TlsConnector::from(Arc::clone(tls)).connect(name.clone(), stream).await;
        let stream = stream.map_err(|error| OutboundError::Handshake(server(), error))?;
        exchange(stream, request, bytes_max).await
    }
}

/// The path and query of a URL, as the target of a request.
#[must_use]
pub fn origin_form(url: &Uri) -> Uri {
    let path = url.path_and_query().cloned();
    path.map(Uri::from).unwrap_or_default()
}

async fn exchange<S, B>(
    stream: S,
    request: Request<B>,
    bytes_max: usize,
) -> Result<Response<Bytes>, OutboundError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Body + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let failed = |error: hyper::Error| OutboundError::Http(error.into());
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let answered = async {
        let (head, body) = sender.send_request(request).await.map_err(failed)?.into_parts();
        let body = Limited::new(body, bytes_max).collect().await.map_err(|error| {
            match error.is::<LengthLimitError>() {
                true => OutboundError::TooLong(bytes_max),
                false => OutboundError::Http(error),
            }
        })?;
        Ok(Response::from_parts(head, body.to_bytes()))
    };
    // The connection moves the bytes; it ends after the answer, or is dropped with it.
    tokio::pin!(connection);
    tokio::pin!(answered);
    let mut is_open = true;
    loop {
        tokio::select! {
            biased;
            answer = &mut answered => return answer,
            _ = &mut connection, if is_open => is_open = false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_a_request_has_its_port_unless_it_is_the_usual_one() {
        let authority = |host: &str, port| HttpOrigin::new(host, port, None).unwrap().authority();
        assert_eq!(authority("a.example", 80), "a.example");
        assert_eq!(authority("a.example", 443), "a.example:443");
        assert_eq!(authority("[2001:db8::1]", 8080), "[2001:db8::1]:8080");
        assert_eq!(origin_form(&"https://a.example/b/c?d=e".parse().unwrap()), "/b/c?d=e");
        assert_eq!(origin_form(&"https://a.example".parse().unwrap()), "/");
    }
}
