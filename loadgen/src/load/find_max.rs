//! Finds the highest rate at which a server meets the limits, by search, repetition and
//! confirmation.
//!
//! The rate is doubled until one is too high, and the gap is then halved until it is narrow. A rate
//! is good if two of at most three trials are, so that one hiccup does not decide. The result is
//! confirmed by several longer runs; if those fail, the rate is lowered by doubling steps until one
//! is confirmed, and the gap above that is halved again. The result is the highest confirmed rate,
//! with the spread of its runs.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::error::Error;
use crate::load::options::RunOptions;
use crate::show::environment::Environment;
use crate::show::human::{HumanDuration, counted};
use crate::show::report::{ReportSetting, RunReport};

/// Name and version of the schema of [`MaxReport`].
pub const MAX_SCHEMA: &str = "handle-loadgen/find-max/1";

/// What a good rate is, and how to search for it.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// Lowest rate of the search.
    pub rate_min: u64,
    /// Highest rate of the search.
    pub rate_max: u64,
    /// Maximum share of requests without an answer or with a late one.
    pub loss_max: f64,
    /// Maximum 99th percentile of response times.
    pub p99_max: Duration,
    /// The search ends when the gap between a good rate and one that is too high is below this
    /// share.
    pub precision: f64,
    /// Duration of a trial.
    pub trial: Duration,
    /// Duration of a confirmation run.
    pub confirm: Duration,
    /// Number of confirmation runs.
    pub repeat: u32,
}

/// One trial.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// Requests per second that were scheduled.
    pub rate: u64,
    /// Requests per second that were sent.
    pub sent_per_s: f64,
    /// Answers per second, in time.
    pub answered_per_s: f64,
    /// Requests without an answer in time, as a share of those sent.
    pub loss: f64,
    /// 99th percentile of response times.
    pub p99_ns: u64,
    /// Answers that are wrong or cannot be judged, if they are verified.
    pub wrong: u64,
    /// Whether the generator kept the schedule.
    pub is_kept: bool,
    /// Answers that were late.
    #[serde(skip)]
    late: u64,
}

impl Trial {
    /// The trial from the report of a run at `rate`.
    #[must_use]
    pub fn of(rate: u64, report: &RunReport) -> Self {
        let accounts = &report.accounts;
        Self {
            rate,
            sent_per_s: report.sent_per_s,
            answered_per_s: report.answered_per_s,
            loss: (accounts.lost + accounts.duplicate_only + accounts.late) as f64
                / accounts.sent.max(1) as f64,
            p99_ns: report.response_ns.p99,
            wrong: report.verification.as_ref().map_or(0, |seen| seen.mismatched + seen.undecided),
            is_kept: report.is_kept(),
            late: accounts.late,
        }
    }

    /// The faults of the server that kept the rate from being good.
    fn faults(&self, loss_max: f64, p99_max_ns: u64) -> [bool; 3] {
        let is_lossy = self.loss > loss_max || self.answered_per_s <= 0.0;
        [is_lossy, self.p99_ns > p99_max_ns, self.wrong > 0]
    }

    /// Whether there was no answer, not even a late one.
    fn is_silent(&self) -> bool {
        self.answered_per_s <= 0.0 && self.loss >= 1.0 && self.late == 0
    }

    fn is_good(&self, search: &Search) -> bool {
        let p99_max_ns = u64::try_from(search.p99_max.as_nanos()).unwrap_or(u64::MAX);
        self.is_kept && self.faults(search.loss_max, p99_max_ns) == [false; 3]
    }
}

/// What limits the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RateBound {
    /// The server: answers were lost, slow or wrong.
    Server,
    /// The generator could not keep the schedule. The server may be faster.
    Generator,
    /// The upper end of the search. The server may be faster.
    Search,
    /// The user stopped the search: only the trials are known.
    Stopped,
}

/// The result of a search.
#[derive(Clone, Debug, Serialize)]
pub struct MaxReport {
    /// [`MAX_SCHEMA`].
    pub schema: &'static str,
    /// The machine and the program.
    pub environment: Environment,
    /// The setting of the last run.
    pub setting: Option<ReportSetting>,
    /// Maximum share of requests without an answer in time.
    pub loss_max: f64,
    /// Maximum 99th percentile, milliseconds.
    pub p99_max_ms: f64,
    /// The highest confirmed rate; `None` if no rate was good.
    pub rate: Option<u64>,
    /// What limits the rate.
    pub bound: RateBound,
    /// Answers per second of the confirmation runs: lowest and highest.
    pub answered_per_s: Option<(f64, f64)>,
    /// 99th percentiles of the confirmation runs: lowest and highest.
    pub p99_ns: Option<(u64, u64)>,
    /// The confirmation runs.
    pub confirmations: Vec<Trial>,
    /// All trials of the search, in order.
    pub trials: Vec<Trial>,
}

/// Maximum number of trials at one rate.
const TRIES_MAX: usize = 3;
/// Maximum number of times that the rate is raised again after a lower one was confirmed.
const RAISED_MAX: usize = 4;

/// Searches for the highest rate. `run` does a run at a rate for a time; `report` gets the result
/// of each.
///
/// # Errors
///
/// Errors of `run`, and invalid searches.
pub fn find_max(
    search: &Search,
    mut run: impl FnMut(u64, Duration) -> Result<RunReport, Error>,
    mut on_trial: impl FnMut(&Trial, bool),
) -> Result<MaxReport, Error> {
    let (mut setting, mut trials) = (None, Vec::new());
    let found = find(search, |rate, duration| {
        let report = run(rate, duration)?;
        let trial = Trial::of(rate, &report);
        setting = Some(report.setting);
        trials.push(trial);
        on_trial(&trial, trial.is_good(search));
        Ok(trial)
    });
    let found = match found {
        // Earlier trials are kept.
        Err(Error::Stopped) => {
            SearchResult { rate: None, bound: RateBound::Stopped, confirmations: Vec::new(), trials }
        }
        found => found?,
    };
    if let (None, RateBound::Server, Some(ReportSetting { target, transport, .. })) =
        (found.rate, found.bound, &setting)
        && found.trials.iter().all(Trial::is_silent)
    {
        return Err(Error::NoAnswer { target: target.clone(), transport: transport.clone() });
    }
    Ok(MaxReport::new(search, found, setting))
}

#[derive(Debug)]
struct SearchResult {
    rate: Option<u64>,
    bound: RateBound,
    confirmations: Vec<Trial>,
    trials: Vec<Trial>,
}

fn find(
    search: &Search,
    mut run: impl FnMut(u64, Duration) -> Result<Trial, Error>,
) -> Result<SearchResult, Error> {
    check(search)?;
    let mut trials = Vec::new();
    // Whether a rate is good and, if not, whether the generator is the cause.
    let mut judge = |rate: u64, trials: &mut Vec<Trial>| -> Result<Result<(), RateBound>, Error> {
        let mut scores = [0; 2];
        for _ in 0..TRIES_MAX {
            let trial = run(rate, search.trial)?;
            trials.push(trial);
            scores[usize::from(trial.is_good(search))] += 1;
            if scores.contains(&2) {
                break;
            }
        }
        let last = &trials[trials.len() - scores[0] - scores[1]..];
        let is_kept = last.iter().filter(|trial| !trial.is_kept).count() < 2;
        Ok(if scores[1] == 2 {
            Ok(())
        } else {
            Err(if is_kept { RateBound::Server } else { RateBound::Generator })
        })
    };
    let (mut good, mut bad, mut bound) = (None, None, RateBound::Search);
    let mut rate = search.rate_min;
    while bad.is_none() {
        match judge(rate, &mut trials)? {
            Ok(()) => good = Some(rate),
            Err(why) => (bad, bound) = (Some(rate), why),
        }
        if rate == search.rate_max {
            break;
        }
        rate = rate.saturating_mul(2).min(search.rate_max);
    }
    // No good rate is known below the first one: go down as fast as the search goes up.
    while let (None, Some(above)) = (good, bad) {
        let below = above / 2;
        // A server without any answer is not merely too slow.
        if below == 0 || trials.iter().all(Trial::is_silent) {
            return Ok(SearchResult { rate: None, bound, confirmations: Vec::new(), trials });
        }
        match judge(below, &mut trials)? {
            Ok(()) => good = Some(below),
            Err(why) => (bad, bound) = (Some(below), why),
        }
    }
    let Some(mut good) = good else {
        return Ok(SearchResult { rate: None, bound, confirmations: Vec::new(), trials });
    };
    while let Some(above) = bad.filter(|above| (above - good) as f64 > search.precision * good as f64) {
        let middle = good + (above - good) / 2;
        if middle == good {
            break;
        }
        match judge(middle, &mut trials)? {
            Ok(()) => good = middle,
            Err(why) => (bad, bound) = (Some(middle), why),
        }
    }
    confirm(search, good, bound, trials, run)
}

/// Confirms `rate` with longer runs, or lower rates until one is confirmed; then tries rates in
/// between.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rates are far below 2^53")]
fn confirm(
    search: &Search,
    mut rate: u64,
    mut bound: RateBound,
    mut trials: Vec<Trial>,
    mut run: impl FnMut(u64, Duration) -> Result<Trial, Error>,
) -> Result<SearchResult, Error> {
    let mut confirmed: Option<(u64, Vec<Trial>)> = None;
    let (mut failed, mut raised, mut step) = (None, 0, search.precision.max(0.01));
    loop {
        let confirmations =
            (0..search.repeat).map(|_| run(rate, search.confirm)).collect::<Result<Vec<Trial>, Error>>();
        let confirmations = match confirmations {
            // Earlier confirmations are kept.
            Err(Error::Stopped) if confirmed.is_some() => break,
            confirmations => confirmations?,
        };
        // A majority of the runs.
        let bad = confirmations.iter().filter(|trial| !trial.is_good(search)).count();
        if bad * 2 < confirmations.len() {
            trials.extend(confirmed.replace((rate, confirmations)).into_iter().flat_map(|(_, runs)| runs));
        } else {
            let is_kept = confirmations.iter().all(|trial| trial.is_kept);
            bound = if is_kept { RateBound::Server } else { RateBound::Generator };
            trials.extend(confirmations);
            failed = Some(rate);
        }
        rate = match (&confirmed, failed) {
            (Some(_), None) => break,
            (Some((low, _)), Some(high)) => {
                raised += 1;
                if raised > RAISED_MAX || (high - low) as f64 <= search.precision * *low as f64 {
                    break;
                }
                let middle = low + (high - low) / 2;
                if middle == *low {
                    break;
                }
                middle
            }
            (None, _) if rate == 1 => break,
            (None, _) => {
                let lower = (rate as f64 * (1.0 - step)) as u64;
                step = (step * 2.0).min(0.5);
                lower.clamp(1, rate - 1)
            }
        };
    }
    let (rate, confirmations) = confirmed.map_or((None, Vec::new()), |(rate, runs)| (Some(rate), runs));
    Ok(SearchResult { rate, bound, confirmations, trials })
}

fn check(search: &Search) -> Result<(), Error> {
    let option = |bad: bool, reason: &str| if bad { Err(Error::Option(reason.to_owned())) } else { Ok(()) };
    option(search.rate_min == 0, "--from must be greater than 0")?;
    option(search.rate_min > search.rate_max, "--from must not be greater than --to")?;
    option(search.rate_max > 1_000_000_000, "--to must be at most 1000000000")?;
    for (name, time) in [("--trial", search.trial), ("--confirm", search.confirm)] {
        let is_bad = time.is_zero() || time > RunOptions::DURATION_MAX;
        option(is_bad, &format!("{name} must be greater than 0, at most a week"))?;
    }
    option(!(0.001..=0.5).contains(&search.precision), "--precision must be 0.1% to 50%")?;
    option(search.repeat == 0 || search.repeat > 100, "--repeat must be 1 to 100")
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rate, answered, loss) = (self.rate, self.answered_per_s, self.loss * 100.0);
        write!(f, "{rate:>9}/s  {answered:>9.0}/s answered  loss {loss:.3} %")?;
        if self.answered_per_s > 0.0 {
            write!(f, "  p99 {}", HumanDuration(self.p99_ns))?;
        }
        if self.wrong > 0 {
            write!(f, "  WRONG {}", self.wrong)?;
        }
        if self.is_kept { Ok(()) } else { f.write_str("  schedule not kept by the generator") }
    }
}

impl MaxReport {
    fn new(search: &Search, found: SearchResult, setting: Option<ReportSetting>) -> Self {
        let spread = |values: Vec<f64>| {
            values.into_iter().fold(None, |spread: Option<(f64, f64)>, value| {
                let (low, high) = spread.unwrap_or((value, value));
                Some((low.min(value), high.max(value)))
            })
        };
        let p99s = found.confirmations.iter().map(|trial| trial.p99_ns);
        Self {
            schema: MAX_SCHEMA,
            environment: Environment::read(),
            setting,
            loss_max: search.loss_max,
            p99_max_ms: search.p99_max.as_secs_f64() * 1e3,
            rate: found.rate,
            bound: found.bound,
            answered_per_s: spread(found.confirmations.iter().map(|trial| trial.answered_per_s).collect()),
            p99_ns: p99s.clone().min().zip(p99s.max()),
            confirmations: found.confirmations,
            trials: found.trials,
        }
    }

    /// The faults of trials above the found rate, in words.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    fn faults(&self) -> String {
        let p99_max_ns = (self.p99_max_ms * 1e6).round() as u64;
        let above = self.trials.iter().filter(|trial| trial.is_kept && Some(trial.rate) > self.rate);
        let faults = above.fold([false; 3], |sum, trial| {
            let faults = trial.faults(self.loss_max, p99_max_ns);
            std::array::from_fn(|i| sum[i] || faults[i])
        });
        let words = ["lost", "slow", "wrong"].into_iter().zip(faults);
        words.filter_map(|(word, is_so)| is_so.then_some(word)).collect::<Vec<_>>().join(" and ")
    }
}

impl fmt::Display for MaxReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (loss, p99) = (self.loss_max * 100.0, self.p99_max_ms);
        match (self.rate, self.answered_per_s, self.p99_ns) {
            (Some(rate), Some((low, high)), Some((p99_low, p99_high))) => {
                writeln!(f, "{:<12}{rate}/s with loss <= {loss} % and p99 <= {p99} ms", "maximum")?;
                let runs = self.confirmations.len();
                writeln!(
                    f,
                    "{:<12}{} {low:.0} to {high:.0}/s answered, p99 {} to {}",
                    "confirmed",
                    counted(runs as u64, "run:", "runs:"),
                    HumanDuration(p99_low),
                    HumanDuration(p99_high)
                )?;
            }
            _ if self.bound == RateBound::Stopped => writeln!(f, "{:<12}unknown", "maximum")?,
            _ => {
                let is_wrong = self.trials.iter().any(|trial| trial.wrong > 0);
                let also = if is_wrong { ", without wrong answers" } else { "" };
                writeln!(f, "{:<12}none: no rate has loss <= {loss} % and p99 <= {p99} ms{also}", "maximum")?;
            }
        }
        let above = if self.rate.is_some() { " above it" } else { "" };
        write!(f, "{:<12}", "bound by")?;
        match self.bound {
            RateBound::Server => writeln!(f, "the server: {} answers{above}", self.faults()),
            RateBound::Generator => {
                writeln!(f, "the generator, which could not send faster; the server may be faster")
            }
            RateBound::Search => writeln!(f, "the end of the search; the server may be faster"),
            RateBound::Stopped => writeln!(f, "nothing: stopped early"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::RandomGenerator;

    const SEARCH: Search = Search {
        rate_min: 1000,
        rate_max: 10_000_000,
        loss_max: 0.001,
        p99_max: Duration::from_millis(5),
        precision: 0.02,
        trial: Duration::from_secs(2),
        confirm: Duration::from_secs(10),
        repeat: 3,
    };

    /// A server that loses requests above its capacity, and hiccups once in `hiccup` runs.
    fn server(
        capacity: u64,
        generator: u64,
        hiccup: u64,
    ) -> impl FnMut(u64, Duration) -> Result<Trial, Error> {
        let mut random = RandomGenerator::new(5, 0);
        move |rate, _| {
            let is_slow = hiccup > 0 && random.below(hiccup) == 0;
            let answered = rate.min(capacity);
            Ok(Trial {
                rate,
                sent_per_s: rate.min(generator) as f64,
                answered_per_s: answered as f64,
                loss: 1.0 - answered as f64 / rate as f64,
                p99_ns: if is_slow { 50_000_000 } else { 1_000_000 },
                wrong: 0,
                is_kept: rate <= generator,
                late: 0,
            })
        }
    }

    #[test]
    fn finds_the_capacity_of_the_server_within_the_precision() {
        for capacity in [1, 300, 999, 1000, 12_345, 987_654] {
            let found = find(&SEARCH, server(capacity, u64::MAX, 0)).unwrap();
            let rate = found.rate.unwrap();
            assert!(
                rate as f64 <= capacity as f64 * 1.001 && rate as f64 >= capacity as f64 * 0.97 - 1.0,
                "{rate}"
            );
            assert_eq!((found.bound, found.confirmations.len()), (RateBound::Server, 3));
        }
    }

    /// The first so many of the runs that confirm a rate of at least 900 are good.
    #[test]
    fn a_rate_is_confirmed_by_a_majority_of_its_runs_and_not_by_one() {
        for (repeat, good, is_confirmed) in [
            (1, 1, true),
            (2, 1, false),
            (3, 0, false),
            (3, 1, false),
            (3, 2, true),
            (4, 2, false),
            (4, 3, true),
            (5, 2, false),
            (5, 3, true),
        ] {
            let search = Search { rate_min: 1000, rate_max: 1000, repeat, ..SEARCH };
            let mut sound = server(u64::MAX, u64::MAX, 0);
            let mut runs = std::collections::BTreeMap::<u64, usize>::new();
            let found = find(&search, |rate, duration| {
                let trial = sound(rate, duration)?;
                if duration != search.confirm || rate < 900 {
                    return Ok(trial);
                }
                let nth = runs.entry(rate).or_default();
                *nth += 1;
                let p99_ns = if *nth <= good { trial.p99_ns } else { 50_000_000 };
                Ok(Trial { p99_ns, ..trial })
            });
            let rate = found.unwrap().rate.unwrap();
            let is_right = if is_confirmed { rate == 1000 } else { rate < 900 };
            assert!(is_right, "{good} of {repeat} runs: {rate}");
        }
    }

    #[test]
    fn a_rate_with_wrong_answers_is_too_high() {
        let mut sound = server(u64::MAX, u64::MAX, 0);
        let found = find(&SEARCH, |rate, duration| {
            let trial = sound(rate, duration)?;
            Ok(Trial { wrong: rate / 50_000, ..trial })
        })
        .unwrap();
        assert!((48_000..50_000).contains(&found.rate.unwrap()), "{found:?}");
        assert_eq!(found.bound, RateBound::Server);
        let wrong = found.trials.iter().find(|trial| trial.wrong == 1).unwrap();
        assert!(wrong.to_string().contains("WRONG 1"), "{wrong}");
    }

    #[test]
    fn the_text_says_what_was_wrong_with_the_answers() {
        let text = |mut run: Box<dyn FnMut(u64) -> Trial>| {
            let found = find(&SEARCH, |rate, _| Ok(run(rate))).unwrap();
            MaxReport::new(&SEARCH, found, None).to_string()
        };
        let sound = Trial {
            rate: 0,
            sent_per_s: 1e6,
            answered_per_s: 1e6,
            loss: 0.0,
            p99_ns: 1_000_000,
            wrong: 0,
            is_kept: true,
            late: 0,
        };
        let always_wrong = text(Box::new(move |rate| Trial { rate, wrong: 3, ..sound }));
        let no_rate = "maximum     none: no rate has loss <= 0.1 % and p99 <= 5 ms, without wrong answers\n";
        assert_eq!(always_wrong, format!("{no_rate}bound by    the server: wrong answers\n"));
        let lossy = text(Box::new(move |rate| Trial { rate, loss: 0.01, ..sound }));
        let no_rate = "maximum     none: no rate has loss <= 0.1 % and p99 <= 5 ms\n";
        assert_eq!(lossy, format!("{no_rate}bound by    the server: lost answers\n"));
        let slow = text(Box::new(move |rate| Trial { rate, p99_ns: 1_000_000 + rate * 50, ..sound }));
        assert!(slow.ends_with("bound by    the server: slow answers above it\n"), "{slow}");
        let both = text(Box::new(move |rate| {
            let is_high = rate > 70_000;
            Trial { rate, p99_ns: if is_high { 6_000_000 } else { 5_000_000 }, wrong: rate / 70_000, ..sound }
        }));
        assert!(both.ends_with("bound by    the server: slow and wrong answers above it\n"), "{both}");
    }

    /// A server that keeps up for a moment; for longer, only with `lasting` requests per second.
    fn tiring(lasting: u64) -> impl FnMut(u64, Duration) -> Result<Trial, Error> {
        let (mut fresh, mut tired) = (server(1_000_000, u64::MAX, 0), server(lasting, u64::MAX, 0));
        move |rate, duration| {
            if duration == SEARCH.confirm { tired(rate, duration) } else { fresh(rate, duration) }
        }
    }

    #[test]
    fn the_best_confirmed_rate_is_found_far_below_the_rates_of_trials() {
        // Rates from 1,000 to 9,000/s are good, and the search ends at a hundred times as much.
        for lasting in [1, 7, 1000, 9000, 800_000] {
            let found = find(&SEARCH, tiring(lasting)).unwrap();
            let rate = found.rate.unwrap();
            assert!(rate <= lasting + lasting / 500, "{rate} of {lasting}");
            assert!(rate * 10 >= lasting * 8, "{rate} of {lasting}");
            assert!(found.confirmations.iter().all(|trial| trial.rate == rate && trial.is_good(&SEARCH)));
            assert_eq!((found.bound, found.confirmations.len()), (RateBound::Server, 3));
        }
        let found = find(&SEARCH, tiring(0)).unwrap();
        assert_eq!((found.rate, found.bound), (None, RateBound::Server));
    }

    #[test]
    fn a_rate_that_was_confirmed_is_not_lost_when_the_search_is_stopped() {
        let (mut runs, mut server) = (0, tiring(9000));
        let found = find(&SEARCH, |rate, duration| {
            let trial = server(rate, duration)?;
            runs += u32::from(duration == SEARCH.confirm && trial.is_good(&SEARCH));
            if runs > 3 { Err(Error::Stopped) } else { Ok(trial) }
        });
        assert!(found.unwrap().rate.unwrap() <= 9000);
    }

    #[test]
    fn hiccups_do_not_decide() {
        let found = find(&SEARCH, server(100_000, u64::MAX, 10)).unwrap();
        assert!((90_000..=100_100).contains(&found.rate.unwrap()), "{found:?}");
    }

    #[test]
    fn reports_a_limit_other_than_the_server() {
        let found = find(&SEARCH, server(u64::MAX, 50_000, 0)).unwrap();
        assert_eq!(found.bound, RateBound::Generator);
        assert!((48_000..=50_000).contains(&found.rate.unwrap()));
        let found = find(&SEARCH, server(u64::MAX, u64::MAX, 0)).unwrap();
        assert_eq!((found.bound, found.rate), (RateBound::Search, Some(10_000_000)));
    }

    #[test]
    fn a_silent_server_ends_the_search() {
        let found = find(&SEARCH, server(0, u64::MAX, 0)).unwrap();
        assert_eq!((found.rate, found.trials.len()), (None, 2), "{found:?}");
    }

    #[test]
    fn invalid_searches_are_refused() {
        for bad in [
            Search { rate_min: 0, ..SEARCH },
            Search { rate_min: 20_000_000, ..SEARCH },
            Search { precision: 0.0, ..SEARCH },
            Search { repeat: 0, ..SEARCH },
            Search { trial: Duration::ZERO, ..SEARCH },
            Search { confirm: Duration::ZERO, ..SEARCH },
        ] {
            assert!(matches!(find(&bad, server(1, 1, 0)), Err(Error::Option(_))), "{bad:?}");
        }
    }
}
