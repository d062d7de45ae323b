//! Values as JSON.

use super::forms::JsonForm;
use super::read::{self, Result};
use super::{Json, JsonError, Reading, admin, lossy, object, time};
use crate::data::{self, Data};
use crate::value::{Permissions, Ttl, Value, ValueBuf};
use crate::wire::list::{Reference, References};
use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use data_encoding::BASE64;

/// A value as JSON, with its members in the order of deployed software.
#[must_use]
pub fn value_to_json(value: &Value<'_>) -> Json {
    let mut json = object([
        ("index", value.index.into()),
        ("type", lossy(value.kind)),
        ("data", data_to_json(value.kind, value.data)),
    ]);
    let known = value.permissions.known();
    if known != Permissions::DEFAULT {
        json["permissions"] = known.to_string().into();
    }
    json["ttl"] = match value.ttl.kind {
        Ttl::RELATIVE => value.ttl.seconds.into(),
        _ => time::to_text(value.ttl.seconds).into(),
    };
    if value.timestamp != 0 {
        json["timestamp"] = time::to_text(value.timestamp.cast_signed()).into();
    }
    if !value.references.is_empty() {
        json["references"] = admin::references_to_json(value.references);
    }
    json
}

/// The data of a value as `{"format": ..., "value": ...}`.
///
/// The format of the type if the data have it, otherwise a string if they are text, otherwise
/// base64.
#[must_use]
pub fn data_to_json(kind: &[u8], data: &[u8]) -> Json {
    let form = JsonForm::of(kind);
    let typed = form.and_then(|form| Some((form.name, (form.write)(&Data::decode(kind, data))?)));
    let (format, value) = typed.unwrap_or_else(|| match data::text(data) {
        Some(text) => ("string", text.into()),
        None => ("base64", BASE64.encode(data).into()),
    });
    object([("format", format.into()), ("value", value)])
}

/// The member `format` of the JSON of data of type `kind`; `None` if they are text or bytes, which
/// have the format `string` or `base64`.
#[must_use]
pub fn json_format(kind: &[u8]) -> Option<&'static str> {
    JsonForm::of(kind).map(|form| form.name)
}

/// Reads a value.
///
/// The index may be any number of 32 bits; the server decides whether it may be stored.
///
/// # Errors
/// When index, type or data is missing, or a member is invalid.
pub fn value_from_json(json: &Json) -> Result<ValueBuf> {
    value_from_json_as(json, Reading::Documented)
}

/// Reads a value, with its permissions read as `reading` says.
///
/// # Errors
/// When index, type or data is missing, or a member is invalid.
pub fn value_from_json_as(json: &Json, reading: Reading) -> Result<ValueBuf> {
    value_from_json_dated(json, reading, 0)
}

/// Reads a value. Without a time stamp it gets `default_timestamp`.
pub(super) fn value_from_json_dated(
    json: &Json,
    reading: Reading,
    default_timestamp: u32,
) -> Result<ValueBuf> {
    let object = read::object(json)?;
    let index = read::required(object, "index", read::int32)?;
    let kind = read::required(object, "type", read::string)?;
    let data = read::required(object, "data", |json| data_from_json(json, reading))?;
    let permissions =
        read::optional(object, "permissions", |json| permissions(read::string(json)?, reading))?;
    let ttl = read::optional(object, "ttl", ttl)?;
    let timestamp = read::optional(object, "timestamp", |json| time::from_text(read::string(json)?))?;
    let references = read::optional(object, "references", admin::references)?.unwrap_or_default();
    let references = encoded(&references);
    let mut value = Value::new(index, kind.as_bytes(), &data);
    value.permissions = permissions.unwrap_or(Permissions::DEFAULT);
    value.ttl = ttl.unwrap_or(Ttl::DEFAULT);
    value.timestamp = timestamp.unwrap_or(default_timestamp);
    value.references = references.view();
    Ok(ValueBuf::from(&value))
}

/// References in wire form.
#[derive(Default)]
pub(super) struct EncodedReferences {
    count: usize,
    bytes: Vec<u8>,
}

impl EncodedReferences {
    pub(super) fn push(&mut self, reference: &Reference<'_>) {
        self.count += 1;
        reference.encode(&mut self.bytes);
    }

    pub(super) fn view(&self) -> References<'_> {
        References::from_encoded(self.count, &self.bytes).expect("the references were encoded one by one")
    }
}

fn encoded(references: &[Reference<'_>]) -> EncodedReferences {
    let mut encoded = EncodedReferences::default();
    references.iter().for_each(|reference| encoded.push(reference));
    encoded
}

/// Reads the data of a value: a bare string, or `{"format": ..., "value": ...}`.
///
/// # Errors
/// When the format is unknown, or the value does not have it.
pub fn data_from_json(json: &Json, reading: Reading) -> Result<Vec<u8>> {
    if let Json::String(text) = json {
        return Ok(text.as_bytes().to_vec());
    }
    let object = json.as_object().ok_or_else(|| JsonError::new("neither a string nor an object"))?;
    let format = read::required(object, "format", |json| Format::parse(read::string(json)?))?;
    read::required(object, "value", |json| format.read(json, reading))
}

/// The format of the data of a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Format {
    String,
    Base64,
    Hex,
    Typed(&'static JsonForm),
}

impl Format {
    /// The format with that name, in any ASCII case. `values.jsonl`, `json/30`.
    pub(super) fn parse(name: &str) -> Result<Self> {
        const TEXTS: [(&str, Format); 3] =
            [("string", Format::String), ("base64", Format::Base64), ("hex", Format::Hex)];
        let text = TEXTS.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        let found = text.map(|(_, format)| format).or_else(|| JsonForm::named(name).map(Self::Typed));
        found.ok_or_else(|| JsonError::new(format!("not one of string, base64, hex{}", JsonForm::names())))
    }

    pub(super) fn read(self, json: &Json, reading: Reading) -> Result<Vec<u8>> {
        match self {
            Self::String | Self::Base64 | Self::Hex => {
                self.read_text(Cow::Borrowed(read::string(json)?)).map(Cow::into_owned)
            }
            Self::Typed(form) => (form.read)(json, reading),
        }
    }

    /// Reads one of the formats that are text.
    pub(super) fn read_text<'a>(self, text: Cow<'a, str>) -> Result<Cow<'a, [u8]>> {
        match (self, text) {
            (Self::Base64, text) => read::base64(&text).map(Cow::Owned),
            (Self::Hex, text) => read::hex(&text).map(Cow::Owned),
            (Self::String, Cow::Borrowed(text)) => Ok(Cow::Borrowed(text.as_bytes())),
            (Self::String, Cow::Owned(text)) => Ok(Cow::Owned(String::into_bytes(text))),
            _ => Err(JsonError::new("not an object")),
        }
    }
}

pub(super) fn permissions(text: &str, reading: Reading) -> Result<Permissions> {
    if text == "*" {
        return Ok(Permissions(0x0f));
    }
    let bits = |text: &[u8]| text.iter().fold(0, |bits, digit| bits << 1 | u8::from(*digit == b'1'));
    let text = text.as_bytes();
    match (reading, text.last_chunk::<4>()) {
        (Reading::Documented, Some(last))
            if text.len() == 4 && last.iter().all(|c| matches!(c, b'0' | b'1')) =>
        {
            Ok(Permissions(bits(last)))
        }
        (Reading::Documented, _) => Err(JsonError::new("not four characters 0 or 1")),
        (Reading::Deployed, None) => Ok(Permissions::DEFAULT),
        (Reading::Deployed, Some(last)) if text.len() == 4 => {
            Ok(Permissions(bits(last) | Permissions::ADMIN_READ.0))
        }
        (Reading::Deployed, Some(last)) => Ok(Permissions(bits(last))),
    }
}

fn ttl(json: &Json) -> Result<Ttl> {
    match json {
        Json::String(text) => ttl_text(text),
        json => read::int32(json).map(Ttl::relative),
    }
}

pub(super) fn ttl_text(text: &str) -> Result<Ttl> {
    time::from_text(text).map(|unix_s| Ttl::absolute(unix_s.cast_signed()))
}
