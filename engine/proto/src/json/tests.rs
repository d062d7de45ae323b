//! Tests of JSON of records, values, sites and keys: valid and invalid input, the paths in errors,
//! and that both readers agree.

use super::*;
use crate::data::{Admin, AdminPermissions, PrivateKeyBuf, SiteBuilder};
use crate::value::{Permissions, Ttl};
use crate::wire::list::{Reference, References};
use alloc::vec;
use proptest::prelude::*;
use serde_json::json;

fn error(json: &Json) -> String {
    record_from_json(json).unwrap_err().to_string()
}

fn record_with(value: Json) -> Json {
    json!({"handle": "10/a", "values": [{"index": 1, "type": "URL", "data": "x"}, value]})
}

#[test]
fn an_error_has_a_path_and_a_reason() {
    for (value, expected) in [
        (json!([]), "values[1]: not an object"),
        (json!({"type": "URL", "data": "x"}), "values[1].index: missing"),
        (json!({"index": null, "type": "URL", "data": "x"}), "values[1].index: missing"),
        (
            json!({"index": 2.5, "type": "URL", "data": "x"}),
            "values[1].index: not a whole number from -2147483648 to 2147483647",
        ),
        (json!({"index": 1, "data": "x"}), "values[1].type: missing"),
        (json!({"index": 1, "type": "URL"}), "values[1].data: missing"),
        (json!({"index": 1, "type": "URL", "data": 5}), "values[1].data: neither a string nor an object"),
        (json!({"index": 1, "type": "URL", "data": {"value": "x"}}), "values[1].data.format: missing"),
        (
            json!({"index": 1, "type": "URL", "data": {"format": "what", "value": "x"}}),
            "values[1].data.format: not one of string, base64, hex, admin, vlist, site and key",
        ),
        (json!({"index": 1, "type": "URL", "data": {"format": "string"}}), "values[1].data.value: missing"),
        (
            json!({"index": 1, "type": "URL", "data": {"format": "base64", "value": "A"}}),
            "values[1].data.value: not base64",
        ),
        (
            json!({"index": 1, "type": "URL", "data": {"format": "hex", "value": "00F"}}),
            "values[1].data.value: not hex",
        ),
        (
            json!({"index": 1, "type": "X", "data": {"format": "vlist", "value": [{"handle": "a"}]}}),
            "values[1].data.value[0].index: missing",
        ),
        (
            json!({"index": 1, "type": "URL", "data": "x", "permissions": "111"}),
            "values[1].permissions: not four characters 0 or 1",
        ),
        (
            json!({"index": 1, "type": "URL", "data": "x", "timestamp": "yesterday"}),
            "values[1].timestamp: not a time such as 2024-01-31T10:00:00Z",
        ),
        (
            json!({"index": 1, "type": "URL", "data": "x", "ttl": "3000-01-01T00:00:00Z"}),
            "values[1].ttl: a time outside 1901 to 2106",
        ),
        (
            json!({"index": 1, "type": "URL", "data": "x", "references": [{"handle": 1, "index": 1}]}),
            "values[1].references[0].handle: not a string",
        ),
    ] {
        let record = record_with(value);
        assert_eq!(error(&record), expected);
        // The fast reader gives the same error, and leaves `values` unchanged.
        let mut values = vec![7];
        assert_eq!(RecordLine::parse(&record.to_string(), &mut values).unwrap_err().to_string(), expected);
        assert_eq!(values, [7]);
    }
    assert_eq!(error(&json!([])), "not an object");
    assert_eq!(error(&json!({"values": []})), "handle: missing");
    assert_eq!(error(&json!({"handle": "a", "values": {}})), "values: not a list");
    let broken = RecordLine::parse("{", &mut Vec::new()).unwrap_err();
    assert!(broken.to_string().starts_with("not JSON: "), "{broken}");
}

#[test]
fn permissions_are_read_as_documented_or_as_deployed() {
    let read = |text: &str, reading| {
        let json = json!({"index": 1, "type": "URL", "data": "x", "permissions": text});
        value_from_json_as(&json, reading).ok().map(|value| value.view().permissions.to_string())
    };
    assert_eq!(read("012x", Reading::Documented), None);
    for (text, documented, deployed) in [
        ("0110", Some("0110"), "1110"),
        ("0000", Some("0000"), "1000"),
        ("1111", Some("1111"), "1111"),
        ("*", Some("1111"), "1111"),
        ("00000", None, "0000"),
        ("", None, "1110"),
        ("1", None, "1110"),
    ] {
        assert_eq!(read(text, Reading::Documented).as_deref(), documented, "{text}");
        assert_eq!(read(text, Reading::Deployed).as_deref(), Some(deployed), "{text}");
    }
}

#[test]
fn permissions_of_an_administrator_have_several_forms() {
    let read = |permissions: Json, reading| {
        let admin = json!({"handle": "0.NA/10", "index": 3, "permissions": permissions});
        let data = data_from_json(&json!({"format": "admin", "value": admin}), reading).ok()?;
        Some(crate::data::Admin::decode(&data).unwrap().permissions.0)
    };
    let lowest = json!([true, false, 0, 0, 0, 0, 0, 0, 0, 0, "false", 1]);
    for (permissions, expected) in [
        (json!("000000000001"), 0x001),
        (json!("*"), 0xfff),
        (json!(true), 0xfff),
        (json!(false), 0),
        (json!(11_110_011), 0x0f3),
        (lowest, 0x801),
    ] {
        assert_eq!(read(permissions.clone(), Reading::Documented), Some(expected), "{permissions}");
    }
    for permissions in
        [json!("1"), json!("0000000000011"), json!(12), json!([1]), json!(1_111_111_111_111_i64)]
    {
        assert_eq!(read(permissions.clone(), Reading::Documented), None, "{permissions}");
    }
    assert_eq!(read(json!("1"), Reading::Deployed), Some(1));
}

#[test]
fn times_have_any_offset_and_lose_fractions() {
    let read = |text: &str| {
        let json = json!({"index": 1, "type": "URL", "data": "x", "timestamp": text});
        value_from_json(&json).map(|value| value.view().timestamp)
    };
    for (text, unix_s) in [
        ("2019-03-07T12:34:56Z", 1_551_962_096),
        ("2019-03-07T12:34:56.789Z", 1_551_962_096),
        ("2019-03-07T13:34:56+01:00", 1_551_962_096),
        ("2019-03-07T12:34:56", 1_551_962_096),
        ("2019-03-07", 1_551_916_800),
        ("1969-12-31T23:59:59Z", u32::MAX),
        ("2106-02-07T06:28:15Z", u32::MAX),
    ] {
        assert_eq!(read(text), Ok(unix_s), "{text}");
    }
    for text in ["", "yesterday", "2019-02-30", "1551962096", "1901-12-13T20:45:51Z", "2106-02-07T06:28:16Z"]
    {
        assert!(read(text).is_err(), "{text}");
    }
}

#[test]
fn text_is_valid_javascript() {
    assert_eq!(text(&json!({"a": "\u{2028}é\u{2029}\u{1}"})), r#"{"a":"\u2028é\u2029\u0001"}"#);
    assert_eq!(text(&json!({"a": "</script>"})), r#"{"a":"</script>"}"#);
}

#[test]
fn names_that_are_not_text_are_written_as_bytes() {
    let mut data = vec![];
    crate::data::Admin::new(crate::data::AdminPermissions::ALL, b"10/\xff", 1).encode(&mut data);
    assert_eq!(data_to_json(b"HS_ADMIN", &data)["format"], "base64");
    assert_eq!(data_to_json(b"HS_VLIST", b"\0\0\0\x01\0\0\0\x01\xff\0\0\0\x01")["format"], "base64");
    let legacy = b"\x0f\xff\0\0\0\x0410/a\0\0\0\x01\0\x07";
    assert_eq!(data_to_json(b"HS_ADMIN", legacy)["format"], "base64", "room for zeros only");
}

fn site(extra: Json) -> Json {
    let mut json = json!({"servers": [{"serverId": 1, "address": "192.0.2.1", "interfaces": []}]});
    json.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    json
}

#[test]
fn a_site_has_defaults() {
    let built = site_from_json(&json!({})).unwrap();
    assert_eq!(built, SiteBuilder::new().build());
    let view = built.view();
    assert_eq!((view.format_version, view.serial, view.hash_option_number), (1, 0, 2));
    assert_eq!(view.protocol, crate::Version::new(2, 11));
}

#[test]
fn a_site_error_has_a_path_and_a_reason() {
    for (json, expected) in [
        (json!({"protocolVersion": "2"}), "protocolVersion: not a version such as 2.11"),
        (json!({"hashOption": "HASH_BY_ALL"}), "hashOption: not a whole number from -128 to 255"),
        (json!({"servers": [{}]}), "servers[0].serverId: missing"),
        (json!({"servers": [{"serverId": 1}]}), "servers[0].address: missing"),
        (
            json!({"servers": [{"serverId": 1, "address": "300.1.1.1"}]}),
            "servers[0].address: neither an address nor a host name",
        ),
        (
            json!({"servers": [{"serverId": 1, "address": "::1", "publicKey": {"format": "base64", "value": "?"}}]}),
            "servers[0].publicKey.value: not base64",
        ),
        (
            json!({"servers": [{"serverId": 1, "address": "::1", "interfaces": [{"protocol": "GOPHER", "port": 1}]}]}),
            "servers[0].interfaces[0].protocol: not UDP, TCP, HTTP, HTTPS or a number of one byte",
        ),
        (json!({"attributes": [{"name": "desc"}]}), "attributes[0].value: missing"),
    ] {
        assert_eq!(site_from_json(&json).unwrap_err().to_string(), expected);
    }
}

#[test]
fn a_host_name_becomes_an_attribute() {
    let mut json = site(json!({"attributes": {"desc": "x"}}));
    json["servers"][0]["address"] = "hdl.example.org".into();
    let built = site_from_json(&json).unwrap();
    assert_eq!(built.view().attribute_of("domain", 0), Some(&b"hdl.example.org"[..]));
    assert!(built.view().servers.iter().all(|server| server.address.is_unspecified()));
    json["attributes"] = json!({"domain.0": "other.example.org"});
    let error = site_from_json(&json).unwrap_err().to_string();
    assert_eq!(error, "servers[0].address: not the host of attribute domain.0");
    json["attributes"] = json!({"domain.0": "hdl.example.org"});
    assert_eq!(site_from_json(&json).unwrap().view().attributes.len(), 1);
}

#[test]
fn numbers_of_a_site_have_a_sign_or_not() {
    let built =
        site_from_json(&site(json!({"serialNumber": 65535, "hashOption": -1, "version": "1"}))).unwrap();
    let view = built.view();
    assert_eq!((view.serial, view.hash_option_number, view.format_version), (-1, 255, 1));
    assert_eq!(site_to_json(&view)["serialNumber"], -1);
    assert_eq!(site_from_json(&site_to_json(&view)).unwrap(), built);
}

#[test]
fn unknown_members_of_a_site_survive() {
    let mut old = site(json!({"x-note": "keep", "serialNumber": 1, "ProtocolVersion": "2.10"}));
    old["servers"][0]["altAddresses"] = json!(["192.0.2.2"]);
    let mut builder = site_from_json(&old).unwrap().edit();
    builder.serial += 1;
    let mut new = site_to_json(&builder.build().view());
    keep_unknown(&old, &mut new);
    assert_eq!(new["x-note"], "keep");
    assert_eq!(new["serialNumber"], 2);
    assert_eq!(new["protocolVersion"], "2.10");
    assert_eq!(new["servers"][0]["altAddresses"][0], "192.0.2.2");
    assert_eq!(new.get("ProtocolVersion"), None);
}

#[test]
fn keys_have_their_members_and_no_others() {
    let jwk = json!({"kty": "RSA", "n": "wQID", "e": "AQAB"});
    let record = public_key_from_jwk(&jwk).unwrap();
    let key = crate::data::PublicKey::decode(&record).unwrap();
    assert_eq!(public_key_to_jwk(&key), Some(jwk.clone()));
    let with_secret = json!({"kty": "RSA", "n": "wQID", "e": "AQAB", "d": "AQ"});
    assert_eq!(public_key_from_jwk(&with_secret).as_ref(), Ok(&record));
    for (jwk, expected) in [
        (json!({"kty": "EC"}), "kty: neither RSA nor DSA"),
        (json!({"kty": "RSA", "e": "AQAB"}), "n: missing"),
        (json!({"kty": "RSA", "n": "", "e": "AQAB"}), "n: no number"),
        (json!({"kty": "RSA", "n": "+/", "e": "AQAB"}), "n: not base64url"),
    ] {
        assert_eq!(public_key_from_jwk(&jwk).unwrap_err().to_string(), expected);
    }
    let dh = crate::data::PublicKey::Dh { y: number(b"\x05"), p: number(b"\x17"), g: number(b"\x02") };
    assert_eq!(public_key_to_jwk(&dh), None);
    assert_eq!(data_to_json(b"HS_PUBKEY", &dh.to_bytes())["format"], "base64");
}

fn number(bytes: &[u8]) -> crate::data::key::Number<'_> {
    crate::data::key::Number::new(bytes)
}

#[test]
fn private_keys_round_trip() {
    for text in [
        r#"{"kty":"RSA","n":"wQID","d":"BQ"}"#,
        r#"{"kty":"RSA","n":"wQID","e":"AQAB","d":"BQ","p":"Bw","q":"Cw","dp":"AQ","dq":"Ag","qi":"AA"}"#,
        r#"{"kty":"DSA","x":"BQ","p":"Fw","q":"Cw","g":"BA"}"#,
    ] {
        let key: PrivateKeyBuf = private_key_from_jwk(&serde_json::from_str(text).unwrap()).unwrap();
        let printed = private_key_to_jwk(&key.view());
        assert_eq!(*printed, text);
        assert_eq!(printed.capacity(), text.len(), "the buffer was reallocated");
    }
}

/// Reads `line` with both readers, which must agree.
fn both(line: &str) -> Option<JsonRecord> {
    let slow = serde_json::from_str(line).ok().and_then(|json: Json| record_from_json(&json).ok());
    let mut values = vec![1, 2];
    let fast = RecordLine::parse(line, &mut values).ok();
    assert_eq!(fast.is_some(), slow.is_some(), "{line}");
    let (fast, slow) = (fast?, slow?);
    assert_eq!(fast.handle.as_bytes(), slow.handle, "{line}");
    assert_eq!(fast.values_count, slow.values.len(), "{line}");
    let expected: Vec<u8> = slow.values.iter().flat_map(|value| value.as_bytes().to_vec()).collect();
    assert_eq!(values, [&[1, 2], &expected[..]].concat(), "{line}");
    Some(slow)
}

#[test]
fn both_readers_agree() {
    for (line, reads) in [
        (r#"{"handle":"10/a","values":[]}"#, true),
        (r#"{"values":[{"data":"x","type":"URL","index":1}],"handle":"10\/\u00e9"}"#, true),
        (r#"{"handle":"a","handle":"b","values":[{"index":1,"type":"T","data":"x"}],"values":[]}"#, true),
        (
            r#"{"responseCode":1,"handle":"a","values":[{"index":"7","type":"T","data":"x","more":{"a":[1]}}]}"#,
            true,
        ),
        (
            r#"{"handle":"a","values":[{"index":1,"type":"T","data":{"value":"eA==","format":"base64"}}]}"#,
            true,
        ),
        (
            r#"{"handle":"a","values":[{"index":1,"type":"T","data":{"format":"hex","value":"78","format":"string"}}]}"#,
            true,
        ),
        (
            r#"{"handle":"a","values":[{"index":1,"type":"T","data":"x\n","ttl":null,"references":null}]}"#,
            true,
        ),
        (
            r#"{"handle":"a","values":[{"index":1,"type":"T","data":"x","permissions":null,"timestamp":null}]}"#,
            true,
        ),
        (r#"{"handle":"a","values":[{"index":1,"type":"T","data":"x","ttl":"2030-01-01T00:00:00Z"}]}"#, true),
        (r#"{"handle":"a","values":[{"index":1,"type":"T","data":"x","ttl":1.0}]}"#, false),
        (r#"{"handle":"a","values":[{"index":4294967296,"type":"T","data":"x"}]}"#, false),
        (r#"{"handle":"a","values":null}"#, false),
        (r#"{"handle":"a","values":[]} x"#, false),
        (r#"{"handle":"a","values":[{"index":1,"type":"T","data":null}]}"#, false),
        (
            r#"{"handle":"a","values":[{"index":100,"type":"HS_ADMIN","data":{"format":"admin","value":
                {"handle":"0.NA/10","index":300,"permissions":"011111110011","legacyByteLength":true}}}]}"#,
            true,
        ),
        (
            r#"{"handle":"a","values":[{"index":100,"type":"HS_ADMIN","data":{"format":"ADMIN","value":
                {"handle":"0.NA/10","index":"300","permissions":true}}}]}"#,
            true,
        ),
        (
            r#"{"handle":"a","values":[{"index":1,"type":"HS_VLIST","data":{"format":"vlist","value":
                [{"handle":"0.NA/10","index":300}]},"references":[{"index":1,"handle":"b"}]}]}"#,
            true,
        ),
        (
            r#"{"handle":"a","values":[{"index":1,"type":"HS_SITE","data":{"format":"site","value":{}}}]}"#,
            true,
        ),
    ] {
        assert_eq!(both(line).is_some(), reads, "{line}");
    }
}

#[test]
fn the_fast_reader_borrows() {
    let line = r#"{"handle":"10/a","values":[{"index":1,"type":"URL","data":"x"}]}"#;
    let record = RecordLine::parse(line, &mut Vec::new()).unwrap();
    assert!(matches!(record.handle, Cow::Borrowed("10/a")));
}

fn any_value() -> impl Strategy<Value = ValueBuf> {
    let kind = prop_oneof![Just(String::from("HS_ADMIN")), Just(String::from("URL")), any::<String>()];
    let ttl = prop_oneof![any::<i32>().prop_map(Ttl::relative), any::<i32>().prop_map(Ttl::absolute)];
    let data = prop_oneof![any::<Vec<u8>>(), any::<String>().prop_map(String::into_bytes)];
    let references = prop::collection::vec((any::<String>(), any::<i32>()), 0..3);
    (any::<i32>(), any::<u32>(), ttl, 0u8..16, kind, data, references).prop_map(
        |(index, timestamp, ttl, permissions, kind, data, references)| {
            let mut encoded = vec![];
            for (handle, index) in &references {
                Reference { handle: handle.as_bytes(), index: *index }.encode(&mut encoded);
            }
            let references = References::from_encoded(references.len(), &encoded).unwrap();
            let permissions = Permissions(permissions);
            let kind = kind.as_bytes();
            (&Value { index, timestamp, ttl, permissions, kind, data: &data, references }).into()
        },
    )
}

proptest! {
    #[test]
    fn printed_records_read_back(handle: String, values in prop::collection::vec(any_value(), 0..4)) {
        let json = record_to_json(handle.as_bytes(), values.iter().map(ValueBuf::view));
        let record = both(&text(&json)).unwrap();
        prop_assert_eq!(record, JsonRecord { handle: handle.into_bytes(), values });
    }

    #[test]
    fn both_readers_agree_on_broken_lines(value in any_value(), at: prop::sample::Index, byte in "[ -~]") {
        let mut line = text(&record_to_json(b"10/a", [value.view()]));
        let at = at.index(line.len());
        prop_assume!(line.is_char_boundary(at) && line.is_char_boundary(at + 1));
        line.replace_range(at..=at, &byte);
        both(&line);
    }
}

#[test]
fn values_without_a_time_stamp_get_the_default_time() {
    let value =
        |index: i32, more: &str| alloc::format!(r#"{{"index":{index},"type":"URL","data":"x"{more}}}"#);
    let values = [
        value(1, ""),
        value(2, r#","timestamp":null"#),
        value(3, r#","timestamp":"1970-01-01T00:00:00Z""#),
        value(4, r#","timestamp":"2024-01-31T10:00:00Z""#),
    ];
    // The index as text is left to the slow reader.
    let slow = value(5, "").replace(":5,", ":\"5\",");
    for values in [values.join(","), [&values.join(","), ",", &slow].concat()] {
        let line = alloc::format!(r#"{{"handle":"10.1/a","values":[{values}]}}"#);
        for (default, expected) in [(0, [0, 0, 0]), (1_700_000_000, [1_700_000_000, 1_700_000_000, 0])] {
            let mut encoded = Vec::new();
            let record = RecordLine::parse_dated(&line, &mut encoded, default).unwrap();
            let read = crate::Values::from_encoded(record.values_count, &encoded).unwrap();
            let stamps: Vec<u32> = read.iter().map(|value| value.timestamp).collect();
            assert_eq!((&stamps[..3], stamps[3]), (&expected[..], 1_706_695_200));
            assert!(stamps[4..].iter().all(|&stamp| stamp == default));
            let json: Json = serde_json::from_str(&line).unwrap();
            let slow = record_from_json_dated(&json, default).unwrap();
            assert!(slow.values.iter().map(|value| value.view().timestamp).eq(stamps));
        }
    }
}

/// The text that [`write_value`] makes without a tree.
fn written(value: &Value<'_>) -> String {
    let mut text = String::new();
    write_value(value, &mut text);
    text
}

proptest! {
    #[test]
    fn values_are_written_as_their_trees(
        index in any::<i32>(),
        kind in prop_oneof![
            Just(b"URL".to_vec()), Just(b"HS_ADMIN".to_vec()), Just(b"HS_VLIST".to_vec()), Just(b"HS_SERV".to_vec()),
            prop::collection::vec(any::<u8>(), 0..6),
        ],
        data in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            "[ -~\t\n\r\u{2028}\u{2029}\u{80}-\u{9f}\u{e9}\"\\\\]{0,20}".prop_map(String::into_bytes),
        ],
        permissions in any::<u8>(),
        ttl_kind in 0u8..3,
        (ttl, timestamp) in any::<(i32, u32)>(),
    ) {
        let mut value = Value::new(index, &kind, &data);
        value.permissions = Permissions(permissions);
        value.ttl = Ttl { kind: ttl_kind, seconds: ttl };
        value.timestamp = timestamp;
        prop_assert_eq!(written(&value), text(&value_to_json(&value)));
    }
}

#[test]
fn administrators_and_references_are_written_as_their_trees() {
    let (mut list, mut data) = (vec![], vec![]);
    let references = References::build([Reference { handle: b"a/\"b", index: 3 }], &mut list);
    let mut value = Value::new(100, b"HS_ADMIN", b"");
    value.references = references;
    for handle in [&b"0.NA/10"[..], b"0.NA/\"\xff", b"10/\xe2\x80\xa8"] {
        for legacy in [None, Some([0, 0]), Some([0, 1])] {
            data.clear();
            let mut admin = Admin::new(AdminPermissions::ALL, handle, 300);
            admin.legacy = legacy;
            admin.encode(&mut data);
            let value = Value { data: &data, ..value };
            assert_eq!(written(&value), text(&value_to_json(&value)), "{handle:?} {legacy:?}");
        }
    }
    let controls: String = (0..0x30u8).map(char::from).collect();
    let mut string = String::new();
    write_string(&controls, &mut string);
    assert_eq!(string, Json::from(controls).to_string());
}
