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
//!
//! # Example
//!
//! A set that is published in one directory is fetched into another.
//!
//! ```
//! use handle_fetch::{Config, Fetcher};
//! use handle_snapshot::set::storage::create_directory;
//! use handle_snapshot::{Builder, HomedPrefixes, LayerOptions, LoadMode, PublishedSet, SetPublisher};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! let (published, fetched) = (directory.path().join("published"), directory.path().join("fetched"));
//! create_directory(&published)?;
//! let options = LayerOptions { seed: 1, folds: true, created_unix_ms: 0 };
//! SetPublisher::open(&published)?.publish_base(0, |file, temp_dir| {
//!     let mut homed = HomedPrefixes::default();
//!     homed.add(b"10.1045");
//!     let mut builder = Builder::new(temp_dir, options).homed(homed);
//!     builder.add(0, b"10.1045/july95-arms", [])?;
//!     builder.finish(file)
//! })?;
//!
//! let url = format!("file://{}", published.display());
//! let config = Config { url, directory: fetched.clone(), once: true, ..Config::default() };
//! let fetcher = Fetcher::start(&config)?;
//! while !fetcher.is_finished() {
//!     std::thread::sleep(std::time::Duration::from_millis(5));
//! }
//! fetcher.stop()?;
//! assert_eq!(PublishedSet::open(&fetched, LoadMode::Map)?.generation(), 1);
//! # Ok(())
//! # }
//! ```
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
