//! Requests over connections: framing, the same resolver behind it, and who may stay how long.
//!
//! [`TcpConnections`] is a machine without sockets or a clock: it is fed what happened to connections and what time it
//! is, and acts on a [`ConnectionActions`]. A worker gives it the connections of its datapath.
//!
//! - All whole messages of one receive are answered together, and their answers sent together.
//! - A connection stays open while its requests ask for that (KC); after one that does not, it is closed behind
//!   the answer, as deployed servers do after every request.
//! - While a connection has answers that the kernel did not take, nothing more is read from it. So what is kept
//!   for one is bounded by the answers of one round, and who does not read gets no further.
//! - Every wait has an end: for a request, for the rest of one, for the reader of an answer, for the end of the
//!   other side.
//! - Every connection is counted when it comes, and once more, by reason, when it is given up. Every request is in
//!   exactly one of `tcp_answered`, `tcp_dropped_error_reply` and `tcp_dropped_bug`.

mod actions;
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
use handle_net::{ConnectionGone, StreamEvent, StreamId};
use handle_proto::OpFlags;
use handle_proto::limit::MESSAGE_LEN_MAX;
use handle_proto::wire::Envelope;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::stream::{StreamFront, split};
use handle_resolver::batch::{STAGED_COUNT, Scratch};
use handle_resolver::{
    AnswerContext, RefusalReason, ReplyParts, answer_message, answer_messages, refuse_stream,
};
use replies::ReplyRound;
use settings::TcpSettings;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use table::{ConnectionWait, StreamTable, TableStream};

/// While draining, how long who has just connected may take for the first byte of a request, in milliseconds.
const FIRST_REQUEST_MS: u64 = 300;
/// Bytes of answers after which they are sent, though there are more requests to answer.
const ROUND_LEN: usize = 128 << 10;
/// Room for a round and the longest answer on top.
const OUT_LEN: usize = ROUND_LEN + Envelope::LEN + MESSAGE_LEN_MAX as usize;

/// Why a connection is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseReason {
    /// Its last request is answered.
    Done,
    /// The other side has ended, between two requests.
    Ended,
    /// The other side has ended within a request.
    CutOff,
    /// It broke.
    Broken,
    /// What came is no request, or is too long for one.
    Unreadable,
    /// No request came.
    Idle,
    /// The rest of a request did not come.
    HalfRequest,
    /// Answers were not read.
    SlowReader,
    /// It was idle, and its place was needed.
    Evicted,
    /// There is no room for what it sends, or does not read.
    NoRoom,
    /// The server stops.
    Drained,
}

impl CloseReason {
    fn count(self, counters: &Counters) {
        match self {
            Self::Done => &counters.tcp_closed_done,
            Self::Ended => &counters.tcp_closed_ended,
            Self::CutOff => &counters.tcp_closed_cut_off,
            Self::Broken => &counters.tcp_closed_broken,
            Self::Unreadable => &counters.tcp_closed_unreadable,
            Self::Idle => &counters.tcp_closed_idle,
            Self::HalfRequest => &counters.tcp_closed_half_request,
            Self::SlowReader => &counters.tcp_closed_slow_reader,
            Self::Evicted => &counters.tcp_closed_evicted,
            Self::NoRoom => &counters.tcp_closed_no_room,
            Self::Drained => &counters.tcp_closed_drained,
        }
        .add(1);
    }
}

/// What a turn works with.
pub struct ConnectionTurn<'t, 'a, B, W> {
    /// Whose connections.
    pub wire: &'t mut W,
    /// What answers depend on.
    pub context: &'t AnswerContext<'a, B>,
    /// Where all is counted.
    pub counters: &'t Counters,
    /// Milliseconds since some moment.
    pub now_ms: u64,
    /// Takes a request whose answer is made on the slow path and comes by [`TcpConnections::reply`]; false when it has no room.
    pub defer: &'t mut dyn FnMut(StreamId, IpAddr, &[u8]) -> bool,
    /// Answers in sessions, where there are any.
    pub sealer: Option<&'t mut SessionSealer>,
    /// Where answers are logged, if they are.
    pub tap: Option<&'t mut QueryLogTap>,
}

/// The connections of a worker, and what of requests has come over them.
pub struct TcpConnections {
    settings: TcpSettings,
    table: StreamTable,
    /// Bytes of requests that are not whole, or wait until answers have been read.
    input_len: usize,
    draining_since_ms: Option<u64>,
    /// Nobody is let in any more, as whoever was accepted before has been heard of.
    draining: bool,
    answers: AnswerRoom,
}

/// Room for the messages of a round and their answers, kept between rounds.
struct AnswerRoom {
    scratch: Scratch,
    messages: Vec<Range<usize>>,
    done: Vec<bool>,
    out: Box<[u8]>,
    used: usize,
    /// How many of the round are answered on the slow path.
    deferred: u32,
}

/// What follows the messages that are whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamRest {
    /// More messages, maybe.
    More,
    /// The beginning of one, or nothing.
    Begun,
    /// Nothing that matters: the last message did not ask to stay.
    Last,
    /// Nothing that can be read.
    Unreadable,
}

impl TcpConnections {
    /// No connections yet.
    #[must_use]
    pub fn new(settings: TcpSettings) -> Self {
        Self {
            table: StreamTable::new(settings.table_limits()),
            settings,
            input_len: 0,
            draining_since_ms: None,
            draining: false,
            answers: AnswerRoom {
                scratch: Scratch::new(),
                messages: Vec::with_capacity(STAGED_COUNT),
                done: Vec::with_capacity(STAGED_COUNT),
                out: vec![0; OUT_LEN].into_boxed_slice(),
                used: 0,
                deferred: 0,
            },
        }
    }

    /// Applies other settings from now on. Connections stay open, and the new timeouts apply to them.
    pub fn set(&mut self, settings: TcpSettings) {
        self.table.set(settings.table_limits());
        self.settings = settings;
    }

    /// How many connections there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Bytes of requests that are kept.
    #[must_use]
    pub const fn input_len(&self) -> usize {
        self.input_len
    }

    /// Whether nothing is under way: no connection is left but such as only wait for the other side's end.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.table.len() == self.table.count(ConnectionWait::Closing)
    }

    /// Gives up on everybody, as time is up.
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

    /// Takes what happened to a connection.
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

    /// When [`tick`](Self::tick) has something to do, at the earliest.
    #[must_use]
    pub fn next_expiry_ms(&self) -> Option<u64> {
        ConnectionWait::ALL.iter().filter_map(|&wait| self.table.next_expiry_ms(wait)).min()
    }

    /// Gives up on whom nothing was heard of for too long.
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

    /// Finishes what is under way on each connection, and then closes it. Who has just connected to ask something
    /// gets a moment to say it.
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

    /// What who is to read an answer in parts does: see [`reply`](Self::reply).
    pub(crate) fn reader(&self, id: StreamId) -> ListingReader {
        match self.table.get(id) {
            Some(connection) if connection.wait.is_over() => ListingReader::Gone,
            Some(connection) if connection.is_kept => ListingReader::Reading,
            Some(_) => ListingReader::Ready,
            None => ListingReader::Gone,
        }
    }

    /// Sends an answer that was made on the slow path, or a part of it that is not the last. The client tells answers by the ids of its requests, so it may
    /// overtake others and be overtaken. Returns whether there is somebody left to get it; where not, that is counted.
    pub fn reply<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        id: StreamId,
        message: &[u8],
        is_last: bool,
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) -> bool {
        let is_there = match self.table.get_mut(id) {
            Some(connection) if !connection.wait.is_over() => {
                // Who reads a part has time for the next one.
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

    /// Notes that answers for `id` are made on the slow path, and will come by [`reply`](Self::reply): the connection stays
    /// until then.
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
        } else if !self.table.has_room_for(peer) {
            Some(&turn.counters.tcp_refused_source)
        } else if self.make_place(turn) {
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

    /// Makes sure that there is a place: see [`StreamTable::evictable`].
    fn make_place<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) -> bool {
        // More than one has to go where there were more places before.
        while self.table.len() >= self.settings.connections {
            let Some(id) = self.table.evictable(turn.now_ms) else { return false };
            if self.table.get(id).is_some_and(|connection| connection.wait.is_over()) {
                // Counted when it was given up.
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

    /// Goes on with what was kept, where nothing keeps it back.
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
                // Nothing to answer: keep it where it is.
                self.keep(id, input);
            } else {
                self.serve(id, &input, turn);
                input.clear();
            }
        }
        self.settle(id, turn);
    }

    /// Answers the messages at the front of `input`, and keeps the rest.
    fn serve<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        id: StreamId,
        input: &[u8],
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) {
        let mut at = 0;
        let mut left = Vec::new();
        let mut has_progressed = false;
        let after = loop {
            let after = self.answers.gather(input, &mut at, self.settings.request_bytes);
            has_progressed |= !self.answers.messages.is_empty();
            let asker = (id, self.table.address_of(id));
            self.answers.answer(asker, input, turn);
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
                        // Not now: the answers before it have to be read first.
                        left.extend_from_slice(message);
                    } else {
                        self.answers.answer_alone(asker, message, turn);
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
                self.keep(id, left);
            }
            StreamRest::Unreadable if left.is_empty() => {
                let rest = &input[at..];
                let refused = match Envelope::split(rest) {
                    // It could be read, were it allowed to be so long.
                    Ok((envelope, _)) if envelope.message_len <= MESSAGE_LEN_MAX => RefusalReason::TooLong,
                    _ => RefusalReason::Malformed,
                };
                self.give_up(id, CloseReason::Unreadable, Some((refused, b"")), turn);
            }
            _ => {
                left.extend_from_slice(&input[at..]);
                self.keep(id, left);
            }
        }
    }

    /// Keeps `input` until there is more, or may be more.
    fn keep(&mut self, id: StreamId, input: Vec<u8>) {
        if let Some(connection) = self.table.get_mut(id) {
            self.input_len += input.len();
            connection.input = input;
        }
    }

    /// Sends what has been answered; how much of it is kept.
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

    /// Says what a connection waits for now, or ends it when that is nothing.
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
            || connection.is_kept && turn.wire.kept_len_all() > self.settings.output_bytes
        {
            return self.abort(id, CloseReason::NoRoom, turn);
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
        // Bytes do not make a wait begin anew; whole requests do.
        if std::mem::take(&mut connection.has_progressed) || wait != connection.wait {
            self.table.wait_for(id, wait, turn.now_ms);
        }
    }

    /// The other side has ended, and all that was whole is answered.
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
        let why = if input.is_empty() { CloseReason::Ended } else { CloseReason::CutOff };
        // Shown by `conversations.jsonl`, `malformed/*_half_close`: who ends early is told so.
        match Envelope::split(&input) {
            Err(_) => {
                // What lacks an envelope: missing bytes count as zero, as deployed.
                let mut padded = [0; Envelope::LEN];
                padded[..input.len()].copy_from_slice(&input);
                let refused = match Envelope::from_bytes(&padded).message_len {
                    0..=MESSAGE_LEN_MAX => RefusalReason::Short,
                    _ => RefusalReason::Malformed,
                };
                self.give_up(id, why, Some((refused, b"")), turn);
            }
            Ok((envelope, rest)) => {
                let text = format!("Expecting {} bytes, only received {}", envelope.message_len, rest.len());
                self.give_up(id, why, Some((RefusalReason::CutOff, text.as_bytes())), turn);
            }
        }
    }

    /// Closes a connection behind what is still to be sent, and behind what is wrong, where that is to be said.
    fn give_up<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        id: StreamId,
        why: CloseReason,
        said: Option<(RefusalReason, &[u8])>,
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) {
        if let Some((refused, text)) = said {
            let reply = refuse_stream(turn.context, refused, text);
            turn.counters.tcp_notices.add(1);
            self.answers.push(&reply, turn.counters);
            if self.flush(id, turn).is_err() {
                return self.broke(id, turn);
            }
        }
        why.count(turn.counters);
        if turn.wire.close(id) {
            return self.forget(id);
        }
        self.drop_input(id);
        // With answers to be read it may take as long as that may take.
        let is_kept = self.table.get(id).is_some_and(|connection| connection.is_kept);
        let wait = if is_kept { ConnectionWait::Ending } else { ConnectionWait::Closing };
        self.table.wait_for(id, wait, turn.now_ms);
    }

    fn abort<B: AsRef<[u8]>, W: ConnectionActions>(
        &mut self,
        id: StreamId,
        why: CloseReason,
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) {
        why.count(turn.counters);
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

impl AnswerRoom {
    /// The messages of one round, from `at` on, and what follows them.
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

    /// Answers the gathered messages, as far as there is room. `done` says which are dealt with.
    fn answer<B: AsRef<[u8]>, W>(
        &mut self,
        (id, source): (StreamId, IpAddr),
        input: &[u8],
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) {
        let Self { scratch, messages, done, out, used, deferred } = self;
        let context = turn.context;
        let mut round = ReplyRound { asker: (id, source), out, used, deferred, turn };
        done.clear();
        done.resize(messages.len(), false);
        let message = |at: usize| &input[messages[at].clone()];
        let gathered = (0..messages.len()).map(message);
        #[cfg(test)]
        let gathered = gathered.inspect(|message| crate::tests::before_reading(message));
        // Answering is pure, so a bug in it spoils nothing: what is not done is tried again alone.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            answer_messages(context, scratch, gathered, |at, outcome| {
                #[cfg(test)]
                crate::tests::before_answering(message(at));
                done[at] = round.finish_in_batch(message(at), outcome);
            });
        }));
    }

    /// Answers one message, with all the room there is.
    #[cold]
    fn answer_alone<B: AsRef<[u8]>, W>(
        &mut self,
        (id, source): (StreamId, IpAddr),
        message: &[u8],
        turn: &mut ConnectionTurn<'_, '_, B, W>,
    ) {
        let Self { out, used, deferred, .. } = self;
        let mut round = ReplyRound { asker: (id, source), out, used, deferred, turn };
        let answered = catch_unwind(AssertUnwindSafe(|| {
            #[cfg(test)]
            crate::tests::before_reading(message);
            #[cfg(test)]
            crate::tests::before_answering(message);
            let Ok((envelope, rest)) = Envelope::split(message) else { return false };
            let outcome = answer_message(round.turn.context, envelope, rest);
            round.finish(message, &outcome)
        }));
        if !matches!(answered, Ok(true)) {
            turn.counters.tcp_dropped_bug.add(1);
        }
    }

    /// Adds something to say that answers no request.
    fn push(&mut self, reply: &ReplyParts<'_>, counters: &Counters) {
        replies::put(reply, &mut self.out, &mut self.used, counters);
    }
}

/// Whether the connection stays open behind the answer to this message. RFC 3652 section 2.2.2.3.
fn asks_to_stay(message: &[u8]) -> bool {
    const FLAGS_AT: usize = Envelope::LEN + 8;
    let Ok((envelope, _)) = Envelope::split(message) else { return false };
    let flags = message.get(FLAGS_AT..).and_then(|rest| rest.first_chunk());
    // Those of an encrypted message cannot be read.
    !envelope.flags.has(EnvelopeFlags::ENCRYPTED)
        && flags.is_some_and(|&flags| OpFlags(u32::from_be_bytes(flags)).has(OpFlags::KEEP_CONNECTION))
}
