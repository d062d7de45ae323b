//! Whether publishing can continue from the set in a directory, and what to do if not.

use super::PublishError;
use handle_snapshot::LoadMode;
use handle_snapshot::set::{PublishedSet, SetError, SetErrorKind};
use std::io::ErrorKind;
use std::path::Path;

/// Checks that publishing can continue from the set in `directory`, if there is one.
///
/// # Errors
/// One sentence with the likely cause, and what to do.
pub fn check_set(directory: &Path) -> anyhow::Result<()> {
    match PublishedSet::open(directory, LoadMode::Map) {
        Err(error) if !matches!(error.kind, SetErrorKind::NotPublished) => {
            Err(explain_set(directory, error.into()))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// The error for a set in `directory` from which publishing cannot continue, with a remedy.
pub fn explain_set(directory: &Path, error: PublishError) -> anyhow::Error {
    let set = directory.display();
    let hint = match &error {
        PublishError::Set(SetError { kind: SetErrorKind::Locked, .. }) => {
            " (is handle-admin running already?)".to_owned()
        }
        PublishError::Set(SetError { kind: SetErrorKind::Io { error, .. }, .. })
        | PublishError::Io(error) => match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => format!(" (is there room: df -h {set})"),
            ErrorKind::PermissionDenied => format!(" (who may write there: ls -ld {set})"),
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
                format!(" (what is there: ls -la {set})")
            }
            _ => String::new(),
        },
        // Everything published comes from the store, so the set can be rebuilt. With any other
        // error, the set may be the only good copy.
        PublishError::Set(SetError {
            kind:
                SetErrorKind::Manifest(_)
                | SetErrorKind::Open(_)
                | SetErrorKind::OtherFile { .. }
                | SetErrorKind::Mixed
                | SetErrorKind::Fault(_),
            ..
        }) => format!(" (without {set}/MANIFEST, it is built again from the store: move that away)"),
        _ => String::new(),
    };
    anyhow::Error::new(error).context(format!("cannot publish to {set}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_store::StoreError;

    /// If it is the store that has failed, moving the set away would lose the good copy.
    #[test]
    fn only_a_damaged_set_is_to_be_moved_away() {
        let set = |why| PublishError::Set(SetError { path: "/set/MANIFEST".into(), kind: why });
        let io = |kind: ErrorKind| set(SetErrorKind::Io { doing: "write", error: kind.into() });
        let full = || std::io::Error::from(ErrorKind::StorageFull);
        for (error, hint) in [
            (
                set(SetErrorKind::Mixed),
                "(without /set/MANIFEST, it is built again from the store: move that away)",
            ),
            (set(SetErrorKind::OtherFile { what: "length" }), "move that away)"),
            (set(SetErrorKind::Locked), "(is handle-admin running already?)"),
            (io(ErrorKind::StorageFull), "(is there room: df -h /set)"),
            (PublishError::Io(full()), "(is there room: df -h /set)"),
            (io(ErrorKind::PermissionDenied), "(who may write there: ls -ld /set)"),
            (io(ErrorKind::NotFound), "(what is there: ls -la /set)"),
            (io(ErrorKind::ReadOnlyFilesystem), ""),
            (PublishError::Io(std::io::Error::from_raw_os_error(24)), ""),
            (PublishError::Store(StoreError::Failed), ""),
            (PublishError::Store(full().into()), ""),
            (PublishError::Refused("too early"), ""),
            (PublishError::Stopped, ""),
        ] {
            let name = format!("{error:?}");
            let shown = explain_set(Path::new("/set"), error).to_string();
            let fits =
                if hint.is_empty() { shown == "cannot publish to /set" } else { shown.ends_with(hint) };
            assert!(fits, "{name}: {shown}");
        }
    }
}
