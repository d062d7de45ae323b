//! Batches of UDP datagrams in and out, on one thread, through one socket, and TCP connections
//! beside them.
//!
//! - A [`Datapath`] returns everything that is ready as one [`Inbox`], and sends one [`Outbox`] at
//!   a time. Nothing is allocated for a datagram, and a received datagram is not copied after the
//!   kernel wrote it.
//! - Where the kernel supports it, datagrams of one peer are received and sent in trains (`UDP_GRO`
//!   and `UDP_SEGMENT`), which cost the kernel little more than one datagram.
//! - There are two datapaths with one contract and one test suite: `io_uring` (Linux 6.1 and later)
//!   and `recvmmsg`/`sendmmsg`. [`open`] probes, chooses one and reports the reason.
//! - A socket on a wildcard address answers from the address that the request was sent to: the
//!   [`Peer`] of a received datagram has it.
//! - Connections are served on the same thread, from the same wait, if [`SocketOptions::streams`]
//!   enables them.
//! - The caller gets an error for what does not fit; what the kernel refuses or loses is counted.
//!
//! The crate does not interpret the bytes.

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
