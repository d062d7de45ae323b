//! Liveness and readiness of the server.

use crate::counters::CounterShards;
use crate::state::ServerState;
use handle_daemon::clock::now_unix_ms;
use handle_daemon::threads;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Envelope, Header, MessageBuf, Request};
use handle_proto::{OpCode, OpFlags};
use handle_resolver::{AnswerContext, AnswerOutcome, RefusalReason, WireReply as _, answer_message};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Tracks for how long each worker has owed a turn.
///
/// A worker counts its turns, and sleeps while there is nothing to do. If the count has not changed
/// since the last look, the observer wakes the worker, and from then on a turn is due. The worker
/// itself needs no clock.
#[derive(Debug)]
pub struct Heartbeat {
    seen: Vec<WorkerBeat>,
}

#[derive(Debug)]
struct WorkerBeat {
    turns: u64,
    /// Time since which a turn is due.
    due_since: Option<Instant>,
}

impl Heartbeat {
    /// Tracks as many workers as there are sets of counters; no worker owes a turn yet.
    #[must_use]
    pub fn new(shards: &CounterShards) -> Self {
        let beat = |turns| WorkerBeat { turns, due_since: None };
        Self { seen: shards.iter().map(|counters| beat(counters.turns.get())).collect() }
    }

    /// Reads the counts of turns. Returns whether there are workers to wake, which owe a turn from
    /// `now` on.
    #[must_use]
    pub fn look(&mut self, shards: &CounterShards, now: Instant) -> bool {
        let mut are_to_wake = false;
        for (beat, counters) in self.seen.iter_mut().zip(shards.iter()) {
            let turned = counters.turns.get();
            if turned == beat.turns {
                beat.due_since.get_or_insert(now);
                are_to_wake = true;
            } else {
                *beat = WorkerBeat { turns: turned, due_since: None };
            }
        }
        are_to_wake
    }

    /// For how long each worker owes a turn.
    pub fn ages(&self, now: Instant) -> impl Iterator<Item = Duration> {
        self.seen.iter().map(move |beat| {
            beat.due_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
        })
    }
}

/// Checks the workers of `shared`, and wakes those that sleep.
pub(crate) fn look(heartbeat: &mut Heartbeat, shared: &ServerState, now: Instant) {
    if heartbeat.look(&shared.shards, now) {
        shared.wake_workers();
    }
}

/// Descriptions of the problems; empty when the server is healthy.
pub type HealthProblems = Vec<String>;

/// Problems with liveness: workers that make no turns, threads that have ended by a bug, and
/// records that cannot be looked up.
///
/// A draining server is alive until its workers have ended.
#[must_use]
pub fn liveness(
    shared: &ServerState,
    heartbeat: &Heartbeat,
    now: Instant,
    stalled_after: Duration,
) -> HealthProblems {
    let mut ills = HealthProblems::new();
    if !shared.is_draining() {
        for (at, age) in heartbeat.ages(now).enumerate() {
            if !shared.running[at].load(Ordering::Relaxed) {
                ills.push(format!("worker {at} has ended"));
            } else if age > stalled_after {
                ills.push(format!("worker {at} has not turned for {} s", age.as_secs()));
            }
        }
    }
    if !shared.is_draining() {
        ills.extend(threads::problem());
    }
    ills.extend(look_up(shared).err());
    ills
}

/// Problems with readiness: those with liveness, draining, damaged layers, and a stale set.
#[must_use]
pub fn readiness(
    shared: &ServerState,
    heartbeat: &Heartbeat,
    now: Instant,
    stalled_after: Duration,
) -> HealthProblems {
    let mut ills = liveness(shared, heartbeat, now, stalled_after);
    // After a handover, a health check that reached this process was meant for the service, which
    // continues.
    if shared.is_draining() && !shared.is_handed_over() {
        ills.push("draining".to_owned());
    }
    if shared.workers.get().is_none() {
        ills.push("starting".to_owned());
    }
    let faults = shared.live.ledger.faults();
    ills.extend(faults.iter().map(|(entry, fault)| format!("layer {} is damaged: {fault}", entry.file)));
    let (freshness, now_unix_ms) = (shared.live.freshness(), now_unix_ms());
    if let Some(age_ms) = freshness.age_ms(now_unix_ms).filter(|_| freshness.is_stale(now_unix_ms)) {
        ills.push(format!("the set is stale: its publisher was last heard {} s ago", age_ms / 1000));
    }
    ills
}

/// A request for all public values of the handle `key`; `None` when the handle is too long for a
/// request.
pub(super) fn request(key: &[u8]) -> Option<Vec<u8>> {
    let header = Header::request(OpCode::RESOLUTION, OpFlags::PLAIN_REQUEST, 0);
    let query = Query { handle: key, indexes: Indexes::EMPTY, types: Strings::EMPTY };
    MessageBuf::request(&Envelope::request(1), &header, &Request::Resolution(query)).unsigned().ok()
}

/// Asks the resolver for the first record of each layer of the live set, as a client would.
///
/// Any answer is accepted except that the record is damaged: a newer layer may have deleted the
/// record, and another server of the site may be responsible for it.
fn look_up(shared: &ServerState) -> Result<(), String> {
    let set = shared.live.current();
    let records = set.records();
    let in_force = shared.settings.current();
    let context = AnswerContext::new(records, in_force.site.service(), 0);
    let damaged = shared.live.ledger.damaged();
    for (at, (entry, layer)) in set.manifest().layers.iter().zip(records.layers()).enumerate() {
        if damaged.contains(entry) {
            // The damage is already known and a restart would not repair it, so readiness reports
            // it instead.
            continue;
        }
        let key = match layer.records().next() {
            None => continue,
            Some(Ok(record)) => record.key().to_vec(),
            Some(Err(_)) => return Err(format!("the first record of layer {at} is damaged")),
        };
        let Some(message) = request(&key) else {
            return Err(format!("the first key of layer {at} is too long"));
        };
        let answered = catch_unwind(AssertUnwindSafe(|| {
            let Ok((envelope, bytes)) = Envelope::split(&message) else { return false };
            match answer_message(&context, envelope, bytes) {
                AnswerOutcome::Reply(reply) => reply.refused() != Some(RefusalReason::DamagedRecord),
                _ => false,
            }
        }));
        if !answered.unwrap_or(false) {
            return Err(format!("looking up a record of layer {at} fails"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_does_not_turn_when_woken_is_noticed_and_one_that_turns_again_too() {
        let (shards, start) = (CounterShards::new(2), Instant::now());
        let s = |seconds| start + Duration::from_secs(seconds);
        let mut heartbeat = Heartbeat::new(&shards);
        let ages =
            |heartbeat: &Heartbeat, at| heartbeat.ages(at).map(|age| age.as_secs()).collect::<Vec<_>>();
        for second in 1..=5 {
            shards.shard(1).turns.add(1);
            assert!(heartbeat.look(&shards, s(second)), "worker 0 is to be woken");
        }
        assert_eq!(ages(&heartbeat, s(6)), [5, 0]);
        shards.shard(0).turns.add(1);
        assert!(heartbeat.look(&shards, s(7)), "now worker 1 sleeps");
        assert_eq!(ages(&heartbeat, s(7)), [0, 0]);
        assert_eq!(ages(&heartbeat, s(9)), [0, 2], "it owes a turn since it was woken");
        shards.shard(0).turns.add(1);
        shards.shard(1).turns.add(1);
        assert!(!heartbeat.look(&shards, s(10)));
        assert_eq!(ages(&heartbeat, s(60)), [0, 0], "no probe has come, and no worker has to turn");
        assert_eq!(ages(&heartbeat, start), [0, 0], "a clock that looks back is none the worse");
    }
}
