//! Requests about sessions, and the checks of requests in a session. RFC 3652 section 3.8.

use super::Authenticator;
use super::case::RequestCase;
use super::open::UNAVAILABLE;
use super::response::PreparedResponse;
use crate::operation::{OperationAnswer, OperationRefusal, WriteEffect};
use handle_proto::ResponseCode;
use handle_proto::wire::Request;
use handle_proto::wire::session::SessionSetup;
use handle_session::MessageRejection;
use handle_session::endpoint::KeyExchangeWork;

// Refusals use the texts of deployed servers, as `conversations.jsonl` and `credentials.jsonl`
// show.
pub(super) const UNKNOWN: OperationRefusal = OperationRefusal::new(
    ResponseCode::SESSION_TIMEOUT,
    "Invalid session id or session time out. Please try again.",
);
const NONE_NAMED: OperationRefusal =
    OperationRefusal::new(ResponseCode::SESSION_TIMEOUT, "Can not get session info.");
const NO_SESSIONS: OperationRefusal =
    OperationRefusal::new(ResponseCode::SESSION_FAILED, "This server has no sessions.");
const OTHER_EXCHANGE: OperationRefusal =
    OperationRefusal::new(ResponseCode::SESSION_FAILED, "Session keys are exchanged by Diffie-Hellman only.");
const WRONG_MAC: OperationRefusal =
    OperationRefusal::new(ResponseCode::INVALID_SESSION_KEY, "Session authentication failed.");
pub(super) const NO_MAC: OperationRefusal =
    OperationRefusal::new(ResponseCode::INVALID_CREDENTIAL, "Session request missing MAC code.");

/// The response to a message whose MAC is wrong, which is a replay, or whose session cannot be
/// reached.
fn rejection(case: &RequestCase<'_>) -> Option<OperationRefusal> {
    match case.incoming.proof() {
        Ok(_) => None,
        Err(MessageRejection::WrongMac) => Some(WRONG_MAC),
        Err(MessageRejection::Ended) => Some(UNKNOWN),
        Err(MessageRejection::Unavailable) => Some(UNAVAILABLE),
        Err(MessageRejection::Replayed(counter)) => {
            let text = format!("Duplicate session counter {counter} in session {}", case.opened.session_id);
            let code = ResponseCode::SESSION_MESSAGE_REJECTED;
            Some(OperationRefusal { code, text: text.into() })
        }
    }
}

impl Authenticator {
    /// The response to a request about sessions, or to an invalid message in a session; `None` if
    /// the request is to be decided.
    pub(super) fn session_response(&self, case: &RequestCase<'_>) -> Option<PreparedResponse> {
        // First of all: a replayed message must not use up the challenge that it answers.
        if let Some(refused) = rejection(case) {
            return Some(refused.into());
        }
        let (incoming, opened) = (case.incoming, &case.opened);
        let is_unknown = opened.session_id > 0 && !incoming.is_in_session();
        Some(match opened.request {
            // The number is that of a challenge, perhaps of none in a session.
            Request::AnswerChallenge(_) => return None,
            Request::SessionTerminate(_) if opened.session_id <= 0 => NONE_NAMED.into(),
            _ if is_unknown => UNKNOWN.into(),
            Request::SessionSetup(setup) => self.set_up(case, &setup),
            Request::SessionExchangeKey(_) if incoming.is_in_session() => OTHER_EXCHANGE.into(),
            Request::SessionExchangeKey(_) => UNKNOWN.into(),
            Request::SessionTerminate(_) if incoming.proof() != Ok(true) => WRONG_MAC.into(),
            Request::SessionTerminate(_) => match self.sessions() {
                Some(sessions) if sessions.end(opened.session_id).is_err() => UNAVAILABLE.into(),
                _ => OperationAnswer::Done(WriteEffect::NONE).into(),
            },
            _ => return None,
        })
    }

    /// Sets up a session. RFC 3652 section 3.8.1.
    fn set_up(&self, case: &RequestCase<'_>, setup: &SessionSetup<'_>) -> PreparedResponse {
        let Some(sessions) = self.sessions() else { return NO_SESSIONS.into() };
        let is_taken = |number| self.challenges().has(number);
        let origin = case.origin();
        let exchange = |cost, exchange: KeyExchangeWork| self.run_costly(origin, cost, exchange);
        match sessions.set_up(setup, case.opened.version, origin, is_taken, exchange) {
            Ok((id, data)) => PreparedResponse::Session(id, setup.exchange.mode(), data),
            Err(error) => OperationRefusal { code: error.code(), text: error.to_string().into() }.into(),
        }
    }
}
