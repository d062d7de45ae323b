//! Why a connection has failed.

use std::fmt;
use std::io;

/// Why a connection has failed.
#[derive(Debug)]
pub enum ConnectionError {
    /// The first bytes, or the handshake of TLS, did not arrive in time.
    Late,
    /// Reading, writing or the handshake of TLS failed.
    Io(io::Error),
    /// The client broke the rules of HTTP.
    Http(hyper::Error),
    /// The head of a request did not arrive in time.
    HeadLate,
    /// The head of a request was too long.
    HeadTooLong,
    /// The client did not take bytes of an answer for too long.
    Stalled,
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late => f.write_str("the connection was not set up in time"),
            Self::Io(error) => error.fmt(f),
            Self::Http(error) => error.fmt(f),
            Self::HeadLate => f.write_str("the head of a request did not arrive in time"),
            Self::HeadTooLong => f.write_str("the head of a request is too long"),
            Self::Stalled => f.write_str("the client did not read an answer in time"),
        }
    }
}

impl std::error::Error for ConnectionError {}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<hyper::Error> for ConnectionError {
    fn from(error: hyper::Error) -> Self {
        Self::Http(error)
    }
}
