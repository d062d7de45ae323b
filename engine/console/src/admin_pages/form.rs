//! The values of a record as rows of a form, and back.

use crate::pages::AdminMessages;
use crate::pages::admin::ValueRow;
use crate::parameters::Parameters;
use handle_client::administration::ClientIdentity;
use handle_proto::json::{Json, entered_value_from_json, value_to_json};
use handle_proto::{Value, ValueBuf};
use serde_json::json;
use std::collections::{BTreeSet, HashMap};

/// Maximum number of lines of a field.
const LINES_MAX: usize = 16;

/// The row for a value. With `is_copy`, it adds a new value.
pub(super) fn row(value: &Value<'_>, texts: &AdminMessages, is_copy: bool) -> ValueRow {
    let json = value_to_json(value);
    let data = &json["data"];
    let text = data["value"].as_str().filter(|_| data["format"] == "string");
    let shown = text.map_or_else(|| serde_json::to_string_pretty(data).unwrap_or_default(), str::to_owned);
    let ttl = match &json["ttl"] {
        Json::String(time) => time.clone(),
        seconds => seconds.to_string(),
    };
    let index = value.index.to_string();
    ValueRow {
        title: texts.value.replacen("{}", &index, 1),
        stored_index: if is_copy { String::new() } else { index.clone() },
        index,
        kind: String::from_utf8_lossy(value.kind).into_owned(),
        is_json: text.is_none(),
        lines: (shown.lines().count() + 1).clamp(2, LINES_MAX),
        data: shown,
        ttl,
        permissions: json["permissions"].as_str().unwrap_or("1110").to_owned(),
    }
}

/// An empty row with the first free index.
pub(super) fn empty_row(rows: &[ValueRow], texts: &AdminMessages) -> ValueRow {
    let taken: BTreeSet<u32> = rows.iter().filter_map(|row| row.index.parse().ok()).collect();
    let index = (1..).find(|index| !taken.contains(index)).unwrap_or(1).to_string();
    ValueRow {
        title: texts.value.replacen("{}", &index, 1),
        index,
        ttl: "86400".to_owned(),
        permissions: "1110".to_owned(),
        lines: 2,
        ..ValueRow::default()
    }
}

/// The row that makes `identity` an administrator of a new record, with all permissions except
/// those for prefixes and listing.
pub(super) fn owner_row(identity: &ClientIdentity, texts: &AdminMessages) -> ValueRow {
    let handle = String::from_utf8_lossy(&identity.handle);
    let value = json!({ "handle": handle, "index": identity.index, "permissions": "011111110011" });
    let data = json!({ "format": "admin", "value": value });
    let data = serde_json::to_string_pretty(&data).unwrap_or_default();
    ValueRow {
        title: texts.value.replacen("{}", "100", 1),
        index: "100".to_owned(),
        kind: "HS_ADMIN".to_owned(),
        is_json: true,
        lines: (data.lines().count() + 1).clamp(2, LINES_MAX),
        data,
        ttl: "86400".to_owned(),
        permissions: "1110".to_owned(),
        ..ValueRow::default()
    }
}

/// The rows of a submitted form; `None` if its fields are incomplete or too many.
pub(super) fn rows_of(form: &Parameters<'_>, texts: &AdminMessages) -> Option<Vec<ValueRow>> {
    let all = |name: &'static str| form.all(name).map(str::to_owned).collect::<Vec<_>>();
    let columns = ["was", "index", "type", "format", "data", "ttl", "permissions"].map(all);
    let count = columns[0].len();
    if columns.iter().any(|column| column.len() != count) {
        return None;
    }
    let [stored_index, index, kind, format, data, ttl, permissions] = columns;
    let row = |at: usize| {
        let data = data[at].replace("\r\n", "\n");
        ValueRow {
            title: texts.value.replacen("{}", &index[at], 1),
            stored_index: stored_index[at].clone(),
            index: index[at].trim().to_owned(),
            kind: kind[at].trim().to_owned(),
            is_json: format[at] == "json",
            lines: (data.lines().count() + 1).clamp(2, LINES_MAX),
            data,
            ttl: ttl[at].trim().to_owned(),
            permissions: permissions[at].trim().to_owned(),
        }
    };
    Some((0..count).map(row).collect())
}

/// Whether a row for a new value was left empty.
pub(super) fn is_blank(row: &ValueRow) -> bool {
    row.stored_index.is_empty() && row.kind.is_empty() && row.data.trim().is_empty()
}

/// The changes that a form requests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ValueChanges {
    /// Values to add or replace.
    pub(super) put: Vec<ValueBuf>,
    /// Indexes to remove.
    pub(super) removed: Vec<i32>,
}

/// Reads rows. `stored` has the JSON of the stored values, for members that the form does not show.
///
/// # Errors
/// One sentence that names the invalid value.
pub(super) fn changes(
    rows: &[ValueRow],
    removed: &BTreeSet<&str>,
    stored: &HashMap<i32, Json>,
) -> Result<ValueChanges, String> {
    let (mut changes, mut indexes) = (ValueChanges::default(), BTreeSet::new());
    for row in rows.iter().filter(|row| !is_blank(row)) {
        let stored_index = row.stored_index.parse::<i32>().ok();
        if let Some(stored_index) = stored_index.filter(|_| removed.contains(&*row.stored_index)) {
            changes.removed.push(stored_index);
            continue;
        }
        let value = value(row, stored_index.and_then(|index| stored.get(&index)))?;
        let index = value.view().index;
        if index <= 0 || !indexes.insert(index) {
            return Err(format!("{index}: every value needs an index of its own, from 1 on"));
        }
        changes.put.push(value);
        changes.removed.extend(stored_index.filter(|&stored| stored != index));
    }
    changes.removed.retain(|index| !indexes.contains(index));
    Ok(changes)
}

fn value(row: &ValueRow, stored: Option<&Json>) -> Result<ValueBuf, String> {
    let bad = |why: &dyn std::fmt::Display| format!("{}: {why}", row.index);
    let data = match row.is_json {
        true => serde_json::from_str(&row.data).map_err(|error| bad(&error))?,
        false => json!({ "format": "string", "value": row.data }),
    };
    let index: i32 = row.index.parse().map_err(|_| bad(&"the index is not a number"))?;
    let ttl = row.ttl.parse::<u32>().map_or_else(|_| Json::from(row.ttl.as_str()), Json::from);
    let mut json = json!({
        "index": index, "type": row.kind, "data": data, "ttl": ttl, "permissions": row.permissions,
    });
    if let Some(references) = stored.and_then(|stored| stored.get("references")) {
        json["references"] = references.clone();
    }
    entered_value_from_json(&json).map_err(|error| bad(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::LANGUAGES;
    use handle_proto::json::value_from_json;

    fn texts() -> &'static AdminMessages {
        &LANGUAGES[0].admin
    }

    #[test]
    fn rows_become_the_values_that_they_were_made_of() {
        let json = json!([
            { "index": 1, "type": "URL", "data": "https://example.org/\nnext", "ttl": 60 },
            { "index": 3, "type": "HS_ADMIN", "data": { "format": "admin", "value":
                { "handle": "0.NA/20.500.1", "index": 300, "permissions": "011111110011" } } },
            { "index": 4, "type": "X", "data": { "format": "base64", "value": "AP8=" }, "permissions": "1100",
                "references": [{ "handle": "a/b", "index": 2 }], "ttl": "2030-01-01T00:00:00Z" },
        ]);
        let values: Vec<ValueBuf> =
            json.as_array().unwrap().iter().map(|value| value_from_json(value).unwrap()).collect();
        let rows: Vec<ValueRow> = values.iter().map(|value| row(&value.view(), texts(), false)).collect();
        assert_eq!(rows.iter().map(|row| row.is_json).collect::<Vec<_>>(), [false, true, true]);
        let stored = values.iter().map(|value| (value.view().index, value_to_json(&value.view()))).collect();
        let changed = changes(&rows, &BTreeSet::new(), &stored).unwrap();
        assert_eq!(changed, ValueChanges { put: values, removed: vec![] });
    }

    #[test]
    fn values_are_removed_renumbered_and_added() {
        let rows = |text: &str| rows_of(&Parameters::parse(text), texts()).unwrap();
        let one = |was: &str, index: &str, kind: &str| {
            format!("was={was}&index={index}&type={kind}&format=text&data=x%0D%0Ay&ttl=1&permissions=1110&")
        };
        let form = [one("1", "1", "URL"), one("2", "5", "URL"), one("", "6", "DESC")].concat();
        let changed = changes(&rows(&form), &BTreeSet::from(["1"]), &HashMap::new()).unwrap();
        assert_eq!(changed.put.iter().map(|value| value.view().index).collect::<Vec<_>>(), [5, 6]);
        assert_eq!((changed.removed, changed.put[0].view().data), (vec![1, 2], &b"x\ny"[..]));
        let twice = [one("1", "1", "URL"), one("", "1", "URL")].concat();
        assert!(changes(&rows(&twice), &BTreeSet::new(), &HashMap::new()).unwrap_err().starts_with("1: "));
        assert!(changes(&rows(&one("", "0", "URL")), &BTreeSet::new(), &HashMap::new()).is_err());
        let swapped = [one("1", "2", "URL"), one("2", "1", "URL")].concat();
        let changed = changes(&rows(&swapped), &BTreeSet::new(), &HashMap::new()).unwrap();
        assert_eq!((changed.put.len(), changed.removed), (2, vec![]));
        assert!(rows_of(&Parameters::parse("was=1&index=1"), texts()).is_none());
        let blank = empty_row(&rows(&one("1", "1", "URL")), texts());
        assert!(is_blank(&blank) && blank.index == "2");
    }
}
