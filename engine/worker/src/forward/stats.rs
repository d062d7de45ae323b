//! The counters of forwarding.

use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! forward_counts {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Counters that only grow.
        #[derive(Debug, Default)]
        pub(crate) struct ForwardCounts { $($name: AtomicU64,)* }

        impl ForwardCounts {
            $($(#[doc = $doc])* pub(crate) fn $name(&self) { self.$name.fetch_add(1, Ordering::Relaxed); })*

            fn by_event(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

forward_counts! {
    /// A request found a permit.
    accepted,
    /// A request was answered by `handle-admin`; a listing counts at its end.
    answered,
    /// A request was refused, because all permits were taken.
    refused_full,
    /// A request was refused, because its source had reached its limit.
    refused_of_source,
    /// A listing was not started, because the limit of listings was reached.
    refused_listing,
    /// A request was not sent, because the circuit breaker was open.
    backed_off,
    /// The answer to a request took too long.
    timed_out,
    /// A request failed because the connection was refused or broke.
    failed,
    /// A listing was abandoned, because its connection was closed.
    abandoned,
}

/// The counters and the current numbers.
#[derive(Clone, Debug)]
pub(crate) struct ForwardStats {
    /// Counts by event.
    pub(crate) events: Vec<(&'static str, u64)>,
    /// Requests that are being forwarded or wait to be.
    pub(crate) waiting: usize,
    /// Listings in progress.
    pub(crate) listings: usize,
    /// Whether the circuit breaker is open.
    pub(crate) is_open: bool,
}

impl ForwardCounts {
    pub(crate) fn stats(&self, waiting: usize, listings: usize, is_open: bool) -> ForwardStats {
        ForwardStats { events: self.by_event(), waiting, listings, is_open }
    }
}

impl ForwardStats {
    pub(crate) fn to_json(&self) -> Value {
        let mut json = json!({
            "waiting": self.waiting, "listings": self.listings, "backing_off": self.is_open,
        });
        for (event, count) in &self.events {
            json[*event] = (*count).into();
        }
        json
    }
}
