//! Immutable files of handle records: building, publishing, mapping and lookups.
//!
//! - [`format`]: the layout of a layer file. No other module knows an offset.
//! - [`reader`]: one layer over borrowed bytes. [`record`]: what a lookup returns. [`homed`]: the
//!   prefixes that a layer answers for. [`records`]: several layers as one, newest first.
//! - `set`, `verify`, `map` (feature `std`): a published directory, opened, checked and mapped.
//! - `builder`, `set::publisher` (feature `build`): from records to a published directory. What
//!   serves records does not enable this feature.
//! - `tree`, `proof` (feature `build`): the Merkle tree over the records of a set, whose root is in
//!   the MANIFEST, and proofs that a record is or is not in the set.
//! - `increment`, `set::steps` (feature `build`): what a layer has beyond layers of an earlier set,
//!   with which others that have those layers build it again.
//!
//! The modules of the first two lines need neither an allocator nor an operating system, and they
//! never panic: over damaged or invented bytes, a lookup returns an error or finds nothing.
//!
//! `docs/snapshot-format.md` documents the layout.
//!
//! ```
//! # #[cfg(feature = "build")] {
//! use handle_proto::Value;
//! use handle_snapshot::{
//!     Builder, HomedPrefixes, Layer, LayerOptions, RecordSet, fold_key, hash_key,
//! };
//! use std::io::Cursor;
//!
//! // Build a layer in memory; a file works in the same way.
//! let mut homed = HomedPrefixes::default();
//! homed.add(b"10.1045");
//! let options = LayerOptions { seed: 42, folds: true, created_unix_ms: 0 };
//! let mut builder = Builder::new(&std::env::temp_dir(), options).homed(homed);
//! builder.add(0, b"10.1045/july95-arms", [Value::new(1, b"URL", b"https://example.org/")])?;
//! let (file, _header) = builder.finish(Cursor::new(Vec::new()))?;
//!
//! // Look a handle up. The service folds, so the key is in upper case.
//! let layers = [Layer::open(file.into_inner())?];
//! let set = RecordSet::new(&layers)?;
//! let mut key = *b"10.1045/July95-Arms";
//! fold_key(&mut key, set.folds());
//! let record = set.find(hash_key(set.seed(), &key), &key)?.expect("the record was added");
//! assert_eq!(record.public_count(), 1);
//! assert!(set.homed(b"10.1045"));
//! # }
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
//!
//! # Design
//!
//! - **Records are in the order of their hash.** A layer is sorted by (hash, key), and buckets are
//!   the upper bits of the hash, so building, indexing and merging are single passes in bounded
//!   memory, and one hash serves all layers of a set. The records of a bucket are adjacent, so a
//!   slot needs two bytes of fingerprint and two of distance from the first record of its bucket.
//!   Fourteen slots fit into a cache line, four keys of a thousand overflow their bucket, and a
//!   lookup among 10 M records takes a fifth less than with eight slots of whole offsets. The cost:
//!   a layer cannot list handles by prefix; the store does that.
//! - **Public values come first.** The default answer is one run of bytes in the file; the other
//!   values follow with their positions.
//! - **A hit is checked by its record, a miss by its buckets.** A record has a checksum of all its
//!   bytes, so a record with the right key and checksum is right, whatever the index says. Only
//!   where no key is found do the checksums of the visited buckets have to match. How far a layer
//!   is trusted is a property of the opened layer ([`Trust`]).
//! - **A layer states that its records are homed.** If all records of the layer with the effective
//!   table are within that table, no lookup has to check the prefix. The builder checks this, and
//!   `verify` checks it again.
//! - **Copying to memory uses anonymous pages** made read-only, not a sealed memfd. Shared memory
//!   gets no huge pages by default, anonymous memory does, and lookups among 10 M records took a
//!   third less time.
//! - **Mapped files ask for huge pages.** Where the file system caches files in large folios (ext4
//!   since Linux 6.16), lookups among 10 M records take a third less time. Elsewhere the advice has
//!   no effect.
//! - **Published files are read back.** After the sync, a large layer is dropped from the page
//!   cache and read again by the check before publishing: written data is cached in small pages,
//!   data that is read in large ones.
//! - **Layers are named by their content.** The header has the SHA-256 of everything behind it, and
//!   the MANIFEST has the SHA-256 of the header. Both are computed while a layer is written.
//!   Opening checks the hash of the header, 320 bytes; verifying a layer checks the other hash too.
//! - **A set has one root, whatever its layers.** The module `tree` explains the tree, its cost,
//!   and the alternatives.
//! - **Keys belong to the caller.** This crate defines which text is signed and where the signature
//!   is; callers sign and verify.
//! - **The MANIFEST is the only state of publishing.** It names the store and the last visible
//!   transaction, in the rename that makes the set visible, so both always agree after a crash.
#![no_std]

#[cfg(any(feature = "std", test))]
extern crate std;

#[cfg(feature = "build")]
pub mod builder;
#[cfg(feature = "build")]
pub mod comparison;
#[cfg(feature = "build")]
mod encode;
pub mod format;
pub mod homed;
#[cfg(feature = "build")]
pub mod increment;
mod index;
#[cfg(feature = "std")]
mod lines;
#[cfg(feature = "std")]
pub mod map;
#[cfg(feature = "build")]
mod merge;
#[cfg(feature = "std")]
pub mod names;
pub mod prefetch;
#[cfg(feature = "build")]
pub mod proof;
pub mod reader;
pub mod record;
pub mod records;
#[cfg(feature = "std")]
pub mod set;
#[cfg(feature = "build")]
pub mod tree;
#[cfg(feature = "std")]
pub mod verify;
#[cfg(feature = "build")]
pub mod writer;

#[cfg(feature = "build")]
pub use builder::{BuildProgress, Builder};
pub use format::{OpenError, Sha256Sum, fold_key, hash_key};
pub use homed::{ANCESTORS_MAX, HomedTable};
#[cfg(feature = "std")]
pub use map::{LoadMode, MappedFile};
#[cfg(feature = "build")]
pub use merge::{MergeProgress, merge};
#[cfg(feature = "std")]
pub use names::NameRule;
pub use reader::{CorruptRecord, Layer, Trust};
pub use record::{EncodedRecord, RecordRefusal};
pub use records::{RecordSet, StagedLookup};
#[cfg(feature = "build")]
pub use set::publisher::SetPublisher;
#[cfg(feature = "build")]
pub use set::stager::{LayerPosition, Stager};
#[cfg(feature = "std")]
pub use set::{PublishedSet, SetError};
#[cfg(feature = "build")]
pub use writer::{BuildError, HomedPrefixes, LayerOptions, LayerWriter};
