//! Which server is administered, and by whom: the one that is named, or for each handle the one that is responsible.

use crate::client::ClientArgs;
use crate::exchange;
use crate::key;
use crate::secret::IdentityArgs;
use anyhow::{Context as _, bail};
use handle_auth::PublicKey;
use handle_client::Driver;
use handle_client::administration::{Administrator, Identity};
use handle_client::driver::now;
use handle_client::lookup::{Client, LookupError};
use handle_client::plan::{Purpose, Target};
use handle_proto::Handle;
use handle_proto::data::site::InterfaceKind;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Idle seconds after which a server may forget a session of ours; its own default is a day.
pub(crate) const SESSION_IDLE_S: i32 = 600;
/// Servers with which connections are kept at a time.
const CONNECTIONS_MAX: usize = 64;

/// Which server is asked, and who asks.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ServerArgs {
    /// Server to ask, over TCP: host, host:port or an IPv6 address in brackets; the port is 2641 unless given. Without
    /// it, the server for administration at a primary site of the service that is responsible for each handle.
    #[arg(long, short, value_name = "HOST[:PORT]", env = "HDL_SERVER")]
    server: Option<String>,
    /// Public key of the server: then only answers count that it has signed, and requests go through a session if the
    /// server has them, so that each identity is challenged once. A server that is found has its key in the site record.
    #[arg(long, value_name = "FILE", env = "HDL_SERVER_KEY")]
    server_key: Option<PathBuf>,
    /// Find servers only by records that are signed, all the way from the global service.
    #[arg(long, conflicts_with = "server")]
    certify: bool,
    /// Seconds to wait for a connection, and for each answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    #[command(flatten)]
    pub(crate) identity: IdentityArgs,
    #[command(flatten)]
    client: ClientArgs,
}

impl ServerArgs {
    /// The server that was named.
    ///
    /// # Errors
    /// When none was, for `what` is not to be had of one that is found; or it has no address.
    pub(crate) fn named(&self, what: &str) -> anyhow::Result<SocketAddr> {
        let server = self.server.as_deref();
        let server =
            server.with_context(|| format!("{what}: name it, --server HOST[:PORT] or HDL_SERVER"))?;
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

    /// What services are found by, if none is named.
    pub(crate) fn finder(&self) -> anyhow::Result<Option<Arc<Client>>> {
        self.server.is_none().then(|| self.client.client()).transpose()
    }

    /// Who asks, as the identity that was named.
    pub(crate) fn clients(&self) -> anyhow::Result<Clients<'_>> {
        let mut clients = Clients::new(self, self.finder()?)?;
        clients.identify(self.identity.read()?);
        Ok(clients)
    }
}

/// Connections to servers, as one identity or none.
pub(crate) struct Clients<'a> {
    args: &'a ServerArgs,
    to: To,
    identity: Option<Arc<Identity>>,
    /// How sessions are used, once that was said; as [`Administrator::use_sessions`] takes it.
    sessions: Option<Option<i32>>,
}

enum To {
    Named(Box<Administrator>),
    Found(Box<Found>),
}

/// Connections to servers that are found.
struct Found {
    driver: Driver,
    finder: Arc<Client>,
    clients: HashMap<Server, Administrator>,
}

/// What a connection is known by: the key belongs to it, for whom one service trusts at an address another need not.
type Server = (SocketAddr, Vec<u8>);

impl<'a> Clients<'a> {
    /// Connections to the server that is named, or to those that `finder` leads to.
    pub(crate) fn new(args: &'a ServerArgs, finder: Option<Arc<Client>>) -> anyhow::Result<Self> {
        let to = match finder {
            Some(finder) => {
                let driver = Driver::new(Arc::clone(&finder));
                To::Found(Box::new(Found { driver, finder, clients: HashMap::new() }))
            }
            None => To::Named(Box::new(args.anonymous(args.named("no server is named")?)?)),
        };
        Ok(Self { args, to, identity: None, sessions: None })
    }

    /// From now on, `identity` asks.
    pub(crate) fn identify(&mut self, identity: Option<Arc<Identity>>) {
        self.each(|client| client.identify(identity.clone()));
        self.identity = identity;
    }

    /// From now on, sessions are used so.
    pub(crate) fn use_sessions(&mut self, timeout_s: Option<i32>) {
        self.each(|client| client.use_sessions(timeout_s));
        self.sessions = Some(timeout_s);
    }

    fn each(&mut self, mut act: impl FnMut(&mut Administrator)) {
        match &mut self.to {
            To::Named(client) => act(client),
            To::Found(found) => found.clients.values_mut().for_each(act),
        }
    }

    /// The connection to the server for `handle`: of several primary sites to the first that takes one, and then to the
    /// same again, for the others may not have heard of the change yet that the next request builds on.
    ///
    /// # Errors
    /// [`LookupError`] where the service is not found; else why there is no connection.
    pub(crate) fn of(&mut self, handle: &[u8]) -> anyhow::Result<&mut Administrator> {
        let Found { driver, finder, clients } = match &mut self.to {
            To::Named(client) => return Ok(client),
            To::Found(found) => &mut **found,
        };
        let purpose = Purpose { kind: InterfaceKind::ADMIN, primary_only: true };
        let servers = driver.servers(handle, purpose, self.args.certify)?;
        let mut refused = None;
        for server in &servers {
            let known = (server.address, server.public_key.clone());
            let is_new = !clients.contains_key(&known);
            if is_new {
                let mut client = self.args.anonymous(server.address)?;
                trust(&mut client, self.args, server);
                client.identify(self.identity.clone());
                if let Some(timeout_s) = self.sessions {
                    client.use_sessions(timeout_s);
                }
                if clients.len() >= CONNECTIONS_MAX {
                    clients.clear();
                }
                clients.insert(known.clone(), client);
            }
            let began = Instant::now();
            // One that was kept may have been left by the server meanwhile, which need not be back.
            let connected = clients.get_mut(&known).expect("there now").connect();
            let times = &finder.times;
            if let Err(error) = connected {
                clients.remove(&known);
                times.note(server.address, finder.patience.tcp_ms, now());
                refused = Some(anyhow::Error::new(error).context(server.address));
                continue;
            }
            if is_new {
                let took_ms = u32::try_from(began.elapsed().as_millis()).unwrap_or(u32::MAX);
                times.note(server.address, took_ms, now());
            }
            times.note_primary(server.address, now());
            return Ok(clients.get_mut(&known).expect("there now"));
        }
        Err(refused.unwrap_or_else(|| LookupError::NoServer { handle: handle.to_vec() }.into()))
    }

    /// The connection to the one server that has all handles under `prefix`.
    ///
    /// # Errors
    /// As [`of`](Self::of), and when there are several.
    pub(crate) fn of_prefix(&mut self, prefix_record: &str) -> anyhow::Result<&mut Administrator> {
        let mut handle = prefix_record.as_bytes().to_vec();
        if let To::Found(found) = &mut self.to {
            // The handles that are asked for are under the prefix; those that are derived from one are prefix records.
            let prefix = Handle(prefix_record.as_bytes()).local_name();
            if !prefix.contains(&b'/') {
                handle = [prefix, b"/"].concat();
            }
            let purpose = Purpose { kind: InterfaceKind::ADMIN, primary_only: true };
            let servers = found.driver.servers(&handle, purpose, self.args.certify)?;
            if let Some((_, count @ 2..)) = servers.first().map(|server| server.position) {
                bail!(
                    "the service has {count} servers, each with handles of its own: name one of them, --server"
                );
            }
        }
        self.of(&handle)
    }
}

/// Where no key was named, that of the site record is the one of the server.
fn trust(client: &mut Administrator, args: &ServerArgs, server: &Target) {
    if args.server_key.is_none()
        && let Ok(key) = PublicKey::from_record(&server.public_key)
    {
        client.require_signatures(key);
        client.use_sessions(Some(SESSION_IDLE_S));
    }
}
