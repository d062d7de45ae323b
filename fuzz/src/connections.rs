//! The state machine of TCP connections, with arbitrary write sizes and a jumping clock.

use crate::fixture::FIXTURES;
use crate::generator::Generator;
use handle_net::{ConnectionGone, StreamEvent, StreamId};
use handle_proto::limit::MESSAGE_LEN_MAX;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::stream::{StreamFront, split};
use handle_proto::wire::{Envelope, Header, MessageBuf, Request};
use handle_proto::{OpCode, OpFlags};
use handle_resolver::{AnswerContext, AnswerOutcome, WireReply as _, answer_message};
use handle_worker::counters::Counters;
use handle_worker::tcp::settings::TcpSettings;
use handle_worker::tcp::{ConnectionActions, ConnectionTurn, TcpConnections};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Maximum length of a request here.
const REQUEST_LEN_MAX: u32 = 3000;
/// Maximum number of steps of one input; more show nothing new.
const STEPS_MAX: usize = 400;

/// A connection in the plain model.
#[derive(Default)]
struct ConnectionModel {
    /// All bytes that it sent while it was open.
    sent: Vec<u8>,
    /// All bytes that it received.
    received: Vec<u8>,
    /// Bytes that it accepts before it has to read.
    capacity: usize,
    /// Bytes that wait until the peer reads.
    unsent: usize,
    reads: bool,
    /// Whether the state machine called `close`.
    closed: bool,
    /// Whether the state machine called `abort`.
    aborted: bool,
    /// Whether the peer closed it.
    lost: bool,
    /// Whether the peer has ended its side.
    ended: bool,
    peer: u8,
}

/// Connections without sockets.
#[derive(Default)]
struct WireModels {
    all: BTreeMap<usize, (StreamId, ConnectionModel)>,
    past: Vec<ConnectionModel>,
}

impl WireModels {
    fn get(&mut self, id: StreamId) -> Option<&mut ConnectionModel> {
        self.all.get_mut(&id.at()).filter(|(known, _)| *known == id).map(|(_, model)| model)
    }

    fn drop(&mut self, id: StreamId) {
        if self.get(id).is_some() {
            self.past.extend(self.all.remove(&id.at()).map(|(_, model)| model));
        }
    }
}

impl ConnectionActions for WireModels {
    fn send(&mut self, id: StreamId, bytes: &[u8]) -> Result<usize, ConnectionGone> {
        let model = self.get(id).ok_or(ConnectionGone)?;
        assert!(!model.closed, "bytes are sent after the end");
        model.received.extend_from_slice(bytes);
        let taken = if model.unsent > 0 { 0 } else { model.capacity.min(bytes.len()) };
        model.capacity -= taken;
        model.unsent += bytes.len() - taken;
        Ok(model.unsent)
    }

    fn kept_len_all(&self) -> usize {
        self.all.values().map(|(_, model)| model.unsent).sum()
    }

    fn set_reading(&mut self, id: StreamId, reading: bool) {
        if let Some(model) = self.get(id) {
            model.reads = reading;
        }
    }

    fn close(&mut self, id: StreamId) -> bool {
        let Some(model) = self.get(id) else { return true };
        assert!(!model.closed, "the connection is closed twice");
        model.closed = true;
        let is_gone = model.ended && model.unsent == 0;
        if is_gone {
            self.drop(id);
        }
        is_gone
    }

    fn abort(&mut self, id: StreamId) {
        if let Some(model) = self.get(id) {
            model.aborted = true;
            self.drop(id);
        }
    }
}

/// For any order and timing of events: each answer depends on its message alone, at most one notice
/// follows, no answer is missing on a connection that was not aborted, and all connections are
/// counted.
///
/// Input: steps, each of a byte for the kind and the connection, and a byte for the amount.
pub fn connections(bytes: &[u8]) {
    for fixture in &*FIXTURES {
        let context = fixture.context();
        let settings = TcpSettings {
            connections: 3,
            connections_per_source: 2,
            request_bytes: REQUEST_LEN_MAX,
            input_bytes: 9000,
            output_bytes: 60_000,
            idle_ms: 1000,
            read_ms: 300,
            write_ms: 500,
            linger_ms: 100,
            ..TcpSettings::default()
        };
        let counters = Counters::default();
        let handles = &fixture.handles;
        run(bytes, settings, &context, &counters, |generator| {
            request(&handles[generator.below(handles.len())], generator)
        });
    }
}

fn request(handle: &[u8], generator: &mut Generator) -> Vec<u8> {
    let keep = if generator.below(12) == 0 { OpFlags(0) } else { OpFlags::KEEP_CONNECTION };
    let flags = OpFlags::PLAIN_REQUEST.with(keep);
    let header = Header::request(OpCode::RESOLUTION, flags, 0);
    let query = Query { handle, indexes: Indexes::EMPTY, types: Strings::EMPTY };
    let id = i32::try_from(generator.below(1 << 30)).unwrap_or_default();
    let message = MessageBuf::request(&Envelope::request(id), &header, &Request::Resolution(query));
    message.unsigned().unwrap_or_default()
}

fn run<B: AsRef<[u8]>>(
    bytes: &[u8],
    settings: TcpSettings,
    context: &AnswerContext<'_, B>,
    counters: &Counters,
    mut next_request: impl FnMut(&mut Generator) -> Vec<u8>,
) {
    let (mut tcp, mut wires, mut now_ms) = (TcpConnections::new(settings), WireModels::default(), 0);
    let mut defer = |_: StreamId, _: IpAddr, _: &[u8]| false;
    let mut generator = Generator::new(bytes.len() as u64);
    let mut to_send: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
    let (mut rest, mut generation) = (bytes, 0);
    let mut opened = 0;
    for _ in 0..STEPS_MAX {
        let Some((&[choice, amount], after)) = rest.split_first_chunk() else { break };
        rest = after;
        let (action, at) = (choice % 10, usize::from(choice / 10 % 4));
        let id = wires.all.get(&at).map(|(id, _)| *id);
        let mut turn = ConnectionTurn {
            wire: &mut wires,
            context,
            counters,
            now_ms,
            defer: &mut defer,
            sealer: None,
            tap: None,
        };
        match (action, id) {
            (0, None) => {
                generation += 1;
                opened += 1;
                let id = StreamId::new(u32::try_from(at).unwrap_or_default(), generation);
                let model = ConnectionModel {
                    capacity: usize::from(amount) * 64,
                    reads: true,
                    peer: amount % 2,
                    ..ConnectionModel::default()
                };
                let peer = SocketAddr::from(([192, 0, 2, model.peer], 1));
                turn.wire.all.insert(at, (id, model));
                to_send.remove(&at);
                tcp.handle(StreamEvent::Opened { id, peer }, &mut turn);
            }
            (1..=4, Some(id)) => {
                let model = turn.wire.get(id).expect("the connection is open");
                if model.ended || !model.reads {
                    continue;
                }
                let piece = if action == 1 {
                    let (piece, after) = rest.split_at(rest.len().min(usize::from(amount)));
                    rest = after;
                    piece.to_vec()
                } else {
                    // Well-formed requests, split at any place.
                    let waiting = to_send.entry(at).or_default();
                    let len = usize::from(amount) * if action == 4 { 16 } else { 1 };
                    while waiting.len() < len {
                        waiting.extend(next_request(&mut generator));
                    }
                    let later = waiting.split_off(len);
                    std::mem::replace(waiting, later)
                };
                if !piece.is_empty() {
                    if !model.closed {
                        model.sent.extend_from_slice(&piece);
                    }
                    tcp.handle(StreamEvent::Received { id, bytes: &piece }, &mut turn);
                }
            }
            (5, Some(id)) => {
                let model = turn.wire.get(id).expect("the connection is open");
                if !std::mem::replace(&mut model.ended, true) {
                    if model.closed && model.unsent == 0 {
                        turn.wire.drop(id);
                        tcp.handle(StreamEvent::Closed { id }, &mut turn);
                    } else if !model.closed {
                        tcp.handle(StreamEvent::Ended { id }, &mut turn);
                    }
                }
            }
            (6 | 7, Some(id)) => read(&mut tcp, id, usize::from(amount) * 256, &mut turn),
            (8, Some(id)) => {
                turn.wire.get(id).expect("the connection is open").lost = true;
                turn.wire.drop(id);
                tcp.handle(StreamEvent::Closed { id }, &mut turn);
            }
            (9, _) => now_ms += u64::from(amount) * 4,
            _ => {}
        }
        let mut turn = ConnectionTurn {
            wire: &mut wires,
            context,
            counters,
            now_ms,
            defer: &mut defer,
            sealer: None,
            tap: None,
        };
        tcp.tick(&mut turn);
        check_now(&tcp, &wires, counters);
    }
    // All peers read everything, and are then closed.
    let mut turn = ConnectionTurn {
        wire: &mut wires,
        context,
        counters,
        now_ms,
        defer: &mut defer,
        sealer: None,
        tap: None,
    };
    loop {
        let next = turn.wire.all.values().find(|(_, model)| model.unsent > 0).map(|(id, _)| *id);
        let Some(id) = next else { break };
        read(&mut tcp, id, usize::MAX / 2, &mut turn);
    }
    for (_, model) in turn.wire.all.values() {
        check(model, true, context);
    }
    tcp.drain(&mut turn);
    tcp.abort_all(&mut turn);
    assert!(tcp.is_empty() && tcp.input_len() == 0 && wires.all.is_empty());
    for model in &wires.past {
        check(model, false, context);
    }
    let values: BTreeMap<_, _> = Counters::TABLE.iter().map(|row| row.name).zip(counters.values()).collect();
    let sum = |start: &str| -> u64 {
        values.iter().filter(|(name, _)| name.starts_with(start)).map(|(_, count)| count).sum()
    };
    assert_eq!(values["tcp_accepted"], sum("tcp_closed_"), "{values:?}");
    assert_eq!(opened, values["tcp_accepted"] + sum("tcp_refused_"), "{values:?}");
    assert_eq!(values["tcp_dropped_bug"], 0);
}

/// Lets the peer read: the waiting bytes are delivered, and the peer accepts `capacity` more.
fn read<B: AsRef<[u8]>>(
    tcp: &mut TcpConnections,
    id: StreamId,
    capacity: usize,
    turn: &mut ConnectionTurn<'_, '_, B, WireModels>,
) {
    let model = turn.wire.get(id).expect("the connection is open");
    model.capacity = capacity;
    if std::mem::take(&mut model.unsent) == 0 {
        return;
    }
    if !model.closed {
        tcp.handle(StreamEvent::Sent { id }, turn);
    } else if model.ended {
        turn.wire.drop(id);
        tcp.handle(StreamEvent::Closed { id }, turn);
    }
}

/// Asserts the invariants between two steps.
fn check_now(tcp: &TcpConnections, wires: &WireModels, counters: &Counters) {
    assert_eq!(tcp.len(), wires.all.len());
    assert!(tcp.len() <= 3);
    assert_eq!(counters.tcp_connections.get(), tcp.len() as u64);
    for peer in 0..2 {
        assert!(wires.all.values().filter(|(_, model)| model.peer == peer).count() <= 2);
    }
    assert!(tcp.input_len() <= 9000);
    for (_, model) in wires.all.values() {
        assert!(
            model.closed || model.reads == (model.unsent == 0),
            "a peer that does not read is still read"
        );
    }
}

/// Asserts that each answer belongs to its own message and, with `is_all`, that each message has an
/// answer.
fn check<B: AsRef<[u8]>>(model: &ConnectionModel, is_all: bool, context: &AnswerContext<'_, B>) {
    let mut expected: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    let mut rest = &model.sent[..];
    let mut is_last = false;
    while let Ok(StreamFront::Message(message, after)) = split(rest, REQUEST_LEN_MAX)
        && !is_last
    {
        rest = after;
        let (envelope, bytes) = Envelope::split(message).expect("the message is complete");
        if let AnswerOutcome::Reply(reply) = answer_message(context, envelope, bytes) {
            let mut out = vec![0; reply.stream_len()];
            reply.write_stream(&mut out);
            *expected.entry(out).or_default() += 1;
        }
        let flags = bytes.get(8..12).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
        is_last = envelope.flags.has(EnvelopeFlags::ENCRYPTED) || flags & OpFlags::KEEP_CONNECTION.0 == 0;
    }
    let mut received = &model.received[..];
    let mut notices = 0;
    while let StreamFront::Message(message, after) =
        split(received, MESSAGE_LEN_MAX).expect("answers can be read")
    {
        received = after;
        match expected.get_mut(message) {
            Some(count) if *count > 0 => *count -= 1,
            _ => {
                assert_eq!(message[8..12], [0xff; 4], "an answer without a request");
                assert!(received.is_empty(), "nothing follows a notice");
                notices += 1;
            }
        }
    }
    assert!(received.is_empty(), "an answer is incomplete");
    assert!(notices <= usize::from(model.closed));
    // A connection that was not aborted has all its answers.
    if is_all && !model.closed || model.closed && notices == 0 && !model.aborted && !model.lost && is_last {
        assert!(expected.values().all(|&count| count == 0), "an answer is missing: {expected:?}");
    }
}
