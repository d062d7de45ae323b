//! Workers: they answer requests over UDP and TCP, from a published set and from a cache. What
//! `handled` and `handle-cache` have in common, which add their settings and their inputs.
//!
//! - [`config`]: the configuration, checked before anything starts.
//! - [`site`]: the site record and this server's place in it.
//! - [`live`]: the served set, replaced between batches.
//! - [`worker`]: a worker thread: waits for a batch, answers it and flushes the answers.
//! - [`slow`]: work that must not run on a worker: signatures, challenges and their answers.
//! - [`forward`]: requests that `handle-admin` answers.
//! - [`cache`]: what a caching server adds, which answers from records of other services.
//! - [`extension`]: what a process adds: threads, commands, status and metrics.
//! - `dispatch`: where the outcome of each request goes.
//! - `udp`, [`tcp`]: requests over both transports, on the same core.
//! - [`rate_limit`]: limits on the datagrams sent to each peer.
//! - [`counters`]: counters for every datagram, by reason.
//! - [`control`]: the commands of the control socket.
//! - [`latency`], [`sources`]: answer times, and the busiest source networks.
//! - [`query_log`]: a log line for each answer, or for a sample.
//! - [`observe`]: metrics and health over HTTP.
//! - `settings`: the settings in force, and which of them a reload can change.
//! - [`watchdog`]: notifications for the watchdog of a service manager.
//! - [`templates`]: values computed for handles that are not stored.
//! - [`server`]: starts all of these parts and stops them.
//! - [`lifetime`]: what a process does until a signal or a command stops it.
//!
//! # Example
//!
//! A set with one record is published, served and asked.
//!
//! ```
//! use handle_proto::wire::list::{Indexes, Strings};
//! use handle_proto::wire::query::Query;
//! use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Request, Response};
//! use handle_proto::{OpCode, OpFlags, Value};
//! use handle_worker::{Config, Server};
//! use handle_snapshot::set::storage::create_directory;
//! use handle_snapshot::{Builder, HomedPrefixes, LayerOptions, SetPublisher};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! let set = directory.path().join("set");
//! create_directory(&set)?;
//! let options = LayerOptions { seed: 1, folds: true, created_unix_ms: 0 };
//! SetPublisher::open(&set)?.publish_base(0, |file, temp_dir| {
//!     let mut homed = HomedPrefixes::default();
//!     homed.add(b"10.1045");
//!     let mut builder = Builder::new(temp_dir, options).homed(homed);
//!     builder.add(0, b"10.1045/july95-arms", [Value::new(1, b"URL", b"https://example.org/arms")])?;
//!     builder.finish(file)
//! })?;
//!
//! let listen = vec!["127.0.0.1:0".parse()?];
//! let server = Server::start(&Config { snapshot: set, listen, workers: 1, ..Config::default() })?;
//!
//! let query = Query { handle: b"10.1045/JULY95-ARMS", indexes: Indexes::EMPTY, types: Strings::EMPTY };
//! let header = Header::request(OpCode::RESOLUTION, OpFlags::PLAIN_REQUEST, 0);
//! let request = MessageBuf::request(&Envelope::request(1), &header, &Request::Resolution(query));
//! let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
//! socket.send_to(&request.unsigned()?, server.addresses()[0])?;
//! let mut datagram = [0; 512];
//! let len = socket.recv(&mut datagram)?;
//!
//! let (envelope, message) = Envelope::split(&datagram[..len]).unwrap();
//! let message = Message::decode(message).unwrap();
//! let Ok(Body::Reply(reply)) = message.decode_body(envelope.version) else { panic!("a reply") };
//! let Response::Answer(answer) = reply.response else { panic!("an answer") };
//! assert_eq!(answer.values.iter().next().unwrap().data, b"https://example.org/arms");
//! server.stop()?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod cache;
mod clock;
pub mod config;
pub mod control;
pub mod counters;
mod dispatch;
pub mod extension;
pub mod forward;
pub mod inputs;
pub mod latency;
pub mod lifetime;
pub mod live;
pub mod observe;
pub mod query_log;
pub mod rate_limit;
mod reload;
pub mod server;
pub mod sessions;
mod settings;
pub mod site;
pub mod slow;
mod sockets;
pub mod sources;
pub mod state;
pub mod status;
pub mod tcp;
mod telemetry;
pub mod templates;
#[cfg(test)]
mod tests;
mod udp;
pub mod verification;
pub mod wakers;
pub mod watchdog;
pub mod worker;
pub mod worker_info;
mod worker_parts;

pub use config::Config;
pub use handle_daemon::{privileges, server_key};
pub use server::Server;
