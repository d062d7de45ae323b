//! The answer to a question: a response code, and values.

use crate::question::Question;
use handle_proto::wire::list::Values;
use handle_proto::{ResponseCode, Value};
use std::net::SocketAddr;

/// The final answer of a service to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupAnswer {
    /// The handle, as spelt in the question or in the last alias.
    pub handle: Vec<u8>,
    /// The response code.
    pub code: ResponseCode,
    /// The text of an error; usually empty.
    pub text: String,
    /// Number of values.
    values_count: usize,
    /// The encoded values, one after the other.
    values: Vec<u8>,
    /// Whether a server of the responsible service signed it.
    pub certified: bool,
    /// The server that answered; `None` if the answer was composed locally.
    pub from: Option<SocketAddr>,
    /// Whether the answer is from the cache.
    pub cached: bool,
    /// When the answer was put into the cache, on the monotonic clock, if it is from the cache.
    pub cached_at_ms: u64,
    /// Number of aliases that were followed.
    pub aliases_count: u8,
}

impl LookupAnswer {
    /// An answer to a question about `handle`.
    pub fn new<'a>(
        handle: impl Into<Vec<u8>>,
        code: ResponseCode,
        values: impl IntoIterator<Item = Value<'a>>,
    ) -> Self {
        let (mut values_count, mut encoded) = (0, Vec::new());
        for value in values {
            values_count += 1;
            value.encode(&mut encoded);
        }
        Self {
            handle: handle.into(),
            code,
            text: String::new(),
            values_count,
            values: encoded,
            certified: false,
            from: None,
            cached: false,
            cached_at_ms: 0,
            aliases_count: 0,
        }
    }

    /// The values, in the order of the answer.
    #[must_use]
    pub fn values(&self) -> Values<'_> {
        Values::from_encoded(self.values_count, &self.values).expect("values that were encoded here")
    }

    /// The answer to `question`, selected from this one.
    #[must_use]
    pub fn selected(&self, question: &Question) -> Self {
        if question.is_for_all() || self.code != ResponseCode::SUCCESS {
            return self.clone();
        }
        let sorted = question.sorted();
        let selected = self.values().iter().filter(|value| match &sorted {
            Some(sorted) => sorted.selects(value),
            None => question.selects(value),
        });
        let mut answer = Self::new(self.handle.clone(), self.code, selected);
        if answer.values_count == 0 {
            answer.code = ResponseCode::VALUES_NOT_FOUND;
        }
        let Self { certified, from, cached, cached_at_ms, aliases_count, .. } = *self;
        Self { certified, from, cached, cached_at_ms, aliases_count, ..answer }
    }

    /// Seconds for which the answer has been in the cache, rounded up; 0 if it is not from there.
    #[must_use]
    pub fn age_s(&self, now_ms: u64) -> u32 {
        let age_ms = if self.cached { now_ms.saturating_sub(self.cached_at_ms) } else { 0 };
        u32::try_from(age_ms.div_ceil(1000)).unwrap_or(u32::MAX)
    }

    /// Bytes in memory of its own, beside those of the type.
    pub(crate) const fn allocations(&self) -> [usize; 3] {
        [self.handle.capacity(), self.text.capacity(), self.values.capacity()]
    }
}
