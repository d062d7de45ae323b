//! Changes of many records for one caller, who is authenticated once. Each change is decided on its
//! own, and they are committed together.

use super::candidates::KeyCandidate;
use super::case::ChallengeClaim;
use super::commit::apply;
use super::open::{OpenedRequest, open};
use super::prove::unknown_identity;
use super::verify::TOO_MUCH_WAITS;
use super::{ActiveRules, AdminService, DecisionContext, hidden};
use crate::audit::AuditLine;
use crate::bulk::config::BulkConfig;
use crate::operation::{OperationAnswer, OperationDecision, OperationRefusal, Requester};
use crate::permission::view::RemoteFacts;
use crate::proof_fields::{put_bytes, put_ms, take_bytes, take_ms};
use crate::sourced::SourcedRecords;
use handle_auth::challenge_proof::ChallengeProof;
use handle_auth::challenges::IssuedChallenge;
use handle_auth::source::RequestOrigin;
use handle_daemon::clock::{now_unix_ms, now_unix_s};
use handle_local::bulk::{
    BulkBegin, BulkChange, BulkKey, BulkRequest, BulkResult, KEY_LEN_MAX, TEXT_LEN_MAX, covered,
};
use handle_proto::limit::NONCE_LEN;
use handle_proto::wire::auth::{self, ChallengeAnswer};
use handle_proto::wire::list::Reference;
use handle_proto::{Handle, OpCode, ResponseCode, Version};
use handle_store::{BulkKeyBounds, BulkKeyState, BulkScope, StoreError, Transaction};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zeroize::Zeroizing;

/// An authenticated caller.
#[derive(Debug)]
pub struct BulkCaller {
    identity: (i32, Vec<u8>),
    source: SocketAddr,
    key: Option<OpenedKey>,
}

/// The key of a request, which is in progress as long as this exists.
#[derive(Debug)]
struct OpenedKey {
    scope: BulkScope,
    request: RequestInProgress,
}

/// The numbers of the requests with a key that are in progress; a number may be there repeatedly.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestsInProgress(Arc<Mutex<Vec<u64>>>);

impl RequestsInProgress {
    fn numbers(&self) -> MutexGuard<'_, Vec<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, number: u64) -> RequestInProgress {
        self.numbers().push(number);
        RequestInProgress { all: self.clone(), number }
    }
}

/// A request with a key, in progress until this is dropped.
#[derive(Debug)]
struct RequestInProgress {
    all: RequestsInProgress,
    number: u64,
}

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        let mut numbers = self.all.numbers();
        if let Some(at) = numbers.iter().position(|&number| number == self.number) {
            numbers.swap_remove(at);
        }
    }
}

/// Why a caller gets no results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BulkRefusal {
    /// The key belongs to a request with another body.
    OtherBody,
    /// The caller is not authenticated, or the store cannot be used.
    Refused(OperationRefusal),
}

impl From<OperationRefusal> for BulkRefusal {
    fn from(refused: OperationRefusal) -> Self {
        Self::Refused(refused)
    }
}

const KEY_DROPPED: OperationRefusal =
    OperationRefusal::new(ResponseCode::ERROR, "The key of the request was dropped meanwhile.");
const BAD_KEY_NAME: OperationRefusal = OperationRefusal::new(
    ResponseCode::PROTOCOL_ERROR,
    "The key of a request has 1 to 255 visible characters of ASCII.",
);
const NO_RESULT: &str = "The result of this change was not kept.";

/// Whether `name` may be that of a key: 1 to [`KEY_LEN_MAX`] visible characters of ASCII.
fn is_key_name(name: &[u8]) -> bool {
    (1..=KEY_LEN_MAX).contains(&name.len()) && name.iter().all(|byte| matches!(byte, b' '..=b'~'))
}

impl BulkCaller {
    /// The identity.
    #[must_use]
    pub fn reference(&self) -> Reference<'_> {
        Reference { handle: &self.identity.1, index: self.identity.0 }
    }

    /// The caller in the form in which another process continues with its connection.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&self.identity.0.to_be_bytes());
        put_bytes(&mut out, &self.identity.1);
        put_bytes(&mut out, self.source.to_string().as_bytes());
        if let Some(OpenedKey { scope, request }) = &self.key {
            put_bytes(&mut out, scope.as_bytes());
            put_ms(&mut out, request.number);
        }
        out
    }
}

/// A change as it is handed to the writer.
struct QueuedChange {
    number: u32,
    message: Zeroizing<Box<[u8]>>,
    random: [u8; 16],
}

/// A result, with the facts for its line in the audit log.
struct ChangeResult {
    result: BulkResult,
    op_code: OpCode,
    handle: Vec<u8>,
    changed: bool,
    /// Whether the change was carried out now, and not by an earlier request.
    is_new: bool,
}

/// The changes that are carried out in one transaction, in order.
struct ChangeGroup {
    /// Sources of records, which it has, are not asked in a transaction.
    decision: Arc<DecisionContext>,
    in_force: Arc<ActiveRules>,
    identity: (i32, Vec<u8>),
    key: Option<(BulkScope, u64)>,
    /// Results that are kept for the identity.
    results_max: usize,
    changes: Arc<Vec<QueuedChange>>,
    /// The range of `changes` that is carried out.
    range: std::ops::Range<usize>,
    facts: RemoteFacts,
    /// Position of the change whose facts were gathered. Another change that lacks facts ends the
    /// group. `None` if other services are not asked.
    gathered: Option<usize>,
    now_unix_s: u32,
}

impl AdminService {
    /// Verifies the proof of the caller in the frame `begin`; `None` if that frame is malformed.
    pub fn verify_bulk_caller(
        &self,
        begin: &[u8],
        nonce: [u8; NONCE_LEN],
        auth_type: &[u8],
        signed_response: &[u8],
        config: &BulkConfig,
    ) -> Option<Result<BulkCaller, BulkRefusal>> {
        let Some(BulkRequest::Begin(named)) = BulkRequest::decode(begin) else { return None };
        let source = SocketAddr::new(named.source, 0);
        let answer = ChallengeAnswer { auth_type, identity: named.identity, signed_response };
        let challenge = IssuedChallenge {
            version: Version::CURRENT,
            suggested: Version::CURRENT,
            nonce,
            digest: covered(begin),
            request: hidden(begin),
        };
        let claim = ChallengeClaim { challenge: &challenge, answer };
        let verified = self.check_claim(&claim, RequestOrigin::connection(named.source));
        let verified = verified.unwrap_or_else(|error| Err(self.store_refusal(&error)));
        if let Err(refused) = &verified {
            let op_code = OpCode::RESPONSE_TO_CHALLENGE;
            self.counters.answered(op_code, refused.code);
            let (code, text, identity) = (refused.code, &*refused.text, Some(named.identity));
            let handle = named.identity.handle;
            self.audit.write(&AuditLine { source, identity, op_code, handle, code, text, changed: false });
        }
        Some(verified.map_err(BulkRefusal::from).and_then(|()| self.begin_bulk(&named, source, config)))
    }

    /// Verifies the claim with the keys of its identity, at this or another service.
    fn check_claim(
        &self,
        claim: &ChallengeClaim<'_>,
        origin: RequestOrigin,
    ) -> Result<Result<(), OperationRefusal>, StoreError> {
        let identity = claim.answer.identity;
        let text =
            format!("The answer is not made with a key of {}:{}.", identity.index, Handle(identity.handle));
        let wrong = OperationRefusal { code: ResponseCode::AUTHENTICATION_FAILED, text: text.into() };
        match claim.kind() {
            Err(refused) => return Ok(Err(refused)),
            Ok(auth::GATEWAY_SESSION) => {
                return Ok(self.prove_in_session(claim, origin.ip).map_err(|_| wrong));
            }
            Ok(_) => {}
        }
        let checked = match self.begin_check(claim.answer.auth_type, identity.handle, origin.ip) {
            Ok(checked) => checked,
            Err(refused) => return Ok(Err(refused)),
        };
        let mut decider = self.decider_without_request(origin.ip)?;
        let candidates = match self.candidates(claim, &mut decider, false)? {
            Ok(candidates) => candidates,
            Err(refused) => return Ok(Err(refused)),
        };
        let proof = ChallengeProof {
            version: claim.challenge.version,
            covered: claim.challenge.covered(),
            signed_response: claim.answer.signed_response,
            limits: decider.effort().pbkdf2,
        };
        for candidate in &candidates {
            let is_right = match candidate {
                KeyCandidate::Key(key) => {
                    match self.proof.check_proof(&proof, claim.answer.auth_type, key, origin) {
                        Some(checked) => checked.is_ok(),
                        None => return Ok(Err(TOO_MUCH_WAITS)),
                    }
                }
                KeyCandidate::Remote(verdict) => verdict.is_right,
            };
            if is_right {
                return Ok(Ok(()));
            }
        }
        checked.was_wrong();
        Ok(Err(match candidates.is_empty() && self.has_no_handle(&decider, identity.handle)? {
            true => unknown_identity(identity),
            false => wrong,
        }))
    }

    /// The caller whom another process has authenticated; `None` if `bytes` are not of this form.
    pub(crate) fn continue_bulk_caller(&self, mut bytes: &[u8]) -> Option<BulkCaller> {
        let (index, rest) = bytes.split_first_chunk()?;
        bytes = rest;
        let identity = (i32::from_be_bytes(*index), take_bytes(&mut bytes)?.to_vec());
        let source = std::str::from_utf8(take_bytes(&mut bytes)?).ok()?.parse().ok()?;
        let key = match bytes.is_empty() {
            true => None,
            false => Some(OpenedKey {
                scope: BulkScope::from_bytes(take_bytes(&mut bytes)?),
                request: self.bulk_requests.begin(take_ms(&mut bytes)?),
            }),
        };
        Some(BulkCaller { identity, source, key })
    }

    /// Looks up the key of the request, if it has one.
    fn begin_bulk(
        &self,
        begin: &BulkBegin<'_>,
        source: SocketAddr,
        config: &BulkConfig,
    ) -> Result<BulkCaller, BulkRefusal> {
        let identity = (begin.identity.index, begin.identity.handle.to_vec());
        let Some(key) = begin.key else { return Ok(BulkCaller { identity, source, key: None }) };
        if !is_key_name(key.name) {
            return Err(BAD_KEY_NAME.into());
        }
        let scope = BulkScope::new(begin.identity, key.name, self.store.folds());
        let bounds = BulkKeyBounds {
            keys: config.keys(),
            keys_per_identity: config.keys_per_identity(),
            results: config.results,
            results_per_identity: config.results_per_identity(),
            age_ms: u64::from(config.keys_s) * 1000,
        };
        let (looked_up, name, now_ms) = (scope.clone(), key.name.to_vec(), now_unix_ms());
        let requests = self.bulk_requests.clone();
        let opened = self.store.change(move |transaction| {
            let key = BulkKey { name: &name, digest: key.digest };
            let in_use = requests.numbers().iter().copied().collect();
            Ok(match transaction.open_bulk_key(&looked_up, &key, &bounds, &in_use, now_ms)? {
                // Before another key can be opened, which might drop this one.
                BulkKeyState::SameBody(number) => Some(requests.begin(number)),
                BulkKeyState::OtherBody => None,
            })
        });
        match opened.map_err(|error| self.store_refusal(&error))? {
            Some(request) => Ok(BulkCaller { identity, source, key: Some(OpenedKey { scope, request }) }),
            None => Err(BulkRefusal::OtherBody),
        }
    }

    /// Carries out `changes` for `caller`, in their order. Blocks until they are durable. A change
    /// that is refused does not affect the others.
    ///
    /// # Errors
    /// When the store cannot be written, or the key of the request was dropped. Changes may have
    /// been carried out then.
    pub fn change_many(
        &self,
        caller: &BulkCaller,
        changes: &[BulkChange<'_>],
        config: &BulkConfig,
    ) -> Result<Vec<BulkResult>, BulkRefusal> {
        if !changes.is_sorted_by(|before, after| before.number < after.number) {
            let text = "The changes are not in the order of their numbers.";
            return Err(OperationRefusal::new(ResponseCode::PROTOCOL_ERROR, text).into());
        }
        let queued = |change: &BulkChange<'_>| QueuedChange {
            number: change.number,
            message: hidden(change.message),
            random: handle_auth::random(),
        };
        let changes: Arc<Vec<QueuedChange>> = Arc::new(changes.iter().map(queued).collect());
        let (mut results, mut facts, mut gathered) = (Vec::with_capacity(changes.len()), None, None);
        while results.len() < changes.len() {
            let first = results.len();
            let last = changes.len().min(first + config.commit_changes);
            let group = ChangeGroup {
                decision: Arc::clone(&self.decision),
                in_force: self.decision.in_force(),
                identity: caller.identity.clone(),
                key: caller.key.as_ref().map(|key| (key.scope.clone(), key.request.number)),
                results_max: config.results_per_identity(),
                changes: Arc::clone(&changes),
                range: first..last,
                facts: facts.take().unwrap_or_default(),
                gathered: self.decision.remote().map(|_| gathered.take().unwrap_or(usize::MAX)),
                now_unix_s: now_unix_s(),
            };
            let made = self.store.change(move |transaction| group.carry_out(transaction));
            let made = made.map_err(|error| self.store_refusal(&error))?.ok_or(KEY_DROPPED)?;
            let is_cut_off = made.len() < last - first;
            self.record_many(caller, &made);
            results.extend(made.into_iter().map(|made| made.result));
            if is_cut_off {
                let at = results.len();
                let remote_facts = self.gather_facts(caller, &changes[at]);
                facts = Some(remote_facts.map_err(|error| self.store_refusal(&error))?);
                gathered = Some(at);
            }
        }
        Ok(results)
    }

    /// Asks other services for the facts that the decision on a change needs.
    fn gather_facts(&self, caller: &BulkCaller, change: &QueuedChange) -> Result<RemoteFacts, StoreError> {
        let Ok(opened) = open(&change.message) else { return Ok(RemoteFacts::default()) };
        let request = opened.operation_request(Version::CURRENT, change.random, now_unix_s());
        let mut decider = self.decider_of(request, caller.source.ip())?;
        decider.decide(Requester::Is(caller.reference()))?;
        Ok(decider.into_facts().0)
    }

    /// Counts results, and writes them to the audit log.
    fn record_many(&self, caller: &BulkCaller, made: &[ChangeResult]) {
        for ChangeResult { result, op_code, handle, changed, .. } in made.iter().filter(|made| made.is_new) {
            self.counters.bulk_changes.add();
            self.counters.answered(*op_code, result.code);
            self.audit.write(&AuditLine {
                source: caller.source,
                identity: Some(caller.reference()),
                op_code: *op_code,
                handle,
                code: result.code,
                text: &result.text,
                changed: *changed,
            });
        }
    }
}

impl ChangeGroup {
    /// Carries out the changes up to one that lacks facts. `None` if the key was dropped.
    fn carry_out(self, transaction: &mut Transaction<'_>) -> Result<Option<Vec<ChangeResult>>, StoreError> {
        let changes = &self.changes[self.range.clone()];
        let done = match &self.key {
            None => 0,
            Some((scope, number)) => match transaction.bulk_done(scope, *number)? {
                Some(done) => done,
                None => return Ok(None),
            },
        };
        let repeated = changes.partition_point(|change| change.number <= done);
        let mut made = self.repeat(transaction, &changes[..repeated])?;
        for (at, change) in changes.iter().enumerate().skip(repeated) {
            match self.carry_out_one(transaction, change, self.range.start + at)? {
                Some(result) => made.push(result),
                None => break,
            }
        }
        if let Some((scope, number)) = &self.key {
            let new: Vec<BulkResult> = made[repeated..].iter().map(|made| made.result.clone()).collect();
            transaction.keep_bulk_results(scope, *number, &new, self.results_max)?;
        }
        Ok(Some(made))
    }

    /// The kept results of changes that an earlier request carried out.
    fn repeat(
        &self,
        transaction: &Transaction<'_>,
        changes: &[QueuedChange],
    ) -> Result<Vec<ChangeResult>, StoreError> {
        let (Some((_, number)), [first, ..], [.., last]) = (&self.key, changes, changes) else {
            return Ok(Vec::new());
        };
        let kept = transaction.bulk_results(*number, first.number, last.number)?;
        let repeat = |change: &QueuedChange| {
            let found = kept.binary_search_by_key(&change.number, |result| result.number);
            let result = match found {
                Ok(at) => kept[at].clone(),
                Err(_) => BulkResult {
                    number: change.number,
                    code: ResponseCode::ERROR,
                    text: NO_RESULT.to_owned(),
                },
            };
            ChangeResult {
                result,
                op_code: OpCode::RESERVED,
                handle: Vec::new(),
                changed: false,
                is_new: false,
            }
        };
        Ok(changes.iter().map(repeat).collect())
    }

    /// Carries out one change; `None` if facts of other services are missing.
    fn carry_out_one(
        &self,
        transaction: &mut Transaction<'_>,
        change: &QueuedChange,
        at: usize,
    ) -> Result<Option<ChangeResult>, StoreError> {
        let Ok(opened) = open(&change.message) else {
            let refused = OperationRefusal::new(ResponseCode::PROTOCOL_ERROR, "The change cannot be parsed.");
            let answer = OperationAnswer::Refused(refused);
            return Ok(Some(shown(change.number, OpCode::RESERVED, b"", &answer)));
        };
        let decision = self.decide(transaction, &opened, change.random)?;
        let misses_facts = !self.facts.take_missing().is_empty() && decision.is_not_permitted();
        if misses_facts && self.gathered.is_some_and(|gathered| gathered != at) {
            return Ok(None);
        }
        let answer = match decision {
            OperationDecision::Change(writes, answer) => {
                writes.into_iter().try_for_each(|write| apply(transaction, write))?;
                answer
            }
            OperationDecision::Answer(answer) => answer,
            _ => OperationAnswer::Refused(NOT_A_CHANGE),
        };
        let handle = opened.request.handle().unwrap_or_default();
        Ok(Some(shown(change.number, opened.op_code(), handle, &answer)))
    }

    fn decide(
        &self,
        transaction: &Transaction<'_>,
        opened: &OpenedRequest<'_>,
        random: [u8; 16],
    ) -> Result<OperationDecision, StoreError> {
        if !is_change(opened.op_code()) {
            return Ok(OperationDecision::Answer(OperationAnswer::Refused(NOT_A_CHANGE)));
        }
        let request = opened.operation_request(Version::CURRENT, random, self.now_unix_s);
        let (index, handle) = &self.identity;
        let requester = match self.in_force.rules.anonymous_full_access {
            true => Requester::FullAccess,
            false => Requester::Is(Reference { handle, index: *index }),
        };
        let source_facts = self.decision.source_facts();
        let records = SourcedRecords::new(transaction, &source_facts);
        let rules = &self.in_force.rules;
        let decided = self.decision.decide(&records, rules, &request, requester, &self.facts);
        if source_facts.take_incomplete() {
            return Ok(OperationDecision::Answer(OperationAnswer::Refused(ONE_BY_ONE)));
        }
        match decided {
            // The changes before it remain valid.
            Err(StoreError::Damaged(what)) => {
                tracing::error!(what, "cannot decide a change");
                Ok(OperationDecision::Answer(OperationAnswer::Refused(CANNOT_DECIDE)))
            }
            decided => decided,
        }
    }
}

const NOT_A_CHANGE: OperationRefusal =
    OperationRefusal::new(ResponseCode::OPERATION_NOT_SUPPORTED, "This is not a change of a record.");
/// A transaction does not wait for sources.
const ONE_BY_ONE: OperationRefusal = OperationRefusal::new(
    ResponseCode::OPERATION_NOT_SUPPORTED,
    "Handles of this prefix may come from a source; change them one by one.",
);
const CANNOT_DECIDE: OperationRefusal =
    OperationRefusal::new(ResponseCode::ERROR, "Server error processing request, see server logs");

/// Whether the operation changes one record.
const fn is_change(op_code: OpCode) -> bool {
    use OpCode as Op;
    matches!(
        op_code,
        Op::CREATE_HANDLE | Op::DELETE_HANDLE | Op::ADD_VALUE | Op::REMOVE_VALUE | Op::MODIFY_VALUE
    )
}

/// The result that shows `answer`.
fn shown(number: u32, op_code: OpCode, handle: &[u8], answer: &OperationAnswer) -> ChangeResult {
    let (code, text) = match answer {
        OperationAnswer::Refused(refused) => (refused.code, &*refused.text),
        OperationAnswer::Referral(..) => (ResponseCode::PREFIX_REFERRAL, ""),
        _ => (ResponseCode::SUCCESS, ""),
    };
    let fits = |(at, character): &(usize, char)| at + character.len_utf8() <= TEXT_LEN_MAX;
    let text = text.char_indices().take_while(fits).map(|(_, character)| character).collect();
    let result = BulkResult { number, code, text };
    let changed = answer.effect().changed;
    ChangeResult { result, op_code, handle: handle.to_vec(), changed, is_new: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_in_progress_until_its_last_connection_ends() {
        let requests = RequestsInProgress::default();
        let (first, second, other) = (requests.begin(1), requests.begin(1), requests.begin(2));
        drop(first);
        assert!(requests.numbers().contains(&1) && requests.numbers().contains(&2));
        drop((second, other));
        assert_eq!(*requests.numbers(), [0; 0]);
    }

    #[test]
    fn names_of_keys_are_short_and_visible() {
        for name in [&b"a"[..], b"!~", b"a b", &[b'k'; KEY_LEN_MAX]] {
            assert!(is_key_name(name), "{name:?}");
        }
        for name in [&b""[..], b"a\0", b"\x7f", "é".as_bytes(), &[b'k'; KEY_LEN_MAX + 1]] {
            assert!(!is_key_name(name), "{name:?}");
        }
    }
}
