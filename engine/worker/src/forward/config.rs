//! The section `[forward]` of the configuration.

use handle_daemon::settings;
use handle_daemon::settings::SettingError;
use std::path::PathBuf;

settings! {
    /// Requests that the published set cannot answer, forwarded to `handle-admin`
    /// ([forwarding.md](forwarding.md)).
    pub struct ForwardConfig where sources_need_a_socket {
        /// Set this when such requests are to be answered: UNIX socket of `handle-admin`
        /// (`local.socket` there). Without it, or without `slow.threads`, none is forwarded.
        restart socket: Option<PathBuf> = None;
        /// Set this when clients must not list handles and homed prefixes here: `false` does not
        /// forward such requests over TCP.
        restart listing: bool = true;
        /// Set this when keys and groups of other services must give no permission: `false` does
        /// not forward reads of values that are not public and depend on them.
        restart identities: bool = true;
        /// Set this when no client below version 2.10, which does not understand a referral, is to
        /// be served: `false` does not forward queries for derived prefixes of other services for
        /// them.
        restart old_clients: bool = true;
        /// Set this when `handle-admin` has a source of records (`sources` there;
        /// [sources.md](../sources.md)): its prefixes, without `0.NA/`. Requests for handles of
        /// these that the set lacks are forwarded.
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
