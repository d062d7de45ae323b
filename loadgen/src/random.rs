//! Random numbers that are the same for a seed on every machine and in every release.

/// SplitMix64, which chooses the requests.
///
/// Implemented here because results are compared across years: general crates reserve the right to
/// change their fast generators.
#[derive(Clone, Copy, Debug)]
pub struct RandomGenerator(u64);

impl RandomGenerator {
    /// The sequence number `stream` of `seed`.
    #[must_use]
    pub const fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed);
        random.0 = random.next().wrapping_add(stream.wrapping_mul(0xd1b5_4a32_d192_ed03));
        random
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, uniform to within `end` / 2^64.
    pub const fn below(&mut self, end: u64) -> u64 {
        ((self.next() as u128 * end as u128) >> 64) as u64
    }

    /// A number from 0 up to 1 (exclusive), in steps of 2^-53.
    pub const fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The random wait for an event with an average of one per unit of time.
    pub fn exponential(&mut self) -> f64 {
        -(-self.unit()).ln_1p()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_sequence() {
        let mut random = RandomGenerator(1_234_567);
        let published = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(published, [random.next(), random.next(), random.next()], "published values");
        assert_ne!(RandomGenerator::new(1, 0).next(), RandomGenerator::new(1, 1).next());
        assert_ne!(RandomGenerator::new(1, 0).next(), RandomGenerator::new(2, 0).next());
    }

    #[test]
    fn below_reaches_all_and_no_more() {
        let mut random = RandomGenerator::new(3, 0);
        let mut seen = [0; 7];
        for _ in 0..7000 {
            seen[usize::try_from(random.below(7)).unwrap()] += 1;
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
    }
}
