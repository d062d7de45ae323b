//! A simple server that keeps records in memory, changes them for everybody, and can lose answers
//! and refuse requests. It defines the results of operations.

use handle_proto::wire::failure::Failure;
use handle_proto::wire::message::Body;
use handle_proto::wire::stream::{StreamFront, split};
use handle_proto::wire::{Envelope, Header, Message, MessageBuf, Reply, Request, Response};
use handle_proto::{OpFlags, ResponseCode, Values, limit};
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

/// Records by handle, with encoded values by index.
pub type Records = BTreeMap<Vec<u8>, BTreeMap<i32, Vec<u8>>>;

/// A running server. Its threads end with the process.
#[derive(Debug)]
pub struct RecordsServer {
    /// Address for TCP connections.
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    records: Mutex<Records>,
    /// Operations before the one whose answer is lost; negative for none.
    until_lost_answer: AtomicI64,
    /// Operations before the refusals.
    until_refusals: AtomicI64,
    /// Operations to refuse.
    refusals: AtomicI64,
}

impl RecordsServer {
    /// Starts a server without records.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(State::default());
        state.until_lost_answer.store(-1, Ordering::SeqCst);
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = Arc::clone(&shared);
                // Errors of a connection only end that connection.
                std::thread::spawn(move || drop(serve(stream, &state)));
            }
        });
        Self { address, state }
    }

    /// After this number of operations, one is carried out and its connection closed without an
    /// answer.
    pub fn lose_answer_after(&self, operations: u32) {
        self.state.until_lost_answer.store(operations.into(), Ordering::SeqCst);
    }

    /// Refuses this number of operations with the code for a read-only server.
    pub fn refuse_next(&self, operations: u32) {
        self.refuse_after(0, operations);
    }

    /// The same after `before` operations.
    pub fn refuse_after(&self, before: u32, operations: u32) {
        self.state.until_refusals.store(before.into(), Ordering::SeqCst);
        self.state.refusals.store(operations.into(), Ordering::SeqCst);
    }

    /// The current records.
    ///
    /// # Panics
    /// If a thread of the server has panicked.
    #[must_use]
    pub fn records(&self) -> Records {
        self.state.records.lock().expect("no thread panics").clone()
    }
}

fn serve(stream: TcpStream, state: &State) -> std::io::Result<()> {
    serve_messages(stream, |message| {
        let answer = answer(message, state);
        (state.until_lost_answer.fetch_sub(1, Ordering::SeqCst) != 0).then_some(answer)
    })
}

/// Answers the messages of a connection until it ends, or `answer` returns `None`.
///
/// # Errors
/// When the connection fails.
pub fn serve_messages(
    mut stream: TcpStream,
    mut answer: impl FnMut(&[u8]) -> Option<Vec<u8>>,
) -> std::io::Result<()> {
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let len = stream.read(&mut buffer)?;
        if len == 0 {
            return Ok(());
        }
        bytes.extend_from_slice(&buffer[..len]);
        while let Ok(StreamFront::Message(message, after)) = split(&bytes, limit::MESSAGE_LEN_MAX) {
            let Some(answer) = answer(message) else { return Ok(()) };
            let after = after.to_vec();
            stream.write_all(&answer)?;
            bytes = after;
        }
    }
}

fn answer(message: &[u8], state: &State) -> Vec<u8> {
    let (envelope, rest) = Envelope::split(message).expect("whole messages");
    let message = Message::decode(rest).expect("a valid message");
    let Ok(Body::Request(request)) = message.decode_body(envelope.version) else { panic!("a request") };
    let is_before = state.until_refusals.fetch_sub(1, Ordering::SeqCst) > 0;
    let code = if !is_before && state.refusals.fetch_sub(1, Ordering::SeqCst) > 0 {
        ResponseCode::SERVER_READ_ONLY
    } else {
        change(&mut state.records.lock().expect("no thread panics"), &request, message.header.flags)
    };
    let response = match code {
        ResponseCode::SUCCESS => Response::Done,
        _ => Response::Failure(Failure { message: b"" }),
    };
    let header = Header { flags: OpFlags(0), ..message.header };
    let reply = Reply { code, digest: None, response };
    MessageBuf::reply(&envelope, &header, &reply).unsigned().expect("a short answer")
}

fn change(records: &mut Records, request: &Request<'_>, flags: OpFlags) -> ResponseCode {
    let encoded = |values: Values<'_>| -> Vec<(i32, Vec<u8>)> {
        let encode = |value: handle_proto::Value<'_>| {
            let mut bytes = Vec::new();
            value.encode(&mut bytes);
            (value.index, bytes)
        };
        values.iter().map(encode).collect()
    };
    let overwrites = flags.has(OpFlags::OVERWRITE);
    match request {
        Request::CreateHandle(body) if records.contains_key(body.handle) => {
            ResponseCode::HANDLE_ALREADY_EXISTS
        }
        Request::CreateHandle(body) => {
            records.insert(body.handle.to_vec(), encoded(body.values).into_iter().collect());
            ResponseCode::SUCCESS
        }
        Request::DeleteHandle(body) => match records.remove(body.handle) {
            Some(_) => ResponseCode::SUCCESS,
            None => ResponseCode::HANDLE_NOT_FOUND,
        },
        Request::AddValue(body) | Request::ModifyValue(body) => {
            let Some(record) = records.get_mut(body.handle) else { return ResponseCode::HANDLE_NOT_FOUND };
            let is_modify = matches!(request, Request::ModifyValue(_));
            let values = encoded(body.values);
            let fits = |index: &i32| overwrites || record.contains_key(index) == is_modify;
            if !values.iter().all(|(index, _)| fits(index)) {
                return match is_modify {
                    true => ResponseCode::VALUES_NOT_FOUND,
                    false => ResponseCode::VALUE_ALREADY_EXISTS,
                };
            }
            record.extend(values);
            ResponseCode::SUCCESS
        }
        Request::RemoveValue(body) => {
            let Some(record) = records.get_mut(body.handle) else { return ResponseCode::HANDLE_NOT_FOUND };
            if !body.indexes.iter().all(|index| record.contains_key(&index)) {
                return ResponseCode::VALUES_NOT_FOUND;
            }
            record.retain(|&index, _| !body.indexes.has(index));
            ResponseCode::SUCCESS
        }
        // This server is not responsible for these prefixes.
        Request::HomeNa(body) | Request::UnhomeNa(body) if body.handle.starts_with(b"0.NA/11.") => {
            ResponseCode::INVALID_ADMIN
        }
        Request::HomeNa(_) | Request::UnhomeNa(_) => ResponseCode::SUCCESS,
        _ => ResponseCode::OPERATION_NOT_SUPPORTED,
    }
}
