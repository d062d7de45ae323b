//! Keeps a store, changes it without rest and publishes it, until it is killed: the process that `hostile::killed` kills.
//!
//! On its standard output it says what it is about to do, and what was acknowledged:
//! `try WRITER KEY NUMBER` and `done WRITER`; a negative number is a deletion. `shown TRANSACTION` says what is
//! published.
#![forbid(unsafe_code)]

use anyhow::Context as _;
use handle_admin::publish::{Command, PublishConfig, StorePublisher};
use handle_admin::store::{Store, StoreConfig};
use handle_proto::{Value, Values};
use handle_tests::killed::{KEYS, WRITERS, key, publish_config};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn main() -> anyhow::Result<()> {
    let dir = std::env::args().nth(1).context("the directory")?;
    let seed = std::env::args().nth(2).context("a seed")?.parse()?;
    let dir = Path::new(&dir);
    let store = Arc::new(Store::open(&StoreConfig::at(&dir.join("store")))?);
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
                say(&format!("shown {shown}"));
            }
            let done = match status.store_transaction % 16 {
                0 => publishing.command(Command::Rebuild),
                1 => publishing.command(Command::Merge),
                2 => publishing.command(Command::Keep),
                _ => continue,
            };
            done.expect("the command is obeyed");
        }
    })
}

/// One line, at once and in one piece.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Nobody hears us any more once we are killed.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Puts and deletes records, each with the same number in two values.
fn write(store: &Store, writer: usize, seed: u64) {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + writer as u64 + 1;
    for number in 1.. {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let nth = usize::try_from(random >> 33).expect("31 bits") % KEYS;
        let is_deletion = random.is_multiple_of(8);
        // Above all numbers of earlier rounds.
        let number = i64::try_from(seed * 1_000_000 + number).expect("few rounds");
        let number = if is_deletion { -number } else { number };
        say(&format!("try {writer} {nth} {number}"));
        let key = key(writer, nth);
        let changed = store.change(move |transaction| {
            if is_deletion {
                return transaction.delete(&key).map(|_| ());
            }
            let data = number.to_string();
            let twice = [1, 2].map(|index| Value::new(index, b"NUMBER", data.as_bytes()));
            transaction.put(&key, Values::build(twice, &mut Vec::new()))
        });
        changed.expect("the change is made");
        say(&format!("done {writer}"));
    }
}
