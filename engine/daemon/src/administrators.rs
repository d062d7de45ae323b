//! `[administrators]` in the configuration: the same names with the same meaning for both
//! processes.

use crate::settings;
use crate::settings::IDENTITIES;

settings! {
    /// Identities with permissions of the server, such as `300:0.NA/10.1000`; the lists may name
    /// groups. A process ignores the lists for operations that it does not perform.
    pub struct AdministratorsConfig {
        /// Set this when somebody administers the server: these may home prefixes, and have the
        /// permissions of all lists below.
        restart server: Vec<String> = Vec::new(), IDENTITIES;
        /// Set this when administrators of the server must not change or read every handle: with
        /// `false`, only records give them permissions.
        restart server_full_access: bool = true;
        /// Set this when others than the administrators of the server may home, release and list
        /// prefixes, at `handle-admin`.
        restart home_only: Vec<String> = Vec::new(), IDENTITIES;
        /// Set this when mirrors copy the records: the identities that may request transactions and
        /// all records, at `handle-admin`.
        restart replication: Vec<String> = Vec::new(), IDENTITIES;
        /// Set this when others than the administrators of the server may request a backup, at
        /// `handle-admin`.
        restart backup: Vec<String> = Vec::new(), IDENTITIES;
        /// Set this when monitoring reads `0.SITE/status` without being an administrator of the
        /// server.
        restart status: Vec<String> = Vec::new(), IDENTITIES;
        /// Set this when administrators of a prefix must not create and list handles under it, at
        /// `handle-admin`, which `false` forbids.
        restart prefix_administrators: bool = true;
    }
}
