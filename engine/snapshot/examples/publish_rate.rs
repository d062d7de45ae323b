//! Measures the rate of publishing a base, and the time of publishing small deltas above it.
//!
//! ```sh
//! cargo run --release -p handle-snapshot --example publish_rate -- DIRECTORY RECORDS DELTAS CHANGES
//! ```

use handle_proto::Value;
use handle_snapshot::{BuildError, Builder, HomedPrefixes, LayerOptions, SetPublisher};
use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// Number of layers from which on all deltas are merged.
const LAYERS_MAX: usize = 8;

fn add(builder: &mut Builder<'_>, number: u64, version: u64) -> Result<(), BuildError> {
    let handle = format!("10.5072/record-{number}");
    let url = format!("https://repository.example.org/items/{number}?version={version}");
    let values = [
        Value::new(1, b"URL", url.as_bytes()),
        Value::new(2, b"DESC", b"A record of usual size, of two values"),
    ];
    builder.add(number, handle.as_bytes(), values)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("usage: publish_rate DIRECTORY RECORDS DELTAS CHANGES")?;
    let mut number = |name: &str| -> Result<u64, Box<dyn Error>> {
        Ok(arguments.next().ok_or_else(|| format!("{name} is missing"))?.parse()?)
    };
    let (records, deltas, changes) = (number("RECORDS")?, number("DELTAS")?, number("CHANGES")?);
    let mut publisher = SetPublisher::open(Path::new(&directory))?;
    let mut homed = HomedPrefixes::default();
    homed.add(b"10.5072");
    let options = LayerOptions { seed: 42, folds: true, created_unix_ms: 1 };
    let started = Instant::now();
    publisher.publish_base(1, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options).homed(homed);
        (0..records).try_for_each(|number| add(&mut builder, number, 0))?;
        builder.finish(file)
    })?;
    let took = started.elapsed();
    println!("base: {:.2} s, {:.0} records/s", took.as_secs_f64(), records as f64 / took.as_secs_f64());
    let mut times = Vec::new();
    for delta in 0..deltas {
        let started = Instant::now();
        publisher.publish_delta(2 + delta, |file, temp_dir| {
            let mut builder = Builder::new(temp_dir, options);
            for change in 0..changes {
                // Scattered, and each record at most once in a delta.
                let number = (delta * changes + change).wrapping_mul(0x9e37_79b9_7f4a_7c15) % records;
                add(&mut builder, number, delta + 1)?;
            }
            builder.finish(file)
        })?;
        times.push(started.elapsed());
        let manifest = publisher.manifest().ok_or("nothing is published")?.clone();
        if manifest.layers.len() > LAYERS_MAX {
            let which = 0..LAYERS_MAX;
            let merged =
                publisher.stager().stage_merge(&manifest, which, 1, |_| ControlFlow::Continue(()))?;
            publisher.publish(merged, 2 + delta)?;
            publisher.prune(SystemTime::now(), Duration::ZERO)?;
        }
    }
    println!("first delta: {:?}", times.first().ok_or("no delta")?);
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!("deltas of {changes} changes: median {:?}, p99 {:?}, longest {:?}", at(50), at(99), at(100));
    Ok(())
}
