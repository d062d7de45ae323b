//! A connection: queues and writes requests, reads and splits answers.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};

use handle_proto::limit::MESSAGE_LEN_MAX;
use handle_proto::wire::Envelope;
use handle_proto::wire::envelope::EnvelopeFlags;
use mio::{Registry, Token};

use super::http2::Http2Session;
use super::link::{ByteLink, LinkFailure};
use super::request::HttpRequest;
use super::tls::TlsContext;
use super::{HttpAnswer, http, json, redirect};
use crate::load::question::GeneratedQuestion;
use crate::load::transport::{HttpVersion, Protocol, Streams};

/// Maximum length of an answer, framing included. JSON takes a few times the bytes of its values.
const INPUT_LEN_MAX: usize = 8 * MESSAGE_LEN_MAX as usize;

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionEnd {
    /// No request was pending.
    Done,
    /// The server or the network closed it while a request was pending.
    Closed,
    /// The oldest request was pending for too long.
    GivenUp,
    /// The received bytes cannot be split into answers.
    Unreadable,
}

/// Settings that all connections share.
pub(crate) struct ConnectionContext {
    pub(crate) streams: Streams,
    /// The host that requests over HTTP name.
    pub(crate) host: String,
    pub(crate) tls: Option<TlsContext>,
    /// Whether the values of answers are used.
    pub(crate) with_values: bool,
}

/// A pending request.
struct WaitingRequest {
    sent_ns: u64,
    request_id: i32,
    /// The handle, if the answer does not repeat it and is used.
    handle: Box<[u8]>,
}

/// A connection. It is registered for as long as it lives.
pub(crate) struct LoadConnection {
    link: ByteLink,
    input: Vec<u8>,
    http2: Option<Http2Session>,
    /// In the order of sending, which over HTTP/1.1 is the order of answers.
    waiting: VecDeque<WaitingRequest>,
    /// Number of requests so far.
    taken: u32,
    /// Why it failed.
    failure: Option<String>,
}

/// The answers of one turn, and their statuses.
pub(crate) struct AnswerSink<'a> {
    /// Takes each answer as a whole message with its envelope.
    pub(crate) take: &'a mut dyn FnMut(&[u8]),
    /// Answers over HTTP by status.
    pub(crate) statuses: &'a mut BTreeMap<u16, u64>,
}

impl LoadConnection {
    pub(crate) fn begin(
        target: SocketAddr,
        source: Option<IpAddr>,
        context: &ConnectionContext,
        token: Token,
        registry: &Registry,
    ) -> io::Result<Self> {
        let link = ByteLink::begin(target, source, context.tls.as_ref(), token, registry)?;
        let http2 = match context.streams.version {
            HttpVersion::Http2 => {
                let session = Http2Session::begin(context.tls.is_some());
                Some(session.ok_or_else(|| io::Error::other("cannot begin HTTP/2"))?)
            }
            HttpVersion::Http1 => None,
        };
        Ok(Self { link, input: Vec::new(), http2, waiting: VecDeque::new(), taken: 0, failure: None })
    }

    pub(crate) const fn is_established(&self) -> bool {
        self.link.is_established()
    }

    /// Why it failed, if that is known.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// Number of requests that it can take now.
    pub(crate) fn capacity(&self, streams: &Streams) -> usize {
        let capacity = streams.capacity(self.taken, self.waiting.len());
        self.http2.as_ref().map_or(capacity, |session| {
            capacity.min(session.streams_max().saturating_sub(self.waiting.len()))
        })
    }

    /// The send time of the oldest pending request.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        self.waiting.front().map(|waiting| waiting.sent_ns)
    }

    /// Queues a request; [`write`](Self::write) sends it.
    pub(crate) fn queue(
        &mut self,
        message: &[u8],
        now_ns: u64,
        context: &ConnectionContext,
    ) -> io::Result<()> {
        let (request_id, streams) = (id_of(message), &context.streams);
        if streams.protocol == Protocol::Tcp {
            self.link.output.extend_from_slice(message);
        } else {
            let request = HttpRequest::of(streams.protocol, message);
            match &mut self.http2 {
                None => request.write_http1(&context.host, streams.keeps(), &mut self.link.output),
                Some(session) => {
                    session.request(request_id, &request, &context.host).map_err(io::Error::other)?;
                }
            }
        }
        let uses_handle = context.with_values && streams.protocol == Protocol::Redirect;
        let question = GeneratedQuestion::of_message(message).filter(|_| uses_handle);
        let handle = question.map_or_else(Box::default, |question| question.handle.into());
        self.waiting.push_back(WaitingRequest { sent_ns: now_ns, request_id, handle });
        self.taken = self.taken.saturating_add(1);
        Ok(())
    }

    /// Writes as much as the kernel accepts.
    pub(crate) fn write(&mut self) -> Result<(), ConnectionEnd> {
        if let Some(session) = &mut self.http2 {
            session.send();
            session.drain_to(&mut self.link.output);
        }
        let written = self.link.write();
        written.map_err(|failure| self.end(failure))
    }

    /// Reads received bytes through `buffer`, and passes each answer to `sink`.
    pub(crate) fn turn(
        &mut self,
        context: &ConnectionContext,
        buffer: &mut [u8],
        sink: &mut AnswerSink<'_>,
    ) -> Result<(), ConnectionEnd> {
        let read = self.link.read(buffer, &mut self.input, INPUT_LEN_MAX);
        let is_over = match read {
            Ok(_) if self.input.len() > INPUT_LEN_MAX => return Err(ConnectionEnd::Unreadable),
            Ok(is_over) => is_over,
            Err(_) if self.waiting.is_empty() => return Err(ConnectionEnd::Done),
            Err(failure) => return Err(self.end(failure)),
        };
        let is_last = if self.http2.is_some() {
            self.turn_http2(context, is_over, sink)?
        } else {
            self.turn_in_order(context, is_over, sink)?
        };
        let is_spent = context.streams.requests > 0 && self.taken >= context.streams.requests;
        match self.waiting.is_empty() {
            true if is_over || is_last || is_spent => Err(ConnectionEnd::Done),
            false if is_over || is_last => Err(self.end(LinkFailure("closed by the server".to_owned()))),
            _ => Ok(()),
        }
    }

    fn end(&mut self, failure: LinkFailure) -> ConnectionEnd {
        self.failure.get_or_insert(failure.0);
        ConnectionEnd::Closed
    }

    /// Takes answers of the handle protocol and of HTTP/1.1; returns whether the server closes the
    /// connection.
    fn turn_in_order(
        &mut self,
        context: &ConnectionContext,
        is_over: bool,
        sink: &mut AnswerSink<'_>,
    ) -> Result<bool, ConnectionEnd> {
        let mut is_last = false;
        while !self.input.is_empty() {
            let cut = match context.streams.protocol {
                Protocol::Tcp => cut_message(&mut self.input, is_over),
                _ => self.cut_http(context, is_over, sink.statuses),
            };
            match cut {
                CutOutcome::Partial => break,
                CutOutcome::Answer { bytes, used, closes } => {
                    self.input.drain(..used);
                    is_last |= closes;
                    self.settle(id_of(&bytes));
                    (sink.take)(&bytes);
                }
                CutOutcome::Unreadable => return Err(ConnectionEnd::Unreadable),
            }
        }
        Ok(is_last)
    }

    /// Takes answers of HTTP/2; returns whether the session is over.
    fn turn_http2(
        &mut self,
        context: &ConnectionContext,
        is_over: bool,
        sink: &mut AnswerSink<'_>,
    ) -> Result<bool, ConnectionEnd> {
        let is_agreed = self.link.alpn() == Some(HttpVersion::Http2.alpn());
        if context.tls.is_some() && self.is_established() && !is_agreed {
            self.failure.get_or_insert_with(|| "the server does not offer HTTP/2 in TLS (ALPN)".to_owned());
            return Err(ConnectionEnd::Unreadable);
        }
        let Some(mut session) = self.http2.take() else { return Ok(true) };
        let mut input = std::mem::take(&mut self.input);
        let has_ended = session.turn(&mut input, is_over, |request_id, answer| {
            let handle = self.settle(request_id);
            let bytes = answer.and_then(|answer| {
                *sink.statuses.entry(answer.status).or_default() += 1;
                answer.into_message(context, request_id, &handle)
            });
            (sink.take)(&bytes.unwrap_or_else(|| unreadable(request_id)));
        });
        session.drain_to(&mut self.link.output);
        // Empty, and its memory is used again.
        (self.http2, self.input) = (Some(session), input);
        if !has_ended {
            self.link.write().map_err(|failure| self.end(failure))?;
        }
        Ok(has_ended)
    }

    /// Removes a waiting request, and returns its handle. Over TCP and HTTP/2, answers may arrive
    /// in any order.
    fn settle(&mut self, request_id: i32) -> Box<[u8]> {
        let position = self.waiting.iter().position(|waiting| waiting.request_id == request_id);
        let settled = position.and_then(|position| self.waiting.remove(position));
        settled.map_or_else(Box::default, |settled| settled.handle)
    }

    fn cut_http(
        &mut self,
        context: &ConnectionContext,
        is_over: bool,
        statuses: &mut BTreeMap<u16, u64>,
    ) -> CutOutcome {
        let (answer, used, closes) = match http::parse(&self.input, is_over) {
            http::ParsedAnswer::Partial => return CutOutcome::Partial,
            http::ParsedAnswer::Broken => return CutOutcome::Unreadable,
            http::ParsedAnswer::Whole { body, status, location, used, closes } => {
                (HttpAnswer { status, location, body }, used, closes)
            }
        };
        let Some(waiting) = self.waiting.front() else {
            // An unsolicited answer, as some servers send before they close an idle connection.
            return CutOutcome::Unreadable;
        };
        *statuses.entry(answer.status).or_default() += 1;
        let bytes = answer.into_message(context, waiting.request_id, &waiting.handle);
        CutOutcome::Answer { bytes: bytes.unwrap_or_else(|| unreadable(waiting.request_id)), used, closes }
    }
}

impl HttpAnswer {
    /// Returns the message that the answer contains or is equivalent to.
    fn into_message(self, context: &ConnectionContext, request_id: i32, handle: &[u8]) -> Option<Vec<u8>> {
        match context.streams.protocol {
            Protocol::Json => json::message(&self.body, request_id, context.with_values),
            Protocol::Redirect => {
                redirect::message(self.status, self.location.as_deref(), handle, request_id)
            }
            Protocol::Http | Protocol::Tcp if self.status == 200 => message_in(self.body),
            Protocol::Http | Protocol::Tcp => None,
        }
    }
}

/// The id of a message; 0, which no request has, if it is too short for one.
fn id_of(message: &[u8]) -> i32 {
    message.first_chunk().map_or(0, |head| Envelope::from_bytes(head).request_id)
}

enum CutOutcome {
    Partial,
    /// How many bytes of the input it used, and whether the server closes after it.
    Answer {
        bytes: Vec<u8>,
        used: usize,
        closes: bool,
    },
    Unreadable,
}

/// Cuts off the first message. A message whose end is missing at the end of the stream counts as
/// truncated.
fn cut_message(input: &mut [u8], is_over: bool) -> CutOutcome {
    // Also one whose length exceeds the limit.
    let Some((head, rest)) = input.split_first_chunk() else {
        return if is_over { CutOutcome::Unreadable } else { CutOutcome::Partial };
    };
    let envelope = Envelope::from_bytes(head);
    let (len, is_whole) = (envelope.message_len as usize, rest.len() >= envelope.message_len as usize);
    if !is_whole && !is_over && envelope.message_len <= MESSAGE_LEN_MAX {
        return CutOutcome::Partial;
    }
    let used = input.len().min(Envelope::LEN.saturating_add(len));
    // Deployed servers echo this bit, which has a meaning over UDP only.
    input[2] &= !EnvelopeFlags::TRUNCATED.0;
    CutOutcome::Answer { bytes: input[..used].to_vec(), used, closes: !is_whole }
}

/// The message in the body of an HTTP answer, which may follow a line end.
fn message_in(mut body: Vec<u8>) -> Option<Vec<u8>> {
    if body.first().is_some_and(|byte| matches!(byte, b'\r' | b'\n')) {
        body.remove(0);
    }
    Envelope::split(&body).ok()?;
    body[2] &= !EnvelopeFlags::TRUNCATED.0;
    Some(body)
}

/// An undecodable answer to `request_id`, for bytes that are not a message.
fn unreadable(request_id: i32) -> Vec<u8> {
    let envelope = Envelope { message_len: 1, ..Envelope::request(request_id) };
    [&envelope.to_bytes()[..], &[0]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: i32, len: u32) -> Vec<u8> {
        let envelope =
            Envelope { message_len: len, flags: EnvelopeFlags::TRUNCATED, ..Envelope::request(id) };
        [&envelope.to_bytes()[..], &vec![7; len as usize]].concat()
    }

    #[test]
    fn messages_are_cut_wherever_the_bytes_end() {
        let whole = [message(1, 30), message(2, 0)].concat();
        for len in 0..50 {
            assert!(matches!(cut_message(&mut whole[..len].to_vec(), false), CutOutcome::Partial), "{len}");
        }
        let CutOutcome::Answer { bytes, used, closes } = cut_message(&mut whole.clone(), false) else {
            panic!("whole")
        };
        assert_eq!((bytes.len(), used, closes, bytes[2] & 0x20), (50, 50, false, 0));
    }

    #[test]
    fn a_truncated_message_is_returned_as_received() {
        let mut part = message(1, 30);
        part.truncate(40);
        let CutOutcome::Answer { used, closes, .. } = cut_message(&mut part, true) else {
            panic!("not cut up to the end of the stream")
        };
        assert_eq!((used, closes), (40, true));
        let mut huge = message(1, 0);
        huge[16] = 0x7f;
        let CutOutcome::Answer { closes, .. } = cut_message(&mut huge, false) else {
            panic!("waits for a message that is too long")
        };
        assert!(closes);
    }

    #[test]
    fn http_bodies_hold_messages() {
        assert_eq!(message_in([b"\n".to_vec(), message(1, 3)].concat()).unwrap().len(), 23);
        assert_eq!(message_in(b"<html>".to_vec()), None);
        let (envelope, rest) = (unreadable(5), 1);
        assert_eq!(envelope.len(), Envelope::LEN + rest);
    }
}
