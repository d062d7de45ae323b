//! The metrics of each process on the pages in `docs/operations`.
//!
//! The tables are made from the declarations of the metrics and written by
//! `REWRITE_PAGES=1 cargo test -p handle-tests --test documents metrics`.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::pages::check_part;
use crate::processes::Process;
use handle_daemon::metrics::{MetricGroup, MetricKind, MetricRow};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

/// The help of a metric, and what the values of its first label mean.
fn meaning(row: &MetricRow) -> String {
    let without_stop = |text: &'static str| text.trim_end_matches('.');
    let values = row.values.iter().map(|(value, what)| format!("`{value}`: {}", without_stop(what)));
    let values = values.collect::<Vec<_>>().join("; ");
    if values.is_empty() { row.help.clone() } else { format!("{} {values}.", row.help) }
}

/// The table of a group, in Markdown.
fn rendered(group: &MetricGroup) -> String {
    let mut text = "\n| name | what |\n|---|---|\n".to_owned();
    for row in &group.rows {
        let labels =
            if row.labels.is_empty() { String::new() } else { format!("{{{}}}", row.labels.join(",")) };
        let kind = if row.kind == MetricKind::Histogram { " (histogram)" } else { "" };
        let (name, suffix) = (row.name, row.kind.suffix());
        writeln!(text, "| `{name}{suffix}{labels}`{kind} | {} |", meaning(row)).unwrap();
    }
    text
}

#[test]
fn the_pages_list_every_metric_as_it_is_declared() {
    for process in Process::all() {
        for group in &process.metrics {
            let subject = format!("metrics ({})", group.name);
            check_part(&process.page("metrics"), &subject, "metrics", &rendered(group));
        }
    }
}

#[test]
fn every_metric_is_declared_once_and_explained_in_a_sentence() {
    for process in Process::all() {
        let (page, mut names) = (process.page("metrics"), BTreeSet::new());
        for row in process.metrics.iter().flat_map(|group| &group.rows) {
            assert!(names.insert(row.name), "{page}: {}", row.name);
            let is_sentence = row.help.ends_with('.') && !row.help.starts_with(char::is_lowercase);
            assert!(is_sentence, "{page}: {}: {}", row.name, row.help);
        }
        assert!(names.len() > 20, "{page}: {}", names.len());
    }
}

/// The metrics that `text` names and that begin with `prefix`.
fn named<'t>(text: &'t str, prefix: &str) -> BTreeSet<&'t str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c)).filter(|word| word.starts_with(prefix)).collect()
}

#[test]
fn the_dashboard_and_the_alerts_ask_for_declared_metrics() {
    let operations = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations");
    // The metrics of the data process share their prefix with those of the others.
    for process in Process::all().iter().filter(|process| process.name != "handled") {
        let prefix = format!("{}_", process.name.replace('-', "_"));
        let rows = process.metrics.iter().flat_map(|group| &group.rows);
        let declared: BTreeSet<String> = rows
            .map(|row| match row.kind.name() {
                "histogram" => format!("{}_bucket", row.name),
                _ => format!("{}{}", row.name, row.kind.suffix()),
            })
            .collect();
        for file in ["handled-dashboard.json", "alerts.yml"] {
            let text = std::fs::read_to_string(operations.join(file)).unwrap();
            let named = named(&text, &prefix);
            assert!(named.len() > 5, "{file} watches {prefix}: {named:?}");
            for name in named {
                assert!(declared.contains(name), "{file}: {name} is not among the metrics");
            }
        }
    }
}
