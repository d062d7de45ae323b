//! Takeover from a process that has a file open which only one process can have open.
//!
//! 1. The new process gets the sockets, as in any takeover. It checks what it can check while the
//!    old process serves, and sends `ready`.
//! 2. The old process accepts nothing more, answers the requests that it has read, closes the
//!    file, and sends what it leaves: idle connections, and state that is in no file.
//! 3. The new process opens the file and serves. Clients that connect or send in between wait in
//!    the kernel.
//! 4. The new process sends `serving`, and the old process exits.
//!
//! If the new process ends between 2 and 4, the old process has everything that it needs to start
//! again.

use super::{
    Handover, LINE_TIMEOUT, OfferError, Predecessor, SERVING_TIMEOUT, TakeoverError, TakeoverReply,
    TakeoverServer, admit, announce, descriptors, has_exited, read_line, read_offer,
};
use crate::readiness;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io::{self, BufRead, BufReader, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zeroize::Zeroizing;

/// The line of a new process that is ready.
const READY: &str = "ready";
/// Time for the old process to close its file. It answers what it has read within a second or two,
/// unless a client does not read, a disk is slow, or the answer needs one of another service.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(60);
/// Most bytes of state: challenged requests take the most.
const STATE_LEN_MAX: usize = 1 << 30;

/// What a process leaves to the one that continues.
#[derive(Debug, Default)]
pub struct Inheritance {
    /// State that is in no file, in a form of the program.
    pub state: Zeroizing<Vec<u8>>,
    /// Descriptors, in groups with a meaning of the program.
    pub descriptors: Vec<Vec<OwnedFd>>,
}

/// The line before an inheritance.
#[derive(Debug, Deserialize, Serialize)]
struct InheritanceHeader {
    state_len: usize,
    /// The number of descriptors in each group.
    groups: Vec<usize>,
}

/// The new process, which is ready to open what this one closes.
#[derive(Debug)]
pub struct Successor {
    stream: UnixStream,
    pid: i32,
    /// The process; `None` if it is in another namespace of processes.
    process: Option<OwnedFd>,
}

/// Offers the sockets to the process behind `client`, and waits until it is ready. `None` if it was
/// refused. This process serves meanwhile.
///
/// # Errors
/// When the client disconnects; this process then continues to serve.
pub fn offer(
    client: &UnixStream,
    reader: &mut impl BufRead,
    server: &impl TakeoverServer,
) -> io::Result<Option<Successor>> {
    let Some(pid) = admit(client, server)? else { return Ok(None) };
    let process = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let ready = announce(client, server).and_then(|()| {
        let line = read_line(reader, SERVING_TIMEOUT, || server.is_draining())?;
        match line.trim() == READY {
            true => Ok(Successor { stream: client.try_clone()?, pid, process }),
            false => Err(ErrorKind::InvalidData.into()),
        }
    });
    if let Err(error) = &ready {
        server.handover().resume();
        tracing::warn!(pid, %error, "takeover failed; this process continues");
    }
    ready.map(Some)
}

impl Successor {
    /// Sends what this process leaves.
    ///
    /// # Errors
    /// When the new process has ended.
    pub fn leave(&self, inheritance: &Inheritance) -> io::Result<()> {
        let Inheritance { state, descriptors } = inheritance;
        let groups = descriptors.iter().map(Vec::len).collect();
        let header = serde_json::to_string(&InheritanceHeader { state_len: state.len(), groups })?;
        let mut stream = &self.stream;
        writeln!(stream, "{header}")?;
        stream.write_all(state)?;
        let all: Vec<BorrowedFd<'_>> = descriptors.iter().flatten().map(|it| it.as_fd()).collect();
        descriptors::send(stream, &all)
    }

    /// Waits until the new process serves. This process then has to exit.
    ///
    /// # Errors
    /// When the new process has ended, or does not serve in time.
    pub fn until_serving(&self, handover: &Handover) -> io::Result<()> {
        let line = read_line(&mut BufReader::new(&self.stream), SERVING_TIMEOUT, || false)?;
        let _: TakeoverReply = serde_json::from_str(&line)?;
        self.dismissed(handover);
        writeln!(&mut &self.stream, "{}", json!({ "ok": true }))
    }

    /// Ends the new process, which does not serve in time and may have the file open. This process
    /// need not be its parent.
    pub fn end(&self) {
        let Some(process) = &self.process else { return };
        // It may have ended by itself.
        if pidfd_send_signal(process, Signal::KILL).is_ok() && !has_exited(process, LINE_TIMEOUT) {
            tracing::warn!(pid = self.pid, "the new process does not end");
        }
    }

    /// Notes that the new process is the service from now on.
    pub fn dismissed(&self, handover: &Handover) {
        // The notification comes from this process, because the service manager trusts it.
        readiness::hand_over(self.pid.cast_unsigned());
        handover.done.store(true, Ordering::Relaxed);
    }
}

impl Predecessor {
    /// Tells the old process that this one is ready, and receives what it leaves when it has closed
    /// its file. `None` if the old process has ended meanwhile.
    ///
    /// # Errors
    /// When the old process still runs but leaves nothing.
    pub fn inherit(&mut self) -> Result<Option<Inheritance>, TakeoverError> {
        match self.receive_inheritance() {
            Ok(inheritance) => Ok(Some(inheritance)),
            Err(error) if self.exits_within(LINE_TIMEOUT) => {
                tracing::warn!(pid = %self.pid, %error, "the old process has ended");
                Ok(None)
            }
            Err(error) => Err(TakeoverError::Offer(self.pid.as_raw_nonzero().get(), error)),
        }
    }

    fn receive_inheritance(&mut self) -> Result<Inheritance, OfferError> {
        writeln!(self.stream, "{READY}")?;
        self.stream.set_read_timeout(Some(RELEASE_TIMEOUT))?;
        let header: InheritanceHeader = serde_json::from_slice(&read_offer(&self.stream)?)?;
        if header.state_len > STATE_LEN_MAX {
            return Err(OfferError::LongLine);
        }
        let mut state = Zeroizing::new(vec![0; header.state_len]);
        self.stream.read_exact(&mut state)?;
        let count = header.groups.iter().sum();
        let mut all = descriptors::receive_all(&self.stream, count)?.into_iter();
        self.stream.set_read_timeout(Some(LINE_TIMEOUT))?;
        let descriptors = header.groups.iter().map(|&len| all.by_ref().take(len).collect()).collect();
        Ok(Inheritance { state, descriptors })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::takeover::{SocketAnnouncement, SocketKind};
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::AtomicBool;

    struct Sample {
        handover: Handover,
        drains: AtomicBool,
    }

    impl Sample {
        fn new() -> Self {
            Self { handover: Handover::new("sample", |_| Ok(())), drains: AtomicBool::new(false) }
        }
    }

    impl TakeoverServer for Sample {
        fn handover(&self) -> &Handover {
            &self.handover
        }

        fn is_draining(&self) -> bool {
            self.drains.load(Ordering::Relaxed)
        }

        fn drain(&self) {
            self.drains.store(true, Ordering::Relaxed);
        }
    }

    /// The old process at `listener`, which leaves `inheritance` to a new process, or ends before.
    fn serve(listener: &UnixListener, sample: &Sample, inheritance: Option<&Inheritance>) -> io::Result<()> {
        let (client, _) = listener.accept()?;
        client.set_read_timeout(Some(Duration::from_millis(20)))?;
        let mut reader = BufReader::new(&client);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        assert_eq!(line, "take-over\n");
        let successor = offer(&client, &mut reader, sample)?.expect("it is not refused");
        let Some(inheritance) = inheritance else { return Ok(()) };
        successor.leave(inheritance)?;
        successor.until_serving(&sample.handover)
    }

    #[test]
    fn what_a_process_leaves_comes_over_whole_and_in_its_groups() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let (listener, sample) = (UnixListener::bind(&path).unwrap(), Sample::new());
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        let announced = SocketAnnouncement { kind: SocketKind::Tcp, address: port.local_addr().unwrap() };
        sample.handover.hold(None, announced, port.into());
        let pairs: Vec<_> = (0..150).map(|_| UnixStream::pair().unwrap()).collect();
        let (ours, theirs): (Vec<UnixStream>, Vec<UnixStream>) = pairs.into_iter().unzip();
        let mut ours = ours.into_iter().map(OwnedFd::from);
        let groups = vec![ours.by_ref().take(1).collect(), Vec::new(), ours.collect()];
        let state = Zeroizing::new(vec![7; 100_000]);
        let inheritance = Inheritance { state: state.clone(), descriptors: groups };
        std::thread::scope(|scope| {
            let old = scope.spawn(|| serve(&listener, &sample, Some(&inheritance)));
            let mut predecessor = Predecessor::meet(&path, "sample").unwrap().unwrap();
            assert!(predecessor.take(SocketKind::Tcp, announced.address).is_some());
            let mut inherited = predecessor.inherit().unwrap().unwrap();
            assert_eq!(inherited.state, state);
            let lens: Vec<usize> = inherited.descriptors.iter().map(Vec::len).collect();
            assert_eq!(lens, [1, 0, 149]);
            let mut last = UnixStream::from(inherited.descriptors[2].pop().unwrap());
            last.write_all(b"x").unwrap();
            (&theirs[149]).read_exact(&mut [0]).unwrap();
            assert!(!sample.handover.is_done());
            predecessor.dismiss().unwrap();
            old.join().unwrap().unwrap();
        });
        assert!(sample.handover.is_done());
    }

    #[test]
    fn a_new_process_that_does_not_serve_is_ended() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id().cast_signed();
        let process = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).ok();
        let successor = Successor { stream: UnixStream::pair().unwrap().0, pid, process };
        successor.end();
        assert!(!child.wait().unwrap().success());
        successor.end();
    }

    #[test]
    fn a_process_whose_successor_ends_has_its_sockets_still() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let (listener, sample) = (UnixListener::bind(&path).unwrap(), Sample::new());
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        let announced = SocketAnnouncement { kind: SocketKind::Tcp, address: port.local_addr().unwrap() };
        sample.handover.hold(None, announced, port.into());
        std::thread::scope(|scope| {
            let old = scope.spawn(|| serve(&listener, &sample, None));
            drop(Predecessor::meet(&path, "sample").unwrap());
            assert_eq!(old.join().unwrap().unwrap_err().kind(), ErrorKind::UnexpectedEof);
            assert!(!sample.handover.is_busy(), "another process may take over");
            let left = Inheritance::default();
            let old = scope.spawn(|| serve(&listener, &sample, Some(&Inheritance::default())));
            let mut predecessor = Predecessor::meet(&path, "sample").unwrap().unwrap();
            assert_eq!(predecessor.inherit().unwrap().unwrap().state, left.state);
            drop(predecessor);
            assert!(old.join().unwrap().is_err(), "it does not serve");
        });
        assert!(!sample.handover.is_done());
        assert_eq!(sample.handover.withdraw().len(), 1);
    }
}
