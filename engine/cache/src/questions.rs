//! The thread that asks other services. Any number of requests for one record wait for one
//! question.
//!
//! A question waits for its turn, and its time limit begins with it. If the cache has a record that
//! has expired, it is shown when no server answers, and already when none answers soon (RFC 8767
//! section 5).

use crate::entry::with_key;
use crate::open_questions::{OpenQuestion, QuestionKey, QuestionRole};
use crate::relay;
use crate::state::CacheState;
use crate::turns::{QuestionTurns, ShareTable};
use crate::upstream::{OriginAnswer, UpstreamFailure};
use handle_auth::source::{self, RequestOrigin};
use handle_daemon::threads;
use handle_proto::{Handle, ResponseCode, fold};
use handle_resolver::RefusalReason;
use handle_worker::cache::{MissingRecord, Resolution};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, timeout};

/// How often other spellings of changed handles are removed, which takes a look at all entries.
const CHANGES_INTERVAL: Duration = Duration::from_secs(1);

/// A task of the thread.
#[derive(Debug)]
pub enum QuestionTask {
    /// Resolve the record of this request.
    Missing(MissingRecord),
    /// Renew the record of this handle in the background.
    Renew(Box<[u8]>),
    /// End the thread.
    End,
}

/// Why a question got no answer.
enum QuestionFailure {
    /// It did not get its turn in time.
    NoTurn,
    /// It, or others about its prefix, have just failed.
    Again(UpstreamFailure),
    /// No server has answered in time.
    TooSlow,
    Upstream(UpstreamFailure),
}

/// The questions under way.
struct QuestionThread {
    state: Arc<CacheState>,
    turns: QuestionTurns,
    /// Requests that may be handed to other services at a time.
    relays: Arc<Semaphore>,
    /// Those of one source.
    relays_by_source: ShareTable<IpAddr>,
}

/// A question under way. If it is dropped without an end, because of a bug, those who wait are told
/// that no server has answered.
struct CurrentQuestion<'q> {
    state: &'q CacheState,
    key: &'q QuestionKey,
    question: &'q Arc<OpenQuestion>,
}

impl<'q> CurrentQuestion<'q> {
    fn begin(state: &'q CacheState, key: &'q QuestionKey, question: &'q Arc<OpenQuestion>) -> Self {
        state.questions_open.fetch_add(1, Ordering::Relaxed);
        Self { state, key, question }
    }
}

impl Drop for CurrentQuestion<'_> {
    fn drop(&mut self) {
        self.state.questions_open.fetch_sub(1, Ordering::Relaxed);
        drop(self.state.open.fail(self.key, self.question));
    }
}

/// A renewal in the background.
struct CurrentRenewal(Arc<CacheState>);

impl Drop for CurrentRenewal {
    fn drop(&mut self) {
        self.0.end_renewal();
    }
}

/// Asks what `tasks` demand, until one of them ends it.
pub fn run(state: Arc<CacheState>, runtime: Runtime, mut tasks: UnboundedReceiver<QuestionTask>) {
    let config = &state.config.upstream;
    let questions = Arc::new(QuestionThread {
        turns: QuestionTurns::new(config.questions, config.shares, state.exempt.clone()),
        relays: Arc::new(Semaphore::new(config.relays)),
        relays_by_source: ShareTable::new(config.relays, config.shares),
        state: Arc::clone(&state),
    });
    runtime.block_on(async {
        tokio::spawn(threads::watch("changed handles", remove_changed(Arc::clone(&state))));
        while let Some(task) = tasks.recv().await {
            match task {
                QuestionTask::Missing(missing) if missing.relayed().is_some() => questions.relay(missing),
                QuestionTask::Missing(missing) => questions.resolve_missing(missing),
                QuestionTask::Renew(handle) => questions.renew(&handle),
                QuestionTask::End => break,
            }
        }
    });
    // Looking up the name of a server may block a thread for long.
    runtime.shutdown_background();
    state.open.abandon();
}

/// Removes, once a second, what is known about handles that have changed.
async fn remove_changed(state: Arc<CacheState>) {
    loop {
        tokio::time::sleep(CHANGES_INTERVAL).await;
        if state.has_changed() {
            let state = Arc::clone(&state);
            // After a panic there, other names follow in a second.
            let _ = tokio::task::spawn_blocking(move || state.remove_changed()).await;
        }
    }
}

impl QuestionThread {
    fn resolve_missing(self: &Arc<Self>, missing: MissingRecord) {
        let handle = missing.handle().0.to_vec();
        let key = key_of(&handle, missing.is_authoritative(), missing.recursion_count());
        let origin = missing.origin();
        // The question of another request may have been answered since the cache was looked into.
        let known = || if key.is_authoritative { None } else { self.state.fresh(Handle(&handle)) };
        match self.state.open.join(&key, missing, known) {
            QuestionRole::Ask(question) => {
                tokio::spawn(Arc::clone(self).ask(key, question, handle, origin));
            }
            QuestionRole::Waits => self.state.counters.coalesced.add(),
            QuestionRole::Show(missing, shown) => {
                self.state.counters.coalesced.add();
                missing.settle(shown);
            }
        }
    }

    /// Hands a request to the responsible service, on a thread of its own.
    fn relay(&self, missing: MissingRecord) {
        let limited = missing.source().filter(|ip| !self.state.exempt.contains(*ip)).map(source::of);
        let of_source = limited.map(|ip| self.relays_by_source.try_take(ip));
        let has_share = !matches!(of_source, Some(None));
        let turn = has_share.then(|| Arc::clone(&self.relays).try_acquire_owned().ok()).flatten();
        let Some(turn) = turn else {
            self.state.counters.relays_failed.add();
            return missing.settle(Resolution::Failed(RefusalReason::TooManyQuestions));
        };
        let state = Arc::clone(&self.state);
        tokio::task::spawn_blocking(move || {
            let resolution = relay::resolution(&state, &missing);
            if matches!(resolution, Resolution::Failed(_)) {
                state.counters.relays_failed.add();
            }
            missing.settle(resolution);
            drop((turn, of_source));
        });
    }

    fn renew(self: &Arc<Self>, handle: &[u8]) {
        let (key, renewal) = (key_of(handle, false, 0), CurrentRenewal(Arc::clone(&self.state)));
        let Some(question) = self.state.open.begin(&key) else { return };
        self.state.counters.renewals.add();
        let asking = Arc::clone(self).ask(key, question, handle.to_vec(), None);
        tokio::spawn(async move {
            let _renewal = renewal;
            asking.await;
        });
    }

    /// Asks for the record of `handle`, stores it, and settles the requests that wait for it. The
    /// question is that of `origin`, or of the cache itself.
    async fn ask(
        self: Arc<Self>,
        key: QuestionKey,
        question: Arc<OpenQuestion>,
        handle: Vec<u8>,
        origin: Option<RequestOrigin>,
    ) {
        let state = &self.state;
        let current = CurrentQuestion::begin(state, &key, &question);
        let stale = if key.is_authoritative { None } else { state.stale(Handle(&handle)) };
        let mut asking = Box::pin(self.ask_in_turn(&handle, &key, origin));
        let mut soon = None;
        if let Some(stale) = &stale {
            let soon_ms = state.live().stale_after_ms;
            match timeout(Duration::from_millis(soon_ms.into()), &mut asking).await {
                Ok(outcome) => soon = Some(outcome),
                Err(_) => self.show_stale(&question, &handle, stale),
            }
        }
        let outcome = match soon {
            Some(outcome) => outcome,
            None => asking.await,
        };
        let is_stale = outcome.is_err() && stale.is_some();
        let waiting;
        let resolution = match outcome {
            Ok(answer) => {
                waiting = state.open.end(&key, &question, || state.store(Handle(&handle), &answer));
                state.shown(answer)
            }
            Err(failure) => {
                waiting = state.open.fail(&key, &question);
                self.failed(&handle, key.is_authoritative, failure, stale)
            }
        };
        drop(current);
        for missing in waiting {
            if is_stale {
                state.counters.stale_answers.add();
            }
            missing.settle(resolution.clone());
        }
    }

    async fn ask_in_turn(
        &self,
        handle: &[u8],
        key: &QuestionKey,
        origin: Option<RequestOrigin>,
    ) -> Result<OriginAnswer, QuestionFailure> {
        let (state, upstream) = (&self.state, &self.state.upstream);
        if upstream.denies(Handle(handle)) {
            return Err(QuestionFailure::Upstream(UpstreamFailure::Denied));
        }
        if let Some(failure) = upstream.refuses(handle, key.is_authoritative) {
            return Err(QuestionFailure::Again(failure));
        }
        let prefix = fold::folded(Handle(handle).naming_authority());
        let turn_timeout = Duration::from_millis(state.config.upstream.turn_ms.into());
        let Ok(_turn) = timeout(turn_timeout, self.turns.take(origin, prefix)).await else {
            upstream.give_back(handle, key.is_authoritative);
            return Err(QuestionFailure::NoTurn);
        };
        state.counters.questions.add();
        let begun = Instant::now();
        let limit = Duration::from_millis(state.config.upstream.timeout_ms.into());
        let asking = upstream.ask(handle, key.is_authoritative, key.recursion_count);
        let outcome = timeout(limit, asking).await;
        state.durations.add(begun.elapsed());
        outcome.map_or(Err(QuestionFailure::TooSlow), |outcome| outcome.map_err(QuestionFailure::Upstream))
    }

    /// Settles the requests that wait, and those that come until there is an answer, with a record
    /// that has expired.
    fn show_stale(&self, question: &OpenQuestion, handle: &[u8], stale: &Resolution) {
        self.state.note_failing(Handle(handle));
        for missing in question.show_stale(stale) {
            self.state.counters.stale_answers.add();
            missing.settle(stale.clone());
        }
    }

    /// What is said when there is no answer.
    fn failed(
        &self,
        handle: &[u8],
        is_authoritative: bool,
        failure: QuestionFailure,
        stale: Option<Resolution>,
    ) -> Resolution {
        let (state, shown) = (&self.state, Handle(handle));
        match &failure {
            QuestionFailure::NoTurn => state.counters.questions_left_out.add(),
            QuestionFailure::Again(error) => {
                state.counters.questions_refused.add();
                tracing::trace!(handle = ?shown, %error, "not asked again yet");
            }
            QuestionFailure::TooSlow => {
                state.counters.failures.add();
                state.upstream.note_too_slow(handle, is_authoritative);
                tracing::debug!(handle = ?shown, "no server has answered in time");
            }
            QuestionFailure::Upstream(UpstreamFailure::Denied) => state.counters.denied.add(),
            QuestionFailure::Upstream(UpstreamFailure::Code(ResponseCode::RECURSION_COUNT_TOO_HIGH)) => {
                state.counters.loops.add();
                tracing::debug!(handle = ?shown, "the question has come through too many servers");
            }
            QuestionFailure::Upstream(error) => {
                if *error == UpstreamFailure::Uncertified {
                    state.counters.uncertified.add();
                }
                state.counters.failures.add();
                tracing::debug!(handle = ?shown, %error, "no server has answered");
            }
        }
        if let Some(stale) = stale {
            state.note_failing(shown);
            return stale;
        }
        Resolution::Failed(match failure {
            QuestionFailure::NoTurn => RefusalReason::TooManyQuestions,
            QuestionFailure::TooSlow => RefusalReason::NotResolved,
            // Until it is asked again, a question fails as it did before.
            QuestionFailure::Again(failure) | QuestionFailure::Upstream(failure) => failure.reason(),
        })
    }
}

fn key_of(handle: &[u8], is_authoritative: bool, recursion_count: u8) -> QuestionKey {
    QuestionKey { name: with_key(Handle(handle), <[u8]>::to_vec), is_authoritative, recursion_count }
}
