//! Turns panics of redb about a damaged file into errors.
//!
//! redb compares checksums when it repairs a file, but trusts the pages it reads: wrong lengths and
//! positions fail assertions. Pages are verified before a store is opened, so this module is for
//! later damage, and for stores that were not verified.

use super::super::StoreError;
use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Once;

/// The error of a file that ends too early.
pub(super) const SHORT: &str = "it is shorter than it says";

thread_local! {
    /// Whether a panic of this thread becomes an error and is not printed.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
    /// The location of the last such panic.
    static PANICKED_AT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `work`, which does nothing but call redb on `file`: a panic means that the file is damaged.
///
/// # Errors
/// Those of `work`, and [`StoreError::Broken`].
pub(super) fn guarded<T>(file: &Path, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let broken = |what| StoreError::Broken { file: file.to_owned(), what };
    catch_panic(work).unwrap_or_else(|what| Err(broken(what))).map_err(|error| match error {
        StoreError::Database(error) => match *error {
            redb::Error::Corrupted(what) => broken(what),
            // A reference in the file points beyond its end.
            redb::Error::Io(error) if error.kind() == ErrorKind::UnexpectedEof => broken(SHORT.to_owned()),
            error => StoreError::Database(Box::new(error)),
        },
        error => error,
    })
}

/// An iterator of redb over `file`, which ends at a panic.
pub(super) fn guarded_items<I, T, F>(
    file: &Path,
    mut items: I,
    mut read: F,
) -> impl Iterator<Item = Result<T, StoreError>> + use<I, T, F>
where
    I: Iterator,
    F: FnMut(I::Item) -> Result<T, StoreError>,
{
    let (file, mut is_over) = (file.to_owned(), false);
    std::iter::from_fn(move || {
        if is_over {
            return None;
        }
        let item = guarded(&file, || items.next().map(&mut read).transpose());
        is_over = matches!(item, Ok(None) | Err(StoreError::Broken { .. }));
        item.transpose()
    })
}

/// Runs `work`, and returns the message of a panic.
pub(super) fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let show = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if IS_QUIET.get() {
                PANICKED_AT.set(panic.location().map(ToString::to_string));
            } else {
                show(panic);
            }
        }));
    });
    let was_quiet = IS_QUIET.replace(true);
    // State that `work` has begun is dropped with it, and state that others share reports the
    // failure by another panic.
    let worked = catch_unwind(AssertUnwindSafe(work));
    IS_QUIET.set(was_quiet);
    worked.map_err(|panic| {
        let words = panic.downcast_ref::<String>().cloned();
        let words = words.or_else(|| panic.downcast_ref::<&str>().map(|&words| words.to_owned()));
        let words = words.unwrap_or_default();
        let at = PANICKED_AT.take().unwrap_or_default();
        tracing::info!(at, said = words, "a panic is treated as damage of the store");
        // The first line of a failed assertion with values is the assertion itself.
        words.lines().next().map(str::to_owned).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_become_errors_and_stop_the_reader() {
        let file = Path::new("a/store");
        let error = guarded(file, || -> Result<(), _> { panic!("page {} is\nnot there", 7) }).unwrap_err();
        let StoreError::Broken { file: named, what } = &error else { panic!("{error}") };
        assert_eq!((&**named, &**what), (file, "page 7 is"));
        assert!(PANICKED_AT.take().is_none(), "it was told");
        assert!(error.to_string().contains("a/store"), "{error}");
        let read: Vec<_> = guarded_items(file, 1.., |nth| match nth {
            2 => Err(StoreError::Damaged("one of them")),
            4 => panic!("no further"),
            nth => Ok(nth),
        })
        .map(|item| item.map_err(|error| error.to_string()))
        .collect();
        assert_eq!(read.len(), 4, "{read:?}");
        assert!(read[0] == Ok(1) && read[2] == Ok(3), "{read:?}");
        assert!(read[3].as_ref().is_err_and(|error| error.contains("no further")), "{read:?}");
    }
}
