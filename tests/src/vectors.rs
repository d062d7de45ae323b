//! Golden vectors: files of JSON lines, described in `vectors/README.md`.

use data_encoding::HEXLOWER_PERMISSIVE;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The lines of a file, from the directory that the variable `HANDLE_VECTORS` names, else from our own.
///
/// # Panics
/// When the file is missing, or a line is not JSON.
#[must_use]
pub fn load(file: &str) -> Vec<Value> {
    let path = directory().join(file);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("cannot read vectors {}: {error}", path.display()));
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(at, line)| {
            serde_json::from_str(line)
                .unwrap_or_else(|error| panic!("{}:{}: {error}", path.display(), at + 1))
        })
        .collect()
}

/// A whole document of JSON, from the same directory.
///
/// # Panics
/// When the file is missing, or not JSON.
#[must_use]
pub fn document(file: &str) -> Value {
    let path = directory().join(file);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("cannot read vectors {}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn directory() -> PathBuf {
    match std::env::var_os("HANDLE_VECTORS") {
        Some(directory) => PathBuf::from(directory),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors"),
    }
}

/// A byte string: a JSON string stands for its UTF-8, `{"hex": ...}` for other bytes.
///
/// # Panics
/// When it is neither.
#[must_use]
pub fn bytes(v: &Value) -> Vec<u8> {
    match v {
        Value::String(text) => text.clone().into_bytes(),
        other => hex(&other["hex"]),
    }
}

/// Bytes written as hexadecimal.
///
/// # Panics
/// When they are not.
#[must_use]
pub fn hex(v: &Value) -> Vec<u8> {
    let text = v.as_str().unwrap_or_else(|| panic!("not hexadecimal: {v}"));
    HEXLOWER_PERMISSIVE.decode(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The inverse of [`bytes`].
#[must_use]
pub fn byte_string(b: &[u8]) -> Value {
    match std::str::from_utf8(b) {
        Ok(text) => json!(text),
        Err(_) => json!({ "hex": HEXLOWER_PERMISSIVE.encode(b) }),
    }
}
