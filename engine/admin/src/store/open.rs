//! Opening the file: what is wrong with it is told, whatever it is.

use super::{StoreConfig, StoreError};
use redb::{Database, DatabaseError, StorageError};
use std::cell::Cell;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// Opens the file that `config` names.
///
/// # Errors
/// When there is none, another process has it open, it may not be read and written, or it is damaged.
pub(super) fn database(config: &StoreConfig) -> Result<Database, StoreError> {
    let file = &config.file;
    if !file.exists() {
        return Err(StoreError::Missing(file.clone()));
    }
    let broken = |what: String| StoreError::Broken { file: file.clone(), what };
    let opened = quietly(|| super::builder(config).open(file));
    opened.map_err(broken)?.map_err(|error| match error {
        DatabaseError::DatabaseAlreadyOpen => StoreError::Locked(file.clone()),
        DatabaseError::Storage(StorageError::Corrupted(what)) => broken(what),
        DatabaseError::Storage(StorageError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
            broken("it is no store".to_owned())
        }
        error => StoreError::Unopened { file: file.clone(), error: Box::new(error.into()) },
    })
}

thread_local! {
    /// Whether a panic of this thread is taken for what it says, and not shown.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `open`; a panic becomes its words.
///
/// redb asserts what the header says of the rest of the file: of one that was cut short the only sign is a panic.
fn quietly<T>(open: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let show = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_QUIET.get() {
                show(panic);
            }
        }));
    });
    IS_QUIET.set(true);
    // What it has begun is dropped with it, and nobody else has seen it.
    let opened = catch_unwind(AssertUnwindSafe(open));
    IS_QUIET.set(false);
    opened.map_err(|panic| {
        let words = panic.downcast_ref::<String>().cloned();
        let words = words.or_else(|| panic.downcast_ref::<&str>().map(|&words| words.to_owned()));
        // Of an assertion with values the first line says what was asserted.
        words.and_then(|words| words.lines().next().map(str::to_owned)).unwrap_or_default()
    })
}
