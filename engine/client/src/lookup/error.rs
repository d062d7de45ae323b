//! Why a lookup failed: the failed step, and the next thing to try.

use crate::administration::AskError;
use crate::exchange::AttemptError;
use handle_proto::{Handle, ResponseCode, Version};
use std::fmt;
use std::net::SocketAddr;

/// Why a lookup failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LookupError {
    /// The global service is not known.
    NoRoot,
    /// No service is known for a handle.
    NoService {
        /// The record that should name the service.
        record: Vec<u8>,
        /// The response code for that record, if that is the reason.
        code: Option<ResponseCode>,
    },
    /// A service is known, but none of its servers can be asked for this purpose.
    NoServer {
        /// The handle of the question.
        handle: Vec<u8>,
    },
    /// All servers failed.
    AllFailed {
        /// The handle of the question.
        handle: Vec<u8>,
        /// Number of requests.
        attempts: usize,
        /// The server that was asked last.
        server: SocketAddr,
        /// Its failure.
        last: AttemptError,
    },
    /// Finding the service of a prefix requires that same service.
    Circle {
        /// The prefix record.
        record: Vec<u8>,
    },
    /// Records lead from one to the next beyond the limit.
    TooManyIndirections {
        /// The last of them.
        handle: Vec<u8>,
    },
    /// The limit of requests of one lookup is reached.
    TooManyRequests,
    /// The time limit of one lookup is reached.
    TooSlow {
        /// The handle of the question.
        handle: Vec<u8>,
    },
    /// The challenge could not be answered.
    Challenge(&'static str),
    /// The version of the challenge is below 2.7, so that its answer would be a plain digest of the
    /// secret.
    OldProof(Version),
}

impl LookupError {
    /// Whether the service of `handle` was found, and its servers did not answer.
    #[must_use]
    pub fn is_of_the_servers_of(&self, handle: &[u8]) -> bool {
        match self {
            Self::AllFailed { handle: of, .. }
            | Self::NoServer { handle: of }
            | Self::TooSlow { handle: of } => of == handle,
            _ => false,
        }
    }
}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoot => f.write_str(
                "the global service is not known: name a file of its sites (bootstrap_handles), or a server to ask",
            ),
            Self::NoService { record, code: Some(ResponseCode::HANDLE_NOT_FOUND) } => {
                write!(f, "there is no record {}, so the prefix does not exist: check its spelling", Handle(record))
            }
            Self::NoService { record, code: Some(code) } => {
                write!(f, "cannot find the service: resolving {} gave {} {code}", Handle(record), code.0)
            }
            Self::NoService { record, code: None } => {
                write!(f, "cannot find the service: {} names no usable site", Handle(record))
            }
            Self::NoServer { handle } => write!(
                f,
                "no server that is responsible for {} is reachable from here: does it need another protocol, \
                 address family, or a primary site?",
                Handle(handle)
            ),
            Self::AllFailed { handle, attempts, server, last } => write!(
                f,
                "none of {attempts} attempts to resolve {} succeeded; the last, at {server}: {last}",
                Handle(handle)
            ),
            Self::Circle { record } => {
                write!(f, "cannot find the service of {}: finding it requires the service itself", Handle(record))
            }
            Self::TooManyIndirections { handle } => {
                write!(f, "too many indirections: the last record is {}", Handle(handle))
            }
            Self::TooManyRequests => f.write_str("the lookup needs more requests than its limit"),
            Self::TooSlow { handle } => {
                write!(f, "the lookup took too long while resolving {}", Handle(handle))
            }
            Self::OldProof(version) => AskError::OldProof(*version).fmt(f),
            Self::Challenge(what) => write!(f, "cannot authenticate to the server: {what}"),
        }
    }
}

impl std::error::Error for LookupError {}
