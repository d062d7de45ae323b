//! The contents of `status` and `stats`.

use crate::sources::{self, SourcePrefix};
use crate::state::ServerState;
use handle_daemon::{log, threads};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::time::SystemTime;

impl ServerState {
    /// Counters in total, for each worker and of the slow path; answer times; the busiest source
    /// networks.
    #[must_use]
    pub fn stats(&self) -> Value {
        let mut stats = self.shards.to_json();
        stats["slow"] = self.slow.as_ref().map_or(Value::Null, |slow| slow.to_json());
        let sessions = self.slow.as_ref().and_then(|slow| slow.sessions.as_ref());
        stats["sessions"] = sessions.map_or(Value::Null, |sessions| sessions.to_json());
        let bits = self.settings.current().config.observe.sources_bits();
        stats["top_sources"] = self
            .top_sources()
            .into_iter()
            .map(|(prefix, share)| json!({ "prefix": prefix.show(bits), "share": share }))
            .collect();
        if let Some(extension) = &self.hooks.extension {
            stats[extension.name()] = extension.stats();
        }
        if let Some(log) = &self.query_log {
            let counts = log.counts();
            stats["query_log"] = json!({ "written": counts.written, "write_failed": counts.lost });
        }
        stats
    }

    /// The busiest source networks, at most as many as are configured, each with its share.
    pub(crate) fn top_sources(&self) -> Vec<(SourcePrefix, f64)> {
        sources::top(&self.sources, self.settings.current().config.observe.sources_shown)
    }

    /// Opens the query log again after its file was renamed; false without a query log.
    pub fn reopen_log(&self) -> bool {
        self.query_log.as_ref().is_some_and(|log| {
            log.reopen();
            true
        })
    }

    /// The served set, the start time and the workers.
    #[must_use]
    pub fn status(&self) -> Value {
        let uptime = SystemTime::now().duration_since(self.started).unwrap_or_default();
        let workers: Vec<Value> = self
            .workers
            .get()
            .into_iter()
            .flatten()
            .map(|worker| {
                json!({
                    "worker": worker.at,
                    "address": worker.address.to_string(),
                    "core": worker.core,
                    "running": self.running[worker.at].load(Ordering::Relaxed),
                    "datapath": worker.kind.to_string(),
                    "reason": worker.reason,
                    "receives_trains": worker.trains.received,
                    "sends_trains": worker.trains.sent,
                })
            })
            .collect();
        let ended = threads::ended();
        let state = match (self.is_draining(), self.is_degraded() || !ended.is_empty()) {
            (true, _) => "draining",
            (false, true) => "degraded",
            (false, false) => "serving",
        };
        let in_force = self.settings.current();
        let service = in_force.site.service();
        let mut status = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "state": state,
            "uptime_s": uptime.as_secs(),
            "set": self.live.to_json(),
            "site": {
                "serial": service.site_serial,
                "primary": service.primary,
                "hash_option": service.hash_option as u8,
                "servers": service.servers_count,
                "server_position": service.server_at,
            },
            "slow_path": self.slow.as_ref().map(|slow| slow.status()),
            "workers": workers,
            "threads_ended": ended,
            "log_lines_lost": log::lines_lost(),
        });
        if let Some(extension) = &self.hooks.extension {
            status[extension.name()] = extension.status();
        }
        status
    }

    /// The values of `0.SITE/status` for authorized clients: index, type and text of each. Values
    /// that deployed servers have as well use the same names.
    pub(crate) fn status_texts(&self) -> Vec<(i32, &'static str, String)> {
        let uptime = SystemTime::now().duration_since(self.started).unwrap_or_default();
        let set = self.live.current();
        let server = format!(
            "runtime={}; numreqs={}; version={}; generation={}; handles={}",
            uptime.as_millis(),
            self.shards.sum(|counters| &counters.requests_answered),
            env!("CARGO_PKG_VERSION"),
            set.generation(),
            set.handles_count(),
        );
        let source = set.manifest().source.as_ref();
        let replication = source.map(|source| json!({ "latestTxnId": source.transaction }).to_string());
        let server = std::iter::once((1, "CNRI.SERVER_STATUS", server));
        server.chain(replication.map(|text| (3, "CNRI.REPLICATION_STATUS", text))).collect()
    }
}
