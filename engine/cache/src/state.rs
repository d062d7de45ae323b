//! The cache itself, as workers and the thread that asks others share it.

use crate::changed_handles::ChangeTimes;
use crate::config::{CacheConfig, Config};
use crate::counters::{BusyCounter, CacheCounters, DurationCounts};
use crate::entry::{
    AnswerTtl, CERTIFIED, HAS_ABSOLUTE, LINKED, NO_HANDLE, NOTIFIED, RECORD, is_key_of, set_ttl, stamp,
    with_folded, with_key,
};
use crate::linked_ttl;
use crate::open_questions::{OpenQuestions, PurgeScope};
use crate::questions::QuestionTask;
use crate::recent::RecentNames;
use crate::relay::RelayedChallenges;
use crate::saved::SavedEntry;
use crate::table::{CachedEntry, CachedRecordTable, EntryStamp, TableLookup};
use crate::top::{SAMPLE_EVERY, TopNames};
use crate::upstream::{OriginAnswer, UpstreamResolver};
use arc_swap::ArcSwap;
use handle_auth::source::SourceList;
use handle_daemon::clock::now_unix_s;
use handle_daemon::notice::ChangedHandles;
use handle_daemon::notice::listener::NotifyConfig;
use handle_daemon::secret_guesses::{self, SecretGuesses};
use handle_proto::wire::list::Values;
use handle_proto::{Handle, fold};
use handle_resolver::{CachedLookup, StagedCacheLookup};
use handle_snapshot::{EncodedRecord, hash_key};
use handle_worker::cache::{CopyBuffer, Resolution};
use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc::UnboundedSender;

/// Seconds between two renewals of one record in the background.
const RENEWAL_PAUSE_S: u32 = 1;
/// Recent uses with which a record is renewed before its time ends.
const USES_TO_RENEW: u8 = 2;
/// Seconds by which clocks of threads may differ. What was stored later than that was stored before
/// the clock was set back, and its age is unknown.
const CLOCK_SLACK_S: u32 = 2;

/// The cache.
#[derive(Debug)]
pub struct CacheState {
    pub(crate) config: Config,
    live: ArcSwap<CacheConfig>,
    /// The setting `ttl_s_max` of `live`, which every answer needs.
    ttl_s_max: AtomicU32,
    /// The settings of notices that are in force.
    pub(crate) notify: ArcSwap<NotifyConfig>,
    pub(crate) table: CachedRecordTable,
    /// Random, so that names with equal hashes are not known beforehand. The hash is none of
    /// cryptography: such names may be found in other ways, and then displace each other. They are
    /// never taken for each other, because keys are compared.
    seed: u64,
    /// Names whose expired record is shown at once, because servers have not answered lately.
    failing: RecentNames,
    /// Names whose record is being renewed.
    renewed: RecentNames,
    /// Number of renewals under way.
    renewals: AtomicUsize,
    /// Entries with [`NOTIFIED`] that were stored until this time, in seconds since 1970, have
    /// expired.
    notified_until_s: AtomicU32,
    /// The same for single handles.
    changed_until_s: ChangeTimes,
    /// Whether there is a connection for notices.
    pub(crate) is_notified_now: AtomicBool,
    /// Challenges of services to which requests were handed.
    pub(crate) relayed: RelayedChallenges,
    /// The wrong secret keys in requests that were handed over.
    pub(crate) secret_guesses: SecretGuesses,
    /// Sources without a limit.
    pub(crate) exempt: SourceList,
    /// Handles that were changed through this cache, folded. As many as were changed in a second.
    changed: Mutex<HashSet<Vec<u8>>>,
    /// The questions under way.
    pub(crate) open: OpenQuestions,
    /// Number of them, with those that a purge has overtaken.
    pub(crate) questions_open: AtomicUsize,
    pub(crate) upstream: UpstreamResolver,
    tasks: UnboundedSender<QuestionTask>,
    pub(crate) hits: BusyCounter,
    pub(crate) top: TopNames,
    pub(crate) counters: CacheCounters,
    pub(crate) durations: DurationCounts,
}

/// Whether and how an entry can be used.
enum CacheEntryState {
    Fresh { age_s: u32, left_s: u32 },
    Stale,
    Over,
}

impl CacheState {
    /// An empty cache. What it does not know is demanded through `tasks`.
    ///
    /// # Errors
    /// When a file of the configuration cannot be used.
    pub fn open(config: &Config, tasks: UnboundedSender<QuestionTask>) -> anyhow::Result<Self> {
        Ok(Self {
            live: ArcSwap::from_pointee(config.cache.clone()),
            ttl_s_max: AtomicU32::new(config.cache.ttl_s_max),
            notify: ArcSwap::from_pointee(config.notify.clone()),
            table: CachedRecordTable::new(config.cache.bytes),
            seed: RandomState::new().hash_one(0),
            failing: RecentNames::default(),
            renewed: RecentNames::default(),
            renewals: AtomicUsize::new(0),
            notified_until_s: AtomicU32::new(0),
            changed_until_s: match config.policy.notified.is_empty() {
                true => ChangeTimes::default(),
                false => ChangeTimes::new(config.cache.bytes),
            },
            is_notified_now: AtomicBool::new(false),
            relayed: RelayedChallenges::default(),
            secret_guesses: SecretGuesses::new(secret_guesses::ENTRIES),
            exempt: SourceList::parse(&config.waiting.exempt_sources).unwrap_or_default(),
            changed: Mutex::default(),
            open: OpenQuestions::new(config.cache.file.is_some()),
            questions_open: AtomicUsize::new(0),
            upstream: UpstreamResolver::open(&config.upstream, &config.policy)?,
            tasks,
            hits: BusyCounter::default(),
            top: TopNames::default(),
            counters: CacheCounters::default(),
            durations: DurationCounts::default(),
            config: config.clone(),
        })
    }

    /// The settings of the cache that are in force.
    pub(crate) fn live(&self) -> Arc<CacheConfig> {
        self.live.load_full()
    }

    /// Puts other settings in force.
    pub(crate) fn set_live(&self, config: &Config) {
        self.live.store(Arc::new(config.cache.clone()));
        self.ttl_s_max.store(config.cache.ttl_s_max, Ordering::Relaxed);
        self.notify.store(Arc::new(config.notify.clone()));
    }

    /// Hands a task to the thread that asks others. After its end, the task is dropped.
    pub(crate) fn demand(&self, task: QuestionTask) {
        let _ = self.tasks.send(task);
    }

    /// The hash of a handle.
    #[inline]
    pub(crate) fn hash(&self, handle: Handle<'_>) -> u64 {
        with_key(handle, |key| hash_key(self.seed, key))
    }

    fn entry_state(
        &self,
        hash: u64,
        handle: Handle<'_>,
        stamp: EntryStamp,
        now_unix_s: u32,
    ) -> CacheEntryState {
        let age_s = now_unix_s.saturating_sub(stamp.stored_unix_s);
        match stamp.ttl_s.checked_sub(age_s) {
            Some(left_s @ 1..)
                if !is_of_the_future(stamp, now_unix_s) && !self.is_notified(handle, stamp, now_unix_s) =>
            {
                CacheEntryState::Fresh { age_s, left_s }
            }
            _ if self.can_be_stale(stamp, age_s.saturating_sub(stamp.ttl_s))
                && self.failing.noted_at(hash).is_some() =>
            {
                CacheEntryState::Stale
            }
            _ => CacheEntryState::Over,
        }
    }

    /// Whether its publisher may have changed the entry of `handle` since it was stored.
    #[inline]
    fn is_notified(&self, handle: Handle<'_>, stamp: EntryStamp, now_unix_s: u32) -> bool {
        stamp.flags & NOTIFIED != 0
            && (stamp.stored_unix_s <= self.notified_until(&self.notified_until_s, now_unix_s)
                || self.is_changed(handle, stamp, now_unix_s))
    }

    /// Whether its publisher has named `handle` since its entry was stored.
    fn is_changed(&self, handle: Handle<'_>, stamp: EntryStamp, now_unix_s: u32) -> bool {
        let time = match self.upstream.aliased(handle) {
            Some(shown) => self.changed_until_s.of(self.hash_of_all_spellings(&shown)),
            None => self.changed_until_s.of(self.hash_of_all_spellings(handle.0)),
        };
        time.is_some_and(|until_s| stamp.stored_unix_s <= self.notified_until(until_s, now_unix_s))
    }

    /// A hash that a handle has in any case.
    fn hash_of_all_spellings(&self, handle: &[u8]) -> u64 {
        with_folded(handle, |folded| hash_key(self.seed, folded))
    }

    /// The time `until_s` until which a notice counts. If the clock was set back after it, only
    /// what is stored by now may be older than the notice.
    #[inline]
    fn notified_until(&self, until_s: &AtomicU32, now_unix_s: u32) -> u32 {
        let time_s = until_s.load(Ordering::Acquire);
        let longest_s =
            now_unix_s.saturating_add(self.config.policy.notified_s).saturating_add(CLOCK_SLACK_S);
        if time_s <= longest_s {
            return time_s;
        }
        until_s.fetch_min(now_unix_s, Ordering::AcqRel);
        now_unix_s
    }

    /// Whether there is a connection for notices; `None` if there is to be none.
    pub(crate) fn is_connected_for_notices(&self) -> Option<bool> {
        let is_wanted = !self.config.notify.address.is_empty();
        is_wanted.then(|| self.is_notified_now.load(Ordering::Relaxed))
    }

    /// Handles a notice: the entries of the handles that have changed have expired, also those that
    /// are stored soon after it; without their names, all entries whose changes are announced. What
    /// is asked about them now is not stored.
    pub(crate) fn take_notice(&self, changed: Option<&ChangedHandles>, now_unix_s: u32) {
        let until_s = now_unix_s.saturating_add(self.config.policy.notified_s);
        let Some(changed) = changed else {
            self.counters.notices_of_all.add();
            self.notified_until_s.store(until_s, Ordering::Release);
            return self.open.overtake(|name| self.is_announced(Handle(name)));
        };
        let names: HashSet<Vec<u8>> = changed.names().map(fold::folded).collect();
        self.counters.handles_notified.add_many(names.len() as u64);
        for name in &names {
            self.changed_until_s.set(hash_key(self.seed, name), until_s);
        }
        let is_named = |name: &[u8]| names.contains(&fold::folded(name));
        self.open.overtake(|name| {
            is_named(name) || self.upstream.aliased(Handle(name)).is_some_and(|shown| is_named(&shown))
        });
    }

    /// Whether an entry may be shown so many seconds after its end.
    fn can_be_stale(&self, stamp: EntryStamp, expired_s: u32) -> bool {
        stamp.kind == RECORD && stamp.flags & HAS_ABSOLUTE == 0 && expired_s < self.live.load().stale_s
    }

    /// What workers know about the handle of `lookup`. The values are copied to `buffer`.
    #[inline]
    pub(crate) fn find<'r>(
        &self,
        &StagedCacheLookup { handle, hash, slot, .. }: &StagedCacheLookup<'_>,
        now_unix_s: u32,
        buffer: &CopyBuffer<'r>,
    ) -> CachedLookup<'r> {
        let is_key = |key: &[u8]| is_key_of(key, handle);
        let found = self.table.find_at(hash, slot, handle.0.len(), is_key, |len| buffer.take(len));
        let TableLookup::Found(CachedEntry { stamp, values, uses }) = found else {
            return CachedLookup::Unknown;
        };
        let ttl = match self.entry_state(hash, handle, stamp, now_unix_s) {
            CacheEntryState::Over => return CachedLookup::Unknown,
            CacheEntryState::Stale => {
                self.renew(hash, handle, now_unix_s);
                self.counters.stale_answers.add();
                AnswerTtl::Stale(self.live.load().stale_ttl_s)
            }
            CacheEntryState::Fresh { age_s, left_s } => {
                if left_s <= stamp.ttl_s / 10 && uses >= USES_TO_RENEW && self.live.load().renew_early {
                    self.renew(hash, handle, now_unix_s);
                }
                let max_s = self.ttl_s_max.load(Ordering::Relaxed);
                AnswerTtl::Left { age_s, entry_left_s: left_s, max_s }
            }
        };
        if self.hits.add().is_multiple_of(SAMPLE_EVERY) {
            with_key(handle, |key| self.top.note(key));
        }
        if stamp.kind == NO_HANDLE {
            return CachedLookup::NoHandle;
        }
        match stamp.flags & LINKED {
            0 => set_ttl(values, ttl),
            _ => linked_ttl::set(values, ttl),
        }
        CachedLookup::Record(EncodedRecord::of_public_values(values, stamp.values_count))
    }

    /// Demands a renewal in the background, unless one is under way.
    #[cold]
    fn renew(&self, hash: u64, handle: Handle<'_>, now_unix_s: u32) {
        if !self.renewed.note_once(hash, now_unix_s, RENEWAL_PAUSE_S) {
            return;
        }
        if self.renewals.fetch_add(1, Ordering::Relaxed) >= self.config.upstream.renewals() {
            self.end_renewal();
            self.counters.renewals_left_out.add();
            return;
        }
        self.demand(QuestionTask::Renew(handle.0.into()));
    }

    /// Number of renewals under way.
    pub(crate) fn renewals_open(&self) -> usize {
        self.renewals.load(Ordering::Relaxed)
    }

    /// Counts that a renewal has ended.
    pub(crate) fn end_renewal(&self) {
        self.renewals.fetch_sub(1, Ordering::Relaxed);
    }

    /// A copy of what the table has about `handle`.
    fn copy(&self, handle: Handle<'_>) -> Option<(EntryStamp, Vec<u8>)> {
        let (hash, mut copy) = (self.hash(handle), Vec::new());
        let buffer = &mut copy;
        let found = with_key(handle, |key| {
            self.table.find(hash, key, move |len| {
                buffer.resize(len, 0);
                Some(&mut buffer[..])
            })
        });
        let TableLookup::Found(CachedEntry { stamp, values, .. }) = found else { return None };
        // The key is in front of the values.
        let values_len = values.len();
        copy.drain(..copy.len() - values_len);
        if stamp.flags & LINKED != 0 {
            linked_ttl::unlink(&mut copy);
        }
        Some((stamp, copy))
    }

    /// What is known about `handle`, if it has not expired.
    pub(crate) fn fresh(&self, handle: Handle<'_>) -> Option<Resolution> {
        let (stamp, mut values) = self.copy(handle)?;
        match self.entry_state(self.hash(handle), handle, stamp, now_unix_s()) {
            CacheEntryState::Fresh { age_s, left_s } => {
                let max_s = self.live.load().ttl_s_max;
                set_ttl(&mut values, AnswerTtl::Left { age_s, entry_left_s: left_s, max_s });
                Some(resolution(stamp, values))
            }
            CacheEntryState::Stale | CacheEntryState::Over => None,
        }
    }

    /// The record of `handle` that is shown if no server answers, if there is one.
    pub(crate) fn stale(&self, handle: Handle<'_>) -> Option<Resolution> {
        let (stamp, mut values) = self.copy(handle)?;
        let age_s = now_unix_s().saturating_sub(stamp.stored_unix_s);
        if !self.can_be_stale(stamp, age_s.saturating_sub(stamp.ttl_s)) {
            return None;
        }
        set_ttl(&mut values, AnswerTtl::Stale(self.live.load().stale_ttl_s));
        Some(resolution(stamp, values))
    }

    /// Notes that servers do not answer about `handle`, so that its expired record is shown at
    /// once.
    pub(crate) fn note_failing(&self, handle: Handle<'_>) {
        self.failing.note(self.hash(handle), now_unix_s());
    }

    /// Whether changes of `handle`, or of the handle whose record it shows, are announced.
    fn is_announced(&self, handle: Handle<'_>) -> bool {
        self.upstream.is_notified(handle)
            || self.upstream.aliased(handle).is_some_and(|shown| self.upstream.is_notified(Handle(&shown)))
    }

    /// Whether the entry of `key`, or the handle whose record it shows, is in `scope`.
    fn is_in(&self, scope: PurgeScope<'_>, key: &[u8]) -> bool {
        scope.has(key) || self.upstream.aliased(Handle(key)).is_some_and(|shown| scope.has(&shown))
    }

    /// Removes what was known before, and returns the number of entries. Questions under way store
    /// nothing in the scope.
    pub(crate) fn purge(&self, scope: PurgeScope<'_>) -> usize {
        self.overtake(scope);
        self.table.remove_if(&mut |key, _| self.is_in(scope, key))
    }

    /// Lets questions under way, and entries that are yet to be restored, store nothing in the
    /// scope, and forgets the service.
    fn overtake(&self, scope: PurgeScope<'_>) {
        self.open.purge(scope, |name| self.is_in(scope, name));
        let services = &self.upstream.client().cache;
        match scope {
            PurgeScope::Handle(name) | PurgeScope::Prefix(name) => {
                services.forget(&Handle(name).prefix_record());
            }
            PurgeScope::All => services.clear(),
        }
    }

    /// Removes what is known about a handle that has changed: at once as it is spelt, and soon in
    /// all other spellings, which takes a look at the whole table.
    pub(crate) fn note_changed(&self, handle: Handle<'_>) {
        self.overtake(PurgeScope::Handle(handle.0));
        with_key(handle, |key| self.table.remove(self.hash(handle), key));
        self.changed().insert(fold::folded(handle.0));
    }

    fn changed(&self) -> MutexGuard<'_, HashSet<Vec<u8>>> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are names for [`remove_changed`](Self::remove_changed).
    pub(crate) fn has_changed(&self) -> bool {
        !self.changed().is_empty()
    }

    /// Removes what is known about the handles that have changed, in all spellings.
    pub(crate) fn remove_changed(&self) {
        let names = std::mem::take(&mut *self.changed());
        let is_changed = |name: &[u8]| names.contains(&fold::folded(name));
        self.table.remove_if(&mut |key, _| {
            is_changed(key) || self.upstream.aliased(Handle(key)).is_some_and(|shown| is_changed(&shown))
        });
    }

    /// Stores an entry of an earlier process, unless it can no longer be shown, a newer one is
    /// known, or it was purged.
    pub(crate) fn restore(&self, entry: &SavedEntry<'_>) -> bool {
        let (handle, now_unix_s, live) = (Handle(entry.key), now_unix_s(), self.live());
        let notified = if self.is_announced(handle) { NOTIFIED } else { 0 };
        let flags = entry.stamp.flags & !NOTIFIED | notified;
        // The settings may have been others when it was stored.
        let is_negative = entry.stamp.kind == NO_HANDLE || entry.stamp.values_count == 0;
        let longest_s = if is_negative { live.negative_s } else { live.ttl_s_max };
        let stamp = EntryStamp { flags, ttl_s: entry.stamp.ttl_s.min(longest_s), ..entry.stamp };
        let age_s = now_unix_s.saturating_sub(stamp.stored_unix_s);
        let is_usable = !is_of_the_future(stamp, now_unix_s)
            && entry.key.len() + entry.values.len() <= live.record_bytes_max
            && match age_s.checked_sub(stamp.ttl_s) {
                None => true,
                Some(expired_s) => self.can_be_stale(stamp, expired_s),
            };
        let is_ruled = self.upstream.has_policy(handle)
            || (stamp.flags & CERTIFIED == 0 && self.upstream.certifies(handle));
        is_usable
            && !is_ruled
            && self.open.unless_purged(entry.key, || {
                let (hash, (stamp, values)) = (hash_key(self.seed, entry.key), linked(stamp, entry.values));
                self.table.insert_if_absent(hash, entry.key, stamp, &values)
            })
    }

    /// The answer of a service to those who have waited for it.
    pub(crate) fn shown(&self, answer: OriginAnswer) -> Resolution {
        let max_s = self.live.load().ttl_s_max;
        let mut values = answer.values.to_vec();
        set_ttl(&mut values, AnswerTtl::Left { age_s: 0, entry_left_s: 0, max_s });
        OriginAnswer { values: values.into(), ..answer }.into()
    }

    /// Stores what a service said about `handle`, in place of what was known.
    pub(crate) fn store(&self, handle: Handle<'_>, answer: &OriginAnswer) {
        let Ok(values) = Values::from_encoded(answer.count.into(), &answer.values) else { return };
        let hash = self.hash(handle);
        let mut stamp = stamp(answer.kind, values.iter(), &self.live.load().ttl_limits(), now_unix_s());
        stamp.flags |= if answer.is_certified { CERTIFIED } else { 0 };
        stamp.flags |= if self.is_announced(handle) { NOTIFIED } else { 0 };
        self.failing.forget(hash);
        let is_short = handle.0.len() + answer.values.len() <= self.live.load().record_bytes_max;
        let is_stored = with_key(handle, |key| {
            if stamp.ttl_s > 0 && is_short {
                let (stamp, values) = linked(stamp, &answer.values);
                return self.table.insert(hash, key, stamp, &values);
            }
            self.table.remove(hash, key);
            false
        });
        if !is_stored {
            self.counters.not_stored.add();
        }
    }
}

/// An entry in the form in which it is put into the table.
fn linked(stamp: EntryStamp, values: &[u8]) -> (EntryStamp, Vec<u8>) {
    let mut values = values.to_vec();
    let flag = if linked_ttl::link(&mut values) { LINKED } else { 0 };
    (EntryStamp { flags: stamp.flags & !LINKED | flag, ..stamp }, values)
}

/// Whether an entry was stored before the clock was set back.
const fn is_of_the_future(stamp: EntryStamp, now_unix_s: u32) -> bool {
    stamp.stored_unix_s > now_unix_s.saturating_add(CLOCK_SLACK_S)
}

/// A copy of an entry as the answer to a request.
fn resolution(stamp: EntryStamp, values: Vec<u8>) -> Resolution {
    match stamp.kind {
        NO_HANDLE => Resolution::NoHandle,
        _ => Resolution::Record { values: values.into(), count: stamp.values_count },
    }
}

#[cfg(test)]
mod tests;
