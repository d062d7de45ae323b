//! Selects the values of a record that answer a query. A value is selected if its index or its type
//! is listed.

use crate::refusal::RefusalReason;
use crate::service::AnswerContext;
use handle_proto::data::kind;
use handle_proto::limit::QUERY_COMPARISONS_MAX;
use handle_proto::wire::query::{Query, SortedQuery};
use handle_proto::{Value, fold};

/// Types whose values name the service that has the records of derived prefixes.
const DELEGATION: [&[u8]; 3] = [kind::HS_SITE_PREFIX, kind::HS_NA_DELEGATE, kind::HS_SERV_PREFIX];

pub(crate) fn delegates(kind: &[u8]) -> bool {
    DELEGATION.iter().any(|delegation| fold::eq(kind, delegation))
}

/// The values of a record that a query asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ValueFilter<'a> {
    /// Every value.
    All,
    /// Values whose index or type is listed.
    Listed(Query<'a>),
    /// Values whose index or type is listed, with lists that are too long to compare one by one.
    Sorted(&'a SortedQuery),
    /// Values that delegate derived prefixes.
    Delegation,
}

impl<'a> ValueFilter<'a> {
    /// The filter of `query` for a record with `count` values. Long lists are sorted if `context`
    /// has capacity for that.
    ///
    /// # Errors
    /// [`RefusalReason::QueryTooLong`] if there is no buffer and comparing would take too long.
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
            (_, Some(sorting)) => sorting.sort(query).map(Self::Sorted),
            (_, None) => Err(RefusalReason::QueryTooLong),
        }
    }

    #[inline]
    pub(crate) fn selects(&self, value: &Value<'_>) -> bool {
        match self {
            Self::All => true,
            Self::Listed(query) => query.lists(value),
            Self::Sorted(query) => query.selects(value),
            Self::Delegation => delegates(value.kind),
        }
    }
}

/// Selected values, as runs of their encoded bytes in stored order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SelectedValues<'a> {
    values: &'a [u8],
    filter: ValueFilter<'a>,
    /// Number of selected values.
    pub(crate) count: u32,
    /// Bytes of all selected values.
    pub(crate) len: usize,
}

impl<'a> SelectedValues<'a> {
    pub(crate) const NONE: Self = Self { values: &[], filter: ValueFilter::All, count: 0, len: 0 };

    /// Selects from `values`, which hold `count` encoded values. `None` if they do not decode.
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

    /// The address of the values that the selection is from.
    pub(crate) fn identity(&self) -> u64 {
        self.values.as_ptr().addr() as u64
    }

    /// The selected bytes, in runs.
    pub(crate) fn runs(&self) -> ValueRuns<'a> {
        ValueRuns { rest: self.values, filter: self.filter }
    }
}

/// The runs of a selection. Adjacent values come as one run.
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
        // `from` decoded these bytes before, so an error cannot occur; it would only end the run.
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
