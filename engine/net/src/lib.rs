//! Batches of UDP datagrams on one thread and one socket, and TCP connections beside them.
//!
//! - A [`Datapath`] returns all datagrams that are ready as one [`Inbox`], and sends one [`Outbox`]
//!   at a time. Nothing is allocated for a datagram, and a received datagram is not copied after
//!   the kernel wrote it.
//! - Where the kernel supports it, datagrams of one peer arrive and leave in trains (`UDP_GRO`,
//!   `UDP_SEGMENT`), which cost little more than one datagram.
//! - There are two datapaths with one contract and one test suite: `io_uring` (Linux 6.1 and later)
//!   and `recvmmsg`/`sendmmsg`. [`open`] probes, picks one and returns the reason.
//! - A socket on a wildcard address answers from the address to which the request was sent: the
//!   [`Peer`] of a received datagram contains it.
//! - Connections are served on the same thread, from the same wait, if [`SocketOptions::streams`]
//!   is set.
//! - A full outbox refuses datagrams; datagrams that the kernel refuses or drops are counted.
//!
//! This crate does not interpret the bytes.
//!
//! ```
//! use handle_net::{DatapathChoice, Peer, SocketOptions, open};
//! use std::time::Duration;
//!
//! let options = SocketOptions::new("127.0.0.1:0".parse()?);
//! let mut server = open(DatapathChoice::Portable, &options)?.path;
//! let mut client = open(DatapathChoice::Portable, &options)?.path;
//!
//! let mut send = |peer, text: &[u8]| {
//!     let write = |buffer: &mut [u8]| {
//!         buffer[..text.len()].copy_from_slice(text);
//!         text.len()
//!     };
//!     client.outbox().push(peer, text.len(), write).expect("the outbox has capacity");
//!     client.flush()
//! };
//! assert_eq!(send(Peer::to(server.local_addr()?), b"question")?.sent, 1);
//!
//! // One wait returns a batch. Answers leave to the peer of the datagram that they answer.
//! let batch = server.wait(Duration::from_secs(5))?;
//! for datagram in batch.inbox.iter() {
//!     for segment in datagram.segments() {
//!         assert_eq!(segment, b"question");
//!         batch.outbox.push(datagram.peer, 6, |buffer| {
//!             buffer[..6].copy_from_slice(b"answer");
//!             6
//!         })?;
//!     }
//! }
//! assert_eq!(server.flush()?.sent, 1);
//! assert_eq!(client.wait(Duration::from_secs(5))?.inbox.get(0).bytes, b"answer");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Design
//!
//! - **Connections share the wait of a worker, not its batch.** Events of connections come after
//!   the datagrams of the same wait, so a batch of datagrams is answered as if there were no
//!   connections. Sending to a connection is a plain system call on both datapaths: it carries the
//!   answers to a whole receive, and no buffer has to outlive the call. The portable path uses
//!   `epoll` for connections but `poll` for the datagram socket, which `epoll` would charge for
//!   each datagram.
//! - **IPv4 datagrams are never fragmented** (`IP_PMTUDISC_PROBE`). They are short enough, and the
//!   kernel then does not number them, which makes every datagram a tenth cheaper.
//! - **Answers leave by (peer, length) over the whole batch**, one `UDP_SEGMENT` send each; a
//!   datagram whose length is unique becomes the shorter end of a longer train. The order of
//!   answers to one peer is therefore not kept. A train has at most 64 segments and 65,440 bytes,
//!   beyond which devices would split it early. A refused train is sent one by one and counted, and
//!   trains pause for a while.
//! - **Receive buffers are as long as a train**, 64 KiB each: io_uring's incremental buffers
//!   truncate a datagram where one ends. Only the pages in use take memory, and starts are
//!   staggered over the cache.
//! - **`kernel_drops` reads `SO_MEMINFO`** instead of `SO_RXQ_OVFL` control messages: it is exact
//!   at any time and needs no control message on sockets with a specific address.

#![deny(unsafe_op_in_unsafe_fn)]

mod batch;
mod control;
mod cores;
mod datapath;
mod flush_report;
mod open;
mod options;
mod outbox;
mod portable;
mod socket;
mod streams;
mod trains;
mod uring;
mod waker;

pub use batch::{Batch, Datagram, Inbox, Peer};
pub use cores::{pin_to_core, usable_cores};
pub use datapath::{DatagramPath, Datapath, DatapathKind, StreamPath, TrainSupport};
pub use flush_report::FlushReport;
pub use open::{DatapathChoice, OpenedDatapath, UnknownChoice, bind, open, open_on};
pub use options::{SocketOptions, StreamOptions};
pub use outbox::{Outbox, OutboxFull};
pub use socket::{leave_port, share_port};
pub use streams::{
    ConnectionGone, StreamBatch, StreamConnections, StreamEvent, StreamId, StreamInbox, bind_listener,
    close_listener,
};
pub use waker::Waker;
