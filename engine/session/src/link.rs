//! The side of the process that sends requests: it uses the table of another process, and a table
//! of its own while the other process does not answer.

use crate::facts::SessionRefusal;
use crate::facts::{NewSession, SessionIdentity, SessionKeys};
use crate::holder::TakenChallenge;
use crate::protocol::{
    ASK_LEN_MAX, FACTS_LEN_MAX, LinkReply, LinkRequest, SessionFacts, frame_buffer, receive, send,
};
use crate::row::{RowsUnavailable, SessionRows};
use crate::shared::SharedSessions;
use crate::table::SessionTable;
use crate::traffic::{LiveSession, MessageRejection};
use handle_auth::message::MacKey;
use handle_daemon::socket::{connect, is_too_slow};
use handle_proto::wire::list::Reference;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Timeout for a reply; a reply usually takes microseconds.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Time without requests after a timeout, so that a process that hangs does not hold up all
/// requests of this process.
const REST: Duration = Duration::from_secs(1);

/// Connections to the other process, and so the number of concurrent requests.
const LANES: usize = 4;

/// Connections to the process that holds the table.
#[derive(Debug)]
pub struct TableLink {
    path: PathBuf,
    /// Each lane connects when it is first needed, and again after its connection breaks.
    lanes: [Mutex<Option<UnixStream>>; LANES],
    /// The lane to wait for when none is free.
    next: AtomicUsize,
    /// After a timeout, no request is sent before this time.
    not_before: Mutex<Option<Instant>>,
}

impl TableLink {
    /// A link to the process that listens at `path`, now or later. Does not connect yet.
    #[must_use]
    pub fn to(path: &Path) -> Self {
        let (lanes, next, not_before) = Default::default();
        Self { path: path.to_owned(), lanes, next, not_before }
    }

    /// Sends a request and returns the reply; `None` when there is no reply.
    fn ask(&self, ask: &LinkRequest<'_>) -> Option<LinkReply> {
        let mut lane = self.lane();
        // Checked after the wait for a lane, because the other process may have begun to hang
        // meanwhile.
        if self.not_before().is_some_and(|at| Instant::now() < at) {
            return None;
        }
        let is_old = lane.is_some();
        let mut reply = self.ask_on(&mut lane, ask);
        // The other process may have restarted since this lane connected, so the request is sent a
        // second time.
        if is_old && reply.as_ref().is_err_and(|error| !is_too_slow(error)) {
            reply = self.ask_on(&mut lane, ask);
        }
        if reply.as_ref().is_err_and(is_too_slow) {
            *self.not_before() = Some(Instant::now() + REST);
        }
        reply.ok()
    }

    /// Returns a free lane, or waits for the next one.
    fn lane(&self) -> MutexGuard<'_, Option<UnixStream>> {
        let free = self.lanes.iter().find_map(|lane| lane.try_lock().ok());
        free.unwrap_or_else(|| {
            let at = self.next.fetch_add(1, Ordering::Relaxed) % LANES;
            self.lanes[at].lock().unwrap_or_else(PoisonError::into_inner)
        })
    }

    fn not_before(&self) -> MutexGuard<'_, Option<Instant>> {
        self.not_before.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask_on(&self, socket: &mut Option<UnixStream>, ask: &LinkRequest<'_>) -> io::Result<LinkReply> {
        // The connection is put back only after the exchange has succeeded.
        let mut connected = match socket.take() {
            Some(connected) => connected,
            None => connect(&self.path, TIMEOUT)?,
        };
        let mut buffer = frame_buffer();
        send(&mut connected, &mut buffer, ASK_LEN_MAX, |out| ask.encode(out))?;
        receive(&mut connected, &mut buffer, FACTS_LEN_MAX)?;
        let reply = LinkReply::decode(&buffer);
        let reply = reply
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "an answer of another version"))?;
        *socket = Some(connected);
        Ok(reply)
    }
}

/// A session in the table of another process. When that process stops answering, no message in the
/// session is accepted.
#[derive(Debug)]
pub struct LinkedSession {
    link: Arc<TableLink>,
    keys: SessionKeys,
    identity: OnceLock<SessionIdentity>,
}

impl LiveSession for LinkedSession {
    fn keys(&self) -> &SessionKeys {
        &self.keys
    }

    fn accept(&self, counter: i32, _: u32) -> Result<(), MessageRejection> {
        match self.link.ask(&LinkRequest::Accept { id: self.keys.id, counter }) {
            Some(LinkReply::Yes) => Ok(()),
            _ => Err(MessageRejection::Replayed(counter)),
        }
    }

    fn next_counter(&self) -> i32 {
        match self.link.ask(&LinkRequest::Next(self.keys.id)) {
            Some(LinkReply::Number(number)) => number,
            // The client refuses this counter and sets up another session.
            _ => i32::MAX,
        }
    }

    fn identity(&self) -> Option<SessionIdentity> {
        self.identity.get().cloned()
    }

    fn authenticate(&self, claimed: Reference<'_>, index: i32, _: u32) -> bool {
        let reply = self.link.ask(&LinkRequest::Authenticate { id: self.keys.id, claimed, index });
        let is_right = matches!(reply, Some(LinkReply::Yes));
        if is_right {
            self.identity.get_or_init(|| SessionIdentity { index, handle: claimed.handle.into() });
        }
        is_right
    }
}

/// A session in the table of this or another process.
pub type AnySession = Arc<dyn LiveSession + Send + Sync>;

/// Two tables as one: the table of another process while it answers, and the table of this process.
/// Sessions of the latter may also be in a database that other processes use.
#[derive(Debug)]
pub struct JointSessions {
    here: Arc<SessionTable>,
    there: Option<Arc<TableLink>>,
    shared: Option<Arc<SharedSessions>>,
}

impl JointSessions {
    /// Joins the table `here` with that of the process that listens at `there`.
    #[must_use]
    pub fn new(here: SessionTable, there: Option<&Path>) -> Self {
        Self { here: Arc::new(here), there: there.map(|path| Arc::new(TableLink::to(path))), shared: None }
    }

    /// Keeps the sessions that are set up at this process in `rows`, which other processes use.
    #[must_use]
    pub fn sharing(self, rows: Arc<dyn SessionRows>) -> Self {
        Self { shared: Some(SharedSessions::new(rows, Arc::clone(&self.here))), ..self }
    }

    /// The table of this process.
    #[must_use]
    pub fn here(&self) -> &SessionTable {
        &self.here
    }

    /// The sessions that other processes over one database share.
    #[must_use]
    pub const fn shared(&self) -> Option<&Arc<SharedSessions>> {
        self.shared.as_ref()
    }

    /// Finds the session `id`, also one that only the database has.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub fn look_up(&self, id: i32, now_s: u32) -> Result<Option<AnySession>, RowsUnavailable> {
        match (self.find(id, now_s), &self.shared) {
            (None, Some(shared)) => shared.look_up(id, now_s),
            (found, _) => Ok(found),
        }
    }

    /// Finds the session `id` in the tables of both processes.
    #[must_use]
    pub fn find(&self, id: i32, now_s: u32) -> Option<AnySession> {
        if let Some(session) = self.here.find(id, now_s) {
            return Some(match &self.shared {
                Some(shared) if session.row().is_some() => shared.with_row(session),
                _ => session,
            });
        }
        let link = self.there.as_ref().filter(|_| id > 0)?;
        let Some(LinkReply::Session(SessionFacts { key, version, identity })) =
            link.ask(&LinkRequest::Find(id))
        else {
            return None;
        };
        let keys = SessionKeys { id, version, mac: MacKey::new(key) };
        Some(Arc::new(LinkedSession {
            link: Arc::clone(link),
            keys,
            identity: identity.map_or_else(OnceLock::new, OnceLock::from),
        }))
    }

    /// Adds a new session, to the table of the other process if that answers. The arguments are
    /// those of [`SessionTable::open`].
    ///
    /// # Errors
    /// When the table refuses the session.
    pub fn open(
        &self,
        new: NewSession,
        numbers: impl FnMut() -> u32,
        is_taken: impl Fn(i32) -> bool,
        now_s: u32,
    ) -> Result<i32, SessionRefusal> {
        match self.there.as_ref().and_then(|link| link.ask(&LinkRequest::Open(new.clone()))) {
            Some(LinkReply::Number(id)) => Ok(id),
            Some(LinkReply::Refused(refusal)) => Err(refusal),
            _ => self.here.open(new, numbers, is_taken, now_s).map(|session| session.keys().id),
        }
    }

    /// Takes the challenge `id` from the other process. A challenge can be taken only once.
    #[must_use]
    pub fn take_challenge(&self, id: i32) -> TakenChallenge {
        match self.there.as_ref().and_then(|link| link.ask(&LinkRequest::TakeChallenge(id))) {
            Some(LinkReply::Challenge(challenge)) => TakenChallenge::Waiting(challenge),
            Some(LinkReply::Over) => TakenChallenge::Over,
            _ => TakenChallenge::Unknown,
        }
    }

    /// Ends a session. Returns whether it existed.
    ///
    /// # Errors
    /// When the session is in a database that does not answer; it then goes on.
    pub fn end(&self, id: i32) -> Result<bool, RowsUnavailable> {
        if let Some(shared) = &self.shared
            && shared.end(id)?
        {
            return Ok(true);
        }
        let ends_there =
            |link: &Arc<TableLink>| matches!(link.ask(&LinkRequest::End(id)), Some(LinkReply::Yes));
        Ok(self.here.end(id) || self.there.as_ref().is_some_and(ends_there))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::IdentityClaim;
    use crate::holder::{SharedTable, serve};
    use crate::table::SessionLimits;
    use crate::table::tests::new_session;
    use handle_auth::source::RequestOrigin;
    use handle_daemon::socket::OwnedSocket;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::atomic::{AtomicBool, AtomicU32};
    use std::thread::JoinHandle;

    fn limits() -> SessionLimits {
        SessionLimits { sessions_max: 3, ..crate::table::tests::limits() }
    }
    const WHO: Reference<'_> = Reference { handle: b"0.NA/TST", index: 301 };

    struct HolderProcess {
        sessions: SessionTable,
        numbers: AtomicU32,
        now_s: AtomicU32,
        stopped: AtomicBool,
    }

    impl SharedTable for HolderProcess {
        fn sessions(&self) -> Option<&SessionTable> {
            Some(&self.sessions)
        }

        fn now_s(&self) -> u32 {
            self.now_s.load(Ordering::Relaxed)
        }

        fn random(&self) -> u32 {
            self.numbers.fetch_add(1, Ordering::Relaxed)
        }

        fn is_taken(&self, number: i32) -> bool {
            number == 11
        }

        fn is_stopped(&self) -> bool {
            self.stopped.load(Ordering::Relaxed)
        }
    }

    /// A process that holds a table until this handle is dropped.
    struct HolderHandle {
        process: Arc<HolderProcess>,
        thread: Option<JoinHandle<()>>,
    }

    impl HolderHandle {
        fn start(path: &Path, replace: bool) -> Self {
            let holder = OwnedSocket::bind(path, replace).unwrap().move_into_place().unwrap();
            let process = Arc::new(HolderProcess {
                sessions: SessionTable::new(limits()),
                numbers: AtomicU32::new(10),
                now_s: AtomicU32::new(0),
                stopped: AtomicBool::new(false),
            });
            let serving = Arc::clone(&process);
            Self { process, thread: Some(std::thread::spawn(move || serve(&holder, &serving, None))) }
        }
    }

    impl Drop for HolderHandle {
        fn drop(&mut self) {
            self.process.stopped.store(true, Ordering::Relaxed);
            self.thread.take().unwrap().join().unwrap();
        }
    }

    fn joint(path: &Path) -> JointSessions {
        JointSessions::new(SessionTable::new(limits()), Some(path))
    }

    fn claimed(n: u8) -> NewSession {
        NewSession {
            claim: Some(IdentityClaim::of(WHO)),
            origin: RequestOrigin::connection([192, 0, 2, n].into()),
            ..new_session()
        }
    }

    fn opened(joint: &JointSessions, n: u8) -> Result<i32, SessionRefusal> {
        joint.open(claimed(n), || 100 + u32::from(n), |_| false, 0)
    }

    #[test]
    fn one_process_finds_what_the_other_has_and_the_other_way_round() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sessions");
        let held = HolderHandle::start(&path, false);
        let joint = joint(&path);
        let theirs = held.process.sessions.open(claimed(1), || 7, |_| false, 0).unwrap();
        let session = joint.find(7, 0).unwrap();
        assert_eq!(session.keys().mac.key(), theirs.keys().mac.key());
        assert_eq!((session.keys().id, session.keys().version), (7, theirs.keys().version));
        // Both sides use the counters of the same session.
        assert!(theirs.accept(1, 0).is_ok() && session.accept(2, 0).is_ok());
        assert!(session.accept(1, 0).is_err() && theirs.accept(2, 0).is_err());
        assert_eq!([theirs.next_counter(), session.next_counter(), theirs.next_counter()], [1, 2, 3]);
        // The authenticated identity is shared as well.
        assert!(!session.authenticate(Reference { index: 300, ..WHO }, 300, 0));
        assert_eq!((session.identity(), theirs.identity()), (None, None));
        assert!(session.authenticate(WHO, 301, 0));
        assert_eq!(theirs.identity(), session.identity());
        assert_eq!(joint.find(7, 0).unwrap().identity().unwrap().as_reference(), WHO);
        assert_eq!(opened(&joint, 2), Ok(10), "in their table, under a number of theirs");
        assert_eq!(opened(&joint, 2), Ok(12), "11 is a challenge of theirs");
        assert_eq!(opened(&joint, 2), Ok(13), "the oldest of which nothing was heard makes room");
        assert!(held.process.sessions.find(12, 0).is_some() && joint.here().is_empty());
        assert!(joint.find(10, 0).is_none());
        assert!(joint.end(12).unwrap() && !joint.end(12).unwrap() && joint.find(12, 0).is_none());
        assert!(joint.find(99, 0).is_none());
        held.process.now_s.store(100, Ordering::Relaxed);
        assert!(joint.find(7, 0).is_none(), "its time is over there");
        assert!(session.accept(3, 0).is_err(), "and for who has it still");
    }

    #[test]
    fn many_ask_at_once_and_counters_are_those_of_one_session() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sessions");
        let held = HolderHandle::start(&path, false);
        let joint = joint(&path);
        held.process.sessions.open(claimed(1), || 7, |_| false, 0).unwrap();
        let mut numbers = std::thread::scope(|scope| {
            let asks = || {
                let session = joint.find(7, 0).unwrap();
                (0..100).map(|_| session.next_counter()).collect::<Vec<_>>()
            };
            let threads: Vec<_> = (0..2 * LANES).map(|_| scope.spawn(asks)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        numbers.sort_unstable();
        assert_eq!(numbers, Vec::from_iter(1..=800));
    }

    #[test]
    fn sessions_are_our_own_while_nobody_answers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sessions");
        let joint = joint(&path);
        assert!(joint.find(7, 0).is_none());
        assert_eq!(opened(&joint, 1), Ok(101));
        let mine = joint.find(101, 0).unwrap();
        assert!(mine.accept(1, 0).is_ok() && mine.accept(1, 0).is_err());
        let held = HolderHandle::start(&path, false);
        assert_eq!(opened(&joint, 2), Ok(10), "another process does");
        assert!(joint.find(101, 0).is_some() && joint.find(10, 0).is_some());
        let theirs = joint.find(10, 0).unwrap();
        drop(held);
        assert!(!path.exists());
        assert!(theirs.accept(1, 0).is_err() && !theirs.authenticate(WHO, 301, 0), "lost with the process");
        assert_eq!(theirs.next_counter(), i32::MAX);
        assert!(joint.find(10, 0).is_none() && joint.find(101, 0).is_some());
        assert_eq!(opened(&joint, 3), Ok(103));
        // After a restart, the process is found again on the lane whose connection broke.
        let held = HolderHandle::start(&path, false);
        assert_eq!(opened(&joint, 4), Ok(10));
        let next = HolderHandle::start(&path, true);
        drop(held);
        assert!(path.exists(), "that of its successor");
        assert_eq!(opened(&joint, 5), Ok(10));
        assert_eq!(next.process.sessions.len(), 1);
    }

    #[test]
    fn one_that_hangs_is_left_alone_for_a_while() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sessions");
        // The backlog has capacity for one connection only.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let hangs = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        rustix::net::bind(&hangs, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&hangs, 0).unwrap();
        let hangs = std::os::unix::net::UnixListener::from(hangs);
        let joint = joint(&path);
        assert!(joint.find(7, 0).is_none());
        assert!(hangs.accept().is_ok());
        let not_before = || joint.there.as_ref().unwrap().not_before();
        assert!(not_before().is_some());
        *not_before() = Some(Instant::now() + Duration::from_secs(600));
        assert_eq!(opened(&joint, 1), Ok(101), "in our own table, without waiting");
        assert!(hangs.accept().is_err(), "no process has tried again");
        // The link does not wait either when connections are not accepted.
        *not_before() = None;
        let mut waiting = Vec::new();
        let full = loop {
            match connect(&path, TIMEOUT) {
                Ok(socket) => waiting.push(socket),
                Err(error) => break error,
            }
        };
        assert!(is_too_slow(&full), "{full}");
        assert!(joint.find(7, 0).is_none() && not_before().is_some());
    }

    #[test]
    fn the_socket_is_for_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sessions");
        let _held = HolderHandle::start(&path, false);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn who_is_not_understood_is_hung_up_on_and_others_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sessions");
        let _held = HolderHandle::start(&path, false);
        let joint = joint(&path);
        assert_eq!(opened(&joint, 1), Ok(10));
        for frame in [&[0, 0, 0, 1, 99][..], &[0xff; 4], &[0; 4]] {
            let mut socket = UnixStream::connect(&path).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            socket.write_all(frame).unwrap();
            assert_eq!(std::io::Read::read(&mut socket, &mut [0; 8]).unwrap(), 0, "{frame:?}");
        }
        assert!(joint.find(10, 0).is_some());
    }
}
