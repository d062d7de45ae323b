//! The processor time that the templates of a base, and of a prefix, may take.
//!
//! Whoever owns a namespace decides what its answers cost, and anybody may ask for them. An answer
//! is bounded, but holds up every other request of the slow path until it is finished. So answers
//! that cost more than usual are made at a rate: those over one base, which may have a namespace of
//! its own, and all of a prefix, whose namespace applies to any base. While one base is refused,
//! other bases of its prefix are still answered.

use super::stats::processor_time;
use handle_daemon::source_rates::{SourceRate, SourceRates};
use handle_proto::{Handle, fold};
use handle_resolver::RefusalReason;
use std::time::{Duration, Instant};

/// Time that an answer may take without being counted: more than ten times that of usual templates.
const USUAL: Duration = Duration::from_millis(1);
/// Time that counts as one event.
const UNIT: Duration = Duration::from_micros(100);
/// Counted time of a base: a twentieth of one core, with 200 ms at once.
const BASE_RATE: SourceRate = SourceRate { interval_ns: 2_000_000, burst: 2000, ipv4_bits: 0, ipv6_bits: 0 };
/// Counted time of a prefix: a fifth of one core, with 400 ms at once.
const PREFIX_RATE: SourceRate = SourceRate { interval_ns: 500_000, burst: 4000, ..BASE_RATE };
/// Bases and prefixes that are known at a time, in 16 bytes each. A new one replaces the one that
/// has used least.
const KNOWN: usize = 8192;

/// The time that was spent on the templates of each base and prefix.
#[derive(Debug)]
pub(super) struct TemplateTimes(SourceRates);

impl TemplateTimes {
    pub(super) fn new() -> Self {
        Self(SourceRates::new(KNOWN))
    }

    /// Applies the templates of a handle with this base, and counts the time that they take.
    ///
    /// # Errors
    /// Those of `apply`, and [`RefusalReason::TemplatesCostly`] if the base or its prefix has no
    /// time left for now.
    pub(super) fn limit<T>(
        &self,
        base: &[u8],
        apply: impl FnOnce() -> Result<T, RefusalReason>,
    ) -> Result<T, RefusalReason> {
        let prefix_len = Handle(base).slash_at().unwrap_or(base.len());
        let base = fold::folded(base);
        // A base may be the prefix itself, so the zero byte tells their keys apart.
        let prefix = [b"\0", &base[..prefix_len]].concat();
        let keys = [(&base[..], BASE_RATE), (&prefix[..], PREFIX_RATE)];
        for (key, rate) in keys {
            self.0.check_key(key, Instant::now(), rate).map_err(|_| RefusalReason::TemplatesCostly)?;
        }
        let since = processor_time();
        let applied = apply();
        let took = processor_time().saturating_sub(since);
        if took > USUAL {
            let units = u32::try_from(took.as_micros() / UNIT.as_micros()).unwrap_or(u32::MAX);
            for (key, rate) in keys {
                self.0.charge_key(key, Instant::now(), rate, units);
            }
        }
        applied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_that_cost_much_are_applied_at_a_rate_and_others_always() {
        let times = TemplateTimes::new();
        let spend = |base: &[u8], time: Duration| {
            times.limit(base, || {
                let since = processor_time();
                while processor_time() - since < time {}
                Ok(())
            })
        };
        let (since, begun, costly) = (processor_time(), Instant::now(), Duration::from_millis(20));
        let refused = (0..100).find_map(|_| spend(b"10.1/a", costly).err());
        assert_eq!(refused, Some(RefusalReason::TemplatesCostly));
        let (took, spent) = (begun.elapsed(), processor_time() - since);
        assert!(spent >= 10 * costly && spent < 12 * costly + took / 20, "{spent:?} in {took:?}");
        assert!(spend(b"10.1/A", Duration::ZERO).is_err(), "in any case");
        assert_eq!(spend(b"10.1/b", Duration::ZERO), Ok(()), "the prefix has time left");
        let refused = (0..100).find_map(|at| spend(format!("10.1/{at}").as_bytes(), costly).err());
        assert_eq!(refused, Some(RefusalReason::TemplatesCostly));
        let (took, spent) = (begun.elapsed(), processor_time() - since);
        assert!(spent >= 20 * costly && spent < 22 * costly + took / 5, "{spent:?} in {took:?}");
        assert_eq!(spend(b"10.2/a", Duration::ZERO), Ok(()), "other prefixes have time of their own");
        for _ in 0..1000 {
            assert_eq!(spend(b"10.3/a", Duration::from_micros(300)), Ok(()));
        }
        // A delimiter that begins with a slash: the base is the prefix.
        for base in [&b"1"[..], b"86", b"10.4", b"10.1045"] {
            assert_eq!(spend(base, costly), Ok(()));
        }
        let refused = (0..100).find_map(|_| spend(b"10.4", costly).err());
        assert_eq!(refused, Some(RefusalReason::TemplatesCostly));
        assert_eq!(spend(b"10.4/a", Duration::ZERO), Ok(()), "the prefix has time left");
    }
}
