//! The reasons for which connections are closed, each with its counter.

use crate::counters::Counters;

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// The last request of the connection is answered.
    Done,
    /// The peer closed its side between two requests.
    Ended,
    /// The peer closed its side within a request.
    CutOff,
    /// The connection failed.
    Broken,
    /// The received bytes are not a request, or are too long for one.
    Unreadable,
    /// No request arrived in time.
    Idle,
    /// The rest of a request did not arrive in time.
    HalfRequest,
    /// The client did not read its answers in time.
    SlowReader,
    /// The connection was idle, and its slot was needed for another.
    Evicted,
    /// The limit of buffered bytes of requests or answers is reached.
    NoCapacity,
    /// The server is stopping.
    Drained,
}

impl CloseReason {
    /// Counts a connection that is closed for this reason.
    pub(super) fn count(self, counters: &Counters) {
        match self {
            Self::Done => &counters.tcp_closed_done,
            Self::Ended => &counters.tcp_closed_ended,
            Self::CutOff => &counters.tcp_closed_cut_off,
            Self::Broken => &counters.tcp_closed_broken,
            Self::Unreadable => &counters.tcp_closed_unreadable,
            Self::Idle => &counters.tcp_closed_idle,
            Self::HalfRequest => &counters.tcp_closed_half_request,
            Self::SlowReader => &counters.tcp_closed_slow_reader,
            Self::Evicted => &counters.tcp_closed_evicted,
            Self::NoCapacity => &counters.tcp_closed_buffer_full,
            Self::Drained => &counters.tcp_closed_drained,
        }
        .add(1);
    }
}
