//! ASCII case folding, to upper case: the only folding in the protocol. RFC 3651 section 2.
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
#[inline]
pub const fn eq(a: &[u8], b: &[u8]) -> bool {
    a.eq_ignore_ascii_case(b)
}

/// Whether `bytes` begins with bytes that fold to the same as `start`.
#[must_use]
pub fn starts_with(bytes: &[u8], start: &[u8]) -> bool {
    bytes.get(..start.len()).is_some_and(|head| eq(head, start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folds_ascii_letters_and_nothing_else() {
        for byte in 0..=u8::MAX {
            let expected = if byte.is_ascii_lowercase() { byte - 32 } else { byte };
            assert_eq!(folded(&[byte]), [expected], "{byte:02x}");
        }
        assert!(!eq("ü".as_bytes(), "Ü".as_bytes()));
    }

    #[test]
    fn a_start_may_not_be_longer() {
        assert!(starts_with(b"hs_admin", b"HS_"));
        assert!(starts_with(b"a", b""));
        assert!(!starts_with(b"HS", b"HS_"));
    }
}
