//! Keys, signatures, MACs and challenges of the Handle System as deployed. The crate does no I/O
//! and never waits, and random numbers and time come in as arguments; only [`mod@file`] accesses
//! files.
//!
//! - [`key`]: private keys that sign and public keys that verify, RSA and DSA.
//! - [`message`]: the credential of a message, a signature or MAC, by the version of the message.
//! - [`challenge`]: making and verifying answers to challenges.
//! - [`challenges`], [`challenge_proof`]: the table of challenges that wait for an answer, and the
//!   check of an answer with a key.
//! - [`source`], [`cost`], [`fair`]: the sources of requests, the cost of requests, and the order
//!   in which they are served.
//! - [`agreement`], [`session`]: the keys of sessions, and the encryption of messages in them.
//! - [`generate`]: new keys.
//! - [`keyfile`], [`pem`], [`mod@file`]: keys at rest, encrypted or not, and files that only their
//!   owner can read.
//! - [`digest`]: digests and MACs by their codes, compared in constant time; [`value_digest`]:
//!   those in signatures of values, by name.
//!
//! RSA, HMAC and digests are those of ring, or of AWS-LC with the feature `aws-lc`. Private keys
//! are cleared in memory as far as these libraries do it; `Debug` never shows one.
#![forbid(unsafe_code)]

pub mod agreement;
mod backend;
pub mod challenge;
pub mod challenge_proof;
pub mod challenges;
mod cipher;
pub mod cost;
pub mod digest;
mod dsa;
pub mod error;
pub mod fair;
pub mod file;
pub mod generate;
pub mod kdf;
pub mod key;
pub mod keyfile;
pub mod message;
pub mod pem;
mod pkcs12;
mod rsa;
pub mod session;
pub mod source;
#[cfg(test)]
mod testing;
pub mod value_digest;

pub use backend::BACKEND;
pub use digest::Digest;
pub use error::{KeyError, SignError, VerifyError};
pub use file::{open_key_file, open_secret_file};
pub use kdf::Pbkdf2Limits;
pub use key::{Algorithm, PrivateKey, PublicKey, public_record_of};
pub use value_digest::ValueDigest;

/// Random bytes from the operating system, for nonces, salts, initial vectors and private values.
///
/// # Panics
/// When the operating system has none, because nothing can be secret then.
#[must_use]
pub fn random<const LEN: usize>() -> [u8; LEN] {
    use backend::rand::SecureRandom;
    let mut bytes = [0; LEN];
    backend::rand::SystemRandom::new().fill(&mut bytes).expect("random numbers");
    bytes
}
