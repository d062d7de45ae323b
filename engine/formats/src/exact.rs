//! Records that the JSON of the REST API cannot represent: with names or types that are not UTF-8,
//! or bits without a meaning.
//!
//! ```json
//! {"handle":"20.500.1/�","exact":{"handle":"MjAuNTAwLjEv/w==","values":["AAAAAQ..."]},"shown":[]}
//! ```
//!
//! `exact` has the handle and each value, in the form of the protocol, as base64. `handle` and
//! `shown`, which has the values as JSON where that is possible, are for people. A program that
//! does not know this form does not find `values` in the line, so it cannot take it for a record.

use data_encoding::BASE64;
use handle_proto::json::{Json, value_to_json};
use handle_proto::{Handle, Value, ValueBuf};
use serde_json::json;

/// An entry in this form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExactEntry {
    /// A handle and its values.
    Record(Vec<u8>, Vec<ValueBuf>),
    /// A homed prefix.
    Homed(Vec<u8>),
}

impl ExactEntry {
    /// Reads an entry; `None` if `json` does not have this form, and the reason if it is damaged.
    #[must_use]
    pub fn read(json: &Json) -> Option<Result<Self, &'static str>> {
        let exact = json.get("exact")?;
        let bytes = |json: &Json| BASE64.decode(json.as_str()?.as_bytes()).ok();
        if let Some(homed) = exact.get("homed") {
            return Some(bytes(homed).map(Self::Homed).ok_or("exact.homed: not base64"));
        }
        let value = |json: &Json| {
            let encoded = bytes(json)?;
            let (value, rest) = Value::split(&encoded).ok()?;
            rest.is_empty().then(|| ValueBuf::from(&value))
        };
        let record = || {
            let handle = exact.get("handle").and_then(bytes).ok_or("exact.handle: not base64")?;
            let values = exact.get("values").and_then(Json::as_array).ok_or("exact.values: not a list")?;
            let values = values.iter().map(value).collect::<Option<_>>();
            Ok(Self::Record(handle, values.ok_or("exact.values: not a value in base64")?))
        };
        Some(record())
    }
}

/// A record in this form.
#[must_use]
pub fn record_to_json<'v>(handle: &[u8], values: impl IntoIterator<Item = Value<'v>>) -> Json {
    let (mut exact, mut shown) = (Vec::new(), Vec::new());
    for value in values {
        let mut encoded = Vec::new();
        value.encode(&mut encoded);
        exact.push(Json::from(BASE64.encode(&encoded)));
        shown.push(value_to_json(&value));
    }
    let exact = json!({ "handle": BASE64.encode(handle), "values": exact });
    json!({ "handle": Handle(handle).to_string(), "exact": exact, "shown": shown })
}

/// A homed prefix in this form.
#[must_use]
pub fn homed_to_json(prefix: &[u8]) -> Json {
    json!({ "exact": { "homed": BASE64.encode(prefix) } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::value::{Permissions, Ttl};
    use handle_proto::wire::list::{Reference, References};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_come_back(
            handle in prop::collection::vec(any::<u8>(), 0..20),
            kind in prop::collection::vec(any::<u8>(), 0..20),
            data in prop::collection::vec(any::<u8>(), 0..20),
            reference in prop::collection::vec(any::<u8>(), 0..20),
            (index, ttl, timestamp, permissions, ttl_kind) in any::<(i32, i32, u32, u8, u8)>(),
        ) {
            let mut storage = Vec::new();
            let references = References::build([Reference { handle: &reference, index }], &mut storage);
            let value = Value {
                index,
                timestamp,
                ttl: Ttl { kind: ttl_kind, seconds: ttl },
                permissions: Permissions(permissions),
                kind: &kind,
                data: &data,
                references,
            };
            let json = record_to_json(&handle, [value]);
            let json: Json = serde_json::from_str(&json.to_string()).unwrap();
            let expected = ExactEntry::Record(handle.clone(), vec![ValueBuf::from(&value)]);
            prop_assert_eq!(ExactEntry::read(&json), Some(Ok(expected)));
            let homed = homed_to_json(&handle);
            prop_assert_eq!(ExactEntry::read(&homed), Some(Ok(ExactEntry::Homed(handle))));
        }
    }

    #[test]
    fn what_is_damaged_is_said() {
        assert_eq!(ExactEntry::read(&json!({ "handle": "10/a", "values": [] })), None);
        for (exact, why) in [
            (json!(7), "exact.handle"),
            (json!({ "homed": "?" }), "exact.homed"),
            (json!({ "handle": "?", "values": [] }), "exact.handle"),
            (json!({ "handle": "", "values": {} }), "exact.values"),
            (json!({ "handle": "", "values": ["AAAA"] }), "exact.values"),
        ] {
            let error = ExactEntry::read(&json!({ "exact": exact })).unwrap().unwrap_err();
            assert!(error.starts_with(why), "{error}");
        }
    }
}
