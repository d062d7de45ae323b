//! Cases: valid requests that are then mutated with knowledge of the protocol.

use handle_proto::limit::{MESSAGE_LEN_MAX, UDP_DATA_LEN_MAX};
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Envelope, Header};
use handle_proto::{OpCode, OpFlags};
use serde::Serialize;

use crate::load::question::request_head;
use crate::random::RandomGenerator;

/// The mutation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the names say it, and `make` says how")]
pub enum MutationKind {
    Length,
    Truncated,
    Extended,
    Operation,
    Version,
    Envelope,
    Handle,
    Lists,
    Fragments,
    Bits,
    Splice,
    Noise,
}

/// All kinds.
pub const KINDS: [MutationKind; 12] = [
    MutationKind::Length,
    MutationKind::Truncated,
    MutationKind::Extended,
    MutationKind::Operation,
    MutationKind::Version,
    MutationKind::Envelope,
    MutationKind::Handle,
    MutationKind::Lists,
    MutationKind::Fragments,
    MutationKind::Bits,
    MutationKind::Splice,
    MutationKind::Noise,
];

/// A case: datagrams, or their bytes over a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostileCase {
    /// The kind of mutation.
    pub kind: MutationKind,
    /// The datagrams, in the order in which they are sent.
    pub datagrams: Vec<Vec<u8>>,
}

/// Offsets of lengths, counts and other fields in a plain request: envelope, body, handle.
const LENGTHS_AT: [usize; 3] = [16, 40, 44];

/// Numbers that are likely to cause errors.
const EDGES: [u32; 16] = [
    0,
    1,
    2,
    19,
    24,
    0x7f,
    0xff,
    0x100,
    0xffff,
    0x1_0000,
    MESSAGE_LEN_MAX,
    MESSAGE_LEN_MAX + 1,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_fffe,
    0xffff_ffff,
];

/// A valid request for the values of `handle`.
pub(super) fn request(handle: &[u8], id: i32, flags: OpFlags) -> Vec<u8> {
    let mut body = Vec::new();
    Query { handle, indexes: Indexes::EMPTY, types: Strings::EMPTY }.encode(&mut body);
    message(id, flags, &body)
}

fn message(id: i32, flags: OpFlags, body: &[u8]) -> Vec<u8> {
    let mut bytes = request_head(flags, 0).to_vec();
    put(&mut bytes, 8, id.cast_unsigned());
    put(&mut bytes, 16, len_u32(Header::LEN + body.len() + 4));
    put(&mut bytes, 40, len_u32(body.len()));
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(&[0; 4]);
    bytes
}

fn len_u32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

fn put(bytes: &mut [u8], at: usize, word: u32) {
    if let Some(buffer) = bytes.get_mut(at..at + 4) {
        buffer.copy_from_slice(&word.to_be_bytes());
    }
}

impl HostileCase {
    /// Makes the next case from a request for `handle`.
    #[must_use]
    pub fn make(handle: &[u8], random: &mut RandomGenerator) -> Self {
        let kind = *pick(&KINDS, random);
        let id = small(random, 0x6fff_ffff).cast_signed() + 1;
        let mut bytes = request(handle, id, OpFlags::PLAIN_REQUEST);
        let datagrams = match kind {
            MutationKind::Length => {
                let len = bytes.len();
                // Also the counts of both lists and the length of the credential, at the end.
                let ends = [len - 12, len - 8, len - 4];
                let at = *pick(&[&LENGTHS_AT[..], &ends].concat(), random);
                let near = [len_u32(len), len_u32(len - Envelope::LEN), len_u32(len) + 1];
                put(&mut bytes, at, *pick(&[&EDGES[..], &near].concat(), random));
                vec![bytes]
            }
            MutationKind::Truncated => {
                bytes.truncate(small(random, len_u32(bytes.len())) as usize);
                vec![bytes]
            }
            MutationKind::Extended => {
                bytes.extend(noise(random, 900));
                if random.below(2) == 0 {
                    let len = len_u32(bytes.len() - Envelope::LEN);
                    put(&mut bytes, 16, len);
                }
                vec![bytes]
            }
            MutationKind::Operation => {
                let known = OpCode::KNOWN.iter().map(|code| code.0.cast_unsigned());
                let codes: Vec<u32> = known.chain(EDGES).collect();
                put(&mut bytes, 20, *pick(&codes, random));
                put(&mut bytes, 24, if random.below(4) == 0 { *pick(&EDGES, random) } else { 0 });
                put(&mut bytes, 28, word(random));
                vec![bytes]
            }
            MutationKind::Version => {
                let head = word(random).to_be_bytes();
                bytes[0] = *pick(&[0, 1, 2, 3, 5, 9, 255, head[0]], random);
                bytes[1] = *pick(&[0, 1, 4, 5, 10, 11, 12, 127, 128, 255], random);
                bytes[3] = *pick(&[0, 1, 4, 11, 128, 255], random);
                vec![bytes]
            }
            MutationKind::Envelope => {
                bytes[2] = word(random).to_be_bytes()[0];
                put(&mut bytes, 4, *pick(&EDGES, random));
                put(&mut bytes, 12, *pick(&EDGES, random));
                vec![bytes]
            }
            MutationKind::Handle => vec![request(&strange_handle(random), id, OpFlags(word(random)))],
            MutationKind::Lists => vec![lists(handle, id, random)],
            MutationKind::Fragments => fragments(handle, id, random),
            MutationKind::Bits => {
                for _ in 0..=small(random, 6) {
                    let at = small(random, len_u32(bytes.len())) as usize;
                    bytes[at] ^= 1 << random.below(8);
                }
                vec![bytes]
            }
            MutationKind::Splice => {
                let from = small(random, len_u32(bytes.len())) as usize;
                let to = small(random, len_u32(bytes.len())) as usize;
                let part = bytes[from.min(to)..from.max(to)].to_vec();
                let at = small(random, len_u32(bytes.len())) as usize;
                bytes.splice(at..at, part);
                vec![bytes]
            }
            MutationKind::Noise => vec![noise(random, 600)],
        };
        Self { kind, datagrams }
    }
}

fn pick<'a, T>(items: &'a [T], random: &mut RandomGenerator) -> &'a T {
    &items[usize::try_from(random.below(items.len() as u64)).unwrap_or(0)]
}

/// A number below `end`; 0 if there is none.
fn small(random: &mut RandomGenerator, end: u32) -> u32 {
    u32::try_from(random.below(u64::from(end))).unwrap_or(0)
}

fn word(random: &mut RandomGenerator) -> u32 {
    u32::try_from(random.next() >> 32).unwrap_or(0)
}

fn noise(random: &mut RandomGenerator, len_max: u32) -> Vec<u8> {
    let len = small(random, len_max);
    (0..len).map(|_| word(random).to_be_bytes()[0]).collect()
}

fn strange_handle(random: &mut RandomGenerator) -> Vec<u8> {
    let long = small(random, 420) as usize;
    match random.below(10) {
        0 => Vec::new(),
        1 => b"/".repeat(1 + long),
        2 => [b"10.".to_vec(), vec![0xff; long]].concat(),
        3 => b"0.NA/".repeat(1 + long / 5),
        4 => [b"0.NA/".to_vec(), vec![b'x'; long]].concat(),
        5 => vec![0; long],
        6 => b"0.SITE/status".to_vec(),
        7 => b"1.".repeat(long / 2 + 1),
        8 => [b"10.5072/".to_vec(), noise(random, 400)].concat(),
        // The surrogates of UTF-16 as UTF-8, and an over-long slash.
        _ => b"10.5072\xc0\xaf\xed\xa0\x80\xed\xb0\x80".to_vec(),
    }
}

/// Long lists of indexes and types, with counts that may be wrong.
fn lists(handle: &[u8], id: i32, random: &mut RandomGenerator) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(len_u32(handle.len()).to_be_bytes());
    body.extend_from_slice(handle);
    for _ in 0..2 {
        let count = small(random, 40);
        let written_count = if random.below(3) == 0 { *pick(&EDGES, random) } else { count };
        body.extend(written_count.to_be_bytes());
        for _ in 0..count {
            body.extend(pick(&EDGES, random).to_be_bytes());
        }
    }
    message(id, OpFlags(word(random)), &body)
}

/// Fragments of a long request: reordered, repeated, with gaps, or with inconsistent headers.
fn fragments(handle: &[u8], id: i32, random: &mut RandomGenerator) -> Vec<Vec<u8>> {
    let long = [handle, &vec![b'x'; 500 + small(random, 3000) as usize]].concat();
    let whole = request(&long, id, OpFlags::PLAIN_REQUEST);
    let mut envelope = Envelope { flags: EnvelopeFlags::TRUNCATED, ..Envelope::request(id) };
    envelope.message_len = len_u32(whole.len() - Envelope::LEN);
    let pieces = (0..).zip(whole[Envelope::LEN..].chunks(UDP_DATA_LEN_MAX));
    let mut datagrams: Vec<_> = pieces
        .map(|(sequence, data)| [&Envelope { sequence, ..envelope }.to_bytes()[..], data].concat())
        .collect();
    for _ in 0..=random.below(3) {
        let at = small(random, len_u32(datagrams.len())) as usize;
        let other = small(random, len_u32(datagrams.len())) as usize;
        match random.below(6) {
            0 => datagrams.swap(at, other),
            1 => datagrams.push(datagrams[at].clone()),
            2 if datagrams.len() > 1 => drop(datagrams.remove(at)),
            3 => put(&mut datagrams[at], 12, *pick(&EDGES, random)),
            4 => put(&mut datagrams[at], 16, *pick(&EDGES, random)),
            _ => {
                let len = small(random, len_u32(datagrams[at].len())) as usize;
                datagrams[at].truncate(len);
            }
        }
    }
    datagrams
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn cases_are_of_all_kinds_and_the_same_for_a_seed() {
        let make = |seed| {
            let mut random = RandomGenerator::new(seed, 0);
            (0..20_000).map(|_| HostileCase::make(b"10.1/a", &mut random)).collect::<Vec<_>>()
        };
        let cases = make(1);
        assert!(cases == make(1) && cases != make(2));
        let mut counts = BTreeMap::new();
        cases.iter().for_each(|case| *counts.entry(format!("{:?}", case.kind)).or_insert(0) += 1);
        assert_eq!(counts.len(), KINDS.len());
        assert!(counts.values().all(|count| *count > 1000), "{counts:?}");
        let longest = cases.iter().flat_map(|case| &case.datagrams).map(Vec::len).max();
        assert!(longest.is_some_and(|len| len < 1472), "{longest:?} fits in a packet");
    }
}
