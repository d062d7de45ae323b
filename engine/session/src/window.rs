//! Replay protection by the counters of the messages in a session, lock-free for many threads.
//! Counters are not in the RFCs; they exist since version 2.5.
//!
//! [`SeenCounters`](handle_proto::wire::counter::SeenCounters) implements the deployed rule: the
//! last 200 counters are remembered, each counter is accepted once, and a counter must be greater
//! than every forgotten one. Here the window is a distance instead of a number of messages: a
//! counter that is more than 200 below the highest is refused. Without skipped counters the two
//! rules are the same; with skipped counters this window is narrower.

use handle_proto::limit::SESSION_COUNTER_WINDOW;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Counters in a block. Their bits take half a word; the other half is the number of the block.
const BLOCK: u32 = 32;
/// Blocks that are kept. The window always fits in fewer blocks, wherever it begins.
const BLOCKS: usize = 8;
const WINDOW: u32 = 200;
const _: () = assert!(WINDOW as usize == SESSION_COUNTER_WINDOW);
const _: () =
    assert!((WINDOW / BLOCK) as usize + 2 <= BLOCKS, "a window never needs the place of its own end");

/// The counters received from the other side of a session.
#[derive(Debug, Default)]
pub struct CounterWindow {
    highest: AtomicU32,
    /// The upper half of each word is the number of a block, the lower half the set of its counters
    /// that were seen. A word is only reused for a later block, never for an earlier one, so every
    /// counter seen is either still recorded or too old to be accepted.
    blocks: [AtomicU64; BLOCKS],
}

impl CounterWindow {
    /// Length of the window in bytes.
    pub const LEN: usize = 4 + 8 * BLOCKS;

    /// A window in which no counter has been seen.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The bytes of the window, which [`from_bytes`](Self::from_bytes) reads. Meanwhile, no counter
    /// may be accepted.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let (highest, blocks) = bytes.split_at_mut(4);
        highest.copy_from_slice(&self.highest.load(Ordering::Relaxed).to_be_bytes());
        for (out, block) in blocks.chunks_exact_mut(8).zip(&self.blocks) {
            out.copy_from_slice(&block.load(Ordering::Relaxed).to_be_bytes());
        }
        bytes
    }

    /// The window of these bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let (highest, blocks) = bytes.split_at(4);
        let window = Self::new();
        window.highest.store(u32::try_from(number(highest)).unwrap_or(u32::MAX), Ordering::Relaxed);
        for (block, bytes) in window.blocks.iter().zip(blocks.chunks_exact(8)) {
            block.store(number(bytes), Ordering::Relaxed);
        }
        window
    }

    /// Accepts each counter at most once. Returns false for a replay or a counter below the window.
    ///
    /// Call this only after the MAC has been verified. Counters begin with 1.
    pub fn accept(&self, counter: i32) -> bool {
        let Ok(counter @ 1..) = u32::try_from(counter) else { return false };
        let highest = self.highest.fetch_max(counter, Ordering::Relaxed);
        if counter + WINDOW < highest {
            return false;
        }
        let (block, bit) = (counter / BLOCK, 1 << (counter % BLOCK));
        let seen = |word: u64| {
            let (number, bits) = (word >> 32, word & u64::from(u32::MAX));
            match number.cmp(&block.into()) {
                std::cmp::Ordering::Less => Some(u64::from(block) << 32 | bit),
                std::cmp::Ordering::Equal if bits & bit == 0 => Some(word | bit),
                _ => None,
            }
        };
        let block_seen = &self.blocks[block as usize % BLOCKS];
        block_seen.fetch_update(Ordering::Relaxed, Ordering::Relaxed, seen).is_ok()
    }
}

/// The number that these bytes are, the highest first.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::wire::counter::SeenCounters;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn each_counter_counts_once_in_any_order() {
        let window = CounterWindow::new();
        for counter in [1, 3, 2, 200, 100, 201] {
            assert!(window.accept(counter), "{counter}");
            assert!(!window.accept(counter), "{counter} again");
        }
        assert!(!window.accept(0) && !window.accept(-1) && !window.accept(i32::MIN));
        assert!(window.accept(i32::MAX));
        assert!(!window.accept(i32::MAX) && !window.accept(4), "far below");
    }

    #[test]
    fn what_is_older_than_the_window_is_refused_at_its_edge() {
        let window = CounterWindow::new();
        let last = i32::try_from(WINDOW).unwrap() + 1;
        for counter in 2..=last {
            assert!(window.accept(counter));
        }
        assert!(window.accept(1), "200 below the highest");
        assert!(window.accept(last + 2));
        assert!(!window.accept(1) && !window.accept(2), "more than 200 below");
        assert!(window.accept(last + 1), "late, but in the window");
    }

    #[test]
    fn threads_that_get_the_same_counters_accept_each_once() {
        let (window, accepted) = (CounterWindow::new(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mine = (1..=5000).filter(|&counter| window.accept(counter)).count();
                    accepted.fetch_add(mine, Ordering::Relaxed);
                });
            }
        });
        let accepted = accepted.into_inner();
        assert!(
            (4000..=5000).contains(&accepted),
            "{accepted}: all, but for those that a late thread finds too old"
        );
    }

    #[test]
    fn a_window_of_bytes_accepts_what_the_window_would() {
        let window = CounterWindow::new();
        for counter in [1, 7, 190, 300, 301] {
            assert!(window.accept(counter));
        }
        let copy = CounterWindow::from_bytes(&window.to_bytes());
        assert_eq!(copy.to_bytes(), window.to_bytes());
        for counter in [0, 1, 7, 99, 100, 101, 190, 191, 300, 301, 302] {
            assert_eq!(copy.accept(counter), window.accept(counter), "{counter}");
        }
    }

    proptest! {
        /// The plain rule is the definition. This window accepts no counter that the plain rule
        /// refuses, and refuses no counter within the distance that the plain rule accepts.
        #[test]
        fn agrees_with_the_plain_rule(steps in prop::collection::vec((0_i32..260, 0_i32..3), 0..800)) {
            let (window, mut plain, mut highest) = (CounterWindow::new(), SeenCounters::new(), 0);
            for (back, forward) in steps {
                let counter = if forward > 0 { highest + forward } else { highest - back };
                let accepted = window.accept(counter);
                if counter == 0 {
                    prop_assert!(!accepted, "no counter");
                    continue;
                }
                let within = counter + 200 >= highest && counter > 0;
                if accepted || within {
                    prop_assert_eq!(accepted, plain.accept(counter), "{} below {}", counter, highest);
                }
                highest = highest.max(counter);
            }
        }
    }
}
