//! Requests that `handled` forwards. `handled` opens them as far as it can; they are answered here
//! as if their clients had connected to this process.

use super::opening::{OpenedRequest, open};
use super::{AdminService, ListPages, PreparedResponse, ReplyMessages};
use crate::operation::{NO_VALUES, NOT_FOUND, OperationAnswer, OperationRefusal};
use crate::referral::{NotResolved, RECURSION_MAX, UNDERSTOOD_SINCE};
use handle_auth::challenges::IssuedChallenge;
use handle_daemon::clock::now_unix_s;
use handle_daemon::sessions::forward::{ForwardedForm, ForwardedRequest, Task};
use handle_daemon::sessions::{IncomingMessage, TakenChallenge, numbers};
use handle_proto::limit::UDP_DATA_LEN_MAX;
use handle_proto::wire::{Envelope, Request};
use handle_proto::{OpFlags, ResponseCode, ValueBuf, Values};
use std::sync::Arc;

const TOO_MANY_DATAGRAMS: OperationRefusal = OperationRefusal::new(
    ResponseCode::ERROR,
    "The answer takes too many datagrams; ask over TCP, or by index or type.",
);
const TOO_MANY_RESOLUTIONS: OperationRefusal = OperationRefusal::new(
    ResponseCode::SERVER_BUSY,
    "Too many handles of other services are being resolved; ask again later.",
);
const RECURSION_TOO_DEEP: OperationRefusal = OperationRefusal::new(
    ResponseCode::RECURSION_COUNT_TOO_HIGH,
    "The request has come through too many servers.",
);

/// What answering a forwarded request needs beside its message.
#[derive(Debug, Default)]
pub(super) struct ForwardedContext {
    /// The challenge that the request answers; `handled` issued it and has removed it from its
    /// table.
    pub(super) challenge: Option<IssuedChallenge>,
    /// The maximum number of datagrams of an answer over UDP.
    pub(super) datagrams_max: Option<u16>,
    /// Whether to resolve a referral on behalf of a client that does not understand it.
    pub(super) resolves: bool,
}

impl AdminService {
    /// Answers a request that `handled` received. Blocks until the changes it makes are durable.
    #[must_use]
    pub fn answer_forwarded(self: &Arc<Self>, request: ForwardedRequest<'_>) -> ReplyMessages {
        let ForwardedRequest { task, source, datagrams_max, opening, challenge, message } = request;
        let context = ForwardedContext { challenge, datagrams_max, resolves: task == Task::Resolve };
        let came = match (opening, &self.sessions) {
            (ForwardedForm::InSession { was_hidden, has_mac }, Some(sessions)) => {
                Ok(sessions.checked(message, was_hidden, has_mac))
            }
            (ForwardedForm::AsReceived, Some(sessions)) => sessions.open(message),
            (_, None) => Ok(IncomingMessage::outside(message)),
        };
        match came {
            Ok(came) => self.answer_opened(&came, context, source),
            Err(_) => self.unreadable(&super::UNDECRYPTABLE, now_unix_s()),
        }
    }

    /// Takes the challenge `id` from this process or from the process that holds the sessions. A
    /// challenge can be taken only once.
    pub(super) fn take_challenge(&self, id: i32, is_in_session: bool) -> TakenChallenge {
        if let Some(challenge) = self.challenges().take(id, self.now_ms()) {
            return TakenChallenge::Waiting(challenge);
        }
        // In a session, either process may have issued a challenge under the session's number.
        let may_be_there = id > 0 && (is_in_session || !numbers::is_of_admin(id));
        let there = self.sessions.as_ref().filter(|_| may_be_there);
        match there.map_or(TakenChallenge::Unknown, |sessions| sessions.take_challenge(id)) {
            TakenChallenge::Unknown if self.challenges().was_retired(id) => TakenChallenge::Over,
            taken => taken,
        }
    }

    /// The answer that replaces a referral which the client would not understand.
    pub(super) fn resolved(&self, opened: &OpenedRequest<'_>, said: PreparedResponse) -> PreparedResponse {
        let (Some(referrals), PreparedResponse::Answer(OperationAnswer::Referral(count, bytes))) =
            (&self.referrals, &said)
        else {
            return said;
        };
        let Request::Resolution(query) = opened.request else { return said };
        let wants = opened.version < UNDERSTOOD_SINCE && opened.flags().has(OpFlags::RECURSIVE);
        let Some(values) = Values::from_encoded(*count, bytes).ok().filter(|_| wants) else { return said };
        let recursion_count = opened.message.header.recursion_count;
        if recursion_count >= RECURSION_MAX {
            return RECURSION_TOO_DEEP.into();
        }
        let values = values.iter().map(|value| ValueBuf::from(&value)).collect();
        match referrals.resolve(&query, values, recursion_count) {
            Ok(answer) if answer.code == ResponseCode::HANDLE_NOT_FOUND => NOT_FOUND.into(),
            Ok(answer) if answer.values().iter().next().is_none() => NO_VALUES.into(),
            Ok(answer) => {
                let (count, bytes) = crate::operation::encoded(answer.values().iter());
                OperationAnswer::Values(query.handle.to_vec(), count, bytes).into()
            }
            Err(NotResolved::Busy) => TOO_MANY_RESOLUTIONS.into(),
            Err(NotResolved::Unanswered) => said,
        }
    }
}

/// Whether an answer is too long for the `most` datagrams that are allowed.
pub(super) fn is_too_long(first: &[u8], rest: Option<&ListPages>, most: u16) -> bool {
    let datagrams = first.len().saturating_sub(Envelope::LEN).div_ceil(UDP_DATA_LEN_MAX);
    datagrams > most.into() || rest.is_some_and(ListPages::has_more)
}

/// The answer if the real one takes too many datagrams.
pub(super) fn too_many_datagrams() -> OperationAnswer {
    OperationAnswer::Refused(TOO_MANY_DATAGRAMS)
}

/// The request that was challenged, if it can still be parsed.
pub(super) fn original(challenge: &IssuedChallenge) -> Option<OpenedRequest<'_>> {
    open(&challenge.request).ok()
}
