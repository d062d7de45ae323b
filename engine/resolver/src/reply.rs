//! The parts of a reply, a computed head and a borrowed tail, and how they are written as
//! datagrams.

use crate::digest::RequestDigest;
use crate::refusal::RefusalReason;
use crate::request::ParsedRequest;
use crate::select::SelectedValues;
use crate::service::ServiceFacts;
use handle_proto::limit::{MESSAGE_EXPIRATION_S, MESSAGE_LEN_MAX, UDP_DATA_LEN_MAX, UDP_MESSAGE_LEN_MAX};
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::{Envelope, Header};
use handle_proto::{OpCode, OpFlags, ResponseCode, Version};

/// A complete reply, not yet encoded.
///
/// Its parts borrow from the request (the handle's spelling) and from the snapshot (values); only
/// envelope, header, digest and lengths are copied.
#[derive(Clone, Copy, Debug)]
pub struct ReplyParts<'a> {
    envelope: Envelope,
    header: Header,
    /// The digest of the request, if the request asks for one.
    digest: Option<RequestDigest>,
    /// The length of `text`, if the body carries one.
    text_len: Option<[u8; 4]>,
    /// The handle in the client's spelling, the text of an error, or the site record.
    text: &'a [u8],
    /// The number of values, when values follow.
    values_count: Option<[u8; 4]>,
    values: SelectedValues<'a>,
    refused: Option<RefusalReason>,
    /// Whether some of the values are not public.
    private: bool,
}

/// The reason why an answer of `message_len` bytes after the envelope, with its credential, is not
/// sent: it is longer than a message may be, or takes more than `datagrams_max` datagrams.
#[must_use]
pub const fn too_long(message_len: usize, datagrams_max: usize) -> Option<RefusalReason> {
    if message_len > MESSAGE_LEN_MAX as usize {
        Some(RefusalReason::AnswerTooLong)
    } else if message_len.div_ceil(UDP_DATA_LEN_MAX) > datagrams_max {
        Some(RefusalReason::TooManyDatagrams)
    } else {
        None
    }
}

/// The length of an empty credential.
const UNSIGNED: [u8; 4] = [0; 4];

#[expect(clippy::cast_possible_truncation, reason = "parts of a message are below 4 GiB")]
const fn len_u32(len: usize) -> u32 {
    len as u32
}

/// The flags of a reply to a request with the flags `request_flags`.
#[inline]
pub(crate) const fn flags_of_reply(request_flags: OpFlags, primary: bool) -> OpFlags {
    const COPIED: u32 = OpFlags::AUTHORITATIVE.0
        | OpFlags::CERTIFY.0
        | OpFlags::ENCRYPT.0
        | OpFlags::CACHE_CERTIFY.0
        | OpFlags::PUBLIC_ONLY.0
        | OpFlags::REQUEST_DIGEST.0
        | OpFlags::DO_NOT_REFER.0;
    let authoritative = if primary { OpFlags::AUTHORITATIVE.0 } else { 0 };
    OpFlags(request_flags.0 & COPIED | OpFlags::RECURSIVE.0 | authoritative)
}

impl<'a> ReplyParts<'a> {
    /// Request id of replies to unreadable messages. Shown by `conversations.jsonl`, `malformed`.
    pub const UNREADABLE_REQUEST_ID: i32 = -1;

    /// A reply to an unreadable message: in version 2.3, with no request id of its own.
    pub(crate) fn unreadable(refused: RefusalReason, op_code: OpCode, now_unix_s: u32) -> Self {
        let envelope = Envelope {
            version: Version::COMPATIBLE,
            flags: EnvelopeFlags::default(),
            suggested: Version::CURRENT,
            session_id: 0,
            request_id: Self::UNREADABLE_REQUEST_ID,
            sequence: 0,
            message_len: 0,
        };
        let header = Header {
            op_code,
            response_code: refused.code(),
            flags: OpFlags::PLAIN_REQUEST,
            site_serial: Header::NO_SITE_SERIAL,
            recursion_count: 0,
            reserved: 0,
            expiration: now_unix_s.wrapping_add(MESSAGE_EXPIRATION_S),
            body_len: 0,
        };
        Self::empty(envelope, header).refuse(refused)
    }

    /// Makes the reply an error with `refused` as its reason.
    pub(crate) fn refuse(mut self, refused: RefusalReason) -> Self {
        self.refused = Some(refused);
        self.push_text(refused.text());
        self.finish()
    }

    /// The reply without the flag of authoritative answers: it shows what another service said.
    #[must_use]
    pub const fn not_authoritative(mut self) -> Self {
        self.header.flags = self.header.flags.without(OpFlags::AUTHORITATIVE);
        self
    }

    /// Replaces the text of an error.
    #[must_use]
    pub fn with_text<'t>(self, text: &'t [u8]) -> ReplyParts<'t>
    where
        'a: 't,
    {
        let mut reply: ReplyParts<'t> = self;
        reply.push_text(text);
        reply.finish()
    }

    /// The frame of a reply to `request`: everything but the part of the body after the digest.
    #[inline]
    pub(crate) fn to(
        request: &ParsedRequest<'_>,
        code: ResponseCode,
        service: &ServiceFacts<'_>,
        now_unix_s: u32,
    ) -> Self {
        let (version, request_flags) = (request.version, request.flags);
        let mut flags = flags_of_reply(request_flags, service.primary);
        let digest = match request_flags.has(OpFlags::REQUEST_DIGEST) {
            true => RequestDigest::of(request.covered, version),
            false => None,
        };
        if digest.is_none() {
            flags = flags.without(OpFlags::REQUEST_DIGEST);
        }
        let envelope = Envelope {
            version,
            flags: EnvelopeFlags::default(),
            suggested: Version::CURRENT,
            session_id: request.session_id,
            request_id: request.request_id,
            sequence: 0,
            message_len: 0,
        };
        let header = Header {
            op_code: request.op_code,
            response_code: code.for_version(version),
            flags,
            site_serial: service.site_serial,
            recursion_count: request.recursion_count,
            reserved: 0,
            expiration: now_unix_s.wrapping_add(MESSAGE_EXPIRATION_S),
            body_len: 0,
        };
        Self { digest, ..Self::empty(envelope, header) }
    }

    #[inline]
    const fn empty(envelope: Envelope, header: Header) -> Self {
        let (text, values) = (&[], SelectedValues::NONE);
        Self {
            envelope,
            header,
            digest: None,
            text_len: None,
            text,
            values_count: None,
            values,
            refused: None,
            private: false,
        }
    }

    /// Sets `text`, with its length, as the next part of the body: a handle or the text of an
    /// error.
    #[inline]
    pub(crate) const fn push_text(&mut self, text: &'a [u8]) {
        self.text_len = Some(len_u32(text.len()).to_be_bytes());
        self.text = text;
    }

    /// Sets `bytes`, without a length, as the rest of the body: the site record.
    pub(crate) const fn push_rest(&mut self, bytes: &'a [u8]) {
        self.text = bytes;
    }

    /// Sets `values` as the last part of the body.
    #[inline]
    pub(crate) const fn push_values(&mut self, values: SelectedValues<'a>) {
        self.values_count = Some(values.count.to_be_bytes());
        self.values = values;
    }

    /// Returns the reply with its lengths filled in.
    #[inline]
    pub(crate) fn finish(mut self) -> Self {
        self.fill_in_lengths();
        self
    }

    /// Fills in the lengths.
    #[inline]
    pub(crate) fn fill_in_lengths(&mut self) {
        let digest_len = self.digest.as_ref().map_or(0, |digest| digest.as_bytes().len());
        let counts_len = self.text_len.as_slice().len() * 4 + self.values_count.as_slice().len() * 4;
        let body_len = digest_len + counts_len + self.text.len() + self.values.len;
        self.header.body_len = len_u32(body_len);
        self.envelope.message_len = len_u32(Header::LEN + body_len + UNSIGNED.len());
        if self.message_len() > UDP_DATA_LEN_MAX {
            self.envelope.flags = EnvelopeFlags::TRUNCATED;
        }
    }

    /// The reply that the rate limit sends in place of one with this frame: see
    /// [`WireReply::limited`].
    pub(crate) fn limited_to(envelope: Envelope, header: Header) -> Self {
        let code = RefusalReason::RateLimited.code().for_version(envelope.version);
        let flags = header.flags.without(OpFlags::REQUEST_DIGEST);
        let envelope = Envelope { flags: EnvelopeFlags::default(), ..envelope };
        let header = Header { response_code: code, flags, ..header };
        Self::empty(envelope, header).refuse(RefusalReason::RateLimited)
    }

    /// A reply with the same frame and the error `refused`.
    #[must_use]
    pub fn refusing<'t>(&self, refused: RefusalReason) -> ReplyParts<'t> {
        let envelope = Envelope { flags: EnvelopeFlags::default(), ..self.envelope };
        let code = refused.code().for_version(self.envelope.version);
        let header = Header { response_code: code, ..self.header };
        ReplyParts { digest: self.digest, ..ReplyParts::empty(envelope, header) }.refuse(refused)
    }

    /// Whether the reply must have a signature, or the MAC of its session.
    #[must_use]
    pub const fn certifies(&self) -> bool {
        self.header.flags.has(OpFlags::CERTIFY)
    }

    /// Whether the reply must be encrypted in its session: the request asks for that, or the
    /// version implies it for values that are not public.
    #[must_use]
    pub fn is_confidential(&self) -> bool {
        const PRIVATE_SINCE: Version = Version::new(2, 8);
        let asks_encryption = self.header.flags.has(OpFlags::ENCRYPT);
        self.envelope.session_id > 0
            && (asks_encryption || self.private && self.envelope.version >= PRIVATE_SINCE)
    }

    /// Marks the reply as one that has values that are not public.
    #[must_use]
    pub(crate) const fn private(mut self) -> Self {
        self.private = true;
        self
    }

    /// The number of the session or of the challenge; 0 if the reply has neither.
    #[must_use]
    pub const fn session_id(&self) -> i32 {
        self.envelope.session_id
    }

    /// The operation of the request.
    #[must_use]
    pub const fn op_code(&self) -> OpCode {
        self.header.op_code
    }

    /// Bytes of the message after its envelope.
    #[must_use]
    pub const fn message_len(&self) -> usize {
        self.envelope.message_len as usize
    }

    #[inline]
    fn write_whole(&self, envelope: Envelope, out: &mut [u8]) {
        let (head, mut buffer) = out.split_at_mut(Envelope::LEN);
        head.copy_from_slice(&envelope.to_bytes());
        self.each_part(
            #[inline(always)]
            |part| {
                let (now, later) = core::mem::take(&mut buffer).split_at_mut(part.len());
                now.copy_from_slice(part);
                buffer = later;
            },
        );
    }

    /// Passes the parts of the message to `take`, in order.
    #[inline(always)]
    fn each_part(&self, mut take: impl FnMut(&[u8])) {
        take(&self.header.to_bytes());
        if let Some(digest) = &self.digest {
            take(digest.as_bytes());
        }
        if let Some(text_len) = &self.text_len {
            take(text_len);
        }
        take(self.text);
        if let Some(count) = &self.values_count {
            take(count);
            self.values.runs().for_each(&mut take);
        }
        take(&UNSIGNED);
    }
}

/// What a transport needs to know about a reply, and how it is written.
///
/// [`ReplyParts`] is the general form, and [`FastAnswer`](crate::FastAnswer) that of the fast path.
pub trait WireReply {
    /// The response code.
    fn response_code(&self) -> ResponseCode;

    /// The reason, if the reply is an error.
    fn refused(&self) -> Option<RefusalReason>;

    /// Whether the reply carries the MAC of a session. No reply of this crate does.
    fn has_mac(&self) -> bool {
        false
    }

    /// A number that equal answers from one set of records share, for every client and every
    /// spelling of the handle: the address of the record's values, or a number made of operation
    /// and response code if there are no values. Different answers have different numbers.
    fn identity(&self) -> u64;

    /// The reply that the rate limit sends in place of this one: the same frame with an error and
    /// an empty body.
    fn limited(&self) -> ReplyParts<'static>;

    /// Number of datagrams that the reply takes.
    fn datagrams_count(&self) -> usize;

    /// Bytes of all datagrams together.
    fn datagrams_len(&self) -> usize;

    /// Writes the reply as datagrams, one after the other, into the first
    /// [`datagrams_len`](Self::datagrams_len) bytes of `out`.
    ///
    /// Each datagram but the last has [`UDP_MESSAGE_LEN_MAX`] bytes, so that the kernel can send
    /// them as a train. All fragments, the last one too, carry the length of the whole message and
    /// the truncated bit, as those of deployed servers do.
    ///
    /// # Panics
    /// If `out` is shorter.
    fn write_datagrams(&self, out: &mut [u8]);

    /// Bytes of the reply as one message, envelope first.
    fn stream_len(&self) -> usize;

    /// Writes the reply as one message, envelope first, as streams carry it, into the first
    /// [`stream_len`](Self::stream_len) bytes of `out`.
    ///
    /// # Panics
    /// If `out` is shorter.
    fn write_stream(&self, out: &mut [u8]);
}

impl WireReply for ReplyParts<'_> {
    #[inline]
    fn response_code(&self) -> ResponseCode {
        self.header.response_code
    }

    #[inline]
    fn refused(&self) -> Option<RefusalReason> {
        self.refused
    }

    fn identity(&self) -> u64 {
        match self.values_count {
            Some(_) => self.values.identity(),
            // No value is at so low an address.
            None => {
                let refused = self.refused.map_or(0, |refused| refused as u64 + 1);
                let code = u64::from(self.header.response_code.0.cast_unsigned() & 0xff);
                u64::from(self.header.op_code.0.cast_unsigned() & 0xfff) << 16 | code << 8 | refused
            }
        }
    }

    fn limited(&self) -> ReplyParts<'static> {
        ReplyParts::limited_to(self.envelope, self.header)
    }

    #[inline]
    fn datagrams_count(&self) -> usize {
        self.message_len().div_ceil(UDP_DATA_LEN_MAX)
    }

    #[inline]
    fn datagrams_len(&self) -> usize {
        self.message_len() + self.datagrams_count() * Envelope::LEN
    }

    #[inline]
    fn write_datagrams(&self, out: &mut [u8]) {
        if self.datagrams_count() == 1 {
            return self.write_whole(self.envelope, out);
        }
        let mut envelope = self.envelope;
        let mut writer = DatagramWriter { out, at: Envelope::LEN };
        writer.out[..Envelope::LEN].copy_from_slice(&envelope.to_bytes());
        self.each_part(|part| writer.write(part, &mut envelope));
    }

    #[inline]
    fn stream_len(&self) -> usize {
        Envelope::LEN + self.message_len()
    }

    fn write_stream(&self, out: &mut [u8]) {
        self.write_whole(Envelope { flags: EnvelopeFlags::default(), ..self.envelope }, out);
    }
}

/// Writes parts one after the other, and starts a new datagram when one is full.
struct DatagramWriter<'o> {
    out: &'o mut [u8],
    at: usize,
}

impl DatagramWriter<'_> {
    #[inline]
    fn write(&mut self, mut part: &[u8], envelope: &mut Envelope) {
        // Envelopes are at multiples of the datagram length, so `at` determines the capacity left.
        loop {
            let used = (self.at - 1) % UDP_MESSAGE_LEN_MAX + 1;
            let capacity = UDP_MESSAGE_LEN_MAX - used;
            if part.len() <= capacity {
                self.out[self.at..self.at + part.len()].copy_from_slice(part);
                self.at += part.len();
                return;
            }
            let (now, later) = part.split_at(capacity);
            self.out[self.at..self.at + capacity].copy_from_slice(now);
            self.at += capacity;
            part = later;
            envelope.sequence += 1;
            self.out[self.at..self.at + Envelope::LEN].copy_from_slice(&envelope.to_bytes());
            self.at += Envelope::LEN;
        }
    }
}
