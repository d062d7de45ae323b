//! Counters for every datagram, by reason: one set of plain numbers for each worker.
//!
//! A set has one writer, so counting is a load and a store; readers add the sets up.
//!
//! Every datagram is in exactly one of: `requests_answered`, `requests_under_way`,
//! `fragments_kept`, `dropped_error_reply`, `dropped_too_short`, the four counters of dropped
//! fragments, `dropped_rate_limited`, and `dropped_bug`. Their sum is `datagrams_received`.
//!
//! Every connection is in `tcp_accepted` or one of `tcp_refused_*`, and every accepted connection
//! that has been closed is in one of `tcp_closed_*`. Every message over a connection is in
//! `tcp_requests_answered`, `tcp_requests_under_way` or one of `tcp_dropped_*`.

use crate::latency::{AnswerTimes, Histogram};
use crossbeam_utils::CachePadded;
use handle_daemon::metrics::{MetricKind, MetricRow, MetricSeries};
use handle_proto::ResponseCode;
use handle_resolver::RefusalReason;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread counts and others read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`. Only the owner of the set may call this.
    pub fn add(&self, count: u64) {
        self.0.store(self.get() + count, Ordering::Relaxed);
    }

    /// Replaces the number by one that is counted elsewhere.
    pub fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }

    /// The number now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Transport of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// In one or several datagrams.
    Udp,
    /// Over a connection.
    Tcp,
}

impl Transport {
    /// All transports; the position of each is its number.
    pub const ALL: [Self; 2] = [Self::Udp, Self::Tcp];

    /// The name in labels and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }
}

/// The path that produced an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerPath {
    /// The worker that received the request answered it.
    Worker,
    /// The slow path produced it, and the worker sent it.
    Slow,
}

impl AnswerPath {
    /// All paths; the position of each is its number.
    pub const ALL: [Self; 2] = [Self::Worker, Self::Slow];

    /// The name in labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Slow => "slow",
        }
    }
}

/// The names of a counter in `stats` and in the metrics: a row of [`Counters::TABLE`].
#[derive(Clone, Copy, Debug)]
pub struct CounterRow {
    /// Its name in `stats`.
    pub name: &'static str,
    /// Help text. If several rows belong to one metric, the text before the colon applies to all of
    /// them.
    pub help: &'static str,
    /// The name of the metric, without the suffix `_total`.
    pub metric: &'static str,
    /// Whether the counter only grows.
    pub kind: MetricKind,
    /// The label that distinguishes the counters of one metric, and its value.
    pub label: Option<(&'static str, &'static str)>,
}

macro_rules! row {
    ($name:ident, $help:expr) => { row!($name, $help, counter, stringify!($name), ) };
    ($name:ident, $help:expr, $kind:ident, $metric:expr, $($label:ident = $value:literal)?) => {
        CounterRow {
            name: stringify!($name),
            help: $help.trim_ascii(),
            metric: concat!("handled_", $metric),
            kind: handle_daemon::metric_kind!($kind),
            label: row!(@label $($label = $value)?),
        }
    };
    (@label $label:ident = $value:literal) => { Some((stringify!($label), $value)) };
    (@label) => { None };
}

/// The table of everything a worker counts, from which `stats` and the metrics are made.
///
/// `name` alone is `name` in `stats` and `handled_name_total` among the metrics. The part after
/// `=>` names another metric, its kind and its label. In a doc comment of the form `What: which`,
/// the part before the colon is the help of the metric, and the other that of the label.
macro_rules! counters {
    ($(
        $(#[doc = $doc:literal])*
        $name:ident $(=> $kind:ident $metric:literal $([$label:ident = $value:literal])?)?,
    )*) => {
        /// Everything a worker counts.
        #[derive(Debug)]
        pub struct Counters {
            $($(#[doc = $doc])* pub $name: Counter,)*
            /// Answer times, by transport and path.
            answer_times: [[Histogram; AnswerPath::ALL.len()]; Transport::ALL.len()],
            /// Errors, by reason in the order of [`RefusalReason::ALL`].
            refused: [Counter; RefusalReason::ALL.len()],
            /// Replies by transport, and by response code in the order of [`ResponseCode::KNOWN`].
            replies: [[Counter; ResponseCode::KNOWN.len()]; Transport::ALL.len()],
        }

        impl Default for Counters {
            fn default() -> Self {
                Self {
                    $($name: Counter::default(),)*
                    answer_times: Default::default(),
                    refused: std::array::from_fn(|_| Counter::default()),
                    replies: std::array::from_fn(|_| std::array::from_fn(|_| Counter::default())),
                }
            }
        }

        impl Counters {
            /// The names of each plain counter.
            pub const TABLE: &'static [CounterRow] = &[$(
                row!($name, concat!($($doc),*) $(, $kind, $metric, $($label = $value)?)?),
            )*];

            /// The plain counters, in the order of [`TABLE`](Self::TABLE).
            #[must_use]
            pub fn values(&self) -> [u64; Self::TABLE.len()] {
                [$(self.$name.get(),)*]
            }
        }
    };
}

counters! {
    /// Datagrams received, including each datagram of a train.
    datagrams_received => counter "datagrams_received",
    /// Trains received: two datagrams or more in one buffer.
    trains_received,
    /// Datagrams and trains that were longer than a receive buffer and were cut.
    received_truncated,
    /// Bytes received: over UDP.
    bytes_received => counter "bytes_received" [transport = "udp"],
    /// Requests answered: over UDP, each in a datagram or completed by it.
    requests_answered => counter "requests_answered" [transport = "udp"],
    /// Requests handed to the slow path, for a signature or an identity.
    requests_deferred,
    /// Answers with the MAC of a session that the worker made itself.
    answers_with_mac,
    /// Requests on the slow path: over UDP.
    requests_under_way => gauge "requests_under_way" [transport = "udp"],
    /// Datagrams handed to the kernel, including each datagram of a train.
    datagrams_sent,
    /// Trains handed to the kernel: two datagrams or more in one buffer.
    trains_sent,
    /// Trains that the kernel or a device refused; their datagrams were sent individually.
    trains_refused,
    /// Bytes of answers, including envelopes: over UDP.
    bytes_sent => counter "bytes_sent" [transport = "udp"],
    /// Turns of the worker: returns from a wait. There are few while the worker is idle.
    turns,
    /// Turns that received a datagram; datagrams divided by batches is the average batch length.
    batches,
    /// Fragments kept until the rest of their message arrives.
    fragments_kept,
    /// Incomplete messages in fragments that expired.
    fragmented_expired,
    /// Received datagrams without an answer: an error reply to an unreadable message.
    dropped_error_reply => counter "datagrams_dropped" [reason = "error_reply"],
    /// Received datagrams without an answer: shorter than an envelope.
    dropped_too_short => counter "datagrams_dropped" [reason = "too_short"],
    /// Received datagrams without an answer: fragments whose numbers or lengths contradict each
    /// other.
    dropped_fragment_invalid => counter "datagrams_dropped" [reason = "fragment_invalid"],
    /// Received datagrams without an answer: fragments of a message that is longer than a request
    /// may be.
    dropped_fragment_too_long => counter "datagrams_dropped" [reason = "fragment_too_long"],
    /// Received datagrams without an answer: no capacity for another fragmented message.
    dropped_fragment_buffer_full => counter "datagrams_dropped" [reason = "fragment_buffer_full"],
    /// Received datagrams without an answer: a copy of a stored fragment.
    dropped_fragment_repeated => counter "datagrams_dropped" [reason = "fragment_repeated"],
    /// Received datagrams without an answer: the sender, or its network, has reached its limit.
    dropped_rate_limited => counter "datagrams_dropped" [reason = "rate_limited"],
    /// Limited answers that were replaced by a short error.
    rate_limit_slipped,
    /// Answers that would have been limited without the dry run.
    rate_limit_dry_run,
    /// Answers to addresses that are not limited.
    rate_limit_exempt,
    /// Received datagrams without an answer: answering failed because of a bug.
    dropped_bug => counter "datagrams_dropped" [reason = "bug"],
    /// Answer datagrams that the kernel did not accept: it refused to send them.
    dropped_send_refused => counter "answer_datagrams_dropped" [reason = "send_refused"],
    /// Answer datagrams that the kernel did not accept: the send queue stayed full.
    dropped_send_full => counter "answer_datagrams_dropped" [reason = "send_full"],
    /// Lines of the query log dropped before the writer: because of `lines_per_second`.
    query_log_dropped_rate => counter "query_log_dropped" [reason = "rate"],
    /// Lines of the query log dropped before the writer: its queue was full.
    query_log_dropped_full => counter "query_log_dropped" [reason = "full"],
    /// Lines handed to the writer of the query log.
    query_log_queued,
    /// Datagrams that the kernel dropped because the queue of the socket was full.
    dropped_by_kernel => counter "kernel_drops",
    /// Bytes received: over TCP.
    tcp_bytes_received => counter "bytes_received" [transport = "tcp"],
    /// Requests answered: over TCP.
    tcp_requests_answered => counter "requests_answered" [transport = "tcp"],
    /// Requests on the slow path: over TCP.
    tcp_requests_under_way => gauge "requests_under_way" [transport = "tcp"],
    /// Bytes of answers, including envelopes: over TCP.
    tcp_bytes_sent => counter "bytes_sent" [transport = "tcp"],
    /// Messages over TCP without an answer: an error reply to an unreadable message.
    tcp_dropped_error_reply => counter "tcp_messages_dropped" [reason = "error_reply"],
    /// Messages over TCP without an answer: answering failed because of a bug.
    tcp_dropped_bug => counter "tcp_messages_dropped" [reason = "bug"],
    /// Error messages sent over TCP in response to data that is not a request.
    tcp_notices,
    /// Answers of the slow path whose connection was already closed.
    tcp_replies_late,
    /// Open connections.
    tcp_connections => gauge "tcp_connections",
    /// Bytes kept of incomplete requests; see `tcp.input_bytes`.
    tcp_input_bytes => gauge "tcp_input_bytes",
    /// Bytes kept of unread answers; see `tcp.output_bytes`.
    tcp_output_bytes => gauge "tcp_output_bytes",
    /// Connections accepted.
    tcp_accepted,
    /// Connections refused: no slot is left.
    tcp_refused_full => counter "tcp_refused" [reason = "full"],
    /// Connections refused: too many from this source.
    tcp_refused_source => counter "tcp_refused" [reason = "source"],
    /// Connections refused: the server is stopping.
    tcp_refused_draining => counter "tcp_refused" [reason = "draining"],
    /// Connections closed: the last request is answered.
    tcp_closed_done => counter "tcp_closed" [reason = "done"],
    /// Connections closed: the other side ended between requests.
    tcp_closed_ended => counter "tcp_closed" [reason = "ended"],
    /// Connections closed: the other side ended within a request.
    tcp_closed_cut_off => counter "tcp_closed" [reason = "cut_off"],
    /// Connections closed: they failed.
    tcp_closed_broken => counter "tcp_closed" [reason = "broken"],
    /// Connections closed: the received bytes are not a request, or are too long.
    tcp_closed_unreadable => counter "tcp_closed" [reason = "unreadable"],
    /// Connections closed: no request arrived in time.
    tcp_closed_idle => counter "tcp_closed" [reason = "idle"],
    /// Connections closed: the rest of a request did not arrive in time.
    tcp_closed_half_request => counter "tcp_closed" [reason = "half_request"],
    /// Connections closed: answers were not read in time.
    tcp_closed_slow_reader => counter "tcp_closed" [reason = "slow_reader"],
    /// Connections closed: idle when their slot was needed.
    tcp_closed_evicted => counter "tcp_closed" [reason = "evicted"],
    /// Connections closed: the limit of buffered bytes is reached.
    tcp_closed_buffer_full => counter "tcp_closed" [reason = "buffer_full"],
    /// Connections closed: the server is stopping.
    tcp_closed_drained => counter "tcp_closed" [reason = "drained"],
}

impl Counters {
    /// The metrics of [`TABLE`](Self::TABLE), each with the positions of its rows.
    #[must_use]
    pub fn metric_rows() -> Vec<(MetricRow, Vec<usize>)> {
        let mut metrics: Vec<(MetricRow, Vec<usize>)> = Vec::new();
        for (at, row) in Self::TABLE.iter().enumerate() {
            let (help, value) = match (row.label, row.help.split_once(": ")) {
                (Some((_, value)), Some((help, meaning))) => (format!("{help}."), Some((value, meaning))),
                _ => (row.help.to_owned(), None),
            };
            let metric_at = metrics.iter().position(|(metric, _)| metric.name == row.metric);
            let metric_at = metric_at.unwrap_or_else(|| {
                let labels: Vec<_> = row.label.map(|(name, _)| name).into_iter().chain(["shard"]).collect();
                metrics.push((MetricRow::new(row.kind, row.metric, &labels, &help), Vec::new()));
                metrics.len() - 1
            });
            metrics[metric_at].0.values.extend(value);
            metrics[metric_at].1.push(at);
        }
        metrics
    }
}

/// Adds the counts to the object `group`.
fn add_named<'c>(
    sums: &mut Map<String, Value>,
    group: &str,
    counters: impl Iterator<Item = (String, &'c Counter)>,
) {
    let group = sums.entry(group).or_insert_with(|| json!({}));
    let Value::Object(group) = group else { return };
    for (name, counter) in counters.filter(|(_, counter)| counter.get() > 0) {
        add(group, &name, counter.get());
    }
}

fn add(sums: &mut Map<String, Value>, name: &str, count: u64) {
    let sum = sums.get(name).and_then(Value::as_u64).unwrap_or(0) + count;
    sums.insert(name.to_owned(), sum.into());
}

impl Counters {
    /// Adds all counters to an object of sums.
    fn add_to(&self, sums: &mut Map<String, Value>) {
        for (row, value) in Self::TABLE.iter().zip(self.values()) {
            add(sums, row.name, value);
        }
        let codes = || ResponseCode::KNOWN.iter().map(|code| code.0.to_string());
        for replies in &self.replies {
            add_named(sums, "replies", codes().zip(replies));
        }
        let reasons = RefusalReason::ALL.iter().map(|refused| refused.name().to_owned());
        add_named(sums, "refused", reasons.zip(&self.refused));
    }

    /// Answer times over `transport` by this path.
    #[must_use]
    pub const fn answer_times(&self, transport: Transport, way: AnswerPath) -> &Histogram {
        &self.answer_times[transport as usize][way as usize]
    }

    /// Counts a reply by its code, and an error by its reason.
    pub fn count_reply(&self, transport: Transport, code: ResponseCode, refused: Option<RefusalReason>) {
        if let Some(at) = CODE_AT.get(usize::try_from(code.0).unwrap_or(usize::MAX)).copied() {
            self.replies[transport as usize][usize::from(at)].add(1);
        }
        if let Some(refused) = refused {
            self.refused[refused as usize].add(1);
        }
    }
}

/// Answer times in `sets`, by transport and path.
fn times<'c>(sets: impl Iterator<Item = &'c Counters> + Clone) -> Value {
    let times = |transport, way: AnswerPath| {
        let times = AnswerTimes::of(sets.clone().map(|counters| counters.answer_times(transport, way)));
        (way.name().to_owned(), times.to_json())
    };
    let by_way = |transport: Transport| {
        (
            transport.name().to_owned(),
            AnswerPath::ALL.into_iter().map(|way| times(transport, way)).collect::<Value>(),
        )
    };
    Transport::ALL.into_iter().map(by_way).collect()
}

/// Position in [`ResponseCode::KNOWN`] of each code; 0 for those without a name.
const CODE_AT: [u8; 512] = {
    let mut at = [0; 512];
    let mut i = 0;
    while i < ResponseCode::KNOWN.len() {
        #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "codes are 0 to 505")]
        {
            at[ResponseCode::KNOWN[i].0 as usize] = i as u8;
        }
        i += 1;
    }
    at
};

/// The sets of all workers.
#[derive(Clone, Debug)]
pub struct CounterShards(Arc<[CachePadded<Counters>]>);

impl CounterShards {
    /// Sets for `workers_count` workers, all zero.
    #[must_use]
    pub fn new(workers_count: usize) -> Self {
        Self((0..workers_count).map(|_| CachePadded::default()).collect())
    }

    /// The set of worker number `at`.
    #[must_use]
    pub fn shard(&self, at: usize) -> &Counters {
        &self.0[at]
    }

    /// The totals and each worker's counters.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut total = Map::new();
        let mut shards = Vec::new();
        for counters in self.0.iter() {
            counters.add_to(&mut total);
            let mut shard = Map::new();
            counters.add_to(&mut shard);
            shard.insert("answer_times".to_owned(), times([&**counters].into_iter()));
            shards.push(Value::Object(shard));
        }
        total.insert("answer_times".to_owned(), times(self.iter()));
        json!({ "total": total, "shards": shards })
    }

    /// Each worker's set, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Counters> + Clone {
        self.0.iter().map(|counters| &**counters)
    }

    /// Replies over `transport` by response code, of all workers, in the order of
    /// [`ResponseCode::KNOWN`].
    pub fn replies(&self, transport: Transport) -> impl Iterator<Item = (ResponseCode, u64)> {
        let count = move |at: usize| self.iter().map(|set| set.replies[transport as usize][at].get()).sum();
        ResponseCode::KNOWN.iter().enumerate().map(move |(at, &code)| (code, count(at)))
    }

    /// Errors by reason, of all workers, in the order of [`RefusalReason::ALL`].
    pub fn refused(&self) -> impl Iterator<Item = (RefusalReason, u64)> {
        let count = |at: usize| self.iter().map(|set| set.refused[at].get()).sum();
        RefusalReason::ALL.iter().enumerate().map(move |(at, &refused)| (refused, count(at)))
    }

    /// The metrics of the plain counters, with a series for each counter and worker.
    #[must_use]
    pub fn metrics(&self) -> Vec<(MetricRow, MetricSeries)> {
        let values: Vec<_> = self.iter().map(Counters::values).collect();
        let metric = |(row, counters): (MetricRow, Vec<usize>)| {
            let series = counters.iter().flat_map(|&at| {
                let label = Counters::TABLE[at].label.map(|(_, value)| value.to_owned());
                values.iter().enumerate().map(move |(shard, values)| {
                    let labels = label.iter().cloned().chain([shard.to_string()]);
                    (labels.collect::<Vec<_>>(), values[at])
                })
            });
            (row, MetricSeries::with_labels(series))
        };
        Counters::metric_rows().into_iter().map(metric).collect()
    }

    /// The sum of one counter over all workers.
    pub fn sum(&self, counter: impl Fn(&Counters) -> &Counter) -> u64 {
        self.0.iter().map(|counters| counter(counters).get()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_with_a_name_has_a_counter_of_its_own() {
        let shards = CounterShards::new(2);
        for (at, &code) in ResponseCode::KNOWN.iter().enumerate() {
            shards.shard(at % 2).count_reply(Transport::ALL[at % 2], code, None);
        }
        let json = shards.to_json();
        for code in ResponseCode::KNOWN {
            assert_eq!(json["total"]["replies"][code.0.to_string()], 1, "{code}");
        }
        let replied: [u64; 2] =
            Transport::ALL.map(|transport| shards.replies(transport).map(|(_, count)| count).sum());
        let odd = ResponseCode::KNOWN.len() as u64 / 2;
        assert_eq!(replied, [ResponseCode::KNOWN.len() as u64 - odd, odd]);
        for &refused in RefusalReason::ALL {
            shards.shard(1).count_reply(Transport::Udp, refused.code(), Some(refused));
        }
        let json = shards.to_json();
        for refused in RefusalReason::ALL {
            assert_eq!(json["total"]["refused"][refused.name()], 1, "{refused:?}");
        }
    }

    #[test]
    fn every_counter_is_one_series_of_one_kind_of_metric() {
        for (at, row) in Counters::TABLE.iter().enumerate() {
            assert!(!row.help.is_empty() && row.help.ends_with('.'), "{row:?} says what is counted");
            let what = |row: &CounterRow| row.help.split_once(": ").map(|(what, _)| what);
            for other in Counters::TABLE[at + 1..].iter().filter(|other| other.metric == row.metric) {
                assert_ne!(other.label, row.label, "{} and {}", row.name, other.name);
                assert_eq!(other.kind, row.kind, "{} and {}", row.name, other.name);
                let name = |row: &CounterRow| row.label.map(|(name, _)| name);
                assert!(name(row).is_some() && name(other) == name(row), "{} and {}", row.name, other.name);
                assert!(what(row).is_some() && what(other) == what(row), "{} and {}", row.name, other.name);
            }
        }
        let shards = CounterShards::new(2);
        shards.shard(1).datagrams_received.add(3);
        let json = shards.to_json();
        assert_eq!(
            (&json["total"]["datagrams_received"], &json["shards"][0]["datagrams_received"]),
            (&3.into(), &0.into())
        );
        assert_eq!(shards.iter().map(|set| set.values()[0]).collect::<Vec<_>>(), [0, 3]);
    }
}
