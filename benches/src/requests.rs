//! Requests as datagrams.

use crate::records::{BenchRandom, RecordGenerator};
use crate::sets::LONG_HANDLE;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Envelope, Header, MessageBuf, Request};
use handle_proto::{OpCode, OpFlags, ResponseCode, Version};
use std::collections::BTreeMap;

/// Offset of the request id.
const REQUEST_ID_AT: usize = 8;
/// Bits of the request id that number requests. The others hold the length of the answer; see
/// [`Requests::note_answer_lens`].
const NUMBER_BITS: u32 = 20;

/// Returns the length of the answer that is noted in `request`, or 0.
#[must_use]
#[inline]
pub fn noted_answer_len(request: &[u8]) -> usize {
    let id = request.get(REQUEST_ID_AT..).and_then(|rest| rest.first_chunk());
    id.map_or(0, |id| (u32::from_be_bytes(*id) >> NUMBER_BITS) as usize)
}

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// All public values of an existing handle: the usual request.
    Plain,
    /// One value by its index and one by its type.
    Selected,
    /// A missing handle under an existing prefix.
    Missing,
    /// As `Plain`, with a digest of the request in the answer.
    Digest,
    /// A record whose answer takes several datagrams.
    Long,
    /// As `Plain`, with an answer that is signed.
    Certified,
}

impl RequestKind {
    /// Kinds that a worker answers itself, with names for benches.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Plain, "plain"),
        (Self::Selected, "selected"),
        (Self::Missing, "missing"),
        (Self::Digest, "digest"),
        (Self::Long, "long"),
    ];

    /// Returns the response code of a right answer.
    #[must_use]
    pub const fn response_code(self) -> ResponseCode {
        match self {
            Self::Missing => ResponseCode::HANDLE_NOT_FOUND,
            _ => ResponseCode::SUCCESS,
        }
    }
}

/// Encodes one request as a datagram.
///
/// # Panics
/// When `handle` is longer than a message.
#[must_use]
pub fn request(handle: &[u8], request_kind: RequestKind, request_id: i32) -> Vec<u8> {
    let envelope = Envelope {
        version: Version::CURRENT,
        flags: EnvelopeFlags::default(),
        suggested: Version::CURRENT,
        session_id: 0,
        request_id,
        sequence: 0,
        message_len: 0,
    };
    let header = Header {
        op_code: OpCode::RESOLUTION,
        response_code: ResponseCode::RESERVED,
        flags: match request_kind {
            RequestKind::Digest => OpFlags::PLAIN_REQUEST.with(OpFlags::REQUEST_DIGEST),
            RequestKind::Certified => OpFlags::PLAIN_REQUEST.with(OpFlags::CERTIFY),
            _ => OpFlags::PLAIN_REQUEST,
        },
        site_serial: Header::NO_SITE_SERIAL,
        recursion_count: 0,
        reserved: 0,
        expiration: u32::MAX,
        body_len: 0,
    };
    let (mut indexes, mut types) = (Vec::new(), Vec::new());
    let (index, kind) = match request_kind {
        RequestKind::Selected => (Some(100), Some(&b"URL"[..])),
        _ => (None, None),
    };
    let query = Query {
        handle,
        indexes: Indexes::build(index, &mut indexes),
        types: Strings::build(kind, &mut types),
    };
    let message = MessageBuf::request(&envelope, &header, &Request::Resolution(query));
    message.unsigned().expect("a handle is shorter than a message")
}

/// Many requests in one buffer, so that reading them in order costs little.
#[derive(Debug)]
pub struct Requests {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Requests {
    /// Makes `count` requests for handles of a set of `records` generated records, chosen at random
    /// from `seed`.
    ///
    /// # Errors
    /// When the models of the records cannot be read.
    pub fn new(records: u64, count: usize, request_kind: RequestKind, seed: u64) -> anyhow::Result<Self> {
        let (generator, mut random) = (RecordGenerator::new()?, BenchRandom(seed));
        let mut requests = Self { bytes: Vec::new(), ends: Vec::with_capacity(count) };
        let mut handle = Vec::new();
        for id in 0..count {
            handle.clear();
            match request_kind {
                RequestKind::Long => handle.extend_from_slice(LONG_HANDLE),
                RequestKind::Missing => generator.handle(records + random.below(records), &mut handle),
                _ => generator.handle(random.below(records), &mut handle),
            }
            requests.bytes.extend(request(&handle, request_kind, i32::try_from(id).unwrap_or(i32::MAX)));
            requests.ends.push(requests.bytes.len());
        }
        Ok(requests)
    }

    /// Collects `datagrams`.
    #[must_use]
    pub fn from_datagrams(datagrams: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        let mut requests = Self { bytes: Vec::new(), ends: Vec::new() };
        for datagram in datagrams {
            requests.bytes.extend_from_slice(datagram.as_ref());
            requests.ends.push(requests.bytes.len());
        }
        requests
    }

    /// Writes the length of each answer, from `lens` in the same order, into the id of its request,
    /// for an [`EchoServer`](crate::serve::EchoServer).
    ///
    /// # Panics
    /// When there are more than 1048576 requests, or answers of more than 2047 bytes.
    pub fn note_answer_lens(&mut self, lens: &[usize]) {
        for (at, &len) in lens.iter().enumerate() {
            assert!(at < 1 << NUMBER_BITS && len < 1 << (31 - NUMBER_BITS), "{at}, {len}");
            let start = if at == 0 { 0 } else { self.ends[at - 1] };
            let id = u32::try_from(len << NUMBER_BITS | at).expect("31 bits");
            self.bytes[start + REQUEST_ID_AT..][..4].copy_from_slice(&id.to_be_bytes());
        }
    }

    /// Selects the requests of the most frequent length, and of these the requests whose answers
    /// have the most frequent length. `lens` are the lengths of all answers.
    #[must_use]
    pub fn most_frequent_lens(&self, lens: &[usize]) -> Self {
        let most_frequent = |lens: &mut dyn Iterator<Item = usize>| {
            let mut counts = BTreeMap::new();
            lens.for_each(|len| *counts.entry(len).or_insert(0) += 1);
            counts.into_iter().max_by_key(|&(_, count)| count).map_or(0, |(len, _)| len)
        };
        let len_of = |at: usize| self.get(at).len();
        let len = most_frequent(&mut (0..self.len()).map(len_of));
        let alike = || (0..self.len()).filter(|&at| len_of(at) == len);
        let answer_len = most_frequent(&mut alike().map(|at| lens[at]));
        Self::from_datagrams(alike().filter(|&at| lens[at] == answer_len).map(|at| self.get(at)))
    }

    /// Returns the number of requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are no requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the request at `at`, modulo their number.
    #[must_use]
    #[inline]
    pub fn get(&self, at: usize) -> &[u8] {
        let at = at % self.ends.len();
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[start..self.ends[at]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_answers_are_noted_and_most_frequent_ones_picked() {
        let mut requests = Requests::from_datagrams([20, 30, 30, 30, 40, 40].map(|len| vec![0xff; len]));
        let lens = [9, 100, 200, 100, 300, 2047];
        requests.note_answer_lens(&lens);
        for (at, &len) in lens.iter().enumerate() {
            assert_eq!(noted_answer_len(requests.get(at)), len);
        }
        assert_eq!(noted_answer_len(&[0; 11]), 0);
        let alike = requests.most_frequent_lens(&lens);
        assert_eq!(alike.len(), 2);
        assert_eq!((alike.get(0), alike.get(1)), (requests.get(1), requests.get(3)));
    }
}
