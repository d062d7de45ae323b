//! The streams that a reference server has sent, applied to the store of a mirror: whole, cut, damaged,
//! and in the wrong order.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_admin::mirror::apply::{BatchLimits, StreamApplier};
use handle_admin::mirror::error::MirrorError;
use handle_admin::mirror::scope::{MirrorScope, PrefixFilter};
use handle_admin::mirror::status::SourceState;
use handle_admin::replication::source::ReceiverShare;
use handle_auth::PublicKey;
use handle_client::replication::connection::ReceiveError;
use handle_client::replication::{StreamContent, StreamEvent, StreamLimits, StreamReader, StreamTransport};
use handle_proto::wire::replication_stream::{DumpItem, StreamValues};
use handle_proto::{HashOption, Value, fold};
use handle_store::{Store, StoreConfig};
use handle_tests::test_server::server_key_in;
use handle_tests::transcripts::lines;
use handle_tests::vectors::{VectorSource, document, hex, is_foreign};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// The time of the recorded dump, and its last transaction.
const DUMPED: (u64, u64) = (1_795_167_397_273, 8);
/// The time at the end of the recorded transactions.
const FOLLOWED_UNIX_MS: u64 = 1_795_167_398_504;

/// The recorded stream of this name, with the key of its server; `None` if foreign vectors lack it.
fn recorded(name: &str) -> Option<(Vec<u8>, PublicKey)> {
    let line = lines("transcript").into_iter().find(|line| line["name"] == name);
    assert!(line.is_some() || is_foreign(), "{name} is recorded");
    let line = line?;
    let step = line["steps"].as_array()?.iter().find(|step| step["stream_hex"].is_string())?;
    Some((hex(&step["stream_hex"]), server_key_in(VectorSource::Selected, "root")))
}

fn dump() -> Option<(Vec<u8>, PublicKey)> {
    recorded("live/admin/dump_handles_2.7")
}

fn transactions() -> Option<(Vec<u8>, PublicKey)> {
    recorded("live/admin/retrieve_txn_2.7")
}

fn store() -> Arc<Store> {
    Arc::new(Store::in_memory(&StoreConfig::at(Path::new("unused")), true).unwrap())
}

fn open(store: &Arc<Store>) -> StreamApplier {
    let whole = ReceiverShare { hash_option: HashOption::Handle, servers_count: 1, server_at: 0 };
    let scope = MirrorScope { filter: PrefixFilter::new(&[]), others: Vec::new(), own: whole, theirs: whole };
    let limits = BatchLimits { items: 10, bytes: 1 << 20 };
    let state = Arc::new(SourceState::new("main"));
    StreamApplier::open(Arc::clone(store), "main", Arc::new(scope), limits, state).unwrap()
}

/// Applies a stream as a mirror does.
fn feed(
    applier: &mut StreamApplier,
    (stream, key): (&[u8], &PublicKey),
    content: StreamContent,
) -> Result<(), MirrorError> {
    let limits = StreamLimits::default();
    let mut reader = StreamReader::new(content, StreamTransport::Clear, Some(key.clone()), limits);
    let failed = |error| MirrorError::Receive(ReceiveError::Stream(error));
    applier.begin_stream();
    for piece in stream.chunks(1000) {
        reader.feed(piece);
        while let Some(event) = reader.next_event().map_err(failed)? {
            applier.take(event)?;
        }
    }
    if !reader.is_complete() {
        let early = std::io::ErrorKind::UnexpectedEof;
        return Err(MirrorError::Receive(ReceiveError::Connection(early.into())));
    }
    match content {
        StreamContent::Dump => applier.end_dump_items(),
        StreamContent::Transactions => applier.end_transaction_stream(),
    }
}

/// Encoded values by handle, and the homed prefixes.
type MirrorContent = (BTreeMap<Vec<u8>, Vec<Vec<u8>>>, BTreeSet<Vec<u8>>);

fn encoded(value: &Value<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.encode(&mut bytes);
    bytes
}

fn content(store: &Store) -> MirrorContent {
    let snapshot = store.snapshot().unwrap();
    let records = snapshot.records().unwrap().map(|stored| {
        let stored = stored.unwrap();
        let values = stored.record().unwrap().values.iter().map(|value| encoded(&value)).collect();
        (stored.handle().to_vec(), values)
    });
    (records.collect(), snapshot.homed().unwrap().into_iter().collect())
}

/// What the server has according to `records.json` and `servers.json`.
fn expected() -> MirrorContent {
    let records = document("records.json");
    let name = |json: &Json| json.as_str().map_or_else(|| hex(&json["hex"]), |name| name.as_bytes().to_vec());
    let records = records.as_array().unwrap().iter().map(|record| {
        let values = record["values_hex"].as_array().unwrap().iter().map(hex).collect();
        (fold::folded(&name(&record["handle"])), values)
    });
    let servers = document("servers.json");
    let homed = servers["servers"]["root"]["homed_prefixes"].as_array().unwrap();
    let homed = homed.iter().map(|prefix| {
        let prefix = fold::folded(&name(prefix));
        prefix.strip_prefix(b"0.NA/").unwrap_or(&prefix).to_vec()
    });
    (records.collect(), homed.collect())
}

fn finish(applier: &mut StreamApplier) {
    while applier.finish_dump().unwrap() {}
    assert_eq!(applier.position().dump, None);
}

#[test]
fn vectors_a_recorded_dump_gives_a_mirror_the_records_of_its_primary() {
    let Some((stream, key)) = dump() else { return };
    let store = store();
    let mut applier = open(&store);
    applier.begin_dump().unwrap();
    feed(&mut applier, (&stream, &key), StreamContent::Dump).unwrap();
    finish(&mut applier);
    let (records, homed) = content(&store);
    assert_eq!((applier.position().complete_unix_ms, applier.position().last_id), DUMPED);
    let (expected_records, expected_homed) = expected();
    assert_eq!(homed, expected_homed);
    assert_eq!(records.keys().collect::<Vec<_>>(), expected_records.keys().collect::<Vec<_>>());
    for (handle, values) in &expected_records {
        assert_eq!(&records[handle], values, "{}", String::from_utf8_lossy(handle));
    }
}

/// A mirror at transaction 5 of the recorded server: one record, and two homed prefixes.
fn before_the_transactions() -> (Arc<Store>, StreamApplier) {
    let store = store();
    let mut applier = open(&store);
    applier.begin_dump().unwrap();
    applier.begin_stream();
    let mut room = Vec::new();
    let values = StreamValues::build([Value::new(1, b"URL", b"here")], &mut room);
    for item in [
        DumpItem::Source { unix_ms: 1_795_167_397_000, txn_id: 5 },
        DumpItem::Handle { handle: b"TST/LIVE-1", values },
        DumpItem::Handle { handle: b"TST/LIVE-2", values },
        DumpItem::Homed(b"0.NA/TST"),
        DumpItem::Homed(b"0.NA/LIVE"),
        DumpItem::Done,
    ] {
        applier.take(StreamEvent::Dump(item)).unwrap();
    }
    applier.end_dump_items().unwrap();
    finish(&mut applier);
    (store, applier)
}

#[test]
fn vectors_recorded_transactions_are_applied_after_the_last_one() {
    let Some((stream, key)) = transactions() else { return };
    let (store, mut applier) = before_the_transactions();
    feed(&mut applier, (&stream, &key), StreamContent::Transactions).unwrap();
    let names = |(records, homed): MirrorContent| {
        let names = records.into_keys().chain(homed);
        names.map(|name| String::from_utf8(name).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(names(content(&store)), ["TST/LIVE-2", "TST"]);
    let position = applier.position().clone();
    assert_eq!((position.last_id, position.complete_unix_ms), (8, FOLLOWED_UNIX_MS));
    // The same stream again, and the dump from before it.
    let again = feed(&mut applier, (&stream, &key), StreamContent::Transactions);
    assert!(matches!(again, Err(MirrorError::Order(_))), "{again:?}");
    applier.reject().unwrap();
    assert_eq!(*applier.position(), position);
    let Some((dump, key)) = dump() else { return };
    applier.begin_dump().unwrap();
    let older = feed(&mut applier, (&dump, &key), StreamContent::Dump);
    assert!(matches!(older, Err(MirrorError::Replayed { .. })), "{older:?}");
    applier.reject().unwrap();
    assert_eq!(names(content(&store)), ["TST/LIVE-2", "TST"], "what was here stays");
}

#[test]
fn vectors_recorded_transactions_that_are_cut_or_damaged_lose_nothing() {
    let Some((stream, key)) = transactions() else { return };
    let (whole, mut applier) = before_the_transactions();
    feed(&mut applier, (&stream, &key), StreamContent::Transactions).unwrap();
    for at in (0..stream.len()).step_by(7) {
        let mut damaged = stream.clone();
        damaged[at] ^= 0x10;
        for (what, bytes) in [("cut", &stream[..at]), ("damaged", &damaged)] {
            let (store, mut applier) = before_the_transactions();
            let taken = feed(&mut applier, (bytes, &key), StreamContent::Transactions);
            let kind = taken.as_ref().err().and_then(MirrorError::kind);
            // A damaged length may ask for more bytes than there are.
            assert!(kind.is_some() && (what == "damaged" || kind == Some("connection")), "{at}: {taken:?}");
            applier.reject().unwrap();
            feed(&mut applier, (&stream, &key), StreamContent::Transactions).unwrap();
            assert_eq!(content(&store), content(&whole), "{what} at {at}");
        }
    }
}

#[test]
fn vectors_a_recorded_dump_that_is_damaged_changes_no_record_wrongly() {
    let Some((stream, key)) = dump() else { return };
    let (records, homed) = expected();
    for at in (0..400).chain((400..stream.len()).step_by(997)).chain([stream.len() - 1]) {
        let mut damaged = stream.clone();
        damaged[at] ^= 0x01;
        let store = store();
        let mut applier = open(&store);
        applier.begin_dump().unwrap();
        let taken = feed(&mut applier, (&damaged, &key), StreamContent::Dump);
        assert!(taken.is_err(), "{at}");
        applier.abandon().unwrap();
        assert!(applier.position().needs_dump && applier.position().dump.is_some(), "{at}");
        let (found, found_homed) = content(&store);
        assert!(found.iter().all(|(handle, values)| records[handle] == *values), "{at}");
        assert!(found_homed.is_subset(&homed), "{at}");
    }
}
