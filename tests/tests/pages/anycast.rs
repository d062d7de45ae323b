//! The recipe for anycast: two servers behind a router, with the files of the page.

use crate::page::{Marker, read_blocks};
use crate::run::{checkout, has_namespaces, unshare};
use handle_tests::needs::{TestNeed, has};
use std::process::{Command, Stdio};

/// Time from the failure of `/readyz` to the withdrawal.
const WITHDRAWN_MS_MAX: u64 = 3_000;

#[test]
fn a_route_is_withdrawn_when_the_server_is_not_ready_and_a_planned_withdrawal_loses_no_answer() {
    let is_installed = Command::new("bird").arg("--version").output().is_ok();
    let is_root = rustix::process::getuid().is_root();
    if !has(TestNeed::Bird, is_installed)
        || !has(TestNeed::Root, is_root)
        || !has(TestNeed::Namespaces, has_namespaces())
    {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for block in read_blocks(&checkout().join("docs/operations.md")).unwrap() {
        if let Some(Marker::File(name)) = &block.marker
            && ["bird.conf", "health"].contains(&name.as_str())
        {
            std::fs::write(directory.path().join(name), &block.text).unwrap();
        }
    }
    let mut command = unshare();
    command
        .arg("sh")
        .arg(checkout().join("tests/pages/anycast.sh"))
        .arg(directory.path())
        .arg(&*crate::PROGRAMS);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    for withdrawal in ["planned", "killed"] {
        let time = read_figure(&printed, &format!("{withdrawal}: withdrawn after "));
        assert!(time < WITHDRAWN_MS_MAX, "{printed}");
    }
    for term in ["lost", "late", "not sent"] {
        assert_eq!(read_figure(&printed, term), 0, "{term}: {printed}");
    }
    assert_eq!(read_figure(&printed, "1 success"), 1_600, "{printed}");
}

/// The number behind a text.
fn read_figure(printed: &str, before: &str) -> u64 {
    let (_, rest) = printed.split_once(before).unwrap_or_else(|| panic!("no `{before}` in: {printed}"));
    rest.split_whitespace().next().unwrap().parse().unwrap()
}
