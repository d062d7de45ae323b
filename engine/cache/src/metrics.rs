//! The metrics of the cache, beside those of the server.
//!
//! The page of metrics: `docs/operations/cache-metrics.md`.

use crate::counters::CacheCounters;
use crate::state::CacheState;
use crate::table::TableStats;
use handle_client::cache::CacheStats;
use handle_daemon::metrics::{MetricGroup, MetricsText, rows};
use std::sync::atomic::Ordering;

/// What the metrics of one scrape are read from.
struct CacheReading<'s> {
    state: &'s CacheState,
    table: TableStats,
    services: CacheStats,
}

/// Adds the metrics of the cache.
pub(crate) fn add(state: &CacheState, text: &mut MetricsText) {
    text.add_all(CacheCounters::rows(), state.counters.values());
    let services = state.upstream.client().cache.stats();
    text.add_table(cache_metrics(), &CacheReading { state, table: state.table.stats(), services });
}

/// The metrics of the cache, by the tables of `docs/operations/cache-metrics.md`.
#[must_use]
pub fn metric_groups() -> Vec<MetricGroup> {
    let rows = [CacheCounters::rows(), rows(cache_metrics())].concat();
    vec![MetricGroup { name: "cache", rows }]
}

handle_daemon::metrics! {
    /// The cache.
    fn cache_metrics<'s>(CacheReading<'s>), "handle_cache_" {
        /// Requests answered from the cache, also by the answer that there is no such handle.
        counter hits = |reading| reading.state.hits.get();
        /// Time that other services took to answer one question, in seconds.
        histogram question_seconds = |reading| reading.state.durations.number();
        /// Questions to other services under way, also those that wait for their turn.
        gauge questions_under_way = |reading| reading.state.questions_open.load(Ordering::Relaxed);
        /// Renewals in the background under way.
        gauge renewals_under_way = |reading| reading.state.renewals_open();
        /// With `notify.address`: 1 while there is a connection for notices.
        gauge notify_connected = |reading| reading.state.is_connected_for_notices();
        /// Prefixes whose records are known, so that their services are found without a question.
        gauge known_prefixes = |reading| reading.services.handles;
        /// Bytes of these records.
        gauge known_prefix_bytes = |reading| reading.services.bytes;
        /// Entries in the cache.
        gauge entries = |reading| reading.table.entries;
        /// Bytes of the keys and values of the entries.
        gauge entry_bytes = |reading| reading.table.bytes;
        /// Bytes of memory that the cache takes at most.
        gauge memory_bytes = |reading| reading.table.bytes_max;
        /// Entries inserted.
        counter insertions = |reading| reading.table.insertions;
        /// Entries dropped for lack of capacity.
        counter evictions = |reading| reading.table.evictions;
    }
}
