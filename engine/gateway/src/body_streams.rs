//! Bodies that are made in parts, within the bounds of the process, and the tasks that make them.

use crate::answers::{AnswerLimits, CountedAnswer, STREAM_LEN};
use crate::state::GatewayState;
use crate::stream::{BodySender, ResponseBody, WAITING_LEN};
use handle_daemon::permits::PermitLimits;
use std::net::IpAddr;
use std::sync::Arc;

/// How many requests for many changes may have as many results waiting as one may.
const RESULTS_MAX: usize = 4;

impl ResponseBody {
    /// A body in parts for a client at `source`, and its sender. `None` if too many answers wait
    /// for this client or for all.
    #[must_use]
    pub fn streamed(state: &GatewayState, source: IpAddr) -> Option<(BodySender, Self)> {
        let limits = state.settings.current().limits.answers();
        let answer = CountedAnswer::begin(&state.answers, source, STREAM_LEN, limits);
        let streamed = answer.map(|answer| Self::streamed_as(answer, WAITING_LEN));
        if streamed.is_none() {
            state.answers.note_refusal();
        }
        streamed
    }

    /// A body with the results of changes by a proven caller, and its sender. Its bytes are not
    /// those of strangers, and [`result_bytes`](crate::config::BulkLimits::result_bytes) of them
    /// may wait for a client that sends first.
    #[must_use]
    pub fn of_results(state: &GatewayState, source: IpAddr) -> Option<(BodySender, Self)> {
        let settings = state.settings.current();
        let waiting_len = settings.bulk.result_bytes;
        let bytes = waiting_len.saturating_mul(RESULTS_MAX);
        let bytes = PermitLimits { all: bytes, per_holder: bytes };
        let limits = AnswerLimits { bytes, ..settings.limits.answers() };
        let answer = CountedAnswer::begin(&state.writing.results, source, 0, limits)?;
        Some(Self::streamed_as(answer, waiting_len))
    }
}

/// Runs `work`, which makes the body of a response, beside the connection. A panic in it is counted
/// as a bug.
pub fn spawn(state: &Arc<GatewayState>, work: impl Future<Output = ()> + Send + 'static) {
    let guard = TaskGuard(Arc::clone(state));
    tokio::spawn(async move {
        let _guard = guard;
        work.await;
    });
}

struct TaskGuard(Arc<GatewayState>);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.counters.bugs.add();
        }
    }
}
