//! The state of each connection, in the table that `handle-admin` uses too.

use super::settings::TcpSettings;
pub(super) use handle_daemon::connections::ConnectionWait;
use handle_daemon::connections::{self, TableLimits};
use handle_net::StreamId;

/// All connections of a worker.
pub(super) type StreamTable = connections::ConnectionTable<StreamId, TableStream>;

/// The state of the requests on a connection.
#[derive(Debug, Default)]
pub(super) struct TableStream {
    /// An incomplete request, or requests that wait until answers have been read.
    pub(super) input: Vec<u8>,
    /// The number of answers still made on the slow path.
    pub(super) slow_count: u32,
    /// Whether a complete request arrived since `wait` was last set.
    pub(super) has_progressed: bool,
    /// Whether answers are still unsent.
    pub(super) is_kept: bool,
    /// Whether reading is paused.
    pub(super) is_paused: bool,
    /// Whether the last request has arrived, after which input is ignored.
    pub(super) is_last: bool,
    /// Whether the peer has closed its sending side.
    pub(super) has_ended: bool,
}

impl TcpSettings {
    /// The settings that the table enforces.
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
