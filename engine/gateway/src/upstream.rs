//! The Handle System, for handles that the set does not have.
//!
//! [`handle_client`] finds the responsible service, keeps answers in a cache that all workers share
//! (bounded in bytes, by TTL, also negative answers), and asks one question for all who wait for
//! the same answer.
//!
//! An expired answer is served for a short time while it is renewed, and for a longer time if no
//! server answers. Failures are remembered for some seconds ([`handle_client::failures`]), so that
//! few requests wait for a service that does not answer.

pub mod config;

use anyhow::Context as _;
use config::UpstreamConfig;
use handle_auth::source::SourceList;
use handle_client::bootstrap::{FILE_LEN_MAX, Root, read_site};
use handle_client::cache::StaleAnswer;
use handle_client::cache::{Cache, CacheLimits};
use handle_client::driver;
use handle_client::exchange::AttemptError;
use handle_client::failures::{FailureLimits, FailureMemory};
use handle_client::lookup::{Client, LookupLimits, LookupOptions, LookupTarget};
use handle_client::service::SharedSite;
use handle_client::{AsyncDriver, LookupAnswer, LookupError, Question, SharedAnswer};
use handle_daemon::permits::{PermitLimits, SourcePermits};
use handle_proto::data::SiteBuf;
use handle_proto::{Handle, ResponseCode, fold};
use hyper::StatusCode;
use std::collections::HashSet;
use std::fmt;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

impl UpstreamConfig {
    /// Whether a source of records may have `handle`, which is not in the set.
    #[must_use]
    pub fn may_have(&self, handle: &[u8]) -> bool {
        let prefix = Handle(handle).naming_authority();
        self.sources.iter().any(|source| fold::eq(source.as_bytes(), prefix))
    }

    /// Whether an upstream is configured.
    #[must_use]
    pub const fn is_configured(&self) -> bool {
        self.root.is_some() || self.local_info.is_some() || self.resolver_site.is_some()
    }

    fn client(&self, resolver: Option<&SiteBuf>) -> anyhow::Result<Client> {
        let root = match &self.root {
            Some(path) => Root::read(&read(path)?).with_context(|| {
                format!("`upstream.root`: {} is not a file of the global service", path.display())
            })?,
            None => Root::default(),
        };
        let mut client = Client::new(root);
        if let Some(path) = &self.local_info {
            let added = client.overrides.add_local_info(&read(path)?);
            added.with_context(|| format!("`upstream.local_info`: {}", path.display()))?;
        }
        if let Some(site) = resolver {
            client.overrides.set_resolver(site.clone());
        }
        client.limits = LookupLimits {
            timeout_ms: self.timeout_ms.into(),
            requests_max: self.requests,
            ..LookupLimits::default()
        };
        client.preferences.forbidden = SourceList::parse(&self.forbidden_networks)
            .map_err(|wrong| anyhow::anyhow!("`upstream.forbidden_networks`: {wrong}"))?;
        client.timeout.tcp_ms = client.timeout.tcp_ms.min(self.timeout_ms);
        let kept = CacheLimits::default();
        client.cache = Cache::new(CacheLimits {
            bytes_max: self.cache_bytes,
            ttl_max_s: self.cache_s.min(kept.ttl_max_s),
            negative_ttl_s: self.negative_s,
            stale_s: self.stale_if_error_s,
        });
        Ok(client)
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).and_then(|file| file.take(FILE_LEN_MAX).read_to_end(&mut bytes));
    file.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(bytes)
}

/// Why upstream did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamError {
    /// As many questions as allowed are being asked.
    Busy,
    /// The lookup failed.
    Lookup(LookupError),
}

impl UpstreamError {
    /// The HTTP status for this failure: 504 when no server answered in time, 502 for a wrong
    /// answer or an unreachable server, 503 when this process asks too many questions.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Lookup(
                LookupError::TooSlow { .. }
                | LookupError::AllFailed { last: AttemptError::Silence | AttemptError::Partial, .. },
            ) => StatusCode::GATEWAY_TIMEOUT,
            Self::Lookup(_) => StatusCode::BAD_GATEWAY,
        }
    }
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("Too many questions to other servers are under way; try again later"),
            Self::Lookup(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for UpstreamError {}

/// An answer of another service.
#[derive(Clone, Debug)]
pub struct UpstreamAnswer {
    /// The answer.
    pub answer: SharedAnswer,
    /// Whether it has expired, so that it must not be cached further.
    pub is_stale: bool,
}

impl UpstreamAnswer {
    const fn current(answer: SharedAnswer) -> Self {
        Self { answer, is_stale: false }
    }

    fn stale(stale: StaleAnswer, question: &Question) -> Self {
        Self { answer: stale.answer.spelt(&question.handle), is_stale: true }
    }
}

/// The services that are asked.
#[derive(Clone, Debug)]
pub struct Upstream(Arc<UpstreamServices>);

#[derive(Debug)]
struct UpstreamServices {
    client: Arc<Client>,
    driver: AsyncDriver,
    permits: SourcePermits,
    limits: PermitLimits,
    /// The one site that is asked about every handle.
    resolver: Option<SharedSite>,
    failures: FailureMemory,
    /// Keys of the questions that are being renewed in the background.
    renewing: Mutex<HashSet<u64>>,
    revalidate_ms: u64,
    stale_if_error_ms: u64,
    stale_count: AtomicU64,
    refused_count: AtomicU64,
}

/// A question that is being renewed. Dropping it allows the next renewal.
struct RenewedQuestion {
    services: Arc<UpstreamServices>,
    key: u64,
}

impl Drop for RenewedQuestion {
    fn drop(&mut self) {
        self.services.renewing().remove(&self.key);
    }
}

/// A question that has to be asked. Dropping it without an outcome lets another one be asked.
struct PendingQuestion<'q> {
    failures: &'q FailureMemory,
    question: &'q Question,
    is_settled: bool,
}

impl Drop for PendingQuestion<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            self.failures.give_back(self.question, driver::now().ms);
        }
    }
}

impl Upstream {
    /// Reads the files that `config` names; `None` if no upstream is configured.
    ///
    /// # Errors
    /// One sentence with the likely cause.
    pub fn open(config: &UpstreamConfig) -> anyhow::Result<Option<Self>> {
        if !config.is_configured() {
            return Ok(None);
        }
        let resolver = match &config.resolver_site {
            Some(path) => Some(Arc::new(read_site(&read(path)?).with_context(|| {
                format!("`upstream.resolver_site`: {} is not a site record", path.display())
            })?)),
            None => None,
        };
        let client = Arc::new(config.client(resolver.as_deref())?);
        let failure_limits = FailureLimits {
            keeps_ms: u64::from(config.failure_s) * 1000,
            per_prefix: config.failures_per_prefix,
            entries_max: config.failures,
        };
        Ok(Some(Self(Arc::new(UpstreamServices {
            driver: AsyncDriver::new(Arc::clone(&client)),
            client,
            permits: SourcePermits::default(),
            limits: config.question_limits(),
            resolver,
            failures: FailureMemory::new(failure_limits),
            renewing: Mutex::default(),
            revalidate_ms: u64::from(config.stale_while_revalidate_s()) * 1000,
            stale_if_error_ms: u64::from(config.stale_if_error_s) * 1000,
            stale_count: AtomicU64::new(0),
            refused_count: AtomicU64::new(0),
        }))))
    }

    /// Asks `question` for a client at `source`. An authoritative question bypasses the cache, and
    /// its answer replaces the cached answers about the handle.
    ///
    /// # Errors
    /// When no server gave an answer that counts.
    pub async fn ask(&self, source: IpAddr, question: &Question) -> Result<UpstreamAnswer, UpstreamError> {
        let services = &self.0;
        if !question.is_cacheable() {
            let permit = services.permits.take(source, services.limits);
            let _permit = permit.map_err(|_| UpstreamError::Busy)?;
            return services.ask_past_the_cache(question).await.map(UpstreamAnswer::current);
        }
        let stale = services.client.cache.get_stale(question, driver::now());
        if let Some(stale) = stale.clone().filter(|stale| stale.expired_ms < services.revalidate_ms) {
            services.renew(source, question);
            services.stale_count.fetch_add(1, Ordering::Relaxed);
            return Ok(UpstreamAnswer::stale(stale, question));
        }
        let stale = stale.filter(|stale| stale.expired_ms < services.stale_if_error_ms);
        let permit = services.permits.take(source, services.limits);
        if (permit.is_err() || services.failures.is_remembered(question))
            && let Some(answer) = services.client.cache.get(question, driver::now())
        {
            return Ok(UpstreamAnswer::current(answer.spelt(&question.handle)));
        }
        let Ok(_permit) = permit else {
            return services.stale_or(stale, question, Err(UpstreamError::Busy));
        };
        // Last, because a question that is not refused here has to be asked.
        if let Some(error) = services.failures.refuses(question, driver::now().ms) {
            services.refused_count.fetch_add(1, Ordering::Relaxed);
            return services.stale_or(stale, question, Err(UpstreamError::Lookup(error)));
        }
        let outcome = services.resolve(question).await;
        services.stale_or(stale, question, outcome)
    }

    /// The lookups' shared state, with the counters of the cache.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// Number of further questions that may be asked now.
    #[must_use]
    pub fn permits_left(&self) -> usize {
        self.0.limits.all.saturating_sub(self.0.permits.count())
    }

    /// Number of expired answers that were served.
    #[must_use]
    pub fn stale_count(&self) -> u64 {
        self.0.stale_count.load(Ordering::Relaxed)
    }

    /// Number of questions that were refused because of a remembered failure.
    #[must_use]
    pub fn refused_count(&self) -> u64 {
        self.0.refused_count.load(Ordering::Relaxed)
    }
}

impl UpstreamServices {
    fn renewing(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.renewing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews the answer to a question, unless a renewal is in progress or has just failed.
    fn renew(self: &Arc<Self>, source: IpAddr, question: &Question) {
        let key = self.failures.key(question);
        let Ok(permit) = self.permits.take(source, self.limits) else { return };
        if !self.renewing().insert(key) {
            return;
        }
        let renewed = RenewedQuestion { services: Arc::clone(self), key };
        if self.failures.refuses(question, driver::now().ms).is_some() {
            return;
        }
        let question = question.clone();
        tokio::spawn(async move {
            // The result is in the cache, or remembered as a failure.
            let _ = renewed.services.resolve(&question).await;
            drop((permit, renewed));
        });
    }

    /// Resolves a question, and remembers whether that failed.
    async fn resolve(&self, question: &Question) -> Result<SharedAnswer, UpstreamError> {
        let mut pending = PendingQuestion { failures: &self.failures, question, is_settled: false };
        let resolved = self.driver.resolve(question, &LookupOptions::default()).await;
        pending.is_settled = true;
        match &resolved.outcome {
            Err(LookupError::NoService { code: Some(ResponseCode::HANDLE_NOT_FOUND), .. }) => {}
            Err(error) => self.failures.note(question, error, driver::now().ms),
            Ok(_) => self.failures.forget(question),
        }
        answered(question, resolved.outcome)
    }

    async fn ask_past_the_cache(&self, question: &Question) -> Result<SharedAnswer, UpstreamError> {
        let target = match &self.resolver {
            // A cache may not answer, so the client would look for the responsible service.
            Some(site) if question.wants.authoritative => LookupTarget::Sites(vec![Arc::clone(site)]),
            _ => LookupTarget::Responsible,
        };
        let options = LookupOptions { target, ..LookupOptions::default() };
        let answer = answered(question, self.driver.resolve(question, &options).await.outcome)?;
        let mut cacheable = question.clone();
        cacheable.wants.authoritative = false;
        if cacheable.is_cacheable() {
            self.client.cache.forget(&question.handle);
            self.client.cache.put(&cacheable, &answer, driver::now());
            self.failures.forget(question);
        }
        Ok(answer)
    }

    /// The outcome, or a stale answer instead of a failure.
    fn stale_or(
        &self,
        stale: Option<StaleAnswer>,
        question: &Question,
        outcome: Result<SharedAnswer, UpstreamError>,
    ) -> Result<UpstreamAnswer, UpstreamError> {
        let is_failure = outcome
            .as_ref()
            .map_or(true, |answer| matches!(answer.code, ResponseCode::ERROR | ResponseCode::SERVER_BUSY));
        match stale.filter(|_| is_failure) {
            Some(stale) => {
                self.stale_count.fetch_add(1, Ordering::Relaxed);
                Ok(UpstreamAnswer::stale(stale, question))
            }
            None => outcome.map(UpstreamAnswer::current),
        }
    }
}

/// Converts the outcome of a lookup.
fn answered(
    question: &Question,
    outcome: Result<SharedAnswer, LookupError>,
) -> Result<SharedAnswer, UpstreamError> {
    match outcome {
        // Deployed proxies say the same: no handle exists under a prefix that does not.
        Err(LookupError::NoService { code: Some(code @ ResponseCode::HANDLE_NOT_FOUND), .. }) => {
            Ok(LookupAnswer::new(question.handle.clone(), code, []).into())
        }
        outcome => outcome.map_err(UpstreamError::Lookup),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_daemon::settings::SettingSection as _;

    #[test]
    fn forbidden_networks_are_those_of_the_setting() {
        let parse = |text: &str| toml::from_str::<UpstreamConfig>(text).unwrap();
        let reaches = |config: &UpstreamConfig, address: &str| {
            let client = config.client(None).unwrap();
            client.preferences.forbidden.reaches(address.parse().unwrap())
        };
        let default = parse("");
        for address in ["127.0.0.1", "10.1.2.3", "::1", "64:ff9b::10.1.2.3", "2002:a01:203::1"] {
            assert!(reaches(&default, address), "{address}");
        }
        assert!(!reaches(&default, "192.0.2.1"));
        let set = parse("forbidden_networks = [\"192.0.2.0/24\"]");
        assert!(reaches(&set, "192.0.2.1") && !reaches(&set, "10.1.2.3"));
        assert!(!reaches(&parse("forbidden_networks = []"), "127.0.0.1"));
        let error = parse("forbidden_networks = [\"10.0.0.0/33\"]").check().unwrap_err().to_string();
        assert!(error.contains("forbidden_networks"), "{error}");
    }
}
