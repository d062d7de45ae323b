//! The handles that the last sets have changed, for machines that are told their names.

use handle_daemon::notice::{ChangedHandles, NAME_HEAD_LEN};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes that a set counts for besides names, so that sets without changes are bounded too.
const SET_LEN: usize = 64;

/// The handles that each of the last sets has changed, as far as they fit.
#[derive(Debug, Default)]
pub(super) struct RecentChanges(Mutex<KnownSets>);

#[derive(Debug, Default)]
struct KnownSets {
    /// Generations, and what has changed in each of them, oldest first.
    sets: VecDeque<(u64, ChangedHandles)>,
    /// Bytes of all names.
    len: usize,
}

impl RecentChanges {
    fn lock(&self) -> MutexGuard<'_, KnownSets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what the set `generation` has changed. Older sets are forgotten when all of them have
    /// more than `len_max` bytes.
    pub(super) fn note<'h>(
        &self,
        generation: u64,
        handles: impl IntoIterator<Item = &'h [u8]>,
        len_max: usize,
    ) {
        let (mut changed, mut known) = (ChangedHandles::default(), self.lock());
        for handle in handles {
            if changed.as_bytes().len() + NAME_HEAD_LEN + handle.len() > len_max || !changed.add(handle) {
                *known = KnownSets::default();
                return;
            }
        }
        known.len += changed.as_bytes().len() + SET_LEN;
        known.sets.push_back((generation, changed));
        while known.len > len_max.saturating_add(SET_LEN) {
            let Some((_, oldest)) = known.sets.pop_front() else { break };
            known.len -= oldest.as_bytes().len() + SET_LEN;
        }
    }

    /// What has changed from the set `from` to the set `to`; `None` if that is not known of each
    /// set between them, or is too much for a notice.
    pub(super) fn between(&self, from: u64, to: u64) -> Option<ChangedHandles> {
        let (known, mut expected) = (self.lock(), from);
        let mut changed = ChangedHandles::default();
        for (generation, handles) in &known.sets {
            if *generation <= expected || *generation > to {
                continue;
            }
            expected += 1;
            if *generation != expected || !changed.append(handles) {
                return None;
            }
        }
        (expected == to).then_some(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(changed: Option<ChangedHandles>) -> Option<Vec<Vec<u8>>> {
        changed.map(|changed| changed.names().map(<[u8]>::to_vec).collect())
    }

    #[test]
    fn changes_are_known_where_no_set_is_missing() {
        let (changes, none) = (RecentChanges::default(), [[0_u8; 0]; 0]);
        changes.note(3, [&b"10.1/a"[..], b"10.1/b"], 1000);
        changes.note(4, none.iter().map(|none| &none[..]), 1000);
        changes.note(5, [&b"10.1/a"[..]], 1000);
        let all = vec![b"10.1/a".to_vec(), b"10.1/b".to_vec(), b"10.1/a".to_vec()];
        assert_eq!(names(changes.between(2, 5)), Some(all.clone()));
        assert_eq!(names(changes.between(2, 4)), Some(all[..2].to_vec()));
        assert_eq!(names(changes.between(4, 5)), Some(all[2..].to_vec()));
        assert_eq!(names(changes.between(5, 5)), Some(vec![]));
        for (from, to) in [(1, 5), (2, 6), (5, 4), (0, 1)] {
            assert_eq!(changes.between(from, to), None, "{from} to {to}");
        }
        // A set of which nothing was noted.
        changes.note(7, [&b"10.1/c"[..]], 1000);
        assert_eq!(changes.between(4, 7), None);
        assert_eq!(names(changes.between(6, 7)), Some(vec![b"10.1/c".to_vec()]));
    }

    #[test]
    fn the_oldest_sets_are_forgotten_at_the_limit() {
        let changes = RecentChanges::default();
        let name = [b'x'; 98];
        for generation in 1..=10 {
            changes.note(generation, [&name[..]], 3 * (100 + SET_LEN) - SET_LEN);
        }
        assert_eq!(changes.between(6, 10), None);
        assert_eq!(names(changes.between(7, 10)).map(|names| names.len()), Some(3));
        // A set with more than that is not known.
        let many = [&name[..]; 5];
        changes.note(11, many, 499);
        assert!(changes.between(10, 11).is_none() && changes.between(9, 10).is_none());
        changes.note(12, many, 500);
        assert_eq!(names(changes.between(11, 12)).map(|names| names.len()), Some(5));
        changes.note(13, [&b"10.1/x"[..]], 0);
        assert_eq!(changes.between(12, 13), None, "nothing is remembered");
    }
}
