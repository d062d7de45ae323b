//! The paths that the gateway serves, and their methods, as the OpenAPI document describes them.
//!
//! Every path also answers OPTIONS, and HEAD where it answers GET.

use crate::reply::{GatewayResponse, empty};
use hyper::header::{self, HeaderValue};
use hyper::{Method, StatusCode};

/// The OpenAPI document of all paths.
pub const OPENAPI: &str = include_str!("../openapi.json");

/// A path, with a name in braces for each part that varies, and its methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpRoute {
    /// The path.
    pub path: &'static str,
    /// The methods that do something, as `Allow` lists them.
    pub allowed: &'static str,
}

const READ: &str = "GET, HEAD, OPTIONS";
const READ_OR_SEND: &str = "GET, HEAD, POST, OPTIONS";
const SEND: &str = "POST, OPTIONS";

impl HttpRoute {
    const fn new(path: &'static str, allowed: &'static str) -> Self {
        Self { path, allowed }
    }

    /// The value of `Allow`.
    #[must_use]
    pub const fn allow(self) -> HeaderValue {
        HeaderValue::from_static(self.allowed)
    }

    /// The route of a path outside `/api`.
    #[must_use]
    pub fn of_page(path: &str) -> Self {
        // The pages of administration also have paths without the slash at their end.
        let is_path = |route: &&Self| route.path.trim_end_matches('/') == path.trim_end_matches('/');
        Self::TABLE.iter().find(is_path).copied().unwrap_or(Self::PROXY)
    }

    /// Whether a method is among those of the route.
    #[must_use]
    pub fn has(self, method: &Method) -> bool {
        self.allowed.split(", ").any(|allowed| allowed == method.as_str())
    }

    /// The answer to OPTIONS, and the refusal of methods that the route does not have.
    #[must_use]
    pub fn refuse(self, method: &Method) -> GatewayResponse {
        let is_asked = *method == Method::OPTIONS;
        let mut response = empty(if is_asked { StatusCode::OK } else { StatusCode::METHOD_NOT_ALLOWED });
        response.headers_mut().insert(header::ALLOW, self.allow());
        response
    }

    /// The record of a handle. POST is answered like GET, as deployed.
    pub const HANDLE: Self = Self::new("/api/handles/{handle}", "GET, HEAD, POST, PUT, DELETE, OPTIONS");
    /// The handles of a prefix.
    pub const HANDLES: Self = Self::new("/api/handles", READ_OR_SEND);
    /// The prefixes of the service.
    pub const PREFIXES: Self = Self::new("/api/prefixes", "GET, HEAD, POST, DELETE, OPTIONS");
    /// Reading many records.
    pub const RESOLVE: Self = Self::new("/api/resolve", SEND);
    /// Changing many records.
    pub const BATCH: Self = Self::new("/api/batch", SEND);
    /// The site record.
    pub const SITE: Self = Self::new("/api/site", READ_OR_SEND);
    /// Opening a session.
    pub const SESSIONS: Self = Self::new("/api/sessions", SEND);
    /// The session that the credentials name.
    pub const THIS_SESSION: Self = Self::new("/api/sessions/this", "GET, HEAD, PUT, DELETE, OPTIONS");
    /// Verifying a MAC.
    pub const VERIFICATIONS: Self = Self::new("/api/verifications/{identity}", READ_OR_SEND);
    /// Handles by the values of their records.
    pub const SEARCH: Self = Self::new("/hrls/handles", READ);
    /// Those of a prefix.
    pub const SEARCH_PREFIX: Self = Self::new("/hrls/handles/{prefix}", READ);
    /// Whether searches are answered.
    pub const SEARCH_PING: Self = Self::new("/hrls/ping", READ);
    /// [`OPENAPI`].
    pub const DOCUMENT: Self = Self::new("/api/openapi.json", READ);
    /// A path below `/api` that is none of these.
    pub(crate) const UNKNOWN: Self = Self::new("/api/{unknown}", "OPTIONS");
    /// Any other path: a handle, or the handle protocol.
    pub const PROXY: Self = Self::new("/{handle}", READ_OR_SEND);

    /// Every route.
    pub const TABLE: [Self; 36] = [
        Self::HANDLE,
        Self::HANDLES,
        Self::PREFIXES,
        Self::RESOLVE,
        Self::BATCH,
        Self::SITE,
        Self::SESSIONS,
        Self::THIS_SESSION,
        Self::VERIFICATIONS,
        Self::SEARCH,
        Self::SEARCH_PREFIX,
        Self::SEARCH_PING,
        Self::DOCUMENT,
        Self::PROXY,
        Self::new("/", READ_OR_SEND),
        Self::new("/doiRA/{names}", READ_OR_SEND),
        Self::new("/.well-known/acme-challenge/{token}", READ_OR_SEND),
        Self::new("/help.html", READ_OR_SEND),
        Self::new("/robots.txt", READ),
        Self::new("/favicon.ico", READ),
        Self::new("/static/gateway.css", READ),
        Self::new("/static/gateway.svg", READ),
        Self::new("/static/admin.js", READ),
        Self::new("/admin/", READ),
        Self::new("/admin/sign-in", READ_OR_SEND),
        Self::new("/admin/sign-out", SEND),
        Self::new("/admin/new", READ),
        Self::new("/admin/record", READ_OR_SEND),
        Self::new("/admin/upload", READ_OR_SEND),
        Self::new("/admin/result.csv", SEND),
        Self::new("/admin/registrations", READ),
        Self::new("/admin/registration", READ_OR_SEND),
        Self::new("/admin/registration/siteinfo.json", READ),
        Self::new("/admin/registration/admin-public.bin", READ),
        Self::new("/register", READ_OR_SEND),
        Self::new("/register/request", READ),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_the_methods_of_its_route() {
        let allowed = |path: &str| HttpRoute::of_page(path).allowed;
        assert_eq!([allowed("/admin"), allowed("/admin/new"), allowed("/robots.txt")], [READ; 3]);
        assert_eq!(allowed("/admin/sign-out"), SEND);
        assert_eq!([allowed("/"), allowed("/20.500.1/x"), allowed("/help.html")], [READ_OR_SEND; 3]);
        let route = HttpRoute::of_page("/robots.txt");
        assert!(route.has(&Method::GET) && !route.has(&Method::POST) && !route.has(&Method::PUT));
        assert_eq!(route.refuse(&Method::POST).status(), StatusCode::METHOD_NOT_ALLOWED);
        let asked = route.refuse(&Method::OPTIONS);
        assert_eq!((asked.status(), &asked.headers()[header::ALLOW]), (StatusCode::OK, &route.allow()));
    }
}
