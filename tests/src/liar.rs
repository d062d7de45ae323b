//! Servers with false answers: each relays requests to an honest server and changes its answers.

use handle_auth::message::{attach, sign_message};
use handle_auth::{PrivateKey, keyfile};
use handle_proto::wire::fragment::cut;
use handle_proto::wire::{Envelope, Header, Message, MessageBuf};
use handle_proto::{OpCode, OpFlags, ResponseCode};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The change made to the answer of an honest server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgedAnswer {
    /// A changed value, with the original signature.
    Changed,
    /// The answer to another request.
    OtherRequest,
    /// The answer without its signature.
    Unsigned,
    /// The answer to the first request, sent for every request.
    Replayed,
    /// Bytes that are not a message.
    Garbage,
    /// No answer.
    Silent,
    /// The original answer, delayed by this time.
    Late(Duration),
    /// The digest of another request, with a valid signature.
    WrongDigest,
    /// An expiration in the past, with a valid signature.
    Expired,
    /// Another handle, with a valid signature.
    OtherHandle,
    /// Another operation, with a valid signature.
    OtherOperation,
    /// The request instead of an answer, with a valid signature.
    Request,
}

/// A server that gives false answers over UDP until it is dropped.
#[derive(Debug)]
pub struct LiarServer {
    /// The address of the lying server.
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LiarServer {
    /// Starts a server that changes the answers of `truth`, and signs with the key in `key_file`.
    ///
    /// # Panics
    /// If no port is free, or the key cannot be read.
    #[must_use]
    pub fn start(truth: SocketAddr, key_file: &Path, lie: ForgedAnswer) -> Self {
        let key = std::fs::read(key_file).expect("the key of the site");
        let key = keyfile::decode(&key, None).expect("a key file");
        let key = PrivateKey::from_record(key.as_bytes()).expect("a private key");
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        let (address, stop) = (socket.local_addr().expect("an address"), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let mut forger = AnswerForger { truth, key, lie, first: None };
                let mut buffer = [0; 2048];
                while !stop.load(Ordering::Relaxed) {
                    let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
                    for datagram in forger.answer(&buffer[..len]) {
                        let _ = socket.send_to(&datagram, from);
                    }
                }
            }
        });
        Self { address, stop, thread: Some(thread) }
    }
}

/// The site record of the server in `directory`, with another address and without TCP, as a file.
///
/// # Panics
/// When the record cannot be read or written.
#[must_use]
pub fn site_at(directory: &Path, address: SocketAddr) -> PathBuf {
    let text = std::fs::read_to_string(directory.join("siteinfo.json")).expect("a site record");
    let mut site: serde_json::Value = serde_json::from_str(&text).expect("a site record");
    let server = &mut site["servers"][0];
    assert!(server["publicKey"].is_object(), "{server}");
    server["address"] = address.ip().to_string().into();
    let port = address.port();
    server["interfaces"] =
        serde_json::json!([{ "query": true, "admin": false, "protocol": "UDP", "port": port }]);
    let servers = site["servers"].as_array_mut().expect("a site record");
    servers.truncate(1);
    let path = directory.join("lying_site.json");
    std::fs::write(&path, site.to_string()).expect("a site record");
    path
}

impl Drop for LiarServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct AnswerForger {
    truth: SocketAddr,
    key: PrivateKey,
    lie: ForgedAnswer,
    first: Option<Vec<u8>>,
}

impl AnswerForger {
    /// The datagrams of the answer to a request.
    fn answer(&mut self, request: &[u8]) -> Vec<Vec<u8>> {
        let answer = match self.lie {
            ForgedAnswer::Silent => return vec![],
            ForgedAnswer::Garbage => return vec![request.iter().map(|byte| !byte).collect()],
            ForgedAnswer::Unsigned => {
                // An honest server only signs on request.
                let mut request = request.to_vec();
                let flags: [u8; 4] = request[FLAGS_AT..FLAGS_AT + 4].try_into().expect("four bytes");
                let flags = OpFlags(u32::from_be_bytes(flags)).without(OpFlags::CERTIFY);
                request[FLAGS_AT..FLAGS_AT + 4].copy_from_slice(&flags.0.to_be_bytes());
                ask(self.truth, &request)
            }
            ForgedAnswer::Late(delay) => {
                std::thread::sleep(delay);
                ask(self.truth, request)
            }
            ForgedAnswer::Changed => {
                let mut answer = ask(self.truth, request);
                // A place in the values.
                let at = answer.len() / 2;
                answer[at] ^= 1;
                answer
            }
            ForgedAnswer::OtherRequest => {
                let mut answer = ask(self.truth, request);
                answer[REQUEST_ID_AT + 3] ^= 0x40;
                answer
            }
            ForgedAnswer::Replayed => {
                let mut answer = self.first.get_or_insert_with(|| ask(self.truth, request)).clone();
                let id = REQUEST_ID_AT..REQUEST_ID_AT + 4;
                answer[id.clone()].copy_from_slice(&request[id]);
                answer
            }
            ForgedAnswer::WrongDigest
            | ForgedAnswer::Expired
            | ForgedAnswer::OtherHandle
            | ForgedAnswer::OtherOperation
            | ForgedAnswer::Request => self.forge(&ask(self.truth, request), request),
        };
        let (envelope, body) = Envelope::split(&answer).expect("a message");
        let fragments = cut(&envelope);
        fragments.map(|fragment| [&fragment.envelope[..], &body[fragment.range]].concat()).collect()
    }

    /// A changed answer with a valid signature.
    fn forge(&self, answer: &[u8], request: &[u8]) -> Vec<u8> {
        let (envelope, rest) = Envelope::split(answer).expect("a message");
        let message = Message::decode(rest).expect("a true answer");
        let mut body = message.body.to_vec();
        let mut header = message.header;
        match self.lie {
            // After the number of the algorithm.
            ForgedAnswer::WrongDigest => body[4] ^= 1,
            ForgedAnswer::Expired => header.expiration = 1,
            ForgedAnswer::OtherHandle => {
                let handle = handle_of(request);
                let at = body.windows(handle.len()).position(|window| window == handle);
                body[at.expect("the handle in the body") + handle.len() - 1] ^= 1;
            }
            ForgedAnswer::OtherOperation => header.op_code = OpCode::GET_SITE_INFO,
            _ => {
                let (_, rest) = Envelope::split(request).expect("a request");
                body = Message::decode(rest).expect("a request").body.to_vec();
                header.response_code = ResponseCode::RESERVED;
            }
        }
        let forged = MessageBuf::new(&envelope, &header, |out| out.extend_from_slice(&body));
        let covered = forged.covered().to_vec();
        let credential = sign_message(&envelope, 0, &covered, &self.key).expect("the key signs");
        let mut forged = forged.unsigned().expect("no longer than the true one");
        attach(&mut forged, covered.len(), |out| out.extend_from_slice(&credential));
        forged
    }
}

const REQUEST_ID_AT: usize = 8;
/// Offset of the flags in a message, after the operation and the response code.
const FLAGS_AT: usize = Envelope::LEN + 8;

/// The handle of a query.
fn handle_of(request: &[u8]) -> &[u8] {
    let body = &request[Envelope::LEN + Header::LEN..];
    let len = u32::from_be_bytes(body[..4].try_into().expect("four bytes")) as usize;
    &body[4..4 + len]
}

/// The answer of an honest server, over TCP so that it is complete.
fn ask(server: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server).expect("a connection to the honest server");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    stream.write_all(request).expect("the request is sent");
    let mut answer = vec![0; Envelope::LEN];
    stream.read_exact(&mut answer).expect("an answer");
    let (envelope, _) = Envelope::split(&answer).expect("an envelope");
    answer.resize(Envelope::LEN + envelope.message_len as usize, 0);
    stream.read_exact(&mut answer[Envelope::LEN..]).expect("a whole answer");
    answer
}
