//! Finds the service that is responsible for a handle, and asks it. RFC 3650 section 4, RFC 3651 section 5.1.
//!
//! State machines first, sockets last: [`lookup::Lookup`] holds no socket, no clock and no source of randomness.
//! Who drives it says what time it is, moves the bytes it wants moved, and tells it what came of them;
//! [`driver`] does so with blocking sockets, or with those of tokio (feature `tokio`).
//!
//! - [`mod@reference`]: the forms in which people write handles.
//! - [`bootstrap`]: the global service, and services that are known beforehand.
//! - [`service`], [`plan`], [`times`]: which sites a record names; which server of which site is asked first.
//! - [`exchange`]: one request to one server: retries, fragments, and whether the answer may be believed.
//! - [`lookup`]: one question, from the global service down; [`trace`] says what it did; [`namespace`]: what else is known
//!   of its prefix.
//! - [`cache`], [`flight`]: answers by their time to live; one request for many askers.
//! - [`session`]: what proves who asks from the second request on.
//! - [`administration`]: who asks, what proves it, and operations of administrators on one server.
//! - [`allowances`]: what is done for servers without sessions and old servers where it is allowed by name.
//! - [`signature`]: values that are signed, up to the keys one trusts; [`mod@refresh`]: the global service anew, when
//!   all of it is signed so.
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
    /// Milliseconds of a clock that never goes back, from any beginning.
    pub ms: u64,
    /// Unix time in seconds.
    pub unix_s: u32,
}

/// Random numbers of the caller: request ids from it must be hard to guess.
pub type RandomSource = Box<dyn FnMut() -> u32 + Send>;
