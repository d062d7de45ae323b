//! Asks every worker for changed records until each answers with the change.

use super::keeper::{CHANGED, changed_record, now_ns};
use anyhow::ensure;
use handle_benches::records::RecordGenerator;
use handle_benches::requests::{RequestKind, request};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::mpsc::{TryRecvError, channel};
use std::time::Duration;

/// Sockets for each worker. The kernel distributes sockets by their ports; with this number, every
/// worker gets some.
const SOCKETS_PER_WORKER: usize = 8;
/// Time between two requests for the same change.
const ASK_INTERVAL: Duration = Duration::from_millis(1);
/// Most changes that are requested at a time, the oldest first.
const REQUESTED_MAX: usize = 8;
/// Time after which a change that is not visible is an error.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A client that reaches every worker.
pub(crate) struct Probe {
    generator: RecordGenerator,
    sockets: Vec<UdpSocket>,
}

/// A change that was acknowledged.
struct AcknowledgedChange {
    number: u64,
    acknowledged_ns: u64,
    request: Vec<u8>,
    /// Whether each socket has received it in an answer.
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

    /// Follows changes of `records` records: `next` has the number of each and the time of its
    /// acknowledgement, and `None` after the last one. Returns the nanoseconds from the
    /// acknowledgement of each change until all sockets received it in an answer.
    pub(crate) fn follow(
        &mut self,
        records: u64,
        mut next: impl FnMut() -> anyhow::Result<Option<(u64, u64)>> + Send,
    ) -> anyhow::Result<Vec<u64>> {
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || -> anyhow::Result<()> {
                while let Some(acknowledgement) = next()? {
                    sender.send(acknowledgement)?;
                }
                Ok(())
            });
            let (mut waiting, mut visible, mut is_last) = (VecDeque::new(), Vec::new(), false);
            while !(is_last && waiting.is_empty()) {
                loop {
                    match receiver.try_recv() {
                        Ok((number, at)) => waiting.push_back(self.change(number, at, records)),
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
                ensure!(Duration::from_nanos(oldest) < TIMEOUT, "a change does not become visible");
                std::thread::sleep(ASK_INTERVAL);
            }
            reader.join().map_err(|_| anyhow::anyhow!("the reader of acknowledgements panicked"))??;
            Ok(visible)
        })
    }

    fn change(&self, number: u64, acknowledged_ns: u64, records: u64) -> AcknowledgedChange {
        let mut handle = Vec::new();
        self.generator.handle(changed_record(number, records), &mut handle);
        let id = i32::try_from(number % (1 << 30)).unwrap_or_default();
        let seen = vec![false; self.sockets.len()];
        AcknowledgedChange {
            number,
            acknowledged_ns,
            request: request(&handle, RequestKind::Plain, id),
            seen,
        }
    }

    /// Requests the oldest changes on the sockets that have not seen them, and reads the answers.
    fn ask(&self, waiting: &mut VecDeque<AcknowledgedChange>, visible: &mut Vec<u64>) {
        for change in waiting.iter().take(REQUESTED_MAX) {
            for (socket, _) in self.sockets.iter().zip(&change.seen).filter(|(_, seen)| !**seen) {
                // A failed send is repeated in the next round.
                let _ = socket.send(&change.request);
            }
        }
        let mut answer = [0; 1024];
        for (at, socket) in self.sockets.iter().enumerate() {
            while let Ok(len) = socket.recv(&mut answer) {
                let Some(number) = shown_change(&answer[..len]) else { continue };
                let now = now_ns();
                let change = waiting.iter_mut().find(|change| change.number == number);
                let Some(change) = change else { continue };
                change.seen[at] = true;
                if change.seen.iter().all(|&seen| seen) {
                    visible.push(now.saturating_sub(change.acknowledged_ns));
                    waiting.retain(|change| change.number != number);
                }
            }
        }
    }
}

/// Returns the number of the change that an answer shows.
fn shown_change(answer: &[u8]) -> Option<u64> {
    let at = answer.windows(CHANGED.len()).position(|some| some == CHANGED.as_bytes())?;
    let rest = &answer[at + CHANGED.len()..];
    let digits = rest.split(|&byte| byte == b'/').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}
