//! Why a lookup came to nothing: which step failed, and what may be done about it.

use crate::administration::AskError;
use crate::exchange::AttemptError;
use handle_proto::{Handle, ResponseCode, Version};
use std::fmt;
use std::net::SocketAddr;

/// Why a lookup came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LookupError {
    /// The global service is not known.
    NoRoot,
    /// No service is named for a handle.
    NoService {
        /// The record that should name it.
        record: Vec<u8>,
        /// What came of asking for that record, if that is the reason.
        code: Option<ResponseCode>,
    },
    /// A service is known, but none of its servers can be asked from here for this.
    NoServer {
        /// The handle that is asked for.
        handle: Vec<u8>,
    },
    /// Every server that could be asked failed.
    AllFailed {
        /// The handle that was asked for.
        handle: Vec<u8>,
        /// How many requests were made.
        attempts: usize,
        /// Which server was asked last,
        server: SocketAddr,
        /// and why its answer is none.
        last: AttemptError,
    },
    /// To find the service of a prefix, that service would have to be known.
    Circle {
        /// The prefix record.
        record: Vec<u8>,
    },
    /// One record leads to the next, and no end comes.
    TooManyIndirections {
        /// The last of them.
        handle: Vec<u8>,
    },
    /// More requests were made than one lookup may make.
    TooManyRequests,
    /// It took longer than one lookup may take.
    TooSlow {
        /// The handle that was asked for.
        handle: Vec<u8>,
    },
    /// The challenge could not be answered.
    Challenge(&'static str),
    /// The challenge is of a version below 2.7, and would be answered with a plain digest of the secret.
    OldProof(Version),
}

impl LookupError {
    /// Whether the service of `handle` was found, and only its servers did not answer.
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
                write!(f, "there is no record {}, so nobody has such handles: is the prefix right?", Handle(record))
            }
            Self::NoService { record, code: Some(code) } => {
                write!(f, "asking for {} came to {} {code}, so the service is not known", Handle(record), code.0)
            }
            Self::NoService { record, code: None } => {
                write!(f, "{} names no site that can be used, so the service is not known", Handle(record))
            }
            Self::NoServer { handle } => write!(
                f,
                "no server that is responsible for {} can be asked from here: does it want another protocol, \
                 address family, or a primary site?",
                Handle(handle)
            ),
            Self::AllFailed { handle, attempts, server, last } => write!(
                f,
                "none of {attempts} attempts to ask for {} succeeded; the last, at {server}: {last}",
                Handle(handle)
            ),
            Self::Circle { record } => {
                write!(f, "to find the service of {}, it would have to be known", Handle(record))
            }
            Self::TooManyIndirections { handle } => {
                write!(f, "one record leads to the next without an end; the last is {}", Handle(handle))
            }
            Self::TooManyRequests => f.write_str("more requests would be needed than one lookup may make"),
            Self::TooSlow { handle } => {
                write!(f, "it took too long; {} was being asked for", Handle(handle))
            }
            Self::OldProof(version) => AskError::OldProof(*version).fmt(f),
            Self::Challenge(what) => write!(f, "the server wants to know who asks, and {what}"),
        }
    }
}

impl std::error::Error for LookupError {}
