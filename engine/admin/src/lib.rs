//! The write process: keeps the authoritative records and changes them for their administrators.
//!
//! - [`permission`]: the rights that each action requires, and whether an identity has them.
//! - [`operation`]: the decision on a request, as a function of records, rules, request and
//!   requester.
//! - [`remote`]: questions to other services about identities whose handles are not here.
//! - [`forward`]: requests that `handled` hands over; [`referral`]: resolution for clients
//!   that do not understand referrals.
//! - [`bulk`]: changes of many records that `handle-gateway` hands over.
//! - [`callers`], [`caller_sessions`]: callers over HTTP, whose identity `handle-gateway` has
//!   proven here.
//! - [`changes`]: changes of the store, for programs that follow them.
//! - `local`: the socket for these four, and for messages that `handle-gateway` relays.
//! - [`service`]: the path of a message: opened, decided, authenticated, carried out, answered.
//! - [`replication`]: streams of transactions and records, for mirrors.
//! - [`mirror`]: follows primaries, whose records are kept here.
//! - [`publish`]: publishes changes in the store as sets that resolvers serve.
//! - [`pull`]: copies the records of sources into the store.
//! - [`audit`], [`counters`]: the audit log and the counters.
//! - [`disk`]: free space on the disks, reported before it runs out.
//! - [`config`], [`settings`], [`connections`], [`health`], [`state`], [`control`], [`observe`],
//!   [`maintenance`], [`server`], [`program`]: the process around these parts.
//!
//! # Example
//!
//! A service that `hdl init` has created is served in-process, without a program around it.
//!
//! ```no_run
//! use handle_admin::config::Config;
//! use handle_admin::server::Server;
//! use handle_daemon::settings::SettingSection as _;
//! use std::path::Path;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config: Config = handle_daemon::settings::file::read(Path::new("service/handle-admin.toml"))?;
//! config.check()?;
//! let server = Server::start(&config)?;
//! println!("administration at {}", server.addresses()[0]);
//! server.stop();
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod audit;
pub mod bounds;
pub mod bulk;
pub mod caller_sessions;
pub mod callers;
pub mod changes;
mod comparison;
pub mod config;
pub mod connections;
pub mod control;
pub mod costly;
pub mod counters;
pub mod disk;
mod drivers;
pub mod forward;
pub mod health;
pub mod index;
mod lease;
mod local;
pub mod maintenance;
pub mod mirror;
pub mod observe;
pub mod operation;
pub mod permission;
pub mod program;
mod progress;
mod proof_fields;
pub mod publish;
pub mod pull;
pub mod referral;
pub(crate) mod relocate;
pub mod remote;
pub mod replication;
pub mod server;
pub mod service;
pub mod settings;
pub mod sourced;
pub mod state;
mod steps;
pub mod succession;
