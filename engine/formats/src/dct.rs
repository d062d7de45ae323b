//! Settings as deployed servers and clients write them: `config.dct`.
//!
//! ```text
//! {
//!   "tcp_timeout" = "10000"
//!   "site_filter_keywords" = ( "europe" "fast" )
//!   "server_config" = { "case_sensitive" = "no" }
//! }
//! ```
//!
//! Blanks, line ends, `,` and `;` are separators; there are no numbers, no truth values and no
//! comments. A text without blanks, separators, `=` and brackets may be written without quotation
//! marks. If a key occurs twice, the last one counts. Anything after the bracket that closes the
//! settings is ignored.

use std::collections::BTreeMap;
use std::fmt;

/// Deepest nesting of lists and objects.
pub const NESTING_MAX: usize = 32;

/// The value of a key, or an item of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DctSetting {
    /// `"text"`, or `text`.
    Text(String),
    /// `( ... )`.
    List(Vec<Self>),
    /// `{ ... }`.
    Settings(DctSettings),
}

/// Settings by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DctSettings(BTreeMap<String, DctSetting>);

/// Why a file of settings is invalid, and on which line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DctError {
    /// Number of the line, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: &'static str,
}

impl fmt::Display for DctError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for DctError {}

impl DctSettings {
    /// Parses a file of settings.
    ///
    /// # Errors
    /// When it is invalid, or its parts are nested too deep.
    pub fn parse(text: &str) -> Result<Self, DctError> {
        let mut reader = DctReader { text, rest: text };
        reader.expect('{', "{ should begin the settings")?;
        reader.settings(1)
    }

    /// The value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&DctSetting> {
        self.0.get(key)
    }

    /// The keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The settings under `key`; `None` if its value is of another kind.
    #[must_use]
    pub fn settings_of(&self, key: &str) -> Option<&Self> {
        match self.get(key)? {
            DctSetting::Settings(settings) => Some(settings),
            _ => None,
        }
    }

    /// The text under `key`; `None` if its value is of another kind.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            DctSetting::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The texts in the list under `key`, or the single text there.
    #[must_use]
    pub fn texts(&self, key: &str) -> Vec<&str> {
        match self.get(key) {
            Some(DctSetting::Text(text)) => vec![text],
            Some(DctSetting::List(list)) => list
                .iter()
                .filter_map(|setting| match setting {
                    DctSetting::Text(text) => Some(text.as_str()),
                    _ => None,
                })
                .collect(),
            _ => vec![],
        }
    }

    /// The truth value of `key`, as deployed software reads it: `y` or `yes`, `t`, `true` or `1`,
    /// and their opposites, in any case. `None` for anything else.
    #[must_use]
    pub fn truth(&self, key: &str) -> Option<bool> {
        match self.text(key)?.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" | "t" | "true" | "1" => Some(true),
            "n" | "no" | "f" | "false" | "0" => Some(false),
            _ => None,
        }
    }
}

const fn separates(c: char) -> bool {
    c.is_whitespace() || matches!(c, ',' | ';')
}

/// Whether an unquoted text ends before `c`.
const fn ends_plain(c: char) -> bool {
    separates(c) || matches!(c, '=' | '(' | ')' | '{' | '}')
}

struct DctReader<'a> {
    text: &'a str,
    rest: &'a str,
}

impl DctReader<'_> {
    fn error(&self, what: &'static str) -> DctError {
        let read = &self.text[..self.text.len() - self.rest.len()];
        DctError { line: read.matches('\n').count() + 1, what }
    }

    /// The next character after separators.
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start_matches(separates);
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.rest.chars().next()?;
        self.rest = &self.rest[next.len_utf8()..];
        Some(next)
    }

    fn expect(&mut self, mark: char, what: &'static str) -> Result<(), DctError> {
        match self.peek() {
            Some(found) if found == mark => {
                self.next();
                Ok(())
            }
            _ => Err(self.error(what)),
        }
    }

    fn is_next(&mut self, mark: char) -> bool {
        self.peek() == Some(mark) && self.next().is_some()
    }

    /// Parses keys and values, after the opening bracket.
    fn settings(&mut self, depth: usize) -> Result<DctSettings, DctError> {
        let mut settings = DctSettings::default();
        while !self.is_next('}') {
            let key = self.text("expected a key or }")?;
            self.expect('=', "= should stand between a key and what is set to it")?;
            settings.0.insert(key, self.setting(depth)?);
        }
        Ok(settings)
    }

    fn setting(&mut self, depth: usize) -> Result<DctSetting, DctError> {
        if depth > NESTING_MAX {
            return Err(self.error("lists and objects are nested too deep"));
        }
        if self.is_next('{') {
            return self.settings(depth + 1).map(DctSetting::Settings);
        }
        if self.is_next('(') {
            let mut list = vec![];
            while !self.is_next(')') {
                list.push(self.setting(depth + 1)?);
            }
            return Ok(DctSetting::List(list));
        }
        self.text("expected a text, ( or {").map(DctSetting::Text)
    }

    fn text(&mut self, what: &'static str) -> Result<String, DctError> {
        if self.is_next('"') {
            return self.quoted();
        }
        let (text, rest) = self.rest.split_at(self.rest.find(ends_plain).unwrap_or(self.rest.len()));
        if text.is_empty() {
            return Err(self.error(what));
        }
        self.rest = rest;
        Ok(text.to_owned())
    }

    /// Parses a quoted text, after the opening mark.
    fn quoted(&mut self) -> Result<String, DctError> {
        let mut text = String::new();
        loop {
            match self.next() {
                Some('"') => return Ok(text),
                Some('\\') => match self.next() {
                    Some('n') => text.push('\n'),
                    Some('r') => text.push('\r'),
                    Some('t') => text.push('\t'),
                    Some(c) => text.push(c),
                    None => break,
                },
                Some(c) => text.push(c),
                None => break,
            }
        }
        Err(self.error("a text is not closed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn settings_are_read_as_they_are_found() {
        let settings = DctSettings::parse(
            r#"
            {
            "tcp_timeout" = "10000" "no_udp_resolution"="y"
              "site_filter_keywords" = ( "europe" "a b" ( ) {} )
              "server_config" = { "case_sensitive" = "no" }
              "text" = "a \"quoted\" \\ back\nslash é"
              "twice" = "one"  "twice" = "two"  "alone" = "x"
            }
            "#,
        )
        .unwrap();
        assert_eq!(settings.text("tcp_timeout"), Some("10000"));
        assert_eq!(settings.truth("no_udp_resolution"), Some(true));
        assert_eq!(settings.texts("site_filter_keywords"), ["europe", "a b"]);
        assert_eq!(settings.texts("alone"), ["x"]);
        assert_eq!(settings.text("text"), Some("a \"quoted\" \\ back\nslash é"));
        assert_eq!(settings.text("twice"), Some("two"));
        let Some(DctSetting::Settings(server)) = settings.get("server_config") else { panic!("settings") };
        assert_eq!(server.truth("case_sensitive"), Some(false));
        assert_eq!((settings.text("server_config"), settings.truth("alone")), (None, None));
        assert_eq!(DctSettings::parse("{}"), Ok(DctSettings::default()));
    }

    #[test]
    fn settings_are_read_as_they_are_written_by_hand() {
        let settings = DctSettings::parse(
            r#"
            ;{
              tcp_timeout = 5000; "no_udp_resolution"=y,
              site_filter_keywords = (europe,"a, b";asia), server_config = {case_sensitive=no}
              "odd"=a"b\n:[c]# x="1"y=2
            }
            } what "follows = (
            "#,
        )
        .unwrap();
        assert_eq!(settings.text("tcp_timeout"), Some("5000"));
        assert_eq!(settings.truth("no_udp_resolution"), Some(true));
        assert_eq!(settings.texts("site_filter_keywords"), ["europe", "a, b", "asia"]);
        let Some(DctSetting::Settings(server)) = settings.get("server_config") else { panic!("settings") };
        assert_eq!(server.truth("case_sensitive"), Some(false));
        assert_eq!(settings.text("odd"), Some(r#"a"b\n:[c]#"#));
        assert_eq!((settings.text("x"), settings.text("y")), (Some("1"), Some("2")));
    }

    #[test]
    fn what_is_none_says_on_which_line() {
        for (text, line) in [
            ("", 1),
            ("\n\"a\" = \"b\"", 2),
            ("{\n\"a\" \"b\" }", 2),
            ("{\na b }", 2),
            ("{ \"a\" =\n\n}", 3),
            ("{ a =,\n; = b }", 2),
            ("{\n=\n}", 2),
            ("{ a = b\n( c ) }", 2),
            ("{ a = ( b\n= c ) }", 2),
            ("{ a = b", 1),
            ("{ a", 1),
            ("{ \"a\" = \"b\n\n", 3),
            ("{ \"a\" = \"b\\", 1),
            ("{ \"a\" = ( \"b\" }", 1),
            ("{ \"a\" = \"b\"", 1),
            ("# text\n{}", 1),
            ("text {}", 1),
        ] {
            assert_eq!(DctSettings::parse(text).unwrap_err().line, line, "{text:?}");
        }
    }

    #[test]
    fn so_deep_do_parts_lie_in_each_other() {
        let nested = |depth: usize| format!("{{ \"a\" = {}{} }}", "(".repeat(depth), ")".repeat(depth));
        assert!(DctSettings::parse(&nested(NESTING_MAX)).is_ok());
        for depth in [NESTING_MAX + 1, 100_000] {
            let error = DctSettings::parse(&nested(depth)).unwrap_err();
            assert_eq!(error.what, "lists and objects are nested too deep", "{depth}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[{}()\"= a,;\\\\\n]{0,40}") {
            let _ = DctSettings::parse(&text);
        }
    }
}
