//! What requests travel in: datagrams, or connections with a protocol on them.

use std::fmt;
use std::str::FromStr;

/// The transport of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamTransport {
    /// Datagrams, alone or in trains if the kernel supports them.
    Udp {
        /// In trains.
        trains: bool,
    },
    /// Connections.
    Stream(Streams),
}

impl fmt::Display for StreamTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Udp { trains: false } => "udp",
            Self::Udp { trains: true } => "udp-trains",
            Self::Stream(streams) => match streams.protocol {
                Protocol::Tcp => "tcp",
                Protocol::Http => "http",
                Protocol::Json => "http-json",
                Protocol::Redirect => "http-redirect",
            },
        })
    }
}

impl FromStr for StreamTransport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let stream = |protocol| Ok(Self::Stream(Streams::pooled(protocol)));
        match text {
            "udp" => Ok(Self::Udp { trains: false }),
            "udp-trains" => Ok(Self::Udp { trains: true }),
            "tcp" => stream(Protocol::Tcp),
            "http" => stream(Protocol::Http),
            "http-json" => stream(Protocol::Json),
            "http-redirect" => stream(Protocol::Redirect),
            _ => Err("expected udp, udp-trains, tcp, http, http-json or http-redirect".to_owned()),
        }
    }
}

/// How requests are distributed over connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streams {
    /// The protocol.
    pub protocol: Protocol,
    /// The version of HTTP, for protocols over HTTP.
    pub version: HttpVersion,
    /// Maximum number of connections of each thread.
    pub connections: usize,
    /// Maximum number of pending requests on a connection.
    pub pipeline: usize,
    /// Maximum number of requests on a connection; 0 for no limit.
    pub requests: u32,
}

impl Streams {
    /// Maximum number of connections of one thread.
    pub const CONNECTIONS_MAX: usize = 10_000;
    /// Maximum number of pending requests on a connection.
    pub const PIPELINE_MAX: usize = 1024;

    /// A pool that keeps its connections, with one pending request on each.
    #[must_use]
    pub const fn pooled(protocol: Protocol) -> Self {
        Self { protocol, version: HttpVersion::Http1, connections: 16, pipeline: 1, requests: 0 }
    }

    /// Whether connections carry more than one request.
    #[must_use]
    pub const fn keeps(&self) -> bool {
        self.requests != 1
    }
}

/// The protocol on connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The handle protocol.
    Tcp,
    /// The handle protocol in bodies of HTTP requests (POST).
    Http,
    /// The JSON API over HTTP (GET).
    Json,
    /// The redirects of a proxy (GET).
    Redirect,
}

/// The version of HTTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2; without TLS, the server must accept it without negotiation.
    Http2,
}

impl HttpVersion {
    /// The name of the version in TLS (RFC 7301).
    pub(crate) const fn alpn(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }
}

impl fmt::Display for HttpVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http1 => "1.1",
            Self::Http2 => "2",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_parse_as_printed() {
        for text in ["udp", "udp-trains", "tcp", "http", "http-json", "http-redirect"] {
            assert_eq!(text.parse::<StreamTransport>().unwrap().to_string(), text);
        }
        assert!("sctp".parse::<StreamTransport>().is_err());
    }
}
