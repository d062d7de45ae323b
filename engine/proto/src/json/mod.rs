//! Records, values, sites and keys as JSON, in both directions; messages in one.
//!
//! The output is that of deployed servers, member for member; the input is that and its older
//! forms. A value that was written reads back to the same bytes, except for what the form cannot
//! express:
//!
//! - types, reference handles and texts of a site that are not UTF-8 are written with U+FFFD;
//! - a kind of TTL other than relative and absolute becomes absolute;
//! - IPv4 addresses mapped into IPv6 become IPv4, as in deployed software; `values.jsonl`,
//!   `site/address_v4_mapped`;
//! - bits without a meaning (in permissions, sites and interfaces), flags of keys, and bytes after
//!   keys are dropped.
//!
//! [`text()`] makes the text of a tree, and [`write_value`] the text of a value without a tree.
//! [`RecordLine`] reads a record without a tree, for bulk input. [`data_from_text`] reads what
//! people write for data of predefined types.

mod admin;
mod error;
mod forms;
mod key;
mod line;
mod message;
mod read;
mod site;
mod text;
mod text_form;
mod time;
mod value;

pub use error::JsonError;
pub use key::{private_key_from_jwk, private_key_to_jwk, public_key_from_jwk, public_key_to_jwk};
pub use line::RecordLine;
pub use message::message_to_json;
pub use serde_json::Value as Json;
pub use site::{keep_unknown, site_from_json, site_to_json};
pub use text::{text, write_string, write_value};
pub use text_form::{data_from_text, entered_value_from_json};
pub use value::{
    data_from_json, data_to_json, json_format, value_from_json, value_from_json_as, value_to_json,
};

use crate::value::{Value, ValueBuf};
use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde_json::Map;

/// How permissions are read, where documentation and deployed software differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Reading {
    /// As documented: four digits `0` or `1` for a value and twelve for an administrator, `*` for
    /// all of them, and anything else is an error.
    #[default]
    Documented,
    /// As deployed software reads them: the first of four characters counts as `1`, fewer than four
    /// as `1110`, more from the right. `values.jsonl`, `json/9` to `json/16`.
    Deployed,
}

/// A record: a handle and its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonRecord {
    /// The handle.
    pub handle: Vec<u8>,
    /// The values, in the order given.
    pub values: Vec<ValueBuf>,
}

/// Reads `{"handle": ..., "values": [...]}`. Other members, such as those of an answer, are
/// ignored.
///
/// # Errors
/// When the handle or the values are missing, or a value is invalid.
pub fn record_from_json(json: &Json) -> Result<JsonRecord, JsonError> {
    record_from_json_dated(json, 0)
}

/// Reads a record as [`record_from_json`] does. Values without a time stamp get
/// `default_timestamp`, in Unix seconds.
///
/// # Errors
/// As for [`record_from_json`].
pub fn record_from_json_dated(json: &Json, default_timestamp: u32) -> Result<JsonRecord, JsonError> {
    let object = read::object(json)?;
    let handle = read::required(object, "handle", read::string)?.as_bytes().to_vec();
    let value = |json: &Json| value::value_from_json_dated(json, Reading::Documented, default_timestamp);
    let values = read::required(object, "values", |values| read::each(values, value))?;
    Ok(JsonRecord { handle, values })
}

/// A record as `{"handle": ..., "values": [...]}`.
#[must_use]
pub fn record_to_json<'a>(handle: &[u8], values: impl IntoIterator<Item = Value<'a>>) -> Json {
    let values = values.into_iter().map(|value| value_to_json(&value)).collect();
    object([("handle", lossy(handle)), ("values", Json::Array(values))])
}

fn object<const N: usize>(members: [(&str, Json); N]) -> Json {
    Json::Object(members.into_iter().map(|(name, value)| (name.to_string(), value)).collect::<Map<_, _>>())
}

fn lossy(bytes: &[u8]) -> Json {
    Json::String(String::from_utf8_lossy(bytes).into_owned())
}

/// `name[at]`, for paths in errors.
fn item(at: usize) -> Cow<'static, str> {
    Cow::Owned(format!("[{at}]"))
}

#[cfg(test)]
mod tests;
