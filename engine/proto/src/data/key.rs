//! Keys: the records in HS_PUBKEY values, site records and key files.
//!
//! On the wire the numbers are two's complement, with a leading zero byte if the top bit is set,
//! and never negative. In this module they are unsigned and without leading zeros, so that equal
//! keys compare equal.

use crate::error::{DecodeError, Field};
use crate::wire::cursor::Cursor;
use crate::wire::put;
use alloc::vec::Vec;
use core::fmt;
use zeroize::Zeroizing;

/// An unsigned number, big-endian, without leading zeros: the number zero has no bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Number<'a>(&'a [u8]);

impl<'a> Number<'a> {
    /// Makes a number from its bytes, and drops leading zeros.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
        Self(&bytes[zeros..])
    }

    /// The bytes, without leading zeros.
    #[must_use]
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Number of bits of the number.
    #[must_use]
    pub fn bits(self) -> usize {
        self.0.first().map_or(0, |first| self.0.len() * 8 - first.leading_zeros() as usize)
    }

    fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let start = *cursor;
        let bytes = cursor.string(Field::Key)?;
        // A number needs at least one byte, even if that is zero.
        if bytes.is_empty() { Err(start.invalid(Field::Key)) } else { Ok(Self::new(bytes)) }
    }

    fn encode(self, out: &mut Vec<u8>) {
        let sign = self.0.first().is_none_or(|&first| first >= 0x80);
        put::count(out, self.0.len() + usize::from(sign));
        if sign {
            out.push(0);
        }
        out.extend_from_slice(self.0);
    }
}

impl fmt::Debug for Number<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bits", self.bits())
    }
}

/// A public key. The RFCs define the value, but leave its form to deployed software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the letters of the algorithms")]
pub enum PublicKey<'a> {
    /// `RSA_PUB_KEY`: exponent and modulus.
    Rsa { e: Number<'a>, n: Number<'a> },
    /// `DSA_PUB_KEY`: group, and y = g^x mod p.
    Dsa { q: Number<'a>, p: Number<'a>, g: Number<'a>, y: Number<'a> },
    /// `DH_PUB_KEY`: y = g^x mod p, and group.
    Dh { y: Number<'a>, p: Number<'a>, g: Number<'a> },
}

impl<'a> PublicKey<'a> {
    /// The name before an RSA key.
    pub const RSA: &'static [u8] = b"RSA_PUB_KEY";
    /// The name before a DSA key.
    pub const DSA: &'static [u8] = b"DSA_PUB_KEY";
    /// The name before a Diffie-Hellman key.
    pub const DH: &'static [u8] = b"DH_PUB_KEY";

    /// Decodes a key record. Flags and trailing bytes are ignored, as in deployed software;
    /// `values.jsonl`, `key/with_flags_set` and `key/trailing_bytes`.
    ///
    /// # Errors
    /// When the kind is unknown, or a number is empty or does not fit.
    pub fn decode(data: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(data);
        let start = cursor;
        let kind = cursor.string(Field::Key)?;
        cursor.u16(Field::Key)?;
        let mut number = || Number::decode(&mut cursor);
        match kind {
            Self::RSA => Ok(Self::Rsa { e: number()?, n: number()? }),
            Self::DSA => Ok(Self::Dsa { q: number()?, p: number()?, g: number()?, y: number()? }),
            Self::DH => Ok(Self::Dh { y: number()?, p: number()?, g: number()? }),
            _ => Err(start.invalid(Field::Key)),
        }
    }

    /// Appends the record to `out`. Four zero bytes follow an RSA key, because peers compare whole
    /// records.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (kind, numbers, tail): (_, &[&Number<'_>], &[u8]) = match self {
            Self::Rsa { e, n } => (Self::RSA, &[e, n], &[0; 4]),
            Self::Dsa { q, p, g, y } => (Self::DSA, &[q, p, g, y], &[]),
            Self::Dh { y, p, g } => (Self::DH, &[y, p, g], &[]),
        };
        put::string(out, kind);
        put::u16(out, 0);
        numbers.iter().for_each(|number| number.encode(out));
        out.extend_from_slice(tail);
    }

    /// The encoded record.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }

    /// The usual name of the algorithm.
    #[must_use]
    pub const fn algorithm(&self) -> &'static str {
        match self {
            Self::Rsa { .. } => "RSA",
            Self::Dsa { .. } => "DSA",
            Self::Dh { .. } => "DH",
        }
    }

    /// Size of the modulus in bits.
    #[must_use]
    pub fn bits(&self) -> usize {
        match self {
            Self::Rsa { n, .. } => n.bits(),
            Self::Dsa { p, .. } | Self::Dh { p, .. } => p.bits(),
        }
    }
}

/// A private key, borrowed. Its numbers are not shown by `Debug`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the letters of the algorithms")]
pub enum PrivateKey<'a> {
    /// `DSA_PRIV_KEY`.
    Dsa { x: Number<'a>, p: Number<'a>, q: Number<'a>, g: Number<'a> },
    /// `RSA_PRIV_KEY`: without the parts that speed up signing.
    Rsa { n: Number<'a>, d: Number<'a> },
    /// `RSA_PRIVCRT_KEY`: with d mod (p-1), d mod (q-1) and q^-1 mod p at the end.
    RsaCrt {
        n: Number<'a>,
        e: Number<'a>,
        d: Number<'a>,
        p: Number<'a>,
        q: Number<'a>,
        dp: Number<'a>,
        dq: Number<'a>,
        qi: Number<'a>,
    },
}

impl<'a> PrivateKey<'a> {
    /// The name before a DSA key.
    pub const DSA: &'static [u8] = b"DSA_PRIV_KEY";
    /// The name before a plain RSA key.
    pub const RSA: &'static [u8] = b"RSA_PRIV_KEY";
    /// The name before a full RSA key.
    pub const RSA_CRT: &'static [u8] = b"RSA_PRIVCRT_KEY";

    /// Decodes a private key, which has no flags. Trailing bytes are ignored, as in deployed
    /// software.
    ///
    /// # Errors
    /// When the kind is unknown, or a number is empty or does not fit.
    pub fn decode(data: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(data);
        let start = cursor;
        let kind = cursor.string(Field::Key)?;
        let mut number = || Number::decode(&mut cursor);
        match kind {
            Self::DSA => Ok(Self::Dsa { x: number()?, p: number()?, q: number()?, g: number()? }),
            Self::RSA => Ok(Self::Rsa { n: number()?, d: number()? }),
            Self::RSA_CRT => Ok(Self::RsaCrt {
                n: number()?,
                e: number()?,
                d: number()?,
                p: number()?,
                q: number()?,
                dp: number()?,
                dq: number()?,
                qi: number()?,
            }),
            _ => Err(start.invalid(Field::Key)),
        }
    }

    /// The encoding, cleared when it is dropped.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let (kind, numbers): (_, &[&Number<'_>]) = match self {
            Self::Dsa { x, p, q, g } => (Self::DSA, &[x, p, q, g]),
            Self::Rsa { n, d } => (Self::RSA, &[n, d]),
            Self::RsaCrt { n, e, d, p, q, dp, dq, qi } => (Self::RSA_CRT, &[n, e, d, p, q, dp, dq, qi]),
        };
        // Allocated at once, because growing would leave copies behind that are not cleared.
        let len = 4 + kind.len() + numbers.iter().map(|number| 5 + number.0.len()).sum::<usize>();
        let mut out = Zeroizing::new(Vec::with_capacity(len));
        put::string(&mut out, kind);
        numbers.iter().for_each(|number| number.encode(&mut out));
        out
    }

    /// The public half, if the private key contains it: DSA keys and plain RSA keys lack a number.
    #[must_use]
    pub const fn public(&self) -> Option<PublicKey<'a>> {
        match *self {
            Self::RsaCrt { n, e, .. } => Some(PublicKey::Rsa { e, n }),
            _ => None,
        }
    }
}

/// An owned private key: its encoding, checked, and cleared when it is dropped.
#[derive(Clone)]
pub struct PrivateKeyBuf(Zeroizing<Vec<u8>>);

impl PrivateKeyBuf {
    /// Takes the encoding of a private key.
    ///
    /// # Errors
    /// When the bytes do not decode. They are cleared in that case too.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, DecodeError> {
        let bytes = Zeroizing::new(bytes);
        PrivateKey::decode(&bytes)?;
        Ok(Self(bytes))
    }

    /// The key.
    #[must_use]
    pub fn view(&self) -> PrivateKey<'_> {
        PrivateKey::decode(&self.0).expect("the encoding was checked")
    }

    /// The encoding.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&PrivateKey<'_>> for PrivateKeyBuf {
    fn from(key: &PrivateKey<'_>) -> Self {
        Self(key.to_bytes())
    }
}

impl fmt::Debug for PrivateKeyBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use proptest::prelude::*;

    /// e = 65537, n = 0x00c1 0203 (with a leading zero byte, because the top bit is set), flags
    /// 0x1234.
    const RSA: &[u8] = b"\0\0\0\x0bRSA_PUB_KEY\x12\x34\0\0\0\x03\x01\0\x01\0\0\0\x04\0\xc1\x02\x03\0\0\0\0";
    const DSA: &[u8] = b"\0\0\0\x0cDSA_PRIV_KEY\0\0\0\x01\x05\0\0\0\x01\x17\0\0\0\x01\x0b\0\0\0\x01\x04";

    #[test]
    fn reads_numbers_without_sign_and_ignores_flags() {
        let key = PublicKey::decode(RSA).unwrap();
        let PublicKey::Rsa { e, n } = key else { panic!("{key:?}") };
        assert_eq!(e.as_bytes(), [1, 0, 1]);
        assert_eq!((n.as_bytes(), n.bits()), (&[0xc1, 2, 3][..], 24));
        let mut plain = RSA.to_vec();
        plain[15..17].fill(0);
        assert_eq!(key.to_bytes(), plain, "flags zero, four zero bytes at the end");
        assert_eq!((key.algorithm(), key.bits()), ("RSA", 24));
    }

    #[test]
    fn compares_by_numbers() {
        let short = b"\0\0\0\x0bRSA_PUB_KEY\0\0\0\0\0\x04\0\x01\0\x01\0\0\0\x03\xc1\x02\x03tail";
        assert_eq!(PublicKey::decode(RSA), PublicKey::decode(short));
    }

    #[test]
    fn zero_has_one_byte_on_the_wire() {
        let mut out = Vec::new();
        Number::new(&[0, 0]).encode(&mut out);
        assert_eq!(out, [0, 0, 0, 1, 0]);
        assert_eq!(Number::new(&[0]).bits(), 0);
    }

    #[test]
    fn refuses_truncations_unknown_kinds_and_empty_numbers() {
        for len in 0..RSA.len() - 4 {
            assert!(PublicKey::decode(&RSA[..len]).is_err(), "cut to {len}");
        }
        for len in 0..DSA.len() {
            assert!(PrivateKey::decode(&DSA[..len]).is_err(), "cut to {len}");
        }
        let invalid = Err(DecodeError::Invalid { field: Field::Key, at: 0 });
        assert_eq!(PublicKey::decode(b"\0\0\0\x07ED25519\0\0"), invalid);
        assert_eq!(
            PublicKey::decode(b"\0\0\0\x0bRSA_PUB_KEY\0\0\0\0\0\0\0\0\0\x01\x05").unwrap_err().at(),
            17
        );
    }

    #[test]
    fn refuses_lengths_that_lie() {
        for at in [0, 17, 24] {
            for lie in [0x7fff_ffff, u32::MAX, 40] {
                let mut data = RSA.to_vec();
                data[at..at + 4].copy_from_slice(&u32::to_be_bytes(lie));
                assert!(PublicKey::decode(&data).is_err(), "{lie} at {at}");
            }
        }
    }

    #[test]
    fn private_keys_round_trip_and_are_not_shown() {
        let key = PrivateKeyBuf::from_bytes(DSA.to_vec()).unwrap();
        assert_eq!(&**key.view().to_bytes(), DSA);
        assert_eq!(format!("{key:?}"), "Dsa { x: 3 bits, p: 5 bits, q: 4 bits, g: 3 bits }");
        assert_eq!(key.view().public(), None);
    }

    proptest! {
        #[test]
        fn public_keys_round_trip(a: Vec<u8>, b: Vec<u8>, c: Vec<u8>, d: Vec<u8>) {
            let [a, b, c, d] = [&a, &b, &c, &d].map(|bytes| Number::new(bytes));
            for key in [
                PublicKey::Rsa { e: a, n: b },
                PublicKey::Dsa { q: a, p: b, g: c, y: d },
                PublicKey::Dh { y: a, p: b, g: c },
            ] {
                let bytes = key.to_bytes();
                prop_assert_eq!(PublicKey::decode(&bytes), Ok(key));
            }
        }

        #[test]
        fn private_keys_round_trip(numbers: [Vec<u8>; 8]) {
            let [n, e, d, p, q, dp, dq, qi] = numbers.each_ref().map(|bytes| Number::new(bytes));
            for key in [
                PrivateKey::RsaCrt { n, e, d, p, q, dp, dq, qi },
                PrivateKey::Rsa { n, d },
                PrivateKey::Dsa { x: d, p, q, g: e },
            ] {
                let bytes = key.to_bytes();
                prop_assert_eq!(PrivateKey::decode(&bytes), Ok(key));
            }
        }
    }
}
