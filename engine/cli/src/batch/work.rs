//! One operation of a batch, asked for on a connection.

use super::log::LoggedResult as Verdict;
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

/// What came of an operation.
pub(super) struct OperationResult {
    pub(super) verdict: Verdict,
    pub(super) code: Option<i32>,
    pub(super) message: Option<String>,
}

impl OperationResult {
    pub(super) const DONE: Self = Self { verdict: Verdict::Done, code: Some(1), message: None };

    /// Both, of one operation: the code is that of the first.
    pub(super) fn and(self, other: Self) -> Self {
        let message = match (self.message, other.message) {
            (Some(first), Some(second)) => Some(format!("{first}; {second}")),
            (first, second) => first.or(second),
        };
        Self { message, ..self }
    }

    pub(super) fn failed(error: &anyhow::Error) -> Self {
        Self { verdict: Verdict::Failed, code: None, message: Some(format!("{error:#}")) }
    }
}

/// The server says that it cannot do anything now, whatever it is asked: nothing is decided about the operation.
#[derive(Debug)]
pub(super) struct NotNow(String);

impl std::fmt::Display for NotNow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotNow {}

/// Asks for `operation`, one about a handle. `was_begun` by an earlier run, which may have got it done.
///
/// # Errors
/// When no answer comes: then nobody knows what came of it. [`NotNow`], when the server is busy or takes no changes.
pub(super) fn ask(
    clients: &mut ServerClients<'_>,
    operation: &BatchOperation,
    was_begun: bool,
) -> anyhow::Result<OperationResult> {
    let mut storage = Vec::new();
    let done_already = match operation {
        BatchOperation::Create(..) => Some(ResponseCode::HANDLE_ALREADY_EXISTS),
        BatchOperation::Add(..) => Some(ResponseCode::VALUE_ALREADY_EXISTS),
        BatchOperation::Delete(_) => Some(ResponseCode::HANDLE_NOT_FOUND),
        BatchOperation::Remove(..) => Some(ResponseCode::VALUES_NOT_FOUND),
        // These may be done twice.
        _ => None,
    };
    let values = match operation {
        BatchOperation::Create(_, values)
        | BatchOperation::Add(_, values)
        | BatchOperation::Modify(_, values) => values.as_slice(),
        _ => &[],
    };
    let values = match values.iter().map(resolve).collect::<anyhow::Result<Vec<_>>>() {
        Ok(values) => values,
        Err(error) => return Ok(OperationResult::failed(&error)),
    };
    let values = Values::build(values.iter().map(ValueBuf::view), &mut storage);
    let mut indexes = Vec::new();
    let request = match operation {
        BatchOperation::Create(handle, _) => {
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
            let indexes = Indexes::build(list.iter().copied(), &mut indexes);
            Request::RemoveValue(HandleIndexes { handle: handle.as_bytes(), indexes })
        }
        BatchOperation::Home(_) | BatchOperation::Authenticate(_) | BatchOperation::Session(_) => {
            return Ok(OperationResult::DONE);
        }
    };
    let client = match clients.of(request.handle().unwrap_or_default()) {
        Ok(client) => client,
        // That of other handles may be found all the same.
        Err(error) if error.downcast_ref().is_some_and(names_nobody) => {
            return Ok(OperationResult::failed(&error));
        }
        Err(error) => return Err(error),
    };
    let answer = client.ask(&request, OpFlags::PLAIN_REQUEST)?;
    let mut came = operation_result(&answer)?;
    if was_begun && done_already.is_some_and(|done| came.code == Some(done.0)) {
        let message = Some("is found done after the interruption".to_owned());
        return Ok(OperationResult { message, ..OperationResult::DONE });
    }
    if let (true, Some(code), Some(message)) = (was_begun, came.code, &mut came.message)
        && TAKEN_AWAY.contains(&ResponseCode(code))
    {
        message.push_str(" (or it was done before the interruption, and took this right away)");
    }
    // As a rule it was not: a server that was started anew has no sessions, and the handle of somebody else is in the way.
    if let (true, Some(code), Some(message)) = (answer.was_repeated(), came.code, &mut came.message)
        && (done_already.is_some_and(|done| code == done.0) || TAKEN_AWAY.contains(&ResponseCode(code)))
    {
        message
            .push_str(" (or it was done at the first try: the session was over, and it was asked for again)");
    }
    Ok(came)
}

/// Whether an error of [`ask`] says that nothing was done: nobody was found or reached, or could do anything now, or the
/// request was not sent as it could be read or the challenge to it not answered.
pub(super) fn was_not_begun(error: &anyhow::Error) -> bool {
    let is_unsent = |error: &AskError| {
        matches!(error, AskError::Connect(_) | AskError::NoSession { .. } | AskError::OldProof(_))
    };
    error.is::<NotNow>() || error.is::<LookupError>() || error.downcast_ref().is_some_and(is_unsent)
}

/// Whether records that were found say that nobody administers the handle; and not that somebody did not answer.
const fn names_nobody(error: &LookupError) -> bool {
    matches!(error, LookupError::NoService { .. } | LookupError::NoServer { .. } | LookupError::Circle { .. })
}

/// What somebody is told who has lost a right or a key, be it by the very change that is asked for once more.
const TAKEN_AWAY: [ResponseCode; 3] = [
    ResponseCode::INVALID_ADMIN,
    ResponseCode::INSUFFICIENT_PERMISSIONS,
    ResponseCode::AUTHENTICATION_FAILED,
];

/// Takes a prefix into the server's care, or releases it.
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
    let mut came = operation_result(&client.ask(&request, OpFlags::PLAIN_REQUEST)?)?;
    came.message = came.message.map(|message| format!("{prefix}: {message}"));
    Ok(came)
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
        return Err(NotNow(message).into());
    }
    Ok(OperationResult { verdict: Verdict::Refused, code: Some(code.0), message: Some(message) })
}

/// Reads each file that an operation names, unless it is in `seen` already.
///
/// # Errors
/// When one cannot be read, or does not hold what the operation takes it for.
pub(super) fn check_files(
    operation: &BatchOperation,
    seen: &mut HashSet<(String, String)>,
) -> anyhow::Result<()> {
    match operation {
        BatchOperation::Create(_, values)
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
