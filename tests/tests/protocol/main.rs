//! Messages, values, keys and answers, compared byte by byte with golden vectors.
//!
//! `tests/vectors/README.md` says how to run these tests with foreign vectors.

mod client;
mod conversations;
mod coverage;
mod credentials;
mod do_irp;
mod examples;
mod hashing;
mod http;
mod keys;
mod loadgen;
mod messages;
mod mirrors;
mod openapi;
mod proofs;
mod sessions;
mod signatures;
mod transcripts;
mod values;
