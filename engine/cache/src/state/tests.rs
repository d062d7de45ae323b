use super::*;
use crate::entry::{HAS_ABSOLUTE, RECORD, TtlLimits};
use crate::table::NO_SLOT;
use handle_proto::Value;
use handle_proto::value::Ttl;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

fn open(change: impl FnOnce(&mut Config)) -> (CacheState, UnboundedReceiver<QuestionTask>) {
    let mut config = Config::default();
    config.upstream.servers = vec!["127.0.0.1".to_owned()];
    config.cache.bytes = CachedRecordTable::BYTES_MIN;
    config.cache.file = Some("cache".into());
    change(&mut config);
    let (tasks, receiver) = unbounded_channel();
    (CacheState::open(&config, tasks).unwrap(), receiver)
}

fn encoded(data: &[u8], ttl_s: i32) -> Vec<u8> {
    let mut values = Vec::new();
    Value { ttl: Ttl::relative(ttl_s), ..Value::new(1, b"URL", data) }.encode(&mut values);
    values
}

fn answer(data: &[u8]) -> OriginAnswer {
    OriginAnswer { kind: RECORD, values: encoded(data, 60).into(), count: 1, is_certified: false }
}

fn store(state: &CacheState, handle: &str) {
    state.store(Handle(handle.as_bytes()), &answer(b"new"));
}

/// The data and TTL of the value that workers show at this time.
fn shown(state: &CacheState, handle: &str, now_unix_s: u32) -> Option<(Vec<u8>, i32)> {
    let (handle, mut buffer) = (Handle(handle.as_bytes()), vec![0; 1 << 17]);
    let lookup =
        StagedCacheLookup { hash: state.hash(handle), slot: NO_SLOT, ..StagedCacheLookup::new(handle, true) };
    match state.find(&lookup, now_unix_s, &CopyBuffer::new(&mut buffer)) {
        CachedLookup::Record(record) => {
            let value = record.public_values().next().unwrap().unwrap();
            Some((value.data.to_vec(), value.ttl.seconds))
        }
        CachedLookup::NoHandle => Some((b"none".to_vec(), 0)),
        CachedLookup::Unknown => None,
    }
}

#[test]
fn a_record_takes_its_bytes_once_however_its_handle_is_spelt() {
    let (state, _tasks) = open(|_| ());
    let handles = ["ABC/x", "abc/x", "0.na/abc", "10.1/x"];
    ["ABC/x", "0.NA/ABC", "10.1/x"].iter().for_each(|handle| store(&state, handle));
    for handle in handles.map(|handle| Handle(handle.as_bytes())) {
        let lookup = StagedCacheLookup {
            hash: state.hash(handle),
            slot: NO_SLOT,
            ..StagedCacheLookup::new(handle, true)
        };
        let found = |buffer_len| {
            let mut buffer = vec![0; buffer_len];
            let found = state.find(&lookup, now_unix_s(), &CopyBuffer::new(&mut buffer));
            matches!(found, CachedLookup::Record(_))
        };
        let record_len = state.copy(handle).unwrap().1.len() + handle.0.len();
        assert!(found(record_len) && !found(record_len - 1), "{handle:?}");
    }
}

fn stamp_of(kind: u8, stored_unix_s: u32) -> EntryStamp {
    EntryStamp { stored_unix_s, ttl_s: 60, values_count: u16::from(kind == RECORD), kind, flags: 0 }
}

fn restore(state: &CacheState, handle: &str, stamp: EntryStamp, ttl_s: i32) -> bool {
    let values = if stamp.kind == RECORD { encoded(b"old", ttl_s) } else { vec![] };
    state.restore(&SavedEntry { key: handle.as_bytes(), stamp, values: &values })
}

#[test]
fn a_saved_entry_replaces_nothing_and_is_kept_by_the_limits_of_today() {
    let now = now_unix_s();
    let (state, _tasks) = open(|config| (config.cache.ttl_s_max, config.cache.negative_s) = (20, 5));
    store(&state, "10.1/x");
    for kind in [RECORD, NO_HANDLE] {
        assert!(!restore(&state, "10.1/x", stamp_of(kind, now), 60));
        assert_eq!(shown(&state, "10.1/x", now).unwrap().0, b"new");
    }
    assert!(restore(&state, "10.1/y", stamp_of(RECORD, now), 60));
    assert_eq!(
        shown(&state, "10.1/y", now + 19),
        Some((b"old".to_vec(), 20)),
        "as long as the cache keeps it"
    );
    assert_eq!(shown(&state, "10.1/y", now + 20), None);
    assert!(restore(&state, "10.1/z", stamp_of(NO_HANDLE, now), 60));
    assert!(shown(&state, "10.1/z", now + 4).is_some() && shown(&state, "10.1/z", now + 5).is_none());
    assert!(!restore(&state, "10.1/v", stamp_of(NO_HANDLE, now - 6), 60), "it has expired");
    assert!(!restore(&state, "10.1/w", stamp_of(RECORD, now + 60), 60), "of a clock that was set back");
}

#[test]
fn what_was_stored_before_the_clock_was_set_back_has_expired() {
    let now = now_unix_s();
    let (state, _tasks) = open(|_| {});
    for (handle, ahead_s) in [("10.1/a", CLOCK_SLACK_S), ("10.1/b", CLOCK_SLACK_S + 1)] {
        let stamp = stamp_of(RECORD, now + ahead_s);
        let hash = state.hash(Handle(handle.as_bytes()));
        state.table.insert(hash, handle.as_bytes(), stamp, &encoded(b"new", 60));
    }
    assert!(shown(&state, "10.1/a", now).is_some() && shown(&state, "10.1/b", now).is_none());
}

#[test]
fn a_notice_from_before_the_clock_was_set_back_counts_for_what_is_older() {
    let now = now_unix_s();
    let (state, _tasks) = open(|config| config.policy.notified = vec!["10.1".to_owned()]);
    store(&state, "10.1/x");
    state.take_notice(None, now + 1000);
    assert_eq!(shown(&state, "10.1/x", now + 1), None);
    let (handle, stamp) = (b"10.1/y", EntryStamp { flags: NOTIFIED, ..stamp_of(RECORD, now + 2) });
    state.table.insert(state.hash(Handle(handle)), handle, stamp, &encoded(b"new", 60));
    assert!(shown(&state, "10.1/y", now + 2).is_some(), "it was asked for after the notice");
    assert_eq!(shown(&state, "10.1/x", now + 2), None);
}

fn changed(names: &[&str]) -> ChangedHandles {
    let mut changed = ChangedHandles::default();
    names.iter().for_each(|name| assert!(changed.add(name.as_bytes())));
    changed
}

#[test]
fn a_notice_expires_the_handles_that_it_names_in_all_spellings() {
    let notified = |config: &mut Config| {
        (config.policy.notified, config.policy.notified_s) = (vec!["10.1".to_owned()], 2);
        config.cache.bytes = 64 << 20;
    };
    let (state, _tasks) = open(notified);
    let now = now_unix_s();
    let all = ["10.1/x", "10.1/X", "10.1/y", "10.2/x"];
    all.iter().for_each(|handle| store(&state, handle));
    let long = format!("10.1/{}", "z".repeat(600));
    store(&state, &long);
    state.take_notice(Some(&changed(&["10.1/none", "10.2/x"])), now);
    state.take_notice(Some(&ChangedHandles::default()), now);
    assert!(all.iter().all(|handle| shown(&state, handle, now).is_some()), "others are as they were");
    state.take_notice(Some(&changed(&["10.1/x", &long.to_uppercase()])), now);
    let shows = |handle: &str| shown(&state, handle, now).is_some();
    assert!(!shows("10.1/x") && !shows("10.1/X") && !shows(&long) && shows("10.1/y"));
    assert!(state.stale(Handle(b"10.1/x")).is_some(), "it is kept for the case that nobody answers");
    // What is stored soon after it may be older, and what is stored later is not.
    for (after_s, is_shown) in [(1, false), (2, false), (3, true)] {
        let stamp = EntryStamp { flags: NOTIFIED, ..stamp_of(RECORD, now + after_s) };
        state.table.insert(state.hash(Handle(b"10.1/x")), b"10.1/x", stamp, &encoded(b"new", 60));
        assert_eq!(shown(&state, "10.1/x", now + after_s).is_some(), is_shown, "{after_s}");
    }
    // The clock is set back after a notice.
    state.take_notice(Some(&changed(&["10.1/y"])), now + 1000);
    assert_eq!(shown(&state, "10.1/y", now + 3), None);
    let stamp = EntryStamp { flags: NOTIFIED, ..stamp_of(RECORD, now + 4) };
    state.table.insert(state.hash(Handle(b"10.1/y")), b"10.1/y", stamp, &encoded(b"new", 60));
    assert!(shown(&state, "10.1/y", now + 4).is_some(), "it was asked for after the notice");
}

#[test]
fn a_purge_or_notice_of_a_prefix_is_one_of_its_aliases_too() {
    let alias = |config: &mut Config| {
        config.policy.alias = vec!["10.9=10.1".to_owned()];
        config.policy.notified = vec!["10.1".to_owned()];
    };
    let (state, _tasks) = open(alias);
    for scope in [PurgeScope::Prefix(b"10.1/"), PurgeScope::Handle(b"10.1/X")] {
        ["10.9/x", "10.8/x"].iter().for_each(|handle| store(&state, handle));
        assert_eq!(state.purge(scope), 1, "{scope:?}");
        assert!(
            shown(&state, "10.9/x", now_unix_s()).is_none()
                && shown(&state, "10.8/x", now_unix_s()).is_some()
        );
    }
    for changed in [None, Some(&changed(&["10.1/X"]))] {
        let now = now_unix_s();
        state.take_notice(None, now - 10);
        store(&state, "10.9/x");
        assert!(shown(&state, "10.9/x", now).is_some());
        state.take_notice(changed, now_unix_s());
        assert_eq!(shown(&state, "10.9/x", now_unix_s()), None);
    }
}

#[test]
fn a_change_shows_at_once_and_soon_in_all_spellings() {
    let (state, _tasks) = open(|_| {});
    ["10.1/x", "10.1/X", "10.1/y"].iter().for_each(|handle| store(&state, handle));
    state.note_changed(Handle(b"10.1/x"));
    let shows = |handle| shown(&state, handle, now_unix_s()).is_some();
    assert!(!shows("10.1/x") && shows("10.1/X") && shows("10.1/y") && state.has_changed());
    state.remove_changed();
    assert!(!shows("10.1/X") && shows("10.1/y") && !state.has_changed());
    assert!(!restore(&state, "10.1/X", stamp_of(RECORD, now_unix_s()), 60));
}

#[test]
fn a_record_that_is_asked_for_often_is_renewed_early() {
    let now = now_unix_s();
    let (state, mut tasks) = open(|_| {});
    store(&state, "10.1/x");
    for uses in 0..=USES_TO_RENEW {
        assert!(tasks.try_recv().is_err(), "after {uses} uses");
        assert!(shown(&state, "10.1/x", now + 55).is_some());
    }
    assert!(matches!(tasks.try_recv(), Ok(QuestionTask::Renew(handle)) if &*handle == b"10.1/x"));
}

#[test]
fn a_record_that_is_too_long_is_not_kept() {
    let longest = |data_len: usize| encoded(&vec![b'x'; data_len], 60).len() + b"10.1/x".len();
    let (state, _tasks) = open(|config| config.cache.record_bytes_max = longest(2000));
    for (data_len, is_kept) in [(2000, true), (2001, false)] {
        state.store(Handle(b"10.1/x"), &answer(&vec![b'x'; data_len]));
        assert_eq!(shown(&state, "10.1/x", now_unix_s()).is_some(), is_kept, "{data_len}");
    }
    let limits = state.live().ttl_limits();
    assert_eq!(limits, TtlLimits { min_s: 0, max_s: 172_800, negative_s: 30 });
}

#[test]
fn no_answer_has_a_longer_ttl_than_the_cache_keeps_it() {
    let (state, _tasks) = open(|config| config.cache.ttl_s_max = 30);
    let Resolution::Record { values, count } = state.shown(answer(b"new")) else { panic!("a record") };
    let values = Values::from_encoded(count.into(), &values).unwrap();
    assert_eq!(values.iter().next().unwrap().ttl, Ttl::relative(30));
    store(&state, "10.1/x");
    assert_eq!(shown(&state, "10.1/x", now_unix_s()).unwrap().1, 30);
}

#[test]
fn values_are_plain_wherever_they_are_shown() {
    let now = now_unix_s();
    let (state, _tasks) = open(|_| {});
    store(&state, "10.1/x");
    let values = |state: &CacheState| match state.fresh(Handle(b"10.1/x")) {
        Some(Resolution::Record { values, .. }) => values.to_vec(),
        other => panic!("{other:?}"),
    };
    let mut linked = None;
    state.table.for_each(&mut |entry| linked = Some((entry.stamp, entry.values.to_vec())));
    let (stamp, stored) = linked.unwrap();
    // One value has no distance, so its link is its TTL.
    assert!(stamp.flags & LINKED != 0 && stored == encoded(b"new", 60));
    let mut two = encoded(b"one", 60);
    two.extend(encoded(b"two", 7));
    let answer = OriginAnswer { values: two.clone().into(), count: 2, ..answer(b"") };
    state.store(Handle(b"10.1/x"), &answer);
    state.table.for_each(&mut |entry| assert!(entry.values != two, "linked"));
    assert_eq!(values(&state), two);
    assert_eq!(shown(&state, "10.1/x", now), Some((b"one".to_vec(), 60)));
    let known = crate::commands::run(&state, "cache-get 10.1/x").unwrap();
    assert_eq!(known["entries"][0]["values"][0]["ttl_s"], 60);
    let mut file = Vec::new();
    crate::saved::write(&state.table, &mut file).unwrap();
    assert!(file.windows(two.len()).any(|bytes| bytes == two), "the file has plain values");
}

/// A value with an absolute TTL says itself until when it is true, so nothing is shown after it.
#[test]
fn a_record_with_an_absolute_ttl_is_not_shown_after_its_end() {
    let now = now_unix_s();
    let (state, _tasks) = open(|config| (config.cache.stale_s, config.cache.stale_ttl_s) = (1000, 30));
    for (name, flags, is_shown) in [("10.1/relative", 0, true), ("10.1/absolute", HAS_ABSOLUTE, false)] {
        let handle = Handle(name.as_bytes());
        let stamp = EntryStamp { flags, ..stamp_of(RECORD, now - 61) };
        state.table.insert(state.hash(handle), handle.0, stamp, &encoded(b"old", 60));
        assert_eq!(state.stale(handle).is_some(), is_shown, "{name}: no server answers");
        state.note_failing(handle);
        let expected = is_shown.then(|| (b"old".to_vec(), 30));
        assert_eq!(shown(&state, name, now), expected, "{name}: none has answered just now");
        let restored = format!("{name}-restored");
        assert_eq!(restore(&state, &restored, stamp, 60), is_shown, "{name}: after a restart");
    }
}
