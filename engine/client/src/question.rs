//! A question: a handle, and which of its values.

use handle_proto::fold;
use handle_proto::value::type_matches;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::put;
use handle_proto::wire::query::{Query, SortedQuery};
use handle_proto::{Handle, OpFlags, Value};

/// A handle, and which of its values. Without indexes and types: all values that may be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// The handle, as the user spelt it.
    pub handle: Vec<u8>,
    /// Indexes of the wanted values.
    pub indexes: Vec<i32>,
    /// Types of further wanted values.
    pub types: Vec<Vec<u8>>,
    /// Requirements for the answer.
    pub wants: AnswerWants,
}

/// Requirements for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AnswerWants {
    /// Signed by the server, with a verified signature.
    pub certified: bool,
    /// From a primary site, bypassing all caches.
    pub authoritative: bool,
    /// Only public values.
    pub public_only: bool,
}

impl Default for AnswerWants {
    fn default() -> Self {
        Self { certified: false, authoritative: false, public_only: true }
    }
}

/// Most entries of lists that are compared with each value one by one.
const LISTED_MAX: usize = 8;

/// These lists sorted; `None` if they are short.
#[must_use]
pub fn sorted_lists(indexes: &[i32], types: &[Vec<u8>]) -> Option<SortedQuery> {
    if indexes.len() + types.len() <= LISTED_MAX {
        return None;
    }
    let (mut indexes_encoded, mut types_encoded) = (Vec::new(), Vec::new());
    let indexes = Indexes::build(indexes.iter().copied(), &mut indexes_encoded);
    types.iter().for_each(|kind| put::string(&mut types_encoded, kind));
    let types = Strings::from_encoded(types.len(), &types_encoded).ok()?;
    Some(SortedQuery::new(&Query { handle: b"", indexes, types }))
}

impl Question {
    /// All public values of `handle`.
    #[must_use]
    pub fn all(handle: impl Into<Vec<u8>>) -> Self {
        Self { handle: handle.into(), ..Self::default() }
    }

    /// The public values of `handle` that have one of `types`.
    #[must_use]
    pub fn of_types(handle: impl Into<Vec<u8>>, types: &[&[u8]]) -> Self {
        Self { types: types.iter().map(|kind| kind.to_vec()).collect(), ..Self::all(handle) }
    }

    /// The handle.
    #[must_use]
    pub fn handle(&self) -> Handle<'_> {
        Handle(&self.handle)
    }

    /// Whether all values are asked for.
    #[must_use]
    pub fn is_for_all(&self) -> bool {
        self.indexes.is_empty() && self.types.is_empty()
    }

    /// Whether `value` is wanted: by its index or by its type. RFC 3652 section 3.2.1.
    #[must_use]
    pub fn selects(&self, value: &Value<'_>) -> bool {
        self.is_for_all()
            || self.indexes.contains(&value.index)
            || self.types.iter().any(|kind| type_matches(kind, value.kind))
    }

    /// The lists sorted, if they are so long that this is worth it for a record with many values.
    #[must_use]
    pub fn sorted(&self) -> Option<SortedQuery> {
        sorted_lists(&self.indexes, &self.types)
    }

    /// The flags of the request.
    #[must_use]
    pub fn flags(&self) -> OpFlags {
        let mut flags = OpFlags::PLAIN_REQUEST;
        if self.wants.certified {
            flags = flags.with(OpFlags::CERTIFY).with(OpFlags::REQUEST_DIGEST);
        }
        if self.wants.authoritative {
            flags = flags.with(OpFlags::AUTHORITATIVE);
        }
        match self.wants.public_only {
            true => flags,
            false => flags.without(OpFlags::PUBLIC_ONLY),
        }
    }

    /// Whether the answer may be cached, and a cached answer used.
    #[must_use]
    pub const fn is_cacheable(&self) -> bool {
        self.wants.public_only && !self.wants.authoritative
    }

    /// Calls `with` with the body of the request.
    pub(crate) fn with_query<T>(&self, with: impl FnOnce(Query<'_>) -> T) -> T {
        let indexes: Vec<[u8; 4]> = self.indexes.iter().map(|index| index.to_be_bytes()).collect();
        let mut types = Vec::new();
        self.types.iter().for_each(|kind| put::string(&mut types, kind));
        let types = Strings::from_encoded(self.types.len(), &types).unwrap_or(Strings::EMPTY);
        with(Query { handle: &self.handle, indexes: Indexes::new(&indexes), types })
    }

    /// The part of the cache key for the handle: its name, and whether answers are certified.
    #[must_use]
    pub fn handle_key(&self) -> Vec<u8> {
        let mut key = self.handle().prefix_folded();
        key.push(u8::from(self.wants.certified));
        key
    }

    /// The part of the cache key for the choice of values; empty when all are wanted. It omits what
    /// does not change the answer.
    #[must_use]
    pub fn values_key(&self) -> Vec<u8> {
        let mut key = Vec::new();
        if self.is_for_all() {
            return key;
        }
        let mut indexes = self.indexes.clone();
        indexes.sort_unstable();
        indexes.dedup();
        put::count(&mut key, indexes.len());
        indexes.iter().for_each(|index| key.extend(index.to_be_bytes()));
        let mut types: Vec<_> = self.types.iter().map(|kind| fold::folded(kind)).collect();
        types.sort_unstable();
        types.dedup();
        types.iter().for_each(|kind| put::string(&mut key, kind));
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_that_mean_the_same_have_one_key() {
        let one = Question { indexes: vec![2, 1, 2], ..Question::of_types(b"10.a/x", &[b"URL", b"email"]) };
        let same =
            Question { indexes: vec![1, 2], ..Question::of_types(b"10.A/x", &[b"EMAIL", b"url", b"Url"]) };
        let key = |question: &Question| (question.handle_key(), question.values_key());
        assert_eq!(key(&one), key(&same));
        let others = [
            Question::all(b"10.A/x"),
            Question::all(b"10.A/X"),
            Question::of_types(b"10.A/x", &[b"URL"]),
            Question { indexes: vec![1], ..Question::all(b"10.A/x") },
            Question {
                wants: AnswerWants { certified: true, ..AnswerWants::default() },
                ..Question::all(b"10.A/x")
            },
            one,
        ];
        for (at, question) in others.iter().enumerate() {
            assert!(others[..at].iter().all(|other| key(other) != key(question)), "{question:?}");
        }
    }

    #[test]
    fn flags_follow_from_the_question() {
        let all = AnswerWants { certified: true, authoritative: true, public_only: false };
        let flags = Question { wants: all, ..Question::all(b"a/b") }.flags();
        assert_eq!(flags, OpFlags(0xd880_0000));
        assert_eq!(Question::all(b"a/b").flags(), OpFlags::PLAIN_REQUEST);
    }
}
