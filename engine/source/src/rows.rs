//! Rows of a database as values, in the columns of the reference's tables.
//!
//! Whatever types the columns have, the database converts them: the outer query yields one form.

use crate::contract::checked_record;
use crate::error::SourceError;
use handle_proto::limit::VALUES_COUNT_MAX;
use handle_proto::sql::{VALUE_COLUMNS, read_references};
use handle_proto::value::Ttl;
use handle_proto::{Permissions, Value, Values};
use handle_store::RecordBuf;
use std::fmt::Write as _;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// The columns of a value, in the order of [`VALUE_COLUMNS`], and how each is converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnForm {
    /// Bytes, or text in any encoding.
    Bytes,
    /// A whole number.
    Number,
    /// Seconds since 1970, or a time.
    Time,
    /// True or false, in any form.
    Bit,
}

const FORMS: [ColumnForm; VALUE_COLUMNS.len()] = {
    use ColumnForm::{Bit, Bytes, Number, Time};
    [Number, Bytes, Bytes, Number, Number, Time, Bytes, Bit, Bit, Bit, Bit]
};

/// The query that yields the rows of `inner`, which has the columns `columns`, in one form: at most
/// one row more than a record has values, and no bytes from the row on with which they exceed
/// `bytes_max` together.
///
/// # Errors
/// When a column is missing that has no default.
pub(crate) fn bounded_query(
    inner: &str,
    columns: &[(String, Type)],
    bytes_max: usize,
) -> Result<String, SourceError> {
    let (mut converted, mut bounded, mut len) = (String::new(), String::new(), "0".to_owned());
    for (name, form) in VALUE_COLUMNS.iter().zip(FORMS) {
        let expression = conversion(name, form, columns)?;
        let separator = if converted.is_empty() { "" } else { ", " };
        // Writing to a text does not fail.
        let _ = write!(converted, "{separator}{expression} AS \"{name}\"");
        if form == ColumnForm::Bytes {
            let _ = write!(len, " + coalesce(octet_length(\"{name}\"), 0)");
            let _ = write!(
                bounded,
                "{separator}CASE WHEN handle_len <= {bytes_max} THEN \"{name}\" END AS \"{name}\""
            );
        } else {
            let _ = write!(bounded, "{separator}\"{name}\"");
        }
    }
    let most = VALUES_COUNT_MAX + 1;
    Ok(format!(
        "SELECT {bounded}, handle_len::BIGINT FROM (SELECT converted.*, sum({len}) OVER (ROWS UNBOUNDED PRECEDING) \
         AS handle_len FROM (SELECT {converted} FROM (SELECT * FROM ({inner}) AS found LIMIT {most}) AS few) \
         AS converted) AS summed"
    ))
}

/// The expression that converts a column of the rows `found`, or stands for one that is missing.
///
/// # Errors
/// When a column is missing that has no default.
fn conversion(name: &str, form: ColumnForm, columns: &[(String, Type)]) -> Result<String, SourceError> {
    let found = columns.iter().find(|(column, _)| column == name);
    Ok(match (found, form) {
        (None, _) if ["handle", "idx", "type", "data"].contains(&name) => {
            return Err(SourceError::Refused(format!("the query has no column `{name}`")));
        }
        (None, ColumnForm::Bytes) => "NULL::BYTEA".to_owned(),
        (None, ColumnForm::Number | ColumnForm::Time) => "NULL::BIGINT".to_owned(),
        (None, ColumnForm::Bit) => "NULL::TEXT".to_owned(),
        (Some((_, kind)), ColumnForm::Bytes) if *kind == Type::BYTEA => format!("\"{name}\""),
        (Some(_), ColumnForm::Bytes) => format!("convert_to(\"{name}\"::TEXT, 'UTF8')"),
        (Some((_, kind)), ColumnForm::Time) if [Type::TIMESTAMP, Type::TIMESTAMPTZ].contains(kind) => {
            format!("extract(epoch FROM \"{name}\")::BIGINT")
        }
        (Some(_), ColumnForm::Number | ColumnForm::Time) => format!("\"{name}\"::BIGINT"),
        (Some(_), ColumnForm::Bit) => format!("\"{name}\"::TEXT"),
    })
}

/// The expression for the handle of a row.
///
/// # Errors
/// When there is no column `handle`.
pub(crate) fn handle_column(columns: &[(String, Type)]) -> Result<String, SourceError> {
    conversion("handle", ColumnForm::Bytes, columns)
}

/// A query for all records, or for all handles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListingQuery {
    /// The query.
    pub(crate) text: String,
    /// The column of the handle: behind the columns of a value, or the only one.
    pub(crate) handle_at: usize,
}

/// The query that yields the rows of `inner`, which has the columns `columns`, in one form and in
/// the order of their handles. The bytes of a row that has more than `bytes_max` stay in the
/// database. Without values, it yields handles only.
///
/// # Errors
/// When a column is missing that has no default.
pub(crate) fn listing_query(
    inner: &str,
    columns: &[(String, Type)],
    bytes_max: usize,
) -> Result<ListingQuery, SourceError> {
    let handle = handle_column(columns)?;
    let end = format!("{handle} AS \"handle\" FROM ({inner}) AS found ORDER BY found.\"handle\"");
    if !columns.iter().any(|(name, _)| VALUE_COLUMNS.contains(&name.as_str())) {
        return Ok(ListingQuery { text: format!("SELECT {end}"), handle_at: 0 });
    }
    let forms = || VALUE_COLUMNS.iter().zip(FORMS);
    let converted: Vec<String> =
        forms().map(|(name, form)| conversion(name, form, columns)).collect::<Result<_, _>>()?;
    let lens = forms().zip(&converted).filter(|((_, form), _)| *form == ColumnForm::Bytes);
    let lens: Vec<String> =
        lens.map(|(_, expression)| format!("coalesce(octet_length({expression}), 0)")).collect();
    let len = lens.join(" + ");
    let mut text = "SELECT ".to_owned();
    for ((name, form), expression) in forms().zip(&converted) {
        // Writing to a text does not fail.
        let _ = match form {
            ColumnForm::Bytes => {
                write!(text, "CASE WHEN {len} <= {bytes_max} THEN {expression} END AS \"{name}\", ")
            }
            _ => write!(text, "{expression} AS \"{name}\", "),
        };
    }
    let _ = write!(text, "({len})::BIGINT AS row_len, {end}");
    Ok(ListingQuery { text, handle_at: VALUE_COLUMNS.len() + 1 })
}

/// The record of `key` from the rows of a [`bounded_query`], by index; `None` if there are none.
///
/// # Errors
/// When the rows exceed `bytes_max`, or are no record.
pub(crate) fn record_of(
    key: &[u8],
    rows: &[Row],
    bytes_max: usize,
) -> Result<Option<RecordBuf>, SourceError> {
    let mut values = rows.iter().map(|row| read_value(row, bytes_max)).collect::<Result<Vec<_>, _>>()?;
    if values.is_empty() {
        return Ok(None);
    }
    values.sort_by_key(|(index, _)| *index);
    let encoded: Vec<u8> = values.iter().flat_map(|(_, encoded)| encoded.iter().copied()).collect();
    checked_record(key, values.len(), &encoded).map(Some)
}

/// The index of a value and its wire form. The bytes of all of them so far, or of this one, are in
/// the column behind it.
///
/// # Errors
/// When they exceed `bytes_max`, or the row is no value.
pub(crate) fn read_value(row: &Row, bytes_max: usize) -> Result<(i32, Vec<u8>), SourceError> {
    let number = |at: usize| read::<Option<i64>>(row, at);
    let bytes = |at: usize| Ok::<_, SourceError>(read::<Option<&[u8]>>(row, at)?.unwrap_or_default());
    let len = number(VALUE_COLUMNS.len())?.unwrap_or(0);
    if u64::try_from(len).is_ok_and(|len| len > bytes_max as u64) {
        return Err(SourceError::TooLong);
    }
    let within = |at: usize, found: Option<i64>, default: i32| match found {
        None => Ok(default),
        Some(found) => i32::try_from(found).map_err(|_| out_of_range(at)),
    };
    let index = number(0)?.and_then(|index| i32::try_from(index).ok()).ok_or_else(|| out_of_range(0))?;
    let ttl_kind = number(3)?.unwrap_or(0);
    let timestamp = number(5)?.unwrap_or(0);
    let mut bits = 0;
    for (at, default) in [(7, true), (8, true), (9, true), (10, false)] {
        let bit = read::<Option<&str>>(row, at)?.map_or(Ok(default), |text| read_bit(at, text))?;
        bits = bits << 1 | u8::from(bit);
    }
    let mut storage = Vec::new();
    let value = Value {
        index,
        timestamp: unsigned_time(timestamp).ok_or_else(|| out_of_range(5))?,
        ttl: Ttl {
            kind: u8::try_from(ttl_kind).map_err(|_| out_of_range(3))?,
            seconds: within(4, number(4)?, Ttl::DEFAULT.seconds)?,
        },
        permissions: Permissions(bits),
        kind: bytes(1)?,
        data: bytes(2)?,
        references: read_references(bytes(6)?, &mut storage)
            .ok_or_else(|| SourceError::Invalid("the column `refs` is no list of index:handle".to_owned()))?,
    };
    let mut encoded = Vec::with_capacity(value.encoded_len());
    value.encode(&mut encoded);
    Ok((index, encoded))
}

/// A time as four unsigned bytes. Columns of 32 bits with a sign have those after 2038 as negative
/// numbers, as deployed servers write them.
fn unsigned_time(unix_s: i64) -> Option<u32> {
    let signed = i32::try_from(unix_s).map(i32::cast_unsigned);
    signed.or_else(|_| u32::try_from(unix_s)).ok()
}

fn read<'r, T: tokio_postgres::types::FromSql<'r>>(row: &'r Row, at: usize) -> Result<T, SourceError> {
    row.try_get(at).map_err(|error| SourceError::Invalid(error.to_string()))
}

fn out_of_range(at: usize) -> SourceError {
    SourceError::Invalid(format!("the column `{}` is out of range", VALUE_COLUMNS[at]))
}

fn read_bit(at: usize, text: &str) -> Result<bool, SourceError> {
    match text.trim() {
        "1" | "t" | "true" | "y" | "yes" | "\\x01" => Ok(true),
        "0" | "f" | "false" | "n" | "no" | "\\x00" => Ok(false),
        _ => {
            Err(SourceError::Invalid(format!("the column `{}` is neither true nor false", VALUE_COLUMNS[at])))
        }
    }
}

/// The values of `after` that `before` does not have in the same form, and the indexes of those of
/// `before` that are gone or replaced.
pub(crate) fn differences<'v>(before: Values<'v>, after: Values<'v>) -> (Vec<i32>, Vec<Value<'v>>) {
    let kept = |value: &Value<'_>, others: Values<'_>| others.iter().any(|other| other == *value);
    let gone = before.iter().filter(|value| !kept(value, after)).map(|value| value.index).collect();
    let new = after.iter().filter(|value| !kept(value, before)).collect();
    (gone, new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_written() {
        let value = |index, data: &'static [u8]| Value::new(index, b"URL", data);
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let before = Values::build([value(1, b"a"), value(2, b"b"), value(3, b"c")], &mut before);
        let after = Values::build([value(4, b"d"), value(3, b"C"), value(1, b"a")], &mut after);
        let (gone, new) = differences(before, after);
        assert_eq!(gone, [2, 3]);
        assert_eq!(new, [value(4, b"d"), value(3, b"C")]);
    }

    #[test]
    fn a_query_needs_the_columns_of_a_value() {
        let columns = |names: &[&str]| -> Vec<_> {
            names.iter().map(|name| ((*name).to_owned(), Type::TEXT)).collect()
        };
        let query = bounded_query("SELECT 1", &columns(&["idx", "type", "data", "other"]), 1000).unwrap();
        assert!(
            query.contains("convert_to(\"data\"::TEXT, 'UTF8')")
                && query.contains("NULL::TEXT AS \"pub_read\"")
        );
        assert!(query.contains("LIMIT 2049") && !query.contains("other"), "{query}");
        let error = bounded_query("SELECT 1", &columns(&["idx", "type"]), 1000).unwrap_err();
        assert!(matches!(error, SourceError::Refused(why) if why.contains("`data`")));
        let listing = |names: &[&str]| listing_query("SELECT 1", &columns(names), 1000);
        let records = listing(&["handle", "idx", "type", "data"]).unwrap();
        assert!(records.text.ends_with("ORDER BY found.\"handle\"") && records.text.contains("<= 1000 THEN"));
        assert_eq!(records.handle_at, VALUE_COLUMNS.len() + 1);
        let handles = listing(&["handle", "other"]).unwrap();
        assert!(handles.handle_at == 0 && !handles.text.contains("other"), "{handles:?}");
        for (names, missing) in [(&["idx", "type", "data"][..], "`handle`"), (&["handle", "idx"], "`type`")] {
            let error = listing(names).unwrap_err();
            assert!(matches!(&error, SourceError::Refused(why) if why.contains(missing)), "{error}");
        }
    }
}
