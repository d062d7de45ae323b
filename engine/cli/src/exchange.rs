//! One request and its answer, over TCP, or over UDP with the retry scheme of deployed clients.

use crate::resolve::of_partial_answer;
use anyhow::{Context as _, bail};
use handle_auth::clock::now_unix_s;
use handle_client::raw_exchange::{self, RawAnswer, RawExchangeError, SocketStep};
use handle_proto::limit;
use handle_proto::wire::{Envelope, Header, MessageBuf, Request};
use handle_proto::{OpCode, OpFlags, Version};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

/// A request, ready to be sent.
#[derive(Debug)]
pub struct OutgoingQuery {
    /// The message, envelope first.
    message: Vec<u8>,
    /// Header and body, over which the request digest is computed.
    pub(crate) covered: Vec<u8>,
}

/// Parses `host`, `host:port`, `[v6]:port` or a bare IPv6 address; the default is the registered
/// port.
///
/// # Errors
/// When it is none of these, or a name without an address.
pub fn address(server: &str) -> anyhow::Result<SocketAddr> {
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

/// A server refuses what a whole command needs, as a listing.
#[derive(Debug)]
pub(crate) struct ServerRefusal(pub(crate) String);

impl std::fmt::Display for ServerRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ServerRefusal {}

/// Builds a request with a new id.
///
/// # Errors
/// When the request is too long.
pub fn request(request: &Request<'_>, flags: OpFlags) -> anyhow::Result<OutgoingQuery> {
    // Positive, as deployed clients choose it, and hard to guess for an off-path attacker.
    let request_id = rand::random_range(1..i32::MAX);
    let header = Header::request(OpCode::RESOLUTION, flags, now_unix_s());
    // The version of the server is not known yet, so ours is suggested.
    let envelope = Envelope { version: Version::COMPATIBLE, ..Envelope::request(request_id) };
    let message = MessageBuf::request(&envelope, &header, request);
    let covered = message.covered().to_vec();
    Ok(OutgoingQuery { message: message.unsigned()?, covered })
}

/// Sends a request over UDP, repeats it after each of `waits_ms`, and waits for the answer.
///
/// Returns `None` if there was no answer.
///
/// # Errors
/// When the server cannot be asked, or answers something else.
pub fn ask(
    server: SocketAddr,
    request: &OutgoingQuery,
    waits_ms: &[u32],
) -> anyhow::Result<Option<RawAnswer>> {
    let waits = waits_ms.iter().map(|&wait_ms| Duration::from_millis(wait_ms.into()));
    answered(server, raw_exchange::ask_over_udp(server, &request.message, waits))
}

/// Sends a request over a new connection, and waits for the answer.
///
/// Returns `None` if there was no answer within `timeout`.
pub(crate) fn ask_over_tcp(
    server: SocketAddr,
    request: &OutgoingQuery,
    timeout: Duration,
) -> anyhow::Result<Option<RawAnswer>> {
    answered(server, raw_exchange::ask_over_tcp(server, &request.message, timeout))
}

/// The answer; `None` if none arrived in time. If no answer can come, the error says what to check.
fn answered(
    server: SocketAddr,
    result: Result<RawAnswer, RawExchangeError>,
) -> anyhow::Result<Option<RawAnswer>> {
    let error = match result {
        Ok(answer) => return Ok(Some(answer)),
        Err(error) => error,
    };
    let no_answer = match error {
        RawExchangeError::Silence => return Ok(None),
        RawExchangeError::Partial => format!(
            "incomplete answer from {server}: some datagrams did not arrive in time ({})",
            of_partial_answer()
        ),
        RawExchangeError::Refused => {
            format!("{server}: connection refused (is the server running, and is this its UDP port?)")
        }
        RawExchangeError::Unconnected(error) => format!(
            "cannot connect to {server}: {error} (is the server running, and does it answer over TCP?)"
        ),
        RawExchangeError::Closed => format!("{server} closed the connection without an answer"),
        RawExchangeError::Reset => format!(
            "{server} ended the connection without an answer (is the server running, or being stopped?)"
        ),
        RawExchangeError::NotOurs => bail!("{server} answered another request"),
        RawExchangeError::Malformed(error) => {
            return Err(error).context("the answer does not decode");
        }
        RawExchangeError::Socket(step, error) => {
            return Err(error).with_context(|| match step {
                SocketStep::Open => "cannot open a UDP socket".to_owned(),
                SocketStep::SizeBuffer => "cannot size the buffer of a UDP socket".to_owned(),
                SocketStep::Connect => format!("cannot reach {server}"),
                SocketStep::Send => format!("cannot send to {server}"),
                SocketStep::Receive => format!("cannot receive from {server}"),
            });
        }
    };
    bail!(NoAnswer(no_answer))
}
