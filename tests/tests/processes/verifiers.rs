//! Verification of secrets by the servers of another service, also of old versions. Servers that do
//! not answer are not asked for each request.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_admin::remote::RemoteCounts;
use handle_admin::remote::config::RemoteConfig;
use handle_auth::challenge::request_digest;
use handle_auth::challenge_proof::ChallengeProof;
use handle_auth::message::sign_message;
use handle_auth::{Pbkdf2Limits, PrivateKey, PublicKey};
use handle_client::Allowances;
use handle_client::administration::{Administrator, ClientIdentity, IdentityKey};
use handle_proto::code::DigestAlgorithm;
use handle_proto::limit::HANDLE_LEN_MAX;
use handle_proto::wire::admin::HandleValues;
use handle_proto::wire::auth::{SECRET_KEY, SecretAnswer, VerificationAnswer, VerificationRequest};
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::failure::Failure;
use handle_proto::wire::list::Reference;
use handle_proto::wire::{Body, Credential, Envelope, Header, Message, MessageBuf, Reply, Request, Response};
use handle_proto::{OpFlags, ResponseCode as Code, Value, Values, Version};
use handle_tests::admin_server::{AdminServer, administer};
use handle_tests::client::exchange_over_tcp;
use handle_tests::services::{ServicesPlan, admin, key};
use handle_tests::test_server::serve;
use handle_worker::config::Datapath;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use zeroize::Zeroizing;

const SECRET: &[u8] = b"a secret that only the other service knows";

/// Behaviour of a server that is asked to verify an answer to a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VerifierBehavior {
    /// The correct verdict, as far as a server of this version knows the form of the answer.
    Truth(Version),
    /// An error.
    Error,
    /// No answer: the connection is closed.
    Nothing,
}

/// A server that knows the secret, until it is dropped.
struct Verifier {
    /// The first byte of each answer received, which is its form.
    shown: Arc<Mutex<Vec<u8>>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Verifier {
    fn start(address: SocketAddr, behavior: VerifierBehavior) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (shown, ends) = (Arc::<Mutex<Vec<u8>>>::default(), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let (shown, ends) = (Arc::clone(&shown), Arc::clone(&ends));
            move || {
                while !ends.load(Ordering::Relaxed) {
                    match listener.accept() {
                        Ok((stream, _)) => verify(stream, behavior, &shown),
                        Err(_) => std::thread::sleep(Duration::from_millis(2)),
                    }
                }
            }
        });
        Self { shown, ends, thread: Some(thread) }
    }

    /// The forms of the answers received since the last call.
    fn shown(&self) -> Vec<u8> {
        std::mem::take(&mut *self.shown.lock().unwrap())
    }
}

impl Drop for Verifier {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn verify(mut stream: TcpStream, behavior: VerifierBehavior, shown: &Mutex<Vec<u8>>) {
    stream.set_nonblocking(false).unwrap();
    let mut envelope = [0; Envelope::LEN];
    stream.read_exact(&mut envelope).unwrap();
    let request_envelope = Envelope::from_bytes(&envelope);
    let mut message = vec![0; request_envelope.message_len as usize];
    stream.read_exact(&mut message).unwrap();
    let message = Message::decode(&message).unwrap();
    let Body::Request(Request::VerifyChallenge(verification)) =
        message.decode_body(request_envelope.version).unwrap()
    else {
        panic!("unexpected request");
    };
    let certified = OpFlags::CERTIFY.with(OpFlags::REQUEST_DIGEST);
    assert!(message.header.flags.has(certified));
    shown.lock().unwrap().push(verification.signed_response[0]);
    let (version, code, response) = match behavior {
        VerifierBehavior::Truth(version) => {
            let is_valid = is_right(&verification, version);
            (version, Code::SUCCESS, Response::Verdict(VerificationAnswer { is_valid }))
        }
        VerifierBehavior::Error => {
            (Version::CURRENT, Code::ERROR, Response::Failure(Failure { message: b"" }))
        }
        VerifierBehavior::Nothing => return,
    };
    let digest = request_digest(version, message.covered);
    let digest = RequestDigest { algorithm: DigestAlgorithm::for_response(version), digest: &digest };
    let envelope = Envelope { version, suggested: version, ..request_envelope };
    let reply = Reply { code, digest: Some(digest), response };
    let reply = MessageBuf::reply(&envelope, &message.header, &reply);
    let private = PrivateKey::from_record(&key("mirror", "handle_private_hex")).unwrap();
    let credential = sign_message(&envelope, 0, reply.covered(), &private).unwrap();
    let reply = reply.signed(&Credential::decode(&credential).unwrap()).unwrap();
    stream.write_all(&reply).unwrap();
}

/// Whether the answer was made with the secret, as far as a server of `version` can tell.
fn is_right(verification: &VerificationRequest<'_>, version: Version) -> bool {
    let form = SecretAnswer::decode(verification.signed_response).unwrap();
    let covered = [verification.nonce, verification.digest.digest];
    let (signed_response, limits) = (verification.signed_response, Pbkdf2Limits::DEFAULT);
    let proof = ChallengeProof { version, covered, signed_response, limits };
    !form.is_too_new_for(version) && proof.is_made_with(SECRET_KEY, SECRET)
}

/// A server whose administrator is at the other service, and the address of that service.
fn here(change: impl FnOnce(&mut RemoteConfig)) -> (AdminServer, SocketAddr) {
    let records = vec![("0.NA/10.1", vec![admin(100, 301, "20.2/who")])];
    let here = ServicesPlan::new("server", &["10.1"], records);
    let there = ServicesPlan::new("mirror", &["20.2"], vec![]);
    (here.start(&there, |config| change(&mut config.remote)), there.address)
}

fn client(here: &AdminServer, secret: &[u8]) -> Administrator {
    let mut client = Administrator::new(here.address(), Duration::from_secs(60));
    // Verifiers of old versions need an answer in an old form.
    client.allow(Allowances { old_proofs: true, ..Allowances::NONE });
    let key = IdentityKey::Secret(Zeroizing::new(secret.to_vec()));
    client.identify(Some(Arc::new(ClientIdentity { handle: b"20.2/who".to_vec(), index: 301, key })));
    client
}

fn create(client: &mut Administrator, handle: &str) -> (Code, String) {
    let mut buffer = Vec::new();
    let values = Values::build([Value::new(1, b"URL", b"https://example.org/")], &mut buffer);
    let body = HandleValues { handle: handle.as_bytes(), values };
    let answer = client.ask(&Request::CreateHandle(body), OpFlags::PLAIN_REQUEST).unwrap();
    (answer.code(), answer.text())
}

fn counts(here: &AdminServer) -> RemoteCounts {
    here.server().shared().service.decision.remote().unwrap().counts()
}

fn challenges(here: &AdminServer) -> u64 {
    here.server().shared().service.proof.challenges().counts().issued
}

#[test]
fn clients_are_challenged_again_for_a_form_that_an_old_verifier_understands() {
    for minor in [1, 5, 6] {
        let (here, address) = here(|_| ());
        let verifier = Verifier::start(address, VerifierBehavior::Truth(Version::new(2, minor)));
        let (code, text) = create(&mut client(&here, SECRET), "10.1/new");
        assert_eq!((code, challenges(&here)), (Code::SUCCESS, 2), "2.{minor}: {text}");
        assert_eq!(verifier.shown(), [0x22, 2], "2.{minor}");
        let (code, _) = create(&mut client(&here, b"another secret"), "10.1/other");
        assert_eq!((code, challenges(&here)), (Code::AUTHENTICATION_FAILED, 4), "2.{minor}");
        assert_eq!(verifier.shown(), [0x22, 2], "2.{minor}");
    }
}

#[test]
fn an_identity_verified_remotely_is_authenticated_once_in_a_session() {
    let (here, address) = here(|_| ());
    let verifier = Verifier::start(address, VerifierBehavior::Truth(Version::new(2, 6)));
    let mut client = client(&here, SECRET);
    client.require_signatures(PublicKey::from_record(&key("server", "handle_public_hex")).unwrap());
    client.use_sessions(Some(600));
    for handle in ["10.1/one", "10.1/two"] {
        let (code, text) = create(&mut client, handle);
        assert_eq!(code, Code::SUCCESS, "{handle}: {text}");
    }
    assert_eq!((verifier.shown(), challenges(&here)), (vec![0x22, 2], 2));
    assert_eq!(here.server().shared().service.proof.sessions().unwrap().counts().set_up, 1);
}

#[test]
fn the_verdict_of_a_current_verifier_is_accepted() {
    for minor in [7, 11] {
        let (here, address) = here(|_| ());
        let verifier = Verifier::start(address, VerifierBehavior::Truth(Version::new(2, minor)));
        let (code, _) = create(&mut client(&here, b"another secret"), "10.1/new");
        assert_eq!((code, challenges(&here)), (Code::AUTHENTICATION_FAILED, 1), "2.{minor}");
        assert_eq!(create(&mut client(&here, SECRET), "10.1/new").0, Code::SUCCESS);
        assert_eq!(verifier.shown(), [0x22, 0x22], "2.{minor}");
    }
}

#[test]
fn an_unreachable_verifier_is_not_asked_for_each_request() {
    // Longer than the test takes on any machine.
    let (here, address) = here(|config| config.backoff_ms = 3_600_000);
    let refused = |case: &str| {
        let (code, text) = create(&mut client(&here, SECRET), "10.1/new");
        assert_eq!(code, Code::AUTHENTICATION_ERROR, "{case}: {text}");
        assert!(text.contains("301:20.2/who could not be checked: its service did not answer"), "{text}");
    };
    let verifier = Verifier::start(address, VerifierBehavior::Nothing);
    refused("no answer");
    assert_eq!(verifier.shown(), [0x22]);
    drop(verifier);
    // The verifier runs again, and the failure is still remembered.
    let verifier = Verifier::start(address, VerifierBehavior::Truth(Version::CURRENT));
    refused("not asked");
    assert_eq!(verifier.shown(), [0; 0]);
    let expected =
        RemoteCounts { questions: 1, unanswered: 1, recently_silent: 1, ..RemoteCounts::default() };
    assert_eq!(counts(&here), expected);
}

#[test]
fn a_verifier_that_answers_with_an_error_is_asked_again() {
    let (here, address) = here(|_| ());
    let verifier = Verifier::start(address, VerifierBehavior::Error);
    for _ in 0..2 {
        let (code, text) = create(&mut client(&here, SECRET), "10.1/new");
        assert_eq!(code, Code::AUTHENTICATION_ERROR, "{text}");
        assert!(text.contains("its service did not say"), "{text}");
    }
    assert_eq!(verifier.shown(), [0x22, 0x22]);
    assert_eq!(counts(&here).recently_silent, 0);
}

/// Asks a server to verify an answer with a key of `handle`; returns the code and a summary.
fn ask_to_verify(address: SocketAddr, version: Version, flags: OpFlags, handle: &str) -> (Code, String) {
    let identity = Reference { handle: handle.as_bytes(), index: 300 };
    let digest = RequestDigest { algorithm: DigestAlgorithm::OLD_MD5, digest: &[7; 20] };
    let signed_response = b"\x02wrong";
    let request =
        Request::VerifyChallenge(VerificationRequest { identity, nonce: &[9; 16], digest, signed_response });
    let envelope = Envelope { version, suggested: version, ..Envelope::request(1) };
    let header = Header::request(request.op_code(), OpFlags::PLAIN_REQUEST.with(flags), 0);
    let message = MessageBuf::request(&envelope, &header, &request).unsigned().unwrap();
    let bytes = exchange_over_tcp(address, &message).expect("an answer");
    let (envelope, rest) = Envelope::split(&bytes).unwrap();
    let message = Message::decode(rest).unwrap();
    let Body::Reply(reply) = message.decode_body(envelope.version).unwrap() else { panic!("a reply") };
    let summary = match reply.response {
        Response::Failure(failure) => String::from_utf8(failure.message.to_vec()).unwrap(),
        Response::Referral(referral) => format!("{} values", referral.values.unwrap().len()),
        Response::Verdict(verdict) => verdict.is_valid.to_string(),
        other => panic!("{other:?}"),
    };
    (message.header.response_code, summary)
}

#[test]
fn verification_requests_to_the_wrong_server_are_referred() {
    let (no_flags, current) = (OpFlags(0), Version::CURRENT);
    let too_long = format!("TST/{}", "x".repeat(HANDLE_LEN_MAX));
    for (server, handle, version, flags, code, expected) in [
        ("multi_all", "TST/NEW-C", current, no_flags, 301, "Request was hashed incorrectly"),
        ("root", "99.9/nowhere", current, no_flags, 301, "That prefix doesn't live here"),
        ("root", "0.NA/TST.REF.NEW", current, no_flags, 303, "1 values"),
        ("root", "0.NA/TST.REF.NEW", Version::new(2, 5), no_flags, 303, "1 values"),
        // Peers of this version read the code as an error, with the empty handle as its text.
        ("root", "0.NA/TST.REF.NEW", Version::new(2, 4), no_flags, 303, ""),
        ("root", "0.NA/TST.REF.NEW", current, OpFlags::DO_NOT_REFER, 1, "false"),
        ("root", "0.NA/TST", current, no_flags, 1, "false"),
        ("root", "TST/NONE", current, no_flags, 1, "false"),
        ("root", &too_long, current, no_flags, 1, "false"),
    ] {
        let (administered, served) = (administer(server), serve(server, Datapath::Portable));
        for address in [administered.address(), served.address()] {
            let answer = ask_to_verify(address, version, flags, handle);
            assert_eq!(answer, (Code(code), expected.to_owned()), "{server} {handle} {version} {flags:?}");
        }
    }
}
