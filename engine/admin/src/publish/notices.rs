//! Notifies machines of each set that they can fetch ([`handle_daemon::notice`]).
//!
//! A machine gets the newest set only: sets that are replaced before its connection can take a
//! notice are left out. If it asks for the names of changed handles, it gets those of all sets
//! since the notice before. Connections, and the time for each step of them, are limited.

use super::recent_changes::RecentChanges;
use crate::state::AdminState;
use crate::steps::within;
use handle_daemon::metrics::EventCounter;
use handle_daemon::notice::{
    HELLO_LEN, MachineHello, NoticeKey, NoticeSession, NoticeSide, PROOF_LEN, PublicationNotice, challenge,
};
use handle_daemon::permits::CountedPermit;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

handle_daemon::event_counters! {
    /// Counters of notices.
    pub struct NoticeCounters of EventCounter, "handle_admin_notify_" {
        /// Notices that were sent, without repetitions.
        notices,
        /// Connections that were refused because there were too many.
        refused_full,
        /// Connections that did not show the key, or not in time.
        refused_key,
    }
}

/// The connections of machines.
#[derive(Debug, Default)]
pub struct NoticeState {
    machines: AtomicUsize,
    unproven: AtomicUsize,
    /// The counters.
    pub counters: NoticeCounters,
}

impl NoticeState {
    /// Number of machines that wait for notices.
    #[must_use]
    pub fn machines(&self) -> usize {
        self.machines.load(Ordering::Relaxed)
    }
}

handle_daemon::metrics! {
    /// Metrics of notices.
    pub fn notice_metrics<'s>(NoticeState), "handle_admin_notify_" {
        /// Machines that wait for notices.
        gauge machines = |state| state.machines();
    }
}

/// What machines are notified of.
#[derive(Clone, Debug)]
pub struct SetNotices {
    /// The set that machines can fetch.
    pub(super) newest: watch::Receiver<PublicationNotice>,
    pub(super) changes: Arc<RecentChanges>,
}

/// Time after which a failed `accept` is repeated.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves machines until the process stops.
pub(crate) async fn serve(
    listener: TcpListener,
    key: NoticeKey,
    notices: SetNotices,
    state: Arc<AdminState>,
) {
    let (key, mut stopping) = (Arc::new(key), state.stopping());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|&stops| stops) => return,
        };
        let Ok((stream, source)) = accepted else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        let (state, key, notices) = (Arc::clone(&state), Arc::clone(&key), notices.clone());
        tokio::spawn(async move {
            let mut stopping = state.stopping();
            let served = tokio::select! {
                served = serve_machine(stream, &key, notices, &state) => served,
                _ = stopping.wait_for(|&stops| stops) => Ok(()),
            };
            if let Err(error) = served {
                tracing::debug!(%source, %error, "a connection for notices ended");
            }
        });
    }
}

async fn serve_machine(
    mut stream: TcpStream,
    key: &NoticeKey,
    mut notices: SetNotices,
    state: &AdminState,
) -> io::Result<()> {
    let config = || state.config();
    let ms = |ms: u32| Duration::from_millis(ms.into());
    let now = config();
    let limits = &now.publish.notify;
    let counted = &state.notices;
    let Some(unproven) = CountedPermit::take(&counted.unproven, limits.unproven) else {
        counted.counters.refused_full.add();
        return Ok(());
    };
    stream.set_nodelay(true)?;
    let (mut session, wants_names) =
        within(ms(limits.proof_ms), prove(&mut stream, key)).await.inspect_err(|_| {
            counted.counters.refused_key.add();
        })?;
    let Some(_machine) = CountedPermit::take(&counted.machines, limits.machines) else {
        counted.counters.refused_full.add();
        return Ok(());
    };
    drop(unproven);
    let (mut rest, mut notified) = ([0; 1], None::<PublicationNotice>);
    loop {
        let notice = *notices.newest.borrow_and_update();
        let before = notified.replace(notice);
        let changed = before
            .filter(|_| wants_names)
            .and_then(|notified| notices.changes.between(notified.generation, notice.generation));
        let bytes = session.seal(notice, changed.as_ref());
        within(ms(config().publish.notify.write_ms), stream.write_all(&bytes)).await?;
        if before != Some(notice) {
            counted.counters.notices.add();
        }
        let repeat = ms(config().publish.notify.repeat_ms);
        tokio::select! {
            changed = notices.newest.changed() => {
                if changed.is_err() {
                    // The publisher has ended.
                    return Ok(());
                }
            }
            () = tokio::time::sleep(repeat) => {}
            // Machines send nothing more: this is the end of the connection.
            _ = stream.read(&mut rest) => return Ok(()),
        }
    }
}

/// Proves that both sides have the key; also returns whether the machine asks for names.
async fn prove(stream: &mut TcpStream, key: &NoticeKey) -> io::Result<(NoticeSession, bool)> {
    let invalid = |what| io::Error::new(ErrorKind::InvalidData, what);
    let mut hello = [0; HELLO_LEN];
    stream.read_exact(&mut hello).await?;
    let hello = MachineHello::parse(&hello).ok_or_else(|| invalid("it is not a connection for notices"))?;
    let ours = handle_auth::random();
    let session = NoticeSession::new(key, &hello, &ours);
    stream.write_all(&challenge(&ours, &session)).await?;
    let mut proof = [0; PROOF_LEN];
    stream.read_exact(&mut proof).await?;
    match session.is_proof(NoticeSide::Machine, &proof) {
        true => Ok((session, hello.wants_names)),
        false => Err(invalid("the machine has another key")),
    }
}
