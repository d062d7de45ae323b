//! What a slow thread does with a request: evaluates it, challenges its sender or checks the answer to a
//! challenge, and signs what comes of it.

use super::SlowPath;
use super::queue::{Job, Route};
use super::signer::{Signature, Signer};
use super::stats::SlowCounters;
use crate::server::Shared;
use crate::templates::SetTemplates;
use handle_auth::answered::Answered;
use handle_auth::challenges::{Challenge, Refusal};
use handle_auth::digest::Digest;
use handle_auth::kdf::Pbkdf2Limits;
use handle_proto::limit::{FRAGMENTS_MAX, MESSAGE_LEN_MAX, NONCE_LEN};
use handle_proto::wire::Envelope;
use handle_proto::wire::auth::{self, ChallengeAnswer, Verification};
use handle_proto::wire::fragment;
use handle_proto::wire::list::Reference;
use handle_proto::{Value, ValueBuf};
use handle_resolver::authority::{Administrators, Entitled};
use handle_resolver::slow::{Challenged, Evaluated, Why, keys};
use handle_resolver::{Context, NotLocal, Outcome, Refused, Reply, Slow, answer_message};
use handle_snapshot::map::Mapped;
use handle_template::Built;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// One slow thread.
pub(crate) struct SlowThread {
    shared: Arc<Shared>,
    path: Arc<SlowPath>,
    at: usize,
    held: Held,
    message: Vec<u8>,
}

/// What an answer borrows from beside its request and the set; used again.
struct Held {
    /// The challenge that was answered.
    challenge: Option<Challenge>,
    /// Values that administrators may read.
    values: Box<[u8]>,
    /// Nonce, the body of a challenge, or computed values.
    body: Vec<u8>,
}

impl SlowThread {
    pub(crate) fn new(shared: &Arc<Shared>, path: &Arc<SlowPath>, at: usize) -> Self {
        Self {
            shared: Arc::clone(shared),
            path: Arc::clone(path),
            at,
            held: Held {
                challenge: None,
                values: vec![0; MESSAGE_LEN_MAX as usize].into_boxed_slice(),
                body: Vec::with_capacity(64),
            },
            message: Vec::with_capacity(2048),
        }
    }

    /// Answers requests until there will be no more.
    pub(crate) fn run(&mut self) {
        let path = Arc::clone(&self.path);
        while let Some(mut job) = path.queues.next(&path.stop.1) {
            // A request that meets a bug is lost, and is the only one: what is held is made anew for each.
            if catch_unwind(AssertUnwindSafe(|| self.answer(&mut job))).is_err() {
                job.answer.clear();
                path.counters[self.at].bugs.add(1);
            }
            self.held.challenge = None;
            path.queues.give_back(job);
        }
    }

    fn answer(&mut self, job: &mut Job) {
        #[cfg(test)]
        crate::injected::answering_slowly(&job.request);
        let Self { shared, path, at, held, message } = self;
        // For this request only: a thread that waits must not hold a retired set.
        let set = shared.live.current();
        let counters = &path.counters[*at];
        counters.requests.add(1);
        let Ok((envelope, rest)) = Envelope::split(&job.request) else { return };
        let now_unix_s = match &path.signer {
            // What is the same for a while can be signed once.
            Some(_) if Signer::keeps(envelope.answer_version()) => {
                let now = crate::worker::now_unix_s();
                now - now % path.config.signature_reuse_s
            }
            _ => crate::worker::now_unix_s(),
        };
        let in_force = shared.settings.current();
        let mut service = in_force.site.service();
        if !job.route.is_datagram() {
            service.answer_datagrams_max = FRAGMENTS_MAX;
        }
        let templates = set.templates();
        let context =
            Context::new(set.records(), service, now_unix_s).computing(templates.map(|one| one as _));
        let len = job.request.len().min(Envelope::LEN + envelope.message_len as usize);
        let work = Work {
            path,
            shared,
            counters,
            source: job.route.source(),
            request: &job.request[..len],
            templates,
        };
        let (reply, certifies, too_long) = match answer_message(&context, envelope, rest) {
            // Another set than the worker's came in between.
            Outcome::Reply(reply) => (reply, false, None),
            Outcome::Slow(slow) => {
                let (reply, certifies) = work.decide(&context, &slow, held);
                (reply, certifies, Some(slow.refuse(&context, Refused::AnswerTooLong)))
            }
            Outcome::Drop(_) | Outcome::Fragment(_) => return,
        };
        (job.code, job.refused) = (reply.response_code(), reply.refused());
        work.write(&reply, certifies, message);
        if too_long_for(message, service.answer_datagrams_max)
            && let Some(reply) = too_long
        {
            (job.code, job.refused) = (reply.response_code(), reply.refused());
            work.write(&reply, certifies, message);
        }
        cut(job.route, message, &mut job.answer);
    }
}

/// Whether a message takes more datagrams than it may, or is longer than any: its signature is part of it.
fn too_long_for(message: &[u8], datagrams_max: usize) -> bool {
    let len = message.len() - Envelope::LEN;
    len > MESSAGE_LEN_MAX as usize || len.div_ceil(handle_proto::limit::UDP_DATA_LEN_MAX) > datagrams_max
}

/// Writes `message` to `out` as it goes to the network.
fn cut(route: Route, message: &[u8], out: &mut Vec<u8>) {
    let Ok((envelope, rest)) = Envelope::split(message) else { return };
    if !route.is_datagram() {
        return out.extend_from_slice(message);
    }
    for datagram in fragment::cut(&envelope) {
        out.extend_from_slice(&datagram.envelope);
        out.extend_from_slice(&rest[datagram.range]);
    }
}

/// One request, and what is needed to decide it.
struct Work<'w> {
    path: &'w SlowPath,
    shared: &'w Shared,
    counters: &'w SlowCounters,
    source: IpAddr,
    /// As it came, envelope first.
    request: &'w [u8],
    /// Those of the set.
    templates: Option<&'w SetTemplates>,
}

impl Work<'_> {
    /// The answer, and whether it is to be signed.
    fn decide<'a>(
        &self,
        context: &Context<'a, Mapped>,
        slow: &Slow<'a>,
        held: &'a mut Held,
    ) -> (Reply<'a>, bool) {
        match slow.why() {
            Why::Certify | Why::Identity | Why::Template => {
                let reply = match slow.evaluate(context) {
                    Evaluated::Reply(reply) => reply,
                    Evaluated::Identity => self.challenge(context, slow, held),
                    Evaluated::Template => self.compute(context, slow, held),
                };
                (reply, slow.certifies())
            }
            Why::ChallengeAnswer => self.challenge_answer(context, slow, held),
            Why::Verification => (self.verification(context, slow), slow.certifies()),
        }
    }

    /// Computes the values of a handle that is not stored.
    fn compute<'a>(&self, context: &Context<'a, Mapped>, slow: &Slow<'a>, held: &'a mut Held) -> Reply<'a> {
        let Some(templates) = self.templates else { return slow.not_computed(context) };
        match templates.compute(context, slow.handle()) {
            Ok(Built::NotFound) => slow.not_computed(context),
            Ok(Built::Values { bytes, count }) => {
                self.counters.computed.add(1);
                held.body = bytes;
                slow.computed(context, &mut held.body, count)
            }
            Err(refused) => slow.refuse(context, refused),
        }
    }

    /// Asks who wants to know. RFC 3652 section 3.5.1.
    fn challenge<'a>(&self, context: &Context<'a, Mapped>, slow: &Slow<'a>, held: &'a mut Held) -> Reply<'a> {
        let mut nonce = [0; NONCE_LEN];
        let mut numbers = [0; 4 * 8];
        if !(self.path.random)(&mut nonce) || !(self.path.random)(&mut numbers) {
            self.counters.without_random.add(1);
            return slow.refuse(context, Refused::TooManyChallenges);
        }
        let mut numbers = numbers.as_chunks().0.iter().copied().map(u32::from_be_bytes);
        let digest = slow.digest();
        let challenge = Challenge {
            version: slow.version(),
            nonce,
            digest: Digest::from_bytes(digest.as_bytes()),
            request: self.request.into(),
        };
        let issued = self.path.challenges().issue(
            self.source,
            challenge,
            || numbers.next().unwrap_or(0),
            self.path.now_ms(),
        );
        match issued {
            Ok(id) => {
                let challenge = auth::Challenge { nonce: &nonce };
                held.body.clear();
                match slow.has_old_form() {
                    true => challenge.encode_old(digest.as_bytes(), &mut held.body),
                    false => held.body.extend_from_slice(&nonce),
                }
                slow.challenge(context, id, &held.body)
            }
            Err(Refusal::TooManyOfSource | Refusal::TooLong | Refusal::NoNumber) => {
                slow.refuse(context, Refused::TooManyChallenges)
            }
        }
    }

    /// Somebody says who they are. RFC 3652 section 3.5.2.
    fn challenge_answer<'a>(
        &self,
        context: &Context<'a, Mapped>,
        slow: &Slow<'a>,
        held: &'a mut Held,
    ) -> (Reply<'a>, bool) {
        let Ok(answer) = ChallengeAnswer::decode(slow.body()) else {
            return (slow.refuse(context, Refused::Malformed), slow.certifies());
        };
        held.challenge = self.path.challenges().take(slow.session_id(), self.path.now_ms());
        let Held { challenge: Some(challenge), values, body } = held else {
            return (slow.refuse(context, Refused::NoChallenge), slow.certifies());
        };
        let taken_up = match Envelope::split(&challenge.request) {
            Ok((envelope, rest)) => slow.take_up(context, envelope, rest),
            Err(_) => Err(slow.refuse(context, Refused::NoChallenge)),
        };
        let challenged = match taken_up {
            Ok(challenged) => challenged,
            Err(reply) => return (reply, slow.certifies()),
        };
        let reply = match self.check(context, &challenged, &answer, challenge) {
            Ok(()) if challenged.is_status() => self.status(context, &challenged, body),
            Ok(()) => challenged.answer(context, values),
            Err(refused) => challenged.refuse(context, refused),
        };
        (reply, challenged.certifies())
    }

    /// Whether `answer` is right, and its identity may read: first whether it may, as deployed, so that only
    /// those who may learn whether the key was right.
    fn check<'a>(
        &self,
        context: &Context<'a, Mapped>,
        challenged: &Challenged<'a>,
        answer: &ChallengeAnswer<'_>,
        challenge: &Challenge,
    ) -> Result<(), Refused> {
        let kind = match answer.auth_type {
            auth::PUBLIC_KEY => auth::PUBLIC_KEY,
            auth::SECRET_KEY => auth::SECRET_KEY,
            _ => return Err(Refused::UnknownAuthentication),
        };
        let identity = answer.identity;
        let (server, status) = (references(&self.path.server), references(&self.path.status));
        let administrators = Administrators {
            server: &server,
            server_reads_all: self.path.server_reads_all,
            status: &status,
            lookups_max: self.path.config.group_lookups,
        };
        let permits = |index| {
            let identity = Reference { index, ..identity };
            let entitled = challenged.permits(context, identity, &administrators);
            if entitled == Entitled::GaveUp {
                self.counters.groups_given_up.add(1);
            }
            entitled == Entitled::Yes
        };
        let answered = Answered {
            version: challenge.version,
            covered: challenge.covered(),
            signed_response: answer.signed_response,
            limits: self.limits(),
        };
        let keys_max = self.path.config.keys_tried;
        let is_permitted = permits(identity.index);
        let keys = match keys(context, identity, kind) {
            Ok(keys) => keys.take(keys_max),
            Err(NotLocal::Elsewhere) if is_permitted => return Err(Refused::IdentityElsewhere),
            Err(NotLocal::Damaged) if is_permitted => return Err(Refused::DamagedRecord),
            Err(_) => return Err(Refused::NotPermitted),
        };
        // With index 0 and a public key, the index of the key that fits counts too: in sessions as deployed,
        // and here also without.
        let promotes = !is_permitted && identity.index == 0 && kind == auth::PUBLIC_KEY;
        if !is_permitted && !promotes {
            return Err(Refused::NotPermitted);
        }
        let mut is_anyone_permitted = is_permitted;
        for key in keys {
            if promotes && !permits(key.index) {
                continue;
            }
            is_anyone_permitted = true;
            if answered.is_made_with(kind, key.data) {
                self.counters.answers_right.add(1);
                return Ok(());
            }
        }
        Err(if is_anyone_permitted { Refused::WrongKey } else { Refused::NotPermitted })
    }

    /// The state of the server.
    fn status<'a>(
        &self,
        context: &Context<'a, Mapped>,
        challenged: &Challenged<'a>,
        body: &'a mut Vec<u8>,
    ) -> Reply<'a> {
        let text = self.shared.status_text();
        let value = Value {
            permissions: handle_proto::Permissions::ADMIN_READ,
            ..Value::new(1, b"CNRI.SERVER_STATUS", text.as_bytes())
        };
        body.clear();
        body.extend_from_slice(ValueBuf::from(&value).as_bytes());
        challenged.status(context, body, 1)
    }

    /// Another server asks whether the answer to its challenge is right. RFC 3652 section 3.5.3.
    fn verification<'a>(&self, context: &Context<'a, Mapped>, slow: &Slow<'a>) -> Reply<'a> {
        let Ok(asked) = Verification::decode(slow.body()) else {
            return slow.refuse(context, Refused::Malformed);
        };
        let mut keys = match keys(context, asked.identity, auth::SECRET_KEY) {
            Ok(keys) => keys.take(self.path.config.keys_tried),
            Err(NotLocal::Elsewhere) => return slow.refuse(context, Refused::NotHomed),
            Err(NotLocal::Damaged) => return slow.refuse(context, Refused::DamagedRecord),
        };
        let answered = Answered {
            version: slow.version(),
            covered: [asked.nonce, asked.digest.digest],
            signed_response: asked.signed_response,
            limits: self.limits(),
        };
        let is_valid = keys.any(|key| answered.is_made_with(auth::SECRET_KEY, key.data));
        self.counters.verifications.add(1);
        slow.verdict(context, is_valid)
    }

    /// What the sender of an answer may ask for in work.
    fn limits(&self) -> Pbkdf2Limits {
        Pbkdf2Limits { iterations_max: self.path.config.pbkdf2_iterations, ..Pbkdf2Limits::DEFAULT }
    }

    /// Writes `reply` to `message`, signed if it is to be and can be.
    fn write(&self, reply: &Reply<'_>, certifies: bool, message: &mut Vec<u8>) {
        message.clear();
        message.resize(Envelope::LEN + reply.message_len(), 0);
        reply.write_stream(message);
        let Some(signer) = self.path.signer.as_ref().filter(|_| certifies) else { return };
        let counter = match signer.sign(message) {
            Ok(Signature::Made) => &self.counters.signed,
            Ok(Signature::Kept) => &self.counters.signed_before,
            // The client gets it unsigned, as deployed, and decides.
            Err(_) => &self.counters.signing_failed,
        };
        counter.add(1);
    }
}

fn references(identities: &[super::config::Identity]) -> Vec<Reference<'_>> {
    identities.iter().map(|one| Reference { handle: &one.handle, index: one.index }).collect()
}
