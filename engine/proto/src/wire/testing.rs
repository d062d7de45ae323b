//! Checks for every decoder of a body, for the unit tests beside them.

use crate::error::DecodeError;
use alloc::vec::Vec;
use core::fmt::Debug;

/// Asserts that no prefix of `bytes` decodes, except those whose length is in `allowed`.
pub(crate) fn refuses_every_truncation<T: Debug>(
    bytes: &[u8],
    allowed: &[usize],
    decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
) {
    for len in 0..bytes.len() {
        match decode(&bytes[..len]) {
            Ok(decoded) => assert!(allowed.contains(&len), "cut to {len}: {decoded:?}"),
            Err(error) => assert!(error.at() <= len, "cut to {len}: {error}"),
        }
    }
}

/// Asserts that `bytes` decode, also with bytes after them, and that no false number in them makes
/// the decoder panic or read past the end.
pub(crate) fn survives_false_numbers<T: Debug>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
) {
    decode(bytes).expect("the unchanged bytes decode");
    decode(&[bytes, &[0, 0, 0]].concat()).expect("bytes after a body are ignored");
    for at in 0..bytes.len() {
        for lie in [0_u32, 1, 0x00ff_ffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff] {
            let mut lying: Vec<u8> = bytes.to_vec();
            let len = lying[at..].len().min(4);
            lying[at..at + len].copy_from_slice(&lie.to_be_bytes()[..len]);
            if let Err(error) = decode(&lying) {
                assert!(error.at() <= lying.len(), "{lie:#x} at {at}: {error}");
            }
        }
    }
}
