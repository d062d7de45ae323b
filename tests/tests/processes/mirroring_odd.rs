//! A primary that has every record of the vectors, and odd ones of each kind that its store takes:
//! by a dump and by transactions, its mirror has the same, but for those that no mirror can have.

use handle_proto::value::Ttl;
use handle_proto::wire::list::{Reference, References};
use handle_proto::{Permissions, Value, Values, fold};
use handle_store::{Store, StoreConfig};
use handle_tests::daemon::ask;
use handle_tests::mirror_pair::{MirroredService, StoreContent};
use handle_tests::process::until;
use handle_tests::service_directory::InitialisedService;
use handle_tests::vectors::{document, hex, require};
use std::collections::BTreeMap;

type OddRecords = BTreeMap<Vec<u8>, Vec<Vec<u8>>>;

fn encoded(value: &Value<'_>) -> Vec<u8> {
    let mut encoded = Vec::new();
    value.encode(&mut encoded);
    encoded
}

fn url(index: i32) -> Vec<u8> {
    encoded(&Value::new(index, b"URL", b"https://a.example/"))
}

/// The records of `records.json`.
fn published_records() -> OddRecords {
    let records = document("records.json");
    let records = records.as_array().into_iter().flatten().map(|record| {
        let name = &record["handle"];
        let name = name.as_str().map_or_else(|| hex(&name["hex"]), |name| name.as_bytes().to_vec());
        let values = record["values_hex"].as_array().into_iter().flatten().map(hex).collect();
        (fold::folded(&name), values)
    });
    records.collect()
}

/// Records that are odd and that everybody can have.
fn odd_records() -> OddRecords {
    let mut storage = Vec::new();
    let references = [&b"10.9/\xff"[..], b"", b"no slash"].map(|handle| Reference { handle, index: -1 });
    let references = References::build(references, &mut storage);
    let plain = Value::new(1, b"URL", b"https://a.example/");
    let absolute = Ttl { kind: Ttl::ABSOLUTE, seconds: i32::MAX };
    [
        (&b"10.9/TYPE"[..], vec![encoded(&Value { kind: b"\xff\0<", ..plain })]),
        (b"10.9/NO.TYPE", vec![encoded(&Value { kind: b"", ..plain })]),
        (b"10.9/NO.DATA", vec![encoded(&Value { data: b"", ..plain })]),
        (b"10.9/REFERENCES", vec![encoded(&Value { references, ..plain })]),
        (b"10.9/ADMIN", vec![encoded(&Value::new(100, b"HS_ADMIN", b"\xff\xff\0\0\0\x04none\0\0\0\x01"))]),
        (b"10.9/CUT.ADMIN", vec![encoded(&Value::new(100, b"HS_ADMIN", b"\xff"))]),
        (b"10.9/PERMISSIONS", vec![encoded(&Value { permissions: Permissions(0), ..plain })]),
        (b"10.9/TTL", vec![encoded(&Value { ttl: absolute, timestamp: u32::MAX, ..plain })]),
        (b"10.9/INDEXES", vec![url(i32::MAX), url(7), url(1)]),
        (b"10.9/EMPTY", vec![]),
        (b"10.9/2048", (1..=2048).map(url).collect()),
        (b"10.9/\xff\0\n\"", vec![url(1)]),
        (b"10.9/", vec![url(1)]),
    ]
    .into_iter()
    .map(|(handle, values)| (handle.to_vec(), values))
    .collect()
}

/// Records that a store can have, and a mirror cannot.
fn unfit_records() -> OddRecords {
    [
        (&b"10.9/MANY"[..], (1..=2049).map(url).collect::<Vec<_>>()),
        (b"10.9/TWICE", vec![url(1), url(1)]),
        (b"10.9/ZERO", vec![url(0)]),
        (b"10.9/NEGATIVE", vec![url(-1)]),
    ]
    .into_iter()
    .map(|(handle, values)| (handle.to_vec(), values))
    .collect()
}

/// Puts every second record into the store of a service whose `handle-admin` does not run, and
/// homes a prefix and those that are derived from it.
fn fill(service: &InitialisedService, half: usize) {
    let store = Store::open(&StoreConfig::at(&service.path("site/store.redb"))).expect("a store");
    let known = StoreContent::of_store(&store).records;
    let records = published_records().into_iter().chain(odd_records()).chain(unfit_records());
    for (handle, values) in records.enumerate().filter(|(nth, _)| nth % 2 == half).map(|(_, it)| it) {
        // The service has an administrator and a prefix of its own.
        if known.contains_key(&handle) {
            continue;
        }
        let all = values.concat();
        let put = store.change(move |transaction| {
            let values = Values::from_encoded(values.len(), &all).expect("values");
            transaction.put(&handle, values)
        });
        put.expect("the record is stored");
    }
    for prefix in [format!("10.9{half}"), format!("0.NA/10.9{half}"), format!("10.\u{e9}{half}")] {
        assert!(store.change(move |transaction| transaction.home(prefix.as_bytes())).expect("it is homed"));
    }
}

#[test]
fn a_primary_with_odd_records_is_mirrored_but_for_what_no_mirror_can_have() {
    require(published_records().len(), 50, "records of the vectors");
    let mut service = MirroredService::make("", "interval_ms = 50");
    // By the dump.
    fill(&service.primary, 0);
    service.start();
    until("the mirror follows", || service.progress()["activity"] == "following");
    // By transactions.
    service.primary.admin = None;
    fill(&service.primary, 1);
    service.primary.start_admin();
    let control = service.primary.path("site/run/handle-admin.sock");
    let last = ask(&control, "status")["store"]["content"]["last_transaction"].clone();
    until("the mirror has all transactions", || service.progress()["last_transaction"] == last);
    until("homed prefixes are equal", || service.progress()["homed_differences"] == 0);
    let progress = service.progress();
    let unfit = unfit_records();
    assert_eq!(progress["counts"]["left_out"], unfit.len(), "{progress}");
    let named = progress["last_left_out"].as_str().expect("the last one is named").to_owned();
    let is_named = |handle: &Vec<u8>| named.starts_with(&format!("{}: ", String::from_utf8_lossy(handle)));
    assert!(unfit.keys().any(is_named), "{named}");
    assert_eq!(progress["counts"]["dumps"], 1, "{progress}");
    let errors = progress["counts"]["errors"].as_object().expect("errors by kind");
    assert!(errors.keys().all(|kind| kind == "connection"), "{progress}");

    (service.primary.admin, service.mirror.admin) = (None, None);
    let (mut expected, found) = (StoreContent::of(&service.primary), StoreContent::of(&service.mirror));
    expected.records.retain(|handle, _| !unfit.contains_key(handle));
    found.assert_is(&expected, "the mirror");
    let odd = odd_records().into_iter().chain(published_records());
    assert!(odd.map(|(handle, _)| handle).all(|handle| found.records.contains_key(&handle)));
    assert!(found.homed.contains(&b"0.NA/10.91"[..]) && found.homed.contains(&b"10.90"[..]));
}
