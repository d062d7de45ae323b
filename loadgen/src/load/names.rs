//! Generated names: from a template, or with the lengths and characters of real ones.

use std::fmt;
use std::str::FromStr;

use crate::random::RandomGenerator;

/// Names with number ranges: `10.5072/test-{1..5000}`.
///
/// Each `{FIRST..LAST}` stands for all numbers of the range; leading zeros of FIRST set the width
/// of all of them. With several ranges, the last counts fastest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameTemplate {
    text: String,
    parts: Vec<TemplatePart>,
    count: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    Numbers { first: u64, count: u64, width: usize },
}

impl NameTemplate {
    /// Maximum number of names of one template.
    pub const COUNT_MAX: u64 = 1 << 32;

    /// The number of names.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Writes the name number `i` to `name`.
    pub fn write(&self, mut i: u64, name: &mut String) {
        use fmt::Write as _;
        name.clear();
        let mut left = self.count;
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => name.push_str(text),
                TemplatePart::Numbers { first, count, width } => {
                    left /= count;
                    // Writing to a string does not fail.
                    let _ = write!(name, "{:0width$}", first + i / left);
                    i %= left;
                }
            }
        }
    }
}

impl fmt::Display for NameTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for NameTemplate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut parts, mut count, mut rest) = (Vec::new(), 1u64, text);
        while let Some((before, after)) = rest.split_once('{') {
            let (range, after) = after.split_once('}').ok_or("missing } after {")?;
            let (first_text, last) = range.split_once("..").ok_or("expected a range, as {1..5000}")?;
            let number = |text: &str| text.parse::<u64>().map_err(|_| format!("invalid number {text:?}"));
            let (first, last) = (number(first_text)?, number(last)?);
            let numbers = last.checked_sub(first).and_then(|span| span.checked_add(1));
            let numbers =
                numbers.ok_or_else(|| format!("invalid range {{{range}}}: it is descending or too large"))?;
            count = count
                .checked_mul(numbers)
                .filter(|count| *count <= Self::COUNT_MAX)
                .ok_or("too many names")?;
            let width = if first_text.starts_with('0') { first_text.len() } else { 0 };
            parts.push(TemplatePart::Text(before.to_owned()));
            parts.push(TemplatePart::Numbers { first, count: numbers, width });
            rest = after;
        }
        parts.push(TemplatePart::Text(rest.to_owned()));
        let template = Self { text: text.to_owned(), parts, count };
        let mut name = String::new();
        template.write(0, &mut name);
        if name.is_empty() { Err("empty name".to_owned()) } else { Ok(template) }
    }
}

/// Length distribution of the local names of 15,000 DOIs of 2013 (Crossref): (bytes, names).
const LOCAL_NAME_LENS: [(u8, u16); 35] = [
    (3, 5),
    (4, 2),
    (5, 2),
    (6, 35),
    (7, 143),
    (8, 209),
    (9, 1076),
    (10, 645),
    (11, 274),
    (12, 344),
    (13, 514),
    (14, 1030),
    (15, 492),
    (16, 716),
    (17, 2735),
    (18, 1190),
    (19, 616),
    (20, 2130),
    (21, 932),
    (22, 546),
    (23, 228),
    (24, 259),
    (25, 150),
    (26, 123),
    (27, 48),
    (28, 30),
    (29, 42),
    (30, 138),
    (31, 8),
    (32, 20),
    (33, 20),
    (34, 115),
    (35, 167),
    (37, 1),
    (47, 15),
];

/// Character distribution of these local names: digits, lower case letters, and so on.
const LOCAL_NAME_BYTES: [(&[u8], u32); 8] = [
    (b"0123456789", 151_398),
    (b"abcdefghijklmnopqrstuvwxyz", 68_708),
    (b".", 26_331),
    (b"-", 8_741),
    (b"/", 1_637),
    (b"(", 477),
    (b")", 477),
    (b"_", 111),
];

/// Number of different prefixes among them.
const PREFIXES: u64 = 863;

/// Writes the generated name number `i` of `seed` to `name`, with the lengths, character classes
/// and number of prefixes of real DOIs. It contains the number, so that all names differ.
pub fn write_generated(seed: u64, i: u64, name: &mut String) {
    use fmt::Write as _;
    let mut random = RandomGenerator::new(seed, i);
    name.clear();
    // Writing to a string does not fail.
    let _ = write!(name, "10.{}/", 1000 + random.below(PREFIXES));
    let start = name.len();
    let total = LOCAL_NAME_LENS.iter().map(|(_, names)| u64::from(*names)).sum();
    let len = pick(random.below(total), LOCAL_NAME_LENS.map(|(len, names)| (len, u64::from(names))));
    let _ = write!(name, "{i}");
    let total = LOCAL_NAME_BYTES.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
    if name.len() - start + 1 < usize::from(len) {
        // A letter ends the number, so that what follows does not extend it.
        name.push(char::from(b'a' + u8::try_from(random.below(26)).unwrap_or_default()));
    }
    while name.len() - start < usize::from(len) {
        let set = pick(random.below(total), LOCAL_NAME_BYTES.map(|(set, bytes)| (set, u64::from(bytes))));
        let at = usize::try_from(random.below(set.len() as u64)).unwrap_or_default();
        name.push(char::from(set[at]));
    }
}

/// The item in whose range `at` falls.
fn pick<T: Copy, const N: usize>(mut at: u64, items: [(T, u64); N]) -> T {
    for (item, weight) in items {
        if at < weight {
            return item;
        }
        at -= weight;
    }
    items[N - 1].0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn names(text: &str) -> Vec<String> {
        let template: NameTemplate = text.parse().unwrap();
        let mut name = String::new();
        (0..template.count())
            .map(|i| {
                template.write(i, &mut name);
                name.clone()
            })
            .collect()
    }

    #[test]
    fn templates_count() {
        assert_eq!(names("10.1/a{9..11}"), ["10.1/a9", "10.1/a10", "10.1/a11"]);
        assert_eq!(
            names("10.{1..2}/{08..10}x"),
            ["10.1/08x", "10.1/09x", "10.1/10x", "10.2/08x", "10.2/09x", "10.2/10x"]
        );
        assert_eq!(names("10.1/alone"), ["10.1/alone"]);
        for text in
            ["", "a{", "a{1}", "a{x..2}", "a{2..1}", "{0..18446744073709551615}", "{1..99999}{1..99999}"]
        {
            assert!(text.parse::<NameTemplate>().is_err(), "{text}");
        }
    }

    #[test]
    fn generated_names_have_the_lengths_of_real_ones_and_are_all_different() {
        let (mut name, mut all, mut len) = (String::new(), BTreeSet::new(), 0);
        for i in 0..20_000 {
            write_generated(3, i, &mut name);
            assert!(name.starts_with("10.") && name.is_ascii(), "{name}");
            len += name.len() - name.find('/').unwrap() - 1;
            all.insert(name.to_ascii_uppercase());
        }
        assert_eq!(all.len(), 20_000);
        let real: u32 = LOCAL_NAME_LENS.iter().map(|(len, names)| u32::from(*len) * u32::from(*names)).sum();
        let (mean, real) = (len as f64 / 20_000.0, f64::from(real) / 15_000.0);
        assert!((mean - real).abs() < 0.2, "{mean} bytes, real ones have {real}");
        write_generated(3, 5, &mut name);
        let first = name.clone();
        write_generated(3, 5, &mut name);
        assert_eq!(name, first);
    }
}
