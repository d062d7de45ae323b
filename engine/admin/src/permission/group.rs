//! Whether an identity is meant: named directly, or by a group. RFC 3651 section 4, with the deployed rules for
//! index 0 and for groups.

use super::view::DecisionView;
use crate::store::{StoreError, StoreRecords};
use handle_proto::data::admin::names;
use handle_proto::data::kind::HS_VLIST;
use handle_proto::data::vlist::Vlist;
use handle_proto::wire::list::Reference;
use handle_proto::{Handle, fold};
use std::collections::{HashSet, VecDeque};

/// Whether somebody is entitled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntitlementOutcome {
    /// No.
    No,
    /// Not as far as was looked: there are more groups than are looked up for one decision.
    GaveUp,
    /// Yes.
    Yes,
}

/// An identity, and how many groups are still looked up for it.
pub struct Entitlement<'a, R> {
    view: &'a DecisionView<'a, R>,
    identity: Reference<'a>,
    lookups_left: usize,
}

impl<'a, R: StoreRecords> Entitlement<'a, R> {
    /// Nothing has been looked up for `identity`; at most `lookups_max` groups will be, in all that is asked.
    pub const fn new(view: &'a DecisionView<'a, R>, identity: Reference<'a>, lookups_max: usize) -> Self {
        Self { view, identity, lookups_left: lookups_max }
    }

    /// Whether one of `references` means the identity.
    ///
    /// A reference names it directly when handle and index are the same, or the reference has index 0; the local name
    /// counts in its case whatever the service does. Otherwise references are looked up, breadth first and each once,
    /// and those that are groups (HS_VLIST) mean whom they name. References with index 0 name no group. What cannot be
    /// looked up means nobody.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn ask<'r>(
        &mut self,
        references: impl Iterator<Item = Reference<'r>>,
    ) -> Result<EntitlementOutcome, StoreError> {
        let mut groups = GroupValues::default();
        for reference in references {
            if self.is_named_by(&reference) {
                return Ok(EntitlementOutcome::Yes);
            }
            groups.push(&reference);
        }
        while let Some((handle, index)) = groups.queue.pop_front() {
            let Some(left) = self.lookups_left.checked_sub(1) else { return Ok(EntitlementOutcome::GaveUp) };
            self.lookups_left = left;
            let named = self.view.value(Reference { handle: &handle, index }, |value| {
                if !fold::eq(value.kind, HS_VLIST) {
                    return None;
                }
                self.search(&Vlist::decode(value.data).ok()?, &mut groups)
            })?;
            if named.is_some() {
                return Ok(EntitlementOutcome::Yes);
            }
        }
        Ok(EntitlementOutcome::No)
    }

    /// Whether a group names the identity itself; what else it names is to be looked up.
    fn search(&self, group: &Vlist<'_>, groups: &mut GroupValues) -> Option<()> {
        for entry in group.0.iter() {
            if self.is_named_by(&entry) {
                return Some(());
            }
            // What would not be looked up any more need not be kept.
            if groups.queue.len() <= self.lookups_left {
                groups.push(&entry);
            }
        }
        None
    }

    fn is_named_by(&self, reference: &Reference<'_>) -> bool {
        self.view.note_named(reference, self.identity);
        names(reference, Handle(self.identity.handle), self.identity.index)
    }
}

/// References that are to be looked up, each once, so that circles end.
#[derive(Default)]
struct GroupValues {
    seen: HashSet<(Vec<u8>, i32)>,
    queue: VecDeque<(Vec<u8>, i32)>,
}

impl GroupValues {
    fn push(&mut self, reference: &Reference<'_>) {
        let name = (Handle(reference.handle).prefix_folded(), reference.index);
        if reference.index != 0 && self.seen.insert(name) {
            self.queue.push_back((reference.handle.to_vec(), reference.index));
        }
    }
}
