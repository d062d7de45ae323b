//! Callers whose client certificate proves them: the field `clientCert` of `Authorization`.
//!
//! A certificate counts only in requests with this field. Browsers show certificates by themselves,
//! also for requests that another site has them make. But such a site cannot have them send the
//! field: no answer allows scripts of other origins to send it together with credentials, which
//! include certificates (Fetch Standard, `Access-Control-Allow-Credentials`).

use crate::api::body::ApiBody;
use crate::api::request::{ApiRequest, respond};
use crate::api::sessions::{self, SignInError};
use crate::connections::certificate::CertificateRefusal;
use crate::reply::GatewayResponse;
use crate::state::GatewayState;
use handle_client::administration::ClientIdentity;
use handle_proto::ResponseCode;
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use std::sync::Arc;

/// The caller of a request with `clientCert`.
///
/// # Errors
/// The response if the certificate of the connection proves no identity.
pub async fn caller(
    state: &GatewayState,
    request: &ApiRequest<'_>,
) -> Result<Arc<ClientIdentity>, GatewayResponse> {
    let Some(certificate) = request.certificate else {
        return Err(refuse(state, request, &elsewhere(state), SignInError::NotVerified).await);
    };
    let refusal = match certificate.identity(request.peer.address).await {
        Ok(identity) => return Ok(identity),
        Err(refusal) => refusal,
    };
    let error = match refusal {
        CertificateRefusal::Busy => SignInError::Busy,
        CertificateRefusal::Unreachable => SignInError::Unreachable,
        _ => SignInError::NotVerified,
    };
    let mut response = refuse(state, request, &refusal.to_string(), error).await;
    if refusal == CertificateRefusal::Over {
        end_connection(&mut response);
    }
    Err(response)
}

/// Ends the session of a connection if `handle-admin` has refused it in a request with
/// `clientCert`, and with this answer the connection: the client may prove its identity in another
/// one. Returns whether it does.
pub async fn end(request: &ApiRequest<'_>, response: &mut GatewayResponse) -> bool {
    let is_meant = sessions::credentials(request).flatten().is_some_and(|sent| sent.means_certificate());
    let Some(certificate) = request.certificate.filter(|_| is_meant) else { return false };
    certificate.end().await;
    end_connection(response);
    true
}

/// Certificates are shown over HTTP/1.1 only.
fn end_connection(response: &mut GatewayResponse) {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
}

/// Where certificates are accepted.
fn elsewhere(state: &GatewayState) -> String {
    let addresses = state.writing.certificate_addresses.iter();
    let ports: Vec<String> = addresses.map(|address| address.port().to_string()).collect();
    match ports.len() {
        0 => "This gateway does not accept client certificates".to_owned(),
        1 => format!("Client certificates are accepted at port {} only", ports[0]),
        _ => format!("Client certificates are accepted at the ports {} only", ports.join(", ")),
    }
}

async fn refuse(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    message: &str,
    error: SignInError,
) -> GatewayResponse {
    state.counters.certificate_refusals.add();
    let body = ApiBody::failure(ResponseCode::AUTHENTICATION_NEEDED, Some(message), None);
    let mut response = respond(state, request, StatusCode::UNAUTHORIZED, body);
    sessions::add_challenge(state, request, &mut response, error).await;
    response
}
