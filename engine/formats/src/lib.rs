//! Files that operators of handle servers have: batch files, and what other servers export.
//!
//! - [`batch`]: operations as text, one after the other.
//! - [`dct`]: settings of deployed servers and clients.
//! - [`export`]: the JSON that a reference server's tools write, all records in one object.
//! - [`dump`]: the tables of a reference server that keeps its records in MySQL or PostgreSQL.
//!
//! Everything is read piece by piece in bounded memory, says on which line it went wrong, and goes on behind that
//! where it can. No file is opened here, and nothing is sent.
#![forbid(unsafe_code)]

pub mod batch;
pub mod dct;
pub mod dump;
pub mod export;
mod lines;

pub use lines::{LINE_LEN_MAX, Lines};
