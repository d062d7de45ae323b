//! Drivers that move bytes for lookups: with blocking sockets here, one thread and one question at
//! a time; with sockets of tokio in `asynchronous`. Both drive the same state machines and share
//! the state of a [`Client`].

#[cfg(feature = "tokio")]
pub mod asynchronous;
#[cfg(all(test, feature = "tls"))]
mod loopback;
#[cfg(all(test, feature = "tls"))]
mod tests;

use crate::exchange::{AttemptError, Transmit};
use crate::flight::{FlightOutcome, FlightRole};
use crate::lookup::{Client, Lookup, LookupError, LookupOptions, LookupTarget};
use crate::plan::{InterfacePurpose, Preferences, ServerTarget, plan};
use crate::refresh::RenewalGuard;
use crate::sockets::{Datagrams, Sockets};
use crate::trace::LookupEvent;
use crate::{ClockReading, Question, RandomSource};
use handle_auth::clock::now_unix_s;
use handle_proto::Handle;
use handle_proto::data::site::InterfaceProtocol;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::RefCell;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::os::fd::AsFd as _;
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Most bytes of one datagram, or of one read from a connection.
const BUFFER_LEN: usize = 1 << 16;

/// Time for all servers together to receive that sessions have ended.
const PARTING: Duration = Duration::from_millis(300);

/// The shortest wait.
const MOMENT: Duration = Duration::from_millis(1);

/// Resolves questions with blocking sockets. Each thread has a driver of its own; they share a
/// [`Client`].
#[derive(Debug)]
pub struct BlockingDriver {
    client: Arc<Client>,
    buffer: Vec<u8>,
    sockets: Sockets,
}

/// The socket of an exchange under way.
#[derive(Debug)]
struct ExchangeSocket {
    number: u64,
    socket: Socket,
    /// Bytes to send over a connection.
    outgoing: Vec<u8>,
}

#[derive(Debug)]
enum Socket {
    Datagrams(Datagrams),
    /// A connection, and whether it is established.
    Connection {
        stream: TcpStream,
        is_there: bool,
    },
}

/// The outcome of a question, and the steps that led to it.
#[derive(Clone, Debug)]
pub struct ResolvedQuestion {
    /// The answer, or the reason why there is none.
    pub outcome: FlightOutcome,
    /// The steps, if tracing was requested.
    pub events: Vec<LookupEvent>,
}

impl ResolvedQuestion {
    /// An outcome from the cache or of another caller, with the handle spelt as in this question.
    fn from_flight(outcome: FlightOutcome, question: &Question) -> Self {
        Self { outcome: outcome.map(|answer| answer.spelt(&question.handle)), events: vec![] }
    }

    fn of(outcome: Result<crate::LookupAnswer, LookupError>, lookup: &Lookup) -> Self {
        Self { outcome: outcome.map(Into::into), events: lookup.events().to_vec() }
    }
}

/// The clock of all drivers of this process.
#[must_use]
pub fn now() -> ClockReading {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    let since = BEGAN.get_or_init(Instant::now).elapsed();
    ClockReading { ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX), unix_s: now_unix_s() }
}

/// An unpredictable random number from the system. Many are fetched at once: each request takes
/// several, and a system call for each would take as long as sending the request.
fn random() -> u32 {
    const FETCHED: usize = 256;
    thread_local! {
        static LEFT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    LEFT.with_borrow_mut(|left| {
        if left.is_empty() {
            left.extend_from_slice(&handle_auth::random::<FETCHED>());
        }
        let mut number = [0; 4];
        // Used bytes are overwritten, because they may still be in a request.
        for (byte, left) in number.iter_mut().zip(left.iter_mut().rev()) {
            *byte = std::mem::take(left);
        }
        left.truncate(left.len().saturating_sub(number.len()));
        u32::from_be_bytes(number)
    })
}

fn lookup(client: &Arc<Client>, question: &Question, options: &LookupOptions) -> Lookup {
    Lookup::new(Arc::clone(client), question.clone(), options.clone(), Box::new(random), now())
}

/// Whether the answer may be shared with other callers, and be taken from them.
fn is_shared(question: &Question, options: &LookupOptions) -> bool {
    options.use_cache
        && options.keeps_answer
        && options.identity.is_none()
        && !options.trace
        && !options.service_only
        && options.aliases_max == LookupOptions::default().aliases_max
        && matches!(options.target, LookupTarget::Responsible | LookupTarget::Referral(_))
        && question.is_cacheable()
}

/// The longest time to wait, rounded up, so that the deadline has passed afterwards.
fn answer_timeout(lookup: &Lookup) -> Duration {
    let left_ms = lookup.poll_timeout().unwrap_or_default().saturating_sub(now().ms);
    Duration::from_millis(left_ms)
}

impl BlockingDriver {
    /// A driver for lookups of `client`.
    #[must_use]
    pub fn new(client: Arc<Client>) -> Self {
        Self { client, buffer: vec![0; BUFFER_LEN], sockets: Sockets::default() }
    }

    /// Resolves a question, and waits for the outcome.
    ///
    /// An answer in the cache is used, and a question that another thread is asking is waited for,
    /// unless `options` name servers or an identity, follow aliases, or request a trace. If a
    /// renewal of the global service is due ([`Renewal`](crate::renewal::Renewal)), another thread
    /// makes it afterwards.
    pub fn resolve(&mut self, question: &Question, options: &LookupOptions) -> ResolvedQuestion {
        let resolved = self.resolve_alone(question, options);
        if let Some(renewing) = RenewalGuard::begin(&self.client, now()) {
            let mut driver = Self::new(Arc::clone(&self.client));
            // If no thread can be started, the next question tries again.
            let _ =
                std::thread::Builder::new().name("renewal".to_owned()).spawn(move || driver.renew(renewing));
        }
        resolved
    }

    fn resolve_alone(&mut self, question: &Question, options: &LookupOptions) -> ResolvedQuestion {
        if !is_shared(question, options) {
            return self.ask(question, options);
        }
        let client = Arc::clone(&self.client);
        let deadline = Instant::now() + Duration::from_millis(client.limits.timeout_ms);
        loop {
            if let Some(answer) = client.cache.get(question, now()) {
                return ResolvedQuestion::from_flight(Ok(answer), question);
            }
            let flight = match client.flights.join(question) {
                FlightRole::Lead(lead) => {
                    let resolved = self.ask(question, options);
                    lead.land(resolved.outcome.clone());
                    return resolved;
                }
                FlightRole::Follow(flight) => flight,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            match flight.wait(left) {
                Some(outcome) => return ResolvedQuestion::from_flight(outcome, question),
                None if left.is_zero() => return self.ask(question, options),
                // The leader is gone without an outcome, so another caller has to ask.
                None => {}
            }
        }
    }

    /// Renews the records of the global service if that is due, and waits for the outcome.
    ///
    /// # Errors
    /// When the records stay as they are, or the new ones could not be written.
    pub fn renew_if_due(&mut self) -> Option<Result<(), crate::refresh::RefreshError>> {
        let renewing = RenewalGuard::begin(&self.client, now())?;
        Some(self.renew(renewing))
    }

    fn renew(&mut self, mut renewing: RenewalGuard) -> Result<(), crate::refresh::RefreshError> {
        while let Some(question) = renewing.poll_question() {
            let outcome = self.resolve_alone(&question, &RenewalGuard::options()).outcome;
            renewing.handle_answer(question, outcome.ok());
        }
        renewing.finish()
    }

    /// Resolves a question as [`resolve`](Self::resolve) does, and passes each step to `see` as it
    /// is done. The lookup is made in full, whatever others are asking.
    pub fn watch(
        &mut self,
        question: &Question,
        options: &LookupOptions,
        see: &mut dyn FnMut(&LookupEvent),
    ) -> ResolvedQuestion {
        let options = LookupOptions { trace: true, ..options.clone() };
        let mut lookup = lookup(&self.client, question, &options);
        let outcome = self.drive_seen(&mut lookup, see);
        ResolvedQuestion::of(outcome, &lookup)
    }

    /// Ends the sessions of all drivers of this client, and notifies the servers, which would
    /// otherwise keep the sessions until they expire. Notifications over connections may take 300
    /// ms, and nothing is sent twice: a server that misses its notification lets the session
    /// expire.
    pub fn end_sessions(&mut self) {
        let deadline = Instant::now() + PARTING;
        let mut ways = vec![];
        let endings = self.client.sessions.end(&mut (Box::new(random) as RandomSource), now());
        for (number, mut exchange) in (0..).zip(endings) {
            if let Some(transmit) = exchange.poll_transmit(now()) {
                // Unreachable servers are not notified.
                let _ = self.send(&mut ways, number, &transmit);
            }
        }
        // Datagrams have been sent.
        ways.retain(|way| matches!(way.socket, Socket::Connection { .. }));
        while !ways.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            // An interrupted wait is repeated; and bytes that can be sent are sent even after the
            // deadline.
            if let Some(ready) = ready(&ways, left) {
                let mut ready = ready.into_iter();
                ways.retain_mut(|way| !ready.next().unwrap_or(true) || way.says_more(&mut self.buffer));
            }
            if left.is_zero() {
                return;
            }
        }
    }

    fn ask(&mut self, question: &Question, options: &LookupOptions) -> ResolvedQuestion {
        let mut lookup = lookup(&self.client, question, options);
        let outcome = self.drive(&mut lookup);
        ResolvedQuestion::of(outcome, &lookup)
    }

    /// The servers that are responsible for `handle`, for `purpose` and over TCP, in the order in
    /// which to ask them: one of each site of the service, and at each address if only its name is
    /// known. With `certified`, records that are not signed are not used.
    ///
    /// # Errors
    /// When the service is not known, has no server for this purpose, or none with an address.
    pub fn servers(
        &mut self,
        handle: &[u8],
        purpose: InterfacePurpose,
        certified: bool,
    ) -> Result<Vec<ServerTarget>, LookupError> {
        let mut question = Question::all(handle);
        question.wants.certified = certified;
        let options = LookupOptions { service_only: true, ..LookupOptions::default() };
        let client = Arc::clone(&self.client);
        let mut lookup = Lookup::new(client, question, options, Box::new(random), now());
        let outcome = self.drive(&mut lookup);
        // The servers are known even if they did not answer.
        if let Err(error) = outcome
            && !error.is_of_the_servers_of(handle)
        {
            return Err(error);
        }
        let known = self.client.preferences.of_origin(lookup.service_origin()).into_owned();
        let preferences = Preferences { protocols: vec![InterfaceProtocol::TCP], ..known };
        let times = &self.client.times;
        let plan = plan(lookup.service(), Handle(handle), purpose, &preferences, times, now(), &mut random);
        let (handle, attempts) = (handle.to_vec(), plan.len());
        let Some(server) = plan.back().map(|target| target.address) else {
            return Err(LookupError::NoServer { handle });
        };
        let servers: Vec<ServerTarget> =
            plan.into_iter().flat_map(|target| self.located(target, &preferences)).collect();
        match servers.is_empty() {
            true => Err(LookupError::AllFailed { handle, attempts, server, last: AttemptError::NoAddress }),
            false => Ok(servers),
        }
    }

    /// The server at its address, or at each address of its name if only that is known.
    fn located(&self, target: ServerTarget, preferences: &Preferences) -> Vec<ServerTarget> {
        let Some(name) = target.unresolved() else { return vec![target] };
        let client = &self.client;
        let addresses = client.names.get(name, now()).unwrap_or_else(|| {
            let found = addresses_of(name.to_owned(), Duration::from_millis(client.timeout.name_ms.into()));
            client.names.note(name, &found, now());
            found
        });
        target.at_each(&addresses, preferences)
    }

    /// Moves the bytes of a lookup until it has an outcome.
    ///
    /// # Errors
    /// Those of the lookup.
    pub fn drive(&mut self, lookup: &mut Lookup) -> Result<crate::LookupAnswer, LookupError> {
        self.drive_seen(lookup, &mut |_| ())
    }

    fn drive_seen(
        &mut self,
        lookup: &mut Lookup,
        see: &mut dyn FnMut(&LookupEvent),
    ) -> Result<crate::LookupAnswer, LookupError> {
        let mut ways: Vec<ExchangeSocket> = vec![];
        let mut seen_count = 0;
        loop {
            lookup.events()[seen_count..].iter().for_each(&mut *see);
            seen_count = lookup.events().len();
            for way in ways.extract_if(.., |way| !lookup.is_under_way(way.number)) {
                self.give_back(way);
            }
            if let Some(outcome) = lookup.take_outcome() {
                return outcome;
            }
            if let Some((number, name)) = lookup.poll_name() {
                let addresses = addresses_of(name, answer_timeout(lookup));
                lookup.handle_addresses(now(), number, &addresses);
            } else if let Some((number, transmit)) = lookup.poll_transmit(now()) {
                if let Err(error) = self.send(&mut ways, number, &transmit) {
                    lookup.handle_failure(now(), number, error);
                }
            } else {
                self.wait(lookup, &mut ways);
                lookup.handle_timeout(now());
            }
        }
    }

    /// Keeps the socket of a finished exchange for the next one.
    fn give_back(&mut self, way: ExchangeSocket) {
        if let Socket::Datagrams(datagrams) = way.socket {
            self.sockets.give(datagrams);
        }
    }

    /// Sends outgoing bytes, over the socket of their exchange or a new one.
    fn send(
        &mut self,
        ways: &mut Vec<ExchangeSocket>,
        number: u64,
        transmit: &Transmit,
    ) -> Result<(), AttemptError> {
        let known = ways.iter().position(|way| way.number == number);
        let way = match known {
            Some(at) => &mut ways[at],
            None => {
                let address = transmit.target.address;
                let socket = match transmit.target.protocol {
                    InterfaceProtocol::UDP => self.sockets.take(address).map(Socket::Datagrams),
                    _ => connection(address),
                };
                let socket = socket.map_err(|_| AttemptError::Unreachable)?;
                ways.push(ExchangeSocket { number, socket, outgoing: vec![] });
                ways.last_mut().expect("pushed just now")
            }
        };
        match &mut way.socket {
            Socket::Datagrams(datagrams) => {
                datagrams.send(&transmit.datagrams).map_err(|_| AttemptError::Unreachable)
            }
            Socket::Connection { .. } => {
                transmit.datagrams.iter().for_each(|bytes| way.outgoing.extend_from_slice(bytes));
                Ok(())
            }
        }
    }

    /// Waits for an event on a socket, at most until the deadline of the lookup, and passes it to
    /// the lookup.
    fn wait(&mut self, lookup: &mut Lookup, ways: &mut [ExchangeSocket]) {
        let timeout = answer_timeout(lookup);
        if timeout.is_zero() {
            return;
        }
        // Usually one datagram is waited for, which takes one system call.
        if let [ExchangeSocket { number, socket: Socket::Datagrams(datagrams), .. }] = ways {
            let received = datagrams.receive(&mut self.buffer, timeout);
            return hear(lookup, *number, received, &self.buffer);
        }
        let Some(ready) = ready(ways, timeout) else { return };
        for (way, _) in ways.iter_mut().zip(ready).filter(|(_, is_ready)| *is_ready) {
            way.turn(lookup, &mut self.buffer);
        }
    }
}

/// Waits at most `timeout`. Returns which sockets are ready, or `None` if the wait was
/// interrupted.
fn ready(ways: &[ExchangeSocket], timeout: Duration) -> Option<Vec<bool>> {
    let timeout = Timespec::try_from(timeout).ok()?;
    let mut sockets: Vec<PollFd<'_>> = ways.iter().map(ExchangeSocket::poll_fd).collect();
    poll(&mut sockets, Some(&timeout)).ok()?;
    Some(sockets.iter().map(|socket| !socket.revents().is_empty()).collect())
}

/// Passes on a datagram, or the error of receiving it.
fn hear(lookup: &mut Lookup, number: u64, received: std::io::Result<usize>, buffer: &[u8]) {
    match received {
        Ok(len) => lookup.handle_datagram(now(), number, &buffer[..len]),
        Err(error) if is_early(&error) => {}
        Err(_) => lookup.handle_failure(now(), number, AttemptError::Unreachable),
    }
}

/// Whether the call would block.
fn is_early(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// The addresses of a name, from the system's resolver; none if that takes longer than `timeout`.
fn addresses_of(name: String, timeout: Duration) -> Vec<IpAddr> {
    // The system's resolver cannot be interrupted, so a thread waits for it as long as it takes.
    let (sender, receiver) = mpsc::channel();
    let look_up = move || {
        let found = (name.as_str(), 0_u16).to_socket_addrs().map(|found| found.map(|at| at.ip()).collect());
        // The receiver may have stopped waiting.
        let _ = sender.send(found.unwrap_or_default());
    };
    match std::thread::Builder::new().name("names".to_owned()).spawn(look_up) {
        Ok(_) => receiver.recv_timeout(timeout).unwrap_or_default(),
        Err(_) => vec![],
    }
}

/// Starts to connect to `address`, without waiting.
fn connection(address: SocketAddr) -> std::io::Result<Socket> {
    let stream = socket(address, socket2::Type::STREAM)?;
    let _ = stream.set_tcp_nodelay(true);
    Ok(Socket::Connection { stream: stream.into(), is_there: false })
}

fn socket(address: SocketAddr, kind: socket2::Type) -> std::io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), kind.nonblocking(), None)?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {
            Err(error)
        }
        _ => Ok(socket),
    }
}

impl ExchangeSocket {
    /// The readiness to wait for.
    fn poll_fd(&self) -> PollFd<'_> {
        match &self.socket {
            Socket::Datagrams(datagrams) => PollFd::from_borrowed_fd(datagrams.as_fd(), PollFlags::IN),
            Socket::Connection { stream, is_there } => {
                let has_outgoing = !is_there || !self.outgoing.is_empty();
                let out = if has_outgoing { PollFlags::OUT } else { PollFlags::empty() };
                PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN | out)
            }
        }
    }

    /// Sends as much as possible over a connection. Returns whether the server has neither answered
    /// nor closed it yet.
    fn says_more(&mut self, buffer: &mut [u8]) -> bool {
        let Socket::Connection { stream, .. } = &mut self.socket else { return false };
        let written = if self.outgoing.is_empty() { Ok(0) } else { stream.write(&self.outgoing) };
        match written {
            Ok(len) => drop(self.outgoing.drain(..len)),
            Err(error) if is_early(&error) => {}
            Err(_) => return false,
        }
        stream.read(buffer).is_err_and(|error| is_early(&error))
    }

    /// Moves the bytes that can be moved now.
    fn turn(&mut self, lookup: &mut Lookup, buffer: &mut [u8]) {
        let number = self.number;
        if let Socket::Connection { stream, is_there: is_there @ false } = &mut self.socket {
            if !matches!(stream.take_error(), Ok(None)) {
                return lookup.handle_failure(now(), number, AttemptError::Unreachable);
            }
            *is_there = true;
            lookup.handle_connected(number);
        }
        match &mut self.socket {
            // The datagram is there, so this does not wait.
            Socket::Datagrams(datagrams) => hear(lookup, number, datagrams.receive(buffer, MOMENT), buffer),
            Socket::Connection { stream, .. } => {
                if !self.outgoing.is_empty() {
                    match stream.write(&self.outgoing) {
                        Ok(len) => drop(self.outgoing.drain(..len)),
                        Err(error) if is_early(&error) => {}
                        Err(_) => return lookup.handle_failure(now(), number, AttemptError::Ended),
                    }
                }
                match stream.read(buffer) {
                    Ok(len @ 1..) => lookup.handle_stream(now(), number, &buffer[..len]),
                    Err(error) if is_early(&error) => {}
                    Ok(0) | Err(_) => lookup.handle_failure(now(), number, AttemptError::Ended),
                }
            }
        }
    }
}
