//! Changes of many records, as frames between `handle-gateway` and `handle-admin` over a local
//! socket.
//!
//! A connection serves one caller. Its first frame names the caller ([`BulkBegin`]) and is
//! challenged; the next one has the proof, made with the caller's own key and covering the nonce of
//! `handle-admin` and the first frame ([`covered`]). After that each frame has changes as requests
//! of the handle protocol, each with a number, and each is answered by one frame of results. Frames
//! may be sent before earlier ones are answered.
//!
//! Instead of changes, a frame may have a search for handles ([`BulkSearch`]). It may also be the
//! first frame of a connection without a caller, if everybody may search.
//!
//! A frame is a four-byte length, a byte for its kind, and its fields; numbers are big-endian.

use handle_auth::Digest;
use handle_auth::challenge::request_digest;
use handle_proto::limit::{HANDLE_LEN_MAX, MESSAGE_LEN_MAX, NONCE_LEN};
use handle_proto::wire::admin::StorePosition;
use handle_proto::wire::list::Reference;
use handle_proto::wire::{Envelope, put};
use handle_proto::{ResponseCode, Version};
use std::net::{IpAddr, Ipv6Addr};

/// Maximum bytes of a change: a message with its envelope.
pub const CHANGE_LEN_MAX: usize = Envelope::LEN + MESSAGE_LEN_MAX as usize;
/// Length of changes at which no further change is added to a frame.
pub const FRAME_LEN: usize = 512 << 10;
/// Changes in a frame.
pub const FRAME_CHANGES_MAX: usize = 1024;
/// Maximum length of a frame with changes.
pub const FRAME_LEN_MAX: usize = FRAME_LEN + CHANGE_LEN_MAX + 16;
/// Maximum length of a frame before the caller is authenticated.
pub const BEGIN_LEN_MAX: usize = HANDLE_LEN_MAX + KEY_LEN_MAX + 2048;
/// Maximum length of a frame with a search.
pub const SEARCH_LEN_MAX: usize = 128 << 10;
/// Maximum bytes of the name of a key.
pub const KEY_LEN_MAX: usize = 255;
/// Maximum bytes of the text of a result.
pub const TEXT_LEN_MAX: usize = 512;
/// Maximum length of a frame of results.
pub const RESULTS_LEN_MAX: usize = FRAME_CHANGES_MAX * (TEXT_LEN_MAX + 16) + 16;

/// Distinguishes these proofs from those for requests of the handle protocol.
const CONTEXT: &[u8] = b"handle-admin bulk 1\0";

/// A key under which a request may be repeated without being carried out twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkKey<'a> {
    /// The name that the client has chosen.
    pub name: &'a [u8],
    /// SHA-256 of the body of the request.
    pub digest: [u8; 32],
}

/// The first frame of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkBegin<'a> {
    /// The identity of the caller.
    pub identity: Reference<'a>,
    /// Address of the caller.
    pub source: IpAddr,
    /// The key of the request, if it has one.
    pub key: Option<BulkKey<'a>>,
}

/// A change and the number of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkChange<'a> {
    /// The number, higher than those of all changes before it.
    pub number: u32,
    /// A request of the handle protocol, envelope first.
    pub message: &'a [u8],
}

/// A search for handles by the public values of their records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkSearch<'a> {
    /// Address of the caller.
    pub source: IpAddr,
    /// Only handles with this prefix; empty for all.
    pub prefix: &'a [u8],
    /// Where an earlier answer ended; empty at the beginning.
    pub after: &'a [u8],
    /// Maximum number of handles in the answer.
    pub handles: u32,
    /// Types, and the patterns of their values, of which a record has to have all.
    pub conditions: Vec<(&'a [u8], &'a [u8])>,
}

/// A frame to `handle-admin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BulkRequest<'a> {
    /// Names the caller.
    Begin(BulkBegin<'a>),
    /// Proves the caller.
    Proof {
        /// The type of the key, as in a native answer to a challenge.
        auth_type: &'a [u8],
        /// The MAC or signature of [`covered`].
        signed_response: &'a [u8],
    },
    /// Changes to carry out.
    Changes(Vec<BulkChange<'a>>),
    /// Find handles.
    Search(BulkSearch<'a>),
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkResult {
    /// The number of the change.
    pub number: u32,
    /// The response code.
    pub code: ResponseCode,
    /// The text of a refusal; may be empty.
    pub text: String,
}

/// A frame from `handle-admin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BulkReply<'a> {
    /// The nonce of a challenge.
    Challenge([u8; NONCE_LEN]),
    /// The caller is authenticated.
    Accepted,
    /// The key belongs to a request with another body.
    OtherBody,
    /// The connection ends.
    Refused(ResponseCode, &'a [u8]),
    /// A state of the store that includes the changes of one frame, and their results.
    Results(StorePosition, Vec<BulkResult>),
    /// Handles that were found, and where the next ones begin; empty if there are no others.
    Found(Vec<&'a [u8]>, &'a [u8]),
}

/// The bytes that a proof covers beside the nonce: a digest of the first frame, without its length.
#[must_use]
pub fn covered(begin: &[u8]) -> Digest {
    request_digest(Version::CURRENT, &[CONTEXT, begin].concat())
}

mod kind {
    pub(super) const BEGIN: u8 = 1;
    pub(super) const PROOF: u8 = 2;
    pub(super) const CHANGES: u8 = 3;
    pub(super) const CHALLENGE: u8 = 4;
    pub(super) const ACCEPTED: u8 = 5;
    pub(super) const OTHER_BODY: u8 = 6;
    pub(super) const REFUSED: u8 = 7;
    pub(super) const RESULTS: u8 = 8;
    pub(super) const SEARCH: u8 = 9;
    pub(super) const FOUND: u8 = 10;
}

/// Appends a frame with its length; `encode` appends its kind and fields.
pub fn put_frame(out: &mut Vec<u8>, encode: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    encode(out);
    let len = u32::try_from(out.len() - at - 4).expect("a frame has few bytes");
    out[at..at + 4].copy_from_slice(&len.to_be_bytes());
}

impl BulkRequest<'_> {
    /// Appends the frame without its length.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Begin(begin) => {
                out.push(kind::BEGIN);
                out.extend_from_slice(&begin.identity.index.to_be_bytes());
                put::string(out, begin.identity.handle);
                put_source(out, begin.source);
                if let Some(key) = &begin.key {
                    put::string(out, key.name);
                    out.extend_from_slice(&key.digest);
                }
            }
            Self::Proof { auth_type, signed_response } => {
                out.push(kind::PROOF);
                put::string(out, auth_type);
                put::string(out, signed_response);
            }
            Self::Changes(changes) => {
                out.push(kind::CHANGES);
                for change in changes {
                    out.extend_from_slice(&change.number.to_be_bytes());
                    put::string(out, change.message);
                }
            }
            Self::Search(search) => {
                out.push(kind::SEARCH);
                put_source(out, search.source);
                put::string(out, search.prefix);
                put::string(out, search.after);
                out.extend_from_slice(&search.handles.to_be_bytes());
                for (kind, pattern) in &search.conditions {
                    put::string(out, kind);
                    put::string(out, pattern);
                }
            }
        }
    }
}

fn put_source(out: &mut Vec<u8>, source: IpAddr) {
    let source = match source {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    out.extend_from_slice(&source.octets());
}

impl<'a> BulkRequest<'a> {
    /// Decodes a frame without its length; `None` if it is malformed.
    #[must_use]
    pub fn decode(frame: &'a [u8]) -> Option<Self> {
        let mut fields = BulkFields(frame);
        let request = match fields.byte()? {
            kind::BEGIN => {
                let index = fields.number()?.cast_signed();
                let identity = Reference { handle: fields.string()?, index };
                let source = fields.source()?;
                let key = match fields.0 {
                    [] => None,
                    _ => Some(BulkKey { name: fields.string()?, digest: *fields.array()? }),
                };
                Self::Begin(BulkBegin { identity, source, key })
            }
            kind::PROOF => Self::Proof { auth_type: fields.string()?, signed_response: fields.string()? },
            kind::CHANGES => {
                let mut changes = Vec::new();
                while !fields.0.is_empty() {
                    changes.push(BulkChange { number: fields.number()?, message: fields.string()? });
                }
                Self::Changes(changes)
            }
            kind::SEARCH => {
                let (source, prefix, after) = (fields.source()?, fields.string()?, fields.string()?);
                let (handles, mut conditions) = (fields.number()?, Vec::new());
                while !fields.0.is_empty() {
                    conditions.push((fields.string()?, fields.string()?));
                }
                Self::Search(BulkSearch { source, prefix, after, handles, conditions })
            }
            _ => return None,
        };
        fields.0.is_empty().then_some(request)
    }
}

impl BulkResult {
    /// Appends the result.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.number.to_be_bytes());
        out.extend_from_slice(&self.code.0.to_be_bytes());
        put::string(out, self.text.as_bytes());
    }

    /// Decodes results that follow one another; `None` if they are malformed.
    #[must_use]
    pub fn decode_all(bytes: &[u8]) -> Option<Vec<Self>> {
        let mut fields = BulkFields(bytes);
        let mut results = Vec::new();
        while !fields.0.is_empty() {
            let (number, code) = (fields.number()?, ResponseCode(fields.number()?.cast_signed()));
            let text = String::from_utf8_lossy(fields.string()?).into_owned();
            results.push(Self { number, code, text });
        }
        Some(results)
    }
}

impl BulkReply<'_> {
    /// Appends the frame without its length.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Challenge(nonce) => {
                out.push(kind::CHALLENGE);
                out.extend_from_slice(nonce);
            }
            Self::Accepted => out.push(kind::ACCEPTED),
            Self::OtherBody => out.push(kind::OTHER_BODY),
            Self::Refused(code, text) => {
                out.push(kind::REFUSED);
                out.extend_from_slice(&code.0.to_be_bytes());
                out.extend_from_slice(text);
            }
            Self::Results(position, results) => {
                out.push(kind::RESULTS);
                position.encode(out);
                results.iter().for_each(|result| result.encode(out));
            }
            Self::Found(handles, next) => {
                out.push(kind::FOUND);
                put::string(out, next);
                handles.iter().for_each(|handle| put::string(out, handle));
            }
        }
    }
}

impl<'a> BulkReply<'a> {
    /// Decodes a frame without its length; `None` if it is malformed.
    #[must_use]
    pub fn decode(frame: &'a [u8]) -> Option<Self> {
        let mut fields = BulkFields(frame);
        match fields.byte()? {
            kind::CHALLENGE => {
                let nonce = *fields.array()?;
                fields.0.is_empty().then_some(Self::Challenge(nonce))
            }
            kind::ACCEPTED => fields.0.is_empty().then_some(Self::Accepted),
            kind::OTHER_BODY => fields.0.is_empty().then_some(Self::OtherBody),
            kind::REFUSED => Some(Self::Refused(ResponseCode(fields.number()?.cast_signed()), fields.0)),
            kind::RESULTS => {
                let (store, transaction) = (fields.long()?, fields.long()?);
                let position = StorePosition { store, transaction };
                BulkResult::decode_all(fields.0).map(|results| Self::Results(position, results))
            }
            kind::FOUND => {
                let (next, mut handles) = (fields.string()?, Vec::new());
                while !fields.0.is_empty() {
                    handles.push(fields.string()?);
                }
                Some(Self::Found(handles, next))
            }
            _ => None,
        }
    }
}

/// The remaining fields of a frame.
struct BulkFields<'a>(&'a [u8]);

impl<'a> BulkFields<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn array<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(array)
    }

    fn number(&mut self) -> Option<u32> {
        self.array().copied().map(u32::from_be_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.array().copied().map(u64::from_be_bytes)
    }

    fn source(&mut self) -> Option<IpAddr> {
        self.array::<16>().map(|octets| IpAddr::V6(Ipv6Addr::from(*octets)).to_canonical())
    }

    fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.number()? as usize;
        let (string, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(string)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests() -> Vec<BulkRequest<'static>> {
        let begin = BulkBegin {
            identity: Reference { handle: b"0.NA/1", index: 300 },
            source: [192, 0, 2, 1].into(),
            key: None,
        };
        let key = Some(BulkKey { name: b"key", digest: [7; 32] });
        vec![
            BulkRequest::Begin(begin),
            BulkRequest::Begin(BulkBegin { key, ..begin }),
            BulkRequest::Proof { auth_type: b"HS_SECKEY", signed_response: b"x" },
            BulkRequest::Changes(vec![]),
            BulkRequest::Changes(vec![
                BulkChange { number: 1, message: b"" },
                BulkChange { number: 7, message: b"abc" },
            ]),
            BulkRequest::Search(BulkSearch {
                source: [192, 0, 2, 1].into(),
                prefix: b"10.1",
                after: b"",
                handles: 7,
                conditions: vec![(b"URL", b"http://*"), (b"CHECKSUM", b"")],
            }),
        ]
    }

    fn replies() -> Vec<BulkReply<'static>> {
        let result =
            |number, text: &str| BulkResult { number, code: ResponseCode::SUCCESS, text: text.to_owned() };
        vec![
            BulkReply::Challenge([1; NONCE_LEN]),
            BulkReply::Accepted,
            BulkReply::OtherBody,
            BulkReply::Refused(ResponseCode::INVALID_ADMIN, b"no"),
            BulkReply::Results(StorePosition { store: 7, transaction: 9 }, vec![]),
            BulkReply::Results(
                StorePosition { store: u64::MAX, transaction: 0 },
                vec![result(1, ""), result(9, "text")],
            ),
            BulkReply::Found(vec![b"10.1/a", b""], b"next"),
            BulkReply::Found(vec![], b""),
        ]
    }

    #[test]
    fn frames_round_trip_and_every_cut_one_is_refused_or_shorter() {
        for request in requests() {
            let mut frame = Vec::new();
            request.encode(&mut frame);
            assert_eq!(BulkRequest::decode(&frame), Some(request.clone()));
            for len in 0..frame.len() {
                assert_ne!(BulkRequest::decode(&frame[..len]), Some(request.clone()), "{len} of {request:?}");
            }
        }
        for reply in replies() {
            let mut frame = Vec::new();
            reply.encode(&mut frame);
            assert_eq!(BulkReply::decode(&frame), Some(reply.clone()));
            for len in 0..frame.len() {
                assert_ne!(BulkReply::decode(&frame[..len]), Some(reply.clone()), "{len} of {reply:?}");
            }
        }
    }

    #[test]
    fn a_frame_has_its_length_in_front() {
        let mut out = vec![9];
        put_frame(&mut out, |out| out.extend_from_slice(b"abc"));
        assert_eq!(out, [9, 0, 0, 0, 3, b'a', b'b', b'c']);
    }

    #[test]
    fn a_proof_covers_the_whole_first_frame() {
        let mut frame = Vec::new();
        requests()[1].encode(&mut frame);
        let whole = covered(&frame);
        for at in 0..frame.len() {
            frame[at] ^= 1;
            assert_ne!(covered(&frame)[..], whole[..], "byte {at}");
            frame[at] ^= 1;
        }
    }
}
