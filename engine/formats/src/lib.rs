//! Files of handle server operators: batch files, exports of other servers, and captures of
//! traffic.
//!
//! - [`input`]: one reader for records, names and operations in any of these forms, from files and
//!   pipes.
//! - [`batch`]: operations as text, one after the other.
//! - [`bundle`]: the archive that a new service sends to the registry of its prefix.
//! - [`capture`]: the datagrams in captures of network traffic, in the formats pcap and pcapng.
//! - [`dct`]: settings of deployed servers and clients.
//! - [`exact`]: records that JSON cannot represent, in a form that loses nothing.
//! - [`export`]: the JSON export of a reference server's tools, with all records in one object.
//! - [`dump`]: the tables of a reference server that keeps its records in MySQL or PostgreSQL.
//!
//! Every reader of text works piece by piece in bounded memory, reports the line of an error, and
//! continues after it where that is possible. This crate opens no files and sends nothing.
//!
//! ```
//! use handle_formats::batch::{BatchOperation, BatchReader};
//!
//! let file = "\
//! CREATE 10.1045/new
//! 1 URL 86400 1110 UTF8 https://example.org/
//!
//! DELETE 10.1045/old
//! ";
//! let mut blocks = BatchReader::new(file.as_bytes());
//!
//! let created = blocks.next().expect("a block")?.expect("a valid block");
//! let BatchOperation::Create(handle, values) = &created.operation else { panic!("it creates") };
//! assert_eq!((handle.as_str(), values.len()), ("10.1045/new", 1));
//!
//! let deleted = blocks.next().expect("a block")?.expect("a valid block");
//! assert_eq!((deleted.line, deleted.operation.handle()), (4, Some("10.1045/old")));
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Design
//!
//! - **Rows of one handle that stand apart are parts of its record.** Databases write rows in the
//!   order in which they were changed. Putting parts together takes memory for all records, so it
//!   is left to the caller, who has it.
//! - **Nothing is read twice.** What shows the form of an input is looked at, not taken.
#![forbid(unsafe_code)]

pub mod batch;
pub mod bundle;
pub mod capture;
pub mod dct;
pub mod dump;
pub mod exact;
pub mod export;
pub mod input;
mod json_scanner;
mod lines;

pub use lines::{LINE_LEN_MAX, Lines};
