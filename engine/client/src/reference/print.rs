//! Printed references: one form for text, one for URLs.

use super::has_scheme;
use std::fmt::Write as _;

/// The proxy of printed URLs, unless another is named.
pub const PROXY: &str = "https://hdl.handle.net/";

/// The text form: `hdl:` and the handle, where only `%`, `"`, `#`, `?`, controls, and characters
/// that would be parsed as something else are percent-encoded.
#[must_use]
pub fn canonical(handle: &str) -> String {
    escaped("hdl:", handle, |_, c| matches!(c, '%' | '"' | '#' | '?') || c.is_control())
}

/// The form that is safe in URLs, with `proxy`, which ends with a slash.
///
/// If a segment of the path consists of dots, one slash beside it is encoded, because clients would
/// resolve it as a relative path.
#[must_use]
pub fn url(handle: &str, proxy: &str) -> String {
    let kept = slashes_at_dots(handle);
    let needs_coding = |c: char| !c.is_ascii_graphic() || r##""#%?<>{}[]^`|\+"##.contains(c);
    escaped(proxy, handle, |at, c| needs_coding(c) || c == '/' && kept.contains(&at))
}

/// The position of one slash beside each segment that is `.` or `..`: the one after it, or before
/// the last segment.
fn slashes_at_dots(handle: &str) -> Vec<usize> {
    let is_dots = |segment: &str| matches!(segment, "." | "..");
    let mut kept = vec![];
    let mut at = 0;
    for segment in handle.split('/') {
        let end = at + segment.len();
        if is_dots(segment) {
            kept.push(if end < handle.len() { end } else { at.saturating_sub(1) });
        }
        at = end + 1;
    }
    kept
}

/// `head` and `handle`, with the characters percent-encoded for which `is_escaped` returns true,
/// and those that a parser would not take for part of the handle: blanks and slashes around it, a
/// scheme before it, an `@` before the first slash.
fn escaped(head: &str, handle: &str, is_escaped: impl Fn(usize, char) -> bool) -> String {
    let mut text = head.to_owned();
    let slash_at = handle.find('/').unwrap_or(handle.len());
    let blank_from = handle.trim_end().len();
    let blank_to = handle.len() - handle.trim_start().len();
    for (at, c) in handle.char_indices() {
        let is_outer_blank = at < blank_to || at >= blank_from;
        let is_misread = at == 0 && (c == '/' || has_scheme(handle)) || c == '@' && at < slash_at;
        if is_escaped(at, c) || is_outer_blank || is_misread {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                let _ = write!(text, "%{byte:02X}");
            }
        } else {
            text.push(c);
        }
    }
    text
}
