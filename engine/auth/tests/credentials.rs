//! The vectors of keys, signatures, MACs, challenges and sessions, over AWS-LC.
//!
//! `tests/tests/protocol` runs the same tests over ring. Here they include what they use by its
//! path, so that for the other library nothing above this crate is built again.
#![allow(dead_code, reason = "other tests use the rest of these modules")]

// The name by which the included tests know these modules.
extern crate self as handle_tests;

#[path = "../../../tests/src/server_keys.rs"]
pub mod server_keys;
#[path = "../../../tests/src/session.rs"]
pub mod session;
#[path = "../../../tests/src/transcripts.rs"]
pub mod transcripts;
#[path = "../../../tests/src/vectors.rs"]
pub mod vectors;

#[path = "../../../tests/tests/protocol/credentials.rs"]
mod credentials;
