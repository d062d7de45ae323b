//! Files that earlier versions have written are read as they were meant, and files of later
//! versions are refused with a sentence.
//!
//! `tests/compatibility/README.md` describes the files, and when a version gets its own.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod configurations;
mod corpus;
mod later;
mod make;
mod records;
mod reports;
