//! The results of a run as lines and tables for people.

use std::fmt;

use handle_proto::printable::Printable;

use crate::load::stream::ConnectionCounts;
use crate::show::human::{HumanDuration, counted};
use crate::show::latency::ResponseTimes;
use crate::show::report::{
    Accounts, ReportSetting, RunReport, SecondCounts, StatusCount, VerificationReport,
};
use crate::show::steps::PhaseStep;

/// The time of `count` samples; a dash if there are none.
fn measured(ns: u64, count: u64) -> String {
    if count == 0 { "-".to_owned() } else { HumanDuration(ns).to_string() }
}

impl fmt::Display for SecondCounts {
    /// The line of each second during a run.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:6.1}s  {:>8.0}/s sent  {:>8.0}/s answered  lost {}  p50 {}  p99 {}  max {}  lag {}",
            self.elapsed_s,
            self.sent_per_s,
            self.answered_per_s,
            self.lost_so_far,
            measured(self.response_p50_ns, self.answered),
            measured(self.response_p99_ns, self.answered),
            measured(self.response_max_ns, self.answered),
            measured(self.lag_max_ns, self.sent),
        )?;
        if self.late > 0 {
            write!(f, "  late {}", self.late)?;
        }
        if self.mismatched > 0 {
            write!(f, "  WRONG {}", self.mismatched)?;
        }
        Ok(())
    }
}

impl fmt::Display for ReportSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (threads, path) = (counted(self.threads as u64, "thread", "threads"), &self.datapath);
        writeln!(f, "{:<12}{} over {}, {path}, {threads}", "target", self.target, self.transport)?;
        write!(f, "{:<12}{}", "load", self.model)?;
        match (self.rate, self.window) {
            (Some(rate), _) => write!(f, " at {rate}/s")?,
            (_, Some(window)) => write!(f, " with {window} pending per thread")?,
            _ => {}
        }
        if let Some(schedule) = &self.schedule {
            write!(f, ", {schedule}")?;
        }
        if self.arrivals == Some("poisson") {
            f.write_str(", at random (Poisson)")?;
        }
        writeln!(f, ", {} s, timeout {} ms", self.duration_s, self.timeout_ms)?;
        write!(f, "{:<12}{} from {}", "handles", self.handles, Printable(&self.names))?;
        if self.handles_in_source > self.handles as u64 {
            write!(f, ", a sample of {}", self.handles_in_source)?;
        }
        if self.handles_too_long > 0 {
            write!(f, ", {} too long and left out", self.handles_too_long)?;
        }
        if self.handles_not_homed > 0 {
            write!(f, ", {} not homed and left out", self.handles_not_homed)?;
        }
        if let Some(skipped @ 1..) = self.skipped {
            write!(f, ", {} skipped", counted(skipped, "packet or line", "packets or lines"))?;
        }
        writeln!(f, ", {}, seed {}", self.pattern, self.seed)?;
        if self.forms != ["1=plain"] {
            writeln!(f, "{:<12}{}", "requests", self.forms.join(", "))?;
        }
        Ok(())
    }
}

impl fmt::Display for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, depth: usize, name: &str, count: u64| {
            let width = 24 - 2 * depth;
            writeln!(f, "{:1$}{name:<width$}{count:>12}", "", 2 * depth)
        };
        row(f, 0, "scheduled", self.scheduled)?;
        row(f, 1, "not sent", self.not_sent)?;
        for (name, count) in [
            ("behind schedule", self.behind_schedule),
            ("refused by kernel", self.refused),
            ("send queue full", self.blocked),
        ] {
            if count > 0 {
                row(f, 2, name, count)?;
            }
        }
        row(f, 1, "sent", self.sent)?;
        row(f, 2, "lost", self.lost)?;
        if self.duplicate_only > 0 {
            row(f, 2, "duplicate only", self.duplicate_only)?;
        }
        row(f, 2, "late", self.late)?;
        row(f, 2, "answered", self.answered)?;
        for code in &self.codes {
            row(f, 3, &format!("{} {}", code.code, code.name), code.count)?;
        }
        for (name, count) in [("malformed", self.malformed), ("truncated", self.truncated)] {
            if count > 0 {
                row(f, 3, name, count)?;
            }
        }
        row(f, 0, "duplicates", self.duplicates)?;
        row(f, 0, "unmatched", self.unmatched)?;
        row(f, 0, "dropped at socket", self.kernel_drops)?;
        for (name, count) in [
            ("repeated fragments", self.fragment_duplicates),
            ("incomplete, dropped", self.fragments_dropped),
        ] {
            if count > 0 {
                row(f, 0, name, count)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for VerificationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { truth, verified, mismatched, undecided, generations, generations_missed, .. } = self;
        writeln!(
            f,
            "{:<12}{verified} right, {mismatched} wrong, {undecided} undecided, reference: {truth}",
            "verified"
        )?;
        // Only published sets have generations.
        if *generations > 0 {
            let (oldest_ms, allowed_ms) = (self.staleness_max_ms, self.staleness_allowed_ms);
            writeln!(
                f,
                "{:<12}{} seen, {generations_missed} missed; oldest answer {oldest_ms:.1} ms stale (allowed {allowed_ms})",
                "",
                counted(*generations, "generation", "generations")
            )?;
        }
        if self.unjudged > 0 {
            writeln!(f, "{:<12}{} not compared (outside of the sample)", "", self.unjudged)?;
        }
        for mismatch in &self.mismatches {
            writeln!(f, "  wrong: {}: {}", Printable(&mismatch.handle), Printable(&mismatch.difference))?;
        }
        Ok(())
    }
}

impl fmt::Display for ConnectionCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { begun, established, failed, closed_early, given_up, unreadable } = self;
        write!(f, "{begun} started, {established} established")?;
        for (count, label) in [
            (failed, "failed"),
            (closed_early, "closed with a pending request"),
            (given_up, "given up after a timeout"),
            (unreadable, "closed after undecodable data"),
        ] {
            if *count > 0 {
                write!(f, ", {count} {label}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for RunReport {
    /// The final table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n{}", self.setting, self.accounts)?;
        let names = ["", "p50", "p90", "p99", "p99.9", "max", "mean"];
        write!(f, "{:<16}", names[0])?;
        names[1..].iter().try_for_each(|name| write!(f, "{name:>10}"))?;
        writeln!(f)?;
        let schedule_error = Some(("schedule error", &self.schedule_error_ns));
        let rows = [("response time", &self.response_ns), ("service time", &self.service_ns)];
        for (name, times) in rows.into_iter().chain(schedule_error.filter(|(_, times)| times.count > 0)) {
            write!(f, "{name:<16}")?;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a mean of times")]
            let mean = times.mean as u64;
            for ns in [times.p50, times.p90, times.p99, times.p99_9, times.max, mean] {
                write!(f, "{:>10}", measured(ns, times.count))?;
            }
            writeln!(f)?;
        }
        // Requests without an answer in time are not among these times, so the table names them.
        let untimed = self.accounts.sent.saturating_sub(self.accounts.answered);
        if untimed > 0 {
            let sent = self.accounts.sent;
            writeln!(f, "{:<16}of answers in time; without one: {untimed} of {sent} requests", "")?;
        }
        writeln!(
            f,
            "\n{:<12}{:.0}/s sent, {:.0}/s answered ({})",
            "rate", self.sent_per_s, self.answered_per_s, self.setting.model
        )?;
        self.write_connections(f)?;
        self.write_steps(f)?;
        if let Some(share) = &self.share {
            let (percent, limit) = (share.share * 100.0, share.limit_answers_per_s);
            writeln!(f, "{:<12}{percent:.1} % of the limit of this machine ({limit:.0}/s)", "share")?;
        }
        if let Some(verification) = &self.verification {
            write!(f, "{verification}")?;
        }
        for reason in &self.invalid {
            writeln!(f, "{:<12}{reason}", "INVALID")?;
        }
        for judged in &self.assertions {
            writeln!(f, "{:<12}{judged}", if judged.holds { "assertion" } else { "FAILED" })?;
        }
        Ok(())
    }
}

impl RunReport {
    /// The connections, for transports with connections.
    fn write_connections(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(counts) = &self.connections else { return Ok(()) };
        writeln!(f, "{:<12}{counts}", "connections")?;
        if let Some(failure) = &self.first_failure {
            writeln!(f, "{:<12}first failure: {}", "", Printable(failure))?;
        }
        if !self.statuses.is_empty() {
            let statuses =
                self.statuses.iter().map(|StatusCount { status, count }| format!("{status} {count}"));
            writeln!(f, "{:<12}{}", "statuses", statuses.collect::<Vec<_>>().join(", "))?;
        }
        let Some(streams) = &self.setting.streams else { return Ok(()) };
        // Connections were replaced several times, though none had a request limit.
        let slots = (streams.connections * self.setting.threads) as u64;
        if streams.requests == 0 && counts.closed_early > 0 && counts.established > 2 * slots {
            let hint = "if the server closes after each answer, pass --per-connection 1";
            writeln!(f, "{:<12}{hint}", "")?;
        }
        Ok(())
    }

    /// A line for each phase of a schedule with several phases.
    fn write_steps(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            let PhaseStep {
                rate_from,
                rate_to,
                sent,
                response_ns: ResponseTimes { count, p50, p99, .. },
                ..
            } = step;
            let rate = if rate_from == rate_to {
                format!("{rate_from}/s")
            } else {
                format!("{rate_from}..{rate_to}/s")
            };
            writeln!(
                f,
                "{:<12}{rate:>16}  {sent:>10} sent  {:>9.0}/s answered  loss {:.3} %  p50 {}  p99 {}  lag p99 {}",
                "step",
                step.answered_per_s,
                step.loss() * 100.0,
                measured(*p50, *count),
                measured(*p99, *count),
                measured(step.schedule_error_ns.p99, step.schedule_error_ns.count),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_without_an_answer_was_not_a_fast_one() {
        let silent = SecondCounts { sent: 5, sent_per_s: 5.0, lag_max_ns: 1000, ..SecondCounts::default() };
        assert!(silent.to_string().ends_with("lost 0  p50 -  p99 -  max -  lag 1.00 us"), "{silent}");
        let mut report = crate::show::report::tests::report();
        (report.response_ns, report.service_ns) = (ResponseTimes::default(), ResponseTimes::default());
        let text = report.to_string();
        assert!(text.contains(" of answers in time; without one: 20 of 2000 requests\n"), "{text}");
        let row = text.lines().find(|line| line.starts_with("response time")).unwrap();
        assert_eq!(row.split_whitespace().skip(2).collect::<Vec<_>>(), ["-"; 6], "{text}");
    }

    #[test]
    fn times_have_three_digits_and_a_unit() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 us"),
            (9_994, "9.99 us"),
            (9_996, "10.0 us"),
            (99_960, "100 us"),
            (1_234_567, "1.23 ms"),
            (2_000_000_000, "2.00 s"),
            (90_000_000_000, "90.0 s"),
        ] {
            assert_eq!(HumanDuration(ns).to_string(), text);
        }
    }
}
