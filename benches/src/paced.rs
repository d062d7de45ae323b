//! An open loop of requests: each at its time, whatever has come back, and how long each took from that time.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "nanoseconds and counts of a run"
)]

use crate::requests::Requests;
use handle_net::{Datapath, DatapathChoice, Peer, SocketOptions, open};
use handle_proto::limit::UDP_MESSAGE_LEN_MAX;
use hdrhistogram::Histogram;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Requests that are put into one send: what is due when the loop comes around, and no more.
const SEND_MAX: usize = 64;
/// Requests that may be without an answer; later ones take the place of the oldest.
const UNDER_WAY_MAX: usize = 1 << 16;
/// How long answers are waited for at the end.
const LAST_WAIT: Duration = Duration::from_millis(50);
/// Where the id of a message is.
const REQUEST_ID_AT: usize = 8;
/// Bit of the ids of requests that are asked beside the others, and not measured.
const BESIDE: u32 = 1 << 20;
/// Addresses that ask in turn, so that no batch has two datagrams of one.
const PEERS: u32 = 1024;

/// What came of a run.
#[derive(Debug)]
pub struct PacedTimes {
    /// From when a request was due to its answer, in nanoseconds.
    pub response: Histogram<u64>,
    /// Requests sent.
    pub sent: u64,
    /// Of them, without an answer.
    pub lost: u64,
    /// Datagrams that came for requests asked beside.
    pub beside: u64,
}

/// Requests that are asked at a rate of their own, beside those that are measured.
#[derive(Clone, Copy, Debug)]
pub struct BackgroundLoad<'r> {
    /// What is asked, around.
    pub requests: &'r Requests,
    /// How many a second.
    pub rate: f64,
}

impl PacedTimes {
    /// Microseconds within which so many of a hundred answers came.
    #[must_use]
    pub fn percentile_us(&self, percentile: f64) -> f64 {
        self.response.value_at_percentile(percentile) as f64 / 1e3
    }
}

/// A client.
pub struct PacedClient<'r> {
    path: Box<dyn Datapath>,
    requests: &'r Requests,
    /// When the request with each id, modulo the length, was due.
    due_ns: Vec<u64>,
}

impl<'r> PacedClient<'r> {
    /// A client that sends `requests` around.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn open(requests: &'r Requests) -> io::Result<Self> {
        let options = SocketOptions {
            batch_len: 256,
            outbox_datagrams: SEND_MAX + 1,
            outbox_len: (SEND_MAX + 1) * UDP_MESSAGE_LEN_MAX,
            ..SocketOptions::new(SocketAddr::from(([0, 0, 0, 0], 0)))
        };
        let path = open(DatapathChoice::Portable, &options.one_at_a_time())?.path;
        Ok(Self { path, requests, due_ns: vec![0; UNDER_WAY_MAX] })
    }

    /// Sends `rate` requests a second to the server at `to`, for so long, and others beside.
    ///
    /// # Errors
    /// When the path is of no more use.
    pub fn run(
        &mut self,
        to: SocketAddr,
        rate: f64,
        duration: Duration,
        beside: Option<BackgroundLoad<'_>>,
    ) -> io::Result<PacedTimes> {
        let mut times = PacedTimes {
            response: Histogram::new_with_bounds(100, 10_000_000_000, 3).map_err(io::Error::other)?,
            sent: 0,
            lost: 0,
            beside: 0,
        };
        let mut sent_beside = 0;
        let (step_ns, count) = (1e9 / rate, (rate * duration.as_secs_f64()) as u64);
        let start = Instant::now();
        let now_ns = || start.elapsed().as_nanos() as u64;
        let mut ended_ns = None;
        loop {
            let now = now_ns();
            let due = ((now as f64 / step_ns) as u64 + 1).min(count);
            for number in times.sent..due.min(times.sent + SEND_MAX as u64) {
                let place = number as usize % UNDER_WAY_MAX;
                self.due_ns[place] = (number as f64 * step_ns) as u64;
                let request = self.requests.get(number as usize % self.requests.len());
                ask(&mut *self.path, to, number, request, place as u32);
                times.sent = number + 1;
            }
            if let Some(beside) = &beside
                && times.sent < count
                && sent_beside as f64 / beside.rate < now as f64 / 1e9
            {
                let request = beside.requests.get(sent_beside as usize % beside.requests.len());
                ask(&mut *self.path, to, sent_beside, request, BESIDE);
                sent_beside += 1;
            }
            self.path.flush()?;
            let (inbox, now) = (self.path.wait(Duration::ZERO)?.inbox, now_ns());
            for answer in inbox.iter() {
                let id = answer.bytes.get(REQUEST_ID_AT..).and_then(|rest| rest.first_chunk());
                let id = id.map_or(0, |id| u32::from_be_bytes(*id));
                if id & BESIDE != 0 {
                    times.beside += 1;
                    continue;
                }
                let place = id as usize % UNDER_WAY_MAX;
                let due_ns = std::mem::replace(&mut self.due_ns[place], u64::MAX);
                if let Some(took) = now.checked_sub(due_ns) {
                    times.response.saturating_record(took);
                }
            }
            if times.sent == count && now - *ended_ns.get_or_insert(now) > LAST_WAIT.as_nanos() as u64 {
                times.lost = count - times.response.len();
                return Ok(times);
            }
        }
    }
}

/// Puts `request` into the outbox, under another id; `number` chooses who asks.
fn ask(path: &mut dyn Datapath, to: SocketAddr, number: u64, request: &[u8], id: u32) {
    let from = Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 1).to_bits() + number as u32 % PEERS);
    let copy = |room: &mut [u8]| {
        room.copy_from_slice(request);
        room[REQUEST_ID_AT..REQUEST_ID_AT + 4].copy_from_slice(&id.to_be_bytes());
        request.len()
    };
    // The outbox has room for all that is sent at once.
    let _ = path.outbox().push(Peer::to(to).leaving_from(IpAddr::from(from)), request.len(), copy);
}
