//! A server that answers each question with many forged datagrams, and then honestly or not at all.

use handle_proto::wire::query::QueryAnswer;
use handle_proto::wire::{Body, Envelope, Message, MessageBuf, Reply, Request, Response};
use handle_proto::{ResponseCode, Value, Values};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The data of the values that are true, and of those that are not.
pub const TRUE_DATA: &[u8] = b"https://true.example/";
/// See [`TRUE_DATA`].
pub const FALSE_DATA: &[u8] = b"https://false.example/";

/// Time after which clients no longer wait for an answer.
pub const LATE: Duration = Duration::from_secs(5);

/// Ways of forging an answer.
const FORGERIES: usize = 6;

/// A server with one record for every handle; it ends when it is dropped.
#[derive(Debug)]
pub struct ForgerServer {
    /// Its address.
    pub address: SocketAddr,
    state: Arc<ForgerState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct ForgerState {
    /// Forged datagrams for each question.
    burst: u64,
    /// Whether all questions are answered honestly in the end, and not only every second one.
    is_honest: AtomicBool,
    sent: AtomicU64,
    ends: AtomicBool,
}

/// The sockets of a forger.
struct ForgerSockets {
    /// The address that is asked.
    main: UdpSocket,
    /// Another port of its host.
    other_port: UdpSocket,
    /// The same port of another host.
    other_host: UdpSocket,
}

/// A question that has been answered, or not.
struct EarlierQuestion {
    from: SocketAddr,
    asked_at: Instant,
    /// Its answer, with false values.
    answer: Vec<u8>,
}

impl EarlierQuestion {
    fn is_late(&self) -> bool {
        self.asked_at.elapsed() >= LATE
    }
}

impl ForgerServer {
    /// Starts a server that sends `burst` forged datagrams for each question. Nobody may wait for
    /// an answer for longer than [`LATE`].
    ///
    /// # Panics
    /// When there is no port.
    #[must_use]
    pub fn start(burst: u64) -> Self {
        let main = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let address = main.local_addr().expect("an address");
        main.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        let other_host =
            (2..100).find_map(|host| UdpSocket::bind((Ipv4Addr::new(127, 0, 0, host), address.port())).ok());
        let sockets = ForgerSockets {
            main,
            other_port: UdpSocket::bind("127.0.0.1:0").expect("a port"),
            other_host: other_host.expect("the port on another address of loopback"),
        };
        let state = Arc::new(ForgerState {
            burst,
            is_honest: false.into(),
            sent: AtomicU64::new(0),
            ends: false.into(),
        });
        let thread = std::thread::spawn({
            let state = Arc::clone(&state);
            move || state.run(&sockets)
        });
        Self { address, state, thread: Some(thread) }
    }

    /// Number of forged datagrams so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.state.sent.load(Ordering::Relaxed)
    }

    /// Answers all questions honestly from now on, and forges nothing.
    pub fn reform(&self) {
        self.state.is_honest.store(true, Ordering::Relaxed);
    }
}

impl Drop for ForgerServer {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl ForgerState {
    fn run(&self, sockets: &ForgerSockets) {
        let (mut buffer, mut earlier, mut questions) = ([0; 2048], VecDeque::new(), 0_u64);
        while !self.ends.load(Ordering::Relaxed) {
            let Ok((len, from)) = sockets.main.recv_from(&mut buffer) else { continue };
            let request = &buffer[..len];
            let Some(honest) = answer(request, TRUE_DATA, |_, _| {}) else { continue };
            questions += 1;
            if !self.is_honest.load(Ordering::Relaxed) {
                self.forge(sockets, request, from, &earlier);
                let answer = answer(request, FALSE_DATA, |_, _| {}).expect("a request");
                earlier.push_back(EarlierQuestion { from, asked_at: Instant::now(), answer });
                // The first one is the newest that is late.
                while earlier.get(1).is_some_and(EarlierQuestion::is_late) {
                    earlier.pop_front();
                }
                if questions.is_multiple_of(2) {
                    continue;
                }
            }
            let _ = sockets.main.send_to(&honest, from);
        }
    }

    /// Sends forged answers to `request`.
    fn forge(
        &self,
        sockets: &ForgerSockets,
        request: &[u8],
        from: SocketAddr,
        earlier: &VecDeque<EarlierQuestion>,
    ) {
        let right = answer(request, FALSE_DATA, |_, _| {}).expect("a request");
        for n in 0..self.burst {
            let other_id = |envelope: &mut Envelope, _: &mut Vec<u8>| {
                // Never 0, so that no id is the right one.
                let bits = u32::try_from(n * 2_654_435_761 % 0x7fff_fffe).unwrap_or_default() + 1;
                envelope.request_id ^= bits.cast_signed();
            };
            let _ = match usize::try_from(n).unwrap_or_default() % FORGERIES {
                0 => sockets.other_port.send_to(&right, from),
                1 => sockets.other_host.send_to(&right, from),
                2 => sockets.main.send_to(&answer(request, FALSE_DATA, other_id).expect("a request"), from),
                3 => {
                    let other_handle = |_: &mut Envelope, handle: &mut Vec<u8>| handle.push(b'0');
                    // With the right id it would end the attempt, so it comes from another port.
                    let forged = answer(request, FALSE_DATA, other_handle).expect("a request");
                    sockets.other_port.send_to(&forged, from)
                }
                // The right answer to a question before, late; and to this one.
                4 => match earlier.front().filter(|earlier| earlier.is_late()) {
                    Some(earlier) => sockets.main.send_to(&earlier.answer, earlier.from),
                    None => continue,
                },
                _ => match earlier.back() {
                    Some(earlier) => sockets.main.send_to(&earlier.answer, from),
                    None => continue,
                },
            };
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The answer to `request` with one value, after `change` of its envelope and handle.
pub(crate) fn answer(
    request: &[u8],
    data: &[u8],
    change: impl FnOnce(&mut Envelope, &mut Vec<u8>),
) -> Option<Vec<u8>> {
    let (mut envelope, rest) = Envelope::split(request).ok()?;
    let message = Message::decode(rest).ok()?;
    let Ok(Body::Request(Request::Resolution(query))) = message.decode_body(envelope.version) else {
        return None;
    };
    let (mut handle, mut storage) = (query.handle.to_vec(), Vec::new());
    change(&mut envelope, &mut handle);
    let values = Values::build([Value::new(1, b"URL", data)], &mut storage);
    let response = Response::Answer(QueryAnswer { handle: &handle, values });
    let reply = Reply { code: ResponseCode::SUCCESS, digest: None, response };
    MessageBuf::reply(&envelope, &message.header, &reply).unsigned().ok()
}
