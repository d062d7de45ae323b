//! Streams for mirrors: the transactions after the last one that a mirror has, or all records. A
//! mirror, which may be another implementation, requests them with RETRIEVE_TXN_LOG and
//! DUMP_HANDLES.
//!
//! - [`decision`]: whether a receiver can continue, or has to request all records.
//! - [`source`]: the items of a stream, read from one snapshot of the store, in bounded memory.
//! - [`stream`]: the bytes of a stream, with signatures if it is signed.
//! - [`send`]: sends a stream to a receiver that may be slow.
//! - [`tls`]: TLS with the server key, which protects most streams.
//! - [`relay`]: messages that `handle-gateway` relays from HTTP.
//! - [`receivers`]: the progress of each receiver.

pub mod config;
pub mod decision;
pub mod receivers;
pub mod relay;
pub mod send;
pub mod source;
pub mod stream;
pub mod tls;

use config::ReplicationConfig;
use decision::{ReceiverState, SourceStates, needs_dump};
use handle_auth::PrivateKey;
use handle_daemon::permits::{PermitLimits, Permits};
use handle_proto::wire::Request;
use handle_proto::wire::replication::{Progress, Receiver, StartingPoint};
use handle_proto::wire::replication_stream::{
    StreamProtection, TransactionFormat, TransactionStatus, TransactionsHeader,
};
use handle_proto::{HashOption, Version};
use handle_store::{StoreError, StoreRecords as _, StoreSnapshot};
use receivers::{ReceiverKey, Receivers};
use rustls::ServerConfig;
use source::{DumpPosition, DumpSource, ReceiverShare, StreamSource, TransactionSource};
use std::sync::Arc;
use std::time::Duration;
use stream::ReplicationStream;

/// The name of this site if none is set.
const UNNAMED_SITE: &str = "sources";
/// First version in which streams over TCP are encrypted.
const TLS_SINCE: Version = Version::new(2, 8);

/// The transport of a stream to its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamRoute {
    /// The TCP connection of the request.
    Tcp,
    /// HTTP, or HTTPS with a key other than the server key.
    Http,
    /// HTTPS with the server key.
    Https,
}

/// Makes streams for mirrors.
pub struct Replication {
    config: ReplicationConfig,
    key: Arc<PrivateKey>,
    tls: Option<Arc<ServerConfig>>,
    /// Of the streams that are being sent, by the identity of their receivers.
    permits: Permits<String>,
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
    /// As many streams as allowed are being sent, to all receivers or to this identity.
    Busy,
    /// The request is invalid, for the reason in the text.
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
        Self { config: config.clone(), key, tls, permits: Permits::default(), receivers: Arc::default() }
    }

    /// The progress of each receiver.
    #[must_use]
    pub fn receivers(&self) -> &Receivers {
        &self.receivers
    }

    /// The number of streams that are being sent.
    #[must_use]
    pub fn streams_count(&self) -> usize {
        self.permits.count()
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

    /// Begins the stream that answers `request` from `snapshot`.
    ///
    /// # Errors
    /// When there is no permit for it, the request is invalid, or the store cannot be read.
    pub fn begin(
        &self,
        request: &StreamRequest<'_>,
        snapshot: StoreSnapshot,
        route: StreamRoute,
    ) -> Result<ReplicationStream, NoStream> {
        let source = match &request.request {
            Request::RetrieveTxnLog(body) => {
                let share = share_of(body.receiver)?;
                let receiver = ReceiverKey::new(&request.identity, share);
                self.transactions(request, &body.progress, snapshot, share, receiver)?
            }
            Request::DumpHandles(body) => {
                let share = share_of(body.receiver)?;
                let receiver = ReceiverKey::new(&request.identity, share);
                self.receivers.note_request(receiver.clone(), None, request.now_unix_ms);
                StreamSource::Dump(self.dump(request, body.start, snapshot, share, receiver)?)
            }
            _ => return Err(NoStream::Invalid("The request is not about replication.")),
        };
        let limits =
            PermitLimits { all: self.config.streams, per_holder: self.config.streams_per_identity() };
        let permit = self.permits.take(request.identity.clone(), limits).map_err(|_| NoStream::Busy)?;
        let protection = self.protection(request.version, route);
        let key = (protection == StreamProtection::Signed).then(|| Arc::clone(&self.key));
        let tls = self.tls.as_ref().filter(|_| protection == StreamProtection::Tls);
        let receivers = Arc::clone(&self.receivers);
        Ok(ReplicationStream::new(source, protection, key, tls.cloned(), permit, receivers))
    }

    /// All records, or those after `start`.
    fn dump(
        &self,
        request: &StreamRequest<'_>,
        start: Option<StartingPoint<'_>>,
        snapshot: StoreSnapshot,
        share: ReceiverShare,
        receiver: ReceiverKey,
    ) -> Result<DumpSource, NoStream> {
        let begin = match start {
            None => DumpPosition::START,
            Some(start) => DumpPosition::after(start, snapshot.folds(), self.config.has_dates())
                .ok_or(NoStream::Invalid("The starting point has an unknown kind."))?,
        };
        let has_dates = self.config.has_dates();
        Ok(DumpSource::new(snapshot, begin, has_dates, request.now_unix_ms, share, receiver)?)
    }

    /// The transactions after those that the receiver has.
    fn transactions(
        &self,
        request: &StreamRequest<'_>,
        progress: &Progress<'_>,
        snapshot: StoreSnapshot,
        share: ReceiverShare,
        receiver: ReceiverKey,
    ) -> Result<StreamSource, NoStream> {
        let name = self.config.site_name.as_deref().unwrap_or(UNNAMED_SITE);
        let queue = format!("{}:{name}", request.server_at);
        let (format, state) = match *progress {
            Progress::OneSource { last_txn_id, last_query_ms } => {
                let state = ReceiverState { last_id: last_txn_id, last_unix_ms: last_query_ms };
                (TransactionFormat::OneSource, Some(state))
            }
            Progress::AllSources { state } => {
                let states = SourceStates::parse(state)
                    .ok_or(NoStream::Invalid("The state of the receiver is not the JSON of such a state."))?;
                // A receiver does not get its own transactions back.
                let state = (states.own_name.as_deref() != Some(name)).then(|| states.of(&queue));
                (TransactionFormat::AllSources, state)
            }
        };
        let source = decision::source_state(&snapshot)?;
        let needs_dump = state.is_some_and(|state| needs_dump(&source, state, request.now_unix_ms));
        let status = if needs_dump { TransactionStatus::NeedsDump } else { TransactionStatus::Sending };
        self.receivers.note_request(receiver.clone(), state.map(|state| state.last_id), request.now_unix_ms);
        Ok(StreamSource::Transactions(TransactionSource::new(
            snapshot,
            TransactionsHeader { format, status },
            source::TransactionRange {
                queue: state.map(|_| queue.into_bytes()),
                after: state.map_or(0, |state| u64::try_from(state.last_id).unwrap_or(0)),
                last_query_unix_ms: state.map_or(0, |state| state.last_unix_ms),
                now_unix_ms: request.now_unix_ms,
            },
            share,
            receiver,
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
