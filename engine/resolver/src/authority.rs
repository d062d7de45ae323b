//! Who is entitled: administrators named directly, and those in groups. RFC 3651 section 4, with the deployed
//! rules for index 0 and for groups.

use crate::answer::find_local;
use crate::service::Context;
use arrayvec::ArrayVec;
use handle_proto::data::admin::names;
use handle_proto::data::vlist::Vlist;
use handle_proto::limit::VLIST_EXPANSION_MAX;
use handle_proto::wire::list::Reference;
use handle_proto::{Handle, fold};

/// Type of the values that hold groups.
const HS_VLIST: &[u8] = b"HS_VLIST";

/// Whom the configuration entitles, beside the administrators of each handle.
#[derive(Clone, Copy, Debug, Default)]
pub struct Administrators<'a> {
    /// Administrators of the server; groups too.
    pub server: &'a [Reference<'a>],
    /// Whether they may read every handle.
    pub server_reads_all: bool,
    /// Who may read the state of the server, beside them.
    pub status: &'a [Reference<'a>],
    /// Most values of groups that are looked up for one decision; never more than
    /// [`VLIST_EXPANSION_MAX`].
    pub lookups_max: usize,
}

/// Whether somebody is entitled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entitled {
    /// Yes.
    Yes,
    /// No.
    No,
    /// Not as far as was looked: there are more groups than are looked up for one decision.
    GaveUp,
}

/// Whether one of `references` entitles `identity`.
///
/// A reference names it directly when handle and index are the same, or the reference has index 0; the local
/// name counts in its case whatever the service does. Otherwise references are looked up, breadth first and
/// each once, and those that are groups (HS_VLIST) entitle whom they name. References with index 0 name no
/// group. What cannot be looked up here entitles nobody.
pub fn entitles<'a, B: AsRef<[u8]>>(
    context: &Context<'a, B>,
    references: impl Iterator<Item = Reference<'a>>,
    identity: Reference<'_>,
    lookups_max: usize,
) -> Entitled {
    let mut groups = Groups { queue: ArrayVec::new(), lookups_max, has_more: false };
    let is_named = |reference: &Reference<'a>| names(reference, Handle(identity.handle), identity.index);
    for reference in references {
        if is_named(&reference) {
            return Entitled::Yes;
        }
        groups.push(reference);
    }
    let mut next = 0;
    while let Some(&reference) = groups.queue.get(next) {
        next += 1;
        for entry in group(context, reference).into_iter().flat_map(|group| group.0.iter()) {
            if is_named(&entry) {
                return Entitled::Yes;
            }
            groups.push(entry);
        }
    }
    if groups.has_more { Entitled::GaveUp } else { Entitled::No }
}

/// References that are, or were, to be looked up; each once, so that circles end.
struct Groups<'a> {
    queue: ArrayVec<Reference<'a>, VLIST_EXPANSION_MAX>,
    lookups_max: usize,
    /// Whether some were left out.
    has_more: bool,
}

impl<'a> Groups<'a> {
    fn push(&mut self, reference: Reference<'a>) {
        let is_same = |known: &Reference<'a>| {
            known.index == reference.index && Handle(known.handle).is_same(Handle(reference.handle), false)
        };
        if reference.index == 0 || self.queue.iter().any(is_same) {
            return;
        }
        if self.queue.len() >= self.lookups_max || self.queue.try_push(reference).is_err() {
            self.has_more = true;
        }
    }
}

/// The group that `reference` names, if it is one and is here. Who may read it does not matter.
fn group<'a, B: AsRef<[u8]>>(context: &Context<'a, B>, reference: Reference<'_>) -> Option<Vlist<'a>> {
    let record = find_local(context, Handle(reference.handle)).ok()??;
    let mut values = record.values_in_order().map_while(Result::ok);
    let value = values.find(|value| value.index == reference.index)?;
    fold::eq(value.kind, HS_VLIST).then(|| Vlist::decode(value.data).ok())?
}
