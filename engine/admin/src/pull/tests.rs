use super::error::PullError;
use super::position::PullPosition;
use super::status::{PullState, PullStatus, RejectReason};
use super::task::PullRules;
use super::worker::PullWorker;
use super::{accept_deletions, position::RefusedDeletions};
use crate::config::Config;
use crate::operation::OperationBounds;
use handle_proto::{Value, Values};
use handle_source::listing::{ListedSource, PageEnd, PageItem, SourcePage, UnfitItem};
use handle_source::{PullConfig, PulledSource, SourceError};
use handle_store::{RecordBuf, Store, StoreConfig, StoreRecords as _};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// What a source has and how it answers.
#[derive(Default)]
struct ScriptedRecords {
    records: BTreeMap<Vec<u8>, RecordBuf>,
    /// Changed handles in their order, if changes are reported; a cursor is a position in it.
    log: Option<Vec<Vec<u8>>>,
    /// Changes before this cursor are not known any more.
    log_begin: usize,
    /// Records in a page.
    page_len: usize,
    /// Items behind the records of the last page.
    more: Vec<PageItem>,
    /// Whether the last page breaks off.
    breaks: bool,
    /// Called when a listing begins.
    on_list: Option<Box<dyn FnMut() + Send>>,
}

#[derive(Clone, Default)]
struct ScriptedSource(Arc<Mutex<ScriptedRecords>>);

impl fmt::Debug for ScriptedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a source for tests")
    }
}

struct ScriptedPage(VecDeque<PageItem>);

impl SourcePage for ScriptedPage {
    fn next_item(&mut self) -> Result<PageItem, SourceError> {
        self.0.pop_front().ok_or_else(|| SourceError::Unreachable("broke off".to_owned()))
    }
}

fn end(cursor: Option<usize>, has_more: bool) -> PageItem {
    PageItem::End(PageEnd { cursor: cursor.map(|cursor| cursor.to_string()), has_more })
}

impl ListedSource for ScriptedSource {
    fn list<'s>(&'s mut self, after: Option<&str>) -> Result<Box<dyn SourcePage + 's>, SourceError> {
        let on_list = self.with(|script| script.on_list.take());
        on_list.into_iter().for_each(|mut call| call());
        self.with(|script| {
            let begin: usize = after.map_or(0, |after| after.parse().unwrap());
            let next = begin + script.page_len;
            let page = script.records.iter().skip(begin).take(script.page_len);
            let mut items: VecDeque<_> =
                page.map(|(handle, record)| PageItem::Record(handle.clone(), record.clone())).collect();
            if next < script.records.len() {
                items.push_back(end(Some(next), true));
            } else {
                items.extend(script.more.iter().cloned());
                items.extend((!script.breaks).then(|| end(None, false)));
            }
            Ok(Box::new(ScriptedPage(items)) as _)
        })
    }

    fn changes<'s>(&'s mut self, since: Option<&str>) -> Result<Box<dyn SourcePage + 's>, SourceError> {
        self.with(|script| {
            let Some(log) = &script.log else {
                return Ok(Box::new(ScriptedPage([PageItem::NoChanges].into())) as _);
            };
            let begin: usize = since.map_or(log.len(), |since| since.parse().unwrap());
            if begin < script.log_begin {
                return Ok(Box::new(ScriptedPage([PageItem::Expired].into())) as _);
            }
            let next = log.len().min(begin + script.page_len);
            let item = |handle: &Vec<u8>| match script.records.get(handle) {
                Some(record) => PageItem::Record(handle.clone(), record.clone()),
                None => PageItem::Absent(handle.clone()),
            };
            let mut items: VecDeque<_> = log[begin..next].iter().map(item).collect();
            items.push_back(end(Some(next), next < log.len()));
            Ok(Box::new(ScriptedPage(items)) as _)
        })
    }
}

impl ScriptedSource {
    fn with<T>(&self, work: impl FnOnce(&mut ScriptedRecords) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, handle: &str, data: &str) {
        self.with(|script| {
            script.records.insert(handle.as_bytes().to_vec(), record(data));
            script.log.iter_mut().for_each(|log| log.push(handle.as_bytes().to_vec()));
        });
    }

    fn delete(&self, handle: &str) {
        self.with(|script| {
            script.records.remove(handle.as_bytes());
            script.log.iter_mut().for_each(|log| log.push(handle.as_bytes().to_vec()));
        });
    }
}

fn record(data: &str) -> RecordBuf {
    let mut buffer = Vec::new();
    RecordBuf::unlogged(Values::build([Value::new(1, b"URL", data.as_bytes())], &mut buffer))
}

/// A source that is copied into a store in memory.
struct PullTest {
    script: ScriptedSource,
    store: Arc<Store>,
    state: Arc<PullState>,
    worker: PullWorker,
}

impl PullTest {
    /// With `count` records below 10.1.
    fn new(count: usize, change: impl FnOnce(&mut PullConfig)) -> Self {
        let store = Arc::new(Store::in_memory(&StoreConfig::default(), true).unwrap());
        let script = ScriptedSource::default();
        script.with(|script| script.page_len = 4);
        (0..count).for_each(|at| script.put(&format!("10.1/item{at:03}"), "first"));
        let mut config = PullConfig { commit_records: 3, ..PullConfig::default() };
        change(&mut config);
        Self::over(script, store, config)
    }

    fn over(script: ScriptedSource, store: Arc<Store>, config: PullConfig) -> Self {
        let source = PulledSource {
            name: "told".to_owned(),
            config,
            source: Box::new(script.clone()),
            starts: vec![b"10.1/".to_vec()],
            scope: "told 10.1".to_owned(),
            has_others: false,
        };
        let state = Arc::new(PullState::new("told"));
        let worker = PullWorker::new(source, Arc::clone(&store), Arc::clone(&state));
        Self { script, store, state, worker }
    }

    fn turn(&mut self) -> Result<(), PullError> {
        self.turn_within(Config::default().bounds())
    }

    fn turn_within(&mut self, bounds: OperationBounds) -> Result<(), PullError> {
        let rules = PullRules { has: &|_| true, bounds, stops: &|| false };
        self.worker.turn(&rules).map(drop)
    }

    /// Compares, also if it is not due.
    fn compare(&mut self) -> Result<(), PullError> {
        self.state.request();
        self.turn()
    }

    /// The data of the records below 10.1 in the store.
    fn stored(&self) -> BTreeMap<String, String> {
        let snapshot = self.store.snapshot().unwrap();
        let rows = snapshot.records_under(b"10.1/", None).unwrap().map(Result::unwrap);
        rows.map(|row| {
            let values = row.record().unwrap().values;
            let data = values.iter().map(|value| String::from_utf8_lossy(value.data).into_owned()).collect();
            (String::from_utf8_lossy(row.handle()).into_owned(), data)
        })
        .collect()
    }

    fn is_equal(&self) -> bool {
        let script = self.script.with(|script| {
            let data = |record: &RecordBuf| record.view().values.iter().next().unwrap().data.to_vec();
            let rows = script.records.iter().map(|(handle, record)| {
                (String::from_utf8_lossy(handle).to_uppercase(), String::from_utf8(data(record)).unwrap())
            });
            rows.collect::<BTreeMap<_, _>>()
        });
        script == self.stored()
    }

    fn status(&self) -> PullStatus {
        self.state.status()
    }
}

#[test]
fn the_store_becomes_equal_and_only_differences_are_written() {
    for has_log in [false, true] {
        let mut test = PullTest::new(25, |_| ());
        test.script.with(|script| script.log = has_log.then(Vec::new));
        let administrator = b"0.NA/10.1".to_vec();
        test.store.change(move |transaction| transaction.put(&administrator, Values::EMPTY)).unwrap();
        test.turn().unwrap();
        assert!(test.is_equal() && test.stored().len() == 25);
        let counts = test.status().counts;
        assert_eq!((counts.compares, counts.created, counts.replaced, counts.deleted), (1, 25, 0, 0));
        let last_id = test.store.last_id();
        test.compare().unwrap();
        assert_eq!(test.store.last_id(), last_id, "nothing differs, so nothing is written");
        test.script.put("10.1/item003", "second");
        test.script.put("10.1/new", "first");
        test.script.delete("10.1/item007");
        if has_log { test.turn() } else { test.compare() }.unwrap();
        assert!(test.is_equal(), "{:?}", test.stored());
        let counts = test.status().counts;
        assert_eq!((counts.created, counts.replaced, counts.deleted), (26, 1, 1));
        assert_eq!((counts.compares, counts.polls > 0), (if has_log { 2 } else { 3 }, has_log));
        let snapshot = test.store.snapshot().unwrap();
        assert!(snapshot.record(b"0.NA/10.1").unwrap().is_some(), "prefix records are not the source's");
    }
}

#[test]
fn more_changes_than_a_page_has_are_followed_to_the_end() {
    let mut test = PullTest::new(0, |_| ());
    test.script.with(|script| script.log = Some(Vec::new()));
    test.turn().unwrap();
    for at in 0..23 {
        test.script.put(&format!("10.1/{}", at % 7), &format!("state {at}"));
    }
    test.script.delete("10.1/3");
    test.turn().unwrap();
    assert!(test.is_equal() && test.stored().len() == 6, "{:?}", test.stored());
    assert_eq!(test.status().cursor.as_deref(), Some("24"));
    let position = PullPosition::of(&test.store, "told").unwrap().unwrap();
    assert_eq!(position.cursor.as_deref(), Some("24"), "it is in the store");
}

#[test]
fn a_cursor_that_is_too_old_leads_to_a_comparison() {
    let mut test = PullTest::new(5, |_| ());
    test.script.with(|script| script.log = Some(Vec::new()));
    test.turn().unwrap();
    test.script.put("10.1/item001", "second");
    test.script.put("10.1/item002", "second");
    test.script.with(|script| script.log_begin = 2);
    test.turn().unwrap();
    assert!(test.is_equal());
    assert_eq!((test.status().counts.compares, test.status().cursor.as_deref()), (2, Some("2")));
    // A source that never knows its changes is compared after a pause.
    test.script.with(|script| script.log_begin = usize::MAX);
    test.script.put("10.1/item001", "third");
    test.turn().unwrap();
    test.turn().unwrap();
    assert!(test.status().counts.compares == 2 && test.status().cursor.is_none());
    test.compare().unwrap();
    assert!(test.is_equal() && test.status().counts.compares == 3, "unless an operator asks for it");
}

#[test]
fn a_listing_that_breaks_off_deletes_nothing() {
    let mut test = PullTest::new(10, |config| config.delete_percent = 100);
    test.turn().unwrap();
    test.script.delete("10.1/item000");
    test.script.put("10.1/item009", "second");
    test.script.with(|script| script.breaks = true);
    assert!(matches!(test.compare(), Err(PullError::Source(SourceError::Unreachable(_)))));
    assert_eq!(test.stored().len(), 10);
    test.script.with(|script| script.breaks = false);
    test.compare().unwrap();
    assert!(test.is_equal());
}

#[test]
fn more_deletions_than_allowed_wait_for_an_operator() {
    let mut test = PullTest::new(10, |config| config.delete_percent = 20);
    test.turn().unwrap();
    test.script.delete("10.1/item000");
    test.script.delete("10.1/item001");
    test.compare().unwrap();
    assert!(test.is_equal(), "2 of 10 are 20 %");
    assert_eq!(accept_deletions(&test.store, "told").unwrap(), None, "nothing was refused");
    // Records that a comparison creates do not make room for deletions.
    test.script.delete("10.1/item002");
    test.script.delete("10.1/item003");
    (0..20).for_each(|at| test.script.put(&format!("10.1/new{at}"), "first"));
    for _ in 0..2 {
        test.compare().unwrap();
        let Some(RefusedDeletions { deletions, records, .. }) = test.status().refused else {
            panic!("{:?}", test.status())
        };
        assert_eq!((deletions, records, test.stored().len()), (2, 8, 28), "2 of 8 are more than 20 %");
    }
    // More than what was accepted is refused again.
    assert_eq!(accept_deletions(&test.store, "told").unwrap(), Some(2));
    test.script.delete("10.1/item004");
    test.turn().unwrap();
    assert_eq!(test.status().refused.map(|refused| refused.deletions), Some(3));
    assert_eq!(accept_deletions(&test.store, "told").unwrap(), Some(3));
    test.turn().unwrap();
    assert!(test.is_equal() && test.status().refused.is_none());
    let position = PullPosition::of(&test.store, "told").unwrap().unwrap();
    assert_eq!((position.accepted, position.begun_id), (None, None), "it is accepted once");
    test.script.with(|script| script.records.clear());
    test.compare().unwrap();
    assert_eq!(test.status().refused.map(|refused| refused.deletions), Some(25), "an empty listing");
}

#[test]
fn what_an_unfinished_comparison_has_created_may_be_deleted() {
    let mut test = PullTest::new(10, |config| config.delete_percent = 10);
    test.script.with(|script| script.breaks = true);
    assert!(test.turn().is_err());
    assert_eq!(test.stored().len(), 9, "three commits");
    (0..5).for_each(|at| test.script.delete(&format!("10.1/item00{at}")));
    test.script.with(|script| script.breaks = false);
    test.compare().unwrap();
    assert!(test.is_equal() && test.stored().len() == 5, "{:?}", test.status());
    // From now on, they count.
    test.script.delete("10.1/item005");
    test.compare().unwrap();
    assert_eq!(test.status().refused.map(|refused| (refused.deletions, refused.records)), Some((1, 5)));
}

#[test]
fn records_that_cannot_be_stored_do_not_stop_others() {
    let mut test = PullTest::new(4, |config| config.delete_percent = 100);
    test.turn().unwrap();
    let unfit = |handle: &str| {
        PageItem::Unfit(UnfitItem { handle: Some(handle.as_bytes().to_vec()), why: "twice".to_owned() })
    };
    test.script.with(|script| {
        script.records.remove(&b"10.1/item000"[..]);
        script.more = vec![unfit("10.1/item000"), unfit("10.1/other")];
    });
    test.script.put("10.1/long", &"x".repeat(200));
    test.script.put("10.1/a\u{7}", "a control character");
    test.script.put("10.2/foreign", "first");
    test.script.put("10.1/new", "first");
    test.state.request();
    test.turn_within(OperationBounds { record_bytes: 150, ..Config::default().bounds() }).unwrap();
    let names: Vec<String> = test.stored().into_keys().collect();
    let expected = ["10.1/ITEM000", "10.1/ITEM001", "10.1/ITEM002", "10.1/ITEM003", "10.1/NEW"];
    assert_eq!(names, expected, "what cannot be read stays as it was");
    let rejected = test.status().counts.rejected;
    assert_eq!((rejected[&RejectReason::Foreign], rejected[&RejectReason::Unfit]), (1, 4));
    // A line without a handle could be any record.
    test.script.with(|script| {
        script.records.clear();
        script.more = vec![PageItem::Unfit(UnfitItem { handle: None, why: "too long".to_owned() })];
    });
    assert!(matches!(test.compare(), Err(PullError::UnnamedRecords(1))));
    assert_eq!(test.stored().len(), 5);
}

#[test]
fn a_listing_is_bounded() {
    for (count, is_within) in [(6, true), (7, false)] {
        let mut test = PullTest::new(count, |config| config.records = 6);
        let turned = test.turn();
        assert_eq!(turned.is_ok(), is_within, "{count}: {turned:?}");
        assert!(is_within || matches!(turned, Err(PullError::TooManyRecords(6))));
    }
    let mut test = PullTest::new(3, |config| config.listing_s = 0);
    assert!(matches!(test.turn(), Err(PullError::SlowListing)));
    let mut test = PullTest::new(0, |_| ());
    test.script.with(|script| script.more = vec![end(None, true)]);
    assert!(matches!(test.turn(), Err(PullError::NoProgress)));
}

#[test]
fn a_process_that_was_overtaken_writes_nothing() {
    let mut first = PullTest::new(6, |_| ());
    let mut second = PullTest::over(first.script.clone(), Arc::clone(&first.store), PullConfig::default());
    // The other process copies while this one waits for its listing.
    first.script.with(|script| {
        script.on_list = Some(Box::new(move || second.turn().unwrap()));
    });
    assert!(matches!(first.turn(), Err(PullError::Superseded) | Ok(())));
    assert!(first.is_equal());
    first.script.put("10.1/item000", "second");
    let mut second = PullTest::over(first.script.clone(), Arc::clone(&first.store), PullConfig::default());
    let script = first.script.clone();
    first.script.with(|records| {
        records.on_list = Some(Box::new(move || {
            script.put("10.1/item000", "third");
            second.compare().unwrap();
            // What the first process has received is older.
            script.put("10.1/item000", "second");
        }));
    });
    assert!(matches!(first.compare(), Err(PullError::Superseded)));
    assert_eq!(first.stored()["10.1/ITEM000"], "third");
    first.compare().unwrap();
    assert!(first.is_equal());
}

#[test]
fn another_cursor_is_compared_at_once() {
    let mut test = PullTest::new(3, |_| ());
    test.script.with(|script| script.log = Some(Vec::new()));
    test.turn().unwrap();
    test.script.with(|script| {
        script.records.insert(b"10.1/quiet".to_vec(), record("not in the log"));
    });
    test.turn().unwrap();
    assert!(!test.is_equal(), "a comparison is not due");
    let mut other = PullTest::over(test.script.clone(), Arc::clone(&test.store), PullConfig::default());
    other.turn().unwrap();
    assert!(!other.is_equal(), "the same source goes on where it was");
    let source = PulledSource {
        name: "told".to_owned(),
        config: PullConfig::default(),
        source: Box::new(test.script.clone()),
        starts: vec![b"10.1/".to_vec()],
        scope: "another".to_owned(),
        has_others: false,
    };
    other.worker = PullWorker::new(source, Arc::clone(&test.store), Arc::clone(&other.state));
    other.turn().unwrap();
    assert!(other.is_equal());
}
