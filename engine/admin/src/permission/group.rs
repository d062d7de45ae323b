//! Whether references include an identity: directly, or through groups. RFC 3651 section 4, with
//! the deployed rules for index 0 and for groups.

use super::view::DecisionView;
use handle_proto::data::admin::names;
use handle_proto::data::kind::HS_VLIST;
use handle_proto::data::vlist::Vlist;
use handle_proto::wire::list::Reference;
use handle_proto::{Handle, fold};
use handle_store::{StoreError, StoreRecords};
use std::collections::{HashSet, VecDeque};

/// The result of checking whether an identity is entitled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntitlementOutcome {
    /// The identity is not entitled.
    No,
    /// The lookup limit was reached before the identity was found: there are more groups than one
    /// decision looks up.
    GaveUp,
    /// The identity is entitled.
    Yes,
}

/// An identity, and the number of groups that may still be looked up for it.
pub struct Entitlement<'a, R> {
    view: &'a DecisionView<'a, R>,
    identity: Reference<'a>,
    lookups_left: usize,
}

impl<'a, R: StoreRecords> Entitlement<'a, R> {
    /// Starts a check of `identity`. At most `lookups_max` groups are looked up in all calls
    /// together.
    pub const fn new(view: &'a DecisionView<'a, R>, identity: Reference<'a>, lookups_max: usize) -> Self {
        Self { view, identity, lookups_left: lookups_max }
    }

    /// Whether one of `references` names the identity.
    ///
    /// A reference names the identity directly if handle and index are equal, or if the index of
    /// the reference is 0; the local name is compared with case, whatever the service does. Other
    /// references are looked up, breadth first and each once; those that are groups (HS_VLIST)
    /// stand for their members. References with index 0 name no group. References that cannot be
    /// looked up name no identity.
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

    /// Whether a group names the identity itself; its other references are queued for lookup.
    fn search(&self, group: &Vlist<'_>, groups: &mut GroupValues) -> Option<()> {
        for entry in group.0.iter() {
            if self.is_named_by(&entry) {
                return Some(());
            }
            // References beyond the lookup limit need not be kept.
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

/// References to look up, each once, so that cycles end.
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
