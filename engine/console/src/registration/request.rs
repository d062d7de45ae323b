//! A request for a prefix, as it is stored: one file of JSON.

use data_encoding::{BASE64, BASE64URL_NOPAD, HEXLOWER};
use handle_auth::random;
use handle_proto::data::{PublicKey, SiteBuf};
use handle_proto::fold;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::net::IpAddr;

/// The version of the format of the files.
const VERSION: u32 = 1;
/// Maximum length of a prefix.
const PREFIX_LEN_MAX: usize = 255;

/// The secret in the link of an applicant, which is not stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RequestToken([u8; 32]);

/// The number of a request: the first half of the digest of its token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId([u8; 16]);

impl RequestToken {
    /// A new token.
    #[must_use]
    pub fn generate() -> Self {
        Self(random())
    }

    /// Reads what [`secret_text`](Self::secret_text) writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Some(Self(BASE64URL_NOPAD.decode(text.as_bytes()).ok()?.try_into().ok()?))
    }

    /// The token as text. Whoever has it sees the request.
    #[must_use]
    pub fn secret_text(self) -> String {
        BASE64URL_NOPAD.encode(&self.0)
    }

    /// The digest of the token.
    #[must_use]
    pub fn digest(self) -> TokenDigest {
        TokenDigest(Sha256::digest(self.0).into())
    }
}

impl fmt::Debug for RequestToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestToken")
    }
}

/// The digest of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    /// The number of the request with this token.
    #[must_use]
    pub fn id(self) -> RequestId {
        let mut id = [0; 16];
        id.copy_from_slice(&self.0[..16]);
        RequestId(id)
    }
}

impl RequestId {
    /// Reads what `Display` writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Some(Self(HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok()?))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for TokenDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&HEXLOWER.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for TokenDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = HEXLOWER.decode(text.as_bytes()).ok().and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(|| serde::de::Error::custom("not a digest"))
    }
}

/// Bytes as base64.
mod base64 {
    use super::{BASE64, Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        BASE64.decode(text.as_bytes()).map_err(serde::de::Error::custom)
    }
}

/// The state of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase", deny_unknown_fields)]
pub enum RequestState {
    /// No reviewer has decided.
    Pending,
    /// A reviewer has accepted it, and the prefix record may have been created. Written before the
    /// record is created, so that the request can be completed after a crash.
    Accepting {
        /// The prefix.
        prefix: String,
        /// The reviewer.
        by: String,
    },
    /// The prefix record exists.
    Accepted {
        /// The prefix.
        prefix: String,
        /// The reviewer.
        by: String,
        /// When, in seconds since 1970.
        unix_s: u64,
    },
    /// A reviewer has refused it.
    Refused {
        /// The reason, for the applicant.
        reason: String,
        /// The reviewer.
        by: String,
        /// When, in seconds since 1970.
        unix_s: u64,
    },
}

impl RequestState {
    /// Whether a reviewer has accepted or refused it.
    #[must_use]
    pub const fn is_decided(&self) -> bool {
        matches!(self, Self::Accepted { .. } | Self::Refused { .. })
    }

    /// The prefix of a request that is accepted, or is being accepted.
    #[must_use]
    pub fn prefix(&self) -> Option<&str> {
        match self {
            Self::Accepting { prefix, .. } | Self::Accepted { prefix, .. } => Some(prefix),
            Self::Pending | Self::Refused { .. } => None,
        }
    }

    /// The name of the state for an applicant.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Pending | Self::Accepting { .. } => "pending",
            Self::Accepted { .. } => "accepted",
            Self::Refused { .. } => "refused",
        }
    }
}

/// What an applicant writes in the fields of the form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApplicantDetails {
    /// The prefix that the applicant proposes; may be empty.
    pub prefix: String,
    /// The organisation that runs the service.
    pub organization: String,
    /// A person of the organisation.
    pub name: String,
    /// Telephone number.
    pub phone: String,
    /// E-mail address.
    pub email: String,
    /// A message to the registry.
    pub note: String,
}

/// A request for a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegistrationRequest {
    pub(super) version: u32,
    /// The digest of the token of the applicant.
    pub token: TokenDigest,
    /// When it arrived, in seconds since 1970.
    pub submitted_unix_s: u64,
    /// The address of the applicant.
    pub source: IpAddr,
    /// What the applicant wrote.
    pub details: ApplicantDetails,
    /// The data of an HS_SITE value.
    #[serde(with = "base64")]
    pub site: Vec<u8>,
    /// The data of an HS_PUBKEY value.
    #[serde(with = "base64")]
    pub administrator_key: Vec<u8>,
    /// The state.
    pub state: RequestState,
}

/// Why the file of a request is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFileError {
    /// It is not the file of a request, or is damaged.
    Damaged,
    /// It has this other version of the format.
    Version(u32),
}

impl fmt::Display for RequestFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged => f.write_str("it is damaged"),
            Self::Version(version) => write!(
                f,
                "it has format {version}, and this program reads format {VERSION}: update it to see this request"
            ),
        }
    }
}

impl std::error::Error for RequestFileError {}

/// The part of a file by which its version is known, whatever else it has.
#[derive(Deserialize)]
struct VersionedFile {
    version: u32,
}

/// Who sends a request, and when.
#[derive(Clone, Copy, Debug)]
pub struct RequestOrigin {
    /// The token of the applicant.
    pub token: RequestToken,
    /// The time, in seconds since 1970.
    pub unix_s: u64,
    /// The address of the applicant.
    pub source: IpAddr,
}

impl RegistrationRequest {
    /// A new request about this site, without details.
    #[must_use]
    pub fn new(origin: RequestOrigin, site: Vec<u8>, administrator_key: Vec<u8>) -> Self {
        Self {
            version: VERSION,
            token: origin.token.digest(),
            submitted_unix_s: origin.unix_s,
            source: origin.source,
            details: ApplicantDetails::default(),
            site,
            administrator_key,
            state: RequestState::Pending,
        }
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> RequestId {
        self.token.id()
    }

    /// The prefix that it has got, or is about; may be empty.
    #[must_use]
    pub fn current_prefix(&self) -> &str {
        self.state.prefix().unwrap_or(&self.details.prefix)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When it is damaged, or has another version of the format.
    pub fn decode(bytes: &[u8]) -> Result<Self, RequestFileError> {
        let VersionedFile { version } =
            serde_json::from_slice(bytes).map_err(|_| RequestFileError::Damaged)?;
        if version != VERSION {
            return Err(RequestFileError::Version(version));
        }
        let request: Self = serde_json::from_slice(bytes).map_err(|_| RequestFileError::Damaged)?;
        let is_intact = SiteBuf::from_bytes(request.site.clone()).is_ok()
            && PublicKey::decode(&request.administrator_key).is_ok();
        if is_intact { Ok(request) } else { Err(RequestFileError::Damaged) }
    }

    /// The contents of its file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("strings and numbers are JSON");
        bytes.push(b'\n');
        bytes
    }
}

/// Whether `text` can be a prefix: letters, digits, hyphens and underscores of ASCII, in parts with
/// periods between them. `0` and prefixes derived from it are those of the Handle System itself.
#[must_use]
pub fn is_prefix(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    text.len() <= PREFIX_LEN_MAX && text.split('.').all(is_part) && text.split('.').next() != Some("0")
}

/// Whether two prefixes are the same.
#[must_use]
pub fn is_same_prefix(one: &str, other: &str) -> bool {
    fold::eq(one.as_bytes(), other.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_names_with_periods() {
        for text in ["10", "10.1045", "20.500.12345", "TST", "a-b_c.D", &"1".repeat(255)] {
            assert!(is_prefix(text), "{text}");
        }
        let odd = ["", ".", "10.", ".10", "10..1", "10/1", "0.NA/10", "0", "0.NA", "10 1", "ü", "a\n"];
        for text in odd.into_iter().chain([&*"1".repeat(256)]) {
            assert!(!is_prefix(text), "{text}");
        }
        assert!(is_same_prefix("tst.A", "TST.a") && !is_same_prefix("10.1", "10.10"));
    }

    #[test]
    fn a_token_leads_to_its_request_and_does_not_follow_from_it() {
        let token = RequestToken::generate();
        let text = token.secret_text();
        assert_eq!(RequestToken::parse(&text), Some(token));
        assert_ne!(RequestToken::generate(), token);
        let id = token.digest().id();
        assert_eq!(RequestId::parse(&id.to_string()), Some(id));
        for wrong in [&text[1..], &id.to_string(), "", "../../x"] {
            assert_eq!(RequestToken::parse(wrong), None, "{wrong}");
        }
        assert_eq!(RequestId::parse("../x"), None);
        assert!(!format!("{token:?}").contains(&text));
    }
}
