//! Challenges that another process over the same database may get the answer to.
//!
//! Nearly all clients answer over the connection over which they were challenged, within
//! milliseconds. So a challenge stays in this process at first, and one that waits for longer is
//! also put into the database, together with others. From then on, whoever removes the row has
//! taken the challenge, also this process. An answer that arrives elsewhere before the row is there
//! waits for it.
//!
//! Rows are encrypted with a key that is derived from the server key, which all processes have:
//! requests may have been sent encrypted.

use super::authenticator::Authenticator;
use super::row_cipher::RowCipher;
use handle_auth::challenges::IssuedChallenge;
use handle_daemon::shutdown::Shutdown;
use handle_daemon::threads::lock;
use handle_store::{SharedChallenges, StoreError};
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Time for which a challenge stays in its process alone.
const OWN_TIME: Duration = Duration::from_millis(10);
/// Pauses before an unknown challenge is looked for again: its process may be writing it.
const LOOK_AGAIN: [Duration; 3] =
    [Duration::from_millis(15), Duration::from_millis(30), Duration::from_millis(60)];
/// Answers that may wait for a challenge at a time; others are looked for once.
const LOOKS_MAX: usize = 16;
/// Most challenges in one statement.
const BATCH_MAX: usize = 256;
/// Interval at which challenges whose time is over are removed.
const EXPIRE_INTERVAL: Duration = Duration::from_secs(30);
/// Interval at which a draining process checks whether it has stopped.
const DRAIN_INTERVAL: Duration = Duration::from_millis(20);

/// The encrypted row of `challenge`.
fn seal(cipher: &RowCipher, id: i32, challenge: &IssuedChallenge) -> Option<Vec<u8>> {
    let mut text = Zeroizing::new(Vec::with_capacity(challenge.request.len() + 128));
    challenge.encode(&mut text);
    cipher.seal(id, &mut text)
}

/// The challenges of this process that are shared, and those of others.
pub struct ChallengeSharing {
    rows: SharedChallenges,
    cipher: RowCipher,
    state: Mutex<SharingState>,
    wake: Condvar,
    /// Held while rows are written.
    writing: Mutex<()>,
    /// Answers that wait for challenges of other processes.
    looks: AtomicUsize,
}

#[derive(Debug, Default)]
struct SharingState {
    /// Challenges that are in this process alone, and until when.
    own: VecDeque<(Instant, i32)>,
    /// Challenges that are, or are just being, written, oldest first.
    written: VecDeque<i32>,
    is_written: HashSet<i32>,
}

impl std::fmt::Debug for ChallengeSharing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChallengeSharing").field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl ChallengeSharing {
    /// Shares challenges by `rows` with the processes that have the same server key.
    #[must_use]
    pub fn new(rows: SharedChallenges, server_key: &[u8]) -> Option<Self> {
        Some(Self {
            rows,
            cipher: RowCipher::new("handle challenges of several processes", server_key)?,
            state: Mutex::default(),
            wake: Condvar::new(),
            writing: Mutex::default(),
            looks: AtomicUsize::new(0),
        })
    }

    /// Notes that this process has issued a challenge.
    pub(super) fn note_issued(&self, id: i32) {
        lock(&self.state).own.push_back((Instant::now() + OWN_TIME, id));
        self.wake.notify_one();
    }

    /// Whether a challenge that is taken from the table of this process is in the database, too.
    /// Called with the table locked, as the challenge is marked.
    pub(super) fn forget(&self, id: i32) -> bool {
        lock(&self.state).is_written.remove(&id)
    }

    /// Removes the row of a challenge that this process has issued. False if another process has
    /// done so, which then has taken the challenge.
    pub(super) fn claim(&self, id: i32) -> bool {
        // It may just be written.
        drop(lock(&self.writing));
        self.log(self.rows.take(id)).flatten().is_some()
    }

    /// Takes a challenge of another process.
    pub(super) fn take(&self, id: i32) -> Option<IssuedChallenge> {
        let waits = self.looks.fetch_add(1, Ordering::Relaxed) < LOOKS_MAX;
        let mut pauses = LOOK_AGAIN.iter().filter(|_| waits);
        let row = loop {
            match self.log(self.rows.take(id)) {
                Some(Some(row)) => break Some(row),
                Some(None) => {}
                None => break None,
            }
            let Some(pause) = pauses.next() else { break None };
            std::thread::sleep(*pause);
        };
        self.looks.fetch_sub(1, Ordering::Relaxed);
        IssuedChallenge::decode(&self.cipher.open(id, &row?)?)
    }

    fn log<T>(&self, done: Result<T, StoreError>) -> Option<T> {
        done.inspect_err(|error| tracing::warn!(%error, "cannot share challenges with other processes")).ok()
    }

    /// Puts challenges that wait for an answer into the database until the process stops.
    pub fn run(&self, proof: &Authenticator, lasts: impl Fn() -> Duration, shutdown: &Shutdown) {
        let mut expire_at = Instant::now();
        while !shutdown.is_stopped() {
            let due = self.wait_for_due(expire_at, shutdown);
            if !due.is_empty() {
                self.write(proof, &due, lasts());
            }
            if Instant::now() >= expire_at {
                expire_at = Instant::now() + EXPIRE_INTERVAL;
                self.log(self.rows.expire());
            }
        }
        // The answers to these come to another process.
        let last: Vec<i32> = lock(&self.state).own.drain(..).map(|(_, id)| id).collect();
        last.chunks(BATCH_MAX).for_each(|ids| self.write(proof, ids, lasts()));
    }

    /// Wakes the thread in [`run`](Self::run), because the process begins to drain.
    pub(crate) fn note_draining(&self) {
        let _state = lock(&self.state);
        self.wake.notify_one();
    }

    /// Waits until `deadline` for challenges that have been in this process alone for long enough.
    fn wait_for_due(&self, deadline: Instant, shutdown: &Shutdown) -> Vec<i32> {
        let mut state = lock(&self.state);
        let now = Instant::now();
        let deadline = state.own.front().map_or(deadline, |(due, _)| deadline.min(*due));
        let wait = deadline.saturating_duration_since(now);
        if !wait.is_zero() {
            let wait = if shutdown.is_draining() { wait.min(DRAIN_INTERVAL) } else { wait };
            let waited = self.wake.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let now = Instant::now();
        let count = state.own.iter().take(BATCH_MAX).take_while(|(due, _)| *due <= now).count();
        state.own.drain(..count).map(|(_, id)| id).collect()
    }

    /// Writes those of `ids` that still wait, and removes the oldest rows whose challenges this
    /// process has dropped, so that there are hardly more rows than challenges.
    fn write(&self, proof: &Authenticator, ids: &[i32], lasts: Duration) {
        let _writing = lock(&self.writing);
        let (mut waiting, mut gone) = (Vec::new(), Vec::new());
        {
            let challenges = proof.challenges();
            let mut state = lock(&self.state);
            for &id in ids {
                let Some(challenge) = challenges.get(id) else { continue };
                waiting.push((id, challenge.clone()));
                if state.is_written.insert(id) {
                    state.written.push_back(id);
                }
            }
            while let Some(&oldest) = state.written.front() {
                if challenges.has(oldest) && state.written.len() < 2 * challenges.len() + BATCH_MAX {
                    break;
                }
                state.written.pop_front();
                // One that was answered here has removed its row.
                if state.is_written.remove(&oldest) {
                    gone.push(oldest);
                }
            }
        }
        let rows =
            waiting.iter().filter_map(|(id, challenge)| Some((*id, seal(&self.cipher, *id, challenge)?)));
        let (ids, values): (Vec<i32>, Vec<Vec<u8>>) = rows.unzip();
        if !ids.is_empty() && self.log(self.rows.put(&ids, &values, lasts)).is_none() {
            // They are answered here or not at all.
            let mut state = lock(&self.state);
            ids.iter().for_each(|id| _ = state.is_written.remove(id));
        }
        if !gone.is_empty() {
            self.log(self.rows.remove(&gone));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_auth::Digest;
    use handle_proto::Version;

    #[test]
    fn a_challenge_comes_back_from_its_row() {
        let issued = IssuedChallenge {
            version: Version::CURRENT,
            suggested: Version::new(2, 3),
            nonce: [7; 16],
            digest: Digest::from_bytes(&[2; 20]),
            request: Zeroizing::new(b"a request with a secret".as_slice().into()),
        };
        let cipher = RowCipher::new("challenges", b"key").unwrap();
        let row = seal(&cipher, 5, &issued).unwrap();
        assert_eq!(IssuedChallenge::decode(&cipher.open(5, &row).unwrap()), Some(issued));
    }
}
