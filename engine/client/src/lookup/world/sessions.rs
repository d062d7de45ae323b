//! The sessions of a world: set up, authenticated and dropped as servers do it.

use handle_auth::agreement::respond;
use handle_auth::message::MacKey;
use handle_auth::session::SessionKey;
use handle_proto::code::{Cipher, KeyExchangeMode};
use handle_proto::wire::counter::SeenCounters;
use handle_proto::wire::message::encrypted;
use handle_proto::wire::session::{self, KeyExchange, SessionAnswer, SessionSetup};
use handle_proto::wire::{Envelope, Message};
use handle_proto::{ResponseCode, Version};
use std::collections::HashMap;

/// The sessions of all servers in a world.
#[derive(Default)]
pub(crate) struct WorldSessions {
    /// Whether servers agree to sessions.
    pub(crate) agree: bool,
    /// Whether servers encrypt their messages in sessions.
    pub(crate) encrypt: bool,
    /// The events of sessions, in order.
    pub(crate) events: Vec<&'static str>,
    open: HashMap<i32, WorldSession>,
    last_id: i32,
}

struct WorldSession {
    key: MacKey,
    is_authenticated: bool,
    seen: SeenCounters,
    sent: i32,
    /// Whether the number now names another session, with whose key the padding of an encrypted
    /// message happens to fit.
    is_garbled: bool,
}

impl WorldSessions {
    /// Sets up a session if servers agree to sessions. Returns its id, and the data of the answer.
    pub(crate) fn set_up(&mut self, setup: &SessionSetup<'_>) -> Option<(i32, Vec<u8>)> {
        let KeyExchange::DiffieHellman(theirs) = setup.exchange else { panic!("Diffie-Hellman") };
        assert_eq!((setup.identity.handle, setup.identity.index), (&b"10.a/adm"[..], 300));
        if !self.agree {
            self.events.push("refused");
            return None;
        }
        self.events.push("set up");
        let (ours, secret) = respond(theirs, &(1024..=4096), &[9; 64]).expect("a key of theirs");
        let key = MacKey::new(SessionKey::derive(Cipher::AES, &secret).expect("long enough"));
        self.last_id += 1;
        let seen = SeenCounters::new();
        self.open.insert(
            self.last_id,
            WorldSession { key, is_authenticated: false, seen, sent: 0, is_garbled: false },
        );
        let mut data = vec![];
        let key = session::SessionKey { cipher: Cipher::AES, key: &ours };
        key.encode(Version::CURRENT, session::SessionKey::DIFFIE_HELLMAN_SINCE, &mut data);
        Some((self.last_id, data))
    }

    pub(crate) const fn answer(data: &[u8]) -> SessionAnswer<'_> {
        SessionAnswer { mode: KeyExchangeMode::DIFFIE_HELLMAN, data }
    }

    /// The refusal of a request in a session before it is evaluated; `None` if it is accepted.
    pub(crate) fn refuse(&mut self, envelope: &Envelope, message: &Message<'_>) -> Option<ResponseCode> {
        let Some(open) = self.open.get_mut(&envelope.session_id) else {
            self.events.push("unknown");
            return Some(ResponseCode::SESSION_TIMEOUT);
        };
        let credential = open.key.verify(envelope, message).ok().filter(|_| !open.is_garbled);
        let Some(credential) = credential else {
            self.events.push("another");
            return Some(ResponseCode::INVALID_SESSION_KEY);
        };
        if !open.seen.accept(credential.counter) {
            self.events.push("repeated");
            return Some(ResponseCode::SESSION_MESSAGE_REJECTED);
        }
        if !open.is_authenticated {
            self.events.push("challenged");
            return Some(ResponseCode::AUTHENTICATION_NEEDED);
        }
        self.events.push("known");
        None
    }

    pub(crate) fn authenticate(&mut self, id: i32) {
        if let Some(open) = self.open.get_mut(&id) {
            self.events.push("authenticated");
            open.is_authenticated = true;
        }
    }

    /// Drops all sessions, like restarted servers.
    pub(crate) fn forget(&mut self) {
        self.open.clear();
    }

    /// Restarts the servers, which then give the same numbers to other sessions.
    pub(crate) fn restart(&mut self) {
        let key = || SessionKey::new(Cipher::AES, vec![8; 32]).expect("long enough");
        self.open.values_mut().for_each(|open| open.key = MacKey::new(key()));
    }

    /// The same, with sessions in which the padding of messages happens to fit.
    pub(crate) fn restart_garbled(&mut self) {
        self.open.values_mut().for_each(|open| open.is_garbled = true);
    }

    /// Seals a reply in its session, if it is in one: adds a MAC, and encrypts it.
    pub(crate) fn seal(&mut self, reply: &[u8], certify: bool) -> Option<Vec<u8>> {
        let (envelope, _) = Envelope::split(reply).expect("a reply");
        let open = self.open.get_mut(&envelope.session_id)?;
        let mut sealed = reply.to_vec();
        if certify {
            open.sent += 1;
            open.key.seal(&mut sealed, open.sent).expect("a reply");
        }
        if self.encrypt {
            let plain = if open.is_garbled { &[0x5a; 77][..] } else { &sealed[Envelope::LEN..] };
            let text = open.key.key().encrypt(envelope.version, &[3; 16], plain);
            sealed = encrypted(&envelope, &[&text]).expect("short enough");
        }
        Some(sealed)
    }
}
