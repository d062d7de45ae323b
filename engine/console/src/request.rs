//! A request for a page.

use crate::admin_pages::config::AdminPagesConfig;
use crate::pages::PageFrame;
use crate::registration::config::RegistrationConfig;
use crate::reply::{ConsoleResponse, empty, plain};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use std::net::IpAddr;

/// A request, and the settings in force. It has no `Debug`: a cookie has the id of the session.
#[derive(Clone, Copy)]
pub struct ConsoleRequest<'r> {
    /// Its head.
    pub parts: &'r Parts,
    /// The address of the client.
    pub address: IpAddr,
    /// Whether nobody on the way can read it.
    pub is_confidential: bool,
    /// What all pages have in common.
    pub frame: PageFrame<'r>,
    /// What the locations of redirects begin with that name a page to everybody.
    pub redirect_base: &'r str,
    /// Settings of the administration pages.
    pub admin_pages: &'r AdminPagesConfig,
    /// Settings of the registration of prefixes.
    pub registration: &'r RegistrationConfig,
    /// Which clients count together in rates; `None` if this one is exempt.
    pub rate_networks: Option<RateNetworks>,
}

/// Length of the prefixes of addresses that identify a source, in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateNetworks {
    /// Of an IPv4 address.
    pub ipv4_bits: u8,
    /// Of an IPv6 address.
    pub ipv6_bits: u8,
}

impl ConsoleRequest<'_> {
    /// The query of the URL.
    #[must_use]
    pub fn query(&self) -> &str {
        self.parts.uri.query().unwrap_or_default()
    }

    /// The text of a header.
    #[must_use]
    pub fn header(&self, name: HeaderName) -> Option<&str> {
        self.parts.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Redirects to the same page over TLS, on the same port.
    #[must_use]
    pub fn to_tls(&self) -> ConsoleResponse {
        let secure = self.frame.base.strip_prefix("http://").filter(|_| self.parts.method == Method::GET);
        let target = secure.and_then(|rest| {
            let path = self.parts.uri.path_and_query()?.as_str();
            HeaderValue::try_from(format!("https://{}{path}", rest.trim_end_matches('/'))).ok()
        });
        match target {
            Some(target) => {
                let mut response = empty(StatusCode::TEMPORARY_REDIRECT);
                response.headers_mut().insert(header::LOCATION, target);
                // Another scheme needs the name of the host, which may be what the sender made up.
                response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
                response
            }
            None => plain(StatusCode::FORBIDDEN, "administration needs TLS\n"),
        }
    }

    /// Whether the `Origin` header, if there is one, is that of this gateway. Programs may omit it.
    #[must_use]
    pub fn has_own_origin(&self) -> bool {
        let origin = self.parts.headers.get(header::ORIGIN).map(HeaderValue::as_bytes);
        let own = self.frame.base.strip_suffix('/').map(str::as_bytes);
        origin.is_none_or(|origin| own == Some(origin))
    }
}
