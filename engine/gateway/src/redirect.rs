//! What a proxy does with a resolved record.
//!
//! The caller resolves the handle of a request and calls [`next_step`] with its values. An alias is
//! resolved in turn, at most [`RedirectRules::aliases_max`] times. When locations are to be chosen,
//! the caller adds those of [further records](LocationSet::further_records) and calls [`choose`].
//!
//! - A redirect leads only to the schemes of [`RedirectRules`]; any other target is shown as part
//!   of the record.
//! - The text in `Location` is printable ASCII, whatever the values and the query contain.

mod alias;
mod host;
mod parameters;
mod target;
#[cfg(test)]
mod tests;

pub use alias::AliasChain;
pub use parameters::{ProxyAction, ProxyParameters};
pub use target::{RedirectTarget, redirect_target};

use crate::accept::AcceptTypes;
use crate::location::{LocationCriteria, LocationSet, handle_url, is_document, is_url};
use handle_proto::data::kind;
use handle_proto::limit::TTL_MAX_S;
use handle_proto::value::Ttl;
use handle_proto::{Handle, Value, fold};
use percent_encoding::percent_encode;
use std::net::IpAddr;

/// The settings of redirects.
#[derive(Clone, Debug)]
pub struct RedirectRules {
    /// Schemes of allowed targets, in lower case.
    pub schemes: Vec<String>,
    /// Longest time for which a redirect may be cached.
    pub cache_s_max: u32,
    /// Most aliases that are followed for one request.
    pub aliases_max: usize,
}

/// The schemes of allowed targets, unless others are configured.
pub const SCHEMES: [&str; 14] = [
    "http", "https", "ftp", "ftps", "mailto", "hdl", "doi", "info", "urn", "magnet", "git", "ssh", "news",
    "tel",
];

/// Most aliases that deployed proxies follow.
pub const ALIASES_MAX: usize = 20;

impl Default for RedirectRules {
    fn default() -> Self {
        Self {
            schemes: SCHEMES.map(str::to_owned).to_vec(),
            cache_s_max: TTL_MAX_S.unsigned_abs(),
            aliases_max: ALIASES_MAX,
        }
    }
}

/// What the decisions about one request depend on, besides the record.
#[derive(Clone, Copy, Debug)]
pub struct ProxyRequest<'a> {
    /// What the URL of a handle at the proxy begins with: its URL, as the client sees it, or its
    /// path; it ends with a slash.
    pub base: &'a str,
    /// The query of the URL, unchanged, without its question mark; it may be empty.
    pub query: &'a str,
    /// The parameters of that query.
    pub parameters: &'a ProxyParameters,
    /// The types that the client accepts.
    pub accept: Option<&'a AcceptTypes>,
    /// The address of the client.
    pub address: Option<IpAddr>,
    /// The country of the client.
    pub country: Option<&'a str>,
    /// A random number.
    pub random: u64,
    /// The time.
    pub now_unix_s: u32,
    /// The settings.
    pub rules: &'a RedirectRules,
}

impl<'a> ProxyRequest<'a> {
    /// A request about which nothing else is known.
    #[must_use]
    pub const fn new(base: &'a str, parameters: &'a ProxyParameters, rules: &'a RedirectRules) -> Self {
        Self {
            base,
            query: "",
            parameters,
            accept: None,
            address: None,
            country: None,
            random: 0,
            now_unix_s: 0,
            rules,
        }
    }

    /// The seconds for which an answer from a value with this time to live may be cached.
    fn cache_s(&self, ttl: Ttl) -> u32 {
        let seconds = match ttl.kind {
            Ttl::RELATIVE => i64::from(ttl.seconds),
            _ => i64::from(ttl.seconds) - i64::from(self.now_unix_s),
        };
        u32::try_from(seconds.max(0)).unwrap_or(u32::MAX).min(self.rules.cache_s_max)
    }
}

/// What to do next.
#[derive(Clone, Debug)]
pub enum ProxyStep {
    /// Resolve this handle, and call [`next_step`] with its record.
    FollowAlias(Vec<u8>),
    /// Add further locations, and call [`choose`].
    Locate(LocationSet),
    /// Answer.
    Answer(ProxyDecision),
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyDecision {
    /// A redirect.
    Redirect(ProxyRedirect),
    /// The page with the record.
    ShowRecord(ShowReason),
    /// All locations, as `text/xml`.
    ShowLocations(String),
    /// The record as JSON.
    ShowJson,
    /// The page that says that something is missing, with status 404.
    NotFound(MissingReason),
    /// The page that says what is wrong, with status 400.
    Refused(RefusalReason),
}

/// A redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyRedirect {
    /// The HTTP status: 200 for scripts, which ask for it to read the headers.
    pub status: u16,
    /// The value of the header `Location`: printable ASCII.
    pub location: String,
    /// Seconds for which it may be cached.
    pub cache_s: u32,
    /// Whether it depends on the header `Accept`.
    pub vary_accept: bool,
    /// Whether the redirect depends on the address of the client, so that only the client may cache
    /// it.
    pub is_private: bool,
}

impl ProxyRedirect {
    /// A redirect to a URL of the configuration, in printable ASCII.
    #[must_use]
    pub fn to(url: &str, cache_s: u32) -> Self {
        Self { status: 302, location: url.to_owned(), cache_s, vary_accept: false, is_private: false }
    }
}

/// Why a record is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShowReason {
    /// The request asks for it.
    Requested,
    /// It has no location.
    NoLocation,
    /// The chosen location is not an absolute URL of an allowed scheme.
    UnsafeLocation(String),
}

/// What is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingReason {
    /// The record has no value that the public may read.
    NoPublicValues,
    /// The record has none of the requested values.
    NoSuchValues,
    /// More aliases than [`RedirectRules::aliases_max`] follow one another.
    AliasChainTooLong,
    /// An alias leads back to a handle of its chain.
    AliasLoop,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// An alias names no handle.
    AliasWithoutHandle,
}

/// Decides what follows from a record. `values` are those of the record of
/// [`chain.handle()`](AliasChain::handle), in stored order; values that are not public or not
/// requested do not count.
///
/// An alias comes first, wherever it stands in the record, unless the request asks for the record
/// itself.
#[must_use]
pub fn next_step(request: &ProxyRequest<'_>, values: &[Value<'_>], chain: &mut AliasChain) -> ProxyStep {
    let parameters = request.parameters;
    let public = || values.iter().filter(|value| value.is_public());
    let requested = || public().filter(|value| parameters.selects(value)).copied();
    if requested().next().is_none() {
        let reason = match public().next() {
            Some(_) => MissingReason::NoSuchValues,
            None => MissingReason::NoPublicValues,
        };
        return ProxyStep::Answer(ProxyDecision::NotFound(reason));
    }
    match parameters.action {
        Some(ProxyAction::ShowValues) => {
            return ProxyStep::Answer(ProxyDecision::ShowRecord(ShowReason::Requested));
        }
        Some(ProxyAction::ShowJson) => return ProxyStep::Answer(ProxyDecision::ShowJson),
        Some(ProxyAction::ShowLocations) => return ProxyStep::Locate(LocationSet::of_record(requested())),
        Some(ProxyAction::Redirect) | None => {}
    }
    let alias = requested().find(|value| fold::eq(value.kind, kind::HS_ALIAS));
    if let Some(alias) = alias.filter(|_| parameters.follows_aliases()) {
        return match chain.follow(alias.data, request.cache_s(alias.ttl), request.rules.aliases_max) {
            Ok(()) => ProxyStep::FollowAlias(chain.handle().0.to_vec()),
            Err(decision) => ProxyStep::Answer(decision),
        };
    }
    if parameters.shows_record() {
        return ProxyStep::Answer(ProxyDecision::ShowRecord(ShowReason::Requested));
    }
    match chain.aliases_count() {
        0 => ProxyStep::Locate(LocationSet::of_record(requested())),
        _ => ProxyStep::Answer(ProxyDecision::Redirect(to_own_url(request, chain))),
    }
}

/// The redirect of most requests, without the work of a choice: to the first URL of a record
/// without aliases and 10320/loc values, for a request without parameters. `None` if this is
/// another case.
///
/// It is what [`choose`] decides if the record inherits no locations.
#[must_use]
pub fn plain_redirect<'v>(
    request: &ProxyRequest<'_>,
    values: impl IntoIterator<Item = Value<'v>>,
) -> Option<ProxyRedirect> {
    if *request.parameters != ProxyParameters::default() {
        return None;
    }
    let mut url = None;
    for value in values.into_iter().filter(Value::is_public) {
        if is_document(&value) || fold::eq(value.kind, kind::HS_ALIAS) {
            return None;
        }
        url = url.or_else(|| is_url(&value).then_some(value));
    }
    let url = url?;
    let location = redirect_target(str::from_utf8(url.data).ok()?, b"", &request.rules.schemes)?;
    let cache_s = request.cache_s(url.ttl);
    Some(ProxyRedirect { location: location.into(), ..ProxyRedirect::to("", cache_s) })
}

/// The redirect to the URL of the last handle of a chain at this proxy, with the same query.
fn to_own_url(request: &ProxyRequest<'_>, chain: &AliasChain) -> ProxyRedirect {
    let mut location = handle_url(chain.handle(), request.base);
    if location.starts_with("//") {
        // A path, and not the name of a host. RFC 3986 section 4.2.
        location.insert_str(0, "/.");
    }
    if !request.query.is_empty() {
        location.push('?');
        location.extend(percent_encode(request.query.as_bytes(), target::NOT_IN_URLS));
    }
    ProxyRedirect {
        status: request.parameters.status(301),
        location,
        cache_s: chain.cache_s().min(request.rules.cache_s_max),
        vary_accept: false,
        is_private: false,
    }
}

/// Chooses a location of the record of `handle`, or shows all of them if the request asks for that.
#[must_use]
pub fn choose(request: &ProxyRequest<'_>, locations: &LocationSet, handle: Handle<'_>) -> ProxyDecision {
    let parameters = request.parameters;
    if parameters.action == Some(ProxyAction::ShowLocations) {
        return ProxyDecision::ShowLocations(locations.to_xml());
    }
    let criteria = LocationCriteria {
        locatt: parameters.locatt.as_ref().map(|(name, value)| (name.as_str(), value.as_str())),
        address: request.address,
        country: request.country,
        accept: request.accept,
        random: request.random,
    };
    let Some(location) = locations.choose(&criteria) else {
        return ProxyDecision::ShowRecord(ShowReason::NoLocation);
    };
    let target = location.target(handle).unwrap_or_default();
    let appended = parameters.urlappend.as_deref().unwrap_or_default();
    match redirect_target(&target, appended, &request.rules.schemes) {
        Some(target) => ProxyDecision::Redirect(ProxyRedirect {
            status: parameters.status(location.status()),
            location: target.into(),
            cache_s: request.cache_s(location.ttl),
            vary_accept: locations.depends_on_accept(),
            is_private: locations.depends_on_address(),
        }),
        None => ProxyDecision::ShowRecord(ShowReason::UnsafeLocation(target.into_owned())),
    }
}
