//! Sends one case, checks its answer, and checks that the server is alive.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use handle_proto::limit::{MESSAGE_LEN_MAX, UDP_DATA_LEN_MAX};
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::{Envelope, Message};
use handle_proto::{OpFlags, ResponseCode};
use serde::Serialize;

use super::HostileOptions;
use super::mutate::{HostileCase, request};
use crate::load::single_request;

/// The fault of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerFault {
    /// It does not answer the plain question any more.
    Silent,
    /// Its answer to the plain question has changed.
    Changed,
    /// Its answer to the case cannot be decoded.
    Unsound,
}

impl fmt::Display for ServerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Silent => "the server stopped answering the plain question",
            Self::Changed => "the server changed its answer to the plain question",
            Self::Unsound => "the answer cannot be decoded",
        })
    }
}

/// The effect of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CaseOutcome {
    pub(super) is_answered: bool,
    pub(super) fault: Option<ServerFault>,
}

/// The sockets, and the answer of the healthy server.
pub(super) struct Attack {
    target: SocketAddr,
    over_tcp: bool,
    socket: UdpSocket,
    probe: Vec<u8>,
    timeout: Duration,
    /// Wait for answers to cases; most cases get none.
    case_timeout: Duration,
    /// Code and body of the answer to the probe.
    well: Option<(ResponseCode, Vec<u8>)>,
    probes: i32,
    /// Time between two cases.
    step: Duration,
    /// When the next case may be sent.
    due: Instant,
}

/// Bounds of the wait for the answer to a case; it follows the response time of the probe.
const CASE_TIMEOUT_MIN: Duration = Duration::from_millis(2);
const CASE_TIMEOUT_MAX: Duration = Duration::from_millis(100);

/// Number of probes before the server counts as silent: datagrams may be lost.
const PROBES: usize = 3;

impl Attack {
    pub(super) fn open(options: &HostileOptions) -> io::Result<Self> {
        let any: SocketAddr =
            if options.target.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
        let socket = UdpSocket::bind(any)?;
        socket.connect(options.target)?;
        Ok(Self {
            target: options.target,
            over_tcp: options.over_tcp,
            socket,
            probe: options.probe.clone(),
            timeout: options.timeout,
            case_timeout: CASE_TIMEOUT_MAX,
            well: None,
            probes: 0,
            step: Duration::from_secs(1) / options.rate,
            due: Instant::now(),
        })
    }

    /// Asks the plain question, and keeps its first answer.
    pub(super) fn is_alive(&mut self) -> io::Result<bool> {
        Ok(self.fault()? != Some(ServerFault::Silent))
    }

    /// Waits until the server answers as at first, or the user stops it.
    pub(super) fn recovers(
        &mut self,
        recovery: Duration,
        mut is_stopped: impl FnMut() -> bool,
    ) -> io::Result<bool> {
        let until = Instant::now() + recovery;
        loop {
            if self.fault()?.is_none() {
                return Ok(true);
            }
            if Instant::now() >= until || is_stopped() {
                return Ok(false);
            }
            thread::sleep(self.step.max(Duration::from_millis(5)));
        }
    }

    /// The fault in the answer to the plain question, if any.
    fn fault(&mut self) -> io::Result<Option<ServerFault>> {
        for _ in 0..PROBES {
            // Ids of their own, distinct from those of cases.
            self.probes = self.probes % 0x00ff_ffff + 1;
            let question = request(&self.probe, 0x7000_0000 | self.probes, OpFlags::PLAIN_REQUEST);
            let sent_at = Instant::now();
            let answer = single_request::send(self.target, self.over_tcp, &question, self.timeout)?;
            let Some(answer) = answer else { continue };
            // The fastest probe shows the distance to the server; a delayed one does not.
            let case_timeout = (4 * sent_at.elapsed()).clamp(CASE_TIMEOUT_MIN, CASE_TIMEOUT_MAX);
            self.case_timeout = self.case_timeout.min(case_timeout);
            let Ok(message) = Message::decode(&answer) else { return Ok(Some(ServerFault::Changed)) };
            let outcome = (message.header.response_code, message.body.to_vec());
            return Ok(match &self.well {
                Some(well) if *well != outcome => Some(ServerFault::Changed),
                Some(_) => None,
                None => {
                    self.well = Some(outcome);
                    None
                }
            });
        }
        Ok(Some(ServerFault::Silent))
    }

    /// Sends a case when it is due, checks its answer, and asks the plain question.
    pub(super) fn run_case(&mut self, case: &HostileCase) -> io::Result<CaseOutcome> {
        let now = Instant::now();
        thread::sleep(self.due.saturating_duration_since(now));
        // A delay is not made up for: the rate is a maximum.
        self.due = self.due.max(now) + self.step;
        let CaseAnswer { is_answered, is_sound } =
            if self.over_tcp { self.send_tcp(case)? } else { self.send_udp(case)? };
        let fault = match self.fault()? {
            None if !is_sound => Some(ServerFault::Unsound),
            fault => fault,
        };
        Ok(CaseOutcome { is_answered, fault })
    }

    fn send_udp(&self, case: &HostileCase) -> io::Result<CaseAnswer> {
        for datagram in &case.datagrams {
            // An error of an earlier datagram, such as a refused connection; the probe detects
            // that.
            let _ = self.socket.send(datagram);
        }
        let (mut is_answered, mut is_sound, mut buffer) = (false, true, [0; 2048]);
        let until = Instant::now() + self.case_timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.socket.set_read_timeout(Some(left))?;
            match self.socket.recv(&mut buffer) {
                Ok(len) => {
                    is_answered = true;
                    is_sound &= is_sound_datagram(&buffer[..len]);
                    // More datagrams may follow: fragments of the answer, or answers to other
                    // datagrams.
                    if case.datagrams.len() == 1 && !is_piece(&buffer[..len]) {
                        break;
                    }
                }
                Err(_) => break,
            }
        }
        Ok(CaseAnswer { is_answered, is_sound })
    }

    fn send_tcp(&self, case: &HostileCase) -> io::Result<CaseAnswer> {
        // The probe detects a refused connection.
        let Ok(mut stream) = TcpStream::connect_timeout(&self.target, self.timeout) else {
            return Ok(CaseAnswer { is_answered: false, is_sound: true });
        };
        stream.set_write_timeout(Some(self.timeout))?;
        let _ = stream.write_all(&case.datagrams.concat());
        let mut answer = Vec::new();
        let len_max = MESSAGE_LEN_MAX as usize + Envelope::LEN;
        read_until(&stream, len_max, Instant::now() + self.case_timeout, &mut answer);
        let is_answered = !answer.is_empty();
        Ok(CaseAnswer { is_answered, is_sound: !is_answered || is_sound_stream(&answer) })
    }
}

/// What the server sent after a case.
struct CaseAnswer {
    /// Whether there was an answer.
    is_answered: bool,
    /// Whether all answers are sound.
    is_sound: bool,
}

/// Appends up to `len` bytes to `bytes`, within the deadline however slowly they arrive, or until
/// the server ends the connection.
fn read_until(mut stream: &TcpStream, len: usize, until: Instant, bytes: &mut Vec<u8>) {
    let mut buffer = [0; 4096];
    while bytes.len() < len {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            break;
        }
        let buffer_len = (len - bytes.len()).min(buffer.len());
        match stream.read(&mut buffer[..buffer_len]) {
            Ok(0) => break,
            Ok(len) => bytes.extend_from_slice(&buffer[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
}

fn is_piece(bytes: &[u8]) -> bool {
    let envelope = Envelope::split(bytes).map(|(envelope, _)| envelope);
    envelope.is_ok_and(|envelope| envelope.flags.has(EnvelopeFlags::TRUNCATED))
}

/// Whether a datagram is a message, or a fragment with consistent lengths.
fn is_sound_datagram(bytes: &[u8]) -> bool {
    let Ok((envelope, data)) = Envelope::split(bytes) else { return false };
    let len = envelope.message_len as usize;
    if envelope.flags.has(EnvelopeFlags::TRUNCATED) && len > UDP_DATA_LEN_MAX {
        let at = (envelope.sequence as usize).saturating_mul(UDP_DATA_LEN_MAX);
        return len <= MESSAGE_LEN_MAX as usize && at < len && data.len() == UDP_DATA_LEN_MAX.min(len - at);
    }
    // The body of an encrypted message cannot be checked.
    data.get(..len).is_some_and(|message| {
        envelope.flags.has(EnvelopeFlags::ENCRYPTED) || Message::decode(message).is_ok()
    })
}

/// Whether the bytes are one message, or the start of one that was still arriving.
fn is_sound_stream(bytes: &[u8]) -> bool {
    let Ok((envelope, data)) = Envelope::split(bytes) else { return true };
    let len = envelope.message_len as usize;
    match data.get(..len) {
        None => len <= MESSAGE_LEN_MAX as usize,
        Some(message) => envelope.flags.has(EnvelopeFlags::ENCRYPTED) || Message::decode(message).is_ok(),
    }
}
