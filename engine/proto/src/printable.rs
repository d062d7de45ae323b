//! Makes untrusted text safe to show on a terminal, in a log or in a report.
//!
//! Names, values and messages of servers may contain anything. Shown unchanged, control characters
//! move the cursor or change the terminal's settings, line ends forge lines of output, and
//! bidirectional controls make one name look like another. [`Printable`] escapes all of these;
//! other Unicode text stays readable.
//!
//! The escapes are those of JSON (`\n`, `\u009b`), and all escaped characters but tab and line end
//! can occur only inside the strings of a JSON text, so an escaped JSON text stays valid and keeps
//! its meaning.

use core::fmt::{self, Write};

/// Whether `c` has another effect on a terminal than being shown.
///
/// These are C0, DEL and C1 controls, the bidirectional controls U+061C, U+200E, U+200F, U+202A to
/// U+202E and U+2066 to U+2069 (Unicode Standard Annex 9), and the line and paragraph separators
/// U+2028 and U+2029.
#[must_use]
pub const fn is_unprintable(c: char) -> bool {
    matches!(
        c,
        '\0'..='\x1f'
            | '\x7f'..='\u{9f}'
            | '\u{61c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
    )
}

/// Shows `T` on one line: everything [unprintable](is_unprintable) is escaped.
#[derive(Clone, Copy, Debug)]
pub struct Printable<T>(pub T);

impl<T: fmt::Display> fmt::Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaper { out: f, kept: &[] }, "{}", self.0)
    }
}

/// Shows `T` with its lines and tabs; everything else that is [unprintable](is_unprintable) is
/// escaped.
///
/// For whole reports and JSON texts. Untrusted text inside them must go through [`Printable`]
/// first, because it could forge lines.
#[derive(Clone, Copy, Debug)]
pub struct PrintableLines<T>(pub T);

impl<T: fmt::Display> fmt::Display for PrintableLines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaper { out: f, kept: &['\n', '\t'] }, "{}", self.0)
    }
}

/// Escapes what is written to it.
struct Escaper<'a, W> {
    out: &'a mut W,
    /// Unprintable characters that are not escaped.
    kept: &'static [char],
}

impl<W: Write> Write for Escaper<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((at, c)) =
            rest.char_indices().find(|(_, c)| is_unprintable(*c) && !self.kept.contains(c))
        {
            self.out.write_str(&rest[..at])?;
            match c {
                '\n' => self.out.write_str("\\n")?,
                '\r' => self.out.write_str("\\r")?,
                '\t' => self.out.write_str("\\t")?,
                // All of them are in the Basic Multilingual Plane.
                c => write!(self.out, "\\u{:04x}", u32::from(c))?,
            }
            rest = &rest[at + c.len_utf8()..];
        }
        self.out.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::{String, ToString};
    use proptest::prelude::*;

    #[test]
    fn controls_line_ends_and_directions_are_escaped_and_nothing_else() {
        let shown = Printable("a\n\r\t\0\x1b[2J\x7f\u{80}\u{9b}é日本\u{200d}😀").to_string();
        assert_eq!(shown, "a\\n\\r\\t\\u0000\\u001b[2J\\u007f\\u0080\\u009bé日本\u{200d}😀");
        for c in
            ['\u{61c}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}', '\u{202a}', '\u{202e}', '\u{2066}']
        {
            assert!(is_unprintable(c), "{c:?}");
            assert_eq!(Printable(c).to_string(), alloc::format!("\\u{:04x}", u32::from(c)));
        }
        for c in [' ', '~', '\u{a0}', '\u{61b}', '\u{200d}', '\u{2010}', '\u{202f}', '\u{2065}', '\u{206a}'] {
            assert!(!is_unprintable(c), "{c:?}");
        }
    }

    #[test]
    fn lines_and_tabs_of_a_report_stay() {
        assert_eq!(PrintableLines("a\tb\n\u{9b}c\r").to_string(), "a\tb\n\\u009bc\\r");
    }

    #[cfg(feature = "json")]
    #[test]
    fn a_json_text_means_the_same() {
        let json = serde_json::json!({ "a\u{202e}": "\u{9b}2J\u{7f}\n\u{1b}é\\", "b": [1, "\u{2028}"] });
        for text in [json.to_string(), alloc::format!("{json:#}")] {
            let shown = PrintableLines(&text).to_string();
            assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), json);
        }
    }

    proptest! {
        #[test]
        fn nothing_unprintable_is_left(text: String) {
            prop_assert!(!Printable(&text).to_string().contains(is_unprintable));
            let is_left = |c| is_unprintable(c) && !matches!(c, '\n' | '\t');
            prop_assert!(!PrintableLines(&text).to_string().contains(is_left));
        }
    }
}
