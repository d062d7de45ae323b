//! Checks that a store honours the conditions of writes, without which two publishers could
//! overwrite each other's sets.

use crate::error::ShipError;
use crate::store::{FleetStore, FleetStoreError, PutCondition};
use bytes::Bytes;
use handle_daemon::clock::now_unix;

/// Start of the names of the objects with which conditions are checked.
pub const PROBE_PREFIX: &str = "PROBE-";

/// Writes an object under conditions that are met and under conditions that are not, and removes
/// it.
///
/// # Errors
/// When the store writes although a condition is not met, or fails.
pub fn check_conditions(store: &dyn FleetStore) -> Result<(), ShipError> {
    let name = format!("{PROBE_PREFIX}{}-{:x}", std::process::id(), now_unix().as_nanos());
    let checked = check_with(store, &name);
    // An object that stays is removed by a later collection.
    let removed = store.remove(&name);
    checked.and(removed.map_err(ShipError::Store))
}

fn check_with(store: &dyn FleetStore, name: &str) -> Result<(), ShipError> {
    let put = |text: &'static str, condition: &PutCondition| {
        store.put(name, Bytes::from_static(text.as_bytes()), condition)
    };
    let refused = |result: Result<_, FleetStoreError>, what| match result {
        Err(error) if error.is_condition() => Ok(()),
        Err(error) => Err(ShipError::Store(error)),
        Ok(_) => Err(ShipError::NoConditions(what)),
    };
    let first = put("first", &PutCondition::Absent)?;
    refused(put("again", &PutCondition::Absent), "it replaces objects that must not exist")?;
    put("second", &PutCondition::Unchanged(first.clone()))?;
    refused(
        put("third", &PutCondition::Unchanged(first)),
        "it replaces objects that have changed since they were read",
    )
}
