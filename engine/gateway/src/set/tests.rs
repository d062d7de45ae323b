use super::*;
use handle_proto::Value as HandleValue;
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::{Builder, HomedPrefixes, LayerOptions};

/// Publishes one record with this URL.
fn publish(publisher: &mut SetPublisher, url: &[u8]) {
    let mut homed = HomedPrefixes::default();
    homed.add(b"10.1");
    let options = LayerOptions { seed: 1, folds: true, created_unix_ms: 1 };
    let published = publisher.publish_base(1, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options).homed(homed);
        builder.add(0, b"10.1/a", [HandleValue::new(1, b"URL", url)])?;
        builder.finish(file)
    });
    published.unwrap();
}

#[test]
fn a_new_set_goes_live_and_a_damaged_one_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let error = MappedSet::open(directory.path(), true).unwrap_err();
    assert!(format!("{error:#}").contains("hdl snapshot publish"), "{error:#}");
    let mut publisher = SetPublisher::open(directory.path()).unwrap();
    publish(&mut publisher, b"https://example.org/1");
    let mapped = MappedSet::open(directory.path(), true).unwrap();
    let first = mapped.current().generation();
    assert!(matches!(mapped.reload(), Ok(ReloadOutcome::Unchanged(generation)) if generation == first));
    publish(&mut publisher, b"https://example.org/2");
    assert!(matches!(mapped.reload(), Ok(ReloadOutcome::Changed(generation)) if generation > first));
    let live = mapped.current().generation();
    std::fs::write(directory.path().join("MANIFEST"), "nothing of this kind").unwrap();
    assert!(mapped.reload().is_err() && mapped.is_failing());
    assert_eq!(mapped.current().generation(), live, "the old set stays live");
    assert!(mapped.to_json()["last_error"].is_string());
}
