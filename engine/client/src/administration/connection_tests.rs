//! Tests which connections are reused: with servers that keep them, close them a moment after each
//! answer, or claim to keep them and close them anyway.

use super::tests::ReceivedRequest;
use super::*;
use handle_proto::wire::failure::Failure;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::stream::{StreamFront, split};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const TIMEOUT: Duration = Duration::from_secs(20);
/// Time between an answer and the end of its connection.
const LATER: Duration = Duration::from_millis(30);
const DELETE: Request<'_> = Request::DeleteHandle(HandleBody { handle: b"10/a" });

/// How a server treats its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ServerManners {
    /// Whether its answers repeat the flag to keep the connection.
    repeats_flag: bool,
    /// Requests that are answered on a connection before it ends, a moment after the last answer.
    requests_max: usize,
}

/// The operations that the server read, by connection.
type ConnectionLog = Arc<Mutex<Vec<Vec<OpCode>>>>;

fn serve(manners: ServerManners) -> (SocketAddr, ConnectionLog) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let log = ConnectionLog::default();
    let seen = Arc::clone(&log);
    std::thread::spawn(move || {
        let connections = AtomicUsize::new(0);
        for stream in listener.incoming() {
            let (seen, number) = (Arc::clone(&seen), connections.fetch_add(1, Ordering::Relaxed));
            seen.lock().unwrap().push(vec![]);
            std::thread::spawn(move || talk(stream.unwrap(), manners, &seen, number));
        }
    });
    (address, log)
}

fn talk(mut stream: TcpStream, manners: ServerManners, log: &ConnectionLog, connection: usize) {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    for _ in 0..manners.requests_max {
        while !matches!(split(&bytes, 1 << 18).unwrap(), StreamFront::Message(..)) {
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(len) => bytes.extend_from_slice(&buffer[..len]),
            }
        }
        let (envelope, _) = Envelope::split(&bytes).unwrap();
        let got = ReceivedRequest { connection, envelope, bytes: std::mem::take(&mut bytes) };
        let op_code = got.message().header.op_code;
        log.lock().unwrap()[connection].push(op_code);
        let mut reply = match op_code {
            OpCode::DELETE_HANDLE => got.reply(ResponseCode::SUCCESS, Response::Done),
            _ => got.reply(ResponseCode::ERROR, Response::Failure(Failure { message: b"" })),
        };
        let flags_at = Envelope::LEN + 8;
        let flags = u32::from_be_bytes(reply[flags_at..flags_at + 4].try_into().unwrap());
        let keep = OpFlags::KEEP_CONNECTION;
        let flags =
            if manners.repeats_flag { OpFlags(flags).with(keep) } else { OpFlags(flags).without(keep) };
        reply[flags_at..flags_at + 4].copy_from_slice(&flags.0.to_be_bytes());
        stream.write_all(&reply).unwrap();
    }
    std::thread::sleep(LATER);
}

fn deletes(log: &ConnectionLog) -> usize {
    log.lock().unwrap().iter().flatten().filter(|&&op_code| op_code == OpCode::DELETE_HANDLE).count()
}

#[test]
fn every_change_is_made_once_however_connections_end() {
    for (manners, connections_count, probes_count) in [
        // Like deployed servers.
        (ServerManners { repeats_flag: false, requests_max: 1 }, 10, 0),
        // Keeps connections without saying so.
        (ServerManners { repeats_flag: false, requests_max: usize::MAX }, 10, 0),
        // Like `handled` and `handle-admin`.
        (ServerManners { repeats_flag: true, requests_max: usize::MAX }, 1, 1),
    ] {
        let (server, log) = serve(manners);
        let mut client = Administrator::new(server, TIMEOUT);
        for _ in 0..10 {
            assert_eq!(client.ask(&DELETE, OpFlags(0)).unwrap().code(), ResponseCode::SUCCESS, "{manners:?}");
        }
        let read = log.lock().unwrap().iter().flatten().count();
        assert_eq!((deletes(&log), read), (10, 10 + probes_count), "{manners:?}");
        assert_eq!(log.lock().unwrap().len(), connections_count, "{manners:?}");
    }
}

#[test]
fn connections_closed_against_the_flag_lose_no_change() {
    let (server, log) = serve(ServerManners { repeats_flag: true, requests_max: 1 });
    let mut client = Administrator::new(server, TIMEOUT);
    for _ in 0..10 {
        assert_eq!(client.ask(&DELETE, OpFlags(0)).unwrap().code(), ResponseCode::SUCCESS);
    }
    assert_eq!(deletes(&log), 10, "none twice: {:?}", log.lock().unwrap());
}

#[test]
fn a_query_lost_on_a_reused_connection_is_repeated() {
    let (server, log) = serve(ServerManners { repeats_flag: true, requests_max: 1 });
    let mut client = Administrator::new(server, TIMEOUT);
    let query = Query { handle: b"10/a", indexes: Indexes::EMPTY, types: Strings::EMPTY };
    for _ in 0..5 {
        assert_eq!(client.ask(&Request::Resolution(query), OpFlags(0)).unwrap().code(), ResponseCode::ERROR);
    }
    assert_eq!(log.lock().unwrap().iter().map(Vec::len).collect::<Vec<_>>(), [1; 5]);
    // A request lost on a new connection is not repeated, because nothing bounds how often it would
    // have to be.
    let (server, log) = serve(ServerManners { repeats_flag: true, requests_max: 0 });
    let mut client = Administrator::new(server, TIMEOUT);
    let error = client.ask(&Request::Resolution(query), OpFlags(0)).unwrap_err();
    assert!(matches!(error, AskError::Lost(_)) && error.is_in_doubt(), "{error}");
    assert_eq!(log.lock().unwrap().len(), 1);
}
