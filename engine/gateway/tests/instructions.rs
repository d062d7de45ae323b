//! Instructions of an answer over HTTP, counted by callgrind, against the bounds of
//! `benches/fixtures/instructions.txt`.
//!
//! `cargo test --release -p handle-gateway --test instructions` runs this; an ordinary `cargo test`
//! does not, because a build without optimisation takes other instructions.
//!
//! The gateway runs as in production: behind a trusted proxy that uses the PROXY protocol, with the
//! log of requests and a limit on their rate. It is counted with the defaults as well, and over
//! HTTP/1.1 with a header that the reader in front of hyper leaves to hyper. One client asks over
//! one connection: one request at a time over HTTP/1.1, eight at a time over HTTP/2. Of two runs of
//! different length, the difference leaves out the start of the process. A bare hyper with constant
//! answers of the same length is counted beside it.
//!
//! With arguments, this program serves until its standard input ends: `serve
//! bare|defaults|production DIRECTORY`; or it asks: `ask redirect|json http1|hyper1|http2 ADDRESS
//! COUNT`. That is for profiles.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "../../../tests/src/needs.rs"]
#[expect(unreachable_pub, reason = "a file of another package")]
mod needs;

use handle_gateway::request_log::RequestLogFormat;
use handle_gateway::{Config, Gateway};
use handle_proto::Value;
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::{Builder, HomedPrefixes, LayerOptions};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn as client;
use hyper::header::{self, HeaderValue};
use hyper::server::conn as server;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use needs::{TestNeed, has};
use std::convert::Infallible;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};

/// Records of the set.
const RECORDS: u64 = 10_000;
/// Answers of the two runs.
const COUNTS: [u64; 2] = [800, 4_800];
/// Requests at a time over HTTP/2.
const AT_A_TIME: u64 = 8;
/// By how much a count may exceed its bound, as compilers differ, in percent.
const MARGIN_PERCENT: u64 = 3;
/// What the proxy sends of a client.
const PROXY_HEADER: &[u8] = b"PROXY TCP4 192.0.2.77 127.0.0.1 40000 8000\r\n";
/// The JSON of the bare server: as long as that of a record.
const JSON: &str = r#"{"responseCode":1,"handle":"10.1/00000000","values":[{"index":1,"type":"URL","data":{"format":"string","value":"https://www.example.org/items/00000000"},"ttl":86400,"timestamp":"1970-01-01T00:00:00Z"},{"index":100,"type":"HS_ADMIN","data":{"format":"admin","value":{"handle":"0.NA/10","index":200,"permissions":"111111110011"}},"ttl":86400,"timestamp":"1970-01-01T00:00:00Z"}]}"#;

/// The answers that are asked for, and how.
#[derive(Clone, Copy)]
struct AnswerKind<'k> {
    /// `redirect` or `json`.
    answer: &'k str,
    /// `http1`, `hyper1` or `http2`.
    form: &'k str,
}

impl AnswerKind<'_> {
    fn is_json(self) -> bool {
        self.answer == "json"
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", "bare", _] => serve_bare(),
        ["serve", role, directory] => serve_gateway(Path::new(directory), role == "production"),
        ["ask", answer, form, address, count] => {
            ask_all(address.parse().unwrap(), AnswerKind { answer, form }, count.parse().unwrap());
        }
        _ => compare(),
    }
}

/// Counts all kinds of answers, and compares them with their bounds.
fn compare() {
    if cfg!(debug_assertions) {
        panic!("run this with --release: without optimisation, the counts mean nothing");
    }
    if !has(TestNeed::Valgrind, Command::new("valgrind").arg("--version").output().is_ok()) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    publish(&directory.path().join("set"));
    let bounds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/fixtures/instructions.txt");
    let bounds = std::fs::read_to_string(bounds).unwrap();
    let mut exceeded = Vec::new();
    for (form, roles) in [
        ("http1", &["bare", "defaults", "production"][..]),
        ("hyper1", &["production"]),
        ("http2", &["bare", "defaults", "production"]),
    ] {
        for (answer, role) in
            ["redirect", "json"].iter().flat_map(|answer| roles.iter().map(move |role| (answer, role)))
        {
            let [short, long] =
                COUNTS.map(|count| run(role, directory.path(), AnswerKind { answer, form }, count));
            let (count, name) = ((long - short) / (COUNTS[1] - COUNTS[0]), format!("{form}-{answer}-{role}"));
            let bound = bounds.lines().find_map(|line| line.strip_prefix(&*name)?.trim().parse::<u64>().ok());
            let Some(bound) = bound else {
                println!("{name}: {count} instructions");
                continue;
            };
            println!("{name}: {count} instructions, bound {bound}");
            if count * 100 > bound * (100 + MARGIN_PERCENT) {
                exceeded.push(format!("{name}: {count} instructions instead of {bound}"));
            }
        }
    }
    assert!(exceeded.is_empty(), "{}", exceeded.join("; "));
}

/// The instructions of a server from its start to its end, with `count` answers.
fn run(role: &str, directory: &Path, kind: AnswerKind<'_>, count: u64) -> u64 {
    let file = directory.join("callgrind.out");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--tool=callgrind"]).arg(format!("--callgrind-out-file={}", file.display()));
    valgrind.arg(std::env::current_exe().unwrap()).args(["serve", role]).arg(directory);
    let mut process = valgrind.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    ask_all(line.trim().parse().expect("an address"), kind, count);
    drop(process.stdin.take());
    assert!(process.wait().unwrap().success(), "{role}");
    let counts = std::fs::read_to_string(file).unwrap();
    let total = counts.lines().find_map(|line| line.strip_prefix("summary: ")).expect("a summary");
    total.trim().parse().unwrap()
}

/// Publishes records with a URL and an administrator.
fn publish(directory: &Path) {
    std::fs::create_dir(directory).unwrap();
    let mut publisher = SetPublisher::open(directory).unwrap();
    let mut homed = HomedPrefixes::default();
    homed.add(b"10.1");
    let options = LayerOptions { seed: 1, folds: true, created_unix_ms: 1 };
    let published = publisher.publish_base(1, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options).homed(homed);
        for number in 0..RECORDS {
            let (handle, url) =
                (format!("10.1/{number:08}"), format!("https://www.example.org/items/{number:08}"));
            let admin =
                [b"\x0f\xf3".as_slice(), &7_u32.to_be_bytes(), b"0.NA/10", &200_u32.to_be_bytes()].concat();
            let values = [Value::new(1, b"URL", url.as_bytes()), Value::new(100, b"HS_ADMIN", &admin)];
            builder.add(number, handle.as_bytes(), values)?;
        }
        builder.finish(file)
    });
    published.unwrap();
}

/// Prints the address, and waits until standard input ends.
fn announce(address: SocketAddr) {
    println!("{address}");
    std::io::stdout().flush().unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn serve_gateway(directory: &Path, is_production: bool) {
    let set = directory.join("set");
    if !set.exists() {
        publish(&set);
    }
    let listen = vec![([127, 0, 0, 1], 0).into()];
    let mut config = Config { snapshot: Some(set), listen, workers: 1, ..Config::default() };
    if is_production {
        config.request_log.format = RequestLogFormat::Combined;
        config.request_log.path = Some(directory.join("requests.log"));
        (config.request_rate.requests_per_s, config.request_rate.burst) = (1_000_000, 1_000_000);
    }
    config.proxies.trusted = vec!["127.0.0.1".to_owned()];
    config.proxies.proxy_protocol = true;
    let gateway = Gateway::start(&config).unwrap();
    announce(gateway.addresses()[0]);
    gateway.stop().unwrap();
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Serves constant answers: a redirect, or JSON below `/api`.
fn serve_bare() {
    let runtime = runtime();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let mut proxied = [0; PROXY_HEADER.len()];
                tokio::io::AsyncReadExt::read_exact(&mut stream, &mut proxied).await.unwrap();
                let mut start = [0; 3];
                stream.peek(&mut start).await.unwrap();
                tokio::spawn(answer_bare(stream, start == *b"PRI"));
            }
        });
    });
    announce(address);
}

async fn answer_bare(stream: TcpStream, is_http2: bool) {
    let service = service_fn(async |request: Request<Incoming>| {
        let is_json = request.uri().path().starts_with("/api/");
        let body = if is_json { Bytes::from_static(JSON.as_bytes()) } else { Bytes::new() };
        let mut response = Response::new(Full::new(body));
        if is_json {
            let kind = HeaderValue::from_static("application/json;charset=utf-8");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
        } else {
            *response.status_mut() = StatusCode::FOUND;
            let target = HeaderValue::from_static("https://www.example.org/items/00000000");
            response.headers_mut().insert(header::LOCATION, target);
        }
        Ok::<_, Infallible>(response)
    });
    let stream = TokioIo::new(stream);
    let _ = match is_http2 {
        false => server::http1::Builder::new().serve_connection(stream, service).await,
        true => server::http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await,
    };
}

/// Asks for `count` answers over one connection.
fn ask_all(address: SocketAddr, kind: AnswerKind<'_>, count: u64) {
    runtime().block_on(async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(PROXY_HEADER).await.unwrap();
        let stream = TokioIo::new(stream);
        if kind.form != "http2" {
            let (mut sender, connection) = client::http1::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            for number in 0..count {
                sender.ready().await.unwrap();
                check(kind, sender.send_request(request(kind, number)).await.unwrap()).await;
            }
            return;
        }
        let (sender, connection) = client::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        for first in (0..count).step_by(AT_A_TIME.try_into().unwrap()) {
            let numbers = first..first + AT_A_TIME;
            let answers: Vec<_> =
                numbers.map(|number| sender.clone().send_request(request(kind, number))).collect();
            for answer in answers {
                check(kind, answer.await.unwrap()).await;
            }
        }
    });
}

fn request(kind: AnswerKind<'_>, number: u64) -> Request<Empty<Bytes>> {
    let start = if kind.is_json() { "/api/handles/10.1/" } else { "/10.1/" };
    let origin = if kind.form == "http2" { "http://hdl.example.org" } else { "" };
    let mut request = Request::get(format!("{origin}{start}{:08}", number * 7919 % RECORDS))
        .header(header::USER_AGENT, "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101")
        .header(header::ACCEPT, "*/*");
    if kind.form != "http2" {
        request = request.header(header::HOST, "hdl.example.org");
    }
    if kind.form == "hyper1" {
        request = request.header("x-request-id", "7");
    }
    request.body(Empty::new()).unwrap()
}

async fn check(kind: AnswerKind<'_>, response: Response<Incoming>) {
    assert_eq!(response.status(), if kind.is_json() { StatusCode::OK } else { StatusCode::FOUND });
    response.into_body().collect().await.unwrap();
}
