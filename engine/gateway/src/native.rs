//! The handle protocol over HTTP: one message in the body of a POST, one in the answer.
//!
//! Queries for public values are answered from the set. Everything else is forwarded to
//! `handle-admin` as it is, if that is configured, and refused otherwise; errors of the protocol
//! travel inside the message, with status 200.

use crate::administration::AdministrationService;
use crate::body_streams::spawn;
use crate::peer::HttpPeer;
use crate::refusal::HttpRefusal;
use crate::reply::{GatewayResponse, no_capacity, plain, response, set_number};
use crate::route::Route;
use crate::secret_guesses::SecretGuess;
use crate::state::GatewayState;
use crate::stream::{BodySender, ClientGone, PART_LEN, ResponseBody};
use handle_daemon::clock::now_unix_s;
use handle_daemon::permits::{PermitLimits, SourcePermit};
use handle_daemon::site::SiteRecord;
use handle_local::connection::LocalConnection;
use handle_local::kind::LocalKind;
use handle_local::relay::{PART_LEN_MAX, RelayRoute, RelayedRequest};
use handle_proto::limit::MESSAGE_LEN_MAX;
use handle_proto::wire::auth::SECRET_KEY;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::stream::{StreamFront, split};
use handle_proto::wire::{Body, Envelope, Header, Message, Request, Response};
use handle_proto::{OpCode, OpFlags, ResponseCode};
use handle_resolver::{
    AnswerContext, AnswerOutcome, RefusalReason, ReplyParts, SortingBuffer, WireReply as _, answer_message,
    refuse_stream,
};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{StatusCode, Version};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Maximum length of a message with its envelope.
pub const BODY_LEN_MAX: usize = Envelope::LEN + MESSAGE_LEN_MAX as usize;

/// The media type of messages.
const MEDIA_TYPE: &str = "application/x-hdl-message";

/// Whether a request has a message as its body and accepts one as its answer.
#[must_use]
pub fn is_asked(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_message =
        text(header::CONTENT_TYPE).split(';').next().is_some_and(|kind| kind.trim() == MEDIA_TYPE);
    // Deployed servers look for the name alone; `http.jsonl`, `native/accept_list`.
    is_message && text(header::ACCEPT).contains(MEDIA_TYPE)
}

/// Answers a message of the client `peer`, whose request has the HTTP version `version`.
pub async fn answer(
    state: &Arc<GatewayState>,
    peer: HttpPeer,
    version: Version,
    bytes: &[u8],
) -> GatewayResponse {
    let source = peer.address;
    let settings = state.settings.current_shared();
    let message = match split(bytes, MESSAGE_LEN_MAX) {
        Ok(StreamFront::Message(message, _)) => message,
        unreadable => return respond(refuse_unreadable(state, bytes, unreadable.is_err())),
    };
    match &state.writing.admin {
        Some(admin) if !is_public_query(message) => {
            state.counters.forwarded.add();
            let guess = guess_in(source, message);
            if let Some(Err(retry_after)) = guess.as_ref().map(|guess| guess.check(state)) {
                return HttpRefusal::TooManySecrets(retry_after).respond(
                    Route::Handle,
                    &HeaderMap::new(),
                    &settings,
                );
            }
            if let Some(socket) = admin.socket() {
                let relayed = relay(state, admin, socket, peer, message).await;
                return match relayed {
                    Ok(body) => {
                        if let (RelayedAnswer::Whole(answer), Some(guess)) = (&body, &guess) {
                            count_if_wrong(state, answer, guess);
                        }
                        respond_in(version, body)
                    }
                    Err(error) => {
                        state.counters.forward_failures.add();
                        refuse(&error, settings.upstream.retry_after_s)
                    }
                };
            }
            match forward(state, admin, source, message).await {
                Ok(answer) => {
                    if let Some(guess) = &guess {
                        count_if_wrong(state, &answer, guess);
                    }
                    respond(answer)
                }
                Err(error) => {
                    state.counters.forward_failures.add();
                    refuse(&error, settings.upstream.retry_after_s)
                }
            }
        }
        _ => answer_here(state, source, message).map_or_else(no_capacity, respond),
    }
}

/// The proof with a secret key in a message that is not encrypted. `handle-admin` limits those in
/// sessions.
fn guess_in(source: IpAddr, message: &[u8]) -> Option<SecretGuess> {
    let (envelope, rest) = Envelope::split(message).ok()?;
    let (header, _) = Header::split(rest).ok()?;
    let is_proof = matches!(header.op_code, OpCode::RESPONSE_TO_CHALLENGE | OpCode::VERIFY_CHALLENGE);
    if !is_proof || envelope.flags.has(EnvelopeFlags::ENCRYPTED) {
        return None;
    }
    match Message::decode(rest).ok()?.decode_body(envelope.version).ok()? {
        Body::Request(Request::AnswerChallenge(answer)) if answer.auth_type == SECRET_KEY => {
            Some(SecretGuess::of(source, answer.identity.handle))
        }
        Body::Request(Request::VerifyChallenge(body)) => Some(SecretGuess::of(source, body.identity.handle)),
        _ => None,
    }
}

/// Counts a proof that `answer` says is wrong.
fn count_if_wrong(state: &GatewayState, answer: &[u8], guess: &SecretGuess) {
    let decoded = Envelope::split(answer).ok().and_then(|(envelope, rest)| {
        let message = Message::decode(rest).ok()?;
        let verdict = match message.decode_body(envelope.version).ok()? {
            Body::Reply(reply) => match reply.response {
                Response::Verdict(verdict) => Some(verdict.is_valid),
                _ => None,
            },
            Body::Request(_) => None,
        };
        Some((message.header.response_code, verdict))
    });
    if matches!(decoded, Some((ResponseCode::AUTHENTICATION_FAILED, _) | (_, Some(false)))) {
        guess.count(state);
    }
}

/// The response with a relayed answer. Deployed clients do not decode chunked bodies, so one of
/// unknown length ends with the connection.
fn respond_in(version: Version, body: RelayedAnswer) -> GatewayResponse {
    match body {
        RelayedAnswer::Whole(message) => respond(message),
        RelayedAnswer::Streamed(body) => {
            let mut response = response(StatusCode::OK, MEDIA_TYPE, Vec::new());
            *response.body_mut() = body;
            if version < Version::HTTP_2 {
                *response.version_mut() = Version::HTTP_10;
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            response
        }
    }
}

fn respond(message: Vec<u8>) -> GatewayResponse {
    response(StatusCode::OK, MEDIA_TYPE, message)
}

/// Whether the set answers a message: a query for public values, without signature or session.
fn is_public_query(message: &[u8]) -> bool {
    let Ok((envelope, rest)) = Envelope::split(message) else { return true };
    let is_clear = !envelope.flags.has(EnvelopeFlags::ENCRYPTED) && envelope.session_id == 0;
    let Ok((header, _)) = Header::split(rest) else { return is_clear };
    is_clear
        && matches!(header.op_code, OpCode::RESOLUTION | OpCode::GET_SITE_INFO)
        && (header.flags.has(OpFlags::PUBLIC_ONLY) || header.op_code == OpCode::GET_SITE_INFO)
        && !header.flags.has(OpFlags::CERTIFY)
}

/// The answer of the set, as bytes of one message; `None` if there is no capacity for it.
fn answer_here(state: &GatewayState, source: IpAddr, message: &[u8]) -> Option<Vec<u8>> {
    let Some(mapped) = &state.reading.set else { return Some(refuse_without_set(state)) };
    let set = mapped.current();
    // Long lists are sorted, as the slow path of `handled` does. A body has at most as many as take
    // milliseconds.
    let reservation = SortingBuffer::new();
    let context =
        AnswerContext::new(set.records(), state.reading.service(), now_unix_s()).sorting_in(&reservation);
    let Ok((envelope, rest)) = Envelope::split(message) else {
        return Some(refuse_unreadable(state, message, true));
    };
    match answer_message(&context, envelope, rest) {
        AnswerOutcome::Reply(reply) | AnswerOutcome::InSession(reply) => {
            state.has_capacity_for(source, reply.stream_len()).then(|| encode(&reply))
        }
        _ => Some(encode(&refuse_stream(&context, RefusalReason::NotSupported, b""))),
    }
}

fn encode(reply: &ReplyParts<'_>) -> Vec<u8> {
    let mut bytes = vec![0; reply.stream_len()];
    reply.write_stream(&mut bytes);
    bytes
}

/// The refusal of bytes that are not a whole message, as deployed servers make it;
/// `conversations.jsonl`, `malformed/*_half_close`.
fn refuse_unreadable(state: &GatewayState, bytes: &[u8], is_long: bool) -> Vec<u8> {
    let Some(mapped) = &state.reading.set else { return refuse_without_set(state) };
    let set = mapped.current();
    let context = AnswerContext::new(set.records(), state.reading.service(), now_unix_s());
    match Envelope::split(bytes) {
        _ if is_long => encode(&refuse_stream(&context, RefusalReason::Malformed, b"")),
        Ok((envelope, rest)) => {
            let text = format!("Expecting {} bytes, only received {}", envelope.message_len, rest.len());
            encode(&refuse_stream(&context, RefusalReason::CutOff, text.as_bytes()))
        }
        Err(_) => encode(&refuse_stream(&context, RefusalReason::Short, b"")),
    }
}

/// Without a set, only messages for `handle-admin` are answered.
fn refuse_without_set(state: &GatewayState) -> Vec<u8> {
    let layers: [handle_snapshot::Layer<&[u8]>; 0] = [];
    let Ok(records) = handle_snapshot::RecordSet::new(&layers) else { return Vec::new() };
    let context = AnswerContext::new(records, state.reading.service(), now_unix_s());
    encode(&refuse_stream(&context, RefusalReason::NotSupported, b""))
}

/// Sends a message to `handle-admin` over a connection of its own, and reads the answer.
///
/// # Errors
/// When it does not answer in time, or with something other than whole messages, or when too many
/// answers wait for clients of this source.
async fn forward(
    state: &GatewayState,
    admin: &AdministrationService,
    source: IpAddr,
    message: &[u8],
) -> io::Result<Vec<u8>> {
    let (reservation, limits) =
        (state.answers.reservation(source), state.settings.current().limits.answers());
    let exchange = async {
        let mut stream = TcpStream::connect(admin.address()).await?;
        stream.set_nodelay(true)?;
        stream.write_all(message).await?;
        read_answer(&mut stream, admin.answer_len_max(), reservation, limits.bytes).await
    };
    admin.exchange(source, exchange).await
}

/// The answer to a relayed message.
enum RelayedAnswer {
    /// It has ended.
    Whole(Vec<u8>),
    /// It goes on.
    Streamed(ResponseBody),
}

/// Relays a message to `handle-admin` at `socket`. An answer that is longer than one part is
/// streamed, as fast as the client reads it.
///
/// # Errors
/// When `handle-admin` does not answer in time, or too many requests wait for it.
async fn relay(
    state: &Arc<GatewayState>,
    admin: &AdministrationService,
    socket: &Path,
    peer: HttpPeer,
    message: &[u8],
) -> io::Result<RelayedAnswer> {
    let Some(permit) = admin.permit(peer.address) else { return Err(ErrorKind::ResourceBusy.into()) };
    let route = if is_as_secure(state, peer) { RelayRoute::Https } else { RelayRoute::Http };
    let request = RelayedRequest { route, source: peer.address, message };
    let timeout = admin.timeout();
    let late = || io::Error::from(ErrorKind::TimedOut);
    let begun = tokio::time::timeout(timeout, async {
        let mut connection = LocalConnection::connect(socket, LocalKind::Relay).await?;
        connection.send(17 + message.len(), |content| request.encode(content)).await?;
        let mut first = Vec::new();
        while first.len() < PART_LEN_MAX {
            let part = connection.reader.receive(PART_LEN_MAX).await?;
            if part.is_empty() {
                return Ok((first, None));
            }
            first.extend_from_slice(&part);
        }
        io::Result::Ok((first, Some(connection)))
    });
    let (first, connection) = match begun.await.map_err(|_| late())?? {
        (first, _) if first.is_empty() => return Err(ErrorKind::UnexpectedEof.into()),
        (first, None) => return Ok(RelayedAnswer::Whole(first)),
        (first, Some(connection)) => (first, connection),
    };
    let streamed = ResponseBody::streamed(state, peer.address);
    let (sender, body) = streamed.ok_or(io::Error::from(ErrorKind::ResourceBusy))?;
    // The rest comes as fast as the client reads, so it has no permit among the requests.
    let stream_permit = admin.stream_permit(peer.address);
    let stream_permit = stream_permit.ok_or(io::Error::from(ErrorKind::ResourceBusy))?;
    drop(permit);
    spawn(state, async move {
        let _permit = stream_permit;
        copy(connection, first, sender, timeout).await;
    });
    Ok(RelayedAnswer::Streamed(body))
}

/// Copies the rest of an answer to the client. The body stays incomplete if `handle-admin` is
/// silent for longer than `timeout`, or closes the connection before the end.
async fn copy(mut connection: LocalConnection, first: Vec<u8>, mut sender: BodySender, timeout: Duration) {
    if send_parts(&first, &mut sender).await.is_err() {
        return;
    }
    while let Ok(Ok(part)) = tokio::time::timeout(timeout, connection.reader.receive(PART_LEN_MAX)).await {
        if part.is_empty() {
            let _ = sender.finish().await;
            return;
        }
        if send_parts(&part, &mut sender).await.is_err() {
            return;
        }
    }
}

/// Sends bytes in short parts: while one is sent, others wait.
async fn send_parts(bytes: &[u8], sender: &mut BodySender) -> Result<(), ClientGone> {
    for part in bytes.chunks(PART_LEN) {
        sender.send(part).await?;
    }
    Ok(())
}

/// Whether the connection of the client proves the key of the server in the site record.
fn is_as_secure(state: &GatewayState, peer: HttpPeer) -> bool {
    let server = state.reading.site.as_ref().and_then(SiteRecord::server);
    let tls = state.tls.as_ref().filter(|_| peer.is_tls);
    tls.zip(server).is_some_and(|(tls, server)| tls.has_key(server.public_key))
}

/// Reads one message, and those that continue it, up to `len_max` bytes together.
async fn read_answer(
    stream: &mut TcpStream,
    len_max: usize,
    mut reservation: SourcePermit,
    limits: PermitLimits,
) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    loop {
        let start = answer.len();
        answer.resize(start + Envelope::LEN, 0);
        stream.read_exact(&mut answer[start..]).await?;
        let Ok((envelope, _)) = Envelope::split(&answer[start..]) else {
            return Err(ErrorKind::InvalidData.into());
        };
        if envelope.message_len > MESSAGE_LEN_MAX {
            return Err(ErrorKind::InvalidData.into());
        }
        let body_at = answer.len();
        if body_at + envelope.message_len as usize > len_max {
            return Err(ErrorKind::FileTooLarge.into());
        }
        let len = body_at + envelope.message_len as usize;
        if reservation.resize(len.min(limits.per_holder), limits).is_err() {
            reservation.note_refusal();
            return Err(ErrorKind::ResourceBusy.into());
        }
        answer.resize(len, 0);
        stream.read_exact(&mut answer[body_at..]).await?;
        let is_clear = !envelope.flags.has(EnvelopeFlags::ENCRYPTED);
        let continues = Header::split(&answer[body_at..])
            .is_ok_and(|(header, _)| is_clear && header.flags.has(OpFlags::CONTINUOUS));
        if !continues {
            return Ok(answer);
        }
    }
}

fn refuse(error: &io::Error, retry_after_s: u32) -> GatewayResponse {
    let status = match error.kind() {
        ErrorKind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::ResourceBusy => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_GATEWAY,
    };
    let mut response = plain(status, "the administration service did not answer\n");
    set_number(&mut response, header::RETRY_AFTER, retry_after_s);
    response
}
