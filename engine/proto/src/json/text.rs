//! JSON as text: of trees, and of values without a tree.

use super::forms::JsonForm;
use super::value::data_to_json;
use super::{Json, admin, time};
use crate::data::{self, Admin, Data};
use crate::value::{Permissions, Ttl, Value};
use alloc::string::{String, ToString};
use core::fmt::Write as _;
use data_encoding::BASE64;

/// The text of `json`, as deployed software writes it: without spaces, and with U+2028 and U+2029
/// escaped so that it is valid JavaScript as well. `values.jsonl`, `text/8`.
#[must_use]
pub fn text(json: &Json) -> String {
    let text = json.to_string();
    if !text.contains(['\u{2028}', '\u{2029}']) {
        return text;
    }
    // Both characters can occur only inside strings.
    text.replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

/// Appends the text of a value: what [`text`] makes of
/// [`value_to_json`](super::value_to_json), without building a tree for the usual types.
pub fn write_value(value: &Value<'_>, out: &mut String) {
    out.push_str("{\"index\":");
    write_integer(value.index, out);
    out.push_str(",\"type\":");
    write_string(&String::from_utf8_lossy(value.kind), out);
    out.push_str(",\"data\":");
    write_data(value.kind, value.data, out);
    let known = value.permissions.known();
    // Writing to a string does not fail.
    if known != Permissions::DEFAULT {
        let _ = write!(out, ",\"permissions\":\"{known}\"");
    }
    out.push_str(",\"ttl\":");
    if value.ttl.kind == Ttl::RELATIVE {
        write_integer(value.ttl.seconds, out);
    } else {
        let _ = write!(out, "\"{}\"", time::to_text(value.ttl.seconds));
    }
    if value.timestamp != 0 {
        let _ = write!(out, ",\"timestamp\":\"{}\"", time::to_text(value.timestamp.cast_signed()));
    }
    if !value.references.is_empty() {
        let _ = write!(out, ",\"references\":{}", text(&admin::references_to_json(value.references)));
    }
    out.push('}');
}

fn write_data(kind: &[u8], bytes: &[u8], out: &mut String) {
    match Data::decode(kind, bytes) {
        // Nearly every record has an administrator.
        Data::Admin(Admin { permissions, reference, legacy: None })
            if let Ok(handle) = str::from_utf8(reference.handle) =>
        {
            out.push_str("{\"format\":\"admin\",\"value\":{\"handle\":");
            write_string(handle, out);
            out.push_str(",\"index\":");
            write_integer(reference.index, out);
            out.push_str(",\"permissions\":\"");
            let bits = permissions.known().0;
            let digits: [u8; 12] =
                core::array::from_fn(|at| if bits >> (11 - at) & 1 == 1 { b'1' } else { b'0' });
            out.push_str(str::from_utf8(&digits).unwrap_or_default());
            out.push_str("\"}}");
        }
        data if !matches!(data, Data::Opaque(_)) && JsonForm::of(kind).is_some() => {
            out.push_str(&text(&data_to_json(kind, bytes)))
        }
        _ => match data::text(bytes) {
            Some(text) => {
                out.push_str("{\"format\":\"string\",\"value\":");
                write_string(text, out);
                out.push('}');
            }
            None => {
                let _ =
                    write!(out, "{{\"format\":\"base64\",\"value\":\"{}\"}}", BASE64.encode_display(bytes));
            }
        },
    }
}

/// Appends a number, without the work of a format.
fn write_integer(number: i32, out: &mut String) {
    let mut digits = [b'0'; 10];
    let (mut rest, mut at) = (number.unsigned_abs(), digits.len());
    loop {
        at -= 1;
        digits[at] = b"0123456789"[(rest % 10) as usize];
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        out.push('-');
    }
    out.push_str(str::from_utf8(&digits[at..]).unwrap_or_default());
}

/// Appends `text` as a JSON string that is valid JavaScript as well.
pub fn write_string(text: &str, out: &mut String) {
    out.push('"');
    // Most texts have nothing to escape. U+2028 and U+2029 begin with the byte E2. Without an early
    // end, several bytes are compared at a time.
    let is_plain = |byte| (byte >= b' ') & (byte != b'"') & (byte != b'\\') & (byte != 0xe2);
    if text.bytes().fold(true, |all, byte| all & is_plain(byte)) {
        out.push_str(text);
        out.push('"');
        return;
    }
    let mut start = 0;
    for (at, c) in text.char_indices() {
        let escape = match c {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '\u{8}' => "\\b",
            '\u{c}' => "\\f",
            '\u{2028}' => "\\u2028",
            '\u{2029}' => "\\u2029",
            '\0'..='\u{1f}' => "",
            _ => continue,
        };
        out.push_str(&text[start..at]);
        match escape {
            "" => drop(write!(out, "\\u{:04x}", u32::from(c))),
            escape => out.push_str(escape),
        }
        start = at + c.len_utf8();
    }
    out.push_str(&text[start..]);
    out.push('"');
}
