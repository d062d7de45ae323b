//! Hostile requests over the network, against any server. After each, the server must be alive, and
//! its answers must be sound.
//!
//! Cases are sent one at a time. The answer is checked, and a plain question must be answered
//! before the next case. A case that breaks the server is minimised and kept. Cases are generated
//! from a seed, at a limited rate.

mod attack;
mod minimise;
mod mutate;
mod verdict;

use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::load::options::RunOptions;
use crate::random::RandomGenerator;
use attack::Attack;
pub use attack::ServerFault;
pub use mutate::{HostileCase, KINDS, MutationKind};
pub use verdict::{HOSTILE_SCHEMA, HostileFinding, HostileReport, KindCount};

/// The options of a hostile run.
#[derive(Clone, Debug)]
pub struct HostileOptions {
    /// The server.
    pub target: SocketAddr,
    /// Use connections instead of datagrams.
    pub over_tcp: bool,
    /// A handle of the server, for the probe that shows whether it is alive.
    pub probe: Vec<u8>,
    /// Maximum number of cases; 0 for no limit.
    pub cases: u64,
    /// Duration.
    pub duration: Duration,
    /// Maximum number of cases per second, including those of minimisation.
    pub rate: u32,
    /// Time limit for an answer, also for the probe.
    pub timeout: Duration,
    /// Time limit for the recovery of a broken server.
    pub recovery: Duration,
    /// Seed for the cases.
    pub seed: u64,
    /// Stop after this many findings.
    pub findings_max: usize,
    /// Allows addresses that are neither loopback nor private.
    pub is_allowed: bool,
}

impl HostileOptions {
    /// The defaults of the command line.
    #[must_use]
    pub const fn new(target: SocketAddr, probe: Vec<u8>) -> Self {
        Self {
            target,
            over_tcp: false,
            probe,
            cases: 0,
            duration: Duration::from_secs(60),
            rate: 500,
            timeout: Duration::from_millis(500),
            recovery: Duration::from_secs(10),
            seed: 1,
            findings_max: 10,
            is_allowed: false,
        }
    }
}

/// Whether an address is loopback, private, link-local or unique local.
#[must_use]
pub fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_private() || v4.is_link_local(),
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => is_private(v4.into()),
            None => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
        },
    }
}

/// The progress of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostileProgress {
    /// Cases sent.
    pub cases: u64,
    /// Cases with an answer.
    pub answered: u64,
    /// Number of findings.
    pub findings: usize,
}

/// The time limit, and the receiver of the progress.
struct HostileCourse<'a> {
    until: Instant,
    reported_at: Instant,
    state: HostileProgress,
    is_stopped: bool,
    progress: &'a mut dyn FnMut(HostileProgress) -> ControlFlow<()>,
}

impl HostileCourse<'_> {
    /// Reports the progress about once a second; returns whether the user stopped it.
    fn is_stopped(&mut self) -> bool {
        if !self.is_stopped && self.reported_at.elapsed() >= Duration::from_secs(1) {
            self.reported_at = Instant::now();
            self.is_stopped = (self.progress)(self.state).is_break();
        }
        self.is_stopped
    }

    /// Whether the user stopped it or the time is over.
    fn is_over(&mut self) -> bool {
        self.is_stopped() || Instant::now() >= self.until
    }
}

/// Sends cases until the time is over, and calls `progress` about once a second.
///
/// # Errors
///
/// If the address is public, the options are invalid, the server does not answer the first probe,
/// or a socket cannot be used.
pub fn hostile(
    options: &HostileOptions,
    mut progress: impl FnMut(HostileProgress) -> ControlFlow<()>,
) -> Result<HostileReport, Error> {
    check(options)?;
    let mut attack = Attack::open(options).map_err(Error::Open)?;
    if !attack.is_alive().map_err(Error::Open)? {
        let target = options.target;
        return Err(Error::Option(format!(
            "{target} does not answer the plain question (check that the server is running and has the --probe handle)"
        )));
    }
    let mut report = HostileReport::new(options);
    let started = Instant::now();
    let mut course = HostileCourse {
        until: started + options.duration,
        reported_at: started,
        state: HostileProgress::default(),
        is_stopped: false,
        progress: &mut progress,
    };
    let mut random = RandomGenerator::new(options.seed, 0);
    let is_enough = |cases: u64| options.cases > 0 && cases >= options.cases;
    while !is_enough(course.state.cases) && !course.is_over() {
        let case = HostileCase::make(&options.probe, &mut random);
        let outcome = attack.run_case(&case).map_err(Error::Open)?;
        course.state.cases += 1;
        course.state.answered += u64::from(outcome.is_answered);
        report.count(case.kind, outcome.is_answered);
        if let Some(fault) = outcome.fault {
            let finding = follow_up(&mut attack, options, &mut course, case, fault).map_err(Error::Open)?;
            let is_dead = finding.is_dead;
            report.add(finding);
            course.state.findings = report.findings.len();
            if is_dead || course.state.findings >= options.findings_max {
                break;
            }
        }
    }
    report.duration_s = started.elapsed().as_secs_f64();
    report.is_stopped = course.is_stopped;
    Ok(report)
}

fn check(options: &HostileOptions) -> Result<(), Error> {
    let option = |bad: bool, reason: &str| if bad { Err(Error::Option(reason.to_owned())) } else { Ok(()) };
    let target = options.target.ip();
    if !options.is_allowed && !is_private(target) {
        let hint = "pass --i-am-allowed-to if its operator agrees";
        return Err(Error::Option(format!(
            "refusing to attack {target}: neither a loopback nor a private address; {hint}"
        )));
    }
    option(options.rate == 0 || options.rate > 1_000_000, "--rate must be 1 to 1000000")?;
    option(
        options.probe.is_empty() || options.probe.len() > 400,
        "--probe must be a handle of 1 to 400 bytes",
    )?;
    option(
        options.timeout.is_zero() || options.timeout > RunOptions::TIMEOUT_MAX,
        "--timeout must be greater than 0, at most 60s",
    )?;
    option(
        options.duration.is_zero() || options.duration > RunOptions::DURATION_MAX,
        "--duration must be greater than 0, at most a week",
    )?;
    option(options.recovery > RunOptions::DURATION_MAX, "--recovery must be at most a week")?;
    option(options.findings_max == 0, "--findings must be greater than 0")
}

/// Waits until the server recovers, and minimises the case while there is time.
fn follow_up(
    attack: &mut Attack,
    options: &HostileOptions,
    course: &mut HostileCourse<'_>,
    case: HostileCase,
    fault: ServerFault,
) -> std::io::Result<HostileFinding> {
    let mut finding = HostileFinding::new(course.state.cases, &case, fault);
    if !attack.recovers(options.recovery, || course.is_stopped())? {
        // An interrupted wait proves nothing.
        finding.is_dead = !course.is_stopped;
        return Ok(finding);
    }
    let breaks = |attack: &mut Attack, course: &mut HostileCourse<'_>, datagrams: &[Vec<u8>]| {
        let repeated = HostileCase { kind: case.kind, datagrams: datagrams.to_vec() };
        let is_same_fault = attack.run_case(&repeated)?.fault == Some(fault);
        let is_back = !is_same_fault || attack.recovers(options.recovery, || course.is_stopped())?;
        Ok::<_, std::io::Error>((is_same_fault, is_back))
    };
    if course.is_over() {
        return Ok(finding);
    }
    let (is_same, is_back) = breaks(attack, course, &case.datagrams)?;
    finding.is_repeatable = is_same;
    finding.is_dead = !is_back && !course.is_stopped;
    if is_same && is_back {
        let mut is_cut = false;
        let (minimal, is_back) = minimise::minimise(case.datagrams.clone(), |datagrams| {
            is_cut = course.is_over();
            if is_cut { Ok((false, false)) } else { breaks(attack, course, datagrams) }
        })?;
        finding.minimised(&minimal);
        finding.is_dead = !is_back && !is_cut && !course.is_stopped;
    }
    Ok(finding)
}

#[cfg(test)]
mod tests;
