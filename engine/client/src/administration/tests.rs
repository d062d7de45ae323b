//! Against a server of a few lines that says what the test wants.

use super::*;
use handle_auth::challenge::{request_digest, verify_secret};
use handle_auth::kdf::Pbkdf2Limits;
use handle_proto::Version;
use handle_proto::code::DigestAlgorithm;
use handle_proto::wire::admin::{HandleBody, Listing};
use handle_proto::wire::auth::{Challenge, SecretAnswer};
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::failure::Failure;
use handle_proto::wire::list::Handles;
use handle_proto::wire::stream::{Front, split};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::ops::ControlFlow;
use std::thread::JoinHandle;

const PATIENCE: Duration = Duration::from_secs(20);
const DELETE: Request<'_> = Request::DeleteHandle(HandleBody { handle: b"10/a" });

/// A request as the server got it.
pub(super) struct Got {
    pub(super) connection: usize,
    pub(super) envelope: Envelope,
    pub(super) bytes: Vec<u8>,
}

impl Got {
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

    /// A challenge to the request that `covered` are header and body of.
    fn challenge(&self, covered: &[u8]) -> Vec<u8> {
        let made = request_digest(self.envelope.version, covered);
        let algorithm = DigestAlgorithm::for_response(self.envelope.version);
        let digest = RequestDigest { algorithm, digest: &made };
        let challenge = Response::Challenge(Challenge { nonce: &[9; 16] });
        let op_code = self.message().header.op_code;
        self.reply_with(ResponseCode::AUTHENTICATION_NEEDED, Some(digest), challenge, OpFlags(0), op_code)
    }
}

/// Serves connections one after the other. `answer` gives the bytes to send for a request, and whether the
/// connection stays; `None` ends the server.
pub(super) fn serve(
    mut answer: impl FnMut(&Got) -> Option<(Vec<u8>, bool)> + Send + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = std::thread::spawn(move || {
        for connection in 0.. {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut bytes, mut room) = (Vec::new(), [0; 4096]);
            loop {
                if let Front::Message(message, _) = split(&bytes, 1 << 18).unwrap() {
                    let (envelope, _) = Envelope::split(message).unwrap();
                    let got = Got { connection, envelope, bytes: std::mem::take(&mut bytes) };
                    let Some((reply, stays)) = answer(&got) else { return };
                    stream.write_all(&reply).unwrap();
                    if !stays {
                        break;
                    }
                }
                match stream.read(&mut room) {
                    Ok(0) | Err(_) => break,
                    Ok(len) => bytes.extend_from_slice(&room[..len]),
                }
            }
        }
    });
    (address, serving)
}

fn with_secret(server: SocketAddr, secret: &[u8]) -> Administrator {
    let mut client = Administrator::new(server, PATIENCE);
    let key = Key::Secret(Zeroizing::new(secret.to_vec()));
    client.identify(Some(Arc::new(Identity { handle: b"10/ADMIN".to_vec(), index: 300, key })));
    client
}

#[test]
fn a_challenge_is_answered_on_the_connection_on_which_it_came() {
    let mut asked = Vec::new();
    let (server, _) = serve(move |got| {
        let message = got.message();
        let Ok(Body::Request(request)) = message.decode_body(Version::CURRENT) else { panic!("a request") };
        let Request::AnswerChallenge(answer) = request else {
            asked = message.covered.to_vec();
            return Some((got.challenge(&asked), true));
        };
        assert_eq!((got.connection, got.envelope.session_id), (0, 77));
        assert_eq!((answer.auth_type, answer.identity.index), (SECRET_KEY, 300));
        let digest = request_digest(Version::CURRENT, &asked);
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
fn challenges_do_not_go_on_for_ever() {
    let mut first = Vec::new();
    let mut count = 0;
    let (server, _) = serve(move |got| {
        if first.is_empty() {
            first = got.message().covered.to_vec();
        }
        count += 1;
        assert!(count <= 3, "asked, and answered twice");
        Some((got.challenge(&first), true))
    });
    let answer = with_secret(server, b"secret").ask(&DELETE, OpFlags(0)).unwrap();
    assert_eq!(answer.code(), ResponseCode::AUTHENTICATION_NEEDED);
}

#[test]
fn without_an_identity_a_challenge_is_an_error() {
    let (server, _) = serve(|got| Some((got.challenge(got.message().covered), true)));
    let error = Administrator::new(server, PATIENCE).ask(&DELETE, OpFlags(0)).unwrap_err();
    assert!(matches!(error, AskError::WhoAsks), "{error}");
}

#[test]
fn a_connection_is_used_again_while_the_server_keeps_it() {
    for keeps in [true, false] {
        let (server, _) = serve(move |got| {
            let code = ResponseCode(if got.connection == 0 { 1 } else { 2 });
            let response = match got.connection {
                0 => Response::Done,
                _ => Response::Failure(Failure { message: b"" }),
            };
            Some((got.reply(code, response), keeps))
        });
        let mut client = Administrator::new(server, PATIENCE);
        assert_eq!(client.ask(&DELETE, OpFlags(0)).unwrap().code(), ResponseCode::SUCCESS);
        if !keeps {
            // The end of the connection has to arrive first.
            while client.connection.is_open() {
                std::thread::yield_now();
            }
        }
        let second = if keeps { ResponseCode::SUCCESS } else { ResponseCode::ERROR };
        assert_eq!(client.ask(&DELETE, OpFlags(0)).unwrap().code(), second, "kept: {keeps}");
    }
}

#[test]
fn a_request_whose_answer_never_came_is_in_doubt() {
    let (server, _) = serve(|_| Some((Vec::new(), false)));
    let error = Administrator::new(server, PATIENCE).ask(&DELETE, OpFlags(0)).unwrap_err();
    assert!(error.is_in_doubt(), "{error}");
    let (server, serving) = serve(|_| None);
    drop(Administrator::new(server, PATIENCE).ask(&DELETE, OpFlags(0)));
    serving.join().unwrap();
    let error = Administrator::new(server, PATIENCE).ask(&DELETE, OpFlags(0)).unwrap_err();
    assert!(matches!(error, AskError::Connect(_)) && !error.is_in_doubt(), "{error}");
}

#[test]
fn answers_to_something_else_are_refused() {
    let replies: [fn(&Got) -> Vec<u8>; 3] = [
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
        let error = Administrator::new(server, PATIENCE).ask(&DELETE, OpFlags(0)).unwrap_err();
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
    let mut client = Administrator::new(server, PATIENCE);
    let take = |name: &[u8]| {
        names.push(name.to_vec());
        ControlFlow::Continue(())
    };
    let last = client.list(&request, take).unwrap();
    assert_eq!(last.code(), ResponseCode::SUCCESS);
    assert_eq!(names, [b"10/A", b"10/B", b"10/C", b"10/D"]);
}
