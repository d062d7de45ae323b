//! Files of operators of handle servers: batch files, and exports of other servers.
//!
//! - [`batch`]: operations as text, one after the other.
//! - [`dct`]: settings of deployed servers and clients.
//! - [`export`]: the JSON that a reference server's tools write, all records in one object.
//! - [`dump`]: the tables of a reference server that keeps its records in MySQL or PostgreSQL.
//!
//! All formats are read incrementally in bounded memory. Errors name the line or the byte, and
//! reading continues after them where possible. This crate opens no files and uses no network.
#![forbid(unsafe_code)]

pub mod batch;
pub mod dct;
pub mod dump;
pub mod export;
mod lines;

pub use lines::{LINE_LEN_MAX, Lines};
