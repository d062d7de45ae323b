//! Diffie-Hellman over prime fields, with which the two sides of a session agree on its key. RFC
//! 3652 section 3.8, with the deployed key records.
//!
//! The client chooses the group. Checking whether its modulus is a prime would cost a server too
//! much, and is not necessary: a private value is made for one session and used once.

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use handle_proto::DecodeError;
use handle_proto::data::PublicKey;
use handle_proto::data::key::Number;
use handle_proto::limit;
use std::fmt;
use std::ops::RangeInclusive;
use zeroize::Zeroizing;

/// Random bytes in a private value: twice the 256 bits of security of the largest group.
pub const PRIVATE_LEN: usize = 64;
/// Accepted sizes of a modulus, unless configured otherwise, in bits. The sender chooses the cost.
pub const BITS: RangeInclusive<u32> = limit::DH_MODULUS_BITS_MIN..=limit::DH_MODULUS_BITS_MAX;

/// Why the two sides cannot agree on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AgreementError {
    /// The record of the other side does not decode.
    Undecodable(DecodeError),
    /// The record is not a Diffie-Hellman key.
    Kind,
    /// The modulus is smaller or larger than accepted.
    Size {
        /// The size of the modulus in bits.
        bits: usize,
    },
    /// The modulus is even, the generator is out of its range, or the group is not that of this
    /// side.
    Group,
    /// The public value would make the secret predictable.
    PublicValue,
}

impl fmt::Display for AgreementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Undecodable(error) => write!(f, "not a key: {error}"),
            Self::Kind => f.write_str("not a Diffie-Hellman key"),
            Self::Size { bits } => write!(f, "unsupported size of a Diffie-Hellman group: {bits} bits"),
            Self::Group => f.write_str("not a Diffie-Hellman group, or another one"),
            Self::PublicValue => f.write_str("the public value would make the secret predictable"),
        }
    }
}

impl std::error::Error for AgreementError {}

impl From<DecodeError> for AgreementError {
    fn from(error: DecodeError) -> Self {
        Self::Undecodable(error)
    }
}

/// A modulus and a generator.
#[derive(Clone)]
pub struct Group {
    modulus: BoxedMontyParams,
    p: Vec<u8>,
    g: Vec<u8>,
}

impl Group {
    /// The group of 1024 bits that deployed clients use: the second of RFC 2409.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn oakley_2() -> Self {
        Self::new(Number::new(&OAKLEY_2), Number::new(&[2]), &BITS).expect("a group")
    }

    /// A group of 2048 bits: the fourteenth of RFC 3526.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn modp_14() -> Self {
        Self::new(Number::new(&MODP_14), Number::new(&[2]), &BITS).expect("a group")
    }

    /// Creates a group from its numbers, with a modulus whose size is in `bits`.
    ///
    /// # Errors
    /// When the size is not in `bits`, the modulus is even, or the generator is not between 1 and
    /// p - 1.
    pub fn new(p: Number<'_>, g: Number<'_>, bits: &RangeInclusive<u32>) -> Result<Self, AgreementError> {
        let size = AgreementError::Size { bits: p.bits() };
        let p_bits = u32::try_from(p.bits()).map_err(|_| size)?;
        if !bits.contains(&p_bits) || p_bits < 8 {
            return Err(size);
        }
        let modulus = BoxedUint::from_be_slice_vartime(p.as_bytes());
        let modulus = Odd::new(modulus).into_option().ok_or(AgreementError::Group)?;
        let modulus = BoxedMontyParams::new_vartime(modulus);
        let group = Self { modulus, p: p.as_bytes().to_vec(), g: g.as_bytes().to_vec() };
        group.element(g).ok_or(AgreementError::Group)?;
        Ok(group)
    }

    /// Converts a number, unless it is out of range, or 0, 1 or p - 1, whose powers are known.
    fn element(&self, number: Number<'_>) -> Option<BoxedMontyForm> {
        let number = BoxedUint::from_be_slice(number.as_bytes(), self.modulus.bits_precision()).ok()?;
        let one = BoxedUint::one_with_precision(self.modulus.bits_precision());
        let last = self.modulus.modulus().as_ref().wrapping_sub(&one);
        (number > one && number < last).then(|| BoxedMontyForm::new(number, &self.modulus))
    }
}

impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        (&self.p, &self.g) == (&other.p, &other.g)
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group of {} bits", Number::new(&self.p).bits())
    }
}

/// One side of an agreement: a private value, and the public value for the other side.
pub struct KeyPair {
    group: Group,
    x: Zeroizing<BoxedUint>,
    y: Vec<u8>,
}

impl KeyPair {
    /// Creates a pair with a private value from `random`, to be used once.
    #[must_use]
    pub fn new(group: Group, random: &[u8; PRIVATE_LEN]) -> Self {
        // Shorter than the modulus, however small that is.
        let len = random.len().min(group.p.len() - 1);
        Self::from_private(group, &random[..len])
    }

    /// Creates a pair with this private value, whose length is not secret.
    #[must_use]
    pub fn from_private(group: Group, x: &[u8]) -> Self {
        let x = Zeroizing::new(BoxedUint::from_be_slice_vartime(x));
        let g = BoxedUint::from_be_slice_vartime(&group.g);
        let g = crypto_bigint::Resize::resize(g, group.modulus.bits_precision());
        let y = BoxedMontyForm::new(g, &group.modulus).pow(&x).retrieve();
        let y = Number::new(&y.to_be_bytes()).as_bytes().to_vec();
        Self { group, x, y }
    }

    /// The record to send to the other side.
    #[must_use]
    pub fn public_record(&self) -> Vec<u8> {
        let [y, p, g] = [&self.y, &self.group.p, &self.group.g].map(|bytes| Number::new(bytes));
        PublicKey::Dh { y, p, g }.to_bytes()
    }

    /// The secret shared with the side that sent `record`: as many bytes as the modulus has.
    ///
    /// # Errors
    /// When the record is not a Diffie-Hellman key of the same group, or its value would make the
    /// secret predictable.
    pub fn agree(&self, record: &[u8]) -> Result<Zeroizing<Vec<u8>>, AgreementError> {
        let PublicKey::Dh { y, p, g } = PublicKey::decode(record)? else { return Err(AgreementError::Kind) };
        if (p.as_bytes(), g.as_bytes()) != (&self.group.p[..], &self.group.g[..]) {
            return Err(AgreementError::Group);
        }
        let y = self.group.element(y).ok_or(AgreementError::PublicValue)?;
        let z = y.pow(&self.x).retrieve();
        let bytes = Zeroizing::new(z.to_be_bytes().into_vec());
        // The precision is that of whole limbs.
        let secret = Zeroizing::new(bytes[bytes.len() - self.group.p.len()..].to_vec());
        // Possible in a group of small or composite order.
        self.group.element(Number::new(&secret)).ok_or(AgreementError::PublicValue)?;
        Ok(secret)
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "private half in a {:?}", self.group)
    }
}

/// Responds as the server: returns its record, in the group that the client chose, and the shared
/// secret.
///
/// # Errors
/// When the client's record is not a Diffie-Hellman key, its modulus has a size outside `bits`, or
/// its value would make the secret predictable.
pub fn respond(
    client_record: &[u8],
    bits: &RangeInclusive<u32>,
    random: &[u8; PRIVATE_LEN],
) -> Result<(Vec<u8>, Zeroizing<Vec<u8>>), AgreementError> {
    let PublicKey::Dh { p, g, .. } = PublicKey::decode(client_record)? else {
        return Err(AgreementError::Kind);
    };
    let pair = KeyPair::new(Group::new(p, g, bits)?, random);
    let secret = pair.agree(client_record)?;
    Ok((pair.public_record(), secret))
}

/// Bits of the modulus of a Diffie-Hellman key; `None` if `record` is not such a key.
#[must_use]
pub fn modulus_bits(record: &[u8]) -> Option<usize> {
    match PublicKey::decode(record) {
        Ok(PublicKey::Dh { p, .. }) => Some(p.bits()),
        _ => None,
    }
}

/// RFC 2409 section 6.2.
#[rustfmt::skip]
const OAKLEY_2: [u8; 128] = [
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xc9, 0x0f, 0xda, 0xa2, 0x21, 0x68, 0xc2, 0x34,
    0xc4, 0xc6, 0x62, 0x8b, 0x80, 0xdc, 0x1c, 0xd1, 0x29, 0x02, 0x4e, 0x08, 0x8a, 0x67, 0xcc, 0x74,
    0x02, 0x0b, 0xbe, 0xa6, 0x3b, 0x13, 0x9b, 0x22, 0x51, 0x4a, 0x08, 0x79, 0x8e, 0x34, 0x04, 0xdd,
    0xef, 0x95, 0x19, 0xb3, 0xcd, 0x3a, 0x43, 0x1b, 0x30, 0x2b, 0x0a, 0x6d, 0xf2, 0x5f, 0x14, 0x37,
    0x4f, 0xe1, 0x35, 0x6d, 0x6d, 0x51, 0xc2, 0x45, 0xe4, 0x85, 0xb5, 0x76, 0x62, 0x5e, 0x7e, 0xc6,
    0xf4, 0x4c, 0x42, 0xe9, 0xa6, 0x37, 0xed, 0x6b, 0x0b, 0xff, 0x5c, 0xb6, 0xf4, 0x06, 0xb7, 0xed,
    0xee, 0x38, 0x6b, 0xfb, 0x5a, 0x89, 0x9f, 0xa5, 0xae, 0x9f, 0x24, 0x11, 0x7c, 0x4b, 0x1f, 0xe6,
    0x49, 0x28, 0x66, 0x51, 0xec, 0xe6, 0x53, 0x81, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
];

/// RFC 3526 section 3.
#[rustfmt::skip]
const MODP_14: [u8; 256] = [
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xc9, 0x0f, 0xda, 0xa2, 0x21, 0x68, 0xc2, 0x34,
    0xc4, 0xc6, 0x62, 0x8b, 0x80, 0xdc, 0x1c, 0xd1, 0x29, 0x02, 0x4e, 0x08, 0x8a, 0x67, 0xcc, 0x74,
    0x02, 0x0b, 0xbe, 0xa6, 0x3b, 0x13, 0x9b, 0x22, 0x51, 0x4a, 0x08, 0x79, 0x8e, 0x34, 0x04, 0xdd,
    0xef, 0x95, 0x19, 0xb3, 0xcd, 0x3a, 0x43, 0x1b, 0x30, 0x2b, 0x0a, 0x6d, 0xf2, 0x5f, 0x14, 0x37,
    0x4f, 0xe1, 0x35, 0x6d, 0x6d, 0x51, 0xc2, 0x45, 0xe4, 0x85, 0xb5, 0x76, 0x62, 0x5e, 0x7e, 0xc6,
    0xf4, 0x4c, 0x42, 0xe9, 0xa6, 0x37, 0xed, 0x6b, 0x0b, 0xff, 0x5c, 0xb6, 0xf4, 0x06, 0xb7, 0xed,
    0xee, 0x38, 0x6b, 0xfb, 0x5a, 0x89, 0x9f, 0xa5, 0xae, 0x9f, 0x24, 0x11, 0x7c, 0x4b, 0x1f, 0xe6,
    0x49, 0x28, 0x66, 0x51, 0xec, 0xe4, 0x5b, 0x3d, 0xc2, 0x00, 0x7c, 0xb8, 0xa1, 0x63, 0xbf, 0x05,
    0x98, 0xda, 0x48, 0x36, 0x1c, 0x55, 0xd3, 0x9a, 0x69, 0x16, 0x3f, 0xa8, 0xfd, 0x24, 0xcf, 0x5f,
    0x83, 0x65, 0x5d, 0x23, 0xdc, 0xa3, 0xad, 0x96, 0x1c, 0x62, 0xf3, 0x56, 0x20, 0x85, 0x52, 0xbb,
    0x9e, 0xd5, 0x29, 0x07, 0x70, 0x96, 0x96, 0x6d, 0x67, 0x0c, 0x35, 0x4e, 0x4a, 0xbc, 0x98, 0x04,
    0xf1, 0x74, 0x6c, 0x08, 0xca, 0x18, 0x21, 0x7c, 0x32, 0x90, 0x5e, 0x46, 0x2e, 0x36, 0xce, 0x3b,
    0xe3, 0x9e, 0x77, 0x2c, 0x18, 0x0e, 0x86, 0x03, 0x9b, 0x27, 0x83, 0xa2, 0xec, 0x07, 0xa2, 0x8f,
    0xb5, 0xc5, 0x5d, 0xf0, 0x6f, 0x4c, 0x52, 0xc9, 0xde, 0x2b, 0xcb, 0xf6, 0x95, 0x58, 0x17, 0x18,
    0x39, 0x95, 0x49, 0x7c, 0xea, 0x95, 0x6a, 0xe5, 0x15, 0xd2, 0x26, 0x18, 0x98, 0xfa, 0x05, 0x10,
    0x15, 0x72, 0x8e, 0x5a, 0x8a, 0xac, 0xaa, 0x68, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(y: &[u8], p: &[u8], g: &[u8]) -> Vec<u8> {
        PublicKey::Dh { y: Number::new(y), p: Number::new(p), g: Number::new(g) }.to_bytes()
    }

    #[test]
    fn both_sides_agree_and_a_third_does_not() {
        for group in [Group::oakley_2(), Group::modp_14()] {
            let client = KeyPair::new(group.clone(), &[1; 64]);
            let (server_record, secret) = respond(&client.public_record(), &BITS, &[2; 64]).unwrap();
            assert_eq!(client.agree(&server_record).unwrap(), secret);
            assert_eq!(secret.len(), group.p.len());
            let third = KeyPair::new(group, &[3; 64]);
            assert_ne!(third.agree(&server_record).unwrap(), secret);
        }
    }

    #[test]
    fn predictable_public_values_are_refused() {
        let pair = KeyPair::new(Group::oakley_2(), &[1; 64]);
        let mut last = OAKLEY_2;
        last[127] -= 1;
        for y in [&[][..], &[1], &last, &OAKLEY_2, &[0xff; 128], &[1; 129]] {
            let error = pair.agree(&record(y, &OAKLEY_2, &[2])).unwrap_err();
            assert_eq!(error, AgreementError::PublicValue, "{y:?}");
        }
        assert!(pair.agree(&record(&[2], &OAKLEY_2, &[2])).is_ok());
    }

    #[test]
    fn groups_are_bounded_and_equal_on_both_sides() {
        let odd = |bits: usize| {
            let mut p = vec![0xff; bits.div_ceil(8)];
            p[0] >>= (8 - bits % 8) % 8;
            p
        };
        for (bits, is_accepted) in [(511, false), (512, true), (513, true), (8192, true), (8193, false)] {
            let client = record(&[3], &odd(bits), &[2]);
            let response = respond(&client, &BITS, &[1; 64]);
            let size = AgreementError::Size { bits };
            assert_eq!(response.is_ok(), is_accepted, "{bits}");
            assert!(is_accepted || response.err() == Some(size), "{bits}");
        }
        let strict = 2048..=4096;
        let client = KeyPair::new(Group::oakley_2(), &[1; 64]).public_record();
        let error = respond(&client, &strict, &[2; 64]).unwrap_err();
        assert_eq!(error, AgreementError::Size { bits: 1024 });
        let mut even = OAKLEY_2;
        even[127] -= 1;
        for (p, g) in [
            (&even, &[2][..]),
            (&OAKLEY_2, &[]),
            (&OAKLEY_2, &[1]),
            (&OAKLEY_2, &even),
            (&OAKLEY_2, &OAKLEY_2),
        ] {
            let error = respond(&record(&[3], p, g), &BITS, &[1; 64]).unwrap_err();
            assert_eq!(error, AgreementError::Group, "{g:?}");
        }
        let pair = KeyPair::new(Group::oakley_2(), &[1; 64]);
        let other = KeyPair::new(Group::modp_14(), &[1; 64]).public_record();
        assert_eq!(pair.agree(&other), Err(AgreementError::Group));
    }

    #[test]
    fn keys_of_other_kinds_and_truncated_ones_are_refused() {
        let client = KeyPair::new(Group::oakley_2(), &[1; 64]).public_record();
        for len in 0..client.len() {
            let error = respond(&client[..len], &BITS, &[2; 64]).unwrap_err();
            assert!(matches!(error, AgreementError::Undecodable(_)), "cut to {len}: {error}");
        }
        let rsa = PublicKey::Rsa { e: Number::new(&[3]), n: Number::new(&OAKLEY_2) }.to_bytes();
        assert_eq!(respond(&rsa, &BITS, &[2; 64]), Err(AgreementError::Kind));
        let shown = format!("{:?}", KeyPair::new(Group::oakley_2(), &[1; 64]));
        assert_eq!(shown, "private half in a group of 1024 bits");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_group_agrees_or_is_refused(p in prop::collection::vec(any::<u8>(), 64..100), y: Vec<u8>, g: Vec<u8>) {
            let client = record(&y, &p, &g);
            let Ok((server, secret)) = respond(&client, &BITS, &[1; 64]) else { return Ok(()) };
            // It is the group of the client, with another value that a client accepts.
            let PublicKey::Dh { y: value, p: modulus, g: generator } = PublicKey::decode(&server).unwrap() else {
                panic!("another kind of key");
            };
            prop_assert_eq!((modulus, generator), (Number::new(&p), Number::new(&g)));
            let is_in_group = |number: &[u8]| {
                let digits = |bytes: &[u8]| bytes.iter().copied().skip_while(|&byte| byte == 0).collect::<Vec<u8>>();
                let (number, modulus) = (digits(number), digits(&p));
                (number.len(), number) < (modulus.len(), modulus)
            };
            prop_assert!(is_in_group(value.as_bytes()) && is_in_group(&secret), "beyond the modulus");
            // The same random number gives the same, and another one another secret.
            prop_assert_eq!(&respond(&client, &BITS, &[1; 64]).unwrap().1, &secret);
        }
    }
}
