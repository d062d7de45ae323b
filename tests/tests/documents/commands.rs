//! Commands and options in documents and in the help exist in the programs.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::processes::Process;
use handle_tests::process::{program, succeed};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// The programs and their packages.
pub(crate) static PROGRAMS: LazyLock<Vec<(&str, &str)>> = LazyLock::new(|| {
    let tools = [("hdl", "handle-cli"), ("handle-lab", "handle-lab"), ("handle-loadgen", "handle-loadgen")];
    Process::all().map(|process| (process.name, process.package)).into_iter().chain(tools).collect()
});

/// The help of every command, by its full name, as `hdl snapshot publish`.
pub(crate) static HELPS: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| {
    fn walk(path: &Path, words: &[String], helps: &mut BTreeMap<String, String>) {
        let mut command = Command::new(path);
        command.args(&words[1..]).arg("--help").stdin(Stdio::null());
        let help = succeed(command);
        for below in commands(&help).into_iter().filter(|&below| below != "help") {
            walk(path, &[words, &[below.to_owned()]].concat(), helps);
        }
        helps.insert(words.join(" "), help);
    }
    let mut helps = BTreeMap::new();
    for &(name, package) in &*PROGRAMS {
        walk(&program(package, name), &[name.to_owned()], &mut helps);
    }
    helps
});

/// The subcommands that a help lists.
pub(crate) fn commands(help: &str) -> Vec<&str> {
    let Some((_, list)) = help.split_once("\nCommands:\n") else { return Vec::new() };
    let lines = list.lines().take_while(|line| !line.is_empty());
    // Continuation lines are indented further.
    lines
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| !name.is_empty())
        .collect()
}

/// The options named in a text.
pub(crate) fn options(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let words = text.split(move |c| !is_part(c));
    words.filter(|word| word.strip_prefix("--").is_some_and(|name| name.starts_with(|c: char| c != '-')))
}

/// Documents, and the units for systemd.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let directories = ["", "docs", "docs/operations"].map(|directory| root.join(directory));
    let entries = directories.iter().flat_map(|directory| std::fs::read_dir(directory).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_document = |path: &PathBuf| path.extension().is_some_and(|end| end == "md" || end == "service");
    // The changelog describes former versions as well.
    paths.filter(is_document).filter(|path| !path.ends_with("CHANGELOG.md")).collect()
}

/// The code in a document: lines of blocks, and text between backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split("```").enumerate().flat_map(|(at, part)| {
        let (mark, first) = if at % 2 == 1 { ('\n', 0) } else { ('`', 1) };
        part.split(mark).skip(first).step_by(first + 1)
    })
}

/// The command lines of our programs in a line of code, each split into words.
fn command_lines(line: &str) -> Vec<Vec<&str>> {
    let mut lines = Vec::new();
    let mut words = line.split(" #").next().unwrap().split_whitespace().peekable();
    let mut before = "";
    while let Some(word) = words.next() {
        let name = word.rsplit(['/', '=']).next().unwrap();
        // As an argument of cargo, the name is a package. Words after two hyphens are for the
        // program.
        let is_run = words.next_if_eq(&"--").is_some() || !["-p", "--package", "--bin"].contains(&before);
        if is_run && PROGRAMS.iter().any(|(program, _)| *program == name) {
            let rest = words.by_ref().take_while(|word| !["|", "&", "&&", ";", ">"].contains(word));
            lines.push(std::iter::once(name).chain(rest).collect());
        }
        before = word;
    }
    lines
}

#[test]
fn commands_and_options_in_documents_exist() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for path in documents() {
        let text = std::fs::read_to_string(&path).unwrap().replace("\\\n", " ");
        // A unit file is code as a whole.
        let blocks =
            if path.extension().is_some_and(|end| end == "md") { text } else { format!("```{text}```") };
        for line in code(&blocks).flat_map(command_lines) {
            let mut at = 1;
            while line.len() > at && HELPS.contains_key(&line[..=at].join(" ")) {
                at += 1;
            }
            let (help, rest) = (&HELPS[&line[..at].join(" ")], line[at..].join(" "));
            let below = commands(help);
            // Several programs in a row are a list of units, or a picture.
            let is_list = |word: &str| PROGRAMS.iter().any(|(name, _)| *name == word.trim_end_matches(':'));
            let is_command = rest.starts_with(|c: char| c.is_ascii_lowercase())
                && line[at] != "help"
                && !is_list(line[at]);
            if is_command && !below.is_empty() {
                wrong.push(format!("{}: no such command: {}", path.display(), line.join(" ")));
            }
            for option in options(&rest) {
                count += 1;
                if !options(help).any(|candidate| candidate == option) {
                    wrong.push(format!("{}: no {option} in: {}", path.display(), line.join(" ")));
                }
            }
        }
    }
    assert!(count > 150, "{count} options in the documents");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_command_has_examples_on_whole_lines() {
    for (words, help) in &*HELPS {
        if !commands(help).is_empty() {
            continue;
        }
        let (_, examples) = help
            .split_once("\nExamples:\n")
            .or_else(|| help.split_once("\nExample:\n"))
            .unwrap_or_else(|| panic!("{words} has no example"));
        let examples: Vec<&str> = examples.lines().take_while(|line| !line.is_empty()).collect();
        let program = words.split(' ').next().unwrap();
        assert!(examples.iter().any(|line| line.trim_start().starts_with(program)), "{words}: {examples:#?}");
        for line in examples {
            assert!(line.starts_with("  "), "{words}: wrapped by the width of the terminal: {line}");
        }
    }
}
