//! Confidence intervals for the difference of two means, by bootstrap resampling.
//!
//! A sample is the measurement of one second of a run. Adjacent seconds are correlated, so they are
//! drawn in blocks. Runs differ more than their seconds do, so with several runs on a side, runs
//! are drawn first. Both make the interval wider than independent seconds would. Few samples
//! underestimate the variation; the ratio of Student's distribution to the normal distribution
//! corrects this.

use crate::random::RandomGenerator;

/// Number of resamplings.
pub(super) const ROUNDS: usize = 4000;

/// The samples of each run of a side.
pub(super) type SampleRuns = Vec<Vec<f64>>;

/// The difference of two sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MeanDifference {
    /// 95 % confidence interval of B - A.
    pub(super) interval: (f64, f64),
    /// 95 % confidence interval of (B - A) / A, if A is never 0.
    pub(super) change: Option<(f64, f64)>,
}

/// The mean of all samples; 0 without samples.
pub(super) fn mean(runs: &SampleRuns) -> f64 {
    let samples = || runs.iter().flatten();
    samples().sum::<f64>() / samples().count().max(1) as f64
}

/// How B differs from A. Runs without samples are left out; both sides need one with some.
pub(super) fn difference(
    a: &SampleRuns,
    b: &SampleRuns,
    rounds: usize,
    random: &mut RandomGenerator,
) -> MeanDifference {
    let means: Vec<_> = (0..rounds).map(|_| (drawn_mean(a, random), drawn_mean(b, random))).collect();
    let has_share = means.iter().all(|(a, _)| *a != 0.0);
    let (mean_a, mean_b, factor) = (mean(a), mean(b), widening(units(a) + units(b)));
    let around = |found: f64, (low, high): (f64, f64)| {
        (found - factor * (found - low).max(0.0), found + factor * (high - found).max(0.0))
    };
    MeanDifference {
        interval: around(mean_b - mean_a, middle(means.iter().map(|(a, b)| b - a))),
        change: has_share
            .then(|| around(mean_b / mean_a - 1.0, middle(means.iter().map(|(a, b)| b / a - 1.0)))),
    }
}

/// The number of draws in a mean: runs, or the blocks of a single run.
fn units(runs: &SampleRuns) -> usize {
    match &runs[..] {
        [run] => run.len() / block_len(run.len()),
        runs => runs.len(),
    }
}

/// The factor by which a 95 % interval is wider than resampling `units` of both sides suggests.
/// Resamples vary less than the original, and the variation itself is estimated.
fn widening(units: usize) -> f64 {
    /// Half-width of the 95 % interval of a normal distribution, in standard deviations.
    const NORMAL: f64 = 1.959_964;
    let free = units.saturating_sub(2).max(1) as f64;
    // Student's distribution, by its series around the normal one (Cornish and Fisher); a few per
    // cent low for very few units.
    let [z, z3, z5, z7] = [1, 3, 5, 7].map(|power| NORMAL.powi(power));
    let student = z
        + (z3 + z) / (4.0 * free)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * free * free)
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * free * free * free);
    student / NORMAL * ((free + 2.0) / free).sqrt()
}

/// The interval of the middle 95 %.
fn middle(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    let tail = values.len() / 40;
    (values[tail], values[values.len() - 1 - tail])
}

/// The mean of as many runs as there are, drawn with replacement, with as many samples of each.
fn drawn_mean(runs: &SampleRuns, random: &mut RandomGenerator) -> f64 {
    let (mut sum, mut count) = (0.0, 0);
    for number in 0..runs.len() {
        let run = &runs[if runs.len() == 1 { number } else { below(random, runs.len()) }];
        let block_len = block_len(run.len());
        let mut wanted = run.len();
        while wanted > 0 {
            // Blocks wrap around the end, so that all samples are equally likely.
            let start = below(random, run.len());
            let taken = block_len.min(wanted);
            sum += (0..taken).map(|i| run[(start + i) % run.len()]).sum::<f64>();
            (count, wanted) = (count + taken, wanted - taken);
        }
    }
    sum / f64::from(u32::try_from(count).unwrap_or(u32::MAX).max(1))
}

/// The cube root of the number of samples, the usual block length for means.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number above 0")]
fn block_len(samples: usize) -> usize {
    (samples as f64).cbrt().round().max(1.0) as usize
}

fn below(random: &mut RandomGenerator, end: usize) -> usize {
    usize::try_from(random.below(end as u64)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEWER: usize = 400;

    /// Numbers around 0 with a variance of 1 (the sum of twelve uniform numbers is nearly normal).
    fn normal(random: &mut RandomGenerator) -> f64 {
        (0..12).map(|_| random.unit()).sum::<f64>() - 6.0
    }

    fn differs(difference: &MeanDifference) -> bool {
        difference.interval.0 > 0.0 || difference.interval.1 < 0.0
    }

    #[test]
    fn known_data_has_its_known_interval() {
        let mut random = RandomGenerator::new(11, 0);
        let mut side = |mean: f64, deviation: f64, len: usize| {
            vec![(0..len).map(|_| mean + deviation * normal(&mut random)).collect::<Vec<_>>()]
        };
        let (a, b) = (side(100.0, 8.0, 400), side(103.0, 6.0, 900));
        let found = difference(&a, &b, ROUNDS, &mut RandomGenerator::new(1, 0));
        // The textbook interval: 1.96 standard errors of a difference of means on both sides.
        let error = 1.96 * (64.0 / 400.0f64 + 36.0 / 900.0).sqrt();
        let middle = mean(&b) - mean(&a);
        for (bound, expected) in [(found.interval.0, middle - error), (found.interval.1, middle + error)] {
            assert!((bound - expected).abs() < 0.2 * error, "{found:?}: {bound} is not {expected}");
        }
        let (low, high) = found.change.unwrap();
        assert!(
            (low - found.interval.0 / 100.0).abs() < 0.005 && (high - found.interval.1 / 100.0).abs() < 0.005
        );
    }

    #[test]
    fn equal_samples_have_an_interval_of_one_value() {
        let random = &mut RandomGenerator::new(1, 0);
        let found = difference(&vec![vec![4.0; 9]], &vec![vec![5.0; 5], vec![5.0; 2]], FEWER, random);
        assert_eq!(found, MeanDifference { interval: (1.0, 1.0), change: Some((0.25, 0.25)) });
        let found = difference(&vec![vec![0.0; 9]], &vec![vec![5.0; 5]], FEWER, random);
        assert_eq!(found, MeanDifference { interval: (5.0, 5.0), change: None });
    }

    /// The number of 60 pairs of equal sides that are reported as different.
    fn wrong(mut side: impl FnMut(&mut RandomGenerator) -> SampleRuns) -> usize {
        let is_wrong = |seed: &u64| {
            let mut random = RandomGenerator::new(*seed, 3);
            let (a, b) = (side(&mut random), side(&mut random));
            differs(&difference(&a, &b, FEWER, &mut random))
        };
        (0..60).filter(is_wrong).count()
    }

    #[test]
    fn intervals_hold_in_95_percent_of_cases() {
        let count = wrong(|random| vec![(0..60).map(|_| 1000.0 + 300.0 * random.unit()).collect()]);
        assert!((1..=9).contains(&count), "{count} of 60 intervals of 95 % are wrong");
    }

    #[test]
    fn correlated_seconds_show_no_difference() {
        let side = |random: &mut RandomGenerator| {
            let mut level = 0.0;
            let mut next = || {
                level = 0.5 * level + normal(random);
                1000.0 + level
            };
            vec![(0..240).map(|_| next()).collect()]
        };
        let count = wrong(side);
        assert!(count <= 12, "{count} of 60; without blocks it would be every fourth");
    }

    #[test]
    fn varying_runs_show_no_difference() {
        let side = |random: &mut RandomGenerator| {
            let mut run = || {
                let level = 1000.0 + 20.0 * normal(random);
                (0..20).map(|_| level + normal(random)).collect()
            };
            (0..6).map(|_| run()).collect()
        };
        let count = wrong(side);
        assert!(count <= 8, "{count} of 60; without drawing runs it would be nearly all");
    }

    #[test]
    fn few_samples_rarely_show_a_difference() {
        for (runs, seconds) in [(1, 3), (1, 6), (2, 10), (3, 10)] {
            let side = |random: &mut RandomGenerator| {
                let mut run = || {
                    let level = if runs > 1 { 1000.0 + 20.0 * normal(random) } else { 1000.0 };
                    (0..seconds).map(|_| level + normal(random)).collect()
                };
                (0..runs).map(|_| run()).collect()
            };
            let count = wrong(side);
            assert!(count <= 9, "{count} of 60 with {runs} runs of {seconds} s");
        }
    }

    #[test]
    fn few_samples_widen_an_interval() {
        // Tables of Student's distribution, and the root of n / (n - 2).
        for (units, student) in [(4, 4.303), (6, 2.776), (12, 2.228), (32, 2.042), (122, 1.980)] {
            let expected = student / 1.959_964 * (units as f64 / (units as f64 - 2.0)).sqrt();
            assert!(
                (widening(units) / expected - 1.0).abs() < 0.04,
                "{units}: {} {expected}",
                widening(units)
            );
        }
        assert!(widening(0) == widening(3) && widening(3).is_finite());
    }
}
