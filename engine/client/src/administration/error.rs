//! Why a request got no answer that counts, and why there is no session to send it in.

use handle_auth::{SignError, VerifyError};
use handle_proto::wire::message::MessageTooLong;
use handle_proto::{DecodeError, ResponseCode, Version};
use std::{fmt, io};

/// Why there is no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum AskError {
    /// No connection comes about.
    Connect(io::Error),
    /// The connection was lost while the request was on its way or its answer was waited for.
    Lost(io::Error),
    /// No answer within the patience of the client.
    Late,
    /// What came is no message.
    Undecodable(DecodeError),
    /// What came is no answer to this request.
    Another(&'static str),
    /// The session is over or has seen the request before, as somebody says who need not be the server.
    Rejected(ResponseCode),
    /// The server's key is required, and a refusal came that is not signed with it: anybody on the way can have said it.
    UnprovenRefusal {
        /// The code of the refusal.
        code: ResponseCode,
        /// Its text; may be empty.
        text: String,
    },
    /// The challenge is one to another request, or the answer is not signed by the key of the server.
    Unproven(VerifyError),
    /// The challenge could not be answered.
    Unsigned(SignError),
    /// The challenge is of a version below 2.7, and would be answered with a plain digest of the secret.
    OldProof(Version),
    /// The server asks who asks, and there is no identity.
    WhoAsks,
    /// The request is longer than a message may be.
    TooLong(MessageTooLong),
    /// The request is sent in a session only, and there is none. Nothing was sent.
    NoSession {
        /// Why there is no session.
        why: SessionFailure,
        /// Whether the request has secrets or values that are not public.
        has_secrets: bool,
    },
}

impl AskError {
    /// Whether the server may have done what was asked all the same.
    #[must_use]
    pub const fn is_in_doubt(&self) -> bool {
        matches!(
            self,
            Self::Lost(_)
                | Self::Late
                | Self::Undecodable(_)
                | Self::Another(_)
                | Self::Rejected(_)
                | Self::UnprovenRefusal { .. }
        )
    }
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "cannot connect: {error}"),
            Self::Lost(error) => write!(f, "the connection was lost before the answer came: {error}"),
            Self::Late => f.write_str("no answer in time"),
            Self::Undecodable(error) => write!(f, "the answer does not decode: {error}"),
            Self::Another(what) => write!(f, "the answer is not one to this request: {what}"),
            Self::Rejected(code) => write!(f, "the server may have done it all the same: {} {code}", code.0),
            Self::UnprovenRefusal { code, text } => {
                write!(f, "the server answers ")?;
                write_refusal(f, *code, text, false)
            }
            Self::Unproven(error) => write!(f, "the server cannot be trusted: {error}"),
            Self::Unsigned(error) => write!(f, "the challenge cannot be answered: {error}"),
            Self::OldProof(version) => write!(
                f,
                "the challenge is of version {version} and was not answered: the answer would be a plain digest, \
                 from which the secret can be guessed"
            ),
            Self::WhoAsks => f.write_str("the server wants to know who asks, and no identity was given"),
            Self::TooLong(error) => error.fmt(f),
            Self::NoSession { why, has_secrets: true } => write!(
                f,
                "nothing was sent, because the request has secrets or values that are not public and there is no \
                 session to encrypt them in: {why}"
            ),
            Self::NoSession { why, has_secrets: false } => {
                write!(f, "nothing was sent, because there is no session: {why}")
            }
        }
    }
}

impl std::error::Error for AskError {}

impl From<DecodeError> for AskError {
    fn from(error: DecodeError) -> Self {
        Self::Undecodable(error)
    }
}

/// Why there is no session with a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionFailure {
    /// The key of the server is not known, so that the session could be with anybody.
    ServerKeyUnknown,
    /// No sessions are to be used.
    NotUsed,
    /// The server refuses it.
    Refused {
        /// The code of the refusal.
        code: ResponseCode,
        /// Its text; may be empty.
        text: String,
        /// Whether the server has signed it; otherwise anybody on the way can have said it.
        is_proven: bool,
    },
    /// The server, or somebody on the way, has chosen a version below 2.7, in which messages are not well protected.
    OldVersion(Version),
    /// What the server answers does not complete the key exchange.
    KeyExchange,
}

impl fmt::Display for SessionFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ServerKeyUnknown => {
                f.write_str("the key of the server is not known, so the session could be with anybody")
            }
            Self::NotUsed => f.write_str("sessions are switched off"),
            Self::Refused { code, text, is_proven } => {
                f.write_str("the server refuses it with ")?;
                write_refusal(f, *code, text, *is_proven)
            }
            Self::OldVersion(version) => write!(
                f,
                "the version {version} was chosen for it, below 2.7, where versions and copies of messages are not \
                 protected"
            ),
            Self::KeyExchange => f.write_str("the key exchange failed"),
        }
    }
}

impl std::error::Error for SessionFailure {}

fn write_refusal(f: &mut fmt::Formatter<'_>, code: ResponseCode, text: &str, is_proven: bool) -> fmt::Result {
    let colon = if text.is_empty() { "" } else { ": " };
    let mark =
        if is_proven { "" } else { " (unproven: it is not signed, anybody on the way can have said it)" };
    write!(f, "{} {code}{colon}{text}{mark}", code.0)
}
