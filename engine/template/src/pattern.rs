//! Regular expressions in the syntax of deployed servers' templates, in linear time.

use crate::limit::{MATCHED_UNIT_LEN, PATTERN_DEPTH_MAX, PATTERN_LEN_MAX};
use regex::{Regex, RegexBuilder};
use std::fmt;
use std::iter::Peekable;
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
}

/// Smallest size that is tried for a compiled pattern.
const PATTERN_LEN_MIN: usize = 1 << 10;

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
    /// Compiles `java`, which ignores case if the service does, if it takes at most `len_max`
    /// bytes.
    pub(crate) fn new(java: &str, folds: bool, len_max: usize) -> Result<Self, InvalidPattern> {
        let invalid = |why: String| InvalidPattern { pattern: java.to_owned(), why };
        let translated = translate(java).map_err(|why| invalid(why.to_owned()))?;
        let compile = |pattern: &str, len_max: usize| {
            RegexBuilder::new(pattern)
                .case_insensitive(folds)
                .crlf(true)
                .size_limit(len_max)
                .nest_limit(PATTERN_DEPTH_MAX)
                .build()
        };
        let whole = format!(r"\A(?:{translated})\z");
        // The library does not report the size of a compiled pattern, but refuses patterns above a
        // given size.
        let mut len = PATTERN_LEN_MIN;
        while len <= len_max.min(PATTERN_LEN_MAX) {
            // First alone: "a)(b" must not become valid by the group around it.
            match compile(&translated, len).and_then(|_| compile(&whole, len)) {
                Ok(regex) => return Ok(Self { regex, len }),
                Err(regex::Error::CompiledTooBig(_)) => len *= 2,
                // The last line has the reason; the lines above point to its position.
                Err(error) => {
                    let why = error.to_string();
                    return Err(invalid(why.lines().last().unwrap_or_default().trim().to_owned()));
                }
            }
        }
        let why = if len > PATTERN_LEN_MAX {
            "it is too large"
        } else {
            "it is too large beside the other patterns"
        };
        Err(invalid(why.to_owned()))
    }

    /// Bytes of the compiled pattern, rounded up to a power of two.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The cost of a match with a text of `text_len` bytes, in the unit of
    /// [`MATCHED_LEN_MAX`](crate::limit::MATCHED_LEN_MAX).
    pub(crate) const fn cost(&self, text_len: usize) -> usize {
        (text_len + 1).saturating_mul(self.len.div_ceil(MATCHED_UNIT_LEN))
    }

    /// The groups of a match with the whole of `text`, group 0 first; `None` if it does not match.
    pub(crate) fn groups(&self, text: &str) -> Option<Vec<String>> {
        let found = self.regex.captures(text)?;
        Some(found.iter().map(|group| group.map_or("", |group| group.as_str()).to_owned()).collect())
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

    fn groups(java: &str, text: &str) -> Option<Vec<String>> {
        HandlePattern::new(java, false, PATTERN_LEN_MAX)
            .unwrap_or_else(|error| panic!("{error}"))
            .groups(text)
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
        assert!(
            HandlePattern::new("ab\u{fc}", true, PATTERN_LEN_MAX).unwrap().groups("AB\u{dc}").is_some(),
            "beyond ASCII too"
        );
        assert!(HandlePattern::new("ab", false, PATTERN_LEN_MAX).unwrap().groups("AB").is_none());
        assert!(HandlePattern::new("(?i)ab", false, PATTERN_LEN_MAX).unwrap().groups("AB").is_some());
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
            let error = HandlePattern::new(java, true, PATTERN_LEN_MAX).expect_err(java);
            assert_eq!(error.pattern, java);
            assert!(!error.why.is_empty() && error.to_string().contains(java));
        }
        let deep = "(".repeat(40) + &")".repeat(40);
        assert!(HandlePattern::new(&deep, true, PATTERN_LEN_MAX).is_err());
    }

    #[test]
    fn a_pattern_costs_by_its_compiled_size() {
        let small = HandlePattern::new("y", true, PATTERN_LEN_MAX).unwrap();
        assert_eq!((small.len(), small.cost(9)), (PATTERN_LEN_MIN, 10));
        let large = HandlePattern::new("(.*?)([a-c]?){200}x", true, PATTERN_LEN_MAX).unwrap();
        assert!(large.len() >= 16 * MATCHED_UNIT_LEN, "{}", large.len());
        assert_eq!(large.cost(9), 10 * large.len() / MATCHED_UNIT_LEN);
        // At the limit of the bytes that are left, and beyond it.
        assert!(HandlePattern::new("(.*?)([a-c]?){200}x", true, large.len()).is_ok());
        let refused = HandlePattern::new("(.*?)([a-c]?){200}x", true, large.len() - 1).unwrap_err();
        assert!(refused.why.contains("beside"), "{refused}");
    }
}
