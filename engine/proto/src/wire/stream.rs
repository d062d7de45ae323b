//! Messages in byte streams: an envelope, then as many bytes as it announces. There is no other
//! framing.

use super::envelope::Envelope;
use crate::error::{DecodeError, Field};
use alloc::vec::Vec;

/// The start of some bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFront<'a> {
    /// A whole message, envelope first, and the bytes after it.
    Message(&'a [u8], &'a [u8]),
    /// A partial message: at least this many more bytes are needed.
    Needs(usize),
}

/// Looks for a whole message at the start of `bytes`, with at most `message_len_max` bytes after
/// its envelope.
///
/// # Errors
/// As soon as the envelope shows that the message is too long.
pub fn split(bytes: &[u8], message_len_max: u32) -> Result<StreamFront<'_>, DecodeError> {
    if bytes.len() < Envelope::LEN {
        return Ok(StreamFront::Needs(Envelope::LEN - bytes.len()));
    }
    let (envelope, rest) = Envelope::split(bytes)?;
    if envelope.message_len > message_len_max {
        return Err(DecodeError::TooLong { field: Field::MessageLength, at: 16 });
    }
    let message_len = envelope.message_len as usize;
    Ok(match bytes.split_at_checked(Envelope::LEN + message_len) {
        Some((message, after)) => StreamFront::Message(message, after),
        None => StreamFront::Needs(message_len - rest.len()),
    })
}

/// Takes received bytes and returns whole messages.
///
/// It keeps at most one message, and only the received part of it, so a false length costs nothing.
#[derive(Debug)]
pub struct Stream {
    buffer: Vec<u8>,
    // The kept bytes are a whole message that was already returned.
    is_done: bool,
    message_len_max: u32,
}

impl Stream {
    /// A stream of messages with at most `message_len_max` bytes after their envelopes.
    #[must_use]
    pub const fn new(message_len_max: u32) -> Self {
        Self { buffer: Vec::new(), is_done: false, message_len_max }
    }

    /// Takes bytes from the start of `bytes`, up to the end of one message. Returns how many it
    /// took, and the message if it is complete.
    ///
    /// A message that is complete in `bytes` is not copied. All of `bytes` has been taken once the
    /// counts add up to its length.
    ///
    /// # Errors
    /// When a message is too long; the stream cannot be read any further.
    pub fn feed<'a>(&'a mut self, bytes: &'a [u8]) -> Result<(usize, Option<&'a [u8]>), DecodeError> {
        if self.is_done {
            self.buffer.clear();
            self.is_done = false;
        }
        if self.buffer.is_empty()
            && let StreamFront::Message(message, _) = split(bytes, self.message_len_max)?
        {
            return Ok((message.len(), Some(message)));
        }
        let mut taken = 0;
        // At most twice: first the envelope, then the length that it announces.
        while let StreamFront::Needs(needed) = split(&self.buffer, self.message_len_max)? {
            let more = &bytes[taken..];
            let more = &more[..needed.min(more.len())];
            if more.is_empty() {
                return Ok((taken, None));
            }
            self.buffer.extend_from_slice(more);
            taken += more.len();
        }
        self.is_done = true;
        Ok((taken, Some(&self.buffer)))
    }

    /// Fewest bytes that are needed to complete a message.
    #[must_use]
    pub fn needs(&self) -> usize {
        match self.pending() {
            [] => Envelope::LEN,
            kept => match split(kept, self.message_len_max) {
                Ok(StreamFront::Needs(needed)) => needed,
                _ => 0,
            },
        }
    }

    /// The received part of an incomplete message.
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        if self.is_done { &[] } else { &self.buffer }
    }

    /// Checks that the other side closed the stream between two messages.
    ///
    /// # Errors
    /// When a message is incomplete.
    pub fn finish(&self) -> Result<(), DecodeError> {
        let pending = self.pending();
        let field = if pending.len() < Envelope::LEN { Field::Envelope } else { Field::Body };
        match u32::try_from(pending.len()) {
            Ok(0) => Ok(()),
            at => Err(DecodeError::Truncated { field, at: at.unwrap_or(u32::MAX) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::MESSAGE_LEN_MAX;
    use alloc::vec;
    use proptest::prelude::*;

    fn message(len: u32) -> Vec<u8> {
        let mut bytes = vec![2, 11, 2, 11, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0];
        bytes.extend(len.to_be_bytes());
        bytes.resize(Envelope::LEN + len as usize, 7);
        bytes
    }

    fn messages(stream: &mut Stream, mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut messages = vec![];
        while !bytes.is_empty() {
            let (taken, message) = stream.feed(bytes).unwrap();
            messages.extend(message.map(<[u8]>::to_vec));
            bytes = &bytes[taken..];
        }
        messages
    }

    proptest! {
        #[test]
        fn any_pieces_give_the_same_messages(
            lens in prop::collection::vec(0_u32..100, 1..6),
            piece_len in 1_usize..150,
        ) {
            let sent: Vec<_> = lens.iter().map(|&len| message(len)).collect();
            let mut stream = Stream::new(100);
            let received: Vec<_> =
                sent.concat().chunks(piece_len).flat_map(|piece| messages(&mut stream, piece)).collect();
            prop_assert_eq!(received, sent);
            prop_assert_eq!(stream.finish(), Ok(()));
        }
    }

    #[test]
    fn a_message_is_given_up_only_when_it_is_cut() {
        let whole = message(30);
        for len in 0..whole.len() {
            let mut stream = Stream::new(MESSAGE_LEN_MAX);
            assert_eq!(messages(&mut stream, &whole[..len]), [[0; 0]; 0], "cut to {len}");
            assert_eq!(stream.pending(), &whole[..len]);
            let announced = if len < Envelope::LEN { Envelope::LEN } else { whole.len() };
            assert_eq!(stream.needs(), announced - len);
            match stream.finish() {
                Ok(()) => assert_eq!(len, 0),
                Err(error) => assert_eq!(error.at(), len),
            }
            assert_eq!(messages(&mut stream, &whole[len..]), [&whole[..]]);
            assert_eq!(stream.finish(), Ok(()));
            assert_eq!(stream.needs(), Envelope::LEN);
        }
    }

    #[test]
    fn a_message_has_at_most_the_maximum_length() {
        let refused = DecodeError::TooLong { field: Field::MessageLength, at: 16 };
        assert_eq!(messages(&mut Stream::new(100), &message(100)).len(), 1);
        assert_eq!(Stream::new(100).feed(&message(101)), Err(refused));
        assert_eq!(messages(&mut Stream::new(u32::MAX), &message(MESSAGE_LEN_MAX)).len(), 1);
        assert_eq!(Stream::new(u32::MAX).feed(&message(MESSAGE_LEN_MAX + 1)), Err(refused));
    }

    #[test]
    fn a_length_that_lies_is_refused_at_once_or_costs_nothing() {
        let mut bytes = message(0);
        for lie in [0x7fff_ffff_u32, 0x8000_0000, 0xffff_ffff] {
            bytes[16..].copy_from_slice(&lie.to_be_bytes());
            assert!(Stream::new(u32::MAX).feed(&bytes).is_err(), "{lie}");
        }
        let mut stream = Stream::new(MESSAGE_LEN_MAX);
        bytes[16..].copy_from_slice(&MESSAGE_LEN_MAX.to_be_bytes());
        assert_eq!(stream.feed(&bytes), Ok((20, None)));
        assert!(stream.buffer.capacity() < 1024, "{}", stream.buffer.capacity());
    }
}
