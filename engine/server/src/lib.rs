//! The data process: serves a published set of handle records over UDP and TCP, and only reads.
//!
//! - [`config`]: what an operator says, checked before anything starts.
//! - [`site`]: who this server is: the site record and the place in it.
//! - [`live`]: the current set, replaced between batches.
//! - [`worker`]: one core: wait, answer, flush.
//! - [`slow`]: what must not run on a worker: signatures, challenges and their answers.
//! - [`forward`]: requests that `handle-admin` answers.
//! - [`tcp`]: requests over connections, on the same core.
//! - [`rate_limit`]: how many datagrams go to whom.
//! - [`counters`]: what happened to every datagram, by reason.
//! - [`control`]: the commands of the control socket.
//! - [`latency`], [`sources`]: how long answers take, and who asks most.
//! - [`query_log`]: a line for each answer, or for some.
//! - [`observe`]: metrics and health over HTTP.
//! - [`takeover`]: a new process goes on with the sockets of the old one.
//! - `settings`: what of the configuration is in force, and what of a new one can be while serving.
//! - [`watchdog`]: the sign of life for a service manager.
//! - [`templates`]: values computed for handles that are not stored.
//! - [`program`]: the arguments, and the life of the process.
//! - [`server`]: starts all of it and stops it again.
#![forbid(unsafe_code)]

pub mod config;
pub mod control;
pub mod counters;
pub mod first_set;
pub mod forward;
pub mod latency;
mod leftovers;
pub mod live;
pub mod observe;
pub mod program;
pub mod query_log;
pub mod rate_limit;
mod replies;
pub mod server;
pub mod sessions;
mod settings;
pub mod site;
pub mod slow;
pub mod sources;
pub mod status;
pub mod takeover;
pub mod tcp;
mod telemetry;
pub mod templates;
#[cfg(test)]
mod tests;
pub mod verification;
pub mod wakers;
pub mod watchdog;
pub mod worker;

pub use config::Config;
pub use handle_daemon::{privileges, server_key};
pub use server::Server;
