//! Which values of a record answer a query. Index and type lists select their union.

use crate::refusal::RefusalReason;
use crate::service::AnswerContext;
use core::cell::OnceCell;
use handle_proto::Value;
use handle_proto::limit::QUERY_COMPARISONS_MAX;
use handle_proto::wire::query::{Query, SortedQuery};

/// What is asked of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ValueFilter<'a> {
    /// Every value.
    All,
    /// Values whose index or type is listed.
    Listed(Query<'a>),
    /// The same of lists that are too long to be compared one by one.
    Sorted(&'a SortedQuery),
    /// Values that delegate derived prefixes.
    Delegation,
}

impl<'a> ValueFilter<'a> {
    /// What `query` asks of a record with so many values. Long lists are sorted where `context` has room for that.
    ///
    /// # Errors
    /// [`RefusalReason::QueryTooLong`] where it has none, and comparing would take too long.
    pub(crate) fn among<B>(
        context: &AnswerContext<'a, B>,
        query: Query<'a>,
        values_count: usize,
    ) -> Result<Self, RefusalReason> {
        if query.indexes.is_empty() && query.types.is_empty() {
            return Ok(Self::All);
        }
        match (query.comparisons(values_count), context.sorting) {
            (0..=QUERY_COMPARISONS_MAX, _) => Ok(Self::Listed(query)),
            (_, Some(room)) => room.sort(query).map(Self::Sorted),
            (_, None) => Err(RefusalReason::QueryTooLong),
        }
    }

    pub(crate) fn selects(&self, value: &Value<'_>) -> bool {
        match self {
            Self::All => true,
            Self::Listed(query) => query.lists(value),
            Self::Sorted(query) => query.selects(value),
            Self::Delegation => crate::referral::delegates(value.kind),
        }
    }
}

/// Room for the lists of one query, sorted: on a thread that may take its time, where a worker has none.
///
/// Of any other query than the first, long lists are refused; a request has one.
#[derive(Debug, Default)]
pub struct SortingRoom(OnceCell<(usize, SortedQuery)>);

impl SortingRoom {
    /// Empty room.
    #[must_use]
    pub const fn new() -> Self {
        Self(OnceCell::new())
    }

    fn sort(&self, query: Query<'_>) -> Result<&SortedQuery, RefusalReason> {
        // The handle of a query is where its message is.
        let message = query.handle.as_ptr().addr();
        let (sorted_for, sorted) = self.0.get_or_init(|| (message, SortedQuery::new(&query)));
        if *sorted_for == message { Ok(sorted) } else { Err(RefusalReason::QueryTooLong) }
    }
}

/// Selected values, as runs of their encoded bytes in stored order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SelectedValues<'a> {
    values: &'a [u8],
    filter: ValueFilter<'a>,
    /// How many there are.
    pub(crate) count: u32,
    /// Bytes of them all.
    pub(crate) len: usize,
}

impl<'a> SelectedValues<'a> {
    pub(crate) const NONE: Self = Self { values: &[], filter: ValueFilter::All, count: 0, len: 0 };

    /// Selects from `values`, which are `count` encoded values. `None` when they do not decode.
    #[inline]
    pub(crate) fn from(values: &'a [u8], count: usize, filter: ValueFilter<'a>) -> Option<Self> {
        let count = u32::try_from(count).ok()?;
        if matches!(filter, ValueFilter::All) {
            return Some(Self { values, filter, count, len: values.len() });
        }
        Self::filtered(values, filter)
    }

    fn filtered(values: &'a [u8], filter: ValueFilter<'a>) -> Option<Self> {
        let mut selected = Self { values, filter, count: 0, len: 0 };
        let mut rest = values;
        while !rest.is_empty() {
            let (value, after) = Value::split(rest).ok()?;
            if filter.selects(&value) {
                selected.count += 1;
                selected.len += rest.len() - after.len();
            }
            rest = after;
        }
        Some(selected)
    }

    /// Where the values are that it selects from.
    pub(crate) fn identity(&self) -> u64 {
        self.values.as_ptr().addr() as u64
    }

    /// The bytes, in pieces.
    pub(crate) fn runs(&self) -> ValueRuns<'a> {
        ValueRuns { rest: self.values, filter: self.filter }
    }
}

/// Pieces of a selection; neighbours come as one.
pub(crate) struct ValueRuns<'a> {
    rest: &'a [u8],
    filter: ValueFilter<'a>,
}

impl<'a> Iterator for ValueRuns<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if matches!(self.filter, ValueFilter::All) {
            let run = core::mem::take(&mut self.rest);
            return (!run.is_empty()).then_some(run);
        }
        self.next_filtered()
    }
}

impl<'a> ValueRuns<'a> {
    fn next_filtered(&mut self) -> Option<&'a [u8]> {
        let (mut start, mut len) = (self.rest, 0);
        // `from` has decoded these bytes before, so an error here ends the run and nothing else.
        while let Ok((value, after)) = Value::split(self.rest) {
            if self.filter.selects(&value) {
                len += self.rest.len() - after.len();
            } else if len > 0 {
                self.rest = after;
                break;
            } else {
                start = after;
            }
            self.rest = after;
        }
        (len > 0).then(|| &start[..len])
    }
}
