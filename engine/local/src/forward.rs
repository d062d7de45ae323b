//! Requests that `handled` forwards.
//!
//! `handled` sends a request and reads its answer. For a listing it requests part after part until
//! the last, or closes the connection. Messages that were encrypted are in the clear here, so each
//! side checks the user of the other.

use crate::fields::{address, put_address};
use handle_auth::challenges::IssuedChallenge;
use handle_proto::error::Field;
use handle_proto::limit::MESSAGE_LEN_MAX;
use handle_proto::wire::Envelope;
use handle_proto::wire::cursor::Cursor;
use std::net::SocketAddr;

/// Maximum length of a frame to `handle-admin`: a request, and the request that was challenged
/// before.
pub const REQUEST_LEN_MAX: usize = 2 * (Envelope::LEN + MESSAGE_LEN_MAX as usize) + 256;
/// Maximum length of a frame from `handle-admin`: some pages of a listing, or the longest message.
pub const ANSWER_LEN_MAX: usize = PART_LEN + Envelope::LEN + MESSAGE_LEN_MAX as usize + 64;
/// Length in bytes from which on no further page is added to a part of a listing.
pub const PART_LEN: usize = 64 << 10;

/// What `handle-admin` does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Answer the request as if it had come directly from its client.
    Answer,
    /// If the answer is a referral, follow it and answer with what that service says.
    Resolve,
}

/// How far `handled` has opened a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedForm {
    /// The message is as received: in no session, or in one that `handled` does not hold.
    AsReceived,
    /// The message is in a session of `handled`, and decrypted.
    InSession {
        /// Whether the message was encrypted.
        was_hidden: bool,
        /// Whether the message had a MAC that was valid and not replayed.
        has_mac: bool,
    },
}

/// A request with what `handled` knows about it.
#[derive(Clone, Debug)]
pub struct ForwardedRequest<'a> {
    /// What to do with the request.
    pub task: Task,
    /// Address of the client.
    pub source: SocketAddr,
    /// Maximum number of datagrams of an answer over UDP; `None` over TCP.
    pub datagrams_max: Option<u16>,
    /// How far `handled` has opened the message.
    pub opening: ForwardedForm,
    /// The challenge that the request answers, if `handled` has issued and taken it.
    pub challenge: Option<IssuedChallenge>,
    /// The message, envelope first.
    pub message: &'a [u8],
}

/// A frame from `handled`.
#[derive(Clone, Debug)]
pub enum ForwardFrame<'a> {
    /// A request.
    Request(Box<ForwardedRequest<'a>>),
    /// Requests the next part of the current listing.
    Next,
}

/// A frame from `handle-admin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedAnswer<'a> {
    /// The last messages, concatenated; empty when there is no answer.
    Last(&'a [u8]),
    /// Messages, concatenated; more follow on [`ForwardFrame::Next`].
    Part(&'a [u8]),
}

impl Task {
    const ANSWER: u8 = 1;
    const RESOLVE: u8 = 2;
    const NEXT: u8 = 3;
}

impl ForwardedForm {
    const KNOWN: u8 = 1;
    const HIDDEN: u8 = 2;
    const MAC: u8 = 4;

    const fn bits(self) -> u8 {
        match self {
            Self::AsReceived => 0,
            Self::InSession { was_hidden, has_mac } => {
                Self::KNOWN | (Self::HIDDEN * was_hidden as u8) | (Self::MAC * has_mac as u8)
            }
        }
    }

    const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::AsReceived),
            _ if bits & Self::KNOWN == 0 || bits > Self::KNOWN | Self::HIDDEN | Self::MAC => None,
            _ => {
                Some(Self::InSession { was_hidden: bits & Self::HIDDEN != 0, has_mac: bits & Self::MAC != 0 })
            }
        }
    }
}

impl ForwardedRequest<'_> {
    /// Approximate length of the frame in bytes.
    #[must_use]
    pub fn expected_len(&self) -> usize {
        128 + self.message.len() + self.challenge.as_ref().map_or(0, |it| it.request.len())
    }

    /// Appends the frame without its header.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(match self.task {
            Task::Answer => Task::ANSWER,
            Task::Resolve => Task::RESOLVE,
        });
        out.push(self.opening.bits());
        put_address(out, self.source.ip());
        out.extend_from_slice(&self.source.port().to_be_bytes());
        out.extend_from_slice(&self.datagrams_max.unwrap_or(0).to_be_bytes());
        let len_at = out.len();
        out.extend_from_slice(&[0; 4]);
        if let Some(challenge) = &self.challenge {
            challenge.encode(out);
        }
        let len = u32::try_from(out.len() - len_at - 4).expect("a challenge is no longer than a message");
        out[len_at..len_at + 4].copy_from_slice(&len.to_be_bytes());
        out.extend_from_slice(self.message);
    }

    fn decode(task: Task, rest: &[u8]) -> Option<ForwardedRequest<'_>> {
        let mut cursor = Cursor::new(rest);
        let opening = ForwardedForm::from_bits(cursor.u8(Field::Answer).ok()?)?;
        let ip = address(&mut cursor)?;
        let source = SocketAddr::new(ip, cursor.u16(Field::Answer).ok()?);
        let datagrams_max = Some(cursor.u16(Field::Answer).ok()?).filter(|&most| most > 0);
        let challenge = match cursor.string(Field::Answer).ok()? {
            [] => None,
            bytes => Some(IssuedChallenge::decode(bytes)?),
        };
        Some(ForwardedRequest { task, source, datagrams_max, opening, challenge, message: cursor.rest() })
    }
}

impl<'a> ForwardFrame<'a> {
    /// Appends the frame that requests the next part of a listing, without its header.
    pub fn encode_next(out: &mut Vec<u8>) {
        out.push(Task::NEXT);
    }

    /// Decodes a frame without its header; `None` when it is invalid.
    #[must_use]
    pub fn decode(frame: &'a [u8]) -> Option<Self> {
        let (&what, rest) = frame.split_first()?;
        let task = match what {
            Task::ANSWER => Task::Answer,
            Task::RESOLVE => Task::Resolve,
            Task::NEXT => return rest.is_empty().then_some(Self::Next),
            _ => return None,
        };
        ForwardedRequest::decode(task, rest).map(|request| Self::Request(Box::new(request)))
    }
}

impl<'a> ForwardedAnswer<'a> {
    const LAST: u8 = 1;
    const PART: u8 = 2;

    /// Appends the frame without its header.
    pub fn encode(self, out: &mut Vec<u8>) {
        let (what, messages) = match self {
            Self::Last(messages) => (Self::LAST, messages),
            Self::Part(messages) => (Self::PART, messages),
        };
        out.push(what);
        out.extend_from_slice(messages);
    }

    /// Decodes a frame without its header; `None` when it is invalid.
    #[must_use]
    pub fn decode(frame: &'a [u8]) -> Option<Self> {
        match frame.split_first()? {
            (&Self::LAST, messages) => Some(Self::Last(messages)),
            (&Self::PART, messages) => Some(Self::Part(messages)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_auth::digest::Digest;
    use handle_proto::Version;
    use zeroize::Zeroizing;

    fn requests() -> Vec<ForwardedRequest<'static>> {
        let challenge = IssuedChallenge {
            version: Version::new(2, 7),
            suggested: Version::CURRENT,
            nonce: [3; 16],
            digest: Digest::from_bytes(&[4; 32]),
            request: Zeroizing::new(Box::from(&b"a request"[..])),
        };
        let plain = ForwardedRequest {
            task: Task::Answer,
            source: ([192, 0, 2, 1], 4711).into(),
            datagrams_max: None,
            opening: ForwardedForm::AsReceived,
            challenge: None,
            message: b"a message",
        };
        let opening = ForwardedForm::InSession { was_hidden: true, has_mac: false };
        let source = ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 1).into();
        let (task, challenge) = (Task::Resolve, Some(challenge));
        vec![
            ForwardedRequest { task, source, datagrams_max: Some(4), opening, challenge, message: b"" },
            ForwardedRequest {
                opening: ForwardedForm::InSession { was_hidden: false, has_mac: true },
                ..plain.clone()
            },
            plain,
        ]
    }

    fn encoded(request: &ForwardedRequest<'_>) -> Vec<u8> {
        let mut frame = Vec::new();
        request.encode(&mut frame);
        assert!(frame.len() <= request.expected_len());
        frame
    }

    #[test]
    fn every_frame_decodes_to_what_encodes_to_it() {
        for request in requests() {
            let frame = encoded(&request);
            let Some(ForwardFrame::Request(decoded)) = ForwardFrame::decode(&frame) else {
                panic!("{request:?}")
            };
            assert_eq!(format!("{decoded:?}"), format!("{request:?}"));
            assert_eq!(encoded(&decoded), frame);
        }
        let mut next = Vec::new();
        ForwardFrame::encode_next(&mut next);
        assert!(matches!(ForwardFrame::decode(&next), Some(ForwardFrame::Next)));
        for answer in [ForwardedAnswer::Last(b""), ForwardedAnswer::Part(b"two pages")] {
            let mut frame = Vec::new();
            answer.encode(&mut frame);
            assert_eq!(ForwardedAnswer::decode(&frame), Some(answer));
        }
    }

    #[test]
    fn what_is_cut_or_made_up_is_no_frame() {
        for request in requests() {
            let (frame, fixed_len) = (encoded(&request), encoded(&request).len() - request.message.len());
            for len in 0..fixed_len {
                assert!(ForwardFrame::decode(&frame[..len]).is_none(), "{request:?} cut to {len}");
            }
        }
        for bits in 0..=u8::MAX {
            let is_known = bits == 0 || bits % 2 == 1 && bits < 8;
            assert_eq!(ForwardedForm::from_bits(bits).is_some(), is_known, "{bits}");
        }
        for frame in [&b""[..], b"\x00", b"\x04", b"\x03more"] {
            assert!(ForwardFrame::decode(frame).is_none(), "{frame:?}");
        }
        assert!(ForwardedAnswer::decode(b"").is_none() && ForwardedAnswer::decode(b"\x03").is_none());
        // A challenge with a false length.
        let mut frame = encoded(&requests()[2]);
        frame[22..26].fill(0xff);
        assert!(ForwardFrame::decode(&frame).is_none());
    }
}
