//! Detects the storage of reference servers, which cannot be read here, and explains the
//! alternative.

use anyhow::bail;
use std::ffi::OsStr;
use std::path::Path;

/// The program that exports records from the storage of a reference server.
const EXPORT: &str = "hdl-java net.handle.apps.tools.StorageToJson";

/// Rejects the storage of a reference server, and directories, with an alternative.
pub(super) fn refuse(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    if !path.is_dir() {
        return match path.extension() == Some(OsStr::new("jdb")) {
            true => bail!("{shown} is the storage of a reference server, {}", suggest_command(path)),
            false => Ok(()),
        };
    }
    if path.join("config.dct").is_file() {
        bail!(
            "{shown} is the directory of a reference server: export its records with {EXPORT} {shown} export.json, and import export.json"
        );
    }
    let mut entries = path.read_dir()?.filter_map(Result::ok);
    if entries.any(|entry| Path::new(&entry.file_name()).extension() == Some(OsStr::new("jdb"))) {
        bail!(
            "{shown} is the storage of a reference server, {}",
            suggest_command(&path.join("00000000.jdb"))
        );
    }
    bail!("{shown} is a directory: name the files in it")
}

/// What to do with the storage that `file` belongs to.
fn suggest_command(file: &Path) -> String {
    let is_old = ["handles.jdb", "nas.jdb"].iter().any(|name| file.file_name() == Some(OsStr::new(name)));
    let directory = match (is_old, file.parent().and_then(Path::parent)) {
        // The storage is in `bdbje` below the server's directory; a bare file name does not tell
        // where.
        (false, Some(parent)) if !parent.as_os_str().is_empty() => parent.display().to_string(),
        _ => "SERVER_DIRECTORY".to_owned(),
    };
    let first = match is_old {
        true => format!("of a version before 7: hdl-migrate-storage-to-bdbje {directory}, then "),
        false => "which only its own programs can read: ".to_owned(),
    };
    format!("{first}{EXPORT} {directory} export.json, and import export.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_of_the_reference_is_refused_with_the_way_out() {
        let location = tempfile::tempdir().unwrap();
        let server = location.path().join("svr");
        std::fs::create_dir_all(server.join("bdbje")).unwrap();
        let log = server.join("bdbje/00000000.jdb");
        std::fs::write(&log, "x").unwrap();
        let way_out = format!("StorageToJson {} export.json", server.display());
        for path in [&log, &server.join("bdbje")] {
            let error = refuse(path).unwrap_err().to_string();
            assert!(error.contains(&way_out), "{error}");
        }
        std::fs::write(server.join("config.dct"), "{}").unwrap();
        assert!(refuse(&server).unwrap_err().to_string().contains(&way_out));
        let old = refuse(Path::new("handles.jdb")).unwrap_err().to_string();
        assert!(old.contains("hdl-migrate-storage-to-bdbje SERVER_DIRECTORY"), "{old}");
        assert!(refuse(location.path()).unwrap_err().to_string().contains("is a directory"));
        assert!(refuse(&server.join("records.jsonl")).is_ok() && refuse(Path::new("-")).is_ok());
    }
}
