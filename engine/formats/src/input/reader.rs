//! Reads the entries of an input, whatever its form.

use super::csv_table::{CsvError, CsvRow, CsvTable};
use super::json_values::JsonValues;
use super::stream::InputStream;
use super::{InputForm, InputPosition, LINE_LEN_MAX};
use crate::batch::{BatchBlock, BatchOperation, BatchReader, BatchValue, InvalidBlock, ValueContent};
use crate::dump::{self, Dump, DumpError};
use crate::exact::ExactEntry;
use crate::export::{self, Export};
use crate::json_scanner::JsonTextError;
use crate::lines::{Line, Lines};
use handle_proto::json::{Json, RecordLine, entered_value_from_json, record_from_json_dated};
use handle_proto::{ValueBuf, Values};
use std::fmt;
use std::io;

/// What an input has at one position.
#[derive(Debug)]
pub enum InputEntry<'a> {
    /// A record, or a part of one where [`InputReader::has_parts`].
    Record(&'a [u8], Values<'a>),
    /// A handle that is deleted.
    Deleted(&'a [u8]),
    /// A prefix that is homed.
    Homed(&'a [u8]),
    /// A name, without a record.
    Name(&'a str),
    /// Another operation on a record.
    Operation(BatchOperation),
    /// Something that is none of these: the handle, if it names one, and the reason.
    Refused(Option<String>, String),
}

impl InputEntry<'_> {
    /// The name of a handle that the entry has, whatever it says about it.
    #[must_use]
    pub fn name(&self) -> Option<&[u8]> {
        match self {
            Self::Record(handle, _) | Self::Deleted(handle) => Some(handle),
            Self::Name(name) => Some(name.as_bytes()),
            Self::Operation(operation) => operation.handle().map(str::as_bytes),
            Self::Refused(handle, _) => handle.as_deref().map(str::as_bytes),
            Self::Homed(_) => None,
        }
    }
}

/// Why an input cannot be read on.
#[derive(Debug)]
#[non_exhaustive]
pub enum InputError {
    /// It cannot be read.
    Io(io::Error),
    /// It is not JSON around its records.
    Json(JsonTextError),
    /// It is not a dump.
    Dump(DumpError),
    /// It is not a table.
    Csv(CsvError),
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Json(error) => error.fmt(f),
            Self::Dump(error) => error.fmt(f),
            Self::Csv(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for InputError {}

macro_rules! from_errors {
    ($($name:ident: $error:ident),+) => {
        $(impl From<$error> for InputError {
            fn from(error: $error) -> Self {
                match error {
                    $error::Io(error) => Self::Io(error),
                    error => Self::$name(error),
                }
            }
        })+
    };
}

from_errors!(Json: JsonTextError, Dump: DumpError, Csv: CsvError);

impl From<io::Error> for InputError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Reads an input from its first entry to its last.
#[derive(Debug)]
pub struct InputReader<'r> {
    form: FormReader<'r>,
    default_timestamp: u32,
    /// The values of the entry, in wire form, and its handle or name.
    encoded: Vec<u8>,
    name: Vec<u8>,
}

#[derive(Debug)]
enum FormReader<'r> {
    Json(JsonValues<InputStream<'r>>),
    Export(Box<Export<InputStream<'r>>>, u64),
    Sql(Box<Dump<InputStream<'r>>>),
    Csv(Box<CsvRecordReader<'r>>),
    Batch(Box<BatchReader<InputStream<'r>>>),
    Names(Lines<InputStream<'r>>),
}

/// The rows of a table, put together.
#[derive(Debug)]
struct CsvRecordReader<'r> {
    table: CsvTable<InputStream<'r>>,
    ahead: Option<CsvRow>,
    len_max: usize,
}

type PositionedEntry<'a> = (InputPosition, InputEntry<'a>);

impl<'r> InputReader<'r> {
    /// Reads `input`, which has this form.
    ///
    /// # Errors
    /// When the beginning cannot be read.
    pub fn new(mut input: InputStream<'r>, form: InputForm) -> Result<Self, InputError> {
        let len_max = input.entry_len_max();
        let form = match form {
            InputForm::Json => FormReader::Json(JsonValues::new(input, len_max)?),
            InputForm::Export => FormReader::Export(Box::new(Export::bounded(input, len_max)), 0),
            InputForm::Sql if Dump::<&[u8]>::has_bare_rows(input.peek(1 << 16)?) => {
                FormReader::Sql(Box::new(Dump::of_rows(input)))
            }
            InputForm::Sql => FormReader::Sql(Box::new(Dump::new(input))),
            InputForm::Csv => {
                let table = CsvTable::bounded(input, len_max)?;
                FormReader::Csv(Box::new(CsvRecordReader { table, ahead: None, len_max }))
            }
            InputForm::Batch => FormReader::Batch(Box::new(BatchReader::bounded(input, len_max))),
            InputForm::Names => FormReader::Names(Lines::new(input, len_max)),
        };
        Ok(Self { form, default_timestamp: 0, encoded: Vec::new(), name: Vec::new() })
    }

    /// Gives values without a timestamp this one, in Unix seconds, instead of 0.
    #[must_use]
    pub const fn dated(mut self, default_timestamp: u32) -> Self {
        self.default_timestamp = default_timestamp;
        self
    }

    /// Whether a handle that comes again has further values of its record. In other forms it is
    /// another record.
    #[must_use]
    pub const fn has_parts(&self) -> bool {
        matches!(self.form, FormReader::Sql(_) | FormReader::Csv(_))
    }

    /// Whether the input, which has been read to its end, lacks the last line of its form.
    #[must_use]
    pub fn lacks_end(&self) -> bool {
        matches!(&self.form, FormReader::Sql(dump) if dump.lacks_end())
    }

    /// The next entry and its position; `None` at the end.
    ///
    /// # Errors
    /// When the input cannot be read on. What is wrong with a single entry is an entry itself.
    #[expect(clippy::should_implement_trait, reason = "an entry borrows from the reader")]
    pub fn next(&mut self) -> Result<Option<PositionedEntry<'_>>, InputError> {
        self.encoded.clear();
        let (encoded, name, dated) = (&mut self.encoded, &mut self.name, self.default_timestamp);
        Ok(match &mut self.form {
            FormReader::Json(values) => {
                let Some((position, text)) = values.next()? else { return Ok(None) };
                let entry = match text {
                    Ok(text) => entry_of_json(text, dated, encoded, name),
                    Err(why) => InputEntry::Refused(None, why),
                };
                Some((position, entry))
            }
            FormReader::Export(export, count) => match export.next()? {
                None => None,
                Some(export::Item::Homed(prefix)) => {
                    *name = prefix.into_bytes();
                    Some((InputPosition::Record(*count), InputEntry::Homed(name)))
                }
                Some(export::Item::Record(text)) => {
                    *count += 1;
                    Some((InputPosition::Record(*count), entry_of_json(text, dated, encoded, name)))
                }
            },
            FormReader::Sql(dump) => {
                let Some(item) = dump.next()? else { return Ok(None) };
                let position = InputPosition::Line(dump.line());
                Some((
                    position,
                    match item {
                        dump::Item::Homed(prefix) => {
                            *name = prefix;
                            InputEntry::Homed(name)
                        }
                        dump::Item::Record(handle, values) => {
                            *name = handle;
                            InputEntry::Record(
                                name,
                                Values::build(values.iter().map(ValueBuf::view), encoded),
                            )
                        }
                    },
                ))
            }
            FormReader::Csv(records) => records.next(dated, encoded, name)?,
            FormReader::Batch(blocks) => {
                let Some(block) = blocks.next().transpose()? else { return Ok(None) };
                Some(match block {
                    Ok(BatchBlock { line, operation }) => {
                        (InputPosition::Line(line), entry_of_operation(operation, dated, encoded, name))
                    }
                    Err(InvalidBlock { line, problem }) => {
                        (InputPosition::Line(line), InputEntry::Refused(None, problem.to_string()))
                    }
                })
            }
            FormReader::Names(lines) => next_name(lines, dated, encoded, name)?,
        })
    }
}

/// The next line of a list: a name, or a record among them.
fn next_name<'e>(
    lines: &mut Lines<InputStream<'_>>,
    dated: u32,
    encoded: &'e mut Vec<u8>,
    name: &'e mut Vec<u8>,
) -> Result<Option<PositionedEntry<'e>>, InputError> {
    let entry = loop {
        match lines.next()? {
            Line::End => return Ok(None),
            Line::NotUtf8 => break InputEntry::Refused(None, "the line is not UTF-8".to_owned()),
            Line::TooLong => {
                break InputEntry::Refused(
                    None,
                    format!("line too long: the maximum is {LINE_LEN_MAX} bytes"),
                );
            }
            Line::Text(text) => match text.trim() {
                text if text.is_empty() || text.starts_with('#') => {}
                text if text.starts_with('{') => break entry_of_json(text, dated, encoded, name),
                text => {
                    text.as_bytes().clone_into(name);
                    break InputEntry::Name(str::from_utf8(name).unwrap_or_default());
                }
            },
        }
    };
    Ok(Some((InputPosition::Line(lines.number()), entry)))
}

/// Reads an object: a record, a deletion, a homed prefix, or another operation.
fn entry_of_json<'e>(
    text: &str,
    dated: u32,
    encoded: &'e mut Vec<u8>,
    name: &'e mut Vec<u8>,
) -> InputEntry<'e> {
    let refused = |json: Option<&Json>, why: String| {
        InputEntry::Refused(json.and_then(|json| json["handle"].as_str()).map(str::to_owned), why)
    };
    // An object with an operation may have values and not be a record.
    let has_operation = text.contains("\"operation\"");
    let error = match RecordLine::parse_dated(text, encoded, dated) {
        Ok(record) if !has_operation => {
            record.handle.as_bytes().clone_into(name);
            return match Values::from_encoded(record.values_count, encoded) {
                Ok(values) => InputEntry::Record(name, values),
                Err(error) => InputEntry::Refused(None, error.to_string()),
            };
        }
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    let Ok(json) = serde_json::from_str::<Json>(text) else { return refused(None, error) };
    match ExactEntry::read(&json) {
        None => {}
        Some(Ok(ExactEntry::Homed(prefix))) => {
            *name = prefix;
            return InputEntry::Homed(name);
        }
        Some(Ok(ExactEntry::Record(handle, values))) => {
            *name = handle;
            return InputEntry::Record(name, Values::build(values.iter().map(ValueBuf::view), encoded));
        }
        Some(Err(why)) => return refused(Some(&json), why.to_owned()),
    }
    let handle = json["handle"].as_str();
    if let Some(prefix) = json["homed"].as_str() {
        prefix.as_bytes().clone_into(name);
        return InputEntry::Homed(name);
    }
    let operation = match (json.get("operation"), handle) {
        (None, Some(handle)) if json["deleted"] == true => Ok(BatchOperation::Delete(handle.to_owned())),
        (None, _) => Err(error),
        (Some(_), None) => Err("handle: missing".to_owned()),
        (Some(operation), Some(handle)) => operation_of_json(operation, handle, &json, dated),
    };
    match operation {
        Ok(operation) => entry_of_operation(operation, dated, encoded, name),
        Err(why) => refused(Some(&json), why),
    }
}

/// The operation of an object of `POST /api/batch`.
fn operation_of_json(
    operation: &Json,
    handle: &str,
    json: &Json,
    dated: u32,
) -> Result<BatchOperation, String> {
    let with_values: fn(String, Vec<BatchValue>) -> BatchOperation = match operation.as_str() {
        Some("create") => BatchOperation::Create,
        Some("replace") => BatchOperation::Replace,
        Some("add") => BatchOperation::Add,
        Some("modify") => BatchOperation::Modify,
        Some("delete") => return Ok(BatchOperation::Delete(handle.to_owned())),
        Some("remove") => {
            let indexes = json["indexes"].as_array().into_iter().flatten();
            let indexes =
                indexes.map(|index| i32::try_from(index.as_i64()?).ok()).collect::<Option<Vec<_>>>();
            let indexes = indexes.filter(|indexes| !indexes.is_empty());
            let indexes = indexes.ok_or("indexes: not a list of indexes")?;
            return Ok(BatchOperation::Remove(handle.to_owned(), indexes));
        }
        _ => return Err("operation: none of create, replace, delete, add, remove and modify".to_owned()),
    };
    let record = record_from_json_dated(json, dated).map_err(|error| error.to_string())?;
    Ok(with_values(handle.to_owned(), record.values.into_iter().map(BatchValue::whole).collect()))
}

/// An operation that makes or deletes a record is that record or deletion.
fn entry_of_operation<'e>(
    operation: BatchOperation,
    dated: u32,
    encoded: &'e mut Vec<u8>,
    name: &'e mut Vec<u8>,
) -> InputEntry<'e> {
    let is_whole = |value: &BatchValue| !matches!(value.content, ValueContent::File(_));
    match operation {
        BatchOperation::Delete(handle) => {
            *name = handle.into_bytes();
            InputEntry::Deleted(name)
        }
        BatchOperation::Create(handle, values) if values.iter().all(is_whole) => {
            *name = handle.into_bytes();
            let value = |value: &BatchValue| {
                let mut value = value.resolve(|_| Err(()))?;
                if value.view().timestamp == 0 {
                    value = dated_value(&value, dated);
                }
                Ok::<_, ()>(value)
            };
            let values: Vec<ValueBuf> = values.iter().flat_map(value).collect();
            InputEntry::Record(name, Values::build(values.iter().map(ValueBuf::view), encoded))
        }
        operation => InputEntry::Operation(operation),
    }
}

fn dated_value(value: &ValueBuf, timestamp: u32) -> ValueBuf {
    (&handle_proto::Value { timestamp, ..value.view() }).into()
}

impl CsvRecordReader<'_> {
    /// The next rows of one handle.
    fn next<'e>(
        &mut self,
        dated: u32,
        encoded: &'e mut Vec<u8>,
        name: &'e mut Vec<u8>,
    ) -> Result<Option<PositionedEntry<'e>>, InputError> {
        let first = match self.ahead.take() {
            Some(row) => row,
            None => match self.table.next_row()? {
                Some(row) => row,
                None => return Ok(None),
            },
        };
        let position = InputPosition::Line(first.line);
        let mut problem = None;
        let mut values: Vec<ValueBuf> = Vec::new();
        let mut len = 0;
        let mut next = Some(first);
        let handle = next.as_ref().map(|row| row.handle.clone()).unwrap_or_default();
        while let Some(row) = next.take() {
            if row.handle != handle {
                self.ahead = Some(row);
                break;
            }
            match row.value {
                // A list of names has none.
                Ok(Json::Null) => {
                    self.ahead = self.table.next_row()?;
                    break;
                }
                // People write rows, so what they write for administrators and groups counts.
                Ok(json) => match entered_value_from_json(&json) {
                    Ok(value) => {
                        let is_dated = json.get("timestamp").is_some();
                        let value = if is_dated { value } else { dated_value(&value, dated) };
                        len += value.as_bytes().len();
                        values.push(value);
                    }
                    Err(why) => problem = problem.or(Some(format!("line {}: {why}", row.line))),
                },
                Err(why) => problem = problem.or(Some(format!("line {}: {why}", row.line))),
            }
            if len > self.len_max || values.len() > dump::VALUES_COUNT_MAX {
                problem = problem.or(Some("the record is too long".to_owned()));
                (values, len) = (Vec::new(), 0);
            }
            next = self.table.next_row()?;
        }
        if let Some(why) = problem {
            return Ok(Some((position, InputEntry::Refused(Some(handle), why))));
        }
        if !self.table.has_values() {
            *name = handle.into_bytes();
            let name = str::from_utf8(name).unwrap_or_default();
            return Ok(Some((position, InputEntry::Name(name))));
        }
        *name = handle.into_bytes();
        let values = Values::build(values.iter().map(ValueBuf::view), encoded);
        Ok(Some((position, InputEntry::Record(name, values))))
    }
}

#[cfg(test)]
mod tests;
