//! The long-lived threads and tasks of this process, and those that have ended by a bug.
//!
//! A process of which a part has died may still answer, but no longer does all that it should, for
//! example follow its set. So [`spawn`], [`keep`] and [`watch`] register what is to run as long as
//! the process, and health checks and `status` report what [`ended`] lists: threads and tasks that
//! have panicked, and threads that no longer exist. Those that return have done their work.

use std::collections::HashSet;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Where the kernel lists the threads of this process.
const THREADS: &str = "/proc/self/task";

/// A registered thread or task.
#[derive(Debug)]
struct WatchedThread {
    number: u64,
    name: String,
    /// The kernel's number of the thread; tasks have none.
    thread_id: Option<i32>,
    has_panicked: bool,
}

#[derive(Debug)]
struct ThreadTable {
    /// Number of threads registered so far.
    registered: u64,
    threads: Vec<WatchedThread>,
}

static TABLE: Mutex<ThreadTable> = Mutex::new(ThreadTable { registered: 0, threads: Vec::new() });

fn table() -> MutexGuard<'static, ThreadTable> {
    lock(&TABLE)
}

/// Locks `mutex`. Poisoning is ignored: a thread that panics while it holds the lock is
/// [reported](ended), and every change below a lock is one step that leaves the data consistent.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registration of a thread or task, for as long as it runs.
#[derive(Debug)]
struct ThreadRegistration(u64);

impl ThreadRegistration {
    fn enter(name: &str, thread_id: Option<i32>) -> Self {
        let mut table = table();
        table.registered += 1;
        let number = table.registered;
        table.threads.push(WatchedThread { number, name: name.to_owned(), thread_id, has_panicked: false });
        Self(number)
    }
}

impl Drop for ThreadRegistration {
    fn drop(&mut self) {
        let (mut table, panics) = (table(), std::thread::panicking());
        let Some(at) = table.threads.iter().position(|thread| thread.number == self.0) else { return };
        match panics {
            // Stays in the list. The kernel may give its number to another thread.
            true => (table.threads[at].has_panicked, table.threads[at].thread_id) = (true, None),
            false => drop(table.threads.swap_remove(at)),
        }
    }
}

fn this_thread() -> Option<i32> {
    Some(rustix::thread::gettid().as_raw_nonzero().get())
}

/// Starts a thread that is to run as long as the process.
///
/// # Errors
/// When the kernel refuses a thread.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let name = name.into();
    Builder::new().name(name.clone()).spawn(move || keep(&name, run))
}

/// Runs what this thread is to do as long as the process runs.
pub fn keep<T>(name: &str, run: impl FnOnce() -> T) -> T {
    let _registration = ThreadRegistration::enter(name, this_thread());
    run()
}

/// Runs a task that is to run as long as the process. A task that its runtime drops has not ended
/// by a bug.
pub async fn watch<T>(name: &'static str, task: impl Future<Output = T>) -> T {
    let _registration = ThreadRegistration::enter(name, None);
    task.await
}

/// Registers this thread, of a pool that starts and ends threads, until [`leave`].
pub fn enter(name: &str) {
    std::mem::forget(ThreadRegistration::enter(name, this_thread()));
}

/// Ends the registration of this thread by [`enter`].
pub fn leave() {
    let this = this_thread();
    table().threads.retain(|thread| thread.has_panicked || thread.thread_id != this);
}

/// The names of the threads and tasks that have ended by a bug.
#[must_use]
pub fn ended() -> Vec<String> {
    // Threads are added before the kernel's list is read, so each of them is in it.
    let table = table();
    let alive = std::fs::read_dir(THREADS).ok().map(|entries| {
        let number = |entry: io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        entries.filter_map(number).collect::<HashSet<i32>>()
    });
    let is_gone = |id: i32| alive.as_ref().is_some_and(|alive| !alive.contains(&id));
    let has_ended = |thread: &&WatchedThread| thread.has_panicked || thread.thread_id.is_some_and(is_gone);
    let mut names: Vec<_> =
        table.threads.iter().filter(has_ended).map(|thread| thread.name.clone()).collect();
    names.sort_unstable();
    names
}

/// The problem that health checks report, if a thread or task has ended by a bug.
#[must_use]
pub fn problem() -> Option<String> {
    let ended = ended();
    (!ended.is_empty()).then(|| format!("ended by a bug, restart the process: {}", ended.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::task::{Context, Waker};

    /// One test, because the table is that of the process.
    #[test]
    fn what_ends_by_a_bug_is_reported() {
        assert_eq!(ended(), Vec::<String>::new());
        let returned = spawn("returns", || 7).unwrap();
        assert_eq!(returned.join().unwrap(), 7);
        enter("pool");
        leave();
        // A task that its runtime polls and then drops.
        let mut context = Context::from_waker(Waker::noop());
        let mut dropped = Box::pin(watch("dropped", std::future::pending::<()>()));
        assert!(dropped.as_mut().poll(&mut context).is_pending());
        drop(dropped);
        assert_eq!(problem(), None, "nothing has ended by a bug");
        assert!(spawn("panics", || panic!("on purpose")).unwrap().join().is_err());
        let mut task = Box::pin(watch("task", async { panic!("on purpose") }));
        let polled = catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(&mut context).is_ready()));
        assert!(polled.is_err());
        // A thread that the kernel no longer has, as after the death of a thread from outside.
        let gone = std::thread::spawn(this_thread).join().unwrap();
        let registration = ThreadRegistration::enter("gone", gone);
        assert_eq!(ended(), ["gone", "panics", "task"]);
        assert_eq!(problem().unwrap(), "ended by a bug, restart the process: gone, panics, task");
        drop(registration);
    }
}
