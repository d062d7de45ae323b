//! `hdl` with an attacker between it and the server: no secret is disclosed by forged answers or
//! downgrades.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::message::sign_message;
use handle_auth::{PrivateKey, keyfile};
use handle_proto::code::DigestAlgorithm;
use handle_proto::wire::admin::Listing;
use handle_proto::wire::auth::{Challenge, SecretAnswer};
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::failure::Failure;
use handle_proto::wire::list::Handles;
use handle_proto::wire::{Body, Credential, Envelope, Header, Message, MessageBuf, Reply, Request, Response};
use handle_proto::{OpCode, OpFlags, ResponseCode, Version};
use handle_tests::interceptor::{ConnectionManners, Interceptor, MessageFate};
use handle_tests::process::{fail, hdl, succeed};
use handle_tests::service_directory::InitialisedService;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

const SECRET: &str = "correct horse battery staple";

/// Held while a test compares or changes the stored record.
static STORED: Mutex<()> = Mutex::new(());

/// A running service with the handle 10.1045/victim, a file with its secret, and a batch that sets
/// the secret.
fn service() -> &'static InitialisedService {
    static SERVICE: OnceLock<InitialisedService> = OnceLock::new();
    SERVICE.get_or_init(|| {
        let mut service = InitialisedService::make();
        service.start_admin();
        write_private(&service, "secret", SECRET);
        let batch = format!("ADD 10.1045/victim\n302 HS_SECKEY 86400 1100 UTF8 {SECRET}\n");
        write_private(&service, "batch.txt", &batch);
        let values = ["1:URL=https://example.org/", "100:HS_ADMIN=300:10.1045/ADMIN"];
        succeed(service.hdl_as_admin(["handle", "create", "10.1045/victim"].into_iter().chain(values)));
        service.for_all_tests()
    })
}

fn write_private(service: &InitialisedService, name: &str, text: &str) {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(service.path(name)).unwrap();
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
}

/// `hdl` as the administrator, connected to the interceptor.
fn through(interceptor: &Interceptor, args: &[&str]) -> Command {
    let mut command = service().hdl(args.iter().copied());
    command.args(["--server", &interceptor.address.to_string(), "--auth", "300:10.1045/ADMIN"]);
    command.args(["--key", "site/admin-private.bin"]);
    command
}

const WITH_KEY: [&str; 2] = ["--server-key", "site/server-public.bin"];
const UPDATE: [&str; 4] = ["handle", "update", "10.1045/victim", "301:HS_SECKEY=@secret"];

fn op_code(message: &[u8]) -> Option<OpCode> {
    let (envelope, rest) = Envelope::split(message).unwrap();
    let is_plain = !envelope.flags.has(EnvelopeFlags::ENCRYPTED);
    is_plain.then(|| Message::decode(rest).unwrap().header.op_code)
}

fn op_codes(messages: &[Vec<u8>]) -> Vec<Option<OpCode>> {
    messages.iter().map(|message| op_code(message)).collect()
}

fn has_secret(messages: &[Vec<u8>]) -> bool {
    messages.iter().any(|message| message.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()))
}

/// The stored record, read directly from the server.
fn stored() -> String {
    succeed(service().hdl_as_admin(["handle", "get", "10.1045/victim", "--json"]))
}

/// A refusal of `request`, signed with the key of the server or not at all.
fn refusal(request: &[u8], code: ResponseCode, is_signed: bool) -> Vec<u8> {
    let (envelope, rest) = Envelope::split(request).unwrap();
    let message = Message::decode(rest).unwrap();
    let digest = handle_auth::challenge::request_digest(Version::CURRENT, message.covered);
    let algorithm = DigestAlgorithm::for_response(Version::CURRENT);
    let digest = Some(RequestDigest { algorithm, digest: &digest });
    let envelope = Envelope { version: Version::CURRENT, ..envelope };
    let response = Response::Failure(Failure { message: b"come back later" });
    let reply = MessageBuf::reply(&envelope, &message.header, &Reply { code, digest, response });
    if !is_signed {
        return reply.unsigned().unwrap();
    }
    let key = std::fs::read(service().path("site/server-private.bin")).unwrap();
    let key = keyfile::decode(&key, None).unwrap();
    let key = PrivateKey::from_record(key.as_bytes()).unwrap();
    let credential = sign_message(&envelope, 0, reply.covered(), &key).unwrap();
    reply.signed(&Credential::decode(&credential).unwrap()).unwrap()
}

#[test]
fn a_refused_session_gives_no_secret_away() {
    let _alone = STORED.lock().unwrap_or_else(PoisonError::into_inner);
    let before = stored();
    // Forged errors, and those that a server with all permits taken signs.
    for (code, is_signed) in [
        (ResponseCode::SESSION_TIMEOUT, false),
        (ResponseCode::SESSION_FAILED, false),
        (ResponseCode::SERVER_BUSY, false),
        (ResponseCode::SERVER_BUSY, true),
        (ResponseCode::OPERATION_NOT_SUPPORTED, true),
    ] {
        let interceptor =
            Interceptor::start(service().administration, ConnectionManners::default(), move |message| {
                match op_code(message) {
                    Some(OpCode::SESSION_SETUP) => MessageFate::Answered(refusal(message, code, is_signed)),
                    _ => MessageFate::Passed(message.to_vec()),
                }
            });
        let log = format!("log-{}-{is_signed}", code.0);
        let batch = ["batch", "batch.txt", "--log", &log];
        let plain = ["handle", "update", "10.1045/victim", "1:URL=https://example.org/moved"];
        // A batch has one exit code for all that was not done.
        for (args, expected_exit, option) in [
            (&UPDATE[..], 6, "--allow-cleartext-secrets"),
            (&batch[..], 1, "--allow-cleartext-secrets"),
            (&plain[..], 6, "--no-sessions"),
        ] {
            let (exit, error) = fail(through(&interceptor, &[args, &WITH_KEY].concat()));
            let requests = interceptor.take_messages();
            assert!(!has_secret(&requests), "{code} {args:?}");
            assert_eq!(op_codes(&requests), [Some(OpCode::SESSION_SETUP)], "{code} {args:?}: {error}");
            assert_eq!(exit, expected_exit, "{error}");
            assert!(error.contains("come back later") && error.contains(option), "{error}");
            assert_eq!(error.contains("unproven"), !is_signed, "{error}");
        }
    }
    assert_eq!(stored(), before);
}

#[test]
fn secrets_are_sent_in_cleartext_only_with_permission() {
    let _alone = STORED.lock().unwrap_or_else(PoisonError::into_inner);
    let interceptor = Interceptor::passive(service().administration, ConnectionManners::default());
    // Without the key of the server, a session could be with an attacker.
    let (exit, error) = fail(through(&interceptor, &UPDATE));
    assert!(exit == 1 && error.contains("--server-key"), "{error}");
    assert!(interceptor.take_messages().is_empty());
    // In a session.
    succeed(through(&interceptor, &[&UPDATE[..], &WITH_KEY].concat()));
    let requests = interceptor.take_messages();
    assert!(!has_secret(&requests) && op_codes(&requests).contains(&None), "{:?}", op_codes(&requests));
    assert!(stored().contains(SECRET));
    // Without a session, the interceptor reads the secret.
    for options in [&["--allow-cleartext-secrets"][..], &["--allow-cleartext-secrets", "--no-sessions"]] {
        let key = if options.len() > 1 { &WITH_KEY[..] } else { &[] };
        succeed(through(&interceptor, &[&UPDATE[..], key, options].concat()));
        assert!(has_secret(&interceptor.take_messages()), "{options:?}");
    }
    let (exit, error) = fail(through(&interceptor, &[&UPDATE[..], &WITH_KEY, &["--no-sessions"]].concat()));
    assert!(exit == 1 && error.contains("disabled") && interceptor.take_messages().is_empty(), "{error}");
}

#[test]
fn a_session_with_a_downgraded_version_is_not_used() {
    let _alone = STORED.lock().unwrap_or_else(PoisonError::into_inner);
    let before = stored();
    for minor in [1, 4, 5, 6] {
        let interceptor =
            Interceptor::start(service().administration, ConnectionManners::default(), move |message| {
                let mut message = message.to_vec();
                if op_code(&message) == Some(OpCode::SESSION_SETUP) {
                    // The suggested version, which is not protected.
                    message[3] = minor;
                }
                MessageFate::Passed(message)
            });
        let (exit, error) = fail(through(&interceptor, &[&UPDATE[..], &WITH_KEY].concat()));
        let requests = interceptor.take_messages();
        assert_eq!(op_codes(&requests), [Some(OpCode::SESSION_SETUP)], "2.{minor}: {error}");
        assert!(exit == 6 && error.contains("no session"), "{error}");
    }
    assert_eq!(stored(), before);
}

/// A challenge to `request` in an old version.
fn old_challenge(request: &[u8], version: Version) -> Vec<u8> {
    let (envelope, rest) = Envelope::split(request).unwrap();
    let message = Message::decode(rest).unwrap();
    let digest = handle_auth::challenge::request_digest(version, message.covered);
    let algorithm = DigestAlgorithm::for_response(version);
    let envelope = Envelope { version, suggested: version, session_id: 77, ..envelope };
    let header = Header { flags: OpFlags::REQUEST_DIGEST, ..message.header };
    let response = Response::Challenge(Challenge { nonce: &[7; 16] });
    let digest = Some(RequestDigest { algorithm, digest: &digest });
    let reply = Reply { code: ResponseCode::AUTHENTICATION_NEEDED, digest, response };
    MessageBuf::reply(&envelope, &header, &reply).unsigned().unwrap()
}

/// The response in an answer to a challenge.
fn proof(message: &[u8]) -> Option<Vec<u8>> {
    let (envelope, rest) = Envelope::split(message).unwrap();
    let message = Message::decode(rest).unwrap();
    match message.decode_body(envelope.version).unwrap() {
        Body::Request(Request::AnswerChallenge(answer)) => Some(answer.signed_response.to_vec()),
        _ => None,
    }
}

#[test]
fn challenges_of_old_versions_get_no_digest_of_the_secret() {
    let file = service().path("secret");
    let prove = ["--auth", "300:10.1045/ADMIN", "--secret-file", file.to_str().unwrap()];
    let batch = service().path("delete.txt");
    std::fs::write(&batch, "DELETE 10.1045/victim\n").unwrap();
    for version in [Version::new(2, 6), Version::new(2, 1)] {
        let interceptor =
            Interceptor::start(service().administration, ConnectionManners::default(), move |message| {
                match op_code(message) {
                    Some(OpCode::RESPONSE_TO_CHALLENGE) => {
                        MessageFate::Answered(refusal(message, ResponseCode::AUTHENTICATION_FAILED, false))
                    }
                    _ => MessageFate::Answered(old_challenge(message, version)),
                }
            });
        let server = ["--server", &interceptor.address.to_string()];
        let log = service().path(&format!("log-{}", version.minor));
        let commands: [&[&str]; 3] = [
            &["handle", "delete", "10.1045/victim"],
            &["batch", batch.to_str().unwrap(), "--log", log.to_str().unwrap()],
            &["resolve", "10.1045/victim", "--tcp"],
        ];
        for command in commands {
            let (_, error) = fail(hdl([command, &server, &prove].concat()));
            let proofs: Vec<_> =
                interceptor.take_messages().iter().filter_map(|message| proof(message)).collect();
            assert!(proofs.is_empty() && error.contains("--allow-old-proofs"), "{command:?}: {error}");
            let _ = std::fs::remove_file(&log);
            fail(hdl([command, &server, &prove, &["--allow-old-proofs"]].concat()));
            let proofs: Vec<_> =
                interceptor.take_messages().iter().filter_map(|message| proof(message)).collect();
            let Some(SecretAnswer::Mac { algorithm: DigestAlgorithm::SHA1, .. }) =
                proofs.first().map(|proof| SecretAnswer::decode(proof).unwrap())
            else {
                panic!("{command:?}: {proofs:?}")
            };
        }
    }
}

/// An answer to a listing, with `names_count` names of 100 bytes, which announces more.
fn listing(request: &[u8], names_count: usize) -> Vec<u8> {
    let (envelope, rest) = Envelope::split(request).unwrap();
    let message = Message::decode(rest).unwrap();
    let header = Header { flags: message.header.flags.with(OpFlags::CONTINUOUS), ..message.header };
    let (name, mut storage) = ([b'x'; 100], Vec::new());
    let handles = Handles::build(std::iter::repeat_n(&name[..], names_count), &mut storage);
    let response = Response::Listing(Listing { handles });
    let reply = Reply { code: ResponseCode::SUCCESS, digest: None, response };
    MessageBuf::reply(&envelope, &header, &reply).unsigned().unwrap()
}

#[test]
fn an_endless_listing_stops_the_import_at_its_limit() {
    // 16 MB of names.
    let interceptor = Interceptor::start(service().administration, ConnectionManners::default(), |message| {
        MessageFate::Answered(listing(message, 1000).repeat(160))
    });
    let store = service().path("endless.redb");
    let server = interceptor.address.to_string();
    let import = ["import", store.to_str().unwrap(), "--create", "--server", &server];
    for listing in [&["--prefix", "10.1045"][..], &[]] {
        let (exit, error) = fail(hdl([&import[..], listing, &["--list-mib", "15"]].concat()));
        assert!(exit == 1 && error.contains("--list-mib"), "{listing:?}: {error}");
    }
    assert_eq!(interceptor.take_messages().len(), 2, "no handle of the list was resolved");
}
