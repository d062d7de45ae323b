//! Sources of records outside of the store: a service interface to a local name space, as RFC 3650
//! describes one.
//!
//! - [`RecordSource`] is what a source does: it says what the record of a handle is. Back ends over
//!   HTTP, programs and databases of PostgreSQL implement it here.
//! - [`GuardedSource`] puts a source behind its limits: requests at a time, time, bytes, a circuit
//!   breaker, and a cache. Every request is counted by its result.
//! - [`RecordSources`] are all sources of a process, by prefix; [`SourceConfig`] is one table
//!   `[[sources]]` of its configuration.
//! - [`PulledSource`] is a source whose records are copied into the store; it lists them
//!   ([`listing`]).
//! - [`contract`] reads what back ends say, which is not trusted.
//!
//! # Decisions
//!
//! - **Names are asked for as the store has them**, in upper case unless the service distinguishes
//!   case. So a handle has one place in the cache, and a back end sees one spelling of it.
//! - **A record is checked before it is used**, as every record that is loaded into a store. It is
//!   then subject to the same rules: which of its values are public, and who may read the others.
//! - **Silence pauses a source, wrong answers do not.** A hanging back end would keep threads
//!   waiting; a back end with one broken record is asked about the others.
//! - **Everything blocks.** Callers have a thread for it. Requests are driven by the calling thread
//!   on a runtime of one thread, which also keeps connections and programs.
//!
//! ```
//! use handle_source::{RecordSources, SourceConfig, SourceError};
//!
//! let config: SourceConfig = toml::from_str(
//!     r#"
//!     name = "repository"
//!     prefixes = ["10.1045"]
//!     url = "http://127.0.0.1:9/records"
//!     "#,
//! )?;
//! let sources = RecordSources::open(&[config], true)?;
//! assert!(sources.of(b"10.9999/A").is_none());
//! let source = sources.of(b"10.1045/JULY95-ARMS").ok_or("no source")?;
//! assert!(matches!(source.record(b"10.1045/JULY95-ARMS"), Err(SourceError::Unreachable(_))));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod cache;
pub mod config;
pub mod contract;
mod counts;
mod database;
mod error;
mod guarded;
mod http;
mod lines;
pub mod listing;
mod program;
mod pulled;
mod rows;
mod sources;
mod stop;

pub use config::{PullConfig, SourceConfig, SourceKind, check_sources};
pub use counts::SourceCounts;
pub use error::SourceError;
pub use guarded::{GuardedSource, SourceAnswer};
pub use pulled::{PulledPrefixes, PulledSource};
pub use sources::{OpenSourceError, RecordSources};

use handle_store::RecordBuf;
use std::fmt;

/// A source of records.
pub trait RecordSource: fmt::Debug + Send + Sync {
    /// The record of `key`, a name as the store has it; `None` if there is no such handle. Blocks
    /// for at most the configured time.
    ///
    /// # Errors
    /// When the source does not say, or not what could be a record.
    fn record(&self, key: &[u8]) -> SourceAnswer;

    /// Whether [`change`](Self::change) makes changes.
    fn is_writable(&self) -> bool {
        false
    }

    /// Has `decide` decide on the record of `key`, which no other process changes meanwhile, and
    /// makes the change durable. Returns whether anything was changed.
    ///
    /// # Errors
    /// When the change cannot be made. If the source was [silent](SourceError::is_silence), it may
    /// have been made.
    fn change(
        &self,
        key: &[u8],
        decide: &mut dyn FnMut(Option<&RecordBuf>) -> SourceChange,
    ) -> Result<bool, SourceError> {
        let _ = (key, decide);
        Err(SourceError::Refused("it is changed elsewhere".to_owned()))
    }
}

/// What is decided about a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceChange {
    /// It stays.
    Keep,
    /// It becomes this one.
    Put(RecordBuf),
    /// It is deleted.
    Delete,
}
