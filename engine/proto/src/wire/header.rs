//! The header: operation, response code and flags of a message.

use crate::code::{OpCode, OpFlags, ResponseCode};
use crate::error::{DecodeError, Field};
use crate::limit::MESSAGE_EXPIRATION_S;

/// The 24 bytes between envelope and body. RFC 3652 section 2.2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The operation.
    pub op_code: OpCode,
    /// The response code; zero in requests, and in requests only.
    pub response_code: ResponseCode,
    /// The flags.
    pub flags: OpFlags,
    /// Serial number of the site record: the one the client used, or the server's own. -1 for none.
    pub site_serial: i16,
    /// Number of indirections so far.
    pub recursion_count: u8,
    /// Zero; other values are kept.
    pub reserved: u8,
    /// Time when the message expires, Unix seconds.
    pub expiration: u32,
    /// Bytes of the body.
    pub body_len: u32,
}

impl Header {
    /// Bytes of a header.
    pub const LEN: usize = 24;
    /// The serial number that stands for no site record.
    pub const NO_SITE_SERIAL: i16 = -1;

    /// The header of a request made at `now_unix_s` by a client without a site record.
    #[must_use]
    pub const fn request(op_code: OpCode, flags: OpFlags, now_unix_s: u32) -> Self {
        Self {
            op_code,
            response_code: ResponseCode::RESERVED,
            flags,
            site_serial: Self::NO_SITE_SERIAL,
            recursion_count: 0,
            reserved: 0,
            // As wide as on the wire, where it wraps in 2106.
            expiration: now_unix_s.wrapping_add(MESSAGE_EXPIRATION_S),
            body_len: 0,
        }
    }

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

    /// Reads the fields without checks.
    #[must_use]
    pub const fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            op_code: OpCode(i32::from_be_bytes(Self::field::<0, 4>(bytes))),
            response_code: ResponseCode(i32::from_be_bytes(Self::field::<4, 4>(bytes))),
            flags: OpFlags(u32::from_be_bytes(Self::field::<8, 4>(bytes))),
            site_serial: i16::from_be_bytes(Self::field::<12, 2>(bytes)),
            recursion_count: bytes[14],
            reserved: bytes[15],
            expiration: u32::from_be_bytes(Self::field::<16, 4>(bytes)),
            body_len: u32::from_be_bytes(Self::field::<20, 4>(bytes)),
        }
    }

    /// The `N` bytes from offset `AT`, which the compiler checks.
    const fn field<const AT: usize, const N: usize>(bytes: &[u8; Self::LEN]) -> [u8; N] {
        const { assert!(AT + N <= Self::LEN) };
        let (_, from_field) = bytes.split_at(AT);
        match from_field.first_chunk() {
            Some(field) => *field,
            None => unreachable!(),
        }
    }

    /// The encoding.
    #[must_use]
    #[inline]
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_24_bytes_are_a_header(bytes: [u8; Header::LEN]) {
            prop_assert_eq!(Header::from_bytes(&bytes).to_bytes(), bytes);
        }
    }

    #[test]
    fn every_field_is_where_it_belongs() {
        let bytes: [u8; 24] = core::array::from_fn(|at| u8::try_from(at).unwrap());
        let header = Header::from_bytes(&bytes);
        assert_eq!(header.op_code, OpCode(0x0001_0203));
        assert_eq!(header.response_code, ResponseCode(0x0405_0607));
        assert_eq!(header.flags, OpFlags(0x0809_0a0b));
        assert_eq!((header.site_serial, header.recursion_count, header.reserved), (0x0c0d, 14, 15));
        assert_eq!((header.expiration, header.body_len), (0x1011_1213, 0x1415_1617));
    }

    #[test]
    fn refuses_every_truncation() {
        for len in 0..Header::LEN {
            assert!(Header::split(&[0; Header::LEN][..len]).is_err(), "cut to {len}");
        }
    }
}
