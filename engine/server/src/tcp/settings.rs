//! The section `[tcp]` of the configuration.

use handle_daemon::settings;
use handle_daemon::settings::DAY_MS;
use handle_net::StreamOptions;
use handle_proto::limit;

settings! {
    /// Limits on the number and duration of connections. Numbers are for each worker: the kernel
    /// spreads connections over the workers of an address.
    pub struct TcpSettings {
        /// Serve TCP on the addresses of `listen`.
        restart enabled: bool = true;
        /// Connections waiting to be accepted. The kernel allows at most `net.core.somaxconn`.
        restart backlog: u16 = 4096, 1..=u16::MAX;
        /// Connections at a time. One more displaces the connection that has been idle for longest,
        /// or whose request has been incomplete for longest; if there is none, it is refused.
        live connections: usize = 10_240, 1..=1 << 20;
        /// Of these, from one source. IPv6 networks whose prefix is 8 and 16 bits shorter may have
        /// two and four times as many.
        live connections_per_source: usize = 1024, 1..=1 << 20;
        /// Prefix length of a source, IPv4.
        live source_prefix_v4: u32 = 32, 0..=32;
        /// Prefix length of a source, IPv6.
        live source_prefix_v6: u32 = 64, 0..=128;
        /// Most bytes of a request, without its envelope.
        live request_bytes: u32 = 64 << 10, 64..=limit::MESSAGE_LEN_MAX;
        /// Bytes of requests that are incomplete, or that wait until answers have been read, over
        /// all connections. A client that sends more is disconnected.
        live input_bytes: usize = 64 << 20, 1 << 20..=1 << 36;
        /// Bytes of answers that have not been read, over all connections, and for one source an
        /// eighth of them. A client that asks for more is disconnected.
        live output_bytes: usize = 64 << 20, 1 << 20..=1 << 36;
        /// Bytes of one receive buffer.
        restart receive_buffer_bytes: usize = 16 << 10, 512..=1 << 20;
        /// Number of receive buffers, rounded up to a power of two.
        restart receive_buffers: usize = 64, 1..=4096;
        /// Most time that a connection stays open without a request.
        live idle_ms: u32 = 300_000, 10..=DAY_MS;
        /// Most time for a request to arrive, from its first byte to its last.
        live read_ms: u32 = 30_000, 10..=DAY_MS;
        /// Most time for answers to be read.
        live write_ms: u32 = 30_000, 10..=DAY_MS;
        /// Most time that a closed connection waits for the other side to close.
        live linger_ms: u32 = 1000, 10..=DAY_MS;
    }
}

/// Additional places for connections that are being refused or closed.
pub(super) const PLACES_BESIDES: usize = 64;

impl TcpSettings {
    /// The options that a datapath needs; `None` when TCP is off.
    #[must_use]
    pub fn options(&self) -> Option<StreamOptions> {
        self.enabled.then_some(StreamOptions {
            connections_max: self.connections + PLACES_BESIDES,
            receive_len: self.receive_buffer_bytes,
            receive_buffers: self.receive_buffers,
        })
    }
}
