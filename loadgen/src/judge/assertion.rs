//! Assertions about a run, for unattended runs: `p99<5ms`, `loss<=0.01%`, `answered>=50k`.

use std::fmt;
use std::str::FromStr;

use handle_proto::ResponseCode;
use serde::Serialize;

use crate::show::latency::ResponseTimes;
use crate::show::report::RunReport;

/// An assertion: a measure, a comparison and a bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Assertion {
    text: String,
    measure: AssertedMeasure,
    comparison: AssertionOperator,
    bound: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AssertedMeasure {
    Time(LatencyClock, Statistic),
    Share(AnswerShare),
    Rate(AnswerRate),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LatencyClock {
    Response,
    Service,
    Schedule,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Statistic {
    P50,
    P90,
    P99,
    P99_9,
    P99_99,
    Max,
    Mean,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerShare {
    Loss,
    Late,
    NotSent,
    Errors,
    Mismatches,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerRate {
    Sent,
    Answered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AssertionOperator {
    Below,
    AtMost,
    Above,
    AtLeast,
}

/// The measures and their meaning.
pub const MEASURES: [(&str, &str); 9] = [
    ("p50 p90 p99 p99.9 p99.99 max mean", "response times of answers in time, in ns, us, ms or s"),
    ("service.p99", "the same for service times"),
    ("schedule-error.p99 lag.p99", "the same for the lag of sent requests behind the schedule"),
    ("loss", "requests without an answer, as a share of those sent: 0.01% or 0.0001"),
    ("late", "requests with an answer after the timeout"),
    (
        "errors",
        "answers that cannot be decoded, or have a code other than 1, 100 and 200, as a share of answers",
    ),
    ("mismatches", "wrong answers, as a share of those compared"),
    ("not-sent", "requests that were due and not sent, as a share of the schedule"),
    ("answered sent", "answers in time, or requests, per second: 20000, 20k or 1.5M"),
];

/// The result of an assertion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AssertionResult {
    /// The assertion as it was written.
    pub promise: String,
    /// Whether it holds.
    pub holds: bool,
    /// The measured value.
    pub found: String,
}

impl fmt::Display for AssertionResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { promise, holds, found } = self;
        write!(f, "{promise} {}: {found}", if *holds { "holds" } else { "does not hold" })
    }
}

impl Assertion {
    /// Compares the assertion with the results of a run.
    #[must_use]
    pub fn judge(&self, report: &RunReport) -> AssertionResult {
        let value = self.measure.of(report);
        let holds = match self.comparison {
            AssertionOperator::Below => value < self.bound,
            AssertionOperator::AtMost => value <= self.bound,
            AssertionOperator::Above => value > self.bound,
            AssertionOperator::AtLeast => value >= self.bound,
        };
        let found = match self.measure {
            // Without a measurement, no assertion holds.
            _ if value.is_nan() => "nothing was measured".to_owned(),
            AssertedMeasure::Time(..) => format!("measured {:.3} ms", value / 1e6),
            AssertedMeasure::Share(_) => format!("measured {:.4} %", value * 100.0),
            AssertedMeasure::Rate(_) => format!("measured {value:.0}/s"),
        };
        AssertionResult { promise: self.text.clone(), holds, found }
    }
}

impl AssertedMeasure {
    /// The measured value; not a number if there is nothing to measure.
    fn of(self, report: &RunReport) -> f64 {
        let accounts = &report.accounts;
        let share = |count: u64, of: u64| count as f64 / of as f64;
        match self {
            Self::Time(which, statistic) => {
                let times = match which {
                    LatencyClock::Response => &report.response_ns,
                    LatencyClock::Service => &report.service_ns,
                    LatencyClock::Schedule => &report.schedule_error_ns,
                };
                if times.count == 0 { f64::NAN } else { statistic.of(times) }
            }
            Self::Rate(AnswerRate::Sent) => report.sent_per_s,
            Self::Rate(AnswerRate::Answered) => report.answered_per_s,
            Self::Share(AnswerShare::Loss) => share(accounts.lost + accounts.duplicate_only, accounts.sent),
            Self::Share(AnswerShare::Late) => share(accounts.late, accounts.sent),
            Self::Share(AnswerShare::NotSent) => share(accounts.not_sent, accounts.scheduled),
            Self::Share(AnswerShare::Errors) => {
                let is_good = |code: i32| {
                    let codes = [
                        ResponseCode::SUCCESS,
                        ResponseCode::HANDLE_NOT_FOUND,
                        ResponseCode::VALUES_NOT_FOUND,
                    ];
                    codes.contains(&ResponseCode(code))
                };
                let bad = accounts.codes.iter().filter(|code| !is_good(code.code)).map(|code| code.count);
                share(bad.sum::<u64>() + accounts.malformed + accounts.truncated, accounts.answered)
            }
            Self::Share(AnswerShare::Mismatches) => {
                report.verification.as_ref().map_or(f64::NAN, |verification| {
                    share(verification.mismatched, verification.verified + verification.mismatched)
                })
            }
        }
    }
}

impl Statistic {
    fn of(self, times: &ResponseTimes) -> f64 {
        match self {
            Self::P50 => times.p50 as f64,
            Self::P90 => times.p90 as f64,
            Self::P99 => times.p99 as f64,
            Self::P99_9 => times.p99_9 as f64,
            Self::P99_99 => times.p99_99 as f64,
            Self::Max => times.max as f64,
            Self::Mean => times.mean,
        }
    }
}

impl fmt::Display for Assertion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Assertion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let at =
            text.find(['<', '>']).ok_or("expected a measure, a comparison and a bound, as in p99<5ms")?;
        let (name, rest) = text.split_at(at);
        let (comparison, bound) = match (&rest[..1], rest[1..].strip_prefix('=')) {
            ("<", None) => (AssertionOperator::Below, &rest[1..]),
            ("<", Some(bound)) => (AssertionOperator::AtMost, bound),
            (_, None) => (AssertionOperator::Above, &rest[1..]),
            (_, Some(bound)) => (AssertionOperator::AtLeast, bound),
        };
        let measure = measure(name.trim()).ok_or_else(|| {
            let names = MEASURES.map(|(names, _)| names).join(" ");
            format!("unknown measure {:?}: expected one of {names}", name.trim())
        })?;
        let (units, hint): (&[(&str, f64)], _) = match measure {
            AssertedMeasure::Time(..) => {
                (&[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)], "a time such as 5ms")
            }
            AssertedMeasure::Share(_) => (&[("", 1.0), ("%", 0.01)], "a share such as 0.01%"),
            AssertedMeasure::Rate(_) => (&[("", 1.0), ("k", 1e3), ("M", 1e6)], "a rate such as 20k"),
        };
        let bound = number(bound.trim(), units)
            .ok_or_else(|| format!("invalid bound {:?}: expected {hint}", bound.trim()))?;
        Ok(Self { text: text.to_owned(), measure, comparison, bound })
    }
}

fn measure(name: &str) -> Option<AssertedMeasure> {
    let (which, statistic) = match name.split_once('.') {
        Some(("service", statistic)) => (LatencyClock::Service, statistic),
        Some(("lag" | "schedule-error", statistic)) => (LatencyClock::Schedule, statistic),
        _ => (LatencyClock::Response, name),
    };
    let statistic = match statistic {
        "p50" => Some(Statistic::P50),
        "p90" => Some(Statistic::P90),
        "p99" => Some(Statistic::P99),
        "p99.9" => Some(Statistic::P99_9),
        "p99.99" => Some(Statistic::P99_99),
        "max" => Some(Statistic::Max),
        "mean" => Some(Statistic::Mean),
        _ => None,
    };
    Some(match name {
        "loss" => AssertedMeasure::Share(AnswerShare::Loss),
        "late" => AssertedMeasure::Share(AnswerShare::Late),
        "not-sent" => AssertedMeasure::Share(AnswerShare::NotSent),
        "errors" => AssertedMeasure::Share(AnswerShare::Errors),
        "mismatches" => AssertedMeasure::Share(AnswerShare::Mismatches),
        "answered" => AssertedMeasure::Rate(AnswerRate::Answered),
        "sent" => AssertedMeasure::Rate(AnswerRate::Sent),
        _ => AssertedMeasure::Time(which, statistic?),
    })
}

/// A number and its unit, which must be one of `units`.
#[must_use]
pub fn number(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let end = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    let number: f64 = number.parse().ok()?;
    Some(number * scale).filter(|number| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::report::tests::report;

    #[test]
    fn assertions_hold_or_report_the_measured_value() {
        let report = report();
        for (text, broken) in [
            ("p99<5ms", None),
            ("p99 < 2ms", Some("p99 < 2ms does not hold: measured 2.000 ms")),
            ("p99<=2ms", None),
            ("service.p99.9<1s", None),
            ("lag.max<1us", Some("measured 0.010 ms")),
            ("loss<0.1%", Some("measured 1.0000 %")),
            ("loss<=0.01", None),
            ("errors<=0", Some("measured 1.0101 %")),
            ("mismatches<1%", Some("nothing was measured")),
            ("answered>=990", None),
            ("sent>1k", Some("measured 1000/s")),
            ("sent>=1k", None),
            ("late<1%", None),
            ("not-sent<=0%", None),
        ] {
            let assertion: Assertion = text.parse().unwrap();
            let judged = assertion.judge(&report);
            assert_eq!(judged.holds, broken.is_none(), "{judged}");
            assert!(judged.to_string().contains(broken.unwrap_or(" holds: measured ")), "{judged}");
        }
    }

    #[test]
    fn invalid_assertions_are_refused_with_a_hint() {
        for (text, part) in [
            ("p99", "as in p99<5ms"),
            ("p98<5ms", "unknown measure"),
            ("service.loss<1%", "unknown measure"),
            ("p99<5", "a time such as"),
            ("loss<5ms", "a share such as"),
            ("answered>5%", "a rate such as"),
            ("p99<", "a time such as"),
        ] {
            let error = text.parse::<Assertion>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
