//! What must not run on a worker: signatures, challenges and their answers.
//!
//! A worker copies such a request to a bounded queue (`queue`), a few threads that stand back behind the
//! workers answer it (`work`), and the worker that has the socket sends the answer. When the queue is full
//! the worker says so at once.

pub mod config;
mod in_session;
pub(crate) mod queue;
pub(crate) mod shard;
pub mod signer;
pub mod stats;
mod work;

use crate::config::Config;
use crate::server::Shared;
use crate::server_key;
use crate::sessions::ServerSessions;
use crate::site::OwnSite;
use anyhow::{Context as _, bail};
use config::{Identity, SlowConfig, identities};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use crossbeam_utils::CachePadded;
pub use handle_auth::challenges;
use handle_auth::challenges::{ChallengeCounts, ChallengeLimits, Challenges};
use handle_sessions::Sessions;
use handle_sessions::holder::{Asked, Holder};
use queue::Queues;
use serde_json::{Value, json};
use signer::Signer;
use stats::SlowCounters;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use work::SlowThread;

/// How often sessions whose time is over are forgotten; nobody finds them before, either.
const SESSIONS_EXPIRE: Duration = Duration::from_secs(60);

/// Fills a buffer with random bytes; false when there are none to be had.
pub type Random = fn(&mut [u8]) -> bool;

/// The slow path of a server: what its threads and its workers share.
#[derive(Debug)]
pub struct SlowPath {
    pub(crate) queues: Queues,
    signer: Option<Signer>,
    challenges: Mutex<Challenges>,
    /// Those of this process, where there are any.
    pub sessions: Option<Arc<ServerSessions>>,
    server: Vec<Identity>,
    server_reads_all: bool,
    status: Vec<Identity>,
    config: SlowConfig,
    counters: Box<[CachePadded<SlowCounters>]>,
    random: Random,
    started: Instant,
    /// Closed when those who keep sessions are to stop.
    stop: (Mutex<Option<Sender<()>>>, Receiver<()>),
}

/// Random bytes from the kernel.
fn kernel_random(room: &mut [u8]) -> bool {
    // Up to 256 bytes come whole, or not at all.
    rustix::rand::getrandom(&mut *room, rustix::rand::GetRandomFlags::empty())
        .is_ok_and(|len| len == room.len())
}

/// Reads the server key, and checks it against the site record; `None` where nothing is to be signed.
///
/// # Errors
/// When the key cannot be used, or is not the one of the site record.
pub fn open_signer(config: &Config, site: &OwnSite) -> anyhow::Result<Option<Signer>> {
    let Some(key) = config.server_key.as_ref().filter(|_| config.slow.threads > 0) else { return Ok(None) };
    let signer = Signer::new(server_key::read(key)?, config.slow.signatures_kept);
    signer.check_site(site)?;
    Ok(Some(signer))
}

impl SlowPath {
    /// The slow path that `config` asks for, for `workers_count` workers; `None` without threads for it.
    ///
    /// # Errors
    /// When an administrator is none.
    pub fn new(
        config: &Config,
        signer: Option<Signer>,
        workers_count: usize,
    ) -> anyhow::Result<Option<Self>> {
        if config.slow.threads == 0 {
            return Ok(None);
        }
        let slow = config.slow.clone();
        let (sender, receiver) = bounded(0);
        let limits = ChallengeLimits {
            challenges_max: slow.challenges,
            bytes_max: slow.challenge_bytes,
            per_source_max: slow.challenges_per_source,
            age_ms_max: slow.challenge_ms.into(),
        };
        Ok(Some(Self {
            queues: Queues::new(workers_count, slow.queue_requests),
            signer,
            challenges: Mutex::new(Challenges::new(limits)),
            sessions: ServerSessions::new(&config.sessions).map(Arc::new),
            server: identities("administrators.server", &config.administrators.server)?,
            server_reads_all: config.administrators.server_reads_all,
            status: identities("administrators.status", &config.administrators.status)?,
            counters: (0..slow.threads).map(|_| CachePadded::default()).collect(),
            config: slow,
            random: kernel_random,
            started: Instant::now(),
            stop: (Mutex::new(Some(sender)), receiver),
        }))
    }

    /// Checks that clients find the key that signs in the site record.
    ///
    /// # Errors
    /// When they find another.
    pub(crate) fn check_site(&self, site: &OwnSite) -> anyhow::Result<()> {
        self.signer.as_ref().map_or(Ok(()), |signer| signer.check_site(site))
    }

    /// Whether there is a key to sign with.
    #[must_use]
    pub const fn signs(&self) -> bool {
        self.signer.is_some()
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// When the kernel refuses one, or the cores it should run on.
    pub(crate) fn start(self: &Arc<Self>, shared: &Arc<Shared>) -> anyhow::Result<Vec<JoinHandle<()>>> {
        let usable = handle_net::usable_cores().context("cannot ask which cores are ours")?;
        if let Some(core) = self.config.cores.iter().find(|core| !usable.contains(core)) {
            bail!("`slow.cores` has {core}: this process may use {usable:?}");
        }
        (0..self.config.threads)
            .map(|at| {
                let (path, shared) = (Arc::clone(self), Arc::clone(shared));
                let thread = std::thread::Builder::new().name(format!("slow-{at}"));
                let thread = thread.spawn(move || {
                    stand_back(&path.config);
                    SlowThread::new(&shared, &path, at).run();
                });
                thread.context("cannot start a thread for the slow path")
            })
            .collect()
    }

    /// Lets the threads come to an end.
    pub(crate) fn stop(&self) {
        self.queues.close();
        drop(self.stop.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    pub(crate) fn challenges(&self) -> MutexGuard<'_, Challenges> {
        self.challenges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// What `status` says about it.
    #[must_use]
    pub fn status(&self) -> Value {
        json!({
            "threads": self.config.threads,
            "signs": self.signer.as_ref().map(|signer| format!("{:?}", signer.public())),
            "signatures_by": handle_auth::BACKEND,
        })
    }

    /// Lets other processes ask for sessions by `holder`, and forgets those that are over, until the path is stopped.
    pub(crate) fn keep_sessions(self: &Arc<Self>, holder: Option<Holder>) {
        std::thread::scope(|scope| {
            if let Some(holder) = holder {
                scope.spawn(|| holder.serve(self));
            }
            let Some(sessions) = &self.sessions else { return };
            while let Err(RecvTimeoutError::Timeout) = self.stop.1.recv_timeout(SESSIONS_EXPIRE) {
                sessions.table.expire(sessions.now_s());
            }
        });
    }

    /// Requests that wait for a thread.
    pub(crate) fn waiting(&self) -> usize {
        self.queues.waiting()
    }

    /// What all threads counted, in the order of [`SlowCounters::TABLE`].
    pub(crate) fn sums(&self) -> [u64; SlowCounters::TABLE.len()] {
        stats::sums(self.counters.iter().map(|counters| &**counters))
    }

    /// What happened to challenges, how many wait, and the bytes of what was challenged.
    pub(crate) fn challenges_now(&self) -> (ChallengeCounts, usize, usize) {
        let challenges = self.challenges();
        (challenges.counts(), challenges.len(), challenges.bytes())
    }

    /// What was counted, and what waits now.
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
                "refused_of_source": counts.refused_of_source,
                "waiting": waiting,
                "bytes": bytes,
            }),
        );
        sums.into()
    }
}

/// Another process asks about sessions.
impl Asked for SlowPath {
    fn sessions(&self) -> Option<&Sessions> {
        self.sessions.as_ref().map(|sessions| &sessions.table)
    }

    fn now_s(&self) -> u32 {
        self.sessions.as_ref().map_or(0, |sessions| sessions.now_s())
    }

    fn random(&self) -> u32 {
        let mut number = [0; 4];
        // 0 is the number of no session, so that none is set up without random numbers.
        if (self.random)(&mut number) { u32::from_be_bytes(number) } else { 0 }
    }

    fn is_taken(&self, number: i32) -> bool {
        self.challenges().has(number)
    }

    fn is_stopped(&self) -> bool {
        self.stop.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

/// Lets the workers go before this thread. What the kernel refuses is only told: answers are right anyway.
fn stand_back(config: &SlowConfig) {
    use rustix::thread::{CpuSet, sched_setaffinity};
    use thread_priority::{NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy};
    if !config.cores.is_empty() {
        let mut cores = CpuSet::new();
        config.cores.iter().for_each(|&core| cores.set(core));
        if let Err(error) = sched_setaffinity(None, &cores) {
            tracing::warn!(%error, cores = ?config.cores, "the slow path does not run on the cores it should");
        }
    }
    let refused = if config.idle {
        let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
        let thread = thread_priority::thread_native_id();
        thread_priority::set_thread_priority_and_policy(thread, ThreadPriority::Min, idle)
            .err()
            .map(|error| error.to_string())
    } else {
        // On Linux this is about the calling thread alone.
        rustix::process::setpriority_process(None, config.nice.into()).err().map(|error| error.to_string())
    };
    if let Some(error) = refused {
        tracing::warn!(error, "the slow path does not stand back behind the workers");
    }
}
