//! Builds a set in a directory, publishes a change above it, and looks handles up.
//!
//! ```sh
//! cargo run -p handle-snapshot --example build_set -- /tmp/set
//! handled --snapshot /tmp/set --listen 127.0.0.1:2641
//! ```

use handle_proto::Value;
use handle_snapshot::set::storage::create_directory;
use handle_snapshot::{
    Builder, HomedPrefixes, LayerOptions, LoadMode, PublishedSet, SetPublisher, fold_key, hash_key,
};
use std::error::Error;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args_os().nth(1).ok_or("usage: build_set DIRECTORY")?;
    let dir = Path::new(&dir);
    create_directory(dir)?;
    publish(dir)?;

    // What `handled` does: map the set, and look up folded keys by their hash.
    let set = PublishedSet::open(dir, LoadMode::Map)?;
    let records = set.records();
    for handle in ["10.1045/july95-arms", "10.1045/May99-Payette", "10.1045/missing"] {
        let mut key = handle.as_bytes().to_vec();
        fold_key(&mut key, records.folds());
        let Some(record) = records.find(hash_key(records.seed(), &key), &key)? else {
            println!("{handle}: not found");
            continue;
        };
        for value in record.values_in_order() {
            let value = value.map_err(|_| "the record is damaged")?;
            let text = String::from_utf8_lossy;
            println!("{handle}: {} {} {}", value.index, text(value.kind), text(value.data));
        }
    }
    println!("generation {} with {} handles in {}", set.generation(), set.handles_count(), dir.display());
    Ok(())
}

/// Publishes a base of two records, and then a delta that changes one of them.
fn publish(dir: &Path) -> Result<(), Box<dyn Error>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let now_unix_ms = u64::try_from(now.as_millis())?;
    // All layers of a set share the seed. A random one keeps others from choosing colliding names.
    let options =
        LayerOptions { seed: u64::from(now.subsec_nanos()), folds: true, created_unix_ms: now_unix_ms };
    let url = |data| [Value::new(1, b"URL", data)];

    // The publisher locks the directory: one writer at a time.
    let mut publisher = SetPublisher::open(dir)?;
    publisher.publish_base(now_unix_ms, |file, temp_dir| {
        let mut homed = HomedPrefixes::default();
        homed.add(b"10.1045");
        let mut builder = Builder::new(temp_dir, options).homed(homed);
        builder.add(0, b"10.1045/july95-arms", url(b"https://example.org/arms"))?;
        builder.add(1, b"10.1045/may99-payette", url(b"https://example.org/payette"))?;
        builder.finish(file)
    })?;
    publisher.publish_delta(now_unix_ms, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options);
        builder.add(0, b"10.1045/may99-payette", url(b"https://example.org/moved"))?;
        builder.finish(file)
    })?;
    Ok(())
}
