//! A request to the API, and the answers that its endpoints have in common.

use crate::administration::ServiceError;
use crate::api::body::{ApiBody, ApiFormat};
use crate::config::Config;
use crate::connections::certificate::ConnectionCertificate;
use crate::peer::HttpPeer;
use crate::reply::{
    BodyTag, BodyText, CacheableBody, Freshness, GatewayResponse, RequestHeaders, SharedText, set_number,
};
use crate::route::Route;
use crate::state::GatewayState;
use handle_client::administration::AskError;
use handle_console::parameters::Parameters;
use handle_proto::ResponseCode;
use handle_proto::limit::MESSAGE_LEN_MAX;
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};

/// A request to the API.
#[derive(Debug)]
pub struct ApiRequest<'r> {
    /// The method and headers.
    pub head: RequestHeaders<'r>,
    /// The other side of the connection.
    pub peer: HttpPeer,
    /// The certificate of the client, where clients may show one.
    pub certificate: Option<&'r ConnectionCertificate>,
    /// The path, as it was sent.
    pub path: &'r str,
    /// Its route.
    pub route: Route,
    /// The part of it that varies.
    pub name: &'r str,
    /// The parameters in the query.
    pub parameters: Parameters<'r>,
    /// How the body of the answer is written.
    pub format: ApiFormat,
}

/// The response with a body of JSON that is not cached.
pub(crate) fn respond(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    status: StatusCode,
    body: ApiBody,
) -> GatewayResponse {
    body.respond(status, Freshness::NoStore, request, &state.settings.current())
}

impl ApiBody {
    /// The response in the format that the request asks for.
    #[must_use]
    pub fn respond(
        self,
        status: StatusCode,
        freshness: Freshness,
        request: &ApiRequest<'_>,
        settings: &Config,
    ) -> GatewayResponse {
        self.respond_tagged(status, freshness, BodyTag::Bytes, request, settings)
    }

    /// Like [`respond`](Self::respond), with a tag that is made of `tag`.
    #[must_use]
    pub fn respond_tagged(
        self,
        status: StatusCode,
        freshness: Freshness,
        tag: BodyTag,
        request: &ApiRequest<'_>,
        settings: &Config,
    ) -> GatewayResponse {
        // Another form of the record at another URL.
        let tag = match tag {
            BodyTag::Record(tag) if request.format != ApiFormat::default() => BodyTag::RecordAndBytes(tag),
            tag => tag,
        };
        let bytes = self.formatted(&request.format).into_bytes().into();
        respond_with(bytes, status, freshness, tag, request, settings)
    }
}

/// The response with a document of the program, in the format that the request asks for.
#[must_use]
pub fn respond_shared(
    document: &'static SharedText,
    freshness: Freshness,
    request: &ApiRequest<'_>,
    settings: &Config,
) -> GatewayResponse {
    if request.format == ApiFormat::default() {
        return respond_with(
            BodyText::Shared(document),
            StatusCode::OK,
            freshness,
            BodyTag::Bytes,
            request,
            settings,
        );
    }
    ApiBody::of_text(document.text.to_owned()).respond(StatusCode::OK, freshness, request, settings)
}

fn respond_with(
    bytes: BodyText,
    status: StatusCode,
    freshness: Freshness,
    tag: BodyTag,
    request: &ApiRequest<'_>,
    settings: &Config,
) -> GatewayResponse {
    let content_type = match request.format.callback {
        Some(_) => "application/javascript;charset=utf-8",
        None => "application/json;charset=utf-8",
    };
    let body = CacheableBody { content_type, bytes, freshness, tag };
    let mut response = body.respond(status, request.head, settings);
    let nosniff = HeaderValue::from_static("nosniff");
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    response
}

/// Why a request is refused.
#[derive(Debug)]
pub(crate) struct ApiRefusal {
    pub(crate) status: StatusCode,
    pub(crate) code: ResponseCode,
    pub(crate) message: String,
}

impl ApiRefusal {
    pub(crate) fn new(status: StatusCode, code: ResponseCode, message: &str) -> Self {
        Self { status, code, message: message.to_owned() }
    }

    /// A request that is wrong in itself.
    pub(crate) fn bad(code: ResponseCode, message: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// A request that met a bug.
    pub(crate) fn bug() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, ResponseCode::ERROR, "The request met a bug")
    }

    /// The response. Errors of form name no handle, as deployed.
    pub(crate) fn respond(
        &self,
        state: &GatewayState,
        request: &ApiRequest<'_>,
        about: Option<&str>,
    ) -> GatewayResponse {
        let about = about.filter(|_| self.code != ResponseCode::PROTOCOL_ERROR);
        respond(state, request, self.status, ApiBody::failure(self.code, Some(&self.message), about))
    }
}

/// Refuses a request without a caller: over TLS the client is told how to authenticate.
pub(crate) fn challenge(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    about: Option<&str>,
) -> GatewayResponse {
    let body = ApiBody::failure(ResponseCode::AUTHENTICATION_NEEDED, None, about);
    if !request.peer.is_confidential {
        return respond(state, request, StatusCode::FORBIDDEN, body);
    }
    // `sessions::add_authentication_headers` adds the schemes to every refusal.
    respond(state, request, StatusCode::UNAUTHORIZED, body)
}

/// The message for callers if no administration service is configured.
pub(crate) const NO_ADMIN: &str = "This gateway has no administration service";

/// The message about a change that does not fit into [`MESSAGE_LEN_MAX`] bytes.
const TOO_LONG: &str =
    "The values are longer than a message of the handle protocol, which has at most 256 KiB";

const _: () = assert!(MESSAGE_LEN_MAX == 256 << 10, "as the message says");

/// How a client can authenticate.
pub(crate) const BASIC: HeaderValue = HeaderValue::from_static("Basic realm=\"handle\"");

/// The answer to credentials that `handle-admin` refuses with `code` and `text`.
pub(crate) fn unauthorized(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    code: ResponseCode,
    text: &str,
    about: Option<&str>,
) -> GatewayResponse {
    let message = match code {
        ResponseCode::AUTHENTICATION_FAILED if text.is_empty() => WRONG_SECRET.to_owned(),
        ResponseCode::AUTHENTICATION_FAILED => format!("{WRONG_SECRET}: {text}"),
        _ if text.is_empty() => "The identity could not be verified".to_owned(),
        _ => text.to_owned(),
    };
    respond(state, request, StatusCode::UNAUTHORIZED, ApiBody::failure(code, Some(&message), about))
}

const WRONG_SECRET: &str = "Wrong secret, or unknown identity";

/// The sentence of a refusal that the service explains; `None` for one without a text.
pub(crate) fn reason(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// The answer when the administration service gave none.
pub(crate) fn admin_refusal(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    error: &ServiceError,
    about: Option<&str>,
) -> GatewayResponse {
    if let ServiceError::Ask(AskError::TooLong(_)) = error {
        let refusal = ApiRefusal::bad(ResponseCode::INVALID_VALUE, TOO_LONG);
        return refusal.respond(state, request, about);
    }
    let (status, code) = match error {
        ServiceError::Busy => (StatusCode::SERVICE_UNAVAILABLE, ResponseCode::SERVER_BUSY),
        ServiceError::Ask(AskError::Late) => (StatusCode::GATEWAY_TIMEOUT, ResponseCode::ERROR),
        ServiceError::Ask(_) => (StatusCode::BAD_GATEWAY, ResponseCode::ERROR),
        ServiceError::Bug => (StatusCode::INTERNAL_SERVER_ERROR, ResponseCode::ERROR),
    };
    let body = ApiBody::failure(code, Some("The administration service did not answer"), about);
    let mut response = respond(state, request, status, body);
    set_number(&mut response, header::RETRY_AFTER, state.settings.current().upstream.retry_after_s);
    response
}

pub(crate) fn unsupported(state: &GatewayState, request: &ApiRequest<'_>, message: &str) -> GatewayResponse {
    let body = ApiBody::failure(ResponseCode::OPERATION_NOT_SUPPORTED, Some(message), None);
    respond(state, request, StatusCode::NOT_IMPLEMENTED, body)
}

/// The HTTP status for a response code.
#[must_use]
pub fn status_of(code: ResponseCode, resolves: bool) -> StatusCode {
    match code {
        ResponseCode::SUCCESS => StatusCode::OK,
        ResponseCode::VALUES_NOT_FOUND if resolves => StatusCode::OK,
        ResponseCode::ERROR | ResponseCode::RECURSION_COUNT_TOO_HIGH => StatusCode::INTERNAL_SERVER_ERROR,
        ResponseCode::SERVER_BUSY | ResponseCode::SERVER_READ_ONLY => StatusCode::SERVICE_UNAVAILABLE,
        ResponseCode::OPERATION_NOT_SUPPORTED => StatusCode::NOT_IMPLEMENTED,
        ResponseCode::HANDLE_NOT_FOUND => StatusCode::NOT_FOUND,
        ResponseCode::HANDLE_ALREADY_EXISTS | ResponseCode::VALUE_ALREADY_EXISTS => StatusCode::CONFLICT,
        // As deployed; `http.jsonl`, `get/name/referral_site`.
        ResponseCode::SERVICE_REFERRAL | ResponseCode::PREFIX_REFERRAL => StatusCode::MULTIPLE_CHOICES,
        ResponseCode(400..=406) => StatusCode::FORBIDDEN,
        ResponseCode::CONDITION_FAILED => StatusCode::PRECONDITION_FAILED,
        ResponseCode(500..=505) => StatusCode::UNAUTHORIZED,
        _ => StatusCode::BAD_REQUEST,
    }
}
