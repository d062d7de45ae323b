//! The expected answer for a handle, and how an answer differs from it.

use std::fmt;

use handle_auth::PublicKey;
use handle_proto::value::Permissions;
use handle_proto::value::Values;
use handle_proto::wire::cursor::Cursor;
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::{Envelope, Message};
use handle_proto::{Field, Handle, OpFlags, ResponseCode, Value};

use crate::load::question::GeneratedQuestion;

/// What a set holds about a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetContent<'a> {
    /// The public values, in wire form.
    Values {
        /// Number of values.
        count: u32,
        /// The values, one after another.
        bytes: &'a [u8],
    },
    /// The handle exists, but has no public value.
    NothingPublic,
    /// The handle does not exist.
    Absent,
    /// The handle does not exist and its prefix is not homed at the server: another service may
    /// have it.
    Remote,
    /// The handle does not exist, and it is unknown whether its prefix is homed at the server.
    NotHomed,
    /// The response code that the server gave before.
    Code(ResponseCode),
    /// Nothing is known.
    Unknown,
}

/// Receives a value and its wire form.
pub type EachValue<'e> = &'e mut dyn FnMut(&Value<'_>, &[u8]);

/// A published set, or another source of records.
pub trait ContentSource: Send + Sync + fmt::Debug {
    /// What it holds about `handle`; an error if it is damaged.
    ///
    /// # Errors
    ///
    /// The damage.
    fn content_of(&self, handle: &[u8]) -> Result<SetContent<'_>, String>;

    /// All values of `handle` in stored order, including those that are not public. A source that
    /// has only public values returns these.
    ///
    /// # Errors
    ///
    /// The damage.
    fn each_value(&self, handle: &[u8], each: EachValue<'_>) -> Result<(), String> {
        match self.content_of(handle)? {
            SetContent::Values { count, bytes } => each_of(count, bytes, each),
            _ => Ok(()),
        }
    }
}

/// Passes values in wire form to `each`.
///
/// # Errors
///
/// If they cannot be decoded.
pub fn each_of(count: u32, bytes: &[u8], each: EachValue<'_>) -> Result<(), String> {
    let values = Values::from_encoded(count as usize, bytes).map_err(|error| error.to_string())?;
    for value in values.iter() {
        let mut encoded = Vec::with_capacity(value.encoded_len());
        value.encode(&mut encoded);
        each(&value, &encoded);
    }
    Ok(())
}

/// How an answer differs from the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerDifference {
    /// It cannot be decoded.
    Unreadable,
    /// It has another response code.
    Code {
        /// The code received.
        received: ResponseCode,
        /// The code expected.
        expected: ResponseCode,
    },
    /// It does not repeat the handle as spelt in the request.
    Handle,
    /// It has another number of values.
    Count {
        /// The number received.
        received: u32,
        /// The number expected.
        expected: u32,
    },
    /// The values differ.
    Values {
        /// Offset of the first byte that differs, from the first value on.
        at: usize,
    },
    /// It matches a set that was replaced longer ago than allowed.
    Stale {
        /// Time from the replacement to the request.
        stale_ms: i64,
    },
    /// A signature was requested, but is missing or not made with the server's key.
    Signature,
    /// The set cannot be read.
    SetDamaged,
    /// A redirect has another status.
    Status {
        /// The status received.
        received: i32,
        /// The status expected.
        expected: i32,
    },
    /// A redirect leads elsewhere than the record.
    Location,
    /// Nothing is known about the handle: neither a difference nor a match.
    Unknown,
}

impl fmt::Display for AnswerDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable => f.write_str("the answer cannot be decoded"),
            Self::Code { received, expected } => {
                write!(f, "response code {received:?}, expected {expected:?}")
            }
            Self::Handle => f.write_str("the answer is for another handle, or spells it differently"),
            Self::Count { received, expected } => {
                write!(f, "wrong number of values: {received}, expected {expected}")
            }
            Self::Values { at } => write!(f, "the values differ from byte {at} on"),
            Self::Stale { stale_ms } => {
                write!(f, "from a set that had been replaced {stale_ms} ms before the request was sent")
            }
            Self::Signature => f.write_str("not signed, or not with the key of the server"),
            Self::Status { received, expected } => write!(f, "HTTP status {received}, expected {expected}"),
            Self::Location => f.write_str("the redirect does not lead to the URL of the record"),
            Self::SetDamaged => f.write_str("the record in the set is damaged"),
            Self::Unknown => f.write_str("nothing is known about the handle"),
        }
    }
}

/// An answer with its question.
#[derive(Clone, Copy, Debug)]
pub struct AnsweredQuestion<'a> {
    /// The question.
    pub question: &'a GeneratedQuestion<'a>,
    /// The envelope of the answer; of a fragmented answer that of the first fragment.
    pub envelope: &'a Envelope,
    /// The answer without its envelope.
    pub message: &'a [u8],
}

/// Compares an answer with a set.
///
/// # Errors
///
/// The difference.
pub fn compare(
    answered: &AnsweredQuestion<'_>,
    message: &Message<'_>,
    source: &dyn ContentSource,
) -> Result<(), AnswerDifference> {
    let mut selected = Vec::new();
    let wanted = expected_values(answered.question, source, &mut selected)
        .map_err(|_| AnswerDifference::SetDamaged)?;
    compare_held(answered.question, message, wanted)
}

/// The expected answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpectedAnswer {
    pub(crate) code: ResponseCode,
    /// Number of values.
    pub(crate) count: u32,
    /// The values in wire form, one after another.
    pub(crate) values: Vec<u8>,
}

impl ExpectedAnswer {
    /// The answer to `question` according to `source`; `None` if it is unknown.
    pub(crate) fn of(question: &GeneratedQuestion<'_>, source: &dyn ContentSource) -> Option<Self> {
        let mut selected = Vec::new();
        let code = match expected_values(question, source, &mut selected).ok()? {
            SetContent::Values { count, bytes } => {
                return Some(Self { code: ResponseCode::SUCCESS, count, values: bytes.to_vec() });
            }
            SetContent::NothingPublic => ResponseCode::VALUES_NOT_FOUND,
            SetContent::Absent | SetContent::NotHomed => ResponseCode::HANDLE_NOT_FOUND,
            SetContent::Remote => ResponseCode::SERVER_NOT_RESPONSIBLE,
            SetContent::Code(code) => code,
            SetContent::Unknown => return None,
        };
        Some(Self { code, count: 0, values: Vec::new() })
    }

    /// Whether `message` is this answer to `question`.
    pub(crate) fn is_met(&self, question: &GeneratedQuestion<'_>, message: &Message<'_>) -> bool {
        let held = match self.code {
            ResponseCode::SUCCESS => SetContent::Values { count: self.count, bytes: &self.values },
            code => SetContent::Code(code),
        };
        compare_held(question, message, held).is_ok()
    }
}

/// Checks the signature of an answer to a request for a signed one.
///
/// # Errors
///
/// [`AnswerDifference::Signature`].
pub fn check_signature(
    answered: &AnsweredQuestion<'_>,
    message: &Message<'_>,
    key: &PublicKey,
) -> Result<(), AnswerDifference> {
    if !answered.question.flags.has(OpFlags::CERTIFY) {
        return Ok(());
    }
    let verified = handle_auth::message::verify_message(answered.envelope, message, key);
    verified.map(|_| ()).map_err(|_| AnswerDifference::Signature)
}

pub(crate) fn code(message: &Message<'_>, expected: ResponseCode) -> Result<(), AnswerDifference> {
    let received = message.header.response_code;
    if received == expected { Ok(()) } else { Err(AnswerDifference::Code { received, expected }) }
}

pub(crate) fn compare_held(
    question: &GeneratedQuestion<'_>,
    message: &Message<'_>,
    held: SetContent<'_>,
) -> Result<(), AnswerDifference> {
    let received = message.header.response_code;
    let (count, bytes) = match held {
        SetContent::Values { count, bytes } => (count, bytes),
        SetContent::NothingPublic => return code(message, ResponseCode::VALUES_NOT_FOUND),
        SetContent::Unknown => return Err(AnswerDifference::Unknown),
        SetContent::Code(expected) => return code(message, expected),
        // Instead of reporting a missing prefix record, a server may refer to the service that has
        // it. A name without a slash is looked up as such a record.
        SetContent::Absent | SetContent::Remote | SetContent::NotHomed
            if received == ResponseCode::PREFIX_REFERRAL
                && Handle(&Handle(question.handle).looked_up()).is_prefix_record() =>
        {
            return Ok(());
        }
        SetContent::NotHomed if received == ResponseCode::SERVER_NOT_RESPONSIBLE => return Ok(()),
        SetContent::Absent | SetContent::NotHomed => return code(message, ResponseCode::HANDLE_NOT_FOUND),
        SetContent::Remote => return code(message, ResponseCode::SERVER_NOT_RESPONSIBLE),
    };
    code(message, ResponseCode::SUCCESS)?;
    let mut cursor = Cursor::new(message.body);
    // Recorded requests may have asked for a request digest, which then precedes every answer.
    if message.header.flags.has(OpFlags::REQUEST_DIGEST) {
        RequestDigest::decode(&mut cursor).map_err(|_| AnswerDifference::Unreadable)?;
    }
    let echo = cursor.string(Field::Handle).map_err(|_| AnswerDifference::Unreadable)?;
    let received_count = cursor.u32(Field::Values).map_err(|_| AnswerDifference::Unreadable)?;
    if echo != question.handle {
        return Err(AnswerDifference::Handle);
    }
    if received_count != count {
        return Err(AnswerDifference::Count { received: received_count, expected: count });
    }
    let values = cursor.rest();
    if values != bytes && !differ_in_unset_times(values, bytes, count as usize) {
        let same = values.iter().zip(bytes).take_while(|(received, expected)| received == expected).count();
        return Err(AnswerDifference::Values { at: same });
    }
    Ok(())
}

/// Whether the values differ from `expected` only in time stamps that `expected` does not have. A
/// file of records may omit them, and the server then sets its own.
fn differ_in_unset_times(received: &[u8], expected: &[u8], count: usize) -> bool {
    let (Ok(received), Ok(expected)) =
        (Values::from_encoded(count, received), Values::from_encoded(count, expected))
    else {
        return false;
    };
    let is_alike = |(received, expected): (Value<'_>, Value<'_>)| {
        received == expected || expected.timestamp == 0 && Value { timestamp: 0, ..received } == expected
    };
    received.iter().zip(expected.iter()).all(is_alike)
}

/// What `source` holds of the values that `question` selects, or the code of a refusal if the
/// request included values that are not public. A partial selection is assembled in `selected`.
fn expected_values<'s>(
    question: &GeneratedQuestion<'_>,
    source: &'s dyn ContentSource,
    selected: &'s mut Vec<u8>,
) -> Result<SetContent<'s>, String> {
    if question.is_plain() {
        return source.content_of(question.handle);
    }
    let (mut count, mut refused) = (0, None);
    source.each_value(question.handle, &mut |value, encoded| {
        if !question.selects(value) {
            return;
        }
        if value.is_public() {
            count += 1;
            selected.extend_from_slice(encoded);
        } else if !question.flags.has(OpFlags::PUBLIC_ONLY) {
            // The first such value decides, so that a value without read permission causes a
            // refusal at once.
            refused.get_or_insert(if value.permissions.has(Permissions::ADMIN_READ) {
                ResponseCode::AUTHENTICATION_NEEDED
            } else {
                ResponseCode::INSUFFICIENT_PERMISSIONS
            });
        }
    })?;
    if let Some(code) = refused {
        return Ok(SetContent::Code(code));
    }
    Ok(match (source.content_of(question.handle)?, count) {
        (SetContent::Values { .. } | SetContent::NothingPublic, 0) => SetContent::NothingPublic,
        (SetContent::Values { .. } | SetContent::NothingPublic, count) => {
            SetContent::Values { count, bytes: selected }
        }
        (not_here, _) => not_here,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(values: &[Value<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        values.iter().for_each(|value| value.encode(&mut bytes));
        bytes
    }

    #[test]
    fn a_value_without_a_time_stamp_may_have_any() {
        let undated = Value::new(1, b"URL", b"https://example.org/");
        let dated = Value { timestamp: 7, ..Value::new(2, b"EMAIL", b"a@example.org") };
        let expected = encoded(&[Value { timestamp: 0, ..undated }, dated]);
        let later = Value { timestamp: 1_700_000_000, ..undated };
        assert!(differ_in_unset_times(&encoded(&[later, dated]), &expected, 2));
        for wrong in [
            [later, Value { timestamp: 8, ..dated }],
            [Value { data: b"https://example.com/", ..later }, dated],
            [dated, later],
        ] {
            assert!(!differ_in_unset_times(&encoded(&wrong), &expected, 2), "{wrong:?}");
        }
        assert!(!differ_in_unset_times(&encoded(&[later]), &expected, 1));
        assert!(!differ_in_unset_times(b"no values", &expected, 2));
    }
}
