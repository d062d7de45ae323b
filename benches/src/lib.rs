//! What the benches measure with: records, published sets of them, requests, load, and clocks.
//!
//! - [`records`]: as many records as wanted, modelled on real ones; the same for the same number.
//! - [`sets`]: published sets of them, built once and kept below `target/`.
//! - [`requests`]: what is asked of them, as datagrams.
//! - [`lookups`]: keys, and the lookup of them one at a time and in stages.
//! - [`answers`]: a batch of requests to written replies, as a worker does it, without a socket.
//! - [`sessions`]: certified answers in a session.
//! - [`certified`]: signed answers, and what the key alone can sign.
//! - [`serve`]: servers in processes of their own; [`flood`] and [`tcp`]: the load on them.
//! - [`dns`]: questions and a server of another protocol, to compare with.
//! - [`paced`]: requests at their times, and how long each took.
//! - [`turns`]: one server under load for a while, and what it took.
//! - [`usage`]: what a process used, and on which machine.
#![forbid(unsafe_code)]

pub mod answers;
pub mod certified;
pub mod dns;
pub mod flood;
pub mod lookups;
pub mod paced;
pub mod records;
pub mod requests;
pub mod serve;
pub mod sessions;
pub mod sets;
pub mod spread;
pub mod tcp;
pub mod turns;
pub mod usage;
