//! HTTP answers per second of `handle-gateway` on one core, compared with a bare hyper server that
//! answers with a constant redirect.
//!
//! Server and clients share one process and have one core each. All answers of a kind have the same
//! length, so the clients only count bytes; the first answer on each connection is checked. Rounds
//! of the kinds alternate.

use anyhow::{Context as _, ensure};
use handle_benches::spread::Spread;
use handle_gateway::{Config, Gateway};
use handle_proto::Value;
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::{Builder, HomedPrefixes, LayerOptions};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Measures redirects and answers of the JSON API per second on one core.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Records in the set.
    #[arg(long, default_value_t = 100_000)]
    records: u64,
    /// Connections.
    #[arg(long, default_value_t = 64)]
    connections: u64,
    /// Rounds of each kind.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of a round.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Core of the server.
    #[arg(long, default_value_t = 0)]
    server_core: usize,
    /// Core of the clients.
    #[arg(long, default_value_t = 1)]
    client_core: usize,
    /// Measure only this kind: `bare`, `redirect` or `json`.
    #[arg(long)]
    only: Option<String>,
    /// Answers of each round, in place of its length; for counting instructions.
    #[arg(long)]
    answers: Option<u64>,
}

/// A kind of request.
#[derive(Clone, Copy, Debug)]
struct HttpRequestKind {
    name: &'static str,
    option: &'static str,
    server: SocketAddr,
    prefix: &'static str,
    status: &'static str,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let directory = std::env::temp_dir().join(format!("http-rate-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let measured = publish(&directory, args.records).and_then(|()| measure(&args, &directory));
    std::fs::remove_dir_all(&directory)?;
    measured
}

fn publish(directory: &std::path::Path, records: u64) -> anyhow::Result<()> {
    let mut publisher = SetPublisher::open(directory)?;
    let mut homed = HomedPrefixes::default();
    homed.add(b"10.1");
    let options = LayerOptions { seed: 1, folds: true, created_unix_ms: 1 };
    publisher.publish_base(1, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options).homed(homed);
        for number in 0..records {
            let (handle, url) =
                (format!("10.1/{number:08}"), format!("https://www.example.org/items/{number:08}"));
            let admin =
                [b"\x0f\xf3".as_slice(), &7_u32.to_be_bytes(), b"0.NA/10", &200_u32.to_be_bytes()].concat();
            let values = [Value::new(1, b"URL", url.as_bytes()), Value::new(100, b"HS_ADMIN", &admin)];
            builder.add(number, handle.as_bytes(), values)?;
        }
        builder.finish(file)
    })?;
    Ok(())
}

fn measure(args: &Args, set: &std::path::Path) -> anyhow::Result<()> {
    // Threads inherit the core of the thread that starts them.
    handle_net::pin_to_core(args.server_core)?;
    let listen = vec![([127, 0, 0, 1], 0).into()];
    let mut config = Config { snapshot: Some(set.to_owned()), listen, workers: 1, ..Config::default() };
    config.limits.connections_per_source = config.limits.connections;
    let gateway = Gateway::start(&config)?;
    let address = gateway.addresses()[0];
    let bare = start_bare()?;
    let mut kinds = vec![
        HttpRequestKind { name: "bare hyper", option: "bare", server: bare, prefix: "/10.1/", status: "302" },
        HttpRequestKind {
            name: "redirect",
            option: "redirect",
            server: address,
            prefix: "/10.1/",
            status: "302",
        },
        HttpRequestKind {
            name: "JSON",
            option: "json",
            server: address,
            prefix: "/api/handles/10.1/",
            status: "200",
        },
    ];
    kinds.retain(|kind| args.only.as_deref().is_none_or(|only| only == kind.option));
    ensure!(!kinds.is_empty(), "unknown kind of request {:?}", args.only);
    let mut rates: Vec<Vec<f64>> = kinds.iter().map(|_| Vec::new()).collect();
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| -> anyhow::Result<()> {
            handle_net::pin_to_core(args.client_core)?;
            for _ in 0..args.rounds {
                for (kind, rates) in kinds.iter().zip(&mut rates) {
                    rates.push(run_round(args, *kind)?);
                }
            }
            Ok(())
        });
        clients.join().map_err(|_| anyhow::anyhow!("the clients panicked"))?
    })?;
    let spreads: Vec<Spread> = rates.into_iter().map(Spread::of).collect();
    for (kind, spread) in kinds.iter().zip(&spreads) {
        let share = format!("{:.2} of {}", spread.median / spreads[0].median, kinds[0].name);
        println!("{:10}  {spread:.0}/s  {share}", kind.name);
    }
    gateway.stop()
}

/// Starts a server that answers every request with the same redirect.
fn start_bare() -> anyhow::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || -> std::io::Result<Infallible> {
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener)?;
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let service = service_fn(async |_: Request<Incoming>| {
                    let mut response = Response::new(Empty::<Bytes>::new());
                    *response.status_mut() = StatusCode::FOUND;
                    let location = HeaderValue::from_static("https://www.example.org/items/00000000");
                    response.headers_mut().insert(header::LOCATION, location);
                    Ok::<_, Infallible>(response)
                });
                let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        })
    });
    Ok(address)
}

/// Sends one request at a time on each connection, the next after the answer. Returns answers per
/// second.
fn run_round(args: &Args, kind: HttpRequestKind) -> anyhow::Result<f64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (begun, records, step) = (Instant::now(), args.records, args.connections);
        let end = match args.answers {
            Some(answers) => RoundEnd::Answers(answers.div_ceil(step)),
            None => RoundEnd::Deadline(begun + Duration::from_secs_f64(args.seconds)),
        };
        let clients: Vec<_> =
            (0..step).map(|at| tokio::spawn(ask_until(end, kind, at, step, records))).collect();
        let mut answers = 0;
        for client in clients {
            answers += client.await.context("a client panicked")??;
        }
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
        Ok(answers as f64 / begun.elapsed().as_secs_f64())
    })
}

/// The end of a client's requests.
#[derive(Clone, Copy, Debug)]
enum RoundEnd {
    Deadline(Instant),
    /// After this number of answers.
    Answers(u64),
}

async fn ask_until(
    end: RoundEnd,
    kind: HttpRequestKind,
    at: u64,
    step: u64,
    records: u64,
) -> anyhow::Result<u64> {
    let mut stream = TcpStream::connect(kind.server).await?;
    stream.set_nodelay(true)?;
    let request = |number: u64| format!("GET {}{number:08} HTTP/1.1\r\nHost: localhost\r\n\r\n", kind.prefix);
    let mut room = vec![0; 1 << 14];
    stream.write_all(request(at % records).as_bytes()).await?;
    let answer_len = stream.read(&mut room).await?;
    let answer = String::from_utf8_lossy(&room[..answer_len]).into_owned();
    ensure!(answer.starts_with(&format!("HTTP/1.1 {}", kind.status)), "{}: {answer}", kind.name);
    let (mut number, mut count) = (at, 1);
    let is_over = |count| match end {
        RoundEnd::Deadline(deadline) => Instant::now() >= deadline,
        RoundEnd::Answers(answers) => count >= answers,
    };
    while !is_over(count) {
        // Far enough from the last number for a record in another page.
        number = (number + step * 7919) % records;
        stream.write_all(request(number).as_bytes()).await?;
        stream.read_exact(&mut room[..answer_len]).await?;
        count += 1;
    }
    Ok(count)
}
