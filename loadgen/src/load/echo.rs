//! A server that answers at once over the same datapath, to measure without lookups.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use handle_net::{DatapathChoice, DatapathKind, SocketOptions, open, pin_to_core};
use handle_proto::ResponseCode;
use handle_proto::limit::UDP_MESSAGE_LEN_MAX;
use handle_proto::wire::{Envelope, Header};

use crate::error::Error;

/// The options of the echo server.
#[derive(Clone, Copy, Debug)]
pub struct EchoOptions {
    /// Address to listen on; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Length of each answer in bytes; `None` answers with the request itself.
    pub answer_len: Option<usize>,
    /// How datagrams are moved.
    pub datapath: DatapathChoice,
    /// Core to run on.
    pub core: Option<usize>,
}

/// Longest answer: the longest datagram that a run accepts.
pub const ANSWER_LEN_MAX: usize = 2048;

/// The counts of the echo server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EchoCounts {
    /// Requests received.
    pub received: u64,
    /// Answers accepted by the kernel.
    pub answered: u64,
    /// Answers that could not be sent.
    pub failed: u64,
    /// Requests dropped by the kernel because the server was too slow.
    pub kernel_drops: u64,
}

/// Longest wait for a request, which bounds the reaction to a stop.
const TIMEOUT_MAX: Duration = Duration::from_millis(20);

/// Answers until `stop`. Calls `ready` once with the address, and `progress` once a second.
///
/// # Errors
///
/// If it cannot listen, or the datapath fails.
pub fn echo(
    options: &EchoOptions,
    stop: &AtomicBool,
    ready: impl FnOnce(SocketAddr, DatapathKind, &str),
    mut progress: impl FnMut(&EchoCounts),
) -> Result<EchoCounts, Error> {
    if options.answer_len.is_some_and(|len| len == 0 || len > ANSWER_LEN_MAX) {
        return Err(Error::Option(format!("--answer-len must be 1 to {ANSWER_LEN_MAX}")));
    }
    if let Some(core) = options.core {
        pin_to_core(core).map_err(|error| Error::Core(core, error))?;
    }
    // Longer answers may be sent as IP fragments, so that every length reaches the client.
    let dont_fragment = options.answer_len.is_none_or(|len| len <= UDP_MESSAGE_LEN_MAX);
    let net = SocketOptions { dont_fragment, ..SocketOptions::new(options.listen).one_at_a_time() };
    let opened = open(options.datapath, &net).map_err(Error::Open)?;
    let mut path = opened.path;
    ready(path.local_addr().map_err(Error::Open)?, path.kind(), &opened.reason);
    let (mut counts, mut reported_at) = (EchoCounts::default(), Instant::now());
    while !stop.load(Ordering::Relaxed) {
        let batch = path.wait(TIMEOUT_MAX).map_err(Error::Datapath)?;
        for datagram in batch.inbox.iter() {
            for request in datagram.segments() {
                let len = options.answer_len.unwrap_or(request.len());
                counts.received += 1;
                let write = |buffer: &mut [u8]| {
                    write_answer(request, &mut buffer[..len], options.answer_len.is_some())
                };
                counts.failed += u64::from(batch.outbox.push(datagram.peer, len, write).is_err());
            }
        }
        if !batch.outbox.is_empty() {
            let flushed = path.flush().map_err(Error::Datapath)?;
            counts.answered += u64::from(flushed.sent);
            counts.failed += u64::from(flushed.failed + flushed.would_block);
        }
        if reported_at.elapsed() >= Duration::from_secs(1) {
            reported_at = Instant::now();
            counts.kernel_drops = path.kernel_drops();
            progress(&counts);
        }
    }
    counts.kernel_drops = path.kernel_drops();
    Ok(counts)
}

/// Fills `buffer` with the request as far as it fits; with `as_answer`, turned into a successful
/// answer of that length.
fn write_answer(request: &[u8], buffer: &mut [u8], as_answer: bool) -> usize {
    const HEAD_LEN: usize = Envelope::LEN + Header::LEN;
    let len = buffer.len();
    let copied = request.len().min(if as_answer { HEAD_LEN.min(len) } else { len });
    buffer[..copied].copy_from_slice(&request[..copied]);
    buffer[copied..].fill(0);
    if as_answer && copied == HEAD_LEN {
        let be = |len: usize| u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes();
        let code = ResponseCode::SUCCESS.0.to_be_bytes();
        buffer[16..20].copy_from_slice(&be(len - Envelope::LEN));
        buffer[24..28].copy_from_slice(&code);
        // As if the message ended with an empty credential.
        buffer[40..44].copy_from_slice(&be(len.saturating_sub(HEAD_LEN + 4)));
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::wire::Message;

    #[test]
    fn answers_are_messages_of_their_length() {
        let request: Vec<u8> = (0..64).collect();
        for len in [48, 64, 180, 2048] {
            let mut buffer = vec![0xff; len];
            assert_eq!(write_answer(&request, &mut buffer, true), len);
            let (envelope, rest) = Envelope::split(&buffer).unwrap();
            assert_eq!((envelope.request_id, envelope.message_len as usize), (0x0809_0a0b, len - 20));
            let message = Message::decode(rest).unwrap();
            assert_eq!(message.header.response_code, ResponseCode::SUCCESS);
            assert_eq!(message.body.len(), len - 48);
        }
    }

    #[test]
    fn any_lengths_are_answered() {
        for (request_len, answer_len) in [(0, 10), (10, 180), (64, 1), (44, 44)] {
            let mut buffer = vec![0xff; answer_len];
            assert_eq!(write_answer(&vec![1; request_len], &mut buffer, true), answer_len);
        }
        let mut buffer = [0; 3];
        assert_eq!(write_answer(b"abc", &mut buffer, false), 3);
        assert_eq!(&buffer, b"abc");
    }
}
