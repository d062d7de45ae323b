//! Answers on a connection of HTTP/2 whose bytes wait for the client.
//!
//! A client of HTTP/2 allows bytes for each answer, and need not allow any for one of them while
//! the connection itself goes on. hyper waits for that without a timeout.

use hyper::body::{Buf, Bytes};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The answers of one connection that the client has not taken whole.
#[derive(Debug, Default)]
pub struct WaitingAnswers {
    next: AtomicU64,
    waiting: Mutex<BTreeMap<u64, WaitingAnswer>>,
}

/// An answer of which bytes wait.
#[derive(Debug)]
struct WaitingAnswer {
    /// Parts of it that wait.
    parts: u32,
    /// When the client took bytes of it last, or the first of the parts began to wait.
    since: Instant,
}

/// Names an answer among those of its connection.
#[derive(Clone, Debug)]
pub struct AnswerProgress {
    answers: Arc<WaitingAnswers>,
    number: u64,
}

/// A part of an answer, which waits until it is dropped.
#[derive(Debug)]
struct WaitingPart(AnswerProgress);

impl WaitingAnswers {
    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u64, WaitingAnswer>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new answer, which does not wait yet.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> AnswerProgress {
        AnswerProgress { answers: Arc::clone(self), number: self.next.fetch_add(1, Ordering::Relaxed) }
    }

    /// Whether no answer waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting().is_empty()
    }

    /// When the first answer will have waited for `timeout` without progress; `None` if no answer
    /// waits.
    #[must_use]
    pub fn stall_deadline(&self, timeout: Duration) -> Option<Instant> {
        self.waiting().values().map(|answer| answer.since + timeout).min()
    }
}

impl AnswerProgress {
    /// Notes that a part of the answer waits.
    fn add_part(&self) -> WaitingPart {
        let mut waiting = self.answers.waiting();
        let answer =
            waiting.entry(self.number).or_insert_with(|| WaitingAnswer { parts: 0, since: Instant::now() });
        answer.parts += 1;
        WaitingPart(self.clone())
    }
}

impl WaitingPart {
    /// Notes that the client took some of it.
    fn note_progress(&self) {
        if let Some(answer) = self.0.answers.waiting().get_mut(&self.0.number) {
            answer.since = Instant::now();
        }
    }
}

impl Drop for WaitingPart {
    fn drop(&mut self) {
        let mut waiting = self.0.answers.waiting();
        let Some(answer) = waiting.get_mut(&self.0.number) else { return };
        answer.parts -= 1;
        match answer.parts {
            0 => drop(waiting.remove(&self.0.number)),
            _ => answer.since = Instant::now(),
        }
    }
}

/// Bytes of an answer. On a connection of HTTP/2, they tell how many of them the client has taken.
#[derive(Debug)]
pub struct AnswerBytes {
    bytes: Bytes,
    part: Option<WaitingPart>,
}

impl AnswerBytes {
    /// A part of the answer that `progress` names, if its progress is followed.
    #[must_use]
    pub fn new(bytes: Bytes, progress: Option<&AnswerProgress>) -> Self {
        Self { bytes, part: progress.map(AnswerProgress::add_part) }
    }
}

impl Buf for AnswerBytes {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, len: usize) {
        self.bytes.advance(len);
        match &self.part {
            Some(part) if self.bytes.has_remaining() => part.note_progress(),
            // Nothing of this part waits any more.
            _ => self.part = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_millis(3);

    #[test]
    fn an_answer_waits_until_its_last_part_is_taken() {
        let answers = Arc::new(WaitingAnswers::default());
        let progress = answers.begin();
        assert!(answers.is_empty() && answers.stall_deadline(PAUSE).is_none());
        let part = || AnswerBytes::new(Bytes::from_static(b"abcd"), Some(&progress));
        let (mut first, second) = (part(), part());
        let begun = answers.stall_deadline(PAUSE).unwrap();
        std::thread::sleep(PAUSE);
        assert_eq!(answers.stall_deadline(PAUSE), Some(begun), "no progress");
        first.advance(1);
        let moved = answers.stall_deadline(PAUSE).unwrap();
        assert!(moved >= begun + PAUSE, "progress");
        assert_eq!((first.remaining(), first.chunk()), (3, &b"bcd"[..]));
        std::thread::sleep(PAUSE);
        first.advance(3);
        assert!(answers.stall_deadline(PAUSE).unwrap() >= moved + PAUSE, "the second part waits");
        drop(second);
        assert!(answers.is_empty());
        drop(first);
        drop(part());
        assert!(answers.is_empty());
    }

    #[test]
    fn the_answer_without_progress_counts() {
        let answers = Arc::new(WaitingAnswers::default());
        let part = |answer: &AnswerProgress| AnswerBytes::new(Bytes::from_static(b"abcd"), Some(answer));
        let stalled = part(&answers.begin());
        let stalls_at = answers.stall_deadline(PAUSE);
        std::thread::sleep(PAUSE);
        let mut moving = part(&answers.begin());
        moving.advance(2);
        assert_eq!(answers.stall_deadline(PAUSE), stalls_at);
        drop(stalled);
        assert!(answers.stall_deadline(PAUSE) > stalls_at);
    }
}
