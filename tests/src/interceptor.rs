//! An interceptor between clients and a server over TCP: it records all messages, and can change or
//! answer them, and close connections.

use handle_proto::OpFlags;
use handle_proto::wire::Envelope;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Treatment of a message of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageFate {
    /// This message is sent to the server.
    Passed(Vec<u8>),
    /// The client gets this answer, and the server no message.
    Answered(Vec<u8>),
}

/// Treatment of the connections of clients.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionManners {
    /// Delay after each answer until the connection is closed, as by deployed servers; nothing is
    /// read meanwhile.
    pub ends_after: Option<Duration>,
    /// Whether the flag for keeping the connection is cleared in answers.
    pub clears_flag: bool,
}

/// A running interceptor; its threads end with the test.
#[derive(Debug)]
pub struct Interceptor {
    /// Address for clients.
    pub address: SocketAddr,
    messages: Arc<Mutex<Vec<Vec<u8>>>>,
    connections: Arc<AtomicUsize>,
}

type InterceptFunction = dyn FnMut(&[u8]) -> MessageFate + Send;

impl Interceptor {
    /// Starts an interceptor before `server`; `act` decides about each message of a client.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    pub fn start(
        server: SocketAddr,
        manners: ConnectionManners,
        act: impl FnMut(&[u8]) -> MessageFate + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let messages = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let (log, count) = (Arc::clone(&messages), Arc::clone(&connections));
        let act: Arc<Mutex<Box<InterceptFunction>>> = Arc::new(Mutex::new(Box::new(act)));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::Relaxed);
                let (act, log) = (Arc::clone(&act), Arc::clone(&log));
                // The client notices the end of the connection, whatever the reason.
                std::thread::spawn(move || drop(relay(client, server, manners, &act, &log)));
            }
        });
        Self { address, messages, connections }
    }

    /// Starts an interceptor that changes nothing.
    #[must_use]
    pub fn passive(server: SocketAddr, manners: ConnectionManners) -> Self {
        Self::start(server, manners, |message| MessageFate::Passed(message.to_vec()))
    }

    /// Number of connections of clients so far.
    #[must_use]
    pub fn connections_count(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// All messages of clients since the last call, as received.
    #[must_use]
    pub fn take_messages(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.messages.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn relay(
    mut client: TcpStream,
    server: SocketAddr,
    manners: ConnectionManners,
    act: &Mutex<Box<InterceptFunction>>,
    messages: &Mutex<Vec<Vec<u8>>>,
) -> io::Result<()> {
    let mut upstream: Option<TcpStream> = None;
    loop {
        let message = read_message(&mut client)?;
        messages.lock().unwrap_or_else(PoisonError::into_inner).push(message.clone());
        let fate = act.lock().unwrap_or_else(PoisonError::into_inner)(&message);
        match fate {
            MessageFate::Answered(answer) => client.write_all(&answer)?,
            MessageFate::Passed(message) => {
                let server = match &mut upstream {
                    Some(stream) => stream,
                    none => none.insert(TcpStream::connect(server)?),
                };
                server.write_all(&message)?;
                loop {
                    let mut answer = read_message(server)?;
                    let flags = flags_of(&answer);
                    if manners.clears_flag {
                        let cleared = flags.without(OpFlags::KEEP_CONNECTION).0.to_be_bytes();
                        answer[FLAGS_AT..FLAGS_AT + 4].copy_from_slice(&cleared);
                    }
                    client.write_all(&answer)?;
                    if !flags.has(OpFlags::CONTINUOUS) {
                        break;
                    }
                }
            }
        }
        if let Some(later) = manners.ends_after {
            std::thread::sleep(later);
            return Ok(());
        }
    }
}

/// Offset of the flags in a message, after the operation and the response code.
const FLAGS_AT: usize = Envelope::LEN + 8;

fn flags_of(message: &[u8]) -> OpFlags {
    let flags = message.get(FLAGS_AT..).and_then(|rest| rest.first_chunk());
    OpFlags(flags.map_or(0, |flags| u32::from_be_bytes(*flags)))
}

fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut message = vec![0; Envelope::LEN];
    stream.read_exact(&mut message)?;
    let (envelope, _) = Envelope::split(&message).map_err(|_| io::ErrorKind::InvalidData)?;
    message.resize(Envelope::LEN + envelope.message_len as usize, 0);
    stream.read_exact(&mut message[Envelope::LEN..])?;
    Ok(message)
}
