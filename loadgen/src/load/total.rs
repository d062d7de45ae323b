//! The combined results of the threads of a run.

use crate::judge::counts::AnswerCounts;
use crate::judge::verify::Mismatch;
use crate::load::pacing::Pacing;
use crate::load::stream::StreamObservations;
use crate::show::latency::Latency;
use crate::show::steps::Steps;

/// The combined results of all threads.
#[derive(Debug, Default)]
pub(crate) struct RunTotal {
    pub(crate) counts: AnswerCounts,
    pub(crate) latency: Latency,
    pub(crate) pacing: Pacing,
    pub(crate) steps: Steps,
    pub(crate) mismatches: Vec<Mismatch>,
    pub(crate) staleness_max_ns: i64,
    pub(crate) sending_ns: u64,
    pub(crate) streams: Option<StreamObservations>,
}
