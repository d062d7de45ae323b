//! What two processes say to each other about the table that they share: frames over a local socket.
//!
//! A frame is the length of what follows in two bytes, a byte that says what it is, and its fields; numbers are
//! big-endian. One side asks, the other answers, in order. Keys are in it: the socket is for one user alone.

use crate::session::{Claim, Identity, NewSession};
use crate::table::Refusal;
use handle_auth::session::SessionKey;
use handle_proto::Version;
use handle_proto::code::Cipher;
use handle_proto::limit::HANDLE_LEN_MAX;
use handle_proto::wire::list::Reference;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr};
use zeroize::Zeroizing;

/// Most bytes of a frame behind its length: the longest handle, and what is said of it.
pub const FRAME_LEN_MAX: usize = HANDLE_LEN_MAX + 128;

/// What is asked.
#[derive(Clone, Debug)]
pub enum Ask<'a> {
    /// What is known of a session.
    Find(i32),
    /// Whether a message with this counter may be accepted.
    Accept {
        /// The session.
        id: i32,
        /// The counter of a message whose MAC is right.
        counter: i32,
    },
    /// The number of the next message to go out.
    Next(i32),
    /// Somebody has proven who they are.
    Authenticate {
        /// The session.
        id: i32,
        /// Who they said they are.
        claimed: Reference<'a>,
        /// The value with the key that was proven.
        index: i32,
    },
    /// A new session.
    Open(NewSession),
    /// The end of one.
    End(i32),
}

/// What is answered.
#[derive(Clone, Debug)]
pub enum Told {
    /// Yes, or done.
    Yes,
    /// No, or there is no such session.
    No,
    /// No new session, and why.
    Refused(Refusal),
    /// A number: of a message, or of a new session.
    Number(i32),
    /// What is known of a session.
    Session(Known),
}

/// What is known of a session.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its key.
    pub key: SessionKey,
    /// Its version.
    pub version: Version,
    /// Who has proven to be at the other end.
    pub identity: Option<Identity>,
}

impl<'a> Ask<'a> {
    const FIND: u8 = 1;
    const ACCEPT: u8 = 2;
    const NEXT: u8 = 3;
    const AUTHENTICATE: u8 = 4;
    const OPEN: u8 = 5;
    const END: u8 = 6;

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
                let source = match new.source {
                    IpAddr::V4(source) => source.to_ipv6_mapped(),
                    IpAddr::V6(source) => source,
                };
                out.extend_from_slice(&source.octets());
                out.extend(new.claim.iter().flat_map(|claim| claim.0));
            }
            Self::End(id) => put_numbers(out, Self::END, &[*id]),
        }
    }

    /// Reads a frame without its length; `None` when it is none.
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
                    claim => Some(Claim(claim.try_into().ok()?)),
                };
                let source = IpAddr::V6(Ipv6Addr::from(*source)).to_canonical();
                Self::Open(NewSession { key, version, claim, timeout_s, source })
            }
            Self::END => Self::End(number(&mut rest)?),
            _ => return None,
        };
        rest.is_empty().then_some(ask)
    }
}

impl Told {
    const YES: u8 = 1;
    const NO: u8 = 2;
    const REFUSED: u8 = 3;
    const NUMBER: u8 = 4;
    const SESSION: u8 = 5;
    /// In the order of their codes, from 0.
    const REFUSALS: [Refusal; 3] = [Refusal::TooManyOfSource, Refusal::Full, Refusal::NoNumber];

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
            Self::Session(Known { key, version, identity }) => {
                out.push(Self::SESSION);
                put_key(out, key, *version);
                if let Some(identity) = identity {
                    out.extend_from_slice(&identity.index.to_be_bytes());
                    out.extend_from_slice(&identity.handle);
                }
            }
        }
    }

    /// Reads a frame without its length; `None` when it is none.
    #[must_use]
    pub fn decode(frame: &[u8]) -> Option<Self> {
        let (&what, mut rest) = frame.split_first()?;
        let told = match what {
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
                        Some(Identity { index, handle: identity.into() })
                    }
                };
                Self::Session(Known { key, version, identity })
            }
            _ => return None,
        };
        rest.is_empty().then_some(told)
    }
}

fn put_numbers(out: &mut Vec<u8>, what: u8, numbers: &[i32]) {
    out.push(what);
    out.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
}

/// Cipher, length and bytes of a key, and the version of its session.
fn put_key(out: &mut Vec<u8>, key: &SessionKey, version: Version) {
    out.extend_from_slice(&key.cipher().0.to_be_bytes());
    out.push(u8::try_from(key.as_bytes().len()).expect("no key has more than 32 bytes"));
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(&[version.major, version.minor]);
}

fn number(rest: &mut &[u8]) -> Option<i32> {
    let (number, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(i32::from_be_bytes(*number))
}

fn key(rest: &mut &[u8]) -> Option<(SessionKey, Version)> {
    let cipher = Cipher(number(rest)?);
    let (&len, after) = rest.split_first()?;
    let (key, after) = after.split_at_checked(len.into())?;
    let (&[major, minor], after) = after.split_first_chunk()?;
    *rest = after;
    Some((SessionKey::new(cipher, key.to_vec())?, Version::new(major, minor)))
}

/// Room for the longest frame with its length: a buffer that grows leaves keys where it was.
#[must_use]
pub fn frame_buffer() -> Zeroizing<Vec<u8>> {
    Zeroizing::new(Vec::with_capacity(2 + FRAME_LEN_MAX))
}

/// Writes a frame; `buffer` is used for it.
///
/// # Errors
/// Those of the socket.
pub fn send(
    socket: &mut impl Write,
    buffer: &mut Zeroizing<Vec<u8>>,
    encode: impl FnOnce(&mut Vec<u8>),
) -> io::Result<()> {
    buffer.clear();
    buffer.extend_from_slice(&[0; 2]);
    encode(buffer);
    let len = u16::try_from(buffer.len() - 2).expect("a frame is no longer than the longest");
    buffer[..2].copy_from_slice(&len.to_be_bytes());
    socket.write_all(buffer)
}

/// Reads a frame into `buffer`, without its length.
///
/// # Errors
/// Those of the socket; when the other side has gone, and when the frame is longer than any.
pub fn receive(socket: &mut impl Read, buffer: &mut Zeroizing<Vec<u8>>) -> io::Result<()> {
    let mut len = [0; 2];
    socket.read_exact(&mut len)?;
    let len = usize::from(u16::from_be_bytes(len));
    if len > FRAME_LEN_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is too long"));
    }
    buffer.clear();
    buffer.resize(len, 0);
    socket.read_exact(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::new_session;

    fn asks() -> Vec<Vec<u8>> {
        let claimed = Reference { handle: b"0.NA/TST", index: 301 };
        let asks = [
            Ask::Find(5),
            Ask::Accept { id: 5, counter: 7 },
            Ask::Next(i32::MAX),
            Ask::Authenticate { id: 5, claimed, index: 300 },
            Ask::Open(new_session()),
            Ask::Open(NewSession { claim: Some(Claim([9; 32])), source: [1_u16; 8].into(), ..new_session() }),
            Ask::End(-1),
        ];
        asks.iter().map(|ask| encoded(|out| ask.encode(out))).collect()
    }

    fn told() -> Vec<Vec<u8>> {
        let known = Known { key: new_session().key, version: Version::CURRENT, identity: None };
        let identity = Some(Identity { index: 301, handle: b"0.NA/TST"[..].into() });
        let mut all = vec![Told::Yes, Told::No, Told::Number(7), Told::Session(known.clone())];
        all.push(Told::Session(Known { identity, ..known }));
        all.extend(Told::REFUSALS.map(Told::Refused));
        all.iter().map(|told| encoded(|out| told.encode(out))).collect()
    }

    fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&mut out);
        out
    }

    #[test]
    fn every_frame_decodes_to_what_encodes_to_it() {
        for frame in asks() {
            let ask = Ask::decode(&frame).unwrap();
            assert_eq!(encoded(|out| ask.encode(out)), frame, "{ask:?}");
        }
        for frame in told() {
            let told = Told::decode(&frame).unwrap();
            assert_eq!(encoded(|out| told.encode(out)), frame, "{told:?}");
        }
    }

    /// Whether a cut frame still is one that says the same as its bytes: of a handle the end may be missing.
    #[test]
    fn cut_frames_are_none_or_shorter_ones() {
        for frame in asks() {
            for len in 0..frame.len() {
                if let Some(ask) = Ask::decode(&frame[..len]) {
                    assert_eq!(encoded(|out| ask.encode(out)), frame[..len], "{ask:?} cut to {len}");
                    assert!(matches!(ask, Ask::Authenticate { .. } | Ask::Open(_)), "{ask:?} cut to {len}");
                }
            }
            let longer = [&frame[..], &[0]].concat();
            assert!(Ask::decode(&longer).is_none() || frame[0] == Ask::AUTHENTICATE, "{frame:?} and more");
        }
        for frame in told() {
            for len in 0..frame.len() {
                if let Some(told) = Told::decode(&frame[..len]) {
                    assert!(matches!(told, Told::Session(_)), "{told:?} cut to {len}");
                }
            }
        }
        assert!(
            Ask::decode(&[7]).is_none() && Told::decode(&[6]).is_none() && Told::decode(&[3, 3]).is_none()
        );
    }

    #[test]
    fn the_longest_frame_fits_and_a_longer_one_is_refused() {
        let handle = vec![b'x'; HANDLE_LEN_MAX];
        let claimed = Reference { handle: &handle, index: 1 };
        let ask = Ask::Authenticate { id: 1, claimed, index: 1 };
        let (mut sent, mut buffer) = (Vec::new(), Zeroizing::new(Vec::new()));
        send(&mut sent, &mut buffer, |out| ask.encode(out)).unwrap();
        receive(&mut &sent[..], &mut buffer).unwrap();
        assert!(Ask::decode(&buffer).is_some());
        buffer.push(b'x');
        assert!(Ask::decode(&buffer).is_none(), "no handle is that long");
        let len = u16::try_from(FRAME_LEN_MAX + 1).unwrap().to_be_bytes();
        let frame = [&len[..], &vec![0; FRAME_LEN_MAX + 1]].concat();
        assert_eq!(receive(&mut &frame[..], &mut buffer).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(receive(&mut &sent[..9], &mut buffer).is_err(), "cut");
    }
}
