//! Fields that frames between processes and rows of a database have in common.

use handle_auth::session::SessionKey;
use handle_proto::Version;
use handle_proto::code::Cipher;

/// Cipher, length and bytes of a key, and the version of its session.
pub(crate) fn put_key(out: &mut Vec<u8>, key: &SessionKey, version: Version) {
    out.extend_from_slice(&key.cipher().0.to_be_bytes());
    out.push(u8::try_from(key.as_bytes().len()).expect("no key has more than 32 bytes"));
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(&[version.major, version.minor]);
}

/// Takes a number off `rest`.
pub(crate) fn number(rest: &mut &[u8]) -> Option<i32> {
    let (number, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(i32::from_be_bytes(*number))
}

/// Takes a key and the version of its session off `rest`.
pub(crate) fn key(rest: &mut &[u8]) -> Option<(SessionKey, Version)> {
    let cipher = Cipher(number(rest)?);
    let (&len, after) = rest.split_first()?;
    let (key, after) = after.split_at_checked(len.into())?;
    let (&[major, minor], after) = after.split_first_chunk()?;
    *rest = after;
    Some((SessionKey::new(cipher, key.to_vec())?, Version::new(major, minor)))
}
