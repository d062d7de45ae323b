//! The turns of questions: how many are under way at a time, and whose is next.
//!
//! A question waits for a permit of its client, for a permit of its prefix, and then for a turn.
//! One client and one prefix have a share of the turns, so a client that asks about a service that
//! takes seconds to answer delays its own questions and those about that service. Turns that become
//! free go to the source for which others have worked least ([`FairQueue`]), so a source with many
//! questions does not delay one with few.

use handle_auth::cost::Units;
use handle_auth::fair::FairQueue;
use handle_auth::source::{self, RequestOrigin, SourceList};
use handle_daemon::threads::lock;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

/// Questions that wait for a turn, after which those that have given up are removed for the first
/// time.
const SWEPT_LEN_MIN: usize = 1024;

/// The share of one user of `permits`, of which each gets one of `shares` equal parts, rounded up.
const fn share_of(permits: usize, shares: usize) -> usize {
    permits.div_ceil(shares)
}

/// A number of permits for each key.
#[derive(Debug)]
pub(crate) struct ShareTable<K: Hash + Eq + Clone> {
    permits: usize,
    used: Arc<Mutex<HashMap<K, Arc<Semaphore>>>>,
}

/// The use of a permit; or the wait for one, without a permit.
#[derive(Debug)]
pub(crate) struct SharePermit<K: Hash + Eq + Clone> {
    key: K,
    used: Arc<Mutex<HashMap<K, Arc<Semaphore>>>>,
    permit: Option<OwnedSemaphorePermit>,
}

impl<K: Hash + Eq + Clone> ShareTable<K> {
    pub(crate) fn new(permits: usize, shares: usize) -> Self {
        Self { permits: share_of(permits, shares), used: Arc::default() }
    }

    fn begin(&self, key: K) -> (SharePermit<K>, Arc<Semaphore>) {
        let mut used = lock(&self.used);
        let semaphore =
            used.entry(key.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.permits))).clone();
        drop(used);
        (SharePermit { key, used: Arc::clone(&self.used), permit: None }, semaphore)
    }

    /// Waits for a permit of `key`, behind those who came before.
    async fn take(&self, key: K) -> SharePermit<K> {
        let (mut permit, semaphore) = self.begin(key);
        permit.permit = semaphore.acquire_owned().await.ok();
        permit
    }

    /// A permit of `key`, if one is free.
    pub(crate) fn try_take(&self, key: K) -> Option<SharePermit<K>> {
        let (mut permit, semaphore) = self.begin(key);
        permit.permit = Some(semaphore.try_acquire_owned().ok()?);
        Some(permit)
    }
}

impl<K: Hash + Eq + Clone> Drop for SharePermit<K> {
    fn drop(&mut self) {
        self.permit = None;
        let mut used = lock(&self.used);
        // Those who use a permit or wait for one have another reference.
        if used.get(&self.key).is_some_and(|semaphore| Arc::strong_count(semaphore) == 1) {
            used.remove(&self.key);
        }
    }
}

/// The turns of all questions.
#[derive(Debug)]
pub(crate) struct QuestionTurns {
    by_source: ShareTable<IpAddr>,
    by_prefix: ShareTable<Vec<u8>>,
    /// Sources without a limit.
    exempt: SourceList,
    queue: Arc<TurnQueue>,
}

/// The turn of a question. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct QuestionTurn {
    _turn: FreeTurn,
    _of_prefix: SharePermit<Vec<u8>>,
    _of_source: Option<SharePermit<IpAddr>>,
}

impl QuestionTurns {
    /// So many turns at a time, of which one source that is not `exempt`, and one prefix, gets one
    /// of `shares` equal parts.
    pub(crate) fn new(turns: usize, shares: usize, exempt: SourceList) -> Self {
        Self {
            by_source: ShareTable::new(turns, shares),
            by_prefix: ShareTable::new(turns, shares),
            exempt,
            queue: Arc::new(TurnQueue::new(turns)),
        }
    }

    /// Waits for the turn of a question about `prefix`. Without `origin` it is one of the cache
    /// itself.
    pub(crate) async fn take(&self, origin: Option<RequestOrigin>, prefix: Vec<u8>) -> QuestionTurn {
        let limited = origin.filter(|origin| !self.exempt.contains(origin.ip));
        let of_source = match limited {
            Some(origin) => Some(self.by_source.take(source::of(origin.ip)).await),
            None => None,
        };
        let of_prefix = self.by_prefix.take(prefix).await;
        let itself = RequestOrigin::connection(Ipv4Addr::UNSPECIFIED.into());
        let turn = self.queue.take(origin.unwrap_or(itself)).await;
        QuestionTurn { _turn: turn, _of_prefix: of_prefix, _of_source: of_source }
    }
}

/// The turns that are free, and who waits for one.
#[derive(Debug)]
struct TurnQueue {
    started: Instant,
    state: Mutex<TurnQueueState>,
}

#[derive(Debug)]
struct TurnQueueState {
    free: usize,
    waiting: FairQueue<WaitingQuestion>,
    /// Number of waiting questions at which those that have given up are removed.
    swept_len: usize,
}

#[derive(Debug)]
struct WaitingQuestion {
    origin: RequestOrigin,
    turn: oneshot::Sender<FreeTurn>,
}

/// A turn that goes to the next one when it is dropped.
#[derive(Debug)]
struct FreeTurn {
    queue: Arc<TurnQueue>,
    origin: RequestOrigin,
    since: Instant,
}

impl TurnQueue {
    fn new(turns: usize) -> Self {
        let state = TurnQueueState { free: turns, waiting: FairQueue::default(), swept_len: SWEPT_LEN_MIN };
        Self { started: Instant::now(), state: Mutex::new(state) }
    }

    async fn take(self: &Arc<Self>, origin: RequestOrigin) -> FreeTurn {
        let turn = {
            let mut state = lock(&self.state);
            if state.free > 0 {
                state.free -= 1;
                return self.turn_of(origin);
            }
            if state.waiting.len() >= state.swept_len {
                state.waiting.retain(|waiting| !waiting.turn.is_closed());
                state.swept_len = SWEPT_LEN_MIN.max(2 * state.waiting.len());
            }
            let (sender, turn) = oneshot::channel();
            state.waiting.push(origin, WaitingQuestion { origin, turn: sender });
            turn
        };
        turn.await.expect("the queue drops no question that waits")
    }

    fn turn_of(self: &Arc<Self>, origin: RequestOrigin) -> FreeTurn {
        FreeTurn { queue: Arc::clone(self), origin, since: Instant::now() }
    }

    /// The next question that has not given up; without one, the turn is free.
    fn next(&self, done: RequestOrigin, took: Units) -> Option<WaitingQuestion> {
        let now_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut state = lock(&self.state);
        state.waiting.charge(done, took, now_ms);
        loop {
            match state.waiting.pop(now_ms) {
                Some(next) if next.turn.is_closed() => {}
                None => {
                    state.free += 1;
                    return None;
                }
                next => return next,
            }
        }
    }
}

impl Drop for FreeTurn {
    fn drop(&mut self) {
        let took = Units::try_from(self.since.elapsed().as_micros()).unwrap_or(Units::MAX);
        let Some(next) = self.queue.next(self.origin, took) else { return };
        // If it gives up at this moment, its turn ends here in the same way.
        let _ = next.turn.send(self.queue.turn_of(next.origin));
    }
}

#[cfg(test)]
mod tests;
