//! Tells machines of each set that they can fetch ([`handle_daemon::notice`]).
//!
//! A machine gets the newest set only: sets that are replaced before its connection can take a
//! notice are left out. If it asks for the names of changed handles, it gets those of all sets
//! since the notice before. Connections, and the time for each step of them, are limited.

use super::recent_changes::RecentChanges;
use crate::state::AdminState;
use handle_daemon::metrics::EventCounter;
use handle_daemon::notice::{
    CHANGED_LEN_MAX, HELLO_LEN, MachineHello, NoticeKey, NoticeSession, NoticeSide, PROOF_LEN,
    PublicationNotice, challenge,
};
use handle_daemon::settings;
use handle_daemon::settings::{DAY_MS, SettingError};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

settings! {
    /// Notices of each published set for `handle-fetch` ([fleets.md](../fleets.md#notices)).
    pub struct NoticeServerConfig where listeners_have_a_key {
        /// TCP address at which `handle-fetch` waits for notices; none if not set.
        restart listen: Option<SocketAddr> = None;
        /// File with the key that `handle-fetch` has too, of at least 32 bytes. Only its owner may
        /// have access to it.
        restart key_file: Option<PathBuf> = None;
        /// Machines at a time; more are refused.
        live machines: usize = 4096, 1..=1 << 20;
        /// Connections that have not shown the key yet; more are refused.
        live unproven: usize = 256, 1..=1 << 16;
        /// Most time for showing the key.
        live proof_ms: u32 = 5000, 10..=600_000;
        /// Interval at which a notice is repeated, so that machines notice a lost connection.
        live repeat_ms: u32 = 10_000, 10..=DAY_MS;
        /// Most time for a machine to take a notice.
        live write_ms: u32 = 5000, 10..=600_000;
        /// Most bytes of names of changed handles that are kept for machines that ask for them, as
        /// `handle-cache` does. When more has changed since its last notice, a machine is told that
        /// any handle may have changed. With 0, that is always so.
        live names_len: usize = 256 << 10, 0..=CHANGED_LEN_MAX;
    }
}

fn listeners_have_a_key(config: &NoticeServerConfig) -> Result<(), SettingError> {
    if config.listen.is_some() && config.key_file.is_none() {
        let why = "`publish.notify.listen` needs `publish.notify.key_file`";
        return Err(SettingError::Together(why.to_owned()));
    }
    Ok(())
}

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

/// What machines are told.
#[derive(Clone, Debug)]
pub struct SetNotices {
    /// The set that machines can fetch.
    pub(super) newest: watch::Receiver<PublicationNotice>,
    pub(super) changes: Arc<RecentChanges>,
}

/// A connection that is counted, until this is dropped.
struct CountedConnection<'s>(&'s AtomicUsize);

impl<'s> CountedConnection<'s> {
    /// Counts a connection unless there are `most` already.
    fn count(count: &'s AtomicUsize, most: usize) -> Option<Self> {
        let counted =
            count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| (now < most).then(|| now + 1));
        counted.is_ok().then(|| Self(count))
    }
}

impl Drop for CountedConnection<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
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

/// Awaits a step of a connection for so many milliseconds at most.
async fn within<T>(ms: u32, step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(Duration::from_millis(ms.into()), step)
        .await
        .unwrap_or(Err(ErrorKind::TimedOut.into()))
}

async fn serve_machine(
    mut stream: TcpStream,
    key: &NoticeKey,
    mut notices: SetNotices,
    state: &AdminState,
) -> io::Result<()> {
    let config = || state.config();
    let now = config();
    let limits = &now.publish.notify;
    let counted = &state.notices;
    let Some(unproven) = CountedConnection::count(&counted.unproven, limits.unproven) else {
        counted.counters.refused_full.add();
        return Ok(());
    };
    stream.set_nodelay(true)?;
    let (mut session, wants_names) =
        within(limits.proof_ms, prove(&mut stream, key)).await.inspect_err(|_| {
            counted.counters.refused_key.add();
        })?;
    let Some(_machine) = CountedConnection::count(&counted.machines, limits.machines) else {
        counted.counters.refused_full.add();
        return Ok(());
    };
    drop(unproven);
    let (mut rest, mut told) = ([0; 1], None::<PublicationNotice>);
    loop {
        let notice = *notices.newest.borrow_and_update();
        let before = told.replace(notice);
        let changed = before
            .filter(|_| wants_names)
            .and_then(|told| notices.changes.between(told.generation, notice.generation));
        let bytes = session.seal(notice, changed.as_ref());
        within(config().publish.notify.write_ms, stream.write_all(&bytes)).await?;
        if before != Some(notice) {
            counted.counters.notices.add();
        }
        let repeat = Duration::from_millis(config().publish.notify.repeat_ms.into());
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

#[cfg(test)]
mod tests {
    use super::*;
    use handle_daemon::settings::SettingSection as _;

    #[test]
    fn a_listener_without_a_key_is_refused() {
        let listen = Some(([127, 0, 0, 1], 0).into());
        let config = NoticeServerConfig { listen, ..NoticeServerConfig::default() };
        assert!(config.check().unwrap_err().to_string().contains("key_file"));
    }

    #[test]
    fn connections_are_counted_up_to_their_limit() {
        let count = AtomicUsize::new(0);
        let first = CountedConnection::count(&count, 2);
        let second = CountedConnection::count(&count, 2);
        assert!(first.is_some() && second.is_some() && CountedConnection::count(&count, 2).is_none());
        drop(first);
        assert!(CountedConnection::count(&count, 2).is_some());
    }
}
