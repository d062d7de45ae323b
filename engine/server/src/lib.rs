//! The data process: serves a published set of handle records over UDP and TCP, read-only.
//!
//! - [`config`]: the configuration, checked before anything starts.
//! - [`site`]: the site record and this server's place in it.
//! - [`live`]: the served set, replaced between batches.
//! - [`worker`]: a worker thread: waits for a batch, answers it and flushes the answers.
//! - [`slow`]: work that must not run on a worker: signatures, challenges and their answers.
//! - [`forward`]: requests that `handle-admin` answers.
//! - [`cache`]: what a caching server adds, which answers from records of other services.
//! - `dispatch`: where the outcome of each request goes.
//! - `udp`, [`tcp`]: requests over both transports, on the same core.
//! - [`rate_limit`]: limits on the datagrams sent to each peer.
//! - [`counters`]: counters for every datagram, by reason.
//! - [`control`]: the commands of the control socket.
//! - [`latency`], [`sources`]: answer times, and the busiest source networks.
//! - [`query_log`]: a log line for each answer, or for a sample.
//! - [`observe`]: metrics and health over HTTP.
//! - `settings`: the settings in force, and which of them a reload can change.
//! - [`watchdog`]: notifications for the watchdog of a service manager.
//! - [`templates`]: values computed for handles that are not stored.
//! - [`program`]: the arguments, and the life of the process.
//! - [`server`]: starts all of these parts and stops them.
#![forbid(unsafe_code)]

pub mod cache;
mod clock;
pub mod config;
pub mod control;
pub mod counters;
mod dispatch;
pub mod first_set;
pub mod forward;
pub mod latency;
pub mod live;
pub mod observe;
pub mod program;
pub mod query_log;
pub mod rate_limit;
pub mod server;
pub mod sessions;
mod settings;
pub mod site;
pub mod slow;
pub mod sources;
pub mod status;
pub mod tcp;
mod telemetry;
pub mod templates;
#[cfg(test)]
mod tests;
mod udp;
pub mod verification;
pub mod wakers;
pub mod watchdog;
pub mod worker;

pub use config::Config;
pub use handle_daemon::{privileges, server_key};
pub use server::Server;
