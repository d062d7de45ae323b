//! The fast path: recognises the most frequent form of requests, and answers it with a third fewer
//! instructions.
//!
//! A fast request is a whole message outside sessions that asks for all public values of a handle,
//! without digest or signature, and whose answer fits into one datagram. [`FastRequest`] recognises
//! exactly that, and [`FastAnswer`] writes the bytes that [`answer`](crate::answer()) would write;
//! every other request goes to that function. A test and the fuzz targets compare the bytes of
//! both.

use crate::refusal::RefusalReason;
use crate::reply::{ReplyParts, WireReply, flags_of_reply};
use crate::service::ServiceFacts;
use handle_proto::limit::{MESSAGE_EXPIRATION_S, UDP_DATA_LEN_MAX, UDP_MESSAGE_LEN_MAX};
use handle_proto::name::SITE_STATUS;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Envelope, Header};
use handle_proto::{Handle, OpCode, OpFlags, ResponseCode, Version, fold};
use handle_snapshot::EncodedRecord;

/// Offset of the body, which begins with the length of the handle.
const BODY_AT: usize = Envelope::LEN + Header::LEN;
/// Offset of the handle.
const HANDLE_AT: usize = BODY_AT + 4;
/// The bytes after the handle: two empty lists and an empty credential.
const TAIL: [u8; 12] = [0; 12];
/// Length of an answer without handle and values: frame, length of the handle, number of values,
/// empty credential.
const FIXED_LEN: usize = HANDLE_AT + 4 + 4;

/// A request for the fast path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FastRequest<'a>(&'a [u8]);

impl<'a> FastRequest<'a> {
    /// Reads `bytes`, envelope first, as a fast request; `None` if they are another message.
    #[inline]
    pub(crate) fn read(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<HANDLE_AT>()?;
        let (_, tail) = rest.split_last_chunk::<{ TAIL.len() }>()?;
        let handle_len = rest.len() - TAIL.len();
        // The fields whose value must be exact, and the flags that change the answer.
        const DECIDE: u32 =
            OpFlags::PUBLIC_ONLY.0 | OpFlags::CERTIFY.0 | OpFlags::ENCRYPT.0 | OpFlags::REQUEST_DIGEST.0;
        let frame = u32::from(head[2] & EnvelopeFlags::ALL.0)
            | number::<4>(head)
            | (number::<16>(head) ^ len_u32(bytes.len() - Envelope::LEN))
            | (number::<20>(head) ^ OpCode::RESOLUTION.0.cast_unsigned())
            | number::<24>(head)
            | ((number::<28>(head) & DECIDE) ^ OpFlags::PUBLIC_ONLY.0)
            | (number::<40>(head) ^ len_u32(handle_len + HANDLE_AT - BODY_AT + 8))
            | (number::<44>(head) ^ len_u32(handle_len));
        let request = Self(bytes);
        let is_fast = frame == 0 && *tail == TAIL && bytes.len() <= UDP_MESSAGE_LEN_MAX;
        (is_fast && !is_status(request.handle())).then_some(request)
    }

    /// The message, envelope first.
    pub(crate) const fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// The handle, as the client spelt it.
    #[inline]
    pub(crate) fn handle(self) -> Handle<'a> {
        Handle(self.0.get(HANDLE_AT..self.0.len() - TAIL.len()).unwrap_or_default())
    }

    /// Whether the request asks that no cache answers it.
    pub(crate) fn is_authoritative(self) -> bool {
        let flags = self.0[28..].first_chunk().map_or(0, |flags| u32::from_be_bytes(*flags));
        OpFlags(flags).has(OpFlags::AUTHORITATIVE)
    }

    /// The query: all values.
    pub(crate) fn query(self) -> Query<'a> {
        Query { handle: self.handle().0, indexes: Indexes::EMPTY, types: Strings::EMPTY }
    }

    /// The answer with all public values of `record`, if the fast path can write it.
    #[inline]
    pub(crate) fn answer(
        self,
        record: &EncodedRecord<'a>,
        service: &ServiceFacts<'_>,
        now_unix_s: u32,
    ) -> Option<FastAnswer<'a>> {
        let (values, count) = (record.public_bytes(), record.public_count());
        let len = FIXED_LEN + self.handle().0.len() + values.len();
        let fits = len <= Envelope::LEN + UDP_DATA_LEN_MAX;
        (fits && count > 0 && record.is_homed()).then_some(FastAnswer {
            request: self.0,
            values,
            values_count: len_u32(count),
            len: len_u32(len),
            expiration: now_unix_s.wrapping_add(MESSAGE_EXPIRATION_S),
            site_serial: service.site_serial,
            primary: service.primary,
        })
    }
}

/// Whether `handle` is the name of the state of the server, which has no record.
#[inline]
fn is_status(handle: Handle<'_>) -> bool {
    handle.0.len() == SITE_STATUS.len() && fold::eq(handle.0, SITE_STATUS)
}

/// The number at offset `AT`.
#[inline]
fn number<const AT: usize>(head: &[u8; HANDLE_AT]) -> u32 {
    u32::from_be_bytes(*head[AT..].first_chunk().expect("before the handle"))
}

#[expect(clippy::cast_possible_truncation, reason = "at most a datagram")]
const fn len_u32(len: usize) -> u32 {
    len as u32
}

/// The answer to a fast request: one datagram with values, ready to be written.
#[derive(Clone, Copy, Debug)]
pub struct FastAnswer<'a> {
    request: &'a [u8],
    values: &'a [u8],
    values_count: u32,
    len: u32,
    expiration: u32,
    site_serial: i16,
    primary: bool,
}

impl FastAnswer<'_> {
    #[inline]
    fn frame(&self) -> (Envelope, Header) {
        let head = self.request.first_chunk::<BODY_AT>().expect("a fast request has a frame");
        let request = Envelope::from_bytes(head.first_chunk().expect("an envelope"));
        let flags = OpFlags(u32::from_be_bytes([head[28], head[29], head[30], head[31]]));
        let envelope = Envelope {
            version: request.answer_version(),
            flags: EnvelopeFlags::default(),
            suggested: Version::CURRENT,
            session_id: 0,
            request_id: request.request_id,
            sequence: 0,
            message_len: self.len - len_u32(Envelope::LEN),
        };
        let header = Header {
            op_code: OpCode::RESOLUTION,
            response_code: ResponseCode::SUCCESS,
            flags: flags_of_reply(flags, self.primary),
            site_serial: self.site_serial,
            recursion_count: head[34],
            reserved: 0,
            expiration: self.expiration,
            body_len: self.len - len_u32(BODY_AT + 4),
        };
        (envelope, header)
    }
}

/// The answer fits into one datagram, so its bytes are the same over both transports.
impl WireReply for FastAnswer<'_> {
    #[inline]
    fn response_code(&self) -> ResponseCode {
        ResponseCode::SUCCESS
    }

    #[inline]
    fn refused(&self) -> Option<RefusalReason> {
        None
    }

    #[inline]
    fn identity(&self) -> u64 {
        self.values.as_ptr().addr() as u64
    }

    fn limited(&self) -> ReplyParts<'static> {
        let (envelope, header) = self.frame();
        ReplyParts::limited_to(envelope, header)
    }

    #[inline]
    fn datagrams_count(&self) -> usize {
        1
    }

    #[inline]
    fn datagrams_len(&self) -> usize {
        self.stream_len()
    }

    #[inline]
    fn write_datagrams(&self, out: &mut [u8]) {
        self.write_stream(out);
    }

    #[inline]
    fn stream_len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    fn write_stream(&self, out: &mut [u8]) {
        let (envelope, header) = self.frame();
        let handle = FastRequest(self.request).handle().0;
        let (head, out) = out.split_at_mut(HANDLE_AT);
        head[..Envelope::LEN].copy_from_slice(&envelope.to_bytes());
        head[Envelope::LEN..BODY_AT].copy_from_slice(&header.to_bytes());
        head[BODY_AT..].copy_from_slice(&len_u32(handle.len()).to_be_bytes());
        let (part, out) = out.split_at_mut(handle.len());
        part.copy_from_slice(handle);
        let (part, out) = out.split_at_mut(4);
        part.copy_from_slice(&self.values_count.to_be_bytes());
        let (part, out) = out.split_at_mut(self.values.len());
        part.copy_from_slice(self.values);
        out[..4].copy_from_slice(&[0; 4]);
    }
}
