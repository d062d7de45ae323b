//! Challenges: issued to clients, and taken when they are answered. RFC 3652 section 3.5.1.

use super::case::RequestCase;
use super::open::UNDECRYPTABLE;
use super::prove::wrong_key;
use super::reply::ReplyTarget;
use super::response::{PreparedResponse, RequestIdentity};
use super::sessions::{NO_MAC, UNKNOWN};
use super::{Authenticator, hidden};
use crate::operation::OperationRefusal;
use handle_auth::challenges::{IssuedChallenge, SessionChallenge};
use handle_auth::source::RequestOrigin;
use handle_proto::limit::NONCE_LEN;
use handle_proto::{ResponseCode, Version};
use handle_session::{TakenChallenge, numbers};

const TOO_MANY_CHALLENGES: OperationRefusal = OperationRefusal::new(
    ResponseCode::SERVER_BUSY,
    "Too many challenges wait for an answer; ask again later.",
);
const NEEDS_SESSION: OperationRefusal =
    OperationRefusal::new(ResponseCode::INVALID_CREDENTIAL, "This server requires a session.");

/// Random numbers tried to find one that no session uses.
const TRIES: usize = 8;

/// A challenge to the client that `to` answers, about the request `message`.
fn new_challenge(
    message: &[u8],
    to: &ReplyTarget,
    nonce: [u8; NONCE_LEN],
    suggested: Version,
) -> IssuedChallenge {
    IssuedChallenge {
        version: to.version(),
        suggested,
        nonce,
        digest: *to.digest(),
        request: hidden(message),
    }
}

impl RequestCase<'_> {
    /// The response to an answer to a challenge that is not open, with the identity to record.
    pub(super) fn without_challenge(&self, is_unknown: bool) -> (RequestIdentity<'_>, PreparedResponse) {
        let is_made_up = self.opened.session_id > 0 && !self.incoming.is_in_session() && is_unknown;
        let response = match self.incoming.may_be_a_guess() {
            true => PreparedResponse::Unreadable(UNDECRYPTABLE),
            false if is_made_up => UNKNOWN.into(),
            false => OperationRefusal::new(ResponseCode::AUTHENTICATION_TIMEOUT, "").into(),
        };
        // Guessed numbers, over UDP from spoofed addresses, do not belong in the audit log.
        (if is_made_up { RequestIdentity::Unidentified } else { self.identity() }, response)
    }
}

impl Authenticator {
    /// Challenges the client, in its session if there is one. A client that has just proven its
    /// identity is refused: the outcome does not depend on that identity.
    pub(super) fn challenge(&self, case: &RequestCase<'_>, requires_sessions: bool) -> PreparedResponse {
        if let Some(claim) = &case.claim {
            return wrong_key(claim.answer.identity);
        }
        let is_in_session = case.incoming.is_in_session();
        if is_in_session && case.incoming.proof() != Ok(true) {
            return NO_MAC.into();
        }
        if !is_in_session && requires_sessions {
            return NEEDS_SESSION.into();
        }
        let challenge = new_challenge(case.message, &case.to, case.random, Version::CURRENT);
        match is_in_session {
            true => self.issue_in_session(case.opened.session_id, challenge, case.origin()),
            false => self.issue(challenge, case.origin()),
        }
    }

    /// Challenges the client that answered `challenge` again, to get an answer in a form that
    /// `suggested` knows. The new challenge is in the session if the first one was.
    pub(super) fn challenge_again(
        &self,
        case: &RequestCase<'_>,
        challenge: &IssuedChallenge,
        suggested: Version,
    ) -> PreparedResponse {
        let again = new_challenge(&challenge.request, &case.to, handle_auth::random(), suggested);
        match case.incoming.is_in_session() {
            true => self.issue_in_session(case.to.session_id(), again, case.origin()),
            false => self.issue(again, case.origin()),
        }
    }

    fn issue(&self, challenge: IssuedChallenge, origin: RequestOrigin) -> PreparedResponse {
        let pending = SessionChallenge { nonce: challenge.nonce, suggested: challenge.suggested };
        // Checked before the table is locked, since another process may have to be asked.
        let is_free = |number: &u32| {
            let id = (number & 0x7fff_ffff).cast_signed();
            self.sessions().is_none_or(|sessions| !sessions.has(id))
        };
        let number = || numbers::of_admin_challenge(u32::from_be_bytes(handle_auth::random()));
        let free = (0..TRIES).map(|_| number()).find(is_free);
        // The number 0 stands for no challenge, and an answer to it is refused.
        let number = || free.unwrap_or(0);
        let issued = self.challenges().issue(origin, challenge, number, self.now_ms());
        let Ok(id) = issued else { return TOO_MANY_CHALLENGES.into() };
        self.note_issued(id);
        PreparedResponse::Challenge(id, pending)
    }

    /// Makes `challenge` the open challenge of session `id`. A repeated request gets the challenge
    /// that is already open.
    fn issue_in_session(
        &self,
        id: i32,
        challenge: IssuedChallenge,
        origin: RequestOrigin,
    ) -> PreparedResponse {
        let issued = self.challenges().issue_in_session(id, origin, challenge, self.now_ms());
        let Ok(pending) = issued else { return TOO_MANY_CHALLENGES.into() };
        self.note_issued(id);
        PreparedResponse::Challenge(id, pending)
    }

    fn note_issued(&self, id: i32) {
        if let Some(sharing) = self.sharing() {
            sharing.note_issued(id);
        }
    }

    /// Takes a challenge of this process. One that is also in the database may have been taken by
    /// another process.
    fn take_own(&self, id: i32) -> Option<TakenChallenge> {
        let (challenge, is_shared) = {
            let mut challenges = self.challenges();
            let challenge = challenges.take(id, self.now_ms())?;
            (challenge, self.sharing().is_some_and(|sharing| sharing.forget(id)))
        };
        let is_ours = !is_shared || self.sharing().is_none_or(|sharing| sharing.claim(id));
        Some(if is_ours { TakenChallenge::Waiting(challenge) } else { TakenChallenge::Over })
    }

    /// Takes a challenge that another process over the same database has issued.
    fn take_from_others(&self, id: i32) -> TakenChallenge {
        let taken = self.sharing().filter(|_| id > 0).and_then(|sharing| sharing.take(id));
        taken.map_or(TakenChallenge::Unknown, TakenChallenge::Waiting)
    }

    /// Takes the challenge `id` from this process or from the process that holds the sessions. A
    /// challenge can be taken only once.
    pub(super) fn take_challenge(&self, id: i32, is_in_session: bool) -> TakenChallenge {
        if let Some(taken) = self.take_own(id) {
            return taken;
        }
        // In a session, either process may have issued a challenge under the session's number.
        let may_be_shared = id > 0 && (is_in_session || !numbers::is_of_admin(id));
        let sessions = self.sessions().filter(|_| may_be_shared);
        match sessions.map_or(TakenChallenge::Unknown, |sessions| sessions.take_challenge(id)) {
            TakenChallenge::Unknown if self.challenges().was_retired(id) => TakenChallenge::Over,
            TakenChallenge::Unknown => self.take_from_others(id),
            taken => taken,
        }
    }
}
