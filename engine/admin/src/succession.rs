//! How another process takes over from this one, and what it continues with.
//!
//! Only one process can have the file of the store open, so this process closes it before the other
//! one serves ([`handle_daemon::takeover::exclusive`]).

use crate::proof_fields::{put_bytes, put_count, take_bytes, take_count};
use handle_daemon::control::ControlReader;
use handle_daemon::takeover::exclusive::{self, Inheritance, Successor};
use handle_daemon::takeover::{
    Handover, Predecessor, SocketAnnouncement, SocketKind, SuccessorProgram, TakeoverServer, restart,
};
use handle_daemon::threads;
use handle_store::StoreConfig;
use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// The version of the form of a [`Continuation`]. Every version begins with its number, the local
/// socket and the store.
const CONTINUATION_VERSION: u8 = 1;
/// The name of the program.
pub(crate) const PROGRAM: &str = "handle-admin";
/// Time for this process to serve again after another one has failed to take over.
const AGAIN_TIMEOUT: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// The state of a takeover from this process.
#[derive(Debug)]
pub struct Succession {
    /// The listening sockets.
    pub handover: Handover,
    /// How this program is started again, if it can be.
    program: Option<SuccessorProgram>,
    /// The process that is ready to take over.
    next: Mutex<Option<Successor>>,
    /// Threads that report to those who have asked for a restart.
    reports: Mutex<Vec<JoinHandle<()>>>,
}

impl Default for Succession {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Succession {
    /// No takeover is in progress. A restart starts `program`.
    #[must_use]
    pub fn new(program: Option<SuccessorProgram>) -> Self {
        let handover = Handover::new(PROGRAM, |_| Ok(()));
        Self { handover, program, next: Mutex::default(), reports: Mutex::default() }
    }

    /// Offers the sockets of `server` to the process behind `client`. When that process is ready,
    /// `server` drains.
    pub(crate) fn offer(
        &self,
        client: &UnixStream,
        reader: &mut ControlReader<'_>,
        server: &impl TakeoverServer,
    ) -> io::Result<()> {
        let Some(successor) = exclusive::offer(client, reader, server)? else { return Ok(()) };
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(successor);
        server.drain();
        Ok(())
    }

    /// Takes the process that is ready to take over.
    #[must_use]
    pub fn next(&self) -> Option<Successor> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Starts this program again, and reports to `client` when it has taken over. The control
    /// socket of this process closes before that, so the report has a thread of its own.
    pub(crate) fn restart(self: &Arc<Self>, client: &UnixStream) -> io::Result<()> {
        let (mut client, succession) = (client.try_clone()?, Arc::clone(self));
        let report = threads::spawn("restart", move || {
            let report = restart(succession.program.as_ref(), &succession.handover);
            let since = Instant::now();
            let handover = &succession.handover;
            // After a takeover the handover stays busy, and this process does not come back.
            let is_coming_back = || handover.is_busy() && !handover.is_done();
            while report["ok"] == false && is_coming_back() && since.elapsed() < AGAIN_TIMEOUT {
                std::thread::sleep(LOOK_INTERVAL);
            }
            if let Err(error) = writeln!(client, "{report}") {
                tracing::debug!(%error, "who asked for a restart has gone away");
            }
        })?;
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).push(report);
        Ok(())
    }

    /// Waits until those who asked for a restart have their reports.
    pub fn finish_reports(&self) {
        let reports = std::mem::take(&mut *self.reports.lock().unwrap_or_else(PoisonError::into_inner));
        for report in reports {
            // A panic has already been logged where it happened.
            let _ = report.join();
        }
    }
}

/// Where a process gets its listening sockets from.
pub(crate) enum PortSource<'p> {
    /// They are bound.
    Bound,
    /// Those that another process has are taken.
    Predecessor(&'p mut Predecessor),
    /// This process has had them, in the order in which they are wanted.
    Left(VecDeque<(SocketAnnouncement, OwnedFd)>),
}

impl PortSource<'_> {
    /// Takes a socket of this kind that is bound to `address`, if there is one.
    pub(crate) fn take(&mut self, kind: SocketKind, address: SocketAddr) -> Option<OwnedFd> {
        match self {
            Self::Bound => None,
            Self::Predecessor(predecessor) => predecessor.take(kind, address),
            Self::Left(left) => {
                let at = left.iter().position(|(announced, _)| announced.kind == kind)?;
                left.remove(at).map(|(_, descriptor)| descriptor)
            }
        }
    }
}

/// The file of a store, or the URL of its database.
fn name_of(store: &StoreConfig) -> Zeroizing<Vec<u8>> {
    if store.is_in_database() {
        return Zeroizing::new(store.location().as_bytes().to_vec());
    }
    // The other process may have another working directory.
    let file = std::path::absolute(&store.file).unwrap_or_else(|_| store.file.clone());
    Zeroizing::new(file.into_os_string().into_encoded_bytes())
}

/// What a process continues with: connections, and proofs that are in no file.
#[derive(Debug, Default)]
pub(crate) struct Continuation {
    /// The local socket, and its path.
    pub(crate) local: Option<(PathBuf, OwnedFd)>,
    /// The store that is closed; empty if no process has left anything.
    pub(crate) store: Zeroizing<Vec<u8>>,
    /// Connections to the local socket.
    pub(crate) local_connections: Vec<OwnedFd>,
    /// Connections of clients.
    pub(crate) connections: Vec<OwnedFd>,
    /// Connections for bulk changes, each with its caller.
    pub(crate) callers: Vec<(OwnedFd, Vec<u8>)>,
    /// The open challenges and the sessions of callers.
    pub(crate) proofs: Zeroizing<Vec<u8>>,
}

impl Continuation {
    /// What a process leaves that has closed `store`.
    pub(crate) fn of(store: &StoreConfig) -> Self {
        Self { store: name_of(store), ..Self::default() }
    }

    /// Whether it is from a process that has closed `store`, and has compared it at its start.
    pub(crate) fn is_of(&self, store: &StoreConfig) -> bool {
        self.store == name_of(store)
    }

    /// Without the callers of another store, who may have other rights in this one.
    pub(crate) fn for_store(self, store: &StoreConfig) -> Self {
        match self.is_of(store) {
            true => self,
            false => Self { callers: Vec::new(), proofs: Zeroizing::default(), ..self },
        }
    }

    /// The form in which it comes to another process.
    pub(crate) fn into_inheritance(self) -> Inheritance {
        let (path, local) = self.local.map(|(path, local)| (path, vec![local])).unwrap_or_default();
        let path = path.into_os_string().into_encoded_bytes();
        let (bulk_connections, callers): (Vec<_>, Vec<_>) = self.callers.into_iter().unzip();
        let callers_len: usize = callers.iter().map(|caller| 4 + caller.len()).sum();
        let len = 13 + path.len() + self.store.len() + callers_len + self.proofs.len();
        let mut state = Zeroizing::new(Vec::with_capacity(len));
        state.push(CONTINUATION_VERSION);
        put_bytes(&mut state, &path);
        put_bytes(&mut state, &self.store);
        put_count(&mut state, callers.len());
        callers.iter().for_each(|caller| put_bytes(&mut state, caller));
        state.extend_from_slice(&self.proofs);
        let descriptors = vec![local, self.local_connections, self.connections, bulk_connections];
        Inheritance { state, descriptors }
    }

    /// What another process has left. Of another version, only the local socket and the store are
    /// known.
    pub(crate) fn from_inheritance(inheritance: Inheritance) -> Self {
        use std::os::unix::ffi::OsStringExt as _;
        let Inheritance { state, descriptors } = inheritance;
        let mut groups = descriptors.into_iter();
        let local = groups.next().and_then(|mut group| group.pop());
        let [local_connections, connections, bulk_connections] =
            std::array::from_fn(|_| groups.next().unwrap_or_default());
        let (version, mut rest) = state.split_first().unwrap_or((&0, &[]));
        let path = take_bytes(&mut rest).unwrap_or_default();
        let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
        let local = local.map(|local| (path, local));
        let store = Zeroizing::new(take_bytes(&mut rest).unwrap_or_default().to_vec());
        if *version != CONTINUATION_VERSION {
            tracing::warn!("connections are closed: the old process is of another version");
            return Self { local, store, ..Self::default() };
        }
        let count = take_count(&mut rest).unwrap_or_default();
        let callers = (0..count).map_while(|_| take_bytes(&mut rest).map(<[u8]>::to_vec));
        let callers: Vec<_> = callers.collect();
        let callers = bulk_connections.into_iter().zip(callers).collect();
        let proofs = Zeroizing::new(rest.to_vec());
        Self { local, store, local_connections, connections, callers, proofs }
    }
}

/// What a server leaves when it has closed its store.
#[derive(Debug)]
pub struct LeftServer {
    pub(crate) inheritance: Inheritance,
    /// The last transaction of its store.
    pub(crate) last_transaction: u64,
    /// Whether the store is closed. If not, it is when the process exits.
    pub(crate) is_closed: bool,
}

/// The outcome of a takeover from this process.
#[derive(Debug)]
pub enum HandoverOutcome {
    /// The other process serves; this one has to exit.
    Served,
    /// The other process has ended; this one has to serve again.
    Failed(LeftServer),
}

impl Succession {
    /// Leaves what a server of this process has left to `successor`.
    #[must_use]
    pub fn hand_over(&self, left: LeftServer, successor: &Successor) -> HandoverOutcome {
        let handed_over = successor.leave(&left.inheritance).and_then(|()| match left.is_closed {
            true => successor.until_serving(&self.handover),
            false => {
                tracing::warn!("a request still has the store; this process exits to close it");
                successor.dismissed(&self.handover);
                Ok(())
            }
        });
        match handed_over {
            Ok(()) => {
                tracing::info!("the other process serves");
                HandoverOutcome::Served
            }
            Err(error) => {
                tracing::error!(%error, "the other process does not serve; this process continues");
                successor.end();
                HandoverOutcome::Failed(left)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_what_the_next_process_continues_with() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let store = StoreConfig::at(std::path::Path::new("store"));
        let left = Continuation {
            local: Some((PathBuf::from("/run/admin.socket"), ours.into())),
            store: name_of(&store),
            local_connections: Vec::new(),
            connections: vec![UnixStream::pair().unwrap().0.into()],
            callers: vec![(UnixStream::pair().unwrap().0.into(), b"caller".to_vec())],
            proofs: Zeroizing::new(b"proofs".to_vec()),
        };
        let next = Continuation::from_inheritance(left.into_inheritance()).for_store(&store);
        assert_eq!(next.local.as_ref().unwrap().0, PathBuf::from("/run/admin.socket"));
        assert_eq!((next.local_connections.len(), next.connections.len()), (0, 1));
        assert_eq!((next.callers.len(), &next.callers[0].1[..]), (1, &b"caller"[..]));
        assert_eq!(&next.proofs[..], b"proofs");
        let mut other = next.into_inheritance();
        other.state[0] += 1;
        let next = Continuation::from_inheritance(other);
        assert!(next.is_of(&store) && next.local.is_some() && next.proofs.is_empty(), "another version");
        assert!(next.callers.is_empty() && next.connections.is_empty());
        let none = Continuation::from_inheritance(Continuation::default().into_inheritance());
        assert!(none.local.is_none() && none.proofs.is_empty());
        let short = Inheritance { state: Zeroizing::new(vec![0, 0, 1, 0]), descriptors: Vec::new() };
        assert!(Continuation::from_inheritance(short).proofs.is_empty(), "a length beyond the end");
    }

    #[test]
    fn callers_of_another_store_are_left_out() {
        let [store, other] = ["store", "other"].map(|file| StoreConfig::at(std::path::Path::new(file)));
        let left = || Continuation {
            connections: vec![UnixStream::pair().unwrap().0.into()],
            callers: vec![(UnixStream::pair().unwrap().0.into(), b"caller".to_vec())],
            proofs: Zeroizing::new(b"proofs".to_vec()),
            ..Continuation::of(&store)
        };
        let kept = left().for_store(&store);
        assert_eq!((kept.callers.len(), kept.proofs.len(), kept.connections.len()), (1, 6, 1));
        let kept = left().for_store(&other);
        assert_eq!((kept.callers.len(), kept.proofs.len(), kept.connections.len()), (0, 0, 1));
        assert!(!Continuation::default().is_of(&store));
    }
}
