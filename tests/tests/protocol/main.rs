//! Messages, values, keys and answers against golden vectors, byte by byte.
//!
//! `tests/vectors/README.md` says how to run these tests with the vectors of others.

mod client;
mod conversations;
mod coverage;
mod credentials;
mod examples;
mod hashing;
mod http;
mod keys;
mod loadgen;
mod messages;
mod sessions;
mod signatures;
mod transcripts;
mod values;
