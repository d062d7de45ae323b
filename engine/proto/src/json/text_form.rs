//! The text forms of predefined types with a binary format: what people write into a cell of a
//! table, or as a bare string of JSON.
//!
//! A server stores whatever bytes it gets, and an administrator that is stored as text is none. So
//! where people enter values, text of these types is parsed or refused.

use super::forms::JsonForm;
use super::read::Result;
use super::value::{data_from_json, value_from_json};
use super::{Json, JsonError, Reading};
use crate::data::Data;
use crate::value::{Value, ValueBuf};
use alloc::format;
use alloc::vec::Vec;

/// Reads a value as [`value_from_json`] does, but data of a predefined type that are given as text
/// have to be a text form of the type.
///
/// # Errors
/// As for [`value_from_json`], and when the text is no form of the type.
pub fn entered_value_from_json(json: &Json) -> Result<ValueBuf> {
    let value = value_from_json(json)?;
    let data = &json["data"];
    let is_string =
        |data: &Json| data["format"].as_str().is_some_and(|format| format.eq_ignore_ascii_case("string"));
    let text = match data {
        Json::String(text) => Some(text),
        Json::Object(_) if is_string(data) => match &data["value"] {
            Json::String(text) => Some(text),
            _ => None,
        },
        _ => None,
    };
    let view = value.view();
    match text.filter(|_| JsonForm::of(view.kind).is_some()) {
        None => Ok(value),
        Some(text) => {
            let data = data_from_text(view.kind, text).map_err(|error| error.within("data"))?;
            Ok(ValueBuf::from(&Value { data: &data, ..view }))
        }
    }
}

/// The data of type `kind` that `text` stands for: JSON of the format of the type. For HS_ADMIN,
/// `300:10.1/admin` will do as well, with twelve bits of permissions and a colon in front if they
/// are not those of the owner of a record; for HS_VLIST, such references with semicolons between
/// them, and perhaps one at the end. Data of other types are the text.
///
/// # Errors
/// When the text is no form of the type.
pub fn data_from_text(kind: &[u8], text: &str) -> Result<Vec<u8>> {
    let Some(form) = JsonForm::of(kind) else { return Ok(text.as_bytes().to_vec()) };
    let refused = || JsonError::new(form.expected);
    let trimmed = text.trim();
    if trimmed.starts_with(['{', '[']) {
        let json: Json = serde_json::from_str(trimmed)
            .map_err(|error| JsonError::new(format!("{}, and not JSON: {error}", form.expected)))?;
        let data = match json.get("format").is_some() && json.get("value").is_some() {
            true => data_from_json(&json, Reading::Documented),
            false => (form.read)(&json, Reading::Documented),
        }?;
        // All members of a site have defaults, but a site without servers is none.
        return match Data::decode(kind, &data) {
            Data::Site(site) if site.servers.is_empty() => Err(refused()),
            Data::Opaque(_) => Err(refused()),
            _ => Ok(data),
        };
    }
    (form.read_text)(trimmed).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::data_to_json;
    use alloc::string::ToString as _;
    use serde_json::json;

    const ADMIN: &str = r#"{"handle":"20.500.1/ADMIN","index":301,"permissions":"011111110011"}"#;

    fn shown(kind: &str, text: &str) -> Json {
        let data =
            data_from_text(kind.as_bytes(), text).unwrap_or_else(|error| panic!("{kind} {text}: {error}"));
        assert!(Data::try_decode(kind.as_bytes(), &data).is_ok(), "{kind} {text}");
        data_to_json(kind.as_bytes(), &data)
    }

    #[test]
    fn text_of_predefined_types_is_parsed() {
        let admin = json!({ "format": "admin", "value": serde_json::from_str::<Json>(ADMIN).unwrap() });
        for text in [ADMIN, &admin.to_string(), " 301:20.500.1/ADMIN\n", "011111110011:301:20.500.1/ADMIN"] {
            assert_eq!(shown("HS_ADMIN", text), admin, "{text}");
            assert_eq!(shown("hs_admin.x", text), admin, "{text}");
        }
        let all = shown("HS_ADMIN", "111111111111:0.NA/20.500.1");
        assert_eq!(
            all["value"],
            json!({ "handle": "0.NA/20.500.1", "index": 0, "permissions": "111111111111" })
        );
        let members = json!([{ "handle": "1/a", "index": 300 }, { "handle": "1/b", "index": 0 }]);
        for text in ["300:1/a; 1/b", "300:1/a;1/b; ", &members.to_string()] {
            assert_eq!(shown("HS_VLIST", text)["value"], members, "{text}");
        }
        let jwk = json!({ "kty": "RSA", "n": "wQ", "e": "AQAB" });
        assert_eq!(shown("HS_PUBKEY", &jwk.to_string())["format"], "key");
        let site = json!({ "servers": [{ "serverId": 1, "address": "192.0.2.1", "interfaces": [],
            "publicKey": { "format": "key", "value": jwk } }] });
        assert_eq!(shown("HS_SITE", &site.to_string())["format"], "site");
        assert_eq!(data_from_text(b"URL", " https://a/ ").unwrap(), b" https://a/ ", "any text");
        assert_eq!(data_from_text(b"HS_SECKEY", "{}").unwrap(), b"{}");
    }

    #[test]
    fn other_text_of_predefined_types_is_refused() {
        for kind in ["HS_ADMIN", "HS_VLIST", "HS_SITE", "HS_SITE.PREFIX", "HS_NA_DELEGATE", "HS_PUBKEY"] {
            for text in ["", "text", "{}", "{", "[1]", "300:", ";", "{\"format\":\"admin\",\"value\":{}}"] {
                assert!(data_from_text(kind.as_bytes(), text).is_err(), "{kind} {text}");
                for data in [json!(text), json!({ "format": "String", "value": text })] {
                    let value = json!({ "index": 1, "type": kind, "data": data });
                    assert!(entered_value_from_json(&value).is_err(), "{value}");
                    assert!(value_from_json(&value).is_ok(), "a copy of what is stored: {value}");
                }
            }
        }
        for bad in ["0111111100112:301:1/a", "01111111001x:301:1/a", "301:noslash", "99999999999:1/a"] {
            assert!(data_from_text(b"HS_ADMIN", bad).is_err(), "{bad}");
        }
        let error = data_from_text(b"HS_ADMIN", "somebody").unwrap_err();
        assert!(error.what().contains("BITS:INDEX:HANDLE"), "{error}");
    }

    #[test]
    fn bytes_and_members_of_the_format_are_taken_as_they_are() {
        for data in [
            json!({ "format": "base64", "value": "AAAA" }),
            json!({ "format": "hex", "value": "00ff" }),
            json!({ "format": "admin", "value": serde_json::from_str::<Json>(ADMIN).unwrap() }),
        ] {
            let value = json!({ "index": 100, "type": "HS_ADMIN", "data": data, "ttl": 60 });
            assert_eq!(entered_value_from_json(&value), value_from_json(&value), "{value}");
        }
        let value =
            json!({ "index": 100, "type": "HS_ADMIN", "data": ADMIN, "ttl": 60, "permissions": "1100" });
        let entered = entered_value_from_json(&value).unwrap();
        let view = entered.view();
        assert_eq!((view.index, view.ttl.seconds, view.permissions.0), (100, 60, 0x0c));
        assert!(matches!(Data::decode(view.kind, view.data), Data::Admin(_)));
    }
}
