//! The credential of a message: what is covered and with which digest depends on the version it is written
//! in. RFC 3652 section 2.2.4, with the deployed coverage.

use crate::error::{SignError, VerifyError};
use crate::key::{PrivateKey, PublicKey};
use handle_proto::Version;
use handle_proto::code::DigestAlgorithm;
use handle_proto::wire::credential::CoveredPrefix;
use handle_proto::wire::{Credential, Envelope, Message};

/// How a digest is named in the credential of a signature, in every version.
fn identifier(algorithm: DigestAlgorithm) -> &'static [u8] {
    algorithm.name().unwrap_or_default().as_bytes()
}

/// Whether the signature of a message of `version` covers its request id.
///
/// Up to 2.6 it does not: equal `covered` bytes behind an equal [`CoveredPrefix`] get the same signature in
/// answer to whatever request, so that a server may keep it.
#[must_use]
pub fn covers_request_id(version: Version) -> bool {
    version >= Version::new(2, 7)
}

/// Signs a message: the bytes of its credential, without the length that precedes them.
///
/// `envelope` is the one the message goes out with (its message length does not matter), `counter` the number
/// of the message in its session or 0, `covered` header and body.
///
/// # Errors
/// When the computation fails.
pub fn sign_message(
    envelope: &Envelope,
    counter: i32,
    covered: &[u8],
    key: &PrivateKey,
) -> Result<Vec<u8>, SignError> {
    let algorithm = key.algorithm().digest_for(envelope.version);
    let prefix = CoveredPrefix::of_signature(envelope, counter);
    let signature = key.sign(algorithm, &[prefix.as_bytes(), covered])?;
    let credential = Credential::signed(counter, identifier(algorithm), &signature);
    let mut bytes = Vec::with_capacity(credential.encoded_len());
    credential.encode(&mut bytes);
    Ok(bytes)
}

/// Whether `message`, which came behind `envelope`, is signed with the private half of `key`. Gives its
/// credential.
///
/// The digest is the one that the credential names, whatever the version. Who signed, as the credential says
/// it, is not looked at, as deployed.
///
/// # Errors
/// When the message is not signed, not with a private key, or not with this one.
pub fn verify_message<'a>(
    envelope: &Envelope,
    message: &Message<'a>,
    key: &PublicKey,
) -> Result<Credential<'a>, VerifyError> {
    let credential = credential(message)?;
    if !credential.is_signed() {
        return Err(VerifyError::Kind);
    }
    let algorithm = credential.digest_algorithm().ok_or(VerifyError::Digest)?;
    let prefix = CoveredPrefix::of_signature(envelope, credential.counter);
    key.verify(algorithm, &[prefix.as_bytes(), message.covered], credential.signature)?;
    Ok(credential)
}

fn credential<'a>(message: &Message<'a>) -> Result<Credential<'a>, VerifyError> {
    message.decode_credential().map_err(VerifyError::Malformed)?.ok_or(VerifyError::Unsigned)
}
