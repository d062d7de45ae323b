//! Records that are copied from sources, and how far they are.

use super::*;

over_engines! {
    a_copied_record_is_written_if_it_differs,
    positions_change_with_the_records_and_those_of_other_sources_are_dropped,
}

fn record(data: &str) -> RecordBuf {
    let mut buffer = Vec::new();
    RecordBuf::unlogged(Values::build([Value::new(1, b"URL", data.as_bytes())], &mut buffer))
}

fn a_copied_record_is_written_if_it_differs(engine: TestEngine) {
    let Some((_location, store)) = new_store(engine) else { return };
    for (data, expected) in
        [("first", PulledChange::Created), ("first", PulledChange::Same), ("second", PulledChange::Replaced)]
    {
        let before = store.last_id();
        let change = store.change(move |transaction| {
            transaction.prefetch_records([&b"10.1/A"[..]].into_iter())?;
            transaction.put_pulled(b"10.1/A", &record(data))
        });
        assert_eq!(change.unwrap(), expected, "{data}");
        assert_eq!(store.last_id() - before, u64::from(expected != PulledChange::Same), "{data}");
        assert_eq!(super::data(&store.snapshot().unwrap(), b"10.1/A").unwrap(), data.as_bytes());
    }
    assert_eq!(findings(&store).iter().filter(|finding| finding.is_damage()).count(), 0);
}

fn positions_change_with_the_records_and_those_of_other_sources_are_dropped(engine: TestEngine) {
    let Some((location, store)) = new_store(engine) else { return };
    store.change(|transaction| transaction.set_pull_position("a", b"first")).unwrap();
    let second = store.change(|transaction| {
        transaction.set_pull_position("a", b"second")?;
        transaction.put_pulled(b"10.1/A", &record("first"))?;
        Err::<(), _>(StoreError::Damaged("given up in between"))
    });
    assert!(matches!(second, Err(StoreError::Failed)), "a change that is made in part: {second:?}");
    drop(store);
    let store = Store::open(&location.config).unwrap();
    store.change(|transaction| transaction.set_pull_position("b", b"other")).unwrap();
    let positions = |store: &Store| {
        let read = |name| store.change(move |transaction| transaction.pull_position(name)).unwrap();
        (read("a"), read("b"))
    };
    assert_eq!(positions(&store), (Some(b"first".to_vec()), Some(b"other".to_vec())));
    assert!(store.snapshot().unwrap().record(b"10.1/A").unwrap().is_none());
    store.change(|transaction| transaction.keep_pull_positions(&["b".to_owned()])).unwrap();
    assert_eq!(positions(&store), (None, Some(b"other".to_vec())));
}
