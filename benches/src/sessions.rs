//! A client with a session, for certified answers.

use crate::requests::Requests;
use anyhow::{Context as _, bail};
use handle_auth::agreement::{Group, KeyPair};
use handle_auth::message::MacKey;
use handle_auth::session::SessionKey;
use handle_proto::wire::list::Reference;
use handle_proto::wire::session::{self, ANONYMOUS_INDEX, KeyExchange, SessionSetup};
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Reply, Request, Response};
use handle_proto::{OpCode, OpFlags};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

/// Sets up an anonymous session with the server at `to`; returns its id and its key.
///
/// # Errors
/// When the server refuses or does not answer.
pub fn open(to: SocketAddr) -> anyhow::Result<(i32, MacKey)> {
    let pair = KeyPair::new(Group::oakley_2(), &handle_auth::random());
    let record = pair.public_record();
    let identity = Reference { handle: b"", index: ANONYMOUS_INDEX };
    let setup = SessionSetup { exchange: KeyExchange::DiffieHellman(&record), timeout_s: 0, identity };
    let header = Header::request(OpCode::SESSION_SETUP, OpFlags::PLAIN_REQUEST, 0);
    let message = MessageBuf::request(&Envelope::request(1), &header, &Request::SessionSetup(setup));
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    socket.send(&message.unsigned().context("the message is too long")?)?;
    let mut buffer = [0; 600];
    // The answer is unsigned and fits into one datagram.
    let len = socket.recv(&mut buffer)?;
    let (envelope, rest) = Envelope::split(&buffer[..len])?;
    let Body::Reply(Reply { response: Response::Session(answer), .. }) =
        Message::decode(rest)?.decode_body(envelope.version)?
    else {
        bail!("the server sets up no session");
    };
    let since = session::SessionKey::DIFFIE_HELLMAN_SINCE;
    let agreement = session::SessionKey::decode(answer.data, envelope.version, since)?;
    let key = SessionKey::derive(agreement.cipher, &pair.agree(agreement.key)?)
        .context("the session key has a wrong length")?;
    Ok((envelope.session_id, MacKey::new(key)))
}

/// Makes `count` messages of the session `id`, each with its own MAC, from `requests` in a cycle.
///
/// # Errors
/// When a request is not a valid message.
pub fn messages(requests: &Requests, id: i32, key: &MacKey, count: usize) -> anyhow::Result<Requests> {
    let mut messages = Vec::with_capacity(count);
    for (counter, at) in (1..).zip(0..count) {
        let mut message = requests.get(at).to_vec();
        message[4..8].copy_from_slice(&id.to_be_bytes());
        key.seal(&mut message, counter)?;
        messages.push(message);
    }
    Ok(Requests::from_datagrams(messages))
}
