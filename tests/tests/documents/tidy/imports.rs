//! Circles of imports inside a crate.
//!
//! A file and those that it imports in a circle can only be read, changed and moved together. The
//! graph is read from the text: `use crate::`, `use super::`, `use self::` and such paths written
//! in place, without tests. What a module takes from the children that it declares is no arrow.

use super::sources;
use std::collections::{BTreeMap, BTreeSet};

/// Most files of a circle.
const CIRCLE_FILES_MAX: usize = 3;

/// The text of each module of a crate, by its path: `["tcp", "worker"]`, empty for the root.
type CrateModules = BTreeMap<Vec<String>, String>;

/// For each module, the modules that it imports, with one of the imported paths.
type ImportGraph = BTreeMap<Vec<String>, BTreeMap<Vec<String>, String>>;

/// The crate and the path of the module in `file`; `None` for tests, programs and other packages.
fn module_in(file: &str) -> Option<(&str, Vec<String>)> {
    let is_measured = ["engine/", "loadgen/", "bindings/"].iter().any(|start| file.starts_with(start));
    let (crate_directory, module) = file.strip_suffix(".rs")?.split_once("/src/").filter(|_| is_measured)?;
    let mut path: Vec<String> = module.split('/').map(str::to_owned).collect();
    let is_test = |name: &String| name == "tests" || name == "test" || name.ends_with("_tests");
    if path.iter().any(is_test) || path == ["main"] {
        return None;
    }
    path.pop_if(|last| last == "mod");
    if path == ["lib"] {
        path.clear();
    }
    Some((crate_directory, path))
}

/// `text` without comments and without its module of tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// Appends the paths of a tree of `use`: `a::{b, c::d}` has `a::b` and `a::c::d`.
fn add_paths(prefix: &[String], tree: &str, paths: &mut Vec<Vec<String>>) {
    let names = |text: &str| -> Vec<String> {
        let names = text.split("::").filter_map(|name| name.split_whitespace().next());
        prefix.iter().cloned().chain(names.map(str::to_owned)).collect()
    };
    let Some((head, rest)) = tree.split_once('{') else { return paths.push(names(tree)) };
    let head = names(head);
    let (mut depth, mut start) = (0, 0);
    let list = rest.rsplit_once('}').map_or(rest, |(list, _)| list);
    for (at, c) in list.char_indices().chain([(list.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !list[start..at].trim().is_empty() {
                    add_paths(&head, &list[start..at], paths);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// The paths of `code` that begin with `crate`, `super` or `self`.
fn paths_in(code: &str) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let before = &code[..at];
            if before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let is_use = before.trim_end().ends_with("use");
            let end = |c: char| match is_use {
                true => c == ';',
                false => !(c.is_alphanumeric() || c == '_' || c == ':'),
            };
            let tree = code[at..].split(end).next().unwrap_or_default();
            add_paths(&[], tree, &mut paths);
        }
    }
    paths
}

/// The module that `path`, written in `module`, names something of.
fn target(modules: &CrateModules, module: &[String], path: &[String]) -> Option<Vec<String>> {
    let mut base = module.to_vec();
    let mut rest = path;
    while let Some((first, after)) = rest.split_first() {
        match first.as_str() {
            "crate" => base.clear(),
            "super" => _ = base.pop(),
            "self" => {}
            _ => break,
        }
        rest = after;
    }
    base.extend_from_slice(rest);
    while !modules.contains_key(&base) {
        base.pop()?;
    }
    Some(base)
}

fn import_graph(modules: &CrateModules) -> ImportGraph {
    let imports = |module: &Vec<String>, text: &String| {
        let paths = paths_in(&code(text)).into_iter();
        let imports = paths.filter_map(|path| Some((target(modules, module, &path)?, path.join("::"))));
        imports.filter(|(target, _)| target != module).collect()
    };
    modules.iter().map(|(module, text)| (module.clone(), imports(module, text))).collect()
}

/// All modules that can be reached from `module`.
fn reached<'g>(graph: &'g ImportGraph, module: &'g Vec<String>) -> BTreeSet<&'g Vec<String>> {
    let (mut found, mut waiting) = (BTreeSet::new(), vec![module]);
    while let Some(next) = waiting.pop() {
        waiting.extend(graph[next].keys().filter(|target| found.insert(*target)));
    }
    found
}

/// The circles of more than one module: each with all modules that reach each other.
fn circles(graph: &ImportGraph) -> Vec<BTreeSet<&Vec<String>>> {
    let reached: BTreeMap<_, _> = graph.keys().map(|module| (module, reached(graph, module))).collect();
    let circle = |module: &&Vec<String>| -> BTreeSet<&Vec<String>> {
        reached[*module].iter().copied().filter(|other| reached[*other].contains(*module)).collect()
    };
    let all: BTreeSet<BTreeSet<&Vec<String>>> = graph.keys().map(|module| circle(&module)).collect();
    all.into_iter().filter(|circle| circle.len() > 1).collect()
}

/// One line for each arrow of a circle.
fn arrows(graph: &ImportGraph, circle: &BTreeSet<&Vec<String>>) -> String {
    let name = |module: &[String]| if module.is_empty() { "lib".to_owned() } else { module.join("/") };
    let of_module = |module: &&Vec<String>| {
        let inside = graph[*module].iter().filter(|(target, _)| circle.contains(target));
        let lines =
            inside.map(|(target, path)| format!("    {} -> {} ({path})\n", name(module), name(target)));
        lines.collect::<String>()
    };
    circle.iter().map(of_module).collect()
}

/// What is wrong with the imports of a crate, if something is.
fn complaint(crate_directory: &str, modules: &CrateModules) -> Option<String> {
    let graph = import_graph(modules);
    let circles = circles(&graph).into_iter().filter(|circle| circle.len() > CIRCLE_FILES_MAX);
    let text: String = circles
        .map(|circle| {
            format!(
                "{crate_directory}: {} files import each other:\n{}",
                circle.len(),
                arrows(&graph, &circle)
            )
        })
        .collect();
    (!text.is_empty()).then_some(text)
}

#[test]
fn no_circle_of_imports_has_more_than_three_files() {
    let mut crates: BTreeMap<String, CrateModules> = BTreeMap::new();
    for (file, text) in sources() {
        if let Some((crate_directory, module)) = module_in(&file) {
            crates.entry(crate_directory.to_owned()).or_default().insert(module, text);
        }
    }
    assert!(crates.len() > 15, "crates are missing: {:?}", crates.keys());
    let complaints: String =
        crates.iter().filter_map(|(directory, modules)| complaint(directory, modules)).collect();
    assert!(
        complaints.is_empty(),
        "{complaints}Take out an arrow: move what both files need into a file of its own below both, pass it as an \
         argument, or let the lower file define a trait that the upper one implements."
    );
}

#[test]
fn circles_are_found_through_every_form_of_a_path() {
    let modules = |files: &[(&str, &str)]| -> CrateModules {
        let module = |(file, text): &(&str, &str)| (module_in(file).unwrap().1, (*text).to_owned());
        files.iter().map(module).collect()
    };
    let mut files = vec![
        ("engine/x/src/lib.rs", "mod a; mod b; mod c; mod d;\npub use a::A;"),
        ("engine/x/src/a.rs", "use crate::b::{self, B as Other};\npub struct A;"),
        ("engine/x/src/b.rs", "pub struct B(crate::c::inner::C);"),
        ("engine/x/src/c/mod.rs", "pub mod inner;\n// use crate::a::A;"),
        ("engine/x/src/c/inner.rs", "use super::super::d::{\n    one::One,\n    D,\n};"),
        ("engine/x/src/d.rs", "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}"),
    ];
    assert_eq!(complaint("engine/x", &modules(&files)), None, "comments and tests do not count");
    files[5].1 = "use std::fmt;\nuse crate::{a::A, e};";
    let found = complaint("engine/x", &modules(&files)).unwrap();
    for arrow in ["a -> b (crate::b::", "b -> c/inner (", "c/inner -> d (", "d -> a (crate::a::A)"] {
        assert!(found.contains(arrow), "{arrow}: {found}");
    }
    assert!(found.starts_with("engine/x: 4 files import each other"), "{found}");
    // A circle of three is allowed.
    files[4].1 = "pub struct C;";
    files[2].1 = "use super::d::D;";
    assert_eq!(complaint("engine/x", &modules(&files)), None);
}
