//! Keys derived from passwords: PBKDF2, with the deployed rule for turning bytes into a password.

use crate::cost;
use handle_proto::limit;
use handle_proto::wire::auth::SecretAnswer;
use pbkdf2::pbkdf2_hmac;
use sha1::Sha1;
use zeroize::Zeroizing;

/// Bounds of the work that a sender may demand, and of the length of a derived key. The bounds are
/// inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pbkdf2Limits {
    /// Most rounds; each 10,000 take about 2.5 ms.
    pub iterations_max: u32,
    /// Fewest bits of the derived key. A key without bits is known, and a short one can be guessed.
    pub key_bits_min: u32,
    /// Most bits of the derived key. Each 160 bits cost the rounds once more.
    pub key_bits_max: u32,
    /// Most rounds, times one for each 160 bits, times the tried keys.
    pub work_max: u32,
}

impl Pbkdf2Limits {
    /// The widest sensible bounds for answers to challenges. Servers configure their own.
    pub const DEFAULT: Self = Self {
        iterations_max: limit::PBKDF2_ITERATIONS_MAX,
        key_bits_min: 128,
        key_bits_max: limit::PBKDF2_KEY_BITS_MAX,
        work_max: u32::MAX,
    };

    /// Bytes of the derived key, if the parameters are within the bounds.
    #[must_use]
    pub fn key_len(&self, iterations: u32, key_bits: u32) -> Option<usize> {
        if cost::pbkdf2(iterations, key_bits) > self.work_max.into() {
            return None;
        }
        let is_within = (1..=self.iterations_max).contains(&iterations)
            && (self.key_bits_min..=self.key_bits_max).contains(&key_bits);
        // Deployed software divides by eight and ignores the remainder.
        (is_within && key_bits.is_multiple_of(8)).then_some(key_bits as usize / 8)
    }

    /// Whether the work that `answer` demands is within the bounds.
    #[must_use]
    pub fn admit(&self, answer: &SecretAnswer<'_>) -> bool {
        match *answer {
            SecretAnswer::Pbkdf2 { iterations, key_bits, .. } => self.key_len(iterations, key_bits).is_some(),
            SecretAnswer::BareMd5(_) | SecretAnswer::Mac { .. } => true,
        }
    }
}

impl Default for Pbkdf2Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// PBKDF2 with HMAC-SHA1. Each byte of `secret` is taken as a character U+0000 to U+00FF, and these
/// are encoded in UTF-8.
///
/// Shown by `credentials.jsonl`, `pbkdf2/binary_password`.
pub fn pbkdf2_sha1(secret: &[u8], salt: &[u8], iterations: u32, key_len: usize) -> Zeroizing<Vec<u8>> {
    let mut key = Zeroizing::new(vec![0; key_len]);
    pbkdf2_hmac::<Sha1>(&as_characters(secret), salt, iterations, &mut key);
    key
}

fn as_characters(secret: &[u8]) -> Zeroizing<Vec<u8>> {
    // Allocated at once, because growing would leave copies behind that are not cleared.
    let mut text = Zeroizing::new(Vec::with_capacity(2 * secret.len()));
    for &byte in secret {
        text.extend_from_slice(char::from(byte).encode_utf8(&mut [0; 2]).as_bytes());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_at_their_edges() {
        let limits = Pbkdf2Limits::DEFAULT;
        for (iterations, key_bits, key_len) in [
            (1, 128, Some(16)),
            (10_000, 160, Some(20)),
            (1_000_000, 512, Some(64)),
            (0, 160, None),
            (1_000_001, 160, None),
            (u32::MAX, 160, None),
            (10_000, 0, None),
            (10_000, 120, None),
            (10_000, 127, None),
            (10_000, 129, None),
            (10_000, 520, None),
            (10_000, u32::MAX, None),
        ] {
            let case = format!("{iterations} rounds, {key_bits} bits");
            assert_eq!(limits.key_len(iterations, key_bits), key_len, "{case}");
            let answer = SecretAnswer::Pbkdf2 { salt: b"", iterations, key_bits, mac: b"" };
            assert_eq!(limits.admit(&answer), key_len.is_some(), "{case}");
        }
    }

    #[test]
    fn rounds_and_length_are_bounded_together() {
        let limits = Pbkdf2Limits { work_max: 20_000, ..Pbkdf2Limits::DEFAULT };
        for (iterations, key_bits, is_admitted) in
            [(20_000, 160, true), (20_001, 160, false), (10_000, 168, true), (10_001, 168, false)]
        {
            let case = format!("{iterations} rounds, {key_bits} bits");
            assert_eq!(limits.key_len(iterations, key_bits).is_some(), is_admitted, "{case}");
        }
    }

    #[test]
    fn bytes_are_encoded_as_characters() {
        assert_eq!(**as_characters(b"secret"), *b"secret");
        assert_eq!(**as_characters(&[0, 0x7f, 0x80, 0xff]), [0, 0x7f, 0xc2, 0x80, 0xc3, 0xbf]);
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(str::from_utf8(&as_characters(&all)).unwrap().chars().count(), 256);
    }
}
