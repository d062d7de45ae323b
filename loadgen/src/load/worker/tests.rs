use super::*;
use crate::load::pattern::AccessOrder;
use crate::load::question::GeneratedQuestion;
use crate::load::schedule::{Arrivals, Phase, Schedule};
use crate::load::workload::RequestSampler;
use handle_proto::limit::UDP_MESSAGE_LEN_MAX;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::Duration;

const MS: u64 = 1_000_000;
const TIMEOUT_NS: u64 = 10 * MS;

fn target() -> Peer {
    Peer::to(SocketAddr::from(([127, 0, 0, 1], 2641)))
}

fn workload() -> Workload {
    let mut sampler = RequestSampler::new(100, 1);
    (0..100).for_each(|i| sampler.offer(format!("10.5072/{i}").as_bytes()));
    sampler.finish(0).unwrap()
}

fn outbox() -> Outbox {
    Outbox::new(BURST_MAX, BURST_MAX * UDP_MESSAGE_LEN_MAX)
}

fn schedule(rate: u64, ms: u64) -> Schedule {
    Schedule::constant(NonZeroU64::new(rate).unwrap(), Duration::from_millis(ms))
}

fn open_plan(schedule: &Schedule) -> WorkerPlan<'_> {
    WorkerPlan::Open { share: schedule.share(0, 1), until_ns: schedule.end_ns() + 10 * MS }
}

fn worker<'a>(
    plan: WorkerPlan<'a>,
    workload: &'a Workload,
    timeout_ns: u64,
    capacity: usize,
) -> LoadWorker<'a> {
    let chooser = Chooser::new(AccessOrder::Uniform, 100, 0, 1);
    LoadWorker::new(plan, workload, chooser, target(), timeout_ns, RandomGenerator::new(1, 0), capacity)
}

/// An answer to `request` with `code` and a body of this length, in as many datagrams as needed.
fn answer(request: &[u8], code: i32, body_len: usize) -> Vec<Vec<u8>> {
    let (mut envelope, message) = Envelope::split(request).unwrap();
    let (mut header, _) = Header::split(message).unwrap();
    (header.response_code, header.body_len) = (ResponseCode(code), u32::try_from(body_len).unwrap());
    let mut message = header.to_bytes().to_vec();
    message.resize(Header::LEN + body_len + 4, 0);
    envelope.message_len = u32::try_from(message.len()).unwrap();
    if message.len() > UDP_DATA_LEN_MAX {
        envelope.flags = EnvelopeFlags::TRUNCATED;
    }
    (0..)
        .zip(message.chunks(UDP_DATA_LEN_MAX))
        .map(|(sequence, data)| [&Envelope { sequence, ..envelope }.to_bytes(), data].concat())
        .collect()
}

/// A simulated network and server: a random number decides the fate of each request, and the
/// expected counts are tracked.
struct Simulation {
    random: RandomGenerator,
    under_way: BTreeMap<(u64, u64), Vec<u8>>,
    number: u64,
    expected: AnswerCounts,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let (under_way, expected) = (BTreeMap::new(), AnswerCounts::default());
        Self { random: RandomGenerator::new(seed, 7), under_way, number: 0, expected }
    }

    fn deliver(&mut self, at_ns: u64, bytes: Vec<u8>) {
        self.number += 1;
        self.under_way.insert((at_ns, self.number), bytes);
    }

    /// Decides the fate of one request, and returns whether the kernel accepts it.
    fn send(&mut self, now_ns: u64, request: &[u8]) -> bool {
        self.expected.scheduled += 1;
        let fate = self.random.below(100);
        if fate < 2 {
            self.expected.refused += 1;
            return false;
        }
        self.expected.sent += 1;
        let soon = now_ns + 1 + self.random.below(TIMEOUT_NS - MS);
        let late = now_ns + TIMEOUT_NS + MS + self.random.below(5 * MS);
        match fate {
            2..10 => self.expected.lost += 1,
            10..20 => {
                self.expected.late += 1;
                self.deliver(late, answer(request, 1, 50).remove(0));
                if fate < 13 {
                    self.expected.duplicates += 1;
                    self.deliver(late + MS, answer(request, 1, 50).remove(0));
                }
            }
            20..30 => {
                (self.expected.answered, self.expected.duplicates) =
                    (self.expected.answered + 1, self.expected.duplicates + 2);
                self.expected.codes.count(100);
                for _ in 0..3 {
                    self.deliver(soon, answer(request, 100, 0).remove(0));
                }
            }
            30..35 => {
                self.expected.answered += 1;
                self.expected.truncated += 1;
                let mut bytes = answer(request, 1, 50).remove(0);
                bytes.truncate(30 + usize::try_from(self.random.below(50)).unwrap());
                self.deliver(soon, bytes);
            }
            35..40 => {
                // With another id or none: it answers nothing, and the request is lost.
                self.expected.unmatched += 1;
                self.expected.lost += 1;
                let mut bytes = answer(request, 1, 50).remove(0);
                if fate == 35 {
                    bytes.truncate(19);
                } else {
                    bytes[8] ^= 0x40;
                }
                self.deliver(soon, bytes);
            }
            40..50 => {
                let body_len = 500 + usize::try_from(self.random.below(20_000)).unwrap();
                let mut pieces = answer(request, 1, body_len);
                if fate < 45 {
                    let missing = usize::try_from(self.random.below(pieces.len() as u64)).unwrap();
                    pieces.remove(missing);
                    if fate < 43 {
                        self.expected.lost += 1;
                    } else {
                        // A repeated fragment arrives instead of it.
                        let repeated = usize::try_from(self.random.below(pieces.len() as u64)).unwrap();
                        pieces.push(pieces[repeated].clone());
                        self.expected.duplicate_only += 1;
                        self.expected.fragment_duplicates += 1;
                    }
                } else {
                    self.expected.answered += 1;
                    self.expected.codes.count(1);
                }
                for piece in pieces {
                    // In any order.
                    let at_ns = now_ns + 1 + self.random.below(TIMEOUT_NS / 2);
                    self.deliver(at_ns, piece);
                }
            }
            _ => {
                self.expected.answered += 1;
                self.expected.codes.count(1);
                self.deliver(soon, answer(request, 1, 50).remove(0));
            }
        }
        true
    }

    fn run(self, plan: WorkerPlan<'_>) -> (AnswerCounts, AnswerCounts) {
        let (outcome, expected) = self.run_all(plan);
        (outcome.counts, expected)
    }

    fn run_all(mut self, plan: WorkerPlan<'_>) -> (WorkerOutcome, AnswerCounts) {
        let workload = workload();
        let mut worker = worker(plan, &workload, TIMEOUT_NS, 1 << 16);
        let (mut outbox, mut now_ns) = (outbox(), 0);
        while !worker.is_done(now_ns) {
            worker.push_due(now_ns, &mut outbox);
            let mut flushed = FlushReport::default();
            for i in 0..outbox.len() {
                let is_sent = self.send(now_ns, outbox.get(i).1);
                flushed.sent += u32::from(is_sent);
                flushed.failed += u32::from(!is_sent);
            }
            if !outbox.is_empty() {
                outbox.clear();
                worker.flushed(now_ns, flushed);
            }
            now_ns += self.random.below(MS / 4);
            while let Some(first) = self.under_way.first_entry().filter(|first| first.key().0 <= now_ns) {
                let ((at_ns, _), bytes) = first.remove_entry();
                self.expected.datagrams += 1;
                worker.receive(at_ns, target(), &bytes, true);
            }
            worker.advance(now_ns);
        }
        let datagrams = self.under_way.len() as u64;
        assert_eq!(datagrams, 0, "datagrams are left when the worker is done");
        (worker.finish(0), self.expected)
    }
}

#[test]
fn open_loop_accounts_are_exact_whatever_the_network_does() {
    for seed in 0..20 {
        let (counts, expected) = Simulation::new(seed).run(open_plan(&schedule(20_000, 200)));
        assert_eq!(counts, expected, "seed {seed}");
        assert_eq!(counts.scheduled, 4000);
    }
}

#[test]
fn closed_loop_accounts_are_exact_whatever_the_network_does() {
    for seed in 0..20 {
        let plan = WorkerPlan::Closed { window: 50, left: u64::MAX, until_ns: 200 * MS };
        let (counts, expected) = Simulation::new(seed).run(plan);
        assert_eq!(counts, expected, "seed {seed}");
        assert!(counts.sent > 500, "{counts:?}");
    }
}

#[test]
fn the_steps_of_a_schedule_add_up_to_its_accounts() {
    let phase = |rate: f64, ms| Phase::constant(rate, Duration::from_millis(ms));
    let ramp = Phase { duration: Duration::from_millis(60), from: 10_000.0, to: 30_000.0 };
    let phases = [phase(5000.0, 40), ramp, phase(0.0, 10), phase(20_000.0, 50)];
    for seed in 0..10 {
        for arrivals in [Arrivals::Even, Arrivals::Poisson { seed }] {
            let schedule = Schedule::phases(&phases, arrivals);
            let (outcome, expected) = Simulation::new(seed).run_all(open_plan(&schedule));
            let (counts, steps) = (&outcome.counts, outcome.steps.summary(&phases));
            assert_eq!(counts, &expected, "seed {seed}");
            let sum = |of: fn(&crate::show::steps::PhaseStep) -> u64| steps.iter().map(of).sum::<u64>();
            assert_eq!(sum(|step| step.sent), counts.sent, "seed {seed}");
            assert_eq!(sum(|step| step.answered), counts.answered, "seed {seed}");
            assert_eq!(sum(|step| step.late), counts.late, "seed {seed}");
            assert_eq!(sum(|step| step.unanswered), counts.lost + counts.duplicate_only, "seed {seed}");
            assert_eq!(sum(|step| step.response_ns.count), counts.answered, "seed {seed}");
            assert_eq!(sum(|step| step.schedule_error_ns.count), counts.sent + counts.refused, "seed {seed}");
            assert_eq!(steps[2].sent, 0, "nothing is due in a pause");
            assert!(steps[3].sent > 3 * steps[0].sent, "{steps:?}");
        }
    }
}

#[test]
fn requests_refused_by_the_kernel_hide_no_loss() {
    let (workload, schedule) = (workload(), schedule(10_000, 20));
    let mut worker = worker(open_plan(&schedule), &workload, TIMEOUT_NS, 1 << 10);
    let mut outbox = outbox();
    // There are no answers: the first requests are lost, and the kernel accepts fewer and fewer of
    // the later ones.
    let (mut ticks, mut lost) = (Vec::new(), 0);
    for ms in 0..=40 {
        let now_ns = ms * MS;
        worker.push_due(now_ns, &mut outbox);
        let count = u32::try_from(outbox.len()).unwrap();
        let failed = if ms < 10 { 0 } else { count.min(5) };
        let would_block = if ms < 15 { 0 } else { (count - failed).min(3) };
        if count > 0 {
            outbox.clear();
            let sent = count - failed - would_block;
            // Takes a while.
            worker.flushed(
                now_ns + MS / 2,
                FlushReport { sent, failed, would_block, ..FlushReport::default() },
            );
            ticks.push((now_ns, u64::from(sent)));
        }
        worker.advance(now_ns);
        let given_up = ticks.iter().filter(|(sent_ns, _)| sent_ns + TIMEOUT_NS < now_ns);
        let expected: u64 = given_up.map(|(_, sent)| sent).sum();
        lost += worker.tick().lost;
        assert_eq!(lost, expected.cast_signed(), "after {ms} ms");
    }
    let counts = worker.finish(0).counts;
    assert_eq!(lost, counts.lost.cast_signed());
    assert!(counts.refused > 0 && counts.blocked > 0, "{counts:?}");
}

#[test]
fn requests_leave_from_all_addresses_in_turn() {
    let (workload, schedule) = (workload(), schedule(1000, 6));
    let mut worker = worker(open_plan(&schedule), &workload, TIMEOUT_NS, 16);
    let sources: Vec<IpAddr> = (2..5u8).map(|last| [127, 0, 0, last].into()).collect();
    worker.leave_from(&sources);
    let mut outbox = outbox();
    worker.push_due(6 * MS, &mut outbox);
    let left: Vec<_> = (0..6).map(|i| outbox.get(i).0.local().unwrap()).collect();
    assert_eq!(left, [&sources[..], &sources[..]].concat());
    worker.flushed(6 * MS, FlushReport { sent: 6, ..FlushReport::default() });
    for (i, source) in left.into_iter().enumerate() {
        // Answers come back to the address that asked.
        let from = target().leaving_from(source);
        worker.receive(7 * MS, from, &answer(outbox.get(i).1, 1, 9)[0], true);
    }
    assert_eq!(worker.finish(0).counts.answered, 6);
}

#[test]
fn response_time_counts_from_the_due_time() {
    let workload = workload();
    let schedule = schedule(1000, 10);
    let mut worker = worker(open_plan(&schedule), &workload, 1000 * MS, 64);
    let mut outbox = outbox();
    // The generator sleeps until all ten are due.
    worker.push_due(9 * MS, &mut outbox);
    assert_eq!(outbox.len(), 10);
    worker.flushed(9 * MS, FlushReport { sent: 10, ..FlushReport::default() });
    for i in 0..10 {
        worker.receive(10 * MS, target(), &answer(outbox.get(i).1, 1, 9)[0], true);
    }
    let outcome = worker.finish(0);
    let Latency { response, service, schedule_error } = &outcome.latency;
    for (ns, ms) in [
        (response.max(), 10),
        (response.min(), 1),
        (service.max(), 1),
        (service.min(), 1),
        (schedule_error.max(), 9),
    ] {
        assert!(ns.abs_diff(ms * MS) <= ms * MS / 500, "{ns} ns is not {ms} ms");
    }
    assert_eq!(schedule_error.min(), 0);
}

#[test]
fn a_full_table_leaves_requests_unsent_and_counts_them() {
    let workload = workload();
    let schedule = schedule(1000, 100);
    let mut worker = worker(open_plan(&schedule), &workload, 1000 * MS, 16);
    let mut outbox = outbox();
    for ms in 0..120 {
        worker.push_due(ms * MS, &mut outbox);
        let sent = u32::try_from(outbox.len()).unwrap();
        outbox.clear();
        worker.flushed(ms * MS, FlushReport { sent, ..FlushReport::default() });
        worker.advance(ms * MS);
    }
    assert!(!worker.is_done(120 * MS));
    assert!(worker.is_done(3000 * MS));
    let counts = worker.finish(0).counts;
    assert_eq!((counts.scheduled, counts.sent, counts.behind, counts.lost), (100, 16, 84, 16));
}

#[test]
fn no_name_is_left_out_when_the_table_was_full() {
    let (workload, schedule) = (workload(), schedule(1000, 20));
    let chooser = Chooser::new(AccessOrder::Sequential, 100, 0, 1);
    let plan = open_plan(&schedule);
    let mut worker =
        LoadWorker::new(plan, &workload, chooser, target(), 1000 * MS, RandomGenerator::new(1, 0), 16);
    let (mut outbox, mut handles) = (outbox(), Vec::new());
    for _ in 0..3 {
        worker.push_due(20 * MS, &mut outbox);
        for i in 0..outbox.len() {
            let request = outbox.get(i).1;
            handles.push(GeneratedQuestion::of_message(request).unwrap().handle.to_vec());
            worker.receive(20 * MS, target(), &answer(request, 1, 9)[0], true);
        }
        worker.flushed(
            20 * MS,
            FlushReport { sent: u32::try_from(outbox.len()).unwrap(), ..FlushReport::default() },
        );
        outbox.clear();
    }
    let expected: Vec<_> = (0..20).map(|number| workload.handle(number).to_vec()).collect();
    assert_eq!(handles, expected);
}

#[test]
fn answers_from_elsewhere_are_unmatched() {
    let workload = workload();
    let schedule = schedule(1000, 1);
    let mut worker = worker(open_plan(&schedule), &workload, TIMEOUT_NS, 16);
    let mut outbox = outbox();
    worker.push_due(0, &mut outbox);
    worker.flushed(0, FlushReport { sent: 1, ..FlushReport::default() });
    let elsewhere = Peer::to(SocketAddr::from(([127, 0, 0, 1], 2642)));
    worker.receive(1, elsewhere, &answer(outbox.get(0).1, 1, 9)[0], true);
    let counts = worker.finish(0).counts;
    assert_eq!((counts.unmatched, counts.lost, counts.answered), (1, 1, 0));
}

#[test]
fn an_inconsistent_fragment_makes_the_answer_malformed() {
    let workload = workload();
    let schedule = schedule(1000, 1);
    let mut worker = worker(open_plan(&schedule), &workload, TIMEOUT_NS, 16);
    let mut outbox = outbox();
    worker.push_due(0, &mut outbox);
    worker.flushed(0, FlushReport { sent: 1, ..FlushReport::default() });
    let pieces = answer(outbox.get(0).1, 1, 1000);
    worker.receive(1, target(), &pieces[0], true);
    worker.receive(2, target(), &pieces[1][..400], true);
    worker.receive(3, target(), &pieces[2], true);
    let counts = worker.finish(0).counts;
    assert_eq!((counts.answered, counts.malformed, counts.fragment_duplicates), (1, 1, 1));
}

#[test]
fn stopping_leaves_the_rest_unsent() {
    let workload = workload();
    let schedule = schedule(1000, 100);
    let mut worker = worker(open_plan(&schedule), &workload, TIMEOUT_NS, 64);
    let mut outbox = outbox();
    worker.push_due(4 * MS, &mut outbox);
    worker.flushed(4 * MS, FlushReport { sent: 5, ..FlushReport::default() });
    worker.stop();
    worker.push_due(50 * MS, &mut outbox);
    assert_eq!(outbox.len(), 5, "a stopped worker has pushed requests");
    let counts = worker.finish(0).counts;
    assert_eq!((counts.sent, counts.behind, counts.lost), (5, 95, 5));
}

#[test]
fn a_poisson_process_is_accounted_for_as_exactly() {
    let phase = Phase::constant(20_000.0, Duration::from_millis(200));
    for seed in 0..10 {
        let schedule = Schedule::phases(&[phase], Arrivals::Poisson { seed });
        let due = schedule.share(0, 1).left();
        let (counts, expected) = Simulation::new(seed).run(open_plan(&schedule));
        assert_eq!(counts, expected, "seed {seed}");
        assert_eq!(counts.scheduled, due);
    }
}

#[test]
fn a_closed_loop_ends_after_its_requests() {
    let plan = WorkerPlan::Closed { window: 7, left: 123, until_ns: u64::MAX };
    let (counts, expected) = Simulation::new(3).run(plan);
    assert_eq!((counts.scheduled, &counts), (123, &expected));
}

#[test]
fn answers_are_learned() {
    let workload = workload();
    let plan = WorkerPlan::Closed { window: 10, left: 10, until_ns: u64::MAX };
    let chooser = Chooser::new(AccessOrder::Sequential, 100, 0, 1);
    let mut worker =
        LoadWorker::new(plan, &workload, chooser, target(), TIMEOUT_NS, RandomGenerator::new(1, 0), 64);
    let mut learned = LearnedAnswers::default();
    (0..11).for_each(|number| learned.expect(workload.handle(number)));
    worker.learn(learned);
    let mut outbox = outbox();
    worker.push_due(0, &mut outbox);
    for i in 0..9 {
        worker.receive(1, target(), &answer(outbox.get(i).1, 100, 4)[0], true);
    }
    worker.flushed(0, FlushReport { sent: 10, ..FlushReport::default() });
    assert_eq!(worker.finish(0).learned.unwrap().counts(), (9, 2));
}
