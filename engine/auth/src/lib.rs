//! Keys, signatures, MACs and challenges of the Handle System as deployed. Nothing is sent,
//! nothing waits, and what is random or depends on time comes in as an argument; only [`mod@file`] touches files.
//!
//! - [`key`]: private keys that sign and public keys that verify, RSA and DSA.
//! - [`message`]: the credential of a message, signature or MAC, by the version it is written in.
//! - [`challenge`]: answers to challenges, made and verified.
//! - [`challenges`], [`challenge_proof`]: challenges that wait for an answer, and whether one was made with a key.
//! - [`source`], [`cost`], [`fair`]: where requests come from, what they cost, and whose turn it is.
//! - [`agreement`], [`session`]: the keys of sessions, and the encryption of messages in them.
//! - [`generate`]: new keys.
//! - [`keyfile`], [`pem`], [`mod@file`]: keys at rest, encrypted or not, and files that only their owner can read.
//! - [`digest`]: digests and MACs by their codes, compared in constant time; [`value_digest`]: those under signatures of
//!   values, by name.
//!
//! RSA, HMAC and digests are ring's, or AWS-LC's with the feature `aws-lc`. Private keys are cleared in
//! memory as far as the libraries below do it; none is ever shown by `Debug`.
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

/// Random bytes from the operating system: nonces, salts, initial vectors, private values.
///
/// # Panics
/// When the operating system has none; nothing can be secret then.
#[must_use]
pub fn random<const LEN: usize>() -> [u8; LEN] {
    use backend::rand::SecureRandom;
    let mut bytes = [0; LEN];
    backend::rand::SystemRandom::new().fill(&mut bytes).expect("random numbers");
    bytes
}
