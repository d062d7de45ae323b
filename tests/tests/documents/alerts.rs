//! The alert rules and the scrape configuration are valid for Prometheus, and each alert fires and
//! is quiet in a test of `promtool`.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_tests::needs::{TestNeed, has};
use handle_tests::process::succeed;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

fn operations() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(operations().join(name)).unwrap()
}

/// What stands between `begin` and `end` at each place of a text.
fn between<'t>(text: &'t str, begin: &'t str, end: &'t str) -> impl Iterator<Item = &'t str> {
    text.split(begin).skip(1).filter_map(move |rest| rest.split(end).next())
}

/// Whether `promtool` runs.
fn has_promtool() -> bool {
    has(TestNeed::Promtool, Command::new("promtool").arg("--version").output().is_ok())
}

fn promtool(arguments: &[&str], directory: &Path) -> String {
    let mut command = Command::new("promtool");
    command.args(arguments).current_dir(directory);
    succeed(command)
}

#[test]
fn each_alert_has_a_test_in_which_it_is_quiet_and_fires_alone() {
    let (rules, tests) = (read("alerts.yml"), read("alerts-test.yml"));
    let alerts: Vec<&str> = between(&rules, "- alert: ", "\n").collect();
    let mut tested = BTreeMap::new();
    for test in tests.split("  - interval: ").skip(1) {
        let expected: Vec<&str> = test.lines().filter(|line| line.contains("eval_time: ")).collect();
        let [quiet, fires] = expected[..] else { panic!("a quiet and a firing expectation: {test}") };
        assert!(!quiet.contains("exp_samples"), "quiet means that nothing fires: {quiet}");
        let names: Vec<&str> = between(fires, "alertname=\"", "\"").collect();
        let [name] = names[..] else { panic!("one alert: {fires}") };
        assert_eq!(tested.insert(name, fires), None, "{name} has two tests");
    }
    assert!(alerts.len() > 60, "{} alerts", alerts.len());
    for alert in &alerts {
        assert!(tested.remove(alert).is_some(), "{alert} has no test in alerts-test.yml");
    }
    assert!(tested.is_empty(), "tests of alerts that do not exist: {tested:?}");
    if has_promtool() {
        promtool(&["test", "rules", "alerts-test.yml"], &operations());
    }
}

#[test]
fn prometheus_accepts_the_rules_and_the_scrape_configuration_of_the_page() {
    let (page, rules) = (read("README.md"), read("alerts.yml"));
    let configuration = between(&page, "```yaml\n", "```").next().unwrap();
    // A rule about a job that is not scraped never fires.
    let scraped: Vec<&str> = between(configuration, "job_name: ", "\n").collect();
    for job in between(&rules, "up{job=\"", "\"") {
        assert!(scraped.contains(&job), "{job} is not scraped: {scraped:?}");
    }
    for job in &scraped {
        assert!(
            rules.contains(&format!("expr: up{{job=\"{job}\"}} == 0")),
            "no alert says that {job} is down"
        );
    }
    if !has_promtool() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("alerts.yml"), &rules).unwrap();
    std::fs::write(directory.path().join("prometheus.yml"), configuration).unwrap();
    promtool(&["check", "config", "prometheus.yml"], directory.path());
    promtool(&["check", "rules", "alerts.yml"], directory.path());
}
