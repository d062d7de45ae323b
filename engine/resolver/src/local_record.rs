//! Records of this server that administrative decisions use: keys and groups.

use crate::question::{is_homed, is_table_damaged};
use crate::record_key::{KeyBuf, RecordLookup};
use crate::service::AnswerContext;
use handle_proto::Handle;
use handle_proto::name::PREFIX_RECORDS;
use handle_snapshot::{CorruptRecord, EncodedRecord};

/// The result of looking up a record for an administrative decision.
pub(crate) struct LocalRecord<'a> {
    /// The record, if there is one.
    pub(crate) record: Option<EncodedRecord<'a>>,
    /// Whether the record is a copy of one that another service holds. A copy may be incomplete.
    pub(crate) is_copy: bool,
}

/// Looks up the record of `handle`, for the keys and groups of administrators. A copy of the record
/// of a prefix that is homed here is used as well.
///
/// # Errors
/// Another server has the record and there is no copy, or the record is damaged.
pub(crate) fn find_local<'a, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    handle: Handle<'_>,
) -> Result<LocalRecord<'a>, NotLocal> {
    let mut key: KeyBuf = KeyBuf::new();
    if !key.write(handle, context.records.folds()) {
        return Err(NotLocal::Remote);
    }
    let is_here = context.service.has(handle) && is_homed(context, key.as_bytes());
    if !is_here && !is_record_of_homed_prefix(context, key.as_bytes())? {
        let is_damaged = context.service.has(handle) && is_table_damaged(context, key.as_bytes());
        return Err(if is_damaged { NotLocal::Damaged } else { NotLocal::Remote });
    }
    let lookup = RecordLookup::new(context, key.as_bytes());
    match context.records.find(lookup.hash, lookup.key()) {
        Ok(None) if !is_here => Err(NotLocal::Remote),
        Ok(record) => Ok(LocalRecord { record, is_copy: !is_here }),
        Err(CorruptRecord { .. }) => Err(NotLocal::Damaged),
    }
}

/// Whether `key` is the key of the record of a prefix that is homed here. The registry has that
/// record, but the operator of this server may have put a copy of it into the set; keys and groups
/// are also taken from the copy.
fn is_record_of_homed_prefix<B: AsRef<[u8]>>(
    context: &AnswerContext<'_, B>,
    key: &[u8],
) -> Result<bool, NotLocal> {
    let prefix = Handle(key).is_prefix_record().then(|| &key[PREFIX_RECORDS.len()..]);
    let found = prefix.zip(context.homed).map_or(Ok(false), |(prefix, homed)| homed.find(prefix));
    found.map_err(|CorruptRecord { .. }| NotLocal::Damaged)
}

/// The reason why a record cannot be read on this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotLocal {
    /// Another server of the site, or another service, has the record.
    Remote,
    /// The stored record is damaged.
    Damaged,
}
