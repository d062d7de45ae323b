//! The caching server: answers a community from a table of answers that it fetched before. RFC 3651
//! section 4.2.1.
//!
//! The server is that of `handled` (`handle_worker`), with a cache in place of the set: a hit is
//! answered by the worker, in the batch. A miss goes to one thread, which asks other services with
//! the client.
//!
//! - [`table`]: the cached records, shared by all workers, read without a lock.
//! - [`entry`]: keys, how long entries are kept, and the TTL in answers; `linked_ttl`: how it is
//!   set without a search.
//! - [`state`]: the cache as all threads share it: what is fresh, what is shown although it has
//!   expired, and what is renewed early. [`recent`] is its memory of names.
//! - [`questions`]: the thread that asks others; `open_questions`: who waits, and what a purge
//!   overtakes; `turns`: whose question is next. [`upstream`]: how others are asked, and
//!   [`policy`]: the rules by prefix.
//! - `notices`: what a publisher announces makes entries expire; `changed_handles`: when.
//! - `relay`: requests that only the responsible service can decide.
//! - [`saved`]: the file in which the cache is kept over a restart; [`saver`] writes and reads it.
//! - [`service`]: the cache as the server has it; [`commands`], [`metrics`], [`counters`],
//!   [`top`]: what it adds to the control socket and to the scrape endpoint.
//! - [`config`]: the settings. [`program`]: the arguments.
//!
//! # Example
//!
//! A cache of the records of one server, in-process.
//!
//! ```no_run
//! use handle_cache::Config;
//! use handle_daemon::settings::SettingSection as _;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config: Config = toml::from_str(
//!     "listen = ['127.0.0.1:2651']
//!     [upstream]
//!     servers = ['127.0.0.1:2641']",
//! )?;
//! config.check()?;
//! let (server, _cache) = handle_cache::program::start(&config, None)?;
//! println!("answers at {}", server.addresses()[0]);
//! server.stop()?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod changed_handles;
pub mod commands;
pub mod config;
pub mod counters;
pub mod entry;
mod linked_ttl;
pub mod metrics;
mod notices;
mod open_questions;
pub mod policy;
pub mod program;
pub mod questions;
pub mod recent;
mod relay;
pub mod saved;
pub mod saver;
pub mod service;
pub mod state;
pub mod table;
pub mod top;
mod turns;
pub mod upstream;

pub use config::Config;
pub use service::CacheService;
