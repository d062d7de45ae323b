//! The cost of work that unauthenticated clients demand, known before it is done.
//!
//! A unit is one round of PBKDF2 with HMAC-SHA1, which is two blocks of SHA-1: about a quarter of a
//! microsecond. Other work counts by its time relative to one unit, on the machine of
//! `docs/performance.md`. Only the proportions matter: they decide which source is served next
//! ([`fair`](crate::fair)).

use crate::agreement::modulus_bits;
use crate::kdf::Pbkdf2Limits;
use handle_proto::wire::auth::{self, SecretAnswer};
use std::ops::RangeInclusive;
use std::time::Duration;

/// An amount of work.
pub type Units = u64;

/// Units of a millisecond.
pub const MILLISECOND: Units = 4000;
/// Parsing a request, and looking up its record.
pub const REQUEST: Units = 40;
/// A signature with RSA of 2048 bits.
pub const SIGNATURE: Units = 2400;
/// The verification of a signature.
pub const SIGNATURE_CHECK: Units = 400;
/// Both powers of a key exchange in a group of 1024 bits.
const AGREEMENT_1024: Units = 4000;

/// The units of work that took `time` of a processor, for work whose cost is not known before.
#[must_use]
pub fn of_time(time: Duration) -> Units {
    Units::try_from(time.as_nanos() / 250).unwrap_or(Units::MAX)
}

/// A key exchange with a client that sent `record`. Its cost grows with the square of the modulus,
/// because private values have a fixed length. A refused record, which is no key or has a modulus
/// whose size is not in `bits`, costs nothing.
#[must_use]
pub fn agreement(record: &[u8], bits: &RangeInclusive<u32>) -> Units {
    let modulus_bits = modulus_bits(record).and_then(|bits| u32::try_from(bits).ok());
    let bits = Units::from(modulus_bits.filter(|modulus_bits| bits.contains(modulus_bits)).unwrap_or(0));
    REQUEST + AGREEMENT_1024 * bits * bits / (1024 * 1024)
}

/// Deriving keys with PBKDF2: the rounds, once for each 160 bits.
#[must_use]
pub fn pbkdf2(iterations: u32, key_bits: u32) -> Units {
    Units::from(iterations) * Units::from(key_bits.div_ceil(160))
}

/// The check of `signed_response` with one key of type `kind`. A response outside the limits is
/// refused without work.
#[must_use]
pub fn check(kind: &[u8], signed_response: &[u8], limits: &Pbkdf2Limits) -> Units {
    if kind == auth::PUBLIC_KEY {
        return SIGNATURE_CHECK;
    }
    match SecretAnswer::decode(signed_response) {
        Ok(SecretAnswer::Pbkdf2 { iterations, key_bits, .. }) => {
            let is_done = limits.key_len(iterations, key_bits).is_some();
            REQUEST + if is_done { pbkdf2(iterations, key_bits) } else { 0 }
        }
        _ => REQUEST,
    }
}

/// How many of `keys_max` keys of type `kind` may be tried with `signed_response`, so that rounds,
/// blocks and keys together stay within the limits.
#[must_use]
pub fn keys_max(kind: &[u8], signed_response: &[u8], limits: &Pbkdf2Limits, keys_max: usize) -> usize {
    if kind == auth::PUBLIC_KEY {
        return keys_max;
    }
    match SecretAnswer::decode(signed_response) {
        Ok(SecretAnswer::Pbkdf2 { iterations, key_bits, .. }) => {
            let key_cost = pbkdf2(iterations, key_bits).max(1);
            let within = usize::try_from(Units::from(limits.work_max) / key_cost).unwrap_or(usize::MAX);
            // At least one, whose check finds that the response demands too much.
            keys_max.min(within.max(1))
        }
        _ => keys_max,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agreement::{Group, KeyPair};

    fn derived(iterations: u32, key_bits: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        SecretAnswer::Pbkdf2 { salt: b"salt", iterations, key_bits, mac: b"mac" }.encode(&mut bytes);
        bytes
    }

    #[test]
    fn costs_grow_with_rounds_and_key_length() {
        let limits = Pbkdf2Limits { work_max: 160_000, ..Pbkdf2Limits::DEFAULT };
        let cost = |iterations, key_bits| check(auth::SECRET_KEY, &derived(iterations, key_bits), &limits);
        assert_eq!(cost(10_000, 160), REQUEST + 10_000);
        assert_eq!(cost(10_000, 168), REQUEST + 20_000);
        assert_eq!(cost(80_000, 256), REQUEST + 160_000);
        for (iterations, key_bits) in [(80_001, 256), (160_001, 160), (u32::MAX, u32::MAX), (0, 160)] {
            assert_eq!(cost(iterations, key_bits), REQUEST, "refused without work");
        }
        assert_eq!(check(auth::SECRET_KEY, b"", &limits), REQUEST);
        assert_eq!(check(auth::PUBLIC_KEY, b"", &limits), SIGNATURE_CHECK);
        let group = |group| agreement(&KeyPair::new(group, &[1; 64]).public_record(), &(1024..=2048));
        assert_eq!(group(Group::oakley_2()), REQUEST + AGREEMENT_1024);
        assert_eq!(group(Group::modp_14()), REQUEST + 4 * AGREEMENT_1024);
        assert_eq!(agreement(b"nonsense", &(1024..=2048)), REQUEST);
        let record = KeyPair::new(Group::modp_14(), &[1; 64]).public_record();
        assert_eq!(agreement(&record, &(1024..=2047)), REQUEST, "refused");
    }

    #[test]
    fn so_many_keys_are_tried_that_the_product_stays_within_the_limit() {
        let limits = Pbkdf2Limits { work_max: 160_000, ..Pbkdf2Limits::DEFAULT };
        for (iterations, key_bits, tried) in
            [(1, 160, 16), (10_000, 160, 16), (10_001, 160, 15), (80_000, 256, 1), (u32::MAX, 512, 1)]
        {
            let tried_now = keys_max(auth::SECRET_KEY, &derived(iterations, key_bits), &limits, 16);
            assert_eq!(tried_now, tried, "{iterations} rounds, {key_bits} bits");
        }
        assert_eq!(keys_max(auth::SECRET_KEY, b"\x02mac", &limits, 16), 16);
        assert_eq!(keys_max(auth::PUBLIC_KEY, &derived(u32::MAX, 512), &limits, 16), 16);
    }
}
