//! TCP connections of a running server: service for clients, and limits for those that misuse them.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::limit::MESSAGE_LEN_MAX;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::stream::{StreamFront, split};
use handle_proto::wire::{Envelope, Header, Message, MessageBuf, Request};
use handle_proto::{OpCode, OpFlags, ResponseCode, Value};
use handle_snapshot::set::publisher::SetPublisher;
use handle_tests::process::until;
use handle_tests::records::publish_values;
use handle_tests::test_server::config;
use handle_worker::Server;
use handle_worker::config::{Config, Datapath};
use handle_worker::tcp::settings::TcpSettings;
use rustix::net::{self, AddressFamily, SocketType};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(20);
/// Bytes of the value of `10.1/long`, more than the kernel buffers of one answer.
const LONG_LEN: usize = 200_000;

/// Runs each test over both datapaths.
macro_rules! on_both_paths {
    ($($promise:ident),* $(,)?) => {
        mod portable {
            $(#[test] fn $promise() { super::$promise(handle_worker::config::Datapath::Portable) })*
        }
        mod automatic {
            $(#[test] fn $promise() { super::$promise(handle_worker::config::Datapath::Auto) })*
        }
    };
}

on_both_paths!(
    a_kept_connection_serves_many_requests,
    a_thousand_pipelined_requests_are_answered,
    a_request_may_arrive_byte_by_byte,
    a_partial_request_times_out,
    an_idle_connection_gets_a_notice_and_is_closed,
    a_slow_reader_does_not_delay_others_and_is_closed,
    a_slow_reader_gets_all_answers,
    unread_answers_of_a_source_have_a_share,
    connections_of_a_source_are_bounded,
    a_network_is_one_source_over_ipv4_and_ipv6,
    a_full_server_closes_idle_connections_and_then_stalled_ones,
    the_length_of_requests_is_bounded,
    buffered_input_is_bounded,
    draining_finishes_requests_under_way,
    lingering_connections_are_closed,
);

struct TcpServer {
    server: Server,
    _directory: TempDir,
}

fn serve(datapath: Datapath, change: impl FnOnce(&mut TcpSettings)) -> TcpServer {
    let directory = tempfile::tempdir().unwrap();
    let mut publisher = SetPublisher::open(directory.path()).unwrap();
    let long = vec![b'x'; LONG_LEN];
    let (url, text) = (Value::new(1, b"URL", b"https://a.example/"), Value::new(1, b"TEXT", &long));
    publish_values(&mut publisher, &[(b"10.1/a", url), (b"10.1/long", text)]);
    let mut config: Config = config(directory.path(), datapath);
    config.listen = vec![(Ipv6Addr::UNSPECIFIED, 0).into()];
    change(&mut config.tcp);
    TcpServer { server: Server::start(&config).unwrap(), _directory: directory }
}

impl TcpServer {
    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.server.addresses()[0].port()).into()
    }

    /// Connects from `source` to the same address.
    fn connect_from(&self, source: IpAddr) -> TcpStream {
        let to = SocketAddr::new(source, self.address().port());
        let family = if source.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = net::socket(family, SocketType::STREAM, None).unwrap();
        net::bind(&socket, &SocketAddr::new(source, 0)).unwrap();
        net::connect(&socket, &to).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    }

    /// The counter called `name`.
    fn count(&self, name: &str) -> u64 {
        self.server.shared().shards.to_json()["total"][name].as_u64().expect(name)
    }

    /// Waits until the counter called `name` is `count`: a client may have its answer before the
    /// worker has counted it.
    fn until_count(&self, name: &str, count: u64) {
        until(&format!("{name} is {count}"), || self.count(name) == count);
    }

    /// Waits until each accepted connection is open or has one reason for its end; refused ones
    /// were never accepted.
    fn check_accounts(&self) {
        until("each connection is open or has a reason", || {
            let json = self.server.shared().shards.to_json();
            let total = json["total"].as_object().unwrap();
            let closed = total.iter().filter(|(name, _)| name.starts_with("tcp_closed_"));
            let closed: u64 = closed.map(|(_, count)| count.as_u64().unwrap()).sum();
            total["tcp_accepted"] == closed + total["tcp_connections"].as_u64().unwrap()
        });
    }
}

fn request(handle: &[u8], request_id: i32, keep: bool) -> Vec<u8> {
    let flags =
        if keep { OpFlags::PLAIN_REQUEST.with(OpFlags::KEEP_CONNECTION) } else { OpFlags::PLAIN_REQUEST };
    let header = Header::request(OpCode::RESOLUTION, flags, 0);
    let query = Query { handle, indexes: Indexes::EMPTY, types: Strings::EMPTY };
    let message = MessageBuf::request(&Envelope::request(request_id), &header, &Request::Resolution(query));
    message.unsigned().unwrap()
}

/// Reads the answers of a connection, whole and in order.
struct AnswerReader {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl AnswerReader {
    fn of(stream: &TcpStream) -> Self {
        Self { stream: stream.try_clone().unwrap(), bytes: Vec::new() }
    }

    /// The next answer, as the id of its request and its code; `None` at the end of the connection.
    fn next(&mut self) -> Option<(i32, ResponseCode)> {
        loop {
            let front = split(&self.bytes, MESSAGE_LEN_MAX).unwrap();
            if let StreamFront::Message(message, rest) = front {
                let (envelope, message) = Envelope::split(message).unwrap();
                let answer = (envelope.request_id, Message::decode(message).unwrap().header.response_code);
                self.bytes = rest.to_vec();
                return Some(answer);
            }
            let mut buffer = [0; 1 << 16];
            match self.stream.read(&mut buffer) {
                Ok(0) => {
                    assert!(self.bytes.is_empty(), "the connection ends between two answers");
                    return None;
                }
                Ok(len) => self.bytes.extend_from_slice(&buffer[..len]),
                Err(error) => panic!("no answer: {error}"),
            }
        }
    }
}

fn a_kept_connection_serves_many_requests(datapath: Datapath) {
    let served = serve(datapath, |_| {});
    let mut stream = served.connect();
    let mut answers = AnswerReader::of(&stream);
    for id in 1..=20 {
        stream.write_all(&request(b"10.1/a", id, true)).unwrap();
        assert_eq!(answers.next(), Some((id, ResponseCode::SUCCESS)));
    }
    stream.write_all(&request(b"10.1/none", 21, false)).unwrap();
    assert_eq!(answers.next(), Some((21, ResponseCode::HANDLE_NOT_FOUND)));
    assert_eq!(answers.next(), None, "a request without the flag ends the connection");
    drop((stream, answers));
    served.until_count("tcp_connections", 0);
    served.until_count("tcp_accepted", 1);
    served.until_count("tcp_closed_done", 1);
    served.until_count("tcp_requests_answered", 21);
    served.until_count("requests_answered", 0);
    served.check_accounts();
}

fn a_thousand_pipelined_requests_are_answered(datapath: Datapath) {
    let served = serve(datapath, |_| {});
    let mut stream = served.connect();
    let all: Vec<u8> = (1..=1000).flat_map(|id| request(b"10.1/a", id, id < 1000)).collect();
    stream.write_all(&all).unwrap();
    let mut answers = AnswerReader::of(&stream);
    let mut ids: Vec<i32> = std::iter::from_fn(|| {
        let (id, code) = answers.next()?;
        assert_eq!(code, ResponseCode::SUCCESS);
        Some(id)
    })
    .collect();
    ids.sort_unstable();
    assert_eq!(ids, (1..=1000).collect::<Vec<_>>());
    served.until_count("tcp_requests_answered", 1000);
    served.until_count("tcp_bytes_received", all.len() as u64);
}

fn a_request_may_arrive_byte_by_byte(datapath: Datapath) {
    let served = serve(datapath, |_| {});
    let mut stream = served.connect();
    stream.set_nodelay(true).unwrap();
    let both = [request(b"10.1/a", 1, true), request(b"10.1/none", 2, false)].concat();
    for byte in both {
        stream.write_all(&[byte]).unwrap();
        std::thread::sleep(Duration::from_micros(100));
    }
    let mut answers = AnswerReader::of(&stream);
    assert_eq!(answers.next(), Some((1, ResponseCode::SUCCESS)));
    assert_eq!(answers.next(), Some((2, ResponseCode::HANDLE_NOT_FOUND)));
    assert_eq!(answers.next(), None);
    served.until_count("tcp_input_bytes", 0);
}

fn a_partial_request_times_out(datapath: Datapath) {
    let served = serve(datapath, |tcp| tcp.read_ms = 200);
    let mut stream = served.connect();
    let request = request(b"10.1/a", 7, true);
    let started = Instant::now();
    // Single bytes now and then do not extend the time limit.
    let (last, first) = request.split_last().unwrap();
    for byte in first {
        let _ = stream.write_all(&[*byte]);
        if started.elapsed() > Duration::from_millis(300) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut answers = AnswerReader::of(&stream);
    assert_eq!(answers.next(), Some((-1, ResponseCode::PROTOCOL_ERROR)));
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(200) && took < SOON / 2, "{took:?}");
    let _ = stream.write_all(&[*last]);
    drop((stream, answers));
    served.until_count("tcp_closed_half_request", 1);
    served.until_count("tcp_connections", 0);
    served.until_count("tcp_requests_answered", 0);
    served.until_count("tcp_notices", 1);
    served.until_count("tcp_input_bytes", 0);
}

/// Connects with small buffers of the kernel, so that the server keeps what is not read.
fn connect_unread(served: &TcpServer) -> TcpStream {
    let stream = served.connect();
    net::sockopt::set_socket_recv_buffer_size(&stream, 4096).unwrap();
    stream
}

fn unread_answers_of_a_source_have_a_share(datapath: Datapath) {
    // An eighth of this is for one source.
    const OUTPUT: usize = 16 << 20;
    let served = serve(datapath, |tcp| tcp.output_bytes = OUTPUT);
    let mut unread: Vec<TcpStream> = (0..80).map(|_| connect_unread(&served)).collect();
    for stream in &mut unread {
        // It may have been closed when this arrives.
        let asked: Vec<u8> = (1..=100).flat_map(|id| request(b"10.1/long", id, true)).collect();
        let _ = stream.write_all(&asked);
    }
    until("connections are closed for lack of room", || served.count("tcp_closed_buffer_full") >= 60);
    assert!(served.count("tcp_output_bytes") <= OUTPUT as u64 / 8 + (1 << 20));
    // Another source leaves as much unread as one may, and gets all of it.
    let mut other = served.connect_from([127, 0, 0, 2].into());
    net::sockopt::set_socket_recv_buffer_size(&other, 4096).unwrap();
    ask_for_much(&mut other, 20);
    std::thread::sleep(Duration::from_millis(200));
    let mut answers = AnswerReader::of(&other);
    for id in 1..=20 {
        assert_eq!(answers.next(), Some((id, ResponseCode::SUCCESS)));
    }
    // What is short passes for the first source as well.
    let mut short = served.connect();
    short.write_all(&request(b"10.1/a", 1, false)).unwrap();
    assert_eq!(AnswerReader::of(&short).next(), Some((1, ResponseCode::SUCCESS)));
    drop(unread);
    served.until_count("tcp_output_bytes", 0);
}

fn an_idle_connection_gets_a_notice_and_is_closed(datapath: Datapath) {
    let served = serve(datapath, |tcp| tcp.idle_ms = 200);
    let (silent, mut asking) = (served.connect(), served.connect());
    let mut answers = AnswerReader::of(&asking);
    // Each request restarts the idle time.
    for id in 1..=3 {
        std::thread::sleep(Duration::from_millis(100));
        asking.write_all(&request(b"10.1/a", id, true)).unwrap();
        assert_eq!(answers.next(), Some((id, ResponseCode::SUCCESS)));
    }
    for mut answers in [AnswerReader::of(&silent), answers] {
        assert_eq!(answers.next(), Some((-1, ResponseCode::PROTOCOL_ERROR)));
        assert_eq!(answers.next(), None);
    }
    served.until_count("tcp_closed_idle", 2);
}

/// Requests more than the kernel buffers, without reading.
fn ask_for_much(stream: &mut TcpStream, count: i32) {
    let all: Vec<u8> = (1..=count).flat_map(|id| request(b"10.1/long", id, true)).collect();
    stream.write_all(&all).unwrap();
}

fn a_slow_reader_does_not_delay_others_and_is_closed(datapath: Datapath) {
    let served = serve(datapath, |tcp| tcp.write_ms = 400);
    let mut slow = served.connect();
    ask_for_much(&mut slow, 200);
    until("answers are buffered", || served.count("tcp_output_bytes") > 0);
    let kept = served.count("tcp_output_bytes");
    assert!(kept < 1 << 20, "{kept} bytes of 40 MB are buffered");
    let mut other = served.connect();
    other.write_all(&request(b"10.1/a", 1, false)).unwrap();
    assert_eq!(AnswerReader::of(&other).next(), Some((1, ResponseCode::SUCCESS)));
    served.until_count("tcp_closed_slow_reader", 1);
    until("no answer is buffered", || served.count("tcp_output_bytes") == 0);
    assert!(served.count("tcp_requests_answered") < 200, "the remaining requests were not processed");
    drop(other);
    served.until_count("tcp_connections", 0);
    served.check_accounts();
}

fn a_slow_reader_gets_all_answers(datapath: Datapath) {
    let served = serve(datapath, |_| {});
    let mut slow = served.connect();
    ask_for_much(&mut slow, 200);
    slow.write_all(&request(b"10.1/a", 201, false)).unwrap();
    until("answers are buffered", || served.count("tcp_output_bytes") > 0);
    std::thread::sleep(Duration::from_millis(50));
    let mut answers = AnswerReader::of(&slow);
    let mut ids: Vec<i32> = std::iter::from_fn(|| answers.next().map(|(id, _)| id)).collect();
    ids.sort_unstable();
    assert_eq!(ids, (1..=201).collect::<Vec<_>>(), "each answer once");
    served.until_count("tcp_output_bytes", 0);
    served.until_count("tcp_input_bytes", 0);
}

fn connections_of_a_source_are_bounded(datapath: Datapath) {
    let served = serve(datapath, |tcp| tcp.connections_per_source = 3);
    let mut kept: Vec<_> = (0..3).map(|_| served.connect()).collect();
    served.until_count("tcp_accepted", 3);
    let mut refused = served.connect();
    let _ = refused.write_all(&request(b"10.1/a", 1, true));
    assert!(!matches!(refused.read(&mut [0; 99]), Ok(1..)), "refused");
    served.until_count("tcp_refused_source", 1);
    for stream in &mut kept {
        stream.write_all(&request(b"10.1/a", 1, true)).unwrap();
        assert_eq!(AnswerReader::of(stream).next(), Some((1, ResponseCode::SUCCESS)));
    }
    kept.pop();
    served.until_count("tcp_connections", 2);
    let mut again = served.connect();
    again.write_all(&request(b"10.1/a", 1, true)).unwrap();
    assert_eq!(AnswerReader::of(&again).next(), Some((1, ResponseCode::SUCCESS)));
    served.check_accounts();
}

fn a_network_is_one_source_over_ipv4_and_ipv6(datapath: Datapath) {
    let served = serve(datapath, |tcp| (tcp.connections_per_source, tcp.source_prefix_v4) = (1, 24));
    let mut kept = Vec::new();
    for (source, is_accepted) in
        [("127.0.0.1", true), ("127.0.0.2", false), ("127.0.1.1", true), ("::1", true), ("::1", false)]
    {
        let mut stream = served.connect_from(source.parse().unwrap());
        let _ = stream.write_all(&request(b"10.1/a", 1, true));
        if is_accepted {
            assert_eq!(AnswerReader::of(&stream).next(), Some((1, ResponseCode::SUCCESS)), "{source}");
            kept.push(stream);
        } else {
            assert!(!matches!(stream.read(&mut [0; 99]), Ok(1..)), "{source} is refused");
        }
    }
    served.until_count("tcp_accepted", 3);
    served.until_count("tcp_refused_source", 2);
    served.check_accounts();
}

fn a_full_server_closes_idle_connections_and_then_stalled_ones(datapath: Datapath) {
    let served = serve(datapath, |tcp| tcp.connections = 2);
    let oldest = served.connect();
    served.until_count("tcp_accepted", 1);
    let mut busy = served.connect();
    let half = request(b"10.1/a", 1, true);
    busy.write_all(&half[..30]).unwrap();
    served.until_count("tcp_input_bytes", 30);
    let mut new = served.connect();
    new.write_all(&half[..30]).unwrap();
    served.until_count("tcp_input_bytes", 60);
    served.until_count("tcp_closed_evicted", 1);
    assert!(!matches!((&oldest).read(&mut [0; 9]), Ok(1..)));
    // No connection is idle: after a second, the one with the oldest partial request is closed.
    std::thread::sleep(Duration::from_millis(1100));
    let mut third = served.connect();
    third.write_all(&half).unwrap();
    assert_eq!(AnswerReader::of(&third).next(), Some((1, ResponseCode::SUCCESS)));
    assert!(!matches!(busy.read(&mut [0; 99]), Ok(1..)));
    served.until_count("tcp_closed_evicted", 2);
    new.write_all(&half[30..]).unwrap();
    assert_eq!(AnswerReader::of(&new).next(), Some((1, ResponseCode::SUCCESS)));
    served.check_accounts();
}

fn the_length_of_requests_is_bounded(datapath: Datapath) {
    const LEN_MAX: usize = 64 << 10;
    let served = serve(datapath, |_| ());
    // Bytes after the body are permitted.
    let with_len = |len: usize| {
        let mut request = request(b"10.1/a", 5, true);
        request.resize(Envelope::LEN + len, 0);
        request[16..20].copy_from_slice(&u32::try_from(len).unwrap().to_be_bytes());
        request
    };
    let mut stream = served.connect();
    stream.write_all(&with_len(LEN_MAX)).unwrap();
    let mut answers = AnswerReader::of(&stream);
    assert_eq!(answers.next(), Some((5, ResponseCode::SUCCESS)));
    // The length in the envelope suffices for the refusal.
    stream.write_all(&with_len(LEN_MAX + 1)[..Envelope::LEN]).unwrap();
    assert_eq!(answers.next(), Some((-1, ResponseCode::PROTOCOL_ERROR)));
    assert_eq!(answers.next(), None);
    served.until_count("tcp_closed_unreadable", 1);
}

fn buffered_input_is_bounded(datapath: Datapath) {
    let served = serve(datapath, |tcp| {
        (tcp.input_bytes, tcp.request_bytes) = (1 << 20, MESSAGE_LEN_MAX);
    });
    let mut envelope = request(b"10.1/a", 1, true);
    envelope.truncate(Envelope::LEN);
    envelope[16..20].copy_from_slice(&MESSAGE_LEN_MAX.to_be_bytes());
    let mut streams: Vec<_> = (0..8).map(|_| served.connect()).collect();
    for stream in &mut streams {
        let _ = stream.write_all(&envelope);
        let _ = stream.write_all(&vec![0; MESSAGE_LEN_MAX as usize - 1]);
    }
    until("connections are closed for lack of room", || served.count("tcp_closed_buffer_full") >= 4);
    assert!(served.count("tcp_input_bytes") <= 1 << 20);
    served.check_accounts();
}

fn draining_finishes_requests_under_way(datapath: Datapath) {
    let served = serve(datapath, |_| {});
    let idle = served.connect();
    let mut half = served.connect();
    let bytes = request(b"10.1/a", 3, true);
    half.write_all(&bytes[..40]).unwrap();
    served.until_count("tcp_input_bytes", 40);
    let mut much = served.connect();
    ask_for_much(&mut much, 50);
    until("answers are buffered", || served.count("tcp_output_bytes") > 0);
    let address = served.address();
    let shared = std::sync::Arc::clone(served.server.shared());
    let stopping = std::thread::spawn(move || served.server.stop());
    until("the server drains", || shared.is_draining());
    let mut answers = AnswerReader::of(&idle);
    assert_eq!(answers.next(), None, "idle connections are closed");
    half.write_all(&bytes[40..]).unwrap();
    let mut answers = AnswerReader::of(&half);
    assert_eq!(answers.next(), Some((3, ResponseCode::SUCCESS)));
    assert_eq!(answers.next(), None);
    let mut answers = AnswerReader::of(&much);
    for _ in 0..50 {
        assert!(matches!(answers.next(), Some((1..=50, ResponseCode::SUCCESS))));
    }
    assert_eq!(answers.next(), None);
    stopping.join().unwrap().unwrap();
    assert!(TcpStream::connect(address).is_err());
}

fn lingering_connections_are_closed(datapath: Datapath) {
    let served = serve(datapath, |tcp| tcp.linger_ms = 200);
    let mut stream = served.connect();
    stream.write_all(&request(b"10.1/a", 1, false)).unwrap();
    let mut answers = AnswerReader::of(&stream);
    assert_eq!(answers.next(), Some((1, ResponseCode::SUCCESS)));
    assert_eq!(answers.next(), None);
    // The client does not close its side.
    served.until_count("tcp_connections", 1);
    served.until_count("tcp_connections", 0);
    served.until_count("tcp_closed_done", 1);
}
