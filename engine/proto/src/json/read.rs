//! Reads members and items. Errors have the path of the failure. A member that is null counts as
//! absent.

use super::{Json, JsonError};
use alloc::format;
use alloc::vec::Vec;
use data_encoding::{BASE64_NOPAD, BASE64URL_NOPAD, HEXLOWER_PERMISSIVE};

pub(super) type Object = serde_json::Map<alloc::string::String, Json>;
pub(super) type Result<T> = core::result::Result<T, JsonError>;

pub(super) fn object(json: &Json) -> Result<&Object> {
    json.as_object().ok_or_else(|| JsonError::new("not an object"))
}

pub(super) fn string(json: &Json) -> Result<&str> {
    json.as_str().ok_or_else(|| JsonError::new("not a string"))
}

/// Reads a boolean, or the text of one.
pub(super) fn boolean(json: &Json) -> Result<bool> {
    match json {
        Json::Bool(value) => Ok(*value),
        Json::String(text) if text.eq_ignore_ascii_case("true") => Ok(true),
        Json::String(text) if text.eq_ignore_ascii_case("false") => Ok(false),
        _ => Err(JsonError::new("neither true nor false")),
    }
}

/// Reads a whole number from `min` to `max`, or the text of one.
pub(super) fn integer(json: &Json, min: i64, max: i64) -> Result<i64> {
    let number = match json {
        Json::String(text) => text.parse().ok(),
        json => json.as_i64(),
    };
    number
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| JsonError::new(format!("not a whole number from {min} to {max}")))
}

pub(super) fn int32(json: &Json) -> Result<i32> {
    let number = integer(json, i32::MIN.into(), i32::MAX.into())?;
    Ok(i32::try_from(number).expect("the range was checked"))
}

/// Reads a required member.
pub(super) fn required<'a, T>(
    object: &'a Object,
    name: &str,
    read: impl FnOnce(&'a Json) -> Result<T>,
) -> Result<T> {
    optional(object, name, read)?.ok_or_else(|| JsonError::new("missing").within(name))
}

/// Reads an optional member.
pub(super) fn optional<'a, T>(
    object: &'a Object,
    name: &str,
    read: impl FnOnce(&'a Json) -> Result<T>,
) -> Result<Option<T>> {
    match object.get(name) {
        None | Some(Json::Null) => Ok(None),
        Some(json) => read(json).map(Some).map_err(|error| error.within(name)),
    }
}

/// Reads every item of a list.
pub(super) fn each<'a, T>(json: &'a Json, read: impl Fn(&'a Json) -> Result<T>) -> Result<Vec<T>> {
    let list = json.as_array().ok_or_else(|| JsonError::new("not a list"))?;
    let item = |(at, item)| read(item).map_err(|error| error.within(&super::item(at)));
    list.iter().enumerate().map(item).collect()
}

/// Reads base64 in either alphabet, with padding or without. `values.jsonl`, `json/3` and `json/4`.
pub(super) fn base64(text: &str) -> Result<Vec<u8>> {
    let digits = text.trim_end_matches('=').as_bytes();
    let encoding =
        if digits.iter().any(|digit| matches!(digit, b'-' | b'_')) { BASE64URL_NOPAD } else { BASE64_NOPAD };
    encoding.decode(digits).map_err(|_| JsonError::new("not base64"))
}

pub(super) fn hex(text: &str) -> Result<Vec<u8>> {
    HEXLOWER_PERMISSIVE.decode(text.as_bytes()).map_err(|_| JsonError::new("not hex"))
}
