//! Decides requests on the current state of the store. Nothing is changed here, and no signature is
//! verified.
//!
//! [`decide`] is a function of records, rules, request and requester. It runs twice for a change:
//! first on a snapshot, so that a requester without the right to make the change does not delay the
//! writer, and again in the writer, on the state at that time.
//!
//! Facts about other services are passed in; missing facts are reported to the caller
//! ([`RemoteFacts`]).
//!
//! The order of the checks is that of deployed servers, except where it would reveal hidden values:
//! their existence and content show in the outcome only for proven identities that may read or
//! write them. RFC 3652 section 3.6.

mod change;
mod create;
mod guard;
mod keys;
mod list;
mod resolve;

pub use keys::{CandidateKey, KeysRefusal, keys};
pub use list::Lister;

use crate::permission::group::EntitlementOutcome;
use crate::permission::view::{DecisionView, RemoteFacts};
use crate::permission::{ActionRequirement, Administrators, OperatorDuty};
use handle_daemon::site::SiteRecord;
use handle_proto::data::kind;
use handle_proto::limit::HANDLE_LEN_MAX;
use handle_proto::name::PREFIX_RECORDS;
use handle_proto::wire::guard::ChangeGuard;
use handle_proto::wire::list::Reference;
use handle_proto::wire::request::Request;
use handle_proto::{Handle, OpCode, OpFlags, ResponseCode, Value, Version, fold};
use handle_source::PulledPrefixes;
use handle_store::{StoreError, StoreRecords, is_responsible, key};
use std::borrow::Cow;
use std::sync::Arc;

/// The rules by which requests are decided, apart from the stored records.
#[derive(Clone, Debug)]
pub struct OperationRules {
    /// The site record of this server.
    pub site: Arc<SiteRecord>,
    /// The identities that have rights beside the administrators of handles.
    pub administrators: Administrators,
    /// Whether everybody may do everything; for tests and private networks.
    pub anonymous_full_access: bool,
    /// Whether this server lists handles.
    pub lists_handles: bool,
    /// Whether this server gives transactions and records to mirrors.
    pub replicates: bool,
    /// Where changes are made, if this is a mirror, for the texts of refusals.
    pub primaries: Option<String>,
    /// Prefixes whose handles are copied from sources, so that nobody else changes them.
    pub pulled: PulledPrefixes,
    /// Limits on stored records.
    pub bounds: OperationBounds,
}

/// Limits on stored records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationBounds {
    /// Maximum bytes of a handle.
    pub handle_bytes: usize,
    /// Maximum values of a record.
    pub values: usize,
    /// Maximum references of one value.
    pub references: usize,
    /// Maximum bytes of the values of a record in wire form.
    pub record_bytes: usize,
    /// Whether new names may contain control characters.
    pub control_characters: bool,
}

/// The identity of the requester, and whether it has been proven.
#[derive(Clone, Copy, Debug)]
pub enum Requester<'a> {
    /// No identity has been given.
    Unidentified,
    /// Any requester; allowed to do everything.
    FullAccess,
    /// A claimed identity that has not been proven yet. The decision depends on public data only,
    /// and is that of the proven identity unless it is [`OperationDecision::Prove`].
    Claimed(Reference<'a>),
    /// A proven identity.
    Is(Reference<'a>),
}

/// A request to be decided.
#[derive(Clone, Copy, Debug)]
pub struct OperationRequest<'a> {
    /// The parsed request.
    pub request: Request<'a>,
    /// The flags of the request.
    pub flags: OpFlags,
    /// Conditions on the change.
    pub guard: ChangeGuard<'a>,
    /// The protocol version of the answer.
    pub version: Version,
    /// Whether the request came in a session, where the identity always matters for values that are
    /// not public.
    pub in_session: bool,
    /// Random bytes for a minted name.
    pub random: [u8; 16],
    /// The current time in Unix seconds: the timestamp of written values.
    pub now_unix_s: u32,
}

/// The outcome of deciding a request.
#[derive(Debug)]
pub enum OperationDecision {
    /// Send this answer.
    Answer(OperationAnswer),
    /// Make these changes, all or none, then send this answer.
    Change(Vec<StoreWrite>, OperationAnswer),
    /// List names.
    List(Lister),
    /// Report the state of the server.
    Status,
    /// Send a stream of transactions or records.
    Replicate,
    /// Verify an answer to a challenge with the keys that this server may have.
    Verify,
    /// The outcome depends on the requester, who has given no identity.
    Challenge,
    /// The outcome depends on hidden values or on conditions: the claimed identity has to be proven
    /// before the request is decided. Any other decision holds for the proven identity as well.
    Prove,
}

impl OperationDecision {
    /// Whether this is a refusal for every requester.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Self::Answer(answer) if answer.is_refusal())
    }

    /// Whether this is a refusal because of the requester's identity.
    #[must_use]
    pub fn is_not_permitted(&self) -> bool {
        matches!(self, Self::Answer(OperationAnswer::Refused(refused)) if refused.code == ResponseCode::INVALID_ADMIN)
    }
}

/// One change of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreWrite {
    /// Stores a record: its name, the number of its values, and their encodings.
    Put(Vec<u8>, usize, Vec<u8>),
    /// Deletes the record with this name.
    Delete(Vec<u8>),
    /// Homes the prefix.
    Home(Vec<u8>),
    /// Releases the prefix.
    Unhome(Vec<u8>),
}

/// The effect of a request on the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteEffect {
    /// Whether the store changed.
    pub changed: bool,
    /// Whether an existing record or value was replaced, even by an equal one. The answer then has
    /// the flag OVERWRITE.
    pub replaced: bool,
}

impl WriteEffect {
    /// No change.
    pub const NONE: Self = Self { changed: false, replaced: false };
    /// A change that replaced nothing by request.
    pub const CHANGED: Self = Self { changed: true, replaced: false };
}

/// An answer, without digest and signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationAnswer {
    /// Success without data.
    Done(WriteEffect),
    /// The handle that was created.
    Created(Vec<u8>, WriteEffect),
    /// The requested values: the handle as it was spelt, the number of values, and their encodings.
    Values(Vec<u8>, usize, Vec<u8>),
    /// The site record.
    Site,
    /// Whether an answer to a challenge is right.
    Verdict(bool),
    /// Another service has the handle: the number of values that name it, and their encodings.
    Referral(usize, Vec<u8>),
    /// A refusal.
    Refused(OperationRefusal),
}

impl OperationAnswer {
    /// Whether this is a refusal.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_))
    }

    /// The effect of the request on the store.
    #[must_use]
    pub const fn effect(&self) -> WriteEffect {
        match self {
            Self::Done(effect) | Self::Created(_, effect) => *effect,
            _ => WriteEffect::NONE,
        }
    }
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationRefusal {
    /// The response code.
    pub code: ResponseCode,
    /// The text sent with the code.
    pub text: Cow<'static, str>,
}

impl OperationRefusal {
    /// A refusal with a fixed text.
    #[must_use]
    pub const fn new(code: ResponseCode, text: &'static str) -> Self {
        Self { code, text: Cow::Borrowed(text) }
    }
}

/// Refusals use the texts of deployed servers, as `conversations.jsonl` shows.
pub(crate) const NOT_HOMED: OperationRefusal =
    OperationRefusal::new(ResponseCode::SERVER_NOT_RESPONSIBLE, "That prefix doesn't live here");
const OTHER_SERVER: OperationRefusal =
    OperationRefusal::new(ResponseCode::SERVER_NOT_RESPONSIBLE, "Request was hashed incorrectly");
const NOT_PRIMARY: OperationRefusal =
    OperationRefusal::new(ResponseCode::SERVER_NOT_RESPONSIBLE, "Not a primary server");
pub(crate) const NOT_FOUND: OperationRefusal = OperationRefusal::new(ResponseCode::HANDLE_NOT_FOUND, "");
pub(crate) const NO_VALUES: OperationRefusal = OperationRefusal::new(ResponseCode::VALUES_NOT_FOUND, "");

/// Why a decision ends early.
enum DecisionEnd {
    Refuse(OperationRefusal),
    Refer(usize, Vec<u8>),
    Challenge,
    Prove,
    Store(StoreError),
}

impl From<OperationRefusal> for DecisionEnd {
    fn from(refused: OperationRefusal) -> Self {
        Self::Refuse(refused)
    }
}

impl From<StoreError> for DecisionEnd {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

type DecisionResult = Result<OperationDecision, DecisionEnd>;

/// Decides a request.
///
/// # Errors
/// When the store cannot be read.
pub fn decide(
    records: &impl StoreRecords,
    rules: &OperationRules,
    request: &OperationRequest<'_>,
    requester: Requester<'_>,
    remote_facts: &RemoteFacts,
) -> Result<OperationDecision, StoreError> {
    let case = DecisionCase { records, rules, request, requester, remote_facts };
    match case.decide().and_then(|decision| case.check_guard(decision)) {
        Ok(decision) => Ok(decision),
        Err(DecisionEnd::Refuse(refused)) => Ok(OperationDecision::Answer(OperationAnswer::Refused(refused))),
        Err(DecisionEnd::Refer(count, values)) => {
            Ok(OperationDecision::Answer(OperationAnswer::Referral(count, values)))
        }
        Err(DecisionEnd::Challenge) => Ok(OperationDecision::Challenge),
        Err(DecisionEnd::Prove) => Ok(OperationDecision::Prove),
        Err(DecisionEnd::Store(error)) => Err(error),
    }
}

/// A request with everything that its decision depends on.
struct DecisionCase<'c, R> {
    records: &'c R,
    rules: &'c OperationRules,
    request: &'c OperationRequest<'c>,
    requester: Requester<'c>,
    remote_facts: &'c RemoteFacts,
}

/// Changes below a delegated prefix are referred from this protocol version on.
const REFERS_CHANGES: Version = Version::new(2, 10);

impl<R: StoreRecords> DecisionCase<'_, R> {
    fn decide(&self) -> DecisionResult {
        let op_code = self.request.request.op_code();
        // A query for a handle that is too long answers that the handle is not found.
        if !is_query(op_code)
            && self.request.request.handle().is_some_and(|handle| handle.len() > HANDLE_LEN_MAX)
        {
            return Err(OperationRefusal::new(ResponseCode::INVALID_HANDLE, "The handle is too long").into());
        }
        if !self.rules.site.is_primary() && writes(op_code) {
            return Err(self.not_primary().into());
        }
        if let Some(refused) = self.pulled_refusal() {
            return Err(refused.into());
        }
        match self.request.request {
            Request::Resolution(query) => self.resolve(&query),
            Request::GetSiteInfo(_) => Ok(OperationDecision::Answer(OperationAnswer::Site)),
            Request::CreateHandle(body) => self.create(body.handle, body.values),
            Request::DeleteHandle(body) => self.delete(body.handle),
            Request::AddValue(body) => self.add(body.handle, body.values),
            Request::RemoveValue(body) => self.remove(body.handle, body.indexes),
            Request::ModifyValue(body) => self.modify(body.handle, body.values),
            Request::ListHandles(body) => self.list_handles(body.handle),
            Request::ListHomedNas(_) => {
                self.hold(OperatorDuty::Homing)?;
                Ok(OperationDecision::List(Lister::homed()))
            }
            Request::HomeNa(body) => {
                self.check_name(body.handle)?;
                self.home(body.handle, StoreWrite::Home)
            }
            Request::UnhomeNa(body) => self.home(body.handle, StoreWrite::Unhome),
            Request::VerifyChallenge(body) => {
                self.homed_key(body.identity.handle)?;
                Ok(OperationDecision::Verify)
            }
            Request::GetNextTxnId(_) => {
                Err(not_supported("Next txn id no longer supported; upgrade required").into())
            }
            Request::RetrieveTxnLog(_) if !self.rules.site.is_primary() => {
                Err(not_supported("Not a primary server").into())
            }
            Request::RetrieveTxnLog(_) | Request::DumpHandles(_) => {
                self.hold(OperatorDuty::Replication)?;
                match self.rules.replicates {
                    _ if !self.rules.site.is_primary() => Err(self.not_primary().into()),
                    true => Ok(OperationDecision::Replicate),
                    false => Err(not_supported("This server does not give out its transactions.").into()),
                }
            }
            Request::BackupServer(_) => {
                self.hold(OperatorDuty::Backup)?;
                // Every acknowledged change is already durable.
                Ok(OperationDecision::Answer(OperationAnswer::Done(WriteEffect::NONE)))
            }
            _ => Err(not_supported("This server does not do that.").into()),
        }
    }

    /// The refusal of a change at a mirror, which names the primary if it is known.
    fn not_primary(&self) -> OperationRefusal {
        match &self.rules.primaries {
            None => NOT_PRIMARY,
            Some(primaries) => OperationRefusal {
                text: format!("{}; the primary is {primaries}", NOT_PRIMARY.text).into(),
                ..NOT_PRIMARY
            },
        }
    }

    /// The refusal of a change of a handle that is copied from a source, which names the source.
    fn pulled_refusal(&self) -> Option<OperationRefusal> {
        use OpCode as Op;
        let changes =
            [Op::CREATE_HANDLE, Op::DELETE_HANDLE, Op::ADD_VALUE, Op::REMOVE_VALUE, Op::MODIFY_VALUE];
        let handle =
            self.request.request.handle().filter(|_| changes.contains(&self.request.request.op_code()))?;
        let source = self.rules.pulled.source_of(handle)?;
        let prefix = Handle(Handle(handle).naming_authority());
        let text =
            format!("Handles of {prefix} are copied from the source \"{source}\"; they are changed there.");
        Some(OperationRefusal { code: ResponseCode::OPERATION_NOT_SUPPORTED, text: text.into() })
    }

    /// Homes or releases a prefix.
    fn home(&self, handle: &[u8], write: fn(Vec<u8>) -> StoreWrite) -> DecisionResult {
        let Some(prefix) = crate::permission::prefix_record(handle) else {
            return Err(
                OperationRefusal::new(ResponseCode::INVALID_HANDLE, "Handle is not a prefix handle").into()
            );
        };
        self.check_handle_len(&prefix)?;
        self.hold(OperatorDuty::Homing)?;
        Ok(OperationDecision::Change(vec![write(prefix)], OperationAnswer::Done(WriteEffect::CHANGED)))
    }

    /// The name under which the record of `handle` is stored. Refuses handles whose hash belongs to
    /// another server of the site.
    fn key(&self, handle: &[u8]) -> Result<Vec<u8>, DecisionEnd> {
        if !self.rules.site.has(Handle(handle)) {
            return Err(OTHER_SERVER.into());
        }
        Ok(key(handle, self.records.folds()))
    }

    /// Like `key`, but also requires that the prefix is homed here.
    fn homed_key(&self, handle: &[u8]) -> Result<Vec<u8>, DecisionEnd> {
        let key = self.key(handle)?;
        if !is_responsible(self.records, &key)? {
            return Err(NOT_HOMED.into());
        }
        self.refer(&key)?;
        Ok(key)
    }

    /// Refers the client if the record of a derived prefix is not here and an ancestor names the
    /// service that has it. RFC 3652 section 3.4.
    fn refer(&self, key: &[u8]) -> Result<(), DecisionEnd> {
        /// Limits the ancestors looked at for one name; a name made of dots would have thousands.
        const ANCESTORS_MAX: usize = 16;
        // Queries are referred in every version: see `prefix_referral/old_client` of the vectors.
        let is_known = is_query(self.request.request.op_code()) || self.request.version >= REFERS_CHANGES;
        let may_refer = is_known && !self.request.flags.has(OpFlags::DO_NOT_REFER);
        let mut name = Handle(key);
        if !may_refer || !name.is_derived_prefix_record() || self.records.record(key)?.is_some() {
            return Ok(());
        }
        for _ in 0..ANCESTORS_MAX {
            let Some(parent) = name.parent_prefix_record() else { break };
            if let Some(record) = self.records.record(parent.0)? {
                let record = record.view();
                let values = record.values.iter().filter(|value| value.is_public() && delegates(value.kind));
                let (count, bytes) = encoded(values);
                if count > 0 {
                    return Err(DecisionEnd::Refer(count, bytes));
                }
            }
            name = parent;
        }
        Ok(())
    }

    /// Refuses or challenges the request unless the requester meets `requirement`.
    fn permit(&self, requirement: &ActionRequirement) -> Result<(), DecisionEnd> {
        self.require(
            || requirement.to_string(),
            |administrators, view, identity| administrators.permit(view, requirement, identity),
        )
    }

    /// Refuses or challenges the request unless the requester has the duty `duty`.
    fn hold(&self, duty: OperatorDuty) -> Result<(), DecisionEnd> {
        self.require(
            || format!("the office of {duty:?} in the configuration of this server"),
            |administrators, view, identity| administrators.holds(view, duty, identity),
        )
    }

    fn require(
        &self,
        what: impl Fn() -> String,
        ask: impl Fn(
            &Administrators,
            &DecisionView<'_, R>,
            Reference<'_>,
        ) -> Result<EntitlementOutcome, StoreError>,
    ) -> Result<(), DecisionEnd> {
        let identity = match self.requester {
            Requester::Unidentified => return Err(DecisionEnd::Challenge),
            Requester::FullAccess => return Ok(()),
            Requester::Is(identity) | Requester::Claimed(identity) => identity,
        };
        let has = |handle: Handle<'_>| self.rules.site.has(handle);
        let view = DecisionView::new(self.records, &has, self.remote_facts);
        let but = match ask(&self.rules.administrators, &view, identity)? {
            EntitlementOutcome::Yes => return Ok(()),
            EntitlementOutcome::No => "",
            EntitlementOutcome::GaveUp => "; there are more groups than are looked up",
        };
        let (index, handle) = (identity.index, Handle(identity.handle));
        let text = format!("{index}:{handle} lacks {}{but}", what());
        Err(OperationRefusal { code: ResponseCode::INVALID_ADMIN, text: text.into() }.into())
    }

    fn check_handle_len(&self, handle: &[u8]) -> Result<(), DecisionEnd> {
        let most = self.rules.bounds.handle_bytes;
        // A prefix is stored under the longer name of its record.
        let record_len = if handle.contains(&b'/') { 0 } else { PREFIX_RECORDS.len() };
        if handle.len() + record_len <= most {
            return Ok(());
        }
        let text = format!("The handle has {} bytes; at most {most} are stored.", handle.len());
        Err(OperationRefusal { code: ResponseCode::INVALID_HANDLE, text: text.into() }.into())
    }
}

const fn not_supported(text: &'static str) -> OperationRefusal {
    OperationRefusal::new(ResponseCode::OPERATION_NOT_SUPPORTED, text)
}

/// Whether the operation only queries: the values of a handle, or whether its keys verify an
/// answer.
const fn is_query(op_code: OpCode) -> bool {
    matches!(op_code, OpCode::RESOLUTION | OpCode::VERIFY_CHALLENGE)
}

/// Whether the operation is reserved to primary servers.
const fn writes(op_code: OpCode) -> bool {
    use OpCode as Op;
    matches!(
        op_code,
        Op::CREATE_HANDLE
            | Op::DELETE_HANDLE
            | Op::ADD_VALUE
            | Op::REMOVE_VALUE
            | Op::MODIFY_VALUE
            | Op::HOME_NA
            | Op::UNHOME_NA
            | Op::GET_NEXT_TXN_ID
    )
}

/// Whether values of this type name the service that has the records of derived prefixes.
fn delegates(kind: &[u8]) -> bool {
    [kind::HS_SITE_PREFIX, kind::HS_NA_DELEGATE, kind::HS_SERV_PREFIX].iter().any(|it| fold::eq(kind, it))
}

/// The number of values, and their encodings.
pub(crate) fn encoded<'v>(values: impl Iterator<Item = Value<'v>>) -> (usize, Vec<u8>) {
    let (mut count, mut bytes) = (0, Vec::new());
    for value in values {
        value.encode(&mut bytes);
        count += 1;
    }
    (count, bytes)
}
