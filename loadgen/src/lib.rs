//! A load generator for handle servers: intended send times, exact accounts, verified answers.
//!
//! - An open loop sends at intended times and counts response times from them, so that a stall of
//!   the server counts for all users who would have waited. The rate is never lowered silently: the
//!   report has the lag of the generator and the requests that it did not send.
//! - Every request and every received datagram is counted in exactly one account. The sums are
//!   checked at the end of each run.
//! - Answers are compared with the published set, byte for byte, also while sets are replaced.
//! - [`limit()`] measures what the machine can do without a server, so that a result can be read as
//!   a share of it.
//!
//! [`run()`] does a whole run. [`load`] decides what is requested and when, [`judge`] accounts for
//! every answer and compares it with reference data, and [`show`] presents the results. In the
//! middle, [`load::worker`] decides and counts without sockets or clocks.
//!
//! # Example
//!
//! Ten seconds of load with the names of a published set, as fast as answers arrive.
//!
//! ```no_run
//! use handle_loadgen::{NameOptions, RunOptions, run};
//! use std::ops::ControlFlow;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let names = NameOptions::Snapshot("/var/lib/handled/snapshot".into());
//! let options = RunOptions::new("127.0.0.1:2641".parse()?, names);
//! let report = run(&options, |_second| ControlFlow::Continue(()))?;
//! println!("{} requests per second", report.sent_per_s);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod cli;
pub mod clock;
mod error;
pub mod hostile;
pub mod judge;
pub mod load;
pub mod random;
pub mod read;
pub mod show;

pub use error::Error;
pub use handle_net::{DatapathChoice, pin_to_core, usable_cores};
pub use load::echo::{EchoCounts, EchoOptions, echo};
pub use load::idle::IdleStrategy;
pub use load::limit::{LimitOptions, limit};
pub use load::options::{KeySource, LoadPattern, NameOptions, ReferenceData, RunOptions, Verify};
pub use load::pattern::AccessOrder;
pub use load::question::QuestionForm;
pub use load::run::run;
pub use load::transport::{HttpVersion, Protocol, StreamTransport, Streams};
pub use show::limit_report::{LIMIT_SCHEMA, LimitReport};
pub use show::report::{RunReport, SecondCounts};
