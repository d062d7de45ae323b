//! The scheme `Handle` of `Authorization`: its fields, and proofs in the form of answers to
//! challenges.

use crate::sessions::SessionId;
use data_encoding::{BASE64, BASE64_NOPAD};
use handle_proto::code::DigestAlgorithm;
use handle_proto::json::Json;
use handle_proto::wire::auth::{PUBLIC_KEY, SECRET_KEY, SecretAnswer, SignedAnswer};
use handle_proto::wire::list::Reference;
use percent_encoding::percent_decode_str;
use std::collections::HashMap;

/// Maximum number of fields that are read.
const FIELDS_MAX: usize = 32;

/// The fields of credentials, from a header or from a body of JSON.
#[derive(Debug, Default)]
pub struct HandleCredentials {
    fields: HashMap<String, String>,
}

/// Why credentials are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialsError {
    /// A field is missing.
    Missing,
    /// A field cannot be read, or its algorithm is not known.
    Malformed,
}

/// Old digests that are accepted in proofs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OldDigests {
    /// MD5, with secret keys.
    pub md5: bool,
    /// SHA-1, in signatures and with secret keys.
    pub sha1: bool,
}

/// A proof of an identity.
#[derive(Debug, PartialEq, Eq)]
pub struct HandleProof {
    /// The handle of the identity.
    pub handle: Vec<u8>,
    /// Its index; 0 for any key of the handle.
    pub index: i32,
    /// `HS_PUBKEY` or `HS_SECKEY`.
    pub auth_type: &'static [u8],
    /// The nonce of the caller.
    pub client_nonce: Vec<u8>,
    /// The signature or MAC, in the form of an answer to a challenge.
    pub signed_response: Vec<u8>,
    /// Whether it relies on SHA-1 as one of [`OldDigests`].
    pub has_sha1: bool,
}

impl HandleCredentials {
    /// Parses the header; `None` if it has another scheme or form.
    #[must_use]
    pub fn of_header(text: &str) -> Option<Self> {
        let (scheme, mut rest) = text.trim().split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("Handle") {
            return None;
        }
        let mut fields = HashMap::new();
        while !rest.trim().is_empty() {
            let (name, after) = rest.split_once('=')?;
            let (value, after) = after.trim_start().strip_prefix('"')?.split_once('"')?;
            fields.insert(name.trim().to_owned(), value.to_owned());
            rest = after.trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest);
            if fields.len() > FIELDS_MAX || (!rest.is_empty() && rest == after) {
                return None;
            }
        }
        if let Some(id) = fields.get_mut("id") {
            *id = percent_decode_str(id).decode_utf8().ok()?.into_owned();
        }
        Some(Self { fields })
    }

    /// The members of an object.
    #[must_use]
    pub fn of_json(json: &Json) -> Self {
        let members = json.as_object().into_iter().flatten().take(FIELDS_MAX);
        let text = |value: &Json| match value {
            Json::String(text) => Some(text.clone()),
            Json::Number(number) => Some(number.to_string()),
            _ => None,
        };
        Self { fields: members.filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect() }
    }

    /// Fields from another source, such as a form.
    #[must_use]
    pub fn of_fields<'f>(fields: impl IntoIterator<Item = (&'f str, &'f str)>) -> Self {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Self { fields: fields.into_iter().map(owned).collect() }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    /// Whether they name a session.
    #[must_use]
    pub fn names_session(&self) -> bool {
        self.fields.contains_key("sessionId")
    }

    /// The session that they name, if its id is well-formed.
    #[must_use]
    pub fn session(&self) -> Option<SessionId> {
        SessionId::parse(self.get("sessionId")?)
    }

    /// Whether they contain a proof of an identity.
    #[must_use]
    pub fn is_proof(&self) -> bool {
        ["id", "type", "alg", "signature"].iter().any(|name| self.fields.contains_key(*name))
    }

    /// Whether they refer to the client certificate of the connection, and name no session and
    /// contain no proof, which would count instead.
    #[must_use]
    pub fn means_certificate(&self) -> bool {
        let is_true = self.get("clientCert").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        is_true && !self.names_session() && !self.is_proof()
    }

    /// The nonce of the caller, to be signed by the server.
    #[must_use]
    pub fn client_nonce(&self) -> Option<Vec<u8>> {
        decode(self.get("cnonce")?)
    }

    /// Decodes the proof, which may use `accepted` digests.
    ///
    /// # Errors
    /// When a field is missing, or cannot be read.
    pub fn proof(&self, accepted: OldDigests) -> Result<HandleProof, CredentialsError> {
        let field = |name| self.get(name).ok_or(CredentialsError::Missing);
        let bytes = |name| decode(field(name)?).ok_or(CredentialsError::Malformed);
        let number = |name| field(name)?.parse::<u32>().map_err(|_| CredentialsError::Malformed);
        let (id, kind, algorithm) = (field("id")?, field("type")?, field("alg")?);
        let (client_nonce, signature) = (bytes("cnonce")?, bytes("signature")?);
        let (index, handle) = identity(id).ok_or(CredentialsError::Malformed)?;
        let letters: String = algorithm.chars().filter(char::is_ascii_alphanumeric).collect();
        let algorithm = letters.to_ascii_uppercase();
        let has_sha1 = algorithm == "SHA1";
        if has_sha1 && !accepted.sha1 {
            return Err(CredentialsError::Malformed);
        }
        let mut signed_response = Vec::new();
        let auth_type = match kind {
            "HS_PUBKEY" => {
                let algorithm: &[u8] = match &*algorithm {
                    "SHA1" => b"SHA-1",
                    "SHA256" => b"SHA-256",
                    _ => return Err(CredentialsError::Malformed),
                };
                SignedAnswer { algorithm, signature: &signature }.encode(&mut signed_response);
                PUBLIC_KEY
            }
            "HS_SECKEY" => {
                let salt = if algorithm.starts_with("PBKDF2") { bytes("salt")? } else { Vec::new() };
                let mac = &*signature;
                let answer = match &*algorithm {
                    "PBKDF2HMACSHA1" | "PBKDF2WITHHMACSHA1" => {
                        let (iterations, key_bits) = (number("iterations")?, number("length")?);
                        SecretAnswer::Pbkdf2 { salt: &salt, iterations, key_bits, mac }
                    }
                    name => {
                        let algorithm = mac_algorithm(name, accepted.md5);
                        SecretAnswer::Mac { algorithm: algorithm.ok_or(CredentialsError::Malformed)?, mac }
                    }
                };
                answer.encode(&mut signed_response);
                SECRET_KEY
            }
            _ => return Err(CredentialsError::Malformed),
        };
        Ok(HandleProof {
            handle: handle.as_bytes().to_vec(),
            index,
            auth_type,
            client_nonce,
            signed_response,
            has_sha1,
        })
    }
}

/// The algorithm of a MAC with a secret key.
fn mac_algorithm(name: &str, accepts_md5: bool) -> Option<DigestAlgorithm> {
    match name {
        "SHA1" => Some(DigestAlgorithm::SHA1),
        "SHA256" => Some(DigestAlgorithm::SHA256),
        "HMACSHA1" => Some(DigestAlgorithm::HMAC_SHA1),
        "HMACSHA256" => Some(DigestAlgorithm::HMAC_SHA256),
        "MD5" if accepts_md5 => Some(DigestAlgorithm::MD5),
        _ => None,
    }
}

/// Bytes as base64, with padding or without.
fn decode(text: &str) -> Option<Vec<u8>> {
    BASE64.decode(text.as_bytes()).or_else(|_| BASE64_NOPAD.decode(text.as_bytes())).ok()
}

/// Index and handle of an identity; the index is 0 if there is none.
#[must_use]
pub fn identity(text: &str) -> Option<(i32, &str)> {
    let Reference { handle, index } = Reference::parse(text)?;
    Some((index, &text[text.len() - handle.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROOF: &str = "Handle version=\"0\", sessionId=\"x\", cnonce=\"AAEC\" ,id=\"301%3A0.NA/TST\", \
        type=\"HS_SECKEY\", alg=\"HMAC-SHA256\", signature=\"AAAA\"";

    #[test]
    fn fields_are_read_in_any_order_and_anything_else_is_refused() {
        let credentials = HandleCredentials::of_header(PROOF).unwrap();
        assert!(credentials.names_session() && credentials.session().is_none() && credentials.is_proof());
        let proof = credentials.proof(OldDigests::default()).unwrap();
        assert_eq!((proof.index, &proof.handle[..]), (301, &b"0.NA/TST"[..]));
        assert_eq!((&*proof.client_nonce, &*proof.signed_response), (&[0, 1, 2][..], &[0x13, 0, 0, 0][..]));
        let json = serde_json::json!({ "id": "0.NA/TST", "iterations": 1000, "sessionId": "y", "x": [] });
        assert_eq!(HandleCredentials::of_json(&json).get("iterations"), Some("1000"));
        assert!(!HandleCredentials::of_header("Handle sessionId=\"x\"").unwrap().is_proof());
        for bad in [
            "Handle",
            "Handle garbage",
            "Handle a=b",
            "Handle a=\"b",
            "Handle a=\"b\"c=\"d\"",
            "Basic a=\"b\"",
            "Handle id=\"%ff\"",
        ] {
            assert!(HandleCredentials::of_header(bad).is_none(), "{bad}");
        }
        let means_certificate =
            |text: &str| HandleCredentials::of_header(text).is_some_and(|sent| sent.means_certificate());
        assert!(means_certificate("Handle clientCert=\"true\""));
        assert!(means_certificate("handle renegotiate=\"true\", clientCert=\"True\""));
        for other in [
            "Handle clientCert=\"false\"",
            "Handle clientcert=\"true\"",
            "Handle clientCert=\"true\", sessionId=\"x\"",
            "Handle clientCert=\"true\", id=\"1:a/b\"",
            "Handle clientCert=\"true\", signature=\"AAAA\"",
        ] {
            assert!(!means_certificate(other), "{other}");
        }
        let many: String = (0..40).map(|n| format!("f{n}=\"\",")).collect();
        assert!(HandleCredentials::of_header(&format!("Handle {many}")).is_none());
    }

    #[test]
    fn each_algorithm_has_its_answer_and_others_have_none() {
        let proof = |kind: &str, algorithm: &str, md5| {
            let fields =
                [("id", "a/b"), ("type", kind), ("alg", algorithm), ("cnonce", ""), ("signature", "AAAA")];
            let work = [("salt", "AAAA"), ("iterations", "1000"), ("length", "160")];
            let credentials = HandleCredentials::of_fields(fields.into_iter().chain(work));
            credentials.proof(OldDigests { md5, sha1: true }).map(|proof| proof.signed_response[0])
        };
        for (algorithm, code) in [
            ("SHA1", 2),
            ("sha-256", 3),
            ("hmac-sha1", 0x12),
            ("PBKDF2WithHmacSHA1", 0x22),
            ("PBKDF2-HMAC-SHA1", 0x22),
        ] {
            assert_eq!(proof("HS_SECKEY", algorithm, false), Ok(code), "{algorithm}");
        }
        assert_eq!(proof("HS_SECKEY", "MD5", true), Ok(1));
        for (kind, algorithm, md5) in [
            ("HS_SECKEY", "MD5", false),
            ("HS_SECKEY", "SHA512", true),
            ("HS_PUBKEY", "MD5", true),
            ("HS_PUBKEY", "HMAC-SHA1", true),
            ("GATEWAY_SESSION", "SHA1", true),
        ] {
            assert_eq!(proof(kind, algorithm, md5), Err(CredentialsError::Malformed), "{kind} {algorithm}");
        }
        let partial = HandleCredentials::of_fields([("id", "301:0.NA/TST")]);
        assert_eq!(partial.proof(OldDigests::default()), Err(CredentialsError::Missing));
    }

    #[test]
    fn an_identity_is_an_index_and_a_handle() {
        assert_eq!(identity("301:0.NA/TST"), Some((301, "0.NA/TST")));
        assert_eq!(identity("0.NA/TST"), Some((0, "0.NA/TST")));
        assert_eq!(identity("a:b/c"), Some((0, "a:b/c")));
        assert_eq!((identity("301:"), identity("99999999999:a/b")), (None, None));
    }
}
