//! A back end over HTTP with records, which can be made to hang, lie, flood or refuse.

use handle_proto::ValueBuf;
use handle_proto::json::record_to_json;
use percent_encoding::percent_decode_str;
use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// How a back end answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendBehaviour {
    /// As its records say.
    #[default]
    Honest,
    /// It reads requests and sends nothing until it behaves otherwise.
    Hanging,
    /// With the record of another handle.
    Lying,
    /// With a body without an end.
    Flooding,
    /// With status 500.
    Failing,
    /// It closes the connection.
    Closing,
}

/// A running back end. Its thread ends with the process.
#[derive(Debug)]
pub struct RecordBackend {
    address: SocketAddr,
    state: Arc<BackendState>,
}

#[derive(Debug, Default)]
struct BackendState {
    /// Bodies by handle, in upper case.
    bodies: Mutex<HashMap<String, String>>,
    behaviour: Mutex<BackendBehaviour>,
    behaves: Condvar,
    requests: AtomicUsize,
}

impl RecordBackend {
    /// Starts a back end with these records.
    ///
    /// # Panics
    /// When no socket can be bound.
    #[must_use]
    pub fn start(records: &[(&str, Vec<ValueBuf>)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let (address, state) = (listener.local_addr().expect("an address"), Arc::<BackendState>::default());
        let backend = Self { address, state: Arc::clone(&state) };
        records.iter().for_each(|(handle, values)| backend.put(handle, values));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&state);
                std::thread::spawn(move || serve(stream, &state));
            }
        });
        backend
    }

    /// The URL of the records.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/records", self.address)
    }

    /// Sets the record of a handle.
    ///
    /// # Panics
    /// Never.
    pub fn put(&self, handle: &str, values: &[ValueBuf]) {
        let body = record_to_json(handle.as_bytes(), values.iter().map(ValueBuf::view)).to_string();
        let mut bodies = self.state.bodies.lock().unwrap_or_else(PoisonError::into_inner);
        bodies.insert(handle.to_ascii_uppercase(), body);
    }

    /// Changes how it answers.
    pub fn behave(&self, behaviour: BackendBehaviour) {
        *self.state.behaviour.lock().unwrap_or_else(PoisonError::into_inner) = behaviour;
        self.state.behaves.notify_all();
    }

    /// Requests received so far.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.state.requests.load(Ordering::Relaxed)
    }
}

fn serve(mut stream: TcpStream, state: &BackendState) {
    let Ok(reading) = stream.try_clone() else { return };
    let mut lines = BufReader::new(reading).lines().map_while(Result::ok);
    while let Some(request) = lines.next() {
        // The rest of the head.
        if !lines.any(|line| line.is_empty()) {
            return;
        }
        let segment = request.split([' ', '/']).nth(3).unwrap_or_default();
        let handle = percent_decode_str(segment).decode_utf8_lossy().to_ascii_uppercase();
        state.requests.fetch_add(1, Ordering::Relaxed);
        let behaviour = state.behaviour.lock().unwrap_or_else(PoisonError::into_inner);
        let hangs = |behaviour: &mut BackendBehaviour| *behaviour == BackendBehaviour::Hanging;
        let behaviour = *state.behaves.wait_while(behaviour, hangs).unwrap_or_else(PoisonError::into_inner);
        if !answer(&mut stream, &handle, behaviour, state) {
            return;
        }
    }
}

/// Answers a request about `handle`; false if the connection is to be closed.
fn answer(stream: &mut TcpStream, handle: &str, behaviour: BackendBehaviour, state: &BackendState) -> bool {
    let mut reply = |status: &str, body: &str| {
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).is_ok()
    };
    match behaviour {
        BackendBehaviour::Honest => {
            let bodies = state.bodies.lock().unwrap_or_else(PoisonError::into_inner);
            match bodies.get(handle) {
                Some(body) => reply("200 OK", body),
                None => reply("404 Not Found", ""),
            }
        }
        BackendBehaviour::Lying => reply("200 OK", r#"{"handle":"10.1/another","values":[]}"#),
        BackendBehaviour::Failing => reply("500 Internal Server Error", ""),
        BackendBehaviour::Closing | BackendBehaviour::Hanging => false,
        BackendBehaviour::Flooding => {
            let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
            let mut is_open = write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").is_ok();
            while is_open {
                is_open = stream.write_all(chunk.as_bytes()).is_ok();
            }
            false
        }
    }
}
