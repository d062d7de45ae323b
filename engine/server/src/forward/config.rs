//! The settings of forwarding.

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Requests that `handled` cannot answer from the published set and forwards to `handle-admin`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ForwardConfig {
    /// UNIX socket of `handle-admin`, run by the same user (`forward.socket` there). Nothing is
    /// forwarded when this is empty, or without `slow.threads`.
    pub socket: Option<PathBuf>,
    /// Whether requests over TCP to list handles or homed prefixes are forwarded.
    pub listing: bool,
    /// Whether reads of non-public values are forwarded when a key or a group is at another
    /// service.
    pub identities: bool,
    /// Whether derived prefixes that a record here delegates are resolved for clients below version
    /// 2.10, which do not understand a referral.
    pub old_clients: bool,
    /// Requests that are forwarded at a time; each occupies a thread.
    pub requests: usize,
    /// Requests that are being forwarded or wait to be, listings included. A request beyond that is
    /// answered that the server is busy.
    pub queue_requests: usize,
    /// Of these, requests from one source: an IPv4 address, or a /64 of IPv6. At most a quarter of
    /// `queue_requests` are from one /24 of IPv4 or /48 of IPv6.
    pub requests_per_source: usize,
    /// Of these, requests over UDP, where the sender may have forged its address.
    pub datagrams: usize,
    /// Listings in progress at a time.
    pub listings: usize,
    /// How long an answer may take, in milliseconds.
    pub patience_ms: u32,
    /// For how long only one request at a time is forwarded after an answer that took longer, in
    /// milliseconds.
    pub rest_ms: u32,
}

impl Default for ForwardConfig {
    fn default() -> Self {
        Self {
            socket: None,
            listing: true,
            identities: true,
            old_clients: true,
            requests: 8,
            queue_requests: 64,
            requests_per_source: 8,
            datagrams: 32,
            listings: 16,
            patience_ms: 20_000,
            rest_ms: 5_000,
        }
    }
}

impl ForwardConfig {
    /// Resolves a relative path against `directory`.
    #[must_use]
    pub fn relative_to(mut self, directory: &Path) -> Self {
        self.socket = self.socket.map(|socket| directory.join(socket));
        self
    }

    /// Checks what can be checked without opening anything.
    ///
    /// # Errors
    /// Names the setting and its valid values.
    pub fn check(&self) -> anyhow::Result<()> {
        let bounds = [
            ("requests", self.requests, 1, 256),
            ("queue_requests", self.queue_requests, 1, 1 << 14),
            ("requests_per_source", self.requests_per_source, 1, self.queue_requests),
            ("datagrams", self.datagrams, 0, self.queue_requests),
            ("listings", self.listings, 0, self.queue_requests),
            ("patience_ms", self.patience_ms as usize, 1, 600_000),
            ("rest_ms", self.rest_ms as usize, 1, 600_000),
        ];
        for (name, value, least, most) in bounds {
            ensure!(
                (least..=most).contains(&value),
                "`forward.{name}` is {value}: it must be from {least} to {most}"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_at_their_edges() {
        let with = |change: fn(&mut ForwardConfig)| {
            let mut config = ForwardConfig::default();
            change(&mut config);
            config.check().is_ok()
        };
        assert!(with(|_| ()));
        assert!(with(|it| it.requests = 1) && with(|it| it.requests = 256));
        assert!(!with(|it| it.requests = 0) && !with(|it| it.requests = 257));
        assert!(with(|it| it.queue_requests = 1 << 14) && !with(|it| it.queue_requests = (1 << 14) + 1));
        assert!(!with(|it| it.queue_requests = 7), "fewer than one source may have");
        assert!(with(|it| it.requests_per_source = 64) && !with(|it| it.requests_per_source = 65));
        assert!(!with(|it| it.requests_per_source = 0));
        assert!(with(|it| it.datagrams = 0) && with(|it| it.datagrams = 64));
        assert!(!with(|it| it.datagrams = 65));
        assert!(with(|it| it.listings = 0) && with(|it| it.listings = 64) && !with(|it| it.listings = 65));
        assert!(with(|it| it.patience_ms = 1) && with(|it| it.patience_ms = 600_000));
        assert!(!with(|it| it.patience_ms = 0) && !with(|it| it.patience_ms = 600_001));
        assert!(with(|it| it.rest_ms = 600_000) && !with(|it| it.rest_ms = 0));
        let error = ForwardConfig { requests: 0, ..ForwardConfig::default() }.check().unwrap_err();
        assert!(error.to_string().contains("`forward.requests`"));
    }
}
