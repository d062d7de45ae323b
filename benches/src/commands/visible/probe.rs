//! Asks every worker for what was changed, until each answers with it.

use super::keeper::{CHANGED, Keeper, changed_record, now_ns};
use anyhow::ensure;
use handle_benches::records::RecordGenerator;
use handle_benches::requests::{RequestKind, request};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::mpsc::{TryRecvError, channel};
use std::time::Duration;

/// Sockets for each worker: the kernel spreads them by their ports, so with so many each worker has some.
const SOCKETS_PER_WORKER: usize = 8;
/// Between two questions for the same change.
const ASK_INTERVAL: Duration = Duration::from_millis(1);
/// Changes that are asked for at a time, the oldest first.
const ASKED_MAX: usize = 8;
/// What is not visible for so long never will be.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sockets that reach every worker.
pub(crate) struct Probe {
    generator: RecordGenerator,
    sockets: Vec<UdpSocket>,
}

/// A change that was acknowledged.
struct AcknowledgedChange {
    nth: u64,
    acknowledged_ns: u64,
    request: Vec<u8>,
    /// Which sockets have had it in an answer.
    seen: Vec<bool>,
}

impl Probe {
    pub(crate) fn open(server: SocketAddr, workers: usize) -> anyhow::Result<Self> {
        let count = if workers == 1 { 1 } else { workers * SOCKETS_PER_WORKER };
        let open = || -> std::io::Result<UdpSocket> {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            socket.connect(server)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let sockets = (0..count).map(|_| open()).collect::<Result<_, _>>()?;
        Ok(Self { generator: RecordGenerator::new()?, sockets })
    }

    /// Follows a row of changes: nanoseconds from the acknowledgement of each until all sockets had it in an answer.
    pub(crate) fn follow(&mut self, keeper: &mut Keeper) -> anyhow::Result<Vec<u64>> {
        let records = keeper.records;
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            let hearing = scope.spawn(move || -> anyhow::Result<()> {
                while let Some(acknowledged) = keeper.acknowledged()? {
                    tell.send(acknowledged)?;
                }
                Ok(())
            });
            let (mut waiting, mut visible, mut is_last) = (VecDeque::new(), Vec::new(), false);
            while !(is_last && waiting.is_empty()) {
                loop {
                    match told.try_recv() {
                        Ok((nth, at)) => waiting.push_back(self.waiting(nth, at, records)),
                        Err(TryRecvError::Empty) => break,
                        Err(TryRecvError::Disconnected) => {
                            is_last = true;
                            break;
                        }
                    }
                }
                self.ask(&mut waiting, &mut visible);
                let oldest =
                    waiting.front().map_or(0, |change| now_ns().saturating_sub(change.acknowledged_ns));
                ensure!(Duration::from_nanos(oldest) < PATIENCE, "a change does not become visible");
                std::thread::sleep(ASK_INTERVAL);
            }
            hearing.join().map_err(|_| anyhow::anyhow!("who hears the store panicked"))??;
            Ok(visible)
        })
    }

    fn waiting(&self, nth: u64, acknowledged_ns: u64, records: u64) -> AcknowledgedChange {
        let mut handle = Vec::new();
        self.generator.handle(changed_record(nth, records), &mut handle);
        let id = i32::try_from(nth % (1 << 30)).unwrap_or_default();
        let seen = vec![false; self.sockets.len()];
        AcknowledgedChange { nth, acknowledged_ns, request: request(&handle, RequestKind::Plain, id), seen }
    }

    /// Asks for the oldest changes where they were not seen yet, and takes what has been answered.
    fn ask(&self, waiting: &mut VecDeque<AcknowledgedChange>, visible: &mut Vec<u64>) {
        for change in waiting.iter().take(ASKED_MAX) {
            for (socket, _) in self.sockets.iter().zip(&change.seen).filter(|(_, seen)| !**seen) {
                // What is not sent is asked again.
                let _ = socket.send(&change.request);
            }
        }
        let mut answer = [0; 1024];
        for (at, socket) in self.sockets.iter().enumerate() {
            while let Ok(len) = socket.recv(&mut answer) {
                let Some(shown) = shown(&answer[..len]) else { continue };
                let now = now_ns();
                let change = waiting.iter_mut().find(|change| change.nth == shown);
                let Some(change) = change else { continue };
                change.seen[at] = true;
                if change.seen.iter().all(|&seen| seen) {
                    visible.push(now.saturating_sub(change.acknowledged_ns));
                    waiting.retain(|change| change.nth != shown);
                }
            }
        }
    }
}

/// The number of the change that an answer shows.
fn shown(answer: &[u8]) -> Option<u64> {
    let at = answer.windows(CHANGED.len()).position(|some| some == CHANGED.as_bytes())?;
    let rest = &answer[at + CHANGED.len()..];
    let digits = rest.split(|&byte| byte == b'/').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}
