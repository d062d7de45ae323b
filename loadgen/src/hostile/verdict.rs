//! The findings, for people and as files for build servers: JSON and JUnit XML.

use std::fmt::{self, Write as _};

use handle_auth::clock::now_unix_ms;
use serde::Serialize;

use super::{HostileCase, HostileOptions, KINDS, MutationKind, ServerFault};
use crate::show::environment::Environment;
use crate::show::human::counted;

/// Name and version of the schema of [`HostileReport`].
pub const HOSTILE_SCHEMA: &str = "handle-loadgen/hostile/1";

/// The result of a hostile run.
#[derive(Clone, Debug, Serialize)]
pub struct HostileReport {
    /// [`HOSTILE_SCHEMA`].
    pub schema: &'static str,
    /// The machine and the program.
    pub environment: Environment,
    /// The server.
    pub target: String,
    /// `udp` or `tcp`.
    pub transport: &'static str,
    /// Start time, Unix milliseconds.
    pub started_unix_ms: u64,
    /// The seed of the cases.
    pub seed: u64,
    /// Seconds.
    pub duration_s: f64,
    /// Whether the user stopped it before its end.
    pub is_stopped: bool,
    /// Cases by kind.
    pub kinds: Vec<KindCount>,
    /// The findings.
    pub findings: Vec<HostileFinding>,
}

/// The number of cases of a kind.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct KindCount {
    /// The kind.
    pub kind: MutationKind,
    /// Cases.
    pub cases: u64,
    /// Cases with an answer.
    pub answered: u64,
}

/// A case with a fault.
#[derive(Clone, Debug, Serialize)]
pub struct HostileFinding {
    /// Its number; with the seed it can be generated again.
    pub case: u64,
    /// The mutation of the request.
    pub kind: MutationKind,
    /// The fault.
    pub fault: ServerFault,
    /// Whether the fault was repeated when the case was sent again.
    pub is_repeatable: bool,
    /// Whether the server did not recover.
    pub is_dead: bool,
    /// The datagrams as sent.
    pub datagrams_hex: Vec<String>,
    /// The minimised datagrams, if minimisation succeeded.
    pub minimal_hex: Option<Vec<String>>,
}

fn hex(datagrams: &[Vec<u8>]) -> Vec<String> {
    datagrams.iter().map(|datagram| data_encoding::HEXLOWER.encode(datagram)).collect()
}

impl HostileFinding {
    pub(super) fn new(number: u64, case: &HostileCase, fault: ServerFault) -> Self {
        Self {
            case: number,
            kind: case.kind,
            fault,
            is_repeatable: false,
            is_dead: false,
            datagrams_hex: hex(&case.datagrams),
            minimal_hex: None,
        }
    }

    pub(super) fn minimised(&mut self, datagrams: &[Vec<u8>]) {
        self.minimal_hex = Some(hex(datagrams));
    }
}

impl HostileReport {
    pub(super) fn new(options: &HostileOptions) -> Self {
        Self {
            schema: HOSTILE_SCHEMA,
            environment: Environment::read(),
            target: options.target.to_string(),
            transport: if options.over_tcp { "tcp" } else { "udp" },
            started_unix_ms: now_unix_ms(),
            seed: options.seed,
            duration_s: 0.0,
            is_stopped: false,
            kinds: KINDS.map(|kind| KindCount { kind, cases: 0, answered: 0 }).into(),
            findings: Vec::new(),
        }
    }

    pub(super) fn count(&mut self, kind: MutationKind, is_answered: bool) {
        for count in self.kinds.iter_mut().filter(|count| count.kind == kind) {
            count.cases += 1;
            count.answered += u64::from(is_answered);
        }
    }

    /// Adds a finding, unless its minimised bytes equal those of another.
    pub(super) fn add(&mut self, finding: HostileFinding) {
        let is_known = |known: &HostileFinding| {
            known.fault == finding.fault
                && known.minimal_hex.is_some()
                && known.minimal_hex == finding.minimal_hex
        };
        if !self.findings.iter().any(is_known) {
            self.findings.push(finding);
        }
    }

    /// The result as JUnit XML: a test for each kind, which fails with each finding of it.
    #[must_use]
    pub fn junit(&self) -> String {
        let failed = |kind: MutationKind| self.findings.iter().filter(move |finding| finding.kind == kind);
        let failures = KINDS.iter().filter(|kind| failed(**kind).next().is_some()).count();
        let date = jiff::Timestamp::from_millisecond(self.started_unix_ms.cast_signed()).unwrap_or_default();
        let (tests, time, date) = (KINDS.len(), self.duration_s, date.strftime("%Y-%m-%dT%H:%M:%S"));
        let sums = format!(
            "tests=\"{tests}\" failures=\"{failures}\" errors=\"0\" skipped=\"0\" time=\"{time:.3}\""
        );
        // Writing to a string does not fail; here and below.
        let mut xml = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"handle-loadgen\" {sums}>\n\
             <testsuite name=\"handle-loadgen hostile {}\" {sums} timestamp=\"{date}\">\n",
            self.target
        );
        for count in &self.kinds {
            // The time of each kind is not measured, but some readers require a number.
            let _ = write!(
                xml,
                "  <testcase classname=\"handle-loadgen.hostile\" name=\"{:?}\" time=\"0\"",
                count.kind
            );
            let findings: Vec<_> = failed(count.kind).collect();
            let Some(first) = findings.first() else {
                xml.push_str("/>\n");
                continue;
            };
            // One failure with all findings: most readers use the first and ignore the others.
            let others =
                if findings.len() > 1 { format!(" ({} findings)", findings.len()) } else { String::new() };
            let _ = writeln!(
                xml,
                ">\n    <failure type=\"{:?}\" message=\"{}{others}\">",
                first.fault, first.fault
            );
            for finding in findings {
                let _ = writeln!(xml, "{finding}");
            }
            xml.push_str("</failure>\n  </testcase>\n");
        }
        xml.push_str("</testsuite>\n</testsuites>\n");
        xml
    }
}

impl fmt::Display for HostileFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let repeatable = if self.is_repeatable { "repeatable" } else { "not repeatable" };
        let dead = if self.is_dead { ", and did not recover" } else { "" };
        let bytes = self.minimal_hex.as_ref().unwrap_or(&self.datagrams_hex).join(" ");
        write!(f, "case {} ({:?}): {}{dead}; {repeatable}: {bytes}", self.case, self.kind, self.fault)
    }
}

impl fmt::Display for HostileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cases: u64 = self.kinds.iter().map(|count| count.cases).sum();
        let Self { target, transport, duration_s, seed, .. } = self;
        writeln!(
            f,
            "{} against {target} over {transport} in {duration_s:.1} s, seed {seed}",
            counted(cases, "case", "cases")
        )?;
        for KindCount { kind, cases, answered } in &self.kinds {
            writeln!(f, "  {:<12}{cases:>9} sent {answered:>9} answered", format!("{kind:?}"))?;
        }
        if self.is_stopped {
            writeln!(f, "STOPPED early: other cases were not tried")?;
        }
        if self.findings.is_empty() {
            return writeln!(f, "the server answered the plain question after each case");
        }
        self.findings.iter().try_for_each(|finding| writeln!(f, "FOUND {finding}"))
    }
}
