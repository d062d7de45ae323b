//! Fields of the proofs with which another process continues.

/// Appends a number of entries.
pub(crate) fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes());
}

/// Appends milliseconds.
pub(crate) fn put_ms(out: &mut Vec<u8>, ms: u64) {
    out.extend_from_slice(&ms.to_be_bytes());
}

/// Appends bytes and their number.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_count(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Takes a number of entries off `rest`.
pub(crate) fn take_count(rest: &mut &[u8]) -> Option<u32> {
    let (count, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(u32::from_be_bytes(*count))
}

/// Takes milliseconds off `rest`.
pub(crate) fn take_ms(rest: &mut &[u8]) -> Option<u64> {
    let (ms, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(u64::from_be_bytes(*ms))
}

/// Takes bytes off `rest`.
pub(crate) fn take_bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(take_count(rest)?).ok()?;
    let (bytes, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(bytes)
}
