//! JSON from clients, within bounds on the memory and the time that it takes.
//!
//! A tree of JSON takes up to 70 times as much memory as its text, and a worker answers no other
//! client while it parses. So a tree has a budget of items, lists of values are read value by
//! value, and long texts are parsed on a thread that may take its time.

use handle_proto::data::PublicKey;
use handle_proto::json::{Json, entered_value_from_json, public_key_from_jwk};
use handle_proto::limit::VALUES_COUNT_MAX;
use handle_proto::{Value, ValueBuf};
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Error as JsonError, Map};
use std::cell::Cell;
use std::fmt;

/// Length of a text above which a worker does not parse it.
pub(super) const PARSED_AT_ONCE: usize = 64 << 10;
/// What an object costs of a budget; any other item costs 1. An item takes 72 bytes, and an object
/// has capacity for four members.
const OBJECT_COST: usize = 4;
/// Items of one value. A value that fits into a message of the handle protocol has at most 262,144
/// bytes, and a reference in it at least 11; each is an object with two members.
const VALUE_ITEMS_MAX: usize = 160 << 10;

/// Runs `work`, which parses a text of `len` bytes: on another thread if that takes long. `None` if
/// it met a bug there.
pub(super) async fn parse_beside<T: Send + 'static>(
    len: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    match len <= PARSED_AT_ONCE {
        true => Some(work()),
        false => tokio::task::spawn_blocking(work).await.ok(),
    }
}

/// Parses a text with at most about `items_max` items.
///
/// # Errors
/// When it is not JSON, or has more.
pub(super) fn parse(text: &[u8], items_max: usize) -> Result<Json, JsonError> {
    let left = Cell::new(items_max);
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let json = BoundedTree(&left).deserialize(&mut deserializer)?;
    deserializer.end().map(|()| json)
}

/// A tree within what is left of a budget.
#[derive(Clone, Copy)]
struct BoundedTree<'b>(&'b Cell<usize>);

impl BoundedTree<'_> {
    fn charge<E: serde::de::Error>(self, cost: usize) -> Result<(), E> {
        let left = self.0.get().checked_sub(cost).ok_or_else(|| E::custom("it has too many items"))?;
        self.0.set(left);
        Ok(())
    }

    fn item<E: serde::de::Error>(self, item: impl Into<Json>) -> Result<Json, E> {
        self.charge(1)?;
        Ok(item.into())
    }
}

impl<'de> DeserializeSeed<'de> for BoundedTree<'_> {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BoundedTree<'_> {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: serde::de::Error>(self, item: bool) -> Result<Json, E> {
        self.item(item)
    }

    fn visit_i64<E: serde::de::Error>(self, item: i64) -> Result<Json, E> {
        self.item(item)
    }

    fn visit_u64<E: serde::de::Error>(self, item: u64) -> Result<Json, E> {
        self.item(item)
    }

    fn visit_f64<E: serde::de::Error>(self, item: f64) -> Result<Json, E> {
        self.item(item)
    }

    fn visit_str<E: serde::de::Error>(self, item: &str) -> Result<Json, E> {
        self.item(item)
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Json, E> {
        self.item(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        self.charge(1)?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Json::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Json, A::Error> {
        self.charge(OBJECT_COST)?;
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            object.insert(name, members.next_value_seed(self)?);
        }
        Ok(Json::Object(object))
    }
}

/// Why a body has no values of a record.
#[derive(Debug)]
pub(super) enum ValuesError {
    /// The values are more than a record has.
    TooMany,
    /// One sentence.
    Malformed(String),
}

/// The values in a body: an array, an object with `values`, or one value.
#[derive(Debug, Default)]
pub(super) struct BodyValues {
    pub(super) values: Vec<ValueBuf>,
    /// The member `handle`.
    pub(super) handle: Option<String>,
}

/// Reads the values in a body.
///
/// # Errors
/// When it is malformed, at the first fault.
pub(super) fn read_values(text: &[u8]) -> Result<BodyValues, ValuesError> {
    let mut found = FoundValues::default();
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let read = deserializer.deserialize_any(BodyVisitor(&mut found)).and_then(|()| deserializer.end());
    if let Some(error) = found.error {
        return Err(error);
    }
    match read {
        Ok(()) => Ok(BodyValues { values: found.values, handle: found.handle }),
        // A type that no part of a body may have.
        Err(error) if error.is_data() && found.is_outside => {
            Err(ValuesError::Malformed("The body is neither an array nor an object".to_owned()))
        }
        Err(error) => Err(ValuesError::Malformed(format!("Invalid JSON: {error}"))),
    }
}

/// The values of a list that is a tree.
///
/// # Errors
/// When they are too many, or one is malformed.
pub(super) fn values_of(list: &[Json]) -> Result<Vec<ValueBuf>, ValuesError> {
    let mut found = FoundValues::default();
    for value in list {
        if found.add(value).is_none() {
            break;
        }
    }
    found.error.map_or(Ok(found.values), Err)
}

/// Whether the data of a value is an RSA key in JSON that is shorter than deployed servers read.
fn is_short_key(value: &Json) -> bool {
    const BITS_MIN: usize = 512;
    let data = &value["data"];
    let is_key = data["format"] == "key" && data["value"]["kty"] == "RSA";
    let record = is_key.then(|| public_key_from_jwk(&data["value"]).ok()).flatten();
    match record.as_deref().map(PublicKey::decode) {
        Some(Ok(PublicKey::Rsa { n, .. })) => n.bits() < BITS_MIN,
        _ => false,
    }
}

/// What has been read of a body.
#[derive(Debug)]
struct FoundValues {
    values: Vec<ValueBuf>,
    handle: Option<String>,
    error: Option<ValuesError>,
    /// Whether neither an array nor an object has begun.
    is_outside: bool,
}

impl Default for FoundValues {
    fn default() -> Self {
        Self { values: Vec::new(), handle: None, error: None, is_outside: true }
    }
}

impl FoundValues {
    fn fail(&mut self, message: &str) {
        self.error = Some(ValuesError::Malformed(message.to_owned()));
    }

    /// Adds a value; `None` if that is not possible.
    fn add(&mut self, json: &Json) -> Option<()> {
        let at = self.values.len();
        if at >= VALUES_COUNT_MAX {
            self.error = Some(ValuesError::TooMany);
            return None;
        }
        if is_short_key(json) {
            self.fail(&format!("values[{at}]: an RSA key has at least 512 bits"));
            return None;
        }
        match entered_value_from_json(json) {
            Ok(value) => {
                // The service stamps its own time.
                let value = Value { timestamp: 0, ..value.view() };
                self.values.push(ValueBuf::from(&value));
                Some(())
            }
            Err(error) => {
                self.fail(&format!("values[{at}]: {error}"));
                None
            }
        }
    }

    /// Reads the items of an array of values.
    fn read_array<'de, A: SeqAccess<'de>>(&mut self, mut items: A) -> Result<(), A::Error> {
        // The last of several members `values` counts.
        self.values.clear();
        loop {
            let left = Cell::new(VALUE_ITEMS_MAX);
            let Some(value) = items.next_element_seed(BoundedTree(&left))? else { return Ok(()) };
            // The error itself is in `self`.
            self.add(&value).ok_or_else(|| A::Error::custom("a malformed value"))?;
        }
    }
}

/// Reads a body.
struct BodyVisitor<'f>(&'f mut FoundValues);

impl<'de> Visitor<'de> for BodyVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array or an object")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<(), A::Error> {
        self.0.is_outside = false;
        self.0.read_array(items)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        self.0.is_outside = false;
        let (left, mut has_values, mut single) = (Cell::new(VALUE_ITEMS_MAX), false, Map::new());
        while let Some(name) = members.next_key::<String>()? {
            match &*name {
                "values" => {
                    has_values = true;
                    members.next_value_seed(ValuesMember(self.0))?;
                }
                "handle" | "index" | "type" | "data" | "permissions" | "ttl" | "timestamp" | "references" => {
                    single.insert(name, members.next_value_seed(BoundedTree(&left))?);
                }
                _ => drop(members.next_value::<IgnoredAny>()?),
            }
        }
        self.0.handle = single.get("handle").and_then(Json::as_str).map(str::to_owned);
        if !has_values && !single.contains_key("index") {
            self.0.fail("The body has no `values`");
        } else if !has_values {
            self.0.add(&Json::Object(single));
        }
        Ok(())
    }
}

/// Reads the member `values`.
struct ValuesMember<'f>(&'f mut FoundValues);

impl<'de> DeserializeSeed<'de> for ValuesMember<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let mut is_array = false;
        let read = deserializer.deserialize_any(ArrayVisitor { found: self.0, is_array: &mut is_array });
        if read.is_err() && !is_array && self.0.error.is_none() {
            self.0.fail("`values` is not an array");
        }
        read
    }
}

struct ArrayVisitor<'f> {
    found: &'f mut FoundValues,
    is_array: &'f mut bool,
}

impl<'de> Visitor<'de> for ArrayVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<(), A::Error> {
        *self.is_array = true;
        self.found.read_array(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        match read_values(text.as_bytes()) {
            Err(ValuesError::Malformed(message)) => message,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn the_three_forms_of_a_body_have_the_same_values() {
        let value = r#"{"index":"6","type":"URL","data":"x","timestamp":"2020-01-01T00:00:00Z","note":[{}]}"#;
        for (text, handle) in [
            (format!("[{value}]"), None),
            (format!(r#"{{"other":[[1],{{}}],"values":[{value}],"handle":"a/b"}}"#), Some("a/b")),
            (format!(r#"{{"values":[],"values":[{value}]}}"#), None),
            (value.to_owned(), None),
        ] {
            let read = read_values(text.as_bytes()).unwrap();
            assert_eq!((read.values.len(), read.handle.as_deref()), (1, handle), "{text}");
            let view = read.values[0].view();
            assert_eq!((view.index, view.kind, view.timestamp), (6, &b"URL"[..], 0), "{text}");
        }
        assert!(read_values(b"[]").unwrap().values.is_empty());
    }

    #[test]
    fn a_fault_is_named() {
        for (text, expected) in [
            ("17", "The body is neither an array nor an object"),
            ("\"x\"", "The body is neither an array nor an object"),
            ("{}", "The body has no `values`"),
            (r#"{"values":{}}"#, "`values` is not an array"),
            (r#"{"values":1}"#, "`values` is not an array"),
        ] {
            assert_eq!(message(text), expected, "{text}");
        }
        for (text, start) in [
            ("", "Invalid JSON: EOF"),
            ("[", "Invalid JSON: EOF"),
            ("[] 1", "Invalid JSON: trailing"),
            (r#"{"values":[oops]}"#, "Invalid JSON: expected"),
            ("[1,1,", "values[0]: "),
            (r#"[{"index":1,"type":"URL","data":"x"},{"index":1}"#, "values[1]: "),
        ] {
            assert!(message(text).starts_with(start), "{text}: {}", message(text));
        }
    }

    #[test]
    fn what_has_too_many_items_is_refused_where_they_begin() {
        let value = r#"{"index":1,"type":"URL","data":"x"}"#;
        let list = |count: usize| format!("[{}]", vec![value; count].join(","));
        assert_eq!(read_values(list(VALUES_COUNT_MAX).as_bytes()).unwrap().values.len(), VALUES_COUNT_MAX);
        // The rest is not looked at: it is not even JSON.
        let more = format!("{},{value},oops", list(VALUES_COUNT_MAX).trim_end_matches(']'));
        assert!(matches!(read_values(more.as_bytes()), Err(ValuesError::TooMany)));
        let deep = format!("[{{\"data\":[{}oops", "1,".repeat(VALUE_ITEMS_MAX));
        assert!(message(&deep).starts_with("Invalid JSON: it has too many items"));
        let items = |count: usize| format!("[{}1]", "1,".repeat(count));
        assert!(parse(items(8).as_bytes(), 10).is_ok() && parse(items(9).as_bytes(), 10).is_err());
        assert!(parse(b"[{\"a\":1},{\"a\":1}]", 11).is_ok() && parse(b"[{\"a\":1},{\"a\":1}]", 10).is_err());
    }

    #[test]
    fn a_tree_is_that_of_other_readers() {
        let text = r#"{"b":[true,null,-1,18446744073709551615,1.5,"\u00e9"],"a":{"c":{}},"b2":""}"#;
        let expected: Json = serde_json::from_str(text).unwrap();
        assert_eq!(parse(text.as_bytes(), 100).unwrap().to_string(), expected.to_string());
    }

    #[test]
    fn short_keys_are_refused_as_by_deployed_servers() {
        for (bits, is_read) in [(384, false), (504, false), (512, true), (2048, true)] {
            let n = data_encoding::BASE64URL_NOPAD.encode(&vec![0xff; bits / 8]);
            let key = serde_json::json!({ "kty": "RSA", "n": n, "e": "AQAB" });
            let data = serde_json::json!({ "format": "key", "value": key });
            let value = serde_json::json!({ "index": 300, "type": "HS_PUBKEY", "data": data });
            assert_eq!(values_of(&[value]).is_ok(), is_read, "{bits} bits");
        }
    }
}
