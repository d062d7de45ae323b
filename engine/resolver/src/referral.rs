//! Referrals for derived prefixes that an ancestor delegates to another service. RFC 3652 section
//! 3.4, with the body that deployed servers send; shown by `conversations.jsonl`, category
//! `prefix_referral`.

use crate::record_key::RecordLookup;
use crate::select::{SelectedValues, ValueFilter};
use crate::service::AnswerContext;
use handle_proto::Handle;
use handle_snapshot::{ANCESTORS_MAX, CorruptRecord, hash_key};

/// The public delegation values of the nearest ancestor that has any. `lookup` is for the record of
/// a derived prefix, which does not exist here.
pub(crate) fn find<'a, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    lookup: &RecordLookup<'_>,
) -> Result<Option<SelectedValues<'a>>, CorruptRecord> {
    let mut name = Handle(lookup.key());
    for _ in 0..ANCESTORS_MAX {
        let Some(parent) = name.parent_prefix_record() else { break };
        let hash = hash_key(context.records.seed(), parent.0);
        if let Some(record) = context.records.find(hash, parent.0)? {
            let selected =
                SelectedValues::from(record.public_bytes(), record.public_count(), ValueFilter::Delegation);
            match selected {
                None => return Err(CorruptRecord { at: 0 }),
                Some(selected) if selected.count > 0 => return Ok(Some(selected)),
                Some(_) => {}
            }
        }
        name = parent;
    }
    Ok(None)
}
