//! A server of a few records over UDP, whose records and manners a test changes while it runs.

use handle_proto::value::type_matches;
use handle_proto::wire::failure::Failure;
use handle_proto::wire::fragment::cut;
use handle_proto::wire::list::Values;
use handle_proto::wire::query::{Query, QueryAnswer};
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Reply, Request, Response};
use handle_proto::{ResponseCode, Value, fold};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How an [`UpstreamServer`] answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerManner {
    /// With the record, or that there is none.
    Honest,
    /// With what it had when the request came, after this time. Requests are answered one after the
    /// other.
    Slow(Duration),
    /// Not at all.
    Silent,
    /// That it failed, or is busy.
    Code(ResponseCode),
    /// With bytes that are no message.
    Garbage,
    /// With the record under another name.
    OtherHandle,
    /// With the id of another request.
    OtherId,
    /// From another port.
    OtherPort,
    /// With the first half of the message, whose envelope promises all of it.
    Truncated,
}

/// The records and manners of a server, and what it was asked.
#[derive(Debug)]
struct UpstreamState {
    records: Mutex<Vec<UpstreamRecord>>,
    manner: Mutex<AnswerManner>,
    asked: AtomicUsize,
    ends: AtomicBool,
}

#[derive(Debug)]
struct UpstreamRecord {
    handle: Vec<u8>,
    values_count: usize,
    /// In wire form, one after the other.
    values: Vec<u8>,
}

/// A server; it ends when it is dropped.
#[derive(Debug)]
pub struct UpstreamServer {
    /// Its address.
    pub address: SocketAddr,
    state: Arc<UpstreamState>,
    thread: Option<JoinHandle<()>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl UpstreamServer {
    /// Starts an honest server without records.
    ///
    /// # Panics
    /// When there is no port.
    #[must_use]
    pub fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let other = UdpSocket::bind("127.0.0.1:0").expect("another port");
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        let address = socket.local_addr().expect("an address");
        let state = Arc::new(UpstreamState {
            records: Mutex::default(),
            manner: Mutex::new(AnswerManner::Honest),
            asked: AtomicUsize::new(0),
            ends: AtomicBool::new(false),
        });
        let thread = std::thread::spawn({
            let state = Arc::clone(&state);
            move || {
                let mut buffer = [0; 2048];
                while !state.ends.load(Ordering::Relaxed) {
                    let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
                    state.asked.fetch_add(1, Ordering::Relaxed);
                    let manner = *locked(&state.manner);
                    let from_port = if manner == AnswerManner::OtherPort { &other } else { &socket };
                    for datagram in state.answer(&buffer[..len], manner) {
                        let _ = from_port.send_to(&datagram, from);
                    }
                }
            }
        });
        Self { address, state, thread: Some(thread) }
    }

    /// Sets the values of a record.
    pub fn set(&self, handle: &str, values: &[Value<'_>]) {
        let mut records = locked(&self.state.records);
        records.retain(|known| !fold::eq(&known.handle, handle.as_bytes()));
        let mut encoded = Vec::new();
        values.iter().for_each(|value| value.encode(&mut encoded));
        let handle = handle.as_bytes().to_vec();
        records.push(UpstreamRecord { handle, values_count: values.len(), values: encoded });
    }

    /// Changes how it answers.
    pub fn behave(&self, manner: AnswerManner) {
        *locked(&self.state.manner) = manner;
    }

    /// Number of datagrams that have come so far.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.state.asked.load(Ordering::Relaxed)
    }

    /// A site record that names it as the only server, over UDP, as a file in `directory`.
    ///
    /// # Panics
    /// When the file cannot be written.
    #[must_use]
    pub fn site(&self, directory: &Path) -> PathBuf {
        let interface = serde_json::json!({ "query": true, "admin": false, "protocol": "UDP", "port": self.address.port() });
        let site = serde_json::json!({
            "version": 1, "protocolVersion": "2.11", "serialNumber": 1, "primarySite": true,
            "multiPrimary": false, "attributes": [],
            "servers": [{ "serverId": 1, "address": self.address.ip().to_string(), "interfaces": [interface] }],
        });
        let path = directory.join(format!("site-{}.json", self.address.port()));
        std::fs::write(&path, site.to_string()).expect("the site record is written");
        path
    }
}

impl Drop for UpstreamServer {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl UpstreamState {
    /// The datagrams of the answer to a request.
    fn answer(&self, request: &[u8], manner: AnswerManner) -> Vec<Vec<u8>> {
        match manner {
            AnswerManner::Silent => return vec![],
            AnswerManner::Garbage => return vec![request.iter().map(|byte| !byte).collect()],
            _ => {}
        }
        let Ok((mut envelope, rest)) = Envelope::split(request) else { return vec![] };
        let Ok(message) = Message::decode(rest) else { return vec![] };
        if manner == AnswerManner::OtherId {
            envelope.request_id ^= 1;
        }
        let query = match message.decode_body(envelope.version) {
            Ok(Body::Request(Request::Resolution(query))) => query,
            _ => return vec![],
        };
        let reply = self.reply(envelope, message.header, &query, manner);
        if let AnswerManner::Slow(by) = manner {
            std::thread::sleep(by);
        }
        let (envelope, body) = Envelope::split(&reply).expect("a message");
        let fragments = cut(&envelope);
        let mut datagrams: Vec<Vec<u8>> =
            fragments.map(|fragment| [&fragment.envelope[..], &body[fragment.range]].concat()).collect();
        if let Some(last) = datagrams.last_mut().filter(|_| manner == AnswerManner::Truncated) {
            last.truncate(last.len() / 2);
        }
        datagrams
    }

    fn reply(&self, envelope: Envelope, header: Header, query: &Query<'_>, manner: AnswerManner) -> Vec<u8> {
        let records = locked(&self.records);
        let record = records.iter().find(|known| fold::eq(&known.handle, query.handle));
        let values = record
            .map_or(Ok(Values::EMPTY), |record| Values::from_encoded(record.values_count, &record.values));
        let is_for_all = query.indexes.is_empty() && query.types.is_empty();
        let selects = |value: &Value<'_>| {
            is_for_all
                || query.indexes.has(value.index)
                || query.types.iter().any(|kind| type_matches(kind, value.kind))
        };
        let mut storage = Vec::new();
        let values = values.expect("values that were encoded here").iter().filter(selects);
        let values = Values::build(values, &mut storage);
        let code = match (manner, record) {
            (AnswerManner::Code(code), _) => code,
            (_, None) => ResponseCode::HANDLE_NOT_FOUND,
            (_, Some(_)) if values.is_empty() => ResponseCode::VALUES_NOT_FOUND,
            (_, Some(_)) => ResponseCode::SUCCESS,
        };
        let mut handle = query.handle.to_vec();
        if let Some(last) = handle.last_mut().filter(|_| manner == AnswerManner::OtherHandle) {
            *last ^= 1;
        }
        let response = match code {
            ResponseCode::SUCCESS => Response::Answer(QueryAnswer { handle: &handle, values }),
            _ => Response::Failure(Failure { message: b"" }),
        };
        let reply = Reply { code, digest: None, response };
        MessageBuf::reply(&envelope, &header, &reply).unsigned().expect("a short answer")
    }
}
