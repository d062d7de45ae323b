//! A buffer for the lists of a query that are too long to compare one by one.

use crate::refusal::RefusalReason;
use core::cell::OnceCell;
use handle_proto::wire::query::{Query, SortedQuery};

/// A buffer for the sorted lists of one query. Slow-path threads have it; workers do not.
///
/// The buffer is for one query, that of one request: long lists of any other query are refused.
#[derive(Debug, Default)]
pub struct SortingBuffer(OnceCell<(usize, SortedQuery)>);

impl SortingBuffer {
    /// An empty buffer.
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

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::Value;
    use handle_proto::wire::list::{Indexes, Strings};
    use std::vec::Vec;

    #[test]
    fn the_buffer_is_for_the_lists_of_one_query() {
        let (mut two, mut three) = (Vec::new(), Vec::new());
        let handle = *b"10.1/a10.1/a";
        let of = |handle, indexes| Query { handle, indexes, types: Strings::EMPTY };
        let first = of(&handle[..6], Indexes::build([1, 2], &mut two));
        let other = of(&handle[6..], Indexes::build([1, 2, 3], &mut three));
        let buffer = SortingBuffer::new();
        for _ in 0..2 {
            let sorted = buffer.sort(first).unwrap();
            assert!(sorted.selects(&Value::new(2, b"", b"")) && !sorted.selects(&Value::new(3, b"", b"")));
            // Of the same name, in another message: its lists are others.
            assert_eq!(buffer.sort(other).map(|_| ()), Err(RefusalReason::QueryTooLong));
        }
        assert!(SortingBuffer::new().sort(other).unwrap().selects(&Value::new(3, b"", b"")));
    }
}
