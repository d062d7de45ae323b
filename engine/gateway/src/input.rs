//! The handle that a request is about, from the path of its URL or from a field of a form.
//!
//! Paths are parsed by the rules of [`handle_client::reference`], which printed references follow
//! too. In addition, percent-encoded blanks around the name count as blanks, because a path cannot
//! have others.

#[cfg(test)]
mod tests;

use handle_client::reference::{HandleReference, ReferenceError, ReferenceRules};
use handle_proto::limit::HANDLE_LEN_MAX;
use percent_encoding::{AsciiSet, percent_encode};
use std::borrow::Cow;
use std::fmt;

/// How the handle of a request is written.
#[derive(Clone, Debug)]
pub struct InputRules(ReferenceRules);

/// Why a request has no valid handle.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InputError {
    /// It names no handle: the answer is the page with the form.
    Empty,
    /// The name has more bytes than [`HANDLE_LEN_MAX`].
    TooLong(usize),
    /// It is not a valid reference.
    Invalid(ReferenceError),
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the request has no handle"),
            Self::TooLong(len) => write!(f, "the name has {len} bytes; at most {HANDLE_LEN_MAX} are allowed"),
            Self::Invalid(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for InputError {}

impl From<ReferenceError> for InputError {
    fn from(error: ReferenceError) -> Self {
        match error {
            ReferenceError::Empty => Self::Empty,
            error => Self::Invalid(error),
        }
    }
}

impl InputRules {
    /// Rules of a proxy that takes references to `hosts` as references to itself, in addition to
    /// those of the [well-known proxies](handle_client::reference::HOSTS).
    ///
    /// With `charset_modifier`, an encoding may precede the name, as in `jis@cnri.test/...`; unless
    /// the name begins with one of `prefixes`.
    #[must_use]
    pub fn new(hosts: &[String], charset_modifier: bool, prefixes: &[String]) -> Self {
        let mut rules = ReferenceRules { modifier: charset_modifier, ..ReferenceRules::proxy() };
        rules.hosts.extend(hosts.iter().map(|host| host.to_ascii_lowercase()));
        rules.prefixes.extend_from_slice(prefixes);
        Self(rules)
    }

    /// The same rules for references to these hosts only.
    #[must_use]
    pub fn with_hosts_only(mut self, hosts: &[String]) -> Self {
        self.0.hosts = hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        self
    }

    /// The handle in the path of a request, which begins with a slash and has no query.
    ///
    /// # Errors
    /// When there is none, or it is not valid.
    pub fn handle_of_path(&self, path: &[u8]) -> Result<HandleReference, InputError> {
        let text = match str::from_utf8(path) {
            Ok(text) => Cow::Borrowed(text),
            // Bytes of another encoding, as they were sent.
            Err(_) => Cow::Owned(percent_encode(path, NON_ASCII).to_string()),
        };
        checked(HandleReference::parse(&without_blanks(&text), &self.0)?)
    }

    /// The handle in a field of a form, already decoded. A bare handle is taken unchanged.
    ///
    /// # Errors
    /// When there is none, or it is not valid.
    pub fn handle_of_field(&self, text: &str) -> Result<HandleReference, InputError> {
        let rules = ReferenceRules { bare_is_encoded: false, ..self.0.clone() };
        checked(HandleReference::parse(text, &rules)?)
    }
}

/// Nothing of ASCII: bytes beyond it are always percent-encoded.
const NON_ASCII: &AsciiSet = &AsciiSet::EMPTY;

fn checked(reference: HandleReference) -> Result<HandleReference, InputError> {
    match reference.handle.len() {
        len if len > HANDLE_LEN_MAX => Err(InputError::TooLong(len)),
        _ => Ok(reference),
    }
}

/// Percent-encoded blanks.
const BLANKS: [&str; 6] = ["%20", "%09", "%0A", "%0a", "%0D", "%0d"];
/// Schemes after which blanks are ignored.
const SCHEMES: [&str; 4] = ["hdl:", "doi:", "hdl%3a", "doi%3a"];

/// The path without slashes before it and without blanks around it and after its scheme.
fn without_blanks(path: &str) -> Cow<'_, str> {
    let text = trim_start(path.trim_start_matches('/'));
    let text = trim_end(text.trim_start_matches('/'));
    let scheme = SCHEMES
        .iter()
        .find(|scheme| text.get(..scheme.len()).is_some_and(|head| head.eq_ignore_ascii_case(scheme)));
    match scheme.map(|scheme| (&text[..scheme.len()], &text[scheme.len()..])) {
        Some((scheme, rest)) if trim_start(rest).len() < rest.len() => {
            Cow::Owned([scheme, trim_start(rest)].concat())
        }
        _ => Cow::Borrowed(text),
    }
}

fn trim_start(mut text: &str) -> &str {
    loop {
        text = text.trim_start();
        match BLANKS.iter().find_map(|blank| text.strip_prefix(blank)) {
            Some(rest) => text = rest,
            None => return text,
        }
    }
}

fn trim_end(mut text: &str) -> &str {
    loop {
        text = text.trim_end();
        match BLANKS.iter().find_map(|blank| text.strip_suffix(blank)) {
            Some(rest) => text = rest,
            None => return text,
        }
    }
}
