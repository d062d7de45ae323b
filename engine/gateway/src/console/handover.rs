//! Hands the records of an upload over to `handle-admin` together, at its local socket.

use crate::administration::AdministrationService;
use crate::api::batch::creation;
use crate::bulk::{self, BulkError};
use crate::state::GatewayState;
use handle_client::administration::ClientIdentity;
use handle_console::host::{ServiceFailure, UploadFailure, UploadMode, UploadOutcome, UploadRecord};
use handle_local::bulk::{CHANGE_HEADER_LEN, FRAME_CHANGES_MAX, FRAME_LEN};
use handle_proto::ResponseCode;
use handle_proto::wire::admin::StorePosition;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Changes, each with the number of its record, from 1 on.
type NumberedChanges = Vec<(u32, Vec<u8>)>;

/// Records on their way.
struct RecordsUnderWay {
    handles: Vec<String>,
    /// The outcome of each record; `None` if that is not known yet.
    outcomes: Vec<Option<(ResponseCode, String)>>,
    frames: Vec<NumberedChanges>,
    /// A state of the store that includes all changes so far.
    position: Option<StorePosition>,
}

impl RecordsUnderWay {
    /// Encodes `records` as frames of changes.
    fn encode(records: Vec<UploadRecord>, mode: UploadMode) -> Self {
        let mut under_way = Self { handles: vec![], outcomes: vec![], frames: vec![], position: None };
        let (mut frame, mut frame_len) = (Vec::new(), 0);
        for (number, UploadRecord { handle, values }) in (1..).zip(records) {
            let values = values.map_err(|why| (ResponseCode::INVALID_VALUE, why));
            let message = values.and_then(|values| {
                creation(handle.as_bytes(), &values, mode.overwrites, mode.allows_orphans)
            });
            under_way.handles.push(handle);
            under_way.outcomes.push(message.as_ref().err().cloned());
            let Ok(message) = message else { continue };
            frame_len += CHANGE_HEADER_LEN + message.len();
            frame.push((number, message));
            if frame.len() >= FRAME_CHANGES_MAX || frame_len >= FRAME_LEN {
                under_way.frames.push(std::mem::take(&mut frame));
                frame_len = 0;
            }
        }
        under_way.frames.push(frame);
        under_way.frames.retain(|frame| !frame.is_empty());
        under_way
    }
}

/// Where an upload is handed over, and for whom.
struct Handover<'s> {
    state: &'s GatewayState,
    admin: &'s AdministrationService,
    socket: &'s Path,
    source: IpAddr,
}

/// Creates all records, or replaces them, as `mode` says.
pub(super) async fn put_records(
    state: &GatewayState,
    source: IpAddr,
    identity: &Arc<ClientIdentity>,
    records: Vec<UploadRecord>,
    mode: UploadMode,
) -> UploadOutcome {
    let admin = state.writing.admin.as_ref();
    let nothing =
        UploadOutcome { records: Vec::new(), missing: UploadFailure::Unanswered(ServiceFailure::Failed) };
    // Pages are served only with a socket.
    let Some((admin, socket)) = admin.and_then(|admin| Some((admin, admin.socket()?))) else {
        return nothing;
    };
    let encoded = tokio::task::spawn_blocking(move || RecordsUnderWay::encode(records, mode)).await;
    let Ok(mut under_way) = encoded else { return nothing };
    let handover = Handover { state, admin, socket, source };
    let carried_out = handover.carry_out(identity, &mut under_way).await;
    let outcomes = under_way.handles.iter().zip(&under_way.outcomes);
    let changed = outcomes
        .filter(|(_, outcome)| outcome.as_ref().is_some_and(|(code, _)| *code == ResponseCode::SUCCESS));
    let changed = changed.map(|(handle, _)| handle.as_bytes());
    state.until_visible(source, changed, under_way.position).await;
    let missing = match carried_out {
        Err(BulkError::Refused(ResponseCode::SERVER_BUSY, _)) => {
            UploadFailure::Unanswered(ServiceFailure::Busy)
        }
        Err(BulkError::Refused(code, text)) => UploadFailure::Refused(code, text),
        Err(BulkError::NoSecret) => {
            UploadFailure::Refused(ResponseCode::AUTHENTICATION_FAILED, String::new())
        }
        _ => UploadFailure::Unanswered(ServiceFailure::Failed),
    };
    UploadOutcome { records: under_way.handles.into_iter().zip(under_way.outcomes).collect(), missing }
}

impl Handover<'_> {
    /// Hands over one frame after the other, and notes the results.
    async fn carry_out(
        &self,
        identity: &Arc<ClientIdentity>,
        under_way: &mut RecordsUnderWay,
    ) -> Result<(), BulkError> {
        if under_way.frames.is_empty() {
            return Ok(());
        }
        let (source, timeout) = (self.source, self.admin.timeout());
        let permit = self.admin.permit(source);
        let _permit = permit.ok_or_else(BulkError::busy)?;
        let opened = bulk::open(self.socket, timeout, Arc::clone(identity), source, None).await;
        let failure = match &opened {
            Err(BulkError::Lost(error)) => Some(error),
            _ => None,
        };
        self.admin.bulk_failures().note(failure, Instant::now());
        let mut connection = opened?;
        for changes in std::mem::take(&mut under_way.frames) {
            changes.iter().for_each(|_| self.state.counters.bulk_records.add());
            let frame = bulk::changes_frame(&changes);
            let sent = tokio::time::timeout(timeout, connection.writer.send_frame(&frame)).await;
            sent.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))?;
            let (position, results) = bulk::receive_results(&mut connection.reader, timeout).await?;
            under_way.position = Some(position);
            for result in results {
                let at = usize::try_from(result.number).unwrap_or_default().checked_sub(1);
                let outcome = at.and_then(|at| under_way.outcomes.get_mut(at));
                if let Some(outcome) = outcome {
                    *outcome = Some((result.code, result.text));
                }
            }
        }
        Ok(())
    }
}
