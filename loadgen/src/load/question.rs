//! The content of a request: the handle, the selected values, and the flags.

use std::fmt;
use std::str::FromStr;

use handle_proto::value::type_matches;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Envelope, Header, Message};
use handle_proto::{OpCode, OpFlags, Value};

use crate::random::RandomGenerator;

/// A request as seen by the verification of its answer.
#[derive(Clone, Copy, Debug)]
pub struct GeneratedQuestion<'a> {
    /// The handle, as spelt in the request.
    pub handle: &'a [u8],
    /// Values requested by index.
    pub indexes: Indexes<'a>,
    /// Values requested by type.
    pub types: Strings<'a>,
    /// The flags of its header.
    pub flags: OpFlags,
}

impl<'a> GeneratedQuestion<'a> {
    /// All public values of `handle`.
    #[must_use]
    pub const fn plain(handle: &'a [u8]) -> Self {
        Self { handle, indexes: Indexes::EMPTY, types: Strings::EMPTY, flags: OpFlags::PLAIN_REQUEST }
    }

    /// The question of a whole message, envelope included; `None` if it is not a resolution.
    #[must_use]
    pub fn of_message(bytes: &'a [u8]) -> Option<Self> {
        let (_, message) = Envelope::split(bytes).ok()?;
        let message = Message::decode(message).ok()?;
        if message.header.op_code != OpCode::RESOLUTION || message.header.response_code.0 != 0 {
            return None;
        }
        let Query { handle, indexes, types } = Query::decode(message.body).ok()?;
        Some(Self { handle, indexes, types, flags: message.header.flags })
    }

    /// Whether it requests all public values and nothing else.
    #[inline]
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        self.indexes.is_empty() && self.types.is_empty() && self.flags.has(OpFlags::PUBLIC_ONLY)
    }

    /// Whether the lists select `value`: one of them does, or both are empty.
    #[must_use]
    pub fn selects(&self, value: &Value<'_>) -> bool {
        (self.indexes.is_empty() && self.types.is_empty())
            || self.indexes.has(value.index)
            || self.types.iter().any(|requested| type_matches(requested, value.kind))
    }
}

/// A form of request, and its weight among others.
///
/// Written as `WEIGHT=ATTRIBUTE+ATTRIBUTE`; see [`ATTRIBUTES`](Self::ATTRIBUTES).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuestionForm {
    weight: u32,
    text: String,
    flags: OpFlags,
    /// Requests a generated name instead.
    is_miss: bool,
    /// Spells letters in upper or lower case at random.
    varies_case: bool,
    indexes: Vec<[u8; 4]>,
    types: Vec<u8>,
    types_count: usize,
    /// The rest of the request after its handle.
    tail: Vec<u8>,
}

/// Bytes that turn a name into an unknown one: a dot, a tilde and eight digits.
const MISS_LEN: usize = 10;

impl Default for QuestionForm {
    fn default() -> Self {
        "1=plain".parse().expect("`plain` is an attribute")
    }
}

impl QuestionForm {
    /// The attributes of a form, with their meaning.
    pub const ATTRIBUTES: [(&'static str, &'static str); 7] = [
        ("plain", "all public values"),
        ("miss", "a generated handle under the same prefix"),
        ("case", "letters in upper or lower case at random"),
        ("index:N", "the value with this index"),
        ("type:TYPE", "values of this type; with a dot at its end, sub-types too"),
        ("all", "also values that are not public, without authentication"),
        ("certify", "a signed answer"),
    ];

    /// Its weight, compared with other forms.
    #[must_use]
    pub const fn weight(&self) -> u32 {
        self.weight
    }

    /// Bytes of a request of this form beyond the head and the handle of the list.
    #[must_use]
    pub const fn extra_len(&self) -> usize {
        self.tail.len() + if self.is_miss { MISS_LEN } else { 0 }
    }

    /// The rest of a request after its handle: the lists, and the length of an empty credential.
    #[inline]
    #[must_use]
    pub fn tail(&self) -> &[u8] {
        &self.tail
    }

    /// The flags of its header.
    #[must_use]
    pub const fn flags(&self) -> OpFlags {
        self.flags
    }

    /// Whether the handle is requested as it is in the list.
    #[inline]
    #[must_use]
    pub const fn keeps_name(&self) -> bool {
        !self.is_miss && !self.varies_case
    }

    /// Writes the name to request instead of `handle`, chosen by `salt`, and returns its length.
    ///
    /// # Panics
    ///
    /// Unless there is capacity for `handle` and [`extra_len`](Self::extra_len).
    pub fn write_name(&self, handle: &[u8], salt: u32, buffer: &mut [u8]) -> usize {
        buffer[..handle.len()].copy_from_slice(handle);
        let mut random = RandomGenerator::new(u64::from(salt), 0);
        if self.varies_case {
            let mut bits = 0;
            for (i, byte) in buffer[..handle.len()].iter_mut().filter(|b| b.is_ascii_alphabetic()).enumerate()
            {
                if i % 64 == 0 {
                    bits = random.next();
                }
                *byte ^= if bits & 1 << (i % 64) == 0 { 0 } else { 0x20 };
            }
        }
        if !self.is_miss {
            return handle.len();
        }
        let end = &mut buffer[handle.len()..handle.len() + MISS_LEN];
        end[..2].copy_from_slice(b".~");
        let number = random.next();
        for (i, digit) in end[2..].iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(number >> (4 * i) & 15) as usize];
        }
        handle.len() + MISS_LEN
    }

    /// The question about `handle`, as written by [`write_name`](Self::write_name).
    #[must_use]
    pub fn question<'a>(&'a self, handle: &'a [u8]) -> GeneratedQuestion<'a> {
        let types = Strings::from_encoded(self.types_count, &self.types).unwrap_or(Strings::EMPTY);
        GeneratedQuestion { handle, indexes: Indexes::new(&self.indexes), types, flags: self.flags }
    }
}

impl fmt::Display for QuestionForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for QuestionForm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (weight, attributes) = text.split_once('=').unwrap_or(("1", text));
        let weight = weight.parse().ok().filter(|weight| (1..=1_000_000).contains(weight));
        let weight = weight.ok_or("invalid weight: expected a number from 1 to 1000000, as in 90=plain")?;
        let (mut flags, mut is_miss, mut varies_case) = (OpFlags::PLAIN_REQUEST, false, false);
        let (mut indexes, mut types) = (Vec::new(), Vec::new());
        for attribute in attributes.split('+') {
            match attribute.split_once(':').unwrap_or((attribute, "")) {
                ("plain", "") => {}
                ("miss", "") => is_miss = true,
                ("case", "") => varies_case = true,
                ("all", "") => flags = flags.without(OpFlags::PUBLIC_ONLY),
                ("certify", "") => flags = flags.with(OpFlags::CERTIFY),
                ("index", number) => {
                    let index: u32 = number.parse().map_err(|_| format!("invalid index {number:?}"))?;
                    indexes.push(index.cast_signed());
                }
                ("type", kind) if !kind.is_empty() => types.push(kind.as_bytes()),
                _ => {
                    let names = Self::ATTRIBUTES.map(|(name, _)| name).join(", ");
                    return Err(format!("unknown attribute {attribute:?}: expected one of {names}"));
                }
            }
        }
        let (mut index_bytes, mut type_bytes, mut tail) = (Vec::new(), Vec::new(), Vec::new());
        Indexes::build(indexes, &mut index_bytes).encode(&mut tail);
        let types_count = types.len();
        Strings::build(types, &mut type_bytes).encode(&mut tail);
        tail.extend_from_slice(&[0; 4]);
        if tail.len() > Self::TAIL_LEN_MAX {
            return Err(format!(
                "the lists of indexes and types take more than {} bytes",
                Self::TAIL_LEN_MAX
            ));
        }
        let (text, types) = (format!("{weight}={attributes}"), type_bytes);
        Ok(Self { weight, text, flags, is_miss, varies_case, indexes: index_bytes, types, types_count, tail })
    }
}

impl QuestionForm {
    /// Maximum length of the lists of a form; the handle has to fit in the same datagram.
    pub const TAIL_LEN_MAX: usize = 256;
    /// Maximum number of forms in a run.
    pub const COUNT_MAX: usize = 64;
}

/// The start of all requests of a form: that of a client with our version.
pub(crate) fn request_head(flags: OpFlags, now_unix_s: u32) -> [u8; Envelope::LEN + Header::LEN] {
    let envelope = Envelope::request(0);
    let header = Header::request(OpCode::RESOLUTION, flags, now_unix_s);
    let mut head = [0; Envelope::LEN + Header::LEN];
    head[..Envelope::LEN].copy_from_slice(&envelope.to_bytes());
    head[Envelope::LEN..].copy_from_slice(&header.to_bytes());
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_read_and_shown() {
        for (text, shown) in [("plain", "1=plain"), ("90=plain", "90=plain"), ("5=miss+case", "5=miss+case")]
        {
            assert_eq!(text.parse::<QuestionForm>().unwrap().to_string(), shown);
        }
        for (text, part) in [
            ("0=plain", "invalid weight"),
            ("x=plain", "invalid weight"),
            ("1=", "expected one of plain, miss"),
            ("1=nonsense", "unknown attribute"),
            ("1=index:x", "invalid index"),
            ("1=type:", "unknown attribute"),
        ] {
            let error = text.parse::<QuestionForm>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        let long = format!("1=type:{}", "x".repeat(300));
        assert!(long.parse::<QuestionForm>().is_err());
    }

    #[test]
    fn lists_select_their_union() {
        let form: QuestionForm = "1=index:3+type:URL+type:EMAIL.".parse().unwrap();
        let question = form.question(b"10.1/a");
        for (index, kind, selected) in [
            (3, &b"X"[..], true),
            (1, b"url", true),
            (1, b"URL.X", false),
            (1, b"email.x", true),
            (1, b"DESC", false),
        ] {
            assert_eq!(question.selects(&Value::new(index, kind, b"")), selected, "{index}");
        }
        assert!(!question.is_plain());
        assert!(!QuestionForm::from_str("1=all").unwrap().question(b"").is_plain());
        assert!(QuestionForm::from_str("1=certify+case").unwrap().question(b"").is_plain());
    }

    #[test]
    fn names_vary_with_the_salt_and_are_the_same_for_it() {
        let form: QuestionForm = "1=miss+case".parse().unwrap();
        let name = |salt| {
            let mut buffer = [0; 64];
            let len = form.write_name(b"10.5072/Some-Name", salt, &mut buffer);
            buffer[..len].to_vec()
        };
        assert_eq!(name(1), name(1));
        assert_ne!(name(1), name(2));
        let text = String::from_utf8(name(3)).unwrap();
        assert!(text.to_lowercase().starts_with("10.5072/some-name.~"), "{text}");
        assert_eq!(text.len(), 17 + MISS_LEN);
        let spellings: std::collections::BTreeSet<_> =
            (0..50).map(|salt| name(salt)[8..17].to_vec()).collect();
        assert!(spellings.len() > 30, "{}", spellings.len());
    }
}
