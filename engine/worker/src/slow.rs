//! The slow path: work that is too expensive for a worker, which is signatures, challenges and the
//! answers to them.
//!
//! A worker copies such a request to a bounded queue (`queue`). A few threads with a lower priority
//! than the workers answer it (`work`), and the worker that owns the socket sends the answer. When
//! the queue is full, the worker refuses the request at once.

pub mod config;
mod forwarding;
mod guesses;
mod in_session;
mod job_context;
mod missing;
pub(crate) mod missing_record;
pub(crate) mod queue;
pub(crate) mod resolution;
mod session_proof;
pub(crate) mod shard;
mod signature_rates;
pub mod signer;
mod start;
pub mod stats;
mod template_times;
mod work;

use crate::config::Config;
use crate::forward::Forwarder;
use crate::server_key;
use crate::sessions::ServerSessions;
use crate::site::OwnSite;
use config::{HandleIdentity, SlowConfig, identities};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use crossbeam_utils::CachePadded;
pub use handle_auth::challenges;
use handle_auth::challenges::{ChallengeCounts, ChallengeLimits, Challenges};
use handle_auth::clock::MonotonicClock;
use handle_auth::source::{RequestOrigin, SourceList};
use handle_daemon::secret_guesses::{self, SecretGuesses};
use handle_daemon::shutdown::Shutdown;
use handle_daemon::socket::OwnedSocket;
use handle_daemon::threads;
use handle_resolver::RefusalReason;
use handle_session::SessionTable;
use handle_session::holder::{self, SharedTable, TakenChallenge};
use handle_session::numbers;
use queue::JobQueues;
use serde_json::{Value, json};
use signature_rates::SignatureRates;
use signer::AnswerSigner;
use stats::SlowCounters;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use template_times::TemplateTimes;

/// How often expired sessions are removed. An expired session is not found before that either.
const SESSIONS_EXPIRE: Duration = Duration::from_secs(60);

/// Fills a buffer with random bytes. Returns false when no random bytes are available.
pub type RandomNumbers = fn(&mut [u8]) -> bool;

/// The slow path of a server: the state that its threads and the workers share.
#[derive(Debug)]
pub struct SlowPath {
    pub(crate) queues: JobQueues,
    /// Forwards requests to `handle-admin`, if that is configured.
    pub(crate) forward: Option<Forwarder>,
    /// The refusal of a datagram for which the queue has no capacity. `OverTcp` is the only
    /// response code that makes deployed clients retry over TCP, where they are distinguished from
    /// senders that forge their address.
    pub(crate) when_full: RefusalReason,
    signer: Option<AnswerSigner>,
    challenges: Mutex<Challenges>,
    /// The wrong secret keys of sources that have proved their address.
    secret_guesses: SecretGuesses,
    /// Those of datagrams, whose source may be forged, so that a forger does not limit others.
    unproven_guesses: SecretGuesses,
    signature_rates: SignatureRates,
    /// Sources whose wrong secret keys and signatures are not limited.
    exempt: SourceList,
    /// The sessions of this process, if sessions are enabled.
    pub sessions: Option<Arc<ServerSessions>>,
    server: Vec<HandleIdentity>,
    server_reads_all: bool,
    status: Vec<HandleIdentity>,
    config: SlowConfig,
    counters: Box<[CachePadded<SlowCounters>]>,
    random: RandomNumbers,
    /// Time of templates by prefix.
    template_times: TemplateTimes,
    shutdown: Arc<Shutdown>,
    clock: MonotonicClock,
    /// Closed when the threads that maintain sessions are to stop.
    stop: (Mutex<Option<Sender<()>>>, Receiver<()>),
}

/// Random bytes from the kernel.
fn kernel_random(buffer: &mut [u8]) -> bool {
    // The kernel returns up to 256 bytes completely or not at all.
    rustix::rand::getrandom(&mut *buffer, rustix::rand::GetRandomFlags::empty())
        .is_ok_and(|len| len == buffer.len())
}

/// Reads the server key and checks it against the site record. Returns `None` when nothing is to be
/// signed.
///
/// # Errors
/// When the key cannot be used, or is not the key in the site record.
pub fn open_signer(config: &Config, site: &OwnSite) -> anyhow::Result<Option<AnswerSigner>> {
    let Some(key) = config.server_key.as_ref().filter(|_| config.slow.threads > 0) else { return Ok(None) };
    let signer = AnswerSigner::new(server_key::read(key)?, config.slow.signatures_kept);
    signer.check_site(site)?;
    Ok(Some(signer))
}

impl SlowPath {
    /// Creates the slow path that `config` describes, for `workers_count` workers. Returns `None`
    /// when `slow.threads` is 0.
    ///
    /// # Errors
    /// When an administrator is invalid.
    pub fn new(
        config: &Config,
        signer: Option<AnswerSigner>,
        workers_count: usize,
        shutdown: &Arc<Shutdown>,
    ) -> anyhow::Result<Option<Self>> {
        if config.slow.threads == 0 {
            return Ok(None);
        }
        let slow = config.slow.clone();
        let (sender, receiver) = bounded(0);
        // The configuration has been checked.
        let exempt = SourceList::parse(&slow.exempt_sources).unwrap_or_default();
        let limits = ChallengeLimits {
            challenges_max: slow.challenges,
            bytes_max: slow.challenge_bytes,
            per_source_max: slow.challenges_per_source,
            datagrams_per_source_max: config.tcp.enabled.then_some(slow.challenges_per_source_udp),
            age_ms_max: slow.challenge_ms.into(),
            exempt: exempt.clone(),
        };
        Ok(Some(Self {
            queues: JobQueues::new(workers_count, slow.queue_requests, exempt.clone()),
            forward: Forwarder::new(&config.forward, slow.queue_requests),
            when_full: if config.tcp.enabled { RefusalReason::OverTcp } else { RefusalReason::Busy },
            signer,
            challenges: Mutex::new(Challenges::new(limits)),
            secret_guesses: SecretGuesses::new(secret_guesses::ENTRIES),
            unproven_guesses: SecretGuesses::new(secret_guesses::ENTRIES),
            signature_rates: SignatureRates::new(),
            exempt,
            sessions: ServerSessions::new(&config.sessions, config.tcp.enabled).map(Arc::new),
            server: identities(&config.administrators.server)?,
            server_reads_all: config.administrators.server_full_access,
            status: identities(&config.administrators.status)?,
            counters: (0..slow.threads).map(|_| CachePadded::default()).collect(),
            config: slow,
            random: kernel_random,
            template_times: TemplateTimes::new(),
            shutdown: Arc::clone(shutdown),
            clock: MonotonicClock::start(),
            stop: (Mutex::new(Some(sender)), receiver),
        }))
    }

    /// Checks that the site record contains the public half of the signing key.
    ///
    /// # Errors
    /// When the site record contains another key or none.
    pub(crate) fn check_site(&self, site: &OwnSite) -> anyhow::Result<()> {
        self.signer.as_ref().map_or(Ok(()), |signer| signer.check_site(site))
    }

    /// Whether the server has a key to sign with.
    #[must_use]
    pub const fn signs(&self) -> bool {
        self.signer.is_some()
    }

    /// Signs an answer to `origin` that was made without a signature, if the server has a key and
    /// the source has not got too many.
    pub(crate) fn sign_late(&self, message: &mut Vec<u8>, origin: RequestOrigin) {
        if let Some(signer) = &self.signer {
            // When signing fails, the client gets the answer unsigned and decides what to do with
            // it, as with deployed servers.
            let _ = signer.sign(message, || self.signature_rates.admits(origin, &self.exempt));
        }
    }

    /// Asks all threads of the slow path to stop.
    pub(crate) fn stop(&self) {
        self.queues.close();
        self.forward.iter().for_each(|forward| forward.queue.close());
        drop(self.stop.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    pub(crate) fn challenges(&self) -> MutexGuard<'_, Challenges> {
        self.challenges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The part of the output of `status` that describes the slow path.
    #[must_use]
    pub fn status(&self) -> Value {
        json!({
            "threads": self.config.threads,
            "signs": self.signer.as_ref().map(|signer| format!("{:?}", signer.public())),
            "signatures_by": handle_auth::BACKEND,
        })
    }

    /// Shares the sessions with other processes through `holder` and removes expired sessions.
    /// Returns when the slow path is stopped.
    pub(crate) fn keep_sessions(self: &Arc<Self>, holder: Option<OwnedSocket>, partner: Option<&Path>) {
        std::thread::scope(|scope| {
            if let Some(holder) = holder {
                scope.spawn(move || threads::keep("sessions", || holder::serve(&holder, self, partner)));
            }
            let Some(sessions) = &self.sessions else { return };
            while let Err(RecvTimeoutError::Timeout) = self.stop.1.recv_timeout(SESSIONS_EXPIRE) {
                sessions.table.expire(sessions.now_s());
            }
        });
    }

    /// The number of requests that wait for a thread.
    pub(crate) fn waiting(&self) -> usize {
        self.queues.waiting()
    }

    /// The sums of the counters of all threads, in the order of [`SlowCounters::NAMES`].
    pub(crate) fn sums(&self) -> [u64; SlowCounters::NAMES.len()] {
        stats::sums(self.counters.iter().map(|counters| &**counters))
    }

    /// The counters of challenges, the number of challenges that wait for an answer, and the bytes
    /// of the challenged requests.
    pub(crate) fn challenges_now(&self) -> (ChallengeCounts, usize, usize) {
        let challenges = self.challenges();
        (challenges.counts(), challenges.len(), challenges.bytes())
    }

    /// The counters and current queue lengths as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut sums = stats::to_json(&self.sums());
        let (counts, waiting, bytes) = self.challenges_now();
        sums.insert("requests_waiting".into(), self.waiting().into());
        sums.insert(
            "challenges".into(),
            json!({
                "issued": counts.issued,
                "answered": counts.taken,
                "expired": counts.expired,
                "displaced": counts.displaced,
                "sent_to_tcp": counts.sent_to_tcp,
                "waiting": waiting,
                "bytes": bytes,
            }),
        );
        if let Some(forward) = &self.forward {
            sums.insert("forward".into(), forward.stats().to_json());
        }
        sums.into()
    }
}

/// What other processes can query about sessions and challenges.
impl SharedTable for SlowPath {
    fn sessions(&self) -> Option<&SessionTable> {
        self.sessions.as_ref().map(|sessions| &sessions.table)
    }

    fn now_s(&self) -> u32 {
        self.sessions.as_ref().map_or(0, |sessions| sessions.now_s())
    }

    fn random(&self) -> u32 {
        let mut number = [0; 4];
        // No session has the number 0, so without random numbers no session is set up.
        if (self.random)(&mut number) { numbers::of_handled(u32::from_be_bytes(number)) } else { 0 }
    }

    fn take_challenge(&self, id: i32) -> TakenChallenge {
        let mut challenges = self.challenges();
        match challenges.take(id, self.clock.now_ms()) {
            Some(challenge) => TakenChallenge::Waiting(challenge),
            None if challenges.was_retired(id) => TakenChallenge::Over,
            None => TakenChallenge::Unknown,
        }
    }

    fn is_taken(&self, number: i32) -> bool {
        self.challenges().has(number)
    }

    fn wait(&self, listener: BorrowedFd<'_>) {
        self.shutdown.wait_for(listener, None);
    }

    fn is_stopped(&self) -> bool {
        self.stop.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}
