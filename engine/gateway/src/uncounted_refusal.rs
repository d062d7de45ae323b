//! The refusal of an answer for which there is no capacity.

use crate::reply::{GatewayResponse, allow_origin_of, empty, set_number};
use crate::route::Route;
use crate::state::GatewayState;
use crate::stream::ResponseBody;
use hyper::body::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{StatusCode, Version};

/// The refusal of an answer for which there is no capacity. Its own bytes do not count, because it
/// has none, or the same as all others.
#[derive(Clone, Debug)]
pub struct UncountedRefusal {
    is_api: bool,
    is_http2: bool,
    origin: Option<HeaderValue>,
}

impl UncountedRefusal {
    /// The refusal of a request from `origin`.
    #[must_use]
    pub fn new(route: Route, version: Version, origin: Option<HeaderValue>) -> Self {
        Self { is_api: route.is_api(), is_http2: version == Version::HTTP_2, origin }
    }

    /// The response.
    #[must_use]
    pub fn respond(self, state: &GatewayState) -> GatewayResponse {
        state.answers.note_refusal();
        let (content_type, text) = match self.is_api {
            true => ("application/json;charset=utf-8", TOO_MANY_ANSWERS_JSON),
            false => ("text/plain;charset=utf-8", TOO_MANY_ANSWERS),
        };
        let mut response = empty(StatusCode::SERVICE_UNAVAILABLE);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        set_number(&mut response, header::RETRY_AFTER, state.settings.current().upstream.retry_after_s);
        allow_origin_of(self.origin, &mut response);
        // A client of HTTP/2 need not take it, and its stream would wait like the others.
        if !self.is_http2 {
            *response.body_mut() = ResponseBody::shared(Bytes::from_static(text.as_bytes()));
        }
        response
    }
}

const TOO_MANY_ANSWERS: &str = "Too many answers wait for clients of your network\n";

const TOO_MANY_ANSWERS_JSON: &str =
    r#"{"responseCode":3,"message":"Too many answers wait for clients of your network"}"#;
