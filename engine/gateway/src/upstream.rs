//! The Handle System, for handles that the set does not have.
//!
//! [`handle_client`] finds the responsible service, keeps answers in a cache that all workers share
//! (bounded in bytes, by TTL, also negative answers), and asks one question for all who wait for the
//! same answer.

use crate::places::{PlaceLimits, SourcePlaces};
use anyhow::Context as _;
use handle_client::bootstrap::{FILE_LEN_MAX, Root, read_site};
use handle_client::cache::{Cache, CacheLimits};
use handle_client::exchange::AttemptError;
use handle_client::lookup::{Client, LookupLimits, LookupOptions, LookupTarget};
use handle_client::service::SharedSite;
use handle_client::{AsyncDriver, LookupAnswer, LookupError, Question, SharedAnswer};
use handle_daemon::settings;
use handle_proto::ResponseCode;
use handle_proto::data::SiteBuf;
use hyper::StatusCode;
use std::fmt;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

settings! {
    /// The Handle System, for handles that the set does not have. Without `root`, `local_info` and
    /// `resolver_site`, answers come from the set only.
    pub struct UpstreamConfig {
        /// The global service: `bootstrap_handles` (JSON) or `root_info` of a deployed client.
        restart root: Option<PathBuf> = None;
        /// Prefixes with a preconfigured service: `local_info.json` or `local_info` of a deployed
        /// client.
        restart local_info: Option<PathBuf> = None;
        /// One site that is asked about every handle: `resolver_site` of a deployed client, or a
        /// site record as JSON.
        restart resolver_site: Option<PathBuf> = None;
        /// Longest duration of one question.
        restart timeout_ms: u32 = 10_000, 1..=120_000;
        /// Questions at a time. Further requests get status 503.
        restart questions: usize = 1024, 1..=1 << 16;
        /// Of these, for one source: an IPv4 address, or a /64 of IPv6.
        restart questions_per_source <= questions: usize = 256, 1..=1 << 16;
        /// Requests to servers for one question.
        restart requests: usize = 64, 1..=256;
        /// Bytes of cached answers.
        restart cache_bytes: usize = 256 << 20, 0..=1 << 40;
        /// How long an answer is cached at most, whatever its TTL.
        restart cache_s: u32 = 3600, 0..=172_800;
        /// How long the answer that there is no such handle is cached.
        restart negative_s: u32 = 30, 0..=86_400;
        /// What `Retry-After` says when no server answers.
        live retry_after_s: u32 = 5, 0..=86_400;
    }
}

impl UpstreamConfig {
    /// Whether there is somebody to ask.
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
        client.patience.tcp_ms = client.patience.tcp_ms.min(self.timeout_ms);
        let kept = CacheLimits::default();
        client.cache = Cache::new(CacheLimits {
            bytes_max: self.cache_bytes,
            ttl_max_s: self.cache_s.min(kept.ttl_max_s),
            negative_ttl_s: self.negative_s,
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
    /// The HTTP status for this failure: 504 when nobody answered in time, 502 for a wrong answer or
    /// an unreachable server, 503 when this process asks too many questions.
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

/// The services that are asked.
#[derive(Debug)]
pub struct Upstream {
    client: Arc<Client>,
    driver: AsyncDriver,
    places: Arc<SourcePlaces>,
    limits: PlaceLimits,
    /// The one site that is asked about every handle.
    resolver: Option<SharedSite>,
}

impl Upstream {
    /// Reads the files that `config` names; `None` if nobody is to be asked.
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
        Ok(Some(Self {
            driver: AsyncDriver::new(Arc::clone(&client)),
            client,
            places: Arc::new(SourcePlaces::default()),
            limits: PlaceLimits { places: config.questions, per_source: config.questions_per_source },
            resolver,
        }))
    }

    /// Asks `question` for a client at `source`. An authoritative question bypasses the cache.
    ///
    /// # Errors
    /// When no server gave an answer that counts.
    pub async fn ask(&self, source: IpAddr, question: &Question) -> Result<SharedAnswer, UpstreamError> {
        let Some(_place) = self.places.take(source, self.limits) else { return Err(UpstreamError::Busy) };
        let target = match &self.resolver {
            // A cache may not answer, so the client would look for the responsible service.
            Some(site) if question.wants.authoritative => LookupTarget::Sites(vec![Arc::clone(site)]),
            _ => LookupTarget::Responsible,
        };
        let options = LookupOptions { target, ..LookupOptions::default() };
        let resolved = self.driver.resolve(question, &options).await;
        match resolved.outcome {
            // Deployed proxies say the same: no handle exists under a prefix that does not.
            Err(LookupError::NoService { code: Some(code @ ResponseCode::HANDLE_NOT_FOUND), .. }) => {
                Ok(LookupAnswer::new(question.handle.clone(), code, []).into())
            }
            outcome => outcome.map_err(UpstreamError::Lookup),
        }
    }

    /// The lookups' shared state, with the counters of the cache.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Number of further questions that may be asked now.
    #[must_use]
    pub fn places_left(&self) -> usize {
        self.limits.places.saturating_sub(self.places.count())
    }
}
