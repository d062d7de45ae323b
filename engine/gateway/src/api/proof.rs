//! The proof of a caller before the body of the request is read.
//!
//! Whoever sends a long body without the right to change anything would otherwise have it received
//! and parsed. `handle-admin` verifies the caller by the head alone, and the session that it gives
//! to a proven caller authenticates the change as well.

use crate::administration::ServiceError;
use crate::api::json_input::PARSED_AT_ONCE;
use crate::api::request::{ApiRequest, admin_refusal, unauthorized};
use crate::api::sessions::{SignInError, proof_with_secret, verify_uncounted};
use crate::caller_sessions;
use crate::connections::request_body::RequestBody;
use crate::reply::GatewayResponse;
use crate::state::GatewayState;
use handle_client::administration::{AskError, ClientIdentity, IdentityKey};
use handle_proto::ResponseCode;
use hyper::body::Body as _;
use std::sync::Arc;

/// A caller, and the session that proves it, which ends with this.
#[derive(Debug)]
pub(crate) struct ProvenCaller<'s> {
    state: &'s GatewayState,
    identity: Arc<ClientIdentity>,
    /// Whether the session was made for this request.
    has_own_session: bool,
}

impl<'s> ProvenCaller<'s> {
    /// A caller whose proof is part of the change.
    pub(crate) const fn of(state: &'s GatewayState, identity: Arc<ClientIdentity>) -> Self {
        Self { state, identity, has_own_session: false }
    }

    /// The identity, with which changes are authenticated.
    pub(crate) fn identity(&self) -> Arc<ClientIdentity> {
        Arc::clone(&self.identity)
    }
}

impl Drop for ProvenCaller<'_> {
    fn drop(&mut self) {
        if self.has_own_session {
            caller_sessions::end(self.state, Some(Arc::clone(&self.identity)));
        }
    }
}

/// Whether a body is so long, or may become so long, that its caller is proven first.
pub(crate) fn needs_proof(body: &RequestBody) -> bool {
    body.size_hint().upper().is_none_or(|len| len > PARSED_AT_ONCE as u64)
}

/// Proves the caller of a request with `identity`, which `Caller::of` found in its head. One with a
/// session of `handle-admin` has been proven.
///
/// Without the local socket of `handle-admin` (`admin.socket`), no caller can be proven without a
/// change, and the caller is taken as it is.
///
/// # Errors
/// The refusal, if the secret is wrong or `handle-admin` does not answer.
pub(crate) async fn prove<'s>(
    state: &'s GatewayState,
    request: &ApiRequest<'_>,
    identity: Arc<ClientIdentity>,
) -> Result<ProvenCaller<'s>, GatewayResponse> {
    let callers = state.writing.admin.as_ref().and_then(|admin| admin.callers());
    let Some(callers) = callers.filter(|_| matches!(identity.key, IdentityKey::Secret(_))) else {
        return Ok(ProvenCaller::of(state, identity));
    };
    let wrong = || unauthorized(state, request, ResponseCode::AUTHENTICATION_FAILED, "", None);
    let unreachable = || admin_refusal(state, request, &ServiceError::Ask(AskError::Late), None);
    // A nonce made by a process that has been restarted meanwhile is stale.
    for _ in 0..2 {
        let nonce = callers.nonce().await.ok_or_else(unreachable)?;
        let proof = proof_with_secret(&identity, &nonce).ok_or_else(wrong)?;
        match verify_uncounted(state, request.peer.address, &nonce, proof).await {
            Ok(identity) => return Ok(ProvenCaller { state, identity, has_own_session: true }),
            Err(SignInError::Stale) => {}
            Err(SignInError::Busy) => return Err(admin_refusal(state, request, &ServiceError::Busy, None)),
            Err(SignInError::Unreachable) => return Err(unreachable()),
            Err(_) => return Err(wrong()),
        }
    }
    Err(unreachable())
}
