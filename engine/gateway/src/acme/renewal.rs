//! When a certificate is ordered. Functions of time and randomness.

use super::config::AcmeConfig;
use super::store::StoredCertificate;
use crate::tls::certificate::{CertificateFacts, TlsCertificate};
use std::time::Duration;

const HOUR_S: u64 = 3600;

/// The time of the renewal of a certificate, in seconds since 1970; 0 if it says nothing.
#[must_use]
pub fn renewal_due_unix_s(facts: Option<&CertificateFacts>, config: &AcmeConfig) -> u64 {
    let Some(facts) = facts else { return 0 };
    let validity_s = facts.expires_unix_s.saturating_sub(facts.begins_unix_s);
    let before_s = (u64::from(config.renew_before_h) * HOUR_S).min(validity_s / 2);
    facts.expires_unix_s - before_s
}

/// The time of the next order, in seconds since 1970: 0 without a certificate of this authority for
/// these names.
#[must_use]
pub fn order_due_unix_s(stored: Option<(&StoredCertificate, &TlsCertificate)>, config: &AcmeConfig) -> u64 {
    let Some((stored, certificate)) = stored else { return 0 };
    let facts = certificate.facts().filter(|facts| facts.covers(&config.domains));
    let is_of_authority = stored.directory() == config.directory;
    renewal_due_unix_s(facts.filter(|_| is_of_authority), config)
}

/// The pause after so many failures in a row: it doubles with each, and `random` makes it up to a
/// quarter shorter or longer, so that many processes do not come back at the same time.
#[must_use]
pub fn pause(failures: u32, is_rate_limit: bool, config: &AcmeConfig, random: u32) -> Duration {
    let (least, most) = (u64::from(config.retry_s_min), u64::from(config.retry_s_max));
    let doubled = least.saturating_mul(1_u64.checked_shl(failures.saturating_sub(1)).unwrap_or(u64::MAX));
    let whole_ms = 1000 * if is_rate_limit { most } else { doubled.min(most) };
    let part_ms = whole_ms / 2 * u64::from(random) / u64::from(u32::MAX);
    Duration::from_millis(whole_ms - whole_ms / 4 + part_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_S: u64 = 24 * HOUR_S;

    #[test]
    fn a_certificate_is_renewed_before_it_expires() {
        let config = AcmeConfig::default();
        let due_day = |days: u64| {
            let facts = CertificateFacts {
                names: Vec::new(),
                begins_unix_s: 1000 * DAY_S,
                expires_unix_s: (1000 + days) * DAY_S,
            };
            (renewal_due_unix_s(Some(&facts), &config) - facts.begins_unix_s) / DAY_S
        };
        assert_eq!((due_day(90), due_day(60), due_day(6)), (60, 30, 3));
        assert_eq!(renewal_due_unix_s(None, &config), 0);
    }

    #[test]
    fn pauses_double_up_to_a_limit_and_vary_by_a_quarter() {
        let config = AcmeConfig { retry_s_min: 100, retry_s_max: 1000, ..AcmeConfig::default() };
        let middle =
            |failures, is_rate_limit| pause(failures, is_rate_limit, &config, u32::MAX / 2).as_secs_f64();
        for (failures, expected_s) in [(1, 100.0), (2, 200.0), (4, 800.0), (5, 1000.0), (90, 1000.0)] {
            assert!((middle(failures, false) - expected_s).abs() < 0.1, "{failures}");
        }
        assert!((middle(1, true) - 1000.0).abs() < 0.1);
        assert_eq!(pause(1, false, &config, 0), Duration::from_secs(75));
        assert_eq!(pause(1, false, &config, u32::MAX), Duration::from_secs(125));
    }
}
