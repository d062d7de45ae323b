//! A closed loop of requests: as many under way as a window allows, so that the server is never idle
//! for want of them.

use crate::requests::Requests;
use handle_net::{Choice, Datapath, Options, Peer, open};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Requests under way: enough for full batches, few enough for the receive queues.
pub const WINDOW: usize = 512;
/// What is lost for this long is asked again.
const LOST_AFTER: Duration = Duration::from_millis(10);
/// Where the response code is, behind the envelope and the operation code.
const RESPONSE_CODE_AT: usize = 24;

/// What came back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Got {
    /// Datagrams.
    pub answers: u64,
    /// Those with another response code than expected.
    pub wrong: u64,
    /// Requests that were given up.
    pub lost: u64,
    /// How long it took.
    pub seconds: f64,
}

impl Got {
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
    next: usize,
    window: usize,
    code: [u8; 4],
}

impl<'r> Flood<'r> {
    /// A client that sends `requests` around and expects answers with response code `code`.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn open(requests: &'r Requests, window: usize, code: i32) -> io::Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let options =
            Options { batch_len: 256, outbox_datagrams: window, ..Options::new(address).one_at_a_time() };
        let path = open(Choice::Portable, &options)?.path;
        Ok(Self { path, requests, next: 0, window, code: code.to_be_bytes() })
    }

    /// Loads the server at `to` for so long.
    ///
    /// # Errors
    /// When the path is of no more use.
    pub fn run(&mut self, to: SocketAddr, duration: Duration) -> io::Result<Got> {
        self.until(to, |_, start| start.elapsed() >= duration)
    }

    /// Loads the server at `to` until there were so many answers.
    ///
    /// # Errors
    /// When the path is of no more use.
    pub fn run_for_answers(&mut self, to: SocketAddr, answers: u64) -> io::Result<Got> {
        self.until(to, |got, _| got.answers >= answers)
    }

    fn until(&mut self, to: SocketAddr, mut is_end: impl FnMut(&Got, Instant) -> bool) -> io::Result<Got> {
        let (peer, start) = (Peer::to(to), Instant::now());
        let (mut got, mut under_way) = (Got::default(), 0);
        while !is_end(&got, start) {
            while under_way < self.window {
                let request = self.requests.get(self.next);
                let copy = |room: &mut [u8]| {
                    room.copy_from_slice(request);
                    request.len()
                };
                if self.path.outbox().push(peer, request.len(), copy).is_err() {
                    break;
                }
                self.next += 1;
                under_way += 1;
            }
            self.path.flush()?;
            let inbox = self.path.wait(LOST_AFTER)?.inbox;
            if inbox.is_empty() {
                got.lost += under_way as u64;
                under_way = 0;
            }
            under_way = under_way.saturating_sub(inbox.len());
            got.answers += inbox.len() as u64;
            let is_right =
                |bytes: &[u8]| bytes.get(RESPONSE_CODE_AT..).is_some_and(|b| b.starts_with(&self.code));
            got.wrong += inbox.iter().filter(|datagram| !is_right(datagram.bytes)).count() as u64;
        }
        got.seconds = start.elapsed().as_secs_f64();
        // What is still under way must not count in the next run.
        while !self.path.wait(LOST_AFTER)?.inbox.is_empty() {}
        Ok(got)
    }
}
