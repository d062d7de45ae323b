//! Who makes a request: credentials in `Authorization`, over TLS only.

use crate::api::basic::basic;
use crate::api::request::{ApiRequest, unauthorized};
use crate::api::scheme::HandleCredentials;
use crate::api::{certificates, sessions};
use crate::reply::GatewayResponse;
use crate::state::GatewayState;
use handle_client::administration::ClientIdentity;
use handle_proto::ResponseCode;
use hyper::header;
use std::sync::Arc;

/// The message about credentials of another form.
const UNREADABLE: &str =
    "Credentials cannot be read: expected Basic with index:handle, its colon as %3A, and the secret";

/// Who makes a request.
#[derive(Debug)]
pub enum Caller {
    /// No credentials, or plain HTTP, where they are ignored.
    Anonymous,
    /// An identity with its secret, or with a session of `handle-admin`.
    Identity(Arc<ClientIdentity>),
    /// Credentials that cannot be used, or are wrong.
    Refused(GatewayResponse),
}

impl Caller {
    /// The caller of a request.
    pub async fn of(state: &GatewayState, request: &ApiRequest<'_>) -> Self {
        let Some(credentials) =
            request.head.headers.get(header::AUTHORIZATION).filter(|_| request.peer.is_confidential)
        else {
            return Self::Anonymous;
        };
        if let Some(credentials) = sessions::credentials(request) {
            if credentials.as_ref().is_some_and(HandleCredentials::means_certificate) {
                return certificates::caller(state, request).await.map_or_else(Self::Refused, Self::Identity);
            }
            return match sessions::caller(state, request, credentials).await {
                Ok(Some(identity)) => Self::Identity(identity),
                Ok(None) => Self::Anonymous,
                Err(refused) => Self::Refused(refused),
            };
        }
        let basic = credentials.to_str().ok().and_then(basic);
        let refused = || {
            let code = ResponseCode::INVALID_CREDENTIAL;
            Self::Refused(unauthorized(state, request, code, UNREADABLE, None))
        };
        basic.map_or_else(refused, |identity| Self::Identity(Arc::new(identity)))
    }
}
