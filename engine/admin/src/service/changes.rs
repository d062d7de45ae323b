//! How a decided change is written to the store.

use crate::operation::StoreWrite;
use crate::store::{StoreError, Transaction};
use handle_proto::Values;

/// Carries out one write of a decision within `transaction`.
///
/// # Errors
/// When the store refuses it.
pub(super) fn make(transaction: &mut Transaction<'_>, write: StoreWrite) -> Result<(), StoreError> {
    match write {
        StoreWrite::Put(key, count, bytes) => {
            let values = Values::from_encoded(count, &bytes);
            transaction.put(&key, values.map_err(|_| StoreError::Damaged("values that were encoded before"))?)
        }
        StoreWrite::Delete(key) => transaction.delete(&key).map(|_| ()),
        StoreWrite::Home(prefix) => transaction.home(&prefix).map(|_| ()),
        StoreWrite::Unhome(prefix) => transaction.unhome(&prefix).map(|_| ()),
    }
}
