//! Keys, signatures, MACs and challenges of the Handle System as deployed. Pure functions: what is random or
//! depends on time comes in as an argument, and nothing is sent or stored.
//!
//! - [`key`]: private keys that sign and public keys that verify, RSA and DSA.
//! - [`message`]: the credential of a message, signature or MAC, by the version it is written in.
//! - [`digest`]: digests and MACs by their codes, compared in constant time.
//!
//! RSA, HMAC and digests are ring's, or AWS-LC's with the feature `aws-lc`. Private keys are cleared in
//! memory as far as the libraries below do it; none is ever shown by `Debug`.
#![forbid(unsafe_code)]

mod backend;
pub mod digest;
mod dsa;
pub mod error;
pub mod key;
pub mod message;
mod rsa;
#[cfg(test)]
mod testing;

pub use backend::BACKEND;
pub use digest::Digest;
pub use error::{KeyError, SignError, VerifyError};
pub use key::{Algorithm, PrivateKey, PublicKey};
