//! Counters of the messages in a session, against replay, for many threads without a lock. Not in the RFCs; since
//! version 2.5.
//!
//! [`SeenCounters`](handle_proto::wire::counter::SeenCounters) says what the deployed rule is: each counter once, and
//! none that is not greater than what was forgotten of the last 200. Here the window is a distance and not a number
//! of messages: a counter that is more than 200 below the highest is refused. Where none was skipped that is the
//! same, and where some were this window is the narrower one.

use handle_proto::limit::SESSION_COUNTER_WINDOW;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Counters in a block: half a word, the other half says which block it is.
const BLOCK: u32 = 32;
/// Blocks that are kept. All counters of the window lie in fewer, wherever it begins.
const BLOCKS: usize = 8;
const WINDOW: u32 = 200;
const _: () = assert!(WINDOW as usize == SESSION_COUNTER_WINDOW);
const _: () =
    assert!((WINDOW / BLOCK) as usize + 2 <= BLOCKS, "a window never needs the place of its own end");

/// The counters that have been seen from the other side of a session.
#[derive(Debug, Default)]
pub struct CounterWindow {
    highest: AtomicU32,
    /// The number of a block above, and which of its counters were seen below. A place is taken over by later
    /// blocks and never by earlier ones, so what was seen in it is either known or refused.
    blocks: [AtomicU64; BLOCKS],
}

impl CounterWindow {
    /// Nothing seen yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a message with this counter may be accepted; from now on it may not.
    ///
    /// To be asked once the MAC has been found right. Counters begin with 1.
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
        /// The plain rule is the definition: nothing is accepted that it refuses, and nothing that is within the
        /// distance is refused that it accepts.
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
