//! Connections of the handle protocol: so many at a time, each message whole before it is answered, each wait with an end.
//!
//! RFC 3652 section 2.3: a connection is closed after an answer, unless the request asks to keep it.

use crate::config::TcpConfig;
use crate::operation::Refused;
use crate::server::Shared;
use crate::service::Replies;
use crate::service::reply::unreadable;
use crate::store::now_unix_ms;
use handle_proto::wire::Envelope;
use handle_proto::{OpCode, ResponseCode};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

/// Who is connected.
#[derive(Debug)]
pub struct Connections {
    open: Mutex<Open>,
    gone: Notify,
    /// Requests that may be worked on.
    work: Semaphore,
}

#[derive(Debug, Default)]
struct Open {
    connections_max: usize,
    per_source_max: usize,
    count: usize,
    of_source: HashMap<IpAddr, usize>,
}

impl Connections {
    /// Nobody is, yet.
    #[must_use]
    pub fn new(config: &TcpConfig) -> Self {
        let (connections_max, per_source_max) = (config.connections, config.connections_per_source);
        Self {
            open: Mutex::new(Open { connections_max, per_source_max, ..Open::default() }),
            gone: Notify::new(),
            work: Semaphore::new(config.requests),
        }
    }

    /// From now on so many may be; who is already there stays.
    pub fn set_limits(&self, config: &TcpConfig) {
        let mut open = self.open();
        (open.connections_max, open.per_source_max) = (config.connections, config.connections_per_source);
    }

    /// How many are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.open().count
    }

    /// Requests that are worked on now.
    #[must_use]
    pub fn working(&self, config: &TcpConfig) -> usize {
        config.requests.saturating_sub(self.work.available_permits())
    }

    /// Waits until nobody is, but not longer than `patience`.
    pub async fn none_left(&self, patience: Duration) {
        let none = async {
            loop {
                let gone = self.gone.notified();
                if self.count() == 0 {
                    return;
                }
                gone.await;
            }
        };
        if timeout(patience, none).await.is_err() {
            tracing::warn!(connections = self.count(), "connections are cut off");
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for `source`, if there is one.
    fn enter(&self, source: IpAddr) -> bool {
        let mut open = self.open();
        if open.count >= open.connections_max {
            return false;
        }
        let per_source_max = open.per_source_max;
        let of_source = open.of_source.entry(group(source)).or_default();
        if *of_source >= per_source_max {
            return false;
        }
        *of_source += 1;
        open.count += 1;
        true
    }

    fn leave(&self, source: IpAddr) {
        let mut open = self.open();
        open.count -= 1;
        if let Some(of_source) = open.of_source.get_mut(&group(source)) {
            *of_source -= 1;
            if *of_source == 0 {
                open.of_source.remove(&group(source));
            }
        }
        drop(open);
        self.gone.notify_one();
    }
}

/// One source: an IPv4 address, or a /64 of IPv6.
pub(crate) fn group(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip => ip,
    }
}

/// A place that is given back.
struct Place<'s>(&'s Shared, IpAddr);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.connections.leave(self.1);
    }
}

/// Binds a port that nobody else has.
///
/// # Errors
/// When somebody has, or it may not be bound.
pub fn listen(address: SocketAddr, backlog: u32) -> io::Result<std::net::TcpListener> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.ip().is_unspecified() && address.is_ipv6() {
        // Answers IPv4 as well.
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    bind(&socket, &address)?;
    listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// Accepts connections until the server stops.
pub async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut stopping = shared.stopping();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|&stops| stops) => return,
        };
        let (stream, source) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Too many open files, mostly: some of them will be closed.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let counters = &shared.service.counters;
        if !shared.connections.enter(source.ip()) {
            counters.connections_refused.inc();
            continue;
        }
        counters.connections.inc();
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let _place = Place(&shared, source.ip());
            if let Err(error) = talk(stream, source, &shared).await {
                tracing::debug!(%error, %source, "a connection went away");
            }
        });
    }
}

/// What came of waiting for a message.
enum Arrived {
    /// A whole one, envelope first.
    Message(Vec<u8>),
    /// The other side has nothing more to say.
    Nothing,
    /// Something that is no message, and why.
    Bad(Refused),
    /// The server stops.
    Stop,
}

async fn talk(mut stream: TcpStream, source: SocketAddr, shared: &Arc<Shared>) -> io::Result<()> {
    let config = shared.config();
    let tcp = &config.tcp;
    // Answers are whole when they are written.
    stream.set_nodelay(true)?;
    let mut is_first = true;
    loop {
        let message = match arrive(&mut stream, shared, is_first).await? {
            Arrived::Message(message) => message,
            Arrived::Nothing | Arrived::Stop => return Ok(()),
            Arrived::Bad(refused) => {
                shared.service.counters.answered(OpCode::RESERVED, refused.code);
                let bytes = unreadable(OpCode::RESERVED, &refused, unix_s());
                send(&mut stream, &bytes, shared).await?;
                return close(stream, tcp).await;
            }
        };
        is_first = false;
        let Some(replies) = work(message, source, shared).await else { return Ok(()) };
        send(&mut stream, &replies.first, shared).await?;
        let mut rest = replies.rest;
        while let Some(mut pages) = rest {
            let next = tokio::task::spawn_blocking(move || (pages.next_page(), pages)).await;
            let Ok((Some(page), pages)) = next else { break };
            send(&mut stream, &page, shared).await?;
            rest = Some(pages);
        }
        if !replies.keeps_connection || shared.is_draining() {
            return close(stream, tcp).await;
        }
    }
}

/// Answers a message on a thread that may wait; `None` when that met a bug, which the log shows.
async fn work(message: Vec<u8>, source: SocketAddr, shared: &Arc<Shared>) -> Option<Replies> {
    let _permit = shared.connections.work.acquire().await.ok()?;
    let service = Arc::clone(&shared.service);
    let answered = tokio::task::spawn_blocking(move || service.answer(&message, source)).await;
    if answered.is_err() {
        // Nothing is kept of a decision that was not made; a bug of the writer stops the process.
        shared.service.counters.bugs.inc();
    }
    answered.ok()
}

/// Waits for a message.
async fn arrive(stream: &mut TcpStream, shared: &Shared, is_first: bool) -> io::Result<Arrived> {
    const SHORT: Refused = Refused::new(ResponseCode::PROTOCOL_ERROR, "Invalid message length");
    const LATE: Refused =
        Refused::new(ResponseCode::PROTOCOL_ERROR, "Timed out waiting for the rest of the request");
    let (config, mut stopping) = (shared.config(), shared.stopping());
    let tcp = &config.tcp;
    let mut envelope = [0; Envelope::LEN];
    let idle = timeout(ms(tcp.idle_ms), stream.read(&mut envelope));
    let arrived = tokio::select! {
        arrived = idle => arrived,
        _ = stopping.wait_for(|&stops| stops) => return Ok(Arrived::Stop),
    };
    let Ok(begun) = arrived else {
        shared.service.counters.connections_timed_out.inc();
        return Ok(Arrived::Nothing);
    };
    let mut len = begun?;
    if len == 0 {
        return Ok(if is_first { Arrived::Bad(SHORT) } else { Arrived::Nothing });
    }
    let rest = timeout(ms(tcp.read_ms), async {
        while len < envelope.len() {
            match stream.read(&mut envelope[len..]).await? {
                0 => return Ok(Arrived::Bad(SHORT)),
                more => len += more,
            }
        }
        let message_len = match Envelope::split(&envelope) {
            Ok((envelope, _)) => envelope.message_len,
            Err(_) => {
                let text = "Server error processing request, see server logs";
                return Ok(Arrived::Bad(Refused::new(ResponseCode::ERROR, text)));
            }
        };
        if message_len > tcp.request_bytes {
            let text = "The request is too long.";
            return Ok(Arrived::Bad(Refused::new(ResponseCode::PROTOCOL_ERROR, text)));
        }
        // Grows as it comes: a length that lies costs nothing.
        let mut message = envelope.to_vec();
        let mut body = (&mut *stream).take(message_len.into());
        let received = body.read_to_end(&mut message).await?;
        if received < message_len as usize {
            let text = format!("Expecting {message_len} bytes, only received {received}");
            let code = ResponseCode::PROTOCOL_ERROR;
            return Ok(Arrived::Bad(Refused { code, text: text.into() }));
        }
        Ok(Arrived::Message(message))
    });
    rest.await.unwrap_or_else(|_| {
        shared.service.counters.connections_timed_out.inc();
        Ok(Arrived::Bad(LATE))
    })
}

async fn send(stream: &mut TcpStream, bytes: &[u8], shared: &Shared) -> io::Result<()> {
    let sent = timeout(ms(shared.config().tcp.write_ms), stream.write_all(bytes)).await;
    sent.unwrap_or_else(|_| {
        shared.service.counters.connections_timed_out.inc();
        Err(io::ErrorKind::TimedOut.into())
    })
}

/// Closes so that the answer arrives: what the other side still sends is thrown away, or the kernel would take the
/// answer back.
async fn close(mut stream: TcpStream, tcp: &TcpConfig) -> io::Result<()> {
    stream.shutdown().await?;
    let mut room = [0; 4096];
    let drained = async {
        while stream.read(&mut room).await? > 0 {}
        io::Result::Ok(())
    };
    timeout(ms(tcp.linger_ms), drained).await.unwrap_or(Ok(()))
}

fn ms(ms: u32) -> Duration {
    Duration::from_millis(ms.into())
}

#[expect(clippy::cast_possible_truncation, reason = "wraps in 2106, as on the wire")]
fn unix_s() -> u32 {
    (now_unix_ms() / 1000) as u32
}
