//! A closed loop of requests: a constant number of outstanding requests, which keeps the server
//! busy.

use crate::records::BenchRandom;
use crate::requests::Requests;
use handle_net::{Datapath, DatapathChoice, Peer, SocketOptions, open};
use handle_proto::limit::UDP_MESSAGE_LEN_MAX;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Outstanding requests: enough for full batches, few enough for the receive queues.
pub const WINDOW: usize = 512;
/// Time after which outstanding requests are lost and replaced, unless [`Flood::patient`] sets
/// another.
const LOST_AFTER: Duration = Duration::from_millis(10);
/// Offset of the response code, after the envelope and the operation code.
const RESPONSE_CODE_AT: usize = 24;

/// Whether an answer is the expected one.
pub type IsRight = fn(&[u8]) -> bool;

/// How requests are distributed over peers and trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of peers, which send in turn. Each has its own address; all share one socket.
    pub peers: u32,
    /// Fewest requests in a train. All requests of a train have the same length, and each length is
    /// as frequent as among all requests.
    pub train_min: usize,
    /// Most requests in a train.
    pub train_max: usize,
    /// Outstanding requests.
    pub window: usize,
}

impl Shape {
    /// Single datagrams, each from another peer, so that no batch has two datagrams of one peer.
    #[must_use]
    pub const fn single(window: usize) -> Self {
        Self { peers: 1024, train_min: 1, train_max: 1, window }
    }

    const fn is_single(&self) -> bool {
        self.train_max == 1
    }
}

/// Totals of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct FloodTotals {
    /// Answers received.
    pub answers: u64,
    /// Trains in which the answers arrived; a single datagram counts as one.
    pub trains: u64,
    /// Answers that are not as expected.
    pub wrong: u64,
    /// Requests without an answer.
    pub lost: u64,
    /// Duration of the run.
    pub seconds: f64,
}

impl FloodTotals {
    /// Returns the answers per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.answers as f64 / self.seconds
    }
}

/// A client that keeps a window of requests outstanding.
pub struct Flood<'r> {
    path: Box<dyn Datapath>,
    requests: &'r Requests,
    order: RequestOrder,
    random: BenchRandom,
    peer: u32,
    shape: Shape,
    is_right: IsRight,
    lost_after: Duration,
}

impl<'r> Flood<'r> {
    /// Opens a client that sends `requests` in a cycle, distributed by `shape`.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn open(requests: &'r Requests, shape: Shape, is_right: IsRight) -> io::Result<Self> {
        // The socket sends from the addresses of all peers.
        let address = SocketAddr::from(([0, 0, 0, 0], 0));
        let options = SocketOptions {
            batch_len: 256,
            batch_segments: 1 << 16,
            outbox_datagrams: shape.window,
            outbox_len: shape.window * UDP_MESSAGE_LEN_MAX,
            ..SocketOptions::new(address)
        };
        let options = if shape.is_single() { options.one_at_a_time() } else { options };
        Ok(Self {
            path: open(DatapathChoice::Portable, &options)?.path,
            requests,
            order: RequestOrder::new(requests, &shape),
            random: BenchRandom(1),
            peer: 0,
            shape,
            is_right,
            lost_after: LOST_AFTER,
        })
    }

    /// Sets the time after which requests are lost. With a long time, delayed answers lower the
    /// rate and are not lost.
    #[must_use]
    pub const fn patient(mut self, lost_after: Duration) -> Self {
        self.lost_after = lost_after;
        self
    }

    /// Loads the server at `to` for `duration`.
    ///
    /// # Errors
    /// When the datapath fails.
    pub fn run(&mut self, to: SocketAddr, duration: Duration) -> io::Result<FloodTotals> {
        self.run_until(to, |_, start| start.elapsed() >= duration)
    }

    /// Loads the server at `to` until it has sent `answers` answers.
    ///
    /// # Errors
    /// When the datapath fails.
    pub fn run_for_answers(&mut self, to: SocketAddr, answers: u64) -> io::Result<FloodTotals> {
        self.run_until(to, |totals, _| totals.answers >= answers)
    }

    fn run_until(
        &mut self,
        to: SocketAddr,
        mut is_end: impl FnMut(&FloodTotals, Instant) -> bool,
    ) -> io::Result<FloodTotals> {
        let start = Instant::now();
        let (mut totals, mut outstanding) = (FloodTotals::default(), 0);
        while !is_end(&totals, start) {
            while let Some(sent) = self.push_train(to, self.shape.window - outstanding) {
                outstanding += sent;
            }
            self.path.flush()?;
            let inbox = self.path.wait(self.lost_after)?.inbox;
            if inbox.is_empty() {
                totals.lost += outstanding as u64;
                outstanding = 0;
            }
            for train in inbox.iter() {
                let count = train.segments_count();
                outstanding = outstanding.saturating_sub(count);
                totals.answers += count as u64;
                totals.trains += 1;
                totals.wrong += train.segments().filter(|answer| !(self.is_right)(answer)).count() as u64;
            }
        }
        totals.seconds = start.elapsed().as_secs_f64();
        // Late answers must not count in the next run. Requests without an answer are lost.
        loop {
            let inbox = self.path.wait(self.lost_after)?.inbox;
            if inbox.is_empty() {
                break;
            }
            outstanding =
                inbox.iter().fold(outstanding, |left, train| left.saturating_sub(train.segments_count()));
        }
        totals.lost += outstanding as u64;
        Ok(totals)
    }

    /// Puts the next train into the outbox and returns its number of requests. `None` if `capacity`
    /// is less than the longest train.
    fn push_train(&mut self, to: SocketAddr, capacity: usize) -> Option<usize> {
        let Shape { peers, train_min, train_max, .. } = self.shape;
        if capacity < train_max {
            return None;
        }
        let count = train_min + self.random.below_usize(train_max - train_min + 1);
        let peer = Peer::to(to).leaving_from(address(self.peer));
        self.peer = (self.peer + 1) % peers;
        let group = self.order.group(&mut self.random);
        for _ in 0..count {
            let request = self.requests.get(self.order.next(group));
            let copy = |buffer: &mut [u8]| {
                buffer.copy_from_slice(request);
                request.len()
            };
            // The outbox holds a whole window.
            self.path.outbox().push(peer, request.len(), copy).ok()?;
        }
        Some(count)
    }
}

/// Returns the address of a peer. All of 127.0.0.0/8 is loopback; 127.0.0.0/16 is left to servers.
fn address(peer: u32) -> IpAddr {
    Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 1).to_bits() + peer).into()
}

/// Order of the requests: as generated, or grouped by length for trains.
struct RequestOrder {
    /// Numbers of the requests, sorted by length; empty without trains.
    requests: Vec<u32>,
    groups: Vec<TrainGroup>,
}

struct TrainGroup {
    range: Range<usize>,
    next: usize,
}

impl RequestOrder {
    fn new(requests: &Requests, shape: &Shape) -> Self {
        let mut by_len: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        if !shape.is_single() {
            for (number, at) in (0u32..).zip(0..requests.len()) {
                by_len.entry(requests.get(at).len()).or_default().push(number);
            }
        }
        let (mut order, mut groups) = (Vec::new(), Vec::new());
        for numbers in by_len.into_values() {
            let start = order.len();
            order.extend(numbers);
            groups.push(TrainGroup { range: start..order.len(), next: start });
        }
        if groups.is_empty() {
            groups.push(TrainGroup { range: 0..requests.len(), next: 0 });
        }
        Self { requests: order, groups }
    }

    /// Chooses a group with a probability proportional to its size.
    fn group(&self, random: &mut BenchRandom) -> usize {
        if self.groups.len() == 1 {
            return 0;
        }
        let at = random.below_usize(self.requests.len());
        self.groups.partition_point(|group| group.range.end <= at)
    }

    fn next(&mut self, group: usize) -> usize {
        let group = &mut self.groups[group];
        let at = group.next;
        group.next = if at + 1 == group.range.end { group.range.start } else { at + 1 };
        self.requests.get(at).map_or(at, |&number| number as usize)
    }
}

/// Returns whether an answer of the handle protocol has the code for success.
#[must_use]
pub fn is_success(answer: &[u8]) -> bool {
    answer.get(RESPONSE_CODE_AT..).is_some_and(|rest| rest.starts_with(&[0, 0, 0, 1]))
}
