//! Generates RSA keys. DSA keys, which old servers and administrators have, can be used but not
//! generated.
//!
//! The primes come from crypto-primes, because ring generates no keys. FIPS 186-5 appendix A.1.3
//! has the requirements: random, with the two upper bits set, far apart, and p - 1 coprime to the
//! exponent.

use crate::backend::rand::{SecureRandom as _, SystemRandom};
use crate::error::KeyError;
use crate::key::PrivateKey;
use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, ConcatenatingMul as _, Limb, NonZero, Odd};
use crypto_primes::hazmat::{SetBits, SmallFactorsSieveFactory};
use crypto_primes::{Flavor, is_prime, sieve_and_find};
use handle_proto::data;
use handle_proto::data::PrivateKeyBuf;
use handle_proto::data::key::Number;
use rand_core::{TryCryptoRng, TryRng};
use std::convert::Infallible;
use zeroize::Zeroizing;

/// Sizes of generated keys. The first is that of deployed software, and the fastest.
pub const RSA_BITS: [u32; 3] = [2048, 3072, 4096];
/// The public exponent of all generated keys.
const EXPONENT: u32 = 65_537;

/// Generates an RSA key of one of [`RSA_BITS`] bits. The smallest takes about a second, with a wide
/// spread.
///
/// # Errors
/// When the size is another one, or the test of the new key fails.
///
/// # Panics
/// When the operating system has no random numbers.
pub fn rsa(bits: u32) -> Result<PrivateKeyBuf, KeyError> {
    if !RSA_BITS.contains(&bits) {
        let accepted = "2048, 3072 or 4096 bits";
        return Err(KeyError::Size { algorithm: "RSA", bits: bits as usize, accepted });
    }
    let (p, q) = primes(bits / 2);
    let key = key(&p, &q);
    PrivateKey::new(&key.view())?;
    Ok(key)
}

type Secret = Zeroizing<BoxedUint>;

/// Two primes, the larger one first, because the coefficient in deployed key files is the inverse
/// of the second.
fn primes(bits: u32) -> (Secret, Secret) {
    loop {
        let (a, b) = (prime(bits), prime(bits));
        let (p, q) = if *a > *b { (a, b) } else { (b, a) };
        // Primes that are close together could be found near the root of their product.
        if p.wrapping_sub(&*q).bits() > bits - 100 {
            return (p, q);
        }
    }
}

fn prime(bits: u32) -> Secret {
    let sieve = |bits| SmallFactorsSieveFactory::<BoxedUint>::new(Flavor::Any, bits, SetBits::TwoMsb);
    loop {
        let factory = sieve(bits).expect("a supported size");
        let found = sieve_and_find(&mut System, factory, |_, candidate| is_prime(Flavor::Any, candidate));
        let prime = Zeroizing::new(found.ok().flatten().expect("there is always another candidate"));
        // Otherwise the exponent has no inverse.
        if remainder(&less_one(&prime)) != 0 {
            return prime;
        }
    }
}

fn key(p: &Secret, q: &Secret) -> PrivateKeyBuf {
    let (p_less_one, q_less_one) = (less_one(p), less_one(q));
    let n = p.concatenating_mul(&**q);
    let d = inverse_of_exponent(&Zeroizing::new(p_less_one.concatenating_mul(&*q_less_one)));
    let (dp, dq) = (inverse_of_exponent(&p_less_one), inverse_of_exponent(&q_less_one));
    let modulus = BoxedMontyParams::new(Odd::new((**p).clone()).into_option().expect("a prime above two"));
    // By Fermat, the power p - 2 is the inverse.
    let qi = BoxedMontyForm::new((**q).clone(), &modulus).pow(&less_one(&p_less_one));
    let qi = Zeroizing::new(qi.retrieve());
    let numbers = [&n, &*d, &**p, &**q, &*dp, &*dq, &*qi].map(|number| Zeroizing::new(number.to_be_bytes()));
    let [n, d, p, q, dp, dq, qi] = numbers.each_ref().map(|bytes| Number::new(bytes));
    let exponent = EXPONENT.to_be_bytes();
    (&data::PrivateKey::RsaCrt { n, e: Number::new(&exponent), d, p, q, dp, dq, qi }).into()
}

fn less_one(number: &BoxedUint) -> Secret {
    Zeroizing::new(number.wrapping_sub(BoxedUint::one_with_precision(number.bits_precision())))
}

fn exponent() -> NonZero<Limb> {
    NonZero::new(Limb::from_u32(EXPONENT)).expect("not zero")
}

/// The remainder of `number` divided by the exponent.
fn remainder(number: &BoxedUint) -> u64 {
    number.rem_limb(exponent()).0
}

/// The inverse of the exponent modulo `modulus`, which the exponent does not divide.
///
/// The exponent is prime. So it is enough to find, with small numbers, the multiple of the modulus
/// that is one less than a multiple of the exponent, and to divide.
fn inverse_of_exponent(modulus: &BoxedUint) -> Secret {
    let prime = u64::from(EXPONENT);
    let (mut base, mut power, mut inverse) = (remainder(modulus), EXPONENT - 2, 1);
    while power > 0 {
        if power & 1 == 1 {
            inverse = inverse * base % prime;
        }
        base = base * base % prime;
        power >>= 1;
    }
    let factor = BoxedUint::from(prime - inverse);
    let product = Zeroizing::new(modulus.concatenating_mul(&factor));
    let product =
        Zeroizing::new(product.wrapping_add(BoxedUint::one_with_precision(product.bits_precision())));
    Zeroizing::new(product.div_rem_limb(exponent()).0)
}

/// The random numbers of the operating system, behind the traits that crypto-primes needs.
struct System;

impl TryRng for System {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(u32::from_be_bytes(crate::random()))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(u64::from_be_bytes(crate::random()))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        SystemRandom::new().fill(bytes).expect("random numbers");
        Ok(())
    }
}

impl TryCryptoRng for System {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Algorithm;
    use handle_proto::code::DigestAlgorithm;

    #[test]
    fn a_new_key_signs_what_its_public_half_verifies() {
        let key = rsa(2048).unwrap();
        let data::PrivateKey::RsaCrt { n, e, p, q, .. } = key.view() else { panic!("not a full key") };
        assert_eq!((n.bits(), p.bits(), q.bits(), e.as_bytes()), (2048, 1024, 1024, &[1, 0, 1][..]));
        assert!(p.as_bytes() > q.as_bytes());
        let ready = PrivateKey::new(&key.view()).unwrap();
        assert_eq!(ready.algorithm(), Algorithm::Rsa);
        for digest in [DigestAlgorithm::SHA1, DigestAlgorithm::SHA256] {
            let signature = ready.sign(digest, &[b"abc"]).unwrap();
            assert_eq!(ready.public().verify(digest, &[b"abc"], &signature), Ok(()));
        }
        assert_ne!(rsa(2048).unwrap().as_bytes(), key.as_bytes());
    }

    #[test]
    fn the_numbers_of_a_key_belong_together() {
        let number = |value: u32| Zeroizing::new(BoxedUint::from(value));
        // Small primes, so that the results can be computed independently.
        let (p, q) = (number(1_000_003), number(999_983));
        let key = key(&p, &q);
        let data::PrivateKey::RsaCrt { n, d, dp, dq, qi, .. } = key.view() else { panic!("not a full key") };
        let value = |number: Number<'_>| {
            number.as_bytes().iter().fold(0_u128, |sum, &byte| sum << 8 | u128::from(byte))
        };
        assert_eq!(value(n), 1_000_003 * 999_983);
        assert_eq!(value(d) * 65_537 % (1_000_002 * 999_982), 1);
        assert_eq!(value(dp) * 65_537 % 1_000_002, 1);
        assert_eq!(value(dq) * 65_537 % 999_982, 1);
        assert_eq!(value(qi) * 999_983 % 1_000_003, 1);
    }

    #[test]
    fn other_sizes_are_refused() {
        for bits in [0, 1024, 2047, 2049, 8192] {
            let error = rsa(bits).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("RSA keys of {bits} bits are not supported, only those of 2048, 3072 or 4096 bits")
            );
        }
    }
}
