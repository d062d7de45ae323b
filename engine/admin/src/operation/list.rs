//! Listing names page by page, so that a listing of any length needs memory for one page. RFC 3652
//! section 3.7.

use super::{DecisionCase, DecisionResult, NOT_HOMED, OperationDecision, not_supported};
use crate::permission::{PermissionNeed, prefix_record};
use handle_proto::fold;
use handle_proto::limit::LIST_PAGE_COUNT;
use handle_proto::name::{PREFIX_OF_PREFIXES, PREFIX_RECORDS};
use handle_store::{StoreError, StoreRecords, StoreSnapshot};

impl<R: StoreRecords> DecisionCase<'_, R> {
    pub(super) fn list_handles(&self, handle: &[u8]) -> DecisionResult {
        if !self.rules.lists_handles {
            return Err(not_supported("This server does not list handles.").into());
        }
        let Some(record) = prefix_record(handle) else { return Err(NOT_HOMED.into()) };
        let prefix = &record[PREFIX_RECORDS.len()..];
        // The part after `0.NA/0.NA/` names a prefix; all prefixes derived from it are listed.
        let derived_from = prefix.strip_prefix(PREFIX_RECORDS).filter(|name| !name.is_empty());
        let is_homed = self.records.is_homed(prefix)?
            || (derived_from.is_some() && self.records.is_homed(PREFIX_OF_PREFIXES)?);
        if !is_homed {
            return Err(NOT_HOMED.into());
        }
        self.permit(&PermissionNeed::listing(&record, self.records.folds()).into())?;
        let start = match derived_from {
            Some(name) => [PREFIX_RECORDS, name, b"."].concat(),
            None => [prefix, b"/"].concat(),
        };
        Ok(OperationDecision::List(Lister::handles(start)))
    }
}

/// A listing in progress.
#[derive(Clone, Debug)]
pub struct Lister {
    /// What the folded names begin with; `None` to list homed prefixes.
    start: Option<Vec<u8>>,
    /// The last name that was returned.
    after: Option<Vec<u8>>,
}

impl Lister {
    const fn handles(start: Vec<u8>) -> Self {
        Self { start: Some(start), after: None }
    }

    pub(super) const fn homed() -> Self {
        Self { start: None, after: None }
    }

    /// The next names of `snapshot`, and whether there are more. All pages of a listing must come
    /// from the same `snapshot`.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn page(&mut self, snapshot: &StoreSnapshot) -> Result<(Vec<Vec<u8>>, bool), StoreError> {
        let mut names = match &self.start {
            Some(start) if snapshot.folds() => {
                let found = snapshot.records_under(start, self.after.as_deref())?;
                take(found.map(|stored| stored.map(|stored| stored.handle().to_vec())))?
            }
            Some(start) => {
                // Prefixes are equal in any case, but this store keeps names as they were spelt.
                let found = snapshot.records_under(b"", self.after.as_deref())?;
                let names = found.map(|stored| stored.map(|stored| stored.handle().to_vec()));
                take(names.filter(|name| name.as_ref().map_or(true, |name| fold::starts_with(name, start))))?
            }
            None => {
                let after = |name: &Vec<u8>| self.after.as_ref().is_none_or(|after| name > after);
                let records = snapshot.homed()?.into_iter().map(|prefix| [PREFIX_RECORDS, &prefix].concat());
                take(records.filter(after).map(Ok))?
            }
        };
        let has_more = names.len() > LIST_PAGE_COUNT;
        names.truncate(LIST_PAGE_COUNT);
        self.after = names.last().cloned();
        Ok((names, has_more))
    }
}

/// Takes one name more than fits on a page, which tells whether another page follows.
fn take(names: impl Iterator<Item = Result<Vec<u8>, StoreError>>) -> Result<Vec<Vec<u8>>, StoreError> {
    names.take(LIST_PAGE_COUNT + 1).collect()
}
