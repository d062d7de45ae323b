//! Whether the answer to a challenge was made with a key.

use super::config::SlowConfig;
use handle_auth::PublicKey;
use handle_auth::digest::mac;
use handle_proto::code::DigestAlgorithm;
use handle_proto::wire::auth::{self, SecretAnswer, SignedAnswer};

/// What was asked: an answer covers both.
pub(crate) struct Asked<'a> {
    pub(crate) nonce: &'a [u8],
    /// Of the request, without the code of its algorithm.
    pub(crate) digest: &'a [u8],
}

/// Whether `answer` was made with `key`, the data of a value of type `kind`. A key that cannot be used fits
/// nothing.
pub(crate) fn is_right(
    kind: &[u8],
    key: &[u8],
    asked: &Asked<'_>,
    answer: &[u8],
    config: &SlowConfig,
) -> bool {
    match kind {
        auth::PUBLIC_KEY => is_signed(key, asked, answer),
        _ => is_authenticated(key, asked, answer, config),
    }
}

fn is_signed(key: &[u8], asked: &Asked<'_>, answer: &[u8]) -> bool {
    let Ok(key) = PublicKey::from_record(key) else { return false };
    let Ok(SignedAnswer { algorithm, signature }) = SignedAnswer::decode(answer) else { return false };
    DigestAlgorithm::from_identifier(algorithm)
        .is_some_and(|digest| key.verify(digest, &[asked.nonce, asked.digest], signature).is_ok())
}

fn is_authenticated(secret: &[u8], asked: &Asked<'_>, answer: &[u8], config: &SlowConfig) -> bool {
    let Ok(answer) = SecretAnswer::decode(answer) else { return false };
    let message = [asked.nonce, asked.digest];
    let (algorithm, answered) = match answer {
        SecretAnswer::BareMd5(answered) => (DigestAlgorithm::MD5, &answered[..]),
        SecretAnswer::Mac { algorithm, mac } => (algorithm, mac),
        SecretAnswer::Pbkdf2 { .. } => {
            let _ = config.pbkdf2_iterations;
            return false;
        }
    };
    mac(algorithm, secret, &message).is_some_and(|mac| mac.check(answered).is_ok())
}
