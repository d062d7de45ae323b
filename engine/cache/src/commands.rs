//! The commands that the cache adds to the control socket: what is known about a handle, and
//! removing entries.

use crate::counters::CacheCounters;
use crate::entry::{CERTIFIED, LINKED, NO_HANDLE};
use crate::linked_ttl;
use crate::open_questions::PurgeScope;
use crate::state::CacheState;
use crate::table::{EntryStamp, TableEntry};
use crate::top::SAMPLE_EVERY;
use handle_daemon::clock::now_unix_s;
use handle_daemon::control::CommandHelp;
use handle_proto::wire::list::Values;
use handle_proto::{Value as HandleValue, fold};
use serde_json::{Map, Value, json};

/// The commands, with their help.
pub(crate) const COMMANDS: [CommandHelp; 5] = [
    ("cache-get HANDLE", "what the cache has about a handle, in any spelling"),
    (
        "cache-purge HANDLE",
        "remove it; with PREFIX/ instead of a handle, what the cache has about all of its handles",
    ),
    ("cache-purge-all", "remove everything that the cache has"),
    ("cache-stats", "the size and the counters of the cache"),
    ("cache-top COUNT", "the names that are asked for most, from a sample of the answers"),
];

/// Names that `cache-top` shows unless another number is given.
const TOP_COUNT: usize = 20;

/// Runs `command`; `None` if it is not of the cache.
pub(crate) fn run(state: &CacheState, command: &str) -> Option<Value> {
    let (command, argument) = command.split_once(' ').unwrap_or((command, ""));
    let argument = argument.trim();
    let no_handle = || Some(json!({ "ok": false, "error": "a handle is missing" }));
    match command {
        "cache-get" | "cache-purge" if argument.is_empty() => no_handle(),
        "cache-get" => Some(get(state, argument.as_bytes())),
        "cache-purge" => Some(purge(state, PurgeScope::named(argument.as_bytes()))),
        "cache-purge-all" => Some(purge(state, PurgeScope::All)),
        "cache-stats" => Some(stats(state)),
        "cache-top" => Some(top(state, argument.parse().unwrap_or(TOP_COUNT))),
        _ => None,
    }
}

/// What the cache has about a handle.
fn get(state: &CacheState, handle: &[u8]) -> Value {
    let (mut entries, now) = (Vec::new(), now_unix_s());
    state.table.for_each(&mut |entry| {
        if fold::eq(entry.key, handle) {
            entries.push(shown(&entry, now));
        }
    });
    json!({ "ok": true, "entries": entries })
}

fn shown(entry: &TableEntry<'_>, now_unix_s: u32) -> Value {
    let EntryStamp { stored_unix_s, ttl_s, values_count, kind, flags } = entry.stamp;
    let mut plain = entry.values.to_vec();
    if flags & LINKED != 0 {
        linked_ttl::unlink(&mut plain);
    }
    let values = Values::from_encoded(values_count.into(), &plain);
    let value = |value: HandleValue<'_>| {
        json!({
            "index": value.index,
            "type": String::from_utf8_lossy(value.kind),
            "data": String::from_utf8_lossy(value.data),
            "ttl_s": value.ttl.seconds,
        })
    };
    json!({
        "handle": String::from_utf8_lossy(entry.key),
        "exists": kind != NO_HANDLE,
        "certified": flags & CERTIFIED != 0,
        "age_s": now_unix_s.saturating_sub(stored_unix_s),
        "ttl_s": ttl_s,
        "left_s": i64::from(ttl_s) - i64::from(now_unix_s.saturating_sub(stored_unix_s)),
        "uses": entry.uses,
        "values": values.map_or_else(|_| Vec::new(), |values| values.iter().map(value).collect()),
    })
}

/// Removes entries, and what is known about the services of their prefixes.
fn purge(state: &CacheState, scope: PurgeScope<'_>) -> Value {
    let removed = state.purge(scope);
    (0..removed).for_each(|_| state.counters.purged.add());
    json!({ "ok": true, "removed": removed })
}

/// The names that are asked for most.
fn top(state: &CacheState, count: usize) -> Value {
    let shown = |(name, count): (Box<[u8]>, u64)| json!({ "handle": String::from_utf8_lossy(&name), "answers": count * SAMPLE_EVERY });
    let names: Vec<Value> = state.top.top(count).into_iter().map(shown).collect();
    json!({ "ok": true, "names": names })
}

/// The state of the cache, for `status`.
pub(crate) fn status(state: &CacheState) -> Value {
    let table = state.table.stats();
    json!({
        "asks": state.upstream.description(),
        "entries": table.entries,
        "memory_bytes": table.bytes_max,
    })
}

/// The size and the counters of the cache.
pub(crate) fn stats(state: &CacheState) -> Value {
    let (table, hits) = (state.table.stats(), state.hits.get());
    let counts = CacheCounters::NAMES.iter().zip(state.counters.values());
    let mut stats: Map<String, Value> =
        counts.map(|(name, count)| ((*name).to_owned(), count.into())).collect();
    stats.insert("hits".to_owned(), hits.into());
    stats.insert("entries".to_owned(), table.entries.into());
    stats.insert("entry_bytes".to_owned(), table.bytes.into());
    stats.insert("memory_bytes".to_owned(), table.bytes_max.into());
    stats.insert("insertions".to_owned(), table.insertions.into());
    stats.insert("evictions".to_owned(), table.evictions.into());
    stats.into()
}
