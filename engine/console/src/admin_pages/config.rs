//! Settings of the administration pages.

use handle_daemon::settings;

settings! {
    /// The administration pages ([gateway.md](../gateway.md#administration-pages)).
    pub struct AdminPagesConfig {
        /// Set this when nobody should administer with a browser: `false` does not serve `/admin/`.
        /// Otherwise it is served if `admin.socket` and TLS, or `proxies.credentials`, are
        /// configured.
        live enabled: bool = true;
    } constants {
        /// Handles on each page of a list: some screens, in one request to `handle-admin`.
        list_handles: usize = 100;
        /// Maximum number of records of an upload without scripts: what `handle-admin` does while a
        /// browser waits. Browsers with scripts send larger uploads in parts.
        upload_records: usize = 1000;
    }
}
