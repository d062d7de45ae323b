//! Fixtures of the benches: records, published sets, requests, load generators, and clocks.
//!
//! The first three are of the package `handle-fixtures`, which is small:
//!
//! - [`records`]: generated records, modelled on real ones; a number always gives the same record.
//! - [`sets`]: published sets of these records, built once and kept below `target/`.
//! - [`requests`]: requests for these records, as datagrams.
//! - [`lookups`]: lookups of keys, one at a time and in stages.
//! - [`answers`]: answering a batch of requests as a worker does, without a socket.
//! - [`sessions`]: certified answers in a session.
//! - [`certified`]: signed answers, and the signing rate of the key alone.
//! - [`serve`]: servers in separate processes; [`flood`] and [`tcp`]: closed loops of requests.
//! - [`batch`]: requests for many records over HTTP.
//! - [`comparison`]: figures of two trees, turn by turn.
//! - [`delayed`]: a server that answers late.
//! - [`dns`]: queries and a server of DNS, for comparison.
//! - [`paced`]: an open loop of requests, and the response times.
//! - [`args`]: options that several commands have.
//! - [`turns`]: one server under load for a time: answers received and processor time used.
//! - [`usage`]: processor time and memory of a process, and the description of the machine.
#![forbid(unsafe_code)]

pub mod answers;
pub mod args;
pub mod batch;
pub mod certified;
pub mod comparison;
pub mod delayed;
pub mod dns;
pub mod flood;
pub mod lookups;
pub mod paced;
pub mod serve;
pub mod sessions;
pub mod spread;
pub mod tcp;
pub mod turns;
pub mod usage;

pub use handle_fixtures::{records, requests, sets};
