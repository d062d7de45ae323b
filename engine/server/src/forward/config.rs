//! The section `[forward]` of the configuration.

use handle_daemon::settings;
use handle_daemon::settings::SettingError;
use std::path::PathBuf;

settings! {
    /// Requests that `handled` cannot answer from the published set and forwards to `handle-admin`
    /// ([forwarding.md](forwarding.md)).
    pub struct ForwardConfig where sources_need_a_socket {
        /// Set this when requests that the set cannot answer are to be answered: the UNIX socket of
        /// `handle-admin` (`local.socket` there). Without it, or without `slow.threads`, nothing is
        /// forwarded.
        restart socket: Option<PathBuf> = None;
        /// Set this when clients must not list handles and homed prefixes here: with `false`, such
        /// requests over TCP are not forwarded.
        restart listing: bool = true;
        /// Set this when keys and groups of other services must give no permission: with `false`,
        /// reads of values that are not public are not forwarded if they depend on them.
        restart identities: bool = true;
        /// Set this when no client below version 2.10 is left, or is to be served: with `false`,
        /// queries for derived prefixes of other services are not forwarded for them. They do not
        /// understand a referral.
        restart old_clients: bool = true;
        /// Set this when `handle-admin` has a source of records (`sources` there;
        /// [sources.md](../sources.md)): its prefixes, without `0.NA/`. Requests for handles of
        /// these prefixes that are not in the set are forwarded.
        live sources: Vec<String> = Vec::new();
    } constants {
        /// Requests forwarded at a time; each occupies a thread.
        requests: usize = 8;
        /// Requests that are forwarded or waiting, listings included: eight turns; never more than
        /// half of the requests that may wait for the slow path. One more gets RC 3.
        queue_requests: usize = 64;
        /// Of these, from one IPv4 address or IPv6 /64. At most a quarter of all are from one /24
        /// or /48.
        requests_per_source: usize = 8;
        /// Of these, over UDP, where the sender may have forged its address.
        datagrams: usize = 32;
        /// Listings in progress, which take long. One more gets RC 3.
        listings: usize = 16;
        /// Most time to wait for an answer: `handle-admin` may ask several other services for it.
        timeout_ms: u32 = 20_000;
        /// After an answer that took longer, time during which only one request is forwarded at a
        /// time.
        backoff_ms: u32 = 5_000;
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
