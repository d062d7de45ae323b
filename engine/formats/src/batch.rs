//! Batch files: operations as text, in the grammar of the reference tools. Errors have line
//! numbers.
//!
//! ```text
//! AUTHENTICATE PUBKEY:300:10.1045/ADMIN
//! admpriv.bin
//!
//! CREATE 10.1045/new
//! 1 URL 86400 1110 UTF8 https://example.org/
//! 100 HS_ADMIN 86400 1110 ADMIN 300:111111111111:10.1045/ADMIN
//!
//! DELETE 10.1045/old
//! ```
//!
//! All files of the reference mean the same here, but this reader accepts more: tabs separate
//! fields, lines of blanks end a block, lines with `#` between blocks are comments, and a line that
//! begins with an operation ends a block as an empty one does, since lines of values begin with a
//! digit.

mod read;
mod value;

use handle_proto::Handle;
pub use read::{BatchReader, is_operation};
use std::fmt;
pub use value::{BatchValue, ValueContent};
use zeroize::Zeroizing;

/// Most values in one block, because no server accepts more.
pub const VALUES_COUNT_MAX: usize = handle_proto::limit::VALUES_COUNT_MAX;
/// Most prefixes in one block of HOME or UNHOME, and most indexes of one REMOVE.
pub const NAMES_COUNT_MAX: usize = 2048;

/// A reference to a value, as `300:10.1045/ADMIN`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueReference {
    /// Index of the value.
    pub index: i32,
    /// Its handle.
    pub handle: String,
}

/// One block of a batch file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchBlock {
    /// Number of its first line, from 1.
    pub line: u64,
    /// Its operation.
    pub operation: BatchOperation,
}

/// The operation of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchOperation {
    /// Create a handle with these values.
    Create(String, Vec<BatchValue>),
    /// Create a handle with these values, or replace its record. Batch files have no word for it.
    Replace(String, Vec<BatchValue>),
    /// Add these values to a handle.
    Add(String, Vec<BatchValue>),
    /// Replace these values of a handle.
    Modify(String, Vec<BatchValue>),
    /// Delete a handle.
    Delete(String),
    /// Remove the values with these indexes from a handle.
    Remove(String, Vec<i32>),
    /// Home prefixes at a server, or unhome them.
    Home(HomeBlock),
    /// Use this identity from here on.
    Authenticate(AuthenticationBlock),
    /// Use sessions in this way from here on.
    Session(SessionBlock),
}

impl BatchOperation {
    /// The word that the block begins with, in lower case.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Create(..) => "create",
            Self::Replace(..) => "replace",
            Self::Add(..) => "add",
            Self::Modify(..) => "modify",
            Self::Delete(_) => "delete",
            Self::Remove(..) => "remove",
            Self::Home(home) => home.word(),
            Self::Authenticate(_) => "authenticate",
            Self::Session(_) => "sessionsetup",
        }
    }

    /// The handle of the operation, if it has one.
    #[must_use]
    pub fn handle(&self) -> Option<&str> {
        match self {
            Self::Create(handle, _)
            | Self::Replace(handle, _)
            | Self::Add(handle, _)
            | Self::Modify(handle, _)
            | Self::Delete(handle)
            | Self::Remove(handle, _) => Some(handle),
            Self::Home(_) | Self::Authenticate(_) | Self::Session(_) => None,
        }
    }
}

/// Prefixes, and the server that homes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HomeBlock {
    /// Whether they are unhomed instead of homed.
    pub is_release: bool,
    /// The host, an address or a name.
    pub address: String,
    /// Its port.
    pub port: u16,
    /// The protocol: TCP, UDP or HTTP, in upper case.
    pub protocol: String,
    /// The prefix handles, as `0.NA/10.1045`.
    pub prefixes: Vec<String>,
}

impl HomeBlock {
    const fn word(&self) -> &'static str {
        if self.is_release { "unhome" } else { "home" }
    }
}

/// An identity, and where its key is.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthenticationBlock {
    /// The reference to the value with the key.
    pub identity: ValueReference,
    /// The key.
    pub proof: BatchProof,
}

/// The key of an identity.
#[derive(Clone, PartialEq, Eq)]
pub enum BatchProof {
    /// The secret itself.
    Secret(Zeroizing<String>),
    /// A private key file, and its passphrase.
    KeyFile(String, Option<Zeroizing<String>>),
}

impl fmt::Debug for AuthenticationBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.proof {
            BatchProof::Secret(_) => "a secret",
            BatchProof::KeyFile(..) => "a key file",
        };
        write!(f, "{}:{} with {kind}", self.identity.index, Handle(self.identity.handle.as_bytes()))
    }
}

/// Whether and how sessions are used. The keys for key exchange that the reference accepts are
/// parsed and dropped, because no deployed server uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SessionBlock {
    /// `USESESSION`.
    pub is_used: bool,
    /// `OPTIONS`, first bit.
    pub is_encrypted: bool,
    /// `OPTIONS`, second bit.
    pub is_authenticated: bool,
    /// `OPTIONS`, third bit: continue without a session if none can be set up.
    pub falls_back: bool,
    /// `TIMEOUT`.
    pub timeout_hours: Option<u32>,
    /// Whether a key for the exchange is named.
    pub names_exchange_key: bool,
}

/// An invalid block, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidBlock {
    /// Number of the invalid line, from 1.
    pub line: u64,
    /// The problem of the line.
    pub problem: LineProblem,
}

impl fmt::Display for InvalidBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.problem)
    }
}

impl std::error::Error for InvalidBlock {}

/// The problem of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LineProblem {
    /// Not UTF-8.
    NotUtf8,
    /// Longer than [`LINE_LEN_MAX`](crate::LINE_LEN_MAX).
    TooLong,
    /// The lines of a block are longer than this together.
    BlockTooLong(usize),
    /// A block begins with something other than an operation.
    NoOperation(String),
    /// A line after a block with secrets is not an operation. It may be a secret, so it is not
    /// shown.
    BehindSecrets,
    /// An operation without its handle, or without another required part.
    Missing(&'static str),
    /// Not a handle.
    NoHandle(String),
    /// Not a number of 32 bits, or below the minimum.
    NoNumber(&'static str, String),
    /// Value permissions are not four digits 0 or 1.
    Permissions(String),
    /// Administrator permissions (twelve digits) in place of value permissions (four digits).
    AdminPermissions(String),
    /// Administrator permissions are not twelve digits 0 or 1.
    NotTwelve(String),
    /// An unknown kind of data.
    NoFormat(String),
    /// More items than allowed.
    TooMany(&'static str, usize),
    /// An unknown word for a session, an authentication or a protocol.
    Unknown(&'static str, String),
    /// In a file of records, why there is none.
    NoRecord(String),
    /// Two lines that exclude each other.
    Both(&'static str, &'static str),
}

impl fmt::Display for LineProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotUtf8 => f.write_str("not UTF-8"),
            Self::TooLong => write!(f, "longer than {} bytes", crate::LINE_LEN_MAX),
            Self::BlockTooLong(len_max) => write!(f, "a block is longer than {len_max} bytes"),
            Self::NoOperation(word) => write!(
                f,
                "{word:?} is not an operation: CREATE, ADD, MODIFY, DELETE, REMOVE, HOME, UNHOME, AUTHENTICATE or \
                 SESSIONSETUP begins a block"
            ),
            Self::BehindSecrets => f.write_str(
                "not an operation (the line is not shown because it may be a secret): put a secret on the line after \
                 AUTHENTICATE",
            ),
            Self::Missing(what) => write!(f, "{what} is missing"),
            Self::NoHandle(text) => write!(f, "{text:?} is not a handle: expected PREFIX/SUFFIX"),
            Self::NoNumber(what, text) => write!(f, "invalid {what} {text:?}: expected a number in its range"),
            Self::Permissions(text) => write!(
                f,
                "the permissions {text:?} are not four digits 0 or 1 (administrators read, administrators write, \
                 public reads, public writes)"
            ),
            Self::AdminPermissions(text) => write!(
                f,
                "the permissions {text:?} are those of an administrator; expected the four digits of the value, as \
                 1110; the twelve digits belong after ADMIN"
            ),
            Self::NotTwelve(text) => {
                write!(f, "the permissions of an administrator {text:?} are not twelve digits 0 or 1")
            }
            Self::NoFormat(word) => {
                write!(f, "unknown kind of data {word:?}: expected UTF8, FILE, ADMIN or LIST before the data")
            }
            Self::TooMany(what, most) => write!(f, "more than {most} {what}"),
            Self::Unknown(what, text) => write!(f, "{text:?} is not a valid {what}"),
            Self::NoRecord(why) => f.write_str(why),
            Self::Both(first, second) => write!(f, "{first} and {second} exclude each other"),
        }
    }
}

#[cfg(test)]
mod tests;
