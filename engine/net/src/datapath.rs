//! The contract of a datapath, in two parts: its datagrams, and the connections beside them.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use crate::batch::Batch;
use crate::flush_report::FlushReport;
use crate::outbox::Outbox;
use crate::streams::{StreamBatch, no_streams};
use crate::waker::Waker;

/// Receives and sends batches of datagrams through one socket, with connections beside them. A
/// datapath stays on the thread that opened it.
pub trait Datapath: DatagramPath + StreamPath {}

impl<P: DatagramPath + StreamPath> Datapath for P {}

/// The datagrams of a datapath.
pub trait DatagramPath {
    /// The kind of this datapath.
    fn kind(&self) -> DatapathKind;

    /// The address and port that the socket is bound to.
    ///
    /// # Errors
    ///
    /// Errors of the kernel.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Waits at most `timeout` for a datagram or an event of a connection, then returns everything
    /// that is ready, up to the size of a batch; for connections see
    /// [`streams`](StreamPath::streams). Datagrams that came as a train are returned as one, see
    /// [`Datagram`](crate::Datagram).
    ///
    /// The inbox is empty after events of connections only, a timeout, a signal or a
    /// [`wake`](Waker::wake). `Duration::ZERO` does not wait.
    ///
    /// # Errors
    ///
    /// Only when the path is unusable. What the network reports about single datagrams is not an
    /// error.
    fn wait(&mut self, timeout: Duration) -> io::Result<Batch<'_>>;

    /// The datagrams for the next [`flush`](Self::flush).
    fn outbox(&mut self) -> &mut Outbox;

    /// Sends everything in the outbox and empties it. If trains are enabled, datagrams to one peer
    /// leave in trains, and then their order is not kept.
    ///
    /// If the kernel refuses a train, its datagrams are sent one by one and the refusal is counted.
    /// If the kernel refuses a datagram, it is counted and the others are still sent. If the send
    /// queue is full, the flush waits a few milliseconds; then the rest is dropped and counted.
    ///
    /// # Errors
    ///
    /// Only when the path is unusable.
    fn flush(&mut self) -> io::Result<FlushReport>;

    /// Stops receiving from the socket for good, so that another process can continue with it.
    ///
    /// [`wait`](Self::wait) still returns the datagrams that were received before; an empty inbox
    /// then means that there are no more. Sending and wakers work as before.
    ///
    /// # Errors
    ///
    /// Only when the path is unusable.
    fn stop_receiving(&mut self) -> io::Result<()>;

    /// Number of datagrams that the kernel dropped since the path was opened, because the queue of
    /// the socket was full.
    ///
    /// The number is exact at the time of the call and costs one short system call; it is 0 if the
    /// kernel does not provide it.
    fn kernel_drops(&self) -> u64;

    /// A waker, which ends a [`wait`](Self::wait) from another thread. All wakers of a path are the
    /// same.
    fn waker(&self) -> Waker;

    /// Whether datagrams are received and sent in trains.
    fn trains(&self) -> TrainSupport;
}

/// The connections of a datapath. A path that has none keeps these methods.
pub trait StreamPath {
    /// Accepts connections from `listener` from now on.
    ///
    /// # Errors
    ///
    /// `Unsupported` unless the path was opened with
    /// [`SocketOptions::streams`](crate::SocketOptions::streams).
    fn listen(&mut self, listener: TcpListener) -> io::Result<()> {
        let _ = listener;
        Err(no_streams())
    }

    /// Stops accepting connections. Another process can continue with the listeners;
    /// [`close_listener`](crate::close_listener) closes them for all processes.
    fn stop_listening(&mut self) {}

    /// The connections, and their events from the last [`wait`](DatagramPath::wait). It may be
    /// called when there were none, and after [`flush`](DatagramPath::flush).
    fn streams(&mut self) -> Option<StreamBatch<'_>> {
        None
    }
}

/// The directions in which trains are used: as configured, if the kernel supports trains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrainSupport {
    /// Datagrams are received in trains (`UDP_GRO`, Linux 5.0).
    pub received: bool,
    /// Datagrams are sent in trains (`UDP_SEGMENT`, Linux 4.18).
    pub sent: bool,
}

/// The kind of a datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DatapathKind {
    /// `io_uring`: multishot receive into provided buffers.
    Uring,
    /// `recvmmsg` and `sendmmsg`.
    Portable,
}

impl fmt::Display for DatapathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uring => "io_uring",
            Self::Portable => "portable",
        })
    }
}
