//! Counters of events, by kind.

use handle_daemon::metrics::EventCounter;
use handle_proto::{OpCode, ResponseCode};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

handle_daemon::event_counters! {
    /// Counters; all of them grow for as long as the process lives.
    pub struct AdminCounters of EventCounter, "handle_admin_" {
        /// Connections accepted.
        connections,
        /// Connections refused because of `tcp.connections` or `tcp.connections_per_source`.
        connections_refused,
        /// Connections closed to make room for another, because of `tcp.connections` or
        /// `tcp.input_bytes`.
        connections_evicted,
        /// Connections closed by a time-out, because nothing was sent or read.
        connections_timed_out,
        /// Requests that failed because of the store.
        store_errors,
        /// Requests forwarded by `handled`.
        forwarded,
        /// Connections to `local.socket` refused: users without the right, too many, or another
        /// version of frames.
        local_refused,
        /// Changes handed over by `handle-gateway`, without repetitions.
        bulk_changes,
        /// Searches of callers of `handle-gateway` for handles, by values.
        searches,
        /// Connections of programs that follow changes and did not read in time.
        changes_late,
        /// Streams for mirrors that were begun.
        streams,
        /// Streams for mirrors that were refused because of `replication.streams`.
        streams_refused,
        /// Streams for mirrors that ended early: the receiver closed the connection or was too
        /// slow.
        streams_failed,
        /// Transactions that were sent in streams.
        stream_transactions,
        /// Records that were sent in streams of all records.
        stream_records,
        /// Messages that `handle-gateway` relayed.
        relayed,
        /// Wrong secret keys, and proofs for identities that are not known.
        secret_guesses,
        /// Proofs that were not checked, because their source had sent too many wrong secret keys.
        secret_guesses_refused,
        /// Signatures of nonces refused, because their source had asked for too many.
        nonce_signatures_refused,
        /// Connections closed because too many bytes of answers were left unread.
        connections_unread,
        /// Requests that hit a bug; the log shows where.
        bugs,
    } with {
        /// Messages answered, by operation and response code.
        requests: AnswerCounts,
    }
}

/// Numbers of answers, by operation and response code.
#[derive(Debug, Default)]
pub struct AnswerCounts(Mutex<BTreeMap<(&'static str, i32), u64>>);

impl AnswerCounts {
    /// The counts that are not zero, with the name of the operation and the code.
    #[must_use]
    pub fn by_operation(&self) -> Vec<([String; 2], u64)> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let labels = |(operation, code): &(&str, i32)| [operation.replace(' ', "_"), code.to_string()];
        counts.iter().map(|(labeled, count)| (labels(labeled), *count)).collect()
    }

    /// All answers.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }
}

impl AdminCounters {
    /// Counts an answer. All unknown operations count as one.
    pub fn answered(&self, op_code: OpCode, code: ResponseCode) {
        let known = if op_code.is_deployed() { op_code } else { OpCode::RESERVED };
        let mut counts = self.requests.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry((known.name().unwrap_or("unknown"), code.0)).or_default() += 1;
    }
}
