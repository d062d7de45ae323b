//! Registration of prefixes over the web: `/register`, for registries.
//!
//! - [`applicant_pages`]: the public form, and the page that shows an applicant the state of a
//!   request.
//! - [`application`]: what an applicant sends, checked.
//! - [`request`]: a request, as it is stored.
//! - [`store`]: the directory of requests, which survives a crash.
//! - [`record`]: the prefix record that an accepted request becomes.
//!
//! Requests come from strangers: everything is bounded, nothing is done before a reviewer decides.
//! The gateway has no rights here either: `handle-admin` decides whether the reviewer may create
//! the prefix record.

pub mod applicant_pages;
pub mod application;
pub mod config;
pub mod record;
pub mod request;
pub mod store;

use crate::request::RateNetworks;
use config::RegistrationConfig;
use handle_client::administration::ClientIdentity;
use handle_daemon::identity::identities;
use handle_daemon::shutdown::Shutdown;
use handle_daemon::source_rates::{RetryAfter, SourceRate, SourceRates};
use handle_formats::bundle::BundleLimits;
use handle_proto::Handle;
use handle_proto::data::admin;
use handle_proto::wire::list::Reference;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::RegistrationStore;

/// Interval at which a process that has taken over tries to lock the directory.
const LOCK_INTERVAL: Duration = Duration::from_millis(50);

impl RegistrationConfig {
    /// Bounds of a `sitebndl.zip`.
    #[must_use]
    pub const fn bundle_limits(&self) -> BundleLimits {
        BundleLimits { entries: self.bundle_entries, unpacked_bytes: self.unpacked_bytes }
    }

    /// Maximum length of the body of a form: the archive, every field, and what surrounds them.
    #[must_use]
    pub const fn form_bytes(&self) -> usize {
        self.bundle_bytes + application::FIELDS.len() * (self.field_bytes + 512) + 512
    }

    /// Whether `identity` is a reviewer.
    #[must_use]
    pub fn is_reviewer(&self, identity: &ClientIdentity) -> bool {
        // A configuration is checked before it gets here.
        let reviewers = identities(&self.reviewers).unwrap_or_default();
        reviewers.iter().any(|reviewer| {
            let named = Reference { handle: &reviewer.handle, index: reviewer.index };
            admin::names(&named, Handle(&identity.handle), identity.index)
        })
    }
}

/// The requests, and the rates at which forms arrive.
#[derive(Debug)]
pub struct Registrations {
    /// The requests.
    pub store: Arc<RegistrationStore>,
    rates: SourceRates,
}

impl Registrations {
    /// Opens the directory that `config` names, if it names one. With `takes_over`, another process
    /// still has its lock.
    ///
    /// # Errors
    /// When it cannot be opened, or another process uses it.
    pub fn open(config: &RegistrationConfig, takes_over: bool) -> anyhow::Result<Option<Self>> {
        let open = |directory: &PathBuf| {
            let store = match takes_over {
                true => RegistrationStore::open_unlocked(directory)?,
                false => RegistrationStore::open(directory)?,
            };
            Ok(Self { store: Arc::new(store), rates: SourceRates::new(config.sources) })
        };
        config.directory.as_ref().map(open).transpose()
    }

    /// Waits until this process has the lock that another process had, or `shutdown` begins.
    pub fn wait_for_lock(&self, shutdown: &Shutdown) {
        while !shutdown.is_draining() && !self.try_lock() {
            std::thread::sleep(LOCK_INTERVAL);
        }
    }

    /// Locks the directory, unless another process still has its lock. Returns whether this is
    /// settled: the directory is locked, or cannot be.
    pub fn try_lock(&self) -> bool {
        self.store.lock().unwrap_or_else(|error| {
            tracing::error!("requests for prefixes are not stored: {error:#}");
            true
        })
    }

    /// Counts a form of `address`.
    ///
    /// # Errors
    /// When its source has sent too many.
    fn admit(
        &self,
        address: IpAddr,
        config: &RegistrationConfig,
        networks: RateNetworks,
    ) -> Result<(), RetryAfter> {
        const HOUR_NS: u64 = 3_600_000_000_000;
        let rate = SourceRate {
            interval_ns: HOUR_NS / u64::from(config.forms_per_hour),
            burst: config.forms_per_hour,
            ipv4_bits: networks.ipv4_bits,
            ipv6_bits: networks.ipv6_bits,
        };
        self.rates.admit_at_rate(address, Instant::now(), rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_client::administration::IdentityKey;
    use zeroize::Zeroizing;

    #[test]
    fn reviewers_are_named_with_or_without_an_index() {
        let config = RegistrationConfig {
            reviewers: vec!["300:0.NA/10".to_owned(), "10.1/Any".to_owned()],
            ..RegistrationConfig::default()
        };
        for (index, handle, is_reviewer) in [
            (300, "0.NA/10", true),
            (300, "0.na/10", true),
            (301, "0.NA/10", false),
            (7, "10.1/Any", true),
            (7, "10.1/any", false),
            (300, "0.NA/10.1", false),
        ] {
            let key = IdentityKey::Secret(Zeroizing::new(Vec::new()));
            let identity = ClientIdentity { handle: handle.into(), index, key };
            assert_eq!(config.is_reviewer(&identity), is_reviewer, "{index}:{handle}");
        }
    }
}
