//! Keys, signatures, MACs and challenges of the Handle System as deployed. Pure functions: what is random or
//! depends on time comes in as an argument, and nothing is sent or stored.
//!
//! - [`key`]: private keys that sign and public keys that verify, RSA and DSA.
//! - [`message`]: the credential of a message, by the version it is written in.
//!
//! RSA, HMAC and digests are ring's, or AWS-LC's with the feature `aws-lc`. Private keys are cleared in
//! memory as far as the libraries below do it; none is ever shown by `Debug`.
#![forbid(unsafe_code)]

mod backend;
pub mod error;
pub mod key;
pub mod message;
mod rsa;

pub use backend::BACKEND;
pub use error::{KeyError, SignError, VerifyError};
pub use key::{Algorithm, PrivateKey, PublicKey};
