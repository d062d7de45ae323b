//! The loop that moves a worker's requests and answers through a datapath.

use std::io;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use handle_net::Datapath;

use crate::clock::Clock;
use crate::load::options::Idle;
use crate::load::worker::{Interval, LoadWorker};

/// No sleep this close to the next request: waking up takes about as long.
pub(crate) const SPIN_NS: u64 = 100_000;

/// Longest sleep. It bounds the reaction to a stop and to expired requests.
const PATIENCE_MAX_NS: u64 = 10_000_000;

/// Time between two ticks.
pub(crate) const TICK_NS: u64 = 1_000_000_000;

/// Sends due requests and receives answers until the worker is done. Calls `tick` once a second,
/// with the number of the second and the time.
///
/// # Errors
///
/// If the datapath fails.
pub(crate) fn drive(
    worker: &mut LoadWorker<'_>,
    path: &mut dyn Datapath,
    (clock, idle): (Clock, Idle),
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
        let patience = patience(worker, idle, clock.now_ns());
        let inbox = path.wait(patience)?.inbox;
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
fn patience(worker: &LoadWorker<'_>, idle: Idle, now_ns: u64) -> Duration {
    let Some(due_ns) = worker.next_due_ns(now_ns) else { return Duration::from_nanos(PATIENCE_MAX_NS) };
    Duration::from_nanos(sleep_ns(idle, due_ns.saturating_sub(now_ns)).min(PATIENCE_MAX_NS))
}

/// The part of the time until the next request that is slept.
pub(crate) const fn sleep_ns(idle: Idle, until_ns: u64) -> u64 {
    match idle {
        Idle::Auto => until_ns.saturating_sub(SPIN_NS),
        Idle::Spin => 0,
        Idle::Sleep => until_ns,
    }
}

/// Makes the kernel wake this thread on time, and not up to 50 us later to save power.
///
/// # Errors
///
/// Errors of the kernel. Wake-ups are then late, and the schedule error shows by how much.
pub(crate) fn wake_on_time() -> io::Result<()> {
    Ok(rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_as_the_pacing_demands() {
        for (idle, until_ns, slept_ns) in [
            (Idle::Auto, SPIN_NS, 0),
            (Idle::Auto, SPIN_NS + 7, 7),
            (Idle::Spin, u64::MAX, 0),
            (Idle::Sleep, 5, 5),
            (Idle::Sleep, 0, 0),
        ] {
            assert_eq!(sleep_ns(idle, until_ns), slept_ns, "{idle} with {until_ns} ns left");
        }
    }
}
