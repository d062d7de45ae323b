//! The writer thread: puts queued changes into one transaction, commits it, and notifies the
//! waiting threads when it is durable.

use super::tables::BegunWrite;
use super::transaction::Transaction;
use super::{Inner, StoreError};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// A queued change.
trait StoreChange: Send {
    /// Makes the change in `transaction`.
    fn make(&mut self, transaction: &mut Transaction<'_>) -> Result<(), StoreError>;
    /// Notifies the waiting thread that the change is durable, or will never be because of an
    /// error.
    fn finish(self: Box<Self>, error: Option<&StoreError>);
}

struct WaitingWrite<T, F> {
    decide: Option<F>,
    decided: Option<Result<T, StoreError>>,
    reply: SyncSender<Result<T, StoreError>>,
}

impl<T, F> StoreChange for WaitingWrite<T, F>
where
    T: Send,
    F: FnOnce(&mut Transaction<'_>) -> Result<T, StoreError> + Send,
{
    fn make(&mut self, transaction: &mut Transaction<'_>) -> Result<(), StoreError> {
        let Some(decide) = self.decide.take() else { return Ok(()) };
        let writes_before = transaction.writes_count();
        self.decided = Some(match decide(transaction) {
            // A partial change must not be committed, and a file that cannot be read cannot be
            // written either.
            Err(error) if error.is_fatal() || transaction.writes_count() != writes_before => {
                return Err(error);
            }
            decided => decided,
        });
        Ok(())
    }

    fn finish(self: Box<Self>, error: Option<&StoreError>) {
        let outcome = match error {
            None => self.decided.unwrap_or(Err(StoreError::Failed)),
            Some(StoreError::Server(error)) => Err(StoreError::Server(error.clone())),
            Some(_) => Err(StoreError::Failed),
        };
        // The receiver is gone if the caller no longer waits.
        let _ = self.reply.send(outcome);
    }
}

/// The writer thread.
#[derive(Debug)]
pub(super) struct StoreWriter {
    changes: Option<SyncSender<Box<dyn StoreChange>>>,
    thread: Option<JoinHandle<()>>,
}

impl StoreWriter {
    /// # Errors
    /// When no thread can be started.
    pub(super) fn start(inner: &Arc<Inner>) -> Result<Self, StoreError> {
        let (changes, waiting) = sync_channel(inner.config.queue_changes);
        let inner = Arc::clone(inner);
        let write = move || run(&inner, &waiting);
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(write)
            .map_err(StoreError::NoThread)?;
        Ok(Self { changes: Some(changes), thread: Some(thread) })
    }

    pub(super) fn change<T, F>(&self, commits: &CommitQueue, decide: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Transaction<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        self.begin(commits, decide)?.wait()
    }

    /// Queues a change, and does not wait for it.
    pub(super) fn begin<T, F>(&self, commits: &CommitQueue, decide: F) -> Result<BegunChange<T>, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Transaction<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let (reply, replies) = sync_channel(1);
        let changes = self.changes.as_ref().ok_or(StoreError::Failed)?;
        commits.waiting.fetch_add(1, Ordering::Relaxed);
        changes.try_send(Box::new(WaitingWrite { decide: Some(decide), decided: None, reply })).map_err(
            |error| {
                commits.waiting.fetch_sub(1, Ordering::Relaxed);
                match error {
                    TrySendError::Full(_) => StoreError::Busy,
                    TrySendError::Disconnected(_) => StoreError::Failed,
                }
            },
        )?;
        Ok(BegunChange(replies))
    }
}

/// A change that the writer has been given. It is made even if this is dropped.
#[derive(Debug)]
#[must_use = "whether the change was made is not known before `wait`"]
pub struct BegunChange<T>(Receiver<Result<T, StoreError>>);

impl<T> BegunChange<T> {
    /// Waits until the change is durable, and returns its result.
    ///
    /// # Errors
    /// As [`Store::change`](super::Store::change).
    pub fn wait(self) -> Result<T, StoreError> {
        self.0.recv().unwrap_or(Err(StoreError::Failed))
    }
}

impl Drop for StoreWriter {
    fn drop(&mut self) {
        self.changes = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been logged where it happened.
            let _ = thread.join();
        }
    }
}

fn run(inner: &Inner, waiting: &Receiver<Box<dyn StoreChange>>) {
    let _notice = PanicNotice(&inner.commits);
    while let Ok(first) = waiting.recv() {
        let mut changes = vec![first];
        let written = write(inner, waiting, &mut changes);
        inner.commits.waiting.fetch_sub(changes.len(), Ordering::Relaxed);
        match &written {
            Ok(Some(last_id)) => inner.commits.committed(*last_id, changes.len()),
            Ok(None) => {}
            Err(error) if inner.engine.goes_on_after(error) => {
                tracing::error!(%error, changes = changes.len(), "cannot write changes, which are refused");
            }
            Err(error) => {
                tracing::error!(%error, changes = changes.len(), "cannot write changes; all further changes are refused");
                inner.commits.fail(error.to_string());
            }
        }
        for change in changes {
            change.finish(written.as_ref().err());
        }
        if written.is_err_and(|error| !inner.engine.goes_on_after(&error)) {
            // The queue closes: waiting and later callers get an error.
            return;
        }
    }
}

/// Makes the first of `changes`, and those queued behind it, in one transaction, and commits it.
/// Returns its last number, or `None` if nothing was committed. Changes taken from the queue are in
/// `changes`, also after a failure.
fn write(
    inner: &Inner,
    waiting: &Receiver<Box<dyn StoreChange>>,
    changes: &mut Vec<Box<dyn StoreChange>>,
) -> Result<Option<u64>, StoreError> {
    let begun = inner.engine.begin_write()?;
    let made = make(inner, &begun, waiting, changes);
    if let Ok(Some(last_id)) = made {
        begun.commit()?;
        return Ok(Some(last_id));
    }
    let given_up = begun.abort();
    made.and_then(|none| given_up.map(|()| none))
}

/// Makes changes in a transaction that has `begun`. Returns its last number, or `None` if nothing
/// changed.
fn make(
    inner: &Inner,
    begun: &BegunWrite<'_>,
    waiting: &Receiver<Box<dyn StoreChange>>,
    changes: &mut Vec<Box<dyn StoreChange>>,
) -> Result<Option<u64>, StoreError> {
    let mut transaction = Transaction::new(begun.tables()?, inner.folds)?;
    let mut at = 0;
    while let Some(change) = changes.get_mut(at) {
        change.make(&mut transaction)?;
        at += 1;
        if at < inner.config.commit_changes {
            changes.extend(waiting.try_recv());
        }
    }
    if transaction.writes_count() == 0 {
        return Ok(None);
    }
    transaction.finish()?;
    Ok(Some(transaction.last_id()))
}

/// Marks the store as failed if the writer panics.
struct PanicNotice<'a>(&'a CommitQueue);

impl Drop for PanicNotice<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail("the writer met a bug".to_owned());
        }
    }
}

/// The progress of the writer.
#[derive(Debug)]
pub(super) struct CommitQueue {
    totals: Mutex<CommitTotals>,
    changed: Condvar,
    waiting: AtomicUsize,
}

/// What was written since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitCounts {
    /// Number of commits.
    pub commits: u64,
    /// Number of the changes in them.
    pub changes: u64,
}

#[derive(Debug)]
struct CommitTotals {
    last_id: u64,
    counts: CommitCounts,
    failure: Option<String>,
}

impl CommitQueue {
    pub(super) const fn new(last_id: u64) -> Self {
        let totals = CommitTotals { last_id, counts: CommitCounts { commits: 0, changes: 0 }, failure: None };
        Self { totals: Mutex::new(totals), changed: Condvar::new(), waiting: AtomicUsize::new(0) }
    }

    fn totals(&self) -> MutexGuard<'_, CommitTotals> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that `last_id` is durable, by a commit of `changes_count` changes.
    pub(super) fn committed(&self, last_id: u64, changes_count: usize) {
        let mut totals = self.totals();
        totals.last_id = totals.last_id.max(last_id);
        totals.counts.commits += 1;
        totals.counts.changes += changes_count as u64;
        self.changed.notify_all();
    }

    /// Records that another process has made `last_id` durable.
    pub(super) fn committed_elsewhere(&self, last_id: u64) {
        let mut totals = self.totals();
        if last_id > totals.last_id {
            totals.last_id = last_id;
            self.changed.notify_all();
        }
    }

    fn fail(&self, why: String) {
        self.totals().failure.get_or_insert(why);
        self.changed.notify_all();
    }

    pub(super) fn last_id(&self) -> u64 {
        self.totals().last_id
    }

    pub(super) fn counts(&self) -> CommitCounts {
        self.totals().counts
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.totals().failure.clone()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn wait_past(&self, id: u64, timeout: Duration) -> u64 {
        let is_past = |totals: &mut CommitTotals| totals.last_id <= id && totals.failure.is_none();
        let waited = self.changed.wait_timeout_while(self.totals(), timeout, is_past);
        waited.unwrap_or_else(PoisonError::into_inner).0.last_id
    }

    /// The lock is held while waking, so that a thread that has just called `ends` is waiting.
    pub(super) fn wake(&self) {
        let _totals = self.totals();
        self.changed.notify_all();
    }

    pub(super) fn wait_past_or(&self, id: u64, ends: impl Fn() -> bool, timeout: Duration) {
        let waits = |totals: &mut CommitTotals| totals.last_id <= id && !ends();
        drop(self.changed.wait_timeout_while(self.totals(), timeout, waits));
    }
}
