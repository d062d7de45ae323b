//! The header: what is asked or answered, and how.

use crate::code::{OpCode, OpFlags, ResponseCode};
use crate::error::{DecodeError, Field};

/// The 24 bytes between envelope and body. RFC 3652 section 2.2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What is asked.
    pub op_code: OpCode,
    /// What came of it; zero in requests, and in requests only.
    pub response_code: ResponseCode,
    /// How it is asked.
    pub flags: OpFlags,
    /// Serial number of the site record: the one the client used, or the server's own. -1 for none.
    pub site_serial: i16,
    /// Indirections so far.
    pub recursion_count: u8,
    /// Zero; kept.
    pub reserved: u8,
    /// When the message becomes stale, Unix seconds.
    pub expiration: u32,
    /// Bytes of the body.
    pub body_len: u32,
}

impl Header {
    /// Bytes of a header.
    pub const LEN: usize = 24;
    /// The serial number that stands for no site record.
    pub const NO_SITE_SERIAL: i16 = -1;

    /// Splits a header from the bytes that follow it. Does not compare `body_len` with them.
    ///
    /// # Errors
    /// When there are fewer than 24 bytes.
    pub fn split(bytes: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        match bytes.split_first_chunk() {
            Some((fixed, rest)) => Ok((Self::from_bytes(fixed), rest)),
            None => Err(DecodeError::Truncated { field: Field::Header, at: 0 }),
        }
    }

    /// Reads the fields, whatever they hold.
    #[must_use]
    pub const fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let [
            o0,
            o1,
            o2,
            o3,
            c0,
            c1,
            c2,
            c3,
            f0,
            f1,
            f2,
            f3,
            s0,
            s1,
            recursion_count,
            reserved,
            e0,
            e1,
            e2,
            e3,
            l0,
            l1,
            l2,
            l3,
        ] = *bytes;
        Self {
            op_code: OpCode(i32::from_be_bytes([o0, o1, o2, o3])),
            response_code: ResponseCode(i32::from_be_bytes([c0, c1, c2, c3])),
            flags: OpFlags(u32::from_be_bytes([f0, f1, f2, f3])),
            site_serial: i16::from_be_bytes([s0, s1]),
            recursion_count,
            reserved,
            expiration: u32::from_be_bytes([e0, e1, e2, e3]),
            body_len: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }

    /// The encoding.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0..4].copy_from_slice(&self.op_code.0.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.response_code.0.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.flags.0.to_be_bytes());
        bytes[12..14].copy_from_slice(&self.site_serial.to_be_bytes());
        bytes[14] = self.recursion_count;
        bytes[15] = self.reserved;
        bytes[16..20].copy_from_slice(&self.expiration.to_be_bytes());
        bytes[20..24].copy_from_slice(&self.body_len.to_be_bytes());
        bytes
    }
}
