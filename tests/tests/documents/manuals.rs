//! Manual pages and completions, which `handle-lab manuals` writes, say what the help says.

use crate::commands::{HELPS, PROGRAMS, commands, options};
use handle_tests::process::{handle_lab, succeed};
use std::collections::BTreeSet;
use std::fs;

/// A manual page as text, without fonts and escapes.
fn shown(page: &str) -> String {
    page.replace("\\fB", "").replace("\\fI", "").replace("\\fR", "").replace("\\-", "-")
}

/// The long options that a help defines, without those that its texts mention.
fn defined(help: &str) -> BTreeSet<&str> {
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    lines.filter_map(|line| options(line.split("  ").next()?).next()).collect()
}

#[test]
fn every_command_has_a_manual_page_with_the_options_of_its_help() {
    let directory = tempfile::tempdir().unwrap();
    succeed(handle_lab(["manuals", directory.path().to_str().unwrap()]));
    let mut pages_count = 0;
    for section in ["1", "8"] {
        pages_count += fs::read_dir(directory.path().join(format!("man/man{section}"))).unwrap().count();
    }
    // No page is of a hidden command, or of one that does not exist.
    assert_eq!(pages_count, HELPS.len());
    for (words, help) in &*HELPS {
        let name = words.replace(' ', "-");
        let paths = ["1", "8"].map(|section| format!("man/man{section}/{name}.{section}"));
        let found = paths.iter().find_map(|path| fs::read_to_string(directory.path().join(path)).ok());
        let page = shown(&found.unwrap_or_else(|| panic!("{words} has no manual page")));
        let (in_help, in_page): (BTreeSet<&str>, BTreeSet<&str>) =
            (options(help).collect(), options(&page).collect());
        assert_eq!(in_help, in_page, "options of {words} in the help and in the page");
        for below in commands(help).into_iter().filter(|&below| below != "help") {
            assert!(page.contains(&format!("{name}-{below}")), "the page of {words} lists {below}");
        }
        assert!(page.contains(".SH NAME\n") && page.contains(&format!("{name} - ")), "{words}: {page}");
    }
}

#[test]
fn completions_of_every_program_have_its_options() {
    let directory = tempfile::tempdir().unwrap();
    succeed(handle_lab(["manuals", directory.path().to_str().unwrap()]));
    let script = |path: &str| fs::read_to_string(directory.path().join(path)).unwrap();
    for &(program, _) in &*PROGRAMS {
        let bash = script(&format!("bash-completion/completions/{program}"));
        let zsh = script(&format!("zsh/site-functions/_{program}"));
        let fish = script(&format!("fish/vendor_completions.d/{program}.fish"));
        let is_of_program = |words: &&String| words.split(' ').next() == Some(program);
        let mut count = 0;
        for words in HELPS.keys().filter(is_of_program) {
            for option in defined(&HELPS[words]) {
                let is_in_fish = fish.contains(&format!("-l {}", option.trim_start_matches('-')));
                let found = [bash.contains(option), zsh.contains(option), is_in_fish];
                assert_eq!(found, [true; 3], "{option} of {words} in completions for bash, zsh, fish");
                count += 1;
            }
        }
        assert!(count > 5, "{program} has {count} options");
    }
}
