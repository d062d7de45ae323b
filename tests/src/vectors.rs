//! The golden vectors: lines of JSON, made with the reference implementation.

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use serde_json::{Value, json};
use std::path::PathBuf;

/// The lines of a vector file, in order.
///
/// The file is looked for in the directory that the environment variable `HANDLE_VECTORS` names, and
/// without it in `tests/vectors`.
///
/// # Panics
/// When the file is not there, or a line is not JSON.
#[must_use]
pub fn load(file: &str) -> Vec<Value> {
    let (from, directory) = match std::env::var_os("HANDLE_VECTORS") {
        Some(directory) => ("HANDLE_VECTORS", PathBuf::from(directory)),
        None => ("tests/vectors", PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("vectors")),
    };
    let path = directory.join(file);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{from} has no readable {file} ({}): {error}", path.display()));
    let numbered = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parse =
        |(at, line)| serde_json::from_str(line).unwrap_or_else(|error| panic!("{file}:{}: {error}", at + 1));
    numbered.map(parse).collect()
}

/// The bytes of a byte string: a JSON string for UTF-8, else `{"hex": ...}`.
///
/// # Panics
/// When it is neither.
#[must_use]
pub fn bytes(v: &Value) -> Vec<u8> {
    match v {
        Value::String(text) => text.as_bytes().to_vec(),
        other => hex(&other["hex"]),
    }
}

/// The bytes of a string of hex digits.
///
/// # Panics
/// When it is not one.
#[must_use]
pub fn hex(v: &Value) -> Vec<u8> {
    let digits = v.as_str().unwrap_or_else(|| panic!("not hex: {v}"));
    HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).unwrap_or_else(|error| panic!("not hex: {error}: {v}"))
}

/// The byte string that stands for `b`: the opposite of [`bytes`].
#[must_use]
pub fn byte_string(b: &[u8]) -> Value {
    match str::from_utf8(b) {
        Ok(text) => text.into(),
        Err(_) => json!({"hex": HEXLOWER.encode(b)}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_strings_round_trip() {
        for case in [&b""[..], b"a/\xc3\xa9", b"\xff", b"\0"] {
            assert_eq!(bytes(&byte_string(case)), case);
        }
    }
}
