//! An open loop of requests: each is sent at its scheduled time, regardless of outstanding answers.
//! Response times count from the scheduled time.

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

/// Most requests in one send.
const SEND_MAX: usize = 64;
/// Most outstanding requests; later ones replace the oldest.
const UNDER_WAY_MAX: usize = 1 << 16;
/// How long the client waits for answers at the end.
const LAST_WAIT: Duration = Duration::from_millis(50);
/// Offset of the request id in a message.
const REQUEST_ID_AT: usize = 8;
/// Bit in the ids of background requests, which are not measured.
const BACKGROUND_BIT: u32 = 1 << 20;
/// Addresses that send in turn, so that no batch has two datagrams of one address.
const PEERS: u32 = 1024;

/// Result of a run.
#[derive(Debug)]
pub struct PacedTimes {
    /// Time from the schedule of a request to its answer, in nanoseconds.
    pub response: Histogram<u64>,
    /// Requests sent.
    pub sent: u64,
    /// Requests without an answer.
    pub lost: u64,
    /// Datagrams received in answer to background requests.
    pub background: u64,
}

/// Requests that are sent at their own rate and not measured.
#[derive(Clone, Copy, Debug)]
pub struct BackgroundLoad<'r> {
    /// The requests, sent in a cycle.
    pub requests: &'r Requests,
    /// Requests per second.
    pub rate: f64,
}

impl PacedTimes {
    /// Returns a percentile of the response times, in microseconds.
    #[must_use]
    pub fn percentile_us(&self, percentile: f64) -> f64 {
        self.response.value_at_percentile(percentile) as f64 / 1e3
    }
}

/// A client that sends requests by a schedule.
pub struct PacedClient<'r> {
    path: Box<dyn Datapath>,
    requests: &'r Requests,
    /// Scheduled time of each outstanding request, by its id modulo the length.
    due_ns: Vec<u64>,
}

impl<'r> PacedClient<'r> {
    /// Opens a client that sends `requests` in a cycle.
    ///
    /// # Errors
    /// Errors of the kernel.
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

    /// Sends `rate` requests per second to the server at `to` for `duration`, and a background
    /// load.
    ///
    /// # Errors
    /// When the datapath fails.
    pub fn run(
        &mut self,
        to: SocketAddr,
        rate: f64,
        duration: Duration,
        background: Option<BackgroundLoad<'_>>,
    ) -> io::Result<PacedTimes> {
        let mut times = PacedTimes {
            response: Histogram::new_with_bounds(100, 10_000_000_000, 3).map_err(io::Error::other)?,
            sent: 0,
            lost: 0,
            background: 0,
        };
        let mut sent_background = 0;
        let (step_ns, count) = (1e9 / rate, (rate * duration.as_secs_f64()) as u64);
        let start = Instant::now();
        let now_ns = || start.elapsed().as_nanos() as u64;
        let mut ended_ns = None;
        loop {
            let now = now_ns();
            let due = ((now as f64 / step_ns) as u64 + 1).min(count);
            for number in times.sent..due.min(times.sent + SEND_MAX as u64) {
                let slot = number as usize % UNDER_WAY_MAX;
                self.due_ns[slot] = (number as f64 * step_ns) as u64;
                let request = self.requests.get(number as usize % self.requests.len());
                push(&mut *self.path, to, number, request, slot as u32);
                times.sent = number + 1;
            }
            if let Some(background) = &background
                && times.sent < count
                && sent_background as f64 / background.rate < now as f64 / 1e9
            {
                let request = background.requests.get(sent_background as usize % background.requests.len());
                push(&mut *self.path, to, sent_background, request, BACKGROUND_BIT);
                sent_background += 1;
            }
            self.path.flush()?;
            let (inbox, now) = (self.path.wait(Duration::ZERO)?.inbox, now_ns());
            for answer in inbox.iter() {
                let id = answer.bytes.get(REQUEST_ID_AT..).and_then(|rest| rest.first_chunk());
                let id = id.map_or(0, |id| u32::from_be_bytes(*id));
                if id & BACKGROUND_BIT != 0 {
                    times.background += 1;
                    continue;
                }
                let slot = id as usize % UNDER_WAY_MAX;
                let due_ns = std::mem::replace(&mut self.due_ns[slot], u64::MAX);
                if let Some(elapsed) = now.checked_sub(due_ns) {
                    times.response.saturating_record(elapsed);
                }
            }
            if times.sent == count && now - *ended_ns.get_or_insert(now) > LAST_WAIT.as_nanos() as u64 {
                times.lost = count - times.response.len();
                return Ok(times);
            }
        }
    }
}

/// Puts `request` into the outbox with request id `id`; `number` selects the source address.
fn push(path: &mut dyn Datapath, to: SocketAddr, number: u64, request: &[u8], id: u32) {
    let from = Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 1).to_bits() + number as u32 % PEERS);
    let copy = |buffer: &mut [u8]| {
        buffer.copy_from_slice(request);
        buffer[REQUEST_ID_AT..REQUEST_ID_AT + 4].copy_from_slice(&id.to_be_bytes());
        request.len()
    };
    // The outbox holds all requests of one send.
    let _ = path.outbox().push(Peer::to(to).leaving_from(IpAddr::from(from)), request.len(), copy);
}
