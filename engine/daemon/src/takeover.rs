//! Restart without loss: a new process takes the sockets of the old one, including the datagrams in
//! their queues.
//!
//! For a moment both processes serve from the same sockets, so there is no moment without service:
//!
//! 1. The new process has read its configuration and opened the set. It sends `take-over` to the
//!    control socket of the old process, and receives a line of JSON that lists the sockets,
//!    followed by their descriptors.
//! 2. The new process starts its workers on these sockets. Each datagram is received and answered
//!    by one of the two processes.
//! 3. The new process sends `serving` with the sockets that it has taken. Only now the old process
//!    stops receiving, answers the requests it has, and exits. The kernel delivers nothing more to
//!    a socket that was not taken, because the new process has fewer workers or another address,
//!    and the old process answers what is in its queue.
//!
//! Until `serving` the old process has changed nothing, so it continues whatever happens to the new
//! one.
//!
//! Where only one process can have a file open, the old one closes it in between ([`exclusive`]).

mod descriptors;
mod error;
pub mod exclusive;
mod idle;
mod successor;

pub use descriptors::{SocketAnnouncement, SocketKind};
pub use error::{OfferError, TakeoverError};
pub use idle::IdleConnections;
pub use successor::{SuccessorProgram, restart};

use crate::readiness;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Uid, geteuid, pidfd_open, test_kill_process};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io::{BufRead, ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time limit for the new process from receiving the sockets to serving on them; it may have to
/// read a whole set.
const SERVING_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit for a line from the other process.
const LINE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of the line that announces the sockets, which takes some tens of bytes for each.
const LINE_LEN_MAX: u64 = 1 << 20;

/// The first line of the old process.
#[derive(Debug, Deserialize, Serialize)]
#[serde(untagged)]
enum TakeoverOffer {
    Given {
        /// The name of the program.
        #[serde(default)]
        program: Option<String>,
        version: String,
        sockets: Vec<SocketAnnouncement>,
    },
    Refused {
        error: String,
    },
}

/// The line that the new process sends once it serves.
#[derive(Debug, Deserialize, Serialize)]
struct TakeoverReply {
    /// The sockets that the new process has taken, by their positions in the offer.
    serving: Vec<usize>,
}

/// A socket in use.
#[derive(Debug)]
struct OfferedSocket {
    /// The worker that uses the socket; `None` for a socket that no worker uses.
    worker: Option<usize>,
    announced: SocketAnnouncement,
    /// A second descriptor of the socket; `None` once its worker has ended, so that the kernel
    /// gives its share of the port to the others.
    descriptor: Option<OwnedFd>,
    /// Whether another process serves from this socket.
    taken: bool,
}

/// A process whose sockets another process can take over.
pub trait TakeoverServer {
    /// Its sockets.
    fn handover(&self) -> &Handover;

    /// Whether it drains.
    fn is_draining(&self) -> bool;

    /// Begins to drain, because another process serves.
    fn drain(&self);
}

/// Makes the kernel give nothing more to a socket of datagrams, which is then closed.
pub type LeavePort = fn(&OwnedFd) -> std::io::Result<()>;

/// The sockets that this process serves from, and may hand over.
#[derive(Debug)]
pub struct Handover {
    /// The name of the program. Only the same program takes the sockets.
    program: &'static str,
    leave_port: LeavePort,
    sockets: Mutex<Vec<OfferedSocket>>,
    /// Whether a takeover is in progress.
    busy: AtomicBool,
    done: AtomicBool,
}

impl Handover {
    /// No sockets yet, of the program called `program`.
    #[must_use]
    pub fn new(program: &'static str, leave_port: LeavePort) -> Self {
        let (busy, done) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { program, leave_port, sockets: Mutex::default(), busy, done }
    }

    /// Registers a socket and the worker that uses it.
    pub fn hold(&self, worker: Option<usize>, announced: SocketAnnouncement, descriptor: OwnedFd) {
        self.lock().push(OfferedSocket { worker, announced, descriptor: Some(descriptor), taken: false });
    }

    /// Closes the second descriptors of the sockets of a worker that has ended.
    pub fn release(&self, worker: usize) {
        self.lock()
            .iter_mut()
            .filter(|held| held.worker == Some(worker))
            .for_each(|held| held.descriptor = None);
    }

    /// Whether another process serves from this socket of a worker, which therefore takes nothing
    /// more from it.
    #[must_use]
    pub fn is_taken(&self, worker: usize, kind: SocketKind) -> bool {
        let held = self.lock();
        held.iter().any(|held| held.worker == Some(worker) && held.announced.kind == kind && held.taken)
    }

    /// Whether another process has taken over.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    /// The sockets with their second descriptors, which are no longer held.
    #[must_use]
    pub fn withdraw(&self) -> Vec<(SocketAnnouncement, OwnedFd)> {
        let held = std::mem::take(&mut *self.lock());
        held.into_iter().filter_map(|held| Some((held.announced, held.descriptor?))).collect()
    }

    /// Whether a takeover is in progress or done.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// Ends a takeover that has failed, so that another process can take over.
    pub fn resume(&self) {
        self.busy.store(false, Ordering::Relaxed);
    }

    /// Gives up the sockets: those that `is_taken` selects belong to the other process, and the
    /// others leave their ports.
    pub fn give_up(&self, is_taken: impl Fn(usize) -> bool) {
        for (at, held) in self.lock().iter_mut().enumerate() {
            held.taken = is_taken(at);
            if let (false, SocketKind::Udp, Some(socket)) =
                (held.taken, held.announced.kind, &held.descriptor)
                && let Err(error) = (self.leave_port)(socket)
            {
                tracing::warn!(address = %held.announced.address, %error,
                    "cannot leave the port before closing the socket; datagrams in between are lost");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<OfferedSocket>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The side of the old process: hands its sockets to the process behind `client`, and drains once
/// that process serves.
///
/// # Errors
/// When the client disconnects; this process then continues to serve.
pub fn hand_over(
    mut client: &UnixStream,
    reader: &mut impl BufRead,
    server: &impl TakeoverServer,
) -> std::io::Result<()> {
    let handover = server.handover();
    let Some(pid) = admit(client, server)? else { return Ok(()) };
    let taken = match offer(client, reader, server) {
        // `busy` stays: no further process takes the sockets.
        Ok(taken) => taken,
        Err(error) => {
            handover.resume();
            tracing::warn!(pid, %error, "takeover failed; this process continues");
            return Err(error);
        }
    };
    tracing::info!(
        pid,
        sockets = taken.len(),
        "the other process serves; this process answers its open requests"
    );
    // The notification comes from this process, because the service manager trusts it.
    readiness::hand_over(pid.cast_unsigned());
    handover.done.store(true, Ordering::Relaxed);
    handover.give_up(|at| taken.contains(&at));
    server.drain();
    writeln!(client, "{}", json!({ "ok": true }))
}

/// Lets the process behind `client` take over, and returns its number; `None` if it was refused.
fn admit(client: &UnixStream, server: &impl TakeoverServer) -> std::io::Result<Option<i32>> {
    let refuse = |why: &str| writeln!(&mut &*client, "{}", json!({ "error": why })).map(|()| None);
    let peer = rustix::net::sockopt::socket_peercred(client)?;
    if peer.uid != geteuid() && !peer.uid.is_root() {
        return refuse("only the user of this process may take over");
    }
    if server.is_draining() {
        return refuse("this process is stopping already");
    }
    if server.handover().busy.swap(true, Ordering::Relaxed) {
        return refuse("another process is taking over");
    }
    let pid = peer.pid.as_raw_nonzero().get();
    tracing::info!(pid, "another process takes over");
    Ok(Some(pid))
}

/// Offers the sockets, and waits until the other process serves. Returns the positions of the
/// sockets that were taken.
fn offer(
    client: &UnixStream,
    reader: &mut impl BufRead,
    server: &impl TakeoverServer,
) -> std::io::Result<Vec<usize>> {
    announce(client, server)?;
    let line = read_line(reader, SERVING_TIMEOUT, || server.is_draining())?;
    let reply: TakeoverReply = serde_json::from_str(&line)?;
    Ok(reply.serving)
}

/// Sends the list of the sockets, and the sockets.
fn announce(mut client: &UnixStream, server: &impl TakeoverServer) -> std::io::Result<()> {
    let held = server.handover().lock();
    // A worker that has ended has no socket to offer, but keeps its position.
    if held.iter().any(|held| held.descriptor.is_none()) {
        let error = "a worker of this process has ended; stop it and start again";
        writeln!(client, "{}", json!({ "error": error }))?;
        return Err(std::io::Error::other(error));
    }
    let offer = TakeoverOffer::Given {
        program: Some(server.handover().program.to_owned()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        sockets: held.iter().map(|held| held.announced).collect(),
    };
    writeln!(client, "{}", serde_json::to_string(&offer)?)?;
    let descriptors: Vec<BorrowedFd<'_>> =
        held.iter().filter_map(|held| Some(held.descriptor.as_ref()?.as_fd())).collect();
    descriptors::send(client, &descriptors)
}

/// Reads a line byte by byte, because descriptors arrive with the bytes after it and would be lost
/// in a buffered read.
fn read_offer(mut stream: &UnixStream) -> Result<Vec<u8>, OfferError> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        line.extend(byte);
        if line.len() as u64 > LINE_LEN_MAX {
            return Err(OfferError::LongLine);
        }
    }
    Ok(line)
}

/// Reads a line from a stream whose read timeout is shorter than `timeout`, until `is_over`
/// returns true or `timeout` has passed.
fn read_line(
    reader: &mut impl BufRead,
    timeout: Duration,
    is_over: impl Fn() -> bool,
) -> std::io::Result<String> {
    let deadline = Instant::now() + timeout;
    let mut line = Vec::new();
    loop {
        match reader.by_ref().take(LINE_LEN_MAX).read_until(b'\n', &mut line) {
            Ok(_) if line.ends_with(b"\n") => {
                return String::from_utf8(line).map_err(|_| ErrorKind::InvalidData.into());
            }
            Ok(_) => return Err(ErrorKind::UnexpectedEof.into()),
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(error);
            }
            Err(_) if is_over() || Instant::now() >= deadline => return Err(ErrorKind::TimedOut.into()),
            Err(_) => {}
        }
    }
}

/// The process that serves until this one does, and the sockets that it offers.
#[derive(Debug)]
pub struct Predecessor {
    stream: UnixStream,
    pid: Pid,
    /// Has input when the process has exited; `None` if it is in another namespace of processes.
    exit: Option<OwnedFd>,
    offered: Vec<SocketAnnouncement>,
    /// An entry is `None` once taken.
    descriptors: Vec<Option<OwnedFd>>,
    taken: Vec<usize>,
}

impl Predecessor {
    /// Asks the process behind the control socket at `path`, which runs `program`, for its sockets.
    /// Returns `None` when no process is there.
    ///
    /// # Errors
    /// When the process refuses or is not trusted; it then continues to serve.
    pub fn meet(path: &Path, program: &str) -> Result<Option<Self>, TakeoverError> {
        let stream = match UnixStream::connect(path) {
            Ok(stream) => stream,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                return Ok(None);
            }
            Err(error) => return Err(TakeoverError::Connect(path.to_owned(), error)),
        };
        let peer = rustix::net::sockopt::socket_peercred(&stream)
            .map_err(|error| TakeoverError::Connect(path.to_owned(), error.into()))?;
        trust(path, peer.uid, geteuid())?;
        let pid = peer.pid.as_raw_nonzero().get();
        let (offered, descriptors) =
            Self::accept(&stream, program).map_err(|error| TakeoverError::Offer(pid, error))?;
        let descriptors = descriptors.into_iter().map(Some).collect();
        let exit = pidfd_open(peer.pid, PidfdFlags::empty()).ok();
        Ok(Some(Self { stream, pid: peer.pid, exit, offered, descriptors, taken: Vec::new() }))
    }

    fn accept(
        mut stream: &UnixStream,
        own: &str,
    ) -> Result<(Vec<SocketAnnouncement>, Vec<OwnedFd>), OfferError> {
        stream.set_read_timeout(Some(LINE_TIMEOUT))?;
        stream.set_write_timeout(Some(LINE_TIMEOUT))?;
        stream.write_all(b"take-over\n")?;
        match serde_json::from_slice(&read_offer(stream)?)? {
            TakeoverOffer::Refused { error } => Err(OfferError::Refused(error)),
            TakeoverOffer::Given { program: Some(other), .. } if other != own => {
                Err(OfferError::OtherProgram { other, own: own.to_owned() })
            }
            TakeoverOffer::Given { version, sockets, .. } => {
                tracing::info!(version, sockets = sockets.len(), "taking over");
                let descriptors = descriptors::receive(stream, &sockets)?;
                Ok((sockets, descriptors))
            }
        }
    }

    /// Takes a socket of this kind that is bound to `address`, if one is left.
    pub fn take(&mut self, kind: SocketKind, address: SocketAddr) -> Option<OwnedFd> {
        let wanted = SocketAnnouncement { kind, address };
        let is_left = |at: &usize| self.offered[*at] == wanted && self.descriptors[*at].is_some();
        let at = (0..self.offered.len()).find(is_left)?;
        self.taken.push(at);
        self.descriptors[at].take()
    }

    /// Reports that this process serves, so that the old process drains.
    ///
    /// # Errors
    /// When the old process still runs but does not agree; this process then has to exit.
    pub fn dismiss(mut self) -> Result<(), TakeoverError> {
        let pid = self.pid;
        match self.complete() {
            Ok(()) => {
                tracing::info!(%pid, "the old process answers its open requests and exits");
                Ok(())
            }
            Err(error) if self.exits_within(LINE_TIMEOUT) => {
                tracing::warn!(%pid, %error, "the old process has already exited");
                Ok(())
            }
            Err(error) => Err(TakeoverError::Completion(pid.as_raw_nonzero().get(), error)),
        }
    }

    /// Whether the old process exits within `timeout`. One for which its parent has not waited yet
    /// has exited as well.
    fn exits_within(&self, timeout: Duration) -> bool {
        match &self.exit {
            Some(exit) => has_exited(exit, timeout),
            None => test_kill_process(self.pid).is_err(),
        }
    }

    fn complete(&mut self) -> Result<(), OfferError> {
        let reply = serde_json::to_string(&TakeoverReply { serving: std::mem::take(&mut self.taken) })?;
        writeln!(self.stream, "{reply}")?;
        let mut reader = std::io::BufReader::new(&self.stream);
        let answer: serde_json::Value =
            serde_json::from_str(&read_line(&mut reader, LINE_TIMEOUT, || false)?)?;
        if answer["ok"] == true { Ok(()) } else { Err(OfferError::Refused(answer["error"].to_string())) }
    }
}

/// Whether a process exits within `timeout`.
fn has_exited(process: &OwnedFd, timeout: Duration) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let timeout = Timespec::try_from(timeout).ok();
    retry_on_intr(|| poll(&mut fds, timeout.as_ref())).is_ok_and(|ready| ready > 0)
}

/// Whether a process of the user `own` takes sockets from one of the user `peer`: its own user and
/// root are trusted, and root trusts everybody whom it has given the path.
fn trust(path: &Path, peer: Uid, own: Uid) -> Result<(), TakeoverError> {
    match peer == own || peer.is_root() || own.is_root() {
        true => Ok(()),
        false => Err(TakeoverError::OtherUser(path.to_owned(), peer.as_raw())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn sockets_of_another_user_are_refused() {
        let [root, own, other] = [0, 1001, 1002].map(Uid::from_raw);
        for (peer, own) in [(own, own), (root, own), (other, root)] {
            trust(Path::new("control"), peer, own).unwrap();
        }
        let error = trust(Path::new("control"), other, own).unwrap_err();
        assert!(matches!(error, TakeoverError::OtherUser(_, 1002)), "{error}");
        assert!(error.to_string().contains("another user (uid 1002)"), "{error}");
    }

    /// What a process says whose predecessor answers `take-over` with `line`, and closes.
    fn offer_of(line: &[u8]) -> OfferError {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut command = [0; 10];
                stream.read_exact(&mut command).unwrap();
                assert_eq!(&command, b"take-over\n");
                // The other side stops reading at a line that is too long.
                let _ = stream.write_all(line);
            });
            match Predecessor::meet(&path, "handled").unwrap_err() {
                TakeoverError::Offer(pid, error) => {
                    assert_eq!(pid, i32::try_from(std::process::id()).unwrap());
                    error
                }
                other => panic!("{other}"),
            }
        })
    }

    #[test]
    fn each_wrong_offer_is_refused_with_its_reason() {
        let long = vec![b'x'; usize::try_from(LINE_LEN_MAX).unwrap() + 2];
        assert!(matches!(offer_of(&long), OfferError::LongLine));
        assert!(matches!(offer_of(b"no JSON\n"), OfferError::Answer(_)));
        assert!(matches!(offer_of(b"{\"version\":"), OfferError::Io(_)), "cut off");
        let refused = offer_of(b"{\"error\":\"busy\"}\n");
        assert!(matches!(&refused, OfferError::Refused(why) if why == "busy"), "{refused}");
        let offer = |program: &str| {
            let sockets = json!([{ "kind": "udp", "address": "127.0.0.1:2641" }]);
            format!("{}\n", json!({ "version": "0.1.0", "program": program, "sockets": sockets }))
        };
        let other = offer_of(offer("handle-gateway").as_bytes());
        assert!(
            matches!(&other, OfferError::OtherProgram { other, own } if other == "handle-gateway" && own == "handled"),
            "{other}"
        );
        assert!(matches!(offer_of(offer("handled").as_bytes()), OfferError::Closed), "no sockets follow");
    }
}
