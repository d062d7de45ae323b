//! Tests of [`TcpConnections`] with recorded actions, for answers made on the slow path. Tests with
//! real sockets are in `tests/tests/processes/tcp.rs`.

use super::settings::TcpSettings;
use super::{ConnectionActions, ConnectionTurn, TcpConnections};
use crate::counters::Counters;
use handle_net::{ConnectionGone, StreamEvent, StreamId};
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Envelope, Header, MessageBuf, Request};
use handle_proto::{OpCode, OpFlags, Value};
use handle_resolver::{AnswerContext, ServiceFacts};
use handle_snapshot::builder::Builder;
use handle_snapshot::writer::{HomedPrefixes, LayerOptions};
use handle_snapshot::{Layer, RecordSet};
use std::io::Cursor;

/// Accepts every action and records it.
#[derive(Default)]
struct RecordedActions {
    sent: Vec<Vec<u8>>,
    closed: bool,
    aborted: bool,
}

impl ConnectionActions for RecordedActions {
    fn send(&mut self, _: StreamId, bytes: &[u8]) -> Result<usize, ConnectionGone> {
        self.sent.push(bytes.to_vec());
        Ok(0)
    }

    fn kept_len_all(&self) -> usize {
        0
    }

    fn set_reading(&mut self, _: StreamId, _: bool) {}

    fn close(&mut self, _: StreamId) -> bool {
        self.closed = true;
        false
    }

    fn abort(&mut self, _: StreamId) {
        self.aborted = true;
    }
}

fn layer() -> Layer<Vec<u8>> {
    let options = LayerOptions { seed: 1, folds: true, created_unix_ms: 1 };
    let mut homed = HomedPrefixes::default();
    homed.add(b"10.1");
    let mut builder = Builder::new(&std::env::temp_dir(), options).homed(homed);
    builder.add(0, b"10.1/a", [Value::new(1, b"URL", b"https://a.example/")]).unwrap();
    let mut file = Cursor::new(Vec::new());
    builder.finish(&mut file).unwrap();
    Layer::open(file.into_inner()).unwrap()
}

fn request(id: i32, keep: bool) -> Vec<u8> {
    let flags = if keep { OpFlags::KEEP_CONNECTION } else { OpFlags(0) };
    let header = Header::request(OpCode::RESOLUTION, OpFlags::PLAIN_REQUEST.with(flags), 0);
    let query = Query { handle: b"10.1/a", indexes: Indexes::EMPTY, types: Strings::EMPTY };
    let message = MessageBuf::request(&Envelope::request(id), &header, &Request::Resolution(query));
    message.unsigned().unwrap()
}

/// Runs `steps` with a newly opened connection.
fn with_connection(
    steps: impl FnOnce(&mut TcpConnections, StreamId, &mut ConnectionTurn<'_, '_, Vec<u8>, RecordedActions>),
) {
    let layers = [layer()];
    let context = AnswerContext::new(RecordSet::new(&layers).unwrap(), ServiceFacts::ALONE, 1_800_000_000);
    let (mut tcp, counters, mut wire) =
        (TcpConnections::new(TcpSettings::default()), Counters::default(), RecordedActions::default());
    let id = StreamId::new(0, 1);
    let mut turn = ConnectionTurn {
        wire: &mut wire,
        context: &context,
        counters: &counters,
        now_ms: 0,
        defer: &mut |_, _, _| false,
        sealer: None,
        tap: None,
    };
    tcp.handle(StreamEvent::Opened { id, peer: ([192, 0, 2, 1], 9).into() }, &mut turn);
    steps(&mut tcp, id, &mut turn);
}

#[test]
fn an_answer_of_the_slow_path_holds_up_no_other() {
    with_connection(|tcp, id, turn| {
        defer_request(tcp, id);
        tcp.handle(StreamEvent::Received { id, bytes: &request(2, true) }, turn);
        assert_eq!(turn.wire.sent.len(), 1, "the later request is answered first");
        assert!(tcp.reply(id, b"made on the slow path", true, turn));
        assert_eq!(turn.wire.sent[1], b"made on the slow path");
        assert!(!turn.wire.closed, "it was asked to stay");
        tcp.handle(StreamEvent::Received { id, bytes: &request(3, true) }, turn);
        assert_eq!(turn.wire.sent.len(), 3);
    });
}

/// Has the effect of a request that is answered on the slow path.
fn defer_request(tcp: &mut TcpConnections, id: StreamId) {
    tcp.answers.deferred = 1;
    tcp.defer(id);
}

#[test]
fn the_end_waits_for_answers_of_the_slow_path() {
    for has_ended in [false, true] {
        with_connection(|tcp, id, turn| {
            defer_request(tcp, id);
            defer_request(tcp, id);
            let bytes = request(2, has_ended);
            tcp.handle(StreamEvent::Received { id, bytes: &bytes }, turn);
            if has_ended {
                tcp.handle(StreamEvent::Ended { id }, turn);
            }
            // The connection is not idle while it waits for the server.
            tcp.reply(id, b"first", true, turn);
            assert!(!turn.wire.closed);
            tcp.reply(id, b"second", true, turn);
            assert!(turn.wire.closed);
            assert_eq!(turn.wire.sent[1..], [b"first".to_vec(), b"second".to_vec()]);
        });
    }
}

#[test]
fn an_answer_for_a_closed_connection_is_counted() {
    with_connection(|tcp, id, turn| {
        defer_request(tcp, id);
        tcp.handle(StreamEvent::Closed { id }, turn);
        assert!(!tcp.reply(id, b"too late", true, turn), "it is not sent");
        assert!(!tcp.reply(StreamId::new(77, 1), b"never was", true, turn));
        // Another connection in the same slot does not get the answer.
        let other = StreamId::new(0, 2);
        tcp.handle(StreamEvent::Opened { id: other, peer: ([192, 0, 2, 1], 9).into() }, turn);
        assert!(!tcp.reply(id, b"too late", true, turn));
        assert_eq!((turn.counters.tcp_replies_late.get(), turn.wire.sent.len()), (3, 0));
    });
}

#[test]
fn the_wait_for_the_slow_path_has_an_end() {
    with_connection(|tcp, id, turn| {
        defer_request(tcp, id);
        tcp.handle(StreamEvent::Received { id, bytes: &request(2, false) }, turn);
        turn.now_ms = u64::from(TcpSettings::default().idle_ms) - 1;
        tcp.tick(turn);
        assert!(!turn.wire.closed);
        turn.now_ms += 1;
        tcp.tick(turn);
        assert!(turn.wire.closed);
        turn.now_ms += u64::from(TcpSettings::default().linger_ms);
        tcp.tick(turn);
        assert!(turn.wire.aborted && tcp.is_empty());
    });
}
