//! The envelope, which precedes every message and every fragment of one.

use crate::code::Version;
use crate::error::{DecodeError, Field};
use crate::limit::MESSAGE_LEN_MAX;

/// The 20 bytes before every message and every fragment of one. RFC 3652 section 2.2.1.
///
/// Deployed senders use the low bits of the RFC's flag field for the highest version that they
/// support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Version in which the message is written.
    pub version: Version,
    /// Flags, in the top three bits.
    pub flags: EnvelopeFlags,
    /// Highest version that the sender supports, as written; major 0 stands for
    /// [`version`](Self::version).
    pub suggested: Version,
    /// The number of the session or of the challenge; 0 for neither.
    pub session_id: i32,
    /// Chosen by the client, repeated in every response.
    pub request_id: i32,
    /// Number of the fragment, from 0.
    pub sequence: u32,
    /// Bytes of the whole message after the envelope, also in each of its fragments.
    pub message_len: u32,
}

/// Flags of an envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct EnvelopeFlags(pub u8);

impl EnvelopeFlags {
    /// The message is compressed; never used.
    pub const COMPRESSED: Self = Self(0x80);
    /// Everything after the envelope is encrypted.
    pub const ENCRYPTED: Self = Self(0x40);
    /// The message is cut into fragments, of which this is one.
    pub const TRUNCATED: Self = Self(0x20);
    /// All of them.
    pub const ALL: Self = Self(0xe0);

    /// Whether all bits of `flags` are set.
    #[must_use]
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}

impl Envelope {
    /// Bytes of an envelope.
    pub const LEN: usize = 20;
    const SUGGESTED_MAJOR_MASK: u8 = 0x03;

    /// The envelope of a request outside sessions, written in the current version.
    #[must_use]
    pub const fn request(request_id: i32) -> Self {
        Self {
            version: Version::CURRENT,
            flags: EnvelopeFlags(0),
            suggested: Version::CURRENT,
            session_id: 0,
            request_id,
            sequence: 0,
            message_len: 0,
        }
    }

    /// Splits an envelope from the bytes that follow it.
    ///
    /// # Errors
    /// When there are fewer than 20 bytes, or the message length exceeds [`MESSAGE_LEN_MAX`].
    pub fn split(bytes: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let Some((fixed, rest)) = bytes.split_first_chunk() else {
            return Err(DecodeError::Truncated { field: Field::Envelope, at: 0 });
        };
        let envelope = Self::from_bytes(fixed);
        if envelope.message_len > MESSAGE_LEN_MAX {
            return Err(DecodeError::TooLong { field: Field::MessageLength, at: 16 });
        }
        Ok((envelope, rest))
    }

    /// Reads the fields without checks.
    #[must_use]
    pub const fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let [major, minor, flags, suggested, s0, s1, s2, s3, r0, r1, r2, r3, n0, n1, n2, n3, l0, l1, l2, l3] =
            *bytes;
        Self {
            version: Version::new(major, minor),
            flags: EnvelopeFlags(flags & EnvelopeFlags::ALL.0),
            suggested: Version::new(flags & Self::SUGGESTED_MAJOR_MASK, suggested),
            session_id: i32::from_be_bytes([s0, s1, s2, s3]),
            request_id: i32::from_be_bytes([r0, r1, r2, r3]),
            sequence: u32::from_be_bytes([n0, n1, n2, n3]),
            message_len: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }

    /// The encoding.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        let [s0, s1, s2, s3] = self.session_id.to_be_bytes();
        let [r0, r1, r2, r3] = self.request_id.to_be_bytes();
        let [n0, n1, n2, n3] = self.sequence.to_be_bytes();
        let [l0, l1, l2, l3] = self.message_len.to_be_bytes();
        let flags = self.flags.0 | (self.suggested.major & Self::SUGGESTED_MAJOR_MASK);
        let (Version { major, minor }, suggested) = (self.version, self.suggested.minor);
        [major, minor, flags, suggested, s0, s1, s2, s3, r0, r1, r2, r3, n0, n1, n2, n3, l0, l1, l2, l3]
    }

    /// The highest version that the sender supports: a suggested major of 0 stands for the
    /// message's own version.
    #[must_use]
    pub const fn effective_suggested(&self) -> Version {
        if self.suggested.major == 0 { self.version } else { self.suggested }
    }

    /// The version of the answer: the suggested one, at most [`Version::CURRENT`].
    ///
    /// It is not the version of the request; shown by `conversations.jsonl`, category `versions`.
    #[must_use]
    #[inline]
    pub fn answer_version(&self) -> Version {
        self.effective_suggested().min(Version::CURRENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Bits 2 to 4 of the third byte have no meaning, and are the only ones that are not kept.
        #[test]
        fn any_20_bytes_are_an_envelope(bytes: [u8; Envelope::LEN]) {
            let mut kept = bytes;
            kept[2] &= EnvelopeFlags::ALL.0 | Envelope::SUGGESTED_MAJOR_MASK;
            prop_assert_eq!(Envelope::from_bytes(&bytes).to_bytes(), kept);
        }
    }

    #[test]
    fn every_field_is_where_it_belongs() {
        let mut bytes: [u8; 20] = core::array::from_fn(|at| u8::try_from(at).unwrap());
        bytes[2] = 0xa2;
        let envelope = Envelope::from_bytes(&bytes);
        assert_eq!((envelope.version, envelope.suggested), (Version::new(0, 1), Version::new(2, 3)));
        assert!(
            envelope.flags.has(EnvelopeFlags::COMPRESSED) && envelope.flags.has(EnvelopeFlags::TRUNCATED)
        );
        assert!(!envelope.flags.has(EnvelopeFlags::ENCRYPTED));
        assert_eq!((envelope.session_id, envelope.request_id), (0x0405_0607, 0x0809_0a0b));
        assert_eq!((envelope.sequence, envelope.message_len), (0x0c0d_0e0f, 0x1011_1213));
    }

    #[test]
    fn refuses_every_truncation_and_messages_that_are_too_long() {
        let mut bytes = [0; Envelope::LEN];
        for len in 0..Envelope::LEN {
            assert!(Envelope::split(&bytes[..len]).is_err(), "cut to {len}");
        }
        for (message_len, fits) in [(MESSAGE_LEN_MAX, true), (MESSAGE_LEN_MAX + 1, false), (u32::MAX, false)]
        {
            bytes[16..].copy_from_slice(&message_len.to_be_bytes());
            assert_eq!(Envelope::split(&bytes).is_ok(), fits, "{message_len}");
        }
    }

    #[test]
    fn answers_in_the_suggested_version_but_not_above_our_own() {
        // Shown by `conversations.jsonl`, category `versions`.
        let cases = [
            ((2, 1), (2, 11), (2, 11)),
            ((2, 11), (2, 5), (2, 5)),
            ((2, 3), (0, 0), (2, 3)),
            ((2, 11), (3, 0), (2, 11)),
            ((2, 12), (2, 12), (2, 11)),
            ((1, 0), (0, 0), (1, 0)),
            ((9, 9), (0, 0), (2, 11)),
            ((5, 0), (0, 0), (5, 0)),
            // Deployed servers take 255 for -1 and answer in it.
            ((2, 11), (2, 255), (2, 11)),
        ];
        for (version, suggested, answer) in cases {
            let of = |(major, minor)| Version::new(major, minor);
            let mut envelope = Envelope::from_bytes(&[0; Envelope::LEN]);
            (envelope.version, envelope.suggested) = (of(version), of(suggested));
            assert_eq!(envelope.answer_version(), of(answer), "{version:?} {suggested:?}");
        }
    }
}
