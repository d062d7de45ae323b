//! Runs one operation of a batch on a connection.

use super::log::LoggedResult;
use crate::handle::values::from_file;
use crate::server::ServerClients;
use crate::{key, secret};
use handle_client::administration::{
    AdministrationAnswer, Administrator, AskError, ClientIdentity, IdentityKey,
};
use handle_client::lookup::LookupError;
use handle_formats::batch::{AuthenticationBlock, BatchOperation, BatchProof, BatchValue, ValueContent};
use handle_proto::wire::Request;
use handle_proto::wire::admin::{HandleBody, HandleIndexes, HandleValues};
use handle_proto::wire::list::{Indexes, Values};
use handle_proto::{OpFlags, ResponseCode, ValueBuf};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The result of an operation.
pub(super) struct OperationResult {
    pub(super) verdict: LoggedResult,
    pub(super) code: Option<i32>,
    pub(super) message: Option<String>,
}

impl OperationResult {
    pub(super) const DONE: Self = Self { verdict: LoggedResult::Done, code: Some(1), message: None };

    /// Combines the results of two requests of one operation; the code is that of the first.
    pub(super) fn and(self, other: Self) -> Self {
        let message = match (self.message, other.message) {
            (Some(first), Some(second)) => Some(format!("{first}; {second}")),
            (first, second) => first.or(second),
        };
        Self { message, ..self }
    }

    pub(super) fn failed(error: &anyhow::Error) -> Self {
        Self { verdict: LoggedResult::Failed, code: None, message: Some(format!("{error:#}")) }
    }
}

/// The server can do nothing at the moment, whatever the request: the operation is undecided.
#[derive(Debug)]
pub(super) struct ServerUnavailable(String);

impl std::fmt::Display for ServerUnavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ServerUnavailable {}

/// Requests `operation`, which concerns one handle. `was_begun` if an earlier run began it and may
/// have completed it.
///
/// # Errors
/// If there is no answer: the result is then unknown. [`ServerUnavailable`] if the server is busy
/// or accepts no changes.
pub(super) fn ask(
    clients: &mut ServerClients<'_>,
    operation: &BatchOperation,
    was_begun: bool,
) -> anyhow::Result<OperationResult> {
    let values = match operation {
        BatchOperation::Create(_, values)
        | BatchOperation::Replace(_, values)
        | BatchOperation::Add(_, values)
        | BatchOperation::Modify(_, values) => values.as_slice(),
        _ => &[],
    };
    let values = match values.iter().map(resolve).collect::<anyhow::Result<Vec<_>>>() {
        Ok(values) => values,
        Err(error) => return Ok(OperationResult::failed(&error)),
    };
    let (mut values_buffer, mut indexes_buffer) = (Vec::new(), Vec::new());
    let values = Values::build(values.iter().map(ValueBuf::view), &mut values_buffer);
    let Some(request) = request_of(operation, values, &mut indexes_buffer) else {
        return Ok(OperationResult::DONE);
    };
    let client = match clients.of(request.handle().unwrap_or_default()) {
        Ok(client) => client,
        // The servers of other handles may still be found, so the batch continues.
        Err(error) if error.downcast_ref().is_some_and(names_no_server) => {
            return Ok(OperationResult::failed(&error));
        }
        Err(error) => return Err(error),
    };
    let flags = match operation {
        BatchOperation::Replace(..) => OpFlags::PLAIN_REQUEST.with(OpFlags::OVERWRITE),
        _ => OpFlags::PLAIN_REQUEST,
    };
    let answer = client.ask(&request, flags)?;
    let result = operation_result(&answer)?;
    Ok(consider_repetition(result, operation, was_begun, answer.was_repeated()))
}

/// The request for `operation` with its `values`; `None` for operations that need none of their
/// own.
fn request_of<'a>(
    operation: &'a BatchOperation,
    values: Values<'a>,
    indexes_buffer: &'a mut Vec<[u8; 4]>,
) -> Option<Request<'a>> {
    Some(match operation {
        BatchOperation::Create(handle, _) | BatchOperation::Replace(handle, _) => {
            Request::CreateHandle(HandleValues { handle: handle.as_bytes(), values })
        }
        BatchOperation::Add(handle, _) => {
            Request::AddValue(HandleValues { handle: handle.as_bytes(), values })
        }
        BatchOperation::Modify(handle, _) => {
            Request::ModifyValue(HandleValues { handle: handle.as_bytes(), values })
        }
        BatchOperation::Delete(handle) => Request::DeleteHandle(HandleBody { handle: handle.as_bytes() }),
        BatchOperation::Remove(handle, list) => {
            let indexes = Indexes::build(list.iter().copied(), indexes_buffer);
            Request::RemoveValue(HandleIndexes { handle: handle.as_bytes(), indexes })
        }
        BatchOperation::Home(_) | BatchOperation::Authenticate(_) | BatchOperation::Session(_) => {
            return None;
        }
    })
}

/// Changes the `result` of an operation that may have been done before: by an earlier run if
/// `was_begun`, or by the first request if the client sent it again.
fn consider_repetition(
    mut result: OperationResult,
    operation: &BatchOperation,
    was_begun: bool,
    was_repeated: bool,
) -> OperationResult {
    let done_already = match operation {
        BatchOperation::Create(..) => Some(ResponseCode::HANDLE_ALREADY_EXISTS),
        BatchOperation::Add(..) => Some(ResponseCode::VALUE_ALREADY_EXISTS),
        BatchOperation::Delete(_) => Some(ResponseCode::HANDLE_NOT_FOUND),
        BatchOperation::Remove(..) => Some(ResponseCode::VALUES_NOT_FOUND),
        // These operations can be repeated safely.
        _ => None,
    };
    let (Some(code), Some(message)) = (result.code.map(ResponseCode), &mut result.message) else {
        return result;
    };
    let is_done_already = done_already == Some(code);
    let is_taken_away = TAKEN_AWAY.contains(&code);
    if was_begun && is_done_already {
        let message = Some("was already done before the interruption".to_owned());
        return OperationResult { message, ..OperationResult::DONE };
    }
    if was_begun && is_taken_away {
        message.push_str(" (or it was done before the interruption, and removed this right)");
    }
    // Usually it was not: a restarted server has no sessions, and the handle may belong to another
    // else.
    if was_repeated && (is_done_already || is_taken_away) {
        message.push_str(
            " (or the first request succeeded: the session had ended, and the request was sent again)",
        );
    }
    result
}

/// Whether an error of [`ask`] shows that nothing was done: no server was found or reached, the
/// server could do nothing at the moment, the request was not sent because it would have been
/// readable, or its challenge was not answered.
pub(super) fn was_not_begun(error: &anyhow::Error) -> bool {
    let is_unsent = |error: &AskError| {
        matches!(error, AskError::Connect(_) | AskError::NoSession { .. } | AskError::OldProof(_))
    };
    error.is::<ServerUnavailable>()
        || error.is::<LookupError>()
        || error.downcast_ref().is_some_and(is_unsent)
}

/// Whether the records that were found show that no server administers the handle. False if a
/// server did not answer.
const fn names_no_server(error: &LookupError) -> bool {
    matches!(error, LookupError::NoService { .. } | LookupError::NoServer { .. } | LookupError::Circle { .. })
}

/// Refusals that a lost right or key can cause, possibly lost by the repeated change itself.
const TAKEN_AWAY: [ResponseCode; 3] = [
    ResponseCode::INVALID_ADMIN,
    ResponseCode::INSUFFICIENT_PERMISSIONS,
    ResponseCode::AUTHENTICATION_FAILED,
];

/// Homes or unhomes a prefix.
///
/// # Errors
/// Those of [`ask`].
pub(super) fn home(
    client: &mut Administrator,
    is_release: bool,
    prefix: &str,
) -> anyhow::Result<OperationResult> {
    let body = HandleBody { handle: prefix.as_bytes() };
    let request = if is_release { Request::UnhomeNa(body) } else { Request::HomeNa(body) };
    let mut result = operation_result(&client.ask(&request, OpFlags::PLAIN_REQUEST)?)?;
    result.message = result.message.map(|message| format!("{prefix}: {message}"));
    Ok(result)
}

fn operation_result(answer: &AdministrationAnswer) -> anyhow::Result<OperationResult> {
    let code = answer.code();
    if code == ResponseCode::SUCCESS {
        return Ok(OperationResult::DONE);
    }
    let message = match answer.text() {
        text if text.is_empty() => code.to_string(),
        text => format!("{code}: {text}"),
    };
    if [ResponseCode::SERVER_BUSY, ResponseCode::SERVER_READ_ONLY].contains(&code) {
        return Err(ServerUnavailable(message).into());
    }
    Ok(OperationResult { verdict: LoggedResult::Refused, code: Some(code.0), message: Some(message) })
}

/// Reads each file that an operation names, unless `seen` has it already.
///
/// # Errors
/// If a file cannot be read, or does not hold what the operation expects.
pub(super) fn check_files(
    operation: &BatchOperation,
    seen: &mut HashSet<(String, String)>,
) -> anyhow::Result<()> {
    match operation {
        BatchOperation::Create(_, values)
        | BatchOperation::Replace(_, values)
        | BatchOperation::Add(_, values)
        | BatchOperation::Modify(_, values) => {
            for value in values {
                if let ValueContent::File(path) = &value.content
                    && seen.insert((value.kind.clone(), path.clone()))
                {
                    from_file(&value.kind, Path::new(path))?;
                }
            }
            Ok(())
        }
        BatchOperation::Authenticate(AuthenticationBlock {
            proof: BatchProof::KeyFile(path, phrase),
            ..
        }) => key::private_record(Path::new(path), phrase.as_ref().map(|phrase| phrase.as_bytes())).map(drop),
        _ => Ok(()),
    }
}

fn resolve(value: &BatchValue) -> anyhow::Result<ValueBuf> {
    value.resolve(|path| from_file(&value.kind, Path::new(path)))
}

/// The identity that a batch names.
pub(super) fn identity(authentication: &AuthenticationBlock) -> anyhow::Result<Arc<ClientIdentity>> {
    let key = match &authentication.proof {
        BatchProof::Secret(secret) => IdentityKey::Secret(Zeroizing::new(secret.as_bytes().to_vec())),
        BatchProof::KeyFile(path, phrase) => {
            secret::private_key(Path::new(path), phrase.as_ref().map(|phrase| phrase.as_bytes()))?
        }
    };
    let (handle, index) = (authentication.identity.handle.as_bytes().to_vec(), authentication.identity.index);
    Ok(Arc::new(ClientIdentity { handle, index, key }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_parts_of_an_operation_say_is_all_kept() {
        let says = |message: Option<&str>| OperationResult {
            message: message.map(str::to_owned),
            ..OperationResult::DONE
        };
        for (first, second, both) in [
            (Some("a"), Some("b"), Some("a; b")),
            (Some("a"), None, Some("a")),
            (None, Some("b"), Some("b")),
            (None, None, None),
        ] {
            assert_eq!(says(first).and(says(second)).message.as_deref(), both);
        }
    }
}
