//! Tests against a small server with scripted answers.

use super::*;
use crate::testing::site_at;
use handle_auth::PrivateKey;
use handle_auth::challenge::{request_digest, verify_secret};
use handle_auth::kdf::Pbkdf2Limits;
use handle_proto::Version;
use handle_proto::code::DigestAlgorithm;
use handle_proto::wire::admin::{HandleBody, Listing};
use handle_proto::wire::auth::{Challenge, SECRET_KEY, SecretAnswer};
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::failure::Failure;
use handle_proto::wire::list::{Handles, Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::stream::{StreamFront, split};
use handle_proto::wire::{Body, Header, MessageBuf};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::ops::ControlFlow;
use std::thread::JoinHandle;
use zeroize::Zeroizing;

const TIMEOUT: Duration = Duration::from_secs(20);
const DELETE: Request<'_> = Request::DeleteHandle(HandleBody { handle: b"10/a" });

/// A request as the server received it.
pub(super) struct ReceivedRequest {
    pub(super) connection: usize,
    pub(super) envelope: Envelope,
    pub(super) bytes: Vec<u8>,
}

impl ReceivedRequest {
    pub(super) fn message(&self) -> Message<'_> {
        Message::decode(&self.bytes[Envelope::LEN..]).unwrap()
    }

    pub(super) fn reply(&self, code: ResponseCode, response: Response<'_>) -> Vec<u8> {
        self.reply_with(code, None, response, OpFlags(0), self.message().header.op_code)
    }

    fn reply_with(
        &self,
        code: ResponseCode,
        digest: Option<RequestDigest<'_>>,
        response: Response<'_>,
        flags: OpFlags,
        op_code: OpCode,
    ) -> Vec<u8> {
        let header = Header { op_code, flags, ..self.message().header };
        let envelope = Envelope { session_id: 77, ..self.envelope };
        MessageBuf::reply(&envelope, &header, &Reply { code, digest, response }).unsigned().unwrap()
    }

    /// A challenge to the request with the header and body `covered`.
    fn challenge(&self, covered: &[u8]) -> Vec<u8> {
        let made = request_digest(self.envelope.version, covered);
        let algorithm = DigestAlgorithm::for_response(self.envelope.version);
        let digest = RequestDigest { algorithm, digest: &made };
        let challenge = Response::Challenge(Challenge { nonce: &[9; 16] });
        let op_code = self.message().header.op_code;
        self.reply_with(ResponseCode::AUTHENTICATION_NEEDED, Some(digest), challenge, OpFlags(0), op_code)
    }
}

/// Serves connections one after the other. `answer` returns the bytes to send for a request, and
/// whether the connection stays open; `None` ends the server.
pub(super) fn serve(
    mut answer: impl FnMut(&ReceivedRequest) -> Option<(Vec<u8>, bool)> + Send + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = std::thread::spawn(move || {
        for connection in 0.. {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
            loop {
                if let StreamFront::Message(message, _) = split(&bytes, 1 << 18).unwrap() {
                    let (envelope, _) = Envelope::split(message).unwrap();
                    let got = ReceivedRequest { connection, envelope, bytes: std::mem::take(&mut bytes) };
                    let Some((reply, stays)) = answer(&got) else { return };
                    stream.write_all(&reply).unwrap();
                    if !stays {
                        break;
                    }
                }
                match stream.read(&mut buffer) {
                    Ok(0) | Err(_) => break,
                    Ok(len) => bytes.extend_from_slice(&buffer[..len]),
                }
            }
        }
    });
    (address, serving)
}

fn with_secret(server: SocketAddr, secret: &[u8]) -> Administrator {
    let mut client = Administrator::new(server, TIMEOUT);
    let key = IdentityKey::Secret(Zeroizing::new(secret.to_vec()));
    client.identify(Some(Arc::new(ClientIdentity { handle: b"10/ADMIN".to_vec(), index: 300, key })));
    client
}

#[test]
fn challenges_are_answered_on_a_new_connection_if_the_first_is_closed() {
    let mut covered = Vec::new();
    let (server, _) = serve(move |got| {
        let message = got.message();
        let Ok(Body::Request(request)) = message.decode_body(Version::CURRENT) else { panic!("a request") };
        let Request::AnswerChallenge(answer) = request else {
            covered = message.covered.to_vec();
            return Some((got.challenge(&covered), true));
        };
        assert_eq!((got.connection, got.envelope.session_id), (1, 77));
        assert_eq!((answer.auth_type, answer.identity.index), (SECRET_KEY, 300));
        let digest = request_digest(Version::CURRENT, &covered);
        let made = SecretAnswer::decode(answer.signed_response).unwrap();
        let verdict =
            verify_secret(Version::CURRENT, &[&[9; 16], &digest], &made, b"secret", &Pbkdf2Limits::DEFAULT);
        let code = if verdict.is_ok() { ResponseCode::SUCCESS } else { ResponseCode::AUTHENTICATION_FAILED };
        let response = match verdict {
            Ok(()) => Response::Done,
            Err(_) => Response::Failure(Failure { message: b"no" }),
        };
        Some((got.reply_with(code, None, response, OpFlags(0), OpCode::DELETE_HANDLE), true))
    });
    let answer = with_secret(server, b"secret").ask(&DELETE, OpFlags(0)).unwrap();
    assert_eq!((answer.code(), answer.reply().response), (ResponseCode::SUCCESS, Response::Done));
}

#[test]
fn a_challenge_to_another_request_is_not_answered() {
    let (server, _) = serve(|got| {
        assert_ne!(got.message().header.op_code, OpCode::RESPONSE_TO_CHALLENGE);
        Some((got.challenge(b"another request"), true))
    });
    let error = with_secret(server, b"secret").ask(&DELETE, OpFlags(0)).unwrap_err();
    assert!(matches!(error, AskError::Unproven(VerifyError::Wrong)), "{error}");
    assert!(!error.is_in_doubt());
}

#[test]
fn the_number_of_challenges_is_bounded() {
    let mut first = Vec::new();
    let mut count = 0;
    let (server, _) = serve(move |got| {
        if first.is_empty() {
            first = got.message().covered.to_vec();
        }
        count += 1;
        assert!(count <= 3, "a request and two answers");
        Some((got.challenge(&first), true))
    });
    let answer = with_secret(server, b"secret").ask(&DELETE, OpFlags(0)).unwrap();
    assert_eq!(answer.code(), ResponseCode::AUTHENTICATION_NEEDED);
}

#[test]
fn without_an_identity_a_challenge_is_an_error() {
    let (server, _) = serve(|got| Some((got.challenge(got.message().covered), true)));
    let error = Administrator::new(server, TIMEOUT).ask(&DELETE, OpFlags(0)).unwrap_err();
    assert!(matches!(error, AskError::NoIdentity), "{error}");
}

#[test]
fn a_request_without_an_answer_is_in_doubt() {
    let (server, _) = serve(|_| Some((Vec::new(), false)));
    let error = Administrator::new(server, TIMEOUT).ask(&DELETE, OpFlags(0)).unwrap_err();
    assert!(error.is_in_doubt(), "{error}");
    let (server, serving) = serve(|_| None);
    drop(Administrator::new(server, TIMEOUT).ask(&DELETE, OpFlags(0)));
    serving.join().unwrap();
    let error = Administrator::new(server, TIMEOUT).ask(&DELETE, OpFlags(0)).unwrap_err();
    assert!(matches!(error, AskError::Connect(_)) && !error.is_in_doubt(), "{error}");
}

#[test]
fn answers_to_other_requests_are_refused() {
    let replies: [fn(&ReceivedRequest) -> Vec<u8>; 3] = [
        |got| {
            let mut reply = got.reply(ResponseCode::SUCCESS, Response::Done);
            reply[11] ^= 1;
            reply
        },
        |got| got.reply_with(ResponseCode::SUCCESS, None, Response::Done, OpFlags(0), OpCode::ADD_VALUE),
        |got| got.bytes.clone(),
    ];
    for (at, reply) in replies.into_iter().enumerate() {
        let (server, _) = serve(move |got| Some((reply(got), true)));
        let error = Administrator::new(server, TIMEOUT).ask(&DELETE, OpFlags(0)).unwrap_err();
        assert!(matches!(error, AskError::Another(_)), "{at}: {error}");
    }
}

#[test]
fn a_listing_is_read_to_its_end() {
    let (server, _) = serve(|got| {
        let mut storage = Vec::new();
        let mut page = |names: [&[u8]; 2], flags| {
            let listing = Listing { handles: Handles::build(names, &mut storage) };
            got.reply_with(
                ResponseCode::SUCCESS,
                None,
                Response::Listing(listing),
                flags,
                OpCode::LIST_HANDLES,
            )
        };
        let pages = [page([b"10/A", b"10/B"], OpFlags::CONTINUOUS), page([b"10/C", b"10/D"], OpFlags(0))];
        Some((pages.concat(), true))
    });
    let mut names = Vec::new();
    let request = Request::ListHandles(HandleBody { handle: b"0.NA/10" });
    let mut client = Administrator::new(server, TIMEOUT);
    let take = |name: &[u8]| {
        names.push(name.to_vec());
        ControlFlow::Continue(())
    };
    let last = client.list(&request, take).unwrap();
    assert_eq!(last.code(), ResponseCode::SUCCESS);
    assert_eq!(names, [b"10/A", b"10/B", b"10/C", b"10/D"]);
}

#[test]
fn challenges_of_old_versions_are_answered_only_if_allowed() {
    // In the version of the message, or in the suggested one.
    for (at, minor, form) in [(0, 6, 2), (2, 6, 2), (0, 1, 2), (2, 0, 0)] {
        for is_allowed in [false, true] {
            let answered = Arc::new(std::sync::Mutex::new(None));
            let seen = Arc::clone(&answered);
            let (server, _) = serve(move |got| {
                let message = got.message();
                if message.header.op_code == OpCode::RESPONSE_TO_CHALLENGE {
                    let Ok(Body::Request(Request::AnswerChallenge(answer))) =
                        message.decode_body(got.envelope.version)
                    else {
                        panic!("an answer")
                    };
                    *seen.lock().unwrap() = Some(answer.signed_response.to_vec());
                    return Some((
                        got.reply_with(
                            ResponseCode::SUCCESS,
                            None,
                            Response::Done,
                            OpFlags(0),
                            OpCode::DELETE_HANDLE,
                        ),
                        true,
                    ));
                }
                let mut challenge = got.challenge(message.covered);
                challenge[at..at + 2].copy_from_slice(&[2, minor]);
                Some((challenge, true))
            });
            let mut client = with_secret(server, b"secret");
            client.allow(Allowances { old_proofs: is_allowed, ..Allowances::default() });
            let outcome = client.ask(&DELETE, OpFlags(0));
            let answered = answered.lock().unwrap().take();
            match is_allowed {
                false => {
                    let error = outcome.unwrap_err();
                    assert!(
                        matches!(error, AskError::OldProof(version) if version == Version::new(2, minor)),
                        "{error}"
                    );
                    assert!(!error.is_in_doubt() && answered.is_none(), "2.{minor}");
                }
                // Without an algorithm byte it is the bare MD5.
                true if form == 0 => assert_eq!(answered.unwrap().len(), 16),
                true => assert_eq!(answered.unwrap()[0], form, "2.{minor}"),
            }
        }
    }
}

#[test]
fn a_refusal_that_is_not_signed_is_shown_as_unproven() {
    let record = handle_auth::generate::rsa(2048).unwrap();
    let key = PrivateKey::new(&record.view()).unwrap();
    for code in [ResponseCode::ERROR, ResponseCode::PROTOCOL_ERROR, ResponseCode::SESSION_TIMEOUT] {
        let (server, _) = serve(move |got| {
            let mut reply = got.reply(code, Response::Failure(Failure { message: b"not at this interface" }));
            // As from a server that could not read the request.
            reply[8..12].copy_from_slice(&NO_REQUEST.to_be_bytes());
            Some((reply, true))
        });
        let mut client = Administrator::new(server, TIMEOUT);
        client.require_signatures(key.public().clone());
        let error = client.ask(&DELETE, OpFlags(0)).unwrap_err();
        assert!(
            matches!(&error, AskError::UnprovenRefusal { code: received, .. } if *received == code),
            "{error}"
        );
        let shown = error.to_string();
        assert!(shown.contains(&code.0.to_string()) && shown.contains("not at this interface"), "{shown}");
        assert!(shown.contains("unproven") && error.is_in_doubt(), "{shown}");
    }
    // An unsigned answer that is no refusal is never accepted.
    let (server, _) = serve(|got| Some((got.reply(ResponseCode::SUCCESS, Response::Done), true)));
    let mut client = Administrator::new(server, TIMEOUT);
    client.require_signatures(key.public().clone());
    let error = client.ask(&DELETE, OpFlags(0)).unwrap_err();
    assert!(matches!(error, AskError::Unproven(VerifyError::Unsigned)), "{error}");
}

/// A server that refuses queries at one port and changes at the other.
#[test]
fn reading_requests_go_to_the_query_interface() {
    let requests = Arc::new(std::sync::Mutex::new(Vec::new()));
    let site = Arc::new(std::sync::Mutex::new(Vec::new()));
    let addresses = [false, true].map(|is_for_queries| {
        let (requests, site) = (Arc::clone(&requests), Arc::clone(&site));
        let answer = move |got: &ReceivedRequest| {
            let op_code = got.message().header.op_code;
            let refused = Response::Failure(Failure { message: b"not at this interface" });
            let (code, bytes) = (ResponseCode::SUCCESS, site.lock().unwrap().clone());
            let reply = match op_code {
                OpCode::GET_SITE_INFO => got.reply(code, Response::SiteInfo(&bytes)),
                OpCode::RESOLUTION if is_for_queries => {
                    got.reply(ResponseCode::HANDLE_NOT_FOUND, Response::Failure(Failure { message: b"" }))
                }
                OpCode::DELETE_HANDLE if !is_for_queries => got.reply(code, Response::Done),
                _ => got.reply(ResponseCode::PROTOCOL_ERROR, refused),
            };
            requests.lock().unwrap().push((is_for_queries, op_code));
            Some((reply, false))
        };
        serve(answer).0
    });
    let mut record = site_at(1).edit();
    record.servers[0].address = addresses[0].ip().into();
    let kinds = [InterfaceKind::ADMIN, InterfaceKind::QUERY];
    let interface = |(kind, address): (_, SocketAddr)| {
        handle_proto::data::site::Interface::new(kind, InterfaceProtocol::TCP, address.port())
    };
    record.servers[0].interfaces = kinds.into_iter().zip(addresses).map(interface).collect();
    *site.lock().unwrap() = record.build().into_bytes();
    let query = Query { handle: b"10/a", indexes: Indexes::EMPTY, types: Strings::EMPTY };
    let mut client = Administrator::new(addresses[0], TIMEOUT);
    for _ in 0..2 {
        let answer = client.ask(&Request::Resolution(query), OpFlags::PLAIN_REQUEST).unwrap();
        assert_eq!(answer.code(), ResponseCode::HANDLE_NOT_FOUND);
        assert_eq!(client.ask(&DELETE, OpFlags(0)).unwrap().code(), ResponseCode::SUCCESS);
    }
    let (query, site, delete) = (OpCode::RESOLUTION, OpCode::GET_SITE_INFO, OpCode::DELETE_HANDLE);
    let expected =
        [(false, query), (false, site), (true, query), (false, delete), (true, query), (false, delete)];
    assert_eq!(*requests.lock().unwrap(), expected);
}
