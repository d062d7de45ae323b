//! One request and its answer, over UDP, with the retry scheme of deployed clients.

use anyhow::{Context as _, bail, ensure};
use handle_proto::limit::{self, UDP_RETRY_MS};
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::query::Query;
use handle_proto::wire::{Envelope, Header};
use handle_proto::{OpCode, OpFlags, ResponseCode, Version};
use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::time::{Duration, Instant};

/// An answer, put together.
pub(crate) struct Answered {
    /// The envelope of its first datagram.
    pub(crate) envelope: Envelope,
    /// What follows the envelope.
    pub(crate) message: Vec<u8>,
    /// From the datagram that was answered to the whole answer.
    pub(crate) took: Duration,
    /// Datagrams the answer came in.
    pub(crate) datagrams_count: usize,
}

/// The address in `host`, `host:port`, `[v6]:port` or a bare IPv6 address; the registered port by default.
pub(crate) fn address(server: &str) -> anyhow::Result<SocketAddr> {
    if let Ok(ip) = server.parse::<std::net::IpAddr>() {
        return Ok((ip, limit::PORT).into());
    }
    let addresses = if server.contains(':') {
        server.to_socket_addrs()
    } else {
        (server, limit::PORT).to_socket_addrs()
    };
    let mut addresses = addresses.with_context(|| {
        format!("{server:?} is no address: write host, host:port, 192.0.2.1:2641 or [2001:db8::1]:2641")
    })?;
    addresses.next().with_context(|| format!("{server} has no address"))
}

/// A resolution request as one or more datagrams.
pub(crate) fn request(query: &Query<'_>, flags: OpFlags, request_id: i32) -> Vec<Vec<u8>> {
    let mut body = Vec::new();
    query.encode(&mut body);
    let now_unix_s = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let header = Header {
        op_code: OpCode::RESOLUTION,
        response_code: ResponseCode::RESERVED,
        flags,
        site_serial: Header::NO_SITE_SERIAL,
        recursion_count: 0,
        reserved: 0,
        expiration: u32::try_from(now_unix_s.as_secs()).unwrap_or(u32::MAX).wrapping_add(limit::MESSAGE_EXPIRATION_S),
        body_len: handle_proto::wire::put::len(body.len()),
    };
    let mut message = header.to_bytes().to_vec();
    message.extend_from_slice(&body);
    message.extend_from_slice(&[0; 4]);
    let pieces: Vec<&[u8]> = message.chunks(limit::UDP_DATA_LEN_MAX).collect();
    let flags = if pieces.len() > 1 { EnvelopeFlags::TRUNCATED } else { EnvelopeFlags::default() };
    let datagram = |(sequence, piece): (usize, &&[u8])| {
        let envelope = Envelope {
            version: Version::CURRENT,
            flags,
            suggested: Version::CURRENT,
            session_id: 0,
            request_id,
            sequence: handle_proto::wire::put::len(sequence),
            message_len: handle_proto::wire::put::len(message.len()),
        };
        [&envelope.to_bytes(), *piece].concat()
    };
    pieces.iter().enumerate().map(datagram).collect()
}

/// Sends the datagrams of a request, again if need be, and waits for the answer.
///
/// `None` when none came. Answers to other requests are ignored.
pub(crate) fn ask(
    server: SocketAddr,
    datagrams: &[Vec<u8>],
    request_id: i32,
    waits_ms: &[u32],
) -> anyhow::Result<Option<Answered>> {
    let any: SocketAddr = if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).context("cannot open a UDP socket")?;
    socket.connect(server).with_context(|| format!("cannot reach {server}"))?;
    let mut room = vec![0; 1 << 16];
    for &wait_ms in waits_ms {
        for datagram in datagrams {
            socket.send(datagram).with_context(|| format!("cannot send to {server}"))?;
        }
        let sent = Instant::now();
        let deadline = sent + Duration::from_millis(wait_ms.into());
        let mut pieces = Pieces::default();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            socket.set_read_timeout(Some(left))?;
            let len = match socket.recv(&mut room) {
                Ok(len) => len,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    bail!("nobody listens on {server} (is the server running, and this its UDP port?)")
                }
                Err(error) => return Err(error).with_context(|| format!("cannot receive from {server}")),
            };
            let Ok((envelope, data)) = Envelope::split(&room[..len]) else { continue };
            if envelope.request_id != request_id {
                continue;
            }
            if let Some((envelope, message)) = pieces.add(envelope, data)? {
                let datagrams_count = pieces.count();
                return Ok(Some(Answered { envelope, message, took: sent.elapsed(), datagrams_count }));
            }
        }
    }
    Ok(None)
}

/// The waits of deployed clients.
pub(crate) const WAITS_MS: [u32; 3] = UDP_RETRY_MS;

/// The fragments of one answer.
#[derive(Default)]
struct Pieces {
    first: Option<Envelope>,
    message: Vec<u8>,
    there: Vec<bool>,
}

impl Pieces {
    /// Adds a datagram; the whole message once it is there.
    fn add(&mut self, envelope: Envelope, data: &[u8]) -> anyhow::Result<Option<(Envelope, Vec<u8>)>> {
        let first = *self.first.get_or_insert(envelope);
        let len = first.message_len as usize;
        ensure!(envelope.message_len == first.message_len, "the fragments of the answer contradict each other");
        if self.there.is_empty() {
            self.message = vec![0; len];
            self.there = vec![false; len.div_ceil(limit::UDP_DATA_LEN_MAX).max(1)];
        }
        let at = envelope.sequence as usize;
        ensure!(at < self.there.len(), "a fragment of the answer has number {at}, of {}", self.there.len());
        let room = &mut self.message[at * limit::UDP_DATA_LEN_MAX..];
        let expected = room.len().min(limit::UDP_DATA_LEN_MAX);
        ensure!(data.len() >= expected, "a datagram of the answer is cut short");
        room[..expected].copy_from_slice(&data[..expected]);
        self.there[at] = true;
        Ok(self.there.iter().all(|&there| there).then(|| (first, self.message.clone())))
    }

    const fn count(&self) -> usize {
        self.there.len()
    }
}
