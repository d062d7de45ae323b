//! Formats values and times for people.

use crate::style::{self, Paint, paint};
use comfy_table::presets;
use handle_proto::data::Data;
use handle_proto::printable::{Printable, PrintableLines};
use handle_proto::value::Ttl;
use handle_proto::{Handle, Value};
use serde_json::Value as Json;
use std::fmt;
use std::io::{self, Write as _};
use std::sync::OnceLock;

/// Prints one line to standard output. Escapes unprintable characters, including line ends.
#[macro_export]
macro_rules! println {
    () => { $crate::output::line(format_args!("")) };
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}

/// Prints one line to standard error, escaped as on standard output.
#[macro_export]
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::output::error_line(format_args!($($text)*)) };
}

/// The error of the first line that could not be printed.
static UNPRINTED: OnceLock<io::Error> = OnceLock::new();

/// Prints a line. After the first line that could not be printed, this does nothing; [`check`]
/// returns the error.
///
/// All output goes through this function, [`lines`] or [`error_line`], so that no foreign text
/// reaches the terminal unescaped.
pub fn line(text: fmt::Arguments<'_>) {
    put(&one_line(&text.to_string()));
}

/// Prints text of several lines, such as a table, JSON or a script, and keeps its line ends.
pub fn lines(text: impl fmt::Display) {
    put(&escaped(&text.to_string(), |text| PrintableLines(text).to_string()));
}

/// Prints a line to standard error.
pub fn error_line(text: fmt::Arguments<'_>) {
    // A failure here cannot be reported anywhere.
    let _ = io::stderr().lock().write_all(format!("{}\n", one_line(&text.to_string())).as_bytes());
}

fn put(text: &str) {
    if UNPRINTED.get().is_some() {
        return;
    }
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")) {
        // Another thread may have set it already.
        let _ = UNPRINTED.set(error);
    }
}

/// Formats text as one line, in which tabs separate columns.
fn one_line(text: &str) -> String {
    escaped(text, |text| PrintableLines(text).to_string().replace('\n', "\\n"))
}

/// Escapes everything except the colours of this program.
fn escaped(text: &str, escape: impl Fn(&str) -> String) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((at, len)) = style::find_sequence(rest) {
        out.push_str(&escape(&rest[..at]));
        out.push_str(&rest[at..at + len]);
        rest = &rest[at + len..];
    }
    out.push_str(&escape(rest));
    out
}

/// Checks whether all lines could be printed. `main` checks this at the end; long commands check it
/// earlier.
///
/// # Errors
/// The first error; a closed pipe is a broken pipe.
pub fn check() -> anyhow::Result<()> {
    let Some(error) = UNPRINTED.get() else { return Ok(()) };
    let error = match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    };
    Err(anyhow::Error::new(error).context("cannot write to standard output"))
}

/// Maximum number of characters of data in a table row, unless the output is a file.
const DATA_CHARS_MAX: usize = 2000;

/// A table without frames. Each row is one line of any length, so that copied text is complete.
#[derive(Debug)]
pub struct TextTable {
    table: comfy_table::Table,
    paints: Vec<Paint>,
}

/// Creates a table with these columns.
#[must_use]
pub fn table(header: &[&str]) -> TextTable {
    let mut table = comfy_table::Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    TextTable { table, paints: vec![Paint::Strong] }
}

impl TextTable {
    /// Adds a row.
    pub fn add_row(&mut self, row: impl IntoIterator<Item: fmt::Display>) {
        self.add_painted(Paint::Plain, row);
    }

    /// Adds a row painted in one colour.
    pub fn add_painted(&mut self, paint: Paint, row: impl IntoIterator<Item: fmt::Display>) {
        self.table.add_row(row.into_iter().map(|cell| Printable(cell).to_string()));
        self.paints.push(paint);
    }
}

impl fmt::Display for TextTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (line, &of)) in self.table.lines().zip(&self.paints).enumerate() {
            let end = if number == 0 { "" } else { "\n" };
            write!(f, "{end}{}", paint(of, line.trim_end()))?;
        }
        Ok(())
    }
}

/// Formats values as a table.
pub(crate) fn values<'a>(values: impl IntoIterator<Item = Value<'a>>) -> TextTable {
    let mut table = table(&["index", "type", "ttl", "rights", "changed", "data"]);
    for value in values {
        table.add_row([
            value.index.to_string(),
            Handle(value.kind).to_string(),
            ttl(value.ttl),
            value.permissions.to_string(),
            unix_time(value.timestamp.into()),
            describe(value.kind, value.data),
        ]);
    }
    table
}

/// Describes the data of a value on one line, according to its type.
pub(crate) fn describe(kind: &[u8], bytes: &[u8]) -> String {
    let text = Data::decode(kind, bytes).to_string();
    short(&text, bytes.len())
}

/// Shortens `text`, from data of `len` bytes, to a maximum length, as [`printable`] shows it.
pub(crate) fn short(text: &str, len: usize) -> String {
    let text = printable(text);
    match text.char_indices().nth(DATA_CHARS_MAX) {
        Some((at, _)) => format!("{}... ({len} bytes)", &text[..at]),
        None => text,
    }
}

/// Escapes `text` for one line of a terminal.
pub(crate) fn printable(text: &str) -> String {
    Printable(text).to_string()
}

/// Prints JSON on several lines.
pub fn print_json(json: &Json) {
    lines(format_args!("{json:#}"));
}

/// JSON on one line, for files and buffers; `println!` accepts JSON directly.
pub(crate) fn json_line(json: &Json) -> String {
    PrintableLines(json).to_string()
}

/// Prints an error as JSON to standard output, for scripts that requested JSON.
pub(crate) fn error_as_json(why: &str) {
    println!("{}", serde_json::json!({ "error": why }));
}

/// The outcome of a command. If it failed and JSON is wanted, prints the error as JSON.
///
/// # Errors
/// That of the command.
pub fn or_as_json<T>(done: anyhow::Result<T>, is_wanted: bool) -> anyhow::Result<T> {
    done.inspect_err(|error| {
        if is_wanted {
            error_as_json(&format!("{error:#}"));
        }
    })
}

/// Bytes as hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

/// Formats a time to live.
pub(crate) fn ttl(ttl: Ttl) -> String {
    match ttl.kind {
        Ttl::RELATIVE => format!("{} s", ttl.seconds),
        Ttl::ABSOLUTE => format!("until {}", unix_time(ttl.seconds.into())),
        kind => format!("{} (kind {kind})", ttl.seconds),
    }
}

/// Formats a Unix time as ISO 8601, or a dash if there is none.
pub(crate) fn unix_time(seconds: i64) -> String {
    match jiff::Timestamp::from_second(seconds) {
        Ok(time) if seconds != 0 => time.to_string(),
        _ => "-".to_owned(),
    }
}

/// Formats a number of bytes with a unit.
#[must_use]
pub fn bytes(count: u64) -> String {
    indicatif::HumanBytes(count).to_string()
}

/// Formats a count with separators.
#[must_use]
pub fn count(count: u64) -> String {
    indicatif::HumanCount(count).to_string()
}

/// Formats a count with its noun in singular or plural.
#[must_use]
pub fn counted(count: u64, one: &str, several: &str) -> String {
    format!("{} {}", self::count(count), if count == 1 { one } else { several })
}

/// Formats a count over a time as a rate.
pub(crate) fn rate(count: u64, took: std::time::Duration) -> String {
    indicatif::HumanFloatCount((count as f64 / took.as_secs_f64()).round()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_one_line_and_a_report_keeps_its_lines() {
        assert_eq!(one_line("a\tb\n\u{1b}[2J\u{9b}\u{202e}é"), "a\tb\\n\\u001b[2J\\u009b\\u202eé");
        // A colour sequence that does not come from this program is escaped.
        assert_eq!(one_line("\u{1b}[31mred"), "\\u001b[31mred");
        let admin =
            handle_proto::data::Admin::new(handle_proto::data::AdminPermissions::ALL, b"10.1/\x1b[2J\n", 300);
        let mut data = Vec::new();
        admin.encode(&mut data);
        assert!(!describe(b"HS_ADMIN", &data).contains(char::is_control));
        let mut table = table(&["a"]);
        table.add_row(["1\n2 \u{9b}"]);
        assert_eq!(table.to_string().lines().count(), 2);
    }

    #[test]
    fn json_means_the_same_on_one_line() {
        let value = serde_json::json!({ "a": "\u{9b}2J\u{202e}\u{7f}\n\u{1b}é", "b": [1, 2] });
        for text in [json_line(&value), one_line(&value.to_string())] {
            assert!(!text.contains(handle_proto::printable::is_unprintable), "{text:?}");
            assert_eq!(serde_json::from_str::<Json>(&text).unwrap(), value);
        }
    }

    #[test]
    fn a_row_is_one_line_and_ends_with_what_is_in_it() {
        let mut table = table(&["a", "b"]);
        table.add_row(["1".to_owned(), "x".repeat(500)]);
        table.add_painted(Paint::Bad, ["22", ""]);
        let shown = table.to_string();
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!((lines.len(), lines[0], lines[2]), (3, " a   b", " 22"));
        assert!(lines[1].ends_with("xxx"));
    }
}
