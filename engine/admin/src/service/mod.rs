//! Answers messages: opens the request, decides it, authenticates the requester, carries out the
//! decision and seals the answer.
//!
//! A decision never blocks. The thread of a request may block on other services, and until a change
//! is durable, so it has to be a thread that may block.

mod changes;
mod forwarded;
pub mod opening;
mod pages;
mod remote;
pub mod reply;
mod sessions;

pub use pages::{ListPages, ReplyMessages};

use crate::audit::{Audit, AuditLine};
use crate::costly::CostlyWork;
use crate::counters::AdminCounters;
use crate::operation::{
    CandidateKey, NotHere, OperationAnswer, OperationDecision, OperationRefusal, OperationRequest,
    OperationRules, Requester, decide, keys,
};
use crate::permission::view::RemoteFacts;
use crate::referral::ReferralResolver;
use crate::remote::RemoteServices;
use crate::store::{Store, StoreError, StoreSnapshot};
use forwarded::ForwardedContext;
use handle_auth::challenge_proof::ChallengeProof;
use handle_auth::challenges::{Challenges, IssuedChallenge, SessionChallenge};
use handle_auth::kdf::Pbkdf2Limits;
use handle_auth::source::RequestOrigin;
use handle_auth::{VerifyError, cost};
use handle_daemon::clock::now_unix_s;
use handle_daemon::sessions::{IncomingMessage, SessionEndpoint, TakenChallenge, numbers};
use handle_daemon::site::SiteRecord;
use handle_proto::limit::NONCE_LEN;
use handle_proto::wire::Request;
use handle_proto::wire::auth::{self, ChallengeAnswer, VerificationRequest};
use handle_proto::wire::list::Reference;
use handle_proto::wire::session::SessionAnswer;
use handle_proto::{Handle, OpCode, OpFlags, Permissions, ResponseCode, Value, Version};
use opening::{OpenedRequest, OpeningFailure, UNREADABLE, open};
use remote::{IdentityProof, RemoteContext};
use reply::{PreparedResponse, ReplySealer, ReplyTo, unreadable};
use sessions::{UNDECRYPTABLE, UNKNOWN};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;
use zeroize::Zeroizing;

/// Everything that answering requests needs.
#[derive(Debug)]
pub struct AdminService {
    /// The records.
    pub store: Arc<Store>,
    /// The site record of this server.
    pub site: Arc<SiteRecord>,
    /// Turns answers into messages.
    pub sealer: ReplySealer,
    /// The audit log.
    pub audit: Audit,
    /// Counters of the service.
    pub counters: AdminCounters,
    challenges: Mutex<Challenges>,
    sessions: Option<SessionEndpoint>,
    remote: Option<RemoteServices>,
    /// Resolves referrals for clients that do not understand them.
    referrals: Option<ReferralResolver>,
    /// The threads for costly work; without them, the thread of the request does the work.
    costly: Option<Arc<CostlyWork>>,
    in_force: RwLock<Arc<ActiveRules>>,
    started: Instant,
}

/// The rules in force; replaced when the configuration is reloaded.
#[derive(Debug)]
pub struct ActiveRules {
    /// The rules by which requests are decided.
    pub rules: OperationRules,
    /// Limits on the work of verifying answers to challenges.
    pub effort: ChallengeEffort,
}

/// Limits on the work of verifying an answer to a challenge.
#[derive(Clone, Copy, Debug)]
pub struct ChallengeEffort {
    /// Limits on the parameters of PBKDF2.
    pub pbkdf2: Pbkdf2Limits,
    /// Maximum keys of one identity that are tried if the answer names none.
    pub keys_tried: usize,
    /// Whether clients are challenged only inside sessions.
    pub requires_sessions: bool,
}

/// The identity behind a request.
#[derive(Clone, Copy)]
enum RequestIdentity<'a> {
    /// No identity was given.
    Nobody,
    /// The identity that the session has authenticated.
    Known(Reference<'a>),
    /// The identity that an answer to a challenge claims; the result shows whether it was proven.
    Claimed(Reference<'a>),
}

/// The outcome of verifying an answer to a challenge.
enum ProofOutcome {
    /// Send this response.
    Said(PreparedResponse),
    /// The verifying server does not know the form of the answer: ask for an answer in the form of
    /// this version.
    Older(Version),
}

const TOO_MANY_CHALLENGES: OperationRefusal = OperationRefusal::new(
    ResponseCode::SERVER_BUSY,
    "Too many challenges wait for an answer; ask again later.",
);

/// Costly work has its own threads; this is the refusal when their queue is full.
const TOO_MUCH_WAITS: OperationRefusal = OperationRefusal::new(
    ResponseCode::SERVER_BUSY,
    "Too many key exchanges and answers wait to be checked; ask again later.",
);

const TOO_MUCH_WORK: OperationRefusal = OperationRefusal::new(
    ResponseCode::AUTHENTICATION_FAILED,
    "The answer asks for more PBKDF2 rounds, or for a longer or shorter key, than this server accepts.",
);

const UNREADABLE_ANSWER: OperationRefusal =
    OperationRefusal::new(ResponseCode::AUTHENTICATION_ERROR, "The answer to the challenge cannot be read.");

/// Random numbers tried to find one that no session uses.
const TRIES: usize = 8;

/// A copy that is erased when dropped, since its content may have been sent encrypted.
fn hidden(message: &[u8]) -> Zeroizing<Box<[u8]>> {
    Zeroizing::new(message.into())
}

/// A challenge to the client that `to` answers, about the request `message`.
fn new_challenge(
    message: &[u8],
    to: &ReplyTo,
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

impl AdminService {
    /// A service over `store`.
    #[must_use]
    pub fn new(
        store: Arc<Store>,
        in_force: ActiveRules,
        sealer: ReplySealer,
        challenges: Challenges,
        audit: Audit,
    ) -> Self {
        Self {
            store,
            site: Arc::clone(&in_force.rules.site),
            sealer,
            audit,
            counters: AdminCounters::default(),
            challenges: Mutex::new(challenges),
            sessions: None,
            remote: None,
            referrals: None,
            costly: None,
            in_force: RwLock::new(Arc::new(in_force)),
            started: Instant::now(),
        }
    }

    /// The rules in force.
    #[must_use]
    pub fn in_force(&self) -> Arc<ActiveRules> {
        Arc::clone(&self.in_force.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts other rules in force for all requests from now on.
    pub fn put_in_force(&self, in_force: ActiveRules) {
        *self.in_force.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(in_force);
    }

    /// The remote services, if other services are asked.
    #[must_use]
    pub const fn remote(&self) -> Option<&RemoteServices> {
        self.remote.as_ref()
    }

    /// Sets the remote services that are asked about identities.
    #[must_use]
    pub fn with_remote(self, remote: Option<RemoteServices>) -> Self {
        Self { remote, ..self }
    }

    /// The resolver for clients that do not understand referrals, if there is one.
    #[must_use]
    pub const fn referrals(&self) -> Option<&ReferralResolver> {
        self.referrals.as_ref()
    }

    /// Sets the resolver for clients that do not understand referrals.
    #[must_use]
    pub fn with_referrals(self, referrals: Option<ReferralResolver>) -> Self {
        Self { referrals, ..self }
    }

    /// The threads for costly work.
    #[must_use]
    pub fn costly(&self) -> Option<&CostlyWork> {
        self.costly.as_deref()
    }

    /// Sets the threads for costly work.
    #[must_use]
    pub fn with_costly(self, costly: Arc<CostlyWork>) -> Self {
        let sealer = self.sealer.with_costly(Arc::clone(&costly));
        Self { costly: Some(costly), sealer, ..self }
    }

    /// The session endpoint, if sessions are enabled.
    #[must_use]
    pub const fn sessions(&self) -> Option<&SessionEndpoint> {
        self.sessions.as_ref()
    }

    /// Sets the session endpoint.
    #[must_use]
    pub fn with_sessions(self, sessions: Option<SessionEndpoint>) -> Self {
        Self { sessions, ..self }
    }

    /// Answers `message`, envelope first, received from `source`. Blocks until the changes it makes
    /// are durable.
    #[must_use]
    pub fn answer(self: &Arc<Self>, message: &[u8], source: SocketAddr) -> ReplyMessages {
        let came = match &self.sessions {
            Some(sessions) => sessions.open(message),
            None => Ok(IncomingMessage::outside(message)),
        };
        match came {
            Ok(came) => self.answer_opened(&came, ForwardedContext::default(), source),
            Err(_) => self.unreadable(&UNDECRYPTABLE, now_unix_s()),
        }
    }

    /// Answers an opened message.
    fn answer_opened(
        self: &Arc<Self>,
        came: &IncomingMessage<'_>,
        context: ForwardedContext,
        source: SocketAddr,
    ) -> ReplyMessages {
        let now_unix_s = now_unix_s();
        let (datagrams_max, resolves) = (context.datagrams_max, context.resolves);
        let opened = match open(came.message()) {
            Ok(opened) => opened,
            // The answer must not reveal whether a forged message had the right padding.
            Err(_) if came.may_be_a_guess() => return self.unreadable(&UNDECRYPTABLE, now_unix_s),
            Err(OpeningFailure::Dropped) => {
                return ReplyMessages { first: Vec::new(), rest: None, keeps_connection: false };
            }
            Err(OpeningFailure::Answered(op_code, refused)) => {
                self.counters.answered(OpCode::RESERVED, refused.code);
                let first = unreadable(op_code, &refused, now_unix_s);
                return ReplyMessages { first, rest: None, keeps_connection: false };
            }
        };
        let keeps_connection = opened.flags().has(OpFlags::KEEP_CONNECTION);
        let (to, said) = self.say(came, &opened, context.challenge, source, now_unix_s);
        let said = if resolves { self.resolved(&opened, said) } else { said };
        let (site, datagrams) = (&self.site, datagrams_max.map(|most| (most, to.clone())));
        let (mut first, mut rest) = match said {
            PreparedResponse::Answer(answer) => (self.sealer.answer(&to, site, &answer, now_unix_s), None),
            PreparedResponse::Challenge(id, pending) => {
                (self.sealer.challenge(&to, site, id, &pending, now_unix_s), None)
            }
            PreparedResponse::Session(id, mode, data) => {
                let answer = SessionAnswer { mode, data: &data };
                (self.sealer.session(&to, site, id, answer, now_unix_s), None)
            }
            PreparedResponse::Unreadable(refused) => {
                let first = unreadable(OpCode::RESERVED, &refused, now_unix_s);
                return ReplyMessages { first, rest: None, keeps_connection: false };
            }
            PreparedResponse::List(lister, snapshot) => {
                let mut pages = ListPages { service: Arc::clone(self), snapshot, lister, to, has_more: true };
                (pages.next_page().unwrap_or_default(), Some(pages))
            }
        };
        if let Some((most, to)) = datagrams
            && forwarded::is_too_long(&first, rest.as_ref(), most)
        {
            let answer = forwarded::too_many_datagrams();
            (first, rest) = (self.sealer.answer(&to, site, &answer, now_unix_s), None);
        }
        ReplyMessages { first, rest, keeps_connection }
    }

    /// The answer to a message that cannot be parsed.
    fn unreadable(&self, refused: &OperationRefusal, now_unix_s: u32) -> ReplyMessages {
        self.counters.answered(OpCode::RESERVED, refused.code);
        let first = unreadable(OpCode::RESERVED, refused, now_unix_s);
        ReplyMessages { first, rest: None, keeps_connection: false }
    }

    fn say(
        &self,
        came: &IncomingMessage<'_>,
        opened: &OpenedRequest<'_>,
        challenge: Option<IssuedChallenge>,
        source: SocketAddr,
        now_unix_s: u32,
    ) -> (ReplyTo, PreparedResponse) {
        let origin = RequestOrigin::connection(source.ip());
        let Request::AnswerChallenge(answer) = opened.request else {
            let to = ReplyTo::new(opened, origin).in_session(came.sealing());
            let said = self.about_sessions(came, opened, source);
            let said = said.unwrap_or_else(|| self.first_time(came, opened, &to, source, now_unix_s));
            let known = came.identity();
            let by = known
                .as_ref()
                .map_or(RequestIdentity::Nobody, |identity| RequestIdentity::Known(identity.as_reference()));
            self.note(opened, by, source, &said);
            return (to, said);
        };
        let claimed = RequestIdentity::Claimed(answer.identity);
        // A replayed message, or an answer from another sender, must not use up the challenge.
        if let Some(said) = sessions::not_accepted(came, opened) {
            self.note(opened, claimed, source, &said);
            return (ReplyTo::new(opened, origin).in_session(came.sealing()), said);
        }
        // A challenge can be answered only once, whatever the outcome.
        let taken = match challenge {
            Some(challenge) => TakenChallenge::Waiting(challenge),
            None => self.take_challenge(opened.session_id, came.is_in_session()),
        };
        let waiting = match &taken {
            TakenChallenge::Waiting(challenge) => Some(challenge),
            TakenChallenge::Over | TakenChallenge::Unknown => None,
        };
        let Some((challenge, original)) = waiting.and_then(|it| Some((it, forwarded::original(it)?))) else {
            let is_unknown = matches!(taken, TakenChallenge::Unknown);
            let is_made_up = opened.session_id > 0 && !came.is_in_session() && is_unknown;
            let said = match came.may_be_a_guess() {
                true => PreparedResponse::Unreadable(UNDECRYPTABLE),
                false if is_made_up => UNKNOWN.into(),
                false => OperationRefusal::new(ResponseCode::AUTHENTICATION_TIMEOUT, "").into(),
            };
            match is_made_up {
                // Guessed numbers, over UDP from spoofed addresses, do not belong in the audit log.
                true => self.counters.answered(opened.op_code(), ResponseCode::SESSION_TIMEOUT),
                false => self.note(opened, claimed, source, &said),
            }
            return (ReplyTo::new(opened, origin).in_session(came.sealing()), said);
        };
        // The number of a plain challenge may also be the number of another client's session, which
        // proves nothing here.
        let outside = IncomingMessage::outside(came.message());
        let came = if original.session_id == opened.session_id { came } else { &outside };
        let to = ReplyTo::about(&original, opened, came.sealing(), origin);
        let asked = OperationRequest {
            version: to.version(),
            ..operation_request(&original, challenge.nonce, now_unix_s)
        };
        let said = match self.authenticated(came, challenge, &asked, &answer, origin) {
            Ok(ProofOutcome::Said(said)) => said,
            Ok(ProofOutcome::Older(suggested)) => {
                self.challenge_again(came, challenge, &to, suggested, source)
            }
            Err(error) => self.failed(&error).into(),
        };
        self.note(&original, claimed, source, &said);
        (to, said)
    }

    /// Decides a request that answers no challenge; only its session can tell the requester.
    fn first_time(
        &self,
        came: &IncomingMessage<'_>,
        opened: &OpenedRequest<'_>,
        to: &ReplyTo,
        source: SocketAddr,
        now_unix_s: u32,
    ) -> PreparedResponse {
        let (message, known, in_force) = (came.message(), came.identity(), self.in_force());
        let who = match &known {
            _ if in_force.rules.anonymous_full_access => Requester::Anyone,
            Some(identity) => Requester::Is(identity.as_reference()),
            None => Requester::Nobody,
        };
        let nonce = handle_auth::random();
        let asked = operation_request(opened, nonce, now_unix_s);
        let decided = self.store.snapshot().and_then(|snapshot| {
            let mut outlook = self.remote_context(RequestOrigin::connection(source.ip()));
            let decision = outlook.decide(&snapshot, &in_force.rules, &asked, who)?;
            self.carry_out(decision, snapshot, message, &asked, who, outlook)
        });
        match decided {
            // The answer must not reveal whether a forged message can be parsed.
            Ok(Some(PreparedResponse::Unreadable(_))) if came.may_be_a_guess() => {
                PreparedResponse::Unreadable(UNDECRYPTABLE)
            }
            Ok(Some(said)) => said,
            Ok(None) if came.is_in_session() => self.challenge_in_session(came, opened, to, nonce, source),
            Ok(None) => self.challenge(message, to, nonce, source),
            Err(error) => self.failed(&error).into(),
        }
    }

    /// Carries out a decision; `None` if the outcome depends on the requester.
    fn carry_out(
        &self,
        decision: OperationDecision,
        snapshot: StoreSnapshot,
        message: &[u8],
        asked: &OperationRequest<'_>,
        who: Requester<'_>,
        outlook: RemoteContext<'_>,
    ) -> Result<Option<PreparedResponse>, StoreError> {
        Ok(Some(match decision {
            OperationDecision::Challenge | OperationDecision::Prove => return Ok(None),
            OperationDecision::Answer(answer) => answer.into(),
            OperationDecision::List(lister) => PreparedResponse::List(lister, Box::new(snapshot)),
            OperationDecision::Status => self.status(&snapshot, asked)?.into(),
            OperationDecision::Verify => self.verify(&snapshot, asked, outlook.origin)?,
            OperationDecision::Change(..) => self.change(message, asked, who, outlook.into_known())?.into(),
        }))
    }

    /// Has the writer decide again, on the state of the store at that time, and make the changes.
    fn change(
        &self,
        message: &[u8],
        asked: &OperationRequest<'_>,
        who: Requester<'_>,
        known: RemoteFacts,
    ) -> Result<OperationAnswer, StoreError> {
        let (in_force, message) = (self.in_force(), hidden(message));
        let (random, now_unix_s, version) = (asked.random, asked.now_unix_s, asked.version);
        let identity = match who {
            Requester::Is(identity) => Some((identity.index, identity.handle.to_vec())),
            Requester::Nobody | Requester::Anyone | Requester::Claims(_) => None,
        };
        let is_anyone = matches!(who, Requester::Anyone);
        self.store.change(move |transaction| {
            let opened = open(&message).map_err(|_| StoreError::Damaged("a request that was read before"))?;
            let asked = OperationRequest { version, ..self::operation_request(&opened, random, now_unix_s) };
            let who = match &identity {
                Some((index, handle)) => Requester::Is(Reference { handle, index: *index }),
                None if is_anyone => Requester::Anyone,
                None => Requester::Nobody,
            };
            Ok(match decide(transaction, &in_force.rules, &asked, who, &known)? {
                OperationDecision::Change(writes, answer) => {
                    writes.into_iter().try_for_each(|write| changes::make(transaction, write))?;
                    answer
                }
                OperationDecision::Answer(answer) => answer,
                // Values that were public have become hidden since, and the requester was never
                // authenticated.
                _ => {
                    let text = "The handle was changed meanwhile; ask again.";
                    OperationAnswer::Refused(OperationRefusal::new(ResponseCode::SERVER_BUSY, text))
                }
            })
        })
    }

    /// Challenges the client. RFC 3652 section 3.5.1.
    fn challenge(
        &self,
        message: &[u8],
        to: &ReplyTo,
        nonce: [u8; NONCE_LEN],
        source: SocketAddr,
    ) -> PreparedResponse {
        if self.in_force().effort.requires_sessions {
            return OperationRefusal::new(
                ResponseCode::INVALID_CREDENTIAL,
                "This server requires a session.",
            )
            .into();
        }
        self.issue(new_challenge(message, to, nonce, Version::CURRENT), source)
    }

    /// Challenges the client that answered `challenge` again, to get an answer in a form that
    /// `suggested` knows. The new challenge is in the session if the first one was.
    fn challenge_again(
        &self,
        came: &IncomingMessage<'_>,
        challenge: &IssuedChallenge,
        to: &ReplyTo,
        suggested: Version,
        source: SocketAddr,
    ) -> PreparedResponse {
        let again = new_challenge(&challenge.request, to, handle_auth::random(), suggested);
        match to.session_id() {
            id if came.is_in_session() => self.issue_in_session(id, again, source),
            _ => self.issue(again, source),
        }
    }

    fn issue(&self, challenge: IssuedChallenge, source: SocketAddr) -> PreparedResponse {
        let pending = SessionChallenge { nonce: challenge.nonce, suggested: challenge.suggested };
        // Checked before the table is locked, since another process may have to be asked.
        let is_free = |number: &u32| {
            let id = (number & 0x7fff_ffff).cast_signed();
            self.sessions.as_ref().is_none_or(|sessions| !sessions.has(id))
        };
        let number = || numbers::of_admin(u32::from_be_bytes(handle_auth::random()));
        let free = (0..TRIES).map(|_| number()).find(is_free);
        // The number 0 stands for no challenge, and an answer to it is refused.
        let number = || free.unwrap_or(0);
        let origin = RequestOrigin::connection(source.ip());
        let issued = self.challenges().issue(origin, challenge, number, self.now_ms());
        issued.map_or_else(|_| TOO_MANY_CHALLENGES.into(), |id| PreparedResponse::Challenge(id, pending))
    }

    /// Handles an answer to a challenge. RFC 3652 section 3.5.2.
    ///
    /// As in deployed servers, permission is checked first, so that only identities with the
    /// permission learn whether their key was right. Until the key is verified, nothing but a
    /// refusal is sent.
    fn authenticated(
        &self,
        came: &IncomingMessage<'_>,
        challenge: &IssuedChallenge,
        asked: &OperationRequest<'_>,
        answer: &ChallengeAnswer<'_>,
        origin: RequestOrigin,
    ) -> Result<ProofOutcome, StoreError> {
        let kind = match answer.auth_type {
            auth::PUBLIC_KEY => auth::PUBLIC_KEY,
            auth::SECRET_KEY => auth::SECRET_KEY,
            _ => {
                let text = "Unknown authentication type; use HS_PUBKEY or HS_SECKEY.";
                return Ok(ProofOutcome::Said(
                    OperationRefusal::new(ResponseCode::INVALID_CREDENTIAL, text).into(),
                ));
            }
        };
        let (snapshot, claim, in_force) = (self.store.snapshot()?, answer.identity, self.in_force());
        let ActiveRules { rules, effort } = &*in_force;
        let mut outlook = self.remote_context(origin);
        let keys_tried = cost::keys_max(kind, answer.signed_response, &effort.pbkdf2, effort.keys_tried);
        let first = outlook.decide(&snapshot, rules, asked, Requester::Claims(claim))?;
        // With index 0 and a public key, the index of the matching key counts too: in sessions as
        // in deployed servers, and here also outside sessions.
        let promotes = claim.index == 0 && kind == auth::PUBLIC_KEY && first.is_not_permitted();
        let proofs: Vec<IdentityProof> = match keys(&snapshot, rules, claim, kind, keys_tried) {
            _ if first.is_refusal() && !promotes => Vec::new(),
            Err(NotHere::Store(error)) => return Err(error),
            Err(NotHere::Remote) if promotes && !outlook.is_worth_promoting() => Vec::new(),
            Err(NotHere::Remote) => match outlook.proofs(challenge, answer, effort) {
                Ok(proofs) => proofs,
                Err(refused) => return Ok(ProofOutcome::Said(refused.into())),
            },
            Ok(keys) => keys.into_iter().map(IdentityProof::Key).collect(),
        };
        let answered = ChallengeProof {
            version: challenge.version,
            covered: challenge.covered(),
            signed_response: answer.signed_response,
            limits: effort.pbkdf2,
        };
        let mut refusal = first.is_refusal().then_some(first);
        for proof in &proofs {
            let index = proof.index(claim);
            let identity = if promotes { Reference { index, ..claim } } else { claim };
            if outlook.decide(&snapshot, rules, asked, Requester::Claims(identity))?.is_not_permitted() {
                continue;
            }
            let checked = match proof {
                IdentityProof::Key(key) => match self.check(&answered, kind, key, origin) {
                    Some(checked) => checked,
                    None => return Ok(ProofOutcome::Said(TOO_MUCH_WAITS.into())),
                },
                IdentityProof::Told(_) => proof.check(&answered, kind),
            };
            if checked == Err(VerifyError::Work) {
                return Ok(ProofOutcome::Said(TOO_MUCH_WORK.into()));
            }
            if checked.is_ok() {
                if let Some(sessions) = &self.sessions {
                    // The session gets the identity for which it was set up; any other identity
                    // counts for this request alone. Later requests of the session may need the
                    // index of the matching key even if this one did not.
                    let is_any = claim.index == 0 && kind == auth::PUBLIC_KEY;
                    sessions.authenticate(came, claim, if is_any { index } else { claim.index });
                }
                let who = Requester::Is(identity);
                let decision = outlook.decide(&snapshot, rules, asked, who)?;
                let said = self.carry_out(decision, snapshot, &challenge.request, asked, who, outlook)?;
                return Ok(ProofOutcome::Said(said.unwrap_or_else(|| wrong_key(claim))));
            }
            if let Some(suggested) = proof.older_form(challenge, answer) {
                return Ok(ProofOutcome::Older(suggested));
            }
            if checked.is_err_and(|error| error.is_unreadable()) {
                return Ok(ProofOutcome::Said(UNREADABLE_ANSWER.into()));
            }
            refusal = None;
        }
        Ok(ProofOutcome::Said(match refusal {
            Some(OperationDecision::Answer(answer)) => answer.into(),
            _ => wrong_key(claim),
        }))
    }

    /// Verifies an answer to a challenge with `key`, of type `kind`; `None` if the queue for costly
    /// work is full.
    fn check(
        &self,
        answered: &ChallengeProof<'_>,
        kind: &[u8],
        key: &CandidateKey,
        origin: RequestOrigin,
    ) -> Option<Result<(), VerifyError>> {
        let Some(costly) = &self.costly else { return Some(answered.check(kind, &key.data)) };
        let ChallengeProof { version, covered, signed_response, limits } = *answered;
        let cost = cost::check(kind, signed_response, &limits);
        let kind = if kind == auth::PUBLIC_KEY { auth::PUBLIC_KEY } else { auth::SECRET_KEY };
        let (covered, signed_response) = (covered.map(<[u8]>::to_vec), signed_response.to_vec());
        let key = key.data.clone();
        costly.run(origin, cost, move || {
            let covered = [&covered[0][..], &covered[1]];
            ChallengeProof { version, covered, signed_response: &signed_response, limits }.check(kind, &key)
        })
    }

    /// Handles a request of another server to verify the answer to its challenge. RFC 3652 section
    /// 3.5.3.
    fn verify(
        &self,
        snapshot: &StoreSnapshot,
        asked: &OperationRequest<'_>,
        origin: RequestOrigin,
    ) -> Result<PreparedResponse, StoreError> {
        let in_force = self.in_force();
        let ActiveRules { rules, effort } = &*in_force;
        let Request::VerifyChallenge(VerificationRequest { identity, nonce, digest, signed_response }) =
            asked.request
        else {
            return Ok(OperationAnswer::Verdict(false).into());
        };
        let kind = auth::SECRET_KEY;
        let keys_tried = cost::keys_max(kind, signed_response, &effort.pbkdf2, effort.keys_tried);
        let keys = match keys(snapshot, rules, identity, kind, keys_tried) {
            Ok(keys) => keys,
            Err(NotHere::Remote) => Vec::new(),
            Err(NotHere::Store(error)) => return Err(error),
        };
        let answered = ChallengeProof {
            version: asked.version,
            covered: [nonce, digest.digest],
            signed_response,
            limits: effort.pbkdf2,
        };
        let mut is_readable = true;
        for key in &keys {
            match self.check(&answered, kind, key, origin) {
                None => return Ok(TOO_MUCH_WAITS.into()),
                Some(Ok(())) => return Ok(OperationAnswer::Verdict(true).into()),
                Some(Err(error)) => is_readable &= !error.is_unreadable(),
            }
        }
        // As deployed servers do: see `verify_auth_secret_md5_old` of the vectors.
        Ok(if is_readable {
            OperationAnswer::Verdict(false).into()
        } else {
            PreparedResponse::Unreadable(UNREADABLE)
        })
    }

    /// Reports the state of the server.
    fn status(
        &self,
        snapshot: &StoreSnapshot,
        asked: &OperationRequest<'_>,
    ) -> Result<OperationAnswer, StoreError> {
        let (requests, ms) = (self.counters.requests_count(), self.started.elapsed().as_millis());
        let server = format!("runtime={ms}; numreqs={requests}");
        let replication = format!("{{\"latestTxnId\":{}}}", snapshot.last_id()?);
        let texts: [(i32, &[u8], &str); 2] =
            [(1, b"CNRI.SERVER_STATUS", &server), (3, b"CNRI.REPLICATION_STATUS", &replication)];
        let mut bytes = Vec::new();
        for (index, kind, text) in texts {
            let value = Value::new(index, kind, text.as_bytes());
            Value { permissions: Permissions::ADMIN_READ, ..value }.encode(&mut bytes);
        }
        let handle = asked.request.handle().unwrap_or_default().to_vec();
        Ok(OperationAnswer::Values(handle, texts.len(), bytes))
    }

    /// The refusal for an error of the store.
    fn failed(&self, error: &StoreError) -> OperationRefusal {
        match error {
            StoreError::Busy => OperationRefusal::new(
                ResponseCode::SERVER_BUSY,
                "Too many changes wait to be written; ask again later.",
            ),
            StoreError::Failed => OperationRefusal::new(
                ResponseCode::SERVER_READ_ONLY,
                "This server cannot write at the moment.",
            ),
            error => {
                self.counters.store_errors.inc();
                tracing::error!(%error, "cannot answer a request");
                OperationRefusal::new(ResponseCode::ERROR, "Server error processing request, see server logs")
            }
        }
    }

    /// Counts an answer and writes it to the audit log.
    fn note(
        &self,
        asked: &OpenedRequest<'_>,
        by: RequestIdentity<'_>,
        source: SocketAddr,
        said: &PreparedResponse,
    ) {
        let (code, text) = match said {
            PreparedResponse::Answer(OperationAnswer::Refused(refused))
            | PreparedResponse::Unreadable(refused) => (refused.code, &*refused.text),
            PreparedResponse::Challenge(..) => (ResponseCode::AUTHENTICATION_NEEDED, ""),
            PreparedResponse::Answer(_) | PreparedResponse::List(..) | PreparedResponse::Session(..) => {
                (ResponseCode::SUCCESS, "")
            }
        };
        self.counters.answered(asked.op_code(), code);
        let (identity, is_of_interest) = match by {
            // Refused anonymous requests could fill the disk with audit lines.
            RequestIdentity::Nobody => (None, asked.op_code().is_admin() && code == ResponseCode::SUCCESS),
            RequestIdentity::Known(identity) => (Some(identity), asked.op_code().is_admin()),
            RequestIdentity::Claimed(identity) => (Some(identity), true),
        };
        if is_of_interest && !matches!(said, PreparedResponse::Challenge(..)) {
            let handle = match said {
                PreparedResponse::Answer(OperationAnswer::Created(handle, _)) => handle,
                _ => asked.request.handle().unwrap_or_default(),
            };
            let changed = matches!(said, PreparedResponse::Answer(answer) if answer.effect().changed);
            let op_code = asked.op_code();
            self.audit.write(&AuditLine { source, identity, op_code, handle, code, text, changed });
        }
    }

    /// The open challenges.
    pub fn challenges(&self) -> MutexGuard<'_, Challenges> {
        self.challenges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time since the start, in milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

fn wrong_key(identity: Reference<'_>) -> PreparedResponse {
    let text =
        format!("The answer is not made with a key of {}:{}.", identity.index, Handle(identity.handle));
    OperationRefusal { code: ResponseCode::AUTHENTICATION_FAILED, text: text.into() }.into()
}

fn operation_request<'a>(
    opened: &OpenedRequest<'a>,
    random: [u8; 16],
    now_unix_s: u32,
) -> OperationRequest<'a> {
    OperationRequest {
        request: opened.request,
        flags: opened.flags(),
        version: opened.version,
        in_session: opened.session_id != 0,
        random,
        now_unix_s,
    }
}
