//! Handles: their parts, folding, equality, and the responsible server.

use handle_proto::name::PREFIX_OF_PREFIXES;
use handle_proto::{Handle, HashOption, fold};
use handle_snapshot::fold_key;
use md5::{Digest, Md5};

const OPTIONS: [HashOption; 3] = [HashOption::Prefix, HashOption::Suffix, HashOption::Handle];

/// The parts of a handle joined give the handle, folding and hashing equal their plain definitions,
/// and equal names hash to the same server and have the same key.
///
/// Input: a handle, or two with a line end between them.
pub fn name(bytes: &[u8]) {
    let mut lines = bytes.rsplitn(2, |&byte| byte == b'\n');
    let last = lines.next().unwrap_or_default();
    let first = lines.next().unwrap_or(last);
    for name in [first, last] {
        check_parts(Handle(name));
        check_hashes(Handle(name));
        check_pair(Handle(name), Handle(&flipped(name)));
    }
    check_pair(Handle(first), Handle(last));
}

/// Returns the name with the case of every ASCII letter changed.
fn flipped(name: &[u8]) -> Vec<u8> {
    let flip = |byte: &u8| if byte.is_ascii_alphabetic() { byte ^ 0x20 } else { *byte };
    name.iter().map(flip).collect()
}

fn key(handle: Handle<'_>) -> Vec<u8> {
    let mut key = handle.looked_up();
    fold_key(&mut key, true);
    key
}

fn check_parts(handle: Handle<'_>) {
    let (prefix, local_name) = (handle.naming_authority(), handle.local_name());
    match handle.slash_at() {
        Some(at) => {
            assert!(!handle.0[..at].contains(&b'/') && handle.0[at] == b'/');
            assert_eq!([prefix, b"/", local_name].concat(), handle.0);
        }
        None => assert!(!handle.0.contains(&b'/') && prefix == PREFIX_OF_PREFIXES && local_name == handle.0),
    }
    let looked_up = handle.looked_up();
    assert!(looked_up.contains(&b'/'));
    assert_eq!(Handle(&looked_up).looked_up(), looked_up);
    assert!(Handle(&handle.prefix_record()).is_prefix_record());
    let prefix_folded = handle.prefix_folded();
    assert!(fold::eq(&prefix_folded, handle.0));
    assert_eq!(Handle(&prefix_folded).prefix_folded(), prefix_folded);
    if let Some(parent) = handle.parent_prefix_record() {
        assert!(parent.is_prefix_record() && handle.0.starts_with(parent.0));
        assert_eq!(handle.0[parent.0.len()], b'.');
        assert!(!handle.0[parent.0.len() + 1..].contains(&b'.'));
    }
    assert_eq!(handle.parent_prefix_record().is_some(), handle.is_derived_prefix_record());
    match str::from_utf8(handle.0) {
        Ok(text) => assert_eq!(handle.to_string(), text),
        Err(_) => assert!(handle.to_string().contains("\\x")),
    }
    let key = key(handle);
    let mut again = key.clone();
    fold_key(&mut again, true);
    assert_eq!(again, key);
}

fn check_hashes(handle: Handle<'_>) {
    for option in OPTIONS {
        let digest = Md5::digest(handle.hashed_part(option).to_ascii_uppercase());
        let last = i32::from_be_bytes([digest[12], digest[13], digest[14], digest[15]]);
        let hash = handle.hash(option);
        assert_eq!(hash, last.unsigned_abs());
        assert_eq!(handle.server_at(option, 0), None);
        for count in [1, 2, 3, 7, u32::MAX] {
            assert_eq!(handle.server_at(option, count), Some(hash % count));
        }
    }
}

fn check_pair(a: Handle<'_>, b: Handle<'_>) {
    let (folding, keeping) = (a.is_same(b, true), a.is_same(b, false));
    assert_eq!(folding, a.0.eq_ignore_ascii_case(b.0));
    assert_eq!(keeping, a.prefix_folded() == b.prefix_folded());
    assert!(folding || !keeping);
    assert_eq!((b.is_same(a, true), b.is_same(a, false)), (folding, keeping));
    if folding {
        assert!(OPTIONS.into_iter().all(|option| a.hash(option) == b.hash(option)));
        assert_eq!(key(a), key(b));
    }
}
