//! Requests as datagrams.

use crate::records::{Generator, Random};
use crate::sets::LONG_HANDLE;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Envelope, Header, MessageBuf, Request};
use handle_proto::{OpCode, OpFlags, ResponseCode, Version};

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// All public values of a handle that is there: the usual request.
    Plain,
    /// One value by its index and one by its type.
    Selected,
    /// A handle that is not there, under a prefix that is.
    Missing,
    /// As `Plain`, with a digest of the request in the answer.
    Digest,
    /// A record whose answer takes several datagrams.
    Long,
    /// As `Plain`, with an answer that is signed.
    Certified,
}

impl Ask {
    /// All that a worker answers by itself, with names for benches.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Plain, "plain"),
        (Self::Selected, "selected"),
        (Self::Missing, "missing"),
        (Self::Digest, "digest"),
        (Self::Long, "long"),
    ];

    /// What a right answer says.
    #[must_use]
    pub const fn response_code(self) -> ResponseCode {
        match self {
            Self::Missing => ResponseCode::HANDLE_NOT_FOUND,
            _ => ResponseCode::SUCCESS,
        }
    }
}

/// One request, as a datagram.
///
/// # Panics
/// When `handle` is longer than a message.
#[must_use]
pub fn request(handle: &[u8], ask: Ask, request_id: i32) -> Vec<u8> {
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
        flags: match ask {
            Ask::Digest => OpFlags::PLAIN_REQUEST.with(OpFlags::REQUEST_DIGEST),
            Ask::Certified => OpFlags::PLAIN_REQUEST.with(OpFlags::CERTIFY),
            _ => OpFlags::PLAIN_REQUEST,
        },
        site_serial: Header::NO_SITE_SERIAL,
        recursion_count: 0,
        reserved: 0,
        expiration: u32::MAX,
        body_len: 0,
    };
    let (mut indexes, mut types) = (Vec::new(), Vec::new());
    let (index, kind) = match ask {
        Ask::Selected => (Some(100), Some(&b"URL"[..])),
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

/// Many requests, one behind the other, so that reading them in order costs little.
#[derive(Debug)]
pub struct Requests {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Requests {
    /// `count` requests for handles of a set of `records` generated records, chosen at random by `seed`.
    ///
    /// # Errors
    /// When the models of the records cannot be read.
    pub fn new(records: u64, count: usize, ask: Ask, seed: u64) -> anyhow::Result<Self> {
        let (generator, mut random) = (Generator::new()?, Random(seed));
        let mut requests = Self { bytes: Vec::new(), ends: Vec::with_capacity(count) };
        let mut handle = Vec::new();
        for id in 0..count {
            handle.clear();
            match ask {
                Ask::Long => handle.extend_from_slice(LONG_HANDLE),
                Ask::Missing => generator.handle(records + random.below(records), &mut handle),
                _ => generator.handle(random.below(records), &mut handle),
            }
            requests.bytes.extend(request(&handle, ask, i32::try_from(id).unwrap_or(i32::MAX)));
            requests.ends.push(requests.bytes.len());
        }
        Ok(requests)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The request at `at`, counted around.
    #[must_use]
    #[inline]
    pub fn get(&self, at: usize) -> &[u8] {
        let at = at % self.ends.len();
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[start..self.ends[at]]
    }
}
