//! Asks other services about identities whose handles are not here: keys, groups, administrators of
//! prefixes.
//!
//! - A question is for public values, or for the verdict on an answer to a challenge. The service
//!   that has the handle answers without asking another one, so two services that name each other's
//!   groups cannot keep each other busy.
//! - The questions are bounded: in number at a time, without a queue; and for each request in the
//!   number of records, and in time to about three times `timeout_ms`.
//! - Only signed answers count, with a chain of trust from the global service, unless configured
//!   otherwise.
//!
//! Blocking: these calls belong on a thread that may block. RFC 3652 sections 3.5.2 and 3.5.3.

pub mod config;

use crate::drivers::{FreeDrivers, TakenDriver};
use anyhow::Context as _;
use config::RemoteConfig;
use handle_auth::source::SourceList;
use handle_auth::{Pbkdf2Limits, PublicKey};
use handle_client::administration::Administrator;
use handle_client::bootstrap::{FILE_LEN_MAX, Root};
use handle_client::cache::{Cache, CacheLimits};
use handle_client::lookup::{Client, LookupLimits, LookupOptions};
use handle_client::plan::{InterfacePurpose, ServerTarget};
use handle_client::{BlockingDriver, LookupError, Question, SharedAnswer, driver};
use handle_proto::data::kind::{HS_ADMIN, HS_PUBKEY};
use handle_proto::data::site::InterfaceKind;
use handle_proto::limit::{PBKDF2_ITERATIONS, PBKDF2_KEY_BITS};
use handle_proto::wire::auth::{SecretAnswer, VerificationRequest};
use handle_proto::wire::list::Reference;
use handle_proto::wire::{self, Request, Response};
use handle_proto::{Handle, OpFlags, ResponseCode, Version};
use std::collections::HashMap;
use std::fmt;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

impl RemoteConfig {
    /// Builds a client with these settings.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        let root = match &self.root {
            Some(path) => Root::read(&read(path)?).with_context(|| {
                format!("`remote.root`: {} is not a file of the global service", path.display())
            })?,
            None => Root::default(),
        };
        let mut client = Client::new(root);
        if let Some(path) = &self.local_info {
            let added = client.overrides.add_local_info(&read(path)?);
            added.with_context(|| format!("`remote.local_info`: {}", path.display()))?;
        }
        client.limits = LookupLimits {
            timeout_ms: self.timeout_ms.into(),
            requests_max: REQUESTS_MAX,
            ..LookupLimits::default()
        };
        client.timeout.tcp_ms = self.timeout_ms;
        let kept = CacheLimits::default();
        client.cache = Cache::new(CacheLimits {
            bytes_max: self.cache_bytes,
            ttl_max_s: self.cache_s.min(kept.ttl_max_s),
            ..kept
        });
        Ok(client)
    }
}

/// Maximum requests for one question; finding a service takes a handful.
const REQUESTS_MAX: usize = 32;
/// Maximum servers to which one answer to a challenge is shown before verification is given up.
const VERIFIERS_MAX: usize = 3;

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).and_then(|file| file.take(FILE_LEN_MAX).read_to_end(&mut bytes));
    file.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(bytes)
}

/// Why a question got no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoteFailure {
    /// The maximum number of requests are asking other services already.
    Busy,
    /// This request has reached its limit of questions or time.
    Enough,
    /// The service is not known or does not answer.
    Lookup(LookupError),
    /// The service answered neither with values nor that there are none.
    Refused(ResponseCode),
    /// Servers answered, but none gave a verdict on the answer to a challenge.
    NoVerdict,
    /// No server that could verify the answer to a challenge responded.
    NoVerifier,
    /// A question about the same handle failed recently, for this reason.
    RecentlySilent(Box<RemoteFailure>),
}

impl RemoteFailure {
    /// Whether a server responded, though without a useful answer.
    #[must_use]
    pub const fn was_heard(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::NoVerdict)
    }

    /// Whether no server responded. A service without a server for this kind of question may answer
    /// the other kinds.
    const fn is_silence(&self) -> bool {
        match self {
            Self::Lookup(error) => !matches!(error, LookupError::NoServer { .. }),
            unanswered => matches!(unanswered, Self::NoVerifier),
        }
    }
}

impl fmt::Display for RemoteFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("too many identities of other services are being looked up"),
            Self::Enough => f.write_str("too many requests to other services would be needed"),
            Self::Lookup(error) => error.fmt(f),
            Self::Refused(code) => write!(f, "its service answered {code} (RC {})", code.0),
            Self::NoVerdict => f.write_str("no server of its service verified the answer"),
            Self::NoVerifier => f.write_str("no server of its service answers"),
            Self::RecentlySilent(why) => write!(f, "{why}, a moment ago"),
        }
    }
}

/// The remote services, and the means to ask them.
#[derive(Debug)]
pub struct RemoteServices {
    config: RemoteConfig,
    client: Arc<Client>,
    /// One for each request that may ask at the same time.
    drivers: FreeDrivers,
    silent: Mutex<SilentHandles>,
    counts: RemoteCounters,
}

/// The kind of question about a handle. Silence on one kind says little about the other, which may
/// use other servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum InquiryKind {
    Values,
    Verdict,
}

/// Handles about which questions failed recently. If each were asked about every time, clients
/// could occupy all drivers with one silent service.
#[derive(Debug)]
struct SilentHandles {
    rest: Duration,
    handles_max: usize,
    /// The time and reason of the failure.
    handles: HashMap<(Vec<u8>, InquiryKind), (Instant, RemoteFailure)>,
}

impl SilentHandles {
    fn new(config: &RemoteConfig) -> Self {
        let rest = Duration::from_millis(config.backoff_ms.into());
        Self { rest, handles_max: config.backoff_handles, handles: HashMap::new() }
    }

    /// The recent failure of a question of this kind about `handle`, if there is one.
    fn recent_failure(&self, handle: Handle<'_>, about: InquiryKind, now: Instant) -> Option<RemoteFailure> {
        let (since, unanswered) = self.handles.get(&(handle.prefix_folded(), about))?;
        is_young(*since, now, self.rest).then(|| RemoteFailure::RecentlySilent(Box::new(unanswered.clone())))
    }

    /// Records a failure, unless the table is full.
    fn note(&mut self, handle: Handle<'_>, about: InquiryKind, unanswered: RemoteFailure, now: Instant) {
        let (rest, max) = (self.rest, self.handles_max);
        if self.handles.len() >= max {
            self.handles.retain(|_, (since, _)| is_young(*since, now, rest));
        }
        if self.handles.len() < max {
            self.handles.insert((handle.prefix_folded(), about), (now, unanswered));
        }
    }
}

/// Whether an answer with `code` is authoritative. A server that is busy, broken or not responsible
/// cannot tell.
const fn is_authoritative(code: ResponseCode) -> bool {
    matches!(code, ResponseCode::SUCCESS | ResponseCode::HANDLE_NOT_FOUND | ResponseCode::VALUES_NOT_FOUND)
}

fn is_young(since: Instant, now: Instant, rest: Duration) -> bool {
    now.saturating_duration_since(since) < rest
}

#[derive(Debug, Default)]
struct RemoteCounters {
    questions: AtomicU64,
    unanswered: AtomicU64,
    refused: AtomicU64,
    recently_silent: AtomicU64,
}

/// Counts of the questions to other services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteCounts {
    /// Questions, including those answered from the cache.
    pub questions: u64,
    /// Questions without an answer.
    pub unanswered: u64,
    /// Questions not asked because too many requests were asking.
    pub refused: u64,
    /// Questions not asked because a question about the same handle failed recently.
    pub recently_silent: u64,
    /// Questions answered from the cache.
    pub cached: u64,
}

impl RemoteServices {
    /// Reads the files that `config` names; `None` if other services are not to be asked.
    ///
    /// # Errors
    /// One sentence with the likely cause.
    pub fn open(config: &RemoteConfig, exempt: SourceList) -> anyhow::Result<Option<Self>> {
        if !config.enabled {
            return Ok(None);
        }
        let client = Arc::new(config.client()?);
        let drivers = FreeDrivers::new(&client, config.requests, exempt);
        let (silent, counts) = (Mutex::new(SilentHandles::new(config)), RemoteCounters::default());
        Ok(Some(Self { config: config.clone(), client, drivers, silent, counts }))
    }

    /// Sets the sources that may ask as many questions at a time as there may be.
    pub fn set_exempt(&self, exempt: SourceList) {
        self.drivers.set_exempt(exempt);
    }

    /// Starts the questions of one request from `source`. No question has been asked yet, and no
    /// driver is taken.
    #[must_use]
    pub const fn begin_inquiry(&self, source: IpAddr) -> RemoteInquiry<'_> {
        RemoteInquiry {
            services: self,
            source,
            driver: None,
            questions_left: self.config.queries_per_request,
            ends: None,
        }
    }

    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> RemoteCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let RemoteCounters { questions, unanswered, refused, recently_silent } = &self.counts;
        RemoteCounts {
            questions: of(questions),
            unanswered: of(unanswered),
            refused: of(refused),
            recently_silent: of(recently_silent),
            cached: self.client.cache.stats().hits,
        }
    }

    /// The number of requests that are asking other services.
    #[must_use]
    pub fn asking(&self) -> usize {
        self.drivers.used()
    }

    fn silent(&self) -> MutexGuard<'_, SilentHandles> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The questions of one request to other services.
#[derive(Debug)]
pub struct RemoteInquiry<'e> {
    services: &'e RemoteServices,
    source: IpAddr,
    driver: Option<TakenDriver<'e>>,
    questions_left: usize,
    /// The deadline, set when the first question is asked.
    ends: Option<Instant>,
}

impl RemoteInquiry<'_> {
    /// The public value with the index of `reference`, if it exists.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn value(&mut self, reference: Reference<'_>) -> Result<SharedAnswer, RemoteFailure> {
        self.ask(Question { indexes: vec![reference.index], ..Question::all(reference.handle) })
    }

    /// The public values with the public keys of `identity`: the value with its index, or all if
    /// that index is 0.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn public_keys(&mut self, identity: Reference<'_>) -> Result<SharedAnswer, RemoteFailure> {
        match identity.index {
            0 => self.ask(Question::of_types(identity.handle, &[HS_PUBKEY])),
            _ => self.value(identity),
        }
    }

    /// The public administrators of a prefix. Only a primary site may know those of a new prefix.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn administrators(&mut self, prefix_record: &[u8]) -> Result<SharedAnswer, RemoteFailure> {
        let mut question = Question::of_types(prefix_record, &[HS_ADMIN]);
        match self.ask(question.clone()) {
            Ok(answer) if answer.code == ResponseCode::SUCCESS => Ok(answer),
            first @ (Ok(_) | Err(RemoteFailure::Refused(_))) => {
                question.wants.authoritative = true;
                self.ask(question).or(first)
            }
            unanswered => unanswered,
        }
    }

    /// Whether an answer to a challenge was made with the secret key, which only its own service
    /// knows. RFC 3652 section 3.5.3.
    ///
    /// A failure is remembered only if verifying the answer takes no more work than the answers of
    /// deployed clients. Otherwise a client that claims an identity could make its service appear
    /// silent.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn verdict(&mut self, request: &VerificationRequest<'_>) -> Result<RemoteVerdict, RemoteFailure> {
        let purpose = InterfacePurpose { kind: InterfaceKind::QUERY, primary_only: false };
        let certified = self.services.config.certified;
        let timeout = Duration::from_millis(self.services.config.timeout_ms.into());
        let outcome = self.with_driver(request.identity.handle, InquiryKind::Verdict, |driver, ends| {
            let servers = driver.servers(request.identity.handle, purpose, certified);
            let servers = servers.map_err(RemoteFailure::Lookup)?;
            let servers = &servers[..servers.len().min(VERIFIERS_MAX)];
            let outcome = first_verdict(servers, ends, timeout, |server, timeout| {
                verdict_of(server, request, certified, timeout)
            });
            outcome.map_err(|why| {
                if is_usual_work(request.signed_response) { why } else { RemoteFailure::NoVerdict }
            })
        });
        self.note(&outcome);
        outcome
    }

    fn ask(&mut self, mut question: Question) -> Result<SharedAnswer, RemoteFailure> {
        question.wants.certified = self.services.config.certified;
        let mut outcome = self.with_driver(&question.handle, InquiryKind::Values, |driver, _| {
            let answer = driver
                .resolve(&question, &LookupOptions::default())
                .outcome
                .map_err(RemoteFailure::Lookup)?;
            if is_authoritative(answer.code) { Ok(answer) } else { Err(RemoteFailure::Refused(answer.code)) }
        });
        // A cached answer helps even after a recent failure.
        if matches!(outcome, Err(RemoteFailure::RecentlySilent(_)))
            && let Some(answer) = self.services.client.cache.get(&question, driver::now())
        {
            outcome = Ok(answer);
        }
        self.note(&outcome);
        outcome
    }

    /// Runs `ask` about `handle` with a driver, if the limits allow it and no recent failure is
    /// known.
    fn with_driver<T>(
        &mut self,
        handle: &[u8],
        about: InquiryKind,
        ask: impl FnOnce(&mut BlockingDriver, Instant) -> Result<T, RemoteFailure>,
    ) -> Result<T, RemoteFailure> {
        let timeout = Duration::from_millis(self.services.config.timeout_ms.into());
        let now = Instant::now();
        let ends = *self.ends.get_or_insert(now + timeout);
        let left = self.questions_left.checked_sub(1).filter(|_| now < ends).ok_or(RemoteFailure::Enough)?;
        self.questions_left = left;
        let handle = Handle(handle);
        if let Some(recently_silent) = self.services.silent().recent_failure(handle, about, now) {
            return Err(recently_silent);
        }
        let driver = match &mut self.driver {
            Some(driver) => driver,
            none => none.insert(self.services.drivers.take(self.source).ok_or(RemoteFailure::Busy)?),
        };
        let outcome = ask(driver, ends);
        if let Err(unanswered) = &outcome
            && unanswered.is_silence()
        {
            self.services.silent().note(handle, about, unanswered.clone(), Instant::now());
        }
        outcome
    }

    fn note<T>(&self, outcome: &Result<T, RemoteFailure>) {
        let RemoteCounters { questions, unanswered, refused, recently_silent } = &self.services.counts;
        let not_asked = match outcome {
            Ok(_) => None,
            Err(RemoteFailure::Busy | RemoteFailure::Enough) => Some(refused),
            Err(RemoteFailure::RecentlySilent(_)) => Some(recently_silent),
            Err(_) => {
                unanswered.fetch_add(1, Ordering::Relaxed);
                None
            }
        };
        not_asked.unwrap_or(questions).fetch_add(1, Ordering::Relaxed);
    }
}

/// The verdict of a server on an answer to a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteVerdict {
    /// Whether the answer is right.
    pub is_right: bool,
    /// The protocol version of the server.
    pub verifier: Version,
}

/// The response of a server that was asked for a verdict.
enum VerifierReply {
    Verdict(RemoteVerdict),
    /// A response without a verdict.
    Something,
    /// No response that counts.
    Nothing,
}

/// The first verdict that one of `servers` gives. Each server gets an equal share of the remaining
/// time, so that a silent server does not use up the time of the others.
///
/// # Errors
/// Returns [`RemoteFailure::NoVerifier`] only if every server was asked, none responded, and the
/// time was sufficient: other questions of the request may have used it up.
fn first_verdict<S>(
    servers: &[S],
    ends: Instant,
    timeout: Duration,
    mut ask: impl FnMut(&S, Duration) -> VerifierReply,
) -> Result<RemoteVerdict, RemoteFailure> {
    let had_time = ends.saturating_duration_since(Instant::now()) >= timeout / 2;
    let mut has_reply = false;
    for (server, left_count) in servers.iter().zip((1..=servers.len()).rev()) {
        let share =
            ends.saturating_duration_since(Instant::now()) / u32::try_from(left_count).unwrap_or(u32::MAX);
        if share.is_zero() {
            return Err(RemoteFailure::NoVerdict);
        }
        match ask(server, share) {
            VerifierReply::Verdict(verdict) => return Ok(verdict),
            VerifierReply::Something => has_reply = true,
            VerifierReply::Nothing => {}
        }
    }
    Err(if has_reply || !had_time { RemoteFailure::NoVerdict } else { RemoteFailure::NoVerifier })
}

fn verdict_of(
    server: &ServerTarget,
    request: &VerificationRequest<'_>,
    certified: bool,
    timeout: Duration,
) -> VerifierReply {
    let mut client = Administrator::new(server.address, timeout);
    if certified {
        let Ok(key) = PublicKey::from_record(&server.public_key) else { return VerifierReply::Nothing };
        client.require_signatures(key);
    }
    let flags = OpFlags::PLAIN_REQUEST.with(OpFlags::CERTIFY).with(OpFlags::REQUEST_DIGEST);
    let Ok(answer) = client.ask(&Request::VerifyChallenge(*request), flags) else {
        return VerifierReply::Nothing;
    };
    match answer.reply().response {
        Response::Verdict(wire::auth::VerificationAnswer { is_valid: is_right }) => {
            VerifierReply::Verdict(RemoteVerdict { is_right, verifier: answer.version() })
        }
        _ => VerifierReply::Something,
    }
}

/// Whether verifying an answer takes no more work than an answer of a deployed client.
fn is_usual_work(signed_response: &[u8]) -> bool {
    let usual = Pbkdf2Limits {
        iterations_max: PBKDF2_ITERATIONS,
        key_bits_max: PBKDF2_KEY_BITS,
        ..Pbkdf2Limits::DEFAULT
    };
    SecretAnswer::decode(signed_response).is_ok_and(|answer| usual.admit(&answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_authoritative_codes_mean_that_values_do_not_exist() {
        for code in [2, 3, 4, 5, 102, 201, 300, 301, 302, 303, 400, 402, 999] {
            assert!(!is_authoritative(ResponseCode(code)), "{code}");
        }
        for code in [1, 100, 200] {
            assert!(is_authoritative(ResponseCode(code)), "{code}");
        }
        let text = RemoteFailure::Refused(ResponseCode::SERVER_BUSY).to_string();
        assert!(text.contains("its service answered") && text.contains("RC 3"), "{text}");
    }

    #[test]
    fn silent_handles_are_not_retried_during_the_rest() {
        let config = RemoteConfig { backoff_ms: 100, backoff_handles: 8, ..RemoteConfig::default() };
        let (mut silent, start, rest) =
            (SilentHandles::new(&config), Instant::now(), Duration::from_millis(100));
        silent.note(Handle(b"20.2/identity"), InquiryKind::Verdict, RemoteFailure::NoVerifier, start);
        let recently_silent = RemoteFailure::RecentlySilent(Box::new(RemoteFailure::NoVerifier));
        assert_eq!(
            silent.recent_failure(Handle(b"20.2/identity"), InquiryKind::Verdict, start),
            Some(recently_silent)
        );
        assert_eq!(silent.recent_failure(Handle(b"20.2/other"), InquiryKind::Verdict, start), None);
        assert_eq!(
            silent.recent_failure(Handle(b"20.2/identity"), InquiryKind::Values, start),
            None,
            "its keys may still be returned"
        );
        assert!(
            silent
                .recent_failure(
                    Handle(b"20.2/identity"),
                    InquiryKind::Verdict,
                    start + rest - Duration::from_millis(1)
                )
                .is_some()
        );
        assert_eq!(silent.recent_failure(Handle(b"20.2/identity"), InquiryKind::Verdict, start + rest), None);
        for n in 0..16 {
            silent.note(
                Handle(format!("20.2/{n}").as_bytes()),
                InquiryKind::Verdict,
                RemoteFailure::NoVerifier,
                start,
            );
        }
        assert_eq!(silent.handles.len(), 8);
        assert!(
            silent.recent_failure(Handle(b"20.2/identity"), InquiryKind::Verdict, start).is_some(),
            "what is remembered stays"
        );
        silent.note(Handle(b"20.2/other"), InquiryKind::Verdict, RemoteFailure::NoVerifier, start + rest);
        assert_eq!(silent.handles.len(), 1, "until its time is over");
        let forgetful =
            [RemoteConfig { backoff_ms: 0, ..config.clone() }, RemoteConfig { backoff_handles: 0, ..config }];
        for config in forgetful {
            let mut silent = SilentHandles::new(&config);
            silent.note(Handle(b"20.2/identity"), InquiryKind::Verdict, RemoteFailure::NoVerifier, start);
            assert_eq!(
                silent.recent_failure(Handle(b"20.2/identity"), InquiryKind::Verdict, start),
                None,
                "{config:?}"
            );
        }
    }

    /// Otherwise a client that claims an identity could make its service appear silent, with an
    /// answer that takes its servers too long to verify.
    #[test]
    fn only_silence_on_usual_work_is_remembered() {
        for is_silence in [RemoteFailure::NoVerifier, RemoteFailure::Lookup(LookupError::NoRoot)] {
            assert!(is_silence.is_silence() && !is_silence.was_heard(), "{is_silence}");
        }
        let none_for_this =
            RemoteFailure::Lookup(LookupError::NoServer { handle: b"20.2/identity".to_vec() });
        assert!(!none_for_this.is_silence() && !none_for_this.was_heard());
        for failure in [RemoteFailure::NoVerdict, RemoteFailure::Refused(ResponseCode::SERVER_BUSY)] {
            assert!(!failure.is_silence() && failure.was_heard(), "{failure}");
        }
        for (iterations, key_bits, is_usual) in
            [(1, 128, true), (10_000, 160, true), (10_001, 160, false), (10_000, 168, false), (0, 160, false)]
        {
            let mut answer = Vec::new();
            SecretAnswer::Pbkdf2 { salt: b"salt", iterations, key_bits, mac: b"mac" }.encode(&mut answer);
            assert_eq!(is_usual_work(&answer), is_usual, "{iterations} rounds, {key_bits} bits");
        }
        assert!(is_usual_work(b"\x02mac") && !is_usual_work(b""));
    }

    #[test]
    fn each_verifier_gets_an_equal_share_of_the_time() {
        let timeout = Duration::from_secs(60);
        let verdict = RemoteVerdict { is_right: true, verifier: Version::CURRENT };
        let ends_in = |left| Instant::now() + left;
        let mut shares = Vec::new();
        let outcome = first_verdict(&[1, 2, 3], ends_in(timeout), timeout, |&server, share| {
            shares.push(share.as_secs_f64().round());
            if server == 3 { VerifierReply::Verdict(verdict) } else { VerifierReply::Nothing }
        });
        assert_eq!((outcome, shares), (Ok(verdict), vec![20.0, 30.0, 60.0]));
        let verdict_within = |left, replies: [fn() -> VerifierReply; 2]| {
            first_verdict(&replies, ends_in(left), timeout, |reply, _| reply())
        };
        let (silent, unclear) = (|| VerifierReply::Nothing, || VerifierReply::Something);
        assert_eq!(verdict_within(timeout, [silent, silent]), Err(RemoteFailure::NoVerifier));
        assert_eq!(verdict_within(timeout, [silent, unclear]), Err(RemoteFailure::NoVerdict));
        assert_eq!(
            verdict_within(timeout / 4, [silent, silent]),
            Err(RemoteFailure::NoVerdict),
            "not enough time"
        );
        let timeout = Duration::from_millis(10);
        let outcome = first_verdict(&[1, 2], ends_in(timeout), timeout, |_, _| {
            std::thread::sleep(timeout);
            VerifierReply::Nothing
        });
        assert_eq!(outcome, Err(RemoteFailure::NoVerdict), "the second was not asked");
    }
}
