//! The listeners of the workers.

use crate::config::Config;
use handle_daemon::listen::ListenError;
use handle_daemon::takeover::{Predecessor, SocketKind};
use socket2::{Domain, SockRef, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};

/// Opens one listener for each worker. They share the port, so that the kernel distributes
/// connections.
///
/// # Errors
/// When another process uses the port, or the kernel refuses the address.
pub fn bind(
    address: SocketAddr,
    workers_count: usize,
    backlog: u32,
) -> Result<Vec<StdListener>, ListenError> {
    let refused = |error| ListenError::Refused(address, error);
    // Without sharing first: another process of this user would otherwise share the port unnoticed.
    let alone = open(address, false, backlog).map_err(refused)?;
    let mut address = address;
    // With port 0 the kernel chooses a port, and the workers share it.
    address.set_port(alone.local_addr().map_err(refused)?.port());
    drop(alone);
    (0..workers_count).map(|_| open(address, true, backlog).map_err(refused)).collect()
}

fn open(address: SocketAddr, shares: bool, backlog: u32) -> io::Result<StdListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shares)?;
    if address.ip().is_unspecified() && address.is_ipv6() {
        // The socket serves IPv4 as well.
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    if shares {
        listen(&socket, backlog)?;
    }
    Ok(socket.into())
}

fn listen(socket: &Socket, backlog: u32) -> io::Result<()> {
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))
}

/// Which connections a listener accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    /// Those to an address of `listen`.
    Plain,
    /// Those to an address of `tls.client_certificates.listen`.
    Certificates,
}

/// A listener of a worker.
#[derive(Debug)]
pub struct WorkerListener {
    pub(crate) socket: StdListener,
    pub(crate) kind: ListenerKind,
}

/// The listeners of all workers.
#[derive(Debug)]
pub struct WorkerListeners {
    /// The listeners of each worker. Workers may share a socket.
    workers: Vec<Vec<WorkerListener>>,
    /// Each socket once: the worker and the position of its listener.
    distinct: Vec<(usize, usize)>,
    addresses: Vec<(ListenerKind, SocketAddr)>,
}

impl WorkerListeners {
    /// Opens the addresses of `config` for so many workers: with the sockets of another process if
    /// it has some for an address.
    ///
    /// All sockets of an address are taken, and no others are bound beside them: a listener that is
    /// closed resets the connections in its queue, also if the start of this process fails.
    ///
    /// # Errors
    /// When another process uses the port, or the kernel refuses the address.
    pub fn open(
        config: &Config,
        workers_count: usize,
        mut from: Option<&mut Predecessor>,
    ) -> Result<Self, ListenError> {
        let workers = (0..workers_count).map(|_| Vec::new()).collect();
        let mut opened = Self { workers, distinct: Vec::new(), addresses: Vec::new() };
        let plain = config.listen.iter().map(|address| (ListenerKind::Plain, *address));
        let certificates = config.tls.client_certificates.listen.iter();
        let certificates = certificates.map(|address| (ListenerKind::Certificates, *address));
        for (kind, address) in plain.chain(certificates) {
            let taken = from.as_deref_mut().into_iter().flat_map(|from| {
                std::iter::from_fn(|| from.take(SocketKind::Tcp, address)).collect::<Vec<_>>()
            });
            let mut sockets: Vec<StdListener> = taken.map(StdListener::from).collect();
            for socket in &sockets {
                // The other process may have had another setting.
                listen(&SockRef::from(socket), config.limits.backlog)
                    .map_err(|error| ListenError::Refused(address, error))?;
            }
            if sockets.is_empty() {
                sockets = bind(address, workers_count, config.limits.backlog)?;
            }
            opened.distribute(sockets, kind).map_err(|error| ListenError::Refused(address, error))?;
        }
        Ok(opened)
    }

    /// Gives the sockets of an address to the workers: several to each, or one to several.
    fn distribute(&mut self, sockets: Vec<StdListener>, kind: ListenerKind) -> io::Result<()> {
        let workers_count = self.workers.len();
        let address = sockets.first().map(StdListener::local_addr).transpose()?;
        self.addresses.extend(address.map(|address| (kind, address)));
        for at in sockets.len()..workers_count {
            let socket = sockets[at % sockets.len()].try_clone()?;
            self.workers[at].push(WorkerListener { socket, kind });
        }
        for (at, socket) in sockets.into_iter().enumerate() {
            let worker = at % workers_count;
            self.distinct.push((worker, self.workers[worker].len()));
            self.workers[worker].push(WorkerListener { socket, kind });
        }
        Ok(())
    }

    /// Each socket once, with a worker that has it.
    pub fn distinct(&self) -> impl Iterator<Item = (usize, &StdListener)> {
        self.distinct.iter().map(|&(worker, at)| (worker, &self.workers[worker][at].socket))
    }

    /// The addresses of a kind, with the ports that the kernel chose.
    #[must_use]
    pub fn addresses(&self, kind: ListenerKind) -> Vec<SocketAddr> {
        self.addresses.iter().filter(|(of, _)| *of == kind).map(|(_, address)| *address).collect()
    }

    /// The listeners of each worker.
    #[must_use]
    pub fn into_workers(self) -> Vec<Vec<WorkerListener>> {
        self.workers
    }
}
