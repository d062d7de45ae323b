//! Counters of events, by kind.

use handle_proto::{OpCode, ResponseCode};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use std::fmt::Write as _;

/// The labels of a request: its operation, and the code of the answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OperationLabels {
    operation: OperationName,
    code: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct OperationName(OpCode);

impl EncodeLabelValue for OperationName {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
        encoder.write_str(&self.0.name().unwrap_or("unknown").replace(' ', "_"))
    }
}

/// Counters; all of them grow for as long as the process lives.
#[derive(Debug, Default)]
pub struct AdminCounters {
    /// Messages answered, by operation and response code.
    pub requests: Family<OperationLabels, Counter>,
    /// Answers that failed because of a store error.
    pub store_errors: Counter,
    /// Connections that were accepted.
    pub connections: Counter,
    /// Connections refused because the limit was reached.
    pub connections_refused: Counter,
    /// Connections whose place or memory was given to another.
    pub connections_evicted: Counter,
    /// Connections closed because the client neither sent nor read for too long.
    pub connections_timed_out: Counter,
    /// Requests that `handled` has forwarded.
    pub forwarded: Counter,
    /// Connections to `forward.socket` that were refused or not understood.
    pub forwarded_refused: Counter,
    /// Requests that caused a panic; the first are shown in the log.
    pub bugs: Counter,
}

impl AdminCounters {
    /// Counts an answer. All unknown operations count as one.
    pub fn answered(&self, op_code: OpCode, code: ResponseCode) {
        let known = if op_code.is_deployed() { op_code } else { OpCode::RESERVED };
        self.requests.get_or_create(&OperationLabels { operation: OperationName(known), code: code.0 }).inc();
    }

    /// All answers.
    #[must_use]
    pub fn requests_count(&self) -> u64 {
        let mut count = 0;
        for op_code in OpCode::KNOWN {
            for code in ResponseCode::KNOWN {
                let labels = OperationLabels { operation: OperationName(*op_code), code: code.0 };
                count += self.requests.get(&labels).map_or(0, |counter| counter.get());
            }
        }
        count
    }
}
