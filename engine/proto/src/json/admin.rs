//! HS_ADMIN and HS_VLIST as JSON.

use super::read::{self, Result};
use super::{Json, JsonError, Reading, lossy, object};
use crate::data::{Admin, AdminPermissions, Vlist};
use crate::wire::list::{Reference, References};
use crate::wire::put;
use alloc::string::ToString;
use alloc::vec::Vec;

/// The JSON of an administrator; `None` if its handle is not UTF-8, and so could not be read back.
pub(super) fn to_json(admin: &Admin<'_>) -> Option<Json> {
    str::from_utf8(admin.reference.handle).ok()?;
    let mut json = object([
        ("handle", lossy(admin.reference.handle)),
        ("index", admin.reference.index.into()),
        ("permissions", admin.permissions.to_string().into()),
    ]);
    match admin.legacy {
        // The member records that the bytes are present, not their content.
        Some([0, 0]) => json["legacyByteLength"] = true.into(),
        Some(_) => return None,
        None => {}
    }
    Some(json)
}

pub(super) fn from_json(json: &Json, reading: Reading) -> Result<Vec<u8>> {
    let object = read::object(json)?;
    let handle = read::required(object, "handle", read::string)?;
    let index = read::required(object, "index", read::int32)?;
    let permissions = read::required(object, "permissions", |json| permissions(json, reading))?;
    let legacy = read::optional(object, "legacyByteLength", read::boolean)?;
    let mut admin = Admin::new(permissions, handle.as_bytes(), index);
    admin.legacy = legacy.unwrap_or_default().then_some([0; 2]);
    let mut data = Vec::new();
    admin.encode(&mut data);
    Ok(data)
}

/// Parses text, `*`, a boolean for all or none, a number of binary digits, or a list from the
/// lowest bit.
fn permissions(json: &Json, reading: Reading) -> Result<AdminPermissions> {
    match json {
        Json::String(text) => permissions_text(text, reading),
        Json::Bool(true) => Ok(AdminPermissions::ALL),
        Json::Bool(false) => Ok(AdminPermissions(0)),
        // A number has no leading zeros to count.
        Json::Number(number) => u16::from_str_radix(&number.to_string(), 2)
            .ok()
            .map(AdminPermissions)
            .filter(|bits| AdminPermissions::ALL.has(*bits))
            .ok_or_else(|| JsonError::new("not up to twelve binary digits")),
        Json::Array(bits) if bits.len() == AdminPermissions::COUNT => {
            let mut permissions = AdminPermissions(0);
            for (bit, (permission, _)) in read::each(json, bit)?.into_iter().zip(AdminPermissions::KNOWN) {
                permissions = if bit { permissions.with(permission) } else { permissions };
            }
            Ok(permissions)
        }
        _ => Err(wrong()),
    }
}

fn bit(json: &Json) -> Result<bool> {
    match json.as_i64() {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        _ => read::boolean(json),
    }
}

pub(super) fn permissions_text(text: &str, reading: Reading) -> Result<AdminPermissions> {
    match (AdminPermissions::parse(text), reading) {
        (Some(permissions), _) => Ok(permissions),
        (None, _) if text == "*" => Ok(AdminPermissions::ALL),
        (None, Reading::Documented) => Err(wrong()),
        (None, Reading::Deployed) => {
            let bits = text.bytes().fold(0u16, |bits, digit| bits << 1 | u16::from(digit == b'1'));
            Ok(AdminPermissions(bits).known())
        }
    }
}

fn wrong() -> JsonError {
    JsonError::new("not twelve characters 0 or 1")
}

/// Permissions of an administrator whose text names none: everything except listing handles, and
/// creating or deleting derived prefixes.
const OWNER: AdminPermissions = AdminPermissions(0b0111_1111_0011);

/// Reads `INDEX:HANDLE`, with twelve bits of permissions and a colon in front unless they are those
/// of the owner of a record.
pub(super) fn from_text(text: &str) -> Option<Vec<u8>> {
    let (permissions, identity) = match text.split_once(':') {
        Some((bits, rest)) if bits.len() == AdminPermissions::COUNT => (AdminPermissions::parse(bits)?, rest),
        _ => (OWNER, text),
    };
    let Reference { handle, index } = reference_from_text(identity)?;
    let mut data = Vec::new();
    Admin::new(permissions, handle, index).encode(&mut data);
    Some(data)
}

/// A reference with a handle that can exist.
fn reference_from_text(text: &str) -> Option<Reference<'_>> {
    Reference::parse(text.trim()).filter(|reference| reference.handle.contains(&b'/'))
}

/// The JSON of a group; `None` if a handle is not UTF-8, and so could not be read back.
pub(super) fn vlist_to_json(vlist: Vlist<'_>) -> Option<Json> {
    vlist.0.iter().all(|entry| str::from_utf8(entry.handle).is_ok()).then(|| references_to_json(vlist.0))
}

pub(super) fn vlist_from_json(json: &Json) -> Result<Vec<u8>> {
    let references = references(json)?;
    let mut data = Vec::new();
    put::count(&mut data, references.len());
    references.iter().for_each(|reference| reference.encode(&mut data));
    Ok(data)
}

/// Reads references with semicolons between them, and perhaps one at the end.
pub(super) fn vlist_from_text(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end().strip_suffix(';').unwrap_or(text);
    let members: Vec<Reference<'_>> = text.split(';').map(reference_from_text).collect::<Option<_>>()?;
    let mut data = Vec::new();
    put::count(&mut data, members.len());
    members.iter().for_each(|member| member.encode(&mut data));
    Some(data)
}

pub(super) fn references_to_json(references: References<'_>) -> Json {
    references
        .iter()
        .map(|entry| object([("handle", lossy(entry.handle)), ("index", entry.index.into())]))
        .collect()
}

pub(super) fn references(json: &Json) -> Result<Vec<Reference<'_>>> {
    read::each(json, |json| {
        let object = read::object(json)?;
        let handle = read::required(object, "handle", read::string)?.as_bytes();
        Ok(Reference { handle, index: read::required(object, "index", read::int32)? })
    })
}
