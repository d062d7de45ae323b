//! Patterns of values: bytes, in which `*` stands for any bytes.

use std::fmt;

/// Most bytes of a pattern.
pub const PATTERN_LEN_MAX: usize = 2048;
/// Most stars in a pattern.
pub const PATTERN_STARS_MAX: usize = 4;

/// A pattern that values are compared with. Without a `*` the value has to be equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValuePattern(Vec<u8>);

/// Why a pattern is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadPattern {
    /// It is longer than [`PATTERN_LEN_MAX`].
    TooLong,
    /// It has more than [`PATTERN_STARS_MAX`] stars.
    TooManyStars,
}

impl fmt::Display for BadPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "a value to find has at most {PATTERN_LEN_MAX} bytes"),
            Self::TooManyStars => write!(f, "a value to find has at most {PATTERN_STARS_MAX} stars"),
        }
    }
}

impl std::error::Error for BadPattern {}

impl ValuePattern {
    /// Checks a pattern.
    ///
    /// # Errors
    /// When it is too long, or has too many stars.
    pub fn new(pattern: &[u8]) -> Result<Self, BadPattern> {
        if pattern.len() > PATTERN_LEN_MAX {
            return Err(BadPattern::TooLong);
        }
        if pattern.iter().filter(|&&byte| byte == b'*').count() > PATTERN_STARS_MAX {
            return Err(BadPattern::TooManyStars);
        }
        Ok(Self(pattern.to_vec()))
    }

    /// The bytes before the first star, or all.
    #[must_use]
    pub fn literal_start(&self) -> &[u8] {
        self.0.split(|&byte| byte == b'*').next().unwrap_or_default()
    }

    /// Whether values have to be equal.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        !self.0.contains(&b'*')
    }

    /// Whether `value` matches.
    #[must_use]
    pub fn matches(&self, value: &[u8]) -> bool {
        let mut parts = self.0.split(|&byte| byte == b'*');
        let (Some(first), Some(last)) = (parts.next(), parts.next_back()) else { return value == self.0 };
        let Some(rest) = value.strip_prefix(first) else { return false };
        let Some(mut rest) = rest.strip_suffix(last) else { return false };
        // The earliest position of each part leaves the most bytes for those behind it.
        for part in parts {
            let Some(at) = memchr::memmem::find(rest, part) else { return false };
            rest = &rest[at + part.len()..];
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition: a star takes any number of bytes.
    fn plain_match(pattern: &[u8], value: &[u8]) -> bool {
        match pattern.split_first() {
            None => value.is_empty(),
            Some((b'*', rest)) => (0..=value.len()).any(|len| plain_match(rest, &value[len..])),
            Some((byte, rest)) => value.first() == Some(byte) && plain_match(rest, &value[1..]),
        }
    }

    proptest! {
        #[test]
        fn a_pattern_matches_as_the_plain_definition(pattern in "[ab*]{0,6}", value in "[ab]{0,8}") {
            let (pattern, value) = (pattern.as_bytes(), value.as_bytes());
            if let Ok(parsed) = ValuePattern::new(pattern) {
                prop_assert_eq!(parsed.matches(value), plain_match(pattern, value));
            }
        }
    }

    #[test]
    fn patterns_are_bounded() {
        let new = |pattern: &[u8]| ValuePattern::new(pattern).map(|_| ());
        assert_eq!(new(&[b'a'; PATTERN_LEN_MAX]), Ok(()));
        assert_eq!(new(&[b'a'; PATTERN_LEN_MAX + 1]), Err(BadPattern::TooLong));
        assert_eq!(new(&[b'*'; PATTERN_STARS_MAX]), Ok(()));
        assert_eq!(new(&[b'*'; PATTERN_STARS_MAX + 1]), Err(BadPattern::TooManyStars));
        let pattern = ValuePattern::new(b"http://a*b").unwrap();
        assert_eq!((pattern.literal_start(), pattern.is_exact()), (&b"http://a"[..], false));
        assert!(!pattern.matches(b"http://ab".strip_suffix(b"b").unwrap()));
    }
}
