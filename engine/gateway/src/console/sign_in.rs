//! Signing in at a page: the sessions and proofs are those of the JSON API.

use crate::api::scheme::{HandleCredentials, HandleProof, identity};
use crate::api::sessions::{self, SignInError, proof_with_secret};
use crate::caller_sessions;
use crate::sessions::{HttpSession, SessionId};
use crate::state::GatewayState;
use handle_auth::random;
use handle_client::administration::{ClientIdentity, IdentityKey};
use handle_console::host::{SignInProof, SignInRefusal};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

impl From<SignInError> for SignInRefusal {
    fn from(error: SignInError) -> Self {
        match error {
            SignInError::Credentials(_) | SignInError::NotVerified | SignInError::Stale => Self::NotVerified,
            SignInError::TooManySecrets(retry_after) => Self::TooManySecrets(retry_after),
            SignInError::Busy | SignInError::Unreachable => Self::Unreachable,
        }
    }
}

/// Verifies a proof, and opens a session with its identity.
pub(super) async fn sign_in(
    state: &GatewayState,
    source: IpAddr,
    proof: SignInProof<'_>,
) -> Result<String, SignInRefusal> {
    let (nonce, proof) = read_proof(state, proof).await?;
    let identity = sessions::verify_proof(state, source, &nonce, proof).await?;
    // A new id prevents session fixation.
    let (id, settings) = (SessionId::new(random()), state.settings.current_shared());
    let (limits, now) = (&settings.sessions, Instant::now());
    let session = HttpSession { id, nonce: random(), identity: None };
    match state.writing.sessions.add(session, Arc::clone(&identity), limits, now) {
        Ok(displaced) => {
            displaced.into_iter().for_each(|identity| caller_sessions::end(state, Some(identity)));
            Ok(id.secret_text())
        }
        Err(_) => {
            caller_sessions::end(state, Some(identity));
            Err(SignInRefusal::Full)
        }
    }
}

/// Reads the proof of a form, or makes it with the secret, and returns it with its nonce.
async fn read_proof(
    state: &GatewayState,
    proof: SignInProof<'_>,
) -> Result<(Vec<u8>, HandleProof), SignInError> {
    let (name, secret) = match proof {
        SignInProof::Secret { identity, secret } => (identity, secret),
        SignInProof::Signature(fields) => {
            let credentials = HandleCredentials::of_fields(fields);
            let session = credentials.session().and_then(|id| caller_sessions::find(state, id));
            let session = session.ok_or(SignInError::Stale)?;
            state.writing.sessions.end(session.id);
            let proof = sessions::read_proof(state, &credentials).map_err(SignInError::Credentials)?;
            return Ok((session.nonce.to_vec(), proof));
        }
    };
    let (index, handle) = identity(name).ok_or(SignInError::NotVerified)?;
    let (handle, key) = (handle.as_bytes().to_vec(), IdentityKey::Secret(secret));
    let identity = ClientIdentity { handle, index, key };
    let nonce = match caller_sessions::service(state) {
        Some(callers) => callers.nonce().await.ok_or(SignInError::Unreachable)?,
        None => return Err(SignInError::Unreachable),
    };
    let proof = proof_with_secret(&identity, &nonce).ok_or(SignInError::NotVerified)?;
    Ok((nonce.to_vec(), proof))
}
