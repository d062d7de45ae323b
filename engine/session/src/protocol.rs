//! The protocol by which two processes share a session table: frames over a local socket.
//!
//! A frame is a four-byte length of what follows, a byte for its kind, and its fields; numbers are
//! big-endian. One side sends requests, and the other side replies in order. Frames contain keys,
//! so only one user may have access to the socket.

use crate::facts::SessionRefusal;
use crate::facts::{IdentityClaim, NewSession, SessionIdentity};
use crate::fields::{key, number, put_key};
use handle_auth::challenges::IssuedChallenge;
use handle_auth::session::SessionKey;
use handle_auth::source::RequestOrigin;
use handle_proto::Version;
use handle_proto::limit::{HANDLE_LEN_MAX, MESSAGE_LEN_MAX};
use handle_proto::wire::Envelope;
use handle_proto::wire::list::Reference;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr};
use zeroize::Zeroizing;

/// Maximum length of a request without its length field: the longest handle and the other fields.
pub const ASK_LEN_MAX: usize = HANDLE_LEN_MAX + 128;
/// Maximum length of a reply: the longest challenged request and the other fields.
pub const FACTS_LEN_MAX: usize = Envelope::LEN + MESSAGE_LEN_MAX as usize + 128;
/// Length that nearly every frame fits in.
const USUAL_LEN: usize = ASK_LEN_MAX;

/// A request to the process that holds the table.
#[derive(Clone, Debug)]
pub enum LinkRequest<'a> {
    /// Facts about a session.
    Find(i32),
    /// Asks whether a message with this counter may be accepted.
    Accept {
        /// The session.
        id: i32,
        /// The counter of a message whose MAC is valid.
        counter: i32,
    },
    /// Asks for the counter of the next outgoing message.
    Next(i32),
    /// Reports that the client of a session has been authenticated.
    Authenticate {
        /// The session.
        id: i32,
        /// The identity that the client claimed.
        claimed: Reference<'a>,
        /// The index of the value with the key that was used.
        index: i32,
    },
    /// Adds a new session.
    Open(NewSession),
    /// Ends a session.
    End(i32),
    /// Takes the challenge with this number. A challenge can be taken only once.
    TakeChallenge(i32),
}

/// A reply from the process that holds the table.
#[derive(Clone, Debug)]
pub enum LinkReply {
    /// Yes, or done.
    Yes,
    /// No, or there is no such session.
    No,
    /// The session was not added, for this reason.
    Refused(SessionRefusal),
    /// The counter of a message, or the number of a new session.
    Number(i32),
    /// Facts about a session.
    Session(SessionFacts),
    /// A challenge.
    Challenge(IssuedChallenge),
    /// The challenge existed, but has been answered or has expired.
    Over,
}

/// Facts about a session.
#[derive(Clone, Debug)]
pub struct SessionFacts {
    /// The key of the session.
    pub key: SessionKey,
    /// The protocol version of the session.
    pub version: Version,
    /// The authenticated identity of the client.
    pub identity: Option<SessionIdentity>,
}

impl<'a> LinkRequest<'a> {
    const FIND: u8 = 1;
    const ACCEPT: u8 = 2;
    const NEXT: u8 = 3;
    const AUTHENTICATE: u8 = 4;
    const OPEN: u8 = 5;
    const END: u8 = 6;
    const TAKE_CHALLENGE: u8 = 7;

    /// Appends the frame without its length.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Find(id) => put_numbers(out, Self::FIND, &[*id]),
            Self::Accept { id, counter } => put_numbers(out, Self::ACCEPT, &[*id, *counter]),
            Self::Next(id) => put_numbers(out, Self::NEXT, &[*id]),
            Self::Authenticate { id, claimed, index } => {
                put_numbers(out, Self::AUTHENTICATE, &[*id, *index, claimed.index]);
                out.extend_from_slice(claimed.handle);
            }
            Self::Open(new) => {
                out.push(Self::OPEN);
                put_key(out, &new.key, new.version);
                out.extend_from_slice(&new.timeout_s.to_be_bytes());
                // The process that sends this only has clients over connections, so the frame has
                // no field for that.
                let source = match new.origin.ip {
                    IpAddr::V4(source) => source.to_ipv6_mapped(),
                    IpAddr::V6(source) => source,
                };
                out.extend_from_slice(&source.octets());
                out.extend(new.claim.iter().flat_map(|claim| claim.0));
            }
            Self::End(id) => put_numbers(out, Self::END, &[*id]),
            Self::TakeChallenge(id) => put_numbers(out, Self::TAKE_CHALLENGE, &[*id]),
        }
    }

    /// Decodes a frame without its length; `None` when it is invalid.
    #[must_use]
    pub fn decode(frame: &'a [u8]) -> Option<Self> {
        let (&what, mut rest) = frame.split_first()?;
        let ask = match what {
            Self::FIND => Self::Find(number(&mut rest)?),
            Self::ACCEPT => Self::Accept { id: number(&mut rest)?, counter: number(&mut rest)? },
            Self::NEXT => Self::Next(number(&mut rest)?),
            Self::AUTHENTICATE => {
                let (id, index) = (number(&mut rest)?, number(&mut rest)?);
                let claimed = Reference { index: number(&mut rest)?, handle: std::mem::take(&mut rest) };
                if claimed.handle.len() > HANDLE_LEN_MAX {
                    return None;
                }
                Self::Authenticate { id, claimed, index }
            }
            Self::OPEN => {
                let (key, version) = key(&mut rest)?;
                let timeout_s = number(&mut rest)?.cast_unsigned();
                let (source, after) = rest.split_first_chunk::<16>()?;
                rest = &[];
                let claim = match after {
                    [] => None,
                    claim => Some(IdentityClaim(claim.try_into().ok()?)),
                };
                let origin = RequestOrigin::connection(IpAddr::V6(Ipv6Addr::from(*source)).to_canonical());
                Self::Open(NewSession { key, version, claim, timeout_s, origin })
            }
            Self::END => Self::End(number(&mut rest)?),
            Self::TAKE_CHALLENGE => Self::TakeChallenge(number(&mut rest)?),
            _ => return None,
        };
        rest.is_empty().then_some(ask)
    }
}

impl LinkReply {
    const YES: u8 = 1;
    const NO: u8 = 2;
    const REFUSED: u8 = 3;
    const NUMBER: u8 = 4;
    const SESSION: u8 = 5;
    const CHALLENGE: u8 = 6;
    const OVER: u8 = 7;
    /// Refusals in the order of their codes, from 0.
    const REFUSALS: [SessionRefusal; 3] =
        [SessionRefusal::OverTcp, SessionRefusal::Full, SessionRefusal::NoNumber];

    /// Appends the frame without its length.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Yes => out.push(Self::YES),
            Self::No => out.push(Self::NO),
            Self::Refused(refusal) => {
                let code =
                    (0..).zip(Self::REFUSALS).find(|(_, one)| one == refusal).map_or(0, |(code, _)| code);
                out.extend_from_slice(&[Self::REFUSED, code]);
            }
            Self::Number(number) => put_numbers(out, Self::NUMBER, &[*number]),
            Self::Session(SessionFacts { key, version, identity }) => {
                out.push(Self::SESSION);
                put_key(out, key, *version);
                if let Some(identity) = identity {
                    out.extend_from_slice(&identity.index.to_be_bytes());
                    out.extend_from_slice(&identity.handle);
                }
            }
            Self::Challenge(challenge) => {
                out.push(Self::CHALLENGE);
                challenge.encode(out);
            }
            Self::Over => out.push(Self::OVER),
        }
    }

    /// Decodes a frame without its length; `None` when it is invalid.
    #[must_use]
    pub fn decode(frame: &[u8]) -> Option<Self> {
        let (&what, mut rest) = frame.split_first()?;
        let reply = match what {
            Self::YES => Self::Yes,
            Self::NO => Self::No,
            Self::REFUSED => {
                let (&code, after) = rest.split_first()?;
                rest = after;
                Self::Refused(*Self::REFUSALS.get(usize::from(code))?)
            }
            Self::NUMBER => Self::Number(number(&mut rest)?),
            Self::SESSION => {
                let (key, version) = key(&mut rest)?;
                let identity = match std::mem::take(&mut rest) {
                    [] => None,
                    mut identity => {
                        let index = number(&mut identity)?;
                        (identity.len() <= HANDLE_LEN_MAX).then_some(())?;
                        Some(SessionIdentity { index, handle: identity.into() })
                    }
                };
                Self::Session(SessionFacts { key, version, identity })
            }
            Self::CHALLENGE => Self::Challenge(IssuedChallenge::decode(std::mem::take(&mut rest))?),
            Self::OVER => Self::Over,
            _ => return None,
        };
        rest.is_empty().then_some(reply)
    }
}

fn put_numbers(out: &mut Vec<u8>, what: u8, numbers: &[i32]) {
    out.push(what);
    out.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
}

/// A buffer for a frame of usual length. It should not have to grow, because a buffer that grows
/// leaves a copy of the keys in freed memory.
#[must_use]
pub fn frame_buffer() -> Zeroizing<Vec<u8>> {
    Zeroizing::new(Vec::with_capacity(LENGTH_LEN + USUAL_LEN))
}

/// Bytes of the length of a frame.
const LENGTH_LEN: usize = 4;

/// Clears `buffer` and ensures a capacity of `len` bytes, so that it does not grow and leave its
/// content in freed memory.
fn reserve(buffer: &mut Zeroizing<Vec<u8>>, len: usize) {
    buffer.clear();
    if buffer.capacity() < len {
        *buffer = Zeroizing::new(Vec::with_capacity(len));
    }
}

/// Writes a frame of about `expected_len` bytes; `buffer` is scratch space.
///
/// # Errors
/// Errors of the socket.
pub fn send(
    socket: &mut impl Write,
    buffer: &mut Zeroizing<Vec<u8>>,
    expected_len: usize,
    encode: impl FnOnce(&mut Vec<u8>),
) -> io::Result<()> {
    reserve(buffer, LENGTH_LEN + expected_len);
    buffer.extend_from_slice(&[0; LENGTH_LEN]);
    encode(buffer);
    let len = u32::try_from(buffer.len() - LENGTH_LEN).expect("a frame is no longer than the longest");
    buffer[..LENGTH_LEN].copy_from_slice(&len.to_be_bytes());
    socket.write_all(buffer)
}

/// Reads a frame of at most `len_max` bytes into `buffer`, without its length.
///
/// # Errors
/// Errors of the socket, when the other side has closed it, and when the frame is longer than
/// `len_max`.
pub fn receive(socket: &mut impl Read, buffer: &mut Zeroizing<Vec<u8>>, len_max: usize) -> io::Result<()> {
    let mut len = [0; LENGTH_LEN];
    socket.read_exact(&mut len)?;
    let len = u32::from_be_bytes(len) as usize;
    if len > len_max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is too long"));
    }
    reserve(buffer, len);
    buffer.resize(len, 0);
    socket.read_exact(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::new_session;
    use handle_auth::digest::Digest;
    use handle_proto::limit::NONCE_LEN;

    fn link_requests() -> Vec<Vec<u8>> {
        let claimed = Reference { handle: b"0.NA/TST", index: 301 };
        let v6 = RequestOrigin::connection([1_u16; 8].into());
        let asks = [
            LinkRequest::Find(5),
            LinkRequest::Accept { id: 5, counter: 7 },
            LinkRequest::Next(i32::MAX),
            LinkRequest::Authenticate { id: 5, claimed, index: 300 },
            LinkRequest::Open(new_session()),
            LinkRequest::Open(NewSession {
                claim: Some(IdentityClaim([9; 32])),
                origin: v6,
                ..new_session()
            }),
            LinkRequest::End(-1),
            LinkRequest::TakeChallenge(6),
        ];
        asks.iter().map(|ask| encoded(|out| ask.encode(out))).collect()
    }

    fn link_replies() -> Vec<Vec<u8>> {
        let known = SessionFacts { key: new_session().key, version: Version::CURRENT, identity: None };
        let identity = Some(SessionIdentity { index: 301, handle: b"0.NA/TST"[..].into() });
        let mut all =
            vec![LinkReply::Yes, LinkReply::No, LinkReply::Number(7), LinkReply::Session(known.clone())];
        all.push(LinkReply::Session(SessionFacts { identity, ..known }));
        all.extend(LinkReply::REFUSALS.map(LinkReply::Refused));
        all.extend([LinkReply::Over, LinkReply::Challenge(a_challenge())]);
        all.iter().map(|reply| encoded(|out| reply.encode(out))).collect()
    }

    fn a_challenge() -> IssuedChallenge {
        IssuedChallenge {
            version: Version::new(2, 7),
            suggested: Version::CURRENT,
            nonce: [3; NONCE_LEN],
            digest: Digest::from_bytes(&[4; 20]),
            request: Zeroizing::new(Box::from(&b"a request"[..])),
        }
    }

    fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&mut out);
        out
    }

    #[test]
    fn every_frame_decodes_to_what_encodes_to_it() {
        for frame in link_requests() {
            let ask = LinkRequest::decode(&frame).unwrap();
            assert_eq!(encoded(|out| ask.encode(out)), frame, "{ask:?}");
        }
        for frame in link_replies() {
            let reply = LinkReply::decode(&frame).unwrap();
            assert_eq!(encoded(|out| reply.encode(out)), frame, "{reply:?}");
        }
    }

    /// A truncated frame does not decode, or decodes to a frame that encodes to the same bytes: a
    /// handle at the end of a frame may be shorter.
    #[test]
    fn cut_frames_are_none_or_shorter_ones() {
        for frame in link_requests() {
            for len in 0..frame.len() {
                if let Some(ask) = LinkRequest::decode(&frame[..len]) {
                    assert_eq!(encoded(|out| ask.encode(out)), frame[..len], "{ask:?} cut to {len}");
                    assert!(
                        matches!(ask, LinkRequest::Authenticate { .. } | LinkRequest::Open(_)),
                        "{ask:?} cut to {len}"
                    );
                }
            }
            let longer = [&frame[..], &[0]].concat();
            assert!(
                LinkRequest::decode(&longer).is_none() || frame[0] == LinkRequest::AUTHENTICATE,
                "{frame:?} and more"
            );
        }
        for frame in link_replies() {
            for len in 0..frame.len() {
                if let Some(reply) = LinkReply::decode(&frame[..len]) {
                    assert!(
                        matches!(reply, LinkReply::Session(_) | LinkReply::Challenge(_)),
                        "{reply:?} cut to {len}"
                    );
                }
            }
        }
        assert!(
            LinkRequest::decode(&[8]).is_none()
                && LinkReply::decode(&[8]).is_none()
                && LinkReply::decode(&[3, 3]).is_none()
        );
        let frame = encoded(|out| LinkReply::Challenge(a_challenge()).encode(out));
        assert!(matches!(LinkReply::decode(&frame), Some(LinkReply::Challenge(it)) if it == a_challenge()));
        // 33 bytes are too long for a digest.
        let mut too_long = frame[..5 + NONCE_LEN].to_vec();
        too_long.extend_from_slice(&[33; 34]);
        assert!(LinkReply::decode(&too_long).is_none());
    }

    #[test]
    fn the_longest_frame_fits_and_a_longer_one_is_refused() {
        let handle = vec![b'x'; HANDLE_LEN_MAX];
        let claimed = Reference { handle: &handle, index: 1 };
        let ask = LinkRequest::Authenticate { id: 1, claimed, index: 1 };
        let (mut sent, mut buffer) = (Vec::new(), Zeroizing::new(Vec::new()));
        send(&mut sent, &mut buffer, USUAL_LEN, |out| ask.encode(out)).unwrap();
        receive(&mut &sent[..], &mut buffer, ASK_LEN_MAX).unwrap();
        assert!(LinkRequest::decode(&buffer).is_some());
        buffer.push(b'x');
        assert!(LinkRequest::decode(&buffer).is_none(), "no handle is that long");
        let len = u32::try_from(ASK_LEN_MAX + 1).unwrap().to_be_bytes();
        let frame = [&len[..], &vec![0; ASK_LEN_MAX + 1]].concat();
        let error = receive(&mut &frame[..], &mut buffer, ASK_LEN_MAX).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let error = receive(&mut &sent[..9], &mut buffer, ASK_LEN_MAX).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "cut");
    }
}
