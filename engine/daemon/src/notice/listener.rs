//! Waits for notices of `handle-admin` about new sets.

use super::{
    CHALLENGE_LEN, ChangedHandles, MachineHello, NOTICE_HEAD_LEN, NOTICE_MAC_LEN, NoticeHead, NoticeKey,
    NoticeSession, NoticeSide, PublicationNotice, accept_challenge,
};
use crate::settings;
use crate::settings::{SettingError, SettingRule};
use crate::shutdown::Shutdown;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Most time for the rest of a message, and for sending one.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// A host and a port, or nothing.
const HOST_PORT: SettingRule<String> = SettingRule {
    words: "`HOST:PORT`",
    check: |text| {
        let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
        match text.is_empty() || port.is_some_and(|port| port.parse::<u16>().is_ok()) {
            true => Ok(()),
            false => Err(format!("is {text:?}: expected HOST:PORT")),
        }
    },
};

settings! {
    /// Notices of `handle-admin` about new sets ([fleets.md](../fleets.md#notices)).
    pub struct NotifyConfig where notices_have_a_key {
        /// Set this when new sets have to be fetched at once: `publish.notify.listen` of
        /// `handle-admin`. Without it, there are no notices.
        restart address: String = String::new(), HOST_PORT;
        /// Set this when `address` is: file with the key that `handle-admin` has too, of at least
        /// 32 bytes.
        restart key_file: Option<PathBuf> = None;
    } constants {
        /// Most time for connecting, which takes a few round trips.
        connect_timeout_ms: u64 = 5000;
        /// Time without a notice after which the connection counts as lost: several times the pause
        /// after which `handle-admin` repeats the last one.
        silence_ms: u64 = 30_000;
        /// Pause before the next attempt to connect, as short as a restart of `handle-admin`. It
        /// doubles with each failure.
        retry_ms: u64 = 100;
        /// Maximum pause between attempts to connect, so that a `handle-admin` that comes back is
        /// found within seconds.
        retry_ms_max: u64 = 10_000;
    }
}

fn notices_have_a_key(config: &NotifyConfig) -> Result<(), SettingError> {
    if !config.address.is_empty() && config.key_file.is_none() {
        let why = "`notify.address` needs `notify.key_file`";
        return Err(SettingError::Together(why.to_owned()));
    }
    Ok(())
}

impl NotifyConfig {
    /// The pause after so many failures in a row.
    #[must_use]
    pub fn pause(&self, failures: u32) -> Duration {
        let doubled = self.retry_ms.saturating_mul(1_u64.checked_shl(failures).unwrap_or(u64::MAX));
        Duration::from_millis(doubled.min(self.retry_ms_max))
    }
}

/// Who waits for notices.
pub trait NoticeReceiver {
    /// The settings in force.
    fn config(&self) -> NotifyConfig;
    /// The end of the process.
    fn shutdown(&self) -> &Shutdown;
    /// Takes note that notices arrive.
    fn note_connected(&self);
    /// Takes note that a connection failed or ended.
    fn note_failure(&self, error: &str);
    /// Whether it needs to know which handles have changed.
    fn wants_names(&self) -> bool {
        false
    }
    /// Takes a notice: the first one of a connection, and each that differs from the one before.
    /// `changed` are the handles that have changed since that one, if they are known.
    fn take(&self, notice: PublicationNotice, changed: Option<&ChangedHandles>);
}

/// Keeps a connection until the process stops.
pub fn listen(receiver: &impl NoticeReceiver, key: &NoticeKey) {
    let mut failures = 0_u32;
    let mut logged = None;
    while !receiver.shutdown().is_draining() {
        let config = receiver.config();
        let mut connected = || {
            failures = 0;
            logged = None;
            tracing::info!(address = config.address, "waiting for notices");
            receiver.note_connected();
        };
        let ended = receive(receiver, key, &config, &mut connected);
        let Err(error) = ended else { return };
        let text = error.to_string();
        // Logged once, not for each attempt.
        if logged.as_ref() != Some(&text) {
            tracing::warn!(address = config.address, error = text, "no notices of handle-admin");
        }
        receiver.note_failure(&text);
        logged = Some(text);
        receiver.shutdown().poll(&mut [], Some(config.pause(failures)));
        failures = failures.saturating_add(1);
    }
}

/// Connects, and takes notices until the process stops.
fn receive(
    receiver: &impl NoticeReceiver,
    key: &NoticeKey,
    config: &NotifyConfig,
    connected: &mut dyn FnMut(),
) -> io::Result<()> {
    let mut stream = connect(config)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STEP_TIMEOUT))?;
    stream.set_write_timeout(Some(STEP_TIMEOUT))?;
    let hello = MachineHello::new(receiver.wants_names());
    stream.write_all(&hello.encode())?;
    if !wait_for_notice(receiver, &stream)? {
        return Ok(());
    }
    let mut challenge = [0; CHALLENGE_LEN];
    stream.read_exact(&mut challenge)?;
    let session = accept_challenge(key, &hello, &challenge);
    let mut session = session.ok_or_else(|| io::Error::other("handle-admin has another key for notices"))?;
    stream.write_all(&session.proof(NoticeSide::Machine))?;
    let mut last = None;
    loop {
        if !wait_for_notice(receiver, &stream)? {
            return Ok(());
        }
        let (notice, changed) = read_notice(&mut stream, &mut session)?;
        if last.is_none() {
            connected();
        }
        if last != Some(notice) {
            last = Some(notice);
            receiver.take(notice, changed.as_ref());
        }
    }
}

fn read_notice(
    stream: &mut TcpStream,
    session: &mut NoticeSession,
) -> io::Result<(PublicationNotice, Option<ChangedHandles>)> {
    let mut bytes = vec![0; NOTICE_HEAD_LEN];
    stream.read_exact(&mut bytes)?;
    let head = bytes.first_chunk().and_then(NoticeHead::parse);
    let head = head.ok_or_else(|| io::Error::other("a notice is too long"))?;
    bytes.resize(NOTICE_HEAD_LEN + head.names_len.unwrap_or(0) + NOTICE_MAC_LEN, 0);
    stream.read_exact(&mut bytes[NOTICE_HEAD_LEN..])?;
    let changed = session.open(&head, &bytes).ok_or_else(|| io::Error::other("a notice has a wrong MAC"))?;
    Ok((head.notice, changed))
}

/// Waits for input; returns whether there is any. Otherwise, the process is to stop.
fn wait_for_notice(receiver: &impl NoticeReceiver, stream: &TcpStream) -> io::Result<bool> {
    let started = Instant::now();
    loop {
        let silence = Duration::from_millis(receiver.config().silence_ms);
        let left = silence.saturating_sub(started.elapsed());
        if receiver.shutdown().wait_for(stream.as_fd(), Some(left)) {
            return Ok(true);
        }
        if receiver.shutdown().is_draining() {
            return Ok(false);
        }
        if left.is_zero() {
            return Err(io::Error::new(ErrorKind::TimedOut, "handle-admin is silent"));
        }
    }
}

fn connect(config: &NotifyConfig) -> io::Result<TcpStream> {
    let mut last = ErrorKind::AddrNotAvailable.into();
    for address in config.address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, Duration::from_millis(config.connect_timeout_ms)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SettingSection as _;

    #[test]
    fn notices_need_an_address_with_a_port_and_a_key() {
        let key_file = Some(PathBuf::from("key"));
        let check = |address: &str, key_file: Option<PathBuf>| {
            NotifyConfig { address: address.to_owned(), key_file, ..NotifyConfig::default() }.check()
        };
        for good in ["", "admin.example:2643", "[::1]:2643", "192.0.2.1:1"] {
            assert!(check(good, key_file.clone()).is_ok(), "{good}");
        }
        for wrong in ["admin.example", ":2643", "admin:", "admin:70000"] {
            let error = check(wrong, key_file.clone()).unwrap_err().to_string();
            assert!(error.ends_with(&format!("is {wrong:?}: expected HOST:PORT")), "{error}");
        }
        assert!(check("admin.example:2643", None).unwrap_err().to_string().contains("key_file"));
        let notify = NotifyConfig::default();
        assert_eq!(
            [0, 1, 6, 7, 99].map(|failures| notify.pause(failures).as_millis()),
            [100, 200, 6400, 10_000, 10_000]
        );
    }
}
