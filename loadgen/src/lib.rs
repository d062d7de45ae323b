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
//! [`run()`] does a whole run. Below it, [`worker`] decides and counts without sockets or clocks,
//! [`schedule`] and [`workload`] determine when and what is requested, [`inflight`] and
//! [`fragments`] track it, and [`verify`] judges the answers.

#![forbid(unsafe_code)]

pub mod assertion;
pub mod clock;
pub mod comparison;
pub mod counts;
mod drive;
pub mod echo;
pub mod environment;
mod error;
pub mod expect;
pub mod expected_records;
pub mod find_max;
pub mod followed_set;
pub mod fragments;
pub mod hostile;
pub mod html;
pub mod inflight;
mod job;
pub mod latency;
pub mod limit;
pub mod live;
pub mod names;
mod options;
pub mod pacing;
pub mod pattern;
pub mod phases;
pub mod prometheus;
pub mod question;
pub mod random;
pub mod read;
pub mod recording;
pub mod replay;
pub mod report;
mod run;
pub mod schedule;
pub mod series;
mod server_key;
pub mod steps;
pub mod stream;
mod table;
pub mod verify;
pub mod worker;
pub mod workload;

pub use echo::{EchoCounts, EchoOptions, echo};
pub use error::Error;
pub use handle_net::{DatapathChoice, usable_cores};
pub use limit::{LimitOptions, LimitReport, limit};
pub use options::{Idle, KeySource, LoadPattern, NameOptions, ReferenceData, RunOptions, Verify};
pub use pattern::AccessOrder;
pub use question::QuestionForm;
pub use report::{RunReport, SecondCounts};
pub use run::run;
pub use stream::{StreamTransport, Streams};
