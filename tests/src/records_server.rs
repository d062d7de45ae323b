//! A server of a few lines that keeps records in memory and changes them for everybody, as long as a test wants: the
//! plain definition of what operations do, and a source of accidents.

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

/// Records by handle, values by index: their encoding.
pub type Records = BTreeMap<Vec<u8>, BTreeMap<i32, Vec<u8>>>;

/// A running server. Its threads end with the process.
#[derive(Debug)]
pub struct RecordsServer {
    /// Where it listens, over TCP.
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    records: Mutex<Records>,
    /// Operations until the next accident; below zero there is none.
    until_accident: AtomicI64,
    /// Operations that are carried out before those.
    until_unwilling: AtomicI64,
    /// Operations that are still told that nothing can be changed now.
    unwilling: AtomicI64,
}

impl RecordsServer {
    /// Starts with no records.
    ///
    /// # Panics
    /// When no port is free.
    #[must_use]
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(State::default());
        state.until_accident.store(-1, Ordering::SeqCst);
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = Arc::clone(&shared);
                // A client that goes away is not the end of the server.
                std::thread::spawn(move || drop(serve(stream, &state)));
            }
        });
        Self { address, state }
    }

    /// After so many operations more, one is carried out and its connection closed without an answer.
    pub fn lose_answer_after(&self, operations: u32) {
        self.state.until_accident.store(operations.into(), Ordering::SeqCst);
    }

    /// So many operations are told that the server takes no changes now, and not carried out.
    pub fn refuse_next(&self, operations: u32) {
        self.refuse_after(0, operations);
    }

    /// The same, but the first operations are carried out.
    pub fn refuse_after(&self, before: u32, operations: u32) {
        self.state.until_unwilling.store(before.into(), Ordering::SeqCst);
        self.state.unwilling.store(operations.into(), Ordering::SeqCst);
    }

    /// The records as they are.
    ///
    /// # Panics
    /// When a thread of it has.
    #[must_use]
    pub fn records(&self) -> Records {
        self.state.records.lock().expect("no thread panics").clone()
    }
}

fn serve(mut stream: TcpStream, state: &State) -> std::io::Result<()> {
    let (mut bytes, mut room) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let len = stream.read(&mut room)?;
        if len == 0 {
            return Ok(());
        }
        bytes.extend_from_slice(&room[..len]);
        while let Ok(StreamFront::Message(message, after)) = split(&bytes, limit::MESSAGE_LEN_MAX) {
            let after = after.to_vec();
            let answer = answer(message, state);
            if state.until_accident.fetch_sub(1, Ordering::SeqCst) == 0 {
                return Ok(());
            }
            stream.write_all(&answer)?;
            bytes = after;
        }
    }
}

fn answer(message: &[u8], state: &State) -> Vec<u8> {
    let (envelope, rest) = Envelope::split(message).expect("whole messages");
    let message = Message::decode(rest).expect("what our client sends decodes");
    let Ok(Body::Request(request)) = message.decode_body(envelope.version) else { panic!("a request") };
    let is_willing = state.until_unwilling.fetch_sub(1, Ordering::SeqCst) > 0;
    let code = if !is_willing && state.unwilling.fetch_sub(1, Ordering::SeqCst) > 0 {
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
        let one = |value: handle_proto::Value<'_>| {
            let mut bytes = Vec::new();
            value.encode(&mut bytes);
            (value.index, bytes)
        };
        values.iter().map(one).collect()
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
        // Others look after these.
        Request::HomeNa(body) | Request::UnhomeNa(body) if body.handle.starts_with(b"0.NA/11.") => {
            ResponseCode::INVALID_ADMIN
        }
        Request::HomeNa(_) | Request::UnhomeNa(_) => ResponseCode::SUCCESS,
        _ => ResponseCode::OPERATION_NOT_SUPPORTED,
    }
}
