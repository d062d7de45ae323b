//! The results of a run as data with a schema version. The text table is in `table`.

use std::sync::Arc;
use std::time::Duration;

use handle_proto::ResponseCode;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::error::Error;
use crate::judge::assertion::{Assertion, AssertionResult};
use crate::judge::followed_set::FollowReport;
use crate::judge::verify::Mismatch;
use crate::load::job::RunJob;
use crate::load::options::{LoadPattern, NameOptions, ReferenceData, RunOptions};
use crate::load::pacing::ScheduleAccuracy;
use crate::load::stream::ConnectionCounts;
use crate::load::total::RunTotal;
use crate::load::transport::{Protocol, StreamTransport, Streams};
use crate::show::environment::Environment;
use crate::show::human::HumanDuration;
use crate::show::latency::ResponseTimes;
use crate::show::limit_report::LimitReport;
use crate::show::steps::PhaseStep;

/// Name and version of the schema of [`RunReport`]. The number changes when the meaning of a member
/// changes.
pub const RUN_SCHEMA: &str = "handle-loadgen/run/1";

/// Maximum share of unsent requests in a valid run; above it, the load was not the requested one.
/// The same bound applies to answers dropped at the generator's socket, whose loss may not be the
/// server's.
pub const UNSENT_SHARE_MAX: f64 = 0.001;

/// Maximum 99th percentile of the schedule error in a valid run.
pub const SCHEDULE_ERROR_P99_NS_MAX: u64 = 10_000_000;

/// The results of a run. Times ending in `_ns` are nanoseconds.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct RunReport {
    /// [`RUN_SCHEMA`].
    pub schema: &'static str,
    /// Due time of the first request, Unix milliseconds.
    pub started_unix_ms: u64,
    /// The machine and the program.
    pub environment: Environment,
    /// The setting of the run.
    pub setting: ReportSetting,
    /// The accounts of requests and answers.
    pub accounts: Accounts,
    /// Requests sent per second, over the time in which requests were sent; in a closed loop up to
    /// the last answer in time.
    pub sent_per_s: f64,
    /// Answers in time per second, over the same time.
    pub answered_per_s: f64,
    /// Times from due time to answer, for answers in time.
    pub response_ns: ResponseTimes,
    /// Times from send time to answer, for answers in time.
    pub service_ns: ResponseTimes,
    /// Times from due time to send time; empty in a closed loop.
    pub schedule_error_ns: ResponseTimes,
    /// Histogram of the schedule errors.
    pub schedule_error_histogram: Vec<HistogramBucket>,
    /// How well the schedule was kept; absent in a closed loop.
    pub pacing: Option<ScheduleAccuracy>,
    /// The phases of a schedule with several.
    pub steps: Vec<PhaseStep>,
    /// Percentile curve of the response times.
    pub response_curve: Vec<PercentilePoint>,
    /// Percentile curve of the service times.
    pub service_curve: Vec<PercentilePoint>,
    /// Histogram of the response times.
    pub response_histogram: Vec<HistogramBucket>,
    /// The connections, for transports with connections.
    pub connections: Option<ConnectionCounts>,
    /// Why the first of the connections that failed did.
    pub first_failure: Option<String>,
    /// Answers over HTTP, in time or late, by status.
    pub statuses: Vec<StatusCount>,
    /// The results of verification.
    pub verification: Option<VerificationReport>,
    /// The results of each second.
    pub seconds: Vec<SecondCounts>,
    /// The result as a share of a measured limit, if that was given.
    pub share: Option<ScheduleShare>,
    /// The assertions and their results.
    pub assertions: Vec<AssertionResult>,
    /// Why the run is invalid; empty if it is valid.
    pub invalid: Vec<String>,
}

/// The setting of a run.
#[derive(Clone, Debug, Serialize)]
pub struct ReportSetting {
    /// The server.
    pub target: String,
    /// `udp`, `udp-trains`, `tcp`, `http`, `http-json` or `http-redirect`.
    pub transport: String,
    /// How connections are used, for transports with connections.
    pub streams: Option<StreamSetting>,
    /// `io_uring`, `portable` or, for connections, `epoll`.
    pub datapath: String,
    /// `open loop` or `closed loop`.
    pub model: &'static str,
    /// Requests per second of an open loop with a constant rate.
    pub rate: Option<u64>,
    /// How the rate changes, or the source of the times.
    pub schedule: Option<String>,
    /// `even` or `poisson`; absent in a closed loop.
    pub arrivals: Option<&'static str>,
    /// Pending requests of each thread in a closed loop.
    pub window: Option<usize>,
    /// Duration in seconds.
    pub duration_s: f64,
    /// Timeout in milliseconds.
    pub timeout_ms: f64,
    /// The seed for the choice of handles.
    pub seed: u64,
    /// Threads.
    pub threads: usize,
    /// Number of source addresses; 0 if the choice was left to the system.
    pub sources: u16,
    /// How threads waited for the next request: `auto`, `spin` or `sleep`; absent in a closed loop.
    pub idle: Option<String>,
    /// Cores assigned to threads in turn.
    pub cores: Vec<usize>,
    /// The source of the handles.
    pub names: String,
    /// The order in which handles were requested.
    pub pattern: String,
    /// The forms of requests, with weights; `recorded` for recorded requests.
    pub forms: Vec<String>,
    /// Number of handles to choose from.
    pub handles: usize,
    /// Number of handles in the source.
    pub handles_in_source: u64,
    /// Number of handles left out because their request does not fit in one datagram.
    pub handles_too_long: u64,
    /// Number of handles left out because their prefix is not homed, as the record of a prefix that
    /// the registry has.
    pub handles_not_homed: u64,
    /// Packets or lines of a recording that are not requests; absent without a recording.
    pub skipped: Option<u64>,
}

/// How connections are used.
#[derive(Clone, Debug, Serialize)]
pub struct StreamSetting {
    /// Maximum number of connections of each thread.
    pub connections: usize,
    /// Maximum number of pending requests on a connection.
    pub pipeline: usize,
    /// Maximum number of requests on a connection; 0 for no limit.
    pub requests: u32,
    /// The version of HTTP, if that is used.
    pub http_version: Option<String>,
    /// What the certificate of the server had to prove; absent without TLS.
    pub tls: Option<String>,
}

/// The number of answers with an HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StatusCount {
    /// The status.
    pub status: u16,
    /// Number of answers.
    pub count: u64,
}

/// A point of a percentile curve.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PercentilePoint {
    /// The share of answers, from 0 to 1.
    pub share: f64,
    /// No answer of this share took longer.
    pub ns: u64,
}

/// A bucket of answer times.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct HistogramBucket {
    /// Lower end.
    pub from_ns: u64,
    /// Upper end.
    pub to_ns: u64,
    /// Number of answers.
    pub count: u64,
}

/// Every request and every answer, counted once.
///
/// `scheduled = sent + not_sent`, `not_sent = behind_schedule + refused + blocked`,
/// `sent = answered + late + duplicate_only + lost`,
/// `answered =` sum of `codes` `+ malformed + truncated`.
#[derive(Clone, Debug, Serialize)]
pub struct Accounts {
    /// Requests of the schedule; in a closed loop, those handed to the kernel.
    pub scheduled: u64,
    /// Requests accepted by the kernel.
    pub sent: u64,
    /// Requests that were due and not sent.
    pub not_sent: u64,
    /// Unsent requests that were not handed to the kernel before the end of the run.
    pub behind_schedule: u64,
    /// Unsent requests that the kernel refused.
    pub refused: u64,
    /// Unsent requests that were dropped because the send queue stayed full.
    pub blocked: u64,
    /// Requests with an answer within the timeout.
    pub answered: u64,
    /// Requests with an answer after the timeout.
    pub late: u64,
    /// Requests with an incomplete answer, of which repeated pieces arrived instead of the missing
    /// ones.
    pub duplicate_only: u64,
    /// Requests without an answer.
    pub lost: u64,
    /// Answers in time, by response code.
    pub codes: Vec<CodeCount>,
    /// Answers in time that cannot be decoded.
    pub malformed: u64,
    /// Answers in time whose end is missing.
    pub truncated: u64,
    /// Answers to requests that had been answered before.
    pub duplicates: u64,
    /// Datagrams that answer no request.
    pub unmatched: u64,
    /// Datagrams received, of any kind.
    pub datagrams: u64,
    /// Fragments received again.
    pub fragment_duplicates: u64,
    /// Incomplete answers discarded to make room for others.
    pub fragments_dropped: u64,
    /// Datagrams dropped by the kernel at the generator's socket: a loss that is not the server's.
    pub kernel_drops: u64,
}

/// The number of answers with a response code.
#[derive(Clone, Debug, Serialize)]
pub struct CodeCount {
    /// The code.
    pub code: i32,
    /// Its name in the protocol.
    pub name: String,
    /// Number of answers.
    pub count: u64,
}

/// How answers, in time or late, compare with the reference data.
#[derive(Clone, Debug, Serialize)]
pub struct VerificationReport {
    /// The reference data: a snapshot, records, or the first pass.
    pub truth: String,
    /// Whether requested signatures were checked.
    pub signatures: bool,
    /// Answers that match.
    pub verified: u64,
    /// Answers that differ.
    pub mismatched: u64,
    /// Answers that cannot be judged, because a set was published and replaced unseen.
    pub undecided: u64,
    /// Answers that were not compared, because only a sample is.
    pub unjudged: u64,
    /// How long after its replacement a set was accepted.
    pub staleness_allowed_ms: f64,
    /// The largest accepted staleness.
    pub staleness_max_ms: f64,
    /// Sets that were published and read, including the first.
    pub generations: u64,
    /// Sets that were published and replaced unseen.
    pub generations_missed: u64,
    /// The first mismatches.
    pub mismatches: Vec<Mismatch>,
}

/// The results of one second.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SecondCounts {
    /// Time from the start to its end.
    pub elapsed_s: f64,
    /// Requests sent in it.
    pub sent: u64,
    /// Answers in time.
    pub answered: u64,
    /// The same as rates.
    pub sent_per_s: f64,
    /// The same as rates.
    pub answered_per_s: f64,
    /// Requests given up since the start, less those answered since.
    pub lost_so_far: i64,
    /// Late answers.
    pub late: u64,
    /// Wrong answers.
    pub mismatched: u64,
    /// Response times, to two digits.
    pub response_p50_ns: u64,
    /// Response times, to two digits.
    pub response_p99_ns: u64,
    /// Response times, to two digits.
    pub response_max_ns: u64,
    /// Longest lag of a request behind the schedule.
    pub lag_max_ns: u64,
    /// Response codes of answers in time since the start; only during the run.
    #[serde(skip)]
    pub codes: Vec<(i32, u64)>,
    /// Response times, to two digits; only during the run.
    #[serde(skip)]
    pub histogram: Option<Arc<Histogram<u32>>>,
    /// Its length: the last one ends with the last answers.
    #[serde(skip)]
    pub len_s: f64,
    /// A moment before the first request, or the wait for the last answers: counted in the sums,
    /// but not shown.
    #[serde(skip)]
    pub is_rest: bool,
}

impl SecondCounts {
    /// A moment before the first request.
    pub(crate) fn none() -> Self {
        Self { is_rest: true, ..Self::default() }
    }
}

/// A result as a share of the limit of the machine.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ScheduleShare {
    /// Answers per second measured by `handle-loadgen limit`.
    pub limit_answers_per_s: f64,
    /// Answers per second of the run, as a share of that.
    pub share: f64,
}

/// The observations of a run besides its counts.
#[derive(Debug)]
pub(crate) struct RunObservations {
    pub(crate) path: String,
    pub(crate) clock: Clock,
    pub(crate) followed: Option<FollowReport>,
    pub(crate) stopped: bool,
    pub(crate) seconds: Vec<SecondCounts>,
}

impl RunReport {
    pub(crate) fn new(options: &RunOptions, job: &RunJob, total: &RunTotal, seen: &RunObservations) -> Self {
        // In a closed loop up to the last answer in time: with few pending requests the time would
        // otherwise be almost nothing.
        let sending_s = match &job.schedule {
            // Requests sent after the end were due before it.
            Some(schedule) if !seen.stopped => Duration::from_nanos(schedule.end_ns()).as_secs_f64(),
            _ => total.sending_ns as f64 / 1e9,
        }
        .max(1e-9);
        let verification = options.verify.as_ref().map(|verify| VerificationReport {
            truth: match &verify.truth {
                ReferenceData::Snapshot(dir) => format!("snapshot {}", dir.display()),
                ReferenceData::Records(path) => format!("records {}", path.display()),
                ReferenceData::FirstPass => "first pass".to_owned(),
            },
            signatures: verify.key.is_some(),
            verified: total.counts.verified,
            mismatched: total.counts.mismatched,
            undecided: total.counts.undecided,
            unjudged: total.counts.unjudged,
            staleness_allowed_ms: verify.staleness_max.as_secs_f64() * 1e3,
            staleness_max_ms: total.staleness_max_ns as f64 / 1e6,
            generations: seen.followed.map_or(0, |followed| followed.opened),
            generations_missed: seen.followed.map_or(0, |followed| followed.missed),
            mismatches: total.mismatches.clone(),
        });
        let mut report = Self {
            schema: RUN_SCHEMA,
            started_unix_ms: seen.clock.start_unix_ms(),
            environment: Environment::read(),
            setting: ReportSetting::new(options, job, &seen.path),
            accounts: Accounts::new(total),
            sent_per_s: total.counts.sent as f64 / sending_s,
            answered_per_s: total.counts.answered as f64 / sending_s,
            response_ns: ResponseTimes::of(&total.latency.response),
            service_ns: ResponseTimes::of(&total.latency.service),
            schedule_error_ns: ResponseTimes::of(&total.latency.schedule_error),
            schedule_error_histogram: buckets(&total.latency.schedule_error),
            pacing: total.pacing.accuracy(),
            steps: match &options.load {
                LoadPattern::Phases(phases) => total.steps.summary(phases),
                _ => Vec::new(),
            },
            response_curve: curve(&total.latency.response),
            service_curve: curve(&total.latency.service),
            response_histogram: buckets(&total.latency.response),
            connections: total.streams.as_ref().map(|streams| streams.counts),
            first_failure: total.streams.as_ref().and_then(|streams| streams.first_failure.clone()),
            statuses: total.streams.as_ref().map_or_else(Vec::new, |streams| {
                streams.statuses.iter().map(|(&status, &count)| StatusCount { status, count }).collect()
            }),
            verification,
            seconds: seen.seconds.clone(),
            share: None,
            assertions: Vec::new(),
            invalid: Vec::new(),
        };
        report.invalid = report.reasons_against(seen.stopped);
        report
    }

    /// Whether the run is valid: the load was as requested, and no verified answer was wrong.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.invalid.is_empty()
    }

    /// Whether the schedule was kept: due requests were sent, and on time.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        let accounts = &self.accounts;
        let unsent = accounts.not_sent as f64 > UNSENT_SHARE_MAX * accounts.scheduled as f64;
        let dropped = accounts.kernel_drops as f64 > UNSENT_SHARE_MAX * accounts.sent as f64;
        !unsent && !dropped && self.schedule_error_ns.p99 <= SCHEDULE_ERROR_P99_NS_MAX
    }

    /// Adds the result as a share of `limit`.
    pub fn share_of(&mut self, limit: &LimitReport) {
        let limit_answers_per_s = limit.answers_per_s;
        let share = self.answered_per_s / limit_answers_per_s.max(f64::MIN_POSITIVE);
        self.share = Some(ScheduleShare { limit_answers_per_s, share });
    }

    /// Judges the assertions about the run; returns whether all hold.
    pub fn judge(&mut self, assertions: &[Assertion]) -> bool {
        self.assertions = assertions.iter().map(|assertion| assertion.judge(self)).collect();
        self.assertions.iter().all(|judged| judged.holds)
    }

    fn reasons_against(&self, stopped: bool) -> Vec<String> {
        let mut reasons = Vec::new();
        let accounts = &self.accounts;
        let (not_sent, scheduled) = (accounts.not_sent, accounts.scheduled);
        if stopped {
            reasons.push("stopped early".to_owned());
        }
        // The rest of a stopped run was not due.
        if !stopped && not_sent as f64 > UNSENT_SHARE_MAX * scheduled as f64 {
            let hint = "the generator cannot keep the schedule: lower the rate or add threads";
            reasons.push(format!("requests not sent: {not_sent} of {scheduled}; {hint}"));
        }
        let lag_ns = self.schedule_error_ns.p99;
        if lag_ns > SCHEDULE_ERROR_P99_NS_MAX {
            let lag = HumanDuration(lag_ns);
            reasons.push(format!("1 % of the requests were sent {lag} or more behind schedule"));
        }
        if accounts.kernel_drops as f64 > UNSENT_SHARE_MAX * accounts.sent as f64 {
            let hint = "the loss may not be the server's (sysctl net.core.rmem_max limits the queue)";
            reasons.push(format!(
                "answers dropped at the socket of the generator: {}; {hint}",
                accounts.kernel_drops
            ));
        }
        if accounts.sent > 0 && accounts.answered + accounts.late == 0 {
            let ReportSetting { target, transport, .. } = self.setting.clone();
            let failure = self.first_failure.as_ref().map_or_else(String::new, |why| format!(": {why}"));
            reasons.push(format!("{}{failure}", Error::NoAnswer { target, transport }));
        }
        if let Some(verification) = &self.verification {
            let answers = accounts.answered + accounts.late;
            if verification.mismatched > 0 {
                reasons.push(format!("wrong answers: {} of {answers}", verification.mismatched));
            }
            if verification.undecided > 0 {
                let reason = "answers that cannot be judged";
                reasons.push(format!("{reason}: {} of {answers}", verification.undecided));
            }
        }
        reasons
    }
}

/// Points for a plot whose axis extends the slowest answers: ten for each further nine of the
/// share.
fn curve(histogram: &Histogram<u64>) -> Vec<PercentilePoint> {
    if histogram.is_empty() {
        return Vec::new();
    }
    let (mut points, mut above, least) = (Vec::new(), 1.0, 1.0 / histogram.len() as f64);
    while above > least {
        let share = 1.0 - above;
        points.push(PercentilePoint { share, ns: histogram.value_at_quantile(share).min(histogram.max()) });
        above *= 10f64.powf(-0.1);
    }
    points.push(PercentilePoint { share: 1.0, ns: histogram.max() });
    points
}

/// Buckets, each a quarter longer than the one before.
fn buckets(histogram: &Histogram<u64>) -> Vec<HistogramBucket> {
    let mut buckets = Vec::new();
    let mut from_ns = 0;
    for step in histogram.iter_log(1000, 1.25) {
        let to_ns = step.value_iterated_to();
        let count = step.count_since_last_iteration();
        if count > 0 || !buckets.is_empty() {
            buckets.push(HistogramBucket { from_ns, to_ns, count });
        }
        from_ns = to_ns + 1;
    }
    buckets
}

impl ReportSetting {
    fn new(options: &RunOptions, job: &RunJob, path: &str) -> Self {
        let (rate, window) = match &options.load {
            LoadPattern::Open { rate } => (Some(rate.get()), None),
            LoadPattern::Closed { window } => (None, Some(*window)),
            LoadPattern::Recorded(_) if job.schedule.is_none() => (None, Some(RunOptions::WINDOW)),
            LoadPattern::Recorded(_) | LoadPattern::Phases(_) => (None, None),
        };
        let streams = match options.transport {
            StreamTransport::Udp { .. } => None,
            StreamTransport::Stream(Streams { connections, pipeline, requests, protocol, version }) => {
                let http_version = (protocol != Protocol::Tcp).then(|| version.to_string());
                let tls = options.tls.as_ref().map(ToString::to_string);
                Some(StreamSetting { connections, pipeline, requests, http_version, tls })
            }
        };
        let workload = &job.workload;
        let is_recorded = matches!(options.names, NameOptions::Recording { .. });
        Self {
            target: options.target.to_string(),
            transport: options.transport.to_string(),
            streams,
            datapath: path.to_owned(),
            model: if job.schedule.is_some() { "open loop" } else { "closed loop" },
            rate,
            schedule: describe(&options.load),
            arrivals: job.schedule.as_ref().map(|_| if options.poisson { "poisson" } else { "even" }),
            window,
            duration_s: job
                .schedule
                .as_ref()
                .map_or(options.duration, |schedule| Duration::from_nanos(schedule.end_ns()))
                .as_secs_f64(),
            timeout_ms: options.timeout.as_secs_f64() * 1e3,
            seed: options.seed,
            threads: options.threads,
            sources: options.sources,
            idle: job.schedule.as_ref().map(|_| options.idle.to_string()),
            cores: options.cores.clone(),
            names: match &options.names {
                NameOptions::File(path) => format!("file {}", path.display()),
                NameOptions::Snapshot(path) => format!("snapshot {}", path.display()),
                NameOptions::Template(template) => format!("template {template}"),
                NameOptions::Generated(count) => format!("{count} generated"),
                NameOptions::Recording { path, .. } => format!("recording {}", path.display()),
                NameOptions::List(_) => "list".to_owned(),
            },
            pattern: if is_recorded { "recorded".to_owned() } else { options.pattern.to_string() },
            forms: match workload.has_forms() {
                true => options.forms.iter().map(ToString::to_string).collect(),
                false => vec!["recorded".to_owned()],
            },
            handles: workload.len(),
            handles_in_source: workload.seen(),
            handles_too_long: workload.too_long(),
            handles_not_homed: workload.not_homed(),
            skipped: job.skipped,
        }
    }
}

/// Formats phases for people; empty for a constant rate.
fn describe(load: &LoadPattern) -> Option<String> {
    /// Maximum number of phases that are listed.
    const DESCRIBED_MAX: usize = 8;
    match load {
        LoadPattern::Open { .. } | LoadPattern::Closed { .. } => None,
        LoadPattern::Recorded(speed) => Some(format!("recorded times, speed {speed}")),
        LoadPattern::Phases(phases) if phases.len() > DESCRIBED_MAX => {
            Some(format!("{} phases", phases.len()))
        }
        LoadPattern::Phases(phases) => {
            let phase_texts = phases.iter().map(|phase| match phase {
                phase if phase.from == phase.to => format!("{}/s for {:?}", phase.from, phase.duration),
                phase => format!("{}/s to {}/s in {:?}", phase.from, phase.to, phase.duration),
            });
            Some(phase_texts.collect::<Vec<_>>().join(", "))
        }
    }
}

impl Accounts {
    fn new(total: &RunTotal) -> Self {
        let counts = &total.counts;
        let code = |(code, count)| CodeCount { code, name: ResponseCode(code).to_string(), count };
        Self {
            scheduled: counts.scheduled,
            sent: counts.sent,
            not_sent: counts.not_sent(),
            behind_schedule: counts.behind,
            refused: counts.refused,
            blocked: counts.blocked,
            answered: counts.answered,
            late: counts.late,
            duplicate_only: counts.duplicate_only,
            lost: counts.lost,
            codes: counts.codes.iter().map(code).collect(),
            malformed: counts.malformed,
            truncated: counts.truncated,
            duplicates: counts.duplicates,
            unmatched: counts.unmatched,
            datagrams: counts.datagrams,
            fragment_duplicates: counts.fragment_duplicates,
            fragments_dropped: counts.fragments_dropped,
            kernel_drops: counts.kernel_drops,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A run of two seconds, with some of everything.
    pub(crate) fn report() -> RunReport {
        let options = RunOptions {
            load: LoadPattern::Open { rate: std::num::NonZeroU64::new(1000).unwrap() },
            duration: Duration::from_secs(2),
            ..RunOptions::new(([127, 0, 0, 1], 2641).into(), NameOptions::List(vec![b"10.1/a".to_vec()]))
        };
        let job = RunJob::prepare(&options, || std::ops::ControlFlow::Continue(())).unwrap();
        let mut total = RunTotal::default();
        let counts = &mut total.counts;
        (counts.scheduled, counts.sent, counts.answered, counts.lost) = (2000, 2000, 1980, 20);
        (0..1960).for_each(|_| counts.codes.count(1));
        (0..20).for_each(|_| counts.codes.count(3));
        for i in 1..=1980 {
            let ns = if i <= 1960 { 500_000 + i } else { 2_000_000 };
            total.latency.response.record(ns).unwrap();
            total.latency.service.record(ns - 1000).unwrap();
            total.latency.schedule_error.record(10_000).unwrap();
        }
        let second = |number: u64| SecondCounts {
            elapsed_s: (number + 1) as f64,
            sent: 1000,
            answered: 990,
            sent_per_s: 1000.0,
            answered_per_s: 990.0 + number as f64,
            lost_so_far: 10 * (number + 1).cast_signed(),
            response_p50_ns: 501_000,
            response_p99_ns: 2_000_000,
            response_max_ns: 2_000_000,
            lag_max_ns: 10_000,
            ..SecondCounts::default()
        };
        let clock = Clock::new(std::time::Instant::now());
        let seconds = vec![second(0), second(1)];
        let path = "portable".to_owned();
        let seen = RunObservations { path, clock, followed: None, stopped: false, seconds };
        let mut report = RunReport::new(&options, &job, &total, &seen);
        // Exact values, because a histogram has three digits.
        (report.response_ns.p99, report.schedule_error_ns.max) = (2_000_000, 10_000);
        report
    }

    #[test]
    fn curve_and_histogram_agree_with_the_counts() {
        let report = report();
        assert_eq!(report.response_histogram.iter().map(|bucket| bucket.count).sum::<u64>(), 1980);
        assert!(report.response_histogram.windows(2).all(|pair| pair[0].to_ns < pair[1].from_ns));
        let curve = &report.response_curve;
        assert!(curve.windows(2).all(|pair| pair[0].share < pair[1].share && pair[0].ns <= pair[1].ns));
        assert_eq!(curve.last().map(|point| point.ns), Some(report.response_ns.max));
        assert!(report.is_valid(), "{:?}", report.invalid);
    }
}
