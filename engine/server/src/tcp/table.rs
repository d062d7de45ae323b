//! What is kept of each connection, in the table that both processes use.

use super::settings::TcpSettings;
pub(super) use handle_daemon::connections::ConnectionWait;
use handle_daemon::connections::{self, TableLimits};
use handle_net::StreamId;

/// All connections of a worker.
pub(super) type StreamTable = connections::ConnectionTable<StreamId, TableStream>;

/// What is under way on a connection.
#[derive(Debug, Default)]
pub(super) struct TableStream {
    /// A request that has begun, or requests that wait until answers have been read.
    pub(super) input: Vec<u8>,
    /// Answers that are made on the slow path.
    pub(super) slow_count: u32,
    /// A request was whole since `wait` was last told.
    pub(super) has_progressed: bool,
    /// Answers wait to be read.
    pub(super) is_kept: bool,
    /// Nothing is read from it for now.
    pub(super) is_paused: bool,
    /// The last request has come: nothing more is taken.
    pub(super) is_last: bool,
    /// The other side has ended its sending.
    pub(super) has_ended: bool,
}

impl TcpSettings {
    /// What of it the table keeps to.
    pub(super) const fn table_limits(&self) -> TableLimits {
        TableLimits {
            per_source_max: self.connections_per_source,
            source_prefix_v4: self.source_prefix_v4,
            source_prefix_v6: self.source_prefix_v6,
            idle_ms: self.idle_ms,
            read_ms: self.read_ms,
            write_ms: self.write_ms,
            linger_ms: self.linger_ms,
        }
    }
}
