//! Settings of the registration of prefixes.

use handle_daemon::settings;
use handle_daemon::settings::IDENTITIES;
use std::path::PathBuf;

settings! {
    /// Registration of prefixes over the web
    /// ([gateway.md](../gateway.md#registration-of-prefixes)).
    pub struct RegistrationConfig {
        /// Directory in which requests are kept; created if it is missing. Without it there is no
        /// registration. It needs `admin.callers`, TLS and `reviewers`.
        restart directory: Option<PathBuf> = None;
        /// Identities that may see, accept, refuse and delete requests, such as `300:0.NA/10`.
        /// `handle-admin` decides whether they may create prefix records.
        live reviewers: Vec<String> = Vec::new(), IDENTITIES;
        /// Maximum length of a `sitebndl.zip`.
        live bundle_bytes: usize = 64 << 10, 1024..=1 << 20;
        /// Maximum number of entries in it.
        live bundle_entries: usize = 8, 2..=1024;
        /// Maximum length of its entries together, unpacked.
        live unpacked_bytes: usize = 256 << 10, 1024..=1 << 22;
        /// Maximum length of each field of the form, and of the reason of a refusal.
        live field_bytes: usize = 1024, 64..=1 << 16;
        /// Maximum number of stored requests, decided ones included. Further ones get status 503.
        live requests: usize = 1000, 1..=10_000;
        /// Of these, undecided ones of one source: an IPv4 address, or a /64 of IPv6. Further ones
        /// get status 429.
        live pending_per_source <= requests: usize = 10, 1..=10_000;
        /// Maximum length of the files of all requests together. Further ones get status 503.
        live store_bytes: u64 = 64 << 20, 1 << 16..=1 << 40;
        /// Forms that a source may send per hour, wrong ones included, and as many at once. Further
        /// ones get status 429. A source is that of `request_rate`, and the same are exempt.
        live forms_per_hour: u32 = 30, 1..=100_000;
        /// Number of sources whose forms are counted.
        restart sources: usize = 4096, 1024..=1 << 24;
    }
}
