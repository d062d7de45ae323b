//! `[administrators]` in the configuration: the same names with the same meaning for both
//! processes.

use crate::settings;
use crate::settings::IDENTITIES;

settings! {
    /// Identities with permissions of the server, such as `300:0.NA/10.1000`; the lists may name
    /// groups. A process ignores lists for operations that it does not perform.
    pub struct AdministratorsConfig {
        /// Set this when somebody administers the server: who may home prefixes, and has the
        /// permissions of all lists below.
        restart server: Vec<String> = Vec::new(), IDENTITIES;
        /// Set this when administrators of the server must not change or read every handle: with
        /// `false`, only records give them permissions.
        restart server_full_access: bool = true;
        /// Set this when others than the administrators of the server home, release and list
        /// prefixes at `handle-admin`: who may.
        restart home_only: Vec<String> = Vec::new(), IDENTITIES;
        /// Set this when mirrors copy the records: who may request transactions and all records at
        /// `handle-admin`.
        restart replication: Vec<String> = Vec::new(), IDENTITIES;
        /// Set this when others than the administrators of the server request a backup at
        /// `handle-admin`: who may.
        restart backup: Vec<String> = Vec::new(), IDENTITIES;
        /// Set this when monitoring reads `0.SITE/status`: who may without administering the
        /// server.
        restart status: Vec<String> = Vec::new(), IDENTITIES;
        /// Set this when administrators of a prefix must not create and list handles under it at
        /// `handle-admin`: `false` forbids it.
        restart prefix_administrators: bool = true;
    }
}
