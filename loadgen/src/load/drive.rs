//! The loop that moves a worker's requests and answers through a datapath.

use std::io;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use handle_net::Datapath;

use crate::clock::Clock;
use crate::load::idle::{IdleStrategy, TICK_NS, sleep_ns};
use crate::load::worker::{Interval, LoadWorker};

/// Longest sleep. It bounds the reaction to a stop and to expired requests.
const TIMEOUT_MAX_NS: u64 = 10_000_000;

/// Sends due requests and receives answers until the worker is done. Calls `tick` once a second,
/// with the number of the second and the time.
///
/// # Errors
///
/// If the datapath fails.
pub(crate) fn drive(
    worker: &mut LoadWorker<'_>,
    path: &mut dyn Datapath,
    clock: Clock,
    idle: IdleStrategy,
    stop: &AtomicBool,
    mut tick: impl FnMut(u64, u64, Interval),
) -> io::Result<()> {
    let mut second = 0;
    clock.wait_for_start();
    loop {
        if stop.load(Ordering::Relaxed) {
            worker.stop();
        }
        let now_ns = clock.now_ns();
        worker.push_due(now_ns, path.outbox());
        if !path.outbox().is_empty() {
            let flushed = path.flush()?;
            worker.flushed(clock.now_ns(), flushed);
        }
        let timeout = timeout(worker, idle, clock.now_ns());
        let inbox = path.wait(timeout)?.inbox;
        let now_ns = clock.now_ns();
        for datagram in inbox.iter() {
            for segment in datagram.segments() {
                worker.receive(now_ns, datagram.peer, segment, !datagram.truncated);
            }
        }
        worker.advance(now_ns);
        let is_done = worker.is_done(now_ns);
        if now_ns >= (second + 1) * TICK_NS || is_done {
            tick(second, now_ns, worker.tick());
            second = now_ns / TICK_NS;
        }
        if is_done {
            return Ok(());
        }
    }
}

/// How long to wait for answers: not at all close to the next request, to send it on time.
fn timeout(worker: &LoadWorker<'_>, idle: IdleStrategy, now_ns: u64) -> Duration {
    let Some(due_ns) = worker.next_due_ns(now_ns) else { return Duration::from_nanos(TIMEOUT_MAX_NS) };
    Duration::from_nanos(sleep_ns(idle, due_ns.saturating_sub(now_ns)).min(TIMEOUT_MAX_NS))
}

/// Makes the kernel wake this thread on time, and not up to 50 us later to save power.
///
/// # Errors
///
/// Errors of the kernel. Wake-ups are then late, and the schedule error shows by how much.
pub(crate) fn wake_on_time() -> io::Result<()> {
    Ok(rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?)
}
