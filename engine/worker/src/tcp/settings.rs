//! The section `[tcp]` of the configuration.

use handle_daemon::settings;
use handle_daemon::settings::DAY_MS;
use handle_net::StreamOptions;

settings! {
    /// Connections. Numbers are for each worker; the kernel spreads connections over the workers of
    /// an address.
    pub struct TcpSettings {
        /// Set this when only datagrams are to be answered: `false` does not serve TCP on the
        /// addresses of `listen`.
        restart enabled: bool = true;
        /// Set this when more clients keep connections open, or memory or descriptors are short:
        /// connections at a time. One more displaces the one that has been idle, or whose request
        /// has been incomplete, for longest; without any, it is refused.
        live connections: usize = 10_240, 1..=1 << 20;
        /// Set this when many clients share an address, as behind a gateway: connections of one
        /// source. A /56 and a /48 may have two and four times as many.
        live connections_per_source: usize = 1024, 1..=1 << 20;
        /// Set this when memory is short, or clients with long requests are disconnected: bytes,
        /// over all connections, of requests that are incomplete, or wait until answers have been
        /// read. A client that sends more is disconnected.
        live input_bytes: usize = 64 << 20, 1 << 20..=1 << 36;
        /// Set this when memory is short, or clients with slow links are disconnected: bytes, over
        /// all connections, of answers that have not been read, an eighth for one source. A client
        /// that asks for more is disconnected.
        live output_bytes: usize = 64 << 20, 1 << 20..=1 << 36;
        /// Set this when clients keep connections open for longer, or a device on the way forgets
        /// them earlier: most time without a request.
        live idle_ms: u32 = 300_000, 10..=DAY_MS;
    } constants {
        /// Connections waiting to be accepted: as many as the kernel allows by default
        /// (`net.core.somaxconn`).
        backlog: u16 = 4096;
        /// Prefix length of a source, IPv4: one address, because many hosts of a /24 have nothing
        /// in common.
        source_prefix_v4: u32 = 32;
        /// Prefix length of a source, IPv6: what one host usually has.
        source_prefix_v6: u32 = 64;
        /// Most bytes of a request, without its envelope. Queries are far shorter, and changes go
        /// to `handle-admin`.
        request_bytes: u32 = 64 << 10;
        /// Bytes of one receive buffer: several usual requests.
        receive_buffer_bytes: usize = 16 << 10;
        /// Number of receive buffers, a power of two. They are used in one turn of a worker, and
        /// connections that find none are read in the next.
        receive_buffers: usize = 64;
        /// Most time for a request to arrive, from its first byte to its last.
        read_ms: u32 = 30_000;
        /// Most time for answers to be read.
        write_ms: u32 = 30_000;
        /// Most time that a closed connection waits for the other side to close: a few round trips.
        linger_ms: u32 = 1000;
    }
}

/// Additional slots for connections that are being refused or closed.
pub(super) const CONNECTIONS_BESIDES: usize = 64;

impl TcpSettings {
    /// The options that a datapath needs; `None` when TCP is off.
    #[must_use]
    pub fn options(&self) -> Option<StreamOptions> {
        self.enabled.then_some(StreamOptions {
            connections_max: self.connections + CONNECTIONS_BESIDES,
            receive_len: self.receive_buffer_bytes,
            receive_buffers: self.receive_buffers,
        })
    }
}
