//! The target of a request: its path, decoded.

use percent_encoding::percent_decode_str;
use std::borrow::Cow;

/// Why a path cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetError {
    /// A percent sign without two hexadecimal digits after it.
    Percent,
    /// The decoded bytes are not UTF-8.
    NotUtf8,
}

impl TargetError {
    /// One sentence for the client.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::Percent => "Invalid percent-encoding in the path",
            Self::NotUtf8 => "The path is not UTF-8 after percent-decoding",
        }
    }
}

/// Decodes a part of a path. A plus sign, a semicolon and dots stand for themselves.
///
/// # Errors
/// When an escape is malformed, or the result is not UTF-8.
pub fn decode(path: &str) -> Result<Cow<'_, str>, TargetError> {
    if !path.contains('%') {
        return Ok(Cow::Borrowed(path));
    }
    let bytes = path.as_bytes();
    let is_hex = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
    let is_escape = |at: usize| is_hex(at + 1) && is_hex(at + 2);
    if bytes.iter().enumerate().any(|(at, &byte)| byte == b'%' && !is_escape(at)) {
        return Err(TargetError::Percent);
    }
    percent_decode_str(path).decode_utf8().map_err(|_| TargetError::NotUtf8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_decode_to_names_byte_by_byte() {
        for (path, name) in [
            ("10.5072/a", "10.5072/a"),
            ("10.5072%2Fa", "10.5072/a"),
            ("TST/plus+sign;x", "TST/plus+sign;x"),
            ("TST/%C3%9CBER", "TST/\u{dc}BER"),
            ("TST/\u{dc}BER", "TST/\u{dc}BER"),
            ("TST/%2541bc", "TST/%41bc"),
            ("TST/a//b/../c", "TST/a//b/../c"),
            ("TST/x%00y", "TST/x\0y"),
        ] {
            assert_eq!(decode(path).as_deref(), Ok(name), "{path}");
        }
        for path in ["x%zz", "x%", "x%4", "x%4g"] {
            assert_eq!(decode(path), Err(TargetError::Percent), "{path}");
        }
        assert_eq!(decode("x%FF"), Err(TargetError::NotUtf8));
    }
}
