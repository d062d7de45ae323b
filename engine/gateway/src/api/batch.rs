//! Changing many records in one request: `POST /api/batch`.
//!
//! The body is JSON lines, one change each, and so is the answer, one result each. Both are
//! streamed: lines are read, handed to `handle-admin` in groups, and answered while more arrive.
//! With `Idempotency-Key` the whole body is read first, because the key covers its digest.
//!
//! There are few places among the requests to `handle-admin`, and few connections to it. A request
//! has one while its caller is proven, which takes no part of the body, and while changes are
//! carried out; not while it waits for its client.

mod change_line;
mod lines;

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
use crate::bulk::{self, BulkError, RequestKey};
use crate::config::BulkConfig;
use crate::connections::request_body::RequestBody;
use crate::places::{BodyRoom, SourcePlace};
use crate::refusal::HttpRefusal;
use crate::reply::{GatewayResponse, set_number};
use crate::state::GatewayState;
use crate::stream::{BodySender, ClientGone, ResponseBody};
use change_line::LineChange;
use handle_client::administration::ClientIdentity;
use handle_daemon::bulk::{FRAME_LEN, KEY_LEN_MAX};
use handle_proto::ResponseCode;
use handle_proto::wire::admin::StorePosition;
use hyper::StatusCode;
use hyper::header::{self, HeaderMap};
use lines::{BodyLine, BrokenBody, LineReader};
use sha2::{Digest as _, Sha256};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Maximum number of lines that are handed to `handle-admin` together.
const GROUP_LINES: usize = 256;
/// Length of lines at which a group is handed over.
const GROUP_LEN: usize = FRAME_LEN / 2;
/// Maximum number of groups that wait for their results.
const GROUPS_MAX: usize = 4;
/// Time for which a group waits for further lines.
const GROUP_PATIENCE: Duration = Duration::from_millis(2);

/// Time for which a request keeps its place while no line arrives. To get it again, the caller is
/// proven again, which takes milliseconds.
const PAUSE: Duration = Duration::from_millis(250);

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
    let Some(admin) = &state.admin else { return unsupported(state, request, NO_ADMIN) };
    let Some(socket) = admin.bulk_socket() else { return unsupported(state, request, NO_BULK) };
    if BulkForm::of_body(request.head.headers) != Some(BulkForm::Lines) {
        let message = "Unsupported media type: send application/x-ndjson";
        return ApiRefusal::bad(ResponseCode::PROTOCOL_ERROR, message).respond(state, request, None);
    }
    let (settings, source) = (state.settings.current_shared(), request.peer.address);
    let work = BatchWork { state: Arc::clone(state), identity, source, records_max: settings.bulk.records };
    let name = match key_of(request.head.headers) {
        Ok(name) => name,
        Err(refusal) => return refusal.respond(state, request, None),
    };
    // The proof from the head alone: a body that is read before it would be that of anybody. Places
    // are soon free again, because nobody has one for as long as a client pleases.
    let mut opened = match admin.wait_for_place(source).await {
        Some(place) => work.open(admin, socket, place, None).await,
        None => Err(no_place()),
    };
    let patience = Duration::from_millis(settings.limits.body_ms.into());
    let (reader, room) = match name {
        None => (LineReader::of_body(body, settings.bulk.line_bytes, patience), None),
        Some(name) => {
            if let Err(error) = std::mem::replace(&mut opened, Err(no_place())) {
                return refuse(state, request, error);
            }
            let (reader, key, room) = match read_body(state, request, &settings.bulk, body, name).await {
                Ok(read) => read,
                Err(refusal) => return refusal.respond(state, request, None),
            };
            if let Some(place) = admin.wait_for_place(source).await {
                opened = work.open(admin, socket, place, Some(&key)).await;
            }
            (reader, Some(room))
        }
    };
    let connection = match opened {
        Ok(connection) => connection,
        Err(error) => return refuse(state, request, error),
    };
    let Some((sender, body)) = ResponseBody::of_results(state, request.peer.address) else {
        return HttpRefusal::TooManyAnswers.respond("/api", request.head.headers, &settings);
    };
    body_streams::spawn(state, async move {
        let _room = room;
        // On an error, the body ends without its terminator, which tells the client that results
        // are missing.
        let _ = work.run(connection, reader, sender).await;
    });
    streamed(BulkForm::Lines, body)
}

/// The error when too many requests wait for `handle-admin`.
fn no_place() -> BulkError {
    let message = "Too many requests to the administration service are under way";
    BulkError::Refused(ResponseCode::SERVER_BUSY, message.to_owned())
}

/// The lines of the body of a request with a key, after all of it has arrived, which takes room.
async fn read_body(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    config: &BulkConfig,
    body: RequestBody,
    name: String,
) -> Result<(LineReader, RequestKey, BodyRoom), ApiRefusal> {
    let limits = &state.settings.current_shared().limits;
    let patience = Duration::from_millis(limits.body_ms.into());
    let room = state.bodies.room(request.peer.address);
    let collected = collect(room, body, config.body_bytes, limits.bodies());
    let collected =
        tokio::time::timeout(patience, collected).await.unwrap_or(Err(StatusCode::REQUEST_TIMEOUT));
    let refuse = |status, message: &str| ApiRefusal::new(status, ResponseCode::PROTOCOL_ERROR, message);
    let (bytes, room) = collected.map_err(|status| {
        state.counters.bodies_refused.add();
        refuse(status, "The body is too long, or did not arrive in time")
    })?;
    let records_max = config.records;
    let digested = tokio::task::spawn_blocking(move || {
        let is_record = |line: &&[u8]| !line.trim_ascii().is_empty();
        let count = bytes.split(|&byte| byte == b'\n').filter(is_record).count();
        let digest: [u8; 32] = Sha256::digest(&bytes).into();
        (bytes, room, count, digest)
    });
    let (bytes, room, count, digest) =
        digested.await.map_err(|_| refuse(StatusCode::INTERNAL_SERVER_ERROR, "The request met a bug"))?;
    if count > records_max {
        return Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, &too_many(records_max)));
    }
    let reader = LineReader::of_bytes(bytes, config.line_bytes, patience);
    Ok((reader, (name, digest), room))
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
            unauthorized(state, request, (code, &text), None)
        }
        BulkError::NoSecret => {
            let text = "The identity has neither a secret nor a session";
            unauthorized(state, request, (ResponseCode::INVALID_CREDENTIAL, text), None)
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
    records_max: usize,
}

/// A connection of a proven caller, and its place.
struct PlacedConnection {
    stream: UnixStream,
    place: SourcePlace,
}

/// The body of a request.
struct BatchBody {
    reader: LineReader,
    /// A line that was read while no place was taken.
    first: Option<BodyLine>,
    /// Lines that have been read.
    count: usize,
}

/// Why no more lines are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FeedEnd {
    /// There are no more, or too many.
    Over,
    /// None arrives for now.
    Paused,
}

impl BatchWork {
    /// Proves the caller at `socket`, in `place`.
    async fn open(
        &self,
        admin: &AdministrationService,
        socket: &Path,
        place: SourcePlace,
        key: Option<&RequestKey>,
    ) -> Result<PlacedConnection, BulkError> {
        let identity = Arc::clone(&self.identity);
        let opened = bulk::open(socket, admin.patience(), identity, self.source, key).await;
        match &opened {
            Err(BulkError::Lost(error)) => admin.bulk_failures().note(Some(error), Instant::now()),
            _ => admin.bulk_failures().note(None::<&str>, Instant::now()),
        };
        opened.map(|stream| PlacedConnection { stream, place })
    }

    /// Proves the caller again, after a pause.
    async fn open_again(&self) -> Result<PlacedConnection, ClientGone> {
        let admin = self.state.admin.as_ref().ok_or(ClientGone)?;
        let socket = admin.bulk_socket().ok_or(ClientGone)?;
        let place = admin.wait_for_place(self.source).await.ok_or(ClientGone)?;
        self.open(admin, socket, place, None).await.map_err(|error| {
            tracing::debug!(?error, "a caller could not be proven again for the rest of a request");
            ClientGone
        })
    }

    /// Hands all changes over and sends all results.
    async fn run(
        &self,
        first: PlacedConnection,
        reader: LineReader,
        mut sender: BodySender,
    ) -> Result<(), ClientGone> {
        let mut body = BatchBody { reader, first: None, count: 0 };
        let (mut connection, mut position) = (first, None);
        while self.carry_out(connection, &mut body, &mut sender, &mut position).await? == FeedEnd::Paused {
            body.first = body.reader.next().await.map_err(|BrokenBody| ClientGone)?;
            if body.first.is_none() {
                break;
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
        PlacedConnection { stream, place: _place }: PlacedConnection,
        body: &mut BatchBody,
        sender: &mut BodySender,
        position: &mut Option<StorePosition>,
    ) -> Result<FeedEnd, ClientGone> {
        let (mut results, changes) = stream.into_split();
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

    /// Reads lines and hands their changes over in groups.
    async fn feed(
        &self,
        body: &mut BatchBody,
        mut changes: OwnedWriteHalf,
        groups: &Sender<LineGroup>,
    ) -> Result<FeedEnd, BrokenBody> {
        let (mut lines, mut lines_len) = (Vec::new(), 0);
        loop {
            let read = match body.first.take() {
                Some(line) => Ok(Ok(Some(line))),
                None => tokio::time::timeout(PAUSE, body.reader.next()).await,
            };
            let Ok(read) = read else {
                self.hand_over(lines, &mut changes, groups).await?;
                return Ok(FeedEnd::Paused);
            };
            let Some(line) = read? else { break };
            body.count += 1;
            if body.count > self.records_max {
                let message = too_many(self.records_max);
                let text = result_line(line.number, None, ResponseCode::PROTOCOL_ERROR, &message);
                self.hand_over(std::mem::take(&mut lines), &mut changes, groups).await?;
                let _ = groups.send(LineGroup::Lines(vec![LineState::Finished(text)])).await;
                return Ok(FeedEnd::Over);
            }
            lines_len += line.text.as_ref().map_or(0, Vec::len);
            lines.push(line);
            let is_full = lines.len() >= GROUP_LINES || lines_len >= GROUP_LEN;
            if is_full || !body.reader.has_more_within(GROUP_PATIENCE).await? {
                self.hand_over(std::mem::take(&mut lines), &mut changes, groups).await?;
                lines_len = 0;
            }
        }
        self.hand_over(lines, &mut changes, groups).await?;
        Ok(FeedEnd::Over)
    }

    /// Hands the changes on `lines` over.
    async fn hand_over(
        &self,
        lines: Vec<BodyLine>,
        changes: &mut OwnedWriteHalf,
        groups: &Sender<LineGroup>,
    ) -> Result<(), BrokenBody> {
        if lines.is_empty() {
            return Ok(());
        }
        lines.iter().for_each(|_| self.state.counters.bulk_records.add());
        // Parsing a group takes milliseconds, too long for an asynchronous task.
        let encoded = tokio::task::spawn_blocking(move || encode(lines));
        let (frame, states) = encoded.await.map_err(|_| BrokenBody)?;
        let has_changes = states.iter().any(|state| matches!(state, LineState::HandedOver(..)));
        groups.send(LineGroup::Lines(states)).await.map_err(|_| BrokenBody)?;
        if has_changes {
            // If this fails, the results fail as well, and the client is told.
            let _ = changes.write_all(&frame).await;
        }
        Ok(())
    }

    /// Sends the results in the order of the lines.
    async fn send_results(
        &self,
        results: &mut (impl tokio::io::AsyncRead + Unpin),
        mut waiting: Receiver<LineGroup>,
        sender: &mut BodySender,
        last_position: &mut Option<StorePosition>,
    ) -> Result<(), ClientGone> {
        let patience = self.state.admin.as_ref().map_or(Duration::ZERO, AdministrationService::patience);
        while let Some(group) = waiting.recv().await {
            let LineGroup::Lines(states) = group else { return Err(ClientGone) };
            let has_changes = states.iter().any(|state| matches!(state, LineState::HandedOver(..)));
            let received = match has_changes {
                true => bulk::receive_results(results, patience)
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
        if let Some(upstream) = self.state.upstream.as_ref().filter(|_| code == ResponseCode::SUCCESS) {
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

/// The frame with the changes on `lines`, and the states of the lines of the answer.
fn encode(lines: Vec<BodyLine>) -> (Vec<u8>, Vec<LineState>) {
    let mut states = Vec::with_capacity(lines.len());
    let mut changes = Vec::new();
    for BodyLine { number, text } in lines {
        let Some(text) = text else {
            let message = "The line is too long";
            states.push(LineState::Finished(result_line(
                number,
                None,
                ResponseCode::PROTOCOL_ERROR,
                message,
            )));
            continue;
        };
        match LineChange::read(number, &text) {
            Ok(LineChange { handle, message }) => {
                changes.push((number, message));
                states.push(LineState::HandedOver(number, handle));
            }
            Err(fault) => {
                let handle = fault.handle.as_deref();
                states.push(LineState::Finished(result_line(number, handle, fault.code, &fault.message)));
            }
        }
    }
    (bulk::changes_frame(&changes), states)
}

/// A line of the answer.
fn result_line(number: u32, handle: Option<&str>, code: ResponseCode, message: &str) -> String {
    let message = Some(message).filter(|message| !message.is_empty());
    ApiBody::failure(code, message, handle).with_line(number)
}
