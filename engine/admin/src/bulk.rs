//! Changes of many records, which `handle-gateway` hands over. Each connection serves one caller
//! ([`handle_local::bulk`]).
//!
//! Connecting gives no rights: each caller is challenged, and each change is decided with the
//! rights of the caller. Changes in one commit are limited.

pub mod config;

use crate::service::{AdminService, BulkCaller, BulkRefusal};
use crate::state::AdminState;
use crate::steps::{run, within};
use config::BulkConfig;
use handle_local::bulk::{
    BEGIN_LEN_MAX, BulkReply, BulkRequest, BulkResult, FRAME_CHANGES_MAX, REQUEST_LEN_MAX, SEARCH_LEN_MAX,
};
use handle_local::connection::{FrameWriter, LocalConnection};
use handle_proto::limit::NONCE_LEN;
use handle_proto::wire::admin::StorePosition;
use handle_store::FoundHandles;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use zeroize::Zeroizing;

/// Time for the answer to a challenge. A gateway may have to derive a key from a secret for it,
/// which takes seconds under load.
const PROOF_TIMEOUT: Duration = Duration::from_secs(10);
/// Length of replies to one change. They have nothing secret, so others may grow.
const USUAL_REPLY_LEN: usize = 64;

/// The error for a frame that cannot be parsed.
fn malformed() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "a frame cannot be parsed: is handle-gateway of another version?")
}

/// Proves the caller, and carries out changes until the peer closes the connection or the server
/// stops.
///
/// # Errors
/// When the peer closes the connection or is too slow, the server stops, or a frame is malformed.
pub async fn carry_out(
    mut connection: LocalConnection,
    state: &Arc<AdminState>,
    mut stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    let config = &Arc::new(state.config().bulk.clone());
    let (service, timeout) = (&state.service, Duration::from_millis(config.idle_ms.into()));
    let begin_len_max = BEGIN_LEN_MAX.max(SEARCH_LEN_MAX);
    let begin = connection.reader.receive_within(begin_len_max, timeout, &mut stopping).await?;
    if let Some(BulkRequest::Search(_)) = BulkRequest::decode(&begin) {
        return search_without_caller(connection, state, begin, timeout, stopping).await;
    }
    let nonce = handle_auth::random();
    send(&mut connection.writer, &BulkReply::Challenge(nonce), timeout).await?;
    // The peer answers at once, also if the server stops meanwhile.
    let proof = within(PROOF_TIMEOUT.min(timeout), connection.reader.receive(BEGIN_LEN_MAX)).await?;
    let proven =
        prove(&mut connection, service, BulkChallenge { begin, nonce, proof }, config, timeout).await?;
    let Some(caller) = proven else { return Ok(()) };
    carry_out_for(connection, state, caller, stopping).await
}

/// Carries out changes for a caller who has been proven.
///
/// # Errors
/// As [`carry_out`].
pub(crate) async fn carry_out_for(
    mut connection: LocalConnection,
    state: &Arc<AdminState>,
    caller: BulkCaller,
    mut stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    let config = &Arc::new(state.config().bulk.clone());
    let (service, timeout) = (&state.service, Duration::from_millis(config.idle_ms.into()));
    let caller = Arc::new(caller);
    loop {
        if !within(timeout, connection.begins(&mut stopping)).await? {
            // The next process continues with it.
            if let Some(stream) = connection.into_stream() {
                state.leave_caller(stream.into_std()?.into(), &caller);
            }
            return Ok(());
        }
        let frame = within(timeout, connection.reader.receive(REQUEST_LEN_MAX)).await?;
        let (answering, config, caller) = (Arc::clone(state), Arc::clone(config), Arc::clone(&caller));
        let carried_out = run(&service.counters, move || {
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
            Ok(done) => done.send(&mut connection.writer, timeout).await?,
            Err(refusal) => return refuse(&mut connection.writer, &refusal, timeout).await,
        }
    }
}

/// What was done for one frame.
enum BulkDone {
    Changed(StorePosition, Vec<BulkResult>),
    Found(FoundHandles),
}

impl BulkDone {
    async fn send(self, writer: &mut FrameWriter, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Changed(position, results) => {
                send(writer, &BulkReply::Results(position, results), timeout).await
            }
            Self::Found(found) => {
                let handles = found.handles.iter().map(Vec::as_slice).collect();
                let next = found.next.as_deref().unwrap_or_default();
                send(writer, &BulkReply::Found(handles, next), timeout).await
            }
        }
    }
}

/// Answers searches of a caller without credentials, which the settings may allow.
async fn search_without_caller(
    mut connection: LocalConnection,
    state: &Arc<AdminState>,
    first: Zeroizing<Vec<u8>>,
    timeout: Duration,
    mut stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut frame = first;
    loop {
        let answering = Arc::clone(state);
        let found = run(&state.service.counters, move || match BulkRequest::decode(&frame) {
            Some(BulkRequest::Search(search)) => {
                Ok(answering.service.find(None, &search, &answering.config().index))
            }
            _ => Err(malformed()),
        });
        match found.await?? {
            Ok(found) => BulkDone::Found(found).send(&mut connection.writer, timeout).await?,
            Err(refused) => return refuse(&mut connection.writer, &refused.into(), timeout).await,
        }
        frame = connection.reader.receive_within(SEARCH_LEN_MAX, timeout, &mut stopping).await?;
    }
}

/// The challenge of a caller.
struct BulkChallenge {
    /// The first frame of the caller.
    begin: Zeroizing<Vec<u8>>,
    nonce: [u8; NONCE_LEN],
    /// The frame with the proof.
    proof: Zeroizing<Vec<u8>>,
}

/// Verifies the proof of the caller that the first frame names; `None` if the caller was refused.
async fn prove(
    connection: &mut LocalConnection,
    service: &Arc<AdminService>,
    challenge: BulkChallenge,
    config: &Arc<BulkConfig>,
    timeout: Duration,
) -> io::Result<Option<BulkCaller>> {
    let (answering, config) = (Arc::clone(service), Arc::clone(config));
    let proven = run(&service.counters, move || {
        let BulkChallenge { begin, nonce, proof } = challenge;
        let Some(BulkRequest::Proof { auth_type, signed_response }) = BulkRequest::decode(&proof) else {
            return Err(malformed());
        };
        answering.verify_bulk_caller(&begin, nonce, auth_type, signed_response, &config).ok_or_else(malformed)
    });
    match proven.await?? {
        Ok(caller) => {
            send(&mut connection.writer, &BulkReply::Accepted, timeout).await?;
            Ok(Some(caller))
        }
        Err(refusal) => {
            refuse(&mut connection.writer, &refusal, timeout).await?;
            Ok(None)
        }
    }
}

async fn refuse(writer: &mut FrameWriter, refusal: &BulkRefusal, timeout: Duration) -> io::Result<()> {
    match refusal {
        BulkRefusal::OtherBody => send(writer, &BulkReply::OtherBody, timeout).await,
        BulkRefusal::Refused(refused) => {
            send(writer, &BulkReply::Refused(refused.code, refused.text.as_bytes()), timeout).await
        }
    }
}

/// Sends a frame, for which the peer has `timeout` to read it.
async fn send(writer: &mut FrameWriter, reply: &BulkReply<'_>, timeout: Duration) -> io::Result<()> {
    let sent = writer.send(USUAL_REPLY_LEN, |content| reply.encode(content));
    within(timeout, sent).await
}
