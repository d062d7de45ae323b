//! Immutable files of handle records: build, publish, map, look up.
//!
//! - [`format`]: the layout of a layer file, and the only module that knows offsets.
//! - [`reader`]: one layer over borrowed bytes; [`record`]: a record of it; [`homed`]: its homed
//!   prefixes; [`records`]: several layers as one, newest first.
//! - `builder`, `set`, `verify`, `map` (feature `std`): build a layer, publish a set, check it and
//!   load it.
//!
//! The first two groups need neither an allocator nor an operating system, and never panic: on
//! damaged or forged bytes, a lookup returns an error or finds nothing.
//!
//! `docs/snapshot-format.md` documents the layout.
#![no_std]

#[cfg(any(feature = "std", test))]
extern crate std;

#[cfg(feature = "std")]
pub mod builder;
#[cfg(feature = "std")]
mod encode;
pub mod format;
pub mod homed;
mod index;
#[cfg(feature = "std")]
pub mod map;
#[cfg(feature = "std")]
mod merge;
pub mod prefetch;
pub mod reader;
pub mod record;
pub mod records;
#[cfg(feature = "std")]
pub mod set;
#[cfg(feature = "std")]
pub mod verify;
#[cfg(feature = "std")]
pub mod writer;

#[cfg(feature = "std")]
pub use builder::{BuildProgress, Builder};
#[cfg(feature = "std")]
pub use encode::RecordRefusal;
pub use format::{OpenError, fold_key, hash_key};
pub use homed::HomedTable;
#[cfg(feature = "std")]
pub use map::{LoadMode, MappedFile};
#[cfg(feature = "std")]
pub use merge::{MergeProgress, merge};
pub use reader::{CorruptRecord, Layer, Trust};
pub use record::EncodedRecord;
pub use records::{RecordSet, StagedLookup};
#[cfg(feature = "std")]
pub use set::publisher::SetPublisher;
#[cfg(feature = "std")]
pub use set::stager::{LayerPlace, Stager};
#[cfg(feature = "std")]
pub use set::{PublishedSet, SetError};
#[cfg(feature = "std")]
pub use writer::{BuildError, HomedPrefixes, LayerOptions, LayerWriter};
