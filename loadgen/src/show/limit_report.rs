//! The measured limit of a machine, as data with a schema version and as text.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::read::{REPORT_LEN_MAX, check_report, whole};
use crate::show::environment::Environment;
use crate::show::human::HumanDuration;
use crate::show::latency::ResponseTimes;

/// Name and version of the schema of [`LimitReport`].
pub const LIMIT_SCHEMA: &str = "handle-loadgen/limit/1";

/// The measurement. `run --share-of` reads it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LimitReport {
    /// [`LIMIT_SCHEMA`].
    pub schema: String,
    /// The machine and the program.
    pub environment: Environment,
    /// `io_uring` or `portable`.
    pub datapath: String,
    /// Length of a request in bytes.
    pub request_len: usize,
    /// Length of an answer in bytes.
    pub answer_len: usize,
    /// Number of pending requests.
    pub window: usize,
    /// Seconds.
    pub duration_s: f64,
    /// Answers in time per second: the limit.
    pub answers_per_s: f64,
    /// Requests sent.
    pub sent: u64,
    /// Requests without an answer in time.
    pub missing: u64,
    /// Times from request to answer.
    pub service_ns: ResponseTimes,
    /// Answers of each second, for the spread.
    pub seconds_answered_per_s: Vec<f64>,
}

impl LimitReport {
    /// Reads the report of `limit --json`.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is not such a report.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = whole(path, REPORT_LEN_MAX)?;
        let other = |reason: &dyn fmt::Display| {
            Error::Option(format!("{} is not a report of `handle-loadgen limit`: {reason}", path.display()))
        };
        check_report(&text, LIMIT_SCHEMA).map_err(|reason| other(&reason))?;
        serde_json::from_slice(&text).map_err(|error| other(&error))
    }
}

impl fmt::Display for LimitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { datapath, request_len, answer_len, window, .. } = self;
        writeln!(
            f,
            "{:<12}{:.0} answers/s (closed loop, {window} pending requests)",
            "limit", self.answers_per_s
        )?;
        writeln!(f, "{:<12}{datapath}, requests of {request_len} bytes, answers of {answer_len}", "over")?;
        writeln!(f, "{:<12}{} sent, {} without an answer in time", "requests", self.sent, self.missing)?;
        let ResponseTimes { p50, p99, max, .. } = self.service_ns;
        writeln!(
            f,
            "{:<12}p50 {}, p99 {}, max {}",
            "time",
            HumanDuration(p50),
            HumanDuration(p99),
            HumanDuration(max)
        )
    }
}
