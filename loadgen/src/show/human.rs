//! Times and counts for people.

use std::fmt;

/// Nanoseconds for people: three digits and a unit.
pub(crate) struct HumanDuration(pub(crate) u64);

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scale, unit) = match self.0 {
            0..1_000 => (1.0, "ns"),
            1_000..1_000_000 => (1e3, "us"),
            1_000_000..1_000_000_000 => (1e6, "ms"),
            _ => (1e9, "s"),
        };
        let number = self.0 as f64 / scale;
        let digits = if scale == 1.0 || number >= 99.95 { 0 } else { 1 + usize::from(number < 9.995) };
        f.pad(&format!("{number:.digits$} {unit}"))
    }
}

/// A count with its noun in singular or plural.
pub(crate) fn counted(count: u64, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}
