//! Finds the service that is responsible for a handle, and asks it. RFC 3650 section 4, RFC 3651
//! section 5.1.
//!
//! The state machines have no I/O: [`lookup::Lookup`] holds no socket, no clock and no source of
//! randomness. Its driver passes the time, moves the bytes, and reports events; [`driver`] has one
//! with blocking sockets, and one with those of tokio (feature `tokio`).
//!
//! - [`mod@reference`]: the forms in which people write handles.
//! - [`bootstrap`]: the global service, and configured services.
//! - [`service`], [`plan`], [`times`]: the sites in a record; the order in which servers are asked.
//! - [`exchange`]: one request to one server: retries, fragments, and checks of the answer.
//! - [`lookup`]: one question, from the global service down; [`trace`]: its steps; [`namespace`]:
//!   the namespaces of its prefix.
//! - [`cache`], [`flight`]: answers by their time to live; one lookup for many callers.
//! - [`session`]: authentication from the second request on.
//! - [`administration`]: identities, and operations of administrators on one server.
//! - [`allowances`]: concessions to old servers and to servers without sessions.
//! - [`signature`]: signed values, up to trusted keys; [`mod@refresh`]: renewal of the global
//!   service from signed records.
#![forbid(unsafe_code)]

pub mod administration;
pub mod allowances;
pub mod answer;
pub mod bootstrap;
pub mod cache;
pub mod driver;
pub mod exchange;
pub mod flight;
mod identity;
pub mod lookup;
pub mod names;
pub mod namespace;
pub mod plan;
pub mod question;
pub mod reference;
pub mod refresh;
pub mod service;
pub mod session;
pub mod signature;
pub mod sockets;
#[cfg(test)]
mod testing;
pub mod times;
pub mod trace;

pub use allowances::Allowances;
pub use answer::LookupAnswer;
pub use cache::SharedAnswer;
pub use driver::BlockingDriver;
#[cfg(feature = "tokio")]
pub use driver::asynchronous::AsyncDriver;
pub use lookup::{Client, Lookup, LookupError};
pub use question::Question;

/// The caller's clock, read once for each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClockReading {
    /// Milliseconds of a monotonic clock with an arbitrary origin.
    pub ms: u64,
    /// Unix time in seconds.
    pub unix_s: u32,
}

/// A source of random numbers. Request ids are made from it, so it must be unpredictable.
pub type RandomSource = Box<dyn FnMut() -> u32 + Send>;
