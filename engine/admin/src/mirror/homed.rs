//! Whether the mirror has the homed prefixes of a primary. It asks the primary for all of them at
//! intervals, and compares them with its store: what was applied is not taken for what should be
//! there.

use super::scope::MirrorScope;
use handle_proto::name::PREFIX_RECORDS;
use handle_proto::wire::replication::StartingPoint;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Where a dump is continued to get the homed prefixes only: after the one before the first.
pub const HOMED_ONLY: StartingPoint<'static> = StartingPoint { item: b"", kind: 3 };

/// Pause between two comparisons. One costs the primary a signature and a list of its prefixes,
/// which change rarely.
const INTERVAL: Duration = Duration::from_secs(600);
/// The pause while sets differ, so that the difference is not shown long after it is gone.
const DIFFERENT_INTERVAL: Duration = Duration::from_secs(30);

/// Compares homed prefixes at intervals.
///
/// The primary may change between the last transactions that the mirror has applied and the answer,
/// so a prefix counts as different once two comparisons in a row, with a complete stream of
/// transactions between them, have found it.
#[derive(Debug, Default)]
pub struct HomedComparison {
    /// When the next comparison is due; at once if not set.
    due: Option<Instant>,
    /// What the last comparison found, and the one before did not.
    suspected: BTreeSet<Vec<u8>>,
}

impl HomedComparison {
    /// Whether a comparison is due.
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        self.due.is_none_or(|due| due <= now)
    }

    /// Lets the next comparison be due at once: homed prefixes have changed.
    pub const fn set_due(&mut self) {
        self.due = None;
    }

    /// Takes the outcome of a comparison: prefixes that are homed at one side only. Returns those
    /// that count as different; `None` if the next comparison decides.
    pub fn note(&mut self, found: BTreeSet<Vec<u8>>, now: Instant) -> Option<Vec<Vec<u8>>> {
        let confirmed: Vec<_> = found.intersection(&self.suspected).cloned().collect();
        let is_settled = confirmed.len() == found.len();
        self.due = match (is_settled, found.is_empty()) {
            (false, _) => None,
            (true, true) => Some(now + INTERVAL),
            (true, false) => Some(now + DIFFERENT_INTERVAL),
        };
        self.suspected = found;
        is_settled.then_some(confirmed)
    }

    /// Notes that the primary did not send its homed prefixes.
    pub fn note_failure(&mut self, now: Instant) {
        self.due = Some(now + INTERVAL);
    }
}

/// The prefixes that are homed at one side only. `at_primary` are those within the scope.
#[must_use]
pub fn differences(
    at_primary: &BTreeSet<Vec<u8>>,
    here: &[Vec<u8>],
    scope: &MirrorScope,
) -> BTreeSet<Vec<u8>> {
    let here: BTreeSet<&Vec<u8>> = here.iter().collect();
    let missing = at_primary.iter().filter(|prefix| !here.contains(prefix));
    let belongs = |prefix: &[u8]| scope.owns_prefix(&[PREFIX_RECORDS, prefix].concat());
    let extra = here.iter().copied().filter(|prefix| !at_primary.contains(*prefix) && belongs(prefix));
    missing.chain(extra).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::super::scope::PrefixFilter;
    use super::*;
    use crate::replication::source::ReceiverShare;
    use handle_proto::HashOption;

    fn set(prefixes: &[&str]) -> BTreeSet<Vec<u8>> {
        prefixes.iter().map(|prefix| prefix.as_bytes().to_vec()).collect()
    }

    #[test]
    fn a_difference_counts_when_it_is_found_twice() {
        let (mut comparison, mut now) = (HomedComparison::default(), Instant::now());
        assert!(comparison.is_due(now), "at the start");
        assert_eq!(comparison.note(set(&[]), now), Some(vec![]));
        assert!(!comparison.is_due(now + INTERVAL / 2) && comparison.is_due(now + INTERVAL));
        comparison.set_due();
        assert!(comparison.is_due(now), "after a change");
        assert_eq!(comparison.note(set(&["10.1", "10.2"]), now), None);
        assert!(comparison.is_due(now), "it is compared again after the next transactions");
        assert_eq!(comparison.note(set(&["10.1", "10.3"]), now), None, "10.3 is new");
        assert_eq!(comparison.note(set(&["10.1"]), now), Some(vec![b"10.1".to_vec()]));
        now += DIFFERENT_INTERVAL;
        assert!(comparison.is_due(now));
        assert_eq!(comparison.note(set(&["10.1"]), now), Some(vec![b"10.1".to_vec()]), "still");
        assert_eq!(comparison.note(set(&[]), now), Some(vec![]), "repaired");
        comparison.note_failure(now);
        assert!(!comparison.is_due(now + INTERVAL / 2));
    }

    #[test]
    fn prefixes_of_other_primaries_are_not_extra() {
        let filter = |prefix: &str| PrefixFilter::new(&[prefix.to_owned()]);
        let whole = ReceiverShare { hash_option: HashOption::Handle, servers_count: 1, server_at: 0 };
        let scope = MirrorScope {
            filter: filter("10.1"),
            others: vec![filter("10.2")],
            own_share: whole,
            primary_share: whole,
        };
        let here: Vec<Vec<u8>> = set(&["10.1", "10.2", "0.NA/10.2", "10.3"]).into_iter().collect();
        assert_eq!(differences(&set(&["10.1"]), &here, &scope), set(&["10.3"]));
        assert_eq!(differences(&set(&["10.1", "0.NA/10.1"]), &here, &scope), set(&["0.NA/10.1", "10.3"]));
    }
}
