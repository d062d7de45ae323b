//! One HTTP connection: read a head, write a response, and close so that the response arrives.

use super::http::{self, BadRequest, HttpResponse};
use rustix::event::PollFlags;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// How long the other side may take to close after the response.
const LINGER: Duration = Duration::from_secs(1);

/// A client, from its first byte to its last.
#[derive(Debug)]
pub(super) struct HttpConnection {
    stream: TcpStream,
    doing: ConnectionPhase,
    deadline: Instant,
}

#[derive(Debug)]
enum ConnectionPhase {
    /// The head of the request, as far as it is there.
    Reading(Vec<u8>),
    /// The response, and how much of it is sent.
    Writing(Vec<u8>, usize),
    /// Closed at our end. What still comes is thrown away: closing with bytes unread would take the
    /// response back.
    Closing,
}

/// What became of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpStep {
    /// It goes on.
    Open,
    /// It is over, and was answered.
    Done,
    /// It is over without an answer.
    Abandoned,
}

impl HttpConnection {
    /// A connection that was accepted, and must be over by `deadline`.
    pub(super) fn new(stream: TcpStream, deadline: Instant) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, doing: ConnectionPhase::Reading(Vec::new()), deadline })
    }

    pub(super) const fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether its time is over.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        now >= self.deadline
    }

    /// What it waits for.
    pub(super) const fn waits_for(&self) -> PollFlags {
        match self.doing {
            ConnectionPhase::Writing(..) => PollFlags::OUT,
            ConnectionPhase::Reading(_) | ConnectionPhase::Closing => PollFlags::IN,
        }
    }

    /// Goes as far as possible without waiting. `respond` is asked once, when the head is there or wrong.
    pub(super) fn step(
        &mut self,
        now: Instant,
        head_len_max: usize,
        respond: impl FnOnce(Result<http::HttpRequest<'_>, BadRequest>) -> HttpResponse,
    ) -> HttpStep {
        if let ConnectionPhase::Reading(head) = &mut self.doing {
            match read_head(&mut self.stream, head, head_len_max) {
                Ok(false) if now < self.deadline => return HttpStep::Open,
                Ok(true) => {}
                Ok(false) | Err(_) => return HttpStep::Abandoned,
            }
            let (response, is_head) = match http::parse(head, head_len_max) {
                Ok(Some(request)) => (respond(Ok(request)), request.is_head),
                Ok(None) => return HttpStep::Open,
                Err(bad) => (respond(Err(bad)), false),
            };
            self.doing = ConnectionPhase::Writing(response.to_bytes(is_head), 0);
        }
        if let ConnectionPhase::Writing(bytes, at) = &mut self.doing {
            while *at < bytes.len() {
                match self.stream.write(&bytes[*at..]) {
                    Ok(0) => return HttpStep::Abandoned,
                    Ok(len) => *at += len,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock && now < self.deadline => {
                        return HttpStep::Open;
                    }
                    Err(_) => return HttpStep::Abandoned,
                }
            }
            if self.stream.shutdown(Shutdown::Write).is_err() {
                return HttpStep::Done;
            }
            self.doing = ConnectionPhase::Closing;
            self.deadline = self.deadline.min(now + LINGER);
        }
        match self.throw_away() {
            true if now < self.deadline => HttpStep::Open,
            _ => HttpStep::Done,
        }
    }

    /// Reads what nobody wants; false when there will be no more.
    fn throw_away(&mut self) -> bool {
        let mut room = [0; 1024];
        // Some at a time, so that who never ceases to send keeps nobody waiting.
        for _ in 0..16 {
            match self.stream.read(&mut room) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
            }
        }
        true
    }
}

/// Reads more of a head. True when something can be said about it, false when more must come first.
fn read_head(stream: &mut TcpStream, head: &mut Vec<u8>, len_max: usize) -> std::io::Result<bool> {
    let mut room = [0; 1024];
    while head.len() < len_max {
        let room_len = room.len().min(len_max - head.len());
        match stream.read(&mut room[..room_len]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => head.extend_from_slice(&room[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
        if !matches!(http::parse(head, len_max), Ok(None)) {
            return Ok(true);
        }
    }
    Ok(true)
}
