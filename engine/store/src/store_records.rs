//! What operations are decided on: records and homed prefixes, of a snapshot or inside a
//! transaction.

use super::StoreError;
use super::record::RecordBuf;
use handle_proto::Handle;
use handle_proto::name::PREFIX_RECORDS;

/// Access to records and homed prefixes, on which operations are decided.
pub trait StoreRecords {
    /// Whether the service folds local names.
    fn folds(&self) -> bool;

    /// The record stored under `key`.
    ///
    /// # Errors
    /// When the file cannot be read, or is damaged.
    fn record(&self, key: &[u8]) -> Result<Option<RecordBuf>, StoreError>;

    /// Whether `prefix`, folded and without `0.NA/`, is homed.
    ///
    /// # Errors
    /// When the file cannot be read.
    fn is_homed(&self, prefix: &[u8]) -> Result<bool, StoreError>;
}

/// Whether this service is responsible for the handle stored under `key`: its prefix is homed or,
/// for the record of a derived prefix, the prefix records under one of its ancestors are homed.
///
/// # Errors
/// When the file cannot be read.
pub fn is_responsible(records: &(impl StoreRecords + ?Sized), key: &[u8]) -> Result<bool, StoreError> {
    /// Limits the ancestors looked at for one name; a name made of dots would have thousands.
    const ANCESTORS_MAX: usize = 16;
    let prefix = handle_proto::fold::folded(Handle(key).naming_authority());
    if records.is_homed(&prefix)? {
        return Ok(true);
    }
    let mut name = Handle(key);
    for _ in 0..ANCESTORS_MAX {
        let Some(parent) = name.parent_prefix_record() else { return Ok(false) };
        // Everything derived from the parent is homed then, under the name of the parent's record.
        if records.is_homed(&handle_proto::fold::folded(parent.0))? {
            return Ok(true);
        }
        name = parent;
    }
    Ok(false)
}

/// Whether `key` is the name of the record of a prefix homed here. The record itself is at the
/// registry, but an operator may have put a copy into the store, whose keys and groups count.
///
/// # Errors
/// When the file cannot be read.
pub fn is_record_of_homed_prefix(
    records: &(impl StoreRecords + ?Sized),
    key: &[u8],
) -> Result<bool, StoreError> {
    match Handle(key).is_prefix_record() {
        true => records.is_homed(&handle_proto::fold::folded(&key[PREFIX_RECORDS.len()..])),
        false => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A store of homed prefixes.
    struct HomedPrefixes(BTreeSet<Vec<u8>>);

    impl StoreRecords for HomedPrefixes {
        fn folds(&self) -> bool {
            true
        }

        fn record(&self, _: &[u8]) -> Result<Option<RecordBuf>, StoreError> {
            Ok(None)
        }

        fn is_homed(&self, prefix: &[u8]) -> Result<bool, StoreError> {
            Ok(self.0.contains(prefix))
        }
    }

    #[test]
    fn a_service_answers_for_homed_prefixes_and_for_records_of_prefixes_derived_from_them() {
        let homed = ["10.1045", "0.NA/20.500"].map(|prefix| prefix.as_bytes().to_vec());
        let homed = HomedPrefixes(homed.into());
        let derived = |levels: usize| format!("0.NA/20.500{}", ".1".repeat(levels));
        for (key, expected) in [
            ("10.1045/X", true),
            ("10.1045/0.NA/X", true),
            ("10.104/X", false),
            ("10.1045.1/X", false),
            ("0.NA/10.1045", false),
            ("0.NA/10.1045.1", false),
            ("20.500/X", false),
            ("20.500.1/X", false),
            ("0.NA/20.500", false),
            ("0.NA/20", false),
            ("0.NA/20.5001.1", false),
            (&derived(1), true),
            (&derived(2), true),
            (&derived(16), true),
            // So many ancestors are not looked at.
            (&derived(17), false),
        ] {
            assert_eq!(is_responsible(&homed, key.as_bytes()).unwrap(), expected, "{key}");
        }
    }
}
