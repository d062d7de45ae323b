//! The contract of a datapath, and the probe that chooses one and reports the reason.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::batch::Batch;
use crate::outbox::Outbox;
use crate::portable::PortablePath;
use crate::socket::{self, SocketOptions};
use crate::streams::StreamBatch;
use crate::uring::UringPath;
use crate::waker::Waker;

/// Receives and sends batches of datagrams through one socket. A datapath stays on the thread that
/// opened it.
pub trait Datapath {
    /// The kind of this datapath.
    fn kind(&self) -> DatapathKind;

    /// The address and port that the socket is bound to.
    ///
    /// # Errors
    ///
    /// Errors of the kernel.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Waits at most `patience` for a datagram or an event of a connection, then returns everything
    /// that is ready, up to the size of a batch; for connections see [`streams`](Self::streams).
    /// Datagrams that came as a train are returned as one, see [`Datagram`](crate::Datagram).
    ///
    /// The inbox is empty after events of connections only, a timeout, a signal or a
    /// [`wake`](Waker::wake). `Duration::ZERO` does not wait.
    ///
    /// # Errors
    ///
    /// Only when the path is unusable. What the network reports about single datagrams is not an
    /// error.
    fn wait(&mut self, patience: Duration) -> io::Result<Batch<'_>>;

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

    /// Accepts connections from `listener` from now on.
    ///
    /// # Errors
    ///
    /// `Unsupported` unless the path was opened with [`SocketOptions::streams`].
    fn listen(&mut self, listener: TcpListener) -> io::Result<()>;

    /// Stops accepting connections. Another process can continue with the listeners;
    /// [`close_listener`](crate::close_listener) closes them for all processes.
    fn stop_listening(&mut self);

    /// The connections, and their events from the last [`wait`](Self::wait). It may be called when
    /// there were none, and after [`flush`](Self::flush).
    fn streams(&mut self) -> Option<StreamBatch<'_>>;

    /// A waker, which ends a [`wait`](Self::wait) from another thread. All wakers of a path are the
    /// same.
    fn waker(&self) -> Waker;

    /// Whether datagrams are received and sent in trains.
    fn trains(&self) -> TrainSupport;
}

/// The directions in which trains are used: as configured, if the kernel supports trains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrainSupport {
    /// Datagrams are received in trains (`UDP_GRO`, Linux 5.0).
    pub received: bool,
    /// Datagrams are sent in trains (`UDP_SEGMENT`, Linux 4.18).
    pub sent: bool,
}

/// The result of a flush. The sum of `sent`, `failed` and `would_block` is the number of datagrams
/// in the outbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushReport {
    /// Datagrams that the kernel accepted.
    pub sent: u32,
    /// Datagrams that the kernel refused.
    pub failed: u32,
    /// Datagrams that were dropped because the send queue stayed full.
    pub would_block: u32,
    /// Sends that were trains of two datagrams or more.
    pub trains: u32,
    /// Trains that the kernel refused. Their datagrams were sent again one by one, and are counted
    /// as such.
    pub trains_refused: u32,
    /// The error number of the last datagram in `failed`.
    pub os_error: Option<i32>,
}

impl FlushReport {
    /// Longest time that one flush waits for room in the send queue. A queue that a link drains has
    /// room within a millisecond; a queue that is not drained must not delay answers to others.
    pub(crate) const PATIENCE_MAX: Duration = Duration::from_millis(10);

    pub(crate) fn refuse(&mut self, count: u32, error: i32) {
        self.failed += count;
        self.os_error = Some(error);
    }
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

/// Which datapath to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DatapathChoice {
    /// `io_uring` if it works, otherwise the portable datapath.
    #[default]
    Auto,
    /// `io_uring`, or an error that names what is missing.
    Uring,
    /// `recvmmsg` and `sendmmsg`.
    Portable,
}

impl DatapathChoice {
    const ALL: [Self; 3] = [Self::Auto, Self::Uring, Self::Portable];
}

impl fmt::Display for DatapathChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Portable => "portable",
        })
    }
}

impl FromStr for DatapathChoice {
    type Err = UnknownChoice;

    fn from_str(name: &str) -> Result<Self, UnknownChoice> {
        Self::ALL.into_iter().find(|choice| choice.to_string() == name).ok_or(UnknownChoice)
    }
}

/// The text is not the name of a [`DatapathChoice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownChoice;

impl fmt::Display for UnknownChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected auto, uring or portable")
    }
}

impl Error for UnknownChoice {}

/// An open datapath, and the reason why it was chosen.
pub struct OpenedDatapath {
    /// The path.
    pub path: Box<dyn Datapath>,
    /// One sentence for the log.
    pub reason: String,
}

impl fmt::Debug for OpenedDatapath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opened({:?})", self.reason)
    }
}

/// Binds a socket and opens a datapath on it, for the calling thread.
///
/// # Errors
///
/// Errors of [`bind`](crate::bind) and [`open_on`].
pub fn open(choice: DatapathChoice, options: &SocketOptions) -> io::Result<OpenedDatapath> {
    options.check()?;
    open_on(socket::bind(options)?, choice, options)
}

/// Opens a datapath on a bound socket, for the calling thread.
///
/// The parts of `options` about the address and the socket are not used.
///
/// # Errors
///
/// `InvalidInput` for invalid sizes; those of the kernel. With [`DatapathChoice::Uring`] also when
/// `io_uring` does not work on this system.
pub fn open_on(
    socket: UdpSocket,
    choice: DatapathChoice,
    options: &SocketOptions,
) -> io::Result<OpenedDatapath> {
    options.check()?;
    // The path bounds waits itself, and `io_uring` does not wait at all on a non-blocking socket.
    socket.set_nonblocking(false)?;
    let socket = Rc::new(socket);
    let waker = Waker::new()?;
    let error = match choice {
        DatapathChoice::Portable => None,
        DatapathChoice::Auto | DatapathChoice::Uring => {
            match UringPath::open(Rc::clone(&socket), waker.clone(), options) {
                Ok(path) => {
                    let reason = "io_uring: kernel supports multishot receive and buffer rings".to_owned();
                    return Ok(OpenedDatapath { path: Box::new(path), reason });
                }
                Err(error) if choice == DatapathChoice::Uring => return Err(error),
                Err(error) => Some(error),
            }
        }
    };
    let reason = match error {
        None => "portable: requested".to_owned(),
        Some(error) => format!("portable: {error}"),
    };
    Ok(OpenedDatapath { path: Box::new(PortablePath::open(socket, waker, options)?), reason })
}

/// Keeps the calling thread on one core, counted from 0.
///
/// # Errors
///
/// `InvalidInput` if the core does not exist, or this process may not run on it.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        let message =
            format!("cannot pin to core {core}: the highest core number is {}", CpuSet::MAX_CPU - 1);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

/// The cores that the calling thread may run on, counted from 0, in ascending order.
///
/// In a container they need not start at 0.
///
/// # Errors
///
/// Errors of the kernel.
pub fn usable_cores() -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_parse_as_printed() {
        for choice in DatapathChoice::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        for name in ["", "Auto", "io_uring", "auto "] {
            assert_eq!(name.parse::<DatapathChoice>(), Err(UnknownChoice), "{name}");
        }
    }

    #[test]
    fn exactly_the_usable_cores_can_be_pinned_to() {
        let cores = usable_cores().unwrap();
        assert!(!cores.is_empty());
        // Each core is tried in a thread of its own, so that the pinning ends with it.
        for core in cores {
            let left = std::thread::spawn(move || pin_to_core(core).and_then(|()| usable_cores()));
            assert_eq!(left.join().unwrap().unwrap(), [core]);
        }
    }
}
