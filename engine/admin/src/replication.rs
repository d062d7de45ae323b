//! Streams for mirrors: the transactions after the last one that a mirror has, or all records. A
//! mirror, which may be another implementation, requests them with RETRIEVE_TXN_LOG and
//! DUMP_HANDLES.
//!
//! - [`decision`]: whether a receiver can continue, or has to request all records.
//! - [`source`]: the items of a stream, read from one snapshot of the store, in bounded memory.
//! - [`stream`]: the bytes of a stream, signed or not.
//! - [`send`]: sends a stream to a receiver that may be slow.
//! - [`tls`]: TLS with the server key, in which most receivers read.
//! - [`receivers`]: what each receiver has.

pub mod decision;
pub mod receivers;
pub mod send;
pub mod source;
pub mod stream;
pub mod tls;

use crate::store::{StoreError, StoreRecords as _, StoreSnapshot};
use decision::{ReceiverState, SourceStates, needs_dump};
use handle_auth::PrivateKey;
use handle_daemon::settings;
use handle_daemon::settings::DAY_MS;
use handle_proto::wire::Request;
use handle_proto::wire::replication::{Progress, Receiver, StartingPoint};
use handle_proto::wire::replication_stream::{
    StreamProtection, TransactionFormat, TransactionStatus, TransactionsHeader,
};
use handle_proto::{HashOption, Version};
use receivers::{ReceiverKey, Receivers};
use rustls::ServerConfig;
use source::{DumpPosition, DumpSource, ReceiverShare, StreamSource, TransactionSource};
use std::sync::Arc;
use std::time::Duration;
use stream::ReplicationStream;
use tokio::sync::Semaphore;

settings! {
    /// Mirrors, which request transactions and records ([mirrors.md](../mirrors.md)). Only the
    /// identities of `administrators.replication` and `administrators.server` may.
    pub struct ReplicationConfig {
        /// Answer these requests. A server without a key does not answer them.
        restart enabled: bool = true;
        /// Name of this site for other sites: `INDEX:HANDLE` of its HS_SITE value. If not set,
        /// `sources`.
        restart site_name: Option<String> = None;
        /// Streams at a time. One more gets RC 3.
        restart streams: usize = 8, 1..=1024;
        /// Most time for a receiver to read 64 KiB of a stream, and for its TLS handshake.
        restart write_ms: u32 = 60_000, 1..=DAY_MS;
        /// Most time for a stream. While it lasts, the file of the store keeps the pages that it
        /// shows.
        restart stream_ms: u32 = 43_200_000, 1..=DAY_MS;
        /// Send the last changes of all handles and prefixes in front of all records. Receivers
        /// need them only if they accept changes from several primary sites.
        restart dates: bool = false;
    }
}

/// Name of a site whose record comes from a file.
const UNNAMED_SITE: &str = "sources";
/// First version in which streams over TCP are encrypted.
const TLS_SINCE: Version = Version::new(2, 8);

/// The way of a stream to its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamRoute {
    /// The TCP connection of the request.
    Tcp,
    /// HTTP, or HTTPS with another key than that of this server.
    Http,
    /// HTTPS with the key of this server.
    Https,
}

/// The part of the process that makes streams.
pub struct Replication {
    config: ReplicationConfig,
    key: Arc<PrivateKey>,
    tls: Option<Arc<ServerConfig>>,
    places: Arc<Semaphore>,
    receivers: Arc<Receivers>,
}

impl std::fmt::Debug for Replication {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replication").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Why no stream is made.
#[derive(Debug)]
pub enum NoStream {
    /// As many streams as allowed are being sent.
    Busy,
    /// The request is invalid: the text says why.
    Invalid(&'static str),
    /// The store cannot be read.
    Store(StoreError),
}

impl From<StoreError> for NoStream {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// A request for a stream, whose sender is authorised.
#[derive(Clone, Debug)]
pub struct StreamRequest<'a> {
    /// The request.
    pub request: Request<'a>,
    /// The identity of the receiver, as text.
    pub identity: String,
    /// The version of the answer.
    pub version: Version,
    /// The position of this server in its site.
    pub server_at: u32,
    /// The current time, in milliseconds since 1970; read before the snapshot is taken.
    pub now_unix_ms: u64,
}

impl Replication {
    /// Signs streams with `key`, and encrypts them with `tls`, which has the same key.
    #[must_use]
    pub fn new(config: &ReplicationConfig, key: Arc<PrivateKey>, tls: Option<Arc<ServerConfig>>) -> Self {
        let places = Arc::new(Semaphore::new(config.streams));
        Self { config: config.clone(), key, tls, places, receivers: Arc::default() }
    }

    /// What each receiver has.
    #[must_use]
    pub fn receivers(&self) -> &Receivers {
        &self.receivers
    }

    /// The number of streams that are being sent.
    #[must_use]
    pub fn streams_count(&self) -> usize {
        self.config.streams.saturating_sub(self.places.available_permits())
    }

    /// Limits on the time of a stream.
    #[must_use]
    pub fn send_limits(&self) -> send::SendLimits {
        send::SendLimits {
            write: Duration::from_millis(self.config.write_ms.into()),
            stream: Duration::from_millis(self.config.stream_ms.into()),
        }
    }

    /// The protection of a stream in an answer of `version`.
    fn protection(&self, version: Version, route: StreamRoute) -> StreamProtection {
        match route {
            StreamRoute::Tcp if version >= TLS_SINCE && self.tls.is_some() => StreamProtection::Tls,
            StreamRoute::Https => StreamProtection::Transport,
            StreamRoute::Tcp | StreamRoute::Http => StreamProtection::Signed,
        }
    }

    /// Begins a stream that answers `asked` from `snapshot`.
    ///
    /// # Errors
    /// When there is no place for it, the request is invalid, or the store cannot be read.
    pub fn begin(
        &self,
        asked: &StreamRequest<'_>,
        snapshot: StoreSnapshot,
        route: StreamRoute,
    ) -> Result<ReplicationStream, NoStream> {
        let source = match &asked.request {
            Request::RetrieveTxnLog(body) => {
                let share = share_of(body.receiver)?;
                let receiver = ReceiverKey::new(&asked.identity, share);
                self.transactions(asked, &body.progress, snapshot, share, receiver)?
            }
            Request::DumpHandles(body) => {
                let share = share_of(body.receiver)?;
                let receiver = ReceiverKey::new(&asked.identity, share);
                self.receivers.began(receiver.clone(), None, asked.now_unix_ms);
                StreamSource::Dump(self.dump(asked, body.start, snapshot, share, receiver)?)
            }
            _ => return Err(NoStream::Invalid("The request is not about replication.")),
        };
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else { return Err(NoStream::Busy) };
        let protection = self.protection(asked.version, route);
        let key = (protection == StreamProtection::Signed).then(|| Arc::clone(&self.key));
        let tls = self.tls.as_ref().filter(|_| protection == StreamProtection::Tls);
        let receivers = Arc::clone(&self.receivers);
        Ok(ReplicationStream::new(source, protection, key, tls.cloned(), (place, receivers)))
    }

    /// All records, or those after `start`.
    fn dump(
        &self,
        asked: &StreamRequest<'_>,
        start: Option<StartingPoint<'_>>,
        snapshot: StoreSnapshot,
        share: ReceiverShare,
        receiver: ReceiverKey,
    ) -> Result<DumpSource, NoStream> {
        let begin = match start {
            None => DumpPosition::START,
            Some(start) => DumpPosition::after(start, snapshot.folds(), self.config.dates)
                .ok_or(NoStream::Invalid("The starting point has an unknown kind."))?,
        };
        let has_dates = self.config.dates;
        Ok(DumpSource::new(snapshot, begin, has_dates, asked.now_unix_ms, (share, receiver))?)
    }

    /// The transactions after those that the receiver has.
    fn transactions(
        &self,
        asked: &StreamRequest<'_>,
        progress: &Progress<'_>,
        snapshot: StoreSnapshot,
        share: ReceiverShare,
        receiver: ReceiverKey,
    ) -> Result<StreamSource, NoStream> {
        let name = self.config.site_name.as_deref().unwrap_or(UNNAMED_SITE);
        let queue = format!("{}:{name}", asked.server_at);
        let (format, has) = match *progress {
            Progress::OneSource { last_txn_id, last_query_ms } => {
                let has = ReceiverState { last_id: last_txn_id, last_unix_ms: last_query_ms };
                (TransactionFormat::OneSource, Some(has))
            }
            Progress::AllSources { state } => {
                let states = SourceStates::parse(state)
                    .ok_or(NoStream::Invalid("The state of the receiver is not the JSON of such a state."))?;
                // Nobody gets his own transactions back.
                let has = (states.own_name.as_deref() != Some(name)).then(|| states.of(&queue));
                (TransactionFormat::AllSources, has)
            }
        };
        let state = decision::source_state(&snapshot)?;
        let needs_dump = has.is_some_and(|has| needs_dump(&state, has, asked.now_unix_ms));
        let status = if needs_dump { TransactionStatus::NeedsDump } else { TransactionStatus::Sending };
        self.receivers.began(receiver.clone(), has.map(|has| has.last_id), asked.now_unix_ms);
        Ok(StreamSource::Transactions(TransactionSource::new(
            snapshot,
            TransactionsHeader { format, status },
            source::TransactionRange {
                queue: has.map(|_| queue.into_bytes()),
                after: has.map_or(0, |has| u64::try_from(has.last_id).unwrap_or(0)),
                has_unix_ms: has.map_or(0, |has| has.last_unix_ms),
                now_unix_ms: asked.now_unix_ms,
            },
            (share, receiver),
        )?))
    }
}

/// The share of the handles that a server of the receiving site gets.
fn share_of(receiver: Receiver) -> Result<ReceiverShare, NoStream> {
    let Receiver { hash_option, servers_count, server_at } = receiver;
    let hash_option = HashOption::from_number(hash_option);
    match (hash_option, u32::try_from(servers_count), u32::try_from(server_at)) {
        (Some(hash_option), Ok(servers_count), Ok(server_at)) if server_at < servers_count => {
            Ok(ReceiverShare { hash_option, servers_count, server_at })
        }
        _ => Err(NoStream::Invalid("The receiving site has no such server, or an unknown hash option.")),
    }
}
