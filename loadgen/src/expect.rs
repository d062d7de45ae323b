//! What an answer must be, by what somebody holds about the handle, and how an answer differs from it.

use std::fmt;

use handle_auth::PublicKey;
use handle_proto::value::Permissions;
use handle_proto::value::Values;
use handle_proto::wire::cursor::Cursor;
use handle_proto::wire::{Envelope, Message};
use handle_proto::{Field, Handle, OpFlags, ResponseCode, Value};

use crate::question::Question;

/// What a set says about a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held<'a> {
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
    Elsewhere,
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
pub trait Source: Send + Sync + fmt::Debug {
    /// What it says about `handle`; an error where it is damaged.
    ///
    /// # Errors
    ///
    /// What is damaged.
    fn held(&self, handle: &[u8]) -> Result<Held<'_>, String>;

    /// All values of `handle` in stored order, also those that are not public. Of a source that knows only
    /// public ones, these.
    ///
    /// # Errors
    ///
    /// What is damaged.
    fn each_value(&self, handle: &[u8], each: EachValue<'_>) -> Result<(), String> {
        match self.held(handle)? {
            Held::Values { count, bytes } => each_of(count, bytes, each),
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
pub enum Difference {
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

impl fmt::Display for Difference {
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
pub struct Answered<'a> {
    /// What was asked.
    pub question: &'a Question<'a>,
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
    answered: &Answered<'_>,
    message: &Message<'_>,
    source: &dyn Source,
) -> Result<(), Difference> {
    let question = answered.question;
    if question.is_plain() {
        let held = source.held(question.handle).map_err(|_| Difference::SetDamaged)?;
        return compare_held(question, message, held);
    }
    let selected = Selected::of(question, source).map_err(|_| Difference::SetDamaged)?;
    match selected.refused {
        Some(want) => code(message, want),
        None => {
            let held = source.held(question.handle).map_err(|_| Difference::SetDamaged)?;
            let exists = matches!(held, Held::Values { .. } | Held::NothingPublic);
            let selected = match selected.count {
                _ if !exists => held,
                0 => Held::NothingPublic,
                count => Held::Values { count, bytes: &selected.bytes },
            };
            compare_held(question, message, selected)
        }
    }
}

/// Checks the signature of an answer that was asked to be signed.
///
/// # Errors
///
/// [`Difference::Signature`].
pub fn check_signature(
    answered: &Answered<'_>,
    message: &Message<'_>,
    key: &PublicKey,
) -> Result<(), Difference> {
    if !answered.question.flags.has(OpFlags::CERTIFY) {
        return Ok(());
    }
    let verified = handle_auth::message::verify_message(answered.envelope, message, key);
    verified.map(|_| ()).map_err(|_| Difference::Signature)
}

fn code(message: &Message<'_>, want: ResponseCode) -> Result<(), Difference> {
    let got = message.header.response_code;
    if got == want { Ok(()) } else { Err(Difference::Code { got, want }) }
}

fn compare_held(question: &Question<'_>, message: &Message<'_>, held: Held<'_>) -> Result<(), Difference> {
    let got = message.header.response_code;
    let (count, bytes) = match held {
        Held::Values { count, bytes } => (count, bytes),
        Held::NothingPublic => return code(message, ResponseCode::VALUES_NOT_FOUND),
        Held::Unknown => return Err(Difference::Unknown),
        Held::Said(said) => return code(message, said),
        // Instead of saying that the record of a prefix is not there, a server may say who has it.
        Held::Absent | Held::Elsewhere | Held::NotHere
            if got == ResponseCode::PREFIX_REFERRAL && Handle(question.handle).is_prefix_record() =>
        {
            return Ok(());
        }
        Held::NotHere if got == ResponseCode::SERVER_NOT_RESPONSIBLE => return Ok(()),
        Held::Absent | Held::NotHere => return code(message, ResponseCode::HANDLE_NOT_FOUND),
        Held::Elsewhere => return code(message, ResponseCode::SERVER_NOT_RESPONSIBLE),
    };
    code(message, ResponseCode::SUCCESS)?;
    let mut cursor = Cursor::new(message.body);
    let echo = cursor.string(Field::Handle).map_err(|_| Difference::Unreadable)?;
    let got_count = cursor.u32(Field::Values).map_err(|_| Difference::Unreadable)?;
    if echo != question.handle {
        return Err(Difference::Handle);
    }
    if got_count != count {
        return Err(Difference::Count { got: got_count, want: count });
    }
    let values = cursor.rest();
    if values != bytes {
        let same = values.iter().zip(bytes).take_while(|(got, want)| got == want).count();
        return Err(Difference::Values { at: same });
    }
    Ok(())
}

/// The values that a question selects and gets.
struct Selected {
    count: u32,
    bytes: Vec<u8>,
    /// With which code it is refused: when values were asked for that not everyone may read.
    refused: Option<ResponseCode>,
}

impl Selected {
    fn of(question: &Question<'_>, source: &dyn Source) -> Result<Self, String> {
        let mut selected = Self { count: 0, bytes: Vec::new(), refused: None };
        source.each_value(question.handle, &mut |value, encoded| {
            if !question.selects(value) {
                return;
            }
            if value.is_public() {
                selected.count += 1;
                selected.bytes.extend_from_slice(encoded);
            } else if !question.flags.has(OpFlags::PUBLIC_ONLY) {
                // The first of them decides: who may not be let in at all is told so at once.
                selected.refused.get_or_insert(if value.permissions.has(Permissions::ADMIN_READ) {
                    ResponseCode::AUTHENTICATION_NEEDED
                } else {
                    ResponseCode::INSUFFICIENT_PERMISSIONS
                });
            }
        })?;
        Ok(selected)
    }
}
