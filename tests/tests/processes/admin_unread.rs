//! What answers cost that their clients do not read, in `handle-admin`.

use crate::admin::{message, root, summarize};
use handle_daemon::control::ControlCommands as _;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Envelope, Request};
use handle_proto::{OpFlags, ResponseCode, Value, Values};
use handle_store::{Store, Transaction};
use handle_tests::client::exchange_over_tcp;
use handle_tests::source_addresses::tcp_from;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const LONG: &[u8] = b"TST/LONG";
const LONG_LEN: usize = 240_000;
/// What one source may leave unread.
const PER_SOURCE: usize = 8 << 20;

fn question(id: i32) -> Vec<u8> {
    let query = Query { handle: LONG, indexes: Indexes::EMPTY, types: Strings::EMPTY };
    let flags = OpFlags::PLAIN_REQUEST.with(OpFlags::KEEP_CONNECTION);
    message(Envelope::request(id), flags, &Request::Resolution(query))
}

#[test]
fn answers_that_nobody_reads_are_bounded_by_source() {
    const CONNECTIONS: usize = 200;
    let served = root(|config| {
        let text = vec![b'x'; LONG_LEN];
        let put = move |transaction: &mut Transaction<'_>| {
            transaction.put(LONG, Values::build([Value::new(1, b"DESC", &text)], &mut Vec::new()))
        };
        Store::open(&config.store).unwrap().change(put).unwrap();
        config.tcp.write_ms = 120_000;
    });
    let mut unread: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| {
            let stream = tcp_from([127, 0, 0, 1], served.address());
            set_socket_recv_buffer_size(&stream, 4096).unwrap();
            stream
        })
        .collect();
    for stream in &mut unread {
        // Enough answers for the buffers of the kernel, and one that `handle-admin` keeps.
        let _ = stream.write_all(&(1..=20).flat_map(question).collect::<Vec<_>>());
    }
    let shared = served.server().shared();
    let stats = || shared.run("stats").unwrap()["connections"].clone();
    let closed = || usize::try_from(stats()["unread"].as_u64().unwrap_or_default()).unwrap();
    let since = Instant::now();
    while closed() < CONNECTIONS - PER_SOURCE / LONG_LEN - 1 {
        assert!(since.elapsed() < Duration::from_secs(60), "{} connections were closed", closed());
        std::thread::sleep(Duration::from_millis(20));
    }
    let held = stats()["unread_bytes"].as_u64().unwrap();
    assert!(held > 0 && held <= PER_SOURCE as u64, "{held}");
    // Others are answered, whether or not they read at once.
    let mut other = tcp_from([127, 0, 0, 2], served.address());
    set_socket_recv_buffer_size(&other, 4096).unwrap();
    other.write_all(&(1..=20).flat_map(question).collect::<Vec<_>>()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    // Its connection stays open until it has read all of them.
    let mut answers = vec![0; 20 * LONG_LEN];
    other.read_exact(&mut answers).unwrap();
    let answer = exchange_over_tcp(served.address(), &question(1)).unwrap();
    assert_eq!(summarize(&answer).code, ResponseCode::SUCCESS, "what is read is not limited");
    drop((unread, other));
}
