//! ASCII case folding, to upper case: the only folding the protocol knows. RFC 3651 section 2.
//!
//! Bytes above 0x7F are never changed, so folding needs no knowledge of characters.

use alloc::vec::Vec;

/// Folds `bytes` in place.
pub const fn fold(bytes: &mut [u8]) {
    bytes.make_ascii_uppercase();
}

/// A folded copy of `bytes`.
#[must_use]
pub fn folded(bytes: &[u8]) -> Vec<u8> {
    bytes.to_ascii_uppercase()
}

/// Whether `a` and `b` fold to the same bytes.
#[must_use]
pub const fn eq(a: &[u8], b: &[u8]) -> bool {
    a.eq_ignore_ascii_case(b)
}

/// Whether `bytes` begins with something that folds like `start`.
#[must_use]
pub fn starts_with(bytes: &[u8], start: &[u8]) -> bool {
    bytes.get(..start.len()).is_some_and(|head| eq(head, start))
}
