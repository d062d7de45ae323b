//! A test that lacks what it needs is listed, and fails where it is required.

use std::path::Path;
use std::process::{Command, Output};

/// A test that needs Pebble, which is not exempt, and one that needs `moto_server`, which is.
const REQUIRED: &str = "gateway_acme::a_certificate_is_issued_and_kept_while_the_authority_is_away";
const EXEMPT: &str = "fleets_bucket::the_s3_of_moto_is_understood";

/// Runs a test of this program where no program is installed.
fn run(test: &str, requirement: &str, list: &Path) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
    command.args([test, "--exact"]).env("PATH", "/nonexistent");
    command.env("HANDLE_TESTS", requirement).env("HANDLE_NOT_TESTED", list);
    command.output().expect("this program runs")
}

#[test]
fn tests_without_their_programs_are_listed_and_fail_where_they_are_required() {
    let directory = tempfile::tempdir().expect("a directory");
    let list = directory.path().join("list");
    let listed = || std::fs::read_to_string(&list).unwrap_or_default();
    let output = run(REQUIRED, "", &list);
    let errors = String::from_utf8_lossy(&output.stderr);
    let expected = format!("NOT TESTED: processes::{REQUIRED}: no pebble (apt-get install pebble)\n");
    assert!(output.status.success() && errors.contains(&expected), "{errors}");
    assert_eq!(listed(), expected);

    let output = run(REQUIRED, "required", &list);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && text.contains("apt-get install pebble"), "{text}");
    assert_eq!(listed(), expected, "what fails is not listed");

    let output = run(EXEMPT, "required", &list);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(listed().lines().nth(1).is_some_and(|line| line.contains(EXEMPT) && line.contains("exempt")));
}
