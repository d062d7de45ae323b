//! Request targets with characters that clients should have percent-encoded, and often do not:
//! names such as `10.1002/1521-3951(200209)233:1<10::aid-pssb10>3.0.co;2-v`, as people paste them.
//!
//! hyper and h2 refuse some of them, so they are percent-encoded in the bytes of a connection,
//! before either reads them. [`encoded`] is what changes; nothing else of a request does.

use percent_encoding::{AsciiSet, percent_encode};
use std::borrow::Cow;

/// What may not stand in a target, of the characters that may stand in a handle. Percent signs
/// stay, so that encoded bytes do. Blanks end a target, and controls are refused.
const NOT_IN_TARGETS: &AsciiSet = &AsciiSet::EMPTY
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// Whether a byte of a target is percent-encoded: the characters above, and all that are not ASCII,
/// whether or not they are UTF-8.
#[must_use]
pub const fn is_encoded(byte: u8) -> bool {
    matches!(byte, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}') || !byte.is_ascii()
}

/// The target with these bytes percent-encoded.
#[must_use]
pub fn encoded(target: &[u8]) -> Cow<'_, [u8]> {
    match target.iter().any(|&byte| is_encoded(byte)) {
        true => Cow::Owned(percent_encode(target, NOT_IN_TARGETS).to_string().into_bytes()),
        false => Cow::Borrowed(target),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Uri;

    #[test]
    fn every_target_of_visible_bytes_becomes_one_that_hyper_reads() {
        for byte in 0..=255 {
            let target = [b"/a?b=", &[byte][..], b"c"].concat();
            let is_same = matches!(encoded(&target), Cow::Borrowed(_));
            assert_eq!(is_same, !is_encoded(byte), "{byte:#x}");
            if byte > b' ' && byte != 0x7f {
                for start in ["/", "/a?b"] {
                    let target = encoded(&[start.as_bytes(), &[byte]].concat()).into_owned();
                    assert!(Uri::try_from(target).is_ok(), "{start} {byte:#x}");
                }
            }
        }
        let sici = "/10.1002/1(200209)233:1<10::aid>3.0.co;2-v\u{e9}%3C";
        let expected = "/10.1002/1(200209)233:1%3C10::aid%3E3.0.co;2-v%C3%A9%3C";
        assert_eq!(encoded(sici.as_bytes()), expected.as_bytes());
    }
}
