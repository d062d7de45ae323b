//! The workload, the schedule of its requests, and the workers that follow it.

mod drive;
pub mod echo;
pub mod find_max;
pub mod fragments;
pub(crate) mod idle;
pub mod inflight;
pub(crate) mod job;
pub mod limit;
pub mod names;
pub(crate) mod options;
pub mod pacing;
pub mod pattern;
pub mod phases;
pub mod question;
pub mod recording;
pub(crate) mod run;
pub mod schedule;
mod server_key;
pub(crate) mod single_request;
pub mod stream;
pub(crate) mod total;
pub(crate) mod transport;
pub mod worker;
pub mod workload;
