//! Published sets on their way to other machines.
//!
//! A publisher *ships* its sets to a [`FleetStore`]: a directory or object storage. Any number of
//! machines *fetch* them from there. A store has the same files as the directory of a set: layers,
//! MANIFEST and HEARTBEAT. The names of layers have the digests of their contents, so a file never
//! changes, and files of two publishers never collide.
//!
//! - [`store`]: what is needed of a store; [`directory`] implements it, and so does `bucket` with
//!   the feature `object-storage`. [`location`] opens one by its URL. [`probe`] refuses stores that
//!   ignore preconditions.
//! - [`ship`]: uploads missing layers, then replaces the MANIFEST, if no other publisher has
//!   replaced it. [`record`] is what a publisher remembers of its shipping, [`follow`] repeats it.
//! - The module `steps` compares each set with the one shipped before it, and ships what has
//!   changed as an object of its own; the module `rebuild` builds layers from it.
//! - [`fetch`]: downloads missing layers ([`download`]), verifies them and publishes the set.
//!
//! # Decisions
//!
//! - **The MANIFEST is the only object that is replaced under a condition.** Two publishers can
//!   both upload layers; one of them replaces the MANIFEST, and the condition of the other then
//!   fails. A publisher whose condition fails looks who has replaced it. If it was another
//!   publisher, this one is *fenced*: it stops until an operator has raised its epoch.
//! - **Layers are downloaded in order, in chunks, several at a time.** A chunk is written when all
//!   before it are, so the length of a partial file is what is there of it, and a restart continues
//!   from there. Memory is bounded by the number of chunks.
//! - **Layers are built again where that saves transfer.** The publisher compares sets, so nothing
//!   has to know how a layer was made, and sets that it skips cost nothing. The machine compares
//!   the digest of what it has built, so nothing has to be trusted, and a publisher or a machine
//!   with a program that builds layers in another way costs transfer only. A difference of the
//!   bytes of layers was not chosen: a new layer has other offsets all over its index.
//! - **Everything blocks.** Callers have a thread for it. Requests to object storage run on a
//!   runtime of one thread.
//!
//! ```
//! use handle_fleet::{FetchLimits, FleetUrl, SetFetcher, StorageConfig, location};
//!
//! let url: FleetUrl = "file:///tmp/no-such-set".parse()?;
//! let store = location::open(&url, &StorageConfig::default())?;
//! let directory = tempfile::tempdir()?;
//! let mut fetcher = SetFetcher::open(store, directory.path(), None, FetchLimits::default())?;
//! let error = fetcher.fetch(&|| false).unwrap_err();
//! assert!(error.to_string().contains("nothing is published"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

#[cfg(feature = "object-storage")]
pub mod bucket;
pub mod config;
pub mod directory;
pub mod download;
pub mod error;
pub mod fetch;
pub mod follow;
pub mod location;
pub mod probe;
mod rebuild;
pub mod record;
pub mod ship;
mod steps;
pub mod store;

pub use config::StorageConfig;
pub use error::{FetchError, RefusalReason, ShipError};
pub use fetch::{FetchCounters, FetchLimits, FetchOutcome, SetFetcher};
pub use follow::{ShipFollower, ShipRoute};
pub use location::FleetUrl;
pub use ship::{SetShipper, ShipLimits, ShipOutcome};
pub use store::{FleetStore, FleetStoreError};
