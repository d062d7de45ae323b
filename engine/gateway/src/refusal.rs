//! Answers to requests that are refused before routing: JSON below `/api`, a page elsewhere.

use crate::api::body::ApiBody;
use crate::config::Config;
use crate::pages::{CONTENT_SECURITY_POLICY, ErrorPage, LANGUAGES, PageError, PageFrame, language_of};
use crate::proxy::config::PagesConfig;
use crate::reply::{GatewayResponse, empty, response, set_number};
use crate::route::Route;
use handle_daemon::source_rates::RetryAfter;
use handle_proto::ResponseCode;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, StatusCode};

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpRefusal {
    /// The request violates HTTP.
    Malformed(&'static str),
    /// The head did not arrive in time.
    HeadLate,
    /// The head is too long.
    HeadTooLong,
    /// The body did not arrive in time.
    BodyLate,
    /// The body is too long.
    BodyTooLong,
    /// The bodies of all requests together are too long.
    NoCapacity,
    /// The answers that wait for clients are too long together.
    TooManyAnswers,
    /// The source exceeds its rate of requests.
    TooMany(RetryAfter),
    /// The source has sent too many wrong secret keys.
    TooManySecrets(RetryAfter),
}

/// The answer to OPTIONS, and the refusal of methods that `route` does not have.
#[must_use]
pub fn refuse_method(route: Route, method: &Method) -> GatewayResponse {
    let is_asked = *method == Method::OPTIONS;
    let mut response = empty(if is_asked { StatusCode::OK } else { StatusCode::METHOD_NOT_ALLOWED });
    response.headers_mut().insert(header::ALLOW, route.allow());
    response
}

impl HttpRefusal {
    /// The refusal of a body that could not be read.
    #[must_use]
    pub fn of_body(status: StatusCode) -> Self {
        match status {
            StatusCode::REQUEST_TIMEOUT => Self::BodyLate,
            StatusCode::PAYLOAD_TOO_LARGE => Self::BodyTooLong,
            StatusCode::SERVICE_UNAVAILABLE => Self::NoCapacity,
            _ => Self::Malformed("The body is malformed"),
        }
    }

    const fn page(self) -> PageError {
        match self {
            Self::Malformed(_) => PageError::Malformed,
            Self::HeadLate | Self::BodyLate => PageError::RequestLate,
            Self::HeadTooLong => PageError::HeadTooLong,
            Self::BodyTooLong => PageError::BodyTooLong,
            Self::NoCapacity | Self::TooManyAnswers => PageError::Busy,
            Self::TooMany(_) | Self::TooManySecrets(_) => PageError::TooMany,
        }
    }

    /// The status of the answer.
    #[must_use]
    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.page().status()).unwrap_or(StatusCode::BAD_REQUEST)
    }

    /// One sentence.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::Malformed(message) => message,
            Self::HeadLate => "The head of the request did not arrive in time",
            Self::HeadTooLong => "The head of the request is too long",
            Self::BodyLate => "The body did not arrive in time",
            Self::BodyTooLong => "The body is too long",
            Self::NoCapacity => "Too many bodies are being received",
            Self::TooManyAnswers => "Too many answers wait for clients of your network",
            Self::TooMany(_) => "Too many requests came from your network",
            Self::TooManySecrets(_) => "Too many wrong secret keys came from your network",
        }
    }

    const fn code(self) -> ResponseCode {
        match self {
            Self::NoCapacity | Self::TooManyAnswers | Self::TooMany(_) | Self::TooManySecrets(_) => {
                ResponseCode::SERVER_BUSY
            }
            _ => ResponseCode::PROTOCOL_ERROR,
        }
    }

    /// The response to a request of `route`.
    #[must_use]
    pub fn respond(self, route: Route, headers: &HeaderMap, settings: &Config) -> GatewayResponse {
        match route.is_api() {
            true => self.respond_json(settings),
            false => self.with_headers(self.as_page(headers, &settings.pages), settings),
        }
    }

    /// The response to a request of the API.
    #[must_use]
    pub fn respond_json(self, settings: &Config) -> GatewayResponse {
        let body = ApiBody::failure(self.code(), Some(self.message()), None);
        let response = response(self.status(), "application/json;charset=utf-8", body.into_bytes());
        self.with_headers(response, settings)
    }

    fn with_headers(self, mut response: GatewayResponse, settings: &Config) -> GatewayResponse {
        let response_headers = response.headers_mut();
        response_headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response_headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let retry_after_s = match self {
            Self::NoCapacity | Self::TooManyAnswers => Some(settings.upstream.retry_after_s),
            Self::TooMany(RetryAfter { seconds }) | Self::TooManySecrets(RetryAfter { seconds }) => {
                Some(seconds)
            }
            _ => None,
        };
        if let Some(seconds) = retry_after_s {
            set_number(&mut response, header::RETRY_AFTER, seconds);
        }
        response
    }

    fn as_page(self, headers: &HeaderMap, pages: &PagesConfig) -> GatewayResponse {
        let accepted = headers.get(header::ACCEPT_LANGUAGE).and_then(|value| value.to_str().ok());
        let language = accepted.map_or(&LANGUAGES[0], language_of);
        let frame = PageFrame { language, service: &pages.service_name, base: "/" };
        let page = ErrorPage::new(frame, self.page()).because(self.message());
        let page = page.with_notice(pages.contact.as_deref(), None).html();
        let mut response = response(self.status(), "text/html;charset=utf-8", page);
        let headers = response.headers_mut();
        let policy = HeaderValue::from_static(CONTENT_SECURITY_POLICY);
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
        headers.insert(header::CONTENT_LANGUAGE, HeaderValue::from_static(language.tag));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_that_a_route_does_not_have_is_refused() {
        let refused = refuse_method(Route::Robots, &Method::POST);
        assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(refused.headers()[header::ALLOW], Route::Robots.allow());
        assert_eq!(refuse_method(Route::Robots, &Method::OPTIONS).status(), StatusCode::OK);
    }

    #[test]
    fn the_api_answers_in_json_and_the_proxy_with_pages() {
        let settings = Config::default();
        let respond = |refusal: HttpRefusal, route| refusal.respond(route, &HeaderMap::new(), &settings);
        for (route, is_json) in [
            (Route::Record, true),
            (Route::UnknownEndpoint, true),
            (Route::Search, false),
            (Route::AdminNew, false),
            (Route::Handle, false),
        ] {
            let response = respond(HttpRefusal::BodyTooLong, route);
            assert_eq!(response.status(), 413);
            let content_type = response.headers()[header::CONTENT_TYPE].to_str().unwrap();
            assert_eq!(content_type.starts_with("application/json"), is_json, "{route:?}");
            assert_eq!(
                response.headers().contains_key(header::CONTENT_SECURITY_POLICY),
                !is_json,
                "{route:?}"
            );
        }
        let status = |refusal: HttpRefusal| refusal.status().as_u16();
        assert_eq!([HttpRefusal::HeadLate, HttpRefusal::HeadTooLong].map(status), [408, 431]);
        assert_eq!([HttpRefusal::NoCapacity, HttpRefusal::Malformed("x")].map(status), [503, 400]);
        let limited = respond(HttpRefusal::TooMany(RetryAfter { seconds: 7 }), Route::Form);
        assert_eq!(
            (limited.status().as_u16(), &limited.headers()[header::RETRY_AFTER]),
            (429, &"7".parse().unwrap())
        );
        let busy = respond(HttpRefusal::NoCapacity, Route::Form);
        assert!(busy.headers().contains_key(header::RETRY_AFTER));
    }
}
