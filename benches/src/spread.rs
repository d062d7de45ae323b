//! Statistics over several measurements of one figure.

use std::fmt;

/// Median and range of several measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Computes the spread of `measurements`, which must not be empty.
    ///
    /// # Panics
    /// When `measurements` is empty.
    pub fn of(measurements: impl IntoIterator<Item = f64>) -> Self {
        let mut all: Vec<f64> = measurements.into_iter().collect();
        all.sort_by(f64::total_cmp);
        let half = all.len() / 2;
        let median = if all.len() % 2 == 1 { all[half] } else { (all[half - 1] + all[half]) / 2.0 };
        Self { median, min: all[0], max: all[all.len() - 1] }
    }

    /// Returns a JSON object with the three numbers.
    #[must_use]
    pub fn to_json(self) -> serde_json::Value {
        serde_json::json!({ "median": self.median, "min": self.min, "max": self.max })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(2);
        write!(f, "{:.digits$} ({:.digits$} to {:.digits$})", self.median, self.min, self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of([4.0, 1.0]).median, 2.5);
        assert_eq!(format!("{:.1}", Spread::of([1.0])), "1.0 (1.0 to 1.0)");
    }
}
