//! Pages of the log as lines of JSON.

use handle_proto::json::value_to_json;
use handle_proto::name::PREFIX_RECORDS;
use handle_proto::wire::admin::StorePosition;
use handle_proto::{Handle, Value, fold};
use handle_store::{LogAction, LogEntry, RecordBuf, Store, StoreError, StoreSnapshot};
use serde_json::json;
use std::fmt;

/// Changes in a page. With values, a page takes the memory of as many records.
const PAGE_CHANGES: usize = 64;

/// A part of the log.
#[derive(Debug)]
pub(super) struct FeedPage {
    /// The lines, each with its end.
    pub(super) lines: String,
    /// The last change that was looked at.
    pub(super) to: StorePosition,
    /// Whether there were no later changes.
    pub(super) is_last: bool,
}

/// Why the feed ends.
#[derive(Debug)]
pub(super) enum FeedRefusal {
    /// The request is not one.
    Request(String),
    /// The text is not a cursor.
    NotACursor,
    /// The cursor is of another store, or of a later state of this one.
    OtherStore,
    /// The log does not have all changes after the cursor.
    TooOld,
    /// The store cannot be read.
    Store(StoreError),
}

impl From<StoreError> for FeedRefusal {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl FeedRefusal {
    /// A word for programs.
    pub(super) const fn code(&self) -> &'static str {
        match self {
            Self::Request(_) | Self::NotACursor => "bad_request",
            Self::OtherStore => "other_store",
            Self::TooOld => "too_old",
            Self::Store(_) => "store",
        }
    }
}

impl fmt::Display for FeedRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ANEW: &str = "begin again: take a new cursor without `after`, then export all records (hdl export), \
                            then go on after the new cursor";
        match self {
            Self::Request(why) => f.write_str(why),
            Self::NotACursor => f.write_str("`after` is not the cursor of a line"),
            Self::OtherStore => write!(f, "the cursor is not one of this store in its present state; {ANEW}"),
            Self::TooOld => {
                write!(f, "the log of the store does not reach back to the cursor (`store.log_days`); {ANEW}")
            }
            Self::Store(error) => error.fmt(f),
        }
    }
}

/// A position as the text of a cursor.
fn cursor(position: StorePosition) -> String {
    format!("{:016x}-{}", position.store, position.transaction)
}

fn parse_cursor(text: &str) -> Option<StorePosition> {
    let (store, transaction) = text.split_once('-')?;
    let is_written_so = store.len() == 16
        && store.bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase())
        && transaction.bytes().all(|byte| byte.is_ascii_digit());
    let store = u64::from_str_radix(store, 16).ok().filter(|_| is_written_so)?;
    Some(StorePosition { store, transaction: transaction.parse().ok()? })
}

/// The position at which a feed begins.
pub(super) fn begin(store: &Store, after: Option<&str>) -> Result<StorePosition, FeedRefusal> {
    let Some(after) = after else { return Ok(store.position()) };
    let position = parse_cursor(after).ok_or(FeedRefusal::NotACursor)?;
    if position.store != store.identity() {
        return Err(FeedRefusal::OtherStore);
    }
    let transaction = store.renumbered(position.transaction);
    Ok(StorePosition { transaction, ..position })
}

/// A line without a change.
pub(super) fn position_line(position: StorePosition, kind: &str) -> String {
    format!("{}\n", json!({ "cursor": cursor(position), "kind": kind }))
}

/// Reads the changes after a position. A line with `position` follows changes that are left out.
pub(super) fn read(
    store: &Store,
    from: StorePosition,
    prefix: Option<&str>,
    has_values: bool,
) -> Result<FeedPage, FeedRefusal> {
    let snapshot = store.snapshot()?;
    // Restoring a backup while the feed is open changes the identity.
    if store.identity() != from.store || from.transaction > snapshot.last_id()? {
        return Err(FeedRefusal::OtherStore);
    }
    if from.transaction < snapshot.log_base()? {
        return Err(FeedRefusal::TooOld);
    }
    let entries: Vec<LogEntry> =
        snapshot.log_after(from.transaction)?.take(PAGE_CHANGES).collect::<Result<_, _>>()?;
    let to = entries.last().map_or(from.transaction, |entry| entry.id);
    let is_last = to == snapshot.last_id()?;
    let shown: Vec<LogEntry> = entries.into_iter().filter(|entry| is_about(entry, prefix)).collect();
    let records = if has_values { records_of(&snapshot, &shown)? } else { Vec::new() };
    let mut lines = String::new();
    for (at, entry) in shown.iter().enumerate() {
        let record = records.get(at).and_then(Option::as_ref);
        lines.push_str(&line(from.store, entry, record));
        lines.push('\n');
    }
    let to = StorePosition { transaction: to, ..from };
    if shown.last().map_or(from.transaction, |entry| entry.id) != to.transaction {
        lines.push_str(&position_line(to, "position"));
    }
    Ok(FeedPage { lines, to, is_last })
}

/// Whether a change is of a handle with the prefix, or of the prefix.
fn is_about(entry: &LogEntry, prefix: Option<&str>) -> bool {
    let Some(prefix) = prefix.map(str::as_bytes) else { return true };
    let bare =
        if fold::starts_with(prefix, PREFIX_RECORDS) { &prefix[PREFIX_RECORDS.len()..] } else { prefix };
    fold::eq(Handle(&entry.handle).naming_authority(), bare)
        || (fold::starts_with(&entry.handle, PREFIX_RECORDS)
            && fold::eq(&entry.handle[PREFIX_RECORDS.len()..], bare))
}

/// The present records of changed handles.
fn records_of(snapshot: &StoreSnapshot, entries: &[LogEntry]) -> Result<Vec<Option<RecordBuf>>, StoreError> {
    let names: Vec<Vec<u8>> = entries.iter().map(|entry| entry.handle.clone()).collect();
    snapshot.records_of(&names)
}

fn line(store: u64, entry: &LogEntry, record: Option<&RecordBuf>) -> String {
    let kind = match entry.action {
        LogAction::Create => "created",
        LogAction::Update => "updated",
        LogAction::Delete => "deleted",
        LogAction::Home => "homed",
        LogAction::Unhome => "unhomed",
    };
    let position = StorePosition { store, transaction: entry.id };
    let time = i64::try_from(entry.unix_ms).ok().and_then(|it| jiff::Timestamp::from_millisecond(it).ok());
    let mut line = json!({
        "cursor": cursor(position),
        "time": time.map(|time| time.to_string()),
        "kind": kind,
        "handle": String::from_utf8_lossy(&entry.handle),
    });
    let is_about_record = !entry.action.is_about_homing();
    if let Some(record) = record.filter(|_| is_about_record) {
        let record = record.view();
        let public = record.values.iter().filter(Value::is_public);
        line["values"] = public.map(|value| value_to_json(&value)).collect();
    }
    line.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_as_they_are_written_and_in_no_other_way() {
        for position in [
            StorePosition { store: 0, transaction: 0 },
            StorePosition { store: u64::MAX, transaction: u64::MAX },
            StorePosition { store: 7, transaction: 12 },
        ] {
            assert_eq!(parse_cursor(&cursor(position)), Some(position));
        }
        for text in [
            "",
            "-",
            "0-1",
            "0000000000000007",
            "0000000000000007-",
            "0000000000000007-+1",
            "+000000000000007-1",
            "0000000000000007-99999999999999999999",
            "000000000000000g-1",
        ] {
            assert_eq!(parse_cursor(text), None, "{text}");
        }
    }

    #[test]
    fn changes_are_about_the_handles_of_a_prefix_and_the_prefix() {
        let about = |handle: &str, prefix| {
            let entry = LogEntry { id: 1, unix_ms: 0, action: LogAction::Create, handle: handle.into() };
            is_about(&entry, prefix)
        };
        for prefix in ["10.1a", "10.1A", "0.NA/10.1a"] {
            assert!(about("10.1A/X", Some(prefix)) && about("0.NA/10.1A", Some(prefix)), "{prefix}");
            assert!(!about("10.1AB/X", Some(prefix)) && !about("0.NA/10.1AB", Some(prefix)), "{prefix}");
        }
        assert!(about("10.2/X", None));
    }
}
