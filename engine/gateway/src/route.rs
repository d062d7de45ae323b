//! The paths that the gateway serves, and their methods, as the OpenAPI document describes them.
//!
//! The path of a request is parsed once, before anything is decided about the request. Every path
//! also answers OPTIONS, and HEAD where it answers GET.

use handle_console::admin_pages::AdminPage;
use handle_console::registration::applicant_pages::ApplicantPage;
use hyper::Method;
use hyper::header::HeaderValue;

/// The OpenAPI document of all paths.
pub const OPENAPI: &str = include_str!("../openapi.json");

/// The part of the process that answers the requests of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteGroup {
    /// The JSON API below `/api`.
    Api,
    /// Searches, which answer like the API.
    Search,
    /// Administration pages. Where they are not served, the path is that of a handle.
    Admin(AdminPage),
    /// Pages for applicants for a prefix. Where they are not served, the path is that of a handle.
    Applicant(ApplicantPage),
    /// Everything else: redirects, and pages about handles.
    Proxy,
}

/// Which further paths a route has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathEnd {
    /// None.
    Exact,
    /// The same with a slash at its end.
    Slash,
    /// The same with any number of slashes at its end.
    Slashes,
    /// Those with anything in place of the name in braces.
    Rest,
    /// The same, and the one without the slash before the name.
    RestOrNone,
}

/// A row of the table of routes.
#[derive(Clone, Copy, Debug)]
struct RouteRow {
    path: &'static str,
    /// The path up to the part that varies.
    fixed: &'static str,
    allowed: &'static str,
    group: RouteGroup,
    end: PathEnd,
}

const READ: &str = "GET, HEAD, OPTIONS";
const READ_OR_SEND: &str = "GET, HEAD, POST, OPTIONS";
const SEND: &str = "POST, OPTIONS";

/// Makes the enumeration and its table. A row is the path with a name in braces for the part that
/// varies, the methods that do something, as `Allow` lists them, the group, and the end.
macro_rules! routes {
    ($($(#[$doc:meta])* $name:ident: $path:literal, $allowed:expr, $group:expr, $end:ident;)*) => {
        /// What a path names.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Route {
            $($(#[$doc])* $name,)*
        }

        impl Route {
            const ALL: &[Self] = &[$(Self::$name),*];

            const fn row(self) -> RouteRow {
                use RouteGroup::{Admin, Api, Applicant, Proxy, Search};
                match self {
                    $(Self::$name => RouteRow {
                        path: $path,
                        fixed: const { fixed($path) },
                        allowed: $allowed,
                        group: $group,
                        end: PathEnd::$end,
                    },)*
                }
            }
        }
    };
}

// The first row that a path fits is its route.
routes! {
    /// The handles of a prefix.
    Handles: "/api/handles", READ_OR_SEND, Api, Slash;
    /// The record of a handle. POST is answered like GET, as deployed.
    Record: "/api/handles/{handle}", "GET, HEAD, POST, PUT, DELETE, OPTIONS", Api, Rest;
    /// The prefixes of the service.
    Prefixes: "/api/prefixes", "GET, HEAD, POST, DELETE, OPTIONS", Api, Slash;
    /// Reading many records.
    Resolve: "/api/resolve", SEND, Api, Slash;
    /// Changing many records.
    Batch: "/api/batch", SEND, Api, Slash;
    /// The site record.
    Site: "/api/site", READ_OR_SEND, Api, Slash;
    /// Opening a session.
    Sessions: "/api/sessions", SEND, Api, Slash;
    /// The session that the credentials name.
    ThisSession: "/api/sessions/this", "GET, HEAD, PUT, DELETE, OPTIONS", Api, Exact;
    /// Verifying a MAC.
    Verifications: "/api/verifications/{identity}", READ_OR_SEND, Api, RestOrNone;
    /// [`OPENAPI`].
    Document: "/api/openapi.json", READ, Api, Exact;
    /// A path below `/api` that is none of these.
    UnknownEndpoint: "/api/{unknown}", "OPTIONS", Api, RestOrNone;
    /// Handles by the values of their records.
    Search: "/hrls/handles", READ, Search, Slashes;
    /// Those of a prefix.
    SearchPrefix: "/hrls/handles/{prefix}", READ, Search, Rest;
    /// Whether searches are answered.
    SearchPing: "/hrls/ping", READ, Search, Slashes;
    /// The page with the form.
    Form: "/", READ_OR_SEND, Proxy, Exact;
    /// The agencies of prefixes.
    Agencies: "/doiRA/{names}", READ_OR_SEND, Proxy, Rest;
    /// What the authority of the certificate asks for.
    Challenge: "/.well-known/acme-challenge/{token}", READ_OR_SEND, Proxy, Rest;
    /// The help of the service.
    Help: "/help.html", READ_OR_SEND, Proxy, Exact;
    /// Rules for crawlers.
    Robots: "/robots.txt", READ, Proxy, Exact;
    /// The icon at the path where browsers look for it.
    Favicon: "/favicon.ico", READ, Proxy, Exact;
    /// The style of all pages.
    Style: "/static/gateway.css", READ, Proxy, Exact;
    /// The icon.
    Icon: "/static/gateway.svg", READ, Proxy, Exact;
    /// The script of the administration pages.
    AdminScript: "/static/admin.js", READ, Proxy, Exact;
    /// The records that a signed-in user administers.
    AdminHome: "/admin/", READ, Admin(AdminPage::Home), Slashes;
    /// Signing in.
    AdminSignIn: "/admin/sign-in", READ_OR_SEND, Admin(AdminPage::SignIn), Slashes;
    /// Signing out.
    AdminSignOut: "/admin/sign-out", SEND, Admin(AdminPage::SignOut), Slashes;
    /// The form for a new record.
    AdminNew: "/admin/new", READ, Admin(AdminPage::New), Slashes;
    /// The form of a record.
    AdminRecord: "/admin/record", READ_OR_SEND, Admin(AdminPage::Record), Slashes;
    /// Many records from a file.
    AdminUpload: "/admin/upload", READ_OR_SEND, Admin(AdminPage::Upload), Slashes;
    /// The outcome of each of them.
    AdminResult: "/admin/result.csv", SEND, Admin(AdminPage::Result), Slashes;
    /// Requests for prefixes.
    AdminRegistrations: "/admin/registrations", READ, Admin(AdminPage::Registrations), Slashes;
    /// One of them.
    AdminRegistration: "/admin/registration", READ_OR_SEND, Admin(AdminPage::Registration), Slashes;
    /// Its site record.
    AdminRegistrationSite: "/admin/registration/siteinfo.json", READ, Admin(AdminPage::RegistrationSite), Slashes;
    /// Its key.
    AdminRegistrationKey: "/admin/registration/admin-public.bin", READ, Admin(AdminPage::RegistrationKey), Slashes;
    /// A path below `/admin` that is none of these.
    UnknownAdminPage: "/admin/{unknown}", READ_OR_SEND, Admin(AdminPage::Unknown), Rest;
    /// The form of applicants for a prefix.
    Register: "/register", READ_OR_SEND, Applicant(ApplicantPage::Form), Slashes;
    /// The state of a request for a prefix.
    RegisterRequest: "/register/request", READ, Applicant(ApplicantPage::Request), Slashes;
    /// A path below `/register` that is none of these.
    UnknownApplicantPage: "/register/{unknown}", READ_OR_SEND, Applicant(ApplicantPage::Unknown), Rest;
    /// Any other path: a handle, or the handle protocol.
    Handle: "/{handle}", READ_OR_SEND, Proxy, Rest;
}

/// A path up to the name in braces.
const fn fixed(path: &'static str) -> &'static str {
    let (bytes, mut len) = (path.as_bytes(), 0);
    while len < bytes.len() && bytes[len] != b'{' {
        len += 1;
    }
    path.split_at(len).0
}

impl RouteRow {
    /// Where the part of `path` that varies begins; `None` if the row does not fit.
    fn fit(self, path: &str) -> Option<usize> {
        let fixed = self.fixed;
        let starts = |start: &str| {
            let (path, start) = (path.as_bytes(), start.as_bytes());
            // The first segment of the API in any case of letters, as deployed; vector
            // `endpoint/api/HANDLES/10.5072/URL-ONE`.
            let any_case = if self.group == RouteGroup::Api { "/api".len() } else { 0 };
            path.len() >= start.len()
                && path[..any_case].eq_ignore_ascii_case(&start[..any_case])
                && path[any_case..start.len()] == start[any_case..]
        };
        let bare = fixed.trim_end_matches('/');
        let fits = match self.end {
            PathEnd::Exact => path.len() == fixed.len() && starts(fixed),
            PathEnd::Slash => starts(fixed) && matches!(&path.as_bytes()[fixed.len()..], b"" | b"/"),
            PathEnd::Slashes => path.trim_end_matches('/').len() == bare.len() && starts(bare),
            PathEnd::Rest => starts(fixed),
            PathEnd::RestOrNone => starts(fixed) || (path.len() == bare.len() && starts(bare)),
        };
        let has_variable = fixed.len() < self.path.len();
        fits.then(|| if has_variable { fixed.len().min(path.len()) } else { path.len() })
    }
}

impl Route {
    /// The routes that the OpenAPI document describes.
    pub fn described() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|route| !route.path().contains("{unknown}"))
    }

    /// The path, with a name in braces for the part that varies.
    #[must_use]
    pub const fn path(self) -> &'static str {
        self.row().path
    }

    /// The methods that do something, as `Allow` lists them.
    #[must_use]
    pub const fn allowed(self) -> &'static str {
        self.row().allowed
    }

    /// Which part of the process answers, if it is switched on.
    #[must_use]
    pub const fn group(self) -> RouteGroup {
        self.row().group
    }

    /// Whether errors are JSON, as in the API.
    #[must_use]
    pub const fn is_api(self) -> bool {
        matches!(self.group(), RouteGroup::Api)
    }

    /// The value of `Allow`.
    #[must_use]
    pub const fn allow(self) -> HeaderValue {
        HeaderValue::from_static(self.allowed())
    }

    /// Whether a method is among those of the route.
    #[must_use]
    pub fn has(self, method: &Method) -> bool {
        self.allowed().split(", ").any(|allowed| allowed == method.as_str())
    }
}

/// The route of a path, and where the part of the path begins that varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutedPath {
    /// The route.
    pub route: Route,
    variable_at: usize,
}

impl RoutedPath {
    /// Finds the route of the path of a request.
    #[must_use]
    pub fn parse(path: &str) -> Self {
        // Most handles begin with a digit, and no other path does.
        let is_handle = path.as_bytes().get(1).is_some_and(u8::is_ascii_digit);
        let rows = if is_handle { &[] } else { Route::ALL };
        let fitting = rows.iter().find_map(|&route| Some((route, route.row().fit(path)?)));
        // The target of OPTIONS and CONNECT may have no path.
        let (route, variable_at) = fitting.unwrap_or((Route::Handle, path.len().min(1)));
        Self { route, variable_at }
    }

    /// The part of `path` that varies, as it was sent; empty in routes without one.
    #[must_use]
    pub fn variable(self, path: &str) -> &str {
        path.get(self.variable_at..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(path: &str) -> (Route, &str) {
        let parsed = RoutedPath::parse(path);
        (parsed.route, parsed.variable(path))
    }

    #[test]
    fn the_path_of_each_row_is_of_its_route() {
        for route in Route::described() {
            let path = route.path().replace(['{', '}'], "");
            let name = route.path().split('{').nth(1).map(|name| name.trim_end_matches('}'));
            assert_eq!(parse(&path), (route, name.unwrap_or_default()), "{path}");
        }
        let digits = Route::ALL.iter().filter(|route| route.path().as_bytes()[1..].starts_with(b"0"));
        assert_eq!(digits.count(), 0);
    }

    #[test]
    fn paths_are_parsed_as_deployed() {
        for (path, expected) in [
            ("/api", (Route::UnknownEndpoint, "")),
            ("/api/", (Route::UnknownEndpoint, "")),
            ("/API/handles/a/b", (Route::Record, "a/b")),
            ("/api/HANDLES/a/b", (Route::UnknownEndpoint, "HANDLES/a/b")),
            ("/api/handles/", (Route::Handles, "")),
            ("/api/handles//a", (Route::Record, "/a")),
            ("/api/handlesx", (Route::UnknownEndpoint, "handlesx")),
            ("/api/batch//", (Route::UnknownEndpoint, "batch//")),
            ("/api/sessions/this", (Route::ThisSession, "")),
            ("/api/sessions/this/", (Route::UnknownEndpoint, "sessions/this/")),
            ("/api/openapi.json/", (Route::UnknownEndpoint, "openapi.json/")),
            ("/api/verifications", (Route::Verifications, "")),
            ("/api/verifications/300:0.NA%2Fa/b", (Route::Verifications, "300:0.NA%2Fa/b")),
            ("/apis", (Route::Handle, "apis")),
            ("/\u{e9}pi/x", (Route::Handle, "\u{e9}pi/x")),
            ("/ap\u{e9}/x", (Route::Handle, "ap\u{e9}/x")),
            ("/hrls/handles//", (Route::Search, "")),
            ("/hrls/handles/10.1/x", (Route::SearchPrefix, "10.1/x")),
            ("/hrls/ping/", (Route::SearchPing, "")),
            ("/hrls/pong", (Route::Handle, "hrls/pong")),
            ("/admin", (Route::AdminHome, "")),
            ("/admin/record/", (Route::AdminRecord, "")),
            ("/admin/records", (Route::UnknownAdminPage, "records")),
            ("/administrators", (Route::Handle, "administrators")),
            ("/register//", (Route::Register, "")),
            ("/register/x", (Route::UnknownApplicantPage, "x")),
            ("/registers", (Route::Handle, "registers")),
            ("/10.1/a", (Route::Handle, "10.1/a")),
            ("//10.1/a", (Route::Handle, "/10.1/a")),
            ("/robots.txt/", (Route::Handle, "robots.txt/")),
            ("*", (Route::Handle, "")),
            ("", (Route::Handle, "")),
        ] {
            assert_eq!(parse(path), expected, "{path}");
        }
    }

    #[test]
    fn a_route_has_its_methods() {
        let route = Route::Robots;
        assert!(route.has(&Method::GET) && !route.has(&Method::POST) && !route.has(&Method::PUT));
        assert_eq!(route.allow(), "GET, HEAD, OPTIONS");
    }
}
