//! Both processes with the records of a [`ServicesPlan`], and the sockets between them.

use crate::admin_server::AdminServer;
use crate::daemon::free_address;
use crate::process::until;
use crate::services::ServicesPlan;
use crate::test_server;
use handle_auth::challenge::answer_with_secret;
use handle_proto::wire::auth::{self, ChallengeAnswer};
use handle_proto::wire::list::Reference;
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Reply, Request, Response};
use handle_proto::{OpCode, OpFlags, ResponseCode, Version};
use handle_worker::Server;
use handle_worker::config::{Config, Datapath};
use handle_worker::slow::config::ServerKeyConfig;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

/// `handled` and `handle-admin` in this process.
pub struct BothProcesses {
    /// `handled`.
    pub handled: Server,
    /// `handle-admin`.
    pub admin: AdminServer,
}

impl BothProcesses {
    /// Starts both processes for the service `here`, which knows the service `there`, with changes
    /// of their configurations.
    ///
    /// # Panics
    /// If a process does not start.
    #[must_use]
    pub fn start(
        here: &ServicesPlan,
        there: &ServicesPlan,
        change_handled: impl FnOnce(&mut Config),
        change_admin: impl FnOnce(&mut handle_admin::config::Config),
    ) -> Self {
        let admin = here.start(there, |config| {
            let directory = config.site.parent().expect("a directory").to_owned();
            let set = directory.join("set");
            std::fs::create_dir(&set).expect("a directory for the set");
            config.publish.directory = Some(set);
            config.sessions.socket = Some(directory.join("sessions"));
            config.local.socket = Some(directory.join("admin.socket"));
            change_admin(config);
        });
        let directory = admin.directory.path();
        until("the records are published", || directory.join("set/MANIFEST").exists());
        let mut config = configuration(directory);
        change_handled(&mut config);
        Self { handled: Server::start(&config).expect("handled starts"), admin }
    }

    /// Address of `handled`.
    #[must_use]
    pub fn queries(&self) -> SocketAddr {
        self.handled.addresses()[0]
    }

    /// Address of `handle-admin`.
    #[must_use]
    pub fn administration(&self) -> SocketAddr {
        self.admin.address()
    }

    /// Count of `event` in the forwarding of `handled`.
    ///
    /// # Panics
    /// If forwarding is disabled.
    #[must_use]
    pub fn forward_count(&self, event: &str) -> u64 {
        let slow = self.handled.shared().slow.as_ref().expect("a slow path").to_json();
        slow["forward"][event].as_u64().expect("a count")
    }
}

fn configuration(directory: &Path) -> Config {
    let mut config = test_server::config(&directory.join("set"), Datapath::Portable);
    config.listen = vec![free_address()];
    config.site = Some(directory.join("siteinfo.json"));
    let file = directory.join("privkey.bin");
    config.server_key = Some(ServerKeyConfig { file, ..ServerKeyConfig::default() });
    config.sessions.socket = Some(directory.join("sessions"));
    config.forward.socket = Some(directory.join("admin.socket"));
    config
}

/// A request outside sessions, by a client that supports versions up to `version`.
///
/// # Panics
/// If the message is too long.
#[must_use]
pub fn message(version: Version, request_id: i32, flags: OpFlags, request: &Request<'_>) -> Vec<u8> {
    let envelope = Envelope { version, suggested: version, ..Envelope::request(request_id) };
    let header = Header::request(OpCode::RESERVED, flags, 0);
    MessageBuf::request(&envelope, &header, request).unsigned().expect("a message that is not too long")
}

/// The code of a message.
///
/// # Panics
/// If the message does not decode.
#[must_use]
pub fn code(message: &[u8]) -> ResponseCode {
    Message::decode(&message[Envelope::LEN..]).expect("a message").header.response_code
}

/// The answer of `identity` to a challenge, with its secret.
///
/// # Panics
/// If the message is no challenge.
#[must_use]
pub fn answer_to(challenge: &[u8], identity: Reference<'_>, secret: &[u8]) -> Vec<u8> {
    let (envelope, rest) = Envelope::split(challenge).expect("an envelope");
    let body = Message::decode(rest).expect("a message").decode_body(envelope.version).expect("a body");
    let Body::Reply(Reply { response: Response::Challenge(contents), digest, .. }) = body else {
        panic!("no challenge: {:?}", code(challenge))
    };
    let covered = [contents.nonce, digest.expect("a digest").digest];
    let (version, suggested) = (envelope.version, envelope.effective_suggested());
    let signed_response = &answer_with_secret(version, suggested, &covered, secret, &[7; 16]);
    let answer = ChallengeAnswer { auth_type: auth::SECRET_KEY, identity, signed_response };
    let envelope =
        Envelope { version, suggested, session_id: envelope.session_id, ..Envelope::request(4712) };
    let header = Header::request(OpCode::RESERVED, OpFlags::PLAIN_REQUEST, 0);
    let message = MessageBuf::request(&envelope, &header, &Request::AnswerChallenge(answer));
    message.unsigned().expect("a short message")
}

/// All messages received over a connection until it is closed.
///
/// # Panics
/// If the connection fails or is not closed.
#[must_use]
pub fn exchange_all(server: SocketAddr, message: &[u8]) -> Vec<Vec<u8>> {
    let mut stream = TcpStream::connect(server).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    stream.write_all(message).expect("the request goes out");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("the connection is closed in order");
    let (mut messages, mut rest) = (Vec::new(), &bytes[..]);
    while let Ok((envelope, _)) = Envelope::split(rest) {
        let (one, after) = rest.split_at(Envelope::LEN + envelope.message_len as usize);
        messages.push(one.to_vec());
        rest = after;
    }
    messages
}

/// The names in the messages of a listing.
///
/// # Panics
/// If a message is no part of a listing.
#[must_use]
pub fn listed_names(messages: &[Vec<u8>]) -> Vec<String> {
    let mut names = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let (envelope, rest) = Envelope::split(message).expect("an envelope");
        let message = Message::decode(rest).expect("a message");
        let is_last = at + 1 == messages.len();
        assert_eq!(message.header.flags.has(OpFlags::CONTINUOUS), !is_last, "message {at}");
        let Ok(Body::Reply(Reply { response: Response::Listing(page), .. })) =
            message.decode_body(envelope.version)
        else {
            panic!("no listing: {:?}", message.header.response_code)
        };
        names.extend(page.handles.iter().map(|name| String::from_utf8_lossy(name).into_owned()));
    }
    names
}
