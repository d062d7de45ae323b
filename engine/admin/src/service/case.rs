//! A request on its way from the message to the answer. An answer to a challenge becomes the
//! request that was challenged, with a claim of who sent it.

use super::open::{OpenedRequest, open};
use super::reply::ReplyTarget;
use super::response::RequestIdentity;
use crate::operation::{OperationRefusal, OperationRequest, OperationRules, Requester};
use crate::replication::StreamRoute;
use handle_auth::challenges::IssuedChallenge;
use handle_auth::source::RequestOrigin;
use handle_proto::ResponseCode;
use handle_proto::wire::Request;
use handle_proto::wire::auth::{self, ChallengeAnswer};
use handle_session::{IncomingMessage, SessionIdentity, TakenChallenge};
use std::net::{IpAddr, SocketAddr};

/// A request on its way from the message to the answer.
pub(super) struct RequestCase<'a> {
    /// The message that arrived, in the session that counts for the request.
    pub(super) incoming: &'a IncomingMessage<'a>,
    /// The request that is decided: the one in the message, or the one that was challenged.
    pub(super) opened: OpenedRequest<'a>,
    /// The bytes of the request that is decided, envelope first.
    pub(super) message: &'a [u8],
    /// The answer to a challenge that came for the request.
    pub(super) claim: Option<ChallengeClaim<'a>>,
    /// How the request is answered.
    pub(super) to: ReplyTarget,
    /// Address of the client.
    pub(super) source: SocketAddr,
    /// Random bytes for a minted name, and for the nonce of a challenge.
    pub(super) random: [u8; 16],
    /// The current time in Unix seconds.
    pub(super) now_unix_s: u32,
    /// The transport of a stream to the client; `None` if a stream cannot be sent.
    pub(super) stream_route: Option<StreamRoute>,
    /// The client whose proof the sender says that it passes on.
    pub(super) stated_client: Option<IpAddr>,
    /// The identity that the session has authenticated.
    session_identity: Option<SessionIdentity>,
}

impl<'a> RequestCase<'a> {
    /// The case of the request that has arrived in `incoming`.
    pub(super) fn new(
        incoming: &'a IncomingMessage<'a>,
        opened: OpenedRequest<'a>,
        source: SocketAddr,
        now_unix_s: u32,
    ) -> Self {
        let to = ReplyTarget::new(&opened, RequestOrigin::connection(source.ip()));
        Self {
            incoming,
            message: incoming.message(),
            claim: None,
            to: to.in_session(incoming.sealing()),
            source,
            random: handle_auth::random(),
            now_unix_s,
            stream_route: None,
            stated_client: match opened.request {
                Request::AnswerChallenge(_) | Request::VerifyChallenge(_) => {
                    auth::stated_client(opened.message.body)
                }
                _ => None,
            },
            session_identity: incoming.identity(),
            opened,
        }
    }

    /// The case of the request `original` instead of the answer to its challenge, which has arrived
    /// in `incoming` and makes `claim`.
    pub(super) fn challenged(
        self,
        incoming: &'a IncomingMessage<'a>,
        original: OpenedRequest<'a>,
        claim: ChallengeClaim<'a>,
    ) -> Self {
        Self {
            to: ReplyTarget::about(&original, &self.opened, incoming.sealing(), self.origin()),
            incoming,
            opened: original,
            message: &claim.challenge.request,
            claim: Some(claim),
            random: claim.challenge.nonce,
            session_identity: None,
            ..self
        }
    }

    /// The identity behind the message.
    pub(super) fn identity(&self) -> RequestIdentity<'_> {
        match (self.opened.request, &self.session_identity) {
            (Request::AnswerChallenge(answer), _) => RequestIdentity::Claimed(answer.identity),
            (_, Some(identity)) => RequestIdentity::Known(identity.as_reference()),
            (_, None) => RequestIdentity::Unidentified,
        }
    }

    /// The requester for the first decision.
    pub(super) fn requester(&self, rules: &OperationRules) -> Requester<'_> {
        match (&self.claim, &self.session_identity) {
            (Some(claim), _) => Requester::Claimed(claim.answer.identity),
            _ if rules.anonymous_full_access => Requester::FullAccess,
            (None, Some(identity)) => Requester::Is(identity.as_reference()),
            (None, None) => Requester::Unidentified,
        }
    }

    /// The source on whose behalf work is done.
    pub(super) fn origin(&self) -> RequestOrigin {
        RequestOrigin::connection(self.source.ip())
    }

    /// The request as decisions get it.
    pub(super) fn operation_request(&self) -> OperationRequest<'a> {
        self.opened.operation_request(self.to.version(), self.random, self.now_unix_s)
    }
}

/// An answer to a challenge, with the challenge. It claims an identity; nothing is proven yet.
#[derive(Clone, Copy)]
pub(super) struct ChallengeClaim<'a> {
    pub(super) challenge: &'a IssuedChallenge,
    pub(super) answer: ChallengeAnswer<'a>,
}

impl<'a> ChallengeClaim<'a> {
    /// The claim of `answer`, if its challenge is open.
    pub(super) const fn new(taken: &'a TakenChallenge, answer: ChallengeAnswer<'a>) -> Option<Self> {
        match taken {
            TakenChallenge::Waiting(challenge) => Some(Self { challenge, answer }),
            TakenChallenge::Over | TakenChallenge::Unknown => None,
        }
    }

    /// The request that was challenged, if it can still be parsed.
    pub(super) fn original(&self) -> Option<OpenedRequest<'a>> {
        open(&self.challenge.request).ok()
    }

    /// The type of the values with a key of the claimed identity.
    ///
    /// # Errors
    /// When there are no keys for this kind of answer.
    pub(super) fn kind(&self) -> Result<&'static [u8], OperationRefusal> {
        match self.answer.auth_type {
            auth::PUBLIC_KEY => Ok(auth::PUBLIC_KEY),
            auth::SECRET_KEY => Ok(auth::SECRET_KEY),
            auth::GATEWAY_SESSION => Ok(auth::GATEWAY_SESSION),
            _ => Err(OperationRefusal::new(
                ResponseCode::INVALID_CREDENTIAL,
                "Unknown authentication type; use HS_PUBKEY or HS_SECKEY.",
            )),
        }
    }
}
