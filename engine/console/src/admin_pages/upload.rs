//! Upload of many records as CSV or JSON lines.

use super::{AdminRequest, copyable, error};
use crate::host::{ConsoleHost, ServiceFailure, UploadFailure, UploadMode, UploadRecord};
use crate::pages::admin::{AdminNotice, UploadPage};
use crate::parameters::Parameters;
use crate::reply::{ConsoleResponse, guard, response};
use handle_client::administration::ClientIdentity;
use handle_client::administration::record_change::ALLOW_ORPHANS;
use handle_formats::input::{
    CsvError, CsvRow, CsvTable, InputEntry, InputForm, InputPosition, InputReader, InputStream, JsonObjects,
};
use handle_proto::json::{Json, entered_value_from_json};
use handle_proto::printable::Printable;
use handle_proto::{ResponseCode, ValueBuf};
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;

/// The header row of a result.
const RESULT_HEAD: [&str; 4] = ["handle", "status", "code", "message"];

/// Refused records that are told by name; the result has all of them.
const REFUSED_SHOWN_MAX: usize = 10;

/// The outcome of a record.
#[derive(Debug)]
struct RecordOutcome {
    handle: String,
    code: ResponseCode,
    message: String,
}

/// Maximum number of records of a request.
fn records_max(request: &AdminRequest<'_, impl ConsoleHost>) -> usize {
    request.head.admin_pages.upload_records
}

/// The page with the form.
pub(super) fn page(request: &AdminRequest<'_, impl ConsoleHost>) -> ConsoleResponse {
    request.html(StatusCode::OK, upload_page(request).html())
}

fn upload_page<'r>(request: &AdminRequest<'r, impl ConsoleHost>) -> UploadPage<'r> {
    UploadPage {
        frame: request.frame,
        user: request.user(),
        notice: None,
        commands: copyable(vec![format!("hdl batch {} records.txt", request.hdl_auth())]),
        csrf: request.csrf(),
        records_max: records_max(request),
        text: String::new(),
        results: String::new(),
        summary: String::new(),
    }
}

/// Carries out an upload. Scripts get the result as JSON, browsers without scripts as a page.
pub(super) async fn upload(
    request: &AdminRequest<'_, impl ConsoleHost>,
    identity: &Arc<ClientIdentity>,
    form: &Parameters<'_>,
) -> ConsoleResponse {
    let text = form.first("records").unwrap_or_default();
    let most = records_max(request);
    // Parsing takes milliseconds, too long for an asynchronous task.
    let parsed = {
        let text = text.to_owned();
        tokio::task::spawn_blocking(move || parse(&text, most)).await
    };
    let records = match parsed.unwrap_or_else(|_| Err("the request met a bug".to_owned())) {
        Ok(records) => records,
        Err(why) if wants_json(request) => {
            let error = request.texts().upload_bad.replacen("{}", &why, 1);
            let body = json!({ "error": error, "csv": "", "done": 0, "failed": 0 }).to_string();
            let mut response = response(StatusCode::BAD_REQUEST, "application/json;charset=utf-8", body);
            guard(&mut response);
            return response;
        }
        Err(why) => {
            let mut page = upload_page(request);
            let text_of = request.texts().upload_bad.replacen("{}", &Printable(&why).to_string(), 1);
            page.notice = Some(error(&text_of));
            page.text = text.to_owned();
            return request.html(StatusCode::BAD_REQUEST, page.html());
        }
    };
    let mode = UploadMode {
        overwrites: form.flag("replace").unwrap_or_default(),
        allows_orphans: form.flag(ALLOW_ORPHANS).unwrap_or_default(),
    };
    let mut writer = csv::Writer::from_writer(Vec::new());
    // Writing to memory does not fail.
    let _ = writer.write_record(RESULT_HEAD);
    let (mut done, mut failed, mut refused) = (0_usize, 0_usize, Vec::new());
    for RecordOutcome { handle, code, message } in put_all(request, identity, records, mode).await {
        let is_done = code == ResponseCode::SUCCESS;
        (done, failed) = (done + usize::from(is_done), failed + usize::from(!is_done));
        let status = if is_done { "done" } else { "failed" };
        if !is_done && refused.len() < REFUSED_SHOWN_MAX {
            refused.push(format!(
                "{handle}: {}",
                if message.is_empty() { code.to_string() } else { message.clone() }
            ));
        }
        let _ = writer.write_record([&*handle, status, &code.0.to_string(), &message]);
    }
    let csv = String::from_utf8(writer.into_inner().unwrap_or_default()).unwrap_or_default();
    if wants_json(request) {
        let body = json!({ "csv": csv, "done": done, "failed": failed, "refused": refused }).to_string();
        let mut response = response(StatusCode::OK, "application/json;charset=utf-8", body);
        guard(&mut response);
        return response;
    }
    let mut page = upload_page(request);
    let summary = request.texts().upload_done.replacen("{}", &done.to_string(), 1);
    page.summary = summary.replacen("{}", &failed.to_string(), 1);
    page.results = csv;
    page.notice = Some(AdminNotice { text: page.summary.clone(), is_error: failed > 0 });
    request.html(StatusCode::OK, page.html())
}

/// Whether a script asks, and not a form.
fn wants_json(request: &AdminRequest<'_, impl ConsoleHost>) -> bool {
    request.head.header(header::ACCEPT).is_some_and(|accepted| accepted.starts_with("application/json"))
}

/// Hands all records over together. Those without an answer get the reason why there is none.
async fn put_all(
    request: &AdminRequest<'_, impl ConsoleHost>,
    identity: &Arc<ClientIdentity>,
    records: Vec<UploadRecord>,
    mode: UploadMode,
) -> Vec<RecordOutcome> {
    let outcome = request.host.put_records(request.head.address, identity, records, mode).await;
    let missing = match outcome.missing {
        UploadFailure::Refused(code, text) => (code, text),
        UploadFailure::Unanswered(ServiceFailure::Busy) => {
            (ResponseCode::SERVER_BUSY, request.texts().unreachable.to_owned())
        }
        UploadFailure::Unanswered(ServiceFailure::Failed) => {
            (ResponseCode::ERROR, request.texts().unreachable.to_owned())
        }
    };
    let records = outcome.records.into_iter().map(|(handle, answer)| {
        let (code, message) = answer.unwrap_or_else(|| missing.clone());
        RecordOutcome { handle, code, message }
    });
    records.collect()
}

/// The result as a file.
pub(super) fn download(result: &str) -> ConsoleResponse {
    let mut file = response(StatusCode::OK, "text/csv;charset=utf-8", result.to_owned());
    guard(&mut file);
    let name = HeaderValue::from_static("attachment; filename=\"result.csv\"");
    file.headers_mut().insert(header::CONTENT_DISPOSITION, name);
    file
}

/// Parses an upload in one of the forms that `handle_formats::input` reads.
fn parse(text: &str, most: usize) -> Result<Vec<UploadRecord>, String> {
    let mut stream = InputStream::new(text.as_bytes()).map_err(|why| why.to_string())?;
    let form = InputForm::recognise(&mut stream).map_err(|why| why.to_string())?;
    let records = match form {
        Some(InputForm::Json) => json_objects(stream)?,
        Some(form @ (InputForm::Batch | InputForm::Export | InputForm::Sql)) => entries(stream, form)?,
        // What is no table is told which columns one has.
        _ => csv_rows(stream)?,
    };
    match records.len() {
        0 => Err("there are no records".to_owned()),
        count if count > most => Err(format!("{count} records; at most {most} are taken at a time")),
        _ => Ok(records),
    }
}

fn json_objects(stream: InputStream<'_>) -> Result<Vec<UploadRecord>, String> {
    let mut objects = JsonObjects::new(stream).map_err(|why| why.to_string())?;
    let mut records = Vec::new();
    while let Some((position, object)) = objects.next().map_err(|why| why.to_string())? {
        records.push(match object {
            Ok(text) => json_record(&position, text),
            Err(why) => UploadRecord { handle: position.to_string(), values: Err(why) },
        });
    }
    Ok(records)
}

/// The records of a form that has no text forms of data.
fn entries(stream: InputStream<'_>, form: InputForm) -> Result<Vec<UploadRecord>, String> {
    let mut reader = InputReader::new(stream, form).map_err(|why| why.to_string())?;
    let mut records = TableRecords::default();
    while let Some((position, entry)) = reader.next().map_err(|why| why.to_string())? {
        let refuse =
            |handle: Option<String>, why: String| (handle.unwrap_or_else(|| position.to_string()), Err(why));
        let lossy = |handle: &[u8]| String::from_utf8_lossy(handle).into_owned();
        let (handle, values) = match entry {
            InputEntry::Record(handle, values) => (lossy(handle), Ok(values)),
            InputEntry::Homed(_) => continue,
            InputEntry::Refused(handle, why) => refuse(handle, why),
            InputEntry::Deleted(handle) => refuse(Some(lossy(handle)), "not a record".to_owned()),
            InputEntry::Name(name) => refuse(Some(name.to_owned()), "a name without a record".to_owned()),
            InputEntry::Operation(operation) => {
                let why = format!("{} is not a record: hdl batch carries it out", operation.word());
                refuse(operation.handle().map(str::to_owned), why)
            }
        };
        match values {
            Ok(values) => values.iter().for_each(|value| records.put(&handle, Ok((&value).into()))),
            Err(why) => records.put(&handle, Err(why)),
        }
    }
    Ok(records.records)
}

fn json_record(position: &InputPosition, text: &str) -> UploadRecord {
    let json: Json = match serde_json::from_str(text) {
        Ok(json) => json,
        Err(why) => return UploadRecord { handle: position.to_string(), values: Err(why.to_string()) },
    };
    let handle = json["handle"].as_str().unwrap_or_default().to_owned();
    let values = json["values"].as_array().filter(|_| !handle.is_empty());
    let Some(values) = values else {
        let why = "the line has no `handle` or no `values`".to_owned();
        return UploadRecord { handle: position.to_string(), values: Err(why) };
    };
    let read = |value: &Json| entered_value_from_json(value).map_err(|why| why.to_string());
    UploadRecord { handle, values: values.iter().map(read).collect() }
}

fn csv_rows(stream: InputStream<'_>) -> Result<Vec<UploadRecord>, String> {
    let mut table = CsvTable::new(stream).map_err(|why| why.to_string())?;
    if !table.has_values() {
        return Err(CsvError::NoColumn("index").to_string());
    }
    let mut records = TableRecords::default();
    while let Some(CsvRow { handle, value, .. }) = table.next_row().map_err(|why| why.to_string())? {
        let value = value.map_err(str::to_owned);
        let value = value.and_then(|json| entered_value_from_json(&json).map_err(|why| why.to_string()));
        records.put(&handle, value);
    }
    Ok(records.records)
}

/// The records of a table, whose rows need not be in the order of handles: two records for one
/// handle would replace each other.
#[derive(Debug, Default)]
struct TableRecords {
    records: Vec<UploadRecord>,
    /// Positions in `records` by handle.
    at: HashMap<String, usize>,
}

impl TableRecords {
    /// Adds a row to the record of its handle. An invalid row makes the record invalid.
    fn put(&mut self, handle: &str, value: Result<ValueBuf, String>) {
        let Some(&at) = self.at.get(handle) else {
            self.at.insert(handle.to_owned(), self.records.len());
            let values = value.map(|value| vec![value]);
            self.records.push(UploadRecord { handle: handle.to_owned(), values });
            return;
        };
        let record = &mut self.records[at];
        match (&mut record.values, value) {
            (Ok(values), Ok(value)) => values.push(value),
            (Ok(_), Err(why)) => record.values = Err(why),
            (Err(_), _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str) -> Vec<(String, Option<usize>)> {
        let records = parse(text, 10).unwrap();
        records.into_iter().map(|it| (it.handle, it.values.ok().map(|values| values.len()))).collect()
    }

    #[test]
    fn rows_of_one_handle_are_one_record() {
        let text = "Handle,index,type,data,ttl\na/1,1,URL,https://example.org/,60\n\
            a/1,2,DESC,\"two\nlines, quoted\"\na/2,x,URL,y\na/3,1,URL,z,\n";
        let named = |name: &str, count| (name.to_owned(), count);
        assert_eq!(counts(text), [named("a/1", Some(2)), named("a/2", None), named("a/3", Some(1))]);
        assert!(parse("handle,index,type\n", 10).unwrap_err().starts_with("there is no column data: "));
        assert!(parse("handle\na/1\n", 10).unwrap_err().starts_with("there is no column index: "));
        let semicolons = "\u{feff}sep=;\nhandle;index;type;data\n# comment\na/1;1;URL;x, y\n";
        assert_eq!(counts(semicolons), [named("a/1", Some(1))]);
        assert_eq!(
            counts("CREATE a/1\n1 URL 1 1110 UTF8 x\n\nDELETE a/2\n"),
            [named("a/1", Some(1)), named("a/2", None)]
        );
        assert!(parse("handle|index\n", 10).unwrap_err().contains("commas, semicolons or tabs"));
        assert_eq!(parse("handle,index,type,data\n", 10).unwrap_err(), "there are no records");
        assert_eq!(parse("", 10).unwrap_err(), "there are no records");
    }

    #[test]
    fn lines_of_json_stand_for_themselves() {
        let text = "{\"handle\": \"a/1\", \"values\": [{\"index\": 1, \"type\": \"URL\", \"data\": \"x\"}]}\n\n\
            {\"handle\": \"a/2\"}\n{nonsense\n{\"handle\": \"a/3\", \"values\": [{}]}";
        let named = |name: &str, count| (name.to_owned(), count);
        let expected =
            [named("a/1", Some(1)), named("line 3", None), named("line 4", None), named("a/3", None)];
        assert_eq!(counts(text), expected);
        let many = "{\"handle\": \"a/1\", \"values\": []}\n".repeat(11);
        assert!(parse(&many, 10).unwrap_err().starts_with("11 records"));
        assert!(parse(&many, 11).is_ok());
    }
}
