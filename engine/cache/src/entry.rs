//! Entries of the cache: their keys, how long they are kept, and the TTL in answers from them.

use crate::table::EntryStamp;
use handle_client::service::keeps_s;
use handle_proto::value::Ttl;
use handle_proto::{Handle, Value, fold};

/// Kind of an entry with public values; there may be none.
pub const RECORD: u8 = 1;
/// Kind of an entry that says that there is no such handle.
pub const NO_HANDLE: u8 = 2;
/// Flag of an entry of which a value has an absolute TTL. Such a value is never shown after that
/// time.
pub const HAS_ABSOLUTE: u8 = 1;
/// Flag of an entry that the server that was asked had signed.
pub const CERTIFIED: u8 = 2;
/// Flag of an entry whose changes are announced.
pub const NOTIFIED: u8 = 4;
/// Flag of an entry in the table whose values have linked TTLs.
pub const LINKED: u8 = 8;

/// Longest key that is made on the stack.
const KEY_CAPACITY: usize = 512;
/// Offset of the kind of TTL in a value; its seconds follow.
const TTL_AT: usize = 8;
/// Offset of the type of a value, which follows its permissions.
const KIND_AT: usize = 14;

/// Bytes of a word, and the highest bit of each.
const WORD_LEN: usize = size_of::<u64>();
const HIGH_BITS: u64 = u64::from_le_bytes([0x80; WORD_LEN]);

/// A word with `byte` in each of its bytes.
const fn each(byte: u8) -> u64 {
    u64::from_le_bytes([byte; WORD_LEN])
}

/// The highest bit of each byte of `word` that is zero, exact up to the lowest of them.
const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(each(1)) & !word & HIGH_BITS
}

/// The highest bit of each byte of `word` that is a lower case letter of ASCII.
const fn lowercase_bytes(word: u64) -> u64 {
    // Without the highest bit, no sum carries into the next byte.
    let low = word & !HIGH_BITS;
    (low + each(0x80 - b'a')) & !(low + each(0x7f - b'z')) & !word & HIGH_BITS
}

/// Whether `handle` is its own key, for all but names of the global service, which begin with a
/// zero: no byte of its prefix is a lower case letter.
fn is_key(handle: Handle<'_>) -> bool {
    if handle.0.starts_with(b"0") {
        return false;
    }
    let (words, rest) = handle.0.as_chunks::<WORD_LEN>();
    for word in words {
        let word = u64::from_le_bytes(*word);
        let slash = zero_bytes(word ^ each(b'/'));
        // The bytes in front of the first slash; all without one.
        let in_prefix = slash.wrapping_sub(1) & !slash;
        if lowercase_bytes(word) & in_prefix != 0 {
            return false;
        }
        if slash != 0 {
            return true;
        }
    }
    rest.iter().take_while(|&&byte| byte != b'/').all(|byte| !byte.is_ascii_lowercase())
}

/// Calls `with` with the key of `handle`: its prefix is folded, and the rest is as spelt, because
/// services decide whether they fold it. Names of the global service are folded as a whole.
pub fn with_key<T>(handle: Handle<'_>, with: impl FnOnce(&[u8]) -> T) -> T {
    if is_key(handle) {
        return with(handle.0);
    }
    with_folded_start(handle.0, handle.folds_len(), with)
}

/// Whether `key`, which is the key of an entry, is the one of `handle`. Most handles are spelt as
/// their key, and no other key is spelt as a handle.
#[inline]
pub(crate) fn is_key_of(key: &[u8], handle: Handle<'_>) -> bool {
    key == handle.0 || is_folded_key_of(key, handle)
}

/// A function of its own, because it is seldom needed.
#[cold]
#[inline(never)]
fn is_folded_key_of(key: &[u8], handle: Handle<'_>) -> bool {
    with_key(handle, |own| key == own)
}

/// Calls `with` with `handle` in the form that it has in all spellings.
pub fn with_folded<T>(handle: &[u8], with: impl FnOnce(&[u8]) -> T) -> T {
    with_folded_start(handle, handle.len(), with)
}

/// Calls `with` with `name`, whose first `folds_len` bytes are folded.
fn with_folded_start<T>(name: &[u8], folds_len: usize, with: impl FnOnce(&[u8]) -> T) -> T {
    let mut buffer = [0; KEY_CAPACITY];
    let mut longer;
    let folded = match buffer.get_mut(..name.len()) {
        Some(folded) => {
            folded.copy_from_slice(name);
            folded
        }
        None => {
            longer = name.to_vec();
            &mut longer[..]
        }
    };
    fold::fold(&mut folded[..folds_len]);
    with(folded)
}

/// Bounds on how long entries are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TtlLimits {
    /// Seconds for which a record is kept at least, unless one of its values may not be kept.
    pub min_s: u32,
    /// Seconds for which a record is kept at most.
    pub max_s: u32,
    /// Seconds for which a negative answer is kept.
    pub negative_s: u32,
}

/// The stamp of an entry that is stored now.
#[must_use]
pub fn stamp<'v>(
    kind: u8,
    values: impl Iterator<Item = Value<'v>>,
    limits: &TtlLimits,
    now_unix_s: u32,
) -> EntryStamp {
    let (mut values_count, mut relative_s, mut absolute_s) = (0_u16, u32::MAX, u32::MAX);
    for value in values {
        values_count = values_count.saturating_add(1);
        let keeps_s = keeps_s(value.ttl, now_unix_s);
        match value.ttl.kind {
            Ttl::RELATIVE => relative_s = relative_s.min(keeps_s),
            _ => absolute_s = absolute_s.min(keeps_s),
        }
    }
    let ttl_s = match (kind, values_count, relative_s) {
        (NO_HANDLE, ..) | (_, 0, _) => limits.negative_s,
        // The value is for this answer only.
        (_, _, 0) => 0,
        _ => relative_s.max(limits.min_s).min(absolute_s).min(limits.max_s),
    };
    let flags = if absolute_s < u32::MAX { HAS_ABSOLUTE } else { 0 };
    EntryStamp { stored_unix_s: now_unix_s, ttl_s, values_count, kind, flags }
}

/// The TTL that values get in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerTtl {
    /// What is left of it after so many seconds, but at least what the entry has left.
    Left {
        /// Seconds in the cache.
        age_s: u32,
        /// Seconds that the entry has left.
        entry_left_s: u32,
        /// Most seconds: the client keeps the value no longer than the cache would.
        max_s: u32,
    },
    /// So many seconds, because the entry has expired.
    Stale(u32),
}

/// What the TTL of each value becomes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TtlLimitsOfAnswer {
    /// Seconds that are over.
    age_s: i32,
    /// Seconds that it has at least.
    min_s: i32,
    /// Seconds that it has at most.
    max_s: i32,
}

impl AnswerTtl {
    /// The same for all values of an answer.
    #[inline]
    pub(crate) fn limits(self) -> TtlLimitsOfAnswer {
        let signed = |seconds: u32| i32::try_from(seconds).unwrap_or(i32::MAX);
        let (age_s, min_s, max_s) = match self {
            Self::Left { age_s: 0, max_s, .. } => (0, i32::MIN, signed(max_s)),
            Self::Left { age_s, entry_left_s, max_s } => (signed(age_s), signed(entry_left_s), signed(max_s)),
            Self::Stale(seconds) => (i32::MAX, signed(seconds), signed(seconds)),
        };
        TtlLimitsOfAnswer { age_s, min_s, max_s }
    }
}

impl TtlLimitsOfAnswer {
    /// The TTL of a value that had `seconds` when it was stored.
    #[inline]
    pub(crate) fn of(self, seconds: i32) -> i32 {
        seconds.saturating_sub(self.age_s).max(self.min_s).min(self.max_s)
    }
}

/// The number at `at`, and the offset behind it.
#[inline]
fn number(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let number = u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?);
    Some((number as usize, at + 4))
}

/// The offset behind the value at `at`, if there is a whole one.
#[inline]
fn value_end(bytes: &[u8], at: usize) -> Option<usize> {
    let (kind_len, kind_at) = number(bytes, at + KIND_AT)?;
    let (data_len, data_at) = number(bytes, kind_at + kind_len)?;
    let (references, mut end) = number(bytes, data_at + data_len)?;
    for _ in 0..references {
        let (len, handle_at) = number(bytes, end)?;
        end = handle_at + len + 4;
    }
    (end <= bytes.len()).then_some(end)
}

/// The offsets of the seconds of all relative TTLs in the encoded `values`; `None` if these are not
/// whole.
pub(crate) fn relative_seconds(values: &[u8]) -> Option<Vec<usize>> {
    let (mut at, mut positions) = (0, Vec::new());
    while at < values.len() {
        let end = value_end(values, at)?;
        if values[at + TTL_AT] == Ttl::RELATIVE {
            positions.push(at + TTL_AT + 1);
        }
        at = end;
    }
    Some(positions)
}

/// Sets the relative TTL of each of the encoded `values`, as far as they are whole. RFC 3651
/// section 4.2.1.
pub fn set_ttl(values: &mut [u8], ttl: AnswerTtl) {
    let (mut at, limits) = (0, ttl.limits());
    while let Some(end) = value_end(values, at) {
        if let Some([Ttl::RELATIVE, seconds @ ..]) = values[at + TTL_AT..].first_chunk_mut::<5>() {
            *seconds = limits.of(i32::from_be_bytes(*seconds)).to_be_bytes();
        }
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::wire::list::Reference;
    use handle_proto::wire::list::References;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const LIMITS: TtlLimits = TtlLimits { min_s: 0, max_s: 172_800, negative_s: 30 };
    const NOW: u32 = 1_700_000_000;

    fn value(ttl: Ttl) -> Value<'static> {
        Value { ttl, ..Value::new(1, b"URL", b"https://example.org/") }
    }

    fn ttl_s(ttls: &[Ttl], limits: TtlLimits) -> u32 {
        stamp(RECORD, ttls.iter().map(|&ttl| value(ttl)), &limits, NOW).ttl_s
    }

    #[test]
    fn the_prefix_is_folded_and_the_rest_only_in_names_of_the_global_service() {
        let key = |handle: &str| with_key(Handle(handle.as_bytes()), <[u8]>::to_vec);
        assert_eq!(key("10.1/aB"), b"10.1/aB");
        assert_eq!(key("Abc/aB"), b"ABC/aB");
        assert_eq!(key("0.na/abc"), b"0.NA/ABC");
        assert_eq!(key("abc"), b"ABC");
        let long = format!("abc/{}", "x".repeat(2000));
        assert_eq!(key(&long), Handle(long.as_bytes()).prefix_folded());
    }

    #[test]
    fn a_record_is_kept_as_long_as_its_shortest_value_within_the_limits() {
        let relative = Ttl::relative;
        assert_eq!(ttl_s(&[relative(60), relative(7)], LIMITS), 7);
        assert_eq!(ttl_s(&[relative(1_000_000)], LIMITS), 172_800, "two days at most");
        let bounded = TtlLimits { min_s: 10, max_s: 20, negative_s: 5 };
        assert_eq!(ttl_s(&[relative(60)], bounded), 20);
        assert_eq!(ttl_s(&[relative(7)], bounded), 10);
        assert_eq!(ttl_s(&[relative(7), relative(0)], bounded), 0, "not to be kept at all");
        assert_eq!(ttl_s(&[relative(-1)], bounded), 0);
        assert_eq!(ttl_s(&[], bounded), 5, "no values");
        assert_eq!(stamp(NO_HANDLE, [].into_iter(), &bounded, NOW).ttl_s, 5);
    }

    #[test]
    fn an_absolute_ttl_ends_at_its_time_whatever_the_floor() {
        let absolute = |left: u32| Ttl::absolute((NOW + left).cast_signed());
        let floor = TtlLimits { min_s: 100, ..LIMITS };
        assert_eq!(ttl_s(&[absolute(50), Ttl::relative(60)], floor), 50);
        assert_eq!(ttl_s(&[absolute(0)], floor), 0);
        let stamp = stamp(RECORD, [value(absolute(50))].into_iter(), &LIMITS, NOW);
        assert_eq!((stamp.flags, stamp.values_count), (HAS_ABSOLUTE, 1));
    }

    proptest! {
        #[test]
        fn a_handle_is_its_key_if_its_prefix_has_no_lower_case(
            prefix in "[0-9A-Z.]{0,20}", lower in "[`a-z{\u{e1}]{0,2}", after in "[0-9A-Z.]{0,9}", local in "(/[0-9a-z/]{0,9})?"
        ) {
            let handle = format!("{prefix}{lower}{after}{local}");
            let prefix = handle.split('/').next().unwrap_or_default();
            let is_one = !handle.starts_with('0') && !prefix.bytes().any(|byte| byte.is_ascii_lowercase());
            prop_assert_eq!(is_key(Handle(handle.as_bytes())), is_one, "{}", handle);
        }

        #[test]
        fn values_end_where_they_do_for_the_codec(bytes in vec(any::<u8>(), 0..80), cut in 0..80_usize) {
            let mut storage = Vec::new();
            let reference = Reference { handle: b"0.NA/TST", index: 300 };
            let references = References::build([reference; 2], &mut storage);
            let mut encoded = Vec::new();
            Value { references, ..Value::new(7, b"URL", &bytes) }.encode(&mut encoded);
            encoded.truncate(encoded.len() - cut.min(encoded.len()));
            for bytes in [&encoded, &bytes] {
                let end = Value::split(bytes).ok().map(|(_, rest)| bytes.len() - rest.len());
                prop_assert_eq!(value_end(bytes, 0), end);
            }
        }
    }

    #[test]
    fn answers_show_what_is_left_of_a_relative_ttl() {
        let ttls = [Ttl::relative(100), Ttl::absolute(NOW.cast_signed()), Ttl::relative(5)];
        let mut values = Vec::new();
        ttls.iter().for_each(|&ttl| value(ttl).encode(&mut values));
        let shown = |ttl| {
            let mut values = values.clone();
            set_ttl(&mut values, ttl);
            let mut rest = &values[..];
            let mut ttls = vec![];
            while let Ok((value, after)) = Value::split(rest) {
                ttls.push((value.ttl.kind, value.ttl.seconds));
                rest = after;
            }
            assert!(rest.is_empty());
            ttls
        };
        let at = |age_s, entry_left_s| shown(AnswerTtl::Left { age_s, entry_left_s, max_s: 95 });
        let absolute = (Ttl::ABSOLUTE, NOW.cast_signed());
        assert_eq!(at(0, 5), [(0, 95), absolute, (0, 5)]);
        assert_eq!(at(3, 2), [(0, 95), absolute, (0, 2)]);
        // With a floor, the entry lives longer than a value.
        assert_eq!(at(8, 12), [(0, 92), absolute, (0, 12)]);
        assert_eq!(shown(AnswerTtl::Stale(30)), [(0, 30), absolute, (0, 30)]);
        let mut cut = values[..values.len() - 1].to_vec();
        set_ttl(&mut cut, AnswerTtl::Stale(1));
    }
}
