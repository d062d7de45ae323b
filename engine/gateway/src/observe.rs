//! Observability: `/metrics`, `/healthz` and `/readyz` on a separate HTTP address.

use crate::server::GatewayState;
use handle_daemon::publication::PublishedDirectory as _;
use handle_daemon::scrape::{ScrapeLimits, ScrapeSource};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

impl ScrapeSource for GatewayState {
    fn limits(&self) -> ScrapeLimits {
        self.settings.current().observe.scrape_limits()
    }

    fn metrics(&self) -> Result<String, String> {
        let mut text = String::new();
        encode(&mut text, &registry(self)).map_err(|error| error.to_string())?;
        Ok(text)
    }

    fn liveness(&self) -> Result<String, String> {
        match self.running() {
            running if running == self.workers_count || self.is_draining() => Ok("alive".to_owned()),
            running => Err(format!("{running} of {} workers are running", self.workers_count)),
        }
    }

    fn readiness(&self) -> Result<String, String> {
        if self.is_draining() {
            return Err("draining".to_owned());
        }
        self.liveness()?;
        let behind = self.set.as_ref().and_then(|set| set.last_error());
        Ok(behind.map_or_else(|| "ready".to_owned(), |error| format!("ready, with an old set: {error}")))
    }
}

fn registry(state: &GatewayState) -> Registry {
    let mut registry = Registry::with_prefix("handle_gateway");
    for (name, help, count) in state.counters.all() {
        registry.register(name, help, ConstCounter::new(count));
    }
    let mut gauges = vec![
        ("connections_open", "Connections now", state.connections.count() as u64),
        ("workers_running", "Workers that are running", state.running() as u64),
        ("start_time_seconds", "When it was started, Unix seconds", state.started_unix_ms() / 1000),
    ];
    if let Some(mapped) = &state.set {
        let set = mapped.current();
        gauges.extend([
            ("snapshot_generation", "Generation of the set", set.generation()),
            (
                "snapshot_created_seconds",
                "When the set was published, Unix seconds",
                set.created_unix_ms() / 1000,
            ),
            ("snapshot_handles", "Handles in the set", set.handles_count()),
            ("snapshot_bytes", "Bytes of the layers of the set", set.bytes_mapped()),
            ("snapshot_failing", "1 while the newest set cannot be opened", u64::from(mapped.is_failing())),
        ]);
        let help = "Sets that were loaded after the first";
        registry.register("snapshot_reloads", help, ConstCounter::new(mapped.reloads_count()));
    }
    if let Some(upstream) = &state.upstream {
        let cache = upstream.client().cache.stats();
        gauges.extend([
            ("cache_handles", "Handles with a cached answer", cache.handles),
            ("cache_bytes", "Bytes of cached answers", cache.bytes),
            (
                "upstream_places",
                "Questions that may be asked beside those under way",
                upstream.places_left() as u64,
            ),
        ]);
        for (name, help, count) in [
            ("cache_hits", "Questions that the cache answered", cache.hits),
            ("cache_misses", "Questions that the cache did not answer", cache.misses),
            ("cache_evicted", "Cached answers that made room for others", cache.evicted),
        ] {
            registry.register(name, help, ConstCounter::new(count));
        }
    }
    for (name, help, number) in gauges {
        registry.register(name, help, ConstGauge::new(number));
    }
    registry
}
