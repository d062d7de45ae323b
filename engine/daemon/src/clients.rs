//! Clients of a listener that is not for the protocol: the control socket and the scrape endpoint.
//! Each client has a thread, their number is bounded, and further clients wait in the kernel.

use crate::permits::CountedPermit;
use crate::shutdown::Shutdown;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Pause after a failed accept, and interval at which a client's thread looks whether to stop.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A listener that does not block, and the streams that it accepts.
pub(crate) trait Listener: AsFd {
    /// A connection to a client.
    type Stream: Send + 'static;

    /// Accepts a client, whose stream blocks.
    fn accept(&self) -> io::Result<Self::Stream>;
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    fn accept(&self) -> io::Result<UnixStream> {
        let (stream, _) = self.accept()?;
        stream.set_nonblocking(false)?;
        Ok(stream)
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.accept()?;
        stream.set_nonblocking(false)?;
        Ok(stream)
    }
}

/// Accepts clients until `shutdown` has stopped, and runs `talk` for each in a thread called
/// `thread_name`.
///
/// `clients_max` is asked before each client: how many there may be at a time. When the process has
/// stopped, clients have `goodbye` to end.
pub(crate) fn serve_clients<L: Listener>(
    listener: &L,
    thread_name: &str,
    shutdown: &Shutdown,
    clients_max: impl Fn() -> usize,
    goodbye: Duration,
    talk: impl Fn(L::Stream) + Send + Sync + 'static,
) {
    let (clients, talk) = (Arc::new(AtomicUsize::new(0)), Arc::new(talk));
    // Strangers may take all descriptors of the process, when its operator needs this socket most.
    let mut reserve = File::open("/dev/null").ok();
    while !shutdown.is_stopped() {
        let Some(permit) = CountedPermit::take(Arc::clone(&clients), clients_max()) else {
            shutdown.poll(&mut [], Some(LOOK_INTERVAL));
            continue;
        };
        let stream = match listener.accept() {
            Ok(stream) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // While fewer clients are served than is allowed, only the listener matters.
                shutdown.wait_for(listener.as_fd(), None);
                continue;
            }
            // Out of descriptors, mostly: this client gets the one in reserve.
            Err(_) if reserve.take().is_some() => continue,
            Err(_) => {
                std::thread::sleep(LOOK_INTERVAL);
                continue;
            }
        };
        if reserve.is_none() {
            reserve = File::open("/dev/null").ok();
        }
        let talk = Arc::clone(&talk);
        let thread = std::thread::Builder::new().name(thread_name.to_owned()).spawn(move || {
            talk(stream);
            drop(permit);
        });
        if let Err(error) = thread {
            tracing::warn!(%error, "cannot start the thread {thread_name}");
        }
    }
    let since = Instant::now();
    while clients.load(Ordering::Acquire) > 0 && since.elapsed() < goodbye {
        std::thread::sleep(Duration::from_millis(1));
    }
}
