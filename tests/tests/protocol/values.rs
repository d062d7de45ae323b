//! Values and the predefined types, as bytes and as JSON: `values.jsonl`.
//!
//! Every line decodes to its fields and encodes to its bytes, prints as its JSON and reads back.
//! Intended differences from the reference:
//!
//! - [`permissions_as_given`]: permissions in JSON are four characters and are stored unchanged.
//! - [`is_our_text`]: data is printed as a string if it is UTF-8 without control characters.
//! - Undefined bits are encoded again; the reference clears them.

use data_encoding::BASE64;
use handle_proto::data::site::SiteFlags;
use handle_proto::data::{self, Admin, AdminPermissions, PrivateKey, PublicKey, Site, SiteBuf, Vlist};
use handle_proto::json::{self, Reading, RecordLine};
use handle_proto::wire::cursor::Cursor;
use handle_proto::wire::list::References;
use handle_proto::{Field, Value, ValueBuf, Values};
use handle_tests::vectors::{LineOutcome, byte_string, check_kind, check_kinds, hex};
use serde_json::{Value as Json, json};

fn check_each(kind: &str, check: impl Fn(&Json)) {
    check_kind("values.jsonl", kind, |_, line| check(line));
}

fn parsed(line: &Json, member: &str) -> Json {
    let text = line[member].as_str().expect("a string of JSON");
    serde_json::from_str(text).expect("JSON inside the line")
}

fn references(list: References<'_>) -> Json {
    list.iter().map(|entry| json!({"index": entry.index, "handle": byte_string(entry.handle)})).collect()
}

fn fields(value: &Value<'_>) -> Json {
    json!({
        "index": value.index,
        "type": byte_string(value.kind),
        "data_hex": data_encoding::HEXLOWER.encode(value.data),
        "ttl_type": value.ttl.kind.cast_signed(),
        "ttl": value.ttl.seconds,
        "timestamp": value.timestamp.cast_signed(),
        "permissions": value.permissions.to_string(),
        "references": references(value.references),
    })
}

/// Our rule for printing data as a string; the reference uses a heuristic.
fn is_our_text(data: &[u8]) -> bool {
    let plain = |c: char| !c.is_control() || matches!(c, '\t' | '\r' | '\n');
    str::from_utf8(data).is_ok_and(|text| text.chars().all(plain))
}

/// Returns the encoded value with `permissions` in byte 13.
///
/// When it reads JSON, the reference sets the first of the four permissions; we keep those given.
fn permissions_as_given(mut value: Vec<u8>, permissions: u8) -> Vec<u8> {
    value[13] = permissions & 0x0f;
    value
}

/// Outcome for JSON that the reference reads although a member has the wrong type.
const READ_STRICTLY: LineOutcome = LineOutcome::Permitted("JSON is read strictly");

/// Whether JSON has a member of the wrong type: a number or a boolean for a string, a number with a
/// fraction for an integer, or permissions of an administrator that are not twelve characters.
fn is_loosely_typed(json: &Json) -> bool {
    const STRINGS: [&str; 9] =
        ["type", "data", "format", "handle", "timestamp", "address", "protocol", "name", "protocolVersion"];
    match json {
        Json::Number(number) => number.is_f64(),
        Json::Array(items) => items.iter().any(is_loosely_typed),
        Json::Object(members) => members.iter().any(|(name, member)| {
            let is_scalar = member.is_number() || member.is_boolean();
            let is_string = STRINGS.iter().any(|string| string.eq_ignore_ascii_case(name));
            let is_value = name == "value" && members.contains_key("format");
            let is_odd = |text: &str| text != "*" && text.len() != 12 && members.contains_key("handle");
            is_scalar && (is_string || is_value || name == "permissions")
                || name == "permissions" && member.as_str().is_some_and(is_odd)
                || is_loosely_typed(member)
        }),
        _ => false,
    }
}

#[test]
fn vectors_differ_where_json_is_loosely_typed() {
    let value = |member: &str, json: Json| {
        let mut value = json!({"index": 1, "type": "URL", "data": {"format": "string", "value": "x"}});
        value[member] = json;
        value
    };
    let admin = |permissions: &str| {
        let data = json!({"handle": "0.NA/10", "index": 300, "permissions": permissions});
        value("data", json!({"format": "admin", "value": data}))
    };
    let loose = [
        value("index", json!(1.0)),
        value("type", json!(7)),
        value("data", json!(7)),
        value("data", json!({"format": "string", "value": 7})),
        value("permissions", json!(1110)),
        admin("0000011111110010"),
    ];
    for json in loose {
        assert!(is_loosely_typed(&json), "{json}");
        assert_eq!(read(&json), None, "{json}");
    }
    for json in [value("index", json!("7")), admin("011111110010"), value("permissions", json!("1110"))] {
        assert!(!is_loosely_typed(&json), "{json}");
        assert!(read(&json).is_some(), "{json}");
    }
}

/// Reads `json` from a tree and directly from a line, and checks that both agree.
fn read(json: &Json) -> Option<Vec<u8>> {
    let value = json::value_from_json(json).ok().map(|value| value.as_bytes().to_vec());
    let line = json!({"handle": "10/a", "values": [json]}).to_string();
    let mut values = Vec::new();
    let fast = RecordLine::parse(&line, &mut values).ok();
    assert_eq!(fast.map(|record| record.values_count), value.as_ref().map(|_| 1), "{json}");
    assert_eq!(values, value.clone().unwrap_or_default(), "{json}");
    value
}

fn read_as_deployed(json: &Json) -> Option<Vec<u8>> {
    json::value_from_json_as(json, Reading::Deployed).ok().map(|value| value.as_bytes().to_vec())
}

#[test]
fn vectors_have_known_kinds() {
    const KINDS: [&str; 9] = [
        "value",
        "json_to_value",
        "binary_decode",
        "site",
        "json_to_site",
        "admin",
        "vlist",
        "key",
        "value_list",
    ];
    check_kinds("values.jsonl", &KINDS);
}

#[test]
fn vectors_of_values_decode_to_their_fields_and_encode_to_the_same_bytes() {
    check_each("value", |line| {
        let bytes = hex(&line["hex"]);
        let (value, rest) = Value::split(&bytes).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(rest.is_empty(), "{line}");
        assert_eq!(fields(&value), line["fields"], "{line}");
        assert_eq!(ValueBuf::from(&value).as_bytes(), bytes, "{line}");
        assert_eq!(data::text(value.data).is_some(), is_our_text(value.data), "{line}");
        assert!(line["data_is_text"] == true || !is_our_text(value.data), "{line}");
    });
}

#[test]
fn vectors_of_values_print_as_deployed() {
    check_each("value", |line| {
        let bytes = hex(&line["hex"]);
        let value = Value::split(&bytes).unwrap().0;
        let mut expected = parsed(line, "json_text");
        let printed = line["json_text"].as_str().unwrap();
        assert_eq!(json::text(&expected), printed, "our writer keeps the text");
        let theirs = expected["data"]["format"].as_str().unwrap();
        if matches!(theirs, "string" | "base64") {
            let text = str::from_utf8(value.data).ok().filter(|_| is_our_text(value.data));
            expected["data"] = match text {
                Some(text) => json!({"format": "string", "value": text}),
                None => json!({"format": "base64", "value": BASE64.encode(value.data)}),
            };
        }
        assert_eq!(json::text(&json::value_to_json(&value)), json::text(&expected), "{line}");
    });
}

#[test]
fn vectors_of_values_read_back_from_json() {
    check_each("value", |line| {
        let bytes = hex(&line["hex"]);
        let value = Value::split(&bytes).unwrap().0;
        let printed = parsed(line, "json_text");
        if line.get("json_parse_error").is_some_and(|error| !error.is_null()) {
            // JSON that the reference cannot read back may be refused, but not read as another
            // value.
            assert!(read(&printed).is_none_or(|read| read == bytes), "{line}");
            return;
        }
        let deployed = line.get("hex_from_json").filter(|hex| !hex.is_null()).map_or(bytes.clone(), hex);
        assert_eq!(line["json_round_trip"], deployed == bytes, "{line}");
        assert_eq!(read_as_deployed(&printed).as_ref(), Some(&deployed), "{line}");
        let ours = permissions_as_given(deployed, value.permissions.0);
        assert_eq!(read(&printed), Some(ours), "{line}");
        // Our own JSON keeps all data of values without a known type.
        let again = json::value_to_json(&value);
        if again["data"]["format"] == "base64" || again["data"]["format"] == "string" {
            let again = ValueBuf::from_bytes(read(&again).unwrap()).unwrap();
            assert_eq!(again.view().data, value.data, "{line}");
        }
    });
}

#[test]
fn vectors_of_json_read_to_values_or_are_refused() {
    check_kind("values.jsonl", "json_to_value", |_, line| {
        let deployed = (!line["hex"].is_null()).then(|| hex(&line["hex"]));
        let Ok(json) = serde_json::from_str(line["json_text"].as_str().expect("a string of JSON")) else {
            return if deployed.is_some() { READ_STRICTLY } else { LineOutcome::AsStated };
        };
        let as_deployed = read_as_deployed(&json);
        if as_deployed.is_none() && deployed.is_some() && is_loosely_typed(&json) {
            assert_eq!(read(&json), None, "{line}");
            return READ_STRICTLY;
        }
        assert_eq!(as_deployed, deployed, "{line}");
        let Some(bytes) = deployed else {
            assert_eq!(read(&json), None, "{line}");
            return LineOutcome::AsStated;
        };
        let value = ValueBuf::from_bytes(bytes.clone()).unwrap();
        assert_eq!(fields(&value.view()), line["fields"], "{line}");
        let printed = line["json_printed_again"].as_str().unwrap();
        if is_our_text(value.view().data) || !printed.contains(r#""format":"string""#) {
            assert_eq!(json::text(&json::value_to_json(&value.view())), printed, "{line}");
        }
        if read(&json).is_none() && is_loosely_typed(&json) {
            return READ_STRICTLY;
        }
        // Our rule for permissions: four characters `0` or `1`, or `*`; anything else is an error.
        let ours = match json["permissions"].as_str() {
            None => Some(bytes),
            Some("*") => Some(permissions_as_given(bytes, 0x0f)),
            Some(text) if text.len() == 4 => {
                let given = u8::from_str_radix(text, 2).ok();
                given.map(|given| permissions_as_given(bytes, given))
            }
            Some(_) => None,
        };
        assert_eq!(read(&json), ours, "{line}");
        LineOutcome::AsStated
    });
}

#[test]
fn vectors_of_bytes_decode_or_are_refused() {
    check_each("binary_decode", |line| {
        let bytes = hex(&line["hex"]);
        let decoded = Value::split(&bytes);
        assert_eq!(line["ok"], decoded.is_ok(), "{line}");
        let Ok((value, rest)) = decoded else { return };
        assert_eq!(line["consumed"], bytes.len() - rest.len(), "{line}");
        assert_eq!(fields(&value), line["fields"], "{line}");
        assert_eq!(ValueBuf::from(&value).as_bytes(), &bytes[..bytes.len() - rest.len()], "{line}");
    });
}

#[test]
fn vectors_of_value_lists_decode_and_encode() {
    check_each("value_list", |line| {
        let bytes = hex(&line["hex"]);
        let mut cursor = Cursor::new(&bytes);
        let list = cursor.string(Field::Values).unwrap();
        cursor.finish(Field::Values).unwrap();
        let mut inner = Cursor::new(list);
        let values = Values::decode(&mut inner).unwrap();
        inner.finish(Field::Values).unwrap();
        let decoded: Json = values.iter().map(|value| fields(&value)).collect();
        assert_eq!(decoded, line["fields"], "{line}");
        let mut again = Vec::new();
        values.encode(&mut again);
        assert_eq!(again, list, "{line}");
    });
}

#[test]
fn vectors_of_sites_decode_and_encode() {
    check_each("site", |line| {
        let bytes = hex(&line["hex"]);
        let decoded = Site::decode(&bytes);
        assert_eq!(line["ok"], decoded.is_ok(), "{line}");
        let Ok(mut site) = decoded else { return };
        let encoded = |site: &Site<'_>| {
            let mut bytes = Vec::new();
            site.encode(&mut bytes);
            bytes
        };
        assert_eq!(encoded(&site), bytes, "{line}");
        assert_eq!(SiteBuf::from_bytes(bytes.clone()).unwrap().edit().build().as_bytes(), bytes, "{line}");
        let addresses: Json = site.servers.iter().map(|server| server.address.to_string()).collect();
        assert_eq!(addresses, line["addresses"], "{line}");
        assert_eq!(json::text(&json::site_to_json(&site)), line["json_text"].as_str().unwrap(), "{line}");
        let read = json::site_from_json(&parsed(line, "json_text")).unwrap();
        assert_eq!(read.as_bytes(), hex(&line["hex_from_json"]), "{line}");
        // We keep undefined flags, which the reference clears.
        site.flags = SiteFlags::known(site.flags);
        assert_eq!(encoded(&site), hex(&line["hex_reencoded"]), "{line}");
    });
}

#[test]
fn vectors_of_json_read_to_sites_or_are_refused() {
    check_kind("values.jsonl", "json_to_site", |_, line| {
        let Ok(json) = serde_json::from_str(line["json_text"].as_str().expect("a string of JSON")) else {
            return if line["hex"].is_null() { LineOutcome::AsStated } else { READ_STRICTLY };
        };
        let read = json::site_from_json(&json);
        if line["hex"].is_null() {
            assert!(read.is_err(), "{line}");
            return LineOutcome::AsStated;
        }
        if read.is_err() && is_loosely_typed(&json) {
            return READ_STRICTLY;
        }
        let site = read.unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(site.as_bytes(), hex(&line["hex"]), "{line}");
        // The reference omits members that were absent from JSON; we print an empty list or key.
        let mut expected = parsed(line, "json_printed_again");
        for list in ["attributes", "servers"] {
            expected.as_object_mut().unwrap().entry(list).or_insert_with(|| json!([]));
        }
        for server in expected["servers"].as_array_mut().unwrap() {
            server["publicKey"].as_object_mut().unwrap().entry("value").or_insert_with(|| json!(""));
        }
        assert_eq!(json::site_to_json(&site.view()), expected, "{line}");
        LineOutcome::AsStated
    });
}

#[test]
fn vectors_of_administrators_decode_and_encode() {
    check_each("admin", |line| {
        let bytes = hex(&line["hex"]);
        let decoded = Admin::decode(&bytes);
        assert_eq!(line["ok"], decoded.is_ok(), "{line}");
        let Ok(mut admin) = decoded else { return };
        let fields = &line["fields"];
        assert_eq!(byte_string(admin.reference.handle), fields["handle"], "{line}");
        assert_eq!(fields["index"], admin.reference.index, "{line}");
        assert_eq!(fields["legacy_byte_length"], admin.legacy.is_some(), "{line}");
        let bits: Json = AdminPermissions::KNOWN.iter().map(|&(bit, _)| admin.permissions.has(bit)).collect();
        let listed = fields.as_object().unwrap().iter().find(|(name, _)| name.starts_with("permissions"));
        assert_eq!(&bits, listed.unwrap().1, "{line}");
        let encoded = |admin: &Admin<'_>| {
            let mut bytes = Vec::new();
            admin.encode(&mut bytes);
            bytes
        };
        assert_eq!(encoded(&admin), bytes, "{line}");
        let data = json::data_to_json(b"HS_ADMIN", &bytes);
        assert_eq!(data["format"], "admin", "{line}");
        assert_eq!(json::text(&data["value"]), line["json_text"].as_str().unwrap(), "{line}");
        for reading in [Reading::Documented, Reading::Deployed] {
            let read = json::data_from_json(&data, reading).unwrap();
            assert_eq!(read, hex(&line["hex_from_json"]), "{line}");
        }
        // We keep undefined bits, which the reference clears.
        admin.permissions = admin.permissions.known();
        assert_eq!(encoded(&admin), hex(&line["hex_reencoded"]), "{line}");
    });
}

#[test]
fn vectors_of_groups_decode_and_encode() {
    check_each("vlist", |line| {
        let bytes = hex(&line["hex"]);
        let decoded = Vlist::decode(&bytes);
        assert_eq!(line["ok"], decoded.is_ok(), "{line}");
        let Ok(vlist) = decoded else { return };
        assert_eq!(references(vlist.0), line["fields"], "{line}");
        let mut again = Vec::new();
        vlist.encode(&mut again);
        assert_eq!(again, hex(&line["hex_reencoded"]), "{line}");
        let data = json::data_to_json(b"HS_VLIST", &bytes);
        assert_eq!(json::text(&data["value"]), line["json_text"].as_str().unwrap(), "{line}");
        assert_eq!(json::data_from_json(&data, Reading::Documented).unwrap(), bytes, "{line}");
    });
}

#[test]
fn vectors_of_keys_have_a_json_form() {
    check_each("key", |line| {
        let (public, private) = (hex(&line["handle_public_hex"]), hex(&line["handle_private_hex"]));
        let key = PublicKey::decode(&public).unwrap();
        assert_eq!(key.to_bytes(), public, "{line}");
        let jwk = json::public_key_to_jwk(&key).unwrap();
        assert_eq!(json::text(&jwk), line["public_json_text"].as_str().unwrap(), "{line}");
        assert_eq!(json::public_key_from_jwk(&jwk).unwrap(), public, "{line}");
        let key = PrivateKey::decode(&private).unwrap();
        assert_eq!(**key.to_bytes(), private, "{line}");
        assert_eq!(*json::private_key_to_jwk(&key), line["private_json_text"].as_str().unwrap(), "{line}");
        let read = json::private_key_from_jwk(&parsed(line, "private_json_text")).unwrap();
        assert_eq!(read.as_bytes(), private, "{line}");
    });
}
