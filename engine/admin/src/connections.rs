//! TCP connections of the handle protocol. The number of connections is bounded; a message is
//! complete before it is answered; every wait has a timeout; and the total size of requests that
//! are incomplete or waiting to be processed is bounded.
//!
//! When all slots are taken, a new connection replaces one that makes little use of its slot
//! ([`handle_daemon::connections`]). When incomplete requests hold as much memory as allowed, the
//! oldest are evicted.
//!
//! RFC 3652 section 2.3: a connection is closed after an answer unless the request asks to keep it.

use crate::config::TcpConfig;
use crate::counters::AdminCounters;
use crate::operation::OperationRefusal;
use crate::replication;
use crate::replication::stream::ReplicationStream;
use crate::service::reply::unreadable;
use crate::service::{AdminService, ReceivedMessage, ReplyMessages};
use crate::steps::run;
use handle_daemon::clock::{MonotonicClock, now_unix_s};
use handle_daemon::connections::{ConnectionTable, ConnectionWait, TableLimits};
use handle_daemon::takeover::IdleConnections;
use handle_proto::wire::Envelope;
use handle_proto::{OpCode, ResponseCode};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::timeout;

/// Bytes of each request that are not counted: most requests are shorter and so never compete for
/// memory.
const INPUT_FREE_LEN: usize = 4096;
/// Bytes of answers that clients have not read, over all connections, and of one source. `handled`
/// has a setting for it, because it answers everybody.
const UNREAD_MAX: usize = 64 << 20;
const UNREAD_PER_SOURCE: usize = UNREAD_MAX / 8;
/// Time that clients get, when another process continues, to complete a request of which a part has
/// arrived, or to close a connection after its last answer: meanwhile all others wait.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Least time between two lines of the log about connections that cannot be accepted.
const ACCEPT_LOG_PAUSE: Duration = Duration::from_secs(1);

/// The connections, and the service that answers their requests.
#[derive(Debug)]
pub struct AdminConnections {
    service: Arc<AdminService>,
    config: RwLock<Arc<TcpConfig>>,
    /// True once the server has been asked to stop.
    stopping: watch::Receiver<bool>,
    /// Connections without a request at the end.
    idle: IdleConnections,
    open: Mutex<OpenConnections>,
    gone: Notify,
    /// Permits for processing requests.
    work: Semaphore,
    clock: MonotonicClock,
}

#[derive(Debug)]
struct OpenConnections {
    table: ConnectionTable<SlotId, ConnectionInput>,
    connections_max: usize,
    input_max: usize,
    /// Bytes of requests that are incomplete or waiting, without the free bytes of each.
    input_len: usize,
    /// Slots of closed connections.
    free: Vec<usize>,
    turn: u64,
}

/// A slot in the table, and the generation of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlotId {
    at: usize,
    turn: u64,
}

impl From<SlotId> for usize {
    fn from(slot: SlotId) -> Self {
        slot.at
    }
}

/// A request that is arriving, and the means to end its connection.
#[derive(Debug, Default)]
struct ConnectionInput {
    len: usize,
    evicted: Arc<Notify>,
}

/// Why a connection is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoCapacity {
    /// Its source has as many connections as allowed.
    OfSource,
    /// All slots are taken by connections with requests that are arriving or being processed.
    Full,
}

impl OpenConnections {
    /// Removes a connection from the table, and notifies its task.
    fn evict(&mut self, slot: SlotId) {
        if let Some(input) = self.forget(slot) {
            input.evicted.notify_one();
        }
    }

    fn forget(&mut self, slot: SlotId) -> Option<ConnectionInput> {
        let input = self.table.remove(slot)?;
        self.input_len -= input.len;
        self.free.push(slot.at);
        Some(input)
    }
}

fn table_limits(config: &TcpConfig) -> TableLimits {
    TableLimits {
        per_source_max: config.connections_per_source,
        source_prefix_v4: 32,
        source_prefix_v6: 64,
        idle_ms: config.idle_ms,
        read_ms: config.read_ms,
        write_ms: config.write_ms,
        linger_ms: config.linger_ms,
    }
}

impl AdminConnections {
    /// No connections yet. They end when `stopping` becomes true.
    #[must_use]
    pub fn new(service: Arc<AdminService>, config: &TcpConfig, stopping: watch::Receiver<bool>) -> Self {
        let open = OpenConnections {
            table: ConnectionTable::new(table_limits(config)),
            connections_max: config.connections,
            input_max: config.input_bytes,
            input_len: 0,
            free: Vec::new(),
            turn: 0,
        };
        Self {
            service,
            config: RwLock::new(Arc::new(config.clone())),
            stopping,
            idle: IdleConnections::default(),
            open: Mutex::new(open),
            gone: Notify::new(),
            work: Semaphore::new(config.requests),
            clock: MonotonicClock::start(),
        }
    }

    /// Puts other limits in force from now on; existing connections stay.
    pub fn set_limits(&self, config: &TcpConfig) {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config.clone());
        let mut open = self.open();
        open.table.set(table_limits(config));
        (open.connections_max, open.input_max) = (config.connections, config.input_bytes);
    }

    /// The connections without a request, for a process that continues with them.
    #[must_use]
    pub const fn idle(&self) -> &IdleConnections {
        &self.idle
    }

    /// The number of connections.
    #[must_use]
    pub fn count(&self) -> usize {
        self.open().table.len()
    }

    /// Bytes of requests that are incomplete or waiting, without the first 4096 bytes of each.
    #[must_use]
    pub fn input_len(&self) -> usize {
        self.open().input_len
    }

    /// Bytes of answers that are kept until their clients read them.
    #[must_use]
    pub fn unread_len(&self) -> usize {
        self.open().table.unread_len()
    }

    /// The number of requests being processed.
    #[must_use]
    pub fn working(&self) -> usize {
        self.config().requests.saturating_sub(self.work.available_permits())
    }

    /// Waits until there are no connections, for at most `timeout`.
    pub async fn none_left(&self, timeout: Duration) {
        let none = async {
            loop {
                let gone = self.gone.notified();
                if self.count() == 0 {
                    return;
                }
                gone.await;
            }
        };
        if tokio::time::timeout(timeout, none).await.is_err() {
            tracing::warn!(connections = self.count(), "connections are closed");
        }
    }

    /// Completes when another process continues and does not wait any longer for what clients send.
    async fn is_left(&self) {
        let mut stopping = self.stopping.clone();
        drop(stopping.wait_for(|&stops| stops).await);
        match self.idle.collects() {
            true => tokio::time::sleep(LEAVE_TIMEOUT).await,
            false => std::future::pending().await,
        }
    }

    fn config(&self) -> Arc<TcpConfig> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn counters(&self) -> &AdminCounters {
        &self.service.counters
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for `peer`, if necessary that of another connection.
    fn enter(&self, peer: SocketAddr) -> Result<(SlotId, Arc<Notify>), NoCapacity> {
        let mut open = self.open();
        if !open.table.has_capacity_for(peer) {
            return Err(NoCapacity::OfSource);
        }
        while open.table.len() >= open.connections_max {
            let slot = open.table.evictable(self.clock.now_ms()).ok_or(NoCapacity::Full)?;
            open.evict(slot);
            self.counters().connections_evicted.add();
        }
        open.turn += 1;
        let at = open.free.pop().unwrap_or(open.table.len());
        let slot = SlotId { at, turn: open.turn };
        let input = ConnectionInput::default();
        let evicted = Arc::clone(&input.evicted);
        open.table.insert(slot, peer, self.clock.now_ms(), input);
        Ok((slot, evicted))
    }

    /// Evicts a connection that may be evicted, because there are no descriptors; false if there is
    /// none.
    fn free_one(&self) -> bool {
        let mut open = self.open();
        let Some(slot) = open.table.evictable(self.clock.now_ms()) else { return false };
        open.evict(slot);
        self.counters().connections_evicted.add();
        true
    }

    /// Records what a connection waits for from now on; false if its slot was given to another
    /// connection.
    fn wait(&self, slot: SlotId, wait: ConnectionWait) -> bool {
        let mut open = self.open();
        open.table.wait_for(slot, wait, self.clock.now_ms());
        if wait != ConnectionWait::Reading {
            let len = open.table.get_mut(slot).map_or(0, |connection| std::mem::take(&mut connection.len));
            open.input_len -= len;
        }
        open.table.get(slot).is_some()
    }

    /// Reserves memory for a request of which `len` bytes are buffered, if necessary by evicting
    /// older incomplete requests; false if there is none, or if the slot was given to another
    /// connection.
    fn hold(&self, slot: SlotId, len: usize) -> bool {
        let len = len.saturating_sub(INPUT_FREE_LEN);
        let mut open = self.open();
        let Some(connection) = open.table.get_mut(slot) else { return false };
        let before = std::mem::replace(&mut connection.len, len);
        open.input_len = open.input_len - before + len;
        while open.input_len > open.input_max {
            let Some(oldest) = open.table.oldest(ConnectionWait::Reading, |input| input.len > 0) else {
                return false;
            };
            open.evict(oldest);
            self.counters().connections_evicted.add();
            if oldest == slot {
                return false;
            }
        }
        true
    }

    /// Counts `len` bytes of an answer that are kept until the client reads them; false if its
    /// source, or all sources together, would leave too many unread.
    fn keep_unread(&self, slot: SlotId, len: usize) -> bool {
        let in_force = self.service.decision.in_force();
        let mut open = self.open();
        open.table.set_unread(slot, len);
        open.table.unread_len() <= UNREAD_MAX
            && (in_force.exempt.contains(open.table.address_of(slot))
                || open.table.is_unread_within(slot, UNREAD_PER_SOURCE))
    }

    fn leave(&self, slot: SlotId) {
        self.open().forget(slot);
        self.gone.notify_one();
    }
}

/// The slot of a connection; released when dropped.
struct ConnectionSlot<'s> {
    connections: &'s Arc<AdminConnections>,
    slot: SlotId,
    evicted: Arc<Notify>,
}

impl ConnectionSlot<'_> {
    fn wait(&self, wait: ConnectionWait) -> bool {
        self.connections.wait(self.slot, wait)
    }

    fn hold(&self, len: usize) -> bool {
        self.connections.hold(self.slot, len)
    }
}

/// The bytes of an answer that are kept until the client reads them.
struct UnreadAnswer<'p>(&'p ConnectionSlot<'p>);

impl Drop for UnreadAnswer<'_> {
    fn drop(&mut self) {
        self.0.connections.keep_unread(self.0.slot, 0);
    }
}

impl Drop for ConnectionSlot<'_> {
    fn drop(&mut self) {
        self.connections.leave(self.slot);
    }
}

/// Binds a port exclusively.
///
/// # Errors
/// When the port is in use, or the process may not bind it.
pub fn listen(address: SocketAddr, backlog: u32) -> io::Result<std::net::TcpListener> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.ip().is_unspecified() && address.is_ipv6() {
        // The socket serves IPv4 as well.
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    bind(&socket, &address)?;
    listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// Accepts connections until the server stops.
pub async fn serve(listener: TcpListener, connections: Arc<AdminConnections>) {
    let mut stopping = connections.stopping.clone();
    // Strangers who hold the descriptors decide how often this fails, but not how much is logged.
    let mut logged: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|&stops| stops) => return,
        };
        let (stream, source) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Usually too many open files, which closing connections frees. Idle connections
                // are closed for it, as where there are as many as are allowed.
                let has_freed = connections.free_one();
                if logged.is_none_or(|since| since.elapsed() >= ACCEPT_LOG_PAUSE) {
                    tracing::warn!(%error, has_freed, "cannot accept a connection (open files: ulimit -n)");
                    logged = Some(Instant::now());
                }
                tokio::time::sleep(Duration::from_millis(if has_freed { 1 } else { 100 })).await;
                continue;
            }
        };
        begin(stream, source, true, &connections);
    }
}

/// Continues with connections that another process has accepted. Called inside the runtime.
pub fn adopt(accepted: Vec<OwnedFd>, connections: &Arc<AdminConnections>) {
    for descriptor in accepted {
        let stream = std::net::TcpStream::from(descriptor);
        let adopted = stream.peer_addr().and_then(|source| Ok((TcpStream::from_std(stream)?, source)));
        match adopted {
            Ok((stream, source)) => begin(stream, source, false, connections),
            Err(error) => tracing::debug!(%error, "a connection of the old process went away"),
        }
    }
}

/// Answers on a connection, if there is a slot for it. If it is not new, another process may have
/// answered requests on it, and its end before a further request is no error.
fn begin(stream: TcpStream, source: SocketAddr, is_new: bool, connections: &Arc<AdminConnections>) {
    let counters = connections.counters();
    let (slot, evicted) = match connections.enter(source) {
        Ok(entered) => entered,
        Err(why) => {
            tracing::debug!(%source, ?why, "a connection was refused");
            counters.connections_refused.add();
            return;
        }
    };
    counters.connections.add();
    let connections = Arc::clone(connections);
    tokio::spawn(async move {
        let held = ConnectionSlot { connections: &connections, slot, evicted };
        if let Err(error) = talk(stream, source, is_new, &held).await {
            tracing::debug!(%error, %source, "a connection went away");
        }
    });
}

/// The outcome of waiting for a message.
enum ReadOutcome {
    /// A complete message, envelope first.
    Message(Vec<u8>),
    /// The client has closed its side.
    Nothing,
    /// The input is not a message; the refusal says why.
    Bad(OperationRefusal),
    /// The server is stopping, and nothing of a message has been received.
    Stop,
    /// The slot was given to another connection.
    Evicted,
}

async fn talk(
    mut stream: TcpStream,
    source: SocketAddr,
    is_new: bool,
    held: &ConnectionSlot<'_>,
) -> io::Result<()> {
    let connections = held.connections;
    let tcp = connections.config();
    // Each answer is complete when it is written, so there is nothing to coalesce.
    stream.set_nodelay(true)?;
    let mut is_first = is_new;
    loop {
        let arrived = tokio::select! {
            arrived = arrive(&mut stream, held, is_first) => arrived?,
            () = held.evicted.notified() => ReadOutcome::Evicted,
        };
        let message = match arrived {
            ReadOutcome::Message(message) => message,
            ReadOutcome::Nothing | ReadOutcome::Evicted => return Ok(()),
            ReadOutcome::Stop => {
                connections.idle.keep(stream.into_std()?);
                return Ok(());
            }
            ReadOutcome::Bad(refused) => {
                connections.counters().answered(OpCode::RESERVED, refused.code);
                let bytes = unreadable(OpCode::RESERVED, &refused, now_unix_s());
                held.wait(ConnectionWait::Sending);
                send(&mut stream, &bytes, held).await?;
                return close(stream, &tcp, held).await;
            }
        };
        is_first = false;
        let Some(replies) = work(message, source, held).await else { return Ok(()) };
        held.wait(ConnectionWait::Sending);
        send(&mut stream, &replies.first, held).await?;
        let mut rest = replies.rest;
        while let Some(mut pages) = rest {
            let next = tokio::task::spawn_blocking(move || (pages.next_page(), pages)).await;
            let Ok((Some(page), pages)) = next else { break };
            send(&mut stream, &page, held).await?;
            rest = Some(pages);
        }
        if let Some(mirrored) = replies.stream {
            return match stream_to(&mut stream, *mirrored, connections).await? {
                true => close(stream, &tcp, held).await,
                false => Ok(()),
            };
        }
        let stops = *connections.stopping.borrow() && !connections.idle.collects();
        if !replies.keeps_connection || stops {
            return close(stream, &tcp, held).await;
        }
        if !held.wait(ConnectionWait::Idle) {
            return Ok(());
        }
    }
}

/// Sends a stream for a mirror; false if the server stops meanwhile, and the stream is incomplete.
async fn stream_to(
    socket: &mut TcpStream,
    stream: ReplicationStream,
    connections: &AdminConnections,
) -> io::Result<bool> {
    let Some(replication) = connections.service.replication.as_ref() else { return Ok(false) };
    let mut stopping = connections.stopping.clone();
    let limits = replication.send_limits();
    tokio::select! {
        sent = replication::send::send(socket, stream, limits, connections.counters()) => sent.map(|()| true),
        _ = stopping.wait_for(|&stops| stops) => Ok(false),
    }
}

/// Answers a message on a thread that may block. `None` if the slot was given to another
/// connection first, or if the work panicked, which the log shows.
async fn work(message: Vec<u8>, source: SocketAddr, held: &ConnectionSlot<'_>) -> Option<ReplyMessages> {
    // Until processing starts, a request can be evicted like an incomplete one.
    let permit = tokio::select! {
        permit = held.connections.work.acquire() => permit,
        () = held.evicted.notified() => return None,
    };
    let _permit = permit.ok()?;
    if !held.wait(ConnectionWait::Slow) {
        return None;
    }
    let service = Arc::clone(&held.connections.service);
    let answer = move || service.answer(ReceivedMessage::direct(&message, source));
    run(held.connections.counters(), answer).await.ok()
}

/// Waits for a message.
async fn arrive(
    stream: &mut TcpStream,
    held: &ConnectionSlot<'_>,
    is_first: bool,
) -> io::Result<ReadOutcome> {
    const SHORT: OperationRefusal =
        OperationRefusal::new(ResponseCode::PROTOCOL_ERROR, "Invalid message length");
    const LATE: OperationRefusal =
        OperationRefusal::new(ResponseCode::PROTOCOL_ERROR, "Timed out waiting for the rest of the request");
    let (tcp, mut stopping) = (held.connections.config(), held.connections.stopping.clone());
    let mut envelope = [0; Envelope::LEN];
    let idle = timeout(ms(tcp.idle_ms), stream.read(&mut envelope));
    let arrived = tokio::select! {
        arrived = idle => arrived,
        _ = stopping.wait_for(|&stops| stops) => return Ok(ReadOutcome::Stop),
    };
    let Ok(begun) = arrived else {
        held.connections.counters().connections_timed_out.add();
        return Ok(ReadOutcome::Nothing);
    };
    let mut len = begun?;
    if len == 0 {
        return Ok(if is_first { ReadOutcome::Bad(SHORT) } else { ReadOutcome::Nothing });
    }
    if !held.wait(ConnectionWait::Reading) {
        return Ok(ReadOutcome::Evicted);
    }
    let rest = timeout(ms(tcp.read_ms), async {
        while len < envelope.len() {
            match stream.read(&mut envelope[len..]).await? {
                0 => return Ok(ReadOutcome::Bad(SHORT)),
                more => len += more,
            }
        }
        let message_len = match Envelope::split(&envelope) {
            Ok((envelope, _)) => envelope.message_len,
            Err(_) => {
                let text = "Server error processing request, see server logs";
                return Ok(ReadOutcome::Bad(OperationRefusal::new(ResponseCode::ERROR, text)));
            }
        };
        let Some(message) = body(stream, held, &envelope, message_len as usize).await? else {
            return Ok(ReadOutcome::Evicted);
        };
        let received = message.len() - envelope.len();
        if received < message_len as usize {
            let text = format!("Expecting {message_len} bytes, only received {received}");
            let code = ResponseCode::PROTOCOL_ERROR;
            return Ok(ReadOutcome::Bad(OperationRefusal { code, text: text.into() }));
        }
        Ok(ReadOutcome::Message(message))
    });
    let arrived = tokio::select! {
        arrived = rest => arrived,
        () = held.connections.is_left() => return Ok(ReadOutcome::Nothing),
    };
    arrived.unwrap_or_else(|_| {
        held.connections.counters().connections_timed_out.add();
        Ok(ReadOutcome::Bad(LATE))
    })
}

/// Reads the `len` bytes after an envelope, or as many as arrive; `None` if there is no memory for
/// them. The buffer grows as bytes arrive, so a false length costs nothing.
async fn body(
    stream: &mut TcpStream,
    held: &ConnectionSlot<'_>,
    envelope: &[u8],
    len: usize,
) -> io::Result<Option<Vec<u8>>> {
    let whole = envelope.len() + len;
    let mut message = Vec::with_capacity(whole.min(INPUT_FREE_LEN));
    message.extend_from_slice(envelope);
    while message.len() < whole {
        if message.len() == message.capacity() {
            let capacity = whole.min(2 * message.len());
            if !held.hold(capacity) {
                return Ok(None);
            }
            message.reserve_exact(capacity - message.len());
        }
        let free = (message.capacity() - message.len()).min(whole - message.len());
        if (&mut *stream).take(free as u64).read_buf(&mut message).await? == 0 {
            break;
        }
    }
    Ok(Some(message))
}

/// Sends one message of an answer. What the kernel does not accept at once is kept until the client
/// reads it, or is dropped with the connection when too much is kept already.
async fn send(stream: &mut TcpStream, bytes: &[u8], held: &ConnectionSlot<'_>) -> io::Result<()> {
    let connections = held.connections;
    let accepted = match stream.try_write(bytes) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        accepted => accepted?,
    };
    if accepted == bytes.len() {
        return Ok(());
    }
    let _unread = UnreadAnswer(held);
    if !connections.keep_unread(held.slot, bytes.len()) {
        connections.counters().connections_unread.add();
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let rest = stream.write_all(&bytes[accepted..]);
    timeout(ms(connections.config().write_ms), rest).await.unwrap_or_else(|_| {
        connections.counters().connections_timed_out.add();
        Err(io::ErrorKind::TimedOut.into())
    })
}

/// Closes so that the answer arrives: remaining input is discarded, since closing with unread input
/// would make the kernel reset the connection and drop the answer.
async fn close(mut stream: TcpStream, tcp: &TcpConfig, held: &ConnectionSlot<'_>) -> io::Result<()> {
    if !held.wait(ConnectionWait::Closing) {
        return Ok(());
    }
    stream.shutdown().await?;
    let mut buffer = [0; 4096];
    let drained = async {
        while stream.read(&mut buffer).await? > 0 {}
        io::Result::Ok(())
    };
    tokio::select! {
        ended = timeout(ms(tcp.linger_ms), drained) => ended.unwrap_or(Ok(())),
        () = held.evicted.notified() => Ok(()),
        () = held.connections.is_left() => Ok(()),
    }
}

fn ms(ms: u32) -> Duration {
    Duration::from_millis(ms.into())
}
