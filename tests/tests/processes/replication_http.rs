//! Streams for mirrors over HTTP and HTTPS, relayed by `handle-gateway`.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::{PrivateKey, PublicKey};
use handle_client::replication::{StreamContent, StreamEvent, StreamLimits, StreamReader, StreamTransport};
use handle_local::client::LocalClient;
use handle_local::kind::LocalKind;
use handle_local::relay::{RelayRoute, RelayedRequest};
use handle_proto::wire::replication::{DumpHandles, Progress, RetrieveTransactions};
use handle_proto::wire::replication_stream::DumpItem;
use handle_proto::wire::{Envelope, Message, Request};
use handle_proto::{ResponseCode, Version};
use handle_tests::admin_server::{AdminServer, administer_with};
use handle_tests::gateway_server::{
    GatewayServer, HttpAnswer, exchange, exchange_over_tls, serve_over_http, use_tls,
};
use handle_tests::replication::{TestReceiver, WHOLE};
use handle_tests::test_server::server_key_record;
use handle_tests::transcripts::private_keys;
use handle_tests::vectors::VectorSource;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// A gateway, and the `handle-admin` to which it relays.
struct RelaySetup {
    admin: AdminServer,
    gateway: GatewayServer,
    socket: PathBuf,
    key: PrivateKey,
    _directory: TempDir,
}

impl RelaySetup {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (socket, path) = (directory.path().join("admin.socket"), directory.path().to_owned());
        let admin = administer_with("root", |config| config.local.socket = Some(socket.clone()));
        let (gateway, _) = serve_over_http(VectorSource::Own, "root", |config| {
            config.admin.address = Some(admin.address());
            config.admin.socket = Some(socket.clone());
            use_tls(config, &path);
        });
        let key = private_keys().remove("admin_rsa").unwrap();
        Self { admin, gateway, socket, key, _directory: directory }
    }

    fn receiver(&self) -> TestReceiver<'_> {
        TestReceiver {
            server: self.admin.address(),
            server_key: server_key_record(VectorSource::Own, "root"),
            handle: b"0.NA/TST",
            index: 300,
            key: &self.key,
            version: Version::CURRENT,
            timeout: Duration::from_secs(20),
        }
    }

    /// Requests a stream by `send`, which posts a message and returns the response.
    fn pull(&self, request: &Request<'_>, send: impl Fn(&[u8]) -> Vec<u8>) -> HttpAnswer {
        let receiver = self.receiver();
        let challenge = read_answer(&send(&post(&receiver.first_message(request))));
        let answer = post(&receiver.second_message(&challenge.body));
        read_answer(&send(&answer))
    }
}

fn read_answer(bytes: &[u8]) -> HttpAnswer {
    HttpAnswer::split(bytes, false).unwrap().0
}

fn post(message: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: application/x-hdl-message\r\n\
         Content-Type: application/x-hdl-message\r\nContent-Length: {}\r\n\r\n",
        message.len()
    );
    [head.as_bytes(), message].concat()
}

/// The number of records in a dump, which follows a message.
fn count_records(answer: &[u8], transport: StreamTransport) -> usize {
    let (envelope, rest) = Envelope::split(answer).unwrap();
    let (message, stream) = rest.split_at(envelope.message_len as usize);
    assert_eq!(Message::decode(message).unwrap().header.response_code, ResponseCode::SUCCESS);
    let key = PublicKey::from_record(&server_key_record(VectorSource::Own, "root")).unwrap();
    let mut reader = StreamReader::new(StreamContent::Dump, transport, Some(key), StreamLimits::default());
    reader.feed(stream);
    let mut count = 0;
    while let Some(event) = reader.next_event().unwrap() {
        count += usize::from(matches!(event, StreamEvent::Dump(DumpItem::Handle { .. })));
    }
    assert!(reader.is_complete());
    count
}

const DUMP: Request<'_> = Request::DumpHandles(DumpHandles { receiver: WHOLE, start: None });

#[test]
fn a_dump_over_http_is_signed_and_ends_with_the_connection() {
    let relayed = RelaySetup::start();
    let records = relayed.admin.server().shared().service.store.stats().unwrap().records;
    let address = relayed.gateway.address();
    let response = relayed.pull(&DUMP, |request| exchange(address, request));
    assert_eq!(response.status, 200);
    for absent in ["content-length", "transfer-encoding"] {
        assert_eq!(response.header(absent), None, "deployed clients read to the end");
    }
    assert_eq!(count_records(&response.body, StreamTransport::Clear) as u64, records);
    // The key of the certificate is not that of the server, so TLS proves nothing.
    let response = relayed.pull(&DUMP, |request| exchange_over_tls(address, request));
    assert_eq!(count_records(&response.body, StreamTransport::Clear) as u64, records);
}

#[test]
fn a_short_stream_over_http_has_a_length() {
    let relayed = RelaySetup::start();
    let progress = Progress::OneSource { last_txn_id: 0, last_query_ms: i64::MAX / 2 };
    let request = Request::RetrieveTxnLog(RetrieveTransactions { progress, receiver: WHOLE });
    let address = relayed.gateway.address();
    let response = relayed.pull(&request, |request| exchange(address, request));
    assert_eq!(response.header("content-length"), Some(&*response.body.len().to_string()));
    let (envelope, rest) = Envelope::split(&response.body).unwrap();
    assert_eq!(&rest[envelope.message_len as usize..][..4], [0; 4], "signed");
}

#[test]
fn a_dump_over_a_transport_with_the_key_of_the_server_is_not_signed() {
    let relayed = RelaySetup::start();
    let receiver = relayed.receiver();
    let ask = |message: &[u8]| {
        let timeout = Duration::from_secs(30);
        let mut client = LocalClient::connect(&relayed.socket, LocalKind::Relay, timeout).unwrap();
        let request = RelayedRequest { route: RelayRoute::Https, source: [192, 0, 2, 1].into(), message };
        client.send(0, |content| request.encode(content)).unwrap();
        let parts = std::iter::from_fn(|| Some(client.receive().unwrap()).filter(|part| !part.is_empty()));
        parts.flat_map(|part| part.to_vec()).collect::<Vec<u8>>()
    };
    let challenge = ask(&receiver.first_message(&DUMP));
    let answer = ask(&receiver.second_message(&challenge));
    let records = relayed.admin.server().shared().service.store.stats().unwrap().records;
    assert_eq!(count_records(&answer, StreamTransport::Verified) as u64, records);
    assert_eq!(relayed.admin.server().shared().service.counters.relayed.get(), 2);
}
