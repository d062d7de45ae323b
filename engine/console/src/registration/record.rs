//! The prefix record that an accepted request becomes, and its creation.

use super::request::{RegistrationRequest, RequestState};
use super::store::DecisionClaim;
use handle_client::administration::record_change::{ChangeKind, RecordChange, carry_out};
use handle_client::administration::{Administrator, AskError};
use handle_daemon::clock::now_unix_ms;
use handle_proto::data::{Admin, AdminPermissions, kind};
use handle_proto::name::PREFIX_RECORDS;
use handle_proto::wire::admin::StorePosition;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Request, Response};
use handle_proto::{OpFlags, ResponseCode, Value, ValueBuf};
use std::io;

/// The customary indexes of the values.
const SITE_INDEX: i32 = 1;
const EMAIL_INDEX: i32 = 2;
const ADMIN_INDEX: i32 = 100;
/// The index of the administrator's key.
pub const KEY_INDEX: i32 = 300;

/// The name of the record of a prefix.
#[must_use]
pub fn record_name(prefix: &str) -> String {
    format!("{}{prefix}", String::from_utf8_lossy(PREFIX_RECORDS))
}

/// The values of the record of `prefix`: the site, the e-mail address of the contact, and the
/// administrator with all permissions, whose key is in the record itself.
///
/// The administrator is not a handle under the prefix: whoever may create handles there could
/// otherwise create that one, and administer the prefix.
#[must_use]
pub fn values(request: &RegistrationRequest, prefix: &str) -> Vec<ValueBuf> {
    let mut admin = Vec::new();
    Admin::new(AdminPermissions::ALL, record_name(prefix).as_bytes(), KEY_INDEX).encode(&mut admin);
    let values = [
        Value::new(SITE_INDEX, kind::HS_SITE, &request.site),
        Value::new(EMAIL_INDEX, kind::EMAIL, request.details.email.as_bytes()),
        Value::new(ADMIN_INDEX, kind::HS_ADMIN, &admin),
        Value::new(KEY_INDEX, kind::HS_PUBKEY, &request.administrator_key),
    ];
    values.iter().map(ValueBuf::from).collect()
}

/// What came of accepting a request.
#[derive(Debug)]
pub enum AcceptOutcome {
    /// The record exists, and the request is accepted.
    Accepted {
        /// The prefix.
        prefix: String,
        /// A state of the store that has the record, if it was created just now.
        position: Option<StorePosition>,
    },
    /// There is a record of this prefix already.
    PrefixExists,
    /// The service refused to create the record.
    Refused(ResponseCode, String),
    /// The request was decided, or is gone.
    Decided,
    /// The file of the request cannot be written.
    File(io::Error),
}

/// Creates the record of `prefix`, and marks the request as accepted.
///
/// The request is marked before the record is created. If the process or the connection fails in
/// between, it stays marked, and accepting it again finds the record.
///
/// # Errors
/// When the service does not answer.
pub fn accept(
    client: &mut Administrator,
    claim: &DecisionClaim,
    prefix: &str,
    by: &str,
) -> Result<AcceptOutcome, AskError> {
    let Some(request) = claim.request().filter(|request| !request.state.is_decided()) else {
        return Ok(AcceptOutcome::Decided);
    };
    // A record that may have been created already comes first.
    let prefix = request.state.prefix().unwrap_or(prefix);
    let was_begun = matches!(request.state, RequestState::Accepting { .. });
    let begun = RequestState::Accepting { prefix: prefix.to_owned(), by: by.to_owned() };
    if let Err(error) = claim.set(begun) {
        return Ok(AcceptOutcome::File(error));
    }
    let (handle, values) = (record_name(prefix).into_bytes(), values(&request, prefix));
    let kind = ChangeKind::Put { values: values.clone(), mints: false };
    let change = RecordChange::new(&handle, kind, false);
    let created = carry_out(client, &change)?;
    let is_ours = match created.code {
        ResponseCode::SUCCESS => true,
        ResponseCode::HANDLE_ALREADY_EXISTS if was_begun => has_record(client, &handle, &values)?,
        _ => false,
    };
    let (prefix, by, unix_s) = (prefix.to_owned(), by.to_owned(), now_unix_ms() / 1000);
    let state = match created.code {
        _ if is_ours => Some(RequestState::Accepted { prefix: prefix.clone(), by, unix_s }),
        // Whether the record was created is not known.
        ResponseCode::ERROR | ResponseCode::SERVER_BUSY => None,
        _ => Some(RequestState::Pending),
    };
    if let Some(error) = state.and_then(|state| claim.set(state).err()) {
        return Ok(AcceptOutcome::File(error));
    }
    Ok(match created.code {
        _ if is_ours => AcceptOutcome::Accepted { prefix, position: created.position },
        ResponseCode::HANDLE_ALREADY_EXISTS => AcceptOutcome::PrefixExists,
        code => AcceptOutcome::Refused(code, created.text),
    })
}

/// Whether the service has a record with these values.
fn has_record(client: &mut Administrator, handle: &[u8], values: &[ValueBuf]) -> Result<bool, AskError> {
    let query = Query { handle, indexes: Indexes::EMPTY, types: Strings::EMPTY };
    let answer = client.ask(&Request::Resolution(query), OpFlags::PLAIN_REQUEST)?;
    let Response::Answer(found) = answer.reply().response else { return Ok(false) };
    let has = |wanted: &ValueBuf| {
        let wanted = wanted.view();
        found
            .values
            .iter()
            .any(|value| (value.index, value.kind, value.data) == (wanted.index, wanted.kind, wanted.data))
    };
    Ok(values.iter().all(has))
}

/// Whether the service has a record of this prefix.
///
/// # Errors
/// When the service does not answer.
pub fn exists(client: &mut Administrator, prefix: &str) -> Result<bool, AskError> {
    let handle = record_name(prefix).into_bytes();
    let query = Query { handle: &handle, indexes: Indexes::EMPTY, types: Strings::EMPTY };
    let code = client.ask(&Request::Resolution(query), OpFlags::PLAIN_REQUEST)?.code();
    Ok(matches!(code, ResponseCode::SUCCESS | ResponseCode::VALUES_NOT_FOUND))
}
