//! A primary: where its servers are reached, their keys, and the identity of this mirror there.

use super::config::{MirrorConfig, MirrorPrimary};
use super::error::MirrorError;
use super::scope::{MirrorScope, PrefixFilter};
use crate::replication::source::ReceiverShare;
use anyhow::{Context as _, bail};
use handle_auth::{PrivateKey, file};
use handle_client::administration::{Administrator, ClientIdentity, IdentityKey, StreamAnswer};
use handle_client::replication::connection::{ReceiveError, StreamConnection, StreamControl};
use handle_client::replication::{StreamContent, StreamEvent, StreamLimits};
use handle_client::service::site_addresses;
use handle_daemon::notice::NoticeKey;
use handle_daemon::notice::listener::NotifyConfig;
use handle_daemon::server_key;
use handle_daemon::server_key::{PassphraseSource, ServerKeyConfig};
use handle_daemon::site::SiteRecord;
use handle_proto::data::PublicKey;
use handle_proto::data::site::{InterfaceKind, InterfaceProtocol};
use handle_proto::json::site_from_json;
use handle_proto::wire::Request;
use handle_proto::wire::replication::{DumpHandles, Progress, Receiver, RetrieveTransactions, StartingPoint};
use handle_proto::{HashOption, Version};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Last version in which streams are signed instead of encrypted.
const SIGNED_UNTIL: Version = Version::new(2, 7);
/// Least bits of an RSA key that TLS supports.
const TLS_KEY_BITS_MIN: usize = 2048;

/// One server of a primary.
#[derive(Debug)]
pub struct PrimaryServer {
    /// The name of the primary, and the position of the server if there are several.
    pub name: String,
    /// The addresses of its interface for administration; one after the other is tried.
    pub addresses: Vec<SocketAddr>,
    /// The record of its public key.
    pub key_record: Vec<u8>,
    /// The highest version of requests, so that streams are protected in a way that its key
    /// supports.
    pub version: Version,
    /// The identity of this mirror.
    pub identity: Arc<ClientIdentity>,
    /// The records that are taken from it.
    pub scope: Arc<MirrorScope>,
    /// Time between two requests.
    pub interval: Duration,
    /// Whether streams may be signed instead of encrypted.
    pub allows_signed_streams: bool,
    /// The settings and the key of its notices.
    pub notify: Option<(NotifyConfig, Arc<NoticeKey>)>,
}

/// Limits on a request for a stream, and on the stream.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Most bytes of an item.
    pub item_len_max: usize,
    /// Timeout of connecting, of an answer, and of each read.
    pub timeout: Duration,
}

impl RequestLimits {
    /// The limits of the configuration.
    #[must_use]
    pub fn new(config: &MirrorConfig) -> Self {
        Self { item_len_max: config.item_bytes, timeout: Duration::from_millis(config.read_ms.into()) }
    }
}

impl PrimaryServer {
    /// A request for the transactions after `last_txn_id`, of a mirror that is complete up to the
    /// time `last_query_ms`.
    #[must_use]
    pub fn transactions_after(&self, last_txn_id: u64, last_query_ms: u64) -> Request<'static> {
        let number = |it| i64::try_from(it).unwrap_or(i64::MAX);
        let progress =
            Progress::OneSource { last_txn_id: number(last_txn_id), last_query_ms: number(last_query_ms) };
        Request::RetrieveTxnLog(RetrieveTransactions { progress, receiver: self.receiver() })
    }

    /// A request for all records, or for those after `start`.
    #[must_use]
    pub fn dump<'a>(&self, start: Option<StartingPoint<'a>>) -> Request<'a> {
        Request::DumpHandles(DumpHandles { receiver: self.receiver(), start })
    }

    /// This mirror in its site.
    fn receiver(&self) -> Receiver {
        let own = self.scope.own_share;
        Receiver {
            hash_option: own.hash_option as u8,
            servers_count: own.servers_count.cast_signed(),
            server_at: own.server_at.cast_signed(),
        }
    }

    /// Sends a request to the address, and passes the stream that answers it to `take`. The bytes
    /// are counted by `control`, which may also end the stream.
    ///
    /// # Errors
    /// When the server does not answer, refuses the request or is not proven, or the stream is not
    /// protected as it has to be, is damaged or ends early.
    pub fn receive(
        &self,
        address: SocketAddr,
        request: &Request<'_>,
        limits: RequestLimits,
        control: &Arc<StreamControl>,
        mut take: impl FnMut(StreamEvent<'_>) -> Result<(), MirrorError>,
    ) -> Result<(), MirrorError> {
        let content = match request {
            Request::DumpHandles(_) => StreamContent::Dump,
            _ => StreamContent::Transactions,
        };
        let mut connection = self.begin(address, request, limits.timeout)?;
        connection.use_control(Arc::clone(control));
        if !self.allows_signed_streams {
            connection.require_tls();
        }
        let limits = StreamLimits { item_len_max: limits.item_len_max };
        let received = connection.receive(content, &self.key_record, limits, |event| {
            if control.is_stopped() { Err(MirrorError::Stopped) } else { take(event) }
        });
        match received {
            Err(MirrorError::Receive(ReceiveError::Unencrypted)) => Err(MirrorError::SignedStream),
            received => received,
        }
    }

    fn begin(
        &self,
        address: SocketAddr,
        request: &Request<'_>,
        timeout: Duration,
    ) -> Result<StreamConnection, MirrorError> {
        let mut client = Administrator::new(address, timeout);
        client.identify(Some(Arc::clone(&self.identity)));
        let key = handle_auth::PublicKey::from_record(&self.key_record);
        client.require_signatures(key.map_err(|_| MirrorError::Order("the key of the primary is invalid"))?);
        client.use_version(self.version);
        match client.begin_stream(request)? {
            StreamAnswer::Begins(connection) => Ok(*connection),
            StreamAnswer::Refused(answer) => Err(MirrorError::Refused(answer.code().0, answer.text())),
        }
    }
}

/// Reads the files about all primaries, for the server `own` of its site.
///
/// # Errors
/// Which file cannot be used, and why.
pub fn open_all(config: &MirrorConfig, own: &SiteRecord) -> anyhow::Result<Vec<PrimaryServer>> {
    let filters: Vec<PrefixFilter> = config.primary.iter().map(MirrorPrimary::filter).collect();
    let mut servers = Vec::new();
    for (at, primary) in config.primary.iter().enumerate() {
        let mut others = filters.clone();
        others.remove(at);
        let opened = open(primary, config, own, &others);
        servers.extend(opened.with_context(|| format!("the primary {:?} (`mirror.primary`)", primary.name))?);
    }
    Ok(servers)
}

fn open(
    primary: &MirrorPrimary,
    config: &MirrorConfig,
    own: &SiteRecord,
    others: &[PrefixFilter],
) -> anyhow::Result<Vec<PrimaryServer>> {
    let identity = Arc::new(open_identity(primary)?);
    let notify = open_notify(primary)?;
    let primary_servers = primary_servers(primary)?;
    if notify.is_some() && primary_servers.servers.len() > 1 {
        bail!("`notify_address` is that of one server, but its site has several");
    }
    let (count, mut servers) = (primary_servers.servers.len(), Vec::new());
    for (at, (addresses, key_record)) in primary_servers.servers.into_iter().enumerate() {
        let name = if count > 1 { format!("{}.{at}", primary.name) } else { primary.name.clone() };
        if addresses.is_empty() {
            bail!("the server {at} of its site record has no TCP interface for administration");
        }
        let version = version_for(&key_record)
            .with_context(|| format!("the public key of the server at {}", addresses[0]))?;
        let share =
            |hash_option, servers_count, server_at| ReceiverShare { hash_option, servers_count, server_at };
        let scope = MirrorScope {
            filter: primary.filter(),
            others: others.to_vec(),
            own_share: share(own.hash_option(), own.servers_count(), own.server_at()),
            primary_share: share(primary_servers.hash_option, u32::try_from(count)?, u32::try_from(at)?),
        };
        servers.push(PrimaryServer {
            name,
            addresses,
            key_record,
            version,
            identity: Arc::clone(&identity),
            scope: Arc::new(scope),
            interval: primary.interval(config),
            allows_signed_streams: primary.allow_signed_streams,
            notify: notify.clone(),
        });
    }
    Ok(servers)
}

/// The servers of a primary: their addresses and keys.
struct PrimaryServers {
    hash_option: HashOption,
    servers: Vec<(Vec<SocketAddr>, Vec<u8>)>,
}

fn primary_servers(primary: &MirrorPrimary) -> anyhow::Result<PrimaryServers> {
    let mut primary_servers = match &primary.site {
        Some(path) => site_servers(path)?,
        None => {
            let servers = vec![(Vec::new(), Vec::new())];
            PrimaryServers { hash_option: HashOption::Handle, servers }
        }
    };
    if !primary.addresses.is_empty() {
        let [server] = primary_servers.servers.as_mut_slice() else {
            bail!("`addresses` cannot replace those of a site with several servers");
        };
        server.0.clone_from(&primary.addresses);
    }
    if let Some(path) = &primary.public_key {
        let [server] = primary_servers.servers.as_mut_slice() else {
            bail!("`public_key` cannot replace those of a site with several servers");
        };
        server.1 = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    }
    Ok(primary_servers)
}

fn site_servers(path: &Path) -> anyhow::Result<PrimaryServers> {
    let text =
        std::fs::read(path).with_context(|| format!("cannot read the site record {}", path.display()))?;
    let invalid = || format!("in the site record {}", path.display());
    let json = serde_json::from_slice(&text).with_context(invalid)?;
    let site = site_from_json(&json).with_context(invalid)?;
    let view = site.view();
    let hash_option = view.hash_option().context("unknown hash option").with_context(invalid)?;
    if view.servers.is_empty() {
        bail!("the site record {} has no server", path.display());
    }
    let keys = view.servers.iter().map(|server| server.public_key.to_vec());
    let addresses = site_addresses(&site, InterfaceProtocol::TCP, InterfaceKind::ADMIN);
    Ok(PrimaryServers { hash_option, servers: addresses.into_iter().zip(keys).collect() })
}

/// The highest version in which the key of a server protects its streams.
fn version_for(key_record: &[u8]) -> anyhow::Result<Version> {
    handle_auth::PublicKey::from_record(key_record).map_err(|error| anyhow::anyhow!("{error}"))?;
    let is_for_tls = match PublicKey::decode(key_record) {
        Ok(PublicKey::Rsa { n, .. }) => n.bits() >= TLS_KEY_BITS_MIN,
        _ => false,
    };
    Ok(if is_for_tls { Version::CURRENT } else { SIGNED_UNTIL })
}

/// The settings and the key of notices, if they are configured.
fn open_notify(primary: &MirrorPrimary) -> anyhow::Result<Option<(NotifyConfig, Arc<NoticeKey>)>> {
    let Some(file) = &primary.notify_key_file else { return Ok(None) };
    let key = NoticeKey::read(file).context("`notify_key_file`")?;
    Ok(Some((primary.notify(), Arc::new(key))))
}

fn open_identity(primary: &MirrorPrimary) -> anyhow::Result<ClientIdentity> {
    let identity = primary.identity().map_err(anyhow::Error::msg)?;
    let key = match (&primary.key_file, &primary.secret_file) {
        (Some(path), _) => {
            let passphrase = primary.passphrase_file.clone().map(PassphraseSource::File);
            let config = ServerKeyConfig { file: path.clone(), passphrase };
            let record = server_key::read_record(&config).context("the key of this mirror")?;
            let key = PrivateKey::from_record(record.as_bytes())
                .with_context(|| format!("cannot use the key {}", path.display()))?;
            IdentityKey::Private(Box::new(key))
        }
        (None, Some(path)) => IdentityKey::Secret(file::open_text_secret(path)?),
        (None, None) => bail!("neither `key_file` nor `secret_file` is set"),
    };
    Ok(ClientIdentity { handle: identity.handle, index: identity.index, key })
}

/// A part of a sentence that names where changes are made, for clients.
#[must_use]
pub fn describe_all(servers: &[Arc<PrimaryServer>]) -> String {
    let first = servers.iter().filter_map(|server| server.addresses.first()).map(ToString::to_string);
    first.take(4).collect::<Vec<_>>().join(", ")
}
