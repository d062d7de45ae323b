//! What answers that nobody reads cost `handle-gateway`.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::gateway_front::{
    DATA, END_HEADERS, END_STREAM, HEADERS, begin_without_window, comes_true, fields, frame,
    get_path_over_http2, without_window,
};
use handle_gateway::answers::ANSWER_LEN;
use handle_gateway::{Config, Gateway};
use handle_proto::Value;
use handle_snapshot::set::publisher::SetPublisher;
use handle_tests::gateway_server::{HttpAnswer, config, exchange, get};
use handle_tests::records::publish_values;
use handle_tests::source_addresses::tcp_from;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Bytes of answers to one source.
const PER_SOURCE: usize = 2 << 20;
/// Bytes of the record `10.1/long`, and at least of its JSON.
const LONG_LEN: usize = 200_000;
const LONG: &str = "/api/handles/10.1/long";
const TIMEOUT: Duration = Duration::from_secs(20);

/// A gateway with a long and a short record.
struct LongRecords {
    gateway: Gateway,
    _directory: TempDir,
}

impl LongRecords {
    fn serve(change: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let set = directory.path().join("set");
        std::fs::create_dir(&set).unwrap();
        let text = "x".repeat(LONG_LEN);
        let records: [(&[u8], Value<'_>); 2] = [
            (b"10.1/long", Value::new(1, b"DESC", text.as_bytes())),
            (b"10.1/url", Value::new(1, b"URL", b"https://one.example/")),
        ];
        publish_values(&mut SetPublisher::open(&set).unwrap(), &records);
        let mut config = config();
        config.snapshot = Some(set);
        config.limits.answers_bytes = 8 * PER_SOURCE;
        change(&mut config);
        Self { gateway: Gateway::start(&config).unwrap(), _directory: directory }
    }

    fn address(&self) -> SocketAddr {
        self.gateway.addresses()[0]
    }

    /// Bytes of answers that count.
    fn held(&self) -> usize {
        self.gateway.state().answers.count()
    }

    /// Waits until nothing is held any more.
    fn is_released(&self) -> bool {
        comes_true(|| self.held() == 0)
    }
}

/// The statuses of answers of HTTP/2 that have come within a second: literals or indexes of the
/// static table behind `:status`.
fn statuses(stream: &mut TcpStream) -> Vec<u16> {
    let (mut bytes, mut buffer, since) = (Vec::new(), [0; 1 << 16], Instant::now());
    while since.elapsed() < Duration::from_secs(1) {
        if let Ok(len) = stream.read(&mut buffer) {
            bytes.extend_from_slice(&buffer[..len]);
        }
    }
    let (mut statuses, mut rest) = (Vec::new(), &bytes[..]);
    while let [a, b, c, kind, _, _, _, _, _, ..] = *rest {
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        if kind == HEADERS {
            // h2 sends 200 as an index of the static table, and 503 as a literal, which it then
            // keeps in its table.
            statuses.push(if rest[9] & 0x7f == 8 || rest[10] & 0x7f == 8 { 200 } else { 503 });
        }
        rest = rest.get(9 + len..).unwrap_or_default();
    }
    statuses
}

#[test]
fn answers_over_http2_that_nobody_reads_are_bounded_by_source() {
    let served = LongRecords::serve(|_| ());
    let state = served.gateway.state();
    let mut streams: Vec<TcpStream> = (0..4).map(|_| begin_without_window(served.address())).collect();
    for stream in &mut streams {
        let requests = (0..20).map(|number| get_path_over_http2(2 * number + 1, LONG));
        stream.write_all(&requests.collect::<Vec<_>>().concat()).unwrap();
    }
    assert!(comes_true(|| state.answers.refused_count() >= 70), "{}", state.answers.refused_count());
    let counted: Vec<u16> = streams.iter_mut().flat_map(statuses).collect();
    let answered = counted.iter().filter(|&&status| status == 200).count();
    assert_eq!(counted.len(), 80, "every request is answered");
    assert_eq!(answered, PER_SOURCE / (LONG_LEN + ANSWER_LEN + 100), "as many as there is room for");
    assert!(served.held() <= PER_SOURCE && served.held() > PER_SOURCE - 2 * LONG_LEN, "{}", served.held());
    assert_eq!(state.answers.refused_count(), 70);
    // This source can still have short answers, and others have all of theirs.
    assert_eq!(get(served.address(), "/10.1/url", "").status, 302);
    let refused = get(served.address(), LONG, "Origin: https://x.example\r\n");
    assert_eq!((refused.status, refused.json()["responseCode"].as_i64()), (503, Some(3)));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(refused.header("access-control-allow-origin"), Some("https://x.example"));
    let mut other = tcp_from([127, 0, 0, 2], served.address());
    write!(other, "GET {LONG} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    other.read_to_end(&mut answer).unwrap();
    assert_eq!(HttpAnswer::split(&answer, false).unwrap().0.status, 200);
    drop(streams);
    assert!(served.is_released(), "{}", served.held());
    assert_eq!(get(served.address(), LONG, "").status, 200);
}

#[test]
fn an_answer_without_capacity_is_refused_before_it_is_made() {
    /// Requests over one connection.
    const COUNT: u32 = 30;
    let served = LongRecords::serve(|_| ());
    let (target, page) = (format!("{LONG}?index=1"), LONG.replace("/api/handles", "") + "?noredirect");
    // The fast path, the general one, and the record page.
    for target in [LONG, &target, &page] {
        let ask = |status: &str| {
            let mut stream = TcpStream::connect(served.address()).unwrap();
            stream.set_nodelay(true).unwrap();
            let request = format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
            let since = Instant::now();
            for _ in 0..COUNT {
                stream.write_all(request.as_bytes()).unwrap();
                let answer = read_one(&mut stream);
                assert!(answer.starts_with(format!("HTTP/1.1 {status} ").as_bytes()));
            }
            since.elapsed()
        };
        let answered = ask("200");
        let mut unread = begin_without_window(served.address());
        let requests = (0..20).map(|number| get_path_over_http2(2 * number + 1, LONG));
        unread.write_all(&requests.collect::<Vec<_>>().concat()).unwrap();
        assert!(comes_true(|| served.held() > PER_SOURCE - 2 * LONG_LEN));
        std::thread::sleep(Duration::from_millis(300));
        let refused = ask("503");
        eprintln!("{target}: {answered:?} for {COUNT} answers, {refused:?} for as many refusals");
        assert!(refused * 3 < answered, "{refused:?} for refusals, {answered:?} for answers");
        drop(unread);
        assert!(served.is_released());
    }
}

/// Reads one answer over HTTP/1.1, which has a length.
fn read_one(stream: &mut TcpStream) -> Vec<u8> {
    let (mut answer, mut buffer) = (Vec::new(), vec![0; 1 << 18]);
    loop {
        let len = stream.read(&mut buffer).unwrap();
        assert!(len > 0, "the connection was closed");
        answer.extend_from_slice(&buffer[..len]);
        let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
        let (_, rest) = head.split_once("content-length: ").unwrap();
        let len: usize = rest.lines().next().unwrap().parse().unwrap();
        if answer.len() >= end + 4 + len {
            return answer;
        }
    }
}

#[test]
fn all_sources_together_are_bounded_too() {
    let served = LongRecords::serve(|_| ());
    let refused_count = || served.gateway.state().answers.refused_count();
    let begin = |source: u8| {
        let mut stream = without_window(tcp_from([127, 0, 0, source], served.address()));
        let requests = (0..20).map(|number| get_path_over_http2(2 * number + 1, LONG));
        stream.write_all(&requests.collect::<Vec<_>>().concat()).unwrap();
        stream
    };
    let mut streams: Vec<_> = (1..=8).map(begin).collect();
    assert!(comes_true(|| refused_count() == 80), "ten of each: {}", refused_count());
    // What the eight have left is less than the ten answers that another one may have.
    streams.push(begin(9));
    assert!(comes_true(|| refused_count() > 90), "{}", refused_count());
    assert!(served.held() <= 8 * PER_SOURCE, "{}", served.held());
    let mut other = tcp_from([127, 0, 0, 10], served.address());
    write!(other, "GET {LONG} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    other.read_to_end(&mut answer).unwrap();
    assert_eq!(HttpAnswer::split(&answer, false).unwrap().0.status, 503);
    drop(streams);
    assert!(served.is_released(), "{}", served.held());
}

#[test]
fn files_of_the_program_are_not_copied_for_each_answer() {
    let served = LongRecords::serve(|_| ());
    for path in ["/api/openapi.json", "/static/gateway.css"] {
        let plain = get(served.address(), path, "");
        for coding in ["gzip", "br", "zstd"] {
            let coded = get(served.address(), path, &format!("Accept-Encoding: {coding}\r\n"));
            assert_eq!(
                (coded.status, coded.header("content-encoding")),
                (plain.status, Some(coding).filter(|_| plain.status == 200))
            );
        }
    }
    let mut stream = begin_without_window(served.address());
    let requests = (0..100).map(|number| get_path_over_http2(2 * number + 1, "/api/openapi.json"));
    stream.write_all(&requests.collect::<Vec<_>>().concat()).unwrap();
    assert!(comes_true(|| served.held() == 100 * ANSWER_LEN), "{}", served.held());
    drop(stream);
    assert!(served.is_released());
}

#[test]
fn streams_that_nobody_reads_are_bounded() {
    let served = LongRecords::serve(|_| ());
    let names = "\"10.1/long\"\n".repeat(100);
    let media = b"application/x-ndjson";
    let content_type = [&[0x0f, 16, u8::try_from(media.len()).unwrap()], &media[..]].concat();
    let head = [fields(0x83, "/api/resolve"), content_type].concat();
    let mut stream = begin_without_window(served.address());
    for number in 0..40 {
        let id = 2 * number + 1;
        let request = [frame(HEADERS, END_HEADERS, id, &head), frame(DATA, END_STREAM, id, names.as_bytes())];
        stream.write_all(&request.concat()).unwrap();
    }
    let mut most = 0;
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(1) {
        most = most.max(served.held());
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(most <= PER_SOURCE && most > PER_SOURCE / 4, "{most}");
    assert!(served.gateway.state().answers.refused_count() >= 30, "most requests are refused");
    // One that is read has its whole answer, much longer than what a source may leave unread.
    drop(stream);
    assert!(served.is_released(), "{}", served.held());
    let body = "\"10.1/long\"\n".repeat(70);
    let head = "POST /api/resolve HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/x-ndjson\r\n";
    let request =
        format!("{head}Accept: application/x-ndjson\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let bytes = exchange(served.address(), request.as_bytes());
    let answer = HttpAnswer::split(&bytes, false).unwrap().0;
    assert!(answer.status == 200 && answer.body.len() > 70 * LONG_LEN, "{}", answer.body.len());
    assert!(served.is_released());
}

#[test]
fn answers_over_http1_that_nobody_reads_are_bounded_by_source() {
    let served = LongRecords::serve(|_| ());
    // Long answers, which hyper sends, and short ones, which are sent without it.
    for (path, count) in [(LONG, 1), ("/10.1/url", 400_000)] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        let mut streams = Vec::new();
        for _ in 0..40 {
            let stream = TcpStream::connect(served.address()).unwrap();
            set_socket_recv_buffer_size(&stream, 4096).unwrap();
            stream.set_nonblocking(true).unwrap();
            streams.push(stream);
        }
        let (mut most, since) = (0, Instant::now());
        let requests = request.repeat(count.min(1000));
        while since.elapsed() < Duration::from_secs(1) {
            for stream in &mut streams {
                if count > 1 || since.elapsed() < Duration::from_millis(100) {
                    let _ = stream.write(requests.as_bytes());
                }
            }
            most = most.max(served.held());
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(most <= PER_SOURCE && most > 0, "{path}: {most}");
        drop(streams);
        assert!(served.is_released(), "{path}: {}", served.held());
    }
}

#[test]
fn an_answer_over_http1_that_moves_too_slowly_is_cut() {
    const WRITE_MS: u32 = 2000;
    let served = LongRecords::serve(|config| config.limits.transfer_ms = WRITE_MS);
    // The kernel asks for more when half of `UNSENT_LEN` is gone: 32 KiB have to go in the time.
    for (len, buffer, is_enough) in [(16 << 10, 1 << 15, true), (64, 2048, false)] {
        let mut stream = TcpStream::connect(served.address()).unwrap();
        set_socket_recv_buffer_size(&stream, buffer).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        write!(stream, "GET {LONG} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let (mut bytes, mut buffer) = (Vec::new(), vec![0; len]);
        let since = Instant::now();
        while since.elapsed() < Duration::from_millis(u64::from(WRITE_MS) * 4) {
            match stream.read(&mut buffer) {
                Ok(len @ 1..) => bytes.extend_from_slice(&buffer[..len]),
                _ => break,
            }
            std::thread::sleep(Duration::from_millis(150));
        }
        let failed = served.gateway.state().counters.connections_failed.get();
        assert_eq!(failed == 0, is_enough, "{} bytes in {:?}", bytes.len(), since.elapsed());
        drop(stream);
        assert!(served.is_released());
        if is_enough {
            // The client went away.
            assert!(comes_true(|| served.gateway.state().connections.count() == 0));
        }
    }
}

#[test]
fn requests_that_wait_count_with_their_heads() {
    let served = LongRecords::serve(|_| ());
    let mut stream = begin_without_window(served.address());
    // The bodies of these requests never come.
    let long = "x".repeat(30_000);
    let value_len = [
        0x7f,
        u8::try_from((30_000 - 127) % 128 + 128).unwrap(),
        u8::try_from((30_000 - 127) / 128 % 128 + 128).unwrap(),
        u8::try_from((30_000 - 127) >> 14).unwrap(),
    ];
    let head = [&fields(0x83, "/api/resolve")[..], &[0, 1, b'y'], &value_len, long.as_bytes()].concat();
    let media = b"application/x-ndjson";
    let content_type = [&[0x0f, 16, u8::try_from(media.len()).unwrap()], &media[..]].concat();
    let head = [head, content_type].concat();
    for number in 0..100 {
        let id = 2 * number + 1;
        let mut rest = &head[..];
        let (mut kind, mut bytes) = (HEADERS, Vec::new());
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.len().min(16_384));
            bytes.extend(frame(kind, if after.is_empty() { END_HEADERS } else { 0 }, id, part));
            (kind, rest) = (9, after);
        }
        stream.write_all(&bytes).unwrap();
    }
    assert!(
        comes_true(|| served.gateway.state().answers.refused_count() > 30),
        "{}",
        served.gateway.state().answers.refused_count()
    );
    assert!(served.held() <= PER_SOURCE && served.held() > PER_SOURCE / 2, "{}", served.held());
    drop(stream);
    assert!(served.is_released(), "{}", served.held());
}
