//! Changing many records in one request: `POST /api/batch`.
//!
//! The body has changes in any form that inputs have, and the answer is JSON lines, one result
//! each. Both are streamed: changes are read, handed to `handle-admin` in groups, and answered
//! while more arrive. With `Idempotency-Key` the whole body is read first, because the key covers
//! its digest.
//!
//! There are few permits among the requests to `handle-admin`, and few connections to it. A request
//! has one while its caller is proven, which takes no part of the body, and while changes are
//! carried out; not while it waits for its client.

mod change_line;
mod reading;

pub(crate) use change_line::creation;

use crate::administration::{AdministrationService, NO_BULK};
use crate::api::body::ApiBody;
use crate::api::caller::Caller;
use crate::api::request::{
    ApiRefusal, ApiRequest, NO_ADMIN, challenge, respond, status_of, unauthorized, unsupported,
};
use crate::api::resolve::{BulkForm, streamed};
use crate::body_collection::collect;
use crate::body_streams;
use crate::bulk::{self, BulkError, OpenTries, RequestKey};
use crate::config::BulkLimits;
use crate::connections::request_body::RequestBody;
use crate::refusal::HttpRefusal;
use crate::reply::{GatewayResponse, set_number};
use crate::state::GatewayState;
use crate::stream::{BodySender, ClientGone, ResponseBody};
use change_line::LineChange;
use handle_client::administration::ClientIdentity;
use handle_daemon::permits::{PermitLimits, SourcePermit};
use handle_local::bulk::{FRAME_LEN, KEY_LEN_MAX};
use handle_local::connection::{FrameReader, FrameWriter, LocalConnection};
use handle_proto::ResponseCode;
use handle_proto::wire::admin::StorePosition;
use hyper::StatusCode;
use hyper::header::{self, HeaderMap};
use reading::{BodyChanges, BodyForm, ReadChanges, ReadingLimits, UnreadBody, count_changes};
use sha2::{Digest as _, Sha256};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Maximum number of lines that are handed to `handle-admin` together.
const GROUP_LINES: usize = 256;
/// Length of lines at which a group is handed over.
const GROUP_LEN: usize = FRAME_LEN / 2;
/// Maximum number of groups that wait for their results.
const GROUPS_MAX: usize = 4;
/// Time for which a group waits for further lines.
const GROUP_TIMEOUT: Duration = Duration::from_millis(2);

/// Time for which a request keeps its permit while no line arrives. To get it again, the caller is
/// proven again, which takes milliseconds.
const PAUSE: Duration = Duration::from_millis(250);

/// The refusal of a body of another media type.
const OTHER_MEDIA: &str = "Unsupported media type: send application/x-ndjson, text/csv, or application/octet-stream, \
    whose form is recognised";

/// Bodies that are read at a time: each has a thread, as long as its client sends. Only proven
/// callers get one.
const READERS: PermitLimits = PermitLimits { all: 256, per_holder: 32 };

/// Answers a request to change many records.
pub(super) async fn batch(
    state: &Arc<GatewayState>,
    request: &ApiRequest<'_>,
    body: RequestBody,
) -> GatewayResponse {
    let identity = match Caller::of(state, request).await {
        Caller::Anonymous => return challenge(state, request, None),
        Caller::Refused(response) => return response,
        Caller::Identity(identity) => identity,
    };
    let Some(admin) = &state.writing.admin else { return unsupported(state, request, NO_ADMIN) };
    let Some(socket) = admin.socket() else { return unsupported(state, request, NO_BULK) };
    let Some(form) = BodyForm::of(request.head.headers) else {
        return other_form(OTHER_MEDIA).respond(state, request, None);
    };
    let (settings, source) = (state.settings.current_shared(), request.peer.address);
    let work = BatchWork { state: Arc::clone(state), identity, source };
    let limits =
        ReadingLimits { entry_len_max: settings.bulk.line_bytes, records_max: settings.bulk.records };
    let name = match key_of(request.head.headers) {
        Ok(name) => name,
        Err(refusal) => return refusal.respond(state, request, None),
    };
    // The proof from the head alone: a body that is read before it would be that of anybody.
    // Permits are soon free again, because a client does not decide how long it has one.
    let mut connection = match work.open_in_turn(admin, socket, None).await {
        Ok(connection) => connection,
        Err(error) => return refuse(state, request, error),
    };
    let timeout = settings.limits.transfer_time();
    let (unread, reservation) = match name {
        None => (UnreadBody::arriving(state, body, form, limits, timeout), None),
        Some(name) => {
            // Its permit is free while the body arrives.
            drop(connection);
            let read = read_body(state, request, &settings.bulk, body, form, name).await;
            let (unread, key, reservation) = match read {
                Ok(read) => read,
                Err(refusal) => return refusal.respond(state, request, None),
            };
            connection = match work.open_in_turn(admin, socket, Some(&key)).await {
                Ok(connection) => connection,
                Err(error) => return refuse(state, request, error),
            };
            (unread, Some(reservation))
        }
    };
    let Some((sender, body)) = ResponseBody::of_results(state, request.peer.address) else {
        return HttpRefusal::TooManyAnswers.respond_json(&settings);
    };
    let reader = state.readers.take(source, READERS).ok().and_then(|permit| unread.read(permit).ok());
    let Some(changes) = reader else { return refuse(state, request, BulkError::busy()) };
    let mut read = BatchBody { changes, has_arrived: reservation.is_some(), first: None };
    if form == BodyForm::Any
        && let Some(message) = read.begins_with_other_form().await
    {
        return other_form(&message).respond(state, request, None);
    }
    body_streams::spawn(state, async move {
        let _reservation = reservation;
        // On an error, the body ends without its terminator, which tells the client that results
        // are missing.
        let _ = work.run(connection, read, sender).await;
    });
    streamed(BulkForm::Lines, body)
}

/// The refusal of a body whose form is not read.
fn other_form(message: &str) -> ApiRefusal {
    ApiRefusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, ResponseCode::PROTOCOL_ERROR, message)
}

/// The body of a request with a key, after all of it has arrived, which takes room.
async fn read_body(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    config: &BulkLimits,
    body: RequestBody,
    form: BodyForm,
    name: String,
) -> Result<(UnreadBody, RequestKey, SourcePermit), ApiRefusal> {
    let limits = &state.settings.current_shared().limits;
    let timeout = limits.transfer_time();
    let reservation = state.bodies.reservation(request.peer.address);
    let collected = collect(reservation, body, config.body_bytes, limits.bodies());
    let collected =
        tokio::time::timeout(timeout, collected).await.unwrap_or(Err(StatusCode::REQUEST_TIMEOUT));
    let refuse = |status, message: &str| ApiRefusal::new(status, ResponseCode::PROTOCOL_ERROR, message);
    let (bytes, reservation) = collected.map_err(|status| {
        state.counters.bodies_refused.add();
        refuse(status, "The body is too long, or did not arrive in time")
    })?;
    let limits = ReadingLimits { entry_len_max: config.line_bytes, records_max: config.records };
    let digested = tokio::task::spawn_blocking(move || {
        let count = count_changes(&bytes, form, limits.entry_len_max, limits.records_max);
        let digest: [u8; 32] = Sha256::digest(&bytes).into();
        (bytes, reservation, count, digest)
    });
    let (bytes, reservation, count, digest) =
        digested.await.map_err(|_| refuse(StatusCode::INTERNAL_SERVER_ERROR, "The request met a bug"))?;
    let count = count.map_err(|message| other_form(&message))?;
    if count > limits.records_max {
        return Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, &too_many(limits.records_max)));
    }
    Ok((UnreadBody::arrived(bytes, form, limits), (name, digest), reservation))
}

fn too_many(records_max: usize) -> String {
    format!("A request has at most {records_max} records")
}

/// The value of `Idempotency-Key`.
fn key_of(headers: &HeaderMap) -> Result<Option<String>, ApiRefusal> {
    let mut keys = headers.get_all("idempotency-key").iter();
    let Some(key) = keys.next() else { return Ok(None) };
    let is_visible = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    let key = key.as_bytes();
    if keys.next().is_some() || key.is_empty() || key.len() > KEY_LEN_MAX || !key.iter().all(is_visible) {
        let message = format!("Idempotency-Key has 1 to {KEY_LEN_MAX} visible characters of ASCII");
        return Err(ApiRefusal::bad(ResponseCode::PROTOCOL_ERROR, &message));
    }
    Ok(Some(String::from_utf8_lossy(key).into_owned()))
}

/// The answer to a request of which no change was handed over.
pub(super) fn refuse(state: &GatewayState, request: &ApiRequest<'_>, error: BulkError) -> GatewayResponse {
    match error {
        // The identity is unknown, or its proof is wrong.
        BulkError::Refused(code @ ResponseCode(403..=406), text) => {
            unauthorized(state, request, code, &text, None)
        }
        BulkError::NoSecret => {
            let text = "The identity has neither a secret nor a session";
            unauthorized(state, request, ResponseCode::INVALID_CREDENTIAL, text, None)
        }
        BulkError::Refused(code, text) => busy(state, request, status_of(code, false), code, &text),
        BulkError::OtherBody => {
            let message = "The Idempotency-Key was used with another body";
            let body = ApiBody::failure(ResponseCode::PROTOCOL_ERROR, Some(message), None);
            respond(state, request, StatusCode::UNPROCESSABLE_ENTITY, body)
        }
        BulkError::Lost(error) => {
            let status = match error.kind() {
                ErrorKind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
                _ => StatusCode::BAD_GATEWAY,
            };
            let message = "The administration service did not answer";
            busy(state, request, status, ResponseCode::ERROR, message)
        }
    }
}

fn busy(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    status: StatusCode,
    code: ResponseCode,
    message: &str,
) -> GatewayResponse {
    let mut response = respond(state, request, status, ApiBody::failure(code, Some(message), None));
    if matches!(status.as_u16(), 502..=504) {
        set_number(&mut response, header::RETRY_AFTER, state.settings.current().upstream.retry_after_s);
    }
    response
}

/// The state of a line of the answer.
#[derive(Debug)]
enum LineState {
    /// The finished line, for an input line that is not a change.
    Finished(String),
    /// The change was handed over under this number, and its result is awaited.
    HandedOver(u32, String),
}

/// Lines that were handed over together.
#[derive(Debug)]
enum LineGroup {
    Lines(Vec<LineState>),
    /// The rest of the body did not arrive.
    Broken,
}

/// The work on the body of a request.
struct BatchWork {
    state: Arc<GatewayState>,
    identity: Arc<ClientIdentity>,
    source: IpAddr,
}

/// A connection of a proven caller, and its permit.
struct PermittedConnection {
    connection: LocalConnection,
    permit: SourcePermit,
}

/// The body of a request.
struct BatchBody {
    changes: Receiver<ReadChanges>,
    /// Whether nothing is awaited of the client. The changes of a request with a key are all made
    /// on the connection that was opened with it.
    has_arrived: bool,
    /// What was read while no permit was taken.
    first: Option<ReadChanges>,
}

impl BatchBody {
    /// Why the body is not read, if it shows at once that it has a form that is not. A form that
    /// shows later is refused in the answer.
    async fn begins_with_other_form(&mut self) -> Option<String> {
        match tokio::time::timeout(PAUSE, self.changes.recv()).await {
            Ok(Some(ReadChanges::OtherForm(message))) => return Some(message),
            Ok(read) => self.first = read,
            Err(_) => {}
        }
        None
    }
}

/// The body did not arrive completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BrokenBody;

/// Why no more lines are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FeedEnd {
    /// There are no more, or too many.
    Over,
    /// None arrives for now.
    Paused,
}

impl BatchWork {
    /// Proves the caller, as soon as there is a permit.
    async fn open_in_turn(
        &self,
        admin: &AdministrationService,
        socket: &Path,
        key: Option<&RequestKey>,
    ) -> Result<PermittedConnection, BulkError> {
        match admin.wait_for_permit(self.source).await {
            Some(permit) => self.open(admin, socket, permit, key).await,
            None => Err(BulkError::busy()),
        }
    }

    /// Proves the caller at `socket`, in `permit`.
    async fn open(
        &self,
        admin: &AdministrationService,
        socket: &Path,
        permit: SourcePermit,
        key: Option<&RequestKey>,
    ) -> Result<PermittedConnection, BulkError> {
        let identity = Arc::clone(&self.identity);
        let opened = bulk::open(socket, admin.timeout(), identity, self.source, key).await;
        match &opened {
            Err(BulkError::Lost(error)) => admin.bulk_failures().note(Some(error), Instant::now()),
            _ => admin.bulk_failures().note(None::<&str>, Instant::now()),
        };
        opened.map(|connection| PermittedConnection { connection, permit })
    }

    /// Proves the caller again, after a pause. The rest of the changes is worth some tries.
    async fn open_again(&self) -> Result<PermittedConnection, ClientGone> {
        let admin = self.state.writing.admin.as_ref().ok_or(ClientGone)?;
        let socket = admin.socket().ok_or(ClientGone)?;
        let tries = OpenTries::new(admin.timeout());
        loop {
            let error = match self.open_in_turn(admin, socket, None).await {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            tries.wait_after(error).await.map_err(|error| {
                tracing::debug!(?error, "a caller could not be proven again for the rest of a request");
                ClientGone
            })?;
        }
    }

    /// Hands all changes over and sends all results.
    async fn run(
        &self,
        first: PermittedConnection,
        mut body: BatchBody,
        mut sender: BodySender,
    ) -> Result<(), ClientGone> {
        let (mut connection, mut position) = (first, None);
        while self.carry_out(connection, &mut body, &mut sender, &mut position).await? == FeedEnd::Paused {
            match body.changes.recv().await {
                Some(ReadChanges::End) => break,
                Some(ReadChanges::Broken) | None => return Err(ClientGone),
                group @ Some(ReadChanges::Group(_) | ReadChanges::OtherForm(_)) => body.first = group,
            }
            connection = self.open_again().await?;
        }
        // The answer ends when its changes are visible.
        self.state.until_visible(self.source, [], position).await;
        sender.finish().await
    }

    /// Hands changes over and sends their results, until no more lines arrive.
    async fn carry_out(
        &self,
        PermittedConnection { connection, permit: _permit }: PermittedConnection,
        body: &mut BatchBody,
        sender: &mut BodySender,
        position: &mut Option<StorePosition>,
    ) -> Result<FeedEnd, ClientGone> {
        let LocalConnection { reader: mut results, writer: changes } = connection;
        let (groups, waiting) = channel(GROUPS_MAX);
        let mut end = FeedEnd::Over;
        let reading = async {
            match self.feed(body, changes, &groups).await {
                Ok(fed) => end = fed,
                Err(BrokenBody) => drop(groups.send(LineGroup::Broken).await),
            }
            drop(groups);
            std::future::pending::<()>().await;
        };
        // When the results have ended, no more lines are read.
        tokio::select! {
            shown = self.send_results(&mut results, waiting, sender, position) => shown?,
            () = reading => return Err(ClientGone),
        }
        Ok(end)
    }

    /// Hands groups of changes over as they are read.
    async fn feed(
        &self,
        body: &mut BatchBody,
        mut changes: FrameWriter,
        groups: &Sender<LineGroup>,
    ) -> Result<FeedEnd, BrokenBody> {
        loop {
            let read = match body.first.take() {
                Some(read) => Some(read),
                None if body.has_arrived => body.changes.recv().await,
                None => match tokio::time::timeout(PAUSE, body.changes.recv()).await {
                    Ok(read) => read,
                    Err(_) => return Ok(FeedEnd::Paused),
                },
            };
            let BodyChanges { frame, states } = match read {
                Some(ReadChanges::Group(group)) => group,
                Some(ReadChanges::OtherForm(_)) => continue,
                Some(ReadChanges::End) => return Ok(FeedEnd::Over),
                Some(ReadChanges::Broken) | None => return Err(BrokenBody),
            };
            states.iter().for_each(|_| self.state.counters.bulk_records.add());
            let has_changes = states.iter().any(|state| matches!(state, LineState::HandedOver(..)));
            groups.send(LineGroup::Lines(states)).await.map_err(|_| BrokenBody)?;
            if has_changes {
                // If this fails, the results fail as well, and the client is told.
                let _ = changes.send_frame(&frame).await;
            }
        }
    }

    /// Sends the results in the order of the lines.
    async fn send_results(
        &self,
        results: &mut FrameReader,
        mut waiting: Receiver<LineGroup>,
        sender: &mut BodySender,
        last_position: &mut Option<StorePosition>,
    ) -> Result<(), ClientGone> {
        let timeout =
            self.state.writing.admin.as_ref().map_or(Duration::ZERO, AdministrationService::timeout);
        while let Some(group) = waiting.recv().await {
            let LineGroup::Lines(states) = group else { return Err(ClientGone) };
            let has_changes = states.iter().any(|state| matches!(state, LineState::HandedOver(..)));
            let received = match has_changes {
                true => bulk::receive_results(results, timeout)
                    .await
                    .map(|(position, results)| (Some(position), results)),
                false => Ok((*last_position, Vec::new())),
            };
            let is_lost = received.is_err();
            let (position, received) = received.unwrap_or_else(|error| {
                tracing::warn!(?error, "the administration service did not answer changes");
                (*last_position, Vec::new())
            });
            *last_position = position;
            let mut received = VecDeque::from(received);
            for state in states {
                let text = match state {
                    LineState::Finished(text) => text,
                    LineState::HandedOver(number, handle) => {
                        match received.pop_front().filter(|result| result.number == number) {
                            Some(result) => {
                                self.forget(&handle, result.code);
                                result_line(number, Some(&handle), result.code, &result.text)
                            }
                            None => result_line(number, Some(&handle), ResponseCode::ERROR, IN_DOUBT),
                        }
                    }
                };
                sender.write(&text).await?;
            }
            sender.flush().await?;
            if is_lost {
                return Err(ClientGone);
            }
        }
        Ok(())
    }

    /// Removes a changed record from the cache of other services' answers.
    fn forget(&self, handle: &str, code: ResponseCode) {
        if let Some(upstream) = self.state.reading.upstream.as_ref().filter(|_| code == ResponseCode::SUCCESS)
        {
            upstream.client().cache.forget(handle.as_bytes());
        }
    }
}

const IN_DOUBT: &str = "The administration service did not answer; the change may have been carried out";

/// The handle and the message of the change on a line; `None` if it is not a change.
#[must_use]
pub fn message_of_line(number: u32, line: &[u8]) -> Option<(String, Vec<u8>)> {
    LineChange::read(number, line).ok().map(|LineChange { handle, message }| (handle, message))
}

/// A line of the answer.
fn result_line(number: u32, handle: Option<&str>, code: ResponseCode, message: &str) -> String {
    let message = Some(message).filter(|message| !message.is_empty());
    ApiBody::failure(code, message, handle).with_line(number)
}
