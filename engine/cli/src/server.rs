//! Which server is administered, and as which identity: the named server, or the responsible one
//! for each handle.

use crate::UsageError;
use crate::client::ClientArgs;
use crate::exchange;
use crate::key;
use crate::secret::IdentityArgs;
use anyhow::{Context as _, bail};
use handle_auth::PublicKey;
use handle_client::administration::{Administrator, ClientIdentity, CommonSession};
use handle_client::driver::now;
use handle_client::lookup::{Client, LookupError};
use handle_client::plan::{InterfacePurpose, ServerTarget};
use handle_client::{Allowances, BlockingDriver};
use handle_proto::Handle;
use handle_proto::data::site::InterfaceKind;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Seconds of idle time after which a server may drop one of our sessions; the default of servers
/// is a day.
pub(crate) const SESSION_IDLE_S: i32 = 600;
/// Maximum number of servers with open connections.
const CONNECTIONS_MAX: usize = 64;

/// The server and the identity.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ServerArgs {
    /// Server to ask, over TCP: host, host:port, or an IPv6 address in brackets; the default port
    /// is 2641. Default: the server for administration at a primary site of the service responsible
    /// for each handle.
    #[arg(long, short, value_name = "HOST[:PORT]", env = "HDL_SERVER")]
    server: Option<String>,
    /// Public key of the server. With it, only answers signed by the server are accepted, and
    /// requests go through a session: each identity is challenged once, and secrets are encrypted.
    /// For a server that is looked up, the site record has the key.
    #[arg(long, value_name = "FILE", env = "HDL_SERVER_KEY")]
    server_key: Option<PathBuf>,
    #[command(flatten)]
    sessions: SessionArgs,
    /// Look up servers only through signed records, at every step from the global service.
    #[arg(long, conflicts_with = "server")]
    certify: bool,
    /// Time limit for a connection, and for each answer, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    #[command(flatten)]
    pub(crate) identity: IdentityArgs,
    #[command(flatten)]
    client: ClientArgs,
}

/// Exceptions for servers without sessions and for old servers, one flag each.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
struct SessionArgs {
    /// Send requests without a session. By default nothing is sent if the key of the server is
    /// known and no session can be set up.
    #[arg(long)]
    no_sessions: bool,
    /// Send secrets (HS_SECKEY) and values that are not public without a session as well,
    /// unencrypted.
    #[arg(long)]
    allow_cleartext_secrets: bool,
    /// Allow sessions of versions below 2.7, in which an attacker can change or replay messages.
    #[arg(long)]
    allow_old_sessions: bool,
}

impl ServerArgs {
    fn allowances(&self) -> Allowances {
        Allowances {
            cleartext_secrets: self.sessions.allow_cleartext_secrets,
            old_sessions: self.sessions.allow_old_sessions,
            ..self.identity.allowances()
        }
    }

    /// How sessions are used if the key of the server is known.
    /// Whether requests with an identity go through a session, as far as the command line says: the
    /// key of a server that is looked up is in its site record.
    pub(crate) const fn may_use_sessions(&self) -> bool {
        !self.sessions.no_sessions && (self.server_key.is_some() || self.server.is_none())
    }

    fn session_timeout_s(&self) -> Option<i32> {
        (!self.sessions.no_sessions).then_some(SESSION_IDLE_S)
    }

    /// The named server.
    ///
    /// # Errors
    /// If none was named (`what` says why one is needed), or if it has no address.
    pub(crate) fn named(&self, what: &str) -> anyhow::Result<SocketAddr> {
        let server = self.server.as_deref();
        let server =
            server.with_context(|| UsageError(format!("{what}: set --server HOST[:PORT] or HDL_SERVER")))?;
        exchange::address(server)
    }

    /// A client of `server`, without an identity.
    pub(crate) fn anonymous(&self, server: SocketAddr) -> anyhow::Result<Administrator> {
        let mut client = Administrator::new(server, Duration::from_secs(self.timeout));
        client.allow(self.allowances());
        if let Some(path) = &self.server_key {
            let record = key::public_record(path)?;
            let key = PublicKey::from_record(&record).with_context(|| format!("{}", path.display()))?;
            client.require_signatures(key);
            client.use_sessions(self.session_timeout_s());
        }
        Ok(client)
    }

    /// The finder of services, if no server is named.
    pub(crate) fn finder(&self) -> anyhow::Result<Option<Arc<Client>>> {
        self.server.is_none().then(|| self.client.client()).transpose()
    }

    /// The identity that was named.
    pub(crate) fn clients(&self) -> anyhow::Result<ServerClients<'_>> {
        let mut clients = ServerClients::new(self, self.finder()?)?;
        clients.identify(self.identity.read()?);
        Ok(clients)
    }
}

/// Connections to servers, as one identity or none.
pub(crate) struct ServerClients<'a> {
    args: &'a ServerArgs,
    to: ServerChoice,
    identity: Option<Arc<ClientIdentity>>,
    /// How sessions are used, once set; see [`Administrator::use_sessions`].
    sessions: Option<Option<i32>>,
    shared: CommonSessions,
}

/// The sessions that several connections to each server share.
#[derive(Clone, Default)]
pub(crate) struct CommonSessions(Arc<Mutex<HashMap<ServerAddress, CommonSession>>>);

impl CommonSessions {
    fn with(&self, server: &ServerAddress) -> CommonSession {
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.entry(server.clone()).or_default().clone()
    }
}

enum ServerChoice {
    Named(Box<Administrator>),
    Found(Box<FoundServers>),
}

/// Connections to servers that were looked up.
struct FoundServers {
    driver: BlockingDriver,
    finder: Arc<Client>,
    clients: HashMap<ServerAddress, Administrator>,
}

/// The key of a connection in the table. The server key is part of it, because services may trust
/// different keys at one address.
type ServerAddress = (SocketAddr, Vec<u8>);

/// The key of the named server, which is the only one.
const NAMED: ServerAddress = (SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0), Vec::new());

impl<'a> ServerClients<'a> {
    /// Connections to the named server, or to those that `finder` finds.
    pub(crate) fn new(args: &'a ServerArgs, finder: Option<Arc<Client>>) -> anyhow::Result<Self> {
        let to = match finder {
            Some(finder) => {
                let driver = BlockingDriver::new(Arc::clone(&finder));
                ServerChoice::Found(Box::new(FoundServers { driver, finder, clients: HashMap::new() }))
            }
            None => ServerChoice::Named(Box::new(args.anonymous(args.named("no server is set")?)?)),
        };
        Ok(Self { args, to, identity: None, sessions: None, shared: CommonSessions::default() })
    }

    /// Shares the session with each server with all that get the same `shared`.
    pub(crate) fn share_sessions(&mut self, shared: CommonSessions) {
        if let ServerChoice::Named(client) = &mut self.to {
            client.share_session(shared.with(&NAMED));
        }
        self.shared = shared;
    }

    /// Authenticates as `identity` from now on.
    pub(crate) fn identify(&mut self, identity: Option<Arc<ClientIdentity>>) {
        self.end_sessions();
        self.each(|client| client.identify(identity.clone()));
        self.identity = identity;
    }

    /// Sets how sessions are used from now on, unless the command line has switched them off.
    pub(crate) fn use_sessions(&mut self, timeout_s: Option<i32>) {
        let timeout_s = timeout_s.filter(|_| !self.args.sessions.no_sessions);
        if self.sessions != Some(timeout_s) {
            self.end_sessions();
        }
        self.each(|client| client.use_sessions(timeout_s));
        self.sessions = Some(timeout_s);
    }

    /// Ends all sessions at once; one by one, each silent server would cost a time-out.
    fn end_sessions(&mut self) {
        match &mut self.to {
            ServerChoice::Named(client) => Administrator::end_sessions([&mut **client]),
            ServerChoice::Found(found) => Administrator::end_sessions(found.clients.values_mut()),
        }
    }

    fn each(&mut self, mut act: impl FnMut(&mut Administrator)) {
        match &mut self.to {
            ServerChoice::Named(client) => act(client),
            ServerChoice::Found(found) => found.clients.values_mut().for_each(act),
        }
    }

    /// The connection to the server for `handle`. Of several primary sites, the first that accepts
    /// a connection is used, also for later requests: the others may not have the earlier changes
    /// yet.
    ///
    /// # Errors
    /// [`LookupError`] if the service is not found; otherwise why there is no connection.
    /// [`LookupError`] where the service is not found; else why there is no connection.
    pub(crate) fn of(&mut self, handle: &[u8]) -> anyhow::Result<&mut Administrator> {
        let FoundServers { driver, finder, clients } = match &mut self.to {
            ServerChoice::Named(client) => return Ok(client),
            ServerChoice::Found(found) => &mut **found,
        };
        let purpose = InterfacePurpose { kind: InterfaceKind::ADMIN, primary_only: true };
        let servers = driver.servers(handle, purpose, self.args.certify)?;
        let mut refused = None;
        for server in &servers {
            let known = (server.address, server.public_key.clone());
            let is_new = !clients.contains_key(&known);
            if is_new {
                let mut client = self.args.anonymous(server.address)?;
                trust(&mut client, self.args, server);
                let queries = InterfacePurpose { kind: InterfaceKind::QUERY, primary_only: true };
                let answering = driver.servers(handle, queries, self.args.certify).unwrap_or_default();
                let is_same = |other: &&ServerTarget| {
                    (other.address.ip(), other.position, &other.public_key)
                        == (server.address.ip(), server.position, &server.public_key)
                };
                if let Some(other) = answering.iter().find(is_same).filter(|it| it.address != server.address)
                {
                    client.answers_queries_at(other.address);
                }
                client.share_session(self.shared.with(&known));
                client.identify(self.identity.clone());
                if let Some(timeout_s) = self.sessions {
                    client.use_sessions(timeout_s);
                }
                if clients.len() >= CONNECTIONS_MAX {
                    Administrator::end_sessions(clients.values_mut());
                    clients.clear();
                }
                clients.insert(known.clone(), client);
            }
            let began = Instant::now();
            // The server may have closed a kept connection, and may be down now.
            let connected = clients.get_mut(&known).expect("there now").connect();
            let times = &finder.times;
            if let Err(error) = connected {
                clients.remove(&known);
                times.note(server.address, finder.timeout.tcp_ms, now());
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
    /// As [`of`](Self::of), and if the service has several servers.
    pub(crate) fn of_prefix(&mut self, prefix_record: &str) -> anyhow::Result<&mut Administrator> {
        let mut handle = prefix_record.as_bytes().to_vec();
        if let ServerChoice::Found(found) = &mut self.to {
            // The requested handles are under the prefix; those derived from it are prefix records.
            let prefix = Handle(prefix_record.as_bytes()).local_name();
            if !prefix.contains(&b'/') {
                handle = [prefix, b"/"].concat();
            }
            let purpose = InterfacePurpose { kind: InterfaceKind::ADMIN, primary_only: true };
            let servers = found.driver.servers(&handle, purpose, self.args.certify)?;
            if let Some((_, count @ 2..)) = servers.first().map(|server| server.position) {
                bail!("the service has {count} servers, each with its own handles: choose one with --server");
            }
        }
        self.of(&handle)
    }
}

impl Drop for ServerClients<'_> {
    fn drop(&mut self) {
        self.end_sessions();
    }
}

/// If no key was named, the site record has the key of the server.
fn trust(client: &mut Administrator, args: &ServerArgs, server: &ServerTarget) {
    if args.server_key.is_none()
        && let Ok(key) = PublicKey::from_record(&server.public_key)
    {
        client.require_signatures(key);
        client.use_sessions(args.session_timeout_s());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
    use handle_client::bootstrap::Root;
    use handle_proto::data::site::{Interface, InterfaceProtocol, SiteBuf, SiteFlags};
    use handle_proto::data::site_build::{ServerBuilder, SiteBuilder};
    use std::net::{TcpListener, TcpStream};

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        server: ServerArgs,
    }

    fn args() -> ServerArgs {
        ServerArgs { server: None, server_key: None, ..Line::parse_from(["hdl"]).server }
    }

    /// A primary site of one server.
    fn site(address: SocketAddr, public_key: &[u8]) -> SiteBuf {
        let mut site = SiteBuilder::new();
        site.flags = SiteFlags::PRIMARY;
        let interface = Interface::new(InterfaceKind::BOTH, InterfaceProtocol::TCP, address.port());
        site.server(ServerBuilder {
            id: 1,
            address: address.ip().into(),
            public_key: public_key.to_vec(),
            interfaces: vec![interface],
        });
        site.build()
    }

    fn finder(known: &[(&[u8], SiteBuf)]) -> Arc<Client> {
        let mut client = Client::new(Root::default());
        known.iter().for_each(|(prefix, site)| client.overrides.add(prefix, site.clone()));
        Arc::new(client)
    }

    /// A server that accepts connections and never answers.
    struct SilentServer(TcpListener);

    impl SilentServer {
        fn at(address: SocketAddr) -> Self {
            let listener = TcpListener::bind(address).unwrap();
            listener.set_nonblocking(true).unwrap();
            Self(listener)
        }

        fn new() -> Self {
            Self::at(([127, 0, 0, 1], 0).into())
        }

        fn address(&self) -> SocketAddr {
            self.0.local_addr().unwrap()
        }

        /// The connections accepted since the last call.
        fn accepted(&self) -> Vec<TcpStream> {
            std::iter::from_fn(|| Some(self.0.accept().ok()?.0)).collect()
        }
    }

    fn known(clients: &ServerClients<'_>) -> Vec<ServerAddress> {
        let ServerChoice::Found(found) = &clients.to else { panic!("none was named") };
        let mut known: Vec<ServerAddress> = found.clients.keys().cloned().collect();
        known.sort();
        known
    }

    #[test]
    fn services_at_one_address_share_a_connection_only_where_they_share_a_key() {
        let (listening, args) = (SilentServer::new(), args());
        let address = listening.address();
        let finder = finder(&[
            (b"0.NA/10.1", site(address, b"one")),
            (b"0.NA/10.2", site(address, b"two")),
            (b"0.NA/10.3", site(address, b"one")),
        ]);
        let mut clients = ServerClients::new(&args, Some(finder)).unwrap();
        for handle in [b"10.1/a", b"10.2/a", b"10.3/a", b"10.2/b", b"10.1/b"] {
            clients.of(handle).unwrap();
        }
        assert_eq!(known(&clients), [(address, b"one".to_vec()), (address, b"two".to_vec())]);
        assert_eq!(listening.accepted().len(), 2);
    }

    #[test]
    fn of_several_primary_sites_the_same_is_asked_until_it_is_gone() {
        // At an address that nothing else uses: the port is free when the server comes back.
        let new = || SilentServer::at(([127, 0, 0, 77], 0).into());
        let (mut both, args) = ([new(), new()], args());
        let [one, other] = [both[0].address(), both[1].address()];
        let finder = finder(&[(b"0.NA/10.1", site(one, b"key")), (b"0.NA/10.1", site(other, b"key"))]);
        let mut clients = ServerClients::new(&args, Some(finder)).unwrap();
        // The first choice is random, and a new choice would usually be another server.
        clients.of(b"10.1/a").unwrap();
        let accepted = [both[0].accepted(), both[1].accepted()];
        let at = usize::from(accepted[0].is_empty());
        let address = |at: usize| [one, other][at];
        for n in 0..20 {
            clients.of(format!("10.1/{n}").as_bytes()).unwrap();
        }
        assert_eq!(known(&clients), [(address(at), b"key".to_vec())]);
        assert!(both.iter().all(|one| one.accepted().is_empty()), "one connection for all");
        // The server goes away and comes back; by then the other one has the changes.
        drop(accepted);
        both[at] = new();
        clients.of(b"10.1/b").unwrap();
        assert_eq!(known(&clients), [(address(1 - at), b"key".to_vec())]);
        both[at] = SilentServer::at(address(at));
        for n in 0..20 {
            clients.of(format!("10.1/{n}").as_bytes()).unwrap();
        }
        assert_eq!((both[at].accepted().len(), both[1 - at].accepted().len()), (0, 1));
    }
}
