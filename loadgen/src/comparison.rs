//! Two runs, or two groups of runs, side by side: what differs, and what may as well be chance.
//!
//! Each second of a run is one sample, but for the first and the last, which are not whole. The means are
//! compared by bootstrap: samples are drawn again and again from what was measured, and the middle 95 % of the
//! differences are the interval. Seconds that follow each other are not quite independent, so the interval is
//! rather too narrow: for small differences compare several runs of each.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::random::Random;

/// Name and version of the form of [`Comparison`].
pub const COMPARISON_SCHEMA: &str = "handle-loadgen/compare/1";

/// What is read of a report.
#[derive(Clone, Debug, Deserialize)]
struct Run {
    schema: String,
    seconds: Vec<Sample>,
    accounts: Sums,
    setting: serde_json::Value,
    invalid: Vec<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Sample {
    sent: u64,
    answered_per_s: f64,
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
pub struct Side {
    runs: Vec<Run>,
}

impl Side {
    /// Reads reports that `run --json` wrote.
    ///
    /// # Errors
    ///
    /// When one cannot be read, is something else, or has not three seconds.
    pub fn read(paths: &[impl AsRef<Path>]) -> Result<Self, Error> {
        let mut side = Self::default();
        for path in paths {
            let path = path.as_ref();
            let text = std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
            side.add(&text).map_err(|what| Error::Option(format!("{}: {what}", path.display())))?;
        }
        Ok(side)
    }

    fn add(&mut self, text: &[u8]) -> Result<(), String> {
        let run: Run =
            serde_json::from_slice(text).map_err(|error| format!("no report of a run: {error}"))?;
        if !run.schema.starts_with("handle-loadgen/run/") {
            return Err(format!("its schema is {}, not that of a run", run.schema));
        }
        if whole_seconds(&run).is_empty() {
            return Err("it has no whole second besides its first".to_owned());
        }
        self.runs.push(run);
        Ok(())
    }

    fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.runs.iter().flat_map(whole_seconds)
    }

    fn answered(&self) -> Vec<f64> {
        self.samples().map(|sample| sample.answered_per_s).collect()
    }

    /// Times of the seconds in which there was an answer: the others have none.
    fn times(&self, measure: fn(&Sample) -> f64) -> Vec<f64> {
        self.samples().filter(|sample| sample.has_answers()).map(measure).collect()
    }

    fn loss(&self) -> f64 {
        let sum =
            |count: fn(&Sums) -> u64| self.runs.iter().map(|run| count(&run.accounts)).sum::<u64>() as f64;
        sum(|sums| sums.lost + sums.duplicate_only + sums.late) / sum(|sums| sums.sent).max(1.0)
    }
}

/// The seconds in which requests were sent, without the first and the last.
fn whole_seconds(run: &Run) -> &[Sample] {
    let sending = run.seconds.iter().rposition(|second| second.sent > 0).unwrap_or(0);
    run.seconds.get(1..sending).unwrap_or_default()
}

/// What two sides have to do with each other.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// [`COMPARISON_SCHEMA`].
    pub schema: &'static str,
    /// What was measured, one after the other; times only where both sides have some.
    pub measures: Vec<Compared>,
    /// Requests without an answer in time, as a share of those sent: of A and of B.
    pub loss: (f64, f64),
    /// Settings that are not the same, and reasons against single runs.
    pub warnings: Vec<String>,
}

/// One measure on both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Which.
    pub name: &'static str,
    /// Seconds measured, of A and of B.
    pub samples: (usize, usize),
    /// Mean of A.
    pub a: f64,
    /// Mean of B.
    pub b: f64,
    /// How much more B is than A, as a share of A.
    pub change: f64,
    /// Where this share lies with a confidence of 95 %.
    pub interval: (f64, f64),
    /// Whether 0 is outside of the interval.
    pub differs: bool,
}

/// How often samples are drawn again.
const ROUNDS: usize = 4000;

/// Compares the side A with B. The same `seed` gives the same intervals.
#[must_use]
pub fn compare(a: &Side, b: &Side, seed: u64) -> Comparison {
    let times = |name, measure: fn(&Sample) -> f64| {
        let (a, b) = (a.times(measure), b.times(measure));
        (!a.is_empty() && !b.is_empty()).then(|| compare_samples(name, &a, &b, seed))
    };
    let times = [
        times("p50 ns", |sample| sample.response_p50_ns),
        times("p99 ns", |sample| sample.response_p99_ns),
        times("max ns", |sample| sample.response_max_ns),
    ];
    let answered = compare_samples("answered/s", &a.answered(), &b.answered(), seed);
    Comparison {
        schema: COMPARISON_SCHEMA,
        measures: std::iter::once(answered).chain(times.into_iter().flatten()).collect(),
        loss: (a.loss(), b.loss()),
        warnings: warnings(a, b),
    }
}

fn compare_samples(name: &'static str, a: &[f64], b: &[f64], seed: u64) -> Compared {
    let mut random = Random::new(seed, 0);
    let mut changes: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let (a, b) = (mean_of_draws(a, &mut random), mean_of_draws(b, &mut random));
            change(a, b)
        })
        .collect();
    changes.sort_by(f64::total_cmp);
    let interval = (changes[ROUNDS / 40], changes[ROUNDS - 1 - ROUNDS / 40]);
    let mean = |samples: &[f64]| samples.iter().sum::<f64>() / samples.len().max(1) as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let differs = interval.0 > 0.0 || interval.1 < 0.0;
    let (samples, change) = ((a.len(), b.len()), change(mean_a, mean_b));
    Compared { name, samples, a: mean_a, b: mean_b, change, interval, differs }
}

fn change(a: f64, b: f64) -> f64 {
    if a == 0.0 { 0.0 } else { b / a - 1.0 }
}

fn mean_of_draws(samples: &[f64], random: &mut Random) -> f64 {
    let len = samples.len() as u64;
    let draw = |_| samples[usize::try_from(random.below(len)).unwrap_or(0)];
    (0..len).map(draw).sum::<f64>() / len as f64
}

/// Members of the setting that may differ between two runs that are to be compared.
const MAY_DIFFER: [&str; 3] = ["target", "datapath", "seed"];

fn warnings(a: &Side, b: &Side) -> Vec<String> {
    let mut warnings = Vec::new();
    for (side, name) in [(a, "A"), (b, "B")] {
        for (number, run) in (1..).zip(&side.runs) {
            warnings.extend(run.invalid.iter().map(|reason| format!("run {number} of {name}: {reason}")));
            let silent = whole_seconds(run).iter().filter(|second| !second.has_answers()).count();
            if silent > 0 {
                let left_out = format!("{silent} seconds without an answer are left out of the times");
                warnings.push(format!("run {number} of {name}: {left_out}"));
            }
        }
    }
    let Some(first) = a.runs.first() else { return warnings };
    let names = first.setting.as_object().into_iter().flat_map(|setting| setting.keys());
    for name in names.filter(|name| !MAY_DIFFER.contains(&name.as_str())) {
        let value = &first.setting[name];
        let other = a.runs.iter().chain(&b.runs).map(|run| &run.setting[name]).find(|other| *other != value);
        if let Some(other) = other {
            warnings.push(format!("setting {name} is {value} and {other}"));
        }
    }
    warnings
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = ["A", "B", "change", "95 % interval"];
        write!(f, "{:<12}", "")?;
        heads[..3].iter().try_for_each(|head| write!(f, "{head:>14}"))?;
        writeln!(f, "{:>22}", heads[3])?;
        for Compared { name, a, b, change, interval: (low, high), differs, .. } in &self.measures {
            let verdict = if *differs { "differs" } else { "no difference shown" };
            let percent = [change, low, high].map(|share| share * 100.0);
            writeln!(
                f,
                "{name:<12}{a:>14.0}{b:>14.0}{:>+12.2} %{:>+9.2} to {:>+7.2} %  {verdict}",
                percent[0], percent[1], percent[2]
            )?;
        }
        let (a, b) = self.loss;
        writeln!(f, "{:<12}{:>12.4} %{:>12.4} %", "loss", a * 100.0, b * 100.0)?;
        self.warnings.iter().try_for_each(|warning| writeln!(f, "{:<12}{warning}", "CAUTION"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(answered_per_s: f64, spread: f64, seed: u64) -> Side {
        let mut random = Random::new(seed, 0);
        let mut near = |middle: f64| middle * (1.0 + spread * (random.unit() - 0.5));
        let sample = |answered_per_s: f64, ns: f64| {
            serde_json::json!({
                "sent": 1000, "answered_per_s": answered_per_s, "response_p50_ns": ns, "response_p99_ns": 2.0 * ns,
                "response_max_ns": 9.0 * ns,
            })
        };
        let mut seconds: Vec<_> = (0..30).map(|_| sample(near(answered_per_s), near(1e5))).collect();
        seconds[0] = sample(1.0, 1e9);
        seconds.push(sample(1.0, 1e9));
        let report = serde_json::json!({
            "schema": "handle-loadgen/run/2", "seconds": seconds, "invalid": [],
            "accounts": {"sent": 1000, "lost": 10, "late": 0}, "setting": {"rate": seed, "target": seed},
        });
        let mut side = Side::default();
        side.add(report.to_string().as_bytes()).unwrap();
        side
    }

    #[test]
    fn differences_are_told_from_chance() {
        let (base, same, faster) = (side(1000.0, 0.1, 1), side(1000.0, 0.1, 2), side(1050.0, 0.1, 3));
        let chance = compare(&base, &same, 1);
        assert!(chance.measures.iter().all(|measure| !measure.differs), "{chance}");
        let real = compare(&base, &faster, 1);
        let Compared { differs, change, interval, samples, .. } = real.measures[0];
        assert!(differs && (0.03..0.07).contains(&change), "{real}");
        assert!(
            interval.0 > 0.02 && interval.1 < 0.08 && interval.0 < change && change < interval.1,
            "{real}"
        );
        assert_eq!((samples, real.loss), ((29, 29), (0.01, 0.01)));
        assert_eq!(real.measures, compare(&base, &faster, 1).measures, "the same seed");
        assert_eq!(real.warnings, ["setting rate is 1 and 3"], "but not the target");
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
        let warning = "run 1 of B: 10 seconds without an answer are left out of the times";
        assert_eq!(compared.warnings, [warning]);
        silent.runs[0].seconds.iter_mut().for_each(|second| second.answered_per_s = 0.0);
        for compared in [compare(&whole, &silent, 1), compare(&silent, &whole, 1)] {
            assert_eq!(compared.measures.len(), 1, "no times to compare: {compared}");
            assert!(
                compared.measures[0].a.is_finite() && compared.measures[0].change.is_finite(),
                "{compared}"
            );
        }
    }

    #[test]
    fn intervals_hold_as_often_as_they_say() {
        let wrong = (0..60).filter(|seed| {
            let mut random = Random::new(*seed, 3);
            let mut samples = || (0..30).map(|_| 1000.0 + 300.0 * random.unit()).collect::<Vec<_>>();
            compare_samples("", &samples(), &samples(), *seed).differs
        });
        let wrong = wrong.count();
        assert!((1..=9).contains(&wrong), "{wrong} of 60 intervals of 95 % are wrong");
    }

    #[test]
    fn other_files_are_refused() {
        let mut side = Side::default();
        for (text, says) in [
            ("{}", "no report of a run"),
            (
                r#"{"schema":"x","seconds":[],"invalid":[],"accounts":{"sent":1,"lost":0,"late":0},"setting":{}}"#,
                "its schema",
            ),
            (
                r#"{"schema":"handle-loadgen/run/2","seconds":[],"invalid":[],"accounts":{"sent":1,"lost":0,"late":0},"setting":{}}"#,
                "no whole second",
            ),
        ] {
            let error = side.add(text.as_bytes()).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
