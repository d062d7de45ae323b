//! How well the schedule was kept: requests due and requests sent in each tenth of a second.

use serde::{Deserialize, Serialize};

/// Length of a window.
pub const WINDOW_NS: u64 = 100_000_000;

/// Maximum number of windows: those of the first hour.
const WINDOWS_MAX: usize = 36_000;

/// Requests due and requests sent, by window.
#[derive(Clone, Debug, Default)]
pub struct Pacing {
    due: Vec<u32>,
    sent: Vec<u32>,
}

/// How well the schedule was kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScheduleAccuracy {
    /// Length of a window, milliseconds.
    pub window_ms: u64,
    /// Windows of the run, up to one hour of them.
    pub windows: u64,
    /// Windows in which as many requests were sent as were due.
    pub exact: u64,
    /// The largest difference between requests due and requests sent in one window.
    pub difference_max: u64,
    /// The same as a share of what was due in that window on average.
    pub difference_max_share: f64,
}

impl Pacing {
    /// Allocates the windows of a run of this duration.
    #[must_use]
    pub fn new(end_ns: u64) -> Self {
        let windows = usize::try_from(end_ns / WINDOW_NS + 2).unwrap_or(usize::MAX).min(WINDOWS_MAX);
        Self { due: vec![0; windows], sent: vec![0; windows] }
    }

    /// Records a request that was due at `due_ns` and sent at `sent_ns`.
    #[inline]
    pub fn note(&mut self, due_ns: u64, sent_ns: u64) {
        count(&mut self.due, due_ns);
        count(&mut self.sent, sent_ns);
    }

    /// Records a request that was due at `due_ns` and never sent.
    pub fn note_unsent(&mut self, due_ns: u64) {
        count(&mut self.due, due_ns);
    }

    /// Adds the windows of another thread.
    pub fn add(&mut self, other: &Self) {
        for (sums, counts) in [(&mut self.due, &other.due), (&mut self.sent, &other.sent)] {
            sums.resize(sums.len().max(counts.len()), 0);
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }

    /// The result; `None` if nothing was due.
    #[must_use]
    pub fn accuracy(&self) -> Option<ScheduleAccuracy> {
        let used = self.due.iter().zip(&self.sent).filter(|(due, sent)| **due > 0 || **sent > 0);
        let differences: Vec<u64> = used.map(|(due, sent)| u64::from(due.abs_diff(*sent))).collect();
        let total: u64 = self.due.iter().copied().map(u64::from).sum();
        let difference_max = differences.iter().copied().max()?;
        let mean = total as f64 / differences.len() as f64;
        Some(ScheduleAccuracy {
            window_ms: WINDOW_NS / 1_000_000,
            windows: differences.len() as u64,
            exact: differences.iter().filter(|difference| **difference == 0).count() as u64,
            difference_max,
            difference_max_share: difference_max as f64 / mean.max(1.0),
        })
    }
}

fn count(windows: &mut [u32], ns: u64) {
    if let Some(count) = usize::try_from(ns / WINDOW_NS).ok().and_then(|at| windows.get_mut(at)) {
        *count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_missed_window_is_made_up_in_the_next() {
        let mut pacing = Pacing::new(1000 * MS);
        for ms in 0..1000 {
            // Nothing is sent from 300 ms to 400 ms; then all pending requests are sent at once.
            let sent_ms = if (300..400).contains(&ms) { 400 } else { ms };
            pacing.note(ms * MS, sent_ms * MS);
        }
        let accuracy = pacing.accuracy().unwrap();
        assert_eq!((accuracy.windows, accuracy.exact, accuracy.difference_max), (10, 8, 100));
        assert!((accuracy.difference_max_share - 1.0).abs() < 1e-9);
        // A request that was never sent is missing in the window in which it was due.
        pacing.note_unsent(950 * MS);
        assert_eq!(pacing.accuracy().map(|accuracy| (accuracy.windows, accuracy.exact)), Some((10, 7)));
    }

    #[test]
    fn memory_is_bounded_and_threads_add_up() {
        let mut long = Pacing::new(u64::MAX);
        assert_eq!(long.due.len(), WINDOWS_MAX);
        long.note(u64::MAX, u64::MAX);
        assert_eq!(long.accuracy(), None, "beyond the last window nothing is noted");
        let mut other = Pacing::new(MS);
        other.note(0, 0);
        long.note(0, 150 * MS);
        long.add(&other);
        assert_eq!(long.accuracy().map(|accuracy| (accuracy.windows, accuracy.difference_max)), Some((2, 1)));
    }
}
