//! The container of signed values: JSON Web Signature, compact or as JSON (RFC 7515), with the
//! algorithms of deployed software.

use data_encoding::BASE64URL_NOPAD;
use handle_auth::{Algorithm, PrivateKey, PublicKey, SignError, ValueDigest};
use handle_proto::code::DigestAlgorithm;
use handle_proto::json::Json;
use std::fmt;

/// A signed text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jws {
    /// The signed text: header and payload, unchanged.
    covered: String,
    algorithm: (Algorithm, ValueDigest),
    payload: Json,
    signature: Vec<u8>,
}

/// Why a value is not a valid JWS.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JwsError {
    /// It is malformed.
    Malformed(&'static str),
    /// The algorithm is not supported.
    Algorithm(String),
    /// It was not made with this key, or was changed.
    Wrong,
}

impl fmt::Display for JwsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(what) => write!(f, "it has no readable {what}"),
            Self::Algorithm(name) => write!(f, "it is signed with {name}, which is not supported"),
            Self::Wrong => f.write_str("it was not made with the key of its issuer, or was changed"),
        }
    }
}

impl std::error::Error for JwsError {}

impl Jws {
    /// Parses the data of a value. Of several signatures the first counts.
    ///
    /// # Errors
    /// When it is malformed, or its algorithm is not supported.
    pub fn parse(data: &[u8]) -> Result<Self, JwsError> {
        let text = str::from_utf8(data).map_err(|_| JwsError::Malformed("text"))?;
        let [header, payload, signature] =
            if text.starts_with('{') { from_json(text)? } else { compact(text)? };
        let base64 =
            |text: &str, what| BASE64URL_NOPAD.decode(text.as_bytes()).map_err(|_| JwsError::Malformed(what));
        let json =
            |bytes: &[u8], what| serde_json::from_slice::<Json>(bytes).map_err(|_| JwsError::Malformed(what));
        let names = json(&base64(&header, "header")?, "header")?;
        let name = names.get("alg").and_then(Json::as_str).ok_or(JwsError::Malformed("algorithm"))?;
        Ok(Self {
            algorithm: algorithm(name).ok_or_else(|| JwsError::Algorithm(name.to_owned()))?,
            payload: json(&base64(&payload, "payload")?, "payload")?,
            signature: base64(&signature, "signature")?,
            covered: format!("{header}.{payload}"),
        })
    }

    /// Signs `payload` with RSA or DSA and SHA-256, as deployed software does, in the compact form.
    ///
    /// # Errors
    /// When the key cannot sign.
    pub fn sign(payload: &Json, key: &PrivateKey) -> Result<String, SignError> {
        let header: &[u8] = match key.algorithm() {
            Algorithm::Rsa => br#"{"alg":"RS256"}"#,
            Algorithm::Dsa => br#"{"alg":"DS256"}"#,
        };
        let [header, payload] =
            [header, payload.to_string().as_bytes()].map(|part| BASE64URL_NOPAD.encode(part));
        let covered = format!("{header}.{payload}");
        let signature = key.sign(DigestAlgorithm::SHA256, &[covered.as_bytes()])?;
        Ok(format!("{covered}.{}", BASE64URL_NOPAD.encode(&signature)))
    }

    /// The payload. It is unauthenticated until [`verify`](Self::verify) succeeds.
    #[must_use]
    pub const fn payload(&self) -> &Json {
        &self.payload
    }

    /// Checks that the private half of `key` made it. The kind of key must be that of the
    /// algorithm.
    ///
    /// # Errors
    /// When the check fails.
    pub fn verify(&self, key: &PublicKey) -> Result<(), JwsError> {
        let (kind, digest) = self.algorithm;
        if kind != key.algorithm() {
            return Err(JwsError::Wrong);
        }
        key.verify_value(digest, self.covered.as_bytes(), &self.signature).map_err(|_| JwsError::Wrong)
    }
}

fn compact(text: &str) -> Result<[String; 3], JwsError> {
    let mut parts = text.trim_end().split('.').map(str::to_owned);
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(header), Some(payload), Some(signature), None) => Ok([header, payload, signature]),
        _ => Err(JwsError::Malformed("three parts")),
    }
}

fn from_json(text: &str) -> Result<[String; 3], JwsError> {
    let json: Json = serde_json::from_str(text).map_err(|_| JwsError::Malformed("JSON"))?;
    let member = |json: &Json, name: &'static str| {
        json.get(name).and_then(Json::as_str).map(str::to_owned).ok_or(JwsError::Malformed(name))
    };
    let first =
        json.get("signatures").and_then(|list| list.get(0)).ok_or(JwsError::Malformed("signatures"))?;
    Ok([member(first, "protected")?, member(&json, "payload")?, member(first, "signature")?])
}

/// The algorithms that deployed software accepts: the start of the name determines the kind of key,
/// the end the digest, so that `RSA256` is `RS256`.
fn algorithm(name: &str) -> Option<(Algorithm, ValueDigest)> {
    let kind = match name.as_bytes() {
        [b'R', b'S', ..] => Algorithm::Rsa,
        [b'D', b'S', ..] => Algorithm::Dsa,
        _ => return None,
    };
    const DIGESTS: [(&str, ValueDigest); 5] = [
        ("256", ValueDigest::Sha256),
        ("384", ValueDigest::Sha384),
        ("512", ValueDigest::Sha512),
        ("160", ValueDigest::Sha1),
        ("128", ValueDigest::Sha1),
    ];
    let digest = DIGESTS.iter().find(|(end, _)| name.ends_with(end)).map(|(_, digest)| *digest);
    let old = matches!(name, "DSA" | "DS").then_some(ValueDigest::Sha1);
    Some((kind, digest.or(old)?))
}
