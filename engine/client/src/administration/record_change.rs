//! A change of one record that may replace what is there, in the requests of the protocol.

use super::{Administrator, AskError};
use handle_proto::wire::admin::{HandleBody, HandleIndexes, HandleValues, StorePosition};
use handle_proto::wire::guard::{OwnedCondition, OwnedGuard};
use handle_proto::wire::list::{Indexes, Values};
use handle_proto::wire::{Request, Response};
use handle_proto::{OpFlags, ResponseCode, ValueBuf};

/// Name of the parameter or field of a request that lets a change leave a record without
/// administrators.
pub const ALLOW_ORPHANS: &str = "allow_orphans";

/// A change of one record.
#[derive(Debug)]
pub struct RecordChange {
    /// The name.
    pub handle: Vec<u8>,
    /// The change.
    pub kind: ChangeKind,
    /// Whether what is there is replaced.
    pub overwrites: bool,
    /// Conditions on the record, and whether it keeps its administrators.
    pub guard: OwnedGuard,
}

impl RecordChange {
    /// A change that a person makes on a page, or a record of an upload. It keeps an
    /// administrator, unless `allows_orphans`.
    #[must_use]
    pub fn by_hand(handle: &[u8], kind: ChangeKind, overwrites: bool, allows_orphans: bool) -> Self {
        let guard = OwnedGuard { keeps_admins: !allows_orphans, ..OwnedGuard::default() };
        Self { guard, ..Self::new(handle, kind, overwrites) }
    }

    /// A change without conditions.
    #[must_use]
    pub fn new(handle: &[u8], kind: ChangeKind, overwrites: bool) -> Self {
        Self { handle: handle.to_vec(), kind, overwrites, guard: OwnedGuard::default() }
    }
}

/// A kind of change.
#[derive(Debug)]
pub enum ChangeKind {
    /// The whole record.
    Put {
        /// Its values.
        values: Vec<ValueBuf>,
        /// Whether the service completes the name.
        mints: bool,
    },
    /// These values of it.
    PutValues(Vec<ValueBuf>),
    /// The end of the record.
    Delete,
    /// The end of the values with these indexes.
    DeleteValues(Vec<i32>),
}

/// What came of a change.
#[derive(Debug)]
pub struct ChangeOutcome {
    /// The response code of the service.
    pub code: ResponseCode,
    /// The text of the response.
    pub text: String,
    /// Whether something was there before.
    pub has_replaced: bool,
    /// The name that the service gave to a new record.
    pub minted: Option<Vec<u8>>,
    /// A state of the store that includes the change.
    pub position: Option<StorePosition>,
}

/// Asks the service for a change. What exists is found out by asking without overwriting first.
///
/// # Errors
/// When the service does not answer.
pub fn carry_out(client: &mut Administrator, change: &RecordChange) -> Result<ChangeOutcome, AskError> {
    let (handle, mut encoded) = (&*change.handle, Vec::new());
    let plain = OpFlags::PLAIN_REQUEST;
    client.guard(change.guard.clone());
    let outcome = match &change.kind {
        ChangeKind::Delete => ask(client, &Request::DeleteHandle(HandleBody { handle }), plain)?,
        ChangeKind::DeleteValues(indexes) => {
            let mut storage = Vec::new();
            let indexes = Indexes::build(indexes.iter().copied(), &mut storage);
            ask(client, &Request::RemoveValue(HandleIndexes { handle, indexes }), plain)?
        }
        ChangeKind::Put { values, mints } => {
            let values = Values::build(values.iter().map(ValueBuf::view), &mut encoded);
            let flags = if *mints { plain.with(OpFlags::MINT_SUFFIX) } else { plain };
            let request = Request::CreateHandle(HandleValues { handle, values });
            put(client, &request, flags, change, ResponseCode::HANDLE_ALREADY_EXISTS)?
        }
        ChangeKind::PutValues(values) => {
            let values = Values::build(values.iter().map(ValueBuf::view), &mut encoded);
            let request = Request::AddValue(HandleValues { handle, values });
            put(client, &request, plain, change, ResponseCode::VALUE_ALREADY_EXISTS)?
        }
    };
    Ok(outcome)
}

/// Creates or adds; where that is refused because of what exists, overwrites.
fn put(
    client: &mut Administrator,
    request: &Request<'_>,
    flags: OpFlags,
    change: &RecordChange,
    exists: ResponseCode,
) -> Result<ChangeOutcome, AskError> {
    // There are no administrators to keep, so that services without guards take it as well.
    client.guard(OwnedGuard { keeps_admins: false, ..change.guard.clone() });
    let outcome = ask(client, request, flags)?;
    if outcome.code != exists || !change.overwrites {
        return Ok(outcome);
    }
    if outcome.code == ResponseCode::HANDLE_ALREADY_EXISTS
        && change.guard.if_none_match == Some(OwnedCondition::Any)
    {
        // Whether the caller might overwrite the record makes no difference.
        let text = "The handle exists, and the request is conditional on its absence".to_owned();
        return Ok(ChangeOutcome { code: ResponseCode::CONDITION_FAILED, text, ..outcome });
    }
    client.guard(change.guard.clone());
    let outcome = ask(client, request, flags.with(OpFlags::OVERWRITE))?;
    Ok(ChangeOutcome { has_replaced: true, ..outcome })
}

fn ask(client: &mut Administrator, request: &Request<'_>, flags: OpFlags) -> Result<ChangeOutcome, AskError> {
    let answer = client.ask(request, flags.with(OpFlags::SHOW_TRANSACTION))?;
    let (minted, position) = match answer.reply().response {
        Response::Changed(change) => (change.handle.map(<[u8]>::to_vec), Some(change.position)),
        Response::Created(created) => (created.handle.map(<[u8]>::to_vec), None),
        _ => (None, None),
    };
    let is_minted = flags.has(OpFlags::MINT_SUFFIX);
    Ok(ChangeOutcome {
        code: answer.code(),
        text: answer.text(),
        has_replaced: false,
        minted: minted.filter(|_| is_minted),
        position,
    })
}
