//! Encodings that a reference may name before its handle: those of browsers, and short names from
//! the drafts.

use super::{ReferenceError, percent_decoded};
pub use encoding_rs::Encoding;

/// The part of a reference before its `@`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Modifier<'a> {
    pub(super) charset: Option<&'a str>,
    pub(super) kind: Option<&'a str>,
}

const LABEL_LEN_MAX: usize = 40;

/// The modifier, and the name after it. `@` counts only before the first slash, and not in a prefix
/// of `prefixes`.
pub(super) fn split<'a>(name: &'a str, prefixes: &[String]) -> (Option<Modifier<'a>>, &'a str) {
    let literal = (None, name);
    let prefix = name.split_once('/').map_or(name, |(prefix, _)| prefix);
    let Some(at) = prefix.find('@') else { return literal };
    if prefixes.iter().any(|known| known.eq_ignore_ascii_case(prefix)) {
        return literal;
    }
    let (modifier, rest) = (&name[..at], &name[at + 1..]);
    let (label, kind) = match modifier.split_once("type=") {
        Some((label, kind)) => (label.strip_suffix([' ', ';']).unwrap_or(label), Some(kind)),
        None => (modifier, None),
    };
    let fits = |text: &str, marks: &str| {
        text.len() <= LABEL_LEN_MAX && text.chars().all(|c| c.is_ascii_alphanumeric() || marks.contains(c))
    };
    let is_modifier = fits(label, "._:+-") && kind.is_none_or(|kind| !kind.is_empty() && fits(kind, "._/-"));
    match is_modifier {
        true => (Some(Modifier { charset: (!label.is_empty()).then_some(label), kind }), rest),
        false => literal,
    }
}

/// The encoding with this name: a label of the WHATWG list, or a short name from old drafts. UTF-7
/// is not supported.
#[must_use]
pub fn charset(label: &str) -> Option<&'static Encoding> {
    let label = label.to_ascii_lowercase();
    let known = match label.as_str() {
        "jis" => "iso-2022-jp",
        "sjis" => "shift_jis",
        "euc" => "euc-jp",
        "gb" => "gb18030",
        "koi8" => "koi8-r",
        // Latin alphabets 7 and 8 have labels only by the number of their part of ISO 8859.
        "latin7" => "iso-8859-13",
        "latin8" => "iso-8859-14",
        "latin9" => "iso-8859-15",
        other => other,
    };
    Encoding::for_label_no_replacement(known.as_bytes())
}

/// Percent-decodes the text and decodes the bytes in `encoding`. Characters beyond ASCII that are
/// not percent-encoded stay as they are.
///
/// # Errors
/// When bytes are invalid in the encoding. Nothing is ever replaced.
pub(super) fn decode(text: &str, encoding: Option<&'static Encoding>) -> Result<String, ReferenceError> {
    let encoding = encoding.unwrap_or(encoding_rs::UTF_8);
    let mut decoded = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let run_len = rest.find(|c: char| !c.is_ascii()).unwrap_or(rest.len());
        let (run, tail) = rest.split_at(run_len);
        let bytes = percent_decoded(run)?;
        let run = encoding.decode_without_bom_handling_and_without_replacement(&bytes);
        decoded.push_str(&run.ok_or(ReferenceError::NotInCharset(encoding.name()))?);
        let characters_len = tail.find(|c: char| c.is_ascii()).unwrap_or(tail.len());
        decoded.push_str(&tail[..characters_len]);
        rest = &tail[characters_len..];
    }
    Ok(decoded)
}
