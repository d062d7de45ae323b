//! Regular expressions in the syntax of deployed servers' templates, in linear time.

use crate::limit::{CompileBudget, MATCHED_UNIT_LEN, PATTERN_DEPTH_MAX, PATTERN_LEN_MAX};
use regex::{Regex, RegexBuilder};
use std::fmt;
use std::iter::Peekable;
use std::ops::Range;
use std::str::Chars;

/// A pattern that must match a whole text.
///
/// The syntax is that of Java, with three differences: look-around, back references and other
/// features that need more than linear time are refused; possessive quantifiers give back what they
/// matched; `.` matches the rare line ends U+0085, U+2028 and U+2029.
#[derive(Clone, Debug)]
pub(crate) struct HandlePattern {
    regex: Regex,
    /// Bytes of the compiled pattern, rounded up to a power of two.
    len: usize,
    /// Number of groups.
    groups: usize,
}

/// Groups for which a match counts once more, because their positions are kept for each state.
const GROUPS_UNIT: usize = 8;

/// Smallest size that is tried for a compiled pattern.
const PATTERN_LEN_MIN: usize = 1 << 10;

/// Bytes of compiled patterns for which a class beyond ASCII counts: folding the case of its
/// characters takes as long as compiling that many, in each of the sizes that are tried.
const WIDE_CLASS_LEN: usize = 64 << 10;

/// Number of classes, and parts of classes, in a translated pattern that are beyond ASCII.
fn wide_classes(translated: &str) -> usize {
    let (mut count, mut depth, mut chars) = (0, 0_usize, translated.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                let escaped = chars.next();
                count += usize::from(match escaped {
                    Some('p' | 'P') => true,
                    Some('x' | 'u') => depth > 0,
                    _ => false,
                });
            }
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => count += usize::from(depth > 0 && !c.is_ascii()),
        }
    }
    count
}

/// An invalid pattern, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidPattern {
    pub(crate) pattern: String,
    pub(crate) why: String,
}

impl fmt::Display for InvalidPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid pattern \"{}\": {}", self.pattern, self.why)
    }
}

impl std::error::Error for InvalidPattern {}

impl HandlePattern {
    /// Compiles `java`, which ignores case if the service does, if `budget` allows it.
    pub(crate) fn new(java: &str, folds: bool, budget: &mut CompileBudget) -> Result<Self, InvalidPattern> {
        let invalid = |why: String| InvalidPattern { pattern: java.to_owned(), why };
        let translated = translate(java).map_err(|why| invalid(why.to_owned()))?;
        // Compiling takes their time before it finds the size.
        let classes_len = wide_classes(&translated) * WIDE_CLASS_LEN;
        if classes_len > budget.patterns_left() {
            return Err(invalid("it has too many classes beyond ASCII, with the other patterns".to_owned()));
        }
        budget.take_pattern(classes_len);
        let compile = |pattern: &str, len_max: usize| {
            RegexBuilder::new(pattern)
                .case_insensitive(folds)
                .crlf(true)
                .size_limit(len_max)
                .nest_limit(PATTERN_DEPTH_MAX)
                .build()
        };
        let failure = |error: regex::Error| {
            // The last line has the reason; the lines above point to its position.
            invalid(error.to_string().lines().last().unwrap_or_default().trim().to_owned())
        };
        // First alone, and only parsed: "a)(b" must not become valid by the group around it.
        budget.take_pattern(PATTERN_LEN_MIN);
        match compile(&translated, 0) {
            Ok(_) | Err(regex::Error::CompiledTooBig(_)) => {}
            Err(error) => return Err(failure(error)),
        }
        let whole = format!(r"\A(?:{translated})\z");
        // The library does not report the size of a compiled pattern, but refuses patterns above a
        // given size, after it has compiled so much of them.
        let mut len = PATTERN_LEN_MIN;
        while len <= PATTERN_LEN_MAX {
            if len > budget.patterns_left() {
                return Err(invalid("it is too large beside the other patterns".to_owned()));
            }
            budget.take_pattern(len);
            match compile(&whole, len) {
                Ok(regex) => {
                    let groups = regex.captures_len();
                    return Ok(Self { regex, len, groups });
                }
                Err(regex::Error::CompiledTooBig(_)) => len *= 2,
                Err(error) => return Err(failure(error)),
            }
        }
        Err(invalid("it is too large".to_owned()))
    }

    /// The cost of a match with a text of `text_len` bytes, in the unit of
    /// [`MATCHED_LEN_MAX`](crate::limit::MATCHED_LEN_MAX).
    pub(crate) const fn cost(&self, text_len: usize) -> usize {
        let groups = 1 + self.groups / GROUPS_UNIT;
        (text_len + 1).saturating_mul(self.len.div_ceil(MATCHED_UNIT_LEN)).saturating_mul(groups)
    }

    /// The positions in `text` of the groups of a match with all of it, group 0 first; `None` if it
    /// does not match. A group that did not match is empty.
    pub(crate) fn groups(&self, text: &str) -> Option<Vec<Range<usize>>> {
        let found = self.regex.captures(text)?;
        Some(found.iter().map(|group| group.map_or(0..0, |group| group.range())).collect())
    }
}

/// Translates syntax of Java that the library writes differently.
fn translate(java: &str) -> Result<String, &'static str> {
    let (mut out, mut chars, mut class_depth) = (String::new(), java.chars().peekable(), 0_usize);
    while let Some(c) = chars.next() {
        match c {
            '\\' => escape(&mut chars, class_depth > 0, &mut out)?,
            '[' => {
                class_depth += 1;
                out.push(c);
            }
            ']' => {
                class_depth = class_depth.saturating_sub(1);
                out.push(c);
            }
            // An operator between classes for the library, and a plain character in Java.
            '~' if class_depth > 0 => out.push_str(r"\~"),
            '(' if class_depth == 0 => {
                out.push(c);
                if chars.peek() == Some(&'?') {
                    check_flags(chars.clone().skip(1))?;
                }
            }
            _ => out.push(c),
        }
    }
    Ok(out)
}

/// Refuses flags that Java defines differently or not at all.
fn check_flags(chars: impl Iterator<Item = char>) -> Result<(), &'static str> {
    for c in chars {
        match c {
            'i' | 'm' | 's' | 'u' | 'x' | '-' => {}
            'a'..='z' | 'A'..='Z' => return Err("a flag is not supported"),
            _ => break,
        }
    }
    Ok(())
}

fn escape(chars: &mut Peekable<Chars<'_>>, in_class: bool, out: &mut String) -> Result<(), &'static str> {
    let Some(c) = chars.next() else { return Err("it ends with a backslash") };
    // Classes of Java are of ASCII.
    let (within, negated) = match c.to_ascii_lowercase() {
        'd' => (r"0-9", c == 'D'),
        'w' => (r"0-9A-Za-z_", c == 'W'),
        's' => (r" \t\n\x0B\f\r", c == 'S'),
        'p' => return property(chars, c == 'P', in_class, out),
        _ => return other_escape(c, chars, out),
    };
    match (in_class, negated) {
        (true, false) => out.push_str(within),
        (_, negated) => {
            out.push_str(if negated { "[^" } else { "[" });
            out.push_str(within);
            out.push(']');
        }
    }
    Ok(())
}

fn other_escape(c: char, chars: &mut Peekable<Chars<'_>>, out: &mut String) -> Result<(), &'static str> {
    match c {
        'Q' => quoted(chars, out),
        // The end of a quotation that was not opened.
        'E' => {}
        'Z' => out.push_str(r"\z"),
        'e' => out.push_str(r"\x1B"),
        // The library reads these as the start and end of a word.
        '<' | '>' => out.push(c),
        'b' if chars.peek() == Some(&'{') => return Err("it has a boundary that is not supported"),
        'A' | 'B' | 'a' | 'b' | 'f' | 'n' | 'r' | 't' | 'u' | 'x' | 'z' => out.extend(['\\', c]),
        '0'..='9' | 'a'..='z' | 'A'..='Z' => return Err("an escape is not supported"),
        _ => out.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
    }
    Ok(())
}

/// Copies everything up to `\E` literally.
fn quoted(chars: &mut Peekable<Chars<'_>>, out: &mut String) {
    while let Some(c) = chars.next() {
        if c == '\\' && chars.peek() == Some(&'E') {
            chars.next();
            return;
        }
        out.push_str(&regex::escape(c.encode_utf8(&mut [0; 4])));
    }
}

/// The POSIX names of ASCII classes; others are properties of Unicode.
fn property(
    chars: &mut Peekable<Chars<'_>>,
    negated: bool,
    in_class: bool,
    out: &mut String,
) -> Result<(), &'static str> {
    const POSIX: [&str; 13] = [
        "Alnum", "Alpha", "ASCII", "Blank", "Cntrl", "Digit", "Graph", "Lower", "Print", "Punct", "Space",
        "Upper", "XDigit",
    ];
    let letter = if negated { 'P' } else { 'p' };
    if chars.peek() != Some(&'{') {
        out.extend(['\\', letter]);
        return Ok(());
    }
    chars.next();
    let name: String = chars.by_ref().take_while(|&c| c != '}').collect();
    if POSIX.contains(&name.as_str()) {
        let (not, name) = (if negated { "^" } else { "" }, name.to_ascii_lowercase());
        let class = format!("[:{not}{name}:]");
        out.push_str(&if in_class { class } else { format!("[{class}]") });
    } else {
        out.push_str(&format!(r"\{letter}{{{name}}}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::PATTERNS_LEN_MAX;

    fn groups(java: &str, text: &str) -> Option<Vec<String>> {
        let pattern = compile(java, false).unwrap_or_else(|error| panic!("{error}"));
        Some(pattern.groups(text)?.into_iter().map(|range| text[range].to_owned()).collect())
    }

    fn compile(java: &str, folds: bool) -> Result<HandlePattern, InvalidPattern> {
        HandlePattern::new(java, folds, &mut CompileBudget::default())
    }

    #[test]
    fn the_whole_text_must_match() {
        assert_eq!(groups("a|ab", "ab").unwrap(), ["ab"]);
        assert_eq!(groups("b", "abc"), None);
        assert_eq!(groups("", "").unwrap(), [""]);
        assert_eq!(groups(r"box\(([^,]*),([^,]*)\)", "box(1,2)").unwrap(), ["box(1,2)", "1", "2"]);
        assert_eq!(groups("(a)|(b)", "b").unwrap(), ["b", "", "b"], "a group that did not match is empty");
    }

    #[test]
    fn case_is_that_of_the_service() {
        assert!(compile("ab\u{fc}", true).unwrap().groups("AB\u{dc}").is_some(), "beyond ASCII too");
        assert!(compile("ab", false).unwrap().groups("AB").is_none());
        assert!(compile("(?i)ab", false).unwrap().groups("AB").is_some());
    }

    #[test]
    fn has_the_meaning_of_java() {
        for (java, text, matches) in [
            (r"\d+", "12", true),
            (r"\d", "\u{0663}", false),
            (r"[\d.]+", "1.2", true),
            (r"[^\W_]+", "a1", true),
            (r"[^\W_]+", "a_", false),
            (r"\D", "x", true),
            (r"\s", "\u{a0}", false),
            (r"\S\w", "\u{a0}b", true),
            (r"[\D]", "5", false),
            (r"\Qa.b\E.", "a.bc", true),
            (r"\Qa.b\E", "axb", false),
            (r"\Qa.b", "a.b", true),
            (r"\p{Lower}+", "abc", true),
            (r"\p{Lower}", "\u{fc}", false),
            (r"\P{Lower}", "\u{fc}", true),
            (r"[\p{Digit}a]+", "1a", true),
            (r"[\P{Digit}]", "1", false),
            (r"\p{L}\pL", "\u{fc}\u{fc}", true),
            (r"\p{IsGreek}", "\u{3b1}", true),
            (r"\<a\>", "<a>", true),
            (r"\ \-\/\@", " -/@", true),
            ("[a~~b]+", "~a", true),
            (r"\u0041\x42", "AB", true),
            (r"(?<year>\d{4})", "2026", true),
            ("(?s).", "\n", true),
            (".", "\r", false),
            ("a*+b", "aab", true),
            (r"a\Z", "a", true),
            ("\\\u{fc}", "\u{fc}", true),
            ("(?i)A", "a", true),
        ] {
            assert_eq!(groups(java, text).is_some(), matches, "{java} on {text:?}");
        }
    }

    #[test]
    fn unbounded_and_invalid_patterns_are_refused() {
        for java in [
            "a)(b",
            "(a",
            "[a",
            "*",
            r"(a)\1",
            "(?=a)",
            "(?!a)",
            "(?<=a)b",
            "(?>a)",
            r"\k<a>",
            "(?U)a",
            "(?d)a",
            "(?P<a>b)",
            r"\R",
            r"\b{g}",
            "a\\",
            "(?i",
            "a{1000}{1000}",
            r"\p{InGreek}",
            "(?x)a #",
        ] {
            let error = compile(java, true).expect_err(java);
            assert_eq!(error.pattern, java);
            assert!(!error.why.is_empty() && error.to_string().contains(java));
        }
        let deep = "(".repeat(40) + &")".repeat(40);
        let error = compile(&deep, true).unwrap_err();
        assert!(error.why.contains("nest"), "{error}");
    }

    #[test]
    fn classes_beyond_ascii_are_few() {
        assert_eq!(wide_classes(r"\pL[a-z][\x{100}-\x{200}][^,]\x41[\u{fc}]"), 4);
        assert_eq!(wide_classes("[\u{fc}-\u{ff}]"), 2);
        assert!(compile(&r"\pL".repeat(2), true).is_ok());
        let error = compile(&r"\pL".repeat(13), true).unwrap_err();
        assert!(error.why.contains("classes beyond ASCII"), "{error}");
    }

    #[test]
    fn a_pattern_costs_by_its_compiled_size() {
        let small = compile("y", true).unwrap();
        assert_eq!((small.len, small.cost(9)), (PATTERN_LEN_MIN, 10));
        let large = compile("(.*?)([a-c]?){200}x", true).unwrap();
        assert!(large.len >= 16 * MATCHED_UNIT_LEN, "{}", large.len);
        assert_eq!(large.cost(9), 10 * large.len / MATCHED_UNIT_LEN);
        // At the limit of the bytes that are left, and beyond it.
        let mut budget = CompileBudget::default();
        budget.take_pattern(budget.patterns_left() - 2 * large.len);
        assert!(HandlePattern::new("(.*?)([a-c]?){200}x", true, &mut budget).is_ok());
        assert_eq!(budget.patterns_left(), 0);
        let mut budget = CompileBudget::default();
        budget.take_pattern(budget.patterns_left() - 2 * large.len + 1);
        let refused = HandlePattern::new("(.*?)([a-c]?){200}x", true, &mut budget).unwrap_err();
        assert!(refused.why.contains("beside"), "{refused}");
        assert!(budget.patterns_left() < large.len, "a refused pattern counts");
    }

    #[test]
    fn every_attempt_to_compile_counts() {
        let spent = |java: &str| {
            let mut budget = CompileBudget::default();
            let compiled = HandlePattern::new(java, true, &mut budget);
            (PATTERNS_LEN_MAX - budget.patterns_left(), compiled.map(|pattern| pattern.len))
        };
        assert_eq!(spent("y"), (2 * PATTERN_LEN_MIN, Ok(PATTERN_LEN_MIN)));
        let (large, len) = spent("(.*?)([a-c]?){200}x");
        assert_eq!(large, 2 * len.unwrap(), "each half of the one after it");
        let (too_large, refused) = spent("a{1000}{1000}");
        assert_eq!(too_large, 2 * PATTERN_LEN_MAX);
        assert_eq!(refused.unwrap_err().why, "it is too large");
        let (wrong, refused) = spent("a)(b");
        assert_eq!(wrong, PATTERN_LEN_MIN, "it is only parsed");
        assert!(refused.unwrap_err().why.contains("unopened group"));
    }
}
