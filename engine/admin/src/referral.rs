//! Resolution on behalf of clients that do not understand a referral to the service of a derived
//! prefix.
//!
//! The referral itself names the servers and their keys, so no other knowledge is needed.
//! Resolutions are bounded: in number at a time, without a queue, and in time by
//! `remote.timeout_ms` each; answers are cached within `remote.cache_bytes` and
//! `remote.cache_s`. RFC 3652 section 3.4, with the behaviour of deployed servers.

use crate::drivers::FreeDrivers;
use crate::remote::config::RemoteConfig;
use handle_auth::source::SourceList;
use handle_client::lookup::{LookupOptions, LookupTarget};
use handle_client::{Question, SharedAnswer};
use handle_proto::wire::query::Query;
use handle_proto::{ResponseCode, ValueBuf, Version};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// First version in which clients understand a referral in answer to any operation.
pub const UNDERSTOOD_SINCE: Version = Version::new(2, 10);

/// Asks the services that referrals name.
#[derive(Debug)]
pub struct ReferralResolver {
    certified: bool,
    /// One for each resolution that may be in progress.
    drivers: FreeDrivers,
    counts: ReferralCounters,
}

#[derive(Debug, Default)]
struct ReferralCounters {
    resolved: AtomicU64,
    unresolved: AtomicU64,
    refused: AtomicU64,
}

/// Counts of resolutions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReferralCounts {
    /// Answers received from the other service.
    pub resolved: u64,
    /// Resolutions without an answer; the client got the referral.
    pub unresolved: u64,
    /// Requests refused because too many resolutions were in progress.
    pub refused: u64,
}

/// Why a referral is not resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferralFailure {
    /// The maximum number of resolutions is in progress.
    Busy,
    /// The service that the referral names did not answer.
    Unanswered,
}

impl ReferralResolver {
    /// A resolver for `at_once` resolutions at a time, with the limits of `config`.
    ///
    /// # Errors
    /// When a file that `config` names cannot be used.
    pub fn open(config: &RemoteConfig, at_once: usize, exempt: SourceList) -> anyhow::Result<Self> {
        let client = Arc::new(config.client()?);
        let drivers = FreeDrivers::new(&client, at_once, exempt);
        Ok(Self { certified: config.certified, drivers, counts: ReferralCounters::default() })
    }

    /// Sets the sources for which as many resolutions may be in progress as there may be.
    pub fn set_exempt(&self, exempt: SourceList) {
        self.drivers.set_exempt(exempt);
    }

    /// Asks the service that the values of `referral` name, for a client at `source`. The request
    /// has passed through `recursion_count` servers.
    ///
    /// # Errors
    /// Why there is no answer.
    pub fn resolve(
        &self,
        source: IpAddr,
        query: &Query<'_>,
        referral: Vec<ValueBuf>,
        recursion_count: u8,
    ) -> Result<SharedAnswer, ReferralFailure> {
        let resolved = self.try_resolve(source, query, referral, recursion_count);
        let counter = match &resolved {
            Ok(_) => &self.counts.resolved,
            Err(ReferralFailure::Unanswered) => &self.counts.unresolved,
            Err(ReferralFailure::Busy) => &self.counts.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        resolved
    }

    fn try_resolve(
        &self,
        source: IpAddr,
        query: &Query<'_>,
        referral: Vec<ValueBuf>,
        recursion_count: u8,
    ) -> Result<SharedAnswer, ReferralFailure> {
        let mut driver = self.drivers.take(source).ok_or(ReferralFailure::Busy)?;
        let mut question = Question::all(query.handle);
        question.indexes = query.indexes.iter().collect();
        question.types = query.types.iter().map(<[u8]>::to_vec).collect();
        question.wants.certified = self.certified;
        let options = LookupOptions {
            target: LookupTarget::Referral(referral),
            recursion_count: recursion_count.saturating_add(1),
            allows_recursion: false,
            ..LookupOptions::default()
        };
        let outcome = driver.resolve(&question, &options).outcome;
        drop(driver);
        match outcome {
            Ok(answer) if is_final(answer.code) => Ok(answer),
            Ok(answer) => {
                tracing::debug!(code = %answer.code, "a referral leads to no answer");
                Err(ReferralFailure::Unanswered)
            }
            Err(error) => {
                tracing::debug!(%error, "a referral leads to no answer");
                Err(ReferralFailure::Unanswered)
            }
        }
    }

    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> ReferralCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let ReferralCounters { resolved, unresolved, refused } = &self.counts;
        ReferralCounts { resolved: of(resolved), unresolved: of(unresolved), refused: of(refused) }
    }
}

/// Whether an answer with `code` is authoritative.
const fn is_final(code: ResponseCode) -> bool {
    matches!(code, ResponseCode::SUCCESS | ResponseCode::HANDLE_NOT_FOUND | ResponseCode::VALUES_NOT_FOUND)
}
