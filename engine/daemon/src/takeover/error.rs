//! Errors of taking sockets over.

use super::descriptors::SocketKind;
use rustix::net::SocketType;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// An error of taking over from another process, which continues to serve.
#[derive(Debug)]
pub enum TakeoverError {
    /// The control socket cannot be reached.
    Connect(PathBuf, io::Error),
    /// The process behind the control socket belongs to another user, with this id.
    OtherUser(PathBuf, u32),
    /// The process with this number did not hand its sockets over.
    Offer(i32, OfferError),
    /// The process with this number has handed its sockets over, but does not stop.
    Completion(i32, OfferError),
}

/// An error in the exchange with the other process.
#[derive(Debug)]
pub enum OfferError {
    /// The connection failed.
    Io(io::Error),
    /// An answer cannot be parsed.
    Answer(serde_json::Error),
    /// The line is longer than a list of sockets can be.
    LongLine,
    /// The other process refuses, for this reason.
    Refused(String),
    /// The other process runs another program than this one.
    OtherProgram {
        /// The program of the other process.
        other: String,
        /// The program of this process.
        own: String,
    },
    /// The connection was closed before all sockets were received.
    Closed,
    /// This process may not open as many files.
    TooManyFiles,
    /// The number of sockets is not as announced.
    SocketCount,
    /// The socket announced for this address is of another type.
    OtherType(SocketAddr, SocketKind, SocketType),
    /// The socket announced for the first address is bound to the second.
    OtherAddress(SocketAddr, SocketAddr),
}

impl fmt::Display for TakeoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(path, error) => write!(f, "cannot reach {}: {error}", path.display()),
            Self::OtherUser(path, uid) => write!(
                f,
                "{} belongs to another user (uid {uid}): refusing to take over from it",
                path.display()
            ),
            Self::Offer(pid, error) => write!(f, "cannot take over from process {pid}: {error}"),
            Self::Completion(pid, error) => {
                write!(f, "process {pid} does not complete the takeover: {error}")
            }
        }
    }
}

impl std::error::Error for TakeoverError {}

impl fmt::Display for OfferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "the connection failed: {error}"),
            Self::Answer(error) => write!(f, "cannot parse its answer: {error}"),
            Self::LongLine => f.write_str("the line is too long"),
            Self::Refused(reason) => f.write_str(reason),
            Self::OtherProgram { other, own } => write!(f, "it runs {other}, and this is {own}"),
            Self::Closed => f.write_str("the other process closed the connection"),
            Self::TooManyFiles => {
                f.write_str("not all sockets could be taken: are too many files open? (ulimit -n)")
            }
            Self::SocketCount => f.write_str("the number of sockets is not as announced"),
            Self::OtherType(address, kind, found) => {
                write!(f, "the socket for {address} is not a {kind:?} socket but {found:?}")
            }
            Self::OtherAddress(announced, found) => {
                write!(f, "the socket for {announced} is bound to {found}")
            }
        }
    }
}

impl std::error::Error for OfferError {}

impl From<io::Error> for OfferError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<rustix::io::Errno> for OfferError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}

impl From<serde_json::Error> for OfferError {
    fn from(error: serde_json::Error) -> Self {
        Self::Answer(error)
    }
}
