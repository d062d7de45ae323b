//! The sockets of the server: those of a process that is taken over, and new ones.

use crate::config::Config;
use crate::tcp;
use anyhow::Context as _;
use handle_daemon::listen::ListenError;
use handle_daemon::takeover::{Predecessor, SocketKind};
use handle_net::SocketOptions;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

/// The sockets of all workers. Workers of one address share its port.
pub(crate) struct WorkerSockets {
    /// A UDP socket for each worker, with the worker's number. Inherited ones come first.
    pub(crate) udp: Vec<(usize, UdpSocket)>,
    /// The listeners beside each socket of `udp`.
    pub(crate) tcp: Vec<Vec<TcpListener>>,
    /// How many sockets of `udp` are those of another process.
    pub(crate) inherited_count: usize,
}

impl WorkerSockets {
    /// Takes the sockets of `predecessor` that are bound to our addresses, and binds those that are
    /// missing. Requests queue from here on.
    ///
    /// # Errors
    /// The address that cannot be used, or the datapath.
    pub(crate) fn open(
        config: &Config,
        workers_count: usize,
        mut predecessor: Option<&mut Predecessor>,
    ) -> anyhow::Result<Self> {
        let mut udp = match &mut predecessor {
            Some(predecessor) => take_over(config, workers_count, predecessor)?,
            None => Vec::new(),
        };
        let inherited_count = udp.len();
        let chosen = bind_missing(config, workers_count, &mut udp)?;
        let tcp = bind_listeners(config, &udp, chosen, predecessor)?;
        Ok(Self { udp, tcp, inherited_count })
    }
}

/// Takes the sockets of another process that are bound to our addresses, each with its worker's
/// number.
fn take_over(
    config: &Config,
    workers_count: usize,
    from: &mut Predecessor,
) -> anyhow::Result<Vec<(usize, UdpSocket)>> {
    let workers = config.listen.iter().flat_map(|&listen| (0..workers_count).map(move |_| listen));
    let taken =
        workers.enumerate().filter_map(|(at, listen)| Some((at, from.take(SocketKind::Udp, listen)?.into())));
    let taken = taken.collect();
    // Check what may fail before a socket is opened that clients would use.
    let options = net_options(config, (Ipv4Addr::LOCALHOST, 0).into());
    handle_net::open(config.datapath.into(), &options).context("cannot open the datapath")?;
    Ok(taken)
}

/// Binds a socket for each worker that has none. Returns the listeners on ports that the kernel has
/// chosen.
fn bind_missing(
    config: &Config,
    workers_count: usize,
    sockets: &mut Vec<(usize, UdpSocket)>,
) -> anyhow::Result<Vec<TcpListener>> {
    let mut chosen = Vec::new();
    for (number, &listen) in config.listen.iter().enumerate() {
        let has = |at: &usize| sockets.iter().any(|(worker, _)| worker == at);
        let workers = number * workers_count..(number + 1) * workers_count;
        let missing: Vec<usize> = workers.filter(|at| !has(at)).collect();
        if !config.share_port && missing.len() == workers_count && listen.port() != 0 {
            wait_until_free(config, listen).map_err(|error| ListenError::Refused(listen, error))?;
        }
        let mut options = net_options(config, listen);
        for at in missing {
            let bound = if options.address.port() == 0 {
                bind_free_port(config, &options).map(|(socket, listener)| {
                    chosen.extend(listener);
                    socket
                })
            } else {
                handle_net::bind(&options)
            };
            let socket = bound.map_err(|error| ListenError::Refused(listen, error))?;
            // With port 0 the first socket chooses a port, and the others share it.
            options.address = socket.local_addr()?;
            sockets.push((at, socket));
        }
    }
    Ok(chosen)
}

/// Waits up to a second until no other process has `address` bound. The kernel closes the sockets
/// of a ring some milliseconds after a killed process is gone, and the service manager may restart
/// faster than that.
///
/// Workers share a port among themselves, so the kernel would let another process share it too.
fn wait_until_free(config: &Config, address: SocketAddr) -> io::Result<()> {
    const TIMEOUT: Duration = Duration::from_secs(1);
    const PAUSE: Duration = Duration::from_millis(20);
    let mut alone = net_options(config, address);
    alone.reuse_port = false;
    let begun = Instant::now();
    loop {
        let free =
            handle_net::bind(&alone).and_then(|_| tcp::worker::listen_alone(config, address).map(drop));
        match free {
            Err(error) if error.kind() == ErrorKind::AddrInUse && begun.elapsed() < TIMEOUT => {
                std::thread::sleep(PAUSE);
            }
            free => return free,
        }
    }
}

/// Returns listeners for the address of each UDP socket: those of another process, that of
/// `chosen`, or a new one.
///
/// All listeners of another process are taken, even if it had more workers: unlike a UDP socket, a
/// listener cannot be closed without resetting the connections in its queue.
fn bind_listeners(
    config: &Config,
    sockets: &[(usize, UdpSocket)],
    mut chosen: Vec<TcpListener>,
    from: Option<&mut Predecessor>,
) -> anyhow::Result<Vec<Vec<TcpListener>>> {
    let mut listeners: Vec<Vec<TcpListener>> = sockets.iter().map(|_| Vec::new()).collect();
    let addresses: Vec<SocketAddr> =
        sockets.iter().map(|(_, socket)| socket.local_addr()).collect::<Result<_, _>>()?;
    if let Some(from) = from.filter(|_| config.tcp.enabled) {
        let mut has_more = true;
        while std::mem::take(&mut has_more) {
            for (&address, listeners) in addresses.iter().zip(&mut listeners) {
                let taken = from.take(SocketKind::Tcp, address);
                has_more |= taken.is_some();
                listeners.extend(taken.map(TcpListener::from));
            }
        }
    }
    for (&address, listeners) in
        addresses.iter().zip(&mut listeners).filter(|(_, listeners)| listeners.is_empty())
    {
        let is_here = |listener: &TcpListener| listener.local_addr().is_ok_and(|at| at == address);
        listeners.extend(match chosen.iter().position(is_here) {
            Some(at) => Some(chosen.swap_remove(at)),
            None => {
                tcp::worker::listen(config, address).map_err(|error| ListenError::Refused(address, error))?
            }
        });
    }
    Ok(listeners)
}

/// Binds a UDP socket to a port that the kernel chooses, and a listener to the same port, unless
/// TCP is off. No other process has the port; from then on, the sockets of this one share it.
fn bind_free_port(config: &Config, options: &SocketOptions) -> io::Result<(UdpSocket, Option<TcpListener>)> {
    const TRIES_MAX: usize = 32;
    let mut tries = 0;
    loop {
        let socket = handle_net::bind(options)?;
        tries += 1;
        match tcp::worker::listen_alone(config, socket.local_addr()?) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && tries < TRIES_MAX => {}
            Err(error) => return Err(error),
            Ok(listener) => {
                listener.as_ref().map_or(Ok(()), handle_net::share_port)?;
                return Ok((socket, listener));
            }
        }
    }
}

/// The options of a socket of a worker.
pub(crate) fn net_options(config: &Config, address: SocketAddr) -> SocketOptions {
    let limits = &config.limits;
    let mut options = SocketOptions::new(address);
    options.reuse_port = true;
    options.batch_len = limits.batch_datagrams;
    options.batch_segments = limits.batch_segments;
    options.receive_trains = config.trains;
    options.send_trains = config.trains;
    options.outbox_datagrams = limits.outbox_datagrams;
    options.outbox_len = limits.outbox_bytes;
    options.socket_receive_buffer_len = limits.socket_receive_bytes;
    options.socket_send_buffer_len = limits.socket_send_bytes;
    options.streams = config.tcp.options();
    options
}
