//! The Handle System, for handles that the set does not have.
//!
//! [`handle_client`] finds the responsible service, keeps answers in a cache that all workers share
//! (bounded in bytes, by TTL, also negative answers), and asks one question for all who wait for the
//! same answer.

use anyhow::{Context as _, ensure};
use handle_client::bootstrap::{FILE_LEN_MAX, Root, read_site};
use handle_client::cache::{Cache, CacheLimits};
use handle_client::exchange::AttemptError;
use handle_client::lookup::{Client, LookupLimits, LookupOptions, LookupTarget};
use handle_client::service::SharedSite;
use handle_client::{AsyncDriver, LookupAnswer, LookupError, Question, SharedAnswer};
use handle_proto::ResponseCode;
use handle_proto::data::SiteBuf;
use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Settings for asking the Handle System.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct UpstreamConfig {
    /// The global service: `bootstrap_handles` (JSON) or `root_info` of a deployed client. Without
    /// this and the next two, only the set is answered from.
    pub root: Option<PathBuf>,
    /// Prefixes with a preconfigured service: `local_info.json` or `local_info` of a deployed
    /// client.
    pub local_info: Option<PathBuf>,
    /// One site that is asked about every handle: `resolver_site` of a deployed client, or a site
    /// record as JSON.
    pub resolver_site: Option<PathBuf>,
    /// Maximum duration of one question, in milliseconds.
    pub patience_ms: u32,
    /// Maximum number of questions at the same time. Further requests get status 503.
    pub questions: usize,
    /// Maximum requests to servers for one question.
    pub requests: usize,
    /// Bytes of cached answers.
    pub cache_bytes: usize,
    /// Maximum seconds that an answer is cached, whatever its TTL.
    pub cache_s: u32,
    /// Seconds for which the answer that there is no such handle is cached.
    pub negative_s: u32,
    /// Seconds that `Retry-After` names when no server answers.
    pub retry_after_s: u32,
}

impl Default for UpstreamConfig {
    fn default() -> Self {
        Self {
            root: None,
            local_info: None,
            resolver_site: None,
            patience_ms: 10_000,
            questions: 1024,
            requests: 64,
            cache_bytes: 256 << 20,
            cache_s: 3600,
            negative_s: 30,
            retry_after_s: 5,
        }
    }
}

impl UpstreamConfig {
    /// Whether there is somebody to ask.
    #[must_use]
    pub const fn is_configured(&self) -> bool {
        self.root.is_some() || self.local_info.is_some() || self.resolver_site.is_some()
    }

    /// Resolves relative paths against `directory`.
    #[must_use]
    pub fn relative_to(mut self, directory: &Path) -> Self {
        for file in [&mut self.root, &mut self.local_info, &mut self.resolver_site] {
            *file = file.take().map(|file| directory.join(file));
        }
        self
    }

    /// Checks what can be checked without opening anything.
    ///
    /// # Errors
    /// Names the setting, and what it should be.
    pub fn check(&self) -> anyhow::Result<()> {
        let bounds = [
            ("patience_ms", self.patience_ms as usize, 1, 120_000),
            ("questions", self.questions, 1, 1 << 16),
            ("requests", self.requests, 1, 256),
            ("cache_bytes", self.cache_bytes, 0, 1 << 40),
            ("cache_s", self.cache_s as usize, 0, 172_800),
            ("negative_s", self.negative_s as usize, 0, 86_400),
            ("retry_after_s", self.retry_after_s as usize, 0, 86_400),
        ];
        for (name, value, least, most) in bounds {
            ensure!(
                (least..=most).contains(&value),
                "`upstream.{name}` is {value}: it must be from {least} to {most}"
            );
        }
        Ok(())
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
            patience_ms: self.patience_ms.into(),
            requests_max: self.requests,
            ..LookupLimits::default()
        };
        client.patience.tcp_ms = client.patience.tcp_ms.min(self.patience_ms);
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
    places: Semaphore,
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
            places: Semaphore::new(config.questions),
            resolver,
        }))
    }

    /// Asks `question`. An authoritative question bypasses the cache.
    ///
    /// # Errors
    /// When no server gave an answer that counts.
    pub async fn ask(&self, question: &Question) -> Result<SharedAnswer, UpstreamError> {
        let Ok(_place) = self.places.try_acquire() else { return Err(UpstreamError::Busy) };
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
        self.places.available_permits()
    }
}
