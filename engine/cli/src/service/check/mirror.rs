//! `hdl check --mirror`: compares the published set of a mirror with the records of its primaries.

use crate::style::{Paint, paint};
use crate::{ExitOutcome, output};
use handle_admin::mirror::compare::{ComparedName, MirrorComparison, MirrorDifference, compare};
use handle_proto::Handle;
use serde_json::json;
use std::path::Path;
use std::time::Duration;

/// Differences that are printed for each primary.
const SHOWN_MAX: usize = 100;

pub(crate) fn check(config: &Path, wait_s: u32, is_json: bool) -> anyhow::Result<ExitOutcome> {
    let compared = compare(config, Duration::from_secs(wait_s.into()))?;
    if is_json {
        output::print_json(&compared.iter().map(described).collect());
    } else {
        compared.iter().for_each(show);
    }
    let is_equal = compared.iter().all(MirrorComparison::is_equal);
    Ok(if is_equal { ExitOutcome::Good } else { ExitOutcome::Failed })
}

const fn word(difference: MirrorDifference) -> &'static str {
    match difference {
        MirrorDifference::Missing => "missing",
        MirrorDifference::Different => "different",
        MirrorDifference::Extra => "extra",
    }
}

/// The handle of a record, or the name of a homed prefix.
fn written(name: &ComparedName) -> (&'static str, String) {
    match name {
        ComparedName::Record(handle) => ("handle", Handle(handle).to_string()),
        ComparedName::Homed(prefix) => ("homed", String::from_utf8_lossy(prefix).into_owned()),
    }
}

fn described(one: &MirrorComparison) -> serde_json::Value {
    let differences: Vec<_> = one
        .differences
        .iter()
        .map(|(name, difference)| {
            let (kind, name) = written(name);
            json!({ kind: name, "difference": word(*difference) })
        })
        .collect();
    json!({
        "primary": one.name, "agree": one.is_equal(), "transaction": one.transaction, "records": one.records,
        "left_out": one.left_out, "changed_meanwhile": one.changed, "differences": differences,
        "more_differences": one.more,
    })
}

fn show(one: &MirrorComparison) {
    let records = output::counted(one.records, "record", "records");
    println!("{}: {records} up to its transaction {}", one.name, one.transaction);
    for (name, difference) in one.differences.iter().take(SHOWN_MAX) {
        let (kind, name) = written(name);
        let what = if kind == "homed" { "homed prefix " } else { "" };
        println!("  {}: {what}{name}", word(*difference));
    }
    let more = one.more + one.differences.len().saturating_sub(SHOWN_MAX) as u64;
    if more > 0 {
        println!("  and {}", output::counted(more, "more difference", "more differences"));
    }
    if one.left_out > 0 {
        println!("  left out, because they exceed a limit: {}", output::count(one.left_out));
    }
    if one.changed > 0 {
        println!("  changed meanwhile, and not compared: {}", output::count(one.changed));
    }
    let (of, verdict) = match one.is_equal() {
        true => (Paint::Good, "the mirror has what the primary has"),
        false => (Paint::Bad, "the mirror differs"),
    };
    println!("  {}", paint(of, verdict));
}
