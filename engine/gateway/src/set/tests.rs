use super::*;
use crate::record::stored_record;
use crate::state::service_facts;
use handle_proto::Value as HandleValue;
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::{Builder, HomedPrefixes, LayerOptions};

const OPTIONS: LayerOptions = LayerOptions { seed: 1, folds: true, created_unix_ms: 1 };

/// Publishes one record with this URL.
fn publish(publisher: &mut SetPublisher, url: &[u8]) {
    let mut homed = HomedPrefixes::default();
    homed.add(b"10.1");
    let published = publisher.publish_base(1, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, OPTIONS).homed(homed);
        builder.add(0, b"10.1/a", [HandleValue::new(1, b"URL", url)])?;
        builder.finish(file)
    });
    published.unwrap();
}

#[test]
fn a_new_set_goes_live_and_a_damaged_one_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let error = MappedSet::open(directory.path(), true, &PublishersConfig::default()).unwrap_err();
    assert!(format!("{error:#}").contains("hdl snapshot publish"), "{error:#}");
    let mut publisher = SetPublisher::open(directory.path()).unwrap();
    publish(&mut publisher, b"https://example.org/1");
    let mapped = MappedSet::open(directory.path(), true, &PublishersConfig::default()).unwrap();
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

#[test]
fn a_changed_record_is_found_wherever_its_layer_is() {
    let directory = tempfile::tempdir().unwrap();
    let mut publisher = SetPublisher::open(directory.path()).unwrap();
    publish(&mut publisher, b"https://example.org/1");
    let mapped = MappedSet::open(directory.path(), true, &PublishersConfig::default()).unwrap();
    let url_of = |name: &[u8]| {
        let set = mapped.current();
        let record = stored_record(&set.records(), &service_facts(None), name)?;
        Some(record.public_values().next()?.unwrap().data.to_vec())
    };
    let publish_delta = |publisher: &mut SetPublisher, handle: &[u8], homed: Option<&[u8]>| {
        let published = publisher.publish_delta(2, |file, temp_dir| {
            let mut builder = Builder::new(temp_dir, OPTIONS);
            if let Some(homed) = homed {
                let mut all = HomedPrefixes::default();
                all.add(b"10.1");
                all.add(homed);
                builder = builder.homed(all);
            }
            builder.add(0, handle, [HandleValue::new(1, b"URL", b"https://example.org/2")])?;
            builder.finish(file)
        });
        published.unwrap();
    };
    assert_eq!(url_of(b"10.1/A").unwrap(), b"https://example.org/1");
    publish_delta(&mut publisher, b"10.1/a", None);
    mapped.reload().unwrap();
    assert_eq!(url_of(b"10.1/A").unwrap(), b"https://example.org/2", "in a layer without prefixes");
    publish_delta(&mut publisher, b"0.NA/10.1", None);
    mapped.reload().unwrap();
    assert!(!mapped.current().homes_prefix_records());
    assert_eq!(url_of(b"0.NA/10.1"), None, "its prefix is not homed");
    publish_delta(&mut publisher, b"10.1/b", Some(b"0.NA"));
    mapped.reload().unwrap();
    assert!(mapped.current().homes_prefix_records());
    assert_eq!(url_of(b"0.NA/10.1").unwrap(), b"https://example.org/2");
    assert_eq!(url_of(&[b"10.1/".as_slice(), &[b'a'; 3000]].concat()), None);
    assert_eq!(url_of(&[b"10.1/".as_slice(), &[b'a'; 200]].concat()), None);
}
