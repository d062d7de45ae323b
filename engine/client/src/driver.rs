//! Blocking sockets for lookups: one thread, one question at a time.

use crate::exchange::{AttemptError, Transmit};
use crate::flight::{Outcome, Place};
use crate::lookup::{Client, Lookup, LookupError, Options};
use crate::plan::{Preferences, Purpose, Target, plan};
use crate::trace::Event;
use crate::{Now, Question};
use handle_proto::Handle;
use handle_proto::data::site::InterfaceProtocol;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Most bytes of one datagram, or of one read from a connection.
const ROOM: usize = 1 << 16;

/// Asks questions with blocking sockets. Each thread has its own; what they know they share.
#[derive(Debug)]
pub struct Driver {
    client: Arc<Client>,
    room: Vec<u8>,
}

/// The socket of the exchange that is under way.
#[derive(Debug)]
enum Way {
    Datagrams(UdpSocket),
    Connection(TcpStream),
}

/// What came of a question, and the steps that led to it.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The answer, or why there is none.
    pub outcome: Outcome,
    /// The steps, where they were to be written down.
    pub events: Vec<Event>,
}

/// The clock of all drivers of this process.
#[must_use]
pub fn now() -> Now {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    let since = BEGAN.get_or_init(Instant::now).elapsed();
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now {
        ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        unix_s: u32::try_from(unix.as_secs()).unwrap_or(u32::MAX),
    }
}

fn random() -> u32 {
    u32::from_be_bytes(handle_auth::random())
}

impl Driver {
    /// A driver for lookups of `client`.
    #[must_use]
    pub fn new(client: Arc<Client>) -> Self {
        Self { client, room: vec![0; ROOM] }
    }

    /// Asks a question, and waits for what comes of it.
    ///
    /// What is in the cache is not asked for, and what another thread asks meanwhile is waited for, unless
    /// `options` say whom to ask, who asks, to follow aliases, or to write steps down.
    pub fn resolve(&mut self, question: &Question, options: &Options) -> Resolved {
        let plain = Options::default();
        let is_plain = options.use_cache
            && options.identity.is_none()
            && !options.trace
            && options.aliases_max == plain.aliases_max
            && !options.service_only
            && matches!(options.whom, crate::lookup::Whom::Responsible)
            && question.is_cacheable();
        if !is_plain {
            return self.ask(question, options);
        }
        if let Some(answer) = self.client.cache.get(question, now()) {
            return Resolved { outcome: Ok(answer), events: vec![] };
        }
        let client = Arc::clone(&self.client);
        match client.flights.join(question) {
            Place::Lead(lead) => {
                let resolved = self.ask(question, options);
                lead.land(resolved.outcome.clone());
                resolved
            }
            Place::Follow(flight) => match flight.wait(Duration::from_millis(client.limits.patience_ms)) {
                Some(outcome) => Resolved { outcome, events: vec![] },
                None => self.ask(question, options),
            },
        }
    }

    fn ask(&mut self, question: &Question, options: &Options) -> Resolved {
        let client = Arc::clone(&self.client);
        let mut lookup = Lookup::new(client, question.clone(), options.clone(), Box::new(random), now());
        let outcome = self.drive(&mut lookup);
        Resolved { outcome: outcome.map(Arc::new), events: lookup.events().to_vec() }
    }

    /// The servers that are responsible for `handle`, for `purpose` and over TCP, in the order in which they are to be
    /// asked: one of each site of the service. With `certified`, records that are not signed say nothing about it.
    ///
    /// # Errors
    /// When the service is not known, or has no server for this.
    pub fn servers(
        &mut self,
        handle: &[u8],
        purpose: Purpose,
        certified: bool,
    ) -> Result<Vec<Target>, LookupError> {
        let mut question = Question::all(handle);
        question.wants.certified = certified;
        let options = Options { service_only: true, ..Options::default() };
        let client = Arc::clone(&self.client);
        let mut lookup = Lookup::new(client, question, options, Box::new(random), now());
        let outcome = self.drive(&mut lookup);
        // Whose servers did not answer is known all the same.
        if let Err(error) = outcome
            && !error.is_of_the_servers_of(handle)
        {
            return Err(error);
        }
        let preferences =
            Preferences { protocols: vec![InterfaceProtocol::TCP], ..self.client.preferences.clone() };
        let times = &self.client.times;
        let plan = plan(lookup.service(), Handle(handle), purpose, &preferences, times, now(), &mut random);
        match plan.is_empty() {
            true => Err(LookupError::NoServer { handle: handle.to_vec() }),
            false => Ok(plan.into()),
        }
    }

    /// Moves the bytes of a lookup until it has an outcome.
    ///
    /// # Errors
    /// As the lookup says.
    pub fn drive(&mut self, lookup: &mut Lookup) -> Result<crate::Answer, LookupError> {
        let mut way: Option<(u64, Way)> = None;
        loop {
            if let Some(outcome) = lookup.take_outcome() {
                return outcome;
            }
            if let Some((number, transmit)) = lookup.poll_transmit(now()) {
                let known = way.take().filter(|(known, _)| *known == number);
                let patience = patience(lookup);
                match send(known.map(|(_, way)| way), &transmit, patience) {
                    Ok(opened) => way = Some((number, opened)),
                    Err(error) => {
                        lookup.handle_failure(now(), number, error);
                        continue;
                    }
                }
            }
            let patience = patience(lookup);
            match &mut way {
                Some((number, way)) => self.receive(lookup, *number, way, patience),
                None => std::thread::sleep(patience),
            }
            lookup.handle_timeout(now());
        }
    }

    /// Waits for bytes, no longer than `patience`.
    fn receive(&mut self, lookup: &mut Lookup, number: u64, way: &mut Way, patience: Duration) {
        if patience.is_zero() {
            return;
        }
        let received = match way {
            Way::Datagrams(socket) => {
                socket.set_read_timeout(Some(patience)).and_then(|()| socket.recv(&mut self.room))
            }
            Way::Connection(stream) => {
                stream.set_read_timeout(Some(patience)).and_then(|()| stream.read(&mut self.room))
            }
        };
        match (received, way) {
            (Ok(0), Way::Connection(_)) => lookup.handle_failure(now(), number, AttemptError::Ended),
            (Ok(len), Way::Connection(_)) => lookup.handle_stream(now(), number, &self.room[..len]),
            (Ok(len), Way::Datagrams(_)) => lookup.handle_datagram(now(), number, &self.room[..len]),
            (Err(error), _) if is_late(&error) || error.kind() == ErrorKind::Interrupted => {}
            (Err(_), Way::Connection(_)) => lookup.handle_failure(now(), number, AttemptError::Ended),
            (Err(_), Way::Datagrams(_)) => lookup.handle_failure(now(), number, AttemptError::Unreachable),
        }
    }
}

/// How long may be waited, rounded up, so that the deadline has passed when it is over.
fn patience(lookup: &Lookup) -> Duration {
    let left_ms = lookup.poll_timeout().unwrap_or_default().saturating_sub(now().ms);
    Duration::from_millis(left_ms)
}

fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Sends what is to go out, over a socket that is known or a new one.
fn send(known: Option<Way>, transmit: &Transmit, patience: Duration) -> Result<Way, AttemptError> {
    let address = transmit.target.address;
    match known {
        Some(Way::Datagrams(socket)) => send_datagrams(socket, transmit),
        _ if transmit.target.protocol == InterfaceProtocol::UDP => {
            let any: IpAddr = match address {
                SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            // A new port for each exchange: whoever would answer falsely has to guess it. Connected, so that
            // nobody else is heard, and a port where nobody listens is told of at once.
            let socket = UdpSocket::bind((any, 0)).map_err(|_| AttemptError::Unreachable)?;
            socket.connect(address).map_err(|_| AttemptError::Unreachable)?;
            send_datagrams(socket, transmit)
        }
        _ => {
            let late = |error: std::io::Error| match is_late(&error) {
                true => AttemptError::Silence,
                false => AttemptError::Unreachable,
            };
            let mut stream =
                TcpStream::connect_timeout(&address, patience.max(Duration::from_millis(1))).map_err(late)?;
            let _ = stream.set_nodelay(true);
            let _ = stream.set_write_timeout(Some(patience.max(Duration::from_millis(1))));
            for message in &transmit.datagrams {
                stream.write_all(message).map_err(|_| AttemptError::Ended)?;
            }
            Ok(Way::Connection(stream))
        }
    }
}

fn send_datagrams(socket: UdpSocket, transmit: &Transmit) -> Result<Way, AttemptError> {
    for datagram in &transmit.datagrams {
        socket.send(datagram).map_err(|_| AttemptError::Unreachable)?;
    }
    Ok(Way::Datagrams(socket))
}
