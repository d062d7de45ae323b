//! A back end over HTTP with records, which can be made to hang, lie, flood or refuse. It also
//! lists its records and tells changes.

use handle_proto::ValueBuf;
use handle_proto::json::record_to_json;
use percent_encoding::percent_decode_str;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

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
    /// Pages end in the middle of a record, and the connection is closed.
    Truncating,
}

/// A running back end. Its thread ends with the process.
#[derive(Debug)]
pub struct RecordBackend {
    address: SocketAddr,
    state: Arc<BackendState>,
}

#[derive(Debug, Default)]
struct BackendState {
    records: Mutex<BackendRecords>,
    behaviour: Mutex<BackendBehaviour>,
    behaves: Condvar,
    requests: AtomicUsize,
    /// Lines of one page; 0 for all.
    page_lines: AtomicUsize,
}

#[derive(Debug, Default)]
struct BackendRecords {
    /// Bodies by handle, in upper case.
    bodies: BTreeMap<String, String>,
    /// Handles in the order of their changes. The position in it is the cursor.
    changes: Vec<String>,
    /// Changes before this cursor are not told any more.
    changes_begin: usize,
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
        let handle = handle.to_ascii_uppercase();
        let mut records = self.records();
        records.changes.push(handle.clone());
        records.bodies.insert(handle, body);
    }

    /// Deletes the record of a handle.
    pub fn delete(&self, handle: &str) {
        let handle = handle.to_ascii_uppercase();
        let mut records = self.records();
        records.bodies.remove(&handle);
        records.changes.push(handle);
    }

    /// Does not tell the changes so far any more.
    pub fn forget_changes(&self) {
        let mut records = self.records();
        records.changes_begin = records.changes.len();
    }

    /// Lets pages of listings have so many records, and those of changes so many changes.
    pub fn set_page_lines(&self, lines: usize) {
        self.state.page_lines.store(lines, Ordering::Relaxed);
    }

    /// All handles, in upper case.
    #[must_use]
    pub fn handles(&self) -> Vec<String> {
        self.records().bodies.keys().cloned().collect()
    }

    /// The present cursor among its changes.
    #[must_use]
    pub fn cursor(&self) -> String {
        self.records().changes.len().to_string()
    }

    fn records(&self) -> MutexGuard<'_, BackendRecords> {
        self.state.records.lock().unwrap_or_else(PoisonError::into_inner)
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
            let records = state.records.lock().unwrap_or_else(PoisonError::into_inner);
            match (records.bodies.get(handle), page(&records, handle, state)) {
                (Some(body), _) => reply("200 OK", body),
                (None, Some(Ok(page))) => reply("200 OK", &page),
                (None, Some(Err(()))) => reply("410 Gone", ""),
                (None, None) => reply("404 Not Found", ""),
            }
        }
        BackendBehaviour::Truncating => {
            let records = state.records.lock().unwrap_or_else(PoisonError::into_inner);
            let page = page(&records, handle, state).and_then(Result::ok).unwrap_or_default();
            let end = page.trim_end().rfind('\n').map_or(0, |end| end.saturating_sub(5));
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}", &page[..end]);
            false
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

/// The page that `question` asks for: `list` or `changes` with their parameters, in upper case; an
/// error if its changes are not told any more.
fn page(records: &BackendRecords, question: &str, state: &BackendState) -> Option<Result<String, ()>> {
    let (name, cursor) = question.split_once('?').unwrap_or((question, ""));
    let cursor = cursor.split_once('=').map(|(_, cursor)| cursor.parse::<usize>().unwrap_or(0));
    let most = match state.page_lines.load(Ordering::Relaxed) {
        0 => usize::MAX,
        most => most,
    };
    let mut lines = String::new();
    let mut add = |line: &str| {
        lines.push_str(line);
        lines.push('\n');
    };
    let (begin, all) = match (name, cursor) {
        ("LIST", begin) => {
            let begin = begin.unwrap_or(0);
            records.bodies.values().skip(begin).take(most).for_each(|body| add(body));
            (begin, records.bodies.len())
        }
        ("CHANGES", None) => (records.changes.len(), records.changes.len()),
        ("CHANGES", Some(since)) if since < records.changes_begin => return Some(Err(())),
        ("CHANGES", Some(since)) => {
            for handle in records.changes.iter().skip(since).take(most) {
                match records.bodies.get(handle) {
                    Some(body) => add(body),
                    None => add(&format!(r#"{{"handle":"{handle}","responseCode":100}}"#)),
                }
            }
            (since, records.changes.len())
        }
        _ => return None,
    };
    let next = all.min(begin.saturating_add(most));
    add(&format!(r#"{{"cursor":"{next}","more":{}}}"#, next < all));
    Some(Ok(lines))
}
