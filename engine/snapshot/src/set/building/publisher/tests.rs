//! Tests of what a publisher keeps between two deltas.

use super::*;
use crate::{Builder, HomedPrefixes};
use handle_proto::{Permissions, Value};

const OPTIONS: LayerOptions = LayerOptions { seed: 7, folds: true, created_unix_ms: 1 };

/// A layer with a record that has a private value.
fn write<S: Storage>(file: S::File, dir: &Path, data: &[u8], is_base: bool) -> BuiltLayer<S> {
    let mut homed = HomedPrefixes::default();
    homed.add(b"10.5072");
    let mut builder = Builder::new(dir, OPTIONS);
    if is_base {
        builder = builder.homed(homed);
    }
    let secret = Value { permissions: Permissions(0x0c), ..Value::new(300, b"HS_SECKEY", data) };
    builder.add(1, b"10.5072/a", [secret])?;
    builder.finish(file)
}

#[test]
fn the_secret_that_hides_private_values_is_made_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = SetPublisher::open(dir.path()).unwrap();
    publisher.publish_base(1, |file, dir| write::<DiskStorage>(file, dir, b"one", true)).unwrap();
    publisher.publish_delta(2, |file, dir| write::<DiskStorage>(file, dir, b"two", false)).unwrap();
    let first = Arc::clone(&publisher.hasher);
    publisher.publish_delta(3, |file, dir| write::<DiskStorage>(file, dir, b"three", false)).unwrap();
    assert!(Arc::ptr_eq(&first, &publisher.hasher));
}
