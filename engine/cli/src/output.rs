//! Values and times as people read them.

use comfy_table::{ContentArrangement, Table, presets};
use handle_proto::data::{self, Data};
use handle_proto::value::Ttl;
use handle_proto::{Handle, Value};
use std::fmt::Write as _;
use std::io::IsTerminal as _;

/// Most characters of data in a table row, when it does not go to a file.
const DATA_CHARS_MAX: usize = 2000;

/// A table without frames, one line each for what fits.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    if std::io::stdout().is_terminal() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    table
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
    let text = printable(&text);
    match text.char_indices().nth(DATA_CHARS_MAX) {
        Some((at, _)) => format!("{}... ({} bytes)", &text[..at], bytes.len()),
        None => text,
    }
}

/// `text` with its control characters written out: what others say ends no line and steers no terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => out.extend(c.escape_default()),
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
    println!("{}", serde_json::json!({ "error": why }));
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
        assert_eq!(printable("a\n10.1/x\t\u{1b}[2J\u{9b}\u{7f}é"), "a\\n10.1/x\\t\\u{1b}[2J\\u{9b}\\u{7f}é");
        let admin =
            handle_proto::data::Admin::new(handle_proto::data::AdminPermissions::ALL, b"10.1/\x1b[2J\n", 300);
        let mut data = Vec::new();
        admin.encode(&mut data);
        assert!(!describe(b"HS_ADMIN", &data).contains(char::is_control));
    }
}
