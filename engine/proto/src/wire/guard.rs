//! Conditions on a change, in front of its body. Not in the RFCs.
//!
//! `handle-gateway` sends them with changes that its clients request under conditions of HTTP, or
//! that replace whole records. A guard begins with a byte that begins no handle, so a server that
//! does not know guards refuses the change instead of carrying it out without its conditions.

use super::cursor::Cursor;
use super::put;
use crate::error::{DecodeError, Field};
use alloc::vec::Vec;

/// The first bytes of a guard. 0xff occurs nowhere in UTF-8.
const MAGIC: [u8; 4] = *b"\xffCG1";

/// Maximum number of tags in a list of a guard.
pub const TAGS_COUNT_MAX: usize = 64;

/// Length of the tag of a record.
pub const RECORD_TAG_LEN: usize = 16;

/// The tag of a record: a digest of its public values in stored order.
pub type RecordTag = [u8; RECORD_TAG_LEN];

/// The states of a record that a condition names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagCondition<'a> {
    /// Any state of an existing record.
    Any,
    /// States with one of these tags.
    OneOf(&'a [RecordTag]),
}

impl TagCondition<'_> {
    /// Whether a record with the tag `tag` is in one of the states; `None` stands for no record.
    #[must_use]
    pub fn has(&self, tag: Option<&RecordTag>) -> bool {
        match (self, tag) {
            (_, None) => false,
            (Self::Any, Some(_)) => true,
            (Self::OneOf(tags), Some(tag)) => tags.contains(tag),
        }
    }
}

/// Conditions on a change of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeGuard<'a> {
    /// The record has to be in one of these states.
    pub if_match: Option<TagCondition<'a>>,
    /// The record must not be in any of these states.
    pub if_none_match: Option<TagCondition<'a>>,
    /// A new record that names no HS_ADMIN value keeps those of the record that it replaces, and
    /// no change removes the last one.
    pub keeps_admins: bool,
}

/// The owned form of a [`TagCondition`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedCondition {
    /// Any state of an existing record.
    Any,
    /// States with one of these tags, at most [`TAGS_COUNT_MAX`].
    OneOf(Vec<RecordTag>),
}

impl OwnedCondition {
    fn as_condition(&self) -> TagCondition<'_> {
        match self {
            Self::Any => TagCondition::Any,
            Self::OneOf(tags) => TagCondition::OneOf(tags),
        }
    }
}

/// The owned form of a [`ChangeGuard`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedGuard {
    /// The record has to be in one of these states.
    pub if_match: Option<OwnedCondition>,
    /// The record must not be in any of these states.
    pub if_none_match: Option<OwnedCondition>,
    /// As [`ChangeGuard::keeps_admins`].
    pub keeps_admins: bool,
}

impl OwnedGuard {
    /// The view of it.
    #[must_use]
    pub fn as_guard(&self) -> ChangeGuard<'_> {
        ChangeGuard {
            if_match: self.if_match.as_ref().map(OwnedCondition::as_condition),
            if_none_match: self.if_none_match.as_ref().map(OwnedCondition::as_condition),
            keeps_admins: self.keeps_admins,
        }
    }
}

mod bit {
    pub(super) const KEEPS_ADMINS: u8 = 1;
    pub(super) const IF_MATCH: u8 = 2;
    pub(super) const IF_MATCH_ANY: u8 = 4;
    pub(super) const IF_NONE_MATCH: u8 = 8;
    pub(super) const IF_NONE_MATCH_ANY: u8 = 16;
    pub(super) const ALL: u8 = 31;
}

impl<'a> ChangeGuard<'a> {
    /// Whether it demands anything.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it depends on the tag of the record.
    #[must_use]
    pub const fn has_conditions(&self) -> bool {
        self.if_match.is_some() || self.if_none_match.is_some()
    }

    /// Whether the conditions hold for a record with the tag `tag`; `None` stands for no record.
    #[must_use]
    pub fn admits(&self, tag: Option<&RecordTag>) -> bool {
        self.if_match.is_none_or(|condition| condition.has(tag))
            && self.if_none_match.is_none_or(|condition| !condition.has(tag))
    }

    /// Splits a guard from the body of a change. A body without one is returned as it is.
    ///
    /// # Errors
    /// When the bytes begin as a guard and are none.
    pub fn split(body: &'a [u8]) -> Result<(Self, &'a [u8]), DecodeError> {
        let mut cursor = Cursor::new(body);
        let Ok(guard) = cursor.string(Field::Guard) else { return Ok((Self::default(), body)) };
        let Some(guard) = guard.strip_prefix(&MAGIC) else { return Ok((Self::default(), body)) };
        let mut fields = Cursor::new(guard);
        let bits = fields.u8(Field::Guard)?;
        if bits & !bit::ALL != 0 {
            return Err(fields.invalid(Field::Guard));
        }
        let if_match = condition(&mut fields, bits & bit::IF_MATCH != 0, bits & bit::IF_MATCH_ANY != 0)?;
        let (has_list, is_any) = (bits & bit::IF_NONE_MATCH != 0, bits & bit::IF_NONE_MATCH_ANY != 0);
        let if_none_match = condition(&mut fields, has_list, is_any)?;
        fields.finish(Field::Guard)?;
        Ok((Self { if_match, if_none_match, keeps_admins: bits & bit::KEEPS_ADMINS != 0 }, cursor.rest()))
    }

    /// Appends the guard to `out`; nothing, if it demands nothing.
    pub fn encode(&self, out: &mut Vec<u8>) {
        if self.is_none() {
            return;
        }
        let mut guard = MAGIC.to_vec();
        guard.push(
            bits_of(self.if_match, bit::IF_MATCH, bit::IF_MATCH_ANY)
                | bits_of(self.if_none_match, bit::IF_NONE_MATCH, bit::IF_NONE_MATCH_ANY)
                | if self.keeps_admins { bit::KEEPS_ADMINS } else { 0 },
        );
        for condition in [self.if_match, self.if_none_match] {
            if let Some(TagCondition::OneOf(tags)) = condition {
                put::count(&mut guard, tags.len());
                guard.extend_from_slice(tags.as_flattened());
            }
        }
        put::string(out, &guard);
    }
}

const fn bits_of(condition: Option<TagCondition<'_>>, list: u8, any: u8) -> u8 {
    match condition {
        None => 0,
        Some(TagCondition::Any) => any,
        Some(TagCondition::OneOf(_)) => list,
    }
}

/// Decodes a condition that is present if it has a list or admits any tag.
fn condition<'a>(
    fields: &mut Cursor<'a>,
    has_list: bool,
    is_any: bool,
) -> Result<Option<TagCondition<'a>>, DecodeError> {
    match (has_list, is_any) {
        (false, false) => Ok(None),
        (false, true) => Ok(Some(TagCondition::Any)),
        (true, true) => Err(fields.invalid(Field::Guard)),
        (true, false) => {
            let count = fields.count(RECORD_TAG_LEN, Field::Guard)?;
            if count > TAGS_COUNT_MAX {
                return Err(fields.too_long(Field::Guard));
            }
            let (tags, _) = fields.bytes(count * RECORD_TAG_LEN, Field::Guard)?.as_chunks();
            Ok(Some(TagCondition::OneOf(tags)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const TAGS: [RecordTag; 2] = [[1; 16], [2; 16]];

    fn guards() -> Vec<ChangeGuard<'static>> {
        let conditions =
            [None, Some(TagCondition::Any), Some(TagCondition::OneOf(&TAGS)), Some(TagCondition::OneOf(&[]))];
        let mut guards = vec![];
        for if_match in conditions {
            for if_none_match in conditions {
                for keeps_admins in [false, true] {
                    guards.push(ChangeGuard { if_match, if_none_match, keeps_admins });
                }
            }
        }
        guards
    }

    #[test]
    fn a_guard_is_split_from_the_body_that_it_precedes() {
        for guard in guards() {
            let mut body = vec![];
            guard.encode(&mut body);
            assert_eq!(body.is_empty(), guard.is_none());
            let len = body.len();
            put::string(&mut body, b"20.500/a");
            let (decoded, rest) = ChangeGuard::split(&body).unwrap();
            assert_eq!((decoded, rest), (guard, &body[len..]), "{guard:?}");
            for cut in 9..len {
                let mut cut_short = vec![];
                put::string(&mut cut_short, &body[4..cut]);
                assert!(ChangeGuard::split(&cut_short).is_err(), "{guard:?} cut to {cut}");
            }
        }
    }

    #[test]
    fn bodies_of_deployed_clients_have_no_guard() {
        for body in
            [&b""[..], b"\0", b"\0\0\0\x08", b"\0\0\0\x04\xffCG2", b"\0\0\0\x03\xffCG", b"\0\0\0\x030.N"]
        {
            assert_eq!(ChangeGuard::split(body), Ok((ChangeGuard::default(), body)), "{body:?}");
        }
        for bad in [
            &b"\0\0\0\x04\xffCG1"[..],
            b"\0\0\0\x05\xffCG1\x20",
            b"\0\0\0\x05\xffCG1\x06",
            b"\0\0\0\x06\xffCG1\x01\0",
        ] {
            assert!(ChangeGuard::split(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn conditions_name_states_of_a_record() {
        let (any, one, none) =
            (Some(TagCondition::Any), Some(TagCondition::OneOf(&TAGS)), Some(TagCondition::OneOf(&[])));
        for (if_match, if_none_match, absent, named, other) in [
            (None, None, true, true, true),
            (any, None, false, true, true),
            (one, None, false, true, false),
            (none, None, false, false, false),
            (None, any, true, false, false),
            (None, one, true, false, true),
            (None, none, true, true, true),
            (any, one, false, false, true),
        ] {
            let guard = ChangeGuard { if_match, if_none_match, keeps_admins: false };
            let admitted = [None, Some(&[2; 16]), Some(&[3; 16])].map(|tag| guard.admits(tag));
            assert_eq!(admitted, [absent, named, other], "{guard:?}");
        }
    }
}
