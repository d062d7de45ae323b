//! The data process: serves a published set of handle records over UDP and TCP, and only reads.
//!
//! - [`config`]: what an operator says, checked before anything starts.
//! - [`site`]: who this server is: the site record and the place in it.
//! - [`live`]: the current set, replaced between batches.
//! - [`worker`]: one core: wait, answer, flush.
//! - [`tcp`]: requests over connections, on the same core.
//! - [`counters`]: what happened to every datagram, by reason.
//! - [`control`]: status, statistics and commands over a UNIX socket.
//! - [`observe`]: metrics and health over HTTP.
//! - [`takeover`]: a new process goes on with the sockets of the old one.
//! - `settings`: what of the configuration is in force, and what of a new one can be while serving.
//! - [`privileges`]: from root to a user of no privileges.
//! - [`watchdog`]: the sign of life for a service manager.
//! - [`server`]: starts all of it and stops it again.
#![forbid(unsafe_code)]

pub mod config;
pub mod control;
pub mod counters;
#[cfg(test)]
mod injected;
mod left;
pub mod live;
pub mod observe;
pub mod privileges;
pub mod server;
mod settings;
pub mod site;
pub mod status;
pub mod takeover;
pub mod tcp;
pub mod watchdog;
pub mod worker;

pub use config::Config;
pub use server::Server;
