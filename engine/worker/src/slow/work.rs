//! What a slow thread does with a request: it evaluates the request, challenges its sender or
//! checks the answer to a challenge, and signs the reply.

use super::SlowPath;
use super::config::references;
use super::in_session;
use super::job_context::{AnswerBuffers, JobContext, not_challenged, undecryptable};
use super::missing::RequestCache;
use super::missing_record::MissingRecord;
use super::queue::SlowJob;
use super::session_proof::SessionProof;
use super::signer::{AnswerSigner, Signature};
use super::stats::processor_time;
use crate::sessions::ServerSessions;
use crate::sessions::sealer::{refusing, too_long};
use crate::state::ServerState;
use crate::templates::SetTemplates;
use handle_auth::VerifyError;
use handle_auth::challenge_proof::ChallengeProof;
use handle_auth::challenges::IssuedChallenge;
use handle_auth::cost::{self, Units};
use handle_auth::digest::Digest;
use handle_auth::kdf::Pbkdf2Limits;
use handle_auth::source;
use handle_daemon::clock::now_unix_s;
use handle_proto::OpCode;
use handle_proto::limit::{MESSAGE_LEN_MAX, NONCE_LEN};
use handle_proto::wire::Envelope;
use handle_proto::wire::auth::{self, ChallengeAnswer, VerificationRequest};
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::list::Reference;
use handle_proto::{Permissions, ResponseCode, Value, Version};
use handle_resolver::authority::{AuthorityOutcome, ServerAdministrators};
use handle_resolver::slow::{AnsweredChallenge, FirstEvaluation, SlowReason, keys};
use handle_resolver::{
    AnswerContext, AnswerOutcome, MayCompute as _, NotLocal, RefusalReason, ReplyParts, SlowPathRequest,
    SortingBuffer, WireReply as _, answer_message, refuse_stream,
};
use handle_session::MessageRejection;
use handle_session::numbers::{is_of_admin, of_handled};
use handle_session::traffic::{self, LiveSession as _};
use handle_snapshot::map::MappedFile;
use handle_template::BuildOutcome;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use zeroize::Zeroizing;

/// One slow thread.
pub(crate) struct SlowThread {
    shared: Arc<ServerState>,
    path: Arc<SlowPath>,
    at: usize,
    buffers: AnswerBuffers,
    message: Vec<u8>,
    /// The buffer for copies of cached records; none without a cache.
    copies: Box<[u8]>,
}

/// Bytes of copies that one request may need: a record is looked up twice at most.
const COPIES_LEN: usize = 2 * MESSAGE_LEN_MAX as usize;

impl SlowThread {
    pub(crate) fn new(shared: &Arc<ServerState>, path: &Arc<SlowPath>, at: usize) -> Self {
        Self {
            shared: Arc::clone(shared),
            path: Arc::clone(path),
            at,
            buffers: AnswerBuffers {
                challenge: None,
                values: vec![0; MESSAGE_LEN_MAX as usize].into_boxed_slice(),
                body: Vec::with_capacity(64),
                computed: Vec::new(),
                text: [0; 80],
            },
            message: Vec::with_capacity(2048),
            copies: vec![0; if shared.hooks.cache.is_some() { COPIES_LEN } else { 0 }].into_boxed_slice(),
        }
    }

    /// Answers requests until the queue is closed.
    pub(crate) fn run(&mut self) {
        let path = Arc::clone(&self.path);
        while let Some(mut job) = path.queues.next() {
            // A request that triggers a bug is lost, and no other one: the buffers are rebuilt for
            // each request.
            let mut answer = || match job.relayed_answer() {
                Some(relayed) => job.put_relayed(&relayed, &path),
                None => self.answer(&mut job),
            };
            let since = processor_time();
            if catch_unwind(AssertUnwindSafe(&mut answer)).is_err() {
                job.answer.clear();
                path.counters[self.at].bugs.add(1);
            }
            // What no estimate counts, as applying a template, counts by its time. Waiting for the
            // processor does not count.
            let spent = cost::of_time(processor_time().saturating_sub(since));
            path.counters[self.at].work_units.add(spent.saturating_sub(job.cost));
            job.cost = job.cost.max(spent);
            self.buffers.challenge = None;
            match (&path.forward, &self.shared.hooks.cache) {
                (_, Some(cache)) if job.missing.is_some() => cache.resolve(MissingRecord::new(&path, job)),
                (Some(forward), _) if job.forwarding.is_some() => forward.submit(job),
                _ => path.queues.give_back(job),
            }
        }
    }

    fn answer(&mut self, job: &mut SlowJob) {
        #[cfg(test)]
        crate::tests::before_slow_answer(&job.request);
        let Self { shared, path, at, buffers, message, copies } = self;
        let missing = job.missing.take();
        // Held for this request only: a thread that waits must not keep a retired set alive.
        let set = shared.live.current();
        let counters = &path.counters[*at];
        counters.requests.add(1);
        let Ok((envelope, _)) = Envelope::split(&job.request) else { return };
        let session = path.sessions.as_ref();
        let session = session.and_then(|all| all.table.find(envelope.session_id, all.now_s()));
        let decrypted = match &session {
            Some(session) if envelope.flags.has(EnvelopeFlags::ENCRYPTED) => {
                in_session::decrypt(session, &job.request)
            }
            _ => None,
        };
        // Only the owner of the session can encrypt, and the owner received the answer to the
        // set-up at the address that set the session up.
        job.is_proven = decrypted.is_some()
            && session.as_ref().is_some_and(|session| session.source() == source::of(job.route.origin().ip));
        let request = decrypted.as_ref().map_or(&job.request[..], |plain| &plain[..]);
        let Ok((envelope, rest)) = Envelope::split(request) else { return };
        let in_force = shared.settings.current();
        let service = match job.route.is_datagram() {
            true => in_force.site.service(),
            false => in_force.site.stream_service(),
        };
        let (missing_handles, sorting) = (set.missing(), SortingBuffer::new());
        let cached = RequestCache::of(missing.as_deref(), shared.hooks.cache.as_deref(), copies);
        let context = AnswerContext::new(set.records(), service, path.answer_time(envelope.answer_version()))
            .computing(Some(missing_handles))
            .caching(cached.as_ref().map(|cached| cached as _))
            .sorting_in(&sorting);
        let len = request.len().min(Envelope::LEN + envelope.message_len as usize);
        let work = JobContext {
            path,
            shared,
            counters,
            origin: job.route.origin(),
            request: &request[..len],
            was_encrypted: decrypted.is_some(),
            session: session.as_deref(),
            missing_handles,
            forward: None.into(),
            depends_on_remote: false.into(),
            has_mac: false.into(),
            resumed: cached.as_ref().and_then(RequestCache::resumed),
            missing: Cell::new(None),
            cost: Cell::new(0),
        };
        let Some(mut reply) = work.reply(&context, envelope, rest, buffers) else { return };
        job.missing = work.missing.take();
        if job.missing.is_some() {
            return;
        }
        if let Some(note) = work.forward.take() {
            reply = reply.refusing(RefusalReason::Busy);
            job.forwarding = work.hand_over(note, &reply, job.route, service.answer_datagrams_max);
            if job.forwarding.is_some() {
                return;
            }
        }
        (job.code, job.refused) = work.finish(&reply, message, service.answer_datagrams_max);
        job.cost = work.cost.get();
        counters.work_units.add(job.cost);
        job.put_answer(message);
    }
}

impl SlowPath {
    /// The time in an answer of `version`, in seconds since 1970. An answer whose time is rounded
    /// stays equal for a while, so that one signature serves many.
    fn answer_time(&self, version: Version) -> u32 {
        let now_unix_s = now_unix_s();
        match &self.signer {
            Some(_) if AnswerSigner::keeps(version) => {
                now_unix_s - now_unix_s % self.config.signature_reuse_s
            }
            _ => now_unix_s,
        }
    }
}

impl JobContext<'_> {
    pub(crate) fn sessions(&self) -> Option<&ServerSessions> {
        self.path.sessions.as_deref()
    }

    /// The current time, by the clock of sessions.
    pub(crate) fn now_s(&self) -> u32 {
        self.sessions().map_or(0, ServerSessions::now_s)
    }

    /// The reply to the request, or to one that another process answers: see
    /// [`forward`](Self::forward). `None` when there is no reply.
    fn reply<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        envelope: Envelope,
        rest: &'a [u8],
        buffers: &'a mut AnswerBuffers,
    ) -> Option<ReplyParts<'a>> {
        Some(match answer_message(context, envelope, rest) {
            AnswerOutcome::Encrypted if self.session.is_some() => undecryptable(context),
            AnswerOutcome::Encrypted => refuse_stream(context, RefusalReason::EncryptedInUnknownSession, b""),
            // The answer must not reveal whether a forged message had correct padding, so only a
            // sender with the key of the session is told that another server administers handles.
            AnswerOutcome::Reply(reply)
                if self.was_encrypted
                    && reply.refused() == Some(RefusalReason::Administration)
                    && self.has_right_mac() =>
            {
                reply
            }
            AnswerOutcome::Reply(_) | AnswerOutcome::Drop(_) if self.was_encrypted => undecryptable(context),
            AnswerOutcome::Listing => self.list(context, envelope, rest, buffers),
            AnswerOutcome::Administration if self.was_encrypted && !self.has_right_mac() => {
                undecryptable(context)
            }
            AnswerOutcome::Administration => self.administer(context, envelope, rest),
            // The set was replaced after the worker had looked at it.
            AnswerOutcome::Reply(reply) => reply,
            AnswerOutcome::InSession(reply) => self.public_in_session(context, reply, buffers),
            AnswerOutcome::Slow(slow) if envelope.session_id > 0 && self.sessions().is_some() => {
                self.any_in_session(context, &slow, buffers)
            }
            AnswerOutcome::Slow(slow) => self.decide(context, &slow, buffers),
            AnswerOutcome::Drop(_) | AnswerOutcome::Fragment(_) => return None,
        })
    }

    /// Writes `reply` to `message` as [`write`](Self::write) does, or a refusal if it takes more
    /// than `datagrams_max` datagrams. Returns the code, and the reason if it is an error.
    fn finish(
        &self,
        reply: &ReplyParts<'_>,
        message: &mut Vec<u8>,
        datagrams_max: usize,
    ) -> (ResponseCode, Option<RefusalReason>) {
        let reply = if self.resumed.is_some() { &reply.not_authoritative() } else { reply };
        let refused = self.write(reply, message).err();
        let Some(refused) = refused.or_else(|| too_long(message, datagrams_max)) else {
            return (reply.response_code(), reply.refused());
        };
        let reply = reply.refusing(refused);
        // Neither refusal is signed over TCP, and over UDP each may be.
        let _ = self.write(&reply, message);
        (reply.response_code(), reply.refused())
    }

    /// The answer to a request outside sessions.
    fn decide<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        slow: &SlowPathRequest<'a>,
        buffers: &'a mut AnswerBuffers,
    ) -> ReplyParts<'a> {
        match slow.reason() {
            SlowReason::Certify | SlowReason::Identity | SlowReason::Template => match slow.evaluate(context)
            {
                FirstEvaluation::Reply(reply) => self.or_resolved(context, slow, reply),
                FirstEvaluation::Identity => self.challenge(context, slow, buffers),
                FirstEvaluation::Template => {
                    self.compute(context, slow, buffers, |buffers| self.challenge(context, slow, buffers))
                }
                FirstEvaluation::Uncached => self.await_record(context, slow),
            },
            SlowReason::ChallengeAnswer => self.challenge_answer(context, slow, buffers),
            SlowReason::Verification => self.verification(context, slow),
            SlowReason::SessionSetup => self.set_up(context, slow, buffers),
            SlowReason::Session => slow.refuse(context, RefusalReason::UnknownSession),
        }
    }

    /// Finishes `reply` to a request for public values in a session.
    fn public_in_session<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        reply: ReplyParts<'a>,
        buffers: &'a mut AnswerBuffers,
    ) -> ReplyParts<'a> {
        let Some(session) = self.session else { return reply.refusing(RefusalReason::UnknownSession) };
        match self.proof(session) {
            Ok(SessionProof::None) | Err(_) if self.was_encrypted => undecryptable(context),
            Ok(_) => reply,
            Err(reject) => refusing(&reply, session, reject, &mut buffers.text),
        }
    }

    /// The answer to any other request in a session.
    fn any_in_session<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        slow: &SlowPathRequest<'a>,
        buffers: &'a mut AnswerBuffers,
    ) -> ReplyParts<'a> {
        let is_answer = slow.op_code() == OpCode::RESPONSE_TO_CHALLENGE;
        let Some(session) = self.session else {
            // Challenges have numbers of the same kind as sessions.
            return match is_answer {
                true => self.challenge_answer(context, slow, buffers),
                false => slow.refuse(context, RefusalReason::UnknownSession),
            };
        };
        match self.proof(session) {
            // Answers to challenges have no MAC.
            Ok(SessionProof::None) if self.was_encrypted && !is_answer => undecryptable(context),
            Err(MessageRejection::WrongMac) if self.was_encrypted => undecryptable(context),
            Ok(proof) => {
                let reply = self.in_session(context, slow, session, proof, buffers);
                // Without a MAC, nothing authenticates the sender. Only a sender that answers the
                // pending challenge gets a more precise error.
                let is_guess =
                    matches!(reply.refused(), Some(RefusalReason::Malformed | RefusalReason::NoChallenge));
                match self.was_encrypted && proof == SessionProof::None && is_guess {
                    true => undecryptable(context),
                    false => reply,
                }
            }
            Err(reject) => {
                let reply = slow.refuse(context, RefusalReason::WrongMac);
                refusing(&reply, session, reject, &mut buffers.text)
            }
        }
    }

    /// Computes the values of a handle that is not stored, or forwards the request if a source may
    /// have it. `identify` continues when not all of the computed values are public.
    pub(crate) fn compute<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        slow: &SlowPathRequest<'a>,
        buffers: &'a mut AnswerBuffers,
        identify: impl FnOnce(&'a mut AnswerBuffers) -> ReplyParts<'a>,
    ) -> ReplyParts<'a> {
        if self.missing_handles.sources.has(slow.handle()) {
            return self.ask_source(context, slow);
        }
        let Some(templates) = &self.missing_handles.templates else { return slow.not_computed(context) };
        let (bytes, count) = match self.apply_templates(templates, context, slow.handle()) {
            Ok(BuildOutcome::Values { bytes, count }) => (bytes, count),
            Ok(BuildOutcome::NotFound) => return slow.not_computed(context),
            Err(refused) => return slow.refuse(context, refused),
        };
        self.counters.computed.add(1);
        match slow.reason_to_withhold(context, &bytes, count) {
            None => {
                buffers.body = bytes;
                slow.computed(context, &mut buffers.body, count)
            }
            Some(RefusalReason::NotPublic) => identify(buffers),
            Some(refused) => slow.refuse(context, refused),
        }
    }

    /// Adds computed values to the request when its handle is not stored. The values are kept in
    /// `buffer`.
    #[expect(clippy::result_large_err, reason = "replies are never allocated")]
    pub(crate) fn with_computed<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        challenged: Result<AnsweredChallenge<'a>, ReplyParts<'a>>,
        buffer: &'a mut Vec<u8>,
    ) -> Result<AnsweredChallenge<'a>, ReplyParts<'a>> {
        let challenged = challenged?;
        let Some(handle) = challenged.to_compute() else { return Ok(challenged) };
        let templates = self.missing_handles.templates.as_ref();
        match templates.map(|templates| self.apply_templates(templates, context, handle)) {
            Some(Ok(BuildOutcome::Values { bytes, .. })) => {
                self.counters.computed.add(1);
                *buffer = bytes;
                Ok(challenged.with_computed(buffer))
            }
            Some(Ok(BuildOutcome::NotFound)) | None => Err(challenged.not_computed(context)),
            Some(Err(refused)) => Err(challenged.refuse(context, refused)),
        }
    }

    /// The values that the templates compute, within the time that they may take.
    fn apply_templates(
        &self,
        templates: &SetTemplates,
        context: &AnswerContext<'_, MappedFile>,
        handle: &[u8],
    ) -> Result<BuildOutcome, RefusalReason> {
        let Some(base) = templates.base_of(handle) else { return Ok(BuildOutcome::NotFound) };
        self.path.template_times.limit(base, || templates.compute(context, handle))
    }

    /// Challenges the sender of the request. RFC 3652 section 3.5.1.
    fn challenge<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        slow: &SlowPathRequest<'a>,
        buffers: &'a mut AnswerBuffers,
    ) -> ReplyParts<'a> {
        let mut nonce = [0; NONCE_LEN];
        let mut numbers = [0; 4 * 8];
        if !(self.path.random)(&mut nonce) || !(self.path.random)(&mut numbers) {
            self.counters.without_random.add(1);
            return slow.refuse(context, RefusalReason::TooManyChallenges);
        }
        let mut numbers = numbers.as_chunks().0.iter().copied().map(u32::from_be_bytes).map(of_handled);
        let challenge = self.new_challenge(slow, nonce);
        let number = || {
            let is_free = |number: &u32| {
                let id = (number & 0x7fff_ffff).cast_signed();
                self.sessions().is_none_or(|all| all.table.find(id, all.now_s()).is_none())
            };
            numbers.find(is_free).unwrap_or(0)
        };
        let issued = self.path.challenges().issue(self.origin, challenge, number, self.path.clock.now_ms());
        match issued {
            Ok(id) => self.put_challenge(context, slow, id, &nonce, buffers),
            Err(refusal) => slow.refuse(context, not_challenged(refusal)),
        }
    }

    /// Makes a challenge to the sender of the request.
    pub(crate) fn new_challenge(
        &self,
        slow: &SlowPathRequest<'_>,
        nonce: [u8; NONCE_LEN],
    ) -> IssuedChallenge {
        let digest = Digest::from_bytes(slow.digest().as_bytes());
        let request = Zeroizing::new(self.request.into());
        IssuedChallenge { version: slow.version(), suggested: Version::CURRENT, nonce, digest, request }
    }

    /// The reply with the challenge `id`.
    pub(crate) fn put_challenge<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        slow: &SlowPathRequest<'a>,
        id: i32,
        nonce: &[u8; NONCE_LEN],
        buffers: &'a mut AnswerBuffers,
    ) -> ReplyParts<'a> {
        let challenge = auth::Challenge { nonce };
        buffers.body.clear();
        match slow.has_old_form() {
            true => challenge.encode_old(slow.digest().as_bytes(), &mut buffers.body),
            false => buffers.body.extend_from_slice(nonce),
        }
        slow.challenge(context, id, &buffers.body)
    }

    /// Handles the answer to a challenge. RFC 3652 section 3.5.2.
    pub(crate) fn challenge_answer<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        slow: &SlowPathRequest<'a>,
        buffers: &'a mut AnswerBuffers,
    ) -> ReplyParts<'a> {
        let Ok(answer) = ChallengeAnswer::decode(slow.body()) else {
            return slow.refuse(context, RefusalReason::Malformed);
        };
        buffers.challenge = self.path.challenges().take(slow.session_id(), self.path.clock.now_ms());
        let AnswerBuffers { challenge: Some(challenge), values, body, computed, .. } = buffers else {
            // A number that was never issued is reported as an unknown session, as by deployed
            // servers.
            let id = slow.session_id();
            let relay = self.shared.hooks.relay.as_ref();
            if self.session.is_none()
                && (self.resumed.is_some()
                    || relay.is_some_and(|relay| relay.has_challenge(self.origin.ip, id)))
            {
                return slow.refuse(context, self.relay(b""));
            }
            // In a session, `handle-admin` may have made a challenge under the number of the
            // session.
            if self.session.is_some() || id > 0 && is_of_admin(id) {
                self.forward_answer();
            }
            let is_known = id <= 0 || self.session.is_some() || self.path.challenges().was_retired(id);
            return slow.refuse(
                context,
                if is_known { RefusalReason::NoChallenge } else { RefusalReason::UnknownSession },
            );
        };
        // The number of a plain challenge can also be the number of another client's session. The
        // answer then proves nothing for that session.
        let mut session = None;
        let taken_up = match Envelope::split(&challenge.request) {
            Ok((envelope, rest)) => {
                session = self.session.filter(|_| envelope.session_id == slow.session_id());
                slow.resume(context, envelope, rest, session.is_some())
            }
            Err(_) => Err(slow.refuse(context, RefusalReason::NoChallenge)),
        };
        let challenged = match self.with_computed(context, taken_up, computed) {
            Ok(challenged) => challenged,
            Err(reply) => return reply,
        };
        match self.check(context, &challenged, &answer, challenge) {
            Ok(index) => {
                if let Some(session) = session {
                    // The session is authenticated only for the identity that it was set up for.
                    // Any other identity counts for this request alone.
                    session.authenticate(answer.identity, index, self.now_s());
                }
                match challenged.is_status() {
                    true => self.status(context, &challenged, body),
                    false => challenged.answer(context, values),
                }
            }
            Err(refused) => {
                if self.depends_on_remote.get() {
                    self.forward_read(&challenged, Some(challenge));
                }
                challenged.refuse(context, refused)
            }
        }
    }

    /// Whether `identity` may read the requested values.
    pub(crate) fn permits<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        challenged: &AnsweredChallenge<'a>,
        identity: Reference<'_>,
    ) -> bool {
        let (server, status) = (references(&self.path.server), references(&self.path.status));
        let administrators = ServerAdministrators {
            server: &server,
            server_reads_all: self.path.server_reads_all,
            status: &status,
            lookups_max: self.path.config.group_lookups,
        };
        let entitled = challenged.permits(context, identity, &administrators);
        if entitled == AuthorityOutcome::GaveUp {
            self.counters.groups_given_up.add(1);
        }
        self.depends_on_remote.set(entitled == AuthorityOutcome::Remote);
        entitled == AuthorityOutcome::Yes
    }

    /// Checks whether `answer` is correct and its identity may read the values. Permission is
    /// checked first, as in deployed servers, so that only permitted identities learn whether the
    /// key was correct. Returns the index of the value with the key.
    fn check<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        challenged: &AnsweredChallenge<'a>,
        answer: &ChallengeAnswer<'_>,
        challenge: &IssuedChallenge,
    ) -> Result<i32, RefusalReason> {
        let kind = match answer.auth_type {
            auth::PUBLIC_KEY => auth::PUBLIC_KEY,
            auth::SECRET_KEY => auth::SECRET_KEY,
            _ => return Err(RefusalReason::UnknownAuthentication),
        };
        let identity = answer.identity;
        let permits = |index| self.permits(context, challenged, Reference { index, ..identity });
        let answered = ChallengeProof {
            version: challenge.version,
            covered: challenge.covered(),
            signed_response: answer.signed_response,
            limits: self.limits(),
        };
        let keys_max = self.keys_max(kind, &answered);
        let is_permitted = permits(identity.index);
        // With index 0 and a public key, the index of the matching key counts too. Deployed servers
        // do this in sessions; this server also does it outside sessions.
        let promotes = !is_permitted && identity.index == 0 && kind == auth::PUBLIC_KEY;
        let keys = match keys(context, identity, kind) {
            Ok(keys) => keys.take(keys_max),
            Err(NotLocal::Remote) if is_permitted => {
                self.depends_on_remote.set(true);
                return Err(RefusalReason::IdentityElsewhere);
            }
            Err(NotLocal::Remote) if promotes => {
                self.depends_on_remote.set(true);
                return Err(RefusalReason::NotPermitted);
            }
            Err(NotLocal::Damaged) if is_permitted => return Err(RefusalReason::DamagedRecord),
            Err(_) => return Err(RefusalReason::NotPermitted),
        };
        if !is_permitted && !promotes {
            return Err(RefusalReason::NotPermitted);
        }
        let checked = self.path.begin_check(kind, identity.handle, self.origin)?;
        let (mut is_anyone_permitted, mut is_readable) = (is_permitted, true);
        for key in keys {
            if promotes && !permits(key.index) {
                continue;
            }
            is_anyone_permitted = true;
            self.spend(cost::check(kind, answered.signed_response, &answered.limits));
            match answered.check(kind, key.data) {
                Ok(()) => {
                    self.counters.answers_right.add(1);
                    // Later requests in the session may need the index of the matching key even if
                    // this request did not.
                    let is_any = identity.index == 0 && kind == auth::PUBLIC_KEY;
                    return Ok(if is_any { key.index } else { identity.index });
                }
                Err(VerifyError::Work) => return Err(RefusalReason::TooMuchWork),
                Err(error) => is_readable &= !error.is_unreadable(),
            }
        }
        if is_anyone_permitted {
            checked.was_wrong();
        }
        Err(match (is_anyone_permitted, is_readable) {
            (false, _) => RefusalReason::NotPermitted,
            (true, true) => RefusalReason::WrongKey,
            (true, false) => RefusalReason::UnreadableAnswer,
        })
    }

    /// Answers with the state of the server.
    pub(crate) fn status<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        challenged: &AnsweredChallenge<'a>,
        body: &'a mut Vec<u8>,
    ) -> ReplyParts<'a> {
        body.clear();
        let texts = self.shared.status_texts();
        for (index, kind, text) in &texts {
            let value = Value::new(*index, kind.as_bytes(), text.as_bytes());
            // The same permissions as in deployed servers.
            let permissions = Permissions(Permissions::ADMIN_READ.0 | Permissions::ADMIN_WRITE.0);
            Value { permissions, ..value }.encode(body);
        }
        challenged.status(context, body, texts.len())
    }

    /// Answers another server that asks whether the answer to its challenge is correct. RFC 3652
    /// section 3.5.3.
    pub(crate) fn verification<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        slow: &SlowPathRequest<'a>,
    ) -> ReplyParts<'a> {
        let unreadable = || refuse_stream(context, RefusalReason::Malformed, b"");
        let Ok(request) = VerificationRequest::decode(slow.body()) else { return unreadable() };
        if let Err(reply) = slow.check_responsibility(context, request.identity.handle) {
            return reply;
        }
        let answered = ChallengeProof {
            version: slow.version(),
            covered: [request.nonce, request.digest.digest],
            signed_response: request.signed_response,
            limits: self.limits(),
        };
        let keys = match keys(context, request.identity, auth::SECRET_KEY) {
            Ok(keys) => keys.take(self.keys_max(auth::SECRET_KEY, &answered)),
            // The name is too long for any record.
            Err(NotLocal::Remote) => return slow.verdict(context, false),
            Err(NotLocal::Damaged) => return slow.refuse(context, RefusalReason::DamagedRecord),
        };
        let handle = request.identity.handle;
        let checked = match self.path.begin_check(auth::SECRET_KEY, handle, self.origin) {
            Ok(checked) => checked,
            Err(refused) => return slow.refuse(context, refused),
        };
        self.counters.verifications.add(1);
        let mut is_readable = true;
        for key in keys {
            self.spend(cost::check(auth::SECRET_KEY, answered.signed_response, &answered.limits));
            match answered.check(auth::SECRET_KEY, key.data) {
                Ok(()) => return slow.verdict(context, true),
                Err(error) => is_readable &= !error.is_unreadable(),
            }
        }
        checked.was_wrong();
        // As in deployed servers: vector `verify_auth_secret_md5_old`.
        if is_readable { slow.verdict(context, false) } else { unreadable() }
    }

    /// The limits on the work that the answer to a challenge may demand.
    fn limits(&self) -> Pbkdf2Limits {
        self.path.config.pbkdf2()
    }

    /// Adds `units` to the work done for this request.
    pub(crate) fn spend(&self, units: Units) {
        self.cost.set(self.cost.get() + units);
    }

    /// How many keys are tried with an answer, so that the work stays within the limits.
    fn keys_max(&self, kind: &[u8], answered: &ChallengeProof<'_>) -> usize {
        cost::keys_max(kind, answered.signed_response, &answered.limits, self.path.config.keys_tried)
    }

    /// Writes `reply` to `message`. The reply gets the MAC of the session or a signature if it is
    /// to be certified and can be, and is encrypted if it is confidential. Nothing is written when
    /// encryption fails.
    ///
    /// # Errors
    /// When the source has got too many signatures. `message` is then to be replaced.
    fn write(&self, reply: &ReplyParts<'_>, message: &mut Vec<u8>) -> Result<(), RefusalReason> {
        if !self.write_unsigned(reply, message) {
            return Ok(());
        }
        // The session is open by now, and costs more than its signature. It is what clients with
        // many requests are told to use.
        let is_set_up = reply.op_code() == OpCode::SESSION_SETUP;
        self.sign(message, || is_set_up || self.path.signature_rates.admits(self.origin, &self.path.exempt))
    }

    /// Writes `reply` like `write`, but without a signature. Returns whether the reply is to be
    /// signed.
    pub(crate) fn write_unsigned(&self, reply: &ReplyParts<'_>, message: &mut Vec<u8>) -> bool {
        message.clear();
        message.resize(Envelope::LEN + reply.message_len(), 0);
        reply.write_stream(message);
        // A reply that sets a session up, or exchanges its key, is not in the session yet.
        let sets_up = matches!(reply.op_code(), OpCode::SESSION_SETUP | OpCode::SESSION_EXCHANGE_KEY);
        let session = self.session.filter(|session| session.keys().id == reply.session_id() && !sets_up);
        let signs = match session {
            // A refusal that sends clients to TCP goes to many senders with unproven addresses, so
            // it must be cheap, as must the one of too many signatures.
            _ if !reply.certifies() || reply.refused().is_some_and(is_never_signed) => false,
            Some(session) if traffic::seal(session, message).is_ok() => {
                self.counters.with_mac.add(1);
                false
            }
            _ => true,
        };
        let Some(session) = session.filter(|_| reply.is_confidential()) else { return signs };
        let mut random = [0; 16];
        if (self.path.random)(&mut random) {
            self.counters.encrypted.add(1);
            traffic::encrypt(session, &random, message);
        } else {
            self.counters.without_random.add(1);
            message.clear();
        }
        signs
    }

    fn sign(&self, message: &mut Vec<u8>, admits: impl FnOnce() -> bool) -> Result<(), RefusalReason> {
        let Some(signer) = &self.path.signer else { return Ok(()) };
        let counter = match signer.sign(message, admits) {
            Ok(Signature::Refused) => return Err(RefusalReason::TooManySignatures),
            Ok(Signature::Made) => {
                self.spend(cost::SIGNATURE);
                &self.counters.signed
            }
            Ok(Signature::Kept) => &self.counters.signed_before,
            // The client gets the answer unsigned, as from deployed servers, and decides what to do
            // with it.
            Err(_) => &self.counters.signing_failed,
        };
        counter.add(1);
        Ok(())
    }
}

/// Whether a refusal for this reason goes out without a signature, also to who asks for one.
const fn is_never_signed(reason: RefusalReason) -> bool {
    matches!(reason, RefusalReason::OverTcp | RefusalReason::TooManySignatures)
}
