//! References as they are printed: one form for text, one for addresses.

use super::has_scheme;
use std::fmt::Write as _;

/// The proxy that addresses are printed for unless another is named.
pub const PROXY: &str = "https://hdl.handle.net/";

/// The one text form: `hdl:` and the handle, where only `%`, `"`, `#`, `?`, controls, and what would be read as
/// something else are percent-encoded.
#[must_use]
pub fn canonical(handle: &str) -> String {
    escaped("hdl:", handle, |_, c| matches!(c, '%' | '"' | '#' | '?') || c.is_control())
}

/// The one form that is safe in addresses: that of `proxy`, which ends with a slash.
///
/// Dots between slashes have one slash encoded, because clients would take them for steps in a tree.
#[must_use]
pub fn url(handle: &str, proxy: &str) -> String {
    let kept = slashes_at_dots(handle);
    let needs_coding = |c: char| !c.is_ascii_graphic() || r##""#%?<>{}[]^`|\+"##.contains(c);
    escaped(proxy, handle, |at, c| needs_coding(c) || c == '/' && kept.contains(&at))
}

/// Where one slash stands beside each segment that is `.` or `..`: behind it, and before the last one.
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

/// `head` and `handle` with what `is_escaped` percent-encoded, and the rest of what a reader would not take for
/// part of the handle: blanks and slashes around it, a scheme in front, an `@` before the first slash.
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
