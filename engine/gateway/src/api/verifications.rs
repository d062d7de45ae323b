//! `GET /api/verifications/{identity}`: whether a MAC over two nonces was made with a secret key,
//! as in challenge verification between servers, RFC 3652 section 3.5.3.

use crate::api::body::ApiBody;
use crate::api::request::{ApiRefusal, ApiRequest, NO_ADMIN, admin_refusal, respond, status_of, unsupported};
use crate::api::scheme::{HandleCredentials, OldDigests, identity};
use crate::refusal::HttpRefusal;
use crate::reply::GatewayResponse;
use crate::secret_guesses::SecretGuess;
use crate::state::GatewayState;
use crate::target;
use data_encoding::BASE64;
use handle_client::administration::Administrator;
use handle_console::parameters::Parameters;
use handle_proto::code::DigestAlgorithm;
use handle_proto::limit::HANDLE_LEN_MAX;
use handle_proto::wire::auth::VerificationRequest;
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::list::Reference;
use handle_proto::wire::{Request, Response};
use handle_proto::{OpFlags, ResponseCode};
use hyper::StatusCode;
use serde_json::json;

/// Most bytes of a nonce.
const NONCE_LEN_MAX: usize = 1024;

/// The MAC to verify.
struct Verification {
    handle: Vec<u8>,
    index: i32,
    nonce: Vec<u8>,
    client_nonce: Vec<u8>,
    signed_response: Vec<u8>,
}

/// Answers a request about `name`, a percent-encoded identity or handle.
pub async fn verify(state: &GatewayState, request: &ApiRequest<'_>, name: &str) -> GatewayResponse {
    let accepted = state.settings.current().sessions.old_digests();
    let verification = match read(&request.parameters, name, accepted) {
        Ok(verification) => verification,
        Err(message) => {
            return ApiRefusal::bad(ResponseCode::PROTOCOL_ERROR, message).respond(state, request, None);
        }
    };
    let Some(admin) = &state.writing.admin else { return unsupported(state, request, NO_ADMIN) };
    let guess = SecretGuess::of(request.peer.address, &verification.handle);
    if let Err(retry_after) = guess.check(state) {
        let settings = state.settings.current();
        return HttpRefusal::TooManySecrets(retry_after).respond_json(&settings);
    }
    let handle = String::from_utf8_lossy(&verification.handle).into_owned();
    let ask = move |client: &mut Administrator| {
        let Verification { handle, index, nonce, client_nonce, signed_response } = &verification;
        let digest = RequestDigest { algorithm: DigestAlgorithm::OLD_MD5, digest: client_nonce };
        let identity = Reference { handle, index: *index };
        let question = VerificationRequest { identity, nonce, digest, signed_response };
        let answer = client.ask(&Request::VerifyChallenge(question), OpFlags::PLAIN_REQUEST)?;
        let verdict = match answer.reply().response {
            Response::Verdict(verdict) => Some(verdict.is_valid),
            _ => None,
        };
        Ok((answer.code(), verdict))
    };
    match admin.ask(request.peer.address, None, ask).await {
        Ok((code, Some(is_valid))) => {
            if !is_valid {
                guess.count(state);
            }
            let body = json!({ "responseCode": code.0, "isValid": is_valid, "handle": handle });
            respond(state, request, StatusCode::OK, ApiBody::of(&body))
        }
        Ok((code, None)) => {
            respond(state, request, status_of(code, false), ApiBody::failure(code, None, Some(&handle)))
        }
        Err(error) => admin_refusal(state, request, &error, Some(&handle)),
    }
}

fn read(parameters: &Parameters<'_>, name: &str, accepted: OldDigests) -> Result<Verification, &'static str> {
    const MISSING: &str = "Missing parameters in verification request";
    let name = target::decode(name).map_err(|error| error.message())?;
    let (index, handle) = identity(&name).ok_or("Handle not specified in verification request")?;
    if handle.len() > HANDLE_LEN_MAX {
        return Err("The handle is too long");
    }
    let index = match parameters.first("index") {
        Some(index) => index.parse().map_err(|_| "The index is not a number")?,
        None => index,
    };
    let field = |name| parameters.first(name).ok_or(MISSING);
    let nonce = BASE64.decode(field("nonce")?.as_bytes()).map_err(|_| "The nonce is not base64")?;
    let names = ["cnonce", "alg", "signature", "salt", "iterations", "length"];
    names[..3].iter().try_for_each(|name| field(name).map(drop))?;
    let fields = names.iter().filter_map(|name| Some((*name, parameters.first(name)?)));
    let fields = fields.chain([("id", &*name), ("type", "HS_SECKEY")]);
    // `handle-admin` would charge its work to the gateway, and so to all its callers.
    let letters: String = field("alg")?.chars().filter(char::is_ascii_alphanumeric).collect();
    if letters.to_ascii_uppercase().starts_with("PBKDF2") {
        return Err("PBKDF2 is not verified over HTTP: open a session instead");
    }
    let proof = HandleCredentials::of_fields(fields).proof(accepted).map_err(|_| "Unknown algorithm")?;
    if nonce.len().max(proof.client_nonce.len()) > NONCE_LEN_MAX {
        return Err("A nonce is too long");
    }
    let (client_nonce, signed_response) = (proof.client_nonce, proof.signed_response);
    Ok(Verification { handle: handle.as_bytes().to_vec(), index, nonce, client_nonce, signed_response })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macs_are_verified_and_those_with_pbkdf2_refused() {
        let of = |algorithm: &str| {
            let query = format!(
                "nonce=AAAA&cnonce=AAAA&signature=AAAA&salt=AAAA&iterations=10000&length=160&alg={algorithm}"
            );
            let asked =
                read(&Parameters::parse(&query), "300%3A0.NA/TST", OldDigests { md5: false, sha1: true });
            asked.map(|verification| (verification.index, verification.handle))
        };
        for algorithm in ["HMAC-SHA256", "SHA1", "HmacSHA1"] {
            assert_eq!(of(algorithm), Ok((300, b"0.NA/TST".to_vec())), "{algorithm}");
        }
        for algorithm in ["PBKDF2WithHmacSHA1", "pbkdf2-hmac-sha1", "PBKDF2HmacSHA1"] {
            assert!(of(algorithm).is_err_and(|why| why.starts_with("PBKDF2")), "{algorithm}");
        }
        for algorithm in ["MD5", "-PBKDF2-HMAC-SHA1", "P-BKDF2HmacSHA1"] {
            assert!(of(algorithm).is_err(), "{algorithm}");
        }
    }
}
