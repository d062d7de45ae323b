//! Reads records from lines of JSON directly to wire form: without a tree, and for most values
//! without allocation.
//!
//! [`record_from_json`](super::record_from_json) is the definition. It reads a line again that this
//! reader rejects, and makes the error.

use super::value::{EncodedReferences, Format, permissions, ttl_text};
use super::{Json, JsonError, Reading, admin, record_from_json_dated, time};
use crate::data::{Admin, DataFormat};
use crate::value::{Permissions, Ttl, Value};
use crate::wire::list::Reference;
use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

/// A record read from one line of JSON. Its values were appended to the caller's buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordLine<'a> {
    /// The handle; borrowed unless it has escapes.
    pub handle: Cow<'a, str>,
    /// Number of appended values.
    pub values_count: usize,
}

impl<'a> RecordLine<'a> {
    /// Reads a record, and appends its values in wire form to `values`, one after the other.
    ///
    /// # Errors
    /// When the line is not JSON, or not a record; `values` is then unchanged.
    pub fn parse(line: &'a str, values: &mut Vec<u8>) -> Result<Self, JsonError> {
        Self::parse_dated(line, values, 0)
    }

    /// Reads a record as [`parse`](Self::parse) does. Values without a time stamp get
    /// `default_timestamp`, in Unix seconds.
    ///
    /// # Errors
    /// As for [`parse`](Self::parse).
    pub fn parse_dated(
        line: &'a str,
        values: &mut Vec<u8>,
        default_timestamp: u32,
    ) -> Result<Self, JsonError> {
        let start = values.len();
        let mut deserializer = serde_json::Deserializer::from_str(line);
        let record = RecordSeed { values, default_timestamp }.deserialize(&mut deserializer);
        match record.and_then(|record| deserializer.end().map(|()| record)) {
            Ok(record) => Ok(record),
            Err(_) => {
                values.truncate(start);
                Self::parse_slowly(line, values, default_timestamp)
            }
        }
    }

    fn parse_slowly(line: &str, values: &mut Vec<u8>, default_timestamp: u32) -> Result<Self, JsonError> {
        let json: Json =
            serde_json::from_str(line).map_err(|error| JsonError::new(format!("not JSON: {error}")))?;
        let record = record_from_json_dated(&json, default_timestamp)?;
        record.values.iter().for_each(|value| values.extend_from_slice(value.as_bytes()));
        let handle = String::from_utf8(record.handle).expect("JSON strings are UTF-8");
        Ok(Self { handle: Cow::Owned(handle), values_count: record.values.len() })
    }
}

struct RecordSeed<'v> {
    values: &'v mut Vec<u8>,
    default_timestamp: u32,
}

impl<'de> DeserializeSeed<'de> for RecordSeed<'_> {
    type Value = RecordLine<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for RecordSeed<'_> {
    type Value = RecordLine<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a record")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let start = self.values.len();
        let (mut handle, mut count) = (None, None);
        while let Some(Text(name)) = map.next_key()? {
            match &*name {
                "handle" => handle = Some(map.next_value::<Text<'_>>()?.0),
                "values" => {
                    // Of members with the same name the last counts, as in a tree.
                    self.values.truncate(start);
                    let default_timestamp = self.default_timestamp;
                    let seed = ValuesSeed { values: self.values, default_timestamp };
                    count = Some(map.next_value_seed(seed)?);
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        match (handle, count) {
            (Some(handle), Some(values_count)) => Ok(RecordLine { handle, values_count }),
            _ => Err(Error::custom("missing")),
        }
    }
}

struct ValuesSeed<'v> {
    values: &'v mut Vec<u8>,
    default_timestamp: u32,
}

impl<'de> DeserializeSeed<'de> for ValuesSeed<'_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ValuesSeed<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of values")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<usize, A::Error> {
        let mut count = 0;
        while let Some(value) = list.next_element::<ValueLine<'_>>()? {
            value.encode(self.values, self.default_timestamp);
            count += 1;
        }
        Ok(count)
    }
}

/// One value, borrowed from the line.
struct ValueLine<'de> {
    index: i32,
    kind: Cow<'de, str>,
    data: Cow<'de, [u8]>,
    permissions: Permissions,
    ttl: Ttl,
    timestamp: Option<u32>,
    references: EncodedReferences,
}

impl ValueLine<'_> {
    fn encode(&self, out: &mut Vec<u8>, default_timestamp: u32) {
        let value = Value {
            index: self.index,
            timestamp: self.timestamp.unwrap_or(default_timestamp),
            ttl: self.ttl,
            permissions: self.permissions,
            kind: self.kind.as_bytes(),
            data: &self.data,
            references: self.references.view(),
        };
        value.encode(out);
    }
}

/// Gives a type a `Deserialize` that starts its visitor `$visitor` with any JSON.
macro_rules! deserialize_any {
    ($name:ident<$de:lifetime> by $visitor:ident) => {
        impl<$de> Deserialize<$de> for $name<$de> {
            fn deserialize<D: Deserializer<$de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any($visitor)
            }
        }
    };
}

deserialize_any!(ValueLine<'de> by ValueVisitor);
deserialize_any!(DataLine<'de> by DataVisitor);
deserialize_any!(AdminLine<'de> by AdminVisitor);
deserialize_any!(ReferenceLine<'de> by ReferenceVisitor);
deserialize_any!(Text<'de> by TextVisitor);

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = ValueLine<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut index, mut kind, mut data) = (None, None, None);
        let (mut permissions_text, mut ttl, mut timestamp) = (None, None, None);
        let mut references = EncodedReferences::default();
        while let Some(Text(name)) = map.next_key()? {
            match &*name {
                "index" => index = Some(map.next_value::<DecimalNumber>()?.0),
                "type" => kind = Some(map.next_value::<Text<'_>>()?.0),
                "data" => data = Some(map.next_value::<DataLine<'_>>()?.0),
                "permissions" => permissions_text = map.next_value::<Option<Text<'_>>>()?,
                "ttl" => ttl = map.next_value::<Option<TtlLine>>()?,
                "timestamp" => timestamp = map.next_value::<Option<Text<'_>>>()?,
                "references" => {
                    references = EncodedReferences::default();
                    for reference in map.next_value::<Option<Vec<ReferenceLine<'_>>>>()?.unwrap_or_default() {
                        references.push(&reference.view());
                    }
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let (Some(index), Some(kind), Some(data)) = (index, kind, data) else {
            return Err(Error::custom("missing"));
        };
        let permissions = match permissions_text {
            Some(Text(text)) => permissions(&text, Reading::Documented).map_err(Error::custom)?,
            None => Permissions::DEFAULT,
        };
        let timestamp = match timestamp {
            Some(Text(text)) => Some(time::from_text(&text).map_err(Error::custom)?),
            None => None,
        };
        let ttl = ttl.map_or(Ttl::DEFAULT, |TtlLine(ttl)| ttl);
        Ok(ValueLine { index, kind, data, permissions, ttl, timestamp, references })
    }
}

/// The data of a value, in any format.
struct DataLine<'de>(Cow<'de, [u8]>);

struct DataVisitor;

impl<'de> Visitor<'de> for DataVisitor {
    type Value = DataLine<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("data")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(DataLine(Cow::Borrowed(text.as_bytes())))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(DataLine(Cow::Owned(text.as_bytes().to_vec())))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut format, mut data) = (None, None);
        while let Some(Text(name)) = map.next_key()? {
            match &*name {
                // All known writers put the format first, so that the value can be read at once.
                "format" if data.is_none() => {
                    let Text(name) = map.next_value()?;
                    format = Some(Format::parse(&name).map_err(Error::custom)?);
                }
                "value" => data = Some(read_data(format, &mut map)?),
                "format" => return Err(Error::custom("format after value")),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        data.map(DataLine).ok_or_else(|| Error::custom("missing"))
    }
}

fn read_data<'de, A: MapAccess<'de>>(
    format: Option<Format>,
    map: &mut A,
) -> Result<Cow<'de, [u8]>, A::Error> {
    match format {
        None => Err(Error::custom("value before format")),
        Some(format @ (Format::String | Format::Base64 | Format::Hex)) => {
            let Text(text) = map.next_value()?;
            format.read_text(text).map_err(Error::custom)
        }
        Some(Format::Typed(form)) if form.format == DataFormat::Admin => {
            map.next_value::<AdminLine<'_>>().map(|admin| Cow::Owned(admin.encode()))
        }
        Some(format) => {
            let json: Json = map.next_value()?;
            format.read(&json, Reading::Documented).map(Cow::Owned).map_err(Error::custom)
        }
    }
}

/// An administrator whose permissions are text, as all known writers have them.
struct AdminLine<'de> {
    reference: ReferenceLine<'de>,
    permissions: crate::data::AdminPermissions,
    legacy: bool,
}

impl AdminLine<'_> {
    fn encode(&self) -> Vec<u8> {
        let mut admin = Admin::new(self.permissions, self.reference.handle.as_bytes(), self.reference.index);
        admin.legacy = self.legacy.then_some([0; 2]);
        let mut data = Vec::with_capacity(12 + self.reference.handle.len());
        admin.encode(&mut data);
        data
    }
}

struct AdminVisitor;

impl<'de> Visitor<'de> for AdminVisitor {
    type Value = AdminLine<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an administrator")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut handle, mut index, mut permissions, mut legacy) = (None, None, None, None);
        while let Some(Text(name)) = map.next_key()? {
            match &*name {
                "handle" => handle = Some(map.next_value::<Text<'_>>()?.0),
                "index" => index = Some(map.next_value::<DecimalNumber>()?.0),
                "permissions" => {
                    let Text(text) = map.next_value()?;
                    let read = admin::permissions_text(&text, Reading::Documented);
                    permissions = Some(read.map_err(Error::custom)?);
                }
                "legacyByteLength" => legacy = map.next_value()?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let (Some(handle), Some(index), Some(permissions)) = (handle, index, permissions) else {
            return Err(Error::custom("missing"));
        };
        let reference = ReferenceLine { handle, index };
        Ok(AdminLine { reference, permissions, legacy: legacy.unwrap_or_default() })
    }
}

struct ReferenceLine<'de> {
    handle: Cow<'de, str>,
    index: i32,
}

impl ReferenceLine<'_> {
    fn view(&self) -> Reference<'_> {
        Reference { handle: self.handle.as_bytes(), index: self.index }
    }
}

struct ReferenceVisitor;

impl<'de> Visitor<'de> for ReferenceVisitor {
    type Value = ReferenceLine<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a reference")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut handle, mut index) = (None, None);
        while let Some(Text(name)) = map.next_key()? {
            match &*name {
                "handle" => handle = Some(map.next_value::<Text<'_>>()?.0),
                "index" => index = Some(map.next_value::<DecimalNumber>()?.0),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        match (handle, index) {
            (Some(handle), Some(index)) => Ok(ReferenceLine { handle, index }),
            _ => Err(Error::custom("missing")),
        }
    }
}

/// A string, borrowed unless it has escapes.
struct Text<'de>(Cow<'de, str>);

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Text(Cow::Owned(text.into())))
    }
}

/// A whole number of 32 bits. A number as text is left to the slow reader.
struct DecimalNumber(i32);

impl<'de> Deserialize<'de> for DecimalNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        i32::deserialize(deserializer).map(Self)
    }
}

struct TtlLine(Ttl);

impl<'de> Deserialize<'de> for TtlLine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TtlVisitor)
    }
}

struct TtlVisitor;

impl Visitor<'_> for TtlVisitor {
    type Value = TtlLine;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("seconds, or a time")
    }

    fn visit_i64<E: Error>(self, seconds: i64) -> Result<TtlLine, E> {
        i32::try_from(seconds).map(|seconds| TtlLine(Ttl::relative(seconds))).map_err(Error::custom)
    }

    fn visit_u64<E: Error>(self, seconds: u64) -> Result<TtlLine, E> {
        i32::try_from(seconds).map(|seconds| TtlLine(Ttl::relative(seconds))).map_err(Error::custom)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<TtlLine, E> {
        ttl_text(text).map(TtlLine).map_err(Error::custom)
    }
}
