//! The options of a datapath, with the bounds of its sizes.

use std::io;
use std::net::SocketAddr;

/// Options to open a datapath with. All sizes are fixed from then on.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// The address to bind to. With port 0 the kernel chooses one.
    pub address: SocketAddr,
    /// Whether several sockets may share the address; the kernel spreads peers over them.
    pub reuse_port: bool,
    /// Whether an IPv6 wildcard address excludes IPv4.
    pub only_v6: bool,
    /// Whether IPv4 datagrams are never fragmented: a datagram that is too long for the device is
    /// refused when it is sent, and one that is too long for its path is lost. The datagrams of the
    /// protocol have 512 bytes, with headers 540, and paths with a smaller limit are not in use, as
    /// every host has to accept 576 (RFC 791 section 3.1). The kernel then need not number
    /// datagrams, a twentieth of their cost, and forged messages about the path MTU cannot make it
    /// fragment them.
    pub dont_fragment: bool,
    /// Most received buffers of one batch; a train counts once.
    pub batch_len: usize,
    /// Most datagrams of one batch, including those in trains; a single train may have more.
    pub batch_segments: usize,
    /// Bytes of one receive buffer. A larger datagram or train is truncated.
    ///
    /// Only the pages that are used take memory.
    pub receive_len: usize,
    /// Whether to receive datagrams in trains, if the kernel supports it.
    pub receive_trains: bool,
    /// Whether to send datagrams of one length to one peer in trains, if the kernel supports it.
    pub send_trains: bool,
    /// Most datagrams in the outbox.
    pub outbox_datagrams: usize,
    /// Most bytes in the outbox.
    pub outbox_len: usize,
    /// Bytes of the kernel's receive queue, 0 for the default of the system.
    ///
    /// The kernel silently grants at most `net.core.rmem_max`.
    pub socket_receive_buffer_len: usize,
    /// Bytes of the kernel's send queue, 0 for the default of the system; at most
    /// `net.core.wmem_max`.
    pub socket_send_buffer_len: usize,
    /// Sizes for connections; `None` for a path without connections.
    pub streams: Option<StreamOptions>,
}

impl SocketOptions {
    /// The default options for `address`.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, ..Self::default() }
    }

    /// Disables trains in both directions: each datagram is handled by itself, and the order of
    /// those to one peer is kept.
    #[must_use]
    pub fn one_at_a_time(self) -> Self {
        Self { receive_trains: false, send_trains: false, ..self }
    }

    /// Refuses sizes of zero, and those beyond the range of the paths or the kernel.
    pub(crate) fn check(&self) -> io::Result<()> {
        check_bounds(&[
            ("batch_len", self.batch_len, 1024),
            ("batch_segments", self.batch_segments, 1 << 16),
            ("receive_len", self.receive_len, 1 << 16),
            ("outbox_datagrams", self.outbox_datagrams, 1 << 16),
            ("outbox_len", self.outbox_len, 1 << 30),
        ])?;
        self.streams.as_ref().map_or(Ok(()), StreamOptions::check)
    }
}

impl Default for SocketOptions {
    /// Any IPv4 address and a port that the kernel chooses; batches of 64, in trains where
    /// possible.
    fn default() -> Self {
        Self {
            address: ([0, 0, 0, 0], 0).into(),
            reuse_port: false,
            only_v6: false,
            dont_fragment: true,
            batch_len: 64,
            batch_segments: 2048,
            receive_len: 65_535,
            receive_trains: true,
            send_trains: true,
            outbox_datagrams: 2048,
            outbox_len: 1 << 20,
            socket_receive_buffer_len: 4 << 20,
            socket_send_buffer_len: 4 << 20,
            streams: None,
        }
    }
}

/// Sizes for the connections of a path.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Most connections at a time. Further connections are closed as soon as they are accepted.
    pub connections_max: usize,
    /// Bytes of one receive buffer.
    pub receive_len: usize,
    /// Number of receive buffers, rounded up to a power of two.
    pub receive_buffers: usize,
}

impl Default for StreamOptions {
    /// 10,240 connections, and 1 MiB of receive buffers.
    fn default() -> Self {
        Self { connections_max: 10_240, receive_len: 16 << 10, receive_buffers: 64 }
    }
}

impl StreamOptions {
    pub(crate) fn check(&self) -> io::Result<()> {
        check_bounds(&[
            ("streams.connections_max", self.connections_max, 1 << 24),
            ("streams.receive_len", self.receive_len, 1 << 20),
            ("streams.receive_buffers", self.receive_buffers, 1 << 12),
        ])
    }
}

/// Refuses a value below 1 or above its bound; the error names it.
fn check_bounds(bounds: &[(&str, usize, usize)]) -> io::Result<()> {
    match bounds.iter().find(|&(_, value, max)| !(1..=*max).contains(value)) {
        None => Ok(()),
        Some((name, value, max)) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name} is {value}, but must be 1 to {max}"),
        )),
    }
}
