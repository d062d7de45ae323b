//! The streams that reference servers have sent, applied to the store of a mirror: whole, cut,
//! damaged, and in the wrong order.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_admin::mirror::apply::{BatchLimits, StreamApplier};
use handle_admin::mirror::error::MirrorError;
use handle_admin::mirror::scope::{MirrorScope, PrefixFilter};
use handle_admin::mirror::status::MirrorSourceState;
use handle_admin::replication::source::ReceiverShare;
use handle_auth::PublicKey;
use handle_client::replication::connection::ReceiveError;
use handle_client::replication::{StreamContent, StreamEvent, StreamLimits, StreamReader, StreamTransport};
use handle_proto::wire::put;
use handle_proto::wire::replication_stream::{
    DUMP_FORMAT, DumpItem, StreamProtection, StreamValues, TransactionAction, TransactionFormat,
    TransactionItem, TransactionStatus, TransactionsHeader,
};
use handle_proto::{HashOption, OpCode, Value, fold};
use handle_store::{Store, StoreConfig};
use handle_tests::test_server::server_key_in;
use handle_tests::transcripts::{first_op_code, lines};
use handle_tests::vectors::{
    LineChecks, LineOutcome, NO_SERVER, VectorSource, catch_panic, document, hex, require,
};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// A stream in the vectors.
struct RecordedStream {
    content: StreamContent,
    bytes: Vec<u8>,
    /// The key of the server that sent it.
    key: PublicKey,
    /// What the reference read in it.
    items: Vec<Json>,
}

impl RecordedStream {
    /// The stream of a line; the outcome of the line if the vectors lack what it needs.
    fn read(line: &Json, step: &Json) -> Result<Self, LineOutcome> {
        let server = line["server"].as_str().unwrap_or_default();
        if !document("servers.json")["servers"][server].is_object() {
            return Err(NO_SERVER);
        }
        let content = match first_op_code(line) {
            OpCode::DUMP_HANDLES => StreamContent::Dump,
            _ => StreamContent::Transactions,
        };
        Ok(Self {
            content,
            bytes: hex(&step["stream_hex"]),
            key: server_key_in(VectorSource::Selected, server),
            items: step["stream_records"]
                .as_array()
                .ok_or(LineOutcome::Skipped("the line lists no items"))?
                .clone(),
        })
    }

    /// The items of a kind.
    fn items<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Json> {
        self.items.iter().filter(move |item| item["record"] == kind)
    }
}

/// Checks every recorded stream of this content.
fn check_streams(content: StreamContent, check: impl Fn(&RecordedStream) -> LineOutcome) {
    let (mut checks, what) = (LineChecks::default(), format!("{content:?}"));
    for line in lines("transcript") {
        let step = line["steps"].as_array().into_iter().flatten().find(|step| step["stream_hex"].is_string());
        let Some(step) = step else { continue };
        let name = line["name"].as_str().unwrap_or("?").to_owned();
        match catch_panic(|| RecordedStream::read(&line, step)) {
            Ok(Ok(stream)) if stream.content == content => checks.check(&name, || check(&stream)),
            Ok(Ok(_)) => {}
            Ok(Err(skipped)) => checks.record(&name, skipped),
            Err(why) => checks.fail(&name, &why),
        }
    }
    require(checks.count(), 1, &what);
    checks.finish();
}

fn store() -> Arc<Store> {
    Arc::new(Store::in_memory(&StoreConfig::at(Path::new("unused")), true).unwrap())
}

fn open(store: &Arc<Store>) -> StreamApplier {
    open_with(store, Arc::new(MirrorSourceState::new("main")))
}

fn open_with(store: &Arc<Store>, state: Arc<MirrorSourceState>) -> StreamApplier {
    let whole = ReceiverShare { hash_option: HashOption::Handle, servers_count: 1, server_at: 0 };
    let scope = MirrorScope {
        filter: PrefixFilter::new(&[]),
        others: Vec::new(),
        own_share: whole,
        primary_share: whole,
    };
    let limits = BatchLimits { items: 10, bytes: 1 << 20, dump_bytes: 1000 };
    StreamApplier::open(Arc::clone(store), "main", Arc::new(scope), limits, state).unwrap()
}

/// Applies the bytes of `stream`, or these instead of them, as a mirror does.
fn feed(applier: &mut StreamApplier, stream: &RecordedStream, bytes: &[u8]) -> Result<(), MirrorError> {
    let (content, key, limits) = (stream.content, stream.key.clone(), StreamLimits::default());
    let mut reader = StreamReader::new(content, StreamTransport::Clear, Some(key), limits);
    let failed = |error| MirrorError::Receive(ReceiveError::Stream(error));
    applier.begin_stream();
    for piece in bytes.chunks(1000) {
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

/// The text of an item that names a handle, as the key of the record.
fn item_key(item: &Json) -> Vec<u8> {
    fold::folded(item["handle"].as_str().unwrap_or_else(|| panic!("{item} names no handle")).as_bytes())
}

/// The prefix that an item homes.
fn item_prefix(item: &Json) -> Vec<u8> {
    let name = item_key(item);
    name.strip_prefix(b"0.NA/").unwrap_or(&name).to_vec()
}

/// The values of each record of `records.json`.
fn published_records() -> BTreeMap<Vec<u8>, Vec<Vec<u8>>> {
    let name = |json: &Json| json.as_str().map_or_else(|| hex(&json["hex"]), |name| name.as_bytes().to_vec());
    let records = document("records.json");
    let records = records.as_array().into_iter().flatten().map(|record| {
        let values = record["values_hex"].as_array().into_iter().flatten().map(hex).collect();
        (fold::folded(&name(&record["handle"])), values)
    });
    records.collect()
}

fn finish(applier: &mut StreamApplier) {
    while applier.finish_dump().unwrap() {}
    assert_eq!(applier.position().dump, None);
}

/// A mirror with the whole of a recorded dump.
fn mirror_of(dump: &RecordedStream) -> (Arc<Store>, StreamApplier) {
    let store = store();
    let mut applier = open(&store);
    applier.begin_dump().unwrap();
    feed(&mut applier, dump, &dump.bytes).unwrap();
    finish(&mut applier);
    (store, applier)
}

#[test]
fn vectors_a_recorded_dump_gives_a_mirror_the_records_of_its_primary() {
    let published = published_records();
    check_streams(StreamContent::Dump, |dump| {
        let (store, applier) = mirror_of(dump);
        let source = dump.items("this_server_replication_info").next().unwrap();
        let position = applier.position();
        assert_eq!(Some(position.complete_unix_ms), source["date"].as_u64());
        assert_eq!(Some(position.last_id), source["txn_id"].as_u64());

        let (records, homed) = content(&store);
        assert_eq!(homed, dump.items("homed_prefix").map(item_prefix).collect());
        let counts = |item: &Json| (item_key(item), item["number_of_values"].as_u64());
        let listed: BTreeMap<_, _> = dump.items("handle").map(counts).collect();
        let found = records.iter().map(|(name, values)| (name.clone(), Some(values.len() as u64)));
        assert_eq!(found.collect::<BTreeMap<_, _>>(), listed);
        let mut compared = 0;
        for (handle, values) in &records {
            let Some(published) = published.get(handle) else { continue };
            assert_eq!(values, published, "{}", String::from_utf8_lossy(handle));
            compared += 1;
        }
        require(compared, records.len(), "records of the dump");
        if compared == 0 {
            LineOutcome::Skipped("records.json has no record of the dump")
        } else {
            LineOutcome::AsStated
        }
    });
}

/// A record that no recorded stream changes.
const OTHER_RECORD: &[u8] = b"MIRRORED.BEFORE/RECORD";

/// A mirror at the transaction before those of the stream: each handle that a transaction names has
/// a record unless the stream creates it, and each prefix is homed that it takes away.
fn before_the_transactions(stream: &RecordedStream) -> (Arc<Store>, StreamApplier) {
    let first = stream.items("transaction").next().unwrap();
    let (unix_ms, txn_id) = (first["date"].as_u64().unwrap(), first["txn_id"].as_u64().unwrap());
    let mut names = BTreeSet::from([OTHER_RECORD.to_vec()]);
    let mut homed = BTreeSet::from([b"0.NA/MIRRORED.BEFORE".to_vec()]);
    let mut seen = BTreeSet::new();
    for item in stream.items("transaction") {
        let name = item["handle"].as_str().unwrap().as_bytes().to_vec();
        if seen.insert(item_key(item)) {
            match item["action"].as_str().unwrap() {
                "unhome" => _ = homed.insert(name),
                "home" | "create" => {}
                _ => _ = names.insert(name),
            }
        }
    }

    let store = store();
    let mut applier = open(&store);
    applier.begin_dump().unwrap();
    applier.begin_stream();
    let mut buffer = Vec::new();
    let values = StreamValues::build([Value::new(1, b"URL", b"here")], &mut buffer);
    let source = DumpItem::Source { unix_ms: unix_ms - 1, txn_id: txn_id - 1 };
    let handles = names.iter().map(|handle| DumpItem::Handle { handle, values });
    let homed = homed.iter().map(|prefix| DumpItem::Homed(prefix));
    for item in [source].into_iter().chain(handles).chain(homed).chain([DumpItem::Done]) {
        applier.take(StreamEvent::Dump(item)).unwrap();
    }
    applier.end_dump_items().unwrap();
    finish(&mut applier);
    (store, applier)
}

/// The number of values of each record and the homed prefixes after the transactions of a stream.
fn after_the_transactions(stream: &RecordedStream) -> (BTreeMap<Vec<u8>, u64>, BTreeSet<Vec<u8>>) {
    let (before, _) = before_the_transactions(stream);
    let (records, mut homed) = content(&before);
    let mut records: BTreeMap<_, _> =
        records.into_iter().map(|(name, values)| (name, values.len() as u64)).collect();
    for item in stream.items("transaction") {
        match item["action"].as_str().unwrap() {
            "home" => _ = homed.insert(item_prefix(item)),
            "unhome" => _ = homed.remove(&item_prefix(item)),
            "delete" => _ = records.remove(&item_key(item)),
            _ => _ = records.insert(item_key(item), item["number_of_values"].as_u64().unwrap()),
        }
    }
    (records, homed)
}

/// Checks every recorded stream that has transactions.
fn check_transactions(check: impl Fn(&RecordedStream)) {
    check_streams(StreamContent::Transactions, |stream| {
        if stream.items("transaction").next().is_none() {
            return LineOutcome::Skipped("the stream has no transactions");
        }
        check(stream);
        LineOutcome::AsStated
    });
}

#[test]
fn vectors_recorded_transactions_are_applied_after_the_last_one() {
    check_transactions(|stream| {
        let (store, mut applier) = before_the_transactions(stream);
        feed(&mut applier, stream, &stream.bytes).unwrap();
        let (records, homed) = content(&store);
        let counts = records.into_iter().map(|(name, values)| (name, values.len() as u64));
        assert_eq!((counts.collect(), homed), after_the_transactions(stream));
        let position = applier.position().clone();
        let (last, end) =
            (stream.items("transaction").last().unwrap(), stream.items("finish").last().unwrap());
        assert_eq!(Some(position.last_id), last["txn_id"].as_u64());
        assert_eq!(Some(position.complete_unix_ms), end["date"].as_u64());
        // The same stream again.
        let again = feed(&mut applier, stream, &stream.bytes);
        assert!(matches!(again, Err(MirrorError::Order(_))), "{again:?}");
        applier.reject().unwrap();
        assert_eq!(*applier.position(), position);
    });
}

#[test]
fn vectors_a_recorded_dump_from_before_the_position_is_refused() {
    check_streams(StreamContent::Dump, |dump| {
        let (store, mut applier) = mirror_of(dump);
        let before = content(&store);
        applier.begin_stream();
        // Its numbers are those before, and so is its time.
        let (id, unix_ms) = (applier.position().last_id + 1, applier.position().complete_unix_ms + 1);
        let status = TransactionStatus::Sending;
        let header = TransactionsHeader { format: TransactionFormat::OneSource, status };
        applier.take(StreamEvent::Header(header)).unwrap();
        let action = TransactionAction::Placeholder;
        for item in [
            TransactionItem::Transaction { id, handle: b"10.1/x", action, unix_ms },
            TransactionItem::End { unix_ms: Some(unix_ms) },
        ] {
            applier.take(StreamEvent::Transaction(item)).unwrap();
        }
        applier.end_transaction_stream().unwrap();
        applier.begin_dump().unwrap();
        let older = feed(&mut applier, dump, &dump.bytes);
        assert!(matches!(older, Err(MirrorError::Replayed { .. })), "{older:?}");
        applier.reject().unwrap();
        assert!(content(&store) == before, "the records stay");
        LineOutcome::AsStated
    });
}

#[test]
fn vectors_recorded_transactions_that_are_cut_or_damaged_lose_nothing() {
    check_transactions(|stream| {
        let (whole, mut applier) = before_the_transactions(stream);
        feed(&mut applier, stream, &stream.bytes).unwrap();
        for at in (0..stream.bytes.len()).step_by(7.max(stream.bytes.len() / CUTS_MAX)) {
            let mut damaged = stream.bytes.clone();
            damaged[at] ^= 0x10;
            for (what, bytes) in [("cut", &stream.bytes[..at]), ("damaged", &damaged)] {
                let (store, mut applier) = before_the_transactions(stream);
                let taken = feed(&mut applier, stream, bytes);
                let kind = taken.as_ref().err().and_then(MirrorError::kind);
                // A damaged length may ask for more bytes than there are.
                let is_expected = kind.is_some() && (what == "damaged" || kind == Some("connection"));
                assert!(is_expected, "{at}: {taken:?}");
                applier.reject().unwrap();
                feed(&mut applier, stream, &stream.bytes).unwrap();
                assert_eq!(content(&store), content(&whole), "{what} at {at}");
            }
        }
    });
}

/// Maximum number of places at which a stream is cut and damaged.
const CUTS_MAX: usize = 500;

#[test]
fn vectors_a_recorded_dump_that_is_damaged_changes_no_record_wrongly() {
    check_streams(StreamContent::Dump, |dump| {
        let (whole, _) = mirror_of(dump);
        let (records, homed) = content(&whole);
        let len = dump.bytes.len();
        let places = (0..len.min(400)).chain((400..len).step_by(997.max(len / CUTS_MAX))).chain([len - 1]);
        for at in places {
            let mut damaged = dump.bytes.clone();
            damaged[at] ^= 0x01;
            let store = store();
            let mut applier = open(&store);
            applier.begin_dump().unwrap();
            let taken = feed(&mut applier, dump, &damaged);
            assert!(taken.is_err(), "{at}");
            applier.abandon().unwrap();
            assert!(applier.position().needs_dump && applier.position().dump.is_some(), "{at}");
            let (found, found_homed) = content(&store);
            assert!(found.iter().all(|(handle, values)| records.get(handle) == Some(values)), "{at}");
            assert!(found_homed.is_subset(&homed), "{at}");
        }
        LineOutcome::AsStated
    });
}

/// A dump of these records and homed prefixes, on a connection that is secured.
fn dump_of(records: &[(Vec<u8>, Vec<Vec<u8>>)], homed: &[&str]) -> Vec<u8> {
    let mut bytes = StreamProtection::Transport.to_bytes().to_vec();
    put::u32(&mut bytes, DUMP_FORMAT);
    DumpItem::Source { unix_ms: 1000, txn_id: 7 }.encode(&mut bytes);
    for (handle, values) in records {
        bytes.push(1);
        put::string(&mut bytes, handle);
        put::u32(&mut bytes, u32::try_from(values.len()).unwrap());
        values.iter().for_each(|value| put::string(&mut bytes, value));
    }
    homed.iter().for_each(|name| DumpItem::Homed(name.as_bytes()).encode(&mut bytes));
    DumpItem::Done.encode(&mut bytes);
    bytes
}

#[test]
fn vectors_every_odd_record_is_mirrored_or_left_out_counted_and_named() {
    let value = |index, data: &[u8]| encoded(&Value::new(index, b"URL", data));
    let published: Vec<_> = published_records().into_iter().collect();
    require(published.len(), 50, "records of the vectors");
    let long = vec![b'x'; 3 << 20];
    let cut = |mut value: Vec<u8>| {
        value.pop();
        value
    };
    // What a primary may have, and the store of a mirror may not.
    let odd: Vec<(Vec<u8>, Vec<Vec<u8>>)> = vec![
        (b"10.9/MANY".to_vec(), (1..=2049).map(|index| value(index, b"x")).collect()),
        (b"10.9/TWICE".to_vec(), vec![value(1, b"x"), value(1, b"y")]),
        (b"10.9/ZERO".to_vec(), vec![value(0, b"x")]),
        (b"10.9/NEGATIVE".to_vec(), vec![value(-1, b"x")]),
        (b"10.9/CUT".to_vec(), vec![value(1, b"x"), cut(value(2, b"y"))]),
        (b"10.9/EMPTY.VALUE".to_vec(), vec![Vec::new()]),
        (b"10.9/LONG".to_vec(), vec![value(1, &long), value(2, &long)]),
        (vec![b'X'; 5000], vec![value(1, b"x")]),
    ];
    let homed = ["0.NA/10.9", "0.NA/0.NA/10.9", "0.NA/0.NA", "0.na/10.\u{e9}"];
    // One of each kind between those of the vectors.
    let mut records = published.clone();
    for (nth, record) in odd.iter().enumerate() {
        records.insert((nth * 7 + 1).min(records.len()), record.clone());
    }
    let bytes = dump_of(&records, &homed);
    let (store, state) = (store(), Arc::new(MirrorSourceState::new("main")));
    let mut applier = open_with(&store, Arc::clone(&state));
    applier.begin_dump().unwrap();
    applier.begin_stream();
    let limits = StreamLimits::default();
    let mut reader = StreamReader::new(StreamContent::Dump, StreamTransport::Verified, None, limits);
    let mut named = BTreeSet::new();
    for piece in bytes.chunks(64 << 10) {
        reader.feed(piece);
        while let Some(event) = reader.next_event().unwrap() {
            applier.take(event).unwrap();
            named.extend(state.status().last_left_out);
        }
    }
    assert!(reader.is_complete());
    applier.end_dump_items().unwrap();
    finish(&mut applier);

    let (found, found_homed) = content(&store);
    assert!(found == published.iter().cloned().collect(), "every other record is there, and nothing else");
    let prefix = |name: &&str| fold::folded(&name.as_bytes()[5..]);
    assert_eq!(found_homed, homed.iter().map(prefix).collect());
    assert_eq!(state.status().counts.left_out, odd.len() as u64);
    assert_eq!(named.len(), odd.len(), "each is named: {named:?}");
    for (handle, why) in [
        ("10.9/MANY", "values"),
        ("10.9/TWICE", "two values have the index 1"),
        ("10.9/CUT", "its value number 2 does not decode"),
        ("10.9/LONG", "longer than an item"),
    ] {
        let is_named = |line: &String| line.starts_with(&format!("{handle}: ")) && line.contains(why);
        assert!(named.iter().any(is_named), "{handle}: {named:?}");
    }
    // What follows the dump is applied as well.
    let mut more = vec![];
    more.extend(StreamProtection::Transport.to_bytes());
    let status = TransactionStatus::Sending;
    TransactionsHeader { format: TransactionFormat::OneSource, status }.encode(&mut more);
    let many: Vec<Value<'_>> = (1..=2049).map(|index| Value::new(index, b"URL", b"x")).collect();
    let (mut buffer, mut other_buffer) = (Vec::new(), Vec::new());
    let actions = [
        (8, &b"10.9/MANY"[..], TransactionAction::Create(StreamValues::build(many, &mut buffer))),
        (9, b"10.9/GOOD", {
            let values = [Value::new(1, b"URL", b"x")];
            TransactionAction::Create(StreamValues::build(values, &mut other_buffer))
        }),
    ];
    for (id, handle, action) in actions {
        TransactionItem::Transaction { id, handle, action, unix_ms: 1001 }.encode(&mut more);
    }
    TransactionItem::End { unix_ms: Some(1002) }.encode(&mut more);
    applier.begin_stream();
    let content_kind = StreamContent::Transactions;
    let mut reader = StreamReader::new(content_kind, StreamTransport::Verified, None, limits);
    reader.feed(&more);
    while let Some(event) = reader.next_event().unwrap() {
        applier.take(event).unwrap();
    }
    applier.end_transaction_stream().unwrap();
    assert_eq!(applier.position().last_id, 9);
    assert!(
        content(&store).0.contains_key(&b"10.9/GOOD"[..])
            && !content(&store).0.contains_key(&b"10.9/MANY"[..])
    );
}
