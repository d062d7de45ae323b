//! Which requests of the slow path another process answers, and the form in which it gets them.

use super::job_context::{AnswerBuffers, ForwardNote, JobContext, undecryptable};
use super::queue::JobRoute;
use super::session_proof::SessionProof;
use crate::forward::state::ForwardState;
use crate::sessions::sealer::refusing;
use handle_auth::challenges::IssuedChallenge;
use handle_local::forward::{ForwardedForm, ForwardedRequest, Task};
use handle_proto::ResponseCode;
use handle_proto::wire::Envelope;
use handle_resolver::slow::{AnsweredChallenge, SlowPathRequest};
use handle_resolver::{AnswerContext, RefusalReason, ReplyParts, WireReply as _, refuse_listing};
use handle_session::MessageRejection;
use handle_snapshot::map::MappedFile;
use std::net::SocketAddr;

impl JobContext<'_> {
    /// Forwards a request to list names. The reply says why it is not forwarded, if so.
    pub(crate) fn list<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        envelope: Envelope,
        rest: &'a [u8],
        buffers: &'a mut AnswerBuffers,
    ) -> ReplyParts<'a> {
        let refuse = |refused| refuse_listing(context, envelope, rest, refused);
        match self.session.map(|session| (session, self.proof(session))) {
            Some((_, Ok(SessionProof::None) | Err(MessageRejection::WrongMac))) if self.was_encrypted => {
                return undecryptable(context);
            }
            Some((session, Err(reject))) => {
                return refusing(&refuse(RefusalReason::WrongMac), session, reject, buffers.text());
            }
            Some((_, Ok(_))) | None => {}
        }
        self.note(Task::Answer, None);
        refuse(RefusalReason::Busy)
    }

    /// Forwards the answer to a challenge that the other process may have made.
    pub(crate) fn forward_answer(&self) {
        if self.path.forward.is_some() {
            self.note(Task::Answer, None);
        }
    }

    /// Forwards a read that the other process may allow, because it asks other services. The
    /// answered challenge is sent along, if there was one. Values that are computed are not
    /// forwarded, because only this process computes them.
    pub(crate) fn forward_read(
        &self,
        challenged: &AnsweredChallenge<'_>,
        challenge: Option<&IssuedChallenge>,
    ) {
        if challenged.is_stored() && self.path.forward.as_ref().is_some_and(|forward| forward.identities) {
            self.note(Task::Answer, challenge.cloned());
        }
    }

    /// Forwards a request for a handle that a source of records may have. The reply is used if
    /// there is no other.
    pub(crate) fn ask_source<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        slow: &SlowPathRequest<'a>,
    ) -> ReplyParts<'a> {
        self.note(Task::Answer, None);
        slow.refuse(context, RefusalReason::Busy)
    }

    /// Returns `reply`. When it is a referral that the client does not understand, also requests
    /// resolution by the other process.
    pub(crate) fn or_resolved<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        slow: &SlowPathRequest<'a>,
        reply: ReplyParts<'a>,
    ) -> ReplyParts<'a> {
        let is_referral = reply.response_code() == ResponseCode::PREFIX_REFERRAL;
        if is_referral && slow.wants_no_referral(context) && self.path.forward.is_some() {
            self.note(Task::Resolve, None);
        }
        reply
    }

    /// Whether the encrypted request comes from a holder of the key of its session.
    pub(crate) fn has_right_mac(&self) -> bool {
        self.session.is_some_and(|session| self.proof(session) == Ok(SessionProof::Mac))
    }

    fn note(&self, task: Task, challenge: Option<IssuedChallenge>) {
        self.forward.set(Some(ForwardNote { task, challenge }));
    }

    /// The request in the form in which it is forwarded, if it gets a permit. `busy` is the answer
    /// when no other arrives.
    pub(crate) fn hand_over(
        &self,
        note: ForwardNote,
        busy: &ReplyParts<'_>,
        route: JobRoute,
        datagrams_max: usize,
    ) -> Option<Box<ForwardState>> {
        let forward = self.path.forward.as_ref()?;
        let permit = forward.enter(route.origin().ip, route.is_datagram())?;
        let mut answer = Vec::new();
        let signs = self.write_unsigned(busy, &mut answer);
        let request = ForwardedRequest {
            task: note.task,
            source: match route {
                JobRoute::Udp(peer) => peer.remote(),
                JobRoute::Tcp(_, source) => SocketAddr::new(source, 0),
            },
            datagrams_max: route.is_datagram().then(|| u16::try_from(datagrams_max).unwrap_or(u16::MAX)),
            opening: match self.session {
                Some(_) => {
                    ForwardedForm::InSession { was_hidden: self.was_encrypted, has_mac: self.has_mac.get() }
                }
                None => ForwardedForm::AsReceived,
            },
            challenge: note.challenge,
            message: self.request,
        };
        Some(ForwardState::new(permit, &request, answer, signs))
    }
}
