//! Work that any client can cause and that takes milliseconds: key exchanges, key derivation and
//! signatures.
//!
//! A few threads of low priority do this work, in turns by source ([`handle_auth::fair`]). A source
//! that asks for much therefore delays only itself, not `handled` or other administrators. The
//! queue is bounded, in total and by source; requests beyond the bound are refused at once.

pub mod config;

use anyhow::Context as _;
use config::CostlyConfig;
use handle_auth::clock::MonotonicClock;
use handle_auth::cost::{self, Units};
use handle_auth::fair::{FairQueue, Shares};
use handle_auth::source::{RequestOrigin, SourceList};
use handle_daemon::priority::stand_back;
use handle_daemon::threads;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The nice value of these threads: other threads that wake up run first, and on a loaded machine
/// this work still makes progress.
const NICE: u8 = 10;
/// Work up to this cost is done at once: handing it to another thread takes as long.
const CHEAP: Units = cost::SIGNATURE_CHECK;
/// Time that a request waits for its work, for the case of a busy machine.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The threads for costly work, and their queue.
pub struct CostlyWork {
    state: Mutex<CostlyState>,
    /// Signalled when work is queued, and when the queue is closed.
    more: Condvar,
    clock: MonotonicClock,
    units_done: AtomicU64,
    refused: AtomicU64,
}

struct CostlyState {
    jobs: FairQueue<CostlyJob>,
    shares: Shares,
    is_closed: bool,
}

struct CostlyJob {
    origin: RequestOrigin,
    cost: Units,
    /// Does the work, and returns a function that hands over the result.
    run: Box<dyn FnOnce() -> Box<dyn FnOnce()> + Send>,
    /// If there is no result, the waiting thread continues when this is dropped.
    waiter: Box<dyn Send>,
}

impl fmt::Debug for CostlyWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CostlyWork").finish_non_exhaustive()
    }
}

/// How much costly work there was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostlyCounts {
    /// The work done or in progress, in [units](handle_auth::cost).
    pub units: u64,
    /// Requests that were refused for lack of a permit.
    pub refused: u64,
    /// Requests that wait.
    pub waiting: usize,
}

impl CostlyWork {
    /// Starts the threads. Sources in `exempt` may use all permits of the queue.
    ///
    /// # Errors
    /// When the kernel refuses to start a thread.
    pub fn start(config: &CostlyConfig, exempt: SourceList) -> anyhow::Result<Arc<Self>> {
        let state = CostlyState {
            jobs: FairQueue::default(),
            shares: Shares::new(config.requests, exempt),
            is_closed: false,
        };
        let work = Arc::new(Self {
            state: Mutex::new(state),
            more: Condvar::new(),
            clock: MonotonicClock::start(),
            units_done: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads_count = if config.threads > 0 { config.threads } else { (cores / 2).max(1) };
        for at in 0..threads_count {
            let work = Arc::clone(&work);
            let thread = threads::spawn(format!("costly-{at}"), move || {
                if let Err(error) = stand_back(false, NICE) {
                    tracing::warn!(error, "cannot lower the priority of costly work");
                }
                work.serve();
            });
            thread.context("cannot start a thread for costly work")?;
        }
        Ok(work)
    }

    fn state(&self) -> MutexGuard<'_, CostlyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the sources that may use all permits of the queue.
    pub fn set_exempt(&self, exempt: SourceList) {
        self.state().shares.set_exempt(exempt);
    }

    /// Does `work`, which costs `cost`, on behalf of `origin`, and blocks until it is done. `None`
    /// if the queue has no permit for it.
    pub fn run<T: Send + 'static>(
        &self,
        origin: RequestOrigin,
        cost: Units,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if cost <= CHEAP {
            return Some(work());
        }
        let (sender, receiver) = sync_channel(1);
        let waiter = Box::new(sender.clone());
        let run = Box::new(move || -> Box<dyn FnOnce()> {
            let result = work();
            // The receiver is gone if the work took too long.
            Box::new(move || drop(sender.send(result)))
        });
        let mut state = self.state();
        if state.is_closed || !state.shares.enter(origin) {
            drop(state);
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        state.jobs.push(origin, CostlyJob { origin, cost, run, waiter });
        drop(state);
        self.more.notify_one();
        receiver.recv_timeout(TIMEOUT).ok()
    }

    /// Processes queued work until the queue is closed.
    fn serve(&self) {
        let mut state = self.state();
        while !state.is_closed {
            let Some(CostlyJob { origin, cost, run, waiter }) = state.jobs.pop(self.clock.now_ms()) else {
                state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            // Counted before the waiting thread sees the result.
            self.units_done.fetch_add(cost, Ordering::Relaxed);
            // A panic affects only the request that caused it: the waiting thread finds that there
            // is no result.
            let done = catch_unwind(AssertUnwindSafe(run));
            if done.is_err() {
                tracing::error!("a bug ended a piece of costly work; the panic message is above");
            }
            state = self.state();
            state.shares.leave(origin);
            state.jobs.charge(origin, cost, self.clock.now_ms());
            // The permit is freed before the waiting thread continues: its client may ask again.
            if let Ok(hand_over) = done {
                hand_over();
            }
            drop(waiter);
        }
    }

    /// Closes the queue; each thread ends after its current work.
    pub fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.jobs.clear();
        drop(state);
        self.more.notify_all();
    }

    /// The work so far.
    #[must_use]
    pub fn counts(&self) -> CostlyCounts {
        CostlyCounts {
            units: self.units_done.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            waiting: self.state().jobs.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn origin(text: &str) -> RequestOrigin {
        RequestOrigin::connection(text.parse().unwrap())
    }

    /// Waits until `count` requests are queued.
    fn until_waiting(work: &CostlyWork, count: usize) {
        while work.counts().waiting != count {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_source_waits_behind_others_and_is_refused_beyond_its_share() {
        let config = CostlyConfig { threads: 1, requests: 16 };
        let work = CostlyWork::start(&config, SourceList::default()).unwrap();
        let (attacker, other) = (origin("192.0.2.1"), origin("198.51.100.1"));
        let (go_on, may_go_on) = channel::<()>();
        let (begun, has_begun) = channel();
        let (done, order) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                work.run(attacker, 100_000, move || {
                    begun.send(()).unwrap();
                    may_go_on.recv().unwrap();
                })
            });
            has_begun.recv().unwrap();
            for at in 1..=3 {
                let (work, done) = (&work, done.clone());
                scope.spawn(move || work.run(attacker, 100_000, move || done.send("attacker").unwrap()));
                until_waiting(work, at);
            }
            assert_eq!(work.run(attacker, 100_000, || ()), None, "four of sixteen places");
            assert_eq!(work.counts().refused, 1);
            let (work, done) = (&work, done.clone());
            scope.spawn(move || work.run(other, 100_000, move || done.send("other").unwrap()));
            until_waiting(work, 4);
            go_on.send(()).unwrap();
        });
        drop(done);
        assert_eq!(order.iter().collect::<Vec<_>>(), ["other", "attacker", "attacker", "attacker"]);
        assert_eq!(work.counts(), CostlyCounts { units: 500_000, refused: 1, waiting: 0 });
        work.close();
        assert_eq!(work.run(other, 100_000, || 1), None);
        assert_eq!(work.run(other, 1, || 1), Some(1), "what is cheap needs no thread");
    }

    #[test]
    fn a_panic_fails_only_its_own_request() {
        let config = CostlyConfig { threads: 1, requests: 1 };
        let work = CostlyWork::start(&config, SourceList::default()).unwrap();
        let bug = || -> u8 { panic!("a bug") };
        assert_eq!(work.run(origin("192.0.2.1"), 100_000, bug), None);
        assert_eq!(work.run(origin("192.0.2.1"), 100_000, || 7), Some(7));
        work.close();
    }
}
