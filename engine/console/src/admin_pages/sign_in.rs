//! Signing in and out.

use super::{AdminRequest, COOKIE, error};
use crate::host::{ConsoleHost, SignInProof, SignInRefusal};
use crate::pages::admin::{AdminNotice, SignInPage};
use crate::parameters::Parameters;
use crate::reply::ConsoleResponse;
use data_encoding::BASE64;
use handle_daemon::source_rates::RetryAfter;
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use percent_encoding::percent_decode;
use zeroize::Zeroizing;

/// The fields of a proof made by a browser.
const PROOF_FIELDS: [&str; 6] = ["sessionId", "id", "type", "alg", "cnonce", "signature"];

/// The page with the sign-in forms.
pub(super) async fn page(
    request: &AdminRequest<'_, impl ConsoleHost>,
    status: StatusCode,
    notice: Option<AdminNotice>,
    identity: String,
) -> ConsoleResponse {
    let session = request.host.open_session(request.head.address).await;
    let notice = match &session {
        Some(_) => notice,
        None => Some(error(request.texts().unreachable)),
    };
    let (session, nonce) =
        session.map(|session| (session.id, BASE64.encode(&session.nonce))).unwrap_or_default();
    let commands = Vec::new();
    let page = SignInPage { frame: request.frame, user: None, notice, commands, identity, session, nonce };
    request.html(status, page.html())
}

/// Signs in with a secret key, or with the signature of a browser.
pub(super) async fn sign_in(request: &AdminRequest<'_, impl ConsoleHost>, body: &[u8]) -> ConsoleResponse {
    let (secret, others) = split_secret(body);
    let others = String::from_utf8_lossy(&others);
    let form = Parameters::parse(&others);
    let name = form.first("id").unwrap_or_default().trim().to_owned();
    let proof = match secret {
        Some(secret) => SignInProof::Secret { identity: &name, secret },
        None => {
            let fields = PROOF_FIELDS.iter().filter_map(|field| Some((*field, form.first(field)?.trim())));
            SignInProof::Signature(fields.collect())
        }
    };
    let texts = request.texts();
    let (status, text) = match request.host.sign_in(request.head.address, proof).await {
        Ok(session) => return with_cookie(request.see_other("admin/"), &session, ""),
        Err(SignInRefusal::TooManySecrets(RetryAfter { seconds })) => {
            let text = error(texts.too_many_secrets);
            let mut refused = page(request, StatusCode::TOO_MANY_REQUESTS, Some(text), name).await;
            refused.headers_mut().insert(header::RETRY_AFTER, seconds.into());
            return refused;
        }
        Err(SignInRefusal::NotVerified) => (StatusCode::FORBIDDEN, texts.not_verified),
        Err(SignInRefusal::Unreachable) => (StatusCode::FORBIDDEN, texts.unreachable),
        Err(SignInRefusal::Full) => (StatusCode::SERVICE_UNAVAILABLE, texts.unreachable),
    };
    page(request, status, Some(error(text)), name).await
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
pub(super) fn sign_out(request: &AdminRequest<'_, impl ConsoleHost>) -> ConsoleResponse {
    if let Some(session) = &request.session {
        request.host.sign_out(session.id);
    }
    with_cookie(request.see_other("admin/sign-in"), "", "; Max-Age=0")
}

fn with_cookie(mut response: ConsoleResponse, value: &str, end: &str) -> ConsoleResponse {
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
