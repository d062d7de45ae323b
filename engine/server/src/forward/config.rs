//! The section `[forward]` of the configuration.

use handle_daemon::settings;
use handle_daemon::settings::SettingError;
use std::path::PathBuf;

settings! {
    /// Requests that `handled` cannot answer from the published set and forwards to `handle-admin`
    /// ([forwarding.md](forwarding.md)).
    pub struct ForwardConfig where sources_need_a_socket {
        /// UNIX socket at which `handle-admin`, running as the same user, answers forwarded
        /// requests (`forward.socket` there). Without it, or without `slow.threads`, nothing is
        /// forwarded.
        restart socket: Option<PathBuf> = None;
        /// Forward requests over TCP to list handles and homed prefixes.
        restart listing: bool = true;
        /// Forward reads of values that are not public if a key or a group is at another service.
        restart identities: bool = true;
        /// Forward queries for derived prefixes of other services by clients below version 2.10,
        /// which do not understand a referral.
        restart old_clients: bool = true;
        /// Prefixes, without `0.NA/`, for whose handles `handle-admin` has a source of records
        /// (`sources` there; [sources.md](../sources.md)). Requests for handles of these prefixes
        /// that are not in the set are forwarded.
        live sources: Vec<String> = Vec::new();
        /// Requests forwarded at a time; each occupies a thread.
        restart requests: usize = 8, 1..=256;
        /// Requests that are forwarded or waiting, listings included; never more than half of
        /// `slow.queue_requests`. One more gets RC 3.
        restart queue_requests: usize = 64, 1..=1 << 14;
        /// Of these, from one IPv4 address or IPv6 /64. At most a quarter of all are from one /24
        /// or /48.
        restart requests_per_source <= queue_requests: usize = 8, 1..=1 << 14;
        /// Of these, over UDP, where the sender may have forged its address.
        restart datagrams <= queue_requests: usize = 32, 0..=1 << 14;
        /// Listings in progress. One more gets RC 3.
        restart listings <= queue_requests: usize = 16, 0..=1 << 14;
        /// Most time to wait for an answer.
        restart timeout_ms: u32 = 20_000, 1..=600_000;
        /// After an answer that took longer, time during which only one request is forwarded at a
        /// time.
        restart backoff_ms: u32 = 5_000, 1..=600_000;
    }
}

fn sources_need_a_socket(config: &ForwardConfig) -> Result<(), SettingError> {
    if config.sources.is_empty() || config.socket.is_some() {
        return Ok(());
    }
    Err(SettingError::Together(
        "`forward.sources` without `forward.socket`: name the socket of handle-admin".to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_daemon::settings::SettingSection as _;

    #[test]
    fn sources_need_a_socket() {
        let check = |text: &str| toml::from_str::<ForwardConfig>(text).unwrap().check_within("forward");
        assert_eq!(check("sources = [\"10.1\"]\nsocket = \"forward\""), Ok(()));
        let error = check("sources = [\"10.1\"]").unwrap_err().to_string();
        assert!(error.contains("forward.socket"), "{error}");
    }
}
