//! The process that `hostile::process_kills` kills: changes and publishes a store until then.
//!
//! It prints `try WRITER KEY NUMBER` before a change and `done WRITER` after its acknowledgement; a
//! negative number is a deletion. `shown TRANSACTION` is the published transaction.
#![forbid(unsafe_code)]

use anyhow::Context as _;
use handle_admin::publish::{Command, PublishConfig, StorePublisher};
use handle_proto::{Value, Values};
use handle_store::{Store, StoreConfig};
use handle_tests::kill_limits::{KEYS, WRITERS, key, publish_config};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn main() -> anyhow::Result<()> {
    let dir = std::env::args().nth(1).context("the directory")?;
    let seed = std::env::args().nth(2).context("a seed")?.parse()?;
    let dir = Path::new(&dir);
    let store = std::env::args().nth(3).context("the store")?;
    let store = Arc::new(Store::open(&StoreConfig::at(Path::new(&store)))?);
    let config: PublishConfig = publish_config(&dir.join("set"));
    let publishing = StorePublisher::start(store.clone(), &config)?;
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let store = store.clone();
            scope.spawn(move || write(&store, writer, seed));
        }
        loop {
            std::thread::sleep(Duration::from_millis(3));
            let status = publishing.status();
            if let Some(shown) = status.set.and_then(|set| set.transaction) {
                print_line(&format!("shown {shown}"));
            }
            let done = match status.store_transaction % 16 {
                0 => publishing.command(Command::Rebuild),
                1 => publishing.command(Command::Merge),
                2 => publishing.command(Command::Keep),
                _ => continue,
            };
            done.expect("the publisher takes the command");
        }
    })
}

/// Prints and flushes one line.
fn print_line(line: &str) {
    let mut out = std::io::stdout().lock();
    // The reader may have closed the pipe.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Puts and deletes records, each with the same number in two values.
fn write(store: &Store, writer: usize, seed: u64) {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + writer as u64 + 1;
    for number in 1.. {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let at = usize::try_from(random >> 33).expect("31 bits") % KEYS;
        let is_deletion = random.is_multiple_of(8);
        // Numbers are above all of earlier rounds.
        let number = i64::try_from(seed * 1_000_000 + number).expect("few rounds");
        let number = if is_deletion { -number } else { number };
        print_line(&format!("try {writer} {at} {number}"));
        let key = key(writer, at);
        let changed = store.change(move |transaction| {
            if is_deletion {
                return transaction.delete(&key).map(|_| ());
            }
            let data = number.to_string();
            let twice = [1, 2].map(|index| Value::new(index, b"NUMBER", data.as_bytes()));
            transaction.put(&key, Values::build(twice, &mut Vec::new()))
        });
        changed.expect("the change is made");
        print_line(&format!("done {writer}"));
    }
}
