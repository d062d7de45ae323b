//! A closed loop of requests: as many under way as a window allows, so that the server is never idle
//! for want of them.

use crate::records::BenchRandom;
use crate::requests::Requests;
use handle_net::{Datapath, DatapathChoice, Peer, SocketOptions, open};
use handle_proto::limit::UDP_MESSAGE_LEN_MAX;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Requests under way: enough for full batches, few enough for the receive queues.
pub const WINDOW: usize = 512;
/// What is lost for this long is asked again, unless [`Flood::patient`] says otherwise.
const LOST_AFTER: Duration = Duration::from_millis(10);
/// Where the response code is, behind the envelope and the operation code.
const RESPONSE_CODE_AT: usize = 24;

/// Whether an answer is the expected one.
pub type IsRight = fn(&[u8]) -> bool;

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How many ask, in turn. They have addresses of their own, and one socket.
    pub peers: u32,
    /// Requests of one train, least and most. They are of one length, which is as frequent as it is among
    /// all requests.
    pub train_min: usize,
    /// The most.
    pub train_max: usize,
    /// Requests under way.
    pub window: usize,
}

impl Shape {
    /// One datagram at a time, and the next from somebody else: no batch has two of the same peer.
    #[must_use]
    pub const fn single(window: usize) -> Self {
        Self { peers: 1024, train_min: 1, train_max: 1, window }
    }

    const fn is_single(&self) -> bool {
        self.train_max == 1
    }
}

/// What came back.
#[derive(Clone, Copy, Debug, Default)]
pub struct FloodTotals {
    /// Datagrams.
    pub answers: u64,
    /// What they came in: trains or single datagrams.
    pub trains: u64,
    /// Those that are not as expected.
    pub wrong: u64,
    /// Requests that were given up.
    pub lost: u64,
    /// How long it took.
    pub seconds: f64,
}

impl FloodTotals {
    /// Answers a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.answers as f64 / self.seconds
    }
}

/// A client.
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
    /// A client that sends `requests` around, as `shape` says.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn open(requests: &'r Requests, shape: Shape, is_right: IsRight) -> io::Result<Self> {
        // With the addresses of all peers.
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

    /// Takes for lost only what does not come for so long: what is held up for a moment is late, and shows in the rate.
    #[must_use]
    pub const fn patient(mut self, lost_after: Duration) -> Self {
        self.lost_after = lost_after;
        self
    }

    /// Loads the server at `to` for so long.
    ///
    /// # Errors
    /// When the path is of no more use.
    pub fn run(&mut self, to: SocketAddr, duration: Duration) -> io::Result<FloodTotals> {
        self.until(to, |_, start| start.elapsed() >= duration)
    }

    /// Loads the server at `to` until there were so many answers.
    ///
    /// # Errors
    /// When the path is of no more use.
    pub fn run_for_answers(&mut self, to: SocketAddr, answers: u64) -> io::Result<FloodTotals> {
        self.until(to, |got, _| got.answers >= answers)
    }

    fn until(
        &mut self,
        to: SocketAddr,
        mut is_end: impl FnMut(&FloodTotals, Instant) -> bool,
    ) -> io::Result<FloodTotals> {
        let start = Instant::now();
        let (mut got, mut under_way) = (FloodTotals::default(), 0);
        while !is_end(&got, start) {
            while let Some(sent) = self.ask(to, self.shape.window - under_way) {
                under_way += sent;
            }
            self.path.flush()?;
            let inbox = self.path.wait(self.lost_after)?.inbox;
            if inbox.is_empty() {
                got.lost += under_way as u64;
                under_way = 0;
            }
            for train in inbox.iter() {
                let count = train.segments_count();
                under_way = under_way.saturating_sub(count);
                got.answers += count as u64;
                got.trains += 1;
                got.wrong += train.segments().filter(|answer| !(self.is_right)(answer)).count() as u64;
            }
        }
        got.seconds = start.elapsed().as_secs_f64();
        // What is still under way must not count in the next run; what does not come at all is lost.
        loop {
            let inbox = self.path.wait(self.lost_after)?.inbox;
            if inbox.is_empty() {
                break;
            }
            under_way =
                inbox.iter().fold(under_way, |left, train| left.saturating_sub(train.segments_count()));
        }
        got.lost += under_way as u64;
        Ok(got)
    }

    /// Puts the next train into the outbox; how many requests it has. `None` when it is more than `room`.
    fn ask(&mut self, to: SocketAddr, room: usize) -> Option<usize> {
        let Shape { peers, train_min, train_max, .. } = self.shape;
        if room < train_max {
            return None;
        }
        let count = train_min + self.random.below_usize(train_max - train_min + 1);
        let peer = Peer::to(to).leaving_from(address(self.peer));
        self.peer = (self.peer + 1) % peers;
        let group = self.order.group(&mut self.random);
        for _ in 0..count {
            let request = self.requests.get(self.order.next(group));
            let copy = |room: &mut [u8]| {
                room.copy_from_slice(request);
                request.len()
            };
            // The outbox has room for the window.
            self.path.outbox().push(peer, request.len(), copy).ok()?;
        }
        Some(count)
    }
}

/// All of 127.0.0.0/8 is loopback; the first are left to servers.
fn address(peer: u32) -> IpAddr {
    Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 1).to_bits() + peer).into()
}

/// Which request is next: as they come, or those of one length one after the other.
struct RequestOrder {
    /// By length. Without trains there is nothing to look up.
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

    /// A group, as likely as it is large.
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

/// A handle answer that says success.
#[must_use]
pub fn is_success(answer: &[u8]) -> bool {
    answer.get(RESPONSE_CODE_AT..).is_some_and(|rest| rest.starts_with(&[0, 0, 0, 1]))
}
