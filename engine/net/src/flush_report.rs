//! The result of sending the datagrams of an outbox.

use std::time::Duration;

/// The result of a flush. The sum of `sent`, `failed` and `would_block` is the number of datagrams
/// in the outbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushReport {
    /// Datagrams that the kernel accepted.
    pub sent: u32,
    /// Datagrams that the kernel refused.
    pub failed: u32,
    /// Datagrams that were dropped because the send queue stayed full.
    pub would_block: u32,
    /// Sends that were trains of two datagrams or more.
    pub trains: u32,
    /// Trains that the kernel refused. Their datagrams were sent again one by one, and are counted
    /// as such.
    pub trains_refused: u32,
    /// The error number of the last datagram in `failed`.
    pub os_error: Option<i32>,
}

impl FlushReport {
    /// Longest time that one flush waits for capacity in the send queue. A queue that a link drains
    /// has capacity within a millisecond; a queue that is not drained must not delay answers to
    /// others.
    pub(crate) const TIMEOUT_MAX: Duration = Duration::from_millis(10);

    pub(crate) fn refuse(&mut self, count: u32, error: i32) {
        self.failed += count;
        self.os_error = Some(error);
    }
}
