//! A store that was replaced by an older copy, below published and kept sets of its later states.

use super::*;

#[test]
fn an_older_copy_of_the_store_is_noticed_while_it_is_behind_the_set() {
    let mut setup = PublishSetup::new();
    setup.put("1/a", "one");
    drop(setup.engine());
    let copy = setup.copy_store();
    (0..10).for_each(|n| setup.put(&format!("1/{n}"), "lost"));
    drop(setup.engine());
    setup.store = Some(Arc::new(Store::open(&StoreConfig::at(&copy)).unwrap()));
    let mut engine = setup.engine_with(setup.config());
    engine.hold("the store comes from a copy").unwrap();
    (0..20).for_each(|n| setup.put(&format!("1/other-{n}"), "new"));
    engine.resume().unwrap();
    settle(&mut engine);
    assert_eq!(setup.seen(), setup.stored());
}

#[test]
fn an_older_copy_of_the_store_does_not_continue_a_newer_kept_set() {
    let mut setup = PublishSetup::new();
    setup.put("1/a", "one");
    drop(setup.engine());
    let copy = setup.copy_store();
    let mut engine = setup.engine();
    (0..5).for_each(|n| setup.put(&format!("1/{n}"), "lost"));
    settle(&mut engine);
    engine.keep(now_unix_ms()).unwrap();
    let (lost, at_lost) = (setup.seen(), setup.manifest().generation);
    setup.put("1/6", "lost, too");
    settle(&mut engine);
    let mut rounds_with_lost = 0;
    // Held at an old set, so that only kept sets are ahead of the copy, not the published one.
    for is_held_at_old in [false, true] {
        if is_held_at_old {
            let oldest = engine.status().kept[0].generation;
            engine.roll_back(Some(oldest), now_unix_ms()).unwrap();
        }
        drop(engine);
        drop(setup.store.take());
        let again = setup.dir.path().join(format!("again-{is_held_at_old}"));
        std::fs::copy(&copy, &again).unwrap();
        setup.store = Some(Arc::new(Store::open(&StoreConfig::at(&again)).unwrap()));
        let identity = setup.store().identity();
        engine = setup.engine_with(setup.config());
        assert_ne!(setup.store().identity(), identity, "held at an old set: {is_held_at_old}");
        // As many transactions as were lost, so that their numbers do not tell the states apart.
        (0..20).for_each(|n| setup.put(&format!("1/other-{n}"), "new"));
        if is_held_at_old {
            engine.resume().unwrap();
        }
        settle(&mut engine);
        assert_eq!(setup.seen(), setup.stored());
        if engine.status().kept.iter().any(|set| set.generation == at_lost) {
            rounds_with_lost += 1;
            engine.roll_back(Some(at_lost), now_unix_ms()).unwrap();
            assert_eq!(setup.seen(), lost, "what was lost can still be had");
            engine.resume().unwrap();
            settle(&mut engine);
            assert_eq!(setup.seen(), setup.stored());
        }
    }
    assert!(rounds_with_lost > 0, "what was lost is kept at least once");
}
