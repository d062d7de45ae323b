//! Leases: which of the processes that share a store does what only one may do at a time.

use super::StoreError;
use super::postgres::PostgresLease;
use std::time::Instant;

/// The lease of the process that publishes.
pub const PUBLISH_LEASE: &str = "publish";
/// The lease of the process that follows the primaries of a mirror.
pub const MIRROR_LEASE: &str = "mirror";

/// A process that wants a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseHolder {
    /// A random number, which no other process has.
    pub id: u64,
    /// The name of its host, for operators.
    pub host: String,
}

/// The outcome of an attempt to hold a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseTurn {
    /// This process has it.
    Held {
        /// Raised with each change of the holder.
        epoch: u64,
        /// Until this moment no other process gets it.
        until: Instant,
    },
    /// Another process has it.
    Elsewhere {
        /// Its host.
        host: String,
        /// Its epoch.
        epoch: u64,
    },
}

/// A lease in a store that several processes may use. It is over when it has not been renewed for
/// its length; dropping it does not end it.
#[derive(Debug)]
pub struct StoreLease(pub(super) PostgresLease);

impl StoreLease {
    /// Takes the lease if it is free, or renews it. If the holder changes, its epoch becomes
    /// higher than `epoch_above`.
    ///
    /// # Errors
    /// When the database does not answer within a third of the length of the lease.
    pub fn hold(&mut self, epoch_above: u64) -> Result<LeaseTurn, StoreError> {
        self.0.hold(epoch_above)
    }

    /// Ends the lease, if this process has it.
    ///
    /// # Errors
    /// As [`hold`](Self::hold).
    pub fn release(&mut self) -> Result<(), StoreError> {
        self.0.release()
    }
}
