//! Measures how long two sides of `hdl reconcile` take to find one wrong record among many: writes
//! two layers with other seeds, makes both trees, and walks from the roots to the record.
//!
//! ```sh
//! cargo run --release -p handle-snapshot --example compare_trees -- DIRECTORY 10000000
//! ```

use handle_proto::Value;
use handle_snapshot::comparison::{ComparisonRules, ComparisonScope, ComparisonTree};
use handle_snapshot::{Builder, Layer, LayerOptions, LoadMode, MappedFile, hash_key};
use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: compare_trees DIRECTORY RECORDS";
    let dir = args.next().ok_or(usage)?;
    let count: u64 = args.next().ok_or(usage)?.parse()?;
    let dir = Path::new(&dir);
    let wrong = count / 2;
    let layers = [write(dir, "good", 1, count, None)?, write(dir, "bad", 2, count, Some(wrong))?];
    let bits = ComparisonRules::bits_for(count);
    let rules = ComparisonRules { nonce: [7; 16], scope: ComparisonScope::Values, bits };
    for round in 1..=2 {
        let mut trees = Vec::new();
        for layer in &layers {
            let started = Instant::now();
            trees.push(ComparisonTree::of(std::slice::from_ref(layer), rules, &|_| ())?);
            println!(
                "round {round}: one tree of {count} records in {:.2} s",
                started.elapsed().as_secs_f64()
            );
        }
        let started = Instant::now();
        let (asked, found) = walk(&trees[0], &trees[1], bits)?;
        let took = started.elapsed();
        println!("round {round}: {asked} nodes asked for, {} differing records, {took:?}", found.len());
        assert_eq!(found, [format!("10.5072/{wrong}").into_bytes()]);
        let status = std::fs::read_to_string("/proc/self/status")?;
        let own = status.lines().find(|line| line.starts_with("RssAnon")).unwrap_or_default();
        println!("round {round}: both trees in memory: {own}");
        let started = Instant::now();
        let differing = look_up(&layers[0], &layers[1])? + look_up(&layers[1], &layers[0])?;
        println!("round {round}: both looked up in each other in {:.2} s", started.elapsed().as_secs_f64());
        assert_eq!(differing, 2);
    }
    Ok(())
}

/// Writes a layer, in which the record `wrong` has another value, and maps it.
fn write(
    dir: &Path,
    name: &str,
    seed: u64,
    count: u64,
    wrong: Option<u64>,
) -> Result<Layer<MappedFile>, Box<dyn Error>> {
    let started = Instant::now();
    let mut builder = Builder::new(dir, LayerOptions { seed, folds: true, created_unix_ms: 1 });
    for at in 0..count {
        let host = if wrong == Some(at) { "wrong.example" } else { "example.org" };
        let (handle, url) = (format!("10.5072/{at}"), format!("https://{host}/{at}"));
        let values = [Value::new(1, b"URL", url.as_bytes()), Value::new(2, b"EMAIL", b"admin@example.org")];
        builder.add(at, handle.as_bytes(), values)?;
    }
    let path = dir.join(name);
    let (file, header) = builder.finish(File::create(&path)?)?;
    file.sync_all()?;
    println!("wrote {}: {} bytes in {:.1} s", name, header.file_len, started.elapsed().as_secs_f64());
    Ok(Layer::open(MappedFile::open(&path, LoadMode::Map)?)?)
}

/// The number of nodes that were asked for, and the keys of the records that differ.
type WalkResult = (usize, Vec<Vec<u8>>);

/// Walks both trees from their roots.
fn walk(
    here: &ComparisonTree<'_, MappedFile>,
    there: &ComparisonTree<'_, MappedFile>,
    bits: u32,
) -> Result<WalkResult, Box<dyn Error>> {
    let (mut level, mut asked) = (vec![1], 1);
    for _ in 0..bits {
        let halves: Vec<usize> = level.iter().flat_map(|at| [2 * at, 2 * at + 1]).collect();
        asked += halves.len();
        level = halves.into_iter().filter(|&at| here.node(at) != there.node(at)).collect();
    }
    let mut found = Vec::new();
    for at in level {
        let bucket = u32::try_from(at - (1 << bits))?;
        let theirs = there.bucket(bucket)?;
        found.extend(here.bucket(bucket)?.into_iter().filter(|it| !theirs.contains(it)).map(|it| it.key));
    }
    Ok((asked, found))
}

/// The number of records that are missing or different in the other layer.
fn look_up(from: &Layer<MappedFile>, to: &Layer<MappedFile>) -> Result<u64, Box<dyn Error>> {
    let mut differing = 0;
    for record in from.records() {
        let record = record?;
        let found = to.find(hash_key(to.seed(), record.key()), record.key())?;
        differing += u64::from(found.is_none_or(|found| found.public_bytes() != record.public_bytes()));
    }
    Ok(differing)
}
