//! Outgoing requests. A request with a secret becomes a message only inside an encrypted session,
//! unless an allowance says otherwise.

use super::{AskError, SessionFailure};
use crate::allowances::Allowances;
use crate::open_session::{OpenRequest, OpenSession};
use handle_auth::clock::now_unix_s;
use handle_auth::random;
use handle_proto::data::kind;
use handle_proto::wire::guard::OwnedGuard;
use handle_proto::wire::{Envelope, Header, MessageBuf, Request};
use handle_proto::{OpFlags, Value, Version};
use std::net::IpAddr;
use std::sync::Arc;

/// Whether a request may be repeated when its connection was lost before any byte of its answer
/// arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repetition {
    /// Harmless: it changes nothing.
    Harmless,
    /// It changes records, but a server that has read it in its session refuses the same bytes.
    Refused,
    /// It could be carried out twice.
    Forbidden,
}

/// What goes with the body of a request.
#[derive(Clone, Copy, Default)]
pub(super) struct RequestExtra<'e> {
    /// Conditions on a change.
    pub(super) guard: Option<&'e OwnedGuard>,
    /// The client whose proof is passed on.
    pub(super) client: Option<IpAddr>,
}

/// An encoded request.
pub(super) struct OutgoingRequest {
    pub(super) request_id: i32,
    pub(super) message: Vec<u8>,
    /// Header and body. The answer has their digest.
    pub(super) covered: Vec<u8>,
    pub(super) repetition: Repetition,
    /// Until the request has its answer, or has been given up.
    _open: Option<OpenRequest>,
}

impl OutgoingRequest {
    /// Encodes a request, in a session if there is one, otherwise in `version`.
    ///
    /// # Errors
    /// [`AskError::NoSession`] if it has secrets and there is no session, unless that is allowed;
    /// [`AskError::TooLong`].
    pub(super) fn new(
        session: Option<&Arc<OpenSession>>,
        request: &Request<'_>,
        extra: RequestExtra<'_>,
        flags: OpFlags,
        allowances: Allowances,
        version: Version,
    ) -> Result<Self, AskError> {
        let has_secrets = has_secrets(request);
        if session.is_none() && has_secrets && !allowances.cleartext_secrets {
            return Err(AskError::NoSession { why: SessionFailure::NotUsed, has_secrets });
        }
        let (session_id, version) = session.map_or((0, version), |session| (session.id, session.version));
        let suggested = if session.is_some() { Version::CURRENT } else { version };
        let (envelope, message) = begin(session_id, version, suggested, request, extra, flags);
        let covered = message.covered().to_vec();
        let message = message.unsigned().map_err(AskError::TooLong)?;
        let message = match session {
            Some(session) => session.sealed_request(message).and_then(|(sealed, open)| match has_secrets {
                true => session.encrypted(&sealed).map(|encrypted| (encrypted, Some(open))),
                false => Ok((sealed, Some(open))),
            }),
            None => Ok((message, None)),
        };
        let repetition = match (changes_records(request), session) {
            (false, _) => Repetition::Harmless,
            (true, Some(session)) if session.counters_are_protected() => Repetition::Refused,
            (true, _) => Repetition::Forbidden,
        };
        let (message, open) = message.map_err(AskError::TooLong)?;
        Ok(Self { request_id: envelope.request_id, message, covered, repetition, _open: open })
    }

    /// Encodes an answer to a challenge, in the challenge's version, up to `version_max`. It needs
    /// no MAC, because it is a proof itself.
    pub(super) fn answer(
        challenge: &Envelope,
        request: &Request<'_>,
        client: Option<IpAddr>,
        flags: OpFlags,
        is_change: bool,
        version_max: Version,
    ) -> Result<Self, AskError> {
        let version = challenge.version.min(version_max);
        let (envelope, message) = begin(
            challenge.session_id,
            version,
            version_max,
            request,
            RequestExtra { client, guard: None },
            flags,
        );
        let covered = message.covered().to_vec();
        let message = message.unsigned().map_err(AskError::TooLong)?;
        let repetition = if is_change { Repetition::Forbidden } else { Repetition::Harmless };
        Ok(Self { request_id: envelope.request_id, message, covered, repetition, _open: None })
    }
}

/// Begins a message of a version that suggests another version for the answer.
fn begin(
    session_id: i32,
    version: Version,
    suggested: Version,
    request: &Request<'_>,
    extra: RequestExtra<'_>,
    flags: OpFlags,
) -> (Envelope, MessageBuf) {
    // Positive, as deployed clients choose it, and unpredictable.
    let request_id = (i32::from_be_bytes(random()) & i32::MAX).max(1);
    let header = Header::request(request.op_code(), flags, now_unix_s());
    let envelope = Envelope { session_id, version, suggested, ..Envelope::request(request_id) };
    let guard = extra.guard.map(OwnedGuard::as_guard).unwrap_or_default();
    let message = match extra.client {
        Some(client) => MessageBuf::proof_for(&envelope, &header, request, client),
        None => MessageBuf::guarded_request(&envelope, &header, &guard, request),
    };
    (envelope, message)
}

/// Whether the request changes records of the server.
pub(super) const fn changes_records(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::CreateHandle(_)
            | Request::DeleteHandle(_)
            | Request::AddValue(_)
            | Request::RemoveValue(_)
            | Request::ModifyValue(_)
            | Request::HomeNa(_)
            | Request::UnhomeNa(_)
    )
}

/// Whether the request changes a record, so that conditions on it make sense.
pub(super) const fn changes_values(request: &Request<'_>) -> bool {
    changes_records(request) && !matches!(request, Request::HomeNa(_) | Request::UnhomeNa(_))
}

/// Whether the request has secrets, whatever their permissions, or values that are not public.
pub(super) fn has_secrets(request: &Request<'_>) -> bool {
    let is_secret = |value: Value<'_>| !value.is_public() || value.is_a(kind::HS_SECKEY);
    match request {
        Request::CreateHandle(body) | Request::AddValue(body) | Request::ModifyValue(body) => {
            body.values.iter().any(is_secret)
        }
        _ => false,
    }
}
