//! The files of each version, and the small file that says what is in them.

use handle_proto::json::RecordLine;
use handle_tests::records::Record;
use serde_json::Value as Json;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The directory of all files.
pub(crate) fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("compatibility")
}

/// The files of one version.
pub(crate) struct VersionFiles {
    /// The version, as `0.1.0`.
    pub(crate) version: String,
    /// Their directory.
    pub(crate) dir: PathBuf,
    /// What is in them: `expected.json`.
    pub(crate) expected: Json,
}

impl VersionFiles {
    /// The files of all versions.
    pub(crate) fn all() -> Vec<Self> {
        let entries = std::fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path());
        let mut all: Vec<Self> = entries.filter(|path| path.is_dir()).map(Self::open).collect();
        all.sort_by(|one, other| one.version.cmp(&other.version));
        assert!(!all.is_empty(), "there are files of the first version");
        all
    }

    fn open(dir: PathBuf) -> Self {
        let version = dir.file_name().unwrap().to_str().unwrap().to_owned();
        let expected = std::fs::read(dir.join("expected.json")).unwrap();
        Self { version, dir, expected: serde_json::from_slice(&expected).unwrap() }
    }

    /// The path of a file or directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A copy of a file or directory, since those who open it may write to it.
    pub(crate) fn copy(&self, name: &str) -> (TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let to = directory.path().join(Path::new(name).file_name().unwrap());
        copy_all(&self.path(name), &to);
        (directory, to)
    }

    /// A copy of a file that is compressed here.
    pub(crate) fn unpacked(&self, name: &str) -> (TempDir, PathBuf) {
        let (directory, packed) = self.copy(&format!("{name}.zst"));
        let to = directory.path().join(name);
        let bytes = zstd::decode_all(&*std::fs::read(&packed).unwrap()).unwrap();
        std::fs::write(&to, bytes).unwrap();
        (directory, to)
    }

    /// The records that are in the sets, the store and the cache.
    pub(crate) fn records(&self) -> Vec<Record> {
        read_records(&self.path("records.jsonl"))
    }

    /// The texts in a list of `expected.json`.
    pub(crate) fn expected_texts(&self, name: &str) -> Vec<String> {
        let list = self.expected[name].as_array().into_iter().flatten();
        list.map(|text| text.as_str().unwrap().to_owned()).collect()
    }
}

/// The records in a file of JSON lines.
pub(crate) fn read_records(path: &Path) -> Vec<Record> {
    let text = std::fs::read_to_string(path).unwrap();
    let record = |line: &str| {
        let mut values = Vec::new();
        let RecordLine { handle, values_count } = RecordLine::parse(line, &mut values).unwrap();
        Record { handle: handle.into_owned(), values, values_count }
    };
    text.lines().map(record).collect()
}

/// Copies a file, or a directory with its files.
pub(crate) fn copy_all(from: &Path, to: &Path) {
    if from.is_file() {
        std::fs::copy(from, to).unwrap();
        return;
    }
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        copy_all(&entry.path(), &to.join(entry.file_name()));
    }
}

/// Reads the file `name` of every version. If `refused` of its `expected.json` has the file, it is
/// of a format that is not read any more: then the error has to have the words that stand there,
/// which are both versions and what to do.
pub(crate) fn read_each(name: &str, read: impl Fn(&VersionFiles) -> anyhow::Result<()>) {
    for corpus in VersionFiles::all() {
        let (version, words) = (&corpus.version, &corpus.expected["refused"][name]);
        match read(&corpus) {
            Ok(()) => assert!(words.is_null(), "{name} of {version} is read, but should be refused"),
            Err(error) if words.is_null() => panic!("{name} of {version} is not read: {error:#}"),
            Err(error) => {
                let error = format!("{error:#}");
                for word in words.as_array().unwrap() {
                    assert!(error.contains(word.as_str().unwrap()), "{name} of {version}: {error}");
                }
            }
        }
    }
}
