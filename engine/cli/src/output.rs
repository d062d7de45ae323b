//! Values and times as people read them.

use crate::style::{Paint, paint};
use comfy_table::{Row, presets};
use handle_proto::data::{self, Data};
use handle_proto::value::Ttl;
use handle_proto::{Handle, Value};
use serde_json::Value as Json;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::sync::OnceLock;

/// Prints a line, as that of std does, which panics when the reader has gone.
macro_rules! println {
    () => { $crate::output::line(format_args!("")) };
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}

/// Why a line could not be printed, the first that was not.
static UNPRINTED: OnceLock<io::Error> = OnceLock::new();

/// Prints a line. After one that could not be printed none is; [`check`] says why.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    if UNPRINTED.get().is_some() {
        return;
    }
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_fmt(text).and_then(|()| out.write_all(b"\n")) {
        // Another thread may have met it, too.
        let _ = UNPRINTED.set(error);
    }
}

/// Whether all lines could be printed. `main` asks this at the end, and before that whoever would go on for long.
///
/// # Errors
/// Why one could not; that the reader has gone is a broken pipe.
pub(crate) fn check() -> anyhow::Result<()> {
    let Some(error) = UNPRINTED.get() else { return Ok(()) };
    let error = match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    };
    Err(anyhow::Error::new(error).context("cannot write what was found"))
}

/// Most characters of data in a table row, when it does not go to a file.
const DATA_CHARS_MAX: usize = 2000;

/// A table without frames. Each row is one line, however long: what is copied from it is whole.
pub(crate) struct Table {
    table: comfy_table::Table,
    paints: Vec<Paint>,
}

/// A table with these columns.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = comfy_table::Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    Table { table, paints: vec![Paint::Strong] }
}

impl Table {
    pub(crate) fn add_row(&mut self, row: impl Into<Row>) {
        self.add_painted(Paint::Plain, row);
    }

    /// Adds a row that is painted as a whole.
    pub(crate) fn add_painted(&mut self, paint: Paint, row: impl Into<Row>) {
        self.table.add_row(row);
        self.paints.push(paint);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (line, &of)) in self.table.lines().zip(&self.paints).enumerate() {
            let end = if number == 0 { "" } else { "\n" };
            write!(f, "{end}{}", paint(of, line.trim_end()))?;
        }
        Ok(())
    }
}

/// Values as a table.
pub(crate) fn values<'a>(values: impl IntoIterator<Item = Value<'a>>) -> Table {
    let mut table = table(&["index", "type", "ttl", "rights", "changed", "data"]);
    for value in values {
        table.add_row([
            value.index.to_string(),
            printable(&Handle(value.kind).to_string()),
            ttl(value.ttl),
            value.permissions.to_string(),
            unix_time(value.timestamp.into()),
            describe(value.kind, value.data),
        ]);
    }
    table
}

/// The data of a value in one line, by what its type says.
pub(crate) fn describe(kind: &[u8], bytes: &[u8]) -> String {
    let text = match Data::decode(kind, bytes) {
        Data::Admin(admin) => format!("{} may {}", admin.reference, admin.permissions),
        Data::Vlist(group) => group.0.iter().map(|member| member.to_string()).collect::<Vec<_>>().join(", "),
        Data::Site(site) => site_line(&site),
        Data::PublicKey(key) => format!("{} key, {} bits", key.algorithm(), key.bits()),
        Data::SecretKey(secret) => format!("secret of {} bytes", secret.0.len()),
        _ => match data::text(bytes) {
            Some(text) => text.replace(['\n', '\r', '\t'], " "),
            None => hex(bytes),
        },
    };
    short(&text, bytes.len())
}

/// `text`, of data of so many bytes, as [`printable`] shows it, up to a length.
pub(crate) fn short(text: &str, len: usize) -> String {
    let text = printable(text);
    match text.char_indices().nth(DATA_CHARS_MAX) {
        Some((at, _)) => format!("{}... ({len} bytes)", &text[..at]),
        None => text,
    }
}

/// `text` with what steers written out: what others say ends no line, moves no cursor and turns no text around.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match steers(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out
}

/// The same of a text of our own that may have several lines.
pub(crate) fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Whether a terminal does something else with `c` than show it: controls, line ends of other kinds, and marks of the
/// direction of writing, by which a text can look like another.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// JSON on several lines, where what steers a terminal is escaped, which means the same to whoever reads it.
pub(crate) fn json(json: &Json) -> String {
    escaped(&format!("{json:#}"))
}

/// The same on one line.
pub(crate) fn json_line(json: &Json) -> String {
    escaped(&json.to_string())
}

/// What serde_json leaves as it is can stand only inside strings, but for the ends of lines.
fn escaped(text: &str) -> String {
    if !text.contains(|c| c != '\n' && steers(c)) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c != '\n' && steers(c) {
            // All of them are in the basic plane.
            true => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            false => out.push(c),
        }
    }
    out
}

fn site_line(site: &data::Site<'_>) -> String {
    let role = if site.is_primary() { "primary" } else { "secondary" };
    let mut line = format!("{role} site, serial {}, protocol {}", site.serial, site.protocol);
    for server in site.servers {
        let _ = write!(line, "; server {} at {}:", server.id, server.address);
        for interface in server.interfaces.iter() {
            let protocol = interface.protocol.name().unwrap_or("?");
            let _ = write!(line, " {protocol}/{}", interface.port_number);
        }
    }
    line
}

/// Says on standard output, for scripts that asked for JSON, why there is nothing else.
pub(crate) fn error_as_json(why: &str) {
    println!("{}", json_line(&serde_json::json!({ "error": why })));
}

/// What came of a command; if it failed also [as JSON](error_as_json), if that is wanted.
pub(crate) fn or_as_json<T>(done: anyhow::Result<T>, is_wanted: bool) -> anyhow::Result<T> {
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

/// A time to live, as people say it.
pub(crate) fn ttl(ttl: Ttl) -> String {
    match ttl.kind {
        Ttl::RELATIVE => format!("{} s", ttl.seconds),
        Ttl::ABSOLUTE => format!("until {}", unix_time(ttl.seconds.into())),
        kind => format!("{} (kind {kind})", ttl.seconds),
    }
}

/// A Unix time as ISO 8601; a dash for none.
pub(crate) fn unix_time(seconds: i64) -> String {
    match jiff::Timestamp::from_second(seconds) {
        Ok(time) if seconds != 0 => time.to_string(),
        _ => "-".to_owned(),
    }
}

/// Bytes as people count them.
pub(crate) fn bytes(count: u64) -> String {
    indicatif::HumanBytes(count).to_string()
}

/// A count with separators.
pub(crate) fn count(count: u64) -> String {
    indicatif::HumanCount(count).to_string()
}

/// So many in that time, as a rate.
pub(crate) fn rate(count: u64, took: std::time::Duration) -> String {
    indicatif::HumanFloatCount((count as f64 / took.as_secs_f64()).round()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_say_is_one_line_and_steers_nothing() {
        assert_eq!(printable("\u{202e}\u{2028}\u{61c}"), "\\u{202e}\\u{2028}\\u{61c}");
        assert_eq!(printable_lines("a\nb\u{1b}"), "a\nb\\u{1b}");
        assert_eq!(printable("a\n10.1/x\t\u{1b}[2J\u{9b}\u{7f}é"), "a\\n10.1/x\\t\\u{1b}[2J\\u{9b}\\u{7f}é");
        let admin =
            handle_proto::data::Admin::new(handle_proto::data::AdminPermissions::ALL, b"10.1/\x1b[2J\n", 300);
        let mut data = Vec::new();
        admin.encode(&mut data);
        assert!(!describe(b"HS_ADMIN", &data).contains(char::is_control));
    }

    #[test]
    fn json_means_the_same_and_steers_nothing() {
        let value = serde_json::json!({ "a": "\u{9b}2J\u{202e}\u{7f}\n\u{1b}é", "b": [1, 2] });
        for text in [json(&value), json_line(&value)] {
            assert!(!text.contains(|c| c != '\n' && steers(c)), "{text:?}");
            assert_eq!(serde_json::from_str::<Json>(&text).unwrap(), value);
        }
        assert_eq!(json_line(&value).lines().count(), 1);
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
