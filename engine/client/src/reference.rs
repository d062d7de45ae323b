//! References that people write: `hdl:`, `info:hdl/`, `urn:hdl:`, `doi:`, addresses of proxies; to handles and back.
//!
//! A bare handle is taken as it stands. In every other form bytes may be percent-encoded, `?` begins options and
//! `#` a fragment, so that these three are encoded where they belong to a name. [`ReferenceRules`] say which forms count.
//!
//! [`canonical`] and [`url`] print the one text form and the one form that is safe in addresses; both read back
//! as the same handle. RFC 3651 section 2 for names and their characters.

mod charset;
mod print;
#[cfg(test)]
mod tests;

pub use charset::{Encoding, charset};
pub use print::{PROXY, canonical, url};

use std::fmt;

/// Which forms count, and what is known when they are read.
#[derive(Clone, Debug)]
pub struct ReferenceRules {
    /// Hosts of proxies, whose addresses name the handle in their path; in lower case.
    pub hosts: Vec<String>,
    /// Whether `300:20.500.1/ADMIN` names the value with index 300.
    pub index: bool,
    /// Whether `hdl://server/20.500.1/x` names the server to ask, and `hdl:/20.500.1/x` a handle.
    pub direct: bool,
    /// Whether an encoding may stand before the name, as in `hdl:iso-2022-jp@cnri.test/...`.
    pub modifier: bool,
    /// Whether a bare handle is percent-encoded, as in the path of a proxy.
    pub bare_is_encoded: bool,
    /// Whether angle brackets and the punctuation of running text are taken off.
    pub lenient: bool,
    /// How bytes that are not UTF-8 are read where no encoding is named; refused when there is none.
    pub charset: Option<&'static Encoding>,
    /// Prefixes that are known, so that an `@` in one of them is no modifier.
    pub prefixes: Vec<String>,
}

/// Hosts of well-known proxies.
pub const HOSTS: [&str; 5] =
    ["hdl.handle.net", "doi.org", "dx.doi.org", "www.doi.org", "handle.stage.datacite.org"];

impl ReferenceRules {
    /// For what people type: everything but leniency.
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

    /// For the path of a proxy, as it came: a leading number is no index, and nobody names servers.
    #[must_use]
    pub fn proxy() -> Self {
        Self { index: false, direct: false, modifier: false, bare_is_encoded: true, ..Self::typed() }
    }
}

/// In which form a reference was written.
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
    /// The address of a proxy, with or without its scheme.
    Proxy,
}

/// A reference, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandleReference {
    /// The handle, spelt as it was.
    pub handle: String,
    /// Indexes of the values that are meant.
    pub indexes: Vec<u32>,
    /// Types of the values that are meant.
    pub types: Vec<String>,
    /// The other options, by name and value.
    pub options: Vec<(String, String)>,
    /// What follows `#`, which is never part of the handle.
    pub fragment: Option<String>,
    /// The server to ask: host, or host and port.
    pub server: Option<String>,
    /// How it was written.
    pub form: ReferenceForm,
}

/// Why something is no reference.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReferenceError {
    /// There is no handle in it.
    Empty,
    /// One scheme behind another, as `hdl:doi:`.
    TwoSchemes,
    /// A scheme or form that names no handles.
    NotAHandle(String),
    /// The address of a host that is not known as a proxy.
    UnknownHost(String),
    /// `%` without two hexadecimal digits behind it.
    Percent {
        /// Where it stands, in bytes from the beginning of the part that is encoded.
        at: usize,
    },
    /// Bytes that are not UTF-8, and no encoding was named.
    NotUtf8,
    /// No encoding has this name.
    UnknownCharset(String),
    /// Bytes that have no meaning in the encoding that was named.
    NotInCharset(&'static str),
    /// An index that is no number, or too large.
    Index(String),
}

impl fmt::Display for ReferenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("there is no handle in it"),
            Self::TwoSchemes => f.write_str("two schemes, one behind the other: take one of them off"),
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
            Self::UnknownCharset(name) => write!(f, "no encoding is called {name}"),
            Self::NotInCharset(name) => write!(f, "the bytes are not {name}"),
            Self::Index(text) => write!(f, "{text} is no index of a value: use a number up to {}", u32::MAX),
        }
    }
}

impl std::error::Error for ReferenceError {}

/// A reference before its bytes are decoded.
struct Raw<'a> {
    form: ReferenceForm,
    server: Option<&'a str>,
    /// Whether `text` is percent-encoded, and has options and a fragment.
    encoded: bool,
    text: &'a str,
    /// Whether a colon may stand for the first slash.
    colon: bool,
}

impl HandleReference {
    /// Takes a reference apart.
    ///
    /// # Errors
    /// When it names no handle under these rules, or its bytes cannot be read.
    pub fn parse(text: &str, rules: &ReferenceRules) -> Result<Self, ReferenceError> {
        Self::parse_outer(text, rules, true)
    }

    /// `nests` where the whole may be a percent-encoded address, as a proxy is given it.
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
            // As forms in browsers write it.
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

/// What running text has in front of a reference: no naming authority begins so.
const OPENING: [char; 9] = ['(', '[', '{', '"', '\'', '\u{201c}', '\u{2018}', '\u{201e}', '\u{ab}'];
/// What running text has behind one.
const PUNCTUATION: [char; 12] =
    ['.', ',', ';', ':', '!', '?', '"', '\'', '\u{201c}', '\u{201d}', '\u{2019}', '\u{bb}'];

fn trim(text: &str, lenient: bool) -> &str {
    let text = text.trim();
    if lenient { out_of_text(text) } else { text }
}

/// Brackets that a name may have.
const BRACKETS: [(char, char); 3] = [('(', ')'), ('[', ']'), ('{', '}')];

/// Takes off what running text has around a reference, as often as there is any.
fn out_of_text(mut text: &str) -> &str {
    // Counted once: a text of nothing but brackets may be long.
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
        // A closing bracket belongs to the name only where one opens in it.
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

/// `300:handle`: digits and a colon before the first slash.
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

/// What follows `prefix`, in whatever case it is.
fn strip<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let head = text.get(..prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then(|| &text[prefix.len()..])
}

/// Schemes that name handles; a name that begins like one of them is printed so that it does not.
const SCHEMES: [&str; 10] =
    ["hdl:", "doi:", "hdl%3a", "doi%3a", "urn:", "info:", "http:", "https:", "http%3a", "https%3a"];

fn is_encoded_address(text: &str) -> bool {
    ["http%3a", "https%3a"].iter().any(|scheme| strip(text, scheme).is_some())
}

fn has_scheme(text: &str) -> bool {
    SCHEMES.iter().any(|scheme| strip(text, scheme).is_some())
}

/// Finds the form, and what of the text is the name.
fn raw<'a>(text: &'a str, rules: &ReferenceRules, has_index: bool) -> Result<Raw<'a>, ReferenceError> {
    let outer = |form, text| Raw { form, server: None, encoded: true, text, colon: false };
    // Also of an address that leaves its scheme to the page it stands on.
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
    let bare = Raw {
        encoded: rules.bare_is_encoded || is_encoded_address(text),
        ..outer(ReferenceForm::Bare, text)
    };
    Ok(scheme(text, rules)?.unwrap_or(bare))
}

/// The path of the address of a proxy, if this is an address.
fn path_of<'a>(text: &'a str, rules: &ReferenceRules) -> Result<Option<&'a str>, ReferenceError> {
    let Some(rest) = ["https://", "http://"].iter().find_map(|scheme| strip(text, scheme)) else {
        return Ok(None);
    };
    let host_len = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(host_len);
    match is_proxy(authority, rules) {
        true => Ok(Some(path)),
        false => Err(ReferenceError::UnknownHost(authority.to_owned())),
    }
}

fn is_proxy(authority: &str, rules: &ReferenceRules) -> bool {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    rules.hosts.iter().any(|known| known.eq_ignore_ascii_case(host))
}

/// The path of a proxy's address: what the proxy itself would be given, so that a scheme or one more address may
/// stand in it.
fn inside<'a>(path: &'a str, rules: &ReferenceRules) -> Result<Raw<'a>, ReferenceError> {
    let text = path.trim_start_matches('/');
    let text = path_of(text, rules)?.map_or(text, |path| path.trim_start_matches('/'));
    let found = match scheme(text, &ReferenceRules { direct: false, ..rules.clone() })? {
        Some(raw) => raw,
        None => Raw { form: ReferenceForm::Proxy, server: None, encoded: true, text, colon: false },
    };
    Ok(Raw { form: ReferenceForm::Proxy, ..found })
}

/// Takes off one scheme.
fn scheme<'a>(text: &'a str, rules: &ReferenceRules) -> Result<Option<Raw<'a>>, ReferenceError> {
    let raw = |form, text| Raw { form, server: None, encoded: true, text, colon: false };
    let found = if let Some(rest) = strip(text, "hdl://") {
        if !rules.direct {
            return Err(ReferenceError::NotAHandle("hdl://".to_owned()));
        }
        let (server, rest) = rest.split_once('/').ok_or(ReferenceError::Empty)?;
        if server.is_empty() || server.contains(['@', '?', '#', '%', ' ']) {
            return Err(ReferenceError::NotAHandle(format!("hdl:// with {server:?} for a server")));
        }
        Raw { server: Some(server), ..raw(ReferenceForm::Direct, rest) }
    } else if let Some(rest) = strip(text, "hdl:/") {
        if !rules.direct {
            return Err(ReferenceError::NotAHandle("hdl:/".to_owned()));
        }
        raw(ReferenceForm::Hdl, rest)
    } else if let Some(rest) = strip(text, "hdl:").or_else(|| strip(text, "hdl%3a")) {
        raw(ReferenceForm::Hdl, rest)
    } else if strip(text, "doi:/").is_some() {
        // Not the handle with an empty prefix that it would be by the letter.
        return Err(ReferenceError::NotAHandle("doi:/".to_owned()));
    } else if let Some(rest) = strip(text, "doi:").or_else(|| strip(text, "doi%3a")) {
        raw(ReferenceForm::Doi, rest)
    } else if let Some(rest) = strip(text, "urn:hdl:").or_else(|| strip(text, "urn:doi:")) {
        Raw { colon: true, ..raw(ReferenceForm::Urn, rest) }
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
    Ok(Some(Raw { text, ..found }))
}

/// Name, options and fragment.
fn split_options(text: &str) -> (&str, &str, Option<&str>) {
    let (text, fragment) = match text.split_once('#') {
        Some((text, fragment)) => (text, Some(fragment)),
        None => (text, None),
    };
    let (name, options) = text.split_once('?').unwrap_or((text, ""));
    (name, options, fragment)
}

/// With the slash that a colon stands for in URNs: the first of both, percent-encoded or not.
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

/// Percent-decodes, and takes the bytes as UTF-8; failing that in `encoding`.
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
