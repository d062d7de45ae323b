//! What the global services of labs have in common: signed records, and the file from which clients
//! know them.

use handle_auth::{PrivateKey, keyfile};
use handle_client::signature::{self, Claims, Permission, SigningScope};
use handle_daemon::clock::now_unix_ms;
use handle_proto::data::PublicKey;
use handle_proto::json::{Json, record_to_json};
use handle_proto::name::{ROOT, TRUST_ROOT};
use handle_proto::{Value, ValueBuf};
use serde_json::json;

/// A value with a time stamp of the past.
pub(crate) fn value(index: i32, kind: &[u8], data: &[u8]) -> ValueBuf {
    ValueBuf::from(&Value { timestamp: 1_700_000_000, ..Value::new(index, kind, data) })
}

/// The bootstrap file of clients, from the values of the two records of the global service.
pub(crate) fn bootstrap(root: &[ValueBuf], trust: &[ValueBuf]) -> Json {
    let record =
        |handle: &[u8], values: &[ValueBuf]| record_to_json(handle, values.iter().map(ValueBuf::view));
    json!({
        "lastUpdate": now_unix_ms(),
        "handles": {
            lossy(ROOT): record(ROOT, root),
            lossy(TRUST_ROOT): record(TRUST_ROOT, trust),
        },
    })
}

/// A handle as text.
pub(crate) fn lossy(handle: &[u8]) -> String {
    String::from_utf8_lossy(handle).into_owned()
}

/// The owner of the trusted key, which signs the records of the global service.
pub(crate) struct RecordSigner<'a> {
    key: PrivateKey,
    public: PublicKey<'a>,
}

/// The trusted key, and its self-signed certificate.
const ISSUER: &str = "300:0.0/0.0";
const CERTIFICATE: &str = "400:0.0/0.0";

impl<'a> RecordSigner<'a> {
    pub(crate) fn new(key_file: &[u8], public_key: &'a [u8]) -> anyhow::Result<Self> {
        let record = keyfile::decode(key_file, None)?;
        let key = PrivateKey::from_record(record.as_bytes())?;
        Ok(Self { key, public: PublicKey::decode(public_key)? })
    }

    fn claims(subject: &str, chain: &[&str]) -> Claims {
        Claims {
            issuer: ISSUER.to_owned(),
            subject: subject.to_owned(),
            chain: chain.iter().map(|&link| link.to_owned()).collect(),
            issued: i64::try_from(now_unix_ms() / 1000).unwrap_or_default(),
            ..Claims::default()
        }
    }

    pub(crate) fn certificate(&self) -> anyhow::Result<String> {
        let everything = Permission { permitted: SigningScope::Everything, handle: String::new() };
        Ok(signature::certificate(&Self::claims(ISSUER, &[]), &self.public, &[everything], &self.key)?)
    }

    pub(crate) fn signature(&self, handle: &str, values: &[ValueBuf]) -> anyhow::Result<String> {
        let claims = Self::claims(handle, &[CERTIFICATE]);
        Ok(signature::signature(&claims, values.iter().map(ValueBuf::view), &self.key)?)
    }
}
