//! Settings of the registration of prefixes.

use handle_daemon::settings;
use handle_daemon::settings::IDENTITIES;
use std::path::PathBuf;

settings! {
    /// Registration of prefixes over the web
    /// ([gateway.md](../gateway.md#registration-of-prefixes)).
    pub struct RegistrationConfig {
        /// Set this when applicants request prefixes over the web: the directory for requests,
        /// created if missing. Without it, there is no registration. Needs `admin.socket`, TLS and
        /// `reviewers`.
        restart directory: Option<PathBuf> = None;
        /// Set this when there is registration: identities, such as `300:0.NA/10`, that may see,
        /// accept, refuse and delete requests. `handle-admin` decides whether they may create
        /// prefix records.
        live reviewers: Vec<String> = Vec::new(), IDENTITIES;
        /// Set this when many prefixes are registered from one address: forms, wrong ones included,
        /// that a source may send per hour, and as many at once. A third may be undecided requests.
        /// Further ones get status 429. Sources and exemptions are those of `request_rate`;
        /// requests count by IPv4 address or IPv6 /64.
        live forms_per_hour: u32 = 30, 1..=100_000;
    } constants {
        /// Maximum length of a `sitebndl.zip`: many times a site record and two keys.
        bundle_bytes: usize = 64 << 10;
        /// Maximum number of entries in it: more than there are names that are accepted.
        bundle_entries: usize = 8;
        /// Maximum length of its entries together, unpacked: a site record with every attribute is
        /// shorter.
        unpacked_bytes: usize = 256 << 10;
        /// Maximum length of each field of the form, and of the reason of a refusal.
        field_bytes: usize = 1024;
        /// Maximum number of stored requests, decided ones included, which a page of the reviewers
        /// lists. Further ones get status 503.
        requests: usize = 1000;
        /// Maximum length of the files of all requests together: `requests` of the longest bundle.
        /// Further ones get status 503.
        store_bytes: u64 = 64 << 20;
        /// Number of sources whose forms are counted: more than send forms in an hour.
        sources: usize = 4096;
    }
}

impl RegistrationConfig {
    /// Undecided requests that a source may have.
    #[must_use]
    pub const fn pending_per_source(&self) -> usize {
        let (asked, most) = (self.forms_per_hour.div_ceil(3) as usize, self.requests.div_ceil(3));
        if asked < most { asked } else { most }
    }
}
