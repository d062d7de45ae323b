//! Making signatures and certificates.

use super::claims::{Claims, Permission};
use super::{Jws, needs_signature, value_digest};
use data_encoding::BASE64;
use handle_auth::{PrivateKey, SignError, ValueDigest};
use handle_proto::Value;
use handle_proto::data::PublicKey;
use handle_proto::json::{Json, public_key_to_jwk};
use serde_json::json;

impl Claims {
    fn to_json(&self) -> Json {
        let mut json =
            json!({ "chain": self.chain, "iss": self.issuer, "sub": self.subject, "iat": self.issued });
        for (name, time) in [("nbf", self.not_before), ("exp", self.expires)] {
            if let Some(time) = time {
                json[name] = time.into();
            }
        }
        json
    }
}

/// The data of an HS_SIGNATURE value: digests of all `values` of the subject that need a signature,
/// signed with `key`, that of the issuer.
///
/// # Errors
/// When the key cannot sign.
pub fn signature<'a>(
    claims: &Claims,
    values: impl IntoIterator<Item = Value<'a>>,
    key: &PrivateKey,
) -> Result<String, SignError> {
    let needing = values.into_iter().filter(|value| needs_signature(claims.subject.as_bytes(), value));
    let digests: Vec<Json> = needing
        .map(|value| {
            let digest = value_digest(ValueDigest::Sha256, &value);
            json!({ "index": value.index, "digest": BASE64.encode(&digest) })
        })
        .collect();
    let mut payload = claims.to_json();
    payload["digests"] = json!({ "alg": "SHA-256", "digests": digests });
    Jws::sign(&payload, key)
}

/// The data of an HS_CERT value: the subject has the key `public`, and may sign for the handles
/// that `permissions` cover; signed with `key`, that of the issuer.
///
/// # Errors
/// When the key cannot sign.
pub fn certificate(
    claims: &Claims,
    public: &PublicKey<'_>,
    permissions: &[Permission],
    key: &PrivateKey,
) -> Result<String, SignError> {
    let mut payload = claims.to_json();
    payload["publicKey"] = public_key_to_jwk(public).unwrap_or_default();
    payload["perms"] = permissions.iter().map(Permission::to_json).collect();
    Jws::sign(&payload, key)
}
