//! Conditions of requests on the state of a record: `If-Match` and `If-None-Match`. RFC 9110
//! section 13.1.
//!
//! What a client names are entity tags that this gateway gave out, with or without the coding of
//! their body. Other tags name no state of a record.

use handle_proto::wire::guard::{OwnedCondition, OwnedGuard, RecordTag, TAGS_COUNT_MAX};
use hyper::header::{self, HeaderMap, HeaderName};
use std::fmt;

/// A condition has more than [`TAGS_COUNT_MAX`] tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyTags;

impl fmt::Display for TooManyTags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "If-Match and If-None-Match have at most {TAGS_COUNT_MAX} tags each")
    }
}

impl std::error::Error for TooManyTags {}

/// The conditions in the headers of a request.
///
/// # Errors
/// When there are too many tags.
pub fn guard_of(headers: &HeaderMap) -> Result<OwnedGuard, TooManyTags> {
    Ok(OwnedGuard {
        // Weak tags never match: RFC 9110 section 13.1.1 requires strong comparison.
        if_match: condition(headers, header::IF_MATCH, false)?,
        if_none_match: condition(headers, header::IF_NONE_MATCH, true)?,
        keeps_admins: false,
    })
}

fn condition(
    headers: &HeaderMap,
    name: HeaderName,
    takes_weak: bool,
) -> Result<Option<OwnedCondition>, TooManyTags> {
    if !headers.contains_key(&name) {
        return Ok(None);
    }
    let (mut tags, mut count) = (Vec::new(), 0);
    for list in headers.get_all(name) {
        for tag in TagList(list.as_bytes()) {
            if tag.text == b"*" && !tag.is_quoted {
                return Ok(Some(OwnedCondition::Any));
            }
            count += 1;
            if count > TAGS_COUNT_MAX {
                return Err(TooManyTags);
            }
            tags.extend(record_tag(tag.text).filter(|_| takes_weak || !tag.is_weak));
        }
    }
    Ok(Some(OwnedCondition::OneOf(tags)))
}

/// The tag of the record in an entity tag: its first 32 digits. What follows says which
/// representation of the record was sent.
fn record_tag(text: &[u8]) -> Option<RecordTag> {
    let (digits, rest) = text.split_at_checked(2 * size_of::<RecordTag>())?;
    if !rest.is_empty() && rest[0] != b'-' {
        return None;
    }
    data_encoding::HEXLOWER.decode(digits).ok()?.try_into().ok()
}

/// An entity tag of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ListedTag<'l> {
    text: &'l [u8],
    is_weak: bool,
    is_quoted: bool,
}

/// The entity tags of a list. A tag without quotes, as some clients send, ends at a comma.
struct TagList<'l>(&'l [u8]);

impl<'l> Iterator for TagList<'l> {
    type Item = ListedTag<'l>;

    fn next(&mut self) -> Option<ListedTag<'l>> {
        let is_between = |byte: &u8| matches!(byte, b',' | b' ' | b'\t');
        let start = self.0.iter().position(|byte| !is_between(byte))?;
        let list = &self.0[start..];
        let is_weak = list.starts_with(b"W/");
        let list = if is_weak { &list[2..] } else { list };
        let (text, rest, is_quoted) = match list.strip_prefix(b"\"") {
            Some(quoted) => {
                let end = quoted.iter().position(|&byte| byte == b'"').unwrap_or(quoted.len());
                (&quoted[..end], quoted.get(end + 1..).unwrap_or_default(), true)
            }
            None => {
                let end = list.iter().position(is_between).unwrap_or(list.len());
                (&list[..end], &list[end..], false)
            }
        };
        self.0 = rest;
        Some(ListedTag { text, is_weak, is_quoted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: &str = "000102030405060708090a0b0c0d0e0f";
    const BYTES: RecordTag = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

    fn guard(list: &[(HeaderName, &str)]) -> OwnedGuard {
        guard_of(&list.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()).unwrap()
    }

    #[test]
    fn tags_name_states_of_a_record_whatever_follows_the_digits() {
        let one = |tags: &[RecordTag]| Some(OwnedCondition::OneOf(tags.to_vec()));
        for (list, strong, weak) in [
            (format!("\"{TAG}\""), one(&[BYTES]), one(&[BYTES])),
            (format!("\"{TAG}-gzip\""), one(&[BYTES]), one(&[BYTES])),
            (format!("\"{TAG}-0011223344556677-br\""), one(&[BYTES]), one(&[BYTES])),
            (TAG.to_owned(), one(&[BYTES]), one(&[BYTES])),
            (format!("W/\"{TAG}\""), one(&[]), one(&[BYTES])),
            (format!(" \"a,b\" ,\t\"{TAG}\", W/\"x\""), one(&[BYTES]), one(&[BYTES])),
            (format!("\"{TAG}0\""), one(&[]), one(&[])),
            ("\"*\"".to_owned(), one(&[]), one(&[])),
            ("\"unclosed".to_owned(), one(&[]), one(&[])),
            (String::new(), one(&[]), one(&[])),
            ("*".to_owned(), Some(OwnedCondition::Any), Some(OwnedCondition::Any)),
        ] {
            assert_eq!(guard(&[(header::IF_MATCH, &list)]).if_match, strong, "{list}");
            assert_eq!(guard(&[(header::IF_NONE_MATCH, &list)]).if_none_match, weak, "{list}");
        }
        assert_eq!(guard(&[]), OwnedGuard::default());
        let lines = [(header::IF_MATCH, "\"x\""), (header::IF_MATCH, TAG)];
        assert_eq!(guard(&lines).if_match, one(&[BYTES]));
    }

    #[test]
    fn the_number_of_tags_is_bounded() {
        let list = |count| vec!["\"x\""; count].join(",");
        assert!(guard(&[(header::IF_MATCH, &list(TAGS_COUNT_MAX))]).if_match.is_some());
        let many = HeaderMap::from_iter([(header::IF_MATCH, list(TAGS_COUNT_MAX + 1).parse().unwrap())]);
        assert_eq!(guard_of(&many), Err(TooManyTags));
    }
}
