//! Asks other services for whole records.

use crate::config::{ResolutionConfig, address_of};
use crate::entry::{NO_HANDLE, RECORD};
use crate::policy::{self, PolicyConfig, PrefixPolicies, PrefixPolicy};
use anyhow::{Context as _, anyhow, bail};
use handle_auth::source::SourceList;
use handle_client::bootstrap::{FILE_LEN_MAX, Root, read_site};
use handle_client::cache::{Cache, CacheLimits};
use handle_client::driver;
use handle_client::exchange::AttemptError;
use handle_client::failures::{FailureLimits, FailureMemory};
use handle_client::lookup::{Client, LookupLimits, LookupOptions, LookupTarget};
use handle_client::service::SharedSite;
use handle_client::{AsyncDriver, BlockingDriver, LookupError, Question, SharedAnswer};
use handle_proto::{Handle, ResponseCode};
use handle_resolver::RefusalReason;
use handle_worker::cache::Resolution;
use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Waits for an answer after each datagram to a server, in milliseconds. A server that was silent
/// and has returned is to be asked about every name within two seconds. So no wait is longer, and
/// the last is short: a question that fails is asked again only a second later.
const UDP_RETRY_MS: [u32; 3] = [500, 1500, 500];

/// The directory of a deployed client below the home of its user.
const CLIENT_DIRECTORY: &str = ".handle";
/// Files of the global service in this directory, best first.
const ROOT_FILES: [&str; 2] = ["bootstrap_handles", "root_info"];

/// Asks other services.
#[derive(Debug)]
pub struct UpstreamResolver {
    client: Arc<Client>,
    driver: AsyncDriver,
    target: LookupTarget,
    /// The one site that is asked about every handle.
    resolver: Option<SharedSite>,
    failures: FailureMemory,
    policies: PrefixPolicies,
    /// Whether all answers must be certified.
    certified: bool,
    description: String,
}

/// What a service says about a handle: its public values, or that there is no such handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginAnswer {
    /// [`RECORD`] or [`NO_HANDLE`].
    pub kind: u8,
    /// The values, in wire form.
    pub values: Arc<[u8]>,
    /// Their number.
    pub count: u16,
    /// Whether the server that was asked has signed it.
    pub is_certified: bool,
}

impl From<OriginAnswer> for Resolution {
    fn from(answer: OriginAnswer) -> Self {
        match answer.kind {
            NO_HANDLE => Self::NoHandle,
            _ => Self::Record { values: answer.values, count: answer.count },
        }
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamFailure {
    /// The lookup failed.
    Lookup(LookupError),
    /// A rule denies the prefix.
    Denied,
    /// Answers must be certified, and no answer has a valid signature.
    Uncertified,
    /// The answer says neither what the values are nor that there are none.
    Code(ResponseCode),
}

impl UpstreamFailure {
    /// What clients are told. What does not change by waiting is not reported as "too busy":
    /// clients would ask again and again.
    #[must_use]
    pub fn reason(&self) -> RefusalReason {
        match self {
            Self::Denied
            | Self::Code(ResponseCode::SERVER_NOT_RESPONSIBLE)
            | Self::Lookup(LookupError::AllFailed {
                last: AttemptError::Refused(ResponseCode::SERVER_NOT_RESPONSIBLE),
                ..
            }) => RefusalReason::NotHomed,
            // The servers that passed the question on do not try it again elsewhere.
            Self::Code(ResponseCode::RECURSION_COUNT_TOO_HIGH) => RefusalReason::TooManyServers,
            Self::Uncertified => RefusalReason::NotCertified,
            Self::Lookup(_) | Self::Code(_) => RefusalReason::NotResolved,
        }
    }
}

impl From<LookupError> for UpstreamFailure {
    fn from(error: LookupError) -> Self {
        use AttemptError::{Digest, NoKey, Signature};
        match error {
            LookupError::AllFailed { last: Signature(_) | Digest | NoKey, .. } => Self::Uncertified,
            error => Self::Lookup(error),
        }
    }
}

impl fmt::Display for UpstreamFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lookup(error) => error.fmt(f),
            Self::Denied => f.write_str("a rule denies the prefix"),
            Self::Uncertified => f.write_str("no answer has a valid signature"),
            Self::Code(code) => write!(f, "the service answers with {code:?}"),
        }
    }
}

impl UpstreamResolver {
    /// Reads the files that `config` names.
    ///
    /// # Errors
    /// One sentence with the likely cause.
    pub fn open(config: &ResolutionConfig, policy: &PolicyConfig) -> anyhow::Result<Self> {
        let servers: Vec<_> = config.servers.iter().filter_map(|server| address_of(server)).collect();
        let (root, description) = match root_path(config)? {
            _ if !servers.is_empty() => (Root::default(), config.servers.join(", ")),
            Some(path) => {
                let root = Root::read(&read(&path)?)
                    .with_context(|| format!("{} is not a file of the global service", path.display()))?;
                (root, format!("the global service of {}", path.display()))
            }
            None => (Root::default(), "the configured services".to_owned()),
        };
        let mut client = Client::new(root);
        if let Some(path) = &config.local_info {
            let added = client.overrides.add_local_info(&read(path)?);
            added.with_context(|| format!("`upstream.local_info`: {}", path.display()))?;
        }
        let resolver = match &config.resolver_site {
            Some(path) => Some(Arc::new(read_site(&read(path)?).with_context(|| {
                format!("`upstream.resolver_site`: {} is not a site record", path.display())
            })?)),
            None => None,
        };
        if let Some(site) = &resolver {
            client.overrides.set_resolver((**site).clone());
        }
        let timeout_ms = u64::from(config.timeout_ms);
        client.limits = LookupLimits { timeout_ms, requests_max: config.requests, ..LookupLimits::default() };
        client.preferences.forbidden = SourceList::parse(&config.forbidden_networks)
            .map_err(|wrong| anyhow!("`upstream.forbidden_networks`: {wrong}"))?;
        client.timeout.udp_ms = UDP_RETRY_MS.to_vec();
        client.timeout.tcp_ms = client.timeout.tcp_ms.min(config.timeout_ms);
        client.cache = Cache::new(CacheLimits { bytes_max: config.service_bytes, ..CacheLimits::default() });
        let target = match servers.is_empty() {
            true => LookupTarget::Responsible,
            false => policy::target(servers),
        };
        let failures = FailureMemory::new(FailureLimits {
            keeps_ms: config.failure_ms.into(),
            per_prefix: config.failures_per_prefix,
            entries_max: config.failures,
        });
        let client = Arc::new(client);
        let driver = AsyncDriver::new(Arc::clone(&client));
        let policies = PrefixPolicies::new(policy);
        let certified = config.certified;
        Ok(Self { driver, client, target, resolver, failures, policies, certified, description })
    }

    /// The shared state of the lookups.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The rule for `handle`.
    #[must_use]
    pub(crate) fn policy(&self, handle: Handle<'_>) -> Option<&PrefixPolicy> {
        self.policies.of(handle)
    }

    /// A driver that blocks its thread.
    pub(crate) fn blocking_driver(&self) -> BlockingDriver {
        BlockingDriver::new(Arc::clone(&self.client))
    }

    /// Whether there is a rule for the prefix of `handle`.
    #[must_use]
    pub fn has_policy(&self, handle: Handle<'_>) -> bool {
        self.policies.of(handle).is_some()
    }

    /// Whether answers about `handle` must be certified.
    #[must_use]
    pub fn certifies(&self, handle: Handle<'_>) -> bool {
        self.certified || self.policies.certifies(handle)
    }

    /// Whether changes of `handle` are announced.
    #[must_use]
    pub fn is_notified(&self, handle: Handle<'_>) -> bool {
        self.policies.is_notified(handle)
    }

    /// The handle whose record `handle` shows, if a rule says so.
    pub(crate) fn aliased(&self, handle: Handle<'_>) -> Option<Vec<u8>> {
        match self.policies.of(handle)? {
            PrefixPolicy::Alias(prefix) => Some([&prefix[..], b"/", handle.local_name()].concat()),
            PrefixPolicy::Deny | PrefixPolicy::Forward(_) => None,
        }
    }

    /// Description of the upstream, for messages.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Whether a rule denies the prefix of `handle`.
    pub(crate) fn denies(&self, handle: Handle<'_>) -> bool {
        matches!(self.policies.of(handle), Some(PrefixPolicy::Deny))
    }

    /// Why `handle` is not asked about now: a question about it, or several others about its
    /// prefix, have just failed. If there is no reason, the caller has to ask, or to [give the
    /// question back](Self::give_back).
    pub(crate) fn refuses(&self, handle: &[u8], is_authoritative: bool) -> Option<UpstreamFailure> {
        let question = remembered(handle, is_authoritative);
        self.failures.refuses(&question, driver::now().ms).map(UpstreamFailure::from)
    }

    /// Notes that a question was not asked.
    pub(crate) fn give_back(&self, handle: &[u8], is_authoritative: bool) {
        self.failures.give_back(&remembered(handle, is_authoritative), driver::now().ms);
    }

    /// Remembers that no server has answered about `handle` in time.
    pub(crate) fn note_too_slow(&self, handle: &[u8], is_authoritative: bool) {
        let error = LookupError::TooSlow { handle: handle.to_vec() };
        self.failures.note(&remembered(handle, is_authoritative), &error, driver::now().ms);
    }

    /// Asks for all public values of `handle`, in a question that has passed through
    /// `recursion_count` servers. An authoritative question goes to a primary site.
    ///
    /// # Errors
    /// When no server gave an answer that counts.
    pub async fn ask(
        &self,
        handle: &[u8],
        is_authoritative: bool,
        recursion_count: u8,
    ) -> Result<OriginAnswer, UpstreamFailure> {
        let policy = self.policies.of(Handle(handle));
        let mut question = Question::all(handle);
        question.wants.authoritative = is_authoritative;
        question.wants.certified = self.certifies(Handle(handle));
        let target = match (policy, &self.resolver) {
            (Some(PrefixPolicy::Deny), _) => return Err(UpstreamFailure::Denied),
            (Some(PrefixPolicy::Forward(target)), _) => target.clone(),
            // Otherwise an authoritative question would pass by the site that is to be asked.
            (_, Some(site)) if is_authoritative => LookupTarget::Sites(vec![Arc::clone(site)]),
            _ => self.target.clone(),
        };
        if let Some(shown) = self.aliased(Handle(handle)) {
            question.handle = shown;
            question.wants.certified |= self.certifies(Handle(&question.handle));
        }
        let wants_certified = question.wants.certified;
        let options = LookupOptions {
            target,
            keeps_answer: false,
            recursion_count: recursion_count.saturating_add(1),
            ..LookupOptions::default()
        };
        let outcome = self.driver.resolve(&question, &options).await.outcome;
        let remembered = remembered(handle, is_authoritative);
        match outcome {
            // A question that began elsewhere may have come a long way. Its failure says nothing
            // about those that begin here.
            Ok(answer) if answer.code == ResponseCode::RECURSION_COUNT_TOO_HIGH => {
                if let Some(server) = answer.from.filter(|_| recursion_count == 0) {
                    let last = AttemptError::Refused(answer.code);
                    let error = LookupError::AllFailed { handle: handle.to_vec(), attempts: 1, server, last };
                    self.failures.note(&remembered, &error, driver::now().ms);
                }
                Err(UpstreamFailure::Code(answer.code))
            }
            // The client gives none; the cache does not depend on it.
            Ok(answer) if wants_certified && !answer.certified => Err(UpstreamFailure::Uncertified),
            Ok(answer) => {
                self.failures.forget(&remembered);
                origin_answer(&answer)
            }
            // No handle exists under a prefix that does not.
            Err(LookupError::NoService { code: Some(ResponseCode::HANDLE_NOT_FOUND), .. }) => {
                Ok(OriginAnswer {
                    kind: NO_HANDLE,
                    values: [].into(),
                    count: 0,
                    is_certified: wants_certified,
                })
            }
            Err(error) => {
                self.failures.note(&remembered, &error, driver::now().ms);
                Err(error.into())
            }
        }
    }
}

/// The question whose failure is remembered. That primary sites do not answer says nothing about
/// the others.
fn remembered(handle: &[u8], is_authoritative: bool) -> Question {
    let mut question = Question::all(handle);
    question.wants.authoritative = is_authoritative;
    question
}

/// What an answer says. Values that are not public are dropped, even if the server sent them.
fn origin_answer(answer: &SharedAnswer) -> Result<OriginAnswer, UpstreamFailure> {
    let kind = match answer.code {
        ResponseCode::SUCCESS | ResponseCode::VALUES_NOT_FOUND => RECORD,
        ResponseCode::HANDLE_NOT_FOUND => NO_HANDLE,
        code => return Err(UpstreamFailure::Code(code)),
    };
    let (mut values, mut count) = (Vec::new(), 0);
    for value in answer.values().iter().filter(handle_proto::Value::is_public) {
        value.encode(&mut values);
        count += 1;
    }
    Ok(OriginAnswer { kind, values: values.into(), count, is_certified: answer.certified })
}

/// The file of the global service; `None` if others are asked.
fn root_path(config: &ResolutionConfig) -> anyhow::Result<Option<PathBuf>> {
    let is_configured =
        !config.servers.is_empty() || config.local_info.is_some() || config.resolver_site.is_some();
    if config.root.is_some() || is_configured {
        return Ok(config.root.clone());
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let directory = home.join(CLIENT_DIRECTORY);
    let found = ROOT_FILES.iter().map(|file| directory.join(file)).find(|path| path.exists());
    let Some(found) = found else {
        bail!(
            "no upstream is configured: set `upstream.root` to a bootstrap_handles file, or name a server with \
             --upstream (looked for {} in {})",
            ROOT_FILES.join(" and "),
            directory.display()
        );
    };
    Ok(Some(found))
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).and_then(|file| file.take(FILE_LEN_MAX).read_to_end(&mut bytes));
    file.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_client::LookupAnswer;
    use handle_proto::{Permissions, Value};

    #[test]
    fn only_public_values_enter() {
        let public = Value::new(1, b"URL", b"https://example.org/");
        let private = Value { permissions: Permissions::ADMIN_READ, ..Value::new(2, b"KEY", b"secret") };
        let answer = LookupAnswer::new(b"10.1/a", ResponseCode::SUCCESS, [public, private]);
        let entered = origin_answer(&answer.into()).unwrap();
        let mut expected = Vec::new();
        public.encode(&mut expected);
        assert_eq!((entered.kind, entered.count, &*entered.values), (RECORD, 1, &*expected));
    }

    #[test]
    fn only_answers_about_the_record_count() {
        let of = |code| origin_answer(&LookupAnswer::new(b"10.1/a", code, []).into());
        assert_eq!(of(ResponseCode::HANDLE_NOT_FOUND).unwrap().kind, NO_HANDLE);
        let empty = of(ResponseCode::VALUES_NOT_FOUND).unwrap();
        assert_eq!((empty.kind, empty.count), (RECORD, 0));
        for code in [ResponseCode::ERROR, ResponseCode::SERVER_BUSY, ResponseCode::PREFIX_REFERRAL] {
            assert_eq!(of(code), Err(UpstreamFailure::Code(code)));
        }
    }

    #[test]
    fn a_server_that_has_returned_is_asked_about_every_name_within_two_seconds() {
        const LONGEST_MS: u32 = 2000;
        let [.., last_ms] = UDP_RETRY_MS;
        assert!(UDP_RETRY_MS.iter().all(|&wait_ms| wait_ms < LONGEST_MS));
        assert!(last_ms + ResolutionConfig::default().failure_ms < LONGEST_MS);
    }

    #[test]
    fn without_somebody_to_ask_there_is_no_cache() {
        let missing = ResolutionConfig { root: Some("/nonexistent".into()), ..ResolutionConfig::default() };
        assert!(
            format!("{:#}", UpstreamResolver::open(&missing, &PolicyConfig::default()).unwrap_err())
                .contains("/nonexistent")
        );
        let one = ResolutionConfig { servers: vec!["127.0.0.1".to_owned()], ..ResolutionConfig::default() };
        assert_eq!(
            UpstreamResolver::open(&one, &PolicyConfig::default()).unwrap().description(),
            "127.0.0.1"
        );
    }
}
