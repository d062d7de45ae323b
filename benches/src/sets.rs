//! Published sets of generated records, built once and kept.

use crate::records::{RecordGenerator, RecordRoom};
use anyhow::Context as _;
use handle_proto::Value;
use handle_snapshot::format::VERSION;
use handle_snapshot::{Builder, HomedPrefixes, LayerOptions, LoadMode, PublishedSet, SetPublisher};
use std::path::{Path, PathBuf};

/// A handle that every set has besides the generated ones; its answer takes several datagrams.
pub const LONG_HANDLE: &[u8] = b"10.1016/long";
const LONG_VALUES_COUNT: i32 = 20;

/// Version of the generated records, to be increased with every change of them.
const FIXTURE_VERSION: u32 = 2;

/// Options of all layers of the benches.
pub const OPTIONS: LayerOptions =
    LayerOptions { seed: 0x6861_6e64_6c65_6421, folds: true, created_unix_ms: 1_700_000_000_000 };

/// Returns whether each bench runs only once: with `cargo bench -- --test`, or without `--bench`.
#[must_use]
pub fn is_test() -> bool {
    let given = |name| std::env::args().any(|arg| arg == name);
    given("--test") || !given("--bench")
}

/// Returns the sizes of the sets in the benches: 100 k and 1 M records; with `HANDLE_BENCH_10M` set
/// also 10 M.
#[must_use]
pub fn sizes() -> Vec<u64> {
    if is_test() {
        return vec![2_000];
    }
    let mut sizes = vec![100_000, 1_000_000];
    if std::env::var_os("HANDLE_BENCH_10M").is_some() {
        sizes.push(10_000_000);
    }
    sizes
}

/// Returns a size as in the names of benches: `2k`, `100k`, `10M`.
#[must_use]
pub fn size_name(records: u64) -> String {
    match records {
        1_000_000.. => format!("{}M", records / 1_000_000),
        1_000.. => format!("{}k", records / 1_000),
        _ => records.to_string(),
    }
}

/// Returns the directory of the set of `records` generated records, in `HANDLE_BENCH_FIXTURES` or
/// below `target/`.
#[must_use]
pub fn directory(records: u64) -> PathBuf {
    let parent = match std::env::var_os("HANDLE_BENCH_FIXTURES").filter(|parent| !parent.is_empty()) {
        Some(parent) => PathBuf::from(parent),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench-fixtures"),
    };
    parent.join(format!("{records}-v{VERSION}.{FIXTURE_VERSION}"))
}

/// Opens the set of `records` generated records, and builds it if it is missing.
///
/// # Errors
/// When it cannot be built or opened.
pub fn open(records: u64) -> anyhow::Result<PublishedSet> {
    let directory = directory(records);
    if let Ok(set) = PublishedSet::open(&directory, LoadMode::Map) {
        return Ok(set);
    }
    eprintln!("building {records} records in {}", directory.display());
    publish(records, &directory).with_context(|| format!("cannot build {}", directory.display()))?;
    Ok(PublishedSet::open(&directory, LoadMode::Map)?)
}

fn publish(records: u64, directory: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory)?;
    let generator = RecordGenerator::new()?;
    let mut publisher = SetPublisher::open(directory)?;
    publisher.publish_base(OPTIONS.created_unix_ms, |file, temp_dir| {
        let mut builder = builder(&generator, temp_dir);
        add_all(&mut builder, &generator, records)?;
        add_long(&mut builder, records)?;
        builder.finish(file)
    })?;
    Ok(())
}

/// Creates a builder that homes the prefixes of all generated records.
pub fn builder<'p>(generator: &RecordGenerator, temp_dir: &Path) -> Builder<'p> {
    let mut homed = HomedPrefixes::default();
    for prefix in generator.prefixes() {
        homed.add(prefix);
    }
    Builder::new(temp_dir, OPTIONS).homed(homed)
}

/// Adds the first `records` generated records.
///
/// # Errors
/// Errors of [`Builder::add`].
pub fn add_all(
    builder: &mut Builder<'_>,
    generator: &RecordGenerator,
    records: u64,
) -> Result<(), handle_snapshot::BuildError> {
    let mut room = RecordRoom::default();
    for n in 0..records {
        let record = generator.record(n, &mut room);
        builder.add(n, record.handle, record.values)?;
    }
    Ok(())
}

fn add_long(builder: &mut Builder<'_>, origin: u64) -> Result<(), handle_snapshot::BuildError> {
    let data = [b'x'; 100];
    builder.add(origin, LONG_HANDLE, (1..=LONG_VALUES_COUNT).map(|index| Value::new(index, b"TEXT", &data)))
}

/// Builds a layer of `records` additional records, as changes make it; `number` distinguishes
/// several.
///
/// # Errors
/// When it cannot be built.
pub fn delta(records: u64, number: usize) -> anyhow::Result<Vec<u8>> {
    let temp_dir = tempfile::tempdir()?;
    let mut builder = Builder::new(temp_dir.path(), OPTIONS);
    for n in 0..records {
        let handle = format!("10.1016/changed.{number}.{n}");
        builder.add(n, handle.as_bytes(), [Value::new(1, b"URL", b"https://changed.example/")])?;
    }
    let (file, _) = builder.finish(std::io::Cursor::new(Vec::new()))?;
    Ok(file.into_inner())
}

/// Reads a byte of every page, so that no page is loaded or mapped during a measurement.
pub fn warm(set: &PublishedSet) {
    for layer in set.layers() {
        let sum = layer.as_bytes().iter().step_by(4096).fold(0u8, |sum, &byte| sum.wrapping_add(byte));
        std::hint::black_box(sum);
    }
}
