//! Batch files for tests.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use std::fmt::Write as _;

/// Number of operations in a batch; `HANDLE_BATCH_OPERATIONS` overrides the default.
///
/// # Panics
/// If the variable is not a number.
#[must_use]
pub fn operations() -> usize {
    std::env::var("HANDLE_BATCH_OPERATIONS").map_or(3000, |count| count.parse().expect("a number"))
}

/// Operations of all kinds on few handles, so that many depend on others, and some are refused.
///
/// Prefixes are homed at a server on port `PORT`, which the caller replaces.
#[must_use]
pub fn batch(seed: u64, count: usize) -> String {
    let mut random = StdRng::seed_from_u64(seed);
    let mut text = String::from("SESSIONSETUP\nUSESESSION:0\n\n");
    for at in 0..count {
        let handle = format!("10.1045/{}", random.random_range(0..count / 8 + 1));
        let index = random.random_range(1..4);
        let values = |first: i32| {
            format!("{first} URL 86400 1110 UTF8 value {at}\n{} DESC 60 1100 UTF8 x\n", first + 10)
        };
        let _ = match random.random_range(0..10) {
            0..4 => writeln!(text, "CREATE {handle}\n{}", values(index)),
            4 => writeln!(text, "ADD {handle}\n{}", values(index)),
            5..7 => writeln!(text, "MODIFY {handle}\n{index} URL 86400 1110 UTF8 changed {at}\n"),
            7 => writeln!(text, "REMOVE {index}:{handle}"),
            8 => writeln!(text, "DELETE {handle}"),
            _ => writeln!(text, "HOME 127.0.0.1:PORT:TCP\n0.NA/10.{at}\n"),
        };
    }
    text
}
