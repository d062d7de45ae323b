//! Why a request has no valid answer.

use crate::open_session::{SessionFailure, write_refusal};
use handle_auth::{SignError, VerifyError};
use handle_proto::wire::message::MessageTooLong;
use handle_proto::{DecodeError, ResponseCode, Version};
use std::{fmt, io};

/// Why a request has no valid answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum AskError {
    /// The connection failed.
    Connect(io::Error),
    /// The connection was lost before the answer arrived.
    Lost(io::Error),
    /// No answer arrived within the timeout of the client.
    Late,
    /// The received bytes are not a message.
    Undecodable(DecodeError),
    /// The received message does not answer the request.
    Another(&'static str),
    /// According to a message that need not come from the server, the session has ended or has seen
    /// the request before.
    Rejected(ResponseCode),
    /// The key of the server is required, and a refusal arrived that is not signed with it. It may
    /// have been forged on the network path.
    UnprovenRefusal {
        /// The code of the refusal.
        code: ResponseCode,
        /// Its text; may be empty.
        text: String,
    },
    /// The challenge is to another request, or the answer is not signed with the key of the server.
    Unproven(VerifyError),
    /// The challenge could not be answered.
    Unsigned(SignError),
    /// The version of the challenge is below 2.7, so that its answer would be a plain digest of the
    /// secret.
    OldProof(Version),
    /// The server requires an identity, and there is none.
    NoIdentity,
    /// The request is longer than a message may be.
    TooLong(MessageTooLong),
    /// The request may be sent in a session only, and there is none. Nothing was sent.
    NoSession {
        /// The reason why there is no session.
        why: SessionFailure,
        /// Whether the request has secrets or values that are not public.
        has_secrets: bool,
    },
}

impl AskError {
    /// Whether the server may have carried out the request nevertheless.
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
            Self::Connect(error) => write!(f, "cannot connect to the server: {error}"),
            Self::Lost(error) => write!(f, "the connection was lost before the answer arrived: {error}"),
            Self::Late => f.write_str("no answer in time"),
            Self::Undecodable(error) => write!(f, "the answer does not decode: {error}"),
            Self::Another(what) => write!(f, "the answer does not belong to this request: {what}"),
            Self::Rejected(code) => {
                write!(f, "the server may have carried out the request nevertheless: {} {code}", code.0)
            }
            Self::UnprovenRefusal { code, text } => {
                write!(f, "the server answers ")?;
                write_refusal(f, *code, text, false)
            }
            Self::Unproven(error) => write!(f, "the server cannot be trusted: {error}"),
            Self::Unsigned(error) => write!(f, "cannot answer the challenge: {error}"),
            Self::OldProof(version) => write!(
                f,
                "the challenge is of version {version} and was not answered: the answer would be a plain digest, \
                 from which the secret can be guessed"
            ),
            Self::NoIdentity => {
                f.write_str("the server requires authentication: name an identity and its key")
            }
            Self::TooLong(error) => error.fmt(f),
            Self::NoSession { why, has_secrets: true } => write!(
                f,
                "nothing was sent, because the request has secrets or values that are not public and there is no \
                 session to encrypt them in: {why}"
            ),
            Self::NoSession { why, has_secrets: false } => {
                write!(f, "nothing was sent, because no session could be set up: {why}")
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
