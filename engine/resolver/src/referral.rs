//! Referrals for derived prefixes that an ancestor delegates to another service. RFC 3652 section
//! 3.4, with the body that deployed servers send; shown by `conversations.jsonl`, category
//! `prefix_referral`.

use crate::answer::RecordLookup;
use crate::select::{SelectedValues, ValueFilter};
use crate::service::AnswerContext;
use handle_proto::{Handle, Version, fold};
use handle_snapshot::{ANCESTORS_MAX, CorruptRecord, hash_key};

/// First version whose clients understand a prefix referral in reply to any request. RFC 3652 names
/// no such version; deployed servers resolve on behalf of older clients.
pub(crate) const UNDERSTOOD_SINCE: Version = Version::new(2, 10);

/// Types whose values name the service that has the records of derived prefixes.
const DELEGATION: [&[u8]; 3] = [b"HS_SITE.PREFIX", b"HS_NA_DELEGATE", b"HS_SERV.PREFIX"];

pub(crate) fn delegates(kind: &[u8]) -> bool {
    DELEGATION.iter().any(|delegation| fold::eq(kind, delegation))
}

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
