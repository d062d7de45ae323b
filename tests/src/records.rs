//! Real records: a sample of DOIs, or a given file.

use handle_proto::json::RecordLine;
use handle_proto::{Handle, Value, Values};
use handle_snapshot::builder::Builder;
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::writer::{BuildError, HomedPrefixes, LayerOptions};
use std::path::{Path, PathBuf};

/// A record with its encoded values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The handle as spelt in the file.
    pub handle: String,
    /// The encoded values, concatenated.
    pub values: Vec<u8>,
    /// Number of values.
    pub values_count: usize,
}

impl Record {
    /// Asserts that `values` are those of this record.
    ///
    /// # Panics
    /// If they differ.
    pub fn assert_is(&self, values: Values<'_>) {
        let mut encoded = vec![];
        values.iter().for_each(|value| value.encode(&mut encoded));
        assert!(encoded == self.values, "{}: other values than in its record", self.handle);
    }
}

/// The file of records that the variable `HANDLE_DATA` names.
#[must_use]
pub fn file() -> Option<PathBuf> {
    std::env::var_os("HANDLE_DATA").map(PathBuf::from)
}

/// The records of `vectors/dois.jsonl`, or of the file that the variable `HANDLE_DATA` names.
///
/// # Panics
/// If the file cannot be read or has an invalid record.
#[must_use]
pub fn load() -> Vec<Record> {
    let path = file().unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors/dois.jsonl"));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("cannot read records {}: {error}", path.display()));
    let record = |line: &str| {
        let mut values = Vec::new();
        let RecordLine { handle, values_count } =
            RecordLine::parse(line, &mut values).unwrap_or_else(|error| panic!("{line}: {error}"));
        Record { handle: handle.into_owned(), values, values_count }
    };
    text.lines().map(record).collect()
}

/// Publishes `records` as the whole set, with all their prefixes homed.
///
/// # Panics
/// If publishing fails.
pub fn publish(publisher: &mut SetPublisher, records: &[Record], now_unix_ms: u64) {
    let mut homed = HomedPrefixes::default();
    for record in records {
        homed.add(Handle(record.handle.as_bytes()).naming_authority());
    }
    let options = LayerOptions { seed: 1, folds: true, created_unix_ms: now_unix_ms };
    let published = publisher.publish_base(now_unix_ms, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options).homed(homed);
        for (origin, record) in records.iter().enumerate() {
            let values = Values::from_encoded(record.values_count, &record.values)
                .map_err(|error| BuildError::from(std::io::Error::other(error)))?;
            builder.add(origin as u64, record.handle.as_bytes(), values)?;
        }
        builder.finish(file)
    });
    published.expect("records that can be published");
}

/// Publishes a base with these records, all of the homed prefix `10.1`.
///
/// # Panics
/// If publishing fails.
pub fn publish_values(publisher: &mut SetPublisher, records: &[(&[u8], Value<'_>)]) {
    let records: Vec<_> = records.iter().map(|(handle, value)| (*handle, vec![*value])).collect();
    publish_records(publisher, &records);
}

/// Publishes a base with these records of several values, all of the homed prefix `10.1`.
///
/// # Panics
/// If publishing fails.
pub fn publish_records(publisher: &mut SetPublisher, records: &[(&[u8], Vec<Value<'_>>)]) {
    let mut homed = HomedPrefixes::default();
    homed.add(b"10.1");
    let options = LayerOptions { seed: 1, folds: true, created_unix_ms: 1 };
    let published = publisher.publish_base(1, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options).homed(homed);
        for (origin, (handle, values)) in records.iter().enumerate() {
            builder.add(origin as u64, handle, values.iter().copied())?;
        }
        builder.finish(file)
    });
    published.expect("records that can be published");
}
