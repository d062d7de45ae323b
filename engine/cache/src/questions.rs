//! The thread that asks other services. Any number of requests for one record wait for one question.
//!
//! A question has a time limit. If the cache has a record that has expired, it is shown when no
//! server answers, and already when none answers soon (RFC 8767 section 5).

use crate::entry::with_key;
use crate::open_questions::{OpenQuestion, QuestionKey, QuestionRole};
use crate::relay;
use crate::state::CacheState;
use crate::upstream::{OriginAnswer, UpstreamFailure};
use handle_proto::{Handle, ResponseCode};
use handle_resolver::RefusalReason;
use handle_server::cache::{MissingRecord, Resolution};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, timeout, timeout_at};

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
    turns: Semaphore,
    /// Requests that may be handed to other services at a time.
    relays: Arc<Semaphore>,
}

/// Asks what `tasks` demand, until one of them ends it.
pub fn run(state: Arc<CacheState>, runtime: Runtime, mut tasks: UnboundedReceiver<QuestionTask>) {
    let questions = Arc::new(QuestionThread {
        turns: Semaphore::new(state.config.upstream.questions),
        relays: Arc::new(Semaphore::new(state.config.upstream.relays)),
        state: Arc::clone(&state),
    });
    runtime.block_on(async {
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

impl QuestionThread {
    fn resolve_missing(self: &Arc<Self>, missing: MissingRecord) {
        let handle = missing.handle().0.to_vec();
        let key = key_of(&handle, missing.is_authoritative(), missing.recursion_count());
        // The question of another request may have been answered since the cache was looked into.
        let known = || if key.is_authoritative { None } else { self.state.fresh(Handle(&handle)) };
        match self.state.open.join(&key, missing, known) {
            QuestionRole::Ask(question) => {
                tokio::spawn(Arc::clone(self).ask(key, question, handle));
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
        let Ok(turn) = Arc::clone(&self.relays).try_acquire_owned() else {
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
            drop(turn);
        });
    }

    fn renew(self: &Arc<Self>, handle: &[u8]) {
        let key = key_of(handle, false, 0);
        let Some(question) = self.state.open.begin(&key) else { return self.state.end_renewal() };
        self.state.counters.renewals.add();
        let (questions, handle) = (Arc::clone(self), handle.to_vec());
        tokio::spawn(async move {
            let state = Arc::clone(&questions.state);
            questions.ask(key, question, handle).await;
            state.end_renewal();
        });
    }

    /// Asks for the record of `handle`, stores it, and settles the requests that wait for it.
    async fn ask(self: Arc<Self>, key: QuestionKey, question: Arc<OpenQuestion>, handle: Vec<u8>) {
        let state = &self.state;
        let deadline = Instant::now() + Duration::from_millis(state.config.upstream.timeout_ms.into());
        let stale = if key.is_authoritative { None } else { state.stale(Handle(&handle)) };
        state.questions_open.fetch_add(1, Ordering::Relaxed);
        let mut asking = Box::pin(self.ask_in_turn(&handle, &key, deadline));
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
            None => timeout_at(deadline, asking).await.unwrap_or(Err(QuestionFailure::TooSlow)),
        };
        state.questions_open.fetch_sub(1, Ordering::Relaxed);
        let is_stale = outcome.is_err() && stale.is_some();
        let waiting;
        let resolution = match outcome {
            Ok(answer) => {
                waiting = state.open.end(&key, &question, || state.store(Handle(&handle), &answer));
                answer.into()
            }
            Err(failure) => {
                waiting = state.open.end(&key, &question, || {});
                self.failed(&handle, failure, stale)
            }
        };
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
        deadline: Instant,
    ) -> Result<OriginAnswer, QuestionFailure> {
        if let Some(failure) = self.state.upstream.refuses(handle).filter(|_| !key.is_authoritative) {
            return Err(QuestionFailure::Again(failure));
        }
        let turn = timeout_at(deadline, self.turns.acquire()).await;
        let Ok(Ok(_turn)) = turn else { return Err(QuestionFailure::NoTurn) };
        self.state.counters.questions.add();
        let begun = Instant::now();
        let outcome = self.state.upstream.ask(handle, key.is_authoritative, key.recursion_count).await;
        self.state.durations.add(begun.elapsed());
        outcome.map_err(QuestionFailure::Upstream)
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
    fn failed(&self, handle: &[u8], failure: QuestionFailure, stale: Option<Resolution>) -> Resolution {
        let (state, shown) = (&self.state, Handle(handle));
        match &failure {
            QuestionFailure::NoTurn => state.counters.questions_left_out.add(),
            QuestionFailure::Again(error) => {
                state.counters.questions_refused.add();
                tracing::trace!(handle = ?shown, %error, "not asked again yet");
            }
            QuestionFailure::TooSlow => {
                state.counters.failures.add();
                state.upstream.note_too_slow(handle);
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
            QuestionFailure::Upstream(UpstreamFailure::Denied) => RefusalReason::NotHomed,
            // The servers that passed the question on do not try it again elsewhere.
            QuestionFailure::Upstream(UpstreamFailure::Code(ResponseCode::RECURSION_COUNT_TOO_HIGH)) => {
                RefusalReason::TooManyServers
            }
            QuestionFailure::NoTurn => RefusalReason::TooManyQuestions,
            QuestionFailure::Again(_) | QuestionFailure::TooSlow | QuestionFailure::Upstream(_) => {
                RefusalReason::NotResolved
            }
        })
    }
}

fn key_of(handle: &[u8], is_authoritative: bool, recursion_count: u8) -> QuestionKey {
    QuestionKey { name: with_key(Handle(handle), <[u8]>::to_vec), is_authoritative, recursion_count }
}
