//! Rules that compilers do not check: places of unsafe code, targets of links and citations, names,
//! sizes.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod imports;
mod names;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The only files with unsafe code; `ARCHITECTURE.md` gives the reason for each.
const UNSAFE_FILES: [&str; 6] = [
    "engine/net/src/portable.rs",
    "engine/net/src/uring/buffers.rs",
    "engine/net/src/uring/mod.rs",
    "engine/net/src/uring/streams.rs",
    "engine/snapshot/src/map.rs",
    "engine/snapshot/src/prefetch.rs",
];

/// Most lines of a file.
const LINES_MAX: usize = 800;

/// Most lines of a function in `engine`, from `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Source files of the project, by path from its root.
pub(crate) fn sources() -> Vec<(String, String)> {
    fn walk(directory: &Path, root: &Path, found: &mut Vec<(String, String)>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    walk(&path, root, found);
                }
            } else if name.ends_with(".rs") {
                let shown = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
                found.push((shown, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let (root, mut found) = (root(), Vec::new());
    walk(&root, &root, &mut found);
    assert!(found.len() > 50, "source files are missing");
    found
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// A line without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

#[test]
fn unsafe_code_is_only_in_listed_files() {
    let architecture = read("ARCHITECTURE.md");
    let mut with_unsafe = BTreeSet::new();
    let opens = ["{", "fn", "impl", "extern"].map(|keyword| ["unsafe", keyword].join(" "));
    for (file, text) in sources() {
        if text.lines().any(|line| opens.iter().any(|open| code(line).contains(open))) {
            with_unsafe.insert(file);
        }
    }
    assert_eq!(with_unsafe, UNSAFE_FILES.map(str::to_owned).into(), "files with unsafe code");
    for file in UNSAFE_FILES {
        assert!(architecture.contains(file), "ARCHITECTURE.md names {file}");
    }
}

#[test]
fn crates_without_unsafe_forbid_it() {
    for (file, text) in sources() {
        let is_crate_root = file.ends_with("src/lib.rs") || file.ends_with("src/main.rs");
        let has_unsafe = UNSAFE_FILES
            .iter()
            .any(|unsafe_file| Path::new(unsafe_file).starts_with(Path::new(&file).parent().unwrap()));
        // A thin `main.rs` beside a library needs no attribute of its own.
        let is_thin = file.ends_with("main.rs") && root().join(file.replace("main.rs", "lib.rs")).exists();
        if is_crate_root && !has_unsafe && !is_thin && !file.starts_with("benches/runtimes") {
            assert!(text.contains("#![forbid(unsafe_code)]"), "{file} forbids unsafe code");
        }
    }
}

#[test]
fn sections_of_rfcs_that_code_cites_have_a_row_in_conformance() {
    let conformance = read("docs/conformance.md");
    let rows: Vec<&str> =
        conformance.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).collect();
    let mut missing = BTreeSet::new();
    for (file, text) in sources() {
        for line in text.lines() {
            for (at, _) in line.match_indices("RFC 365") {
                let cited = &line[at..];
                let Some((rfc, rest)) = cited.split_once(" section ") else { continue };
                if rfc.len() != "RFC 3652".len() {
                    continue;
                }
                let section: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
                let cited = format!("{rfc} section {}", section.trim_end_matches('.'));
                if !rows.contains(&cited.as_str()) {
                    missing.insert(format!("{cited} (cited in {file})"));
                }
            }
        }
    }
    assert!(
        missing.is_empty(),
        "docs/conformance.md has no row for:\n{}",
        Vec::from_iter(missing).join("\n")
    );
}

/// The targets of the links in a Markdown text, outside blocks of code.
fn links(text: &str) -> Vec<&str> {
    let is_prose = |(at, _): &(usize, &str)| at % 2 == 0;
    let prose = text.split("```").enumerate().filter(is_prose).map(|(_, prose)| prose);
    prose
        .flat_map(|prose| prose.split("](").skip(1))
        .filter_map(|rest| Some(rest.split_once(')')?.0))
        .collect()
}

/// The documents, by path from the root.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for directory in ["", "docs", "docs/operations"] {
        for entry in std::fs::read_dir(root().join(directory)).unwrap() {
            let name = entry.unwrap().file_name();
            if Path::new(&name).extension().is_some_and(|end| end == "md") {
                found.push(Path::new(directory).join(name));
            }
        }
    }
    found
}

/// The anchors of a Markdown text: its headings in lower case, with hyphens.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut is_prose = true;
    let headings = text.lines().filter(|line| {
        is_prose ^= line.starts_with("```");
        is_prose && line.starts_with('#')
    });
    headings
        .map(|heading| {
            let words = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

#[test]
fn links_in_documents_lead_to_files_and_headings() {
    let (root, mut broken, mut count) = (root(), Vec::new(), 0);
    for document in documents() {
        let path = root.join(&document);
        let text = std::fs::read_to_string(&path).unwrap();
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let leads = target.exists()
                && (anchor.is_empty()
                    || std::fs::read_to_string(&target).is_ok_and(|text| anchors(&text).contains(anchor)));
            count += 1;
            if !leads {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(count > 50, "the documents have links");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_index_of_documents_links_every_page() {
    let index = read("docs/README.md");
    let linked = links(&index);
    for document in documents() {
        let Ok(page) = document.strip_prefix("docs") else { continue };
        let page = page.to_string_lossy();
        assert!(page == "README.md" || linked.contains(&&*page), "docs/README.md does not link {page}");
    }
}

#[test]
fn files_named_in_documents_exist() {
    let root = root();
    let mut missing = Vec::new();
    let tops = ["engine/", "loadgen/", "benches/", "fuzz/", "tests/", "docs/", "packaging/", ".ci/"];
    // Created by libFuzzer.
    let created_later = "fuzz/artifacts/";
    for document in documents().into_iter().filter(|document| !document.ends_with("CHANGELOG.md")) {
        let text = read(&document.to_string_lossy());
        let may_be_in_path = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        for word in text.split(|c| !may_be_in_path(c)).map(|word| word.trim_end_matches('.')) {
            let is_path = tops.iter().any(|top| word.starts_with(top)) || word.contains("/src/");
            // Documents may omit `engine/`.
            if is_path
                && word != created_later
                && !root.join(word).exists()
                && !root.join("engine").join(word).exists()
            {
                missing.push(format!("{}: {word}", document.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn files_have_no_unfinished_marks_and_are_not_too_long() {
    let mut wrong = Vec::new();
    for (file, text) in sources() {
        let marks = [
            concat!("to", "do!("),
            concat!("unimple", "mented!("),
            concat!("FIX", "ME"),
            concat!("XX", "X"),
            concat!("#[ig", "nore"),
        ];
        // Tests that are left out are reported by `has` alone, which makes them visible.
        let is_reported_otherwise = |line: &str| {
            let text = line.to_lowercase();
            !(file == "tests/src/needs.rs" || file.starts_with("benches/"))
                && ["eprintln!", "println!"].iter().any(|print| line.contains(print))
                && ["\"not tested", "\"skipped", "\"needs "].iter().any(|start| text.contains(start))
        };
        for (at, line) in text.lines().enumerate() {
            if marks.iter().any(|mark| line.contains(mark)) || is_reported_otherwise(line) {
                wrong.push(format!("{file}:{}: {}", at + 1, line.trim()));
            }
        }
        let lines = text.lines().count();
        if lines > LINES_MAX {
            wrong.push(format!("{file} has {lines} lines"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn crates_depend_on_what_the_code_map_lists() {
    let architecture = read("ARCHITECTURE.md");
    let mut count = 0;
    for line in architecture.lines().filter_map(|line| line.strip_prefix("| `")) {
        let cells: Vec<&str> = line.trim_end_matches(" |").split(" | ").collect();
        let [package, _, knows] = cells[..] else { continue };
        let package = package.trim_end_matches('`');
        if knows.starts_with("all") {
            continue;
        }
        // After a semicolon follows a remark.
        let names = knows.split([',', ';']).flat_map(|names| names.split(" and ")).map(str::trim);
        let names = names.filter_map(|name| name.split(' ').next());
        let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase()) && name != "never";
        let expected: BTreeSet<&str> = names.filter(|&name| is_name(name)).collect();
        let manifest: toml::Table = read(&format!("{package}/Cargo.toml")).parse().unwrap();
        let table = manifest.get("dependencies").and_then(|table| table.as_table()).unwrap();
        let dependencies: BTreeSet<&str> =
            table.keys().filter_map(|name| name.strip_prefix("handle-")).collect();
        assert_eq!(expected, dependencies, "dependencies of {package}");
        count += 1;
    }
    assert!(count > 10, "rows are missing in the code map");
}

/// The lines of `cargo tree` about a package, itself included.
fn tree_lines(package: &str, edges: &str) -> Vec<String> {
    let mut tree = Command::new(env!("CARGO"));
    // That of the package alone, also where the features of these tests are those of all packages.
    tree.env_remove("CARGO_UNSTABLE_FEATURE_UNIFICATION").env_remove("CARGO_RESOLVER_FEATURE_UNIFICATION");
    tree.current_dir(root()).args(["tree", "--locked", "--offline", "--edges", edges]);
    let output = tree.args(["--prefix", "none", "--format", "{p}", "--package", package]).output().unwrap();
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The packages that a package is built from, itself included.
fn dependency_tree(package: &str) -> BTreeSet<String> {
    let lines = tree_lines(package, "normal,build");
    lines.iter().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn processes_that_serve_sets_can_neither_build_them_nor_make_keys() {
    const BUILDS_SETS: &str = r#"handle-snapshot feature "build""#;
    const MAKES_KEYS: &str = r#"handle-auth feature "generate""#;
    let has = |package: &str, feature: &str| {
        let lines = tree_lines(package, "normal,build,features");
        assert!(lines.iter().any(|line| line.starts_with("handle-snapshot feature \"std\"")), "{lines:?}");
        lines.iter().any(|line| line.starts_with(feature))
    };
    for package in ["handle-server", "handle-cache", "handle-gateway"] {
        assert!(!has(package, BUILDS_SETS), "{package} can build sets");
        assert!(!has(package, MAKES_KEYS), "{package} can make keys");
    }
    assert!(has("handle-admin", BUILDS_SETS) && has("handle-cli", MAKES_KEYS));
}

#[test]
fn the_data_process_links_no_store_no_client_and_no_http_framework() {
    const FOREIGN: [&str; 10] = [
        "handle-admin",
        "handle-client",
        "handle-fleet",
        "handle-store",
        "hyper",
        "object_store",
        "redb",
        "reqwest",
        "rustls",
        "tokio",
    ];
    let served = dependency_tree("handle-server");
    assert!(served.contains("handle-server") && served.contains("handle-resolver"), "{served:?}");
    let foreign: Vec<_> = FOREIGN.iter().filter(|name| served.contains(**name)).collect();
    assert!(foreign.is_empty(), "handled links {foreign:?}");
    // Each name is that of a package which other processes have.
    let all: BTreeSet<_> =
        ["handle-admin", "handle-gateway"].map(dependency_tree).into_iter().flatten().collect();
    assert!(FOREIGN.iter().all(|name| all.contains(*name)));
}

#[test]
fn plain_builds_of_handle_fetch_and_hdl_have_no_client_of_object_storage() {
    for package in ["handle-fetch", "handle-cli"] {
        let tree = dependency_tree(package);
        for foreign in ["object_store", "reqwest", "hyper"] {
            assert!(!tree.contains(foreign), "{package} links {foreign}");
        }
    }
}

#[test]
fn hdl_links_no_process_and_no_load_generator() {
    const FOREIGN: [&str; 10] = [
        "handle-admin",
        "handle-cache",
        "handle-fetch",
        "handle-gateway",
        "handle-lab",
        "handle-loadgen",
        "handle-net",
        "handle-server",
        "handle-source",
        "handle-worker",
    ];
    let linked = dependency_tree("handle-cli");
    assert!(linked.contains("handle-cli") && linked.contains("handle-client"), "{linked:?}");
    let foreign: Vec<_> = FOREIGN.iter().filter(|name| linked.contains(**name)).collect();
    assert!(foreign.is_empty(), "hdl links {foreign:?}");
    let all: BTreeSet<_> =
        ["handle-lab", "handle-admin", "handle-fetch"].map(dependency_tree).into_iter().flatten().collect();
    assert!(FOREIGN.iter().all(|name| all.contains(*name)));
}

#[test]
fn dependencies_have_a_comment() {
    let manifest = read("Cargo.toml");
    let (_, section) = manifest.split_once("[workspace.dependencies]").unwrap();
    let (section, _) = section.split_once("\n[").unwrap();
    let mut explained = false;
    for line in section.lines().map(str::trim) {
        match line {
            "" => explained = false,
            line if line.starts_with('#') => explained = true,
            line => assert!(explained, "Cargo.toml: no comment above {line}"),
        }
    }
}

#[test]
fn fuzz_targets_are_listed_documented_and_have_seeds() {
    let (manifest, documented) = (read("fuzz/Cargo.toml"), read("docs/fuzzing.md"));
    let mut count = 0;
    for entry in std::fs::read_dir(root().join("fuzz/fuzz_targets")).unwrap() {
        let path = entry.unwrap().path();
        let target = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(manifest.contains(&format!("name = \"{target}\"")), "fuzz/Cargo.toml lists {target}");
        assert!(documented.contains(&format!("`{target}`")), "docs/fuzzing.md describes {target}");
        let seeds = std::fs::read_dir(root().join("fuzz/corpus").join(&target)).unwrap().count();
        assert!(seeds > 0, "{target} has no seeds");
        count += 1;
    }
    assert!(count >= 12, "fuzz targets are missing");
}

/// Name and number of lines of each function with a body in `text`, in the layout of rustfmt.
fn functions(text: &str) -> Vec<(&str, usize)> {
    let keywords = [&["fn"][..], &["const", "fn"], &["async", "fn"], &["unsafe", "fn"]];
    let keywords = keywords.map(|words| words.join(" "));
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = keywords.iter().find_map(|keyword| defined(line, keyword)) else { continue };
        let is_end = |line: &&str| [";", "{", "}"].iter().any(|end| line.ends_with(end));
        let Some(opening) = lines[at..].iter().position(is_end) else { continue };
        if !lines[at + opening].ends_with('{') {
            continue;
        }
        let closing = format!("{}}}", &line[..line.len() - line.trim_start().len()]);
        let len = lines[at..].iter().position(|line| *line == closing);
        found.push((name, len.expect("a function ends") + 1));
    }
    found
}

#[test]
fn functions_of_engine_are_short() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (file, text) in sources().iter().filter(|(file, _)| file.starts_with("engine/")) {
        for (name, lines) in functions(text) {
            if lines > FUNCTION_LINES_MAX {
                wrong.push(format!("{file}: `{name}` has {lines} lines"));
            }
            count += 1;
        }
    }
    assert!(count > 2000, "too few functions found");
    assert!(wrong.is_empty(), "more than {FUNCTION_LINES_MAX} lines:\n{}", wrong.join("\n"));
}

/// The name that `line` defines with `keyword`, if any.
fn defined<'a>(line: &'a str, keyword: &str) -> Option<&'a str> {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1,
        Some(rest) => rest,
        None => line,
    };
    let rest = line.trim_start().strip_prefix(keyword)?.strip_prefix(' ')?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// All files that people read, committed or not: code, documents, configuration.
fn texts() -> Vec<(String, String)> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let listed = std::process::Command::new("git").args(arguments).current_dir(root()).output();
    let listed = listed.expect("git runs").stdout;
    let names = std::str::from_utf8(&listed).unwrap().split('\0').filter(|name| !name.is_empty());
    let is_text = |name: &&str| {
        [".rs", ".md", ".toml", ".yml", ".service", ".py"].iter().any(|end| name.ends_with(end))
    };
    // A file that was deleted and not yet committed is listed.
    let exists = |name: &&str| root().join(name).is_file();
    names.filter(is_text).filter(exists).map(|name| (name.to_owned(), read(name))).collect()
}

#[test]
fn texts_have_no_unclear_phrases() {
    // Sentences without a subject, riddles, and history.
    let phrases = [
        "on a busy machine",
        "the machine stood still",
        "A machine that stands still",
        "on a day when the",
        "Last time, with seed",
        "whom to become",
        "from where to where it may go",
        "serve as root all the same",
        "nobody is asked who they are",
        "Nobody else on either core",
        "nobody has to be told",
        "others are being asked on behalf of",
        "who has no session",
        "stand back behind",
        "gives a sign of life",
        "upon which deployed clients",
        "is no mirror",
        "it is no store",
        "nobody is there to be asked",
        "asks later asks anew",
        "What became of",
        "up to which everything is here",
        "nothing more is taken from",
        "the server thought",
        "is answered all the same",
        "were answered all the same",
        "wakes somebody",
        "probed by nobody",
        "is told what it was told",
        "that there should be",
        "answered something else",
        "where nothing else wants the core",
        "while every worker turns",
        "in the way of the small ones",
        "Requests that found the slow path full",
        "What should wake somebody up",
        "something daring",
        "Who is connected stays",
        "for want of a kernel feature",
        "ends the start",
        "until it answers; once it is given up",
        "the last one's word counts",
        "puts the load before",
        "What becomes of old files",
        "What watching costs",
        "Whether whoever asks",
        "Not ours: say whose",
        "in a third fewer steps",
        "What becomes of a datagram",
        "What is not for a worker",
        "nobody listens there",
        "asked who asks, and told",
        "where is the service of the prefix?",
        "no session comes about: on without",
        "the session could be with anybody",
        "the server wants to know who asks",
        "the server may have done it all the same",
        "asks again and again",
        "so nobody has such handles",
        "is signed by somebody who is trusted",
        "no TLS connection comes about",
        "nobody divides by zero",
        "another process publishes here and holds the lock",
        "there is something where only zeros belong",
        "nobody signs with the digest",
        "others than its owner may use it",
        "is no number that it may have",
        "Whose turn it is: work for strangers",
        "is no address: write",
        "generations seen, none answered from more than",
        "is no identity: write",
        "somebody disagrees",
        "who has it has to mend it",
        "so that everybody on the way can read them",
        "say how the private key is kept",
        "the lab is down",
        "as fast as answers come",
        "says who asks, but not how that is proven",
        "nothing here stands for it",
        "what is there stays as it is",
        "the command line makes no sense",
        "it could not be done",
        "The run does not count",
        "What can be promised",
        "After which an answer is late",
        "must be above 0",
        "wrong again, as before",
        "packets or lines are something else",
        "that this machine can do",
    ];
    let mut wrong = Vec::new();
    for (file, text) in texts().iter().filter(|(file, _)| file != "tests/tests/documents/tidy.rs") {
        for phrase in phrases.iter().filter(|phrase| text.contains(**phrase)) {
            wrong.push(format!("{file}: {phrase}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn prose_of_documents_is_wrapped_at_100_columns() {
    let mut wrong = Vec::new();
    for document in documents() {
        let mut is_prose = true;
        for (at, line) in read(&document.to_string_lossy()).lines().enumerate() {
            is_prose ^= line.trim_start().starts_with("```");
            let is_table = line.trim_start().starts_with('|');
            if is_prose && !is_table && line.chars().count() > 100 {
                wrong.push(format!("{}:{}", document.display(), at + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn comments_are_wrapped_at_100_columns() {
    let mut wrong = Vec::new();
    for (file, text) in texts() {
        let markers: &[&str] = match file {
            _ if file.ends_with(".rs") => &["//!", "///", "//"],
            _ if file.ends_with("Cargo.toml") => &["#"],
            _ => continue,
        };
        let mut is_code = false;
        for (at, line) in text.lines().enumerate() {
            let start = line.trim_start();
            let Some(comment) = markers.iter().find_map(|marker| start.strip_prefix(marker)) else {
                is_code = false;
                continue;
            };
            is_code ^= comment.trim_start().starts_with("```");
            let is_exempt = is_code || comment.trim_start().starts_with('|') || comment.contains("://");
            if !is_exempt && line.chars().count() > 100 {
                wrong.push(format!("{file}:{}", at + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
