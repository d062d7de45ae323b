//! Changes of many records, and searches.
//!
//! A connection serves one caller. Its first frame names the caller ([`BulkBegin`]) and is
//! challenged; the next one has the proof, made with the caller's own key and covering the nonce of
//! `handle-admin` and the first frame ([`covered`]). After that each frame has changes as requests
//! of the handle protocol, each with a number, and each is answered by one frame of results. Frames
//! may be sent before earlier ones are answered.
//!
//! Instead of changes, a frame may have a search for handles ([`BulkSearch`]). It may also be the
//! first frame of a connection without a caller, if everybody may search.

use crate::fields::{address, put_address};
use handle_auth::Digest;
use handle_auth::challenge::request_digest;
use handle_proto::error::Field;
use handle_proto::limit::{HANDLE_LEN_MAX, MESSAGE_LEN_MAX, NONCE_LEN};
use handle_proto::wire::admin::StorePosition;
pub use handle_proto::wire::bulk::{BulkKey, BulkResult};
use handle_proto::wire::cursor::Cursor;
use handle_proto::wire::list::Reference;
use handle_proto::wire::{Envelope, put};
use handle_proto::{ResponseCode, Version};
use std::net::IpAddr;

/// Maximum bytes of a change: a message with its envelope.
pub const CHANGE_LEN_MAX: usize = Envelope::LEN + MESSAGE_LEN_MAX as usize;
/// Length of changes at which no further change is added to a frame.
pub const FRAME_LEN: usize = 512 << 10;
/// Changes in a frame.
pub const FRAME_CHANGES_MAX: usize = 1024;
/// Bytes before each change of a frame: its number and its length.
pub const CHANGE_HEADER_LEN: usize = 8;
/// Maximum length of a frame with changes, the longest of all to `handle-admin`.
pub const REQUEST_LEN_MAX: usize = 1 + FRAME_LEN + CHANGE_LEN_MAX + FRAME_CHANGES_MAX * CHANGE_HEADER_LEN;
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

/// The field that errors name; it is not read.
const FIELD: Field = Field::Answer;
/// Distinguishes these proofs from those for requests of the handle protocol.
const CONTEXT: &[u8] = b"handle-admin bulk 1\0";

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

/// The bytes that a proof covers beside the nonce: a digest of the first frame, without its header.
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

impl BulkRequest<'_> {
    /// Appends the frame without its header.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Begin(begin) => {
                out.push(kind::BEGIN);
                out.extend_from_slice(&begin.identity.index.to_be_bytes());
                put::string(out, begin.identity.handle);
                put_address(out, begin.source);
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
                put_address(out, search.source);
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

impl<'a> BulkRequest<'a> {
    /// Decodes a frame without its header; `None` if it is malformed.
    #[must_use]
    pub fn decode(frame: &'a [u8]) -> Option<Self> {
        let mut fields = Cursor::new(frame);
        let request = match fields.u8(FIELD).ok()? {
            kind::BEGIN => {
                let index = fields.i32(FIELD).ok()?;
                let identity = Reference { handle: fields.string(FIELD).ok()?, index };
                let source = address(&mut fields)?;
                let key = match fields.rest() {
                    [] => None,
                    _ => {
                        Some(BulkKey { name: fields.string(FIELD).ok()?, digest: *fields.array(FIELD).ok()? })
                    }
                };
                Self::Begin(BulkBegin { identity, source, key })
            }
            kind::PROOF => Self::Proof {
                auth_type: fields.string(FIELD).ok()?,
                signed_response: fields.string(FIELD).ok()?,
            },
            kind::CHANGES => {
                let mut changes = Vec::new();
                while !fields.rest().is_empty() {
                    changes.push(BulkChange {
                        number: fields.u32(FIELD).ok()?,
                        message: fields.string(FIELD).ok()?,
                    });
                }
                Self::Changes(changes)
            }
            kind::SEARCH => {
                let (source, prefix, after) =
                    (address(&mut fields)?, fields.string(FIELD).ok()?, fields.string(FIELD).ok()?);
                let (handles, mut conditions) = (fields.u32(FIELD).ok()?, Vec::new());
                while !fields.rest().is_empty() {
                    conditions.push((fields.string(FIELD).ok()?, fields.string(FIELD).ok()?));
                }
                Self::Search(BulkSearch { source, prefix, after, handles, conditions })
            }
            _ => return None,
        };
        fields.rest().is_empty().then_some(request)
    }
}

impl BulkReply<'_> {
    /// Appends the frame without its header.
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
    /// Decodes a frame without its header; `None` if it is malformed.
    #[must_use]
    pub fn decode(frame: &'a [u8]) -> Option<Self> {
        let mut fields = Cursor::new(frame);
        match fields.u8(FIELD).ok()? {
            kind::CHALLENGE => {
                let nonce = *fields.array(FIELD).ok()?;
                fields.rest().is_empty().then_some(Self::Challenge(nonce))
            }
            kind::ACCEPTED => fields.rest().is_empty().then_some(Self::Accepted),
            kind::OTHER_BODY => fields.rest().is_empty().then_some(Self::OtherBody),
            kind::REFUSED => Some(Self::Refused(ResponseCode(fields.i32(FIELD).ok()?), fields.rest())),
            kind::RESULTS => {
                let position = StorePosition::decode(&mut fields).ok()?;
                BulkResult::decode_all(fields.rest()).map(|results| Self::Results(position, results))
            }
            kind::FOUND => {
                let (next, mut handles) = (fields.string(FIELD).ok()?, Vec::new());
                while !fields.rest().is_empty() {
                    handles.push(fields.string(FIELD).ok()?);
                }
                Some(Self::Found(handles, next))
            }
            _ => None,
        }
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
