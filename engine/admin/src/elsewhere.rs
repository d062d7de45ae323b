//! What other services say about identities whose handles are not here: keys, groups, administrators of prefixes.
//!
//! - What is asked for is public, or the verdict on an answer to a challenge. Whoever has the handle says so without
//!   asking anybody in turn, so two services that name each other's groups cannot keep each other busy.
//! - Bounded: so many at a time, and nobody waits for a place; for each request so many records, and
//!   about three times `patience_ms` at most.
//! - Only signed answers count, all the way from the global service, unless the operator says otherwise.
//!
//! Blocking: this belongs on a thread that may wait. RFC 3652 sections 3.5.2 and 3.5.3.

use anyhow::{Context as _, ensure};
use crossbeam_channel::{Receiver, Sender, bounded};
use handle_auth::PublicKey;
use handle_client::administration::Administrator;
use handle_client::bootstrap::{FILE_LEN_MAX, Root};
use handle_client::cache::{Cache, CacheLimits};
use handle_client::lookup::{Client, Limits, Options};
use handle_client::plan::{Purpose, Target};
use handle_client::{Answer, Driver, LookupError, Question};
use handle_proto::data::kind::{HS_ADMIN, HS_PUBKEY};
use handle_proto::data::site::InterfaceKind;
use handle_proto::wire::auth::Verification;
use handle_proto::wire::list::Reference;
use handle_proto::wire::{Request, Response};
use handle_proto::{Handle, OpFlags, ResponseCode};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Whether and how other services are asked about identities.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct ElsewhereConfig {
    /// Whether they are asked. Otherwise identities and groups whose handles are elsewhere entitle nobody.
    pub enabled: bool,
    /// The global service: `bootstrap_handles` (JSON) or `root_info` of a deployed client.
    pub root: Option<PathBuf>,
    /// Prefixes whose service is known beforehand: `local_info.json` or `local_info` of a deployed client.
    pub local_info: Option<PathBuf>,
    /// Whether only signed answers count, all the way from the global service.
    pub certified: bool,
    /// Requests on whose behalf others are asked at the same time. One more is refused.
    pub at_once: usize,
    /// Most records that others are asked for on behalf of one request.
    pub questions: usize,
    /// How long one question may take, in milliseconds; once a request has taken so long, no other is asked. A
    /// question that is asked when this is nearly over may take as long again, and so may the last request that is sent
    /// for it: a request may wait for about three times this.
    pub patience_ms: u32,
    /// Bytes of answers that are kept.
    pub cache_bytes: usize,
    /// Most seconds that an answer is kept, whatever its time to live: what was taken back elsewhere counts here for
    /// so long; a key, in a session that has proven who it is, until the session ends.
    pub cache_s: u32,
}

impl Default for ElsewhereConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            root: None,
            local_info: None,
            certified: true,
            at_once: 16,
            questions: 16,
            patience_ms: 5000,
            cache_bytes: 16 << 20,
            cache_s: 300,
        }
    }
}

impl ElsewhereConfig {
    /// With paths that are relative to `directory`.
    #[must_use]
    pub fn relative_to(mut self, directory: &Path) -> Self {
        self.root = self.root.map(|file| directory.join(file));
        self.local_info = self.local_info.map(|file| directory.join(file));
        self
    }

    /// Checks what can be checked without opening anything.
    ///
    /// # Errors
    /// Names the setting, and what it should be.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(
            !self.enabled || self.root.is_some() || self.local_info.is_some(),
            "`elsewhere.enabled` without `elsewhere.root`: name the file of the global service (bootstrap_handles)"
        );
        let bounds = [
            ("at_once", self.at_once, 1, 1024),
            ("questions", self.questions, 1, 256),
            ("patience_ms", self.patience_ms as usize, 1, 120_000),
            ("cache_bytes", self.cache_bytes, 0, 1 << 34),
            ("cache_s", self.cache_s as usize, 0, 172_800),
        ];
        for (name, value, least, most) in bounds {
            ensure!(
                (least..=most).contains(&value),
                "`elsewhere.{name}` is {value}: it must be from {least} to {most}"
            );
        }
        Ok(())
    }

    fn client(&self) -> anyhow::Result<Client> {
        let root = match &self.root {
            Some(path) => Root::read(&read(path)?).with_context(|| {
                format!("`elsewhere.root`: {} is no file of the global service", path.display())
            })?,
            None => Root::default(),
        };
        let mut client = Client::new(root);
        if let Some(path) = &self.local_info {
            let added = client.overrides.add_local_info(&read(path)?);
            added.with_context(|| format!("`elsewhere.local_info`: {}", path.display()))?;
        }
        client.limits =
            Limits { patience_ms: self.patience_ms.into(), requests_max: REQUESTS_MAX, ..Limits::default() };
        client.patience.tcp_ms = self.patience_ms;
        let kept = CacheLimits::default();
        client.cache = Cache::new(CacheLimits {
            bytes_max: self.cache_bytes,
            ttl_max_s: self.cache_s.min(kept.ttl_max_s),
            ..kept
        });
        Ok(client)
    }
}

/// Requests that one question may take: services are found in a handful.
const REQUESTS_MAX: usize = 32;
/// Servers that one answer to a challenge is shown to before nobody is believed to know.
const VERIFIERS_MAX: usize = 3;
/// How long nobody is asked about a handle again after nobody answered.
const REST: Duration = Duration::from_secs(5);
/// Handles that are remembered for that.
const SILENT_MAX: usize = 1024;

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).and_then(|file| file.take(FILE_LEN_MAX).read_to_end(&mut bytes));
    file.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(bytes)
}

/// Why nobody says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// Others are being asked on behalf of as many requests as may be.
    Busy,
    /// So much was asked on behalf of this request that no more is.
    Enough,
    /// The service is not known, or does not answer.
    Lookup(LookupError),
    /// The service answers, but neither with values nor that there are none.
    Refused(ResponseCode),
    /// No server said whether an answer to a challenge is right.
    NoVerdict,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("too many identities of other services are being looked up"),
            Self::Enough => f.write_str("too much would have to be asked of other services"),
            Self::Lookup(error) => error.fmt(f),
            Self::Refused(code) => write!(f, "its service says: {code} (RC {})", code.0),
            Self::NoVerdict => f.write_str("no server of its service says whether the answer is right"),
        }
    }
}

/// Other services, as they are asked from here.
#[derive(Debug)]
pub struct Elsewhere {
    config: ElsewhereConfig,
    client: Arc<Client>,
    /// One for each request on whose behalf others may be asked.
    places: (Sender<Driver>, Receiver<Driver>),
    silent: Mutex<Silent>,
    counts: Counts,
}

/// Handles about which nobody answered a moment ago. Were they asked about each time, strangers could keep all places
/// busy with one service that is silent.
#[derive(Debug, Default)]
struct Silent(HashMap<Vec<u8>, (Instant, LookupError)>);

impl Silent {
    /// Why nobody says anything about `handle`, if that was found out less than [`REST`] ago.
    fn why(&self, handle: Handle<'_>, now: Instant) -> Option<LookupError> {
        let (since, error) = self.0.get(&handle.prefix_folded())?;
        is_young(*since, now).then(|| error.clone())
    }

    /// Takes note; where there is no room, not.
    fn note(&mut self, handle: Handle<'_>, error: LookupError, now: Instant) {
        if self.0.len() >= SILENT_MAX {
            self.0.retain(|_, (since, _)| is_young(*since, now));
        }
        if self.0.len() < SILENT_MAX {
            self.0.insert(handle.prefix_folded(), (now, error));
        }
    }
}

/// Whether an answer with `code` says what there is. A server that is busy, broken or not responsible does not know.
const fn says_what_there_is(code: ResponseCode) -> bool {
    matches!(code, ResponseCode::SUCCESS | ResponseCode::HANDLE_NOT_FOUND | ResponseCode::VALUES_NOT_FOUND)
}

fn is_young(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) < REST
}

#[derive(Debug, Default)]
struct Counts {
    asked: AtomicU64,
    unanswered: AtomicU64,
    refused: AtomicU64,
}

/// What was asked of other services so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ElsewhereCounts {
    /// Questions, those included that the cache answered.
    pub asked: u64,
    /// Questions that nobody answered.
    pub unanswered: u64,
    /// Questions that were not asked, because too many were.
    pub refused: u64,
    /// Questions that were answered from the cache.
    pub cached: u64,
}

impl Elsewhere {
    /// Reads the files that `config` names; `None` when others are not to be asked.
    ///
    /// # Errors
    /// One sentence with the likely cause.
    pub fn open(config: &ElsewhereConfig) -> anyhow::Result<Option<Self>> {
        if !config.enabled {
            return Ok(None);
        }
        let client = Arc::new(config.client()?);
        let places = bounded(config.at_once);
        for _ in 0..config.at_once {
            // There is room for each, and both ends are here.
            let _ = places.0.send(Driver::new(Arc::clone(&client)));
        }
        let (silent, counts) = (Mutex::default(), Counts::default());
        Ok(Some(Self { config: config.clone(), client, places, silent, counts }))
    }

    /// What is asked on behalf of one request. Nothing is yet, and no place is taken.
    #[must_use]
    pub const fn errand(&self) -> Errand<'_> {
        Errand { elsewhere: self, driver: None, questions_left: self.config.questions, ends: None }
    }

    /// What was asked so far.
    #[must_use]
    pub fn counts(&self) -> ElsewhereCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { asked, unanswered, refused } = &self.counts;
        ElsewhereCounts {
            asked: of(asked),
            unanswered: of(unanswered),
            refused: of(refused),
            cached: self.client.cache.stats().hits,
        }
    }

    /// Requests on whose behalf others are being asked.
    #[must_use]
    pub fn asking(&self) -> usize {
        self.config.at_once.saturating_sub(self.places.1.len())
    }

    fn silent(&self) -> MutexGuard<'_, Silent> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is asked of other services on behalf of one request.
#[derive(Debug)]
pub struct Errand<'e> {
    elsewhere: &'e Elsewhere,
    driver: Option<Driver>,
    questions_left: usize,
    /// Since others were asked for the first time, so long.
    ends: Option<Instant>,
}

impl Errand<'_> {
    /// The public value with the index of `reference`, if it is there.
    ///
    /// # Errors
    /// When nobody says.
    pub fn value(&mut self, reference: Reference<'_>) -> Result<Arc<Answer>, Unanswered> {
        self.ask(Question { indexes: vec![reference.index], ..Question::all(reference.handle) })
    }

    /// The public values with the public keys of `identity`: that with its index, or all where that is 0.
    ///
    /// # Errors
    /// When nobody says.
    pub fn public_keys(&mut self, identity: Reference<'_>) -> Result<Arc<Answer>, Unanswered> {
        match identity.index {
            0 => self.ask(Question::of_types(identity.handle, &[HS_PUBKEY])),
            _ => self.value(identity),
        }
    }

    /// The public administrators of a prefix. Those of a new one only a primary site may know.
    ///
    /// # Errors
    /// When nobody says.
    pub fn administrators(&mut self, prefix_record: &[u8]) -> Result<Arc<Answer>, Unanswered> {
        let mut question = Question::of_types(prefix_record, &[HS_ADMIN]);
        match self.ask(question.clone()) {
            Ok(answer) if answer.code == ResponseCode::SUCCESS => Ok(answer),
            said @ (Ok(_) | Err(Unanswered::Refused(_))) => {
                question.wants.authoritative = true;
                self.ask(question).or(said)
            }
            unanswered => unanswered,
        }
    }

    /// Whether an answer to a challenge is made with a secret that nobody is told. RFC 3652 section 3.5.3.
    ///
    /// # Errors
    /// When nobody says.
    pub fn verdict(&mut self, asked: &Verification<'_>) -> Result<bool, Unanswered> {
        let purpose = Purpose { kind: InterfaceKind::QUERY, primary_only: false };
        let certified = self.elsewhere.config.certified;
        let told = self.with_driver(asked.identity.handle, |driver, ends| {
            let servers = driver.servers(asked.identity.handle, purpose, certified);
            let servers = servers.map_err(Unanswered::Lookup)?;
            let told = servers.iter().take(VERIFIERS_MAX).find_map(|server| {
                let left = ends.saturating_duration_since(Instant::now());
                if left.is_zero() { None } else { verdict_of(server, asked, certified, left) }
            });
            told.ok_or(Unanswered::NoVerdict)
        });
        self.note(&told);
        told
    }

    fn ask(&mut self, mut question: Question) -> Result<Arc<Answer>, Unanswered> {
        question.wants.certified = self.elsewhere.config.certified;
        let told = self.with_driver(&question.handle, |driver, _| {
            let answer =
                driver.resolve(&question, &Options::default()).outcome.map_err(Unanswered::Lookup)?;
            if says_what_there_is(answer.code) { Ok(answer) } else { Err(Unanswered::Refused(answer.code)) }
        });
        self.note(&told);
        told
    }

    /// Has `ask` ask about `handle`, where that may be, and is worth it.
    fn with_driver<T>(
        &mut self,
        handle: &[u8],
        ask: impl FnOnce(&mut Driver, Instant) -> Result<T, Unanswered>,
    ) -> Result<T, Unanswered> {
        let patience = Duration::from_millis(self.elsewhere.config.patience_ms.into());
        let now = Instant::now();
        let ends = *self.ends.get_or_insert(now + patience);
        let left = self.questions_left.checked_sub(1).filter(|_| now < ends).ok_or(Unanswered::Enough)?;
        self.questions_left = left;
        let handle = Handle(handle);
        if let Some(error) = self.elsewhere.silent().why(handle, now) {
            return Err(Unanswered::Lookup(error));
        }
        let driver = match &mut self.driver {
            Some(driver) => driver,
            none => none.insert(self.elsewhere.places.1.try_recv().map_err(|_| Unanswered::Busy)?),
        };
        let told = ask(driver, ends);
        if let Err(Unanswered::Lookup(error)) = &told {
            self.elsewhere.silent().note(handle, error.clone(), Instant::now());
        }
        told
    }

    fn note<T>(&self, told: &Result<T, Unanswered>) {
        let Counts { asked, unanswered, refused } = &self.elsewhere.counts;
        match told {
            Ok(_) => {}
            Err(Unanswered::Busy | Unanswered::Enough) => {
                refused.fetch_add(1, Ordering::Relaxed);
                return;
            }
            Err(_) => drop(unanswered.fetch_add(1, Ordering::Relaxed)),
        }
        asked.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Errand<'_> {
    fn drop(&mut self) {
        if let Some(driver) = self.driver.take() {
            // It goes where it came from, so there is room.
            let _ = self.elsewhere.places.0.try_send(driver);
        }
    }
}

/// What `server` says to an answer to a challenge; `None` when that does not count.
fn verdict_of(
    server: &Target,
    asked: &Verification<'_>,
    certified: bool,
    patience: Duration,
) -> Option<bool> {
    let mut client = Administrator::new(server.address, patience);
    if certified {
        client.require_signatures(PublicKey::from_record(&server.public_key).ok()?);
    }
    let flags = OpFlags::PLAIN_REQUEST.with(OpFlags::CERTIFY).with(OpFlags::REQUEST_DIGEST);
    let answer = client.ask(&Request::VerifyChallenge(*asked), flags).ok()?;
    match answer.reply().response {
        Response::Verdict(verdict) => Some(verdict.is_valid),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_does_not_know_does_not_say_that_there_is_nothing() {
        for code in [2, 3, 4, 5, 102, 201, 300, 301, 302, 303, 400, 402, 999] {
            assert!(!says_what_there_is(ResponseCode(code)), "{code}");
        }
        for code in [1, 100, 200] {
            assert!(says_what_there_is(ResponseCode(code)), "{code}");
        }
        let said = Unanswered::Refused(ResponseCode::SERVER_BUSY).to_string();
        assert!(said.contains("its service says") && said.contains("RC 3"), "{said}");
    }

    #[test]
    fn nobody_is_asked_again_so_soon_about_what_nobody_answered() {
        let (mut silent, start) = (Silent::default(), Instant::now());
        silent.note(Handle(b"20.2/who"), LookupError::NoRoot, start);
        assert_eq!(silent.why(Handle(b"20.2/who"), start), Some(LookupError::NoRoot));
        assert_eq!(silent.why(Handle(b"20.2/other"), start), None);
        assert_eq!(silent.why(Handle(b"20.2/who"), start + REST), None);
        for n in 0..2 * SILENT_MAX {
            silent.note(Handle(format!("20.2/{n}").as_bytes()), LookupError::NoRoot, start);
        }
        assert_eq!(silent.0.len(), SILENT_MAX);
        assert!(silent.why(Handle(b"20.2/who"), start).is_some(), "what is remembered stays");
        silent.note(Handle(b"20.2/other"), LookupError::NoRoot, start + REST);
        assert_eq!(silent.0.len(), 1, "until its time is over");
    }
}
