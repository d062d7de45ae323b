//! Pending requests in a table of fixed size, found by request id.
//!
//! - An id consists of a slot and its use count, so finding a request is one read.
//! - Ids are positive 31-bit numbers, as deployed clients choose them.
//! - A finished slot goes to the end of the queue of free ones, so that late and duplicate answers
//!   are recognised until the whole table has been used again.

use crate::load::workload::RequestChoice;

/// A slot in the table.
pub type SlotAt = u32;

/// What is known about a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestInFlight {
    /// Its question.
    pub choice: RequestChoice,
    /// When it was due, in nanoseconds from the start of the run.
    pub intended_ns: u64,
    /// When it was sent.
    pub sent_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    Unused,
    Waiting,
    Expired,
    Answered,
}

#[derive(Clone, Copy, Debug)]
struct RequestSlot {
    request: RequestInFlight,
    uses: u32,
    previous: SlotAt,
    next: SlotAt,
    state: SlotState,
    /// A piece of its answer was received twice.
    is_repeated: bool,
}

/// The state of the request with an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// It waits for its answer.
    Waiting(SlotAt, RequestInFlight),
    /// It was given up without an answer.
    Expired(SlotAt, RequestInFlight),
    /// It has been answered.
    Answered(SlotAt, RequestInFlight),
    /// No request has this id, or it has been forgotten.
    Unknown,
}

/// A queue of slots, linked through them.
#[derive(Clone, Copy, Debug)]
struct Queue {
    first: SlotAt,
    last: SlotAt,
}

/// Stands for no slot.
const NONE: SlotAt = SlotAt::MAX;

impl Queue {
    const EMPTY: Self = Self { first: NONE, last: NONE };
}

/// The table. Every operation takes a constant number of steps.
#[derive(Debug)]
pub struct InFlight {
    slots: Box<[RequestSlot]>,
    slot_bits: u32,
    /// Pending slots, in the order they were sent.
    waiting: Queue,
    waiting_count: usize,
    /// Free slots, in the order they were finished.
    free: Queue,
    /// Number of requests given up without an answer.
    unanswered: u64,
    /// Requests among these with repeated pieces of an answer.
    repeated: u64,
}

/// Minimum and maximum number of slots, as powers of two; a use count of 9 bits remains.
const SLOT_BITS_MIN: u32 = 4;
const SLOT_BITS_MAX: u32 = 22;
const ID_BITS: u32 = 31;

impl InFlight {
    /// Creates a table for at least `capacity` requests, within the range of request ids.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let bits = capacity.checked_next_power_of_two().map_or(SLOT_BITS_MAX, usize::ilog2);
        let slot_bits = bits.clamp(SLOT_BITS_MIN, SLOT_BITS_MAX);
        let slot = RequestSlot {
            request: RequestInFlight::default(),
            uses: 0,
            previous: NONE,
            next: NONE,
            state: SlotState::Unused,
            is_repeated: false,
        };
        let mut table = Self {
            slots: vec![slot; 1 << slot_bits].into_boxed_slice(),
            slot_bits,
            waiting: Queue::EMPTY,
            waiting_count: 0,
            free: Queue::EMPTY,
            unanswered: 0,
            repeated: 0,
        };
        for at in 0..1 << slot_bits {
            push(&mut table.slots, &mut table.free, at);
        }
        table
    }

    /// Maximum number of pending requests.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Number of pending requests.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.waiting_count
    }

    /// Requests that were given up, and have not been answered since.
    #[must_use]
    pub const fn unanswered(&self) -> u64 {
        self.unanswered
    }

    /// Requests among these with repeated pieces of an answer, instead of the missing ones.
    #[must_use]
    pub const fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Whether all slots are pending.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.free.first == NONE
    }

    /// Adds a request, and chooses its id. `None` if all slots are pending.
    pub fn begin(&mut self, request: RequestInFlight) -> Option<i32> {
        let at = self.free.first;
        if at == NONE {
            return None;
        }
        unlink(&mut self.slots, &mut self.free, at);
        push(&mut self.slots, &mut self.waiting, at);
        self.waiting_count += 1;
        let uses_max = (1 << (ID_BITS - self.slot_bits)) - 1;
        let slot = &mut self.slots[at as usize];
        // Starts at 1, so that no id is 0.
        slot.uses = slot.uses % uses_max + 1;
        slot.request = request;
        slot.state = SlotState::Waiting;
        slot.is_repeated = false;
        Some((slot.uses << self.slot_bits | at).cast_signed())
    }

    /// Finds the request with this id.
    #[must_use]
    pub fn find(&self, id: i32) -> RequestState {
        if id <= 0 {
            return RequestState::Unknown;
        }
        let id = id.cast_unsigned();
        let at = id & ((1 << self.slot_bits) - 1);
        let slot = &self.slots[at as usize];
        if slot.uses != id >> self.slot_bits {
            return RequestState::Unknown;
        }
        match slot.state {
            SlotState::Unused => RequestState::Unknown,
            SlotState::Waiting => RequestState::Waiting(at, slot.request),
            SlotState::Expired => RequestState::Expired(at, slot.request),
            SlotState::Answered => RequestState::Answered(at, slot.request),
        }
    }

    /// Marks the request as answered, in time or late.
    ///
    /// # Panics
    ///
    /// If it was answered before; the caller checks with [`find`](Self::find).
    pub fn answer(&mut self, at: SlotAt) {
        match self.slots[at as usize].state {
            SlotState::Waiting => self.finish(at, SlotState::Answered),
            SlotState::Expired => {
                self.unanswered -= 1;
                self.repeated -= u64::from(self.slots[at as usize].is_repeated);
                self.slots[at as usize].state = SlotState::Answered;
            }
            SlotState::Unused | SlotState::Answered => panic!("slot {at} does not wait for an answer"),
        }
    }

    /// Records that a piece of an incomplete answer was repeated.
    pub fn repeat(&mut self, at: SlotAt) {
        let slot = &mut self.slots[at as usize];
        let is_first = !std::mem::replace(&mut slot.is_repeated, true);
        self.repeated += u64::from(is_first && slot.state == SlotState::Expired);
    }

    /// Gives up all pending requests that were sent before `sent_before_ns`.
    pub fn expire(&mut self, sent_before_ns: u64) {
        while self.waiting.first != NONE {
            let at = self.waiting.first;
            if self.slots[at as usize].request.sent_ns >= sent_before_ns {
                break;
            }
            self.unanswered += 1;
            self.repeated += u64::from(self.slots[at as usize].is_repeated);
            self.finish(at, SlotState::Expired);
        }
    }

    fn finish(&mut self, at: SlotAt, state: SlotState) {
        self.slots[at as usize].state = state;
        unlink(&mut self.slots, &mut self.waiting, at);
        push(&mut self.slots, &mut self.free, at);
        self.waiting_count -= 1;
    }
}

fn push(slots: &mut [RequestSlot], queue: &mut Queue, at: SlotAt) {
    (slots[at as usize].previous, slots[at as usize].next) = (queue.last, NONE);
    match queue.last {
        NONE => queue.first = at,
        last => slots[last as usize].next = at,
    }
    queue.last = at;
}

fn unlink(slots: &mut [RequestSlot], queue: &mut Queue, at: SlotAt) {
    let RequestSlot { previous, next, .. } = slots[at as usize];
    match previous {
        NONE => queue.first = next,
        previous => slots[previous as usize].next = next,
    }
    match next {
        NONE => queue.last = previous,
        next => slots[next as usize].previous = previous,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(sent_ns: u64) -> RequestInFlight {
        RequestInFlight { choice: RequestChoice::default(), intended_ns: sent_ns, sent_ns }
    }

    #[test]
    fn finds_pending_requests_and_recognises_duplicates() {
        let mut table = InFlight::new(16);
        let id = table.begin(request(5)).unwrap();
        let RequestState::Waiting(at, found) = table.find(id) else { panic!("the request is not pending") };
        assert_eq!((found, table.waiting()), (request(5), 1));
        table.answer(at);
        assert_eq!(table.find(id), RequestState::Answered(at, request(5)));
        assert_eq!((table.waiting(), table.unanswered()), (0, 0));
    }

    #[test]
    fn late_answers_are_known_for_a_whole_round_of_the_table() {
        let mut table = InFlight::new(16);
        let id = table.begin(request(0)).unwrap();
        table.expire(1);
        assert_eq!(table.unanswered(), 1);
        for round in 1..16 {
            let other = table.begin(request(round)).unwrap();
            let RequestState::Waiting(at, _) = table.find(other) else {
                panic!("the request is not pending")
            };
            table.answer(at);
            assert!(matches!(table.find(id), RequestState::Expired(..)), "after {round} others");
        }
        let RequestState::Expired(at, _) = table.find(id) else { panic!("the request is forgotten") };
        table.answer(at);
        assert_eq!(table.unanswered(), 0);
        while table.find(id) != RequestState::Unknown {
            let other = table.begin(request(99)).unwrap();
            let RequestState::Waiting(at, _) = table.find(other) else {
                panic!("the request is not pending")
            };
            table.answer(at);
        }
    }

    #[test]
    fn repeated_pieces_count_until_the_answer_is_complete() {
        let mut table = InFlight::new(16);
        let ids: Vec<_> = (0..3).map(|i| table.begin(request(i)).unwrap()).collect();
        let at = |table: &InFlight, id| match table.find(id) {
            RequestState::Waiting(at, _) | RequestState::Expired(at, _) => at,
            found => panic!("{found:?}"),
        };
        let (first, second) = (at(&table, ids[0]), at(&table, ids[1]));
        // Before the request is given up, once and twice, and afterwards.
        table.repeat(first);
        table.repeat(first);
        assert_eq!(table.repeated(), 0, "the request may still be answered");
        table.expire(u64::MAX);
        assert_eq!((table.unanswered(), table.repeated()), (3, 1));
        table.repeat(second);
        assert_eq!(table.repeated(), 2);
        table.answer(first);
        assert_eq!((table.unanswered(), table.repeated()), (2, 1));
        for _ in 0..16 {
            table.begin(request(9)).unwrap();
        }
        assert_eq!(
            (table.unanswered(), table.repeated()),
            (2, 1),
            "counts remain when the slot is used again"
        );
        table.expire(u64::MAX);
        assert_eq!((table.unanswered(), table.repeated()), (18, 1), "for another request");
    }

    #[test]
    fn a_full_table_refuses_until_a_request_ends() {
        let mut table = InFlight::new(16);
        let ids: Vec<_> = (0..16).map(|i| table.begin(request(i)).unwrap()).collect();
        assert_eq!(table.begin(request(16)), None);
        let RequestState::Waiting(at, _) = table.find(ids[9]) else { panic!("the request is not pending") };
        table.answer(at);
        assert!(table.begin(request(17)).is_some());
        assert_eq!(table.begin(request(18)), None);
        table.expire(3);
        assert_eq!(
            (table.waiting(), table.unanswered()),
            (13, 3),
            "the requests sent at 0, 1 and 2 are given up"
        );
    }

    #[test]
    fn expires_in_order_of_sending() {
        let mut table = InFlight::new(16);
        let ids: Vec<_> = (0..10).map(|i| table.begin(request(i * 10)).unwrap()).collect();
        for i in [0, 4, 9] {
            let RequestState::Waiting(at, _) = table.find(ids[i]) else {
                panic!("the request is not pending")
            };
            table.answer(at);
        }
        table.expire(50);
        let expired: Vec<_> =
            (0..10).filter(|&i| matches!(table.find(ids[i]), RequestState::Expired(..))).collect();
        assert_eq!(expired, [1, 2, 3]);
        table.expire(u64::MAX);
        assert_eq!((table.waiting(), table.unanswered()), (0, 7));
    }

    #[test]
    fn ids_are_positive_and_new_each_time_until_they_wrap() {
        let mut table = InFlight::new(1 << SLOT_BITS_MAX);
        let uses_max = (1 << (ID_BITS - SLOT_BITS_MAX)) - 1;
        let mut table_small = InFlight::new(1);
        assert_eq!(table_small.capacity(), 16);
        assert!(table_small.begin(request(0)).unwrap() > 0);
        // The same slot repeatedly: it is the only free one.
        let mut ids = Vec::new();
        for i in 1..table.capacity() as u64 {
            table.begin(request(i)).unwrap();
        }
        for use_number in 0..2 * uses_max {
            let id = table.begin(request(1 << 40)).unwrap();
            assert!(id > 0, "use {use_number}");
            ids.push(id);
            let RequestState::Waiting(at, _) = table.find(id) else { panic!("the request is not pending") };
            table.answer(at);
        }
        let (first, second) = ids.split_at(uses_max);
        assert_eq!(first, second, "wraps after all {uses_max} uses");
        let mut sorted = first.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), uses_max);
    }

    #[test]
    fn ids_never_assigned_are_unknown() {
        let mut table = InFlight::new(16);
        let id = table.begin(request(0)).unwrap();
        for other in [0, -1, i32::MIN, i32::MAX, id ^ 1, id + 16, id | i32::MIN, 1, 15] {
            assert_eq!(table.find(other), RequestState::Unknown, "{other:#x}");
        }
    }

    #[test]
    #[should_panic(expected = "does not wait")]
    fn answering_twice_is_a_bug() {
        let mut table = InFlight::new(16);
        let id = table.begin(request(0)).unwrap();
        let RequestState::Waiting(at, _) = table.find(id) else { panic!("the request is not pending") };
        table.answer(at);
        table.answer(at);
    }
}
