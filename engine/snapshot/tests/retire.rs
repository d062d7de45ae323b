//! Maps are removed when the last set that uses them is dropped. This test is alone in its process
//! because it reads a global counter.
#![cfg(feature = "std")]

use handle_proto::Value;
use handle_snapshot::map::mapped_bytes_now;
use handle_snapshot::{Builder, HomedPrefixes, LayerOptions, LoadMode, PublishedSet, SetPublisher};

#[test]
fn retired_maps_are_released_and_shared_ones_stay() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = SetPublisher::open(dir.path()).unwrap();
    let options = LayerOptions { seed: 1, folds: true, created_unix_ms: 1 };
    let builder = |handle: &str| {
        let mut builder = Builder::new(dir.path(), options);
        builder.add(0, handle.as_bytes(), [Value::new(1, b"URL", b"http://example.org/")]).unwrap();
        builder
    };
    publisher.publish_base(1, |file, _| builder("1/a").homed(HomedPrefixes::default()).finish(file)).unwrap();
    let by_publisher = mapped_bytes_now();
    for how in [LoadMode::Map, LoadMode::CopyToMemory] {
        let first = PublishedSet::open(dir.path(), how).unwrap();
        let base_len = first.bytes_mapped();
        assert_eq!(mapped_bytes_now(), by_publisher + base_len);
        let again = PublishedSet::reopen(&first).unwrap();
        assert_eq!(mapped_bytes_now(), by_publisher + base_len, "shared");
        drop(first);
        assert_eq!(mapped_bytes_now(), by_publisher + base_len, "still used");
        drop(again);
        assert_eq!(mapped_bytes_now(), by_publisher);
    }
    let old = PublishedSet::open(dir.path(), LoadMode::Map).unwrap();
    publisher.publish_delta(2, |file, _| builder("1/b").finish(file)).unwrap();
    let by_publisher = mapped_bytes_now() - old.bytes_mapped();
    let new = PublishedSet::reopen(&old).unwrap();
    assert_eq!(new.layers().len(), 2);
    assert_eq!(mapped_bytes_now(), by_publisher + new.bytes_mapped(), "the base is shared");
    publisher.publish_base(3, |file, _| builder("1/c").homed(HomedPrefixes::default()).finish(file)).unwrap();
    drop(publisher);
    let newest = PublishedSet::reopen(&new).unwrap();
    assert_eq!(mapped_bytes_now(), new.bytes_mapped() + newest.bytes_mapped());
    drop((old, new));
    assert_eq!(mapped_bytes_now(), newest.bytes_mapped());
    drop(newest);
    assert_eq!(mapped_bytes_now(), 0);
}
