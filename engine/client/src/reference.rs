//! References as people write them, such as `hdl:`, `info:hdl/`, `urn:hdl:`, `doi:` and URLs of
//! proxies: parsing to handles, and printing.
//!
//! A bare handle is taken unchanged. In every other form bytes may be percent-encoded, `?` begins
//! options and `#` a fragment, so these three characters are encoded where they belong to a name.
//! [`ReferenceRules`] select the accepted forms.
//!
//! [`canonical`] and [`url`] print the one text form and the one form that is safe in URLs; both
//! parse to the same handle. RFC 3651 section 2 for names and their characters.

mod charset;
mod print;
#[cfg(test)]
mod tests;

pub use charset::{Encoding, charset};
pub use print::{PROXY, canonical, url};

use std::fmt;

/// The accepted forms, and the context of parsing.
#[derive(Clone, Debug)]
pub struct ReferenceRules {
    /// Hosts of proxies, whose URLs have the handle in their path; in lower case.
    pub hosts: Vec<String>,
    /// Whether `300:20.500.1/ADMIN` names the value with index 300.
    pub index: bool,
    /// Whether `hdl://server/20.500.1/x` names the server to ask, and `hdl:/20.500.1/x` a handle.
    pub direct: bool,
    /// Whether an encoding may precede the name, as in `hdl:iso-2022-jp@cnri.test/...`.
    pub modifier: bool,
    /// Whether a bare handle is percent-encoded, as in the path of a proxy.
    pub bare_is_encoded: bool,
    /// Whether angle brackets and the punctuation of running text are removed.
    pub lenient: bool,
    /// The encoding of bytes that are not UTF-8 if the reference names none; `None` to refuse them.
    pub charset: Option<&'static Encoding>,
    /// Known prefixes, in which an `@` does not end a modifier.
    pub prefixes: Vec<String>,
}

/// Hosts of well-known proxies.
pub const HOSTS: [&str; 5] =
    ["hdl.handle.net", "doi.org", "dx.doi.org", "www.doi.org", "handle.stage.datacite.org"];

impl ReferenceRules {
    /// Rules for typed references: everything but leniency.
    #[must_use]
    pub fn typed() -> Self {
        Self {
            hosts: HOSTS.map(str::to_owned).to_vec(),
            index: true,
            direct: true,
            modifier: true,
            bare_is_encoded: false,
            lenient: false,
            charset: None,
            prefixes: vec![],
        }
    }

    /// Rules for the path of a proxy, unchanged: a leading number is no index, and servers cannot
    /// be named.
    #[must_use]
    pub fn proxy() -> Self {
        Self { index: false, direct: false, modifier: false, bare_is_encoded: true, ..Self::typed() }
    }
}

/// The form of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferenceForm {
    /// The handle alone.
    Bare,
    /// `hdl:`.
    Hdl,
    /// `hdl://server/`.
    Direct,
    /// `doi:`.
    Doi,
    /// `urn:hdl:` or `urn:doi:`.
    Urn,
    /// `info:hdl/` or `info:doi/`.
    Info,
    /// The URL of a proxy, with or without its scheme.
    Proxy,
}

/// A parsed reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandleReference {
    /// The handle, as it was spelt.
    pub handle: String,
    /// Indexes of the referenced values.
    pub indexes: Vec<u32>,
    /// Types of the referenced values.
    pub types: Vec<String>,
    /// The other options, by name and value.
    pub options: Vec<(String, String)>,
    /// The part after `#`, which never belongs to the handle.
    pub fragment: Option<String>,
    /// The server to ask: host, or host and port.
    pub server: Option<String>,
    /// The form in which it was written.
    pub form: ReferenceForm,
}

/// Why a text is not a valid reference.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReferenceError {
    /// It has no handle.
    Empty,
    /// Two schemes follow each other, as in `hdl:doi:`.
    TwoSchemes,
    /// A scheme or form that does not refer to handles.
    NotAHandle(String),
    /// The URL of a host that is not a known proxy.
    UnknownHost(String),
    /// A `%` without two hexadecimal digits after it.
    Percent {
        /// Its byte offset in the encoded part.
        at: usize,
    },
    /// The bytes are not UTF-8, and no encoding is named.
    NotUtf8,
    /// The named encoding is unknown.
    UnknownCharset(String),
    /// The bytes are invalid in the named encoding.
    NotInCharset(&'static str),
    /// The index is not a number, or too large.
    Index(String),
}

impl fmt::Display for ReferenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the reference has no handle"),
            Self::TwoSchemes => f.write_str("two schemes follow each other: remove one"),
            Self::NotAHandle(what) => write!(f, "{what} does not name handles"),
            Self::UnknownHost(host) => {
                write!(f, "{host} is not known as a proxy for handles: use the handle itself")
            }
            Self::Percent { at } => {
                write!(
                    f,
                    "% at byte {at} is not followed by two hexadecimal digits: write %25 for the character"
                )
            }
            Self::NotUtf8 => {
                f.write_str("the bytes are not UTF-8: name their encoding, as in hdl:shift_jis@...")
            }
            Self::UnknownCharset(name) => write!(f, "unknown encoding {name}"),
            Self::NotInCharset(name) => write!(f, "the bytes are not {name}"),
            Self::Index(text) => write!(f, "{text} is not an index: use a number up to {}", u32::MAX),
        }
    }
}

impl std::error::Error for ReferenceError {}

/// A reference before its bytes are decoded.
struct RawReference<'a> {
    form: ReferenceForm,
    server: Option<&'a str>,
    /// Whether `text` is percent-encoded, and may have options and a fragment.
    encoded: bool,
    text: &'a str,
    /// Whether a colon may take the place of the first slash.
    colon: bool,
}

impl HandleReference {
    /// Parses a reference.
    ///
    /// # Errors
    /// When it has no handle under these rules, or its bytes cannot be decoded.
    pub fn parse(text: &str, rules: &ReferenceRules) -> Result<Self, ReferenceError> {
        Self::parse_outer(text, rules, true)
    }

    /// `nests`: whether the whole text may be a percent-encoded URL, as proxies receive it.
    fn parse_outer(text: &str, rules: &ReferenceRules, nests: bool) -> Result<Self, ReferenceError> {
        let text = trim(text, rules.lenient);
        let (index, rest) = if rules.index { split_index(text)? } else { (None, text) };
        let raw = raw(rest, rules, index.is_some())?;
        let (name, options, fragment) =
            if raw.encoded { split_options(raw.text) } else { (raw.text, "", None) };
        let fragment = fragment.map(|text| decoded(text, rules.charset)).transpose()?;
        if raw.encoded && is_encoded_address(name) {
            if !nests {
                return Err(ReferenceError::TwoSchemes);
            }
            let mut reference = Self::parse_outer(&decoded(name, rules.charset)?, rules, false)?;
            reference.fragment = fragment.or(reference.fragment);
            reference.read_options(options)?;
            return Ok(reference);
        }
        let mut reference = Self {
            handle: String::new(),
            indexes: index.into_iter().collect(),
            types: vec![],
            options: vec![],
            fragment,
            server: raw.server.map(str::to_owned),
            form: raw.form,
        };
        let (modifier, name) =
            if rules.modifier { charset::split(name, &rules.prefixes) } else { (None, name) };
        let mut encoding = rules.charset;
        if let Some(modifier) = modifier {
            reference.types.extend(modifier.kind.map(str::to_owned));
            if let Some(label) = modifier.charset {
                let named = charset(label).ok_or_else(|| ReferenceError::UnknownCharset(label.to_owned()))?;
                encoding = Some(named);
            }
        }
        // A modifier, too, belongs to the forms in which bytes are encoded.
        let is_named = modifier.is_some_and(|modifier| modifier.charset.is_some());
        reference.handle = match (raw.encoded || modifier.is_some(), is_named) {
            (false, _) => name.to_owned(),
            (true, true) => charset::decode(&name_of(name, raw.colon), encoding)?,
            (true, false) => decoded(&name_of(name, raw.colon), encoding)?,
        };
        if reference.handle.is_empty() {
            return Err(ReferenceError::Empty);
        }
        reference.read_options(options)?;
        Ok(reference)
    }

    fn read_options(&mut self, options: &str) -> Result<(), ReferenceError> {
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            // As HTML forms write them.
            let [name, value] = [name, value].map(|part| decoded(&part.replace('+', " "), None));
            let (name, value) = (name?, value?);
            match name.as_str() {
                "type" => self.types.push(value),
                "index" => self.indexes.push(number(&value)?),
                _ => self.options.push((name, value)),
            }
        }
        Ok(())
    }
}

/// Characters of running text before a reference: no naming authority begins with them.
const OPENING: [char; 9] = ['(', '[', '{', '"', '\'', '\u{201c}', '\u{2018}', '\u{201e}', '\u{ab}'];
/// Punctuation of running text after a reference.
const PUNCTUATION: [char; 12] =
    ['.', ',', ';', ':', '!', '?', '"', '\'', '\u{201c}', '\u{201d}', '\u{2019}', '\u{bb}'];

fn trim(text: &str, lenient: bool) -> &str {
    let text = text.trim();
    if lenient { out_of_text(text) } else { text }
}

/// Brackets that may occur in a name.
const BRACKETS: [(char, char); 3] = [('(', ')'), ('[', ']'), ('{', '}')];

/// Removes the characters of running text around a reference, repeatedly.
fn out_of_text(mut text: &str) -> &str {
    // Counted once, because a text of brackets alone may be long.
    let mut opens = BRACKETS.map(|(open, _)| text.matches(open).count());
    let mut closes = BRACKETS.map(|(_, close)| text.matches(close).count());
    loop {
        let before = text;
        let opened = text.trim_start_matches(OPENING);
        let taken = &text[..text.len() - opened.len()];
        for ((open, _), opens) in BRACKETS.into_iter().zip(&mut opens) {
            *opens -= taken.matches(open).count();
        }
        text = opened.trim_end_matches(PUNCTUATION).trim();
        if let Some(inner) = text.strip_prefix('<') {
            text = inner.strip_suffix('>').unwrap_or(inner);
        }
        // A closing bracket belongs to the name only if the name has the opening one.
        for (at, (_, close)) in BRACKETS.into_iter().enumerate() {
            while opens[at] < closes[at] && text.ends_with(close) {
                text = &text[..text.len() - 1];
                closes[at] -= 1;
            }
        }
        if text == before {
            return text;
        }
    }
}

/// Splits `300:handle`: digits and a colon before the first slash.
fn split_index(text: &str) -> Result<(Option<u32>, &str), ReferenceError> {
    match text.split_once(':') {
        Some((digits, rest)) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Ok((Some(number(digits)?), rest))
        }
        _ => Ok((None, text)),
    }
}

fn number(digits: &str) -> Result<u32, ReferenceError> {
    digits.parse().map_err(|_| ReferenceError::Index(digits.to_owned()))
}

/// The text after `prefix`, whose case does not matter.
fn strip<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let head = text.get(..prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then(|| &text[prefix.len()..])
}

/// Schemes of handles. A name that begins like one of them is printed with an encoded character.
const SCHEMES: [&str; 10] =
    ["hdl:", "doi:", "hdl%3a", "doi%3a", "urn:", "info:", "http:", "https:", "http%3a", "https%3a"];

fn is_encoded_address(text: &str) -> bool {
    ["http%3a", "https%3a"].iter().any(|scheme| strip(text, scheme).is_some())
}

fn has_scheme(text: &str) -> bool {
    SCHEMES.iter().any(|scheme| strip(text, scheme).is_some())
}

/// Determines the form, and the part of the text that is the name.
fn raw<'a>(
    text: &'a str,
    rules: &ReferenceRules,
    has_index: bool,
) -> Result<RawReference<'a>, ReferenceError> {
    let outer = |form, text| RawReference { form, server: None, encoded: true, text, colon: false };
    // Also for a URL without a scheme, relative to its page.
    let text = text.trim_start_matches('/');
    if let Some(path) = path_of(text, rules)? {
        return inside(path, rules);
    }
    if let Some((host, path)) = text.split_once('/')
        && is_proxy(host, rules)
    {
        return inside(path, rules);
    }
    if is_proxy(text, rules) {
        return Err(ReferenceError::Empty);
    }
    if has_index && has_scheme(text) {
        return Err(ReferenceError::TwoSchemes);
    }
    let bare = RawReference {
        encoded: rules.bare_is_encoded || is_encoded_address(text),
        ..outer(ReferenceForm::Bare, text)
    };
    Ok(scheme(text, rules)?.unwrap_or(bare))
}

/// The path of the URL of a proxy, if this is a URL.
fn path_of<'a>(text: &'a str, rules: &ReferenceRules) -> Result<Option<&'a str>, ReferenceError> {
    let Some(rest) = ["https://", "http://"].iter().find_map(|scheme| strip(text, scheme)) else {
        return Ok(path_with_merged_slashes(text, rules));
    };
    let host_len = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(host_len);
    match is_proxy(authority, rules) {
        true => Ok(Some(path)),
        false => Err(ReferenceError::UnknownHost(authority.to_owned())),
    }
}

/// The path of the URL of a proxy in which a front has merged slashes, as in
/// `https:/doi.org/10.1000/182`.
fn path_with_merged_slashes<'a>(text: &'a str, rules: &ReferenceRules) -> Option<&'a str> {
    let rest = ["https:/", "http:/"].iter().find_map(|scheme| strip(text, scheme))?;
    let (authority, _) = rest.split_once('/')?;
    is_proxy(authority, rules).then(|| &rest[authority.len()..])
}

fn is_proxy(authority: &str, rules: &ReferenceRules) -> bool {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    rules.hosts.iter().any(|known| known.eq_ignore_ascii_case(host))
}

/// The path of a proxy's URL, as the proxy would parse it: it may contain a scheme or another URL.
fn inside<'a>(path: &'a str, rules: &ReferenceRules) -> Result<RawReference<'a>, ReferenceError> {
    let text = path.trim_start_matches('/');
    let text = path_of(text, rules)?.map_or(text, |path| path.trim_start_matches('/'));
    let found = match scheme(text, &ReferenceRules { direct: false, ..rules.clone() })? {
        Some(raw) => raw,
        None => RawReference { form: ReferenceForm::Proxy, server: None, encoded: true, text, colon: false },
    };
    Ok(RawReference { form: ReferenceForm::Proxy, ..found })
}

/// Removes one scheme.
fn scheme<'a>(text: &'a str, rules: &ReferenceRules) -> Result<Option<RawReference<'a>>, ReferenceError> {
    let raw = |form, text| RawReference { form, server: None, encoded: true, text, colon: false };
    let found = if let Some(rest) = strip(text, "hdl://") {
        if !rules.direct {
            return Err(ReferenceError::NotAHandle("hdl://".to_owned()));
        }
        let (server, rest) = rest.split_once('/').ok_or(ReferenceError::Empty)?;
        if server.is_empty() || server.contains(['@', '?', '#', '%', ' ']) {
            return Err(ReferenceError::NotAHandle(format!("hdl:// with {server:?} for a server")));
        }
        RawReference { server: Some(server), ..raw(ReferenceForm::Direct, rest) }
    } else if let Some(rest) = strip(text, "hdl:/") {
        if !rules.direct {
            return Err(ReferenceError::NotAHandle("hdl:/".to_owned()));
        }
        raw(ReferenceForm::Hdl, rest)
    } else if let Some(rest) = strip(text, "hdl:").or_else(|| strip(text, "hdl%3a")) {
        raw(ReferenceForm::Hdl, rest)
    } else if strip(text, "doi:/").is_some() {
        // Literally it would be a handle with an empty prefix.
        return Err(ReferenceError::NotAHandle("doi:/".to_owned()));
    } else if let Some(rest) = strip(text, "doi:").or_else(|| strip(text, "doi%3a")) {
        raw(ReferenceForm::Doi, rest)
    } else if let Some(rest) = strip(text, "urn:hdl:").or_else(|| strip(text, "urn:doi:")) {
        RawReference { colon: true, ..raw(ReferenceForm::Urn, rest) }
    } else if let Some(rest) = strip(text, "info:hdl/").or_else(|| strip(text, "info:doi/")) {
        raw(ReferenceForm::Info, rest)
    } else {
        return match ["urn:", "info:", "http:", "https:"].iter().find(|scheme| strip(text, scheme).is_some())
        {
            Some(scheme) => Err(ReferenceError::NotAHandle((*scheme).to_owned())),
            None => Ok(None),
        };
    };
    let text = found.text.trim_start_matches(' ');
    if has_scheme(text) {
        return Err(ReferenceError::TwoSchemes);
    }
    Ok(Some(RawReference { text, ..found }))
}

/// Splits name, options and fragment.
fn split_options(text: &str) -> (&str, &str, Option<&str>) {
    let (text, fragment) = match text.split_once('#') {
        Some((text, fragment)) => (text, Some(fragment)),
        None => (text, None),
    };
    let (name, options) = text.split_once('?').unwrap_or((text, ""));
    (name, options, fragment)
}

/// Restores the slash that a colon replaces in URNs: the first of both, percent-encoded or not.
fn name_of(name: &str, colon: bool) -> String {
    match name.split_once(':') {
        Some((prefix, local))
            if colon && !prefix.contains('/') && !prefix.to_ascii_lowercase().contains("%2f") =>
        {
            format!("{prefix}/{local}")
        }
        _ => name.to_owned(),
    }
}

/// Percent-decodes the text, and decodes the bytes as UTF-8 or else in `encoding`.
fn decoded(text: &str, encoding: Option<&'static Encoding>) -> Result<String, ReferenceError> {
    match String::from_utf8(percent_decoded(text)?) {
        Ok(text) => Ok(text),
        Err(_) if encoding.is_some() => charset::decode(text, encoding),
        Err(_) => Err(ReferenceError::NotUtf8),
    }
}

fn percent_decoded(text: &str) -> Result<Vec<u8>, ReferenceError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let byte = match tail {
            [high, low, ..] => digit(*high).zip(digit(*low)).map(|(high, low)| high << 4 | low),
            _ => None,
        };
        let at = text.len() - tail.len() - 1;
        bytes.push(byte.ok_or(ReferenceError::Percent { at })?);
        rest = &tail[2..];
    }
    Ok(bytes)
}
