//! What `hdl reconcile` prints.

use super::compare::{ComparedRecords, Difference, Finding};
use super::repair::RepairOutcome;
use super::table::ListingScope;
use super::{Args, ReconcileSide, ReconcileSides};
use crate::output;
use handle_proto::Handle;
use serde_json::json;
use std::time::Duration;

/// Number of findings so far.
#[derive(Default)]
pub(super) struct ReconcileCounts {
    missing: u64,
    different: u64,
    extra: u64,
    unanswered: u64,
    repaired: u64,
    not_repaired: u64,
}

/// Prints a finding.
pub(super) fn show(finding: &Finding, repaired: Option<&RepairOutcome>, is_json: bool) {
    let handle = Handle(&finding.handle).to_string();
    let (name, detail) = match &finding.difference {
        Difference::Missing => ("missing", String::new()),
        Difference::Different(indexes) => {
            let shown: Vec<_> = indexes.iter().map(i32::to_string).collect();
            let word = if indexes.len() == 1 { "index" } else { "indexes" };
            ("different", format!(": {word} {}", shown.join(", ")))
        }
        Difference::Extra => ("extra", String::new()),
        Difference::Unanswered(why) => ("unanswered", format!(": {why}")),
        Difference::NotHomed => return,
    };
    if is_json {
        let mut json = json!({ "handle": handle, "difference": name });
        match &finding.difference {
            Difference::Different(indexes) => json["indexes"] = json!(indexes),
            Difference::Unanswered(why) => json["error"] = json!(why),
            Difference::Missing | Difference::Extra | Difference::NotHomed => {}
        }
        match repaired {
            Some(RepairOutcome::Repaired) => json["repaired"] = true.into(),
            Some(RepairOutcome::Refused(why)) => {
                (json["repaired"], json["error"]) = (false.into(), why.as_str().into());
            }
            None => {}
        }
        println!("{}", output::json_line(&json));
        return;
    }
    let repaired = match repaired {
        Some(RepairOutcome::Repaired) => " (repaired)".to_owned(),
        Some(RepairOutcome::Refused(why)) => format!(" (not repaired: {why})"),
        None => String::new(),
    };
    println!("{name:10}  {handle}{detail}{repaired}");
}

impl ReconcileCounts {
    pub(super) const fn add(&mut self, finding: &Finding, repaired: Option<&RepairOutcome>) {
        let count = match finding.difference {
            Difference::Missing => &mut self.missing,
            Difference::Different(_) => &mut self.different,
            Difference::Extra => &mut self.extra,
            Difference::Unanswered(_) => &mut self.unanswered,
            Difference::NotHomed => return,
        };
        *count += 1;
        match repaired {
            Some(RepairOutcome::Repaired) => self.repaired += 1,
            Some(RepairOutcome::Refused(_)) => self.not_repaired += 1,
            None => {}
        }
    }

    /// Whether nothing differs any more.
    pub(super) const fn are_good(&self) -> bool {
        self.missing + self.different + self.extra + self.unanswered == self.repaired
    }

    pub(super) fn show(&self, args: &Args, sides: &ReconcileSides, all: &ComparedRecords, took: Duration) {
        let (compared, left_out) = (all.count, &all.left_out);
        let looks_for_extra = sides.found.is_some();
        let requests =
            [Some(&sides.wanted), sides.found.as_ref()].into_iter().flatten().find_map(|side| match side {
                ReconcileSide::Peer(peer) => Some(peer.requests_count()),
                ReconcileSide::Table(_) => None,
            });
        let is_of_prefixes = |side: &ReconcileSide| match side {
            ReconcileSide::Table(table) => table.listing() == Some(ListingScope::Prefixes),
            ReconcileSide::Peer(_) => false,
        };
        let lists_prefixes =
            is_of_prefixes(&sides.wanted) || sides.found.as_ref().is_some_and(is_of_prefixes);
        let (not_homed, not_listed) = if lists_prefixes { (0, left_out.count) } else { (left_out.count, 0) };
        if args.json {
            let json = json!({
                "compared": compared, "not_homed": not_homed, "not_listed": not_listed, "missing": self.missing, "different": self.different,
                "extra": looks_for_extra.then_some(self.extra), "unanswered": self.unanswered,
                "repaired": self.repaired, "not_repaired": self.not_repaired,
                "requests_to_the_other_machine": requests, "seconds": took.as_secs_f64(),
            });
            println!("{}", output::json_line(&json));
            return;
        }
        let extra = match looks_for_extra {
            true => format!("{} extra", output::count(self.extra)),
            false => "extra handles not looked for".to_owned(),
        };
        let unanswered = match self.unanswered {
            0 => String::new(),
            count => format!(", {} not answered", output::count(count)),
        };
        if left_out.count > 0 {
            let names: Vec<_> = left_out.first.iter().map(|key| Handle(key).to_string()).collect();
            let more = if left_out.count > names.len() as u64 { ", ..." } else { "" };
            let why = if lists_prefixes { "of other prefixes" } else { "not homed" };
            println!("{} {why} and left out: {}{more}", output::count(left_out.count), names.join(", "));
        }
        let repaired = match args.repair {
            true => format!(
                "; {} repaired, {} not",
                output::count(self.repaired),
                output::count(self.not_repaired)
            ),
            false => String::new(),
        };
        let requests = requests
            .map(|count| format!(", {} to the other machine", output::counted(count, "request", "requests")));
        println!(
            "{} compared: {} missing, {} different, {extra}{unanswered}{repaired}, in {:.1} s ({}/s{})",
            output::counted(compared, "handle", "handles"),
            output::count(self.missing),
            output::count(self.different),
            took.as_secs_f64(),
            output::rate(compared, took),
            requests.unwrap_or_default(),
        );
    }
}
