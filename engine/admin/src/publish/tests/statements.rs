//! Signed statements that the published set is current.

use super::*;

/// The configuration with a key that signs, and its public half.
fn signing(setup: &PublishSetup) -> (PublishConfig, handle_auth::PublisherKey) {
    let key_file = setup.dir.path().join("key");
    let key = handle_auth::generate::rsa(2048).unwrap();
    handle_auth::file::create_secret_file(&key_file, &handle_auth::keyfile::plain(&key.view())).unwrap();
    let public = handle_auth::public_record_of(&key.view()).unwrap();
    let config = PublishConfig { key_file: Some(key_file), heartbeat_ms: 100, ..setup.config() };
    (config, handle_auth::PublisherKey::from_record(&public).unwrap())
}

#[test]
fn nothing_is_stated_about_a_set_that_lacks_changes() {
    use handle_snapshot::set::statement::HEARTBEAT;
    let setup = PublishSetup::new();
    let (config, _) = signing(&setup);
    let heartbeat = setup.set().join(HEARTBEAT);
    drop(setup.engine());
    setup.put("1/a", "one");
    let bounds = LogBounds { before_unix_ms: u64::MAX, transactions_max: None };
    setup.store().prune_log(bounds, 1000).unwrap();
    let mut publisher = SetPublisher::open(&setup.set()).unwrap();
    publisher.sign_with(signer::open(&config).unwrap().unwrap());
    let config = Arc::new(config);
    let plan = PublisherPlan::new(setup.store().clone(), publisher, config.clone()).unwrap();
    let (_requests, inbox) = sync_channel(1);
    let shared = Arc::new(PublisherState::default());
    let mut thread = PublisherThread::new(plan, setup.store().clone(), config, inbox, shared);
    thread.turn();
    assert!(!heartbeat.exists(), "a rebuild is needed");
    thread.engine.hold("a test").unwrap();
    thread.stated_at = None;
    thread.renew_statement();
    assert!(heartbeat.exists(), "the operator wants this set");
    std::fs::remove_file(&heartbeat).unwrap();
    thread.engine.resume().unwrap();
    thread.stated_at = None;
    let deadline = Instant::now() + Duration::from_secs(30);
    while !heartbeat.exists() {
        assert!(Instant::now() < deadline);
        thread.turn();
    }
    assert_eq!(setup.seen(), setup.stored());
}

#[test]
fn statements_about_a_signed_set_are_renewed() {
    use handle_snapshot::set::statement::newest_statement;
    let setup = PublishSetup::new();
    let (config, public) = signing(&setup);
    let publisher = StorePublisher::start(setup.store().clone(), &config).unwrap();
    let newest = || {
        let manifest = handle_snapshot::set::read_manifest(&setup.set()).ok()?;
        let signed = newest_statement(&setup.set(), &manifest)?;
        let (name, message) = (signed.statement.signer.0, signed.statement.encode());
        assert!(public.has_signed(&name, message.as_bytes(), &signed.signature));
        Some(signed.statement)
    };
    let wait = |is_there: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_there() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    wait(&|| newest().is_some_and(|it| it.signed_unix_ms > it.created_unix_ms + 200));
    setup.put("1/a", "one");
    assert!(publisher.wait_for(setup.store().last_id(), Duration::from_secs(30)));
    wait(&|| newest().is_some_and(|it| it.handles_count > 0 && it.signed_unix_ms > it.created_unix_ms));
    wait(&|| publisher.status().counts.statements >= 3);
}
