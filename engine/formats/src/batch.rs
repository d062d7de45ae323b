//! Batch files: operations as text, in the grammar of the reference tools, with a line number for whatever is
//! wrong with them.
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
//! Read more kindly than by the reference, whose files all mean the same here: tabs separate, lines of blanks end
//! a block, lines with `#` between blocks are comments, and a line that begins with an operation ends a block as
//! an empty one does, since lines of values begin with a digit.

mod read;
mod value;

use handle_proto::Handle;
pub use read::BatchReader;
use std::fmt;
pub use value::{BatchValue, ValueContent};
use zeroize::Zeroizing;

/// Most values in one block: no server takes more.
pub const VALUES_COUNT_MAX: usize = handle_proto::limit::VALUES_COUNT_MAX;
/// Most prefixes in one block of HOME or UNHOME, and most indexes of one REMOVE.
pub const NAMES_COUNT_MAX: usize = 2048;

/// A value by index and handle, as `300:10.1045/ADMIN`.
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
    /// What is to be done.
    pub operation: BatchOperation,
}

/// What a block wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchOperation {
    /// Create a handle with these values.
    Create(String, Vec<BatchValue>),
    /// Add these values to a handle.
    Add(String, Vec<BatchValue>),
    /// Replace these values of a handle.
    Modify(String, Vec<BatchValue>),
    /// Delete a handle.
    Delete(String),
    /// Remove the values with these indexes from a handle.
    Remove(String, Vec<i32>),
    /// Take prefixes into a server's care, or release them.
    Home(HomeBlock),
    /// From here on, this identity asks.
    Authenticate(AuthenticationBlock),
    /// From here on, sessions are used like this.
    Session(SessionBlock),
}

impl BatchOperation {
    /// The word it begins with, in lower case.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Create(..) => "create",
            Self::Add(..) => "add",
            Self::Modify(..) => "modify",
            Self::Delete(_) => "delete",
            Self::Remove(..) => "remove",
            Self::Home(home) => home.word(),
            Self::Authenticate(_) => "authenticate",
            Self::Session(_) => "sessionsetup",
        }
    }

    /// The handle it is about, if it is about one.
    #[must_use]
    pub fn handle(&self) -> Option<&str> {
        match self {
            Self::Create(handle, _)
            | Self::Add(handle, _)
            | Self::Modify(handle, _)
            | Self::Delete(handle)
            | Self::Remove(handle, _) => Some(handle),
            Self::Home(_) | Self::Authenticate(_) | Self::Session(_) => None,
        }
    }
}

/// Prefixes, and the server to tell about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HomeBlock {
    /// Whether they are to be released instead of taken.
    pub is_release: bool,
    /// The host, an address or a name.
    pub address: String,
    /// Its port.
    pub port: u16,
    /// How to reach it: TCP, UDP or HTTP, in upper case.
    pub protocol: String,
    /// The prefix handles, as `0.NA/10.1045`.
    pub prefixes: Vec<String>,
}

impl HomeBlock {
    const fn word(&self) -> &'static str {
        if self.is_release { "unhome" } else { "home" }
    }
}

/// Who asks, and where the proof is.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthenticationBlock {
    /// The value that holds the key.
    pub identity: ValueReference,
    /// The proof.
    pub proof: BatchProof,
}

/// What proves an identity.
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

/// Whether and how sessions are used. The keys for exchanging keys, which the reference can be given, are read and
/// kept out: no deployed server uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SessionBlock {
    /// `USESESSION`.
    pub is_used: bool,
    /// `OPTIONS`, first bit.
    pub is_encrypted: bool,
    /// `OPTIONS`, second bit.
    pub is_authenticated: bool,
    /// `OPTIONS`, third bit: to go on without a session when there is none.
    pub falls_back: bool,
    /// `TIMEOUT`.
    pub timeout_hours: Option<u32>,
    /// Whether a key for the exchange was named.
    pub names_exchange_key: bool,
}

/// A block that means nothing, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidBlock {
    /// Number of the line that is wrong, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub problem: LineProblem,
}

impl fmt::Display for InvalidBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.problem)
    }
}

impl std::error::Error for InvalidBlock {}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LineProblem {
    /// Not UTF-8.
    NotUtf8,
    /// Longer than [`LINE_LEN_MAX`](crate::LINE_LEN_MAX).
    TooLong,
    /// A block begins with something else than an operation.
    NoOperation(String),
    /// Something else than an operation behind a block with secrets; it may be one.
    BehindSecrets,
    /// An operation without its handle, or whatever else belongs to it.
    Missing(&'static str),
    /// Something that is not a handle.
    NoHandle(String),
    /// Something that is not a number of 32 bits, or one below the least.
    NoNumber(&'static str, String),
    /// Four permissions are not four times 0 or 1.
    Permissions(String),
    /// The twelve permissions of an administrator where the four of a value belong.
    AdminPermissions(String),
    /// The permissions of an administrator are not twelve times 0 or 1.
    NotTwelve(String),
    /// A kind of data that is not known.
    NoFormat(String),
    /// More than there may be.
    TooMany(&'static str, usize),
    /// A word of a session, of an authentication or of a protocol that is not known.
    Unknown(&'static str, String),
    /// Two lines that exclude each other.
    Both(&'static str, &'static str),
}

impl fmt::Display for LineProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotUtf8 => f.write_str("not UTF-8"),
            Self::TooLong => write!(f, "longer than {} bytes", crate::LINE_LEN_MAX),
            Self::NoOperation(word) => write!(
                f,
                "{word:?} is no operation: CREATE, ADD, MODIFY, DELETE, REMOVE, HOME, UNHOME, AUTHENTICATE or \
                 SESSIONSETUP begins a block"
            ),
            Self::BehindSecrets => f.write_str(
                "this is no operation, and is not shown because it may be a secret: a secret stands in the line behind \
                 AUTHENTICATE",
            ),
            Self::Missing(what) => write!(f, "{what} is missing"),
            Self::NoHandle(text) => write!(f, "{text:?} is no handle"),
            Self::NoNumber(what, text) => write!(f, "the {what} {text:?} is no number that it may have"),
            Self::Permissions(text) => write!(
                f,
                "the permissions {text:?} are not four times 0 or 1 (administrators read, administrators write, \
                 everybody reads, everybody writes)"
            ),
            Self::AdminPermissions(text) => write!(
                f,
                "the permissions {text:?} are the twelve of an administrator; here stand the four of the value, as \
                 1110, and the twelve belong behind ADMIN"
            ),
            Self::NotTwelve(text) => {
                write!(f, "the permissions of an administrator {text:?} are not twelve times 0 or 1")
            }
            Self::NoFormat(word) => {
                write!(f, "{word:?} is no kind of data: UTF8, FILE, ADMIN or LIST stand in front of it")
            }
            Self::TooMany(what, most) => write!(f, "more than {most} {what}"),
            Self::Unknown(what, text) => write!(f, "{text:?} is no {what}"),
            Self::Both(first, second) => write!(f, "{first} and {second} exclude each other"),
        }
    }
}

#[cfg(test)]
mod tests;
