//! `[administrators]` in the configuration: the same names with the same meaning for both
//! processes.

use crate::settings;
use crate::settings::IDENTITIES;

settings! {
    /// Identities with permissions of the server, such as `300:0.NA/10.1000`; the lists may name
    /// groups. A process ignores the lists for operations that it does not perform.
    pub struct AdministratorsConfig {
        /// Administrators of the server: may home prefixes, and have the permissions of all lists
        /// below.
        restart server: Vec<String> = Vec::new(), IDENTITIES;
        /// Administrators of the server have all permissions on every handle; at `handled`, they
        /// may read it.
        restart server_full_access: bool = true;
        /// Identities that may home, release and list prefixes, at `handle-admin`.
        restart home_only: Vec<String> = Vec::new(), IDENTITIES;
        /// Identities that may request transactions and all records, at `handle-admin`.
        restart replication: Vec<String> = Vec::new(), IDENTITIES;
        /// Identities that may request a backup, at `handle-admin`.
        restart backup: Vec<String> = Vec::new(), IDENTITIES;
        /// Identities that may read `0.SITE/status`.
        restart status: Vec<String> = Vec::new(), IDENTITIES;
        /// Administrators of a prefix may create and list handles under it, at `handle-admin`.
        restart prefix_administrators: bool = true;
    }
}
