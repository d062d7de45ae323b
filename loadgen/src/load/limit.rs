//! Measures the limit of this machine's UDP stack, between one client core and one server core.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use handle_net::DatapathChoice;

use crate::error::Error;
use crate::load::echo::{EchoOptions, echo};
use crate::load::options::{LoadPattern, NameOptions, RunOptions};
use crate::load::run::run;
use crate::load::workload::{REQUEST_HANDLE_LEN_MAX, REQUEST_OVERHEAD_LEN};
use crate::show::limit_report::{LIMIT_SCHEMA, LimitReport};
use crate::show::report::SecondCounts;

/// The options of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct LimitOptions {
    /// Length of a request in bytes.
    pub request_len: usize,
    /// Length of an answer in bytes.
    pub answer_len: usize,
    /// Duration.
    pub duration: Duration,
    /// Number of pending requests.
    pub window: usize,
    /// How datagrams are moved, on both sides.
    pub datapath: DatapathChoice,
    /// The core of the client and the core of the server; `None` leaves it to the system.
    pub cores: Option<(usize, usize)>,
}

/// Measures the limit.
///
/// # Errors
///
/// If a socket or a core cannot be used, a length is invalid, or `progress` stops it.
pub fn limit(
    options: &LimitOptions,
    mut progress: impl FnMut(&SecondCounts) -> ControlFlow<()>,
) -> Result<LimitReport, Error> {
    let handle_len = options.request_len.checked_sub(REQUEST_OVERHEAD_LEN);
    let Some(handle_len) = handle_len.filter(|len| (1..=REQUEST_HANDLE_LEN_MAX).contains(len)) else {
        let max = REQUEST_OVERHEAD_LEN + REQUEST_HANDLE_LEN_MAX;
        let min = REQUEST_OVERHEAD_LEN + 1;
        return Err(Error::Option(format!("--request-len must be {min} to {max}")));
    };
    let stop = AtomicBool::new(false);
    let echo_options = EchoOptions {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        answer_len: Some(options.answer_len),
        datapath: options.datapath,
        core: options.cores.map(|(_, core)| core),
    };
    thread::scope(|scope| {
        let (ready_in, ready) = channel();
        let server = scope.spawn(|| {
            let ready_in = ready_in;
            let send_address = |address, _, _: &str| {
                // The receiver is gone only if this thread has failed.
                let _ = ready_in.send(address);
            };
            echo(&echo_options, &stop, send_address, |_| {})
        });
        let mut is_stopped = false;
        let report = ready.recv().ok().map(|target| {
            let run_options = RunOptions {
                load: LoadPattern::Closed { window: options.window },
                duration: options.duration,
                cores: options.cores.map(|(core, _)| core).into_iter().collect(),
                datapath: options.datapath,
                ..RunOptions::new(target, NameOptions::List(vec![vec![b'x'; handle_len]]))
            };
            run(&run_options, |second| {
                let go_on = progress(second);
                is_stopped = go_on.is_break();
                go_on
            })
        });
        stop.store(true, Ordering::Relaxed);
        let served = server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // Without an address there is no run; the error of the server says why.
        let Some(report) = report else {
            return Err(served.expect_err("the server was never ready"));
        };
        served?;
        let report = report?;
        // Half a measurement cannot be compared with others.
        if is_stopped {
            return Err(Error::Stopped);
        }
        Ok(LimitReport {
            schema: LIMIT_SCHEMA.to_owned(),
            environment: report.environment,
            datapath: report.setting.datapath,
            request_len: options.request_len,
            answer_len: options.answer_len,
            window: options.window,
            duration_s: report.setting.duration_s,
            answers_per_s: report.answered_per_s,
            sent: report.accounts.sent,
            missing: report.accounts.sent - report.accounts.answered,
            service_ns: report.service_ns,
            seconds_answered_per_s: report
                .seconds
                .iter()
                .filter(|second| second.sent > 0)
                .map(|second| second.answered_per_s)
                .collect(),
        })
    })
}
