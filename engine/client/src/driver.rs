//! Blocking sockets for lookups: one thread, one question at a time.

use crate::exchange::{AttemptError, Transmit};
use crate::flight::{Outcome, Place};
use crate::lookup::{Client, Lookup, LookupError, Options};
use crate::plan::{Preferences, Purpose, Target, plan};
use crate::sockets::{Datagrams, Sockets};
use crate::trace::Event;
use crate::{Now, Question};
use handle_proto::Handle;
use handle_proto::data::site::InterfaceProtocol;
use std::cell::RefCell;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Most bytes of one datagram, or of one read from a connection.
const ROOM: usize = 1 << 16;

/// Asks questions with blocking sockets. Each thread has its own; what they know they share.
#[derive(Debug)]
pub struct Driver {
    client: Arc<Client>,
    room: Vec<u8>,
    sockets: Sockets,
}

/// The socket of the exchange that is under way.
#[derive(Debug)]
enum Way {
    Datagrams(Datagrams),
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

/// A random number of the system's, hard to guess. So many are fetched at a time: each request takes several, and a call
/// for each of them takes as long as sending the request.
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
        // None is left behind where it was: it may be in a request still.
        for (byte, left) in number.iter_mut().zip(left.iter_mut().rev()) {
            *byte = std::mem::take(left);
        }
        left.truncate(left.len().saturating_sub(number.len()));
        u32::from_be_bytes(number)
    })
}

impl Driver {
    /// A driver for lookups of `client`.
    #[must_use]
    pub fn new(client: Arc<Client>) -> Self {
        Self { client, room: vec![0; ROOM], sockets: Sockets::default() }
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

    /// Asks a question as [`resolve`](Self::resolve) does, and shows each step to `see` when it is done. Whatever
    /// others ask meanwhile, it goes the whole way.
    pub fn watch(&mut self, question: &Question, options: &Options, see: &mut dyn FnMut(&Event)) -> Resolved {
        let options = Options { trace: true, ..options.clone() };
        let mut lookup = self.lookup(question, &options);
        let outcome = self.drive_seen(&mut lookup, see);
        Resolved { outcome: outcome.map(Arc::new), events: lookup.events().to_vec() }
    }

    fn ask(&mut self, question: &Question, options: &Options) -> Resolved {
        let mut lookup = self.lookup(question, options);
        let outcome = self.drive(&mut lookup);
        Resolved { outcome: outcome.map(Arc::new), events: lookup.events().to_vec() }
    }

    fn lookup(&self, question: &Question, options: &Options) -> Lookup {
        let client = Arc::clone(&self.client);
        Lookup::new(client, question.clone(), options.clone(), Box::new(random), now())
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
        self.drive_seen(lookup, &mut |_| ())
    }

    fn drive_seen(
        &mut self,
        lookup: &mut Lookup,
        see: &mut dyn FnMut(&Event),
    ) -> Result<crate::Answer, LookupError> {
        let mut way: Option<(u64, Way)> = None;
        let mut seen_count = 0;
        let mut see_new = |lookup: &Lookup| {
            lookup.events()[seen_count..].iter().for_each(&mut *see);
            seen_count = lookup.events().len();
        };
        loop {
            see_new(lookup);
            if let Some(outcome) = lookup.take_outcome() {
                self.give_back(way);
                return outcome;
            }
            if let Some((number, transmit)) = lookup.poll_transmit(now()) {
                see_new(lookup);
                let known = match way.take() {
                    Some((known, way)) if known == number => Some(way),
                    other => {
                        self.give_back(other);
                        None
                    }
                };
                let patience = patience(lookup);
                match self.send(known, &transmit, patience) {
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

    fn give_back(&mut self, way: Option<(u64, Way)>) {
        if let Some((_, Way::Datagrams(datagrams))) = way {
            self.sockets.give(datagrams);
        }
    }

    /// Sends what is to go out, over a socket that is known or another one.
    fn send(
        &mut self,
        known: Option<Way>,
        transmit: &Transmit,
        patience: Duration,
    ) -> Result<Way, AttemptError> {
        let address = transmit.target.address;
        if transmit.target.protocol == InterfaceProtocol::UDP {
            let mut datagrams = match known {
                Some(Way::Datagrams(datagrams)) => datagrams,
                _ => self.sockets.take(address).map_err(|_| AttemptError::Unreachable)?,
            };
            datagrams.send(&transmit.datagrams).map_err(|_| AttemptError::Unreachable)?;
            return Ok(Way::Datagrams(datagrams));
        }
        let late = |error: std::io::Error| match is_late(&error) {
            true => AttemptError::Silence,
            false => AttemptError::Unreachable,
        };
        let patience = patience.max(Duration::from_millis(1));
        let mut stream = TcpStream::connect_timeout(&address, patience).map_err(late)?;
        let _ = stream.set_nodelay(true);
        let _ = stream.set_write_timeout(Some(patience));
        for message in &transmit.datagrams {
            stream.write_all(message).map_err(|_| AttemptError::Ended)?;
        }
        Ok(Way::Connection(stream))
    }

    /// Waits for bytes, no longer than `patience`.
    fn receive(&mut self, lookup: &mut Lookup, number: u64, way: &mut Way, patience: Duration) {
        if patience.is_zero() {
            return;
        }
        let received = match way {
            Way::Datagrams(datagrams) => datagrams.receive(&mut self.room, patience),
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
