//! The bytes of answers that their clients have not taken yet: how many each source and all sources
//! together may have, and whether they move.
//!
//! A client decides when it takes an answer, and in HTTP/2 it may ask for a hundred and take none.
//! Bytes therefore count from when they are made until their memory is free, whatever part of the
//! process has them: the body of a response, a queue before it, or the connection below.

use handle_daemon::permits::{PermitLimits, SourcePermit, SourcePermits};
use hyper::body::{Buf, Bytes};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Bytes that count for an answer with a body besides the body: its headers, and its state on a
/// connection of HTTP/2.
pub const ANSWER_LEN: usize = 2048;
/// Bytes that a streamed answer takes from its start. They are enough unless records are large.
pub const STREAM_LEN: usize = 192 << 10;
/// Fewest bytes in a millisecond that an answer has to move at, over the time of
/// [`AnswerLimits::stall`].
pub const MOVED_PER_MS: u64 = 1;

/// Data of the values of an answer from which on it is made only if there is capacity for them. The
/// answer is longer than these, and making it costs more than the look.
pub const LOOKED_LEN: usize = 16 << 10;

/// Marks a response in place of an answer that was not made, because there is no capacity for it.
#[derive(Clone, Copy, Debug)]
pub struct NoAnswerCapacity;

/// Limits of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerLimits {
    /// Bytes of all answers, and of those of one source.
    pub bytes: PermitLimits,
    /// Time in which an answer has to move as many bytes as it has milliseconds.
    pub stall: Duration,
}

/// An answer whose bytes are counted.
#[derive(Clone, Debug)]
pub struct CountedAnswer(Arc<AnswerCount>);

#[derive(Debug)]
struct AnswerCount {
    limits: AnswerLimits,
    held: Mutex<HeldBytes>,
    /// Notified when bytes are released.
    released: Notify,
}

/// What there is of an answer.
#[derive(Debug)]
struct HeldBytes {
    reservation: SourcePermit,
    /// Bytes that are taken at least.
    reserved: usize,
    /// Bytes in parts.
    len: usize,
    /// Bytes that its maker keeps for later parts.
    kept: usize,
    /// Parts that the client has not taken whole.
    parts: u32,
    /// When the first of these began to wait, or when enough bytes had moved since.
    since: Instant,
    /// Bytes that the client took since then.
    moved: u64,
}

/// Bytes of an answer, which count until this is dropped.
#[derive(Debug, Default)]
pub struct AnswerPart {
    bytes: Bytes,
    /// Whether the bytes are in memory only once, however many answers have them.
    is_shared: bool,
    held: Option<HeldPart>,
}

#[derive(Debug)]
struct HeldPart {
    answer: CountedAnswer,
    len: usize,
}

impl CountedAnswer {
    /// An answer to `source` that takes at least `reserved` bytes of `all`; `None` if there is no
    /// capacity for these.
    #[must_use]
    pub fn begin(all: &SourcePermits, source: IpAddr, reserved: usize, limits: AnswerLimits) -> Option<Self> {
        Self::holding(all, source, reserved, 0, 0, limits)
    }

    /// Counts the bytes of an answer to `source` that is whole; `None` if there is no capacity for
    /// them.
    #[must_use]
    pub fn whole(
        all: &SourcePermits,
        source: IpAddr,
        body: AnswerPart,
        limits: AnswerLimits,
    ) -> Option<AnswerPart> {
        let len = body.counted_len();
        let answer = Self::holding(all, source, 0, len, 1, limits)?;
        Some(AnswerPart { held: Some(HeldPart { answer, len }), ..body })
    }

    fn holding(
        all: &SourcePermits,
        source: IpAddr,
        reserved: usize,
        len: usize,
        parts: u32,
        limits: AnswerLimits,
    ) -> Option<Self> {
        let (reservation, since) = (all.reservation(source), Instant::now());
        let held = HeldBytes { reservation, reserved, len, kept: 0, parts, since, moved: 0 };
        let count = AnswerCount { limits, held: Mutex::new(held), released: Notify::new() };
        let has_capacity = count.change(|_| ());
        has_capacity.then(|| Self(Arc::new(count)))
    }

    /// Counts further bytes of the answer.
    ///
    /// # Errors
    /// The bytes, if there is no capacity for them.
    pub fn count(&self, part: AnswerPart) -> Result<AnswerPart, AnswerPart> {
        let len = part.counted_len();
        let has_capacity = self.0.change(|held| {
            held.len += len;
            if held.parts == 0 {
                (held.since, held.moved) = (Instant::now(), 0);
            }
            held.parts += 1;
        });
        // Dropping it counts the bytes out.
        let held = HeldPart { answer: self.clone(), len };
        if has_capacity { Ok(AnswerPart { held: Some(held), ..part }) } else { Err(part) }
    }

    /// Notes that there is no capacity for what is left of the answer.
    pub fn note_refusal(&self) {
        self.0.held().reservation.note_refusal();
    }

    /// Whether the client has not taken all parts.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.0.held().parts > 0
    }

    /// Counts `len` bytes in all that the maker of the answer keeps for later parts. Returns false
    /// if there is no capacity for them.
    #[must_use]
    pub fn keep(&self, len: usize) -> bool {
        self.0.change(|held| held.kept = len)
    }

    /// Waits until the parts that have not been dropped have at most `len` bytes.
    pub async fn until_at_most(&self, len: usize) {
        loop {
            let released = self.0.released.notified();
            if self.0.held().len <= len {
                return;
            }
            released.await;
        }
    }
}

impl AnswerCount {
    fn held(&self) -> MutexGuard<'_, HeldBytes> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what there is of the answer. Returns false if there is no capacity for it.
    fn change(&self, change: impl FnOnce(&mut HeldBytes)) -> bool {
        let mut held = self.held();
        change(&mut held);
        // A longer answer than a source may have is alone there, and counts as that.
        let len = held.reserved.max(ANSWER_LEN + held.len + held.kept).min(self.limits.bytes.per_holder);
        held.reservation.resize(len, self.limits.bytes).is_ok()
    }

    /// When the answer will have moved too little; `None` while no part of it waits.
    fn stall_deadline(&self) -> Option<Instant> {
        let held = self.held();
        (held.parts > 0).then(|| held.since + self.limits.stall)
    }

    /// Notes that the client took `len` bytes.
    fn note_progress(&self, len: usize) {
        let mut held = self.held();
        held.moved += len as u64;
        let least = u64::try_from(self.limits.stall.as_millis()).unwrap_or(u64::MAX);
        if held.moved >= least.saturating_mul(MOVED_PER_MS) {
            (held.since, held.moved) = (Instant::now(), 0);
        }
    }
}

impl Drop for HeldPart {
    fn drop(&mut self) {
        let count = &self.answer.0;
        if Arc::strong_count(count) == 1 {
            // No task waits for it, and dropping it releases all.
            return;
        }
        // There is capacity for less than there was.
        let _ = count.change(|held| {
            held.len -= self.len;
            held.parts -= 1;
        });
        count.released.notify_waiters();
    }
}

impl AnswerPart {
    /// Bytes that are not counted yet.
    #[must_use]
    pub const fn new(bytes: Bytes) -> Self {
        Self { bytes, is_shared: false, held: None }
    }

    /// Bytes that all answers with them share.
    #[must_use]
    pub const fn shared(bytes: Bytes) -> Self {
        Self { bytes, is_shared: true, held: None }
    }

    /// Bytes that count for this answer alone.
    const fn counted_len(&self) -> usize {
        if self.is_shared { 0 } else { self.bytes.len() }
    }

    /// The bytes that have not been taken.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The answer that they count for.
    #[must_use]
    pub fn counted(&self) -> Option<&CountedAnswer> {
        self.held.as_ref().map(|held| &held.answer)
    }
}

impl Buf for AnswerPart {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, len: usize) {
        self.bytes.advance(len);
        if let Some(held) = &self.held {
            held.answer.0.note_progress(len);
        }
        if !self.bytes.has_remaining() {
            // The memory is free from here on, also if the connection keeps this for some time.
            self.bytes = Bytes::new();
            self.held = None;
        }
    }
}

/// The answers on one connection of HTTP/2. A client allows bytes for each of them, and need not
/// allow any for one while the connection itself goes on.
#[derive(Debug, Default)]
pub struct WaitingAnswers(Mutex<Vec<Weak<AnswerCount>>>);

impl WaitingAnswers {
    fn answers(&self) -> MutexGuard<'_, Vec<Weak<AnswerCount>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an answer.
    pub fn add(&self, answer: &CountedAnswer) {
        let mut answers = self.answers();
        if answers.len() == answers.capacity() {
            answers.retain(|answer| answer.strong_count() > 0);
        }
        answers.push(Arc::downgrade(&answer.0));
    }

    /// Whether no answer waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.deadlines(&self.answers()).next().is_none()
    }

    /// When the first answer will have moved too little; `None` if no answer waits.
    #[must_use]
    pub fn stall_deadline(&self) -> Option<Instant> {
        self.deadlines(&self.answers()).min()
    }

    #[expect(clippy::unused_self, reason = "what is locked is its own")]
    fn deadlines(&self, answers: &[Weak<AnswerCount>]) -> impl Iterator<Item = Instant> {
        answers.iter().filter_map(|answer| answer.upgrade()?.stall_deadline())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_millis(3);
    const SOURCE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn limits(per_source: usize) -> AnswerLimits {
        let bytes = PermitLimits { all: 4 * per_source, per_holder: per_source };
        AnswerLimits { bytes, stall: Duration::from_millis(10) }
    }

    fn bytes(len: usize) -> AnswerPart {
        AnswerPart::new(Bytes::from(vec![b'x'; len]))
    }

    #[test]
    fn bytes_count_until_the_last_of_them_is_taken() {
        let all = SourcePermits::default();
        let begin = || CountedAnswer::begin(&all, SOURCE, 0, limits(20_000));
        let (one, other) = (begin().unwrap(), begin().unwrap());
        assert_eq!(all.count(), 2 * ANSWER_LEN);
        let whole = CountedAnswer::whole(&all, SOURCE, bytes(3000), limits(20_000)).unwrap();
        assert_eq!(all.count(), 3 * ANSWER_LEN + 3000);
        assert!(CountedAnswer::whole(&all, SOURCE, bytes(15_000), limits(20_000)).is_none());
        drop(whole);
        assert_eq!(all.count(), 2 * ANSWER_LEN);
        let mut part = one.count(bytes(10_000)).unwrap();
        assert!(other.count(bytes(10_000)).is_err(), "no room for so many more of this source");
        assert_eq!(all.count(), 2 * ANSWER_LEN + 10_000);
        part.advance(9_999);
        assert_eq!(all.count(), 2 * ANSWER_LEN + 10_000, "the memory is not free yet");
        part.advance(1);
        assert_eq!(all.count(), 2 * ANSWER_LEN);
        let part = other.count(bytes(10_000)).unwrap();
        let shared = one.count(AnswerPart::shared(Bytes::from_static(&[0; 20_000]))).unwrap();
        assert_eq!((all.count(), shared.remaining()), (2 * ANSWER_LEN + 10_000, 20_000));
        assert!(!one.keep(10_000) && one.keep(1000));
        assert_eq!(all.count(), 2 * ANSWER_LEN + 11_000);
        drop((one, other, part, shared));
        assert_eq!(all.count(), 0);
    }

    #[test]
    fn an_answer_longer_than_a_source_may_have_is_alone_there() {
        let all = SourcePermits::default();
        let begin = |reserved| CountedAnswer::begin(&all, SOURCE, reserved, limits(20_000));
        let long = begin(0).unwrap();
        let part = long.count(bytes(1_000_000)).unwrap();
        assert_eq!(all.count(), 20_000);
        assert!(begin(0).is_none());
        drop(part);
        assert!(begin(18_000).is_none() && begin(17_900).is_some(), "reserved from the start");
    }

    #[test]
    fn a_maker_waits_until_its_parts_are_taken() {
        let answer = CountedAnswer::begin(&SourcePermits::default(), SOURCE, 0, limits(20_000)).unwrap();
        let parts = [answer.count(bytes(1000)).unwrap(), answer.count(bytes(1000)).unwrap()];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let wait = |len| tokio::time::timeout(Duration::from_secs(10), answer.until_at_most(len));
            wait(2000).await.unwrap();
            let taken = async {
                for part in parts {
                    tokio::task::yield_now().await;
                    drop(part);
                }
            };
            tokio::join!(wait(0), taken).0.unwrap();
        });
    }

    #[test]
    fn an_answer_stalls_if_it_moves_too_slowly() {
        let (all, answers) = (SourcePermits::default(), WaitingAnswers::default());
        let limits = limits(20_000);
        let answer = CountedAnswer::begin(&all, SOURCE, 0, limits).unwrap();
        answers.add(&answer);
        assert!(answers.is_empty() && answers.stall_deadline().is_none());
        let (mut first, second) = (answer.count(bytes(100)).unwrap(), answer.count(bytes(100)).unwrap());
        let begun = answers.stall_deadline().unwrap();
        std::thread::sleep(PAUSE);
        first.advance(9);
        assert_eq!(answers.stall_deadline(), Some(begun), "9 bytes in 10 ms are too few");
        first.advance(1);
        let moved = answers.stall_deadline().unwrap();
        assert!(moved >= begun + PAUSE, "10 bytes are enough");
        drop(first);
        assert_eq!(answers.stall_deadline(), Some(moved), "the second part waits");
        drop(second);
        assert!(answers.is_empty() && answers.stall_deadline().is_none());
        std::thread::sleep(PAUSE);
        let _third = answer.count(bytes(1)).unwrap();
        assert!(answers.stall_deadline().unwrap() > moved, "a new part begins to wait");
        for _ in 0..1000 {
            answers.add(&CountedAnswer::begin(&all, SOURCE, 0, limits).unwrap());
        }
        assert!(answers.answers().len() < 100, "answers that are over are forgotten");
    }
}
