//! The commands of the documents do what the documents say: each block with commands is run, or
//! says in an invisible comment why not.
//!
//! ```text
//! <!-- run -->                      the block is run, after those before it
//! <!-- run: after records -->       `tests/pages/records.sh` is read before
//! <!-- run: in another terminal --> the block goes on while the next ones run
//! <!-- run: prints TEXT -->         the output contains TEXT
//! <!-- run: output varies -->       the output that a console shows is an example
//! <!-- run: fails -->               its exit status is not 0
//! <!-- file: PATH -->               the block is a file, written before the first block is run
//! <!-- added to: PATH -->           the block is added to a file, in its turn
//! <!-- check: NAME -->              `tests/pages/NAME.sh` looks at the block, in the file `$BLOCK`
//! <!-- not run: REASON -->
//! ```

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod anycast;
mod page;
mod run;

use handle_tests::needs::{TestNeed, has};
use handle_tests::process::program;
use page::{Marker, read_blocks};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The directory of all programs, built once.
static PROGRAMS: LazyLock<PathBuf> = LazyLock::new(|| {
    let programs = [
        ("handle-server", "handled"),
        ("handle-admin", "handle-admin"),
        ("handle-gateway", "handle-gateway"),
        ("handle-fetch", "handle-fetch"),
        ("handle-cache", "handle-cache"),
        ("handle-lab", "handle-lab"),
        ("handle-loadgen", "handle-loadgen"),
        ("handle-cli", "hdl"),
    ];
    let built = programs.map(|(package, name)| program(package, name));
    built[0].parent().unwrap().to_owned()
});

macro_rules! pages {
    ($($name:ident: $path:literal $(, $need:expr)*;)*) => {
        /// The pages of which a test runs blocks.
        const PAGES: &[&str] = &[$($path),*];
        $(
            #[test]
            fn $name() {
                run($path, &[$($need),*]);
            }
        )*
    };
}

pages! {
    readme: "README.md";
    administration: "docs/administration.md";
    caching: "docs/cache.md";
    fleets: "docs/fleets.md";
    gateway: "docs/gateway.md", (TestNeed::Proxies, "haproxy"), (TestNeed::Curl, "openssl");
    load_generator: "docs/loadgen.md";
    mirrors: "docs/mirrors.md";
    operations: "docs/operations.md";
    publishing: "docs/operations/publishing.md";
    reconciliation: "docs/reconciliation.md";
    resolution: "docs/resolution.md";
    sources: "docs/sources.md", (TestNeed::Python, "python3");
    stores: "docs/store.md", (TestNeed::Postgres, "psql");
    test_service: "docs/test-service.md", (TestNeed::Python, "python3");
}

/// Runs a page, if this machine has what it needs: the programs beside those of this tree.
fn run(page: &str, needs: &[(TestNeed, &str)]) {
    let is_root = rustix::process::getuid().is_root();
    let finds = |name: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|directory| directory.join(name).exists())
    };
    let has_all = needs.iter().all(|&(need, name)| has(need, finds(name)));
    if has_all
        && has(TestNeed::Curl, finds("curl"))
        && has(TestNeed::Root, is_root)
        && has(TestNeed::Namespaces, run::has_namespaces())
    {
        run::run_page(page, &PROGRAMS);
    }
}

/// All documents of the tree, by path from its root.
fn documents() -> Vec<PathBuf> {
    fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && name != "shared" && !name.starts_with('.') {
                walk(&path, found);
            } else if path.extension().is_some_and(|end| end == "md") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&run::checkout(), &mut found);
    found.sort();
    found
}

#[test]
fn every_block_with_commands_is_run_or_says_why_not() {
    let checkout = run::checkout();
    let (mut wrong, mut left_out, mut run_count) = (Vec::new(), BTreeMap::<String, Vec<String>>::new(), 0);
    for path in documents() {
        let name = path.strip_prefix(&checkout).unwrap().display().to_string();
        for block in read_blocks(&path).unwrap_or_else(|error| panic!("{error}")) {
            let place = format!("{name}:{}", block.line);
            match block.marker {
                None if block.has_commands() => {
                    wrong.push(format!("{place}: `<!-- run -->` or `<!-- not run: REASON -->`"))
                }
                Some(Marker::Run(_)) if !PAGES.contains(&&*name) => {
                    wrong.push(format!("{place}: not in PAGES"))
                }
                Some(Marker::Run(_)) => run_count += 1,
                Some(Marker::NotRun(reason)) => left_out.entry(reason).or_default().push(place),
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "not marked:\n{}", wrong.join("\n"));
    let left_out_count: usize = left_out.values().map(Vec::len).sum();
    println!("{run_count} blocks are run, {left_out_count} are not:");
    for (reason, places) in left_out {
        println!("{reason}: {}", places.join(" "));
    }
}
