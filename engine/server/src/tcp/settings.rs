//! The section `[tcp]` of the configuration.

use crate::config::WAIT_MS_MAX;
use anyhow::ensure;
use handle_net::StreamOptions;
use handle_proto::limit;
use serde::{Deserialize, Serialize};

/// Limits on the number and duration of connections. Numbers are for each worker: the kernel
/// spreads connections over the workers of an address.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TcpSettings {
    /// Answer over TCP, on the addresses of `listen`.
    pub enabled: bool,
    /// Connections that wait to be accepted; the kernel grants at most `net.core.somaxconn`.
    pub backlog: u16,
    /// Connections at a time. When all places are taken, a new connection replaces the one that has
    /// been idle for longest, or whose request has been incomplete for longest; when there is none,
    /// the new connection is refused.
    pub connections: usize,
    /// Connections from one source. IPv6 networks with prefixes that are 8 and 16 bits shorter may
    /// have two and four times as many.
    pub connections_per_source: usize,
    /// Bits of an IPv4 address that make a source.
    pub source_prefix_v4: u32,
    /// Bits of an IPv6 address that make a source.
    pub source_prefix_v6: u32,
    /// Most bytes of a request, without its envelope.
    pub request_bytes: u32,
    /// Bytes of requests, over all connections, that are incomplete or wait until answers have been
    /// read. A client that sends more is disconnected.
    pub input_bytes: usize,
    /// Bytes of answers, over all connections, that have not been read. A client that asks for more
    /// is disconnected.
    pub output_bytes: usize,
    /// Bytes of one receive buffer.
    pub receive_buffer_bytes: usize,
    /// Number of receive buffers, rounded up to the next power of two.
    pub receive_buffers: usize,
    /// How long a connection may be open without a request, in milliseconds.
    pub idle_ms: u32,
    /// How long a request may take to arrive, from its first byte to its last, in milliseconds.
    pub read_ms: u32,
    /// How long a client may take to read answers, in milliseconds.
    pub write_ms: u32,
    /// How long a closed connection waits for the peer to close, in milliseconds.
    pub linger_ms: u32,
}

impl Default for TcpSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            backlog: 4096,
            connections: 10_240,
            connections_per_source: 1024,
            source_prefix_v4: 32,
            source_prefix_v6: 64,
            request_bytes: 64 << 10,
            input_bytes: 64 << 20,
            output_bytes: 64 << 20,
            receive_buffer_bytes: 16 << 10,
            receive_buffers: 64,
            idle_ms: 300_000,
            read_ms: 30_000,
            write_ms: 30_000,
            linger_ms: 1000,
        }
    }
}

/// Additional places for connections that are being refused or closed.
pub(super) const PLACES_BESIDES: usize = 64;

impl TcpSettings {
    /// Checks what can be checked without opening anything.
    ///
    /// # Errors
    /// Names the setting and its valid values.
    pub fn check(&self) -> anyhow::Result<()> {
        let bounds: [(&str, usize, usize, usize); 9] = [
            ("backlog", self.backlog.into(), 1, u16::MAX.into()),
            ("connections", self.connections, 1, 1 << 20),
            ("connections_per_source", self.connections_per_source, 1, 1 << 20),
            ("source_prefix_v4", self.source_prefix_v4 as usize, 0, 32),
            ("source_prefix_v6", self.source_prefix_v6 as usize, 0, 128),
            ("request_bytes", self.request_bytes as usize, 64, limit::MESSAGE_LEN_MAX as usize),
            ("input_bytes", self.input_bytes, 1 << 20, 1 << 36),
            ("output_bytes", self.output_bytes, 1 << 20, 1 << 36),
            ("receive_buffer_bytes", self.receive_buffer_bytes, 512, 1 << 20),
        ];
        for (name, value, least, most) in bounds {
            ensure!(
                (least..=most).contains(&value),
                "`tcp.{name}` is {value}: it must be from {least} to {most}"
            );
        }
        ensure!(
            (1..=4096).contains(&self.receive_buffers),
            "`tcp.receive_buffers` is {}: it must be from 1 to 4096",
            self.receive_buffers
        );
        let waits = [
            ("idle_ms", self.idle_ms),
            ("read_ms", self.read_ms),
            ("write_ms", self.write_ms),
            ("linger_ms", self.linger_ms),
        ];
        for (name, value) in waits {
            ensure!(
                (10..=WAIT_MS_MAX).contains(&value),
                "`tcp.{name}` is {value}: it must be from 10 to {WAIT_MS_MAX}"
            );
        }
        Ok(())
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_at_their_edges() {
        let with = |name: &str, value: u64| {
            let settings: Result<TcpSettings, _> = toml::from_str(&format!("{name} = {value}"));
            settings.is_ok_and(|settings| settings.check().is_ok())
        };
        let edges = [
            ("backlog", 1, 65_535),
            ("connections", 1, 1 << 20),
            ("connections_per_source", 1, 1 << 20),
            ("source_prefix_v4", 0, 32),
            ("source_prefix_v6", 0, 128),
            ("request_bytes", 64, 262_144),
            ("input_bytes", 1 << 20, 1 << 36),
            ("output_bytes", 1 << 20, 1 << 36),
            ("receive_buffer_bytes", 512, 1 << 20),
            ("receive_buffers", 1, 4096),
            ("idle_ms", 10, 86_400_000),
            ("read_ms", 10, 86_400_000),
            ("write_ms", 10, 86_400_000),
            ("linger_ms", 10, 86_400_000),
        ];
        for (name, least, most) in edges {
            assert!(with(name, least) && with(name, most), "{name}");
            assert!(!with(name, most + 1), "{name}");
            assert!(least == 0 || !with(name, least - 1), "{name}");
        }
        TcpSettings::default().check().unwrap();
    }

    #[test]
    fn says_which_setting_is_wrong() {
        let settings = TcpSettings { linger_ms: 0, ..TcpSettings::default() };
        assert!(settings.check().unwrap_err().to_string().contains("tcp.linger_ms"));
        assert_eq!(TcpSettings { enabled: false, ..TcpSettings::default() }.options().map(|_| ()), None);
    }
}
