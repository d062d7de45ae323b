//! Steps of answering: with a time limit, or on a thread of their own.

use crate::counters::AdminCounters;
use std::io::{self, ErrorKind};
use std::time::Duration;

/// Awaits `step` for at most `timeout`; then it has failed.
pub(crate) async fn within<T>(timeout: Duration, step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(timeout, step).await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

/// Runs `work`, which may block. A bug in it is counted, and the connection ends.
pub(crate) async fn run<T: Send + 'static>(
    counters: &AdminCounters,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| {
        // A decision that panicked leaves nothing behind; a panic of the writer stops the process.
        counters.bugs.add();
        io::Error::other("an answer met a bug")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bug_in_an_answer_is_counted_and_not_taken_for_its_end() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let counters = AdminCounters::default();
            assert_eq!(run(&counters, || 7).await.unwrap(), 7);
            assert_eq!(counters.bugs.get(), 0);
            run(&counters, || panic!("a bug of the test")).await.unwrap_err();
            assert_eq!(counters.bugs.get(), 1);
        });
    }
}
