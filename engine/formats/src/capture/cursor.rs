//! Reads the bytes of a capture in order, in its byte order.

/// The remaining bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileCursor<'b> {
    pub(super) rest: &'b [u8],
    pub(super) is_big: bool,
}

impl<'b> FileCursor<'b> {
    pub(super) fn bytes(&mut self, len: usize) -> Option<&'b [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(bytes)
    }

    /// As many bytes as the next word says.
    pub(super) fn bytes_of(&mut self, len: u32) -> Option<&'b [u8]> {
        self.bytes(usize::try_from(len).ok()?)
    }

    /// That many bytes, and the padding of the last word.
    pub(super) fn padded(&mut self, len: u32) -> Option<&'b [u8]> {
        let len = usize::try_from(len).ok()?;
        let bytes = self.bytes(len)?;
        self.bytes(len.checked_next_multiple_of(4)? - len)?;
        Some(bytes)
    }

    fn array<const LEN: usize>(&mut self) -> Option<[u8; LEN]> {
        self.bytes(LEN)?.first_chunk().copied()
    }

    pub(super) fn half(&mut self) -> Option<u16> {
        let bytes = self.array()?;
        Some(if self.is_big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    }

    pub(super) fn word(&mut self) -> Option<u32> {
        let bytes = self.array()?;
        Some(if self.is_big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    pub(super) fn long(&mut self) -> Option<u64> {
        let bytes = self.array()?;
        Some(if self.is_big { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) })
    }
}
