//! Batches of UDP datagrams in and out, on one thread, through one socket; and TCP connections beside them.
//!
//! - A [`Datapath`] hands over all that is ready as one [`Inbox`], and sends one [`Outbox`] at a time.
//!   Nothing is allocated for a datagram, and a received one is not copied after the kernel wrote it.
//! - Where the kernel can, datagrams of one peer come and go in trains, which cost it little more than one
//!   datagram does: `UDP_GRO` and `UDP_SEGMENT`.
//! - There are two, with one contract and one test suite: `io_uring` (Linux 6.1 and later) and
//!   `recvmmsg`/`sendmmsg`. [`open`] probes, picks one and says why.
//! - A socket on a wildcard address answers from the address that was asked: the [`Peer`] of a received
//!   datagram remembers it.
//! - Connections are served on the same thread, from the same wait, where [`SocketOptions::streams`] asks for them.
//! - What does not fit is refused to the caller; what the kernel refuses or loses is counted.
//!
//! What the bytes mean is the caller's business.

#![deny(unsafe_op_in_unsafe_fn)]

mod batch;
mod control;
mod datapath;
mod outbox;
mod portable;
mod socket;
mod streams;
mod trains;
mod uring;
mod waker;

pub use batch::{Batch, Datagram, Inbox, Peer};
pub use datapath::{
    Datapath, DatapathChoice, DatapathKind, FlushReport, OpenedDatapath, TrainSupport, UnknownChoice, open,
    open_on, pin_to_core, usable_cores,
};
pub use outbox::{Outbox, OutboxFull};
pub use socket::{SocketOptions, bind, leave_port};
pub use streams::{
    ConnectionGone, StreamBatch, StreamConnections, StreamEvent, StreamId, StreamInbox, StreamOptions,
    bind_listener, close_listener,
};
pub use waker::Waker;
