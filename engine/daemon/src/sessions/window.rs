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
    /// A window in which no counter has been seen.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
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
        let place = &self.blocks[block as usize % BLOCKS];
        place.fetch_update(Ordering::Relaxed, Ordering::Relaxed, seen).is_ok()
    }
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
