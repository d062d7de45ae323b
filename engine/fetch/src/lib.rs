//! The process `handle-fetch`: brings the sets of a publisher to the machine on which they are
//! served.
//!
//! It polls a directory or object storage, downloads and verifies what is new, and publishes it in
//! the directory that `handled` and `handle-gateway` map. The work is in `handle_fleet`; here are
//! the process around it and its settings.
//!
//! - [`config`]: the settings. [`program`]: the arguments.
//! - [`fetcher`]: the loop that fetches; [`state`] is what it tells others.
//! - [`control`], [`observe`]: the control socket and the scrape endpoint.
#![forbid(unsafe_code)]

pub mod config;
pub mod control;
pub mod fetcher;
mod notices;
pub mod observe;
pub mod program;
pub mod state;

pub use config::Config;
pub use fetcher::Fetcher;
