//! HTTP/2 of `handle-gateway` from outside.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use h2::client::{SendRequest, handshake};
use handle_gateway::Config;
use handle_tests::gateway_server::{GatewayServer, get, serve_over_http, tls_client, use_tls};
use handle_tests::vectors::VectorSource;
use http::{HeaderMap, Request, StatusCode};
use rustls::pki_types::ServerName;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream as StdStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const HANDLE: &str = "/api/handles/10.5072/URL-ONE";

fn gateway(change: impl FnOnce(&mut Config)) -> GatewayServer {
    serve_over_http(VectorSource::Own, "root", change).0
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), test).await.unwrap() })
}

type Requests = SendRequest<bytes::Bytes>;

async fn client<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S) -> Requests {
    let (requests, connection) = handshake(stream).await.unwrap();
    tokio::spawn(connection);
    requests
}

async fn plain_client(address: SocketAddr) -> Requests {
    client(TcpStream::connect(address).await.unwrap()).await
}

/// The answer to a request with these further headers.
async fn ask(
    requests: &Requests,
    target: &str,
    headers: &[(&'static str, String)],
) -> Result<(StatusCode, HeaderMap, Vec<u8>), h2::Error> {
    let mut request = Request::get(format!("http://localhost{target}"));
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    let mut requests = requests.clone().ready().await?;
    let (answer, _) = requests.send_request(request.body(()).unwrap(), true)?;
    let (parts, mut body) = answer.await?.into_parts();
    let mut bytes = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        bytes.extend_from_slice(&data);
    }
    Ok((parts.status, parts.headers, bytes))
}

#[test]
fn clients_that_begin_with_its_preface_are_answered_as_others() {
    let served = gateway(|_| ());
    let (address, expected) = (served.address(), get(served.address(), HANDLE, "").body);
    run(async {
        let requests = plain_client(address).await;
        let (status, headers, body) = ask(&requests, HANDLE, &[]).await.unwrap();
        assert_eq!((status.as_u16(), &headers["x-content-type-options"]), (200, &"nosniff".parse().unwrap()));
        assert_eq!(body, expected);
        let (status, headers, _) = ask(&requests, "/10.5072/URL-ONE", &[]).await.unwrap();
        assert_eq!(
            (status.as_u16(), &headers["location"]),
            (302, &"https://example.org/one".parse().unwrap())
        );
        let many = (0..50).map(|_| {
            let requests = requests.clone();
            tokio::spawn(async move { ask(&requests, HANDLE, &[]).await.unwrap().0.as_u16() })
        });
        for answered in many.collect::<Vec<_>>() {
            assert_eq!(answered.await.unwrap(), 200);
        }
    });
    assert_eq!(served.gateway.state().counters.connections.get(), 2, "all on one connection");
}

#[test]
fn clients_choose_it_in_the_handshake_of_tls() {
    let files = tempfile::tempdir().unwrap();
    for is_enabled in [true, false] {
        let served = gateway(|config| {
            use_tls(config, files.path());
            config.http2.enabled = is_enabled;
        });
        run(async {
            let connector = TlsConnector::from(Arc::new(tls_client(&[b"h2", b"http/1.1"])));
            let stream = TcpStream::connect(served.address()).await.unwrap();
            let stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap();
            let chosen = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
            assert_eq!(chosen.as_deref(), Some(if is_enabled { &b"h2"[..] } else { b"http/1.1" }));
            if is_enabled {
                let requests = client(stream).await;
                assert_eq!(ask(&requests, HANDLE, &[]).await.unwrap().0, 200);
                let location = ask(&requests, "/10.5072/URL-ONE?noredirect", &[]).await.unwrap();
                assert_eq!(location.0, 200);
            }
        });
    }
}

#[test]
fn limits_of_streams_and_heads_are_announced_and_kept() {
    let served = gateway(|_| ());
    run(async {
        let requests = plain_client(served.address()).await;
        assert_eq!(ask(&requests, HANDLE, &[]).await.unwrap().0, 200);
        assert_eq!(requests.current_max_send_streams(), 100);
        // RFC 9113 section 6.5.2: names and values, and 32 bytes for each.
        let fields =
            [(":method", "GET"), (":scheme", "http"), (":authority", "localhost"), (":path", HANDLE)];
        let fixed: usize = fields.iter().map(|(name, value)| name.len() + value.len() + 32).sum();
        let buffer = (32 << 10) - fixed - "a".len() - 32;
        assert_eq!(ask(&requests, HANDLE, &[("a", "x".repeat(buffer))]).await.unwrap().0, 200);
        assert_eq!(ask(&requests, HANDLE, &[("a", "x".repeat(buffer + 1))]).await.unwrap().0, 431);
        assert_eq!(ask(&requests, HANDLE, &[]).await.unwrap().0, 200, "the connection goes on");
    });
}

/// A frame. RFC 9113 section 4.1.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The error of the frame GOAWAY that the server sends in answer to these bytes.
fn refusal(address: SocketAddr, bytes: &[u8]) -> Option<u32> {
    let mut stream = StdStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let _ = stream.write_all(bytes);
    let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        answer.extend_from_slice(&buffer[..len]);
    }
    let mut rest = &answer[..];
    while let [a, b, c, kind, ..] = *rest {
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        let payload = rest.get(9..9 + len)?;
        if kind == 7 {
            return Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
        rest = &rest[9 + len..];
    }
    None
}

#[test]
fn a_client_that_resets_what_it_asks_for_loses_its_connection() {
    let served = gateway(|_| ());
    let begin = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(4, 0, 0, &[])].concat();
    let reset_often = |count: u32| {
        let requests = (0..count).flat_map(|number| {
            let stream = 2 * number + 1;
            // GET http://x/ as indexes of the static table, and CANCEL.
            let headers = frame(1, 5, stream, &[0x82, 0x86, 0x84, 0x41, 1, b'x']);
            [headers, frame(3, 0, stream, &8_u32.to_be_bytes())].concat()
        });
        [begin.clone(), requests.collect()].concat()
    };
    const ENHANCE_YOUR_CALM: u32 = 11;
    assert_eq!(refusal(served.address(), &reset_often(20)), None, "as many as allowed");
    assert_eq!(refusal(served.address(), &reset_often(100)), Some(ENHANCE_YOUR_CALM));
    assert_eq!(get(served.address(), HANDLE, "").status, 200);
    assert_eq!(served.gateway.state().counters.bugs.get(), 0);
}

#[test]
fn an_idle_connection_ends_and_draining_ends_the_others() {
    let served = gateway(|config| config.limits.header_ms = 200);
    let since = Instant::now();
    run(async {
        let stream = TcpStream::connect(served.address()).await.unwrap();
        let (requests, connection) = handshake(stream).await.unwrap();
        let connection = tokio::spawn(connection);
        assert_eq!(ask(&requests, HANDLE, &[]).await.unwrap().0, 200);
        connection.await.unwrap().unwrap();
    });
    assert!(since.elapsed() > Duration::from_millis(190), "{:?}", since.elapsed());
    let served = gateway(|_| ());
    run(async {
        let stream = TcpStream::connect(served.address()).await.unwrap();
        let (requests, connection) = handshake(stream).await.unwrap();
        let connection = tokio::spawn(connection);
        assert_eq!(ask(&requests, HANDLE, &[]).await.unwrap().0, 200);
        served.gateway.state().drain();
        connection.await.unwrap().unwrap();
    });
    served.gateway.stop().unwrap();
}

/// A client that sends control frames without end, which cost an answer each and ask for nothing.
#[test]
fn a_flood_of_control_frames_ends_the_connection_and_no_other() {
    let gateway = gateway(|_| {});
    let address = gateway.address();
    let (settings, ping, update) = (
        [0, 0, 0, 4, 0, 0, 0, 0, 0].to_vec(),
        [&[0, 0, 8, 6, 0, 0, 0, 0, 0][..], &[7; 8]].concat(),
        [&[0, 0, 4, 8, 0, 0, 0, 0, 0][..], &[0, 0, 0, 1]].concat(),
    );
    for frame in [&settings, &ping, &update] {
        let mut flood = StdStream::connect(address).unwrap();
        flood.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut reader = flood.try_clone().unwrap();
        let reader = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()).is_ok());
        flood.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        flood.write_all(&settings).unwrap();
        let many = frame.repeat(1000);
        let ended = (0..1000).any(|_| flood.write_all(&many).is_err());
        assert!(ended, "a million frames are read: {frame:?}");
        // The reader ends with the connection.
        reader.join().unwrap();
    }
    let (status, ..) = run(async { ask(&plain_client(address).await, HANDLE, &[]).await.unwrap() });
    assert_eq!(status, StatusCode::OK, "others are served");
}
