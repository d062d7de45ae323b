//! A line of a batch: one change of one record, as JSON.

use crate::api::json_input::{self, values_of};
use crate::api::request::ApiRefusal;
use handle_client::administration::record_change::ALLOW_ORPHANS;
use handle_daemon::clock::now_unix_s;
use handle_formats::batch::BatchOperation;
use handle_formats::exact::ExactEntry;
use handle_formats::input::InputEntry;
use handle_local::bulk::CHANGE_LEN_MAX;
use handle_proto::json::Json;
use handle_proto::limit::HANDLE_LEN_MAX;
use handle_proto::wire::admin::{HandleBody, HandleIndexes, HandleValues};
use handle_proto::wire::guard::ChangeGuard;
use handle_proto::wire::list::{Indexes, Values};
use handle_proto::wire::{Envelope, Header, MessageBuf, Request};
use handle_proto::{OpFlags, ResponseCode, ValueBuf};

/// Items of JSON of a line. A record has at most 2,048 values, each of some twenty.
const LINE_ITEMS_MAX: usize = 256 << 10;

/// A change, as a message of the handle protocol.
#[derive(Debug)]
pub(super) struct LineChange {
    pub(super) handle: String,
    pub(super) message: Vec<u8>,
}

/// Why a line is not a change.
#[derive(Debug)]
pub(super) struct LineFault {
    pub(super) code: ResponseCode,
    pub(super) message: String,
    /// The handle, if it could be read.
    pub(super) handle: Option<String>,
}

/// The operation of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineOperation {
    Create,
    Replace,
    Delete,
    Add,
    Remove,
    Modify,
}

impl LineFault {
    /// Something that is not in a form that is read here.
    pub(super) fn protocol(message: &str) -> Self {
        Self { code: ResponseCode::PROTOCOL_ERROR, message: message.to_owned(), handle: None }
    }

    /// The same with the reason of the reader of inputs, which does not begin a sentence.
    pub(super) fn unreadable(why: &impl std::fmt::Display) -> Self {
        let why = why.to_string();
        let mut rest = why.chars();
        let first = rest.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
        Self::protocol(&(first + rest.as_str()))
    }
}

impl LineOperation {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "create" => Self::Create,
            "replace" => Self::Replace,
            "delete" => Self::Delete,
            "add" => Self::Add,
            "remove" => Self::Remove,
            "modify" => Self::Modify,
            _ => return None,
        })
    }
}

impl LineChange {
    /// Parses the line with this number.
    pub(super) fn read(number: u32, line: &[u8]) -> Result<Self, LineFault> {
        let json = json_input::parse(line, LINE_ITEMS_MAX).map_err(|error| {
            let text = error.to_string();
            let why = text.split(" at line ").next().unwrap_or_default();
            let message = format!("Invalid JSON in line {number}, column {}: {why}", error.column());
            LineFault { code: ResponseCode::PROTOCOL_ERROR, message, handle: None }
        })?;
        match ExactEntry::read(&json) {
            Some(Ok(ExactEntry::Record(handle, values))) => {
                let mut encoded = Vec::new();
                let values = Values::build(values.iter().map(ValueBuf::view), &mut encoded);
                return Self::of_entry(InputEntry::Record(&handle, values));
            }
            Some(Ok(ExactEntry::Homed(prefix))) => return Self::of_entry(InputEntry::Homed(&prefix)),
            Some(Err(why)) => return Err(LineFault::unreadable(&why)),
            None => {}
        }
        let Some(name) = json.get("handle").and_then(Json::as_str) else {
            if let Some(prefix) = json.get("homed").and_then(Json::as_str) {
                return Self::of_entry(InputEntry::Homed(prefix.as_bytes()));
            }
            return Err(LineFault::protocol("The line has no `handle`"));
        };
        Self::of(name.as_bytes(), || encode(&json, name))
    }

    /// The change that an entry of another form is.
    pub(super) fn of_entry(entry: InputEntry<'_>) -> Result<Self, LineFault> {
        let plain = OpFlags::PLAIN_REQUEST;
        match entry {
            InputEntry::Record(handle, values) => {
                Self::of(handle, || message(&Request::CreateHandle(HandleValues { handle, values }), plain))
            }
            InputEntry::Deleted(handle) => {
                Self::of(handle, || message(&Request::DeleteHandle(HandleBody { handle }), plain))
            }
            InputEntry::Operation(operation) => Self::of_operation(&operation),
            InputEntry::Homed(prefix) => {
                let prefix = String::from_utf8_lossy(prefix);
                Err(LineFault::protocol(&format!(
                    "The homed prefix {prefix} is not a change of a record: `hdl handle home` homes it"
                )))
            }
            InputEntry::Name(name) => {
                let fault = LineFault::protocol("A name without values is not a change");
                Err(LineFault { handle: Some(name.to_owned()), ..fault })
            }
            InputEntry::Refused(handle, why) => Err(LineFault { handle, ..LineFault::unreadable(&why) }),
        }
    }

    fn of_operation(operation: &BatchOperation) -> Result<Self, LineFault> {
        let plain = OpFlags::PLAIN_REQUEST;
        let (handle, values) = match operation {
            BatchOperation::Create(handle, values)
            | BatchOperation::Replace(handle, values)
            | BatchOperation::Add(handle, values)
            | BatchOperation::Modify(handle, values) => (handle.as_bytes(), values),
            BatchOperation::Delete(handle) => return Self::of_entry(InputEntry::Deleted(handle.as_bytes())),
            BatchOperation::Remove(handle, indexes) => {
                let (mut storage, handle) = (Vec::new(), handle.as_bytes());
                let indexes = Indexes::build(indexes.iter().copied(), &mut storage);
                let request = Request::RemoveValue(HandleIndexes { handle, indexes });
                return Self::of(handle, || message(&request, plain));
            }
            BatchOperation::Authenticate(_) | BatchOperation::Session(_) => {
                let why = format!(
                    "{} is not read here: the caller of the request makes all changes",
                    operation.word().to_uppercase()
                );
                return Err(LineFault::protocol(&why));
            }
            BatchOperation::Home(_) => {
                let why = format!("{} is not a change of a record", operation.word().to_uppercase());
                return Err(LineFault::protocol(&why));
            }
        };
        let whole = values.iter().map(|value| value.resolve(|_| Err(())));
        let Ok(values) = whole.collect::<Result<Vec<ValueBuf>, ()>>() else {
            let fault = LineFault::protocol("A value is in another file, which is not read here");
            return Err(LineFault { handle: operation.handle().map(str::to_owned), ..fault });
        };
        let mut encoded = Vec::new();
        let body =
            HandleValues { handle, values: Values::build(values.iter().map(ValueBuf::view), &mut encoded) };
        Self::of(handle, || match operation {
            BatchOperation::Replace(..) => {
                guarded_message(&Request::CreateHandle(body), plain.with(OpFlags::OVERWRITE), &KEEPS_ADMINS)
            }
            BatchOperation::Add(..) => message(&Request::AddValue(body), plain),
            BatchOperation::Modify(..) => message(&Request::ModifyValue(body), plain),
            _ => message(&Request::CreateHandle(body), plain),
        })
    }

    /// The change of `handle` whose message `encode` makes.
    fn of(
        handle: &[u8],
        encode: impl FnOnce() -> Result<Vec<u8>, (ResponseCode, String)>,
    ) -> Result<Self, LineFault> {
        if handle.len() > HANDLE_LEN_MAX {
            let message = format!("A handle has at most {HANDLE_LEN_MAX} bytes");
            return Err(LineFault { code: ResponseCode::INVALID_HANDLE, message, handle: None });
        }
        let name = String::from_utf8_lossy(handle).into_owned();
        let fault = |code, message: &str| {
            Err(LineFault { code, message: message.to_owned(), handle: Some(name.clone()) })
        };
        if !handle.contains(&b'/') {
            return fault(ResponseCode::INVALID_HANDLE, "A handle has a slash behind its prefix");
        }
        match encode() {
            Ok(message) if message.len() > CHANGE_LEN_MAX => {
                fault(ResponseCode::INVALID_VALUE, "The record is too long for a message")
            }
            Ok(message) => Ok(Self { handle: name, message }),
            Err((code, message)) => fault(code, &message),
        }
    }
}

/// The message that requests the change.
fn encode(json: &Json, handle: &str) -> Result<Vec<u8>, (ResponseCode, String)> {
    let bad = |message: &str| (ResponseCode::PROTOCOL_ERROR, message.to_owned());
    let operation = match json.get("operation") {
        None if json.get("deleted") == Some(&Json::Bool(true)) => Some(LineOperation::Delete),
        None => Some(LineOperation::Create),
        Some(name) => name.as_str().and_then(LineOperation::of),
    };
    let operation = operation
        .ok_or_else(|| bad("`operation` is none of create, replace, delete, add, remove and modify"))?;
    let (name, plain) = (handle.as_bytes(), OpFlags::PLAIN_REQUEST);
    match operation {
        LineOperation::Delete => message(&Request::DeleteHandle(HandleBody { handle: name }), plain),
        LineOperation::Remove => {
            let Some(Json::Array(indexes)) = json.get("indexes") else {
                return Err(bad("The line has no array `indexes`"));
            };
            let number = |index: &Json| index.as_i64().and_then(|number| i32::try_from(number).ok());
            let numbers: Option<Vec<i32>> = indexes.iter().map(number).collect();
            let numbers = numbers.ok_or_else(|| bad("`indexes` has something that is not an index"))?;
            let mut storage = Vec::new();
            let indexes = Indexes::build(numbers, &mut storage);
            message(&Request::RemoveValue(HandleIndexes { handle: name, indexes }), plain)
        }
        _ => {
            let Some(Json::Array(list)) = json.get("values") else {
                return Err(bad("The line has no array `values`"));
            };
            let values = values_of(list)
                .map_err(ApiRefusal::from)
                .map_err(|refusal| (refusal.code, refusal.message))?;
            let mut encoded = Vec::new();
            let values = Values::build(values.iter().map(ValueBuf::view), &mut encoded);
            let body = HandleValues { handle: name, values };
            match operation {
                LineOperation::Replace => {
                    let guard = match json.get(ALLOW_ORPHANS) {
                        None | Some(Json::Bool(false)) => KEEPS_ADMINS,
                        Some(Json::Bool(true)) => ChangeGuard::default(),
                        Some(_) => return Err(bad("`allow_orphans` is neither true nor false")),
                    };
                    guarded_message(&Request::CreateHandle(body), plain.with(OpFlags::OVERWRITE), &guard)
                }
                LineOperation::Add => message(&Request::AddValue(body), plain),
                LineOperation::Modify => message(&Request::ModifyValue(body), plain),
                _ => message(&Request::CreateHandle(body), plain),
            }
        }
    }
}

/// What keeps the administrators of a record that is replaced.
const KEEPS_ADMINS: ChangeGuard<'_> = ChangeGuard { if_match: None, if_none_match: None, keeps_admins: true };

/// The message that requests to create a record, and to replace one if `overwrites`; with the
/// administrators of that one, unless `allows_orphans`.
///
/// # Errors
/// When the record is too long.
pub(crate) fn creation(
    handle: &[u8],
    values: &[ValueBuf],
    overwrites: bool,
    allows_orphans: bool,
) -> Result<Vec<u8>, (ResponseCode, String)> {
    let mut encoded = Vec::new();
    let values = Values::build(values.iter().map(ValueBuf::view), &mut encoded);
    let plain = OpFlags::PLAIN_REQUEST;
    let (flags, guard) = match overwrites {
        true if allows_orphans => (plain.with(OpFlags::OVERWRITE), ChangeGuard::default()),
        true => (plain.with(OpFlags::OVERWRITE), KEEPS_ADMINS),
        false => (plain, ChangeGuard::default()),
    };
    guarded_message(&Request::CreateHandle(HandleValues { handle, values }), flags, &guard)
}

fn message(request: &Request<'_>, flags: OpFlags) -> Result<Vec<u8>, (ResponseCode, String)> {
    guarded_message(request, flags, &ChangeGuard::default())
}

fn guarded_message(
    request: &Request<'_>,
    flags: OpFlags,
    guard: &ChangeGuard<'_>,
) -> Result<Vec<u8>, (ResponseCode, String)> {
    let header = Header::request(request.op_code(), flags, now_unix_s());
    let message = MessageBuf::guarded_request(&Envelope::request(1), &header, guard, request).unsigned();
    message.map_err(|_| (ResponseCode::INVALID_VALUE, "The record is too long for a message".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(line: &str) -> (i32, String) {
        let fault = LineChange::read(7, line.as_bytes()).unwrap_err();
        (fault.code.0, fault.message)
    }

    #[test]
    fn every_operation_is_a_request_of_the_handle_protocol() {
        let values = r#""values":[{"index":1,"type":"URL","data":"x"}]"#;
        for (line, op_code, overwrites) in [
            (format!(r#"{{"handle":"1/a",{values}}}"#), 100, false),
            (format!(r#"{{"operation":"create","handle":"1/a",{values}}}"#), 100, false),
            (format!(r#"{{"operation":"replace","handle":"1/a",{values}}}"#), 100, true),
            (r#"{"operation":"delete","handle":"1/a"}"#.to_owned(), 101, false),
            (format!(r#"{{"operation":"add","handle":"1/a",{values}}}"#), 102, false),
            (r#"{"operation":"remove","handle":"1/a","indexes":[1,2]}"#.to_owned(), 103, false),
            (format!(r#"{{"operation":"modify","handle":"1/a",{values}}}"#), 104, false),
        ] {
            let change = LineChange::read(1, line.as_bytes()).unwrap();
            let (_, rest) = Envelope::split(&change.message).unwrap();
            let (header, _) = Header::split(rest).unwrap();
            let found = (header.op_code.0, header.flags.has(OpFlags::OVERWRITE));
            assert_eq!(found, (op_code, overwrites), "{line}");
            assert_eq!(change.handle, "1/a");
        }
    }

    #[test]
    fn a_fault_says_where_it_is() {
        let (code, text) = fault("{\"handle\": \"1/a\", oops}");
        assert_eq!(code, 4);
        assert!(text.starts_with("Invalid JSON in line 7, column 19: "), "{text}");
        for line in [
            "17",
            "[]",
            r#"{"handle":1}"#,
            r#"{"handle":"1/a"}"#,
            r#"{"handle":"1/a","values":{}}"#,
            r#"{"handle":"1/a","operation":"burn","values":[]}"#,
            r#"{"handle":"1/a","operation":1,"values":[]}"#,
            r#"{"handle":"1/a","operation":"remove","values":[]}"#,
            r#"{"handle":"1/a","operation":"remove","indexes":["x"]}"#,
            r#"{"handle":"1/a","values":[{"index":1}]}"#,
        ] {
            assert_eq!(fault(line).0, 4, "{line}");
        }
        assert_eq!(fault(r#"{"handle":"noslash","values":[]}"#).0, 102);
        assert_eq!(fault(&format!(r#"{{"handle":"1/{}","values":[]}}"#, "a".repeat(2047))).0, 102);
        let long = format!(
            r#"{{"handle":"1/a","values":[{{"index":1,"type":"URL","data":"{}"}}]}}"#,
            "a".repeat(300_000)
        );
        assert_eq!(fault(&long).0, 202);
    }
}
