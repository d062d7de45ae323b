//! The contract of a datapath, and the probe that picks one and says why.

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

/// Batches of datagrams in and out, through one socket. It stays on the thread that opened it.
pub trait Datapath {
    /// Which one it is.
    fn kind(&self) -> DatapathKind;

    /// The address that the socket is bound to, with its port.
    ///
    /// # Errors
    ///
    /// Those of the kernel.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Waits at most `patience` for a datagram or something about a connection, then returns all that is ready,
    /// up to the size of a batch; for connections see [`streams`](Self::streams). Datagrams that came as a train
    /// are returned as one, see [`Datagram`](crate::Datagram).
    ///
    /// The inbox is empty after events of connections only, a timeout, a signal or a [`wake`](Waker::wake). `Duration::ZERO` does not
    /// wait.
    ///
    /// # Errors
    ///
    /// Only when the path is of no more use; what the network reports about single datagrams is none.
    fn wait(&mut self, patience: Duration) -> io::Result<Batch<'_>>;

    /// What the next [`flush`](Self::flush) sends.
    fn outbox(&mut self) -> &mut Outbox;

    /// Sends all of the outbox and empties it, what goes to one peer in trains if that is enabled. The order
    /// of what goes to one peer is kept only without trains.
    ///
    /// A train that the kernel refuses is sent again one by one, and counted.
    /// A datagram that the kernel refuses is counted, and does not keep others from being sent. When
    /// the send queue is full it waits a few milliseconds; then the rest is dropped and counted.
    ///
    /// # Errors
    ///
    /// Only when the path is of no more use.
    fn flush(&mut self) -> io::Result<FlushReport>;

    /// Takes nothing more from the socket, from now on: another process may go on with it.
    ///
    /// What was received before is still handed out by [`wait`](Self::wait): an empty inbox then says that
    /// it was all. Sending goes on as before, and so do wakers.
    ///
    /// # Errors
    ///
    /// Only when the path is of no more use.
    fn stop_receiving(&mut self) -> io::Result<()>;

    /// Datagrams that the kernel dropped since the path was opened, because the queue of our socket
    /// was full.
    ///
    /// Exact when it is called, at the cost of one short system call; 0 where the kernel cannot say.
    fn kernel_drops(&self) -> u64;

    /// Accepts connections from `listener` from now on.
    ///
    /// # Errors
    ///
    /// `Unsupported` unless the path was opened with [`SocketOptions::streams`].
    fn listen(&mut self, listener: TcpListener) -> io::Result<()>;

    /// Accepts no connections any more. Another process may go on with the listeners, and
    /// [`close_listener`](crate::close_listener) ends them for all.
    fn stop_listening(&mut self);

    /// What the last [`wait`](Self::wait) brought from connections, and the connections. It may also be asked
    /// for when that was nothing, and after [`flush`](Self::flush).
    fn streams(&mut self) -> Option<StreamBatch<'_>>;

    /// What ends a [`wait`](Self::wait) from another thread. All of a path are the same.
    fn waker(&self) -> Waker;

    /// Whether datagrams come and go in trains.
    fn trains(&self) -> TrainSupport;
}

/// Which way datagrams may be in trains: as asked for, if the kernel knows trains at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrainSupport {
    /// They are received in trains (`UDP_GRO`, Linux 5.0).
    pub received: bool,
    /// They are sent in trains (`UDP_SEGMENT`, Linux 4.18).
    pub sent: bool,
}

/// What became of the outbox. The sum of `sent`, `failed` and `would_block` is what was in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushReport {
    /// Datagrams that the kernel took.
    pub sent: u32,
    /// Datagrams that the kernel refused.
    pub failed: u32,
    /// Datagrams that were dropped because the send queue stayed full.
    pub would_block: u32,
    /// How many of the sends were trains: of two datagrams or more.
    pub trains: u32,
    /// Trains that the kernel refused; their datagrams were sent again one by one, and count as such.
    pub trains_refused: u32,
    /// Why the last of `failed` was refused, as an error number.
    pub os_error: Option<i32>,
}

impl FlushReport {
    /// Longest that one flush waits for room in the send queue. A queue that a link drains has room
    /// within a millisecond; one that nobody drains must not hold up answers to others.
    pub(crate) const PATIENCE_MAX: Duration = Duration::from_millis(10);

    pub(crate) fn refuse(&mut self, count: u32, error: i32) {
        self.failed += count;
        self.os_error = Some(error);
    }
}

/// Which datapath.
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
    /// `io_uring` where it works, else the portable one.
    #[default]
    Auto,
    /// `io_uring`, or an error that says what is missing.
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

/// A name that is no [`DatapathChoice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownChoice;

impl fmt::Display for UnknownChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("write auto, uring or portable")
    }
}

impl Error for UnknownChoice {}

/// An open path, and why it is this one.
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

/// Binds a socket and opens a path on it, for the thread that calls.
///
/// # Errors
///
/// Those of [`bind`](crate::bind) and [`open_on`].
pub fn open(choice: DatapathChoice, options: &SocketOptions) -> io::Result<OpenedDatapath> {
    options.check()?;
    open_on(socket::bind(options)?, choice, options)
}

/// Opens a path on a bound socket, for the thread that calls.
///
/// Of `options`, what is about the address and the socket is not used.
///
/// # Errors
///
/// `InvalidInput` for sizes that make no sense; those of the kernel. With [`DatapathChoice::Uring`] also when
/// `io_uring` does not work here.
pub fn open_on(
    socket: UdpSocket,
    choice: DatapathChoice,
    options: &SocketOptions,
) -> io::Result<OpenedDatapath> {
    options.check()?;
    // Waiting is ours to bound: `io_uring` does not wait at all on a socket that says not to.
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
        None => "portable: asked for".to_owned(),
        Some(error) => format!("portable: {error}"),
    };
    Ok(OpenedDatapath { path: Box::new(PortablePath::open(socket, waker, options)?), reason })
}

/// Keeps the calling thread on one core, counted from 0.
///
/// # Errors
///
/// `InvalidInput` if there is no such core, or this process may not run on it.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        let message = format!("core {core} is beyond {}", CpuSet::MAX_CPU - 1);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

/// The cores that the calling thread may run on, counted from 0, in ascending order.
///
/// In a container they need not begin with 0.
///
/// # Errors
///
/// Those of the kernel.
pub fn usable_cores() -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_as_they_are_shown() {
        for choice in DatapathChoice::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        for name in ["", "Auto", "io_uring", "auto "] {
            assert_eq!(name.parse::<DatapathChoice>(), Err(UnknownChoice), "{name}");
        }
    }

    #[test]
    fn usable_cores_can_be_pinned_to_and_are_all_there_are() {
        let cores = usable_cores().unwrap();
        assert!(!cores.is_empty());
        // Threads of their own, which take the pinning with them.
        for core in cores {
            let left = std::thread::spawn(move || pin_to_core(core).and_then(|()| usable_cores()));
            assert_eq!(left.join().unwrap().unwrap(), [core]);
        }
    }
}
