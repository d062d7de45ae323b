//! One request and its answer, over TCP, or over UDP with the retry scheme of deployed clients.

use crate::resolve::of_partial_answer;
use anyhow::{Context as _, bail, ensure};
use handle_client::sockets::size_receive_buffer;
use handle_proto::limit::{self, MESSAGE_LEN_MAX};
use handle_proto::wire::fragment::cut;
use handle_proto::wire::reassembly::{Reassembly, ReassemblyLimits, ReassemblyOutcome};
use handle_proto::wire::stream::{StreamFront, split};
use handle_proto::wire::{Envelope, Header, MessageBuf, Request};
use handle_proto::{OpCode, OpFlags, Version};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _, UdpSocket};
use std::time::{Duration, Instant};

/// A request, ready to be sent.
pub(crate) struct OutgoingQuery {
    /// The id that answers repeat.
    pub(crate) request_id: i32,
    /// The message, envelope first.
    message: Vec<u8>,
    /// The message as one or more datagrams, depending on its length.
    pub(crate) datagrams: Vec<Vec<u8>>,
    /// Header and body, over which the request digest is computed.
    pub(crate) covered: Vec<u8>,
}

/// A complete answer.
pub(crate) struct AssembledAnswer {
    /// The message, envelope first.
    pub(crate) message: Vec<u8>,
    /// Time from the datagram that was answered to the complete answer.
    pub(crate) took: Duration,
    /// Number of datagrams of the answer; 0 over TCP.
    pub(crate) datagrams_count: usize,
}

/// Parses `host`, `host:port`, `[v6]:port` or a bare IPv6 address; the default is the registered
/// port.
pub(crate) fn address(server: &str) -> anyhow::Result<SocketAddr> {
    if let Ok(ip) = server.parse::<std::net::IpAddr>() {
        return Ok((ip, limit::PORT).into());
    }
    let addresses =
        if server.contains(':') { server.to_socket_addrs() } else { (server, limit::PORT).to_socket_addrs() };
    let mut addresses = addresses.with_context(|| {
        format!("invalid address {server:?}: expected HOST[:PORT], as 192.0.2.1:2641 or [2001:db8::1]:2641")
    })?;
    addresses.next().with_context(|| format!("{server} has no address"))
}

/// There is no answer: the connection was refused or closed, or the time ran out.
#[derive(Debug)]
pub(crate) struct NoAnswer(String);

impl std::fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoAnswer {}

/// Builds a request with a new id.
pub(crate) fn request(request: &Request<'_>, flags: OpFlags) -> anyhow::Result<OutgoingQuery> {
    // Positive, as deployed clients choose it, and hard to guess for an off-path attacker.
    let request_id = rand::random_range(1..i32::MAX);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let now_unix_s = u32::try_from(now.as_secs()).unwrap_or(u32::MAX);
    let header = Header::request(OpCode::RESOLUTION, flags, now_unix_s);
    // The version of the server is not known yet, so ours is suggested.
    let envelope = Envelope { version: Version::COMPATIBLE, ..Envelope::request(request_id) };
    let message = MessageBuf::request(&envelope, &header, request);
    let covered = message.covered().to_vec();
    let message = message.unsigned()?;
    let (envelope, data) = Envelope::split(&message).context("the request is too long")?;
    let datagrams = cut(&envelope).map(|fragment| [&fragment.envelope, &data[fragment.range]].concat());
    let datagrams = datagrams.collect();
    Ok(OutgoingQuery { request_id, message, datagrams, covered })
}

/// Sends the datagrams of a request, repeats them after each of `waits_ms`, and waits for the
/// answer.
///
/// Returns `None` if there was no answer. Ignores answers to other requests.
pub(crate) fn ask(
    server: SocketAddr,
    asked: &OutgoingQuery,
    waits_ms: &[u32],
) -> anyhow::Result<Option<AssembledAnswer>> {
    let any: SocketAddr = if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).context("cannot open a UDP socket")?;
    size_receive_buffer(&socket).context("cannot size the buffer of a UDP socket")?;
    socket.connect(server).with_context(|| format!("cannot reach {server}"))?;
    let mut fragments = Reassembly::new(ReassemblyLimits {
        messages_max: 1,
        messages_per_sender_max: 1,
        bytes_max: MESSAGE_LEN_MAX as usize,
        age_ms_max: limit::UDP_REASSEMBLY_MS.into(),
    });
    let mut room = vec![0; 1 << 16];
    for &wait_ms in waits_ms {
        for datagram in &asked.datagrams {
            socket.send(datagram).with_context(|| format!("cannot send to {server}"))?;
        }
        let sent = Instant::now();
        let deadline = sent + Duration::from_millis(wait_ms.into());
        while let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
        {
            socket.set_read_timeout(Some(left))?;
            let datagram = match socket.recv(&mut room) {
                Ok(len) => &room[..len],
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    bail!(NoAnswer(format!(
                        "{server}: connection refused (is the server running, and is this its UDP port?)"
                    )))
                }
                Err(error) => return Err(error).with_context(|| format!("cannot receive from {server}")),
            };
            let Ok((envelope, _)) = Envelope::split(datagram) else { continue };
            // Errors that refer to no request have id 0.
            if envelope.request_id != asked.request_id && envelope.request_id != NO_REQUEST {
                continue;
            }
            let message = match fragments.accept((), datagram, 0) {
                Ok(ReassemblyOutcome::Whole(message)) => message.to_vec(),
                Ok(ReassemblyOutcome::Complete(message)) => message,
                // A datagram that cannot be a fragment is not part of the answer.
                Ok(ReassemblyOutcome::Incomplete) | Err(_) => continue,
            };
            let datagrams_count = cut(&envelope).len();
            return Ok(Some(AssembledAnswer { message, took: sent.elapsed(), datagrams_count }));
        }
    }
    if fragments.is_empty() {
        return Ok(None);
    }
    bail!(NoAnswer(format!(
        "incomplete answer from {server}: some datagrams did not arrive in time ({})",
        of_partial_answer()
    )))
}

/// Sends a request over a new connection, and waits for the answer.
///
/// Returns `None` if there was no answer within `patience`.
pub(crate) fn ask_over_tcp(
    server: SocketAddr,
    asked: &OutgoingQuery,
    patience: Duration,
) -> anyhow::Result<Option<AssembledAnswer>> {
    let is_late =
        |error: &std::io::Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
    let mut stream = match TcpStream::connect_timeout(&server, patience) {
        Ok(stream) => stream,
        Err(error) if is_late(&error) => return Ok(None),
        Err(error) => {
            bail!(NoAnswer(format!(
                "cannot connect to {server}: {error} (is the server running, and does it answer over TCP?)"
            )));
        }
    };
    stream.set_write_timeout(Some(patience))?;
    let sent = Instant::now();
    stream.write_all(&asked.message).with_context(|| format!("cannot send to {server}"))?;
    let (mut bytes, mut room) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        if let StreamFront::Message(message, _) =
            split(&bytes, MESSAGE_LEN_MAX).context("the answer does not decode")?
        {
            let (envelope, _) = Envelope::split(message).context("the answer does not decode")?;
            let id = envelope.request_id;
            ensure!(id == asked.request_id || id == NO_REQUEST, "{server} answered another request");
            let (message, took) = (message.to_vec(), sent.elapsed());
            return Ok(Some(AssembledAnswer { message, took, datagrams_count: 0 }));
        }
        let Some(left) = patience.checked_sub(sent.elapsed()).filter(|left| !left.is_zero()) else {
            return Ok(None);
        };
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut room) {
            Ok(0) => bail!(NoAnswer(format!("{server} closed the connection without an answer"))),
            Ok(len) => bytes.extend_from_slice(&room[..len]),
            Err(error) if is_late(&error) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                bail!(NoAnswer(format!(
                    "{server} ended the connection without an answer (is the server running, or being stopped?)"
                )))
            }
            Err(error) => return Err(error).with_context(|| format!("cannot receive from {server}")),
        }
    }
}

/// The request id of replies to requests that the server could not read.
pub(crate) const NO_REQUEST: i32 = -1;
