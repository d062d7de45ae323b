//! The facts about a server that its answers depend on.

use crate::sorting::SortingBuffer;
use handle_proto::limit::FRAGMENTS_MAX;
use handle_proto::wire::Header;
use handle_proto::{Handle, HashOption};
use handle_snapshot::{EncodedRecord, HomedTable, RecordSet};

/// The server's place in its site. It decides which handles the server is responsible for, and what
/// replies contain.
#[derive(Clone, Copy, Debug)]
pub struct ServiceFacts<'a> {
    /// The site record in wire form: the answer to a request for site information.
    pub site: &'a [u8],
    /// Serial number of the site record, written into every reply.
    pub site_serial: i16,
    /// Whether this is a primary site; its replies are authoritative.
    pub primary: bool,
    /// The part of a handle that is hashed to choose the server.
    pub hash_option: HashOption,
    /// Number of servers in the site.
    pub servers_count: u32,
    /// Position of this server in the site's list, from 0.
    pub server_at: u32,
    /// Most datagrams of one answer. It bounds the traffic that a sender with a forged address can
    /// direct at others.
    pub answer_datagrams_max: usize,
    /// Whether the server has a key to sign with, so that requests for a signature go to the slow
    /// path.
    pub signs: bool,
    /// Whether the server sends challenges, so that requests for more than public values go to the
    /// slow path.
    pub authenticates: bool,
    /// Whether the server has sessions. Their owner checks that the session of a request exists.
    pub sessions: bool,
    /// Whether requests to list names are forwarded to another process instead of refused.
    pub forwards_listing: bool,
    /// Whether requests that only the responsible service can decide are handed to it: those that
    /// change records, and those for more than public values.
    pub relays: bool,
    /// Whether the server resolves derived prefixes that an ancestor delegates, for clients that do
    /// not understand a referral.
    pub resolves_for_old: bool,
}

impl ServiceFacts<'_> {
    /// A site of one server that publishes no site record; for tests and benches.
    pub const ALONE: ServiceFacts<'static> = ServiceFacts {
        site: &[],
        site_serial: Header::NO_SITE_SERIAL,
        primary: true,
        hash_option: HashOption::Handle,
        servers_count: 1,
        server_at: 0,
        answer_datagrams_max: FRAGMENTS_MAX,
        signs: false,
        authenticates: false,
        sessions: false,
        forwards_listing: false,
        relays: false,
        resolves_for_old: false,
    };

    /// Whether `handle` hashes to this server. RFC 3652 section 3.1.3.
    #[must_use]
    #[inline]
    pub fn has(&self, handle: Handle<'_>) -> bool {
        self.servers_count <= 1
            || handle.server_at(self.hash_option, self.servers_count) == Some(self.server_at)
    }
}

/// Decides whether a handle that is not stored may have computed values.
pub trait MayCompute: core::fmt::Debug {
    /// The handle whose record the values of `handle` would be computed from; `None` if they cannot
    /// be computed. Called only if `handle` was not found.
    fn base_of<'h>(&self, handle: &'h [u8]) -> Option<&'h [u8]>;
}

/// The records of other services that a caching server keeps for a while. RFC 3651 section 4.2.1.
///
/// It is consulted only for handles that the set does not have and whose prefix is not homed.
pub trait RecordCache: core::fmt::Debug {
    /// First step of the lookups of a batch: starts loading what the last one reads.
    fn prefetch(&self, lookups: &mut [StagedCacheLookup<'_>]);

    /// Last step: sets what is known about the handle of each lookup that is wanted.
    fn find<'c>(&'c self, lookups: &mut [StagedCacheLookup<'c>]);
}

/// A lookup in a [`RecordCache`]. Only the cache knows what hash and slot mean.
#[derive(Clone, Copy, Debug)]
pub struct StagedCacheLookup<'a> {
    /// The handle, as the client spelt it.
    pub handle: Handle<'a>,
    /// Whether it is to be looked up: not if the set decides, or no cache may answer.
    pub is_wanted: bool,
    /// The hash of the handle.
    pub hash: u64,
    /// Where the first step found the record in the index.
    pub slot: usize,
    /// The result.
    pub known: CachedLookup<'a>,
}

impl<'a> StagedCacheLookup<'a> {
    /// A lookup before its first step.
    #[inline]
    #[must_use]
    pub const fn new(handle: Handle<'a>, is_wanted: bool) -> Self {
        Self { handle, is_wanted, hash: 0, slot: 0, known: CachedLookup::Unknown }
    }
}

/// What a [`RecordCache`] knows about a handle.
#[derive(Clone, Copy, Debug)]
pub enum CachedLookup<'a> {
    /// Its public values.
    Record(EncodedRecord<'a>),
    /// There is no such handle.
    NoHandle,
    /// Nothing: another service has to be asked.
    Unknown,
}

/// Everything that an answer depends on besides the request. Created once for each batch.
#[derive(Debug)]
pub struct AnswerContext<'a, B> {
    pub(crate) records: RecordSet<'a, B>,
    pub(crate) homed: Option<HomedTable<'a>>,
    pub(crate) service: ServiceFacts<'a>,
    pub(crate) now_unix_s: u32,
    computed: Option<&'a dyn MayCompute>,
    pub(crate) cached: Option<&'a dyn RecordCache>,
    pub(crate) sorting: Option<&'a SortingBuffer>,
}

impl<'a, B: AsRef<[u8]>> AnswerContext<'a, B> {
    /// Answers from `records`, for the server that `service` describes, at the time `now_unix_s`.
    #[must_use]
    pub fn new(records: RecordSet<'a, B>, service: ServiceFacts<'a>, now_unix_s: u32) -> Self {
        Self {
            records,
            homed: records.homed_table(),
            service,
            now_unix_s,
            computed: None,
            cached: None,
            sorting: None,
        }
    }

    /// Adds computed values: requests for handles that are not stored but computed go to the slow
    /// path.
    #[must_use]
    pub const fn computing(mut self, computed: Option<&'a dyn MayCompute>) -> Self {
        self.computed = computed;
        self
    }

    /// Adds the records of other services: a request for public values of a handle whose prefix is
    /// not homed is answered from `cached`, or goes to the slow path if nothing is known there.
    #[must_use]
    pub const fn caching(mut self, cached: Option<&'a dyn RecordCache>) -> Self {
        self.cached = cached;
        self
    }

    /// The same context with [`cached`](Self::caching) records, which may be there for a shorter
    /// time: while a part of a batch is answered.
    #[must_use]
    pub const fn with_cached<'p>(&self, cached: &'p dyn RecordCache) -> AnswerContext<'p, B>
    where
        'a: 'p,
    {
        let Self { records, homed, service, now_unix_s, computed, sorting, cached: _ } = *self;
        AnswerContext { records, homed, service, now_unix_s, computed, cached: Some(cached), sorting }
    }

    /// Whether all records are those of other services: the set is empty.
    #[inline]
    pub(crate) fn knows_only_cached(&self) -> bool {
        self.cached.is_some() && self.records.layers().is_empty()
    }

    /// Adds a buffer to sort the lists of one query, which takes memory and time. Without it,
    /// requests that need it go to the slow path.
    #[must_use]
    pub const fn sorting_in(mut self, buffer: &'a SortingBuffer) -> Self {
        self.sorting = Some(buffer);
        self
    }

    /// The records that answers come from.
    #[must_use]
    pub const fn records(&self) -> &RecordSet<'a, B> {
        &self.records
    }

    /// The facts about the server.
    #[must_use]
    pub const fn service(&self) -> &ServiceFacts<'a> {
        &self.service
    }

    /// Whether `handle`, which is not stored, may have computed values.
    #[cold]
    pub(crate) fn may_compute(&self, handle: &[u8]) -> bool {
        self.base_of(handle).is_some()
    }

    /// The handle whose record the values of `handle`, which is not stored, may be computed from.
    pub(crate) fn base_of<'h>(&self, handle: &'h [u8]) -> Option<&'h [u8]> {
        self.computed?.base_of(handle)
    }
}

impl<B> Clone for AnswerContext<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for AnswerContext<'_, B> {}
