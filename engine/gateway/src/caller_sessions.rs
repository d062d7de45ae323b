//! The sessions of callers: in the table of this process, and at `handle-admin`.

use crate::callers::CallerService;
use crate::sessions::{HttpSession, SessionId};
use crate::state::GatewayState;
use handle_auth::random;
use handle_client::administration::{ClientIdentity, IdentityKey};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// The part of the state that sessions need: without it, there are none.
pub(crate) fn service(state: &GatewayState) -> Option<&Arc<CallerService>> {
    state.writing.admin.as_ref().and_then(|admin| admin.callers())
}

/// Finds a session.
pub fn find(state: &GatewayState, id: SessionId) -> Option<HttpSession> {
    state.writing.sessions.find(id, &state.settings.current().sessions, Instant::now())
}

/// Opens a session for a caller at `address`; `None` if `handle-admin` does not answer.
pub async fn open(state: &GatewayState, address: IpAddr) -> Option<HttpSession> {
    let nonce = service(state)?.nonce().await?;
    let settings = state.settings.current_shared();
    let id = SessionId::new(random());
    Some(state.writing.sessions.open(id, nonce, address, &settings.sessions, Instant::now()))
}

/// Ends the session of an identity at `handle-admin`.
pub fn end(state: &GatewayState, identity: Option<Arc<ClientIdentity>>) {
    if let (Some(service), Some(identity)) = (service(state), identity)
        && let IdentityKey::Session(key) = &identity.key
    {
        service.end(key.id, state.settings.current().sessions.sessions);
    }
}
