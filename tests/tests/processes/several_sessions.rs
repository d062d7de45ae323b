//! Sessions over several `handle-admin` over one database: each is used at whichever process, and
//! each of its messages counts once.

use handle_auth::challenge::answer_with_key;
use handle_proto::wire::admin::{HandleBody, HandleValues};
use handle_proto::wire::auth::{self, ChallengeAnswer};
use handle_proto::wire::list::Reference;
use handle_proto::wire::session::ExchangedKey;
use handle_proto::wire::{Body, Envelope, Message, Reply, Request, Response};
use handle_proto::{OpFlags, Permissions, ResponseCode, Value, Values};
use handle_tests::client::exchange_over_tcp;
use handle_tests::mirror_pair::private_key;
use handle_tests::process::until;
use handle_tests::session::{ClientSession, Protection, pair, set_up_request};
use handle_tests::several_admins::SeveralAdmins;

const CERTIFIED: OpFlags = OpFlags(OpFlags::PLAIN_REQUEST.0 | OpFlags::CERTIFY.0);
const ADMINISTRATOR: Reference<'_> = Reference { handle: b"10.1045/ADMIN", index: 300 };
const MAC: Protection = Protection { mac: true, encrypted: false };

fn code(message: &[u8]) -> ResponseCode {
    Message::decode(&message[Envelope::LEN..]).expect("a message").header.response_code
}

/// A client in a session, which it uses at each process.
struct SharedClient<'a> {
    several: &'a SeveralAdmins,
    session: ClientSession,
}

impl<'a> SharedClient<'a> {
    /// Sets up a session at a process.
    fn set_up(several: &'a SeveralAdmins, at: usize) -> Self {
        let pair = pair();
        let set_up = exchange_over_tcp(several.addresses[at], &set_up_request(&pair, ADMINISTRATOR, 0));
        let session = ClientSession::from_answer(&pair, &set_up.expect("an answer"), None);
        Self { several, session }
    }

    /// A request of the session to create a handle, with its MAC.
    fn creation(&mut self, handle: &str) -> Vec<u8> {
        self.creation_with(handle, CERTIFIED)
    }

    fn creation_with(&mut self, handle: &str, flags: OpFlags) -> Vec<u8> {
        let mut buffer = Vec::new();
        let private = Permissions(0x0c);
        let values =
            Values::build([Value { permissions: private, ..Value::new(1, b"URL", b"x") }], &mut buffer);
        let create = Request::CreateHandle(HandleValues { handle: handle.as_bytes(), values });
        let message = self.session.request(11, flags, &create);
        self.session.seal(message)
    }

    /// What a process answers to a message as it is.
    fn answer_at(&self, at: usize, message: &[u8]) -> Vec<u8> {
        exchange_over_tcp(self.several.addresses[at], message).expect("an answer")
    }

    /// The code of the answer, which has to be one in the session.
    fn ask(&mut self, at: usize, message: &[u8]) -> ResponseCode {
        let answer = self.answer_at(at, message);
        let (plain, protection) = self.session.read(&answer);
        assert_eq!(protection, MAC, "{:?}", code(&plain));
        code(&plain)
    }

    /// Creates a handle at a process; the identity has been authenticated before.
    fn create(&mut self, at: usize, handle: &str) -> ResponseCode {
        let message = self.creation(handle);
        self.ask(at, &message)
    }

    /// Has the identity authenticated: a request at one process, and the answer to its challenge at
    /// another one.
    fn authenticate(&mut self, from: usize, to: usize, handle: &str) {
        let message = self.creation(handle);
        let asked = self.answer_at(from, &message);
        let (plain, protection) = self.session.read(&asked);
        assert_eq!(protection, MAC);
        let (envelope, rest) = Envelope::split(&plain).expect("an envelope");
        let body = Message::decode(rest).expect("a message").decode_body(envelope.version).expect("a body");
        let Body::Reply(Reply { response: Response::Challenge(challenge), digest, .. }) = body else {
            panic!("a challenge: {body:?}")
        };
        let covered = [challenge.nonce, digest.expect("a digest").digest];
        let key = private_key(&self.several.service.path("site/admin-private.bin"));
        let signed = answer_with_key(envelope.version, &covered, &key).expect("a signature");
        let answer = ChallengeAnswer {
            auth_type: auth::PUBLIC_KEY,
            identity: ADMINISTRATOR,
            signed_response: &signed,
        };
        let answer = self.session.request(12, CERTIFIED, &Request::AnswerChallenge(answer));
        let answer = self.session.seal(answer);
        assert_eq!(self.ask(to, &answer), ResponseCode::SUCCESS, "{handle}");
        let again = self.ask(from, &answer);
        assert_eq!(again, ResponseCode::SESSION_MESSAGE_REJECTED, "{handle}: a replay");
    }

    fn terminate(&mut self, at: usize) -> ResponseCode {
        let end = Request::SessionTerminate(HandleBody { handle: b"/" });
        let end = self.session.request(14, CERTIFIED, &end);
        let end = self.session.seal(end);
        self.ask(at, &end)
    }
}

fn started() -> Option<SeveralAdmins> {
    let mut several = SeveralAdmins::make("")?;
    several.start(0);
    several.start(1);
    Some(several)
}

#[test]
fn a_session_of_one_process_is_used_at_whichever_process_and_ends_at_all() {
    let Some(several) = started() else { return };
    for (from, to) in [(0, 1), (1, 0)] {
        let mut client = SharedClient::set_up(&several, from);
        client.authenticate(from, to, &format!("10.1045/session{from}"));
        for round in 0..10 {
            let at = (from + round / 2) % 2;
            let created = client.create(at, &format!("10.1045/session{from}-{round}"));
            assert_eq!(created, ResponseCode::SUCCESS, "the identity is known to process {at}");
        }
        // Messages that are encrypted, in both directions.
        for at in [to, from] {
            let message =
                client.creation_with(&format!("10.1045/hidden{from}{at}"), CERTIFIED.with(OpFlags::ENCRYPT));
            let message = client.session.encrypt(&message);
            let answer = client.answer_at(at, &message);
            let (plain, protection) = client.session.read(&answer);
            let all = Protection { mac: true, encrypted: true };
            assert_eq!((code(&plain), protection), (ResponseCode::SUCCESS, all), "at {at}");
            let replayed = client.answer_at(1 - at, &message);
            assert_eq!(code(&client.session.read(&replayed).0), ResponseCode::SESSION_MESSAGE_REJECTED);
        }
        // Keys of sessions are not exchanged in a second step, at this process or at another one.
        let exchange = Request::SessionExchangeKey(ExchangedKey { encrypted_key: b"a key" });
        let exchange = client.session.request(13, CERTIFIED, &exchange);
        let exchange = client.session.seal(exchange);
        assert_eq!(code(&client.answer_at(to, &exchange)), ResponseCode::SESSION_FAILED);
        let key = data_encoding::HEXLOWER.encode(client.session.key.as_bytes());
        let rows = several.psql("SELECT encode(facts, 'hex') FROM handle_sessions");
        assert!(!rows.is_empty() && !rows.contains(&key), "the key is encrypted");
        assert_eq!(client.terminate(to), ResponseCode::SUCCESS);
        for at in [from, to] {
            let late = client.creation("10.1045/late");
            assert_eq!(code(&client.answer_at(at, &late)), ResponseCode::SESSION_TIMEOUT, "at {at}");
            let late = client.session.encrypt(&late);
            assert_eq!(code(&client.answer_at(at, &late)), ResponseCode::SESSION_TIMEOUT, "at {at}");
        }
        assert_eq!(several.psql("SELECT count(*) FROM handle_sessions"), "0");
    }
    // A number that was made up is that of no session.
    let mut client = SharedClient::set_up(&several, 0);
    client.session.id ^= 4;
    let made_up = client.creation("10.1045/made-up");
    assert_eq!(code(&client.answer_at(1, &made_up)), ResponseCode::SESSION_TIMEOUT);
}

#[test]
fn a_message_that_arrives_at_both_processes_at_once_counts_once() {
    const ROUNDS: usize = 50;
    let Some(several) = started() else { return };
    let mut client = SharedClient::set_up(&several, 0);
    client.authenticate(0, 1, "10.1045/both");
    for round in 0..ROUNDS {
        let message = client.creation(&format!("10.1045/both{round}"));
        let answers = std::thread::scope(|scope| {
            let asked = [0, 1].map(|at| {
                let (client, message) = (&client, &message);
                scope.spawn(move || client.answer_at(at, message))
            });
            asked.map(|asked| asked.join().expect("an answer"))
        });
        // No counter of an answer comes twice either, which `read` checks.
        let mut codes = answers.map(|answer| code(&client.session.read(&answer).0));
        codes.sort_unstable_by_key(|code| code.0);
        let once = [ResponseCode::SUCCESS, ResponseCode::SESSION_MESSAGE_REJECTED];
        assert_eq!(codes, once, "round {round}");
    }
}

#[test]
fn a_session_lives_on_when_the_process_of_its_set_up_is_killed() {
    let Some(mut several) = started() else { return };
    let sent = {
        let mut client = SharedClient::set_up(&several, 0);
        client.authenticate(0, 0, "10.1045/first");
        let message = client.creation("10.1045/second");
        assert_eq!(client.ask(0, &message), ResponseCode::SUCCESS);
        (client.session, message)
    };
    several.kill(0);
    let (session, accepted) = sent;
    let mut client = SharedClient { several: &several, session };
    let replayed = client.ask(1, &accepted);
    assert_eq!(replayed, ResponseCode::SESSION_MESSAGE_REJECTED, "the process that was killed accepted it");
    assert_eq!(client.create(1, "10.1045/third"), ResponseCode::SUCCESS, "without a challenge");
    // Nor does the session need the second process, or the first one from before.
    let session = client.session;
    several.start(0);
    several.kill(1);
    let mut client = SharedClient { several: &several, session };
    assert_eq!(client.ask(0, &accepted), ResponseCode::SESSION_MESSAGE_REJECTED);
    assert_eq!(client.create(0, "10.1045/fourth"), ResponseCode::SUCCESS);
}

#[test]
fn a_session_is_over_when_its_time_is_or_when_the_database_has_lost_it() {
    let Some(mut several) = SeveralAdmins::make_alone("") else { return };
    several.start(0);
    several.start(1);
    let mut client = SharedClient::set_up(&several, 0);
    client.authenticate(0, 1, "10.1045/before");
    let _ = several.psql("UPDATE handle_sessions SET until = now()");
    for at in [0, 1] {
        let late = client.creation("10.1045/late");
        assert_eq!(code(&client.answer_at(at, &late)), ResponseCode::SESSION_TIMEOUT, "at {at}");
    }
    let mut client = SharedClient::set_up(&several, 1);
    client.authenticate(1, 1, "10.1045/again");
    let accepted = client.creation("10.1045/accepted");
    assert_eq!(client.ask(1, &accepted), ResponseCode::SUCCESS);
    several.kill_backend();
    let rows = "SELECT count(*) FROM handle_sessions";
    until("the database has lost the rows", || several.psql(rows) == "0");
    for at in [0, 1] {
        // A process may find only now that its connections are lost.
        let mut codes = Vec::new();
        until("the process is connected", || {
            let late = client.creation("10.1045/late");
            codes.push(code(&client.answer_at(at, &late)));
            codes.last() != Some(&ResponseCode::SERVER_BUSY)
        });
        assert_eq!(codes.last(), Some(&ResponseCode::SESSION_TIMEOUT), "at {at}");
        assert_ne!(code(&client.answer_at(at, &accepted)), ResponseCode::SUCCESS, "at {at}");
    }
}
