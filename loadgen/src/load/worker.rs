//! The requests and answers of one thread, as a state machine without sockets and clocks.
//!
//! Due requests go to the outbox; received datagrams are passed in with their times. A test can
//! therefore lose, repeat and delay datagrams by the thousand and know the exact counts.

use std::collections::VecDeque;
use std::net::IpAddr;

use handle_net::{FlushReport, Outbox, Peer};
use handle_proto::ResponseCode;
use handle_proto::limit::UDP_DATA_LEN_MAX;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::{Envelope, Header};
use hdrhistogram::Histogram;

use crate::judge::counts::{AnswerCounts, Codes};
use crate::judge::expected_records::LearnedAnswers;
use crate::judge::verify::{AnswerVerifier, AnsweredQuestion, Mismatch};
use crate::load::fragments::{FragmentOutcome, FragmentTable};
use crate::load::inflight::{InFlight, RequestInFlight, RequestState, SlotAt};
use crate::load::pacing::Pacing;
use crate::load::pattern::Chooser;
use crate::load::schedule::{COUNTED_MAX, ThreadShare};
use crate::load::workload::Workload;
use crate::random::RandomGenerator;
use crate::show::latency::{Latency, histogram};
use crate::show::steps::Steps;

/// Maximum number of requests sent together. More would save little and delay the last ones.
pub const BURST_MAX: usize = 64;

/// When this thread sends.
#[derive(Clone, Copy, Debug)]
pub enum WorkerPlan<'a> {
    /// At intended times, independent of earlier requests.
    Open {
        /// The times.
        share: ThreadShare<'a>,
        /// Requests still unsent at this time are not sent at all.
        until_ns: u64,
    },
    /// Whenever fewer than `window` requests are pending.
    Closed {
        /// Maximum number of pending requests.
        window: usize,
        /// Maximum number of requests.
        left: u64,
        /// The end.
        until_ns: u64,
    },
}

/// The events since the last tick, for display during the run.
#[derive(Clone, Debug)]
pub struct Interval {
    /// Requests sent.
    pub sent: u64,
    /// Answers in time.
    pub answered: u64,
    /// Requests given up, less those answered since.
    pub lost: i64,
    /// Late answers.
    pub late: u64,
    /// Wrong answers.
    pub mismatched: u64,
    /// Response times, to two digits.
    pub response: Histogram<u32>,
    /// Longest lag of a request behind the schedule.
    pub lag_max_ns: u64,
    /// Answers in time by response code, since the start.
    pub codes: Codes,
}

impl Default for Interval {
    fn default() -> Self {
        Self {
            sent: 0,
            answered: 0,
            lost: 0,
            late: 0,
            mismatched: 0,
            response: histogram(2),
            lag_max_ns: 0,
            codes: Codes::default(),
        }
    }
}

/// The requests and answers of one thread.
#[derive(Debug)]
pub struct LoadWorker<'a> {
    plan: WorkerPlan<'a>,
    workload: &'a Workload,
    chooser: Chooser,
    target: Peer,
    /// The peers of requests: the target, from each source address in turn.
    peers: Vec<Peer>,
    next_peer: usize,
    timeout_ns: u64,
    random: RandomGenerator,
    table: InFlight,
    fragments: FragmentTable,
    counts: AnswerCounts,
    latency: Latency,
    interval: Interval,
    /// Counts at the last tick: sent, answered, lost, late, mismatched.
    at_tick: [u64; 5],
    verifier: Option<AnswerVerifier>,
    /// Learns reference data from the answers.
    learned: Option<LearnedAnswers>,
    pacing: Pacing,
    steps: Steps,
    /// Buffer for the name of a question that is judged.
    name: Box<[u8]>,
    /// Intended times of the requests in the outbox.
    outbox_intended_ns: Vec<u64>,
    /// When they were put there, which is the send time in the table.
    pushed_ns: u64,
    /// When requests were put in the outbox that the kernel did not accept, and how many. They are
    /// pending in the table, which bounds their number.
    untaken: VecDeque<(u64, u32)>,
    /// Those among them that the table has given up since.
    untaken_expired: u64,
    last_sent_ns: u64,
    /// Receive time of the last answer in time.
    last_answered_ns: u64,
    stopped: bool,
}

/// The results of one thread.
#[derive(Debug)]
pub struct WorkerOutcome {
    /// All of its counts.
    pub counts: AnswerCounts,
    /// All of its times.
    pub latency: Latency,
    /// The first wrong answers.
    pub mismatches: Vec<Mismatch>,
    /// Longest accepted staleness of an answer.
    pub staleness_max_ns: i64,
    /// Send time of the last request; in a closed loop, receive time of the last answer in time if
    /// that is later.
    pub end_ns: u64,
    /// Requests due and sent, by window; empty in a closed loop.
    pub pacing: Pacing,
    /// The results of each phase.
    pub steps: Steps,
    /// The learned answers, in a first pass.
    pub learned: Option<LearnedAnswers>,
}

impl<'a> LoadWorker<'a> {
    /// Creates a worker that follows `plan` and asks `target` for handles of `workload`, chosen by
    /// `chooser` and `random`.
    ///
    /// All memory is allocated here; `capacity` is that of its [`InFlight`].
    #[must_use]
    pub fn new(
        plan: WorkerPlan<'a>,
        workload: &'a Workload,
        chooser: Chooser,
        target: Peer,
        timeout_ns: u64,
        random: RandomGenerator,
        capacity: usize,
    ) -> Self {
        let mut counts = AnswerCounts::default();
        let (mut pacing, mut steps) = (Pacing::default(), Steps::default());
        if let WorkerPlan::Open { share, until_ns } = &plan {
            counts.scheduled = if share.is_counted() { share.left() } else { 0 };
            (pacing, steps) = (Pacing::new(*until_ns), Steps::of(share.schedule()));
        }
        Self {
            plan,
            workload,
            chooser,
            target,
            peers: vec![target],
            next_peer: 0,
            timeout_ns,
            random,
            table: InFlight::new(capacity),
            fragments: FragmentTable::new(),
            counts,
            latency: Latency::default(),
            interval: Interval::default(),
            at_tick: [0; 5],
            verifier: None,
            learned: None,
            pacing,
            steps,
            name: vec![0; workload.request_len_max()].into_boxed_slice(),
            outbox_intended_ns: Vec::with_capacity(BURST_MAX),
            pushed_ns: 0,
            untaken: VecDeque::new(),
            untaken_expired: 0,
            last_sent_ns: 0,
            last_answered_ns: 0,
            stopped: false,
        }
    }

    /// Sends from these addresses in turn, over an unbound socket.
    pub fn leave_from(&mut self, sources: &[IpAddr]) {
        if !sources.is_empty() {
            self.peers = sources.iter().map(|source| self.target.leaving_from(*source)).collect();
        }
    }

    /// Judges every answer with `verifier`.
    pub fn verify(&mut self, verifier: AnswerVerifier) {
        self.verifier = Some(verifier);
    }

    /// Learns reference data from the answers; `learned` has the handles that will be requested.
    pub fn learn(&mut self, learned: LearnedAnswers) {
        self.learned = Some(learned);
    }

    /// Puts the requests due at `now_ns` into the empty outbox, at most [`BURST_MAX`].
    ///
    /// The caller then reports the result with [`flushed`](Self::flushed).
    #[inline]
    pub fn push_due(&mut self, now_ns: u64, outbox: &mut Outbox) {
        self.push_some(now_ns, BURST_MAX, outbox);
    }

    /// The same with at most `count_max` requests.
    pub fn push_some(&mut self, now_ns: u64, count_max: usize, outbox: &mut Outbox) {
        self.pushed_ns = now_ns;
        while self.outbox_intended_ns.len() < count_max {
            let Some(intended_ns) = self.due_ns(now_ns) else { break };
            // A full table waits for answers or the timeout; the schedule continues, so the lag
            // grows. Nothing is chosen before, because it would be left out.
            if self.table.is_full() {
                break;
            }
            let number = self.chooser.choose(&mut self.random);
            let choice = self.workload.choose(number, &mut self.random);
            let request = RequestInFlight { choice, intended_ns, sent_ns: now_ns };
            let Some(id) = self.table.begin(request) else { break };
            let write = |buffer: &mut [u8]| self.workload.write_request(choice, id, buffer);
            let peer = self.peers[self.next_peer];
            self.next_peer = if self.next_peer + 1 < self.peers.len() { self.next_peer + 1 } else { 0 };
            outbox.push(peer, self.workload.request_len_max(), write).expect("the outbox takes a burst");
            self.outbox_intended_ns.push(intended_ns);
            match &mut self.plan {
                WorkerPlan::Open { share, .. } => {
                    self.counts.scheduled += u64::from(!share.is_counted());
                    share.advance();
                }
                WorkerPlan::Closed { left, .. } => {
                    self.counts.scheduled += 1;
                    *left -= 1;
                }
            }
        }
    }

    /// The intended time of the next request that may be sent now.
    fn due_ns(&self, now_ns: u64) -> Option<u64> {
        match &self.plan {
            _ if self.stopped => None,
            WorkerPlan::Open { until_ns, .. } | WorkerPlan::Closed { until_ns, .. }
                if now_ns >= *until_ns =>
            {
                None
            }
            WorkerPlan::Open { share, .. } => share.due_ns().filter(|&due_ns| due_ns <= now_ns),
            WorkerPlan::Closed { window, left, .. } => {
                (*left > 0 && self.table.waiting() < *window).then_some(now_ns)
            }
        }
    }

    /// Records the result of the outbox, at the time `now_ns` when the kernel had accepted it.
    pub fn flushed(&mut self, now_ns: u64, flushed: FlushReport) {
        self.counts.sent += u64::from(flushed.sent);
        self.counts.refused += u64::from(flushed.failed);
        self.counts.blocked += u64::from(flushed.would_block);
        if flushed.failed + flushed.would_block > 0 {
            self.untaken.push_back((self.pushed_ns, flushed.failed + flushed.would_block));
        }
        let is_open = matches!(self.plan, WorkerPlan::Open { .. });
        let mut untaken = flushed.failed + flushed.would_block;
        for intended_ns in self.outbox_intended_ns.drain(..) {
            // Lag counts to the end of the flush, service time from its start. If a batch takes
            // time, both are rather too large.
            let lag_ns = now_ns.saturating_sub(intended_ns);
            if is_open {
                self.latency.schedule_error.saturating_record(lag_ns);
                self.pacing.note(intended_ns, now_ns);
                self.steps.note_sent(intended_ns, now_ns, untaken == 0);
                untaken = untaken.saturating_sub(1);
                self.interval.lag_max_ns = self.interval.lag_max_ns.max(lag_ns);
            }
        }
        self.last_sent_ns = now_ns;
    }

    /// Handles a datagram received at `now_ns`.
    ///
    /// `is_whole` is false if it was longer than the receive buffer.
    pub fn receive(&mut self, now_ns: u64, from: Peer, bytes: &[u8], is_whole: bool) {
        self.counts.datagrams += 1;
        let Some((envelope, data)) = bytes.split_first_chunk() else {
            self.counts.unmatched += 1;
            return;
        };
        let envelope = Envelope::from_bytes(envelope);
        let found = if from.remote() == self.target.remote() {
            self.table.find(envelope.request_id)
        } else {
            RequestState::Unknown
        };
        let len = envelope.message_len as usize;
        let is_fragment = envelope.flags.has(EnvelopeFlags::TRUNCATED) && len > UDP_DATA_LEN_MAX;
        match found {
            RequestState::Unknown => self.counts.unmatched += 1,
            // The first fragment stands for the whole answer.
            RequestState::Answered(..) if is_fragment && envelope.sequence > 0 => {
                self.counts.fragment_duplicates += 1
            }
            RequestState::Answered(..) => self.counts.duplicates += 1,
            RequestState::Waiting(at, request) | RequestState::Expired(at, request) if is_fragment => {
                self.receive_fragment(now_ns, at, request, &envelope, data);
            }
            RequestState::Waiting(at, request) | RequestState::Expired(at, request) => {
                let message = match data.get(..len) {
                    Some(message) if is_whole => Ok(message),
                    _ => Err(UnreadableAnswer::Truncated),
                };
                self.answer(now_ns, at, request, &envelope, message);
            }
        }
    }

    fn receive_fragment(
        &mut self,
        now_ns: u64,
        at: SlotAt,
        request: RequestInFlight,
        envelope: &Envelope,
        data: &[u8],
    ) {
        let given_up_ns = now_ns.saturating_sub(self.timeout_ns);
        match self.fragments.put(envelope, data, request.sent_ns, given_up_ns) {
            FragmentOutcome::Incomplete => {}
            FragmentOutcome::Repeated => self.table.repeat(at),
            FragmentOutcome::Malformed => {
                self.fragments.forget(envelope.request_id);
                self.answer(now_ns, at, request, envelope, Err(UnreadableAnswer::Malformed));
            }
            FragmentOutcome::Complete(assembly) => {
                // Taken out during the call, because the message borrows it. Nothing is allocated.
                let mut fragments = std::mem::take(&mut self.fragments);
                let message = fragments.complete(assembly);
                self.answer(now_ns, at, request, envelope, Ok(message));
                self.fragments = fragments;
            }
        }
    }

    /// Counts the first answer to a request: the answer without its envelope, or why it cannot be
    /// decoded.
    fn answer(
        &mut self,
        now_ns: u64,
        at: SlotAt,
        request: RequestInFlight,
        envelope: &Envelope,
        message: Result<&[u8], UnreadableAnswer>,
    ) {
        self.table.answer(at);
        let service_ns = now_ns.saturating_sub(request.sent_ns);
        if service_ns > self.timeout_ns {
            self.counts.late += 1;
            self.steps.note_late(request.intended_ns);
        } else {
            self.counts.answered += 1;
            self.last_answered_ns = now_ns;
            match message.and_then(response_code) {
                Ok(code) => self.counts.codes.count(code.0),
                Err(UnreadableAnswer::Malformed) => self.counts.malformed += 1,
                Err(UnreadableAnswer::Truncated) => self.counts.truncated += 1,
            }
            let response_ns = now_ns.saturating_sub(request.intended_ns);
            // In a closed loop both are equal, and recorded once.
            if matches!(self.plan, WorkerPlan::Open { .. }) {
                self.latency.service.saturating_record(service_ns);
            }
            self.latency.response.saturating_record(response_ns);
            self.interval.response.saturating_record(response_ns);
            self.steps.note_answered(request.intended_ns, response_ns);
        }
        if let Some(verifier) = &mut self.verifier
            && verifier.is_next(&mut self.counts)
        {
            let question = &self.workload.question(request.choice, &mut self.name[..]);
            let answered = AnsweredQuestion { question, envelope, message: message.unwrap_or_default() };
            let (sent_ns, received_ns) = (request.sent_ns.cast_signed(), now_ns.cast_signed());
            verifier.judge(answered, sent_ns, received_ns, &mut self.counts);
        }
        if let Some(learned) = &mut self.learned {
            let question = self.workload.question(request.choice, &mut self.name[..]);
            learned.learn(question.handle, message.unwrap_or_default());
        }
    }

    /// Gives up requests that waited too long, and takes news about the sets. Called once per
    /// batch.
    pub fn advance(&mut self, now_ns: u64) {
        let sent_before_ns = now_ns.saturating_sub(self.timeout_ns);
        self.table.expire(sent_before_ns);
        while let Some((_, count)) = self.untaken.front().filter(|(sent_ns, _)| *sent_ns < sent_before_ns) {
            self.untaken_expired += u64::from(*count);
            self.untaken.pop_front();
        }
        if let Some(verifier) = &mut self.verifier {
            verifier.refresh(&mut self.counts);
        }
    }

    /// The due time of the next request; `None` if there are only answers to wait for.
    #[must_use]
    pub fn next_due_ns(&self, now_ns: u64) -> Option<u64> {
        match &self.plan {
            WorkerPlan::Open { share, until_ns } if !self.stopped && now_ns < *until_ns => share.due_ns(),
            _ => self.due_ns(now_ns),
        }
    }

    /// Stops sending; due requests count as not sent.
    pub const fn stop(&mut self) {
        self.stopped = true;
    }

    /// Whether there is nothing more to send, and no answer to wait for.
    ///
    /// Answers are awaited for one timeout, and for another if some are missing, to tell late from
    /// lost ones.
    #[must_use]
    pub fn is_done(&self, now_ns: u64) -> bool {
        let is_sending = self.next_due_ns(now_ns).is_some()
            || matches!(self.plan, WorkerPlan::Closed { until_ns, left, .. }
                if !self.stopped && left > 0 && now_ns < until_ns);
        if is_sending {
            return false;
        }
        let refused = self.counts.refused + self.counts.blocked;
        let missing = self.table.waiting() as u64 + self.table.unanswered();
        let is_settled = self.verifier.as_ref().is_none_or(AnswerVerifier::is_settled);
        if missing <= refused && is_settled {
            return true;
        }
        now_ns > self.last_sent_ns.saturating_add(2 * self.timeout_ns)
    }

    /// The events since the last call.
    pub fn tick(&mut self) -> Interval {
        let counts = &self.counts;
        // Requests that the kernel did not accept have no answer either, and are not lost.
        let lost = self.table.unanswered().saturating_sub(self.untaken_expired);
        let now = [counts.sent, counts.answered, lost, counts.late, counts.mismatched];
        let [sent, answered, lost, late, mismatched] = self.at_tick;
        self.at_tick = now;
        Interval {
            sent: now[0] - sent,
            answered: now[1] - answered,
            lost: now[2].cast_signed() - lost.cast_signed(),
            late: now[3] - late,
            mismatched: now[4] - mismatched,
            codes: counts.codes.clone(),
            ..std::mem::take(&mut self.interval)
        }
    }

    /// Closes the accounts.
    ///
    /// # Panics
    ///
    /// If they are inconsistent.
    #[must_use]
    pub fn finish(mut self, kernel_drops: u64) -> WorkerOutcome {
        self.table.expire(u64::MAX);
        let verify = self.verifier.is_some();
        let (mismatches, staleness_max_ns) =
            self.verifier.map_or((Vec::new(), 0), |verifier| verifier.finish(&mut self.counts));
        let mut counts = self.counts;
        if matches!(self.plan, WorkerPlan::Closed { .. }) {
            self.latency.service = self.latency.response.clone();
        }
        if let WorkerPlan::Open { share, .. } = &self.plan {
            counts.behind = share.left();
            counts.scheduled += if share.is_counted() { 0 } else { counts.behind };
            // The rest of a stopped run was never due. Beyond the countable number, an estimate is
            // enough.
            let (mut rest, count_max) = (*share, if self.stopped { 0 } else { COUNTED_MAX });
            for _ in 0..count_max {
                let Some(due_ns) = rest.due_ns() else { break };
                self.pacing.note_unsent(due_ns);
                rest.advance();
            }
        }
        // In a closed loop the last answers belong to the sending time, because nothing else is
        // sent meanwhile.
        let end_ns = match self.plan {
            WorkerPlan::Open { .. } => self.last_sent_ns,
            WorkerPlan::Closed { .. } => self.last_sent_ns.max(self.last_answered_ns),
        };
        // Requests that the kernel did not accept have a slot in the table, and no answer.
        counts.duplicate_only = self.table.repeated();
        let excused = counts.refused + counts.blocked + counts.duplicate_only;
        counts.lost = self.table.unanswered().saturating_sub(excused);
        counts.fragment_duplicates += self.fragments.duplicates();
        counts.fragments_dropped += self.fragments.dropped();
        counts.kernel_drops = kernel_drops;
        if let Err(sum) = counts.check(verify) {
            panic!("{sum}: {counts:?}");
        }
        WorkerOutcome {
            counts,
            latency: self.latency,
            mismatches,
            staleness_max_ns,
            end_ns,
            pacing: self.pacing,
            steps: self.steps,
            learned: self.learned,
        }
    }
}

/// Why an answer cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnreadableAnswer {
    /// Its lengths are inconsistent.
    Malformed,
    /// Its end is missing.
    Truncated,
}

/// The response code of a message, if it has a header and a body of the length in the header.
fn response_code(message: &[u8]) -> Result<ResponseCode, UnreadableAnswer> {
    let (header, rest) = Header::split(message).map_err(|_| UnreadableAnswer::Malformed)?;
    if header.body_len as usize <= rest.len() {
        Ok(header.response_code)
    } else {
        Err(UnreadableAnswer::Malformed)
    }
}

#[cfg(test)]
mod tests;
