//! The handle protocol over HTTP: a client administers in a session through `handle-gateway`.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::challenge::answer_with_secret;
use handle_proto::limit::MESSAGE_LEN_MAX;
use handle_proto::wire::admin::{HandleBody, HandleValues};
use handle_proto::wire::auth::{self, ChallengeAnswer};
use handle_proto::wire::list::{Indexes, Reference, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::stream::{StreamFront, split};
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Reply, Request, Response};
use handle_proto::{OpCode, OpFlags, ResponseCode, Value, Values};
use handle_tests::admin_server::administer_with;
use handle_tests::gateway_server::{
    HttpAnswer, exchange, exchange_over_tls, post, post_request, serve_over_http, use_tls,
};
use handle_tests::process::{hdl, succeed};
use handle_tests::session::{ClientSession, Protection};
use handle_tests::test_server::server_key;
use handle_tests::vectors::VectorSource;
use serde_json::json;
use std::net::SocketAddr;

const FLAGS: OpFlags = OpFlags(OpFlags::PLAIN_REQUEST.0 | OpFlags::CERTIFY.0);
const ADMINISTRATOR: Reference<'_> = Reference { handle: b"0.NA/TST", index: 301 };
const SECRET: &[u8] = b"open sesame open";
const HEADERS: &str = "Accept: application/x-hdl-message\r\nContent-Type: application/x-hdl-message\r\n";

/// The message in the answer to a message over HTTP.
fn exchange_over_http(address: SocketAddr, message: &[u8]) -> Option<Vec<u8>> {
    message_in(&post(address, "/", HEADERS, message))
}

/// The message in the answer to a message over HTTPS.
fn exchange_over_https(address: SocketAddr, message: &[u8]) -> Option<Vec<u8>> {
    let bytes = exchange_over_tls(address, &post_request("/", HEADERS, message));
    message_in(&HttpAnswer::split(&bytes, false)?.0)
}

fn message_in(answer: &HttpAnswer) -> Option<Vec<u8>> {
    let is_message = answer.header("content-type") == Some("application/x-hdl-message");
    (answer.status == 200 && is_message).then(|| answer.body.clone())
}

/// A client in a session through a gateway.
struct NativeClient {
    session: ClientSession,
    address: SocketAddr,
    exchange: fn(SocketAddr, &[u8]) -> Option<Vec<u8>>,
    challenges_count: usize,
}

impl NativeClient {
    /// The plain answer to a request in the session, in one or more messages. It answers a
    /// challenge.
    fn ask(&mut self, request: &Request<'_>) -> Vec<Vec<u8>> {
        let message = self.session.request(11, FLAGS, request);
        let plain = self.send(message);
        if code(&plain[0]) != ResponseCode::AUTHENTICATION_NEEDED {
            return plain;
        }
        self.challenges_count += 1;
        let proof = self.proof(&plain[0]);
        self.send(proof)
    }

    fn send(&mut self, message: Vec<u8>) -> Vec<Vec<u8>> {
        let sealed = self.session.seal(message);
        let answer = (self.exchange)(self.address, &sealed).expect("messages in the answer");
        let (mut messages, mut rest) = (Vec::new(), &answer[..]);
        while let Ok(StreamFront::Message(message, after)) = split(rest, MESSAGE_LEN_MAX) {
            let (plain, protection) = self.session.read(message);
            assert_eq!(protection, Protection { mac: true, encrypted: false });
            messages.push(plain);
            rest = after;
        }
        assert!(rest.is_empty(), "whole messages");
        messages
    }

    /// The answer to a challenge.
    fn proof(&self, plain: &[u8]) -> Vec<u8> {
        let (envelope, rest) = Envelope::split(plain).unwrap();
        let body = Message::decode(rest).unwrap().decode_body(envelope.version).unwrap();
        let Body::Reply(Reply { response: Response::Challenge(challenge), digest, .. }) = body else {
            panic!("a challenge")
        };
        assert_eq!(envelope.session_id, self.session.id, "the challenge has the number of the session");
        let covered = [challenge.nonce, digest.unwrap().digest];
        let version = self.session.version;
        let signed_response = answer_with_secret(version, version, &covered, SECRET, &[7; 16]);
        let body = ChallengeAnswer {
            auth_type: auth::SECRET_KEY,
            identity: ADMINISTRATOR,
            signed_response: &signed_response,
        };
        self.session.request(13, FLAGS, &Request::AnswerChallenge(body))
    }

    /// Whether `handle-admin` lists a handle among those of its prefix.
    fn is_listed(&mut self, handle: &str) -> bool {
        let answer = self.ask(&Request::ListHandles(HandleBody { handle: b"0.NA/TST" }));
        let pages = answer.iter().map(|plain| {
            assert_eq!(code(plain), ResponseCode::SUCCESS, "the list");
            let (envelope, rest) = Envelope::split(plain).unwrap();
            let body = Message::decode(rest).unwrap().decode_body(envelope.version).unwrap();
            let Body::Reply(Reply { response: Response::Listing(listing), .. }) = body else {
                panic!("a list of handles")
            };
            listing.handles.iter().any(|listed| listed == handle.as_bytes())
        });
        pages.fold(false, |is_listed, has_handle| is_listed | has_handle)
    }
}

fn code(plain: &[u8]) -> ResponseCode {
    Message::decode(&plain[Envelope::LEN..]).unwrap().header.response_code
}

#[test]
fn records_are_administered_in_a_session_over_http_and_https() {
    let directory = tempfile::tempdir().unwrap();
    let administration = administer_with("root", |_| ());
    let (gateway, _) = serve_over_http(VectorSource::Own, "root", |config| {
        config.admin.address = Some(administration.address());
        use_tls(config, directory.path());
    });
    let transports = [exchange_over_http as fn(SocketAddr, &[u8]) -> _, exchange_over_https];
    for (exchange, handle) in transports.into_iter().zip(["TST/OVER-HTTP", "TST/OVER-HTTPS"]) {
        let address = gateway.address();
        let session = ClientSession::open(exchange, address, ADMINISTRATOR, &server_key("root"));
        let mut client = NativeClient { session, address, exchange, challenges_count: 0 };
        let mut storage = Vec::new();
        let admin = [&[0x0f, 0xf3][..], &8_u32.to_be_bytes(), b"0.NA/TST", &301_u32.to_be_bytes()].concat();
        let values = [Value::new(1, b"URL", b"https://a.example/"), Value::new(100, b"HS_ADMIN", &admin)];
        let values = Values::build(values, &mut storage);
        let create = Request::CreateHandle(HandleValues { handle: handle.as_bytes(), values });
        assert_eq!(code(&client.ask(&create)[0]), ResponseCode::SUCCESS, "{handle} is created");
        assert_eq!(code(&client.ask(&create)[0]), ResponseCode::HANDLE_ALREADY_EXISTS, "{handle} exists");
        assert!(client.is_listed(handle), "{handle} is listed");
        let delete = Request::DeleteHandle(HandleBody { handle: handle.as_bytes() });
        assert_eq!(code(&client.ask(&delete)[0]), ResponseCode::SUCCESS, "{handle} is deleted");
        assert!(!client.is_listed(handle), "{handle} is not listed");
        assert_eq!(client.challenges_count, 1, "the identity is authenticated once in a session");
    }
}

#[test]
fn a_forged_message_of_a_session_is_refused_over_http() {
    let administration = administer_with("root", |_| ());
    let (gateway, _) = serve_over_http(VectorSource::Own, "root", |config| {
        config.admin.address = Some(administration.address());
    });
    let address = gateway.address();
    let session = ClientSession::open(exchange_over_http, address, ADMINISTRATOR, &server_key("root"));
    let mut client = NativeClient { session, address, exchange: exchange_over_http, challenges_count: 0 };
    let delete = Request::DeleteHandle(HandleBody { handle: b"TST/HALF" });
    let message = client.session.request(11, FLAGS, &delete);
    let mut forged = client.session.seal(message);
    *forged.last_mut().unwrap() ^= 1;
    let answer =
        HttpAnswer::split(&exchange(address, &post_request("/", HEADERS, &forged)), false).unwrap().0;
    assert_eq!((answer.status, code(&answer.body)), (200, ResponseCode::INVALID_SESSION_KEY));
    assert!(client.is_listed("TST/HALF"), "the record is there");
}

#[test]
fn long_lists_of_indexes_are_answered_over_http_as_by_handled() {
    let directory = tempfile::tempdir().unwrap();
    let value =
        |index: u32| json!({ "index": index, "type": "URL", "data": format!("https://a.example/{index}") });
    let record = json!({ "handle": "10.1/long", "values": (1..=1000).map(value).collect::<Vec<_>>() });
    std::fs::write(directory.path().join("records.jsonl"), record.to_string()).unwrap();
    let mut publish = hdl(["snapshot", "publish", "set", "records.jsonl", "--homed", "10.1"]);
    succeed({
        publish.current_dir(directory.path());
        publish
    });
    let set = directory.path().join("set");
    let (gateway, _) = serve_over_http(VectorSource::Own, "root", |config| config.snapshot = Some(set));
    for count in [1_usize, 100, 500] {
        let indexes: Vec<[u8; 4]> =
            (1..=count).map(|at| u32::try_from(at * 2).unwrap().to_be_bytes()).collect();
        let query = Query { handle: b"10.1/long", indexes: Indexes::new(&indexes), types: Strings::EMPTY };
        let header = Header::request(OpCode::RESOLUTION, OpFlags::PLAIN_REQUEST, 0);
        let message = MessageBuf::request(&Envelope::request(7), &header, &Request::Resolution(query));
        let answer = exchange_over_http(gateway.address(), &message.unsigned().unwrap()).expect("a message");
        let (envelope, rest) = Envelope::split(&answer).unwrap();
        let body = Message::decode(rest).unwrap().decode_body(envelope.version).unwrap();
        let Body::Reply(Reply { response: Response::Answer(found), .. }) = body else {
            panic!("{count}: {:?}", code(&answer))
        };
        assert_eq!(found.values.iter().count(), count);
    }
}
