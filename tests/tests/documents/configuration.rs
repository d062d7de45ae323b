//! Blocks of TOML in the documents are valid configuration of one of the programs.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::processes::Process;
use std::path::{Path, PathBuf};

/// Paths of all documents.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = vec![root.join("README.md")];
    for directory in [root.join("docs"), root.join("docs/operations")] {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        found.extend(entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    found.sort();
    found
}

/// The blocks of TOML in a document.
fn blocks(text: &str) -> Vec<&str> {
    let after_marks = text.split("```toml\n").skip(1);
    after_marks.map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn every_block_of_toml_is_read_by_one_of_the_programs() {
    let (processes, mut blocks_count) = (Process::all(), 0);
    for path in documents() {
        for block in blocks(&std::fs::read_to_string(&path).unwrap()) {
            let table: toml::Table = block.parse().unwrap();
            let read = |process: &Process| (process.read)(&table).map_err(|error| (process.name, error));
            let errors: Vec<_> = processes.iter().filter_map(|process| read(process).err()).collect();
            assert!(errors.len() < processes.len(), "{}:\n{block}\n{errors:#?}", path.display());
            blocks_count += 1;
        }
    }
    assert!(blocks_count > 5, "{blocks_count} blocks of TOML");
}
