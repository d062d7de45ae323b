//! Appends fields to a message. Everything is big-endian.

use alloc::vec::Vec;

/// Appends two bytes.
pub fn u16(out: &mut Vec<u8>, number: u16) {
    out.extend_from_slice(&number.to_be_bytes());
}

/// Appends four bytes.
pub fn u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_be_bytes());
}

/// Appends four bytes, with a sign.
pub fn i32(out: &mut Vec<u8>, number: i32) {
    out.extend_from_slice(&number.to_be_bytes());
}

/// Appends eight bytes.
pub fn u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_be_bytes());
}

/// Converts a length or count to four bytes.
///
/// # Panics
/// From 4 GiB on, which no message reaches.
#[must_use]
#[inline]
pub fn len(len: usize) -> u32 {
    u32::try_from(len).expect("messages end at 256 KiB")
}

/// Appends a count or a length.
pub fn count(out: &mut Vec<u8>, count: usize) {
    u32(out, len(count));
}

/// Appends a counted byte string.
pub fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    count(out, bytes.len());
    out.extend_from_slice(bytes);
}
