//! Blocks of TOML in the documents are valid configuration of one of the programs.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

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
    let mut blocks_count = 0;
    for path in documents() {
        for block in blocks(&std::fs::read_to_string(&path).unwrap()) {
            let server = toml::from_str::<handle_server::config::Config>(block).map(|_| ());
            let admin = toml::from_str::<handle_admin::config::Config>(block).map(|_| ());
            let gateway = toml::from_str::<handle_gateway::config::Config>(block).map(|_| ());
            let fetch = toml::from_str::<handle_fetch::Config>(block).map(|_| ());
            let cache = toml::from_str::<handle_cache::Config>(block).map(|_| ());
            if let (Err(server), Err(admin), Err(gateway), Err(fetch), Err(cache)) =
                (&server, &admin, &gateway, &fetch, &cache)
            {
                panic!(
                    "{}:\n{block}\nhandled: {server}\nhandle-admin: {admin}\nhandle-gateway: {gateway}\nhandle-fetch: {fetch}\nhandle-cache: {cache}",
                    path.display()
                );
            }
            blocks_count += 1;
        }
    }
    assert!(blocks_count > 5, "{blocks_count} blocks of TOML");
}
