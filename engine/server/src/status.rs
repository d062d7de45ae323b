//! What `status` says.

use crate::server::Shared;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::time::SystemTime;

impl Shared {
    /// What is served, since when, by which workers.
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
        let state = match (self.is_draining(), self.is_degraded()) {
            (true, _) => "draining",
            (false, true) => "degraded",
            (false, false) => "serving",
        };
        let in_force = self.settings.current();
        let service = in_force.site.service();
        json!({
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
            "workers": workers,
        })
    }
}
