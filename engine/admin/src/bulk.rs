//! Changes of many records, which `handle-gateway` hands over through a local socket. Each
//! connection serves one caller ([`handle_daemon::bulk`]).
//!
//! Connections of other users than the configured ones are refused. Connecting gives no rights:
//! each caller is challenged, and each change is decided with the rights of the caller.
//! Connections, and changes in one commit, are limited.

pub mod config;

use crate::local_socket::{LocalSocket, LocalSocketConfig};
use crate::service::{AdminService, BulkCaller, BulkRefusal};
use crate::state::AdminState;
use config::BulkConfig;
use handle_daemon::bulk::{
    BEGIN_LEN_MAX, BulkReply, BulkRequest, BulkResult, FRAME_CHANGES_MAX, FRAME_LEN_MAX, SEARCH_LEN_MAX,
    put_frame,
};
use handle_proto::wire::admin::StorePosition;
use handle_store::FoundHandles;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::watch;
use zeroize::Zeroizing;

/// Binds the socket at `path`, with the users of `config`.
///
/// # Errors
/// When another process is listening there, a different kind of file has the path, or the
/// directory does not allow it.
pub fn bind(path: &Path, config: &BulkConfig) -> anyhow::Result<LocalSocket> {
    let config = LocalSocketConfig {
        setting: "bulk.socket",
        peer: "handle-gateway",
        uids: config.uids.clone(),
        connections: config.connections,
    };
    LocalSocket::bind(path, config)
}

/// Carries out the changes at `socket`, and answers searches, until the server stops.
///
/// # Errors
/// When the runtime cannot watch the socket.
pub fn serve(socket: LocalSocket, state: &Arc<AdminState>) -> anyhow::Result<()> {
    let (counting, state) = (Arc::clone(&state.service), Arc::clone(state));
    let (config, stopping) = (Arc::new(state.config().bulk.clone()), state.stopping());
    let refuse = move || counting.counters.bulk_refused.add();
    socket.serve(stopping, refuse, move |stream, stopping| {
        let (state, config) = (Arc::clone(&state), Arc::clone(&config));
        async move { carry_out(stream, &state, &config, stopping).await }
    })
}

/// The error for a frame that cannot be parsed.
fn malformed() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "a frame cannot be parsed: is handle-gateway of another version?")
}

/// Proves the caller, and carries out changes until the peer closes the connection or the server
/// stops.
async fn carry_out(
    mut stream: UnixStream,
    state: &Arc<AdminState>,
    config: &Arc<BulkConfig>,
    mut stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    let (service, timeout) = (&state.service, Duration::from_millis(config.idle_ms.into()));
    let begin = receive(&mut stream, BEGIN_LEN_MAX.max(SEARCH_LEN_MAX), timeout).await?;
    if let Some(BulkRequest::Search(_)) = BulkRequest::decode(&begin) {
        return search_without_caller(stream, state, begin, timeout).await;
    }
    let Some(caller) = prove(&mut stream, service, &begin, config, timeout).await? else { return Ok(()) };
    let caller = Arc::new(caller);
    loop {
        let frame = tokio::select! {
            frame = receive(&mut stream, FRAME_LEN_MAX, timeout) => frame?,
            _ = stopping.wait_for(|&stops| stops) => return Ok(()),
        };
        let (answering, config, caller) = (Arc::clone(state), Arc::clone(config), Arc::clone(&caller));
        let carried_out = run(service, move || {
            let service = &answering.service;
            Ok(match BulkRequest::decode(&frame) {
                Some(BulkRequest::Changes(changes)) if changes.len() <= FRAME_CHANGES_MAX => {
                    let results = service.change_many(&caller, &changes, &config);
                    results.map(|results| BulkDone::Changed(service.store.position(), results))
                }
                Some(BulkRequest::Search(search)) => {
                    let found = service.find(Some(caller.reference()), &search, &answering.config().index);
                    found.map(BulkDone::Found).map_err(BulkRefusal::from)
                }
                _ => return Err(malformed()),
            })
        });
        match carried_out.await?? {
            Ok(done) => done.send(&mut stream, timeout).await?,
            Err(refusal) => return refuse(&mut stream, &refusal, timeout).await,
        }
    }
}

/// What was done for one frame.
enum BulkDone {
    Changed(StorePosition, Vec<BulkResult>),
    Found(FoundHandles),
}

impl BulkDone {
    async fn send(self, stream: &mut UnixStream, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Changed(position, results) => {
                send(stream, &BulkReply::Results(position, results), timeout).await
            }
            Self::Found(found) => {
                let handles = found.handles.iter().map(Vec::as_slice).collect();
                let next = found.next.as_deref().unwrap_or_default();
                send(stream, &BulkReply::Found(handles, next), timeout).await
            }
        }
    }
}

/// Answers searches of a caller without credentials, which the settings may allow.
async fn search_without_caller(
    mut stream: UnixStream,
    state: &Arc<AdminState>,
    first: Zeroizing<Vec<u8>>,
    timeout: Duration,
) -> io::Result<()> {
    let mut frame = first;
    loop {
        let answering = Arc::clone(state);
        let found = run(&state.service, move || match BulkRequest::decode(&frame) {
            Some(BulkRequest::Search(search)) => {
                Ok(answering.service.find(None, &search, &answering.config().index))
            }
            _ => Err(malformed()),
        });
        match found.await?? {
            Ok(found) => BulkDone::Found(found).send(&mut stream, timeout).await?,
            Err(refused) => return refuse(&mut stream, &refused.into(), timeout).await,
        }
        frame = receive(&mut stream, SEARCH_LEN_MAX, timeout).await?;
    }
}

/// Runs `work`, which may block.
async fn run<T: Send + 'static>(
    service: &AdminService,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| {
        // A decision that panicked leaves nothing behind; a panic of the writer stops the process.
        service.counters.bugs.add();
        io::Error::other("a change met a bug")
    })
}

/// Challenges the caller that the first frame names; `None` if the caller was refused.
async fn prove(
    stream: &mut UnixStream,
    service: &Arc<AdminService>,
    begin: &[u8],
    config: &Arc<BulkConfig>,
    timeout: Duration,
) -> io::Result<Option<BulkCaller>> {
    let begin = Zeroizing::new(begin.to_vec());
    let nonce = handle_auth::random();
    send(stream, &BulkReply::Challenge(nonce), timeout).await?;
    let proof = receive(stream, BEGIN_LEN_MAX, timeout).await?;
    let (answering, config) = (Arc::clone(service), Arc::clone(config));
    let proven = run(service, move || {
        let Some(BulkRequest::Proof { auth_type, signed_response }) = BulkRequest::decode(&proof) else {
            return Err(malformed());
        };
        answering.verify_bulk_caller(&begin, nonce, auth_type, signed_response, &config).ok_or_else(malformed)
    });
    match proven.await?? {
        Ok(caller) => {
            send(stream, &BulkReply::Accepted, timeout).await?;
            Ok(Some(caller))
        }
        Err(refusal) => {
            refuse(stream, &refusal, timeout).await?;
            Ok(None)
        }
    }
}

async fn refuse(stream: &mut UnixStream, refusal: &BulkRefusal, timeout: Duration) -> io::Result<()> {
    match refusal {
        BulkRefusal::OtherBody => send(stream, &BulkReply::OtherBody, timeout).await,
        BulkRefusal::Refused(refused) => {
            send(stream, &BulkReply::Refused(refused.code, refused.text.as_bytes()), timeout).await
        }
    }
}

/// Sends a frame, for which the peer has `timeout` to read it.
async fn send(stream: &mut UnixStream, reply: &BulkReply<'_>, timeout: Duration) -> io::Result<()> {
    let mut frame = Vec::new();
    put_frame(&mut frame, |out| reply.encode(out));
    let sent = tokio::time::timeout(timeout, stream.write_all(&frame)).await;
    sent.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

/// Receives the next frame, without its length.
async fn receive(
    stream: &mut UnixStream,
    len_max: usize,
    timeout: Duration,
) -> io::Result<Zeroizing<Vec<u8>>> {
    let received = tokio::time::timeout(timeout, async {
        let len = stream.read_u32().await? as usize;
        if len > len_max {
            return Err(io::Error::new(ErrorKind::InvalidData, "a frame is too long"));
        }
        let mut frame = Zeroizing::new(vec![0; len]);
        stream.read_exact(&mut frame).await?;
        Ok(frame)
    });
    received.await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}
