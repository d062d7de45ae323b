//! Settings of the administration pages.

use handle_daemon::settings;

settings! {
    /// The administration pages ([gateway.md](../gateway.md#administration-pages)).
    pub struct AdminPagesConfig {
        /// Serve `/admin/`, if `admin.callers` and TLS, or `proxies.credentials`, are configured.
        live enabled: bool = true;
        /// Handles on each page of a list.
        live list_handles: usize = 100, 1..=10_000;
        /// Maximum number of records of an upload. Browsers with scripts send larger uploads in
        /// parts.
        live upload_records: usize = 1000, 1..=100_000;
    }
}
