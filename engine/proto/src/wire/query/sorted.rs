//! The lists of a query, sorted: each value is selected by bisection, however long the lists are.

use super::Query;
use crate::fold;
use crate::value::Value;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::borrow::Borrow;
use core::cmp::Ordering;

/// The selection of a [`Query`], independent of the record. It selects the same values as
/// [`Query::lists`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortedQuery {
    indexes: Box<[i32]>,
    /// Folded types.
    types: Box<[Box<[u8]>]>,
    /// Folded types that are requested with their sub-types, without the dot at the end.
    stems: Box<[Box<[u8]>]>,
}

impl SortedQuery {
    /// Sorts the lists of `query`.
    #[must_use]
    pub fn new(query: &Query<'_>) -> Self {
        let (mut types, mut stems) = (Vec::new(), Vec::new());
        for requested in query.types.iter() {
            match requested.split_last() {
                None => {}
                Some((b'.', stem)) => stems.push(fold::folded(stem).into_boxed_slice()),
                Some(_) => types.push(fold::folded(requested).into_boxed_slice()),
            }
        }
        Self { indexes: sorted(query.indexes.iter().collect()), types: sorted(types), stems: sorted(stems) }
    }

    /// Whether `value` is requested by its index or type.
    #[must_use]
    pub fn selects(&self, value: &Value<'_>) -> bool {
        has(&self.indexes, &value.index) || self.selects_type(value.kind)
    }

    fn selects_type(&self, kind: &[u8]) -> bool {
        if kind.is_empty() || self.types.is_empty() && self.stems.is_empty() {
            return false;
        }
        let kind = fold::folded(kind);
        // A stem may end before each dot, and at the end.
        let mut dots = kind.iter().enumerate().filter(|&(_, &byte)| byte == b'.').map(|(at, _)| at);
        has(&self.types, &kind[..])
            || !self.stems.is_empty()
                && (has(&self.stems, &kind[..]) || dots.any(|at| has(&self.stems, &kind[..at])))
    }
}

fn sorted<T: Ord>(mut list: Vec<T>) -> Box<[T]> {
    list.sort_unstable_by(compared);
    list.dedup();
    list.into_boxed_slice()
}

fn has<T: Borrow<Q>, Q: Ord + ?Sized>(list: &[T], one: &Q) -> bool {
    list.binary_search_by(|listed| compared(listed.borrow(), one)).is_ok()
}

/// The order of two entries. Tests count the calls.
fn compared<T: Ord + ?Sized>(one: &T, other: &T) -> Ordering {
    #[cfg(test)]
    tests::COMPARISONS.with(|count| count.set(count.get() + 1));
    one.cmp(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::list::{Indexes, Strings};
    use alloc::string::String;
    use alloc::{format, vec};
    use core::cell::Cell;
    use proptest::prelude::*;

    std::thread_local! {
        pub(super) static COMPARISONS: Cell<usize> = const { Cell::new(0) };
    }

    /// 54 kB of types, none of which occurs, against 1,000 values. One by one that is two million
    /// comparisons.
    #[test]
    fn long_lists_take_few_comparisons() {
        let types: Vec<_> = (0..2000).map(|at| format!("TYPE.OF.23.BYTES.{at:05}.")).collect();
        let mut spelt = vec![];
        let types = Strings::build(types.iter().map(String::as_bytes), &mut spelt);
        let query = Query { handle: b"10.1/a", indexes: Indexes::EMPTY, types };
        assert_eq!(query.comparisons(1000), 2_000_000);
        COMPARISONS.set(0);
        let sorted = SortedQuery::new(&query);
        let sorting = COMPARISONS.get();
        assert!(sorting < 2000 * 2 * 11, "{sorting} comparisons to sort");
        for at in 0..1000 {
            let kind = format!("TYPE.OF.23.BYTES.{at:05}X");
            assert!(!sorted.selects(&Value::new(at, kind.as_bytes(), b"")));
        }
        // At most 12 for each of the five places where a stem may end.
        let selecting = COMPARISONS.get() - sorting;
        assert!(selecting <= 1000 * 5 * 12, "{selecting} comparisons to select");
    }

    proptest! {
        #[test]
        fn selects_what_the_lists_select_one_by_one(
            indexes in prop::collection::vec(-3..6, 0..6),
            types in prop::collection::vec("[aAbB.]{0,5}", 0..6),
            values in prop::collection::vec((-3..6, "[aAbB.]{0,5}"), 0..20),
        ) {
            let (mut stored, mut spelt) = (vec![], vec![]);
            let query = Query {
                handle: b"10.1/a",
                indexes: Indexes::build(indexes, &mut stored),
                types: Strings::build(types.iter().map(String::as_bytes), &mut spelt),
            };
            let sorted = SortedQuery::new(&query);
            for (index, kind) in &values {
                let value = Value::new(*index, kind.as_bytes(), b"");
                prop_assert_eq!(sorted.selects(&value), query.lists(&value), "{} {}", index, kind);
            }
        }
    }
}
