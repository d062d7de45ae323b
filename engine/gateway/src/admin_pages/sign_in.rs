//! Signing in and out.

use super::{AdminRequest, COOKIE, error};
use crate::api::scheme::{HandleCredentials, HandleProof, identity};
use crate::api::sessions::{self, SignInError, proof_with_secret};
use crate::caller_sessions;
use crate::pages::admin::{AdminNotice, SignInPage};
use crate::parameters::Parameters;
use crate::reply::{GatewayResponse, set_number};
use crate::sessions::{HttpSession, SessionId};
use data_encoding::BASE64;
use handle_auth::random;
use handle_client::administration::{ClientIdentity, IdentityKey};
use handle_daemon::source_rates::RetryAfter;
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use percent_encoding::percent_decode;
use std::time::Instant;
use zeroize::Zeroizing;

/// The fields of a proof made by a browser.
const PROOF_FIELDS: [&str; 6] = ["sessionId", "id", "type", "alg", "cnonce", "signature"];

/// The page with the sign-in forms.
pub(super) async fn page(
    request: &AdminRequest<'_>,
    status: StatusCode,
    notice: Option<AdminNotice>,
    identity: String,
) -> GatewayResponse {
    let session = caller_sessions::open(request.state, request.peer.address).await;
    let notice = match &session {
        Some(_) => notice,
        None => Some(error(request.texts().unreachable)),
    };
    let (session, nonce) =
        session.map(|it| (it.id.secret_text(), BASE64.encode(&it.nonce))).unwrap_or_default();
    let commands = Vec::new();
    let page = SignInPage { frame: request.frame, user: None, notice, commands, identity, session, nonce };
    request.html(status, page.html())
}

/// Signs in with a secret key, or with the signature of a browser.
pub(super) async fn sign_in(request: &AdminRequest<'_>, body: &[u8]) -> GatewayResponse {
    let (secret, others) = split_secret(body);
    let others = String::from_utf8_lossy(&others);
    let form = Parameters::parse(&others);
    let name = form.first("id").unwrap_or_default().trim().to_owned();
    let verified = match read_proof(request, &form, &name, secret).await {
        Ok((nonce, proof)) => {
            sessions::verify_proof(request.state, request.peer.address, &nonce, proof).await
        }
        Err(refused) => Err(refused),
    };
    let identity = match verified {
        Ok(identity) => identity,
        Err(SignInError::TooManySecrets(RetryAfter { seconds })) => {
            let text = error(request.texts().too_many_secrets);
            let mut refused = page(request, StatusCode::TOO_MANY_REQUESTS, Some(text), name).await;
            set_number(&mut refused, header::RETRY_AFTER, seconds);
            return refused;
        }
        Err(refused) => {
            let text = match refused {
                SignInError::Busy | SignInError::Unreachable => request.texts().unreachable,
                _ => request.texts().not_verified,
            };
            return page(request, StatusCode::FORBIDDEN, Some(error(text)), name).await;
        }
    };
    // A new id prevents session fixation.
    let (id, settings) = (SessionId::new(random()), request.state.settings.current_shared());
    let (limits, now) = (&settings.sessions, Instant::now());
    let session = HttpSession { id, nonce: random(), identity: None };
    match request.state.writing.sessions.add(session, identity.clone(), limits, now) {
        Ok(displaced) => {
            displaced.into_iter().for_each(|identity| caller_sessions::end(request.state, Some(identity)));
        }
        Err(_) => {
            caller_sessions::end(request.state, Some(identity));
            let busy = Some(error(request.texts().unreachable));
            return page(request, StatusCode::SERVICE_UNAVAILABLE, busy, name).await;
        }
    }
    with_cookie(request.see_other("admin/"), &id.secret_text(), "")
}

/// Reads the proof of a form, or makes it with the secret, and returns it with its nonce.
async fn read_proof(
    request: &AdminRequest<'_>,
    form: &Parameters<'_>,
    name: &str,
    secret: Option<Zeroizing<Vec<u8>>>,
) -> Result<(Vec<u8>, HandleProof), SignInError> {
    let Some(secret) = secret else {
        let fields = PROOF_FIELDS.iter().filter_map(|field| Some((*field, form.first(field)?.trim())));
        let credentials = HandleCredentials::of_fields(fields);
        let session = credentials.session().and_then(|id| caller_sessions::find(request.state, id));
        let session = session.ok_or(SignInError::Stale)?;
        request.state.writing.sessions.end(session.id);
        let proof = sessions::read_proof(request.state, &credentials).map_err(SignInError::Credentials)?;
        return Ok((session.nonce.to_vec(), proof));
    };
    let (index, handle) = identity(name).ok_or(SignInError::NotVerified)?;
    let (handle, key) = (handle.as_bytes().to_vec(), IdentityKey::Secret(secret));
    let identity = ClientIdentity { handle, index, key };
    let callers = request.state.writing.admin.as_ref().and_then(|admin| admin.callers());
    let nonce = match callers {
        Some(callers) => callers.nonce().await.ok_or(SignInError::Unreachable)?,
        None => return Err(SignInError::Unreachable),
    };
    let proof = proof_with_secret(&identity, &nonce).ok_or(SignInError::NotVerified)?;
    Ok((nonce.to_vec(), proof))
}

/// Splits a form into its decoded secret and the other fields, still encoded.
fn split_secret(body: &[u8]) -> (Option<Zeroizing<Vec<u8>>>, Vec<u8>) {
    let mut secret = None;
    let mut others = Vec::new();
    for field in body.split(|&byte| byte == b'&') {
        match field.strip_prefix(b"secret=") {
            Some(encoded) => {
                let plus = |byte: &u8| if *byte == b'+' { b' ' } else { *byte };
                let spaced: Zeroizing<Vec<u8>> = Zeroizing::new(encoded.iter().map(plus).collect());
                // As long as it can be: a vector that grows leaves a copy behind, which is not
                // zeroed.
                let mut decoded = Zeroizing::new(Vec::with_capacity(encoded.len()));
                decoded.extend(percent_decode(&spaced));
                secret = Some(decoded);
            }
            None => {
                others.extend_from_slice(field);
                others.push(b'&');
            }
        }
    }
    (secret, others)
}

/// Ends the session.
pub(super) fn sign_out(request: &AdminRequest<'_>) -> GatewayResponse {
    if let Some(session) = &request.session {
        caller_sessions::end(request.state, request.state.writing.sessions.end(session.id));
    }
    with_cookie(request.see_other("admin/sign-in"), "", "; Max-Age=0")
}

fn with_cookie(mut response: GatewayResponse, value: &str, end: &str) -> GatewayResponse {
    let text = format!("{COOKIE}={value}; Path=/; Secure; HttpOnly; SameSite=Strict{end}");
    if let Ok(mut value) = HeaderValue::try_from(text) {
        value.set_sensitive(true);
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_of_a_form_is_decoded_apart_from_the_rest() {
        let (secret, others) = split_secret(b"id=300%3Aa%2Fb&secret=open+sesame%2B%00&x=1");
        assert_eq!(secret.as_deref().map(|it| &it[..]), Some(&b"open sesame+\0"[..]));
        assert_eq!(secret.map(|it| it.capacity()), Some("open+sesame%2B%00".len()), "it did not grow");
        assert_eq!(others, b"id=300%3Aa%2Fb&x=1&");
        assert!(split_secret(b"id=x").0.is_none());
    }
}
