//! A cache in this process, in front of a server of a test.

use crate::client::{ReceivedReply, TestClient, exchange};
use handle_cache::{CacheService, Config};
use handle_daemon::control::ControlCommands as _;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Envelope, Header, MessageBuf, Request};
use handle_proto::{OpCode, OpFlags, ResponseCode};
use handle_worker::Server;
use handle_worker::config::Datapath;
use serde_json::Value as Json;
use std::net::SocketAddr;
use std::sync::Arc;

/// A cache in front of a server.
#[derive(Debug)]
pub struct TestCache {
    /// The server that answers from the cache.
    pub server: Server,
    /// The cache.
    pub service: Arc<CacheService>,
}

/// Configuration for a test: one unpinned worker on loopback that asks `upstream`.
#[must_use]
pub fn config(upstream: SocketAddr) -> Config {
    let mut config = Config {
        listen: vec![([127, 0, 0, 1], 0).into()],
        workers: 1,
        pin: false,
        datapath: Datapath::Portable,
        ..Config::default()
    };
    config.cache.bytes = 4 << 20;
    config.upstream.servers = vec![upstream.to_string()];
    config.waiting.exempt_sources = vec!["127.0.0.0/8".to_owned()];
    config
}

impl TestCache {
    /// A cache that asks `upstream`, with a changed configuration.
    ///
    /// # Panics
    /// When it does not start, as in all helpers below.
    #[must_use]
    pub fn of(upstream: SocketAddr, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = config(upstream);
        change(&mut config);
        let (server, service) = handle_cache::program::start(&config, None).expect("the cache starts");
        Self { server, service }
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.addresses()[0]
    }

    /// The answer to a plain request over UDP.
    #[must_use]
    pub fn resolve(&self, handle: &str) -> ReceivedReply {
        TestClient::new(self.address()).resolve(handle.as_bytes()).expect("an answer")
    }

    /// The result of a command on the control socket.
    #[must_use]
    pub fn run(&self, command: &str) -> Json {
        self.server.shared().run(command).expect("a command")
    }

    /// A number of `cache-stats`.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        self.run("cache-stats")[name].as_u64().unwrap_or_else(|| panic!("{name}"))
    }

    /// The answer to a request with these flags and indexes.
    #[must_use]
    pub fn ask(&self, handle: &str, indexes: &[i32], flags: OpFlags) -> Vec<u8> {
        exchange(self.address(), &message(handle, indexes, flags)).expect("an answer")
    }
}

/// A resolution request with the id 77.
///
/// # Panics
/// When it is too long.
#[must_use]
pub fn message(handle: &str, indexes: &[i32], flags: OpFlags) -> Vec<u8> {
    let mut storage = vec![];
    let indexes = Indexes::build(indexes.iter().copied(), &mut storage);
    let query = Query { handle: handle.as_bytes(), indexes, types: Strings::EMPTY };
    let header = Header::request(OpCode::RESOLUTION, flags, 0);
    let message = MessageBuf::request(&Envelope::request(77), &header, &Request::Resolution(query));
    message.unsigned().expect("a short request")
}

/// The response code of a message.
///
/// # Panics
/// When it has no header.
#[must_use]
pub fn code(message: &[u8]) -> ResponseCode {
    Header::split(&message[Envelope::LEN..]).expect("a header").0.response_code
}
