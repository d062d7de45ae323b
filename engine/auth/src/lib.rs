//! Keys, signatures, MACs and challenges of the Handle System as deployed.
//!
//! The functions of this crate send nothing and never wait. Randomness and time are arguments where
//! the result depends on them, and only [`mod@file`] opens files.
//!
//! - [`key`]: private keys that sign and public keys that verify, RSA and DSA.
//! - [`message`]: the credential of a message, a signature or a MAC, by protocol version.
//! - [`challenge`]: making and verifying answers to challenges.
//! - [`challenges`], [`challenge_proof`]: the table of open challenges, and whether an answer was
//!   made with a given key.
//! - [`clock`]: the time of day, for all crates above.
//! - [`source`], [`cost`], [`fair`]: the source of a request, what it costs, and which request is
//!   next.
//! - [`holder_counts`]: how many of something each source or identity has.
//! - [`agreement`], [`session`]: the keys of sessions, and the encryption of messages in them.
//! - `generate` (feature `generate`): new keys.
//! - [`keyfile`], [`pem`], [`mod@file`]: keys on disk, encrypted or not, and files that only their
//!   owner may read.
//! - [`publisher`]: keys that sign published sets.
//! - [`digest`]: digests and MACs by their codes, compared in constant time. [`value_digest`]:
//!   digests under signatures of values, by name.
//!
//! RSA, HMAC and digests come from ring, or from AWS-LC with the feature `aws-lc`. Private keys are
//! cleared from memory as far as these libraries do so, and `Debug` never shows one.
//!
//! ```
//! use handle_auth::challenge::{answer_with_secret, verify_secret};
//! use handle_auth::{Pbkdf2Limits, random};
//! use handle_proto::Version;
//! use handle_proto::wire::auth::SecretAnswer;
//!
//! let (version, secret) = (Version::CURRENT, b"open sesame");
//!
//! // The server sends a nonce. The proof covers the nonce and the digest of the request.
//! let (nonce, request_digest) = (random::<16>(), [7; 32]);
//! let covered = [&nonce[..], &request_digest[..]];
//!
//! // The client proves that it has the secret, and the server verifies the proof.
//! let answer = answer_with_secret(version, version, &covered, secret, &random());
//! let answer = SecretAnswer::decode(&answer)?;
//! let limits = Pbkdf2Limits::default();
//! assert!(verify_secret(version, &covered, &answer, secret, &limits).is_ok());
//! assert!(verify_secret(version, &covered, &answer, b"guess", &limits).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Design
//!
//! - **SHA-1 signatures are computed in `rsa.rs`.** Neither ring nor AWS-LC signs SHA-1 any more,
//!   and peers below version 2.7 understand nothing else. The computation uses constant-time
//!   numbers, and a signature is verified before it is returned. Everything else about RSA is the
//!   library's.
//! - **ring is the default** because it needs only a C compiler and seconds to build. AWS-LC has
//!   the same interface and the same tests; the bench `signing` shows which one is faster on a
//!   machine. With both features enabled, AWS-LC is used.
//! - **PBKDF2 is RustCrypto's.** With SHA-1, ring takes three times as long, and the sender chooses
//!   the number of rounds. For the same reason rounds are bounded, and derived keys have at least
//!   128 bits.
//! - **RSA keys are made from the primes of crypto-primes**, because ring makes none. A new key
//!   signs and verifies once before it is returned.
//! - **DSA keys with more than 160 bits of q sign with SHA-256** in every version. The table of
//!   versions asks for SHA-1, which deployed software refuses to make; it verifies the digest that
//!   is named.
//! - **Fair sharing counts work.** One ledger of units (a unit is one round of PBKDF2), by network
//!   and transport, decays with a half-life of 4 s. Among waiting requests, that of the least
//!   served source is next ([`fair`], [`cost`]).
#![forbid(unsafe_code)]

pub mod agreement;
mod backend;
pub mod certificate;
pub mod challenge;
pub mod challenge_proof;
pub mod challenges;
mod cipher;
pub mod clock;
pub mod cost;
pub mod digest;
mod dsa;
pub mod error;
pub mod fair;
pub mod file;
#[cfg(feature = "generate")]
pub mod generate;
pub mod handshake;
pub mod holder_counts;
pub mod kdf;
pub mod key;
pub mod keyfile;
pub mod message;
pub mod pem;
mod pkcs12;
pub mod publisher;
mod rsa;
pub mod session;
pub mod source;
#[cfg(test)]
mod testing;
pub mod value_digest;

pub use backend::BACKEND;
pub use digest::Digest;
pub use error::{KeyError, SignError, VerifyError};
pub use file::{open_key_file, open_secret_file, open_text_secret};
pub use kdf::Pbkdf2Limits;
pub use key::{Algorithm, PrivateKey, PublicKey, public_record_of};
pub use publisher::{PublisherKey, PublisherSigner};
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
