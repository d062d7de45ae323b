//! Encoded values whose relative TTLs are linked, so that an answer sets them without looking for
//! them: the seconds of each also tell the distance to those of the next.
//!
//! Entries are linked when they are stored, which is once for many answers. A hit with three values
//! takes 170 instructions less than with [`set_ttl`](crate::entry::set_ttl), which reads every
//! length.

use crate::entry::{AnswerTtl, relative_seconds};

/// Where the seconds of the first value are, behind the kind of TTL.
const FIRST_AT: usize = 9;
/// Bits of the seconds; the others are those of the distance. A TTL of two days fits.
const SECONDS_BITS: u32 = 18;
/// The seconds of a link.
const SECONDS_MASK: u32 = (1 << SECONDS_BITS) - 1;
/// The longest distance.
const DISTANCE_MAX: usize = (1 << (u32::BITS - SECONDS_BITS)) - 1;

/// Links the relative TTLs of `values`. False if that is not possible, and they stay as they are:
/// because the first value has another TTL, one is too long or too far from the next, or the values
/// are not whole.
#[must_use]
pub(crate) fn link(values: &mut [u8]) -> bool {
    let Some(positions) = relative_seconds(values) else { return false };
    let seconds = |at: usize| values[at..].first_chunk().map_or(u32::MAX, |field| u32::from_be_bytes(*field));
    let is_near = |pair: &[usize]| pair[1] - pair[0] <= DISTANCE_MAX;
    let fits = positions.first() == Some(&FIRST_AT)
        && positions.iter().all(|&at| seconds(at) <= SECONDS_MASK)
        && positions.windows(2).all(is_near);
    for (nth, &at) in positions.iter().enumerate().filter(|_| fits) {
        let distance = positions.get(nth + 1).map_or(0, |next| next - at);
        #[expect(clippy::cast_possible_truncation, reason = "at most DISTANCE_MAX")]
        if let Some(field) = values[at..].first_chunk_mut() {
            *field = (u32::from_be_bytes(*field) | (distance as u32) << SECONDS_BITS).to_be_bytes();
        }
    }
    fits
}

/// Sets the linked TTLs of `values`, which are whole and plain from then on.
#[inline]
pub(crate) fn set(values: &mut [u8], ttl: AnswerTtl) {
    let limits = ttl.limits();
    follow(values, |seconds| limits.of(seconds));
}

/// Makes linked values plain again.
pub(crate) fn unlink(values: &mut [u8]) {
    follow(values, |seconds| seconds);
}

#[inline]
fn follow(values: &mut [u8], shown: impl Fn(i32) -> i32) {
    let mut at = FIRST_AT;
    while let Some(field) = values.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        let link = u32::from_be_bytes(*field);
        *field = shown((link & SECONDS_MASK).cast_signed()).to_be_bytes();
        match link >> SECONDS_BITS {
            0 => return,
            distance => at += distance as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::set_ttl;
    use handle_proto::Value;
    use handle_proto::value::Ttl;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn encoded(values: &[(Ttl, usize)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &(ttl, data_len) in values {
            Value { ttl, ..Value::new(1, b"URL", &vec![b'x'; data_len]) }.encode(&mut bytes);
        }
        bytes
    }

    fn ttls() -> impl Strategy<Value = AnswerTtl> {
        prop_oneof![
            (0..300_000_u32, 0..200_000_u32, 1..=172_800_u32)
                .prop_map(|(age_s, entry_left_s, max_s)| AnswerTtl::Left { age_s, entry_left_s, max_s }),
            (0..100_u32).prop_map(AnswerTtl::Stale),
        ]
    }

    proptest! {
        #[test]
        fn linked_ttls_are_set_as_plain_ones(
            values in vec((any::<bool>(), 0..400_000_i32, 0..400_usize), 0..6),
            ttl in ttls(),
            cut in 0..30_usize,
        ) {
            let of = |is_relative, seconds| match is_relative {
                true => Ttl::relative(seconds),
                false => Ttl::absolute(seconds),
            };
            let values: Vec<_> = values.iter().map(|&(kind, seconds, len)| (of(kind, seconds), len)).collect();
            let mut plain = encoded(&values);
            plain.truncate(plain.len().saturating_sub(cut / 10));
            let mut linked = plain.clone();
            let fits = cut < 10
                && values.first().is_some_and(|(ttl, _)| ttl.kind == Ttl::RELATIVE)
                && values.iter().all(|(ttl, _)| ttl.kind != Ttl::RELATIVE || ttl.seconds < 1 << SECONDS_BITS);
            prop_assert_eq!(link(&mut linked), fits);
            if fits {
                let mut again = linked.clone();
                unlink(&mut again);
                prop_assert_eq!(&again, &plain);
                set(&mut linked, ttl);
                set_ttl(&mut plain, ttl);
            }
            prop_assert_eq!(linked, plain);
        }

        #[test]
        fn what_is_not_linked_is_followed_to_its_end_at_most(mut bytes in vec(any::<u8>(), 0..100)) {
            unlink(&mut bytes);
        }
    }

    #[test]
    fn links_end_at_their_limits() {
        let head = encoded(&[(Ttl::relative(1), 0)]).len();
        for (data_len, fits) in [(DISTANCE_MAX - head, true), (DISTANCE_MAX - head + 1, false)] {
            let values = [(Ttl::relative(1), data_len), (Ttl::relative(2), 0)];
            assert_eq!(link(&mut encoded(&values)), fits, "{data_len}");
        }
        for (seconds, fits) in
            [(0, true), ((1 << SECONDS_BITS) - 1, true), (1 << SECONDS_BITS, false), (-1, false)]
        {
            assert_eq!(link(&mut encoded(&[(Ttl::relative(seconds), 7)])), fits, "{seconds}");
        }
    }
}
