//! The data process `handled`: serves a published set of handle records over UDP and TCP,
//! read-only, with the workers of [`handle_worker`].
//!
//! - [`program`]: the arguments, the check of a configuration, and the life of the process.
//! - [`first_set`]: the wait for the first published set.
//!
//! # Example
//!
//! ```
//! use handle_daemon::program::Program as _;
//! use handle_server::program::HandledProgram;
//! use handle_worker::Config;
//!
//! let config = Config { snapshot: "/nonexistent".into(), wait_for_set: false, ..Config::default() };
//! let error = HandledProgram::check(&config).unwrap_err();
//! assert!(format!("{error:#}").contains("/nonexistent"));
//! ```
#![forbid(unsafe_code)]

pub mod first_set;
pub mod program;
