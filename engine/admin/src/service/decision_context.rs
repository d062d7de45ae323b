//! What decisions on requests depend on besides the records of the store: the rules in force, other
//! services, and sources of records.

use crate::operation::{self, OperationDecision, OperationRequest, OperationRules, Requester};
use crate::permission::view::RemoteFacts;
use crate::referral::ReferralResolver;
use crate::remote::RemoteServices;
use crate::sourced::SourceFacts;
use handle_auth::kdf::Pbkdf2Limits;
use handle_auth::source::SourceList;
use handle_daemon::site::SiteRecord;
use handle_source::RecordSources;
use handle_store::{StoreError, StoreRecords};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The rules in force; replaced when the configuration is reloaded.
#[derive(Debug)]
pub struct ActiveRules {
    /// The rules by which requests are decided.
    pub rules: OperationRules,
    /// Limits on the work of verifying answers to challenges.
    pub effort: ChallengeEffort,
    /// Sources whose wrong secret keys are not limited.
    pub exempt: SourceList,
}

/// Limits on the work of verifying an answer to a challenge.
#[derive(Clone, Copy, Debug)]
pub struct ChallengeEffort {
    /// Limits on the parameters of PBKDF2.
    pub pbkdf2: Pbkdf2Limits,
    /// Maximum keys of one identity that are tried if the answer names none.
    pub keys_tried: usize,
    /// Whether clients are challenged only inside sessions.
    pub requires_sessions: bool,
}

/// What decisions depend on besides the records of the store.
#[derive(Debug)]
pub struct DecisionContext {
    in_force: RwLock<Arc<ActiveRules>>,
    remote: Option<RemoteServices>,
    /// Sources of records that the store does not have.
    sources: Option<Arc<RecordSources>>,
    /// Resolves referrals for clients that do not understand them.
    referrals: Option<ReferralResolver>,
    made_count: AtomicU64,
}

impl DecisionContext {
    /// Decides by `in_force`, and asks the given services and sources.
    #[must_use]
    pub fn new(
        in_force: ActiveRules,
        remote: Option<RemoteServices>,
        sources: Option<RecordSources>,
        referrals: Option<ReferralResolver>,
    ) -> Self {
        Self {
            in_force: RwLock::new(Arc::new(in_force)),
            remote,
            sources: sources.map(Arc::new),
            referrals,
            made_count: AtomicU64::new(0),
        }
    }

    /// The rules in force.
    #[must_use]
    pub fn in_force(&self) -> Arc<ActiveRules> {
        Arc::clone(&self.in_force.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The site record of this server.
    #[must_use]
    pub fn site(&self) -> Arc<SiteRecord> {
        Arc::clone(&self.in_force().rules.site)
    }

    /// Lets this server be one of the primary site that `site` describes: it makes changes from now
    /// on.
    pub fn become_primary(&self, site: SiteRecord) {
        let before = self.in_force();
        let rules = OperationRules { site: Arc::new(site), primaries: None, ..before.rules.clone() };
        self.put_in_force(ActiveRules { rules, effort: before.effort, exempt: before.exempt.clone() });
    }

    /// Puts other rules in force for all requests from now on.
    pub fn put_in_force(&self, in_force: ActiveRules) {
        *self.in_force.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(in_force);
    }

    /// The other services that are asked about identities, if any are.
    #[must_use]
    pub const fn remote(&self) -> Option<&RemoteServices> {
        self.remote.as_ref()
    }

    /// The sources of records, if there are any.
    #[must_use]
    pub fn sources(&self) -> Option<&RecordSources> {
        self.sources.as_deref()
    }

    /// The resolver for clients that do not understand referrals, if there is one.
    #[must_use]
    pub const fn referrals(&self) -> Option<&ReferralResolver> {
        self.referrals.as_ref()
    }

    /// What sources have said for a request, which is nothing at its beginning.
    pub(super) fn source_facts(&self) -> SourceFacts {
        SourceFacts::new(self.sources.clone())
    }

    /// Decides, as [`operation::decide`] does, and counts the decision.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(super) fn decide(
        &self,
        records: &impl StoreRecords,
        rules: &OperationRules,
        request: &OperationRequest<'_>,
        requester: Requester<'_>,
        remote_facts: &RemoteFacts,
    ) -> Result<OperationDecision, StoreError> {
        self.made_count.fetch_add(1, Ordering::Relaxed);
        operation::decide(records, rules, request, requester, remote_facts)
    }

    /// The number of decisions made, on snapshots of the store and in its writer.
    #[must_use]
    pub fn made_count(&self) -> u64 {
        self.made_count.load(Ordering::Relaxed)
    }
}
