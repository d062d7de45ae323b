//! A closed loop of requests over connections: as many under way on each as a window allows.

use crate::flood::FloodTotals;
use crate::requests::Requests;
use anyhow::ensure;
use handle_proto::OpFlags;
use handle_proto::wire::Envelope;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Where the flags of a request are, behind the envelope and two codes.
const FLAGS_AT: usize = Envelope::LEN + 8;
/// Where the response code of an answer is.
const RESPONSE_CODE_AT: usize = Envelope::LEN + 4;
/// Bytes that are read at a time.
const READ_LEN: usize = 256 << 10;

/// Requests that ask to keep the connection, one behind the other.
pub struct Pipeline {
    bytes: Vec<u8>,
    /// Where each of them ends.
    ends: Vec<usize>,
}

impl Pipeline {
    /// The same requests, over connections.
    #[must_use]
    pub fn of(requests: &Requests) -> Self {
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(requests.len()));
        let keep = OpFlags::KEEP_CONNECTION.0.to_be_bytes();
        for at in 0..requests.len() {
            let start = bytes.len();
            bytes.extend_from_slice(requests.get(at));
            for (flags, keep) in bytes[start + FLAGS_AT..].iter_mut().zip(keep) {
                *flags |= keep;
            }
            ends.push(bytes.len());
        }
        Self { bytes, ends }
    }

    fn start(&self, at: usize) -> usize {
        if at == 0 { 0 } else { self.ends[at - 1] }
    }
}

/// A client of several connections.
pub struct TcpFlood<'p> {
    requests: &'p Pipeline,
    connections: Vec<BenchConnection>,
    window: usize,
    code: [u8; 4],
    room: Box<[u8]>,
}

struct BenchConnection {
    stream: TcpStream,
    /// The next request that is not wholly sent, and what of it has been.
    next: usize,
    sent: usize,
    under_way: usize,
    /// The beginning of an answer.
    begun: Vec<u8>,
    /// Bytes to come of an answer that was counted.
    skip: usize,
}

impl<'p> TcpFlood<'p> {
    /// Connects so often to the server at `to`, and expects answers with response code `code`.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn connect(
        requests: &'p Pipeline,
        to: SocketAddr,
        connections_count: usize,
        window: usize,
        code: i32,
    ) -> anyhow::Result<Self> {
        ensure!(window > 0 && window < requests.ends.len(), "a window of {window} makes no sense");
        let connect = |at: usize| -> std::io::Result<BenchConnection> {
            let stream = TcpStream::connect(to)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let next = at * requests.ends.len() / connections_count;
            Ok(BenchConnection { stream, next, sent: 0, under_way: 0, begun: Vec::new(), skip: 0 })
        };
        Ok(Self {
            requests,
            connections: (0..connections_count).map(connect).collect::<std::io::Result<_>>()?,
            window,
            code: code.to_be_bytes(),
            room: vec![0; READ_LEN].into_boxed_slice(),
        })
    }

    /// Loads the server for so long. What is under way then counts in the next run.
    ///
    /// # Errors
    /// When a connection ends.
    pub fn run(&mut self, duration: Duration) -> anyhow::Result<FloodTotals> {
        let start = Instant::now();
        let mut got = FloodTotals::default();
        while start.elapsed() < duration {
            let mut moved = 0;
            for connection in &mut self.connections {
                moved += connection.send(self.requests, self.window)?;
                moved += connection.receive(&mut self.room, self.code, &mut got)?;
            }
            if moved == 0 {
                self.wait()?;
            }
        }
        got.seconds = start.elapsed().as_secs_f64();
        Ok(got)
    }

    fn wait(&self) -> std::io::Result<()> {
        let mut fds: Vec<_> =
            self.connections.iter().map(|one| PollFd::new(&one.stream, PollFlags::IN)).collect();
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 }))?;
        Ok(())
    }
}

impl BenchConnection {
    /// Sends what the window has room for; how many bytes.
    fn send(&mut self, requests: &Pipeline, window: usize) -> anyhow::Result<usize> {
        let count = window - self.under_way;
        // Small pieces cost both sides more than they are worth.
        if count < window.div_ceil(4) && self.sent == 0 {
            return Ok(0);
        }
        let last = (self.next + count).min(requests.ends.len());
        let (start, end) = (requests.start(self.next) + self.sent, requests.start(last));
        if start >= end {
            return Ok(0);
        }
        let sent = match self.stream.write(&requests.bytes[start..end]) {
            Ok(sent) => sent,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        let at = start + sent;
        while self.next < last && requests.ends[self.next] <= at {
            self.next += 1;
            self.under_way += 1;
        }
        self.sent = at - requests.start(self.next);
        if self.next == requests.ends.len() {
            self.next = 0;
        }
        Ok(sent)
    }

    /// Takes what has come; how many bytes.
    fn receive(&mut self, room: &mut [u8], code: [u8; 4], got: &mut FloodTotals) -> anyhow::Result<usize> {
        let begun = self.begun.len();
        room[..begun].copy_from_slice(&self.begun);
        let len = match self.stream.read(&mut room[begun..]) {
            Ok(0) => anyhow::bail!("the server closed a connection"),
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        let all = &room[..begun + len];
        let mut at = self.skip;
        while let Some(head) = all.get(at..at + RESPONSE_CODE_AT + 4) {
            let message_len = u32::from_be_bytes([head[16], head[17], head[18], head[19]]);
            got.answers += 1;
            got.wrong += u64::from(head[RESPONSE_CODE_AT..] != code);
            self.under_way = self.under_way.saturating_sub(1);
            at += Envelope::LEN + message_len as usize;
        }
        self.begun.clear();
        self.skip = at.saturating_sub(all.len());
        self.begun.extend_from_slice(all.get(at..).unwrap_or_default());
        Ok(len)
    }
}

/// Connections that say nothing, and such that have begun to.
pub struct Crowd {
    /// They never send.
    pub idle: Vec<TcpStream>,
    slow: Vec<TcpStream>,
    next: usize,
}

impl Crowd {
    /// Connects to the server at `to`.
    ///
    /// # Errors
    /// Those of the kernel: too many files, above all.
    pub fn gather(to: SocketAddr, idle_count: usize, slow_count: usize) -> std::io::Result<Self> {
        let connect = |count: usize| -> std::io::Result<Vec<_>> {
            (0..count).map(|_| TcpStream::connect(to)).collect()
        };
        Ok(Self { idle: connect(idle_count)?, slow: connect(slow_count)?, next: 0 })
    }

    /// Lets so many of the slow ones send a byte, in turns. The bytes make envelopes of messages that go on for
    /// thousands of bytes.
    ///
    /// # Errors
    /// When one is gone.
    pub fn trickle(&mut self, count: usize) -> std::io::Result<()> {
        const MESSAGE: [u8; Envelope::LEN] =
            [2, 11, 2, 11, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xff, 0];
        for _ in 0..count {
            let (round, at) = (self.next / self.slow.len(), self.next % self.slow.len());
            self.slow[at].write_all(&[MESSAGE.get(round).copied().unwrap_or_default()])?;
            self.next += 1;
        }
        Ok(())
    }
}
