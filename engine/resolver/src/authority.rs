//! Checks whether an identity is an administrator, named directly or through a group. RFC 3651
//! section 4, with the rules that deployed servers have for index 0 and for groups.

use crate::local_record::{LocalRecord, NotLocal, find_local};
use crate::service::AnswerContext;
use arrayvec::ArrayVec;
use handle_proto::data::admin::names;
use handle_proto::data::kind::HS_VLIST;
use handle_proto::data::vlist::Vlist;
use handle_proto::limit::VLIST_EXPANSION_MAX;
use handle_proto::wire::list::Reference;
use handle_proto::{Handle, fold};

/// The administrators in the configuration, in addition to those of each handle.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerAdministrators<'a> {
    /// Administrators of the server, as identities or groups.
    pub server: &'a [Reference<'a>],
    /// Whether they may read the values of every handle.
    pub server_reads_all: bool,
    /// Further administrators, who may read only the state of the server.
    pub status: &'a [Reference<'a>],
    /// Most group values that are looked up for one decision, at most [`VLIST_EXPANSION_MAX`].
    pub lookups_max: usize,
}

/// Whether an identity is authorised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorityOutcome {
    /// The identity is authorised.
    Yes,
    /// The identity is not authorised.
    No,
    /// The identity was not found among the groups that may be looked up for one decision, and
    /// there are more groups.
    GaveUp,
    /// No record on this server authorises the identity, but a reference that may be a group is at
    /// another service.
    Remote,
}

/// Whether one of `references` authorises `identity`.
///
/// A reference names the identity directly if handle and index are the same, or if the index of the
/// reference is 0. The local name is compared case-sensitively, even on a service that folds. If no
/// reference matches directly, references are looked up breadth first, each once, and those that
/// are groups (HS_VLIST) authorise their members. A reference with index 0 names no group. A
/// reference that cannot be looked up here authorises no identity; the result is then
/// [`AuthorityOutcome::Remote`].
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

/// References to look up, including those already looked up. Each occurs once, so that circles end.
struct AdministratorGroups<'a> {
    queue: ArrayVec<Reference<'a>, VLIST_EXPANSION_MAX>,
    lookups_max: usize,
    /// Whether references were left out.
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

/// The group that `reference` names, if it names one, whatever the read permissions of the value.
///
/// # Errors
/// The value is not on this server.
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
