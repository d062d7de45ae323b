//! Frames: a header, the same for every kind and in both directions, and a content.

use crate::kind::LocalKind;
use crate::refusal::LocalRefusal;
use std::fmt;
use std::io::{self, ErrorKind, Read};
use zeroize::Zeroizing;

/// The version of the frames and of the contents of all kinds. Both processes are of one release.
pub const VERSION: u8 = 1;

/// The number that a refusal has instead of a kind.
const REFUSAL: u8 = 0;

/// The bytes before the content of a frame: version, kind, and the length of the content in four
/// bytes, big-endian. A [refusal](LocalRefusal) is a header with its number as the length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The kind of the connection.
    pub kind: LocalKind,
    /// Length of the content.
    pub len: usize,
}

/// Why a header is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The other process has another version.
    Version(u8),
    /// No kind has this number.
    Kind(u8),
    /// The other side refuses the connection.
    Refused(LocalRefusal),
    /// The connection has another kind.
    OtherKind(LocalKind),
    /// The content is longer than allowed.
    TooLong {
        /// Its length.
        len: usize,
        /// The maximum.
        len_max: usize,
    },
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(
                f,
                "a frame of version {version}, expected {VERSION}: is the other process of another release?"
            ),
            Self::Kind(number) => write!(f, "a frame of unknown kind {number}"),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::OtherKind(kind) => write!(f, "a frame of kind {} on another connection", kind.name()),
            Self::TooLong { len, len_max } => write!(f, "a frame of {len} bytes, at most {len_max} allowed"),
        }
    }
}

impl std::error::Error for FrameError {}

impl From<FrameError> for io::Error {
    fn from(error: FrameError) -> Self {
        let kind = match error {
            FrameError::Refused(refusal) => refusal.error_kind(),
            _ => ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}

impl FrameHeader {
    /// Length of a header.
    pub const LEN: usize = 6;

    /// Decodes a header. Its length is that of the sender, still to be [checked](Self::check).
    ///
    /// # Errors
    /// When version or kind are unknown, and when it is a refusal.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, FrameError> {
        let [version, kind, len @ ..] = *bytes;
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        let len = u32::from_be_bytes(len);
        if kind == REFUSAL {
            let refusal = LocalRefusal::from_number(len);
            return Err(refusal.map_or(FrameError::Kind(kind), FrameError::Refused));
        }
        let kind = LocalKind::from_number(kind).ok_or(FrameError::Kind(kind))?;
        Ok(Self { kind, len: len as usize })
    }

    /// The bytes of the header.
    ///
    /// # Panics
    /// If the content has 4 GiB, which no kind allows.
    #[must_use]
    pub fn encode(self) -> [u8; Self::LEN] {
        let len = u32::try_from(self.len).expect("a frame has few bytes");
        let mut bytes = [VERSION, self.kind as u8, 0, 0, 0, 0];
        bytes[2..].copy_from_slice(&len.to_be_bytes());
        bytes
    }

    /// Checks that the frame is of a connection of `kind`, and that its content has at most
    /// `len_max` bytes. Returns the length.
    ///
    /// # Errors
    /// When one of them is not so.
    pub const fn check(self, kind: LocalKind, len_max: usize) -> Result<usize, FrameError> {
        if self.kind as u8 != kind as u8 {
            return Err(FrameError::OtherKind(self.kind));
        }
        if self.len > len_max {
            return Err(FrameError::TooLong { len: self.len, len_max });
        }
        Ok(self.len)
    }
}

/// The header that is a refusal.
#[must_use]
pub const fn refuse(refusal: LocalRefusal) -> [u8; FrameHeader::LEN] {
    [VERSION, REFUSAL, 0, 0, 0, refusal as u8]
}

/// Whether writing failed because the other side has closed the connection, before which it may
/// have sent a refusal.
pub(crate) fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

/// A frame, to whose content `encode` appends about `expected_len` bytes. The buffer does not grow
/// if it does not append more, so no copy stays in freed memory.
#[must_use]
pub fn encode(kind: LocalKind, expected_len: usize, encode: impl FnOnce(&mut Vec<u8>)) -> Zeroizing<Vec<u8>> {
    let mut frame = Zeroizing::new(Vec::with_capacity(FrameHeader::LEN + expected_len));
    frame.extend_from_slice(&[0; FrameHeader::LEN]);
    encode(&mut frame);
    let header = FrameHeader { kind, len: frame.len() - FrameHeader::LEN };
    frame[..FrameHeader::LEN].copy_from_slice(&header.encode());
    frame
}

/// Reads the content of a frame of `kind`, of at most `len_max` bytes.
///
/// # Errors
/// Those of the other side, of the header, and when the frame is cut off.
pub fn read(from: &mut impl Read, kind: LocalKind, len_max: usize) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut header = [0; FrameHeader::LEN];
    from.read_exact(&mut header)?;
    let len = FrameHeader::decode(&header)?.check(kind, len_max)?;
    let mut content = Zeroizing::new(vec![0; len]);
    from.read_exact(&mut content)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip_and_others_are_refused_by_name() {
        for kind in LocalKind::ALL {
            for len in [0, 1, 255, 65_536, kind.request_len_max(), kind.reply_len_max()] {
                let header = FrameHeader { kind, len };
                assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
            }
        }
        for number in 0..=u8::MAX {
            let known = LocalKind::ALL.into_iter().find(|&kind| kind as u8 == number);
            let decoded = FrameHeader::decode(&[VERSION, number, 0, 0, 0, 0]);
            assert_eq!(decoded.ok().map(|header| header.kind), known, "{number}");
            let other = FrameHeader::decode(&[number, 1, 0, 0, 0, 0]);
            assert_eq!(other.is_ok(), number == VERSION, "{number}");
        }
    }

    #[test]
    fn a_refusal_is_an_error_of_every_kind_of_connection() {
        for refusal in LocalRefusal::ALL {
            for kind in LocalKind::ALL {
                let error = read(&mut &refuse(refusal)[..], kind, 100).unwrap_err();
                assert_eq!(LocalRefusal::of(&error), Some(refusal), "{error}");
                assert_eq!(error.kind(), refusal.error_kind());
            }
        }
        let unknown = FrameHeader::decode(&[VERSION, REFUSAL, 0, 0, 0, 99]);
        assert_eq!(unknown, Err(FrameError::Kind(REFUSAL)));
        assert_eq!(LocalRefusal::of(&ErrorKind::PermissionDenied.into()), None);
    }

    #[test]
    fn every_truncation_is_an_error_and_a_false_length_allocates_nothing() {
        let frame = encode(LocalKind::Bulk, 3, |content| content.extend_from_slice(b"abc"));
        for len in 0..frame.len() {
            let error = read(&mut &frame[..len], LocalKind::Bulk, 100).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "cut to {len}");
        }
        let mut more = frame.to_vec();
        more.extend_from_slice(b"next");
        assert_eq!(&read(&mut &more[..], LocalKind::Bulk, 3).unwrap()[..], b"abc");
        for kind in LocalKind::ALL {
            let mut lies = frame.to_vec();
            lies[1] = kind as u8;
            lies[2..6].fill(0xff);
            let error = read(&mut &lies[..], kind, kind.request_len_max()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert!(error.to_string().contains("4294967295"), "{error}");
        }
        let error = read(&mut &frame[..], LocalKind::Relay, 100).unwrap_err().to_string();
        assert!(error.contains("kind bulk"), "{error}");
    }

    #[test]
    fn a_frame_of_the_expected_length_is_not_moved() {
        let frame = encode(LocalKind::Forward, 100, |content| content.extend_from_slice(&[7; 100]));
        assert_eq!(frame.len(), FrameHeader::LEN + 100);
        assert!(frame.capacity() < FrameHeader::LEN + 200);
    }
}
