//! What an answer must be, by what somebody holds about the handle, and how an answer differs from it.

use std::fmt;

use handle_auth::PublicKey;
use handle_proto::value::Permissions;
use handle_proto::value::Values;
use handle_proto::wire::cursor::Cursor;
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::{Envelope, Message};
use handle_proto::{Field, Handle, OpFlags, ResponseCode, Value};

use crate::question::GeneratedQuestion;

/// What a set says about a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetContent<'a> {
    /// The values anyone may read, in wire form.
    Values {
        /// How many.
        count: u32,
        /// One after the other.
        bytes: &'a [u8],
    },
    /// The handle exists, but has no value that anyone may read.
    NothingPublic,
    /// There is no such handle.
    Absent,
    /// There is no such handle, and its prefix is not homed here: somebody else may have it.
    Remote,
    /// There is no such handle, and whether its prefix is homed here is not known.
    NotHere,
    /// This code is what the server said before.
    Said(ResponseCode),
    /// Nothing is known.
    Unknown,
}

/// What a value is given to: the value, and its wire form.
pub type EachValue<'e> = &'e mut dyn FnMut(&Value<'_>, &[u8]);

/// One published set, or something that stands for it.
pub trait ContentSource: Send + Sync + fmt::Debug {
    /// What it says about `handle`; an error where it is damaged.
    ///
    /// # Errors
    ///
    /// What is damaged.
    fn content_of(&self, handle: &[u8]) -> Result<SetContent<'_>, String>;

    /// All values of `handle` in stored order, also those that are not public. Of a source that knows only
    /// public ones, these.
    ///
    /// # Errors
    ///
    /// What is damaged.
    fn each_value(&self, handle: &[u8], each: EachValue<'_>) -> Result<(), String> {
        match self.content_of(handle)? {
            SetContent::Values { count, bytes } => each_of(count, bytes, each),
            _ => Ok(()),
        }
    }
}

/// Gives values in wire form to `each`.
///
/// # Errors
///
/// When they do not decode.
pub fn each_of(count: u32, bytes: &[u8], each: EachValue<'_>) -> Result<(), String> {
    let values = Values::from_encoded(count as usize, bytes).map_err(|error| error.to_string())?;
    for value in values.iter() {
        let mut encoded = Vec::with_capacity(value.encoded_len());
        value.encode(&mut encoded);
        each(&value, &encoded);
    }
    Ok(())
}

/// How an answer differs from what the set holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerDifference {
    /// It does not decode.
    Unreadable,
    /// It has another response code.
    Code {
        /// What came.
        got: ResponseCode,
        /// What should have come.
        want: ResponseCode,
    },
    /// It does not repeat the handle as it was spelt.
    Handle,
    /// It has another number of values.
    Count {
        /// What came.
        got: u32,
        /// What should have come.
        want: u32,
    },
    /// The values differ.
    Values {
        /// First byte that differs, from the first value on.
        at: usize,
    },
    /// It equals a set that was replaced longer ago than is allowed.
    Stale {
        /// How long before the request was sent.
        stale_ms: i64,
    },
    /// A signature was asked for, and is not there or not of the server's key.
    Signature,
    /// The set cannot be read.
    SetDamaged,
    /// Nothing is known about the handle: no difference, but no match either.
    Unknown,
}

impl fmt::Display for AnswerDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable => f.write_str("the answer does not decode"),
            Self::Code { got, want } => write!(f, "response code is {got:?}, should be {want:?}"),
            Self::Handle => f.write_str("the answer is for another handle, or spells it differently"),
            Self::Count { got, want } => write!(f, "{got} values, should be {want}"),
            Self::Values { at } => write!(f, "the values differ from byte {at} on"),
            Self::Stale { stale_ms } => {
                write!(f, "from a set that had been replaced {stale_ms} ms before the request was sent")
            }
            Self::Signature => f.write_str("not signed, or not with the key of the server"),
            Self::SetDamaged => f.write_str("the record in the set is damaged"),
            Self::Unknown => f.write_str("nothing is known about the handle"),
        }
    }
}

/// An answer, and the question that it is one to.
#[derive(Clone, Copy, Debug)]
pub struct AnsweredQuestion<'a> {
    /// What was asked.
    pub question: &'a GeneratedQuestion<'a>,
    /// The envelope of the answer, of its first piece.
    pub envelope: &'a Envelope,
    /// All of it but the envelope.
    pub message: &'a [u8],
}

/// Compares an answer with what one set holds.
///
/// # Errors
///
/// How it differs.
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

/// What should have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpectedAnswer {
    pub(crate) code: ResponseCode,
    /// How many values.
    pub(crate) count: u32,
    /// The values in wire form, one after the other.
    pub(crate) values: Vec<u8>,
}

impl ExpectedAnswer {
    /// The answer to `question` by what `source` holds; `None` where that is not known.
    pub(crate) fn of(question: &GeneratedQuestion<'_>, source: &dyn ContentSource) -> Option<Self> {
        let mut selected = Vec::new();
        let code = match expected_values(question, source, &mut selected).ok()? {
            SetContent::Values { count, bytes } => {
                return Some(Self { code: ResponseCode::SUCCESS, count, values: bytes.to_vec() });
            }
            SetContent::NothingPublic => ResponseCode::VALUES_NOT_FOUND,
            SetContent::Absent | SetContent::NotHere => ResponseCode::HANDLE_NOT_FOUND,
            SetContent::Remote => ResponseCode::SERVER_NOT_RESPONSIBLE,
            SetContent::Said(said) => said,
            SetContent::Unknown => return None,
        };
        Some(Self { code, count: 0, values: Vec::new() })
    }

    /// Whether `message` is this answer to `question`.
    pub(crate) fn is_met(&self, question: &GeneratedQuestion<'_>, message: &Message<'_>) -> bool {
        let held = match self.code {
            ResponseCode::SUCCESS => SetContent::Values { count: self.count, bytes: &self.values },
            code => SetContent::Said(code),
        };
        compare_held(question, message, held).is_ok()
    }
}

/// Checks the signature of an answer that was asked to be signed.
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

fn code(message: &Message<'_>, want: ResponseCode) -> Result<(), AnswerDifference> {
    let got = message.header.response_code;
    if got == want { Ok(()) } else { Err(AnswerDifference::Code { got, want }) }
}

fn compare_held(
    question: &GeneratedQuestion<'_>,
    message: &Message<'_>,
    held: SetContent<'_>,
) -> Result<(), AnswerDifference> {
    let got = message.header.response_code;
    let (count, bytes) = match held {
        SetContent::Values { count, bytes } => (count, bytes),
        SetContent::NothingPublic => return code(message, ResponseCode::VALUES_NOT_FOUND),
        SetContent::Unknown => return Err(AnswerDifference::Unknown),
        SetContent::Said(said) => return code(message, said),
        // Instead of saying that the record of a prefix is not there, a server may say who has it. A name without a slash is
        // looked up as such a record.
        SetContent::Absent | SetContent::Remote | SetContent::NotHere
            if got == ResponseCode::PREFIX_REFERRAL
                && Handle(&Handle(question.handle).looked_up()).is_prefix_record() =>
        {
            return Ok(());
        }
        SetContent::NotHere if got == ResponseCode::SERVER_NOT_RESPONSIBLE => return Ok(()),
        SetContent::Absent | SetContent::NotHere => return code(message, ResponseCode::HANDLE_NOT_FOUND),
        SetContent::Remote => return code(message, ResponseCode::SERVER_NOT_RESPONSIBLE),
    };
    code(message, ResponseCode::SUCCESS)?;
    let mut cursor = Cursor::new(message.body);
    // Recorded requests may have asked for their digest, which is in front of every answer then.
    if message.header.flags.has(OpFlags::REQUEST_DIGEST) {
        RequestDigest::decode(&mut cursor).map_err(|_| AnswerDifference::Unreadable)?;
    }
    let echo = cursor.string(Field::Handle).map_err(|_| AnswerDifference::Unreadable)?;
    let got_count = cursor.u32(Field::Values).map_err(|_| AnswerDifference::Unreadable)?;
    if echo != question.handle {
        return Err(AnswerDifference::Handle);
    }
    if got_count != count {
        return Err(AnswerDifference::Count { got: got_count, want: count });
    }
    let values = cursor.rest();
    if values != bytes && !differ_in_unset_times(values, bytes, count as usize) {
        let same = values.iter().zip(bytes).take_while(|(got, want)| got == want).count();
        return Err(AnswerDifference::Values { at: same });
    }
    Ok(())
}

/// Whether values differ from `want` only in time stamps that `want` does not have: records of a file may come without,
/// and a server sets its own then.
fn differ_in_unset_times(got: &[u8], want: &[u8], count: usize) -> bool {
    let (Ok(got), Ok(want)) = (Values::from_encoded(count, got), Values::from_encoded(count, want)) else {
        return false;
    };
    let is_alike = |(got, want): (Value<'_>, Value<'_>)| {
        got == want || want.timestamp == 0 && Value { timestamp: 0, ..got } == want
    };
    got.iter().zip(want.iter()).all(is_alike)
}

/// What `source` holds of what `question` selects, which is put together in `selected` if it is not all; the code
/// with which it is refused when values were asked for that not everyone may read.
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
            // The first of them decides: who may not be let in at all is told so at once.
            refused.get_or_insert(if value.permissions.has(Permissions::ADMIN_READ) {
                ResponseCode::AUTHENTICATION_NEEDED
            } else {
                ResponseCode::INSUFFICIENT_PERMISSIONS
            });
        }
    })?;
    if let Some(code) = refused {
        return Ok(SetContent::Said(code));
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
        let one = Value::new(1, b"URL", b"https://example.org/");
        let other = Value { timestamp: 7, ..Value::new(2, b"EMAIL", b"a@example.org") };
        let want = encoded(&[Value { timestamp: 0, ..one }, other]);
        let later = Value { timestamp: 1_700_000_000, ..one };
        assert!(differ_in_unset_times(&encoded(&[later, other]), &want, 2));
        for wrong in [
            [later, Value { timestamp: 8, ..other }],
            [Value { data: b"https://example.com/", ..later }, other],
            [other, later],
        ] {
            assert!(!differ_in_unset_times(&encoded(&wrong), &want, 2), "{wrong:?}");
        }
        assert!(!differ_in_unset_times(&encoded(&[later]), &want, 1));
        assert!(!differ_in_unset_times(b"no values", &want, 2));
    }
}
