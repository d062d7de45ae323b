//! The URL of a redirect: what may stand in the header `Location`, and what is a safe target.

use super::host::ascii_authority;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

/// What may not stand in a URL. Percent signs stay, so that encoded bytes do.
pub(super) const NOT_IN_URLS: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'{')
    .add(b'}')
    .add(b'|')
    .add(b'^')
    .add(b'`')
    .add(b'\\');

/// Schemes whose URLs have a host.
const WITH_HOST: [&str; 4] = ["http", "https", "ftp", "ftps"];

/// An absolute URL of an allowed scheme, in printable ASCII.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectTarget(String);

impl RedirectTarget {
    /// The URL.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<RedirectTarget> for String {
    fn from(target: RedirectTarget) -> Self {
        target.0
    }
}

/// The URL in `text`, with `appended` after it; `None` unless it is absolute and has one of
/// `schemes`, which are in lower case.
///
/// Blanks around it are removed, bytes that may not stand in a URL are percent-encoded, and a host
/// of another script gets the form that DNS has for it. What is appended comes from whoever made
/// the link, so it changes neither scheme nor host: after a URL that ends with its host it begins
/// with a slash.
#[must_use]
pub fn redirect_target(text: &str, appended: &[u8], schemes: &[String]) -> Option<RedirectTarget> {
    let mut url = percent_encode(text.trim().as_bytes(), NOT_IN_URLS).to_string();
    let scheme = scheme_of(&url)?.to_ascii_lowercase();
    if !schemes.contains(&scheme) {
        return None;
    }
    let rest = &url[scheme.len() + 1..];
    let authority = rest.strip_prefix("//").map(|rest| rest.split(['/', '?', '#']).next().unwrap_or(rest));
    if WITH_HOST.contains(&scheme.as_str()) && authority.is_none_or(str::is_empty) {
        return None;
    }
    let ends_with_authority = authority.is_some_and(|authority| rest.len() == authority.len() + 2);
    if WITH_HOST.contains(&scheme.as_str())
        && let Some((authority, ascii)) =
            authority.and_then(|it| ascii_authority(it).map(|ascii| (it, ascii)))
    {
        let path = rest[2 + authority.len()..].to_owned();
        url.truncate(scheme.len() + 3);
        url.push_str(&ascii);
        url.push_str(&path);
    }
    if !appended.is_empty() {
        if ends_with_authority && !matches!(appended[0], b'/' | b'?' | b'#') {
            url.push('/');
        }
        url.extend(percent_encode(appended, NOT_IN_URLS));
    }
    Some(RedirectTarget(url))
}

/// The scheme of an absolute URL. RFC 3986 section 3.1.
fn scheme_of(url: &str) -> Option<&str> {
    let (scheme, _) = url.split_once(':')?;
    let is_scheme_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let is_scheme =
        scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.bytes().all(is_scheme_byte);
    is_scheme.then_some(scheme)
}
