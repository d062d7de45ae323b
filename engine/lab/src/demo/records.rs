//! What the demo publishes: bundled records, and changes of one of them.

use anyhow::Context as _;
use handle_daemon::clock::now_unix_ms;
use handle_proto::json::RecordLine;
use handle_proto::{Handle, Value, Values};
use handle_snapshot::builder::Builder;
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::writer::{BuildError, HomedPrefixes, LayerOptions};
use std::ops::ControlFlow;
use std::time::Duration;

/// Real records: DOIs of 2013 with their titles and journals.
pub(crate) const RECORDS: &str = include_str!("../../../../tests/vectors/dois.jsonl");
/// The record that changes during the load.
pub(super) const CHANGED: &str = "10.1016/j.rcae.2013.04.001";

/// Publishes all records as a new set.
pub(super) fn publish_all(publisher: &mut SetPublisher) -> anyhow::Result<()> {
    let now = now_unix_ms();
    let options = LayerOptions { seed: rand::random(), folds: true, created_unix_ms: now };
    let mut values = Vec::new();
    let mut homed = HomedPrefixes::default();
    let mut records = Vec::new();
    for line in RECORDS.lines() {
        let at = values.len();
        let record = RecordLine::parse(line, &mut values)?;
        homed.add(Handle(record.handle.as_bytes()).naming_authority());
        records.push((record, at..values.len()));
    }
    publisher.publish_base(now, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options).homed(homed);
        for (origin, (record, range)) in records.iter().enumerate() {
            let views = Values::from_encoded(record.values_count, &values[range.clone()])
                .map_err(|error| BuildError::from(std::io::Error::other(error)))?;
            builder.add(origin as u64, record.handle.as_bytes(), views)?;
        }
        builder.finish(file)
    })?;
    Ok(())
}

/// Publishes a delta that changes the URL of one record, and merges deltas if there are several.
pub(super) fn publish_change(publisher: &mut SetPublisher, number: u64) -> anyhow::Result<()> {
    const LAYERS_BEFORE_MERGE: usize = 8;
    let now = now_unix_ms();
    let options = publisher.options(now).context("a set is published")?;
    let line = RECORDS.lines().find(|line| line.contains(CHANGED)).context("the record is bundled")?;
    let mut values = Vec::new();
    let record = RecordLine::parse(line, &mut values)?;
    let values = Values::from_encoded(record.values_count, &values)?;
    let url = format!("https://elsevier-bv.example/{CHANGED}?revision={number}");
    let changed = values.iter().map(|value| match value.kind {
        b"URL" => {
            Value { timestamp: u32::try_from(now / 1000).unwrap_or(u32::MAX), data: url.as_bytes(), ..value }
        }
        _ => value,
    });
    publisher.publish_delta(now, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options);
        builder.add(number, CHANGED.as_bytes(), changed)?;
        builder.finish(file)
    })?;
    let manifest = publisher.manifest().cloned().context("a set is published")?;
    if manifest.layers.len() >= LAYERS_BEFORE_MERGE {
        let merged = publisher
            .stager()
            .stage_merge(&manifest, 0..manifest.layers.len() - 1, now, |_| ControlFlow::Continue(()))?;
        publisher.publish(merged, now_unix_ms())?;
        publisher.prune(std::time::SystemTime::now(), Duration::from_secs(2))?;
    }
    Ok(())
}
