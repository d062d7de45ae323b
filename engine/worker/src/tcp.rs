//! Requests over TCP connections: framing, resolution, and how long a connection may stay open.
//!
//! [`TcpConnections`] is a state machine without sockets or a clock. Its caller passes in the
//! events of connections and the current time, and the state machine acts through
//! [`ConnectionActions`]. A worker connects it to the connections of its datapath.
//!
//! - All complete messages of one receive are answered together, and their answers are sent
//!   together.
//! - A connection stays open while its requests ask for that (KC). After a request that does not,
//!   the connection is closed once its answer is sent, as deployed servers do after every request.
//! - While a connection has answers that the kernel has not accepted, nothing more is read from it.
//!   The buffered bytes of one connection are thus bounded by the answers of one round, and a
//!   client that does not read is not served further.
//! - One source leaves at most an eighth of the bytes unread that all may leave. A connection that
//!   would take more is closed.
//! - Every wait has a timeout: for a request, for the rest of a request, for the client to read an
//!   answer, and for the peer to close.
//! - Every connection is counted when it is opened, and again, by reason, when it is closed. Every
//!   request is in exactly one of `tcp_answered`, `tcp_dropped_error_reply` and `tcp_dropped_bug`.

mod actions;
mod close_reason;
mod replies;
pub mod settings;
mod table;
#[cfg(test)]
mod tests;
pub(crate) mod worker;

pub use actions::ConnectionActions;

use crate::counters::Counters;
use crate::query_log::QueryLogTap;
use crate::sessions::sealer::SessionSealer;
use crate::slow::shard::ListingReader;
use close_reason::CloseReason;
use handle_net::{ConnectionGone, StreamEvent, StreamId};
use handle_proto::OpFlags;
use handle_proto::limit::MESSAGE_LEN_MAX;
use handle_proto::wire::Envelope;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::stream::{StreamFront, split};
use handle_resolver::batch::{STAGED_COUNT, Scratch};
use handle_resolver::{
    AnswerContext, InBatch, RefusalReason, ReplyParts, answer_message, answer_messages, refuse_stream,
};
use replies::TcpReplies;
use settings::TcpSettings;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use table::{ConnectionWait, StreamTable, TableStream};

/// While draining, how long a new connection may take to send the first byte of a request, in
/// milliseconds.
const FIRST_REQUEST_MS: u64 = 300;
/// Bytes of answers after which they are sent, even if more requests are left to answer.
const ROUND_LEN: usize = 128 << 10;
/// Buffer length for a round and the longest answer on top.
const OUT_LEN: usize = ROUND_LEN + Envelope::LEN + MESSAGE_LEN_MAX as usize;

/// The context of one call of [`TcpConnections`].
pub struct ConnectionTurn<'t, 'a, B, W> {
    /// Sends, closes and pauses connections.
    pub wire: &'t mut W,
    /// The context for answering, such as the set and the time.
    pub context: &'t AnswerContext<'a, B>,
    /// The counters of the worker.
    pub counters: &'t Counters,
    /// Milliseconds since an arbitrary start.
    pub now_ms: u64,
    /// Hands a request to the slow path, whose answer arrives through [`TcpConnections::reply`].
    /// Returns false when the queue is full.
    pub defer: &'t mut dyn FnMut(StreamId, IpAddr, &[u8]) -> bool,
    /// Answers requests in sessions, if sessions are enabled.
    pub sealer: Option<&'t mut SessionSealer>,
    /// The query log, if it is enabled.
    pub tap: Option<&'t mut QueryLogTap>,
}

/// The connections of a worker, with the requests received over them that are not answered yet.
pub struct TcpConnections {
    settings: TcpSettings,
    table: StreamTable,
    /// Bytes of requests that are incomplete, or wait until earlier answers have been read.
    input_len: usize,
    draining_since_ms: Option<u64>,
    /// New connections are refused. Requests of connections that were accepted before draining have
    /// had time to arrive.
    draining: bool,
    answers: AnswerLimits,
}

/// Buffers for the messages of a round and their answers, reused between rounds.
struct AnswerLimits {
    scratch: Scratch,
    messages: Vec<Range<usize>>,
    done: Vec<bool>,
    out: Box<[u8]>,
    used: usize,
    /// How many requests of the round are answered on the slow path.
    deferred: u32,
}

/// What follows the complete messages in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamRest {
    /// There may be more messages.
    More,
    /// An incomplete message, or nothing.
    Begun,
    /// Input that is ignored: the last message did not ask to keep the connection open.
    Last,
    /// Input that cannot be decoded.
    Unreadable,
}

impl TcpConnections {
    /// Creates an empty set of connections.
    #[must_use]
    pub fn new(settings: TcpSettings) -> Self {
        Self {
            table: StreamTable::new(settings.table_limits()),
            settings,
            input_len: 0,
            draining_since_ms: None,
            draining: false,
            answers: AnswerLimits {
                scratch: Scratch::new(),
                messages: Vec::with_capacity(STAGED_COUNT),
                done: Vec::with_capacity(STAGED_COUNT),
                out: vec![0; OUT_LEN].into_boxed_slice(),
                used: 0,
                deferred: 0,
            },
        }
    }

    /// Applies new settings from now on. Connections stay open, and the new timeouts apply to them.
    pub fn set(&mut self, settings: TcpSettings) {
        self.table.set(settings.table_limits());
        self.settings = settings;
    }

    /// The number of connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are no connections.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Bytes of requests that are buffered.
    #[must_use]
    pub const fn input_len(&self) -> usize {
        self.input_len
    }

    /// Whether no request is in progress: each remaining connection only waits for the peer to
    /// close.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.table.len() == self.table.count(ConnectionWait::Closing)
    }

    /// Aborts all connections, at the end of draining.
    pub fn abort_all<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) {
        for wait in ConnectionWait::ALL {
            while let Some(id) = self.table.first(wait) {
                if !wait.is_over() {
                    CloseReason::Drained.count(turn.counters);
                }
                turn.wire.abort(id);
                self.forget(id);
            }
        }
        self.gauge(turn.counters);
    }

    /// Handles an event of a connection.
    pub fn handle<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        event: StreamEvent<'_>,
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) {
        match event {
            StreamEvent::Opened { id, peer } => self.open(id, peer, turn),
            StreamEvent::Refused => turn.counters.tcp_refused_full.add(1),
            StreamEvent::Received { id, bytes } => self.receive(id, bytes, turn),
            StreamEvent::Ended { id } => self.end(id, turn),
            StreamEvent::Sent { id } => self.sent(id, turn),
            StreamEvent::Closed { id } => {
                if let Some(connection) = self.table.get(id) {
                    if !connection.wait.is_over() {
                        CloseReason::Broken.count(turn.counters);
                    }
                    self.forget(id);
                }
            }
        }
        self.gauge(turn.counters);
    }

    /// The earliest time at which [`tick`](Self::tick) has something to do.
    #[must_use]
    pub fn next_expiry_ms(&self) -> Option<u64> {
        ConnectionWait::ALL.iter().filter_map(|&wait| self.table.next_expiry_ms(wait)).min()
    }

    /// Closes the connections whose timeout has expired.
    pub fn tick<B: AsRef<[u8]>, W: ConnectionActions>(&mut self, turn: &mut ConnectionTurn<'_, '_, B, W>) {
        for wait in ConnectionWait::ALL {
            while let Some(id) = self.table.expired(wait, turn.now_ms) {
                match wait {
                    ConnectionWait::Idle => {
                        self.give_up(id, CloseReason::Idle, Some((RefusalReason::Idle, b"")), turn)
                    }
                    ConnectionWait::Reading => self.give_up(
                        id,
                        CloseReason::HalfRequest,
                        Some((RefusalReason::HalfRequest, b"")),
                        turn,
                    ),
                    ConnectionWait::Sending => self.abort(id, CloseReason::SlowReader, turn),
                    ConnectionWait::Slow => self.give_up(id, CloseReason::Idle, None, turn),
                    ConnectionWait::Closing | ConnectionWait::Ending => {
                        turn.wire.abort(id);
                        self.forget(id);
                    }
                }
            }
        }
        self.gauge(turn.counters);
    }

    /// Finishes the requests in progress on each connection, and then closes it. A new connection
    /// gets 300 ms to send its first request.
    pub fn drain<B: AsRef<[u8]>, W: ConnectionActions>(&mut self, turn: &mut ConnectionTurn<'_, '_, B, W>) {
        let since_ms = *self.draining_since_ms.get_or_insert(turn.now_ms);
        self.draining = turn.now_ms.saturating_sub(since_ms) >= FIRST_REQUEST_MS;
        while let Some(id) = self.table.first(ConnectionWait::Idle)
            && !self.table.is_new(id, turn.now_ms, FIRST_REQUEST_MS)
        {
            self.give_up(id, CloseReason::Drained, None, turn);
        }
        self.gauge(turn.counters);
    }

    /// The state of the client that reads an answer in parts: see [`reply`](Self::reply).
    pub(crate) fn reader(&self, id: StreamId) -> ListingReader {
        match self.table.get(id) {
            Some(connection) if connection.wait.is_over() => ListingReader::Gone,
            Some(connection) if connection.is_kept => ListingReader::Reading,
            Some(_) => ListingReader::Ready,
            None => ListingReader::Gone,
        }
    }

    /// Sends an answer from the slow path, or a part of one (`is_last` is false for all but the
    /// last part). Clients match answers to requests by request id, so answers may be sent in any
    /// order. Returns whether the connection still exists; if not, the answer is counted as late.
    pub fn reply<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        id: StreamId,
        message: &[u8],
        is_last: bool,
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) -> bool {
        let is_there = match self.table.get_mut(id) {
            Some(connection) if !connection.wait.is_over() => {
                // A new part restarts the time that the client has for reading.
                connection.has_progressed |= !is_last;
                connection.slow_count = connection.slow_count.saturating_sub(is_last.into());
                self.send(id, message, turn);
                self.settle(id, turn);
                true
            }
            _ => {
                turn.counters.tcp_replies_late.add(1);
                false
            }
        };
        self.gauge(turn.counters);
        is_there
    }

    /// Notes that answers for `id` are made on the slow path and arrive through
    /// [`reply`](Self::reply). The connection stays open until then.
    fn defer(&mut self, id: StreamId) {
        let deferred = std::mem::take(&mut self.answers.deferred);
        if let Some(connection) = self.table.get_mut(id) {
            connection.slow_count += deferred;
        }
    }

    fn open<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        id: StreamId,
        peer: SocketAddr,
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) {
        let refused = if self.draining {
            Some(&turn.counters.tcp_refused_draining)
        } else if !self.table.has_capacity_for(peer) {
            Some(&turn.counters.tcp_refused_source)
        } else if self.evict_above_limit(turn) {
            None
        } else {
            Some(&turn.counters.tcp_refused_full)
        };
        if let Some(counter) = refused {
            counter.add(1);
            return turn.wire.abort(id);
        }
        turn.counters.tcp_accepted.add(1);
        self.table.insert(id, peer, turn.now_ms, TableStream::default());
    }

    /// Makes room for one connection, if necessary by evicting another: see
    /// [`StreamTable::evictable`].
    fn evict_above_limit<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) -> bool {
        // More than one connection has to be evicted if the limit was lowered by a reload.
        while self.table.len() >= self.settings.connections {
            let Some(id) = self.table.evictable(turn.now_ms) else { return false };
            if self.table.get(id).is_some_and(|connection| connection.wait.is_over()) {
                // The connection was counted when it was closed.
                turn.wire.abort(id);
                self.forget(id);
            } else {
                self.abort(id, CloseReason::Evicted, turn);
            }
        }
        true
    }

    fn receive<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        id: StreamId,
        bytes: &[u8],
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) {
        let Some(connection) = self.table.get_mut(id) else { return };
        turn.counters.tcp_bytes_received.add(bytes.len() as u64);
        if connection.wait.is_over() || connection.is_last {
            return;
        }
        connection.has_sent = true;
        if connection.input.is_empty() && !connection.is_kept {
            self.serve(id, bytes, turn);
            return self.settle(id, turn);
        }
        connection.input.extend_from_slice(bytes);
        self.input_len += bytes.len();
        self.go_on(id, turn);
    }

    /// Serves the buffered input, unless answers are still unsent.
    fn go_on<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        id: StreamId,
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) {
        let Some(connection) = self.table.get_mut(id) else { return };
        if !connection.wait.is_over() && !connection.is_kept {
            let mut input = std::mem::take(&mut connection.input);
            self.input_len -= input.len();
            let is_begun = matches!(split(&input, self.settings.request_bytes), Ok(StreamFront::Needs(_)));
            if is_begun {
                // There is no complete message, so the input stays buffered without a copy.
                self.keep(id, input);
            } else {
                self.serve(id, &input, turn);
                input.clear();
            }
        }
        self.settle(id, turn);
    }

    /// Answers the messages at the front of `input`, and buffers the rest.
    fn serve<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        id: StreamId,
        input: &[u8],
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) {
        let mut at = 0;
        let mut unanswered = Vec::new();
        let mut has_progressed = false;
        let after = loop {
            let after = self.answers.gather(input, &mut at, self.settings.request_bytes);
            has_progressed |= !self.answers.messages.is_empty();
            self.answers.answer(id, self.table.address_of(id), input, turn);
            self.defer(id);
            let is_done = !self.answers.done.contains(&false);
            if is_done && after == StreamRest::More && self.answers.used < ROUND_LEN {
                continue;
            }
            let mut kept = self.flush(id, turn);
            if !is_done {
                for i in 0..self.answers.messages.len() {
                    if self.answers.done[i] {
                        continue;
                    }
                    let message = &input[self.answers.messages[i].clone()];
                    if matches!(kept, Ok(1..)) {
                        // The answers before this message have to be read first.
                        unanswered.extend_from_slice(message);
                    } else {
                        self.answers.answer_alone(id, self.table.address_of(id), message, turn);
                        self.defer(id);
                        kept = self.flush(id, turn);
                    }
                }
            }
            if kept.is_err() {
                return self.broke(id, turn);
            }
            if after != StreamRest::More || matches!(kept, Ok(1..)) {
                break after;
            }
        };
        let Some(connection) = self.table.get_mut(id) else { return };
        connection.has_progressed |= has_progressed;
        match after {
            StreamRest::Last => {
                connection.is_last = true;
                self.keep(id, unanswered);
            }
            StreamRest::Unreadable if unanswered.is_empty() => {
                let rest = &input[at..];
                let refused = match Envelope::split(rest) {
                    // The message is well-formed, but longer than a request may be.
                    Ok((envelope, _)) if envelope.message_len <= MESSAGE_LEN_MAX => RefusalReason::TooLong,
                    _ => RefusalReason::Malformed,
                };
                self.give_up(id, CloseReason::Unreadable, Some((refused, b"")), turn);
            }
            _ => {
                unanswered.extend_from_slice(&input[at..]);
                self.keep(id, unanswered);
            }
        }
    }

    /// Buffers `input` until more bytes arrive or earlier answers have been read.
    fn keep(&mut self, id: StreamId, input: Vec<u8>) {
        if let Some(connection) = self.table.get_mut(id) {
            self.input_len += input.len();
            connection.input = input;
        }
    }

    /// Sends the gathered answers. Returns how many bytes are still unsent.
    fn flush<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        id: StreamId,
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) -> Result<usize, ConnectionGone> {
        let used = std::mem::take(&mut self.answers.used);
        if used == 0 {
            return Ok(0);
        }
        turn.counters.tcp_bytes_sent.add(used as u64);
        let kept = turn.wire.send(id, &self.answers.out[..used]);
        self.note_kept(id, kept);
        kept
    }

    fn note_kept(&mut self, id: StreamId, kept: Result<usize, ConnectionGone>) {
        if let (Some(connection), Ok(kept)) = (self.table.get_mut(id), kept) {
            connection.is_kept |= kept > 0;
            self.table.set_unread(id, kept);
        }
    }

    fn send<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        id: StreamId,
        bytes: &[u8],
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) {
        turn.counters.tcp_bytes_sent.add(bytes.len() as u64);
        let kept = turn.wire.send(id, bytes);
        self.note_kept(id, kept);
        if kept.is_err() {
            self.broke(id, turn);
        }
    }

    fn broke<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        id: StreamId,
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) {
        if self.table.get(id).is_some() {
            CloseReason::Broken.count(turn.counters);
            turn.wire.abort(id);
            self.forget(id);
        }
    }

    fn sent<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        id: StreamId,
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) {
        if let Some(connection) = self.table.get_mut(id) {
            connection.is_kept = false;
            self.table.set_unread(id, 0);
            self.go_on(id, turn);
        }
    }

    fn end<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        id: StreamId,
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) {
        if let Some(connection) = self.table.get_mut(id) {
            connection.has_ended = true;
            self.settle(id, turn);
        }
    }

    /// Bytes of answers that the clients of one source may leave unread: at least those that one
    /// connection may have.
    fn output_per_source(&self) -> usize {
        (self.settings.output_bytes / 8).max(OUT_LEN)
    }

    /// Sets what a connection waits for next, or closes it when there is nothing to wait for.
    fn settle<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        id: StreamId,
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) {
        let Some(connection) = self.table.get(id) else { return };
        if connection.wait.is_over() {
            return;
        }
        let is_begun = !connection.input.is_empty();
        if self.input_len > self.settings.input_bytes && is_begun
            || connection.is_kept
                && (turn.wire.kept_len_all() > self.settings.output_bytes
                    || !self.table.is_unread_within(id, self.output_per_source()))
        {
            return self.abort(id, CloseReason::NoCapacity, turn);
        }
        let wait = if connection.is_kept {
            ConnectionWait::Sending
        } else if connection.slow_count > 0 && (connection.is_last || connection.has_ended || !is_begun) {
            ConnectionWait::Slow
        } else if connection.is_last && !is_begun {
            return self.give_up(id, CloseReason::Done, None, turn);
        } else if connection.has_ended {
            return self.ended(id, turn);
        } else if is_begun {
            ConnectionWait::Reading
        } else if self.draining_since_ms.is_some() {
            return self.give_up(id, CloseReason::Drained, None, turn);
        } else {
            ConnectionWait::Idle
        };
        let Some(connection) = self.table.get_mut(id) else { return };
        let reads = wait != ConnectionWait::Sending;
        if connection.is_paused == reads {
            connection.is_paused = !reads;
            turn.wire.set_reading(id, reads);
        }
        // Only a complete request restarts the timeout; single bytes do not.
        if std::mem::take(&mut connection.has_progressed) || wait != connection.wait {
            self.table.wait_for(id, wait, turn.now_ms);
        }
    }

    /// The peer has closed its side, and all complete requests are answered.
    fn ended<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        id: StreamId,
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) {
        let Some(connection) = self.table.get_mut(id) else { return };
        if connection.input.is_empty() && connection.has_sent {
            return self.give_up(id, CloseReason::Ended, None, turn);
        }
        let input = std::mem::take(&mut connection.input);
        self.input_len -= input.len();
        let reason = if input.is_empty() { CloseReason::Ended } else { CloseReason::CutOff };
        // A client that closes early gets an error, as `conversations.jsonl`,
        // `malformed/*_half_close`, shows.
        match Envelope::split(&input) {
            Err(_) => {
                // The input is shorter than an envelope. Missing bytes count as zero, as with
                // deployed servers.
                let mut padded = [0; Envelope::LEN];
                padded[..input.len()].copy_from_slice(&input);
                let refused = match Envelope::from_bytes(&padded).message_len {
                    0..=MESSAGE_LEN_MAX => RefusalReason::Short,
                    _ => RefusalReason::Malformed,
                };
                self.give_up(id, reason, Some((refused, b"")), turn);
            }
            Ok((envelope, rest)) => {
                let text = format!("Expecting {} bytes, only received {}", envelope.message_len, rest.len());
                self.give_up(id, reason, Some((RefusalReason::CutOff, text.as_bytes())), turn);
            }
        }
    }

    /// Closes a connection after its unsent answers and, if `notice` is set, after an error that
    /// tells the client why.
    fn give_up<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        id: StreamId,
        reason: CloseReason,
        notice: Option<(RefusalReason, &[u8])>,
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) {
        if let Some((refused, text)) = notice {
            let reply = refuse_stream(turn.context, refused, text);
            turn.counters.tcp_notices.add(1);
            self.answers.push(&reply, turn.counters);
            if self.flush(id, turn).is_err() {
                return self.broke(id, turn);
            }
        }
        reason.count(turn.counters);
        if turn.wire.close(id) {
            return self.forget(id);
        }
        self.drop_input(id);
        // A connection with unsent answers gets the timeout for reading answers.
        let is_kept = self.table.get(id).is_some_and(|connection| connection.is_kept);
        let wait = if is_kept { ConnectionWait::Ending } else { ConnectionWait::Closing };
        self.table.wait_for(id, wait, turn.now_ms);
    }

    fn abort<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        id: StreamId,
        reason: CloseReason,
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) {
        reason.count(turn.counters);
        turn.wire.abort(id);
        self.forget(id);
    }

    fn forget(&mut self, id: StreamId) {
        self.drop_input(id);
        self.table.remove(id);
    }

    fn drop_input(&mut self, id: StreamId) {
        if let Some(connection) = self.table.get_mut(id) {
            self.input_len -= connection.input.len();
            connection.input = Vec::new();
        }
    }

    fn gauge(&self, counters: &Counters) {
        counters.tcp_connections.set(self.table.len() as u64);
        counters.tcp_input_bytes.set(self.input_len as u64);
    }
}

impl AnswerLimits {
    /// Collects the messages of one round, from `at` on. Returns what follows them.
    fn gather(&mut self, input: &[u8], at: &mut usize, message_len_max: u32) -> StreamRest {
        self.messages.clear();
        while self.messages.len() < STAGED_COUNT {
            match split(&input[*at..], message_len_max) {
                Ok(StreamFront::Message(message, _)) => {
                    let start = *at;
                    *at += message.len();
                    self.messages.push(start..*at);
                    if !asks_to_stay(message) {
                        return StreamRest::Last;
                    }
                }
                Ok(StreamFront::Needs(_)) => return StreamRest::Begun,
                Err(_) => return StreamRest::Unreadable,
            }
        }
        StreamRest::More
    }

    /// Answers the gathered messages as far as there is capacity. `done` tells which of them are
    /// handled.
    fn answer<B: AsRef<[u8]>, W>(
        &mut self,
        id: StreamId,
        address: IpAddr,
        input: &[u8],
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) {
        let Self { scratch, messages, done, out, used, deferred } = self;
        let ConnectionTurn { context, counters, defer, sealer, tap, .. } = turn;
        let tap = tap.as_deref_mut();
        let mut replies = TcpReplies { id, address, out, used, deferred, defer, tap, counters };
        done.clear();
        done.resize(messages.len(), false);
        let message = |at: usize| &input[messages[at].clone()];
        let gathered = (0..messages.len()).map(message);
        #[cfg(test)]
        let gathered = gathered.inspect(|message| crate::tests::before_reading(message));
        // Answering is pure, so a panic leaves no damage. Messages that are not done are answered
        // again one by one.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            answer_messages(context, scratch, gathered, |at, outcome| {
                #[cfg(test)]
                crate::tests::before_answering(message(at));
                done[at] = replies.finish(message(at), outcome, context, sealer.as_deref_mut());
            });
        }));
    }

    /// Answers one message, with the whole buffer available.
    #[cold]
    fn answer_alone<B: AsRef<[u8]>, W>(
        &mut self,
        id: StreamId,
        address: IpAddr,
        message: &[u8],
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) {
        let Self { out, used, deferred, .. } = self;
        let ConnectionTurn { context, counters, defer, sealer, tap, .. } = turn;
        let tap = tap.as_deref_mut();
        let mut replies = TcpReplies { id, address, out, used, deferred, defer, tap, counters };
        let answered = catch_unwind(AssertUnwindSafe(|| {
            #[cfg(test)]
            crate::tests::before_reading(message);
            #[cfg(test)]
            crate::tests::before_answering(message);
            let Ok((envelope, rest)) = Envelope::split(message) else { return false };
            let outcome = InBatch::Other(answer_message(context, envelope, rest));
            replies.finish(message, &outcome, context, sealer.as_deref_mut())
        }));
        if !matches!(answered, Ok(true)) {
            turn.counters.tcp_dropped_bug.add(1);
        }
    }

    /// Adds a notice that does not answer a request.
    fn push(&mut self, reply: &ReplyParts<'_>, counters: &Counters) {
        replies::put(reply, &mut self.out, &mut self.used, counters);
    }
}

/// Whether the connection stays open after the answer to this message. RFC 3652 section 2.2.2.3.
fn asks_to_stay(message: &[u8]) -> bool {
    const FLAGS_AT: usize = Envelope::LEN + 8;
    let Ok((envelope, _)) = Envelope::split(message) else { return false };
    let flags = message.get(FLAGS_AT..).and_then(|rest| rest.first_chunk());
    // The flags of an encrypted message cannot be read.
    !envelope.flags.has(EnvelopeFlags::ENCRYPTED)
        && flags.is_some_and(|&flags| OpFlags(u32::from_be_bytes(flags)).has(OpFlags::KEEP_CONNECTION))
}
