//! Lines of values.

use super::{LineProblem, NAMES_COUNT_MAX, ValueReference};
use handle_proto::data::{Admin, AdminPermissions};
use handle_proto::value::{Ttl, Value};
use handle_proto::wire::list::Reference;
use handle_proto::wire::put;
use handle_proto::{Permissions, ValueBuf};

/// A value as given by a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchValue {
    /// Its index.
    pub index: i32,
    /// Its type.
    pub kind: String,
    /// Its time to live.
    pub ttl: Ttl,
    /// Who may read and write it.
    pub permissions: Permissions,
    /// Its data.
    pub content: ValueContent,
}

/// The data of a value as given by a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueContent {
    /// The data themselves.
    Data(Vec<u8>),
    /// The file that holds them.
    File(String),
    /// The whole value, as other forms than batch files have it, with its references.
    Whole(ValueBuf),
}

impl BatchValue {
    /// A value of another form than batch files.
    #[must_use]
    pub fn whole(value: ValueBuf) -> Self {
        let view = value.view();
        let kind = String::from_utf8_lossy(view.kind).into_owned();
        let (index, ttl, permissions) = (view.index, view.ttl, view.permissions);
        Self { index, kind, ttl, permissions, content: ValueContent::Whole(value) }
    }

    /// Makes the value. `file` reads the data that are in files.
    ///
    /// # Errors
    /// Those of `file`.
    pub fn resolve<E>(&self, file: impl FnOnce(&str) -> Result<Vec<u8>, E>) -> Result<ValueBuf, E> {
        let read;
        let data = match &self.content {
            ValueContent::Data(data) => data,
            ValueContent::File(path) => {
                read = file(path)?;
                &read
            }
            ValueContent::Whole(value) => return Ok(value.clone()),
        };
        let mut value = Value::new(self.index, self.kind.as_bytes(), data);
        (value.ttl, value.permissions) = (self.ttl, self.permissions);
        Ok((&value).into())
    }

    /// Parses `index type ttl permissions data`.
    pub(super) fn parse(line: &str) -> Result<Self, LineProblem> {
        let (index, rest) = field(line).ok_or(LineProblem::Missing("the index"))?;
        let (kind, rest) = field(rest).ok_or(LineProblem::Missing("the type"))?;
        let (ttl, rest) = field(rest).ok_or(LineProblem::Missing("the TTL"))?;
        let (permissions, rest) = field(rest).ok_or(LineProblem::Missing("the permissions"))?;
        let index = number("index", index, 1)?;
        let ttl = Ttl::relative(number("TTL", ttl, 0)?);
        let permissions = parse_permissions(permissions)?;
        let (format, rest) = field(rest).ok_or(LineProblem::Missing("the kind of data"))?;
        let content = ValueContent::parse(format, trimmed(rest))?;
        Ok(Self { index, kind: kind.to_owned(), ttl, permissions, content })
    }
}

impl ValueContent {
    fn parse(format: &str, text: &str) -> Result<Self, LineProblem> {
        match format.to_ascii_uppercase().as_str() {
            "UTF8" => Ok(Self::Data(text.as_bytes().to_vec())),
            "FILE" if text.is_empty() => Err(LineProblem::Missing("the path")),
            "FILE" => Ok(Self::File(text.to_owned())),
            "ADMIN" => admin(text).map(Self::Data),
            "LIST" => list(text).map(Self::Data),
            _ => Err(LineProblem::NoFormat(format.to_owned())),
        }
    }
}

/// Splits the next field from the rest. Any number of blanks and tabs separates fields.
pub(super) fn field(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start_matches(BLANKS);
    let (field, rest) = text.split_once(BLANKS).unwrap_or((text, ""));
    (!field.is_empty()).then_some((field, rest))
}

pub(super) const BLANKS: [char; 2] = [' ', '\t'];

/// Removes blanks and tabs around `text`. Other white space belongs to names and data.
pub(super) fn trimmed(text: &str) -> &str {
    text.trim_matches(BLANKS)
}

pub(super) fn number(what: &'static str, text: &str, least: i32) -> Result<i32, LineProblem> {
    let wrong = || LineProblem::NoNumber(what, text.to_owned());
    // Refuses a sign, which `parse` would accept.
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|&number| is_plain && number >= least);
    number.ok_or_else(wrong)
}

fn parse_permissions(text: &str) -> Result<Permissions, LineProblem> {
    let is_bits = text.bytes().all(|byte| matches!(byte, b'0' | b'1'));
    match u8::from_str_radix(text, 2) {
        Ok(bits) if is_bits && text.len() == 4 => Ok(Permissions(bits)),
        _ if is_bits && text.len() == AdminPermissions::COUNT => {
            Err(LineProblem::AdminPermissions(text.to_owned()))
        }
        _ => Err(LineProblem::Permissions(text.to_owned())),
    }
}

/// Parses `index:permissions:handle`; the handle may have colons itself.
///
/// The permissions are in the order of their bits, "create handles" first and "list handles" last.
/// That is the reverse of JSON and of [`AdminPermissions::parse`]; `hdl-genericbatch` shows it.
fn admin(text: &str) -> Result<Vec<u8>, LineProblem> {
    let mut parts = text.splitn(3, ':').map(trimmed);
    let mut part = |what| parts.next().filter(|part| !part.is_empty()).ok_or(LineProblem::Missing(what));
    let index = number("index", part("the index of the administrator")?, 0)?;
    let bits = part("the permissions of the administrator")?;
    let handle = handle(part("the handle of the administrator")?)?;
    let highest_first: String = bits.chars().rev().collect();
    let permissions =
        AdminPermissions::parse(&highest_first).ok_or_else(|| LineProblem::NotTwelve(bits.to_owned()))?;
    let mut data = Vec::new();
    Admin::new(permissions, handle.as_bytes(), index).encode(&mut data);
    Ok(data)
}

/// Parses `index:handle;index:handle`, with or without a semicolon at the end.
fn list(text: &str) -> Result<Vec<u8>, LineProblem> {
    let mut data = Vec::new();
    let entries = text.split(';').map(trimmed).filter(|entry| !entry.is_empty());
    let entries = entries.take(NAMES_COUNT_MAX + 1).map(named).collect::<Result<Vec<_>, _>>()?;
    if entries.is_empty() {
        return Err(LineProblem::Missing("the list"));
    }
    if entries.len() > NAMES_COUNT_MAX {
        return Err(LineProblem::TooMany("entries of a list", NAMES_COUNT_MAX));
    }
    put::count(&mut data, entries.len());
    for ValueReference { index, handle } in &entries {
        Reference { handle: handle.as_bytes(), index: *index }.encode(&mut data);
    }
    Ok(data)
}

/// Parses `index:handle`.
pub(super) fn named(text: &str) -> Result<ValueReference, LineProblem> {
    let (index, name) = text.split_once(':').ok_or(LineProblem::Missing("the index before the handle"))?;
    Ok(ValueReference {
        index: number("index", trimmed(index), 0)?,
        handle: handle(trimmed(name))?.to_owned(),
    })
}

/// Checks that `text` is a handle: not empty on both sides of a slash.
pub(super) fn handle(text: &str) -> Result<&str, LineProblem> {
    match text.split_once('/') {
        Some((prefix, _)) if !prefix.is_empty() => Ok(text),
        _ if text.is_empty() => Err(LineProblem::Missing("the handle")),
        _ => Err(LineProblem::NoHandle(text.to_owned())),
    }
}
