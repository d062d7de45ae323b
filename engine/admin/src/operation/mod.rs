//! What a request asks for, decided on the store as it is: nothing is changed here, nobody's key is looked at.
//!
//! [`decide`] is a function of records, rules, request and who asks. It is asked twice for a change: on a snapshot, so
//! that whoever is not entitled keeps nobody waiting, and again by the writer, on what is there then.
//!
//! What it takes to know of other services is given to it; what is missing is told ([`RemoteFacts`]).
//!
//! The order of the checks is the deployed one, except where it would tell of hidden values: their existence and their
//! content show in the outcome only for identities that are proven and may read or write them. RFC 3652 section 3.6.

mod change;
mod create;
mod keys;
mod list;
mod resolve;

pub use keys::{CandidateKey, NotHere, keys};
pub use list::Lister;

use crate::permission::group::EntitlementOutcome;
use crate::permission::view::{DecisionView, RemoteFacts};
use crate::permission::{ActionRequirement, Administrators, OperatorDuty};
use crate::store::{StoreError, StoreRecords, is_responsible, key};
use handle_daemon::site::SiteRecord;
use handle_proto::data::kind;
use handle_proto::limit::HANDLE_LEN_MAX;
use handle_proto::wire::list::Reference;
use handle_proto::wire::request::Request;
use handle_proto::{Handle, OpCode, OpFlags, ResponseCode, Value, Version, fold};
use std::borrow::Cow;
use std::sync::Arc;

/// What requests are decided by, apart from what is stored.
#[derive(Debug)]
pub struct OperationRules {
    /// Who this server is.
    pub site: Arc<SiteRecord>,
    /// Who may do what beside the administrators of handles.
    pub administrators: Administrators,
    /// Whether everybody may do everything; for tests and private networks.
    pub anonymous_full_access: bool,
    /// Whether handles are listed at all.
    pub lists_handles: bool,
    /// Bounds of what is stored.
    pub bounds: OperationBounds,
}

/// Bounds of what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationBounds {
    /// Bytes of a handle.
    pub handle_bytes: usize,
    /// Values of a record.
    pub values: usize,
    /// References of one value.
    pub references: usize,
    /// Bytes of the values of a record in wire form.
    pub record_bytes: usize,
    /// Whether new names may have control characters.
    pub control_characters: bool,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub enum Requester<'a> {
    /// Nobody has said.
    Nobody,
    /// Whoever it is may do everything.
    Anyone,
    /// This identity, which has not proven it yet: the decision depends on nothing that is not public.
    Claims(Reference<'a>),
    /// This identity, which has proven it.
    Is(Reference<'a>),
}

/// A request that is to be decided.
#[derive(Clone, Copy, Debug)]
pub struct OperationRequest<'a> {
    /// What is asked.
    pub request: Request<'a>,
    /// How.
    pub flags: OpFlags,
    /// The version of the answer.
    pub version: Version,
    /// Whether it is asked in a session, where identity always matters for what is not public.
    pub in_session: bool,
    /// Random bytes for a name, if one is to be made.
    pub random: [u8; 16],
    /// Now, Unix seconds: the timestamp of what is written.
    pub now_unix_s: u32,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum OperationDecision {
    /// This is to be answered.
    Answer(OperationAnswer),
    /// These changes are to be made, all or none, and then this answered.
    Change(Vec<StoreWrite>, OperationAnswer),
    /// Names are to be listed.
    List(Lister),
    /// The state of the server is to be told.
    Status,
    /// Keys are here, if anywhere, that say whether an answer to a challenge is right.
    Verify,
    /// It depends on who asks, and nobody has said.
    Challenge,
    /// It depends on hidden values: the claimed identity, which may know them, has to be proven first.
    Prove,
}

impl OperationDecision {
    /// Whether it is a no, whoever it is that asks.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Self::Answer(OperationAnswer::Refused(_)))
    }

    /// Whether it is a no because of who asks.
    #[must_use]
    pub fn is_not_permitted(&self) -> bool {
        matches!(self, Self::Answer(OperationAnswer::Refused(refused)) if refused.code == ResponseCode::INVALID_ADMIN)
    }
}

/// One change of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreWrite {
    /// This record under this name: how many values, and their encodings.
    Put(Vec<u8>, usize, Vec<u8>),
    /// No record under this name.
    Delete(Vec<u8>),
    /// The prefix is homed.
    Home(Vec<u8>),
    /// The prefix is not homed.
    Unhome(Vec<u8>),
}

/// What a request does to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteEffect {
    /// Something is different afterwards.
    pub changed: bool,
    /// A record or value that existed was replaced, be it by an equal one: the answer says so by the flag OVERWRITE.
    pub replaced: bool,
}

impl WriteEffect {
    /// Nothing is changed.
    pub const NONE: Self = Self { changed: false, replaced: false };
    /// Something is changed, and nothing replaced by a request for that.
    pub const CHANGED: Self = Self { changed: true, replaced: false };
}

/// An answer, without digest and signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationAnswer {
    /// Done.
    Done(WriteEffect),
    /// The handle that was created.
    Created(Vec<u8>, WriteEffect),
    /// The values that were asked for: the handle as it was spelt, how many, and their encodings.
    Values(Vec<u8>, usize, Vec<u8>),
    /// The site record.
    Site,
    /// Whether an answer to a challenge is right.
    Verdict(bool),
    /// Another service has it: how many values say so, and their encodings.
    Referral(usize, Vec<u8>),
    /// No.
    Refused(OperationRefusal),
}

impl OperationAnswer {
    /// What the request did to the store.
    #[must_use]
    pub const fn effect(&self) -> WriteEffect {
        match self {
            Self::Done(effect) | Self::Created(_, effect) => *effect,
            _ => WriteEffect::NONE,
        }
    }
}

/// Why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationRefusal {
    /// The code that says so.
    pub code: ResponseCode,
    /// The text that goes with it.
    pub text: Cow<'static, str>,
}

impl OperationRefusal {
    /// A refusal with a fixed text.
    #[must_use]
    pub const fn new(code: ResponseCode, text: &'static str) -> Self {
        Self { code, text: Cow::Borrowed(text) }
    }
}

/// Texts of what deployed servers refuse are theirs; shown by `conversations.jsonl`.
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

/// Decides what becomes of a request.
///
/// # Errors
/// When the store cannot be read.
pub fn decide(
    records: &impl StoreRecords,
    rules: &OperationRules,
    asked: &OperationRequest<'_>,
    who: Requester<'_>,
    known: &RemoteFacts,
) -> Result<OperationDecision, StoreError> {
    let case = DecisionCase { records, rules, request: asked, requester: who, remote_facts: known };
    match case.decide() {
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

/// A request with all that it is decided by.
struct DecisionCase<'c, R> {
    records: &'c R,
    rules: &'c OperationRules,
    request: &'c OperationRequest<'c>,
    requester: Requester<'c>,
    remote_facts: &'c RemoteFacts,
}

/// First version to whose peers changes below a delegated prefix are referred.
const REFERS_CHANGES: Version = Version::new(2, 10);

impl<R: StoreRecords> DecisionCase<'_, R> {
    fn decide(&self) -> DecisionResult {
        let op_code = self.request.request.op_code();
        // Of a query it is one that is not there.
        if !is_query(op_code)
            && self.request.request.handle().is_some_and(|handle| handle.len() > HANDLE_LEN_MAX)
        {
            return Err(OperationRefusal::new(ResponseCode::INVALID_HANDLE, "No handle is that long").into());
        }
        if !self.rules.site.is_primary() && writes(op_code) {
            return Err(NOT_PRIMARY.into());
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
                Err(not_supported("This server does not give out its transactions.").into())
            }
            Request::BackupServer(_) => {
                self.hold(OperatorDuty::Backup)?;
                // What is acknowledged is on the disk already.
                Ok(OperationDecision::Answer(OperationAnswer::Done(WriteEffect::NONE)))
            }
            _ => Err(not_supported("This server does not do that.").into()),
        }
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

    /// The name under which the record of `handle` is stored, if this is the server to ask for it by its hash.
    fn key(&self, handle: &[u8]) -> Result<Vec<u8>, DecisionEnd> {
        if !self.rules.site.has(Handle(handle)) {
            return Err(OTHER_SERVER.into());
        }
        Ok(key(handle, self.records.folds()))
    }

    /// The same, if the prefix is homed here.
    fn homed_key(&self, handle: &[u8]) -> Result<Vec<u8>, DecisionEnd> {
        let key = self.key(handle)?;
        if !is_responsible(self.records, &key)? {
            return Err(NOT_HOMED.into());
        }
        self.refer(&key)?;
        Ok(key)
    }

    /// Stops where the record of a derived prefix is not here, and an ancestor says which service has it. RFC 3652
    /// section 3.4.
    fn refer(&self, key: &[u8]) -> Result<(), DecisionEnd> {
        /// Most ancestors that are looked at for one name; one of dots would have thousands.
        const ANCESTORS_MAX: usize = 16;
        // Queries are referred whatever the version: the vectors' `prefix_referral/old_client`.
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

    /// Stops unless whoever asks has what `requirement` takes.
    fn permit(&self, requirement: &ActionRequirement) -> Result<(), DecisionEnd> {
        self.require(
            || requirement.to_string(),
            |administrators, sight, identity| administrators.permit(sight, requirement, identity),
        )
    }

    /// Stops unless whoever asks holds `office`.
    fn hold(&self, office: OperatorDuty) -> Result<(), DecisionEnd> {
        self.require(
            || format!("the office of {office:?} in the configuration of this server"),
            |administrators, sight, identity| administrators.holds(sight, office, identity),
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
            Requester::Nobody => return Err(DecisionEnd::Challenge),
            Requester::Anyone => return Ok(()),
            Requester::Is(identity) | Requester::Claims(identity) => identity,
        };
        let has = |handle: Handle<'_>| self.rules.site.has(handle);
        let sight = DecisionView::new(self.records, &has, self.remote_facts);
        let but = match ask(&self.rules.administrators, &sight, identity)? {
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
        if handle.len() <= most {
            return Ok(());
        }
        let text = format!("The handle has {} bytes; at most {most} are stored.", handle.len());
        Err(OperationRefusal { code: ResponseCode::INVALID_HANDLE, text: text.into() }.into())
    }
}

const fn not_supported(text: &'static str) -> OperationRefusal {
    OperationRefusal::new(ResponseCode::OPERATION_NOT_SUPPORTED, text)
}

/// Whether it is only asked what is there: the values of a handle, or whether its keys fit.
const fn is_query(op_code: OpCode) -> bool {
    matches!(op_code, OpCode::RESOLUTION | OpCode::VERIFY_CHALLENGE)
}

/// Whether a server that is no primary leaves the operation to one that is.
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

/// Whether values of this type say which service has the records of derived prefixes.
fn delegates(kind: &[u8]) -> bool {
    [kind::HS_SITE_PREFIX, kind::HS_NA_DELEGATE, kind::HS_SERV_PREFIX].iter().any(|it| fold::eq(kind, it))
}

/// How many values there are, and their encodings.
pub(crate) fn encoded<'v>(values: impl Iterator<Item = Value<'v>>) -> (usize, Vec<u8>) {
    let (mut count, mut bytes) = (0, Vec::new());
    for value in values {
        value.encode(&mut bytes);
        count += 1;
    }
    (count, bytes)
}
