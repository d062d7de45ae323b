//! One request of the slow path, with the state that is needed to decide it.

use super::SlowPath;
use super::resolution::MissingState;
use super::stats::SlowCounters;
use crate::state::ServerState;
use crate::templates::MissingHandles;
use handle_auth::challenges::{ChallengeRefusal, IssuedChallenge};
use handle_auth::cost::Units;
use handle_auth::source::RequestOrigin;
use handle_local::forward::Task;
use handle_resolver::{AnswerContext, RefusalReason, ReplyParts, refuse_stream};
use handle_session::Session;
use handle_snapshot::map::MappedFile;
use std::cell::Cell;

/// One request, and the state that is needed to decide it.
pub(crate) struct JobContext<'w> {
    pub(crate) path: &'w SlowPath,
    pub(crate) shared: &'w ServerState,
    pub(crate) counters: &'w SlowCounters,
    pub(crate) origin: RequestOrigin,
    /// The decrypted request, envelope first.
    pub(crate) request: &'w [u8],
    pub(crate) was_encrypted: bool,
    /// The session of the request, if it is in one.
    pub(crate) session: Option<&'w Session>,
    /// What is known about handles that are not in the set.
    pub(crate) missing_handles: &'w MissingHandles,
    /// Set when another process is to answer instead.
    pub(crate) forward: Cell<Option<ForwardNote>>,
    /// Whether the last decision may change when other services are asked.
    pub(crate) depends_on_remote: Cell<bool>,
    /// Whether the request has a MAC of its session that is correct and was not used before.
    pub(crate) has_mac: Cell<bool>,
    /// The state of a request that goes on, because its record has been resolved.
    pub(crate) resumed: Option<&'w MissingState>,
    /// Set when the request has to wait for its record.
    pub(crate) missing: Cell<Option<Box<MissingState>>>,
    /// The work done for this request so far.
    pub(crate) cost: Cell<Units>,
}

/// A note that another process is to answer a request.
#[derive(Debug)]
pub(crate) struct ForwardNote {
    pub(super) task: Task,
    /// The challenge that the request answers, which was taken from this process.
    pub(super) challenge: Option<IssuedChallenge>,
}

/// The buffers that an answer borrows from besides its request and the set. They are reused.
pub(crate) struct AnswerBuffers {
    /// The challenge that was answered.
    pub(crate) challenge: Option<IssuedChallenge>,
    /// Values that administrators may read.
    pub(crate) values: Box<[u8]>,
    /// A nonce, the body of a challenge or of the answer to a session set-up, or computed values.
    pub(crate) body: Vec<u8>,
    /// Computed values of which some are not public.
    pub(crate) computed: Vec<u8>,
    /// Why a message in a session was not accepted.
    pub(super) text: [u8; 80],
}

impl AnswerBuffers {
    /// Buffer for the text of why a message in a session was not accepted.
    pub(crate) const fn text(&mut self) -> &mut [u8; 80] {
        &mut self.text
    }
}

/// The reply to an encrypted request that does not come from the owner of its session.
pub(crate) fn undecryptable<'a>(context: &AnswerContext<'a, MappedFile>) -> ReplyParts<'a> {
    refuse_stream(context, RefusalReason::Undecryptable, b"")
}

/// The refusal for a request that gets no challenge.
pub(crate) const fn not_challenged(refusal: ChallengeRefusal) -> RefusalReason {
    match refusal {
        ChallengeRefusal::OverTcp => RefusalReason::OverTcp,
        ChallengeRefusal::TooLong | ChallengeRefusal::NoNumber => RefusalReason::TooManyChallenges,
    }
}
