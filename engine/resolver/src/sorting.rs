//! Room for the lists of a query that are too long to compare one by one.

use crate::refusal::RefusalReason;
use core::cell::OnceCell;
use handle_proto::wire::query::{Query, SortedQuery};

/// Room for the sorted lists of one query. Slow-path threads have it; workers do not.
///
/// The room is for one query, that of one request: long lists of any other query are refused.
#[derive(Debug, Default)]
pub struct SortingRoom(OnceCell<(usize, SortedQuery)>);

impl SortingRoom {
    /// Empty room.
    #[must_use]
    pub const fn new() -> Self {
        Self(OnceCell::new())
    }

    pub(crate) fn sort(&self, query: Query<'_>) -> Result<&SortedQuery, RefusalReason> {
        // The address of the handle identifies the message of the query.
        let message = query.handle.as_ptr().addr();
        let (sorted_for, sorted) = self.0.get_or_init(|| (message, SortedQuery::new(&query)));
        if *sorted_for == message { Ok(sorted) } else { Err(RefusalReason::QueryTooLong) }
    }
}
