//! Which values of a record answer a query. Index and type lists select their union.

use crate::refused::Refused;
use handle_proto::Value;
use handle_proto::limit::QUERY_COMPARISONS_MAX;
use handle_proto::value::type_matches;
use handle_proto::wire::query::Query;

/// What is asked of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Filter<'a> {
    /// Every value.
    All,
    /// Values whose index or type is listed.
    Listed(Query<'a>),
    /// Values that delegate derived prefixes.
    Delegation,
}

impl<'a> Filter<'a> {
    /// What `query` asks of a record with so many values, if it is not too much to compare.
    pub(crate) const fn among(query: Query<'a>, values_count: usize) -> Result<Self, Refused> {
        if query.indexes.is_empty() && query.types.is_empty() {
            return Ok(Self::All);
        }
        match query.comparisons(values_count) {
            0..=QUERY_COMPARISONS_MAX => Ok(Self::Listed(query)),
            _ => Err(Refused::QueryTooLong),
        }
    }

    pub(crate) fn selects(&self, value: &Value<'_>) -> bool {
        match self {
            Self::All => true,
            Self::Listed(query) => {
                query.indexes.has(value.index)
                    || query.types.iter().any(|asked| type_matches(asked, value.kind))
            }
            Self::Delegation => crate::referral::delegates(value.kind),
        }
    }
}

/// Selected values, as runs of their encoded bytes in stored order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selected<'a> {
    values: &'a [u8],
    filter: Filter<'a>,
    /// How many there are.
    pub(crate) count: u32,
    /// Bytes of them all.
    pub(crate) len: usize,
}

impl<'a> Selected<'a> {
    pub(crate) const NONE: Self = Self { values: &[], filter: Filter::All, count: 0, len: 0 };

    /// Selects from `values`, which are `count` encoded values. `None` when they do not decode.
    #[inline]
    pub(crate) fn from(values: &'a [u8], count: usize, filter: Filter<'a>) -> Option<Self> {
        let count = u32::try_from(count).ok()?;
        if matches!(filter, Filter::All) {
            return Some(Self { values, filter, count, len: values.len() });
        }
        Self::filtered(values, filter)
    }

    fn filtered(values: &'a [u8], filter: Filter<'a>) -> Option<Self> {
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

    /// The bytes, in pieces.
    pub(crate) fn runs(&self) -> Runs<'a> {
        Runs { rest: self.values, filter: self.filter }
    }
}

/// Pieces of a selection; neighbours come as one.
pub(crate) struct Runs<'a> {
    rest: &'a [u8],
    filter: Filter<'a>,
}

impl<'a> Iterator for Runs<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if matches!(self.filter, Filter::All) {
            let run = core::mem::take(&mut self.rest);
            return (!run.is_empty()).then_some(run);
        }
        self.next_filtered()
    }
}

impl<'a> Runs<'a> {
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
