//! Several datagrams in one input.
//!
//! Each is two bytes of length, big-endian, one byte of choice to the target, and the datagram. A length
//! that lies ends with the input.

/// Bytes in front of each datagram.
const HEAD_LEN: usize = 3;
/// Most datagrams that are taken from one input: more only make it slow.
const DATAGRAMS_MAX: usize = 200;

/// The datagrams of an input, each with its byte of choice.
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

/// Appends a datagram and its byte of choice to an input.
///
/// # Panics
/// When it is longer than any datagram.
pub fn put_datagram(input: &mut Vec<u8>, choice: u8, datagram: &[u8]) {
    let len = u16::try_from(datagram.len()).expect("a datagram is shorter");
    input.extend_from_slice(&len.to_be_bytes());
    input.push(choice);
    input.extend_from_slice(datagram);
}
