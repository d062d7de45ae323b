//! The rate limit of answers.

use arbitrary::{Arbitrary, Unstructured};
use handle_worker::rate_limit::model::LimiterModel;
use handle_worker::rate_limit::{HashSeed, Limiter, RateLimits};
use std::net::IpAddr;

const SEED: HashSeed = HashSeed([
    0x9e37_79b9_7f4a_7c15,
    0xbf58_476d_1ce4_e5b9,
    0x94d0_49bb_1331_11eb,
    0xd6e8_feb8_6659_fd93,
    0xa076_1d64_78bd_642f,
    0xe703_7ed1_a0b4_28db,
    0x8ebc_6af0_9c88_c6e3,
]);

/// An answer: its destination, the time since the last one, and the number of datagrams.
#[derive(Arbitrary, Debug)]
struct Step {
    is_ipv4: bool,
    network: u8,
    host: u8,
    datagrams: u16,
    later: u16,
}

impl Step {
    /// One of 64 addresses of each family, in neighbouring networks.
    fn address(&self) -> IpAddr {
        let (network, host) = (self.network % 8, self.host % 8);
        if self.is_ipv4 {
            return [198, 51, network, host].into();
        }
        // Networks that differ in a bit of one level, of several, or of none.
        let bits = [0, 1, 1 << 8, 1 << 16, 1 << 24, 0x101, 0x1_0001, 0xff_ffff][usize::from(network)];
        let address = (0x2001_0db8_u128 << 96) | (bits << 64) | u128::from(host);
        IpAddr::V6(address.into())
    }
}

/// The limiter equals its definition if no slots are shared, and never permits more if they are.
///
/// Input: any bytes, parsed as a plan by the crate `arbitrary`.
pub fn rate_limit(bytes: &[u8]) {
    type LimiterPlan = ([u8; 6], u8, [u64; 7], Vec<Step>);
    let Ok((rates, burst, seed, steps)) = LimiterPlan::arbitrary_take_rest(Unstructured::new(bytes)) else {
        return;
    };
    let [host, network, host6, site64, site56, site48] = rates.map(|rate| u64::from(rate) << 16);
    let limits = RateLimits {
        ipv4: [host, network],
        ipv6: [host6, site64, site56, site48],
        burst_ns: (u64::from(burst) << 16) + 1,
    };
    // With this seed and size no two prefixes of the 128 addresses share a slot.
    let mut alone = Limiter::new(&limits, 1 << 20, SEED);
    let mut crowded = Limiter::new(&limits, 256, HashSeed(seed));
    let (mut alone_model, mut crowded_model) = (LimiterModel::new(&limits), LimiterModel::new(&limits));
    let mut now_ns = 1;
    for step in &steps {
        now_ns += u64::from(step.later) << 12;
        let (address, datagrams) = (step.address(), u32::from(step.datagrams));
        let expected = alone_model.would_allow(address, now_ns);
        assert_eq!(alone.allows(address, datagrams, now_ns), expected, "{step:?}");
        if expected {
            alone_model.count(address, datagrams, now_ns);
        }
        if crowded.allows(address, datagrams, now_ns) {
            assert!(crowded_model.would_allow(address, now_ns), "more than its limit: {step:?}");
            crowded_model.count(address, datagrams, now_ns);
        }
    }
}
