//! The content of signatures and certificates.

use super::SignatureError;
use super::jws::JwsError;
use data_encoding::BASE64;
use handle_auth::{PublicKey, ValueDigest};
use handle_proto::json::{Json, public_key_from_jwk};
use handle_proto::name::PREFIX_RECORDS;
use handle_proto::{Handle, fold};
use serde_json::json;

/// The claims that both have: issuer, subject, dates, and the certificates of the chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// The issuer: `index:handle`.
    pub issuer: String,
    /// The subject.
    pub subject: String,
    /// Where the certificates are, nearest first.
    pub chain: Vec<String>,
    /// Start of validity, in Unix seconds.
    pub not_before: Option<i64>,
    /// End of validity, in Unix seconds.
    pub expires: Option<i64>,
    /// Time of issue, in Unix seconds.
    pub issued: i64,
}

impl Claims {
    /// Reads the claims of a payload.
    ///
    /// # Errors
    /// When issuer or subject are missing, or a member has the wrong type.
    pub fn read(payload: &Json) -> Result<Self, JwsError> {
        let text = |name: &'static str| {
            payload.get(name).and_then(Json::as_str).map(str::to_owned).ok_or(JwsError::Malformed(name))
        };
        let time = |name: &'static str| match payload.get(name) {
            None | Some(Json::Null) => Ok(None),
            Some(time) => time.as_i64().map(Some).ok_or(JwsError::Malformed(name)),
        };
        let links = payload.get("chain").and_then(Json::as_array).into_iter().flatten();
        let chain: Option<Vec<_>> = links.map(|link| link.as_str().map(str::to_owned)).collect();
        Ok(Self {
            issuer: text("iss")?,
            subject: text("sub")?,
            chain: chain.ok_or(JwsError::Malformed("chain"))?,
            not_before: time("nbf")?,
            expires: time("exp")?,
            issued: time("iat")?.unwrap_or_default(),
        })
    }

    /// Whether it is valid at `now_unix_s`, both ends included.
    #[must_use]
    pub fn counts_at(&self, now_unix_s: u32) -> bool {
        let now = i64::from(now_unix_s);
        self.not_before.is_none_or(|from| from <= now) && self.expires.is_none_or(|until| now <= until)
    }
}

/// The digests that a signature lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Digests {
    pub(super) digest: ValueDigest,
    pub(super) by_index: Vec<(i32, Vec<u8>)>,
}

impl Digests {
    pub(super) fn read(payload: &Json) -> Result<Self, JwsError> {
        let malformed = JwsError::Malformed("digests");
        let json = payload.get("digests").ok_or(malformed.clone())?;
        let name = json.get("alg").and_then(Json::as_str).ok_or(malformed.clone())?;
        let digest = ValueDigest::from_name(name).ok_or_else(|| JwsError::Algorithm(name.to_owned()))?;
        let entry = |entry: &Json| {
            let index = i32::try_from(entry.get("index")?.as_i64()?).ok()?;
            Some((index, BASE64.decode(entry.get("digest")?.as_str()?.as_bytes()).ok()?))
        };
        let list = json.get("digests").and_then(Json::as_array).ok_or(malformed.clone())?;
        let by_index: Option<Vec<_>> = list.iter().map(entry).collect();
        Ok(Self { digest, by_index: by_index.ok_or(malformed)? })
    }
}

/// What the owner of a certificate may sign for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SigningScope {
    /// Every handle.
    Everything,
    /// The handle, and the handles under the prefix that it names.
    ThisHandle,
    /// Everything strictly below the prefix that it names.
    DerivedPrefixes,
    /// The handles under the prefix that it names.
    HandlesUnderThisPrefix,
}

/// A permission of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// The scope.
    pub permitted: SigningScope,
    /// The handle of the scope; empty for every handle.
    pub handle: String,
}

/// The spelling of the scopes.
const NAMES: [(&str, SigningScope); 4] = [
    ("everything", SigningScope::Everything),
    ("thisHandle", SigningScope::ThisHandle),
    ("derivedPrefixes", SigningScope::DerivedPrefixes),
    ("handlesUnderThisPrefix", SigningScope::HandlesUnderThisPrefix),
];

impl Permission {
    pub(super) fn to_json(&self) -> Json {
        let name = NAMES.iter().find(|(_, permitted)| *permitted == self.permitted).map(|(name, _)| *name);
        match self.permitted {
            SigningScope::Everything => json!({ "perm": name }),
            _ => json!({ "perm": name, "handle": self.handle }),
        }
    }

    fn read(json: &Json) -> Option<Self> {
        let name = json.get("perm")?.as_str()?;
        let (_, permitted) = *NAMES.iter().find(|(known, _)| *known == name)?;
        let handle = json.get("handle").and_then(Json::as_str).unwrap_or_default().to_owned();
        Some(Self { permitted, handle })
    }

    /// Whether it covers `handle`.
    #[must_use]
    pub fn covers(&self, handle: Handle<'_>) -> bool {
        let own = self.handle.as_bytes();
        let prefix = Handle(own).is_prefix_record().then(|| &own[PREFIX_RECORDS.len()..]);
        let is_under =
            |prefix: &[u8]| handle.slash_at().is_some() && fold::eq(handle.naming_authority(), prefix);
        let is_derived = |name: &[u8]| {
            fold::starts_with(name, own) && name.get(own.len()) == Some(&b'.') && name.len() > own.len() + 1
        };
        match self.permitted {
            SigningScope::Everything => true,
            SigningScope::ThisHandle => handle.is_same(Handle(own), false) || prefix.is_some_and(is_under),
            SigningScope::DerivedPrefixes => {
                !own.is_empty() && (is_derived(handle.0) || is_derived(&handle.prefix_record()))
            }
            SigningScope::HandlesUnderThisPrefix => prefix.is_some_and(is_under),
        }
    }
}

/// A certificate: a key, its owner, and what it may sign for.
#[derive(Clone)]
pub struct Certificate {
    /// Issuer and subject.
    pub claims: Claims,
    /// The record of the key.
    pub key_record: Vec<u8>,
    /// The key.
    pub key: PublicKey,
    /// The handles that its owner may sign for.
    pub permissions: Vec<Permission>,
}

impl Certificate {
    /// Reads the payload of an HS_CERT value. Unknown permissions permit nothing.
    ///
    /// # Errors
    /// When a member is missing or malformed, or the key is not usable.
    pub fn read(payload: &Json) -> Result<Self, SignatureError> {
        let malformed = || SignatureError::Jws(JwsError::Malformed("publicKey"));
        let claims = Claims::read(payload)?;
        let jwk = payload.get("publicKey").ok_or_else(malformed)?;
        let key_record = public_key_from_jwk(jwk).map_err(|_| malformed())?;
        let key = PublicKey::from_record(&key_record).map_err(|_| malformed())?;
        let permissions = payload.get("perms").and_then(Json::as_array).into_iter().flatten();
        let permissions = permissions.filter_map(Permission::read).collect();
        Ok(Self { claims, key_record, key, permissions })
    }

    /// Whether its owner may sign for `handle`.
    #[must_use]
    pub fn permits(&self, handle: Handle<'_>) -> bool {
        self.permissions.iter().any(|permission| permission.covers(handle))
    }
}
