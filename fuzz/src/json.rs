//! JSON of records, values and sites.

use handle_proto::data::{Admin, AdminPermissions};
use handle_proto::json::{
    Json, JsonRecord, Reading, RecordLine, keep_unknown, record_from_json, record_to_json, site_from_json,
    site_to_json, text, value_from_json, value_from_json_as, value_to_json,
};
use handle_proto::value::Ttl;
use handle_proto::{Permissions, Value, ValueBuf};

/// Asserts that a printed value can be read back up to what JSON cannot represent, and from then on
/// without loss.
pub(crate) fn prints_and_reads(value: &Value<'_>) {
    let printed = value_to_json(value);
    let parsed: Json = serde_json::from_str(&text(&printed)).expect("the printed text is JSON");
    assert_eq!(parsed, printed);
    let read = value_from_json(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"));
    let view = read.view();
    assert_eq!((view.index, view.timestamp), (value.index, value.timestamp));
    assert_eq!(view.permissions, Permissions(value.permissions.0 & 0x0f));
    assert_eq!((view.ttl.kind == Ttl::RELATIVE), (value.ttl.kind == Ttl::RELATIVE));
    assert_eq!(view.ttl.seconds, value.ttl.seconds);
    assert_eq!(view.kind, String::from_utf8_lossy(value.kind).as_bytes());
    assert_eq!(view.references.len(), value.references.len());
    match printed["data"]["format"].as_str() {
        Some("string" | "base64" | "vlist") => assert_eq!(view.data, value.data),
        Some("admin") => {
            let admin = Admin::decode(value.data).expect("the data were printed as an administrator");
            let known = Admin { permissions: AdminPermissions::known(admin.permissions), ..admin };
            assert_eq!(Admin::decode(view.data), Ok(known));
        }
        Some("site" | "key") => {}
        other => panic!("unknown format {other:?}"),
    }
    let again = value_from_json(&value_to_json(&view)).expect("the printed JSON can be read");
    assert_eq!(again, read);
}

/// JSON that parses as a record or a value prints as JSON that parses as the same, except for flags
/// of keys and other data that JSON cannot represent. As read by deployed software, only
/// permissions differ.
///
/// Input: text.
pub fn values_json(bytes: &[u8]) {
    let Ok(json) = serde_json::from_slice::<Json>(bytes) else { return };
    if let Ok(value) = value_from_json(&json) {
        prints_and_reads(&value.view());
        let deployed = value_from_json_as(&json, Reading::Deployed)
            .expect("the reading of deployed software is less strict");
        let (deployed, ours) = (deployed.view(), value.view());
        assert_eq!(Value { permissions: ours.permissions, ..deployed }, ours);
    }
    let Ok(JsonRecord { handle, values }) = record_from_json(&json) else { return };
    values.iter().for_each(|value| prints_and_reads(&value.view()));
    let printed = record_to_json(&handle, values.iter().map(ValueBuf::view));
    let read = record_from_json(&printed).expect("the printed JSON can be read");
    assert_eq!((read.handle, read.values.len()), (handle, values.len()));
}

/// The reader of lines agrees with the reader of trees, also in its errors. Rejected text adds no
/// values.
///
/// Input: text, a line of a file of records.
pub fn record_line(bytes: &[u8]) {
    let Ok(line) = str::from_utf8(bytes) else { return };
    let mut values = b"kept".to_vec();
    let fast = RecordLine::parse(line, &mut values);
    let slow = match serde_json::from_str::<Json>(line) {
        Ok(json) => record_from_json(&json).map_err(|error| error.to_string()),
        Err(error) => Err(format!("not JSON: {error}")),
    };
    match (fast, slow) {
        (Ok(fast), Ok(slow)) => {
            assert_eq!((fast.handle.as_bytes(), fast.values_count), (&slow.handle[..], slow.values.len()));
            let encoded: Vec<_> = slow.values.iter().map(ValueBuf::as_bytes).collect();
            assert_eq!(values, [&b"kept"[..], &encoded.concat()].concat());
        }
        (Err(fast), Err(slow)) => assert_eq!((fast.to_string(), &values[..]), (slow, &b"kept"[..])),
        (fast, slow) => panic!("the line reads as {fast:?}, the tree as {slow:?}"),
    }
}

/// JSON that parses as a site prints as JSON that parses as the same site, also with the unknown
/// members of the original.
///
/// Input: text, such as a `siteinfo.json`.
pub fn site_json(bytes: &[u8]) {
    let Ok(json) = serde_json::from_slice::<Json>(bytes) else { return };
    let Ok(first) = site_from_json(&json) else { return };
    let mut printed = site_to_json(&first.view());
    let read = site_from_json(&printed).expect("the printed JSON can be read");
    let again = site_from_json(&site_to_json(&read.view())).expect("the printed JSON can be read");
    assert_eq!(again, read);
    let (a, b) = (first.view(), read.view());
    assert_eq!(
        (a.serial, a.protocol, a.flags, a.hash_filter),
        (b.serial, b.protocol, b.flags, b.hash_filter)
    );
    assert_eq!((a.attributes, a.servers.len()), (b.attributes, b.servers.len()));
    for (a, b) in a.servers.iter().zip(b.servers) {
        assert_eq!((a.id, a.address, a.interfaces), (b.id, b.address, b.interfaces));
    }
    keep_unknown(&json, &mut printed);
    assert_eq!(site_from_json(&printed), Ok(read));
    let once = printed.clone();
    keep_unknown(&json, &mut printed);
    assert_eq!(printed, once);
}
