//! Immutable files of handle records: build, publish, map, look up.
//!
//! - [`format`]: the layout of a layer file, and the only place that knows an offset.
//! - [`reader`]: one layer over borrowed bytes; [`record`]: what it finds; [`homed`]: the prefixes it
//!   answers for; [`records`]: several layers as one, newest first.
//! - `builder`, `set`, `verify`, `map` (feature `std`): records in, a published directory out, and back.
//!
//! The first group needs neither an allocator nor an operating system, and never panics: on bytes that
//! were damaged or made up, a lookup is an error or a miss.
//!
//! The layout is documented in `docs/snapshot-format.md`.
#![no_std]

#[cfg(any(feature = "std", test))]
extern crate std;

pub mod format;
pub mod homed;
mod index;
pub mod prefetch;
pub mod reader;
pub mod record;
pub mod records;

pub use format::{OpenError, fold_key, hash_key};
pub use homed::Homed;
pub use reader::{Corrupt, Layer, Probe};
pub use record::Record;
pub use records::{Records, Staged};
