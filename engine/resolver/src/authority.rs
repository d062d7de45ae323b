//! Who is entitled: administrators named directly, and those in groups. RFC 3651 section 4, with the deployed
//! rules for index 0 and for groups.

use crate::answer::{LocalRecord, NotLocal, find_local};
use crate::service::AnswerContext;
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
pub struct ServerAdministrators<'a> {
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
pub enum AuthorityOutcome {
    /// Yes.
    Yes,
    /// No.
    No,
    /// Not as far as was looked: there are more groups than are looked up for one decision.
    GaveUp,
    /// Not by what is known here: something that may be a group is at another service.
    Remote,
}

/// Whether one of `references` entitles `identity`.
///
/// A reference names it directly when handle and index are the same, or the reference has index 0; the local
/// name counts in its case whatever the service does. Otherwise references are looked up, breadth first and
/// each once, and those that are groups (HS_VLIST) entitle whom they name. References with index 0 name no
/// group. What cannot be looked up here entitles nobody, and the answer says so.
pub fn entitles<'a, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    references: impl Iterator<Item = Reference<'a>>,
    identity: Reference<'_>,
    lookups_max: usize,
) -> AuthorityOutcome {
    let mut groups = AdministratorGroups { queue: ArrayVec::new(), lookups_max, has_more: false };
    let is_named = |reference: &Reference<'a>| names(reference, Handle(identity.handle), identity.index);
    for reference in references {
        if is_named(&reference) {
            return AuthorityOutcome::Yes;
        }
        groups.push(reference);
    }
    let (mut next, mut is_elsewhere) = (0, false);
    while let Some(&reference) = groups.queue.get(next) {
        next += 1;
        let group = group(context, reference);
        is_elsewhere |= group == Err(NotLocal::Remote);
        for entry in group.ok().flatten().into_iter().flat_map(|group| group.0.iter()) {
            if is_named(&entry) {
                return AuthorityOutcome::Yes;
            }
            groups.push(entry);
        }
    }
    match (groups.has_more, is_elsewhere) {
        (true, _) => AuthorityOutcome::GaveUp,
        (false, true) => AuthorityOutcome::Remote,
        (false, false) => AuthorityOutcome::No,
    }
}

/// References that are, or were, to be looked up; each once, so that circles end.
struct AdministratorGroups<'a> {
    queue: ArrayVec<Reference<'a>, VLIST_EXPANSION_MAX>,
    lookups_max: usize,
    /// Whether some were left out.
    has_more: bool,
}

impl<'a> AdministratorGroups<'a> {
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

/// The group that `reference` names, if it is one. Who may read it does not matter.
///
/// # Errors
/// When the value is not here.
fn group<'a, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    reference: Reference<'_>,
) -> Result<Option<Vlist<'a>>, NotLocal> {
    let LocalRecord { record, is_copy } = find_local(context, Handle(reference.handle))?;
    let mut values = record.into_iter().flat_map(|record| record.values_in_order().map_while(Result::ok));
    match values.find(|value| value.index == reference.index) {
        Some(value) if fold::eq(value.kind, HS_VLIST) => Ok(Vlist::decode(value.data).ok()),
        None if is_copy => Err(NotLocal::Remote),
        _ => Ok(None),
    }
}
