//! Compares two runs, or two groups of runs, and separates real differences from noise.
//!
//! Each second of a run is one sample, except the first and the last, which are incomplete. The
//! means of both sides are compared, with the 95 % confidence interval of their difference.

mod bootstrap;

use std::fmt;
use std::path::Path;

use handle_proto::printable::Printable;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::random::RandomGenerator;
use crate::read::{REPORT_LEN_MAX, check_report, whole};
use crate::show::human::counted;
use crate::show::report::RUN_SCHEMA;
use bootstrap::{ROUNDS, SampleRuns, difference, mean};

/// Name and version of the schema of [`Comparison`].
pub const COMPARISON_SCHEMA: &str = "handle-loadgen/compare/1";

/// The parts of a report that are read.
#[derive(Clone, Debug, Deserialize)]
struct ComparedRun {
    seconds: Vec<Sample>,
    accounts: Sums,
    setting: serde_json::Value,
    invalid: Vec<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Sample {
    sent: u64,
    answered_per_s: f64,
    lost_so_far: f64,
    #[serde(default)]
    late: f64,
    response_p50_ns: f64,
    response_p99_ns: f64,
    response_max_ns: f64,
}

impl Sample {
    fn has_answers(&self) -> bool {
        self.answered_per_s > 0.0
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Sums {
    sent: u64,
    lost: u64,
    #[serde(default)]
    duplicate_only: u64,
    late: u64,
}

/// The runs of one side.
#[derive(Clone, Debug, Default)]
pub struct ComparisonSide {
    runs: Vec<ComparedRun>,
}

impl ComparisonSide {
    /// Reads reports written by `run --json`.
    ///
    /// # Errors
    ///
    /// If one cannot be read, is not such a report, or has fewer than three seconds.
    pub fn read(paths: &[impl AsRef<Path>]) -> Result<Self, Error> {
        let mut side = Self::default();
        for path in paths {
            let path = path.as_ref();
            side.add(&whole(path, REPORT_LEN_MAX)?)
                .map_err(|reason| Error::Option(format!("{}: {reason}", path.display())))?;
        }
        Ok(side)
    }

    fn add(&mut self, text: &[u8]) -> Result<(), String> {
        check_report(text, RUN_SCHEMA)?;
        let run: ComparedRun =
            serde_json::from_slice(text).map_err(|error| format!("not the report of a run: {error}"))?;
        if whole_seconds(&run).is_empty() {
            return Err("the run is too short: it has no whole second after the first".to_owned());
        }
        self.runs.push(run);
        Ok(())
    }

    fn answered(&self) -> SampleRuns {
        let rates = |run| whole_seconds(run).iter().map(|second| second.answered_per_s).collect();
        self.runs.iter().map(rates).collect()
    }

    /// Times of the seconds with an answer; other seconds have no times, and some runs may have
    /// none at all.
    fn times(&self, measure: fn(&Sample) -> f64) -> SampleRuns {
        let of = |run| whole_seconds(run).iter().filter(|sample| sample.has_answers()).map(measure).collect();
        self.runs.iter().map(of).filter(|times: &Vec<_>| !times.is_empty()).collect()
    }

    /// Requests given up in each second, as a share of those sent in it. A request with a late
    /// answer is removed from the lost ones, but was not answered in time either.
    fn losses(&self) -> SampleRuns {
        let lost = |pair: &[Sample]| {
            let [before, second] = [pair[0], pair[1]];
            (second.lost_so_far - before.lost_so_far + second.late) / second.sent.max(1) as f64
        };
        let of = |run: &ComparedRun| {
            let len = whole_seconds(run).len();
            // Includes the second before the first, which gives the number lost until then.
            run.seconds[..=len].windows(2).map(lost).collect()
        };
        self.runs.iter().map(of).collect()
    }

    fn loss(&self) -> f64 {
        let sum =
            |count: fn(&Sums) -> u64| self.runs.iter().map(|run| count(&run.accounts)).sum::<u64>() as f64;
        sum(|sums| sums.lost + sums.duplicate_only + sums.late) / sum(|sums| sums.sent).max(1.0)
    }
}

/// The seconds in which requests were sent, without the first and the last.
fn whole_seconds(run: &ComparedRun) -> &[Sample] {
    let sending = run.seconds.iter().rposition(|second| second.sent > 0).unwrap_or(0);
    run.seconds.get(1..sending).unwrap_or_default()
}

/// The comparison of two sides.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// [`COMPARISON_SCHEMA`].
    pub schema: &'static str,
    /// The measures in order; times only if both sides have some.
    pub measures: Vec<MeasureComparison>,
    /// Requests without an answer in time, as a share of those sent: of A and of B.
    pub loss: (f64, f64),
    /// 95 % confidence interval of the difference of the loss per second, as a share.
    pub loss_interval: (f64, f64),
    /// Settings that differ, and warnings about single runs.
    pub warnings: Vec<String>,
}

/// One measure of both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeasureComparison {
    /// The name of the measure.
    pub name: &'static str,
    /// Number of seconds measured, of A and of B.
    pub samples: (usize, usize),
    /// Mean of A.
    pub a: f64,
    /// Mean of B.
    pub b: f64,
    /// 95 % confidence interval of B - A.
    pub difference_interval: (f64, f64),
    /// How much larger B is than A, as a share of A; `None` if A is 0.
    pub change: Option<f64>,
    /// 95 % confidence interval of this share; `None` if A may be 0.
    pub interval: Option<(f64, f64)>,
    /// Whether the interval of the difference excludes 0.
    pub differs: bool,
}

/// Below this number of whole seconds of a side, a warning says that the intervals are rough.
const SAMPLES_FEW: usize = 10;
/// Below this number, no difference is reported: the variation between seconds is unknown.
const SAMPLES_MIN: usize = 3;

/// Compares side A with side B. The same `seed` gives the same intervals.
#[must_use]
pub fn compare(a: &ComparisonSide, b: &ComparisonSide, seed: u64) -> Comparison {
    let times = |name, measure: fn(&Sample) -> f64| {
        let (a, b) = (a.times(measure), b.times(measure));
        (!a.is_empty() && !b.is_empty()).then(|| compare_runs(name, &a, &b, seed))
    };
    let times = [
        times("p50 ns", |sample| sample.response_p50_ns),
        times("p99 ns", |sample| sample.response_p99_ns),
        times("max ns", |sample| sample.response_max_ns),
    ];
    let answered = compare_runs("answered/s", &a.answered(), &b.answered(), seed);
    Comparison {
        schema: COMPARISON_SCHEMA,
        measures: std::iter::once(answered).chain(times.into_iter().flatten()).collect(),
        loss: (a.loss(), b.loss()),
        loss_interval: compare_runs("loss", &a.losses(), &b.losses(), seed).difference_interval,
        warnings: warnings(a, b),
    }
}

fn compare_runs(name: &'static str, a: &SampleRuns, b: &SampleRuns, seed: u64) -> MeasureComparison {
    let found = difference(a, b, ROUNDS, &mut RandomGenerator::new(seed, 0));
    let (mean_a, mean_b) = (mean(a), mean(b));
    let len = |runs: &SampleRuns| runs.iter().map(Vec::len).sum();
    let samples: (usize, usize) = (len(a), len(b));
    MeasureComparison {
        name,
        samples,
        a: mean_a,
        b: mean_b,
        difference_interval: found.interval,
        change: (mean_a != 0.0).then(|| mean_b / mean_a - 1.0),
        interval: found.change,
        differs: differs(found.interval.0, found.interval.1, samples.0.min(samples.1)),
    }
}

/// Whether an interval shows a difference.
fn differs(low: f64, high: f64, samples_min: usize) -> bool {
    samples_min >= SAMPLES_MIN && (low > 0.0 || high < 0.0)
}

/// The verdict about B, in words.
fn verdict(low: f64, high: f64, samples_min: usize) -> &'static str {
    match (differs(low, high, samples_min), low > 0.0) {
        (true, true) => "B is higher",
        (true, false) => "B is lower",
        (false, _) => "no significant difference",
    }
}

/// Settings that may differ between two compared runs.
const MAY_DIFFER: [&str; 3] = ["target", "datapath", "seed"];

fn warnings(a: &ComparisonSide, b: &ComparisonSide) -> Vec<String> {
    let mut warnings = Vec::new();
    for (side, name) in [(a, "A"), (b, "B")] {
        for (number, run) in (1..).zip(&side.runs) {
            warnings.extend(run.invalid.iter().map(|reason| format!("run {number} of {name}: {reason}")));
            let silent = whole_seconds(run).iter().filter(|second| !second.has_answers()).count();
            if silent > 0 {
                let left_out = counted(silent as u64, "second", "seconds")
                    + " without an answer excluded from the times";
                warnings.push(format!("run {number} of {name}: {left_out}"));
            }
        }
    }
    for (side, name) in [(a, "A"), (b, "B")] {
        let count: usize = side.runs.iter().map(|run| whole_seconds(run).len()).sum();
        if count < SAMPLES_FEW {
            warnings.push(format!(
                "{name} has only {}: the intervals are rough",
                counted(count as u64, "whole second", "whole seconds")
            ));
        }
    }
    let Some(first) = a.runs.first() else { return warnings };
    let names = first.setting.as_object().into_iter().flat_map(|setting| setting.keys());
    for name in names.filter(|name| !MAY_DIFFER.contains(&name.as_str())) {
        let value = &first.setting[name];
        let other = a.runs.iter().chain(&b.runs).map(|run| &run.setting[name]).find(|other| *other != value);
        if let Some(other) = other {
            warnings.push(format!("setting {name} differs: {value} and {other}"));
        }
    }
    warnings
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<12}{:>14}{:>14}{:>14}{:>24}", "", "A", "B", "change", "95 % interval")?;
        for compared in &self.measures {
            let MeasureComparison { name, a, b, difference_interval: (low, high), .. } = compared;
            write!(f, "{name:<12}{a:>14.0}{b:>14.0}")?;
            match (compared.change, compared.interval) {
                (Some(change), Some((low, high))) => {
                    let [change, low, high] = [change, low, high].map(|share| share * 100.0);
                    write!(f, "{change:>+12.2} %{low:>+10.2} to {high:>+8.2} %")?;
                }
                // A share of 0 is undefined.
                _ => write!(f, "{:>+14.0}{low:>+10.0} to {high:>+8.0}  ", b - a)?,
            }
            let ((low, high), (of_a, of_b)) = (compared.difference_interval, compared.samples);
            writeln!(f, "  {}", verdict(low, high, of_a.min(of_b)))?;
        }
        let loss_samples_min = self.measures[0].samples.0.min(self.measures[0].samples.1);
        let [a, b, low, high] =
            [self.loss.0, self.loss.1, self.loss_interval.0, self.loss_interval.1].map(|share| share * 100.0);
        writeln!(
            f,
            "{:<12}{a:>12.4} %{b:>12.4} %{:>+12.4}  {low:>+9.4} to {high:>+8.4}    {}",
            "loss",
            b - a,
            verdict(self.loss_interval.0, self.loss_interval.1, loss_samples_min)
        )?;
        self.warnings.iter().try_for_each(|warning| writeln!(f, "{:<12}{}", "CAUTION", Printable(warning)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(answered_per_s: f64, spread: f64, seed: u64) -> ComparisonSide {
        let mut random = RandomGenerator::new(seed, 0);
        let mut near = |middle: f64| middle * (1.0 + spread * (random.unit() - 0.5));
        let sample = |answered_per_s: f64, ns: f64| {
            serde_json::json!({
                "sent": 1000, "answered_per_s": answered_per_s, "response_p50_ns": ns, "response_p99_ns": 2.0 * ns,
                "response_max_ns": 9.0 * ns, "lost_so_far": 0,
            })
        };
        let mut seconds: Vec<_> = (0..30).map(|_| sample(near(answered_per_s), near(1e5))).collect();
        seconds[0] = sample(1.0, 1e9);
        seconds.push(sample(1.0, 1e9));
        let report = serde_json::json!({
            "schema": "handle-loadgen/run/1", "seconds": seconds, "invalid": [],
            "accounts": {"sent": 1000, "lost": 10, "late": 0}, "setting": {"rate": seed, "target": seed},
        });
        let mut side = ComparisonSide::default();
        side.add(report.to_string().as_bytes()).unwrap();
        side
    }

    #[test]
    fn differences_are_distinguished_from_chance() {
        let (base, same, faster) = (side(1000.0, 0.1, 1), side(1000.0, 0.1, 2), side(1050.0, 0.1, 3));
        let chance = compare(&base, &same, 1);
        assert!(chance.measures.iter().all(|measure| !measure.differs), "{chance}");
        let real = compare(&base, &faster, 1);
        let MeasureComparison { differs, change, interval, samples, .. } = real.measures[0];
        let (change, interval) = (change.unwrap(), interval.unwrap());
        assert!(differs && (0.03..0.07).contains(&change), "{real}");
        assert!(
            interval.0 > 0.02 && interval.1 < 0.09 && interval.0 < change && change < interval.1,
            "{real}"
        );
        assert_eq!((samples, real.loss), ((29, 29), (0.01, 0.01)));
        assert_eq!(real.measures, compare(&base, &faster, 1).measures, "the same seed gives other intervals");
        assert_eq!(real.warnings, ["setting rate differs: 1 and 3"], "the target may differ");
    }

    #[test]
    fn one_or_two_seconds_show_no_difference() {
        let cut = |mut side: ComparisonSide, seconds: usize| {
            side.runs[0].seconds.truncate(seconds + 2);
            side
        };
        for (seconds, shown) in [(1, false), (2, false), (3, true)] {
            let (a, b) = (cut(side(1000.0, 0.01, 1), seconds), cut(side(2000.0, 0.01, 2), seconds));
            let compared = compare(&a, &b, 1);
            assert_eq!(compared.measures[0].samples, (seconds, seconds));
            assert_eq!(compared.measures[0].differs, shown, "{compared}");
            assert_eq!(compared.to_string().contains("B is"), shown, "{compared}");
        }
    }

    #[test]
    fn seconds_without_answers_have_no_times() {
        let (whole, mut silent) = (side(1000.0, 0.1, 1), side(1000.0, 0.1, 1));
        for second in &mut silent.runs[0].seconds[5..15] {
            let zero = Sample { answered_per_s: 0.0, response_p50_ns: 0.0, response_p99_ns: 0.0, ..*second };
            *second = Sample { response_max_ns: 0.0, ..zero };
        }
        let compared = compare(&whole, &silent, 1);
        assert!(compared.measures[0].differs, "{compared}");
        assert!(
            compared.measures[1..].iter().all(|time| time.samples == (29, 19) && !time.differs),
            "{compared}"
        );
        let warning = "run 1 of B: 10 seconds without an answer excluded from the times";
        assert_eq!(compared.warnings, [warning]);
        silent.runs[0].seconds.iter_mut().for_each(|second| second.answered_per_s = 0.0);
        for compared in [compare(&whole, &silent, 1), compare(&silent, &whole, 1)] {
            assert_eq!(compared.measures.len(), 1, "no times to compare: {compared}");
            assert!(compared.measures[0].a.is_finite() && compared.measures[0].differs, "{compared}");
        }
    }

    #[test]
    fn a_loss_of_only_one_side_is_a_difference() {
        let (whole, mut lossy) = (side(1000.0, 0.1, 1), side(1000.0, 0.1, 1));
        let lost = (0..31).scan(0.0, |lost, number| {
            *lost += f64::from(30 + number % 7);
            Some(*lost)
        });
        lossy.runs[0].seconds.iter_mut().zip(lost).for_each(|(second, lost)| second.lost_so_far = lost);
        lossy.runs[0].accounts.lost = 33;
        let compared = compare(&whole, &lossy, 1);
        let (low, high) = compared.loss_interval;
        assert!(0.03 < low && low < 0.033 && 0.033 < high && high < 0.036, "{compared}");
        assert!(compared.to_string().contains("B is higher"), "{compared}");
        assert_eq!(compare(&whole, &whole, 1).loss_interval, (0.0, 0.0));
        // Late requests are given up first, and then removed from the lost ones.
        let mut late = side(1000.0, 0.1, 1);
        late.runs[0].seconds.iter_mut().for_each(|second| second.late = 50.0);
        (late.runs[0].accounts.lost, late.runs[0].accounts.late) = (0, 50);
        let compared = compare(&whole, &late, 1);
        let (low, high) = compared.loss_interval;
        assert!(
            compared.loss == (0.01, 0.05) && (low - 0.05).abs() < 1e-9 && (high - 0.05).abs() < 1e-9,
            "{compared}"
        );
    }

    #[test]
    fn verdicts_are_in_words() {
        let (base, faster) = (side(1000.0, 0.1, 1), side(1100.0, 0.1, 2));
        let text = compare(&base, &faster, 1).to_string();
        let row = text.lines().find(|line| line.starts_with("answered/s")).unwrap();
        assert!(row.ends_with("%  B is higher") && row.contains(" +10.") || row.contains(" +9."), "{text}");
        let text = compare(&faster, &base, 1).to_string();
        assert!(text.lines().nth(1).unwrap().ends_with("B is lower"), "{text}");
        assert!(text.lines().nth(2).unwrap().ends_with("no significant difference"), "{text}");
    }

    #[test]
    fn other_files_are_refused() {
        let mut side = ComparisonSide::default();
        for (text, part) in [
            ("{}", "not a report"),
            (r#"{"schema":"handle-loadgen/run/1"}"#, "not the report of a run"),
            (r#"{"schema":"handle-loadgen/run/2"}"#, "run/2, and this program reads handle-loadgen/run/1"),
            (r#"{"schema":"handle-loadgen/limit/1"}"#, "unexpected schema"),
            (
                r#"{"schema":"x","seconds":[],"invalid":[],"accounts":{"sent":1,"lost":0,"late":0},"setting":{}}"#,
                "unexpected schema",
            ),
            (
                r#"{"schema":"handle-loadgen/run/1","seconds":[],"invalid":[],"accounts":{"sent":1,"lost":0,"late":0},"setting":{}}"#,
                "no whole second",
            ),
        ] {
            let error = side.add(text.as_bytes()).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
