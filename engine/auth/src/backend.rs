//! The one place that selects the library for RSA, HMAC and random numbers: ring, or AWS-LC, which
//! has the same interface.

#[cfg(feature = "aws-lc")]
pub(crate) use aws_lc_rs::{digest, hmac, rand, rsa, signature};
#[cfg(all(feature = "ring", not(feature = "aws-lc")))]
pub(crate) use ring::{digest, hmac, rand, rsa, signature};

#[cfg(not(any(feature = "ring", feature = "aws-lc")))]
compile_error!("handle-auth needs the feature `ring` or the feature `aws-lc`");

/// The name of the selected library, for `--version` and benches.
pub const BACKEND: &str = if cfg!(feature = "aws-lc") { "aws-lc" } else { "ring" };
