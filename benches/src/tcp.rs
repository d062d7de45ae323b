//! A closed loop of requests over connections, with a constant number of outstanding requests on
//! each.

use crate::flood::FloodTotals;
use crate::requests::Requests;
use anyhow::{Context as _, ensure};
use handle_proto::OpFlags;
use handle_proto::wire::Envelope;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Offset of the flags of a request, after the envelope and two codes.
const FLAGS_AT: usize = Envelope::LEN + 8;
/// Offset of the response code of an answer.
const RESPONSE_CODE_AT: usize = Envelope::LEN + 4;
/// Most bytes of one read.
const READ_LEN: usize = 256 << 10;

/// Requests that keep the connection open, in one buffer.
pub struct Pipeline {
    bytes: Vec<u8>,
    /// End of each request in `bytes`.
    ends: Vec<usize>,
}

impl Pipeline {
    /// Encodes `requests` for connections.
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

/// A client with several connections.
pub struct TcpFlood<'p> {
    requests: &'p Pipeline,
    connections: Vec<BenchConnection>,
    window: usize,
    code: [u8; 4],
    buffer: Box<[u8]>,
}

struct BenchConnection {
    stream: TcpStream,
    /// Number of the next request that is not completely sent.
    next: usize,
    /// Bytes of it that are sent.
    sent: usize,
    outstanding: usize,
    /// The beginning of an answer.
    begun: Vec<u8>,
    /// Bytes still to be received of an answer that is counted already.
    skip: usize,
}

impl<'p> TcpFlood<'p> {
    /// Opens `connections_count` connections to the server at `to`, and expects answers with
    /// response code `code`.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn connect(
        requests: &'p Pipeline,
        to: SocketAddr,
        connections_count: usize,
        window: usize,
        code: i32,
    ) -> anyhow::Result<Self> {
        ensure!(
            window > 0 && window < requests.ends.len(),
            "the window must be below {}, not {window}",
            requests.ends.len()
        );
        let connect = |at: usize| -> std::io::Result<BenchConnection> {
            let stream = TcpStream::connect(to)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let next = at * requests.ends.len() / connections_count;
            Ok(BenchConnection { stream, next, sent: 0, outstanding: 0, begun: Vec::new(), skip: 0 })
        };
        Ok(Self {
            requests,
            connections: (0..connections_count).map(connect).collect::<std::io::Result<_>>()?,
            window,
            code: code.to_be_bytes(),
            buffer: vec![0; READ_LEN].into_boxed_slice(),
        })
    }

    /// Loads the server for `duration`. Requests outstanding at the end are answered in the next
    /// run.
    ///
    /// # Errors
    /// When a connection ends.
    pub fn run(&mut self, duration: Duration) -> anyhow::Result<FloodTotals> {
        let start = Instant::now();
        let mut totals = FloodTotals::default();
        while start.elapsed() < duration {
            let mut moved = 0;
            for connection in &mut self.connections {
                moved += connection.send(self.requests, self.window)?;
                moved += connection.receive(&mut self.buffer, self.code, &mut totals)?;
            }
            if moved == 0 {
                self.wait()?;
            }
        }
        totals.seconds = start.elapsed().as_secs_f64();
        Ok(totals)
    }

    fn wait(&self) -> std::io::Result<()> {
        let mut fds: Vec<_> =
            self.connections.iter().map(|one| PollFd::new(&one.stream, PollFlags::IN)).collect();
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 }))?;
        Ok(())
    }
}

impl BenchConnection {
    /// Sends as many requests as the window allows; returns the bytes sent.
    fn send(&mut self, requests: &Pipeline, window: usize) -> anyhow::Result<usize> {
        let count = window - self.outstanding;
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
            self.outstanding += 1;
        }
        self.sent = at - requests.start(self.next);
        if self.next == requests.ends.len() {
            self.next = 0;
        }
        Ok(sent)
    }

    /// Receives available answers; returns the bytes received.
    fn receive(
        &mut self,
        buffer: &mut [u8],
        code: [u8; 4],
        totals: &mut FloodTotals,
    ) -> anyhow::Result<usize> {
        let begun = self.begun.len();
        buffer[..begun].copy_from_slice(&self.begun);
        let len = match self.stream.read(&mut buffer[begun..]) {
            Ok(0) => anyhow::bail!("the server closed a connection"),
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        let all = &buffer[..begun + len];
        let mut at = self.skip;
        while let Some(head) = all.get(at..at + RESPONSE_CODE_AT + 4) {
            let message_len = u32::from_be_bytes([head[16], head[17], head[18], head[19]]);
            totals.answers += 1;
            totals.wrong += u64::from(head[RESPONSE_CODE_AT..] != code);
            self.outstanding = self.outstanding.saturating_sub(1);
            at += Envelope::LEN + message_len as usize;
        }
        self.begun.clear();
        self.skip = at.saturating_sub(all.len());
        self.begun.extend_from_slice(all.get(at..).unwrap_or_default());
        Ok(len)
    }
}

/// Many idle connections, and slow ones that send single bytes.
pub struct ConnectionCrowd {
    /// Connections that send nothing by themselves.
    pub idle: Vec<TcpStream>,
    slow: Vec<TcpStream>,
    /// What each slow connection sends; its last byte is repeated without end.
    message: &'static [u8],
    next: usize,
}

/// The envelope of a message of 65280 bytes, for slow connections.
pub const SLOW_MESSAGE: &[u8; Envelope::LEN] =
    &[2, 11, 2, 11, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xff, 0];

impl ConnectionCrowd {
    /// Connects to the server at `to`. Slow connections will send `message`.
    ///
    /// # Errors
    /// Errors of the kernel, mostly too many open files.
    pub fn gather(
        to: SocketAddr,
        idle_count: usize,
        slow_count: usize,
        message: &'static [u8],
    ) -> anyhow::Result<Self> {
        let connect = |count: usize| -> anyhow::Result<Vec<_>> {
            let connections = (0..count).map(|_| TcpStream::connect(to)).collect::<std::io::Result<_>>();
            connections.context("cannot open all connections (check `ulimit -n`)")
        };
        Ok(Self { idle: connect(idle_count)?, slow: connect(slow_count)?, message, next: 0 })
    }

    /// Sends `request` on each idle connection, and waits for the start of an answer.
    ///
    /// # Errors
    /// When a connection is closed or not answered.
    pub fn exchange(&mut self, request: &[u8]) -> std::io::Result<()> {
        let mut buffer = [0; 4096];
        for stream in &mut self.idle {
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            stream.write_all(request)?;
            if stream.read(&mut buffer)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Runs `measure` while each slow connection sends a byte per second.
    ///
    /// # Errors
    /// Those of `measure`, and when a connection is closed.
    pub fn beside<T>(&mut self, measure: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (crowd, stop) = (self, &stop);
            let trickle = scope.spawn(move || -> std::io::Result<()> {
                while !stop.load(Ordering::Relaxed) {
                    crowd.trickle(crowd.slow.len() / 100)?;
                    std::thread::sleep(Duration::from_millis(10));
                }
                Ok(())
            });
            let measured = measure();
            stop.store(true, Ordering::Relaxed);
            let trickled = trickle.join().map_err(|_| anyhow::anyhow!("the slow connections panicked"))?;
            trickled.context("a slow connection was closed")?;
            measured
        })
    }

    /// Sends a byte on each of the next `count` slow connections, in turn.
    fn trickle(&mut self, count: usize) -> std::io::Result<()> {
        for _ in 0..count {
            let (round, at) = (self.next / self.slow.len(), self.next % self.slow.len());
            let byte = self.message.get(round).or(self.message.last()).copied().unwrap_or_default();
            self.slow[at].write_all(&[byte])?;
            self.next += 1;
        }
        Ok(())
    }
}
