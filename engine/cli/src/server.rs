//! Which server is administered, and by whom.

use crate::exchange;
use crate::key;
use crate::secret::IdentityArgs;
use anyhow::Context as _;
use handle_auth::PublicKey;
use handle_client::administration::Administrator;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Idle seconds after which a server may forget a session of ours; its own default is a day.
const SESSION_IDLE_S: i32 = 600;

/// Which server is asked, and who asks.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ServerArgs {
    /// Server to ask, over TCP: host, host:port or an IPv6 address in brackets; the port is 2641 unless given.
    #[arg(long, short, value_name = "HOST[:PORT]", env = "HDL_SERVER")]
    server: Option<String>,
    /// Public key of the server: then only answers count that it has signed, and requests go through a session if the
    /// server has them, so that each identity is challenged once.
    #[arg(long, value_name = "FILE", env = "HDL_SERVER_KEY")]
    server_key: Option<PathBuf>,
    /// Seconds to wait for a connection, and for each answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    #[command(flatten)]
    pub(crate) identity: IdentityArgs,
}

impl ServerArgs {
    /// The address of the server.
    pub(crate) fn address(&self) -> anyhow::Result<SocketAddr> {
        let server =
            self.server.as_deref().context("name the server: --server HOST[:PORT], or HDL_SERVER")?;
        exchange::address(server)
    }

    /// Who asks `server`, as nobody yet.
    pub(crate) fn anonymous(&self, server: SocketAddr) -> anyhow::Result<Administrator> {
        let mut client = Administrator::new(server, Duration::from_secs(self.timeout));
        if let Some(path) = &self.server_key {
            let record = key::public_record(path)?;
            let key = PublicKey::from_record(&record).with_context(|| format!("{}", path.display()))?;
            client.require_signatures(key);
            client.use_sessions(Some(SESSION_IDLE_S));
        }
        Ok(client)
    }

    /// Who asks the server, as the identity that was named.
    pub(crate) fn client(&self) -> anyhow::Result<Administrator> {
        let mut client = self.anonymous(self.address()?)?;
        client.identify(self.identity.read()?);
        Ok(client)
    }
}
