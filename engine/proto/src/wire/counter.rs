//! Counters of the messages in a session, against replay. Not in the RFCs; since version 2.5.

use crate::limit::SESSION_COUNTER_WINDOW;
use alloc::vec::Vec;

/// The counters that were received from the other side of a session.
///
/// Each side numbers its signed messages from 1. They may arrive out of order, but each only once,
/// and none may be older than all of the last [`SESSION_COUNTER_WINDOW`].
#[derive(Clone, Debug, Default)]
pub struct SeenCounters {
    // Ascending, at most `SESSION_COUNTER_WINDOW`.
    seen: Vec<i32>,
    // The highest counter that is no longer kept.
    floor: i32,
}

impl SeenCounters {
    /// No counters yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { seen: Vec::new(), floor: 0 }
    }

    /// Whether a message with this counter may be accepted. The counter is then used.
    ///
    /// Call it only after the MAC was verified. 0 stands for no counter and is never kept.
    pub fn accept(&mut self, counter: i32) -> bool {
        if counter == 0 {
            return true;
        }
        if counter <= self.floor {
            return false;
        }
        let Err(at) = self.seen.binary_search(&counter) else { return false };
        self.seen.insert(at, counter);
        if self.seen.len() > SESSION_COUNTER_WINDOW {
            self.floor = self.seen.remove(0);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_counts_once_in_any_order() {
        let mut seen = SeenCounters::new();
        for counter in [1, 3, 2, 200, 100] {
            assert!(seen.accept(counter), "{counter}");
            assert!(!seen.accept(counter), "{counter} again");
        }
        assert!(seen.accept(0) && seen.accept(0), "messages without a counter");
        assert!(!seen.accept(-1) && !seen.accept(i32::MIN));
        assert!(seen.accept(i32::MAX));
    }

    #[test]
    fn counters_older_than_the_window_are_refused() {
        let mut seen = SeenCounters::new();
        let window = i32::try_from(SESSION_COUNTER_WINDOW).unwrap();
        for counter in 2..window + 2 {
            assert!(seen.accept(counter));
        }
        assert!(seen.accept(1), "older than all, but no counter was dropped");
        assert!(!seen.accept(1), "dropped at once, and therefore refused");
        assert!(seen.accept(window + 2));
        assert!(!seen.accept(2), "dropped, and therefore refused");
        assert_eq!(seen.seen.len(), SESSION_COUNTER_WINDOW);
    }
}
