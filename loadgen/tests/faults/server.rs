//! Correct answers, and servers that return faults instead.

use std::io::{BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use handle_loadgen::{AccessOrder, LoadPattern, NameOptions, ReferenceData, RunOptions, Verify};
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::list::Values;
use handle_proto::wire::query::{Query, QueryAnswer};
use handle_proto::wire::{Envelope, Header, Message};
use handle_proto::{ResponseCode, Value};

/// Long enough for a loaded machine.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(500);
pub(crate) const HANDLES: usize = 20;

/// The text of the one value of a handle; every fifth takes several datagrams.
pub(crate) fn url(handle: &[u8]) -> Vec<u8> {
    let number: usize = String::from_utf8_lossy(handle).rsplit('/').next().unwrap().parse().unwrap();
    let times = if number.is_multiple_of(5) { 60 } else { 1 };
    format!("https://example.org/{number}").repeat(times).into_bytes()
}

/// The datagrams of an answer to `request` with this value.
pub(crate) fn answer(request: &[u8], url: &[u8]) -> Vec<Vec<u8>> {
    let (mut envelope, message) = Envelope::split(request).unwrap();
    let request_message = Message::decode(message).unwrap();
    let handle = Query::decode(request_message.body).unwrap().handle;
    let (mut buffer, mut body) = (Vec::new(), Vec::new());
    let values = Values::build([Value::new(1, b"URL", url)], &mut buffer);
    QueryAnswer { handle, values }.encode(&mut body);
    let len = u32::try_from(body.len()).unwrap();
    let header = Header { response_code: ResponseCode::SUCCESS, body_len: len, ..request_message.header };
    let message = [&header.to_bytes()[..], &body, &[0; 4]].concat();
    envelope.message_len = u32::try_from(message.len()).unwrap();
    if message.len() > 492 {
        envelope.flags = EnvelopeFlags::TRUNCATED;
    }
    let pieces = (0..).zip(message.chunks(492));
    pieces.map(|(sequence, data)| [&Envelope { sequence, ..envelope }.to_bytes(), data].concat()).collect()
}

pub(crate) fn right_answer(request: &[u8]) -> Vec<Vec<u8>> {
    let question = handle_loadgen::load::question::GeneratedQuestion::of_message(request).unwrap();
    answer(request, &url(question.handle))
}

/// A UDP server, which runs until it is dropped; `answer` makes the datagrams for request number n.
pub(crate) struct FaultyServer {
    stop: &'static AtomicBool,
    thread: Option<thread::JoinHandle<()>>,
    pub(crate) address: SocketAddr,
}

impl FaultyServer {
    pub(crate) fn start(mut answer: impl FnMut(usize, &[u8]) -> Vec<Vec<u8>> + Send + 'static) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let stop: &'static AtomicBool = Box::leak(Box::default());
        let address = socket.local_addr().unwrap();
        let thread = thread::spawn(move || {
            let (mut number, mut buffer) = (0, [0; 600]);
            while !stop.load(Ordering::Relaxed) {
                let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
                for datagram in answer(number, &buffer[..len]) {
                    socket.send_to(&datagram, from).unwrap();
                }
                number += 1;
            }
        });
        Self { stop, thread: Some(thread), address }
    }
}

impl Drop for FaultyServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

pub(crate) fn names() -> NameOptions {
    NameOptions::List((0..HANDLES).map(|i| format!("10.5072/{i}").into_bytes()).collect())
}

/// The records that a correct server answers from.
pub(crate) fn records() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let lines: Vec<_> = (0..HANDLES)
        .map(|i| {
            let handle = format!("10.5072/{i}");
            let url = String::from_utf8(url(handle.as_bytes())).unwrap();
            serde_json::json!({
                "handle": handle, "values": [{"index": 1, "type": "URL", "data": {"format": "string", "value": url}}]
            })
            .to_string()
        })
        .collect();
    std::fs::write(file.path(), lines.join("\n")).unwrap();
    file
}

/// 400 requests, verified by a file of records.
pub(crate) fn requests_400(target: SocketAddr, records: &Path) -> RunOptions {
    RunOptions {
        load: LoadPattern::Open { rate: NonZeroU64::new(1000).unwrap() },
        duration: Duration::from_millis(400),
        timeout: TIMEOUT,
        verify: Some(Verify::with(ReferenceData::Records(records.to_owned()))),
        pattern: AccessOrder::Sequential,
        ..RunOptions::new(target, names())
    }
}

/// An action of a server on a connection.
pub(crate) enum ServerAction {
    /// Writes these bytes.
    Write(Vec<u8>),
    /// Waits.
    Wait(Duration),
    /// Keeps these bytes back until the next answer.
    KeepBack(Vec<u8>),
    /// Closes the connection.
    Close,
}

/// A TCP server, with a thread for each connection; `act` returns the actions for request number n.
pub(crate) struct ConnectionServer {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
    pub(crate) address: SocketAddr,
}

impl ConnectionServer {
    pub(crate) fn start(act: impl FnMut(usize, &[u8]) -> Vec<ServerAction> + Send + 'static) -> Self {
        Self::start_with(read_message, act)
    }

    /// `read` takes a request from a connection, in the form that `act` gets.
    pub(crate) fn start_with(
        read: fn(&mut BufReader<TcpStream>) -> std::io::Result<Vec<u8>>,
        act: impl FnMut(usize, &[u8]) -> Vec<ServerAction> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let (stopped, act) = (Arc::clone(&stop), Arc::new(Mutex::new((0, act))));
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let (stream, act) = (stream.unwrap(), Arc::clone(&act));
                let act = move |request: &[u8]| {
                    let (number, act) = &mut *act.lock().unwrap();
                    *number += 1;
                    act(*number - 1, request)
                };
                // A client that closes the connection early is not an error here.
                thread::spawn(move || drop(serve(&stream, read, act)));
            }
        });
        Self { stop, thread: Some(thread), address }
    }
}

impl Drop for ConnectionServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().unwrap().join();
    }
}

/// Reads a whole message.
fn read_message(reader: &mut BufReader<TcpStream>) -> std::io::Result<Vec<u8>> {
    let mut request = vec![0; Envelope::LEN];
    reader.read_exact(&mut request)?;
    let (envelope, _) = Envelope::split(&request).unwrap();
    request.resize(Envelope::LEN + envelope.message_len as usize, 0);
    reader.read_exact(&mut request[Envelope::LEN..])?;
    Ok(request)
}

fn serve(
    mut stream: &TcpStream,
    read: fn(&mut BufReader<TcpStream>) -> std::io::Result<Vec<u8>>,
    act: impl Fn(&[u8]) -> Vec<ServerAction>,
) -> std::io::Result<()> {
    let (mut reader, mut kept_back) = (BufReader::new(stream.try_clone()?), Vec::new());
    loop {
        let request = read(&mut reader)?;
        let before = std::mem::take(&mut kept_back);
        for action in act(&request) {
            match action {
                ServerAction::Write(bytes) => stream.write_all(&bytes)?,
                ServerAction::Wait(duration) => thread::sleep(duration),
                ServerAction::KeepBack(bytes) => kept_back = bytes,
                ServerAction::Close => return stream.shutdown(Shutdown::Both),
            }
        }
        stream.write_all(&before)?;
    }
}

/// An answer on a connection: the fragments of its datagrams in one message.
pub(crate) fn joined(datagrams: &[Vec<u8>]) -> Vec<u8> {
    let (mut envelope, _) = Envelope::split(&datagrams[0]).unwrap();
    (envelope.flags, envelope.sequence) = (EnvelopeFlags(0), 0);
    let data = datagrams.iter().flat_map(|datagram| &datagram[Envelope::LEN..]).copied();
    envelope.to_bytes().into_iter().chain(data).collect()
}
