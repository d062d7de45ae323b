//! Streams applied to a store in memory: in order, interrupted anywhere, and false ones.

use super::apply::{BatchLimits, StreamApplier};
use super::error::MirrorError;
use super::position::{MirrorDumpStep, MirrorPosition};
use super::scope::{MirrorScope, PrefixFilter};
use super::status::MirrorSourceState;
use crate::replication::source::ReceiverShare;
use handle_client::replication::StreamEvent;
use handle_proto::limit::VALUES_LEN_MAX;
use handle_proto::wire::replication_stream::{
    DumpItem, StreamValues, TransactionAction, TransactionFormat, TransactionItem, TransactionStatus,
    TransactionsHeader,
};
use handle_proto::{HashOption, Value, Values};
use handle_store::{Store, StoreConfig, StoreRecords as _, key};
use std::path::Path;
use std::sync::Arc;

/// Two transactions share a commit, and so do two records of a dump.
const LIMITS: BatchLimits = BatchLimits { items: 2, bytes: 1 << 20, dump_bytes: 60 };

fn store() -> Arc<Store> {
    Arc::new(Store::in_memory(&StoreConfig::at(Path::new("unused")), true).unwrap())
}

fn scope(prefixes: &[&str]) -> Arc<MirrorScope> {
    let prefixes: Vec<String> = prefixes.iter().map(|&it| it.to_owned()).collect();
    let whole = ReceiverShare { hash_option: HashOption::Handle, servers_count: 1, server_at: 0 };
    let filter = PrefixFilter::new(&prefixes);
    Arc::new(MirrorScope { filter, others: Vec::new(), own_share: whole, primary_share: whole })
}

fn open_with(store: &Arc<Store>, prefixes: &[&str]) -> StreamApplier {
    let state = Arc::new(MirrorSourceState::new("main"));
    StreamApplier::open(Arc::clone(store), "main", scope(prefixes), LIMITS, state).unwrap()
}

fn open(store: &Arc<Store>) -> StreamApplier {
    open_with(store, &[])
}

/// An item of a dump, or of a stream of transactions.
#[derive(Clone, Copy)]
enum Item<'a> {
    Source(u64, u64),
    Handle(&'a str, &'a str),
    Homed(&'a str),
    Create(u64, &'a str, &'a str),
    Delete(u64, &'a str),
    Home(u64, &'a str),
    Unhome(u64, &'a str),
    DeleteAll(u64),
    Header(TransactionStatus),
    End(u64),
    Done,
}

fn take(applier: &mut StreamApplier, item: Item<'_>) -> Result<(), MirrorError> {
    let mut buffer = Vec::new();
    let transaction = |id, handle: &str, action| {
        // Events borrow, so the handle is leaked; tests are short.
        let handle: &'static [u8] = handle.to_owned().leak().as_bytes();
        StreamEvent::Transaction(TransactionItem::Transaction {
            id,
            handle,
            action,
            unix_ms: id.saturating_add(1000),
        })
    };
    let data = match item {
        Item::Handle(_, data) | Item::Create(_, _, data) => data,
        _ => "",
    };
    let values = StreamValues::build([Value::new(1, b"URL", data.as_bytes())], &mut buffer);
    let event = match item {
        Item::Source(unix_ms, txn_id) => StreamEvent::Dump(DumpItem::Source { unix_ms, txn_id }),
        Item::Handle(handle, _) => {
            return applier.take(StreamEvent::Dump(DumpItem::Handle { handle: handle.as_bytes(), values }));
        }
        Item::Homed(name) => {
            return applier.take(StreamEvent::Dump(DumpItem::Homed(name.as_bytes())));
        }
        Item::Create(id, handle, _) => {
            let action = TransactionAction::Create(values);
            let (handle, unix_ms) = (handle.as_bytes(), id.saturating_add(1000));
            let item = TransactionItem::Transaction { id, handle, action, unix_ms };
            return applier.take(StreamEvent::Transaction(item));
        }
        Item::Delete(id, handle) => transaction(id, handle, TransactionAction::Delete),
        Item::Home(id, handle) => transaction(id, handle, TransactionAction::Home),
        Item::Unhome(id, handle) => transaction(id, handle, TransactionAction::Unhome),
        Item::DeleteAll(id) => transaction(id, "", TransactionAction::DeleteAll),
        Item::Header(status) => {
            StreamEvent::Header(TransactionsHeader { format: TransactionFormat::OneSource, status })
        }
        Item::End(unix_ms) => StreamEvent::Transaction(TransactionItem::End { unix_ms: Some(unix_ms) }),
        Item::Done => StreamEvent::Dump(DumpItem::Done),
    };
    applier.take(event)
}

fn take_all(applier: &mut StreamApplier, items: &[Item<'_>]) -> Result<(), MirrorError> {
    applier.begin_stream();
    items.iter().try_for_each(|&item| take(applier, item))
}

fn transactions(applier: &mut StreamApplier, items: &[Item<'_>]) -> Result<(), MirrorError> {
    let all = [&[Item::Header(TransactionStatus::Sending)], items].concat();
    let taken = take_all(applier, &all);
    if taken.is_ok() { applier.end_transaction_stream() } else { taken.and(applier.reject()) }
}

/// Applies a whole dump.
fn dump(applier: &mut StreamApplier, items: &[Item<'_>]) {
    if applier.position().dump.is_none() {
        applier.begin_dump().unwrap();
    }
    take_all(applier, items).unwrap();
    applier.end_dump_items().unwrap();
    while applier.finish_dump().unwrap() {}
    assert_eq!(applier.position().dump, None);
}

/// Names and data of all records, and the homed prefixes.
fn content(store: &Store) -> Vec<String> {
    let snapshot = store.snapshot().unwrap();
    let records = snapshot.records().unwrap().map(|stored| {
        let stored = stored.unwrap();
        let value = stored.record().unwrap().value(1).unwrap();
        format!("{}={}", String::from_utf8_lossy(stored.handle()), String::from_utf8_lossy(value.data))
    });
    let homed = snapshot.homed().unwrap().into_iter().map(|prefix| String::from_utf8(prefix).unwrap());
    records.chain(homed).collect()
}

/// The items of the dump of [`dumped`] after its source.
const DUMPED_ITEMS: [Item<'_>; 6] = [
    Item::Handle("10.1/A", "a"),
    Item::Handle("10.1/B", "b"),
    Item::Handle("10.1/C", "c"),
    Item::Homed("0.NA/10.1"),
    Item::Homed("0.NA/10.2"),
    Item::Done,
];

/// A store with a complete dump: `10.1/A` to `10.1/C` and two homed prefixes.
fn dumped() -> (Arc<Store>, StreamApplier) {
    let store = store();
    let mut applier = open(&store);
    assert!(applier.position().needs_dump, "a new mirror begins with a dump");
    dump(&mut applier, &[&[Item::Source(5000, 10)], &DUMPED_ITEMS[..]].concat());
    (store, applier)
}

#[test]
fn transactions_follow_a_dump() {
    let (store, mut applier) = dumped();
    assert_eq!(content(&store), ["10.1/A=a", "10.1/B=b", "10.1/C=c", "10.1", "10.2"]);
    assert_eq!((applier.position().last_id, applier.position().complete_unix_ms), (10, 5000));
    let items = [
        Item::Create(11, "10.1/d", "d"),
        Item::Create(13, "10.1/A", "new"),
        Item::Delete(14, "10.1/B"),
        Item::Home(15, "0.NA/10.3"),
        Item::Unhome(16, "0.NA/10.2"),
        Item::End(6000),
    ];
    transactions(&mut applier, &items).unwrap();
    let expected = ["10.1/A=new", "10.1/C=c", "10.1/D=d", "10.1", "10.3"];
    assert_eq!(content(&store), expected);
    let again = open(&store);
    assert_eq!(again.position(), applier.position(), "the position is in the store");
    assert_eq!((again.position().last_id, again.position().complete_unix_ms), (16, 6000));
    assert!(!again.position().needs_dump);
}

#[test]
fn prefixes_that_home_derived_ones_lose_the_start_of_their_record_once() {
    let (store, mut applier) = dumped();
    let home = [
        Item::Home(11, "0.NA/0.na/10.1"),
        Item::Home(12, "0.NA/10.1.5"),
        Item::Home(13, "0.NA/0.NA/10.1.5"),
        Item::End(6000),
    ];
    transactions(&mut applier, &home).unwrap();
    let homed = |store: &Store| content(store).split_off(3);
    assert_eq!(homed(&store), ["0.NA/10.1", "0.NA/10.1.5", "10.1", "10.1.5", "10.2"]);
    assert!(applier.take_homing() && !applier.take_homing(), "so that both sides are compared");
    transactions(&mut applier, &[Item::Unhome(14, "0.NA/0.NA/10.1"), Item::End(7000)]).unwrap();
    assert_eq!(homed(&store), ["0.NA/10.1.5", "10.1", "10.1.5", "10.2"], "the prefix itself stays");
    // A dump that does not name it any more releases it, and nothing else.
    dump(&mut applier, &[&[Item::Source(8000, 15)], &DUMPED_ITEMS[..]].concat());
    assert_eq!(homed(&store), ["10.1", "10.2"]);
    let with_derived =
        [&[Item::Source(9000, 16)], &DUMPED_ITEMS[..5], &[Item::Homed("0.NA/0.NA/10.1"), Item::Done]];
    dump(&mut applier, &with_derived.concat());
    assert_eq!(homed(&store), ["0.NA/10.1", "10.1", "10.2"]);
}

fn can_be_published(store: &Store) -> bool {
    !store.snapshot().unwrap().is_dumping().unwrap()
}

#[test]
fn nothing_is_published_in_the_middle_of_a_stream() {
    let (store, mut applier) = dumped();
    assert!(can_be_published(&store));
    let changes = [
        Item::Create(11, "10.1/A", "new"),
        Item::Create(12, "10.1/B", "new"),
        Item::Create(13, "10.1/C", "new"),
    ];
    let begun = [&[Item::Header(TransactionStatus::Sending)], &changes[..]].concat();
    take_all(&mut applier, &begun).unwrap();
    applier.end_commit().unwrap();
    assert!(content(&store).contains(&"10.1/A=new".to_owned()), "a full batch is committed");
    assert!(!content(&store).contains(&"10.1/C=new".to_owned()), "and nothing else");
    assert!(!can_be_published(&store));
    // The connection ends here, and later the process.
    applier.end_cut_stream().unwrap();
    assert!(!can_be_published(&store));
    let mut applier = open(&store);
    assert_eq!(applier.position().last_id, 13);
    transactions(&mut applier, &[Item::End(7000)]).unwrap();
    assert!(can_be_published(&store), "nothing else has changed");
    // A stream that is out of order does not end.
    let disordered = [Item::Create(15, "10.1/A", "a"), Item::Create(14, "10.1/B", "b")];
    transactions(&mut applier, &disordered).unwrap_err();
    assert!(can_be_published(&store), "nothing of it was committed");
}

#[test]
fn a_dump_removes_what_it_does_not_name_at_its_end_and_not_before() {
    let (store, mut applier) = dumped();
    applier.begin_dump().unwrap();
    assert!(store.snapshot().unwrap().is_dumping().unwrap());
    let items = [
        Item::Source(7000, 20),
        Item::Handle("10.1/A", "a"),
        Item::Handle("10.1/C", "changed"),
        Item::Handle("10.1/E", "e"),
        Item::Homed("0.NA/10.1"),
    ];
    take_all(&mut applier, &items).unwrap();
    applier.commit().unwrap();
    assert!(content(&store).contains(&"10.1/B=b".to_owned()), "nothing is removed yet");
    // The process ends here; another one goes on.
    let mut applier = open(&store);
    let progress = applier.position().dump.clone().unwrap();
    assert_eq!(
        (progress.step, progress.after),
        (MirrorDumpStep::Receiving, Some((3, b"0.NA/10.1".to_vec())))
    );
    take_all(&mut applier, &[Item::Done]).unwrap();
    applier.end_dump_items().unwrap();
    loop {
        // Also after each step of the end.
        applier = open(&store);
        if !applier.finish_dump().unwrap() {
            break;
        }
    }
    assert_eq!(content(&store), ["10.1/A=a", "10.1/C=changed", "10.1/E=e", "10.1"]);
    assert!(can_be_published(&store));
    assert_eq!(applier.position().last_id, 20);
    let mut damage = Vec::new();
    store.check(|finding| damage.push(finding)).unwrap();
    assert!(damage.iter().all(|finding| !finding.is_damage()), "{damage:?}");
}

/// Records that are in a store before its first dump.
fn put_own(store: &Store, names: &'static [&'static str]) {
    let put = store.change(|transaction| {
        let mut buffer = Vec::new();
        let values = Values::build([Value::new(1, b"URL", b"own")], &mut buffer);
        names.iter().try_for_each(|name| transaction.put(&key(name.as_bytes(), true), values))
    });
    put.unwrap();
}

#[test]
fn a_first_dump_replaces_or_removes_all_that_was_here() {
    let older_left = |applier: &StreamApplier| applier.position().dump.as_ref().unwrap().older_left;
    let items = [
        Item::Source(5000, 10),
        Item::Handle("10.1/A", "a"),
        Item::Handle("10.1/A", "again"),
        Item::Handle("10.1/B", "b"),
        Item::Handle("10.1/C", "own"),
        Item::Done,
    ];
    let replaced: &'static [&'static str] = &["10.1/A", "10.1/B", "10.1/C"];
    let left: &'static [&'static str] = &["10.1/A", "10.1/C", "10.1/Z", "10.2/Y"];
    for (own, left, removed) in [(replaced, 0, 0), (left, 2, 2)] {
        let store = store();
        put_own(&store, own);
        let state = Arc::new(MirrorSourceState::new("main"));
        let open = || StreamApplier::open(Arc::clone(&store), "main", scope(&[]), LIMITS, Arc::clone(&state));
        let mut applier = open().unwrap();
        applier.begin_dump().unwrap();
        assert_eq!(older_left(&applier), Some(own.len() as u64));
        take_all(&mut applier, &items[..3]).unwrap();
        applier.end_cut_stream().unwrap();
        assert_eq!(older_left(&applier), Some(own.len() as u64 - 1), "a record is replaced once");
        // The process ends here; another one goes on.
        applier = open().unwrap();
        take_all(&mut applier, &items[3..]).unwrap();
        applier.end_dump_items().unwrap();
        assert_eq!(older_left(&applier), Some(left));
        while applier.finish_dump().unwrap() {}
        assert_eq!(content(&store), ["10.1/A=again", "10.1/B=b", "10.1/C=own"]);
        assert_eq!(state.status().counts.removed, removed);
        assert!(can_be_published(&store));
    }
}

#[test]
fn changes_are_gathered_while_the_batch_before_is_committed() {
    let (store, mut applier) = dumped();
    let (release, held) = std::sync::mpsc::channel::<()>();
    // The writer is busy with another change.
    let busy = store.begin_change(move |_| {
        let _ = held.recv();
        Ok(())
    });
    let items = [
        Item::Header(TransactionStatus::Sending),
        Item::Create(11, "10.1/D", "d"),
        Item::Create(12, "10.1/E", "e"),
        Item::Create(13, "10.1/F", "f"),
    ];
    take_all(&mut applier, &items).unwrap();
    assert_eq!(content(&store), ["10.1/A=a", "10.1/B=b", "10.1/C=c", "10.1", "10.2"]);
    assert_eq!(applier.position().last_id, 13, "taken, but not committed");
    drop(release);
    // What is dropped is what was not given to the writer.
    applier.abandon().unwrap();
    busy.unwrap().wait().unwrap();
    assert_eq!(applier.position().last_id, 12);
    assert_eq!(open(&store).position(), applier.position());
    assert!(content(&store).contains(&"10.1/E=e".to_owned()));
    assert!(!content(&store).contains(&"10.1/F=f".to_owned()));
}

#[test]
fn a_dump_of_equal_records_changes_nothing() {
    let (store, mut applier) = dumped();
    let before = store.last_id();
    dump(&mut applier, &[&[Item::Source(8000, 11)], &DUMPED_ITEMS[..]].concat());
    assert_eq!(store.last_id(), before, "so nothing is published");
}

#[test]
fn repeated_reordered_and_replayed_streams_are_refused() {
    let (store, mut applier) = dumped();
    transactions(&mut applier, &[Item::Create(12, "10.1/D", "d"), Item::End(6000)]).unwrap();
    let (before, position) = (content(&store), applier.position().clone());
    let order = |taken| assert!(matches!(taken, Err(MirrorError::Order(_))), "{taken:?}");
    // Repeated, reordered, or with a number that no primary has.
    order(transactions(&mut applier, &[Item::Create(12, "10.1/X", "x"), Item::End(6001)]));
    order(transactions(&mut applier, &[Item::Delete(3, "10.1/A"), Item::End(6001)]));
    order(transactions(&mut applier, &[Item::Create(15, "10.1/X", "x"), Item::Create(14, "10.1/Y", "y")]));
    order(transactions(&mut applier, &[Item::Create(u64::MAX, "10.1/X", "x")]));
    let items = [Item::Header(TransactionStatus::NeedsDump), Item::Create(13, "10.1/X", "x")];
    order(take_all(&mut applier, &items));
    applier.abandon().unwrap();
    assert_eq!((content(&store), applier.position()), (before.clone(), &position));
    // An old dump, and one with its items in another order.
    applier.begin_dump().unwrap();
    let replayed = take_all(&mut applier, &[Item::Source(5000, 10), Item::Handle("10.1/A", "a")]);
    assert!(matches!(replayed, Err(MirrorError::Replayed { .. })), "{replayed:?}");
    applier.abandon().unwrap();
    order(take_all(&mut applier, &[Item::Homed("0.NA/10.1"), Item::Handle("10.1/A", "a")]));
    applier.abandon().unwrap();
    order(take_all(&mut applier, &[Item::Done]).and_then(|()| applier.end_dump_items()));
    assert_eq!(content(&store), before, "what was here stays");
}

/// A day, and the time of this machine in tests of clocks, in milliseconds.
const DAY: u64 = 86_400_000;
const HERE: u64 = 1_800_000_000_000;

#[test]
fn a_clock_of_the_primary_that_is_moved_by_a_day_stops_nothing() {
    let (store, state) = (store(), Arc::new(MirrorSourceState::new("main")));
    let open = || {
        let opened = StreamApplier::open(Arc::clone(&store), "main", scope(&[]), LIMITS, Arc::clone(&state));
        let mut applier = opened.unwrap();
        applier.use_clock(|| HERE);
        applier
    };
    let mut applier = open();
    // Ahead: neither the dump nor the transactions leave the time in the position.
    dump(&mut applier, &[&[Item::Source(HERE + DAY, 10)], &DUMPED_ITEMS[..]].concat());
    assert_eq!(applier.position().complete_unix_ms, HERE);
    let ahead = || state.status().clock_ahead_seconds.unwrap();
    assert!((ahead() - 86_400.0).abs() < 1.0, "{}", ahead());
    transactions(&mut applier, &[Item::Create(11, "10.1/D", "d"), Item::End(HERE + DAY)]).unwrap();
    assert_eq!((applier.position().complete_unix_ms, applier.position().contact_unix_ms), (HERE, HERE));
    // The primary gets back what it said: its log may begin at a time that is ahead, too.
    assert!(applier.last_query_unix_ms() == HERE + DAY && open().last_query_unix_ms() <= HERE);
    // Set right, to a time before that of the last streams, and then a day behind.
    transactions(&mut applier, &[Item::Create(12, "10.1/E", "e"), Item::End(HERE - 5)]).unwrap();
    assert_eq!((applier.last_query_unix_ms(), applier.position().last_id), (HERE, 12), "it is asked again");
    assert!(applier.position().is_partial && !applier.position().needs_dump);
    transactions(&mut applier, &[Item::Delete(13, "10.1/A"), Item::End(HERE - DAY)]).unwrap();
    assert!((ahead() + 86_400.0).abs() < 1.0, "{}", ahead());
    assert_eq!(applier.position().complete_unix_ms, HERE - DAY, "the primary gets back what it said");
    // A dump of now, by a clock that is behind what was heard.
    transactions(&mut applier, &[Item::Create(14, "10.1/F", "f"), Item::End(HERE)]).unwrap();
    dump(&mut applier, &[&[Item::Source(HERE - DAY, 14)], &DUMPED_ITEMS[..]].concat());
    assert_eq!(content(&store), ["10.1/A=a", "10.1/B=b", "10.1/C=c", "10.1", "10.2"]);
    // An older copy of the store, whose clock is right: its numbers are lower.
    dump(&mut applier, &[&[Item::Source(HERE, 3)], &DUMPED_ITEMS[..2], &[Item::Done]].concat());
    assert_eq!((content(&store).len(), applier.position().last_id), (2, 3));
    // The clock here was a day ahead, and is right again.
    applier.use_clock(|| HERE + DAY);
    transactions(&mut applier, &[Item::End(HERE + DAY)]).unwrap();
    applier.use_clock(|| HERE);
    transactions(&mut applier, &[Item::Create(4, "10.1/G", "g"), Item::End(HERE + 1)]).unwrap();
    assert_eq!(applier.position().complete_unix_ms, HERE + 1);
    assert_eq!(open().position().last_id, 4);
}

#[test]
fn times_of_changes_that_are_far_ahead_are_not_stored() {
    let (store, mut applier) = dumped();
    applier.use_clock(|| HERE);
    // Transactions have the time of their number and a second.
    let changes = [Item::Create(u64::MAX >> 2, "10.1/A", "x"), Item::Delete(u64::MAX >> 1, "10.1/B")];
    for change in changes {
        transactions(&mut applier, &[change, Item::End(HERE)]).unwrap();
    }
    let dated = |name: &[u8]| store.snapshot().unwrap().record(name).unwrap().unwrap().view().unix_ms;
    assert_eq!(dated(b"10.1/A"), HERE);
    transactions(&mut applier, &[Item::End(HERE)]).unwrap();
    put_own(&store, &["10.1/A", "10.1/B"]);
    assert!(dated(b"10.1/A") < HERE + 2 * DAY);
}

#[test]
fn the_lag_counts_from_the_last_contact_whatever_the_clock_of_the_primary_says() {
    let state = MirrorSourceState::new("main");
    let now = handle_daemon::clock::now_unix_ms();
    let position = |complete_unix_ms, contact_unix_ms| MirrorPosition {
        complete_unix_ms,
        contact_unix_ms,
        ..MirrorPosition::new("all".to_owned())
    };
    let lag = |state: &MirrorSourceState| state.status().lag_seconds.unwrap();
    // After a start, the time of the last contact here, whatever the primary has said.
    state.set_position(&position(now + DAY, now - 5000));
    assert!((5.0..6.0).contains(&lag(&state)), "{}", lag(&state));
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(lag(&state) > 5.04);
    // A position without this time, which an older version has written.
    let state = MirrorSourceState::new("main");
    state.set_position(&position(now + DAY, 0));
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!((0.04..1.0).contains(&lag(&state)), "it grows: {}", lag(&state));
    // The clock here was set back by a day meanwhile, in the process and before its start.
    let asked = std::time::Instant::now();
    state.note_success(now + DAY, asked);
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!((0.04..1.0).contains(&lag(&state)), "{}", lag(&state));
    let state = MirrorSourceState::new("main");
    state.set_position(&position(now, now + DAY));
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!((0.04..1.0).contains(&lag(&state)), "{}", lag(&state));
}

#[test]
fn after_a_stream_out_of_order_all_of_it_is_requested_again() {
    let (store, mut applier) = dumped();
    let [first, second, third] =
        [(11, "10.1/D"), (12, "10.1/E"), (13, "10.1/F")].map(|(id, handle)| Item::Create(id, handle, "x"));
    // Two changes share a commit, so that two are here when the late one comes.
    let taken = transactions(&mut applier, &[first, third, second, Item::End(6000)]);
    assert!(matches!(taken, Err(MirrorError::Order(_))), "{taken:?}");
    assert!(content(&store).contains(&"10.1/F=x".to_owned()));
    assert_eq!((applier.position().last_id, open(&store).position().last_id), (10, 10));
    transactions(&mut applier, &[first, second, third, Item::End(6000)]).unwrap();
    assert!(content(&store).contains(&"10.1/E=x".to_owned()), "nothing is missing");
    assert_eq!(applier.position().last_id, 13);
}

#[test]
fn streams_without_transactions_are_written_once_a_minute() {
    let (store, mut applier) = dumped();
    let times = |applier: &StreamApplier| {
        (applier.position().complete_unix_ms, open(&store).position().complete_unix_ms)
    };
    transactions(&mut applier, &[Item::End(6000)]).unwrap();
    assert_eq!(times(&applier), (6000, 5000));
    applier.abandon().unwrap();
    assert_eq!(times(&applier), (6000, 5000), "an error does not let it forget");
    transactions(&mut applier, &[Item::End(64_999)]).unwrap();
    assert_eq!(times(&applier), (64_999, 5000));
    transactions(&mut applier, &[Item::End(65_000)]).unwrap();
    assert_eq!(times(&applier), (65_000, 65_000));
    transactions(&mut applier, &[Item::Create(11, "10.1/D", "d"), Item::End(65_001)]).unwrap();
    assert_eq!(times(&applier), (65_001, 65_001));
}

#[test]
fn the_lag_has_what_the_primary_is_known_to_have() {
    let store = store();
    let state = Arc::new(MirrorSourceState::new("main"));
    let mut applier =
        StreamApplier::open(Arc::clone(&store), "main", scope(&[]), LIMITS, Arc::clone(&state)).unwrap();
    let lag = || state.status().lag_transactions;
    applier.begin_dump().unwrap();
    assert_eq!(lag(), 0, "nothing is known yet");
    take_all(&mut applier, &[Item::Source(5000, 20), Item::Handle("10.1/A", "a")]).unwrap();
    applier.commit().unwrap();
    assert_eq!(lag(), 20, "until the dump is complete");
    take(&mut applier, Item::Done).unwrap();
    applier.end_dump_items().unwrap();
    while applier.finish_dump().unwrap() {}
    assert_eq!(lag(), 0);
    take_all(&mut applier, &[Item::Header(TransactionStatus::Sending), Item::Create(25, "10.1/B", "b")])
        .unwrap();
    assert_eq!(lag(), 5, "received, and not committed");
    applier.abandon().unwrap();
    assert_eq!(lag(), 0, "what was dropped is not known to be true");
}

#[test]
fn a_mirror_that_is_asked_to_dump_keeps_its_position() {
    let (_store, mut applier) = dumped();
    let items = [Item::Header(TransactionStatus::NeedsDump), Item::End(5000)];
    take_all(&mut applier, &items).unwrap();
    applier.commit().unwrap();
    assert!(applier.position().needs_dump);
    assert_eq!((applier.position().last_id, applier.position().complete_unix_ms), (10, 5000));
    let (_store, mut applier) = dumped();
    transactions(&mut applier, &[Item::DeleteAll(11), Item::End(6000)]).unwrap();
    assert!(applier.position().needs_dump);
}

#[test]
fn records_that_do_not_fit_are_left_out() {
    let (store, mut applier) = dumped();
    let mut buffer = Vec::new();
    let values = StreamValues::build([Value::new(0, b"URL", b"x"), Value::new(1, b"URL", b"x")], &mut buffer);
    let (data, mut long_buffer) = (vec![b'x'; VALUES_LEN_MAX], Vec::new());
    let long = StreamValues::build([Value::new(1, b"URL", &data)], &mut long_buffer);
    let item_with = |id, handle, values| {
        let action = TransactionAction::Update(values);
        StreamEvent::Transaction(TransactionItem::Transaction { id, handle, action, unix_ms: 1 })
    };
    let item = |id, handle| item_with(id, handle, values);
    take_all(&mut applier, &[Item::Header(TransactionStatus::Sending)]).unwrap();
    applier.take(item(11, b"10.1/A")).unwrap();
    applier.take(item(12, &[b'x'; 5000])).unwrap();
    applier.take(item_with(13, b"10.1/A", long)).unwrap();
    take(&mut applier, Item::End(6000)).unwrap();
    applier.commit().unwrap();
    assert!(content(&store).contains(&"10.1/A=a".to_owned()));
    assert_eq!(applier.position().last_id, 13, "the others follow");
}

#[test]
fn another_filter_asks_for_a_dump_that_removes_the_rest() {
    let (store, applier) = dumped();
    drop(applier);
    let mut applier = open_with(&store, &["10.2"]);
    assert!(applier.position().needs_dump);
    let items = [
        Item::Source(9000, 30),
        Item::Handle("10.1/A", "a"),
        Item::Handle("10.2/A", "a"),
        Item::Homed("0.NA/10.1"),
        Item::Homed("0.NA/10.2"),
        Item::Done,
    ];
    dump(&mut applier, &items);
    assert_eq!(content(&store), ["10.2/A=a", "10.2"]);
    transactions(
        &mut applier,
        &[Item::Create(31, "10.1/B", "b"), Item::Home(32, "0.NA/10.1"), Item::End(9001)],
    )
    .unwrap();
    assert_eq!(content(&store), ["10.2/A=a", "10.2"]);
    assert_eq!(applier.position().last_id, 32);
}

#[test]
fn a_promoted_mirror_takes_nothing_and_its_numbers_go_on() {
    let (store, mut applier) = dumped();
    let directory = tempfile::tempdir().unwrap();
    let site = directory.path().join("siteinfo.json");
    let text = r#"{"version":1,"protocolVersion":"2.11","serialNumber":1,"primarySite":false,"multiPrimary":false,
        "attributes":[],"servers":[{"serverId":1,"address":"192.0.2.1","interfaces":[]}]}"#;
    std::fs::write(&site, text).unwrap();
    let before = store.last_id();
    let promotion = super::promote::promote(&store, &site, false, 7).unwrap();
    assert_eq!(promotion.last_transaction, 10, "that of the primary, which is higher than {before}");
    assert_eq!(store.renumbered(before), 10);
    let start = store.snapshot().unwrap().log_start().unwrap();
    assert_eq!(start.base, 10, "a mirror with all transactions of the lost primary goes on here");
    let put = |name: &'static str| {
        store.change(move |transaction| {
            let mut buffer = Vec::new();
            let values = Values::build([Value::new(1, b"URL", b"own")], &mut buffer);
            transaction.put(&key(name.as_bytes(), true), values)
        })
    };
    put("10.1/OWN").unwrap();
    assert_eq!(store.last_id(), 11);
    let snapshot = store.snapshot().unwrap();
    assert!(snapshot.record(b"10.1/OWN").unwrap().is_some());
    assert_ne!(snapshot.changes_after(before, 10).unwrap(), handle_store::StoreChanges::Everything);
    let taken = transactions(&mut applier, &[Item::Create(11, "10.1/X", "x"), Item::End(9000)]);
    assert!(matches!(taken, Err(MirrorError::Stopped)), "{taken:?}");
    assert!(!open(&store).position().is_followed(), "also after a restart");
    let again = super::promote::promote(&store, &site, true, 8);
    assert!(matches!(again, Err(super::promote::PromotionError::NoMirror)), "once: {again:?}");
}

#[test]
fn a_promotion_that_is_interrupted_after_the_store_is_completed_once() {
    use super::promote::{PromotionError, complete_promotion, promote};
    let (store, _applier) = dumped();
    let directory = tempfile::tempdir().unwrap();
    let site = directory.path().join("siteinfo.json");
    let text = r#"{"version":1,"protocolVersion":"2.11","serialNumber":1,"primarySite":false,"multiPrimary":false,
        "attributes":[],"servers":[{"serverId":1,"address":"192.0.2.1","interfaces":[]}]}"#;
    std::fs::write(&site, text).unwrap();
    assert!(!complete_promotion(&store, &site).unwrap(), "nothing was begun");
    assert_eq!(std::fs::read_to_string(&site).unwrap(), text);
    let position = || store.change(|transaction| MirrorPosition::read(transaction, "main")).unwrap().unwrap();
    // What can fail fails before the store changes.
    assert!(matches!(
        promote(&store, &directory.path().join("absent"), false, 7),
        Err(PromotionError::Site(..))
    ));
    assert!(position().is_followed());
    promote(&store, &site, false, 7).unwrap();
    assert!(!position().is_followed() && !position().site_is_pending);
    let promoted = std::fs::read_to_string(&site).unwrap();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "no other file stays");
    // As it is between both steps: the store has changed, and the site record has not.
    std::fs::write(&site, text).unwrap();
    store
        .change(|transaction| {
            let position = MirrorPosition::read(transaction, "main")?.unwrap();
            MirrorPosition { site_is_pending: true, ..position }.write(transaction, "main")
        })
        .unwrap();
    let last_id = store.last_id();
    assert!(complete_promotion(&store, &site).unwrap());
    assert_eq!(std::fs::read_to_string(&site).unwrap(), promoted);
    assert!(!position().site_is_pending && !complete_promotion(&store, &site).unwrap());
    assert_eq!(store.last_id(), last_id, "the numbers of transactions stay");
}

#[test]
fn a_mirror_is_not_promoted_in_the_middle_of_a_dump() {
    let (store, mut applier) = dumped();
    let directory = tempfile::tempdir().unwrap();
    applier.begin_dump().unwrap();
    let site = directory.path().join("absent");
    let refused = super::promote::promote(&store, &site, false, 7).unwrap_err();
    assert!(matches!(refused, super::promote::PromotionError::Incomplete(_)), "{refused}");
    let position = store.change(|transaction| MirrorPosition::read(transaction, "main")).unwrap().unwrap();
    assert!(position.is_followed());
}

#[test]
fn a_new_mirror_is_neither_published_nor_promoted_before_it_has_all_records() {
    let store = Arc::new(Store::in_memory(&StoreConfig::default(), true).unwrap());
    let mut applier = open(&store);
    assert!(!can_be_published(&store), "also before the first request");
    let directory = tempfile::tempdir().unwrap();
    let site = directory.path().join("absent");
    let refused = super::promote::promote(&store, &site, false, 7).unwrap_err();
    assert!(matches!(refused, super::promote::PromotionError::Incomplete(_)), "{refused}");
    dump(
        &mut applier,
        &[Item::Source(5000, 10), Item::Handle("10.1/A", "x"), Item::Homed("10.1"), Item::Done],
    );
    assert!(can_be_published(&store));
}

#[test]
fn a_process_changes_nothing_after_another_one_follows() {
    let store = Arc::new(Store::in_memory(&StoreConfig::default(), true).unwrap());
    let (mut first, mut second) = (open(&store), open(&store));
    first.take_over(3).unwrap();
    dump(&mut first, &[Item::Source(5000, 10), Item::Handle("10.1/A", "x"), Item::Homed("10.1"), Item::Done]);
    transactions(&mut first, &[Item::Create(11, "10.1/B", "x"), Item::End(6000)]).unwrap();
    // The other one goes on where this one was, in the middle of a stream of this one.
    first.begin_stream();
    take(&mut first, Item::Header(TransactionStatus::Sending)).unwrap();
    take(&mut first, Item::Create(12, "10.1/C", "first")).unwrap();
    second.take_over(4).unwrap();
    assert_eq!((second.position().last_id, second.position().needs_dump), (11, false));
    transactions(&mut second, &[Item::Create(12, "10.1/C", "second"), Item::End(7000)]).unwrap();
    assert!(matches!(first.commit(), Err(MirrorError::Superseded)));
    assert!(matches!(first.begin_dump(), Err(MirrorError::Superseded)));
    assert!(matches!(first.take_over(3), Err(MirrorError::Superseded)), "a lease that is over");
    let record = store.snapshot().unwrap().record(b"10.1/C").unwrap().unwrap();
    let data = record.view().values.iter().next().map(|value| value.data.to_vec());
    assert_eq!(data.as_deref(), Some(&b"second"[..]));
    first.take_over(5).unwrap();
    assert_eq!((first.position().last_id, first.position().epoch), (12, 5));
    transactions(&mut first, &[Item::Create(13, "10.1/D", "x"), Item::End(8000)]).unwrap();
    assert!(matches!(second.commit(), Err(MirrorError::Superseded)));
}
