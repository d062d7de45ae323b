//! Finds the service that is responsible for a handle, and queries it. RFC 3650 section 4, RFC 3651
//! section 5.1.
//!
//! A [`lookup::Lookup`] is a state machine without socket, clock or source of randomness. Its
//! driver supplies the time, moves the bytes it wants to send, and reports the result. [`driver`]
//! has one for blocking sockets and one for tokio (feature `tokio`).
//!
//! - [`mod@reference`]: the forms in which people write handles.
//! - [`bootstrap`]: the global service, and services that are known beforehand.
//! - [`service`], [`plan`], [`times`]: which sites a record names, and which server of which site
//!   is asked first.
//! - [`exchange`]: one request to one server: retries, fragments, and whether the answer is
//!   believed.
//! - [`raw_exchange`]: one message to one server, and the answer as it arrived. [`http_answer`]:
//!   answers of HTTP.
//! - [`lookup`]: one question, from the global service down. [`trace`]: the steps of a lookup.
//!   [`namespace`]: what else is known of its prefix.
//! - [`cache`], [`flight`]: answers by their time to live, and one request for many askers.
//! - [`open_session`], [`session`]: sessions with servers, which authenticate from the second
//!   request on, and those that lookups share.
//! - [`identity`], [`administration`]: identities, and operations of administrators on one server.
//! - [`allowances`]: exceptions for old servers and for servers without sessions, each allowed by
//!   name.
//! - [`signature`]: signed values, up to the trusted keys. [`mod@refresh`]: renewing the global
//!   service when all of it is signed. [`renewal`]: when that is due.
//!
//! The driver for blocking sockets takes a question and returns the answer:
//!
//! ```no_run
//! use handle_client::bootstrap::Root;
//! use handle_client::lookup::LookupOptions;
//! use handle_client::{BlockingDriver, Client, Question};
//! use std::sync::Arc;
//!
//! let root = Root::read(&std::fs::read("bootstrap_handles")?)?;
//! let mut driver = BlockingDriver::new(Arc::new(Client::new(root)));
//! let question = Question::all("10.1045/july95-arms");
//! let answer = driver.resolve(&question, &LookupOptions::default()).outcome?;
//! println!("{}: {} values", answer.code, answer.values().len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A program with its own sockets drives the state machine itself:
//!
//! ```
//! use handle_client::bootstrap::Root;
//! use handle_client::lookup::{LookupOptions, LookupTarget};
//! use handle_client::plan::ServerTarget;
//! use handle_client::{Client, ClockReading, Lookup, Question};
//! use handle_proto::data::site::InterfaceProtocol;
//! use std::sync::Arc;
//!
//! let server = ServerTarget::at("127.0.0.1:2641".parse()?, InterfaceProtocol::UDP);
//! let options =
//!     LookupOptions { target: LookupTarget::Servers(vec![server]), ..LookupOptions::default() };
//! let client = Arc::new(Client::new(Root::default()));
//! let mut now = ClockReading { ms: 0, unix_s: 1_700_000_000 };
//! // A real program passes numbers that are hard to guess.
//! let (question, random) = (Question::all("10.1045/x"), Box::new(|| 4711));
//! let mut lookup = Lookup::new(client, question, options, random, now);
//!
//! // Send every datagram of the transmit to its target, and report what comes back.
//! let (exchange, transmit) = lookup.poll_transmit(now).expect("a request is due");
//! assert_eq!(transmit.target.address.port(), 2641);
//! assert!(lookup.is_under_way(exchange));
//!
//! // Without an answer, time is all that passes: the server is asked again, and finally given up.
//! while let Some(deadline_ms) = lookup.poll_timeout() {
//!     now.ms = deadline_ms;
//!     lookup.handle_timeout(now);
//!     while lookup.poll_transmit(now).is_some() {}
//! }
//! assert!(lookup.take_outcome().expect("the lookup has ended").is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Design
//!
//! - **A lookup holds no socket**, so thousands of simulated worlds of false, silent and circular
//!   services run in seconds (`lookup/simulation.rs`), and a fuzz target can send a lookup
//!   anything. At most one request is under way, and one more where IPv6 and IPv4 race, so every
//!   bound is a count.
//! - **HTTP and TLS are states of an exchange, not of a driver.** `httparse` and rustls work on
//!   bytes, so both drivers know connections only, and the simulation speaks HTTP too.
//! - **A cache hit touches the table and one line behind it.** A line of the table has seven
//!   pointers and a byte of each name, where general tables keep these apart and read two lines
//!   (measured: a fifth less time). An answer is one allocation. It is identified by 128 bits of a
//!   keyed hash instead of a name that would lie elsewhere, and eviction scans the table instead of
//!   keeping a queue.
//! - **RC 3 and 301 lead to the next site** and count only when no site is left. Deployed clients
//!   take both as final; another site may be less busy or have newer data, and asking it is
//!   bounded.
//! - **A UDP port is used for at most 32 requests**, and replaced after five seconds and after
//!   silence. It is connected to one server and has to be guessed together with the request id. One
//!   port for each request would cost four system calls in addition to the two of the exchange.
//! - **With certification, every record on the way is requested with it**, so that keys come from
//!   verified records. The first key is in the bootstrap file.
//! - **A session belongs to the identity object, not to its name.** A new session is shared once a
//!   challenge was answered in it, and one at a time is set up with a server.
//! - **Counts end circular referrals**, not a list of visited services: two services may refer to
//!   each other for different reasons. Only the search for the service of a prefix by way of itself
//!   is refused at once.
//! - **A connection is reused where the server has been seen to keep it.** Deployed servers close
//!   after one answer, and the end arrives later than the answer. A change outside a session uses a
//!   connection only after a second answer on it. A lost request is repeated if it changes nothing,
//!   or if it is in a session, as the same bytes: a server that has read it refuses the copy by its
//!   number (505), and the change is reported as in doubt.
//! - **A refused session ends the request.** A refusal needs no signature, so anybody can forge
//!   one. `--no-sessions` allows going on. Only `administration/outgoing.rs` turns requests into
//!   messages, and it refuses one with secrets outside an encrypted session.
#![forbid(unsafe_code)]

pub mod administration;
pub mod allowances;
pub mod answer;
pub mod bootstrap;
pub mod cache;
pub mod driver;
pub mod exchange;
pub mod failures;
pub mod flight;
pub mod http_answer;
pub mod identity;
#[cfg(feature = "tls")]
pub mod key_verifier;
pub mod lookup;
pub mod names;
pub mod namespace;
pub mod open_session;
pub mod plan;
pub mod question;
pub mod raw_exchange;
pub mod reference;
pub mod refresh;
pub mod renewal;
pub mod replication;
pub mod service;
pub mod session;
pub mod signature;
pub mod sockets;
#[cfg(test)]
mod testing;
pub mod times;
pub mod trace;

pub use allowances::Allowances;
pub use answer::LookupAnswer;
pub use cache::SharedAnswer;
pub use driver::BlockingDriver;
#[cfg(feature = "tokio")]
pub use driver::asynchronous::AsyncDriver;
pub use lookup::{Client, Lookup, LookupError};
pub use question::Question;

/// The caller's clock, read once for each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClockReading {
    /// Milliseconds of a monotonic clock with an arbitrary origin.
    pub ms: u64,
    /// Unix time in seconds.
    pub unix_s: u32,
}

/// A source of random numbers. Request ids are made from it, so it must be unpredictable.
pub type RandomSource = Box<dyn FnMut() -> u32 + Send>;
