//! Several datagrams in one input.
//!
//! Each datagram follows its length in two bytes, big-endian, and one choice byte for the target. A
//! length beyond the end of the input is cut there.

/// Number of bytes before each datagram.
const HEAD_LEN: usize = 3;
/// Maximum number of datagrams of one input; more only make it slow.
const DATAGRAMS_MAX: usize = 200;

/// The datagrams of an input, each with its choice byte.
#[must_use]
pub fn datagrams(mut bytes: &[u8]) -> Vec<(u8, &[u8])> {
    let mut all = Vec::new();
    while let Some((&[high, low, choice], rest)) = bytes.split_first_chunk::<HEAD_LEN>()
        && all.len() < DATAGRAMS_MAX
    {
        let len = usize::from(u16::from_be_bytes([high, low])).min(rest.len());
        let (datagram, after) = rest.split_at(len);
        all.push((choice, datagram));
        bytes = after;
    }
    all
}

/// Appends a datagram and its choice byte to an input.
///
/// # Panics
/// If it is longer than any datagram.
pub fn put_datagram(input: &mut Vec<u8>, choice: u8, datagram: &[u8]) {
    let len = u16::try_from(datagram.len()).expect("a datagram is at most 65535 bytes long");
    input.extend_from_slice(&len.to_be_bytes());
    input.push(choice);
    input.extend_from_slice(datagram);
}
