//! Requests about sessions, and the checks of requests in a session. RFC 3652 section 3.8.

use super::opening::OpenedRequest;
use super::reply::ReplyTo;
use super::{AdminService, PreparedResponse, TOO_MANY_CHALLENGES, new_challenge};
use crate::operation::{OperationAnswer, OperationRefusal, WriteEffect};
use handle_auth::challenges::IssuedChallenge;
use handle_auth::source::RequestOrigin;
use handle_daemon::sessions::endpoint::KeyExchangeWork;
use handle_daemon::sessions::{IncomingMessage, MessageRejection};
use handle_proto::limit::NONCE_LEN;
use handle_proto::wire::Request;
use handle_proto::wire::session::SessionSetup;
use handle_proto::{ResponseCode, Version};
use std::net::SocketAddr;

// Refusals use the texts of deployed servers, as `conversations.jsonl` and `credentials.jsonl`
// show.
/// The encrypted content cannot be parsed, or has nothing that authenticates its sender.
pub(super) const UNDECRYPTABLE: OperationRefusal = OperationRefusal::new(
    ResponseCode::SESSION_FAILED,
    "Exception decrypting request with session key HandleException (ENCRYPTION_ERROR) Error decrypting buffer",
);
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
const NO_MAC: OperationRefusal =
    OperationRefusal::new(ResponseCode::INVALID_CREDENTIAL, "Session request missing MAC code.");

/// The response to a message whose MAC is wrong or which is a replay.
pub(super) fn not_accepted(
    came: &IncomingMessage<'_>,
    opened: &OpenedRequest<'_>,
) -> Option<PreparedResponse> {
    match came.proof() {
        Ok(_) => None,
        Err(MessageRejection::WrongMac) => Some(WRONG_MAC.into()),
        Err(MessageRejection::Replayed(counter)) => {
            let text = format!("Duplicate session counter {counter} in session {}", opened.session_id);
            let code = ResponseCode::SESSION_MESSAGE_REJECTED;
            Some(OperationRefusal { code, text: text.into() }.into())
        }
    }
}

impl AdminService {
    /// The response to a request about sessions, or to an invalid request in a session; `None` if
    /// the request is to be decided.
    pub(super) fn about_sessions(
        &self,
        came: &IncomingMessage<'_>,
        opened: &OpenedRequest<'_>,
        source: SocketAddr,
    ) -> Option<PreparedResponse> {
        if let Some(said) = not_accepted(came, opened) {
            return Some(said);
        }
        let is_unknown = opened.session_id > 0 && !came.is_in_session();
        Some(match opened.request {
            Request::SessionTerminate(_) if opened.session_id <= 0 => NONE_NAMED.into(),
            _ if is_unknown => UNKNOWN.into(),
            Request::SessionSetup(setup) => self.set_up(opened, &setup, source),
            Request::SessionExchangeKey(_) if came.is_in_session() => OTHER_EXCHANGE.into(),
            Request::SessionExchangeKey(_) => UNKNOWN.into(),
            Request::SessionTerminate(_) if came.proof() != Ok(true) => WRONG_MAC.into(),
            Request::SessionTerminate(_) => {
                if let Some(sessions) = &self.sessions {
                    sessions.end(opened.session_id);
                }
                OperationAnswer::Done(WriteEffect::NONE).into()
            }
            _ => return None,
        })
    }

    /// Sets up a session. RFC 3652 section 3.8.1.
    fn set_up(
        &self,
        opened: &OpenedRequest<'_>,
        setup: &SessionSetup<'_>,
        source: SocketAddr,
    ) -> PreparedResponse {
        let Some(sessions) = &self.sessions else { return NO_SESSIONS.into() };
        let is_taken = |number| self.challenges().has(number);
        let origin = RequestOrigin::connection(source.ip());
        let exchange = |cost, exchange: KeyExchangeWork| match &self.costly {
            Some(costly) => costly.run(origin, cost, exchange),
            None => Some(exchange()),
        };
        match sessions.set_up(setup, opened.version, origin, is_taken, exchange) {
            Ok((id, data)) => PreparedResponse::Session(id, setup.exchange.mode(), data),
            Err(error) => OperationRefusal { code: error.code(), text: error.to_string().into() }.into(),
        }
    }

    /// Challenges the client in its session. A repeated request gets the challenge that is already
    /// open.
    pub(super) fn challenge_in_session(
        &self,
        came: &IncomingMessage<'_>,
        opened: &OpenedRequest<'_>,
        to: &ReplyTo,
        nonce: [u8; NONCE_LEN],
        source: SocketAddr,
    ) -> PreparedResponse {
        if came.proof() != Ok(true) {
            return NO_MAC.into();
        }
        let challenge = new_challenge(came.message(), to, nonce, Version::CURRENT);
        self.issue_in_session(opened.session_id, challenge, source)
    }

    /// Makes `challenge` the open challenge of session `id`.
    pub(super) fn issue_in_session(
        &self,
        id: i32,
        challenge: IssuedChallenge,
        source: SocketAddr,
    ) -> PreparedResponse {
        let origin = RequestOrigin::connection(source.ip());
        let issued = self.challenges().issue_in_session(id, origin, challenge, self.now_ms());
        issued.map_or_else(|_| TOO_MANY_CHALLENGES.into(), |pending| PreparedResponse::Challenge(id, pending))
    }
}
