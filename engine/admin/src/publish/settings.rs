//! How sets are published: `[publish]` of the configuration.

use handle_daemon::notice::CHANGED_LEN_MAX;
use handle_daemon::server_key::{PassphraseSource, ServerKeyConfig};
use handle_daemon::settings;
use handle_daemon::settings::{SettingError, or_zero};
use handle_fleet::config::FLEET_URL_RULE;
use handle_fleet::{ShipLimits, StorageConfig};
use handle_snapshot::set::steps::STEPS_LEN_MAX;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

settings! {
    /// Publishing from the store ([publishing.md](publishing.md)).
    pub struct PublishConfig where sets_have_a_directory {
        /// Set this when `handled` answers for these records: directory of the published set, which
        /// it serves. Without it, nothing is published.
        restart directory: Option<PathBuf> = None;
        /// Set this when changes may be visible later, so that fewer sets are written and shipped:
        /// least time between publications. Changes in between are published together.
        live interval_ms: u64 = 20, 0..=60_000;
        /// Set this when merges disturb others on the disk, or the disk is faster: rate at which
        /// merges and rebuilds write; 0 for no limit. A rebuild exceeds it while the published set
        /// has less than half of the records.
        // At a rate below 1 MiB, merging might never end.
        live merge_bytes_per_s: u64 = 64 << 20, or_zero(1 << 20..=1 << 40);
        /// Set this when memory is short, or a rebuild should be faster: memory for sorting its
        /// records.
        live memory_len: usize = 256 << 20, 1 << 20..=1 << 40;
        /// Set this when machines that copy the directory need longer, or its disk is small: time
        /// for which a layer is kept after the last set that names it.
        live grace_s: u64 = 60, 0..=GRACE_S_MAX;
        /// Set this when a roll-back needs closer generations, or older ones: interval between
        /// those that are kept.
        live keep_every_s: u64 = 3600, 1..=GRACE_S_MAX;
        /// Set this when a roll-back should reach further back, or the disk is small: generations
        /// kept.
        live keep_count: usize = 24, 0..=1000;
        /// Set this when sets are to be signed: file with the private key, native or PEM.
        restart key_file: Option<PathBuf> = None;
        /// Set this when this key has a passphrase: file with it.
        restart key_passphrase_file: Option<PathBuf> = None;
        /// Set this when machines should notice sooner, or later, that sets do not reach them:
        /// interval of signed statements, in the file `HEARTBEAT`, that the set is current; 0 for
        /// none. None is made while changes cannot be published.
        live heartbeat_ms: u64 = 1000, or_zero(100..=86_400_000);
        /// Set this when one of several processes over PostgreSQL should be replaced sooner, or
        /// later, if it does not answer: time after which another publishes, or follows the
        /// primaries of a mirror ([store.md](../store.md#several-handle-admin)). 0: this process
        /// always publishes, to a directory that no other one uses, and primaries are followed as
        /// with 3000.
        restart lease_ms: u64 = LEASE_MS, or_zero(500..=60_000);
        section check: CheckConfig;
        section ship: ShipConfig;
        section notify: NoticeServerConfig;
    } constants {
        /// Number of changes that are published before the interval is over, so that a publication
        /// stays short.
        changes_max: u64 = 10_000;
        /// New layers of up to this length are merged with the newest ones when they are written.
        /// Each publication writes up to this many bytes, which takes less time than its syncs.
        absorb_len: u64 = 64 << 10;
        /// Least ratio of the length of a layer to that of all newer layers together, which merging
        /// restores: a set has a layer for each doubling of its length.
        merge_ratio: u64 = 2;
        /// If more changes than this are pending, the set is rebuilt, which then takes less time
        /// than to read and sort the changes.
        rebuild_changes: u64 = 1_000_000;
        /// Time until a failed attempt is repeated. What fails are disks and commands, which an
        /// operator mends.
        retry_s: u64 = 1;
    }
}

/// Length of the lease of one of several processes over one database, which renews it several times
/// within it: longer than a process or the database pauses in operation.
const LEASE_MS: u64 = 3000;

fn sets_have_a_directory(config: &PublishConfig) -> Result<(), SettingError> {
    if config.directory.is_none() && !config.ship.url.is_empty() {
        let why = "`publish.ship.url` needs `publish.directory`, whose sets are shipped";
        return Err(SettingError::Together(why.to_owned()));
    }
    if config.directory.is_none() && config.notify.listen.is_some() {
        let why = "`publish.notify.listen` needs `publish.directory`, whose sets are announced";
        return Err(SettingError::Together(why.to_owned()));
    }
    Ok(())
}

settings! {
    /// Shipping of each published set to further machines ([fleets.md](../fleets.md#shipping)).
    pub struct ShipConfig {
        /// Set this when other machines fetch the sets: where they are shipped. Without it, none
        /// are.
        restart url: String = String::new(), FLEET_URL_RULE;
        /// Set this when machines should be able to go back further, or storage is expensive: last
        /// sets whose layers are kept there.
        live sets_kept: usize = 10, 1..=10_000;
        /// Set this when the first download of a new machine takes longer: time for which a layer
        /// is kept there after the last of these sets that names it.
        live grace_s: u64 = 3600, 0..=GRACE_S_MAX;
        section storage: StorageConfig;
    } constants {
        /// Most bytes of the steps that are shipped beside each set
        /// ([fleets.md](../fleets.md#steps)); 0 for none. Each set that is shipped uploads so many.
        steps_len: usize = STEPS_LEN;
        /// Pause after a failed attempt. It doubles with each further failure, so that storage that
        /// is overloaded gets fewer requests.
        retry_ms: u64 = 500;
        /// Maximum pause after a failed attempt: as late as machines may be after a failure.
        retry_ms_max: u64 = 30_000;
    }
}

/// Bytes of the steps beside a set: machines that look every second then need no layers while some
/// hundred records change within it.
const STEPS_LEN: usize = 64 << 10;
const _: () = assert!(STEPS_LEN <= STEPS_LEN_MAX, "as machines accept");

impl ShipConfig {
    /// Bounds of shipping.
    pub(crate) const fn limits(&self) -> ShipLimits {
        ShipLimits {
            sets_kept: self.sets_kept,
            grace: Duration::from_secs(self.grace_s),
            steps_len: self.steps_len,
        }
    }

    /// The pause after so many failed attempts in a row.
    pub(crate) fn pause(&self, failures: u32) -> Duration {
        let doubled = 1_u64.checked_shl(failures.saturating_sub(1)).unwrap_or(u64::MAX);
        Duration::from_millis(self.retry_ms.saturating_mul(doubled).min(self.retry_ms_max))
    }
}

settings! {
    /// A command that checks each set before it is published, and may refuse it.
    pub struct CheckConfig {
        /// Set this when a set has to be checked before it is served: program and arguments; the
        /// directory of the candidate is appended. Empty for no check.
        live command: Vec<String> = Vec::new();
        /// Set this when the command is too slow for each change: `false` checks merges and
        /// rebuilds only. Otherwise each delta waits for it.
        live deltas: bool = true;
        /// Set this when the command takes longer: time after which it is killed and the set
        /// rejected.
        live timeout_s: u64 = 60, 1..=TIMEOUT_S_MAX;
    }
}

/// Maximum time for which files and generations may be kept: a year and a day. Keeps additions to a
/// time within its range.
const GRACE_S_MAX: u64 = 366 * 86_400;
/// Maximum time until a command is killed: a day.
const TIMEOUT_S_MAX: u64 = 86_400;

impl PublishConfig {
    /// The key with which sets are signed.
    pub(crate) fn key(&self) -> Option<ServerKeyConfig> {
        let passphrase = self.key_passphrase_file.clone().map(PassphraseSource::File);
        let key = |file| ServerKeyConfig { file, passphrase };
        self.key_file.clone().map(key)
    }

    /// Interval of statements; `None` for never.
    pub(crate) fn heartbeat(&self) -> Option<Duration> {
        (self.heartbeat_ms > 0).then(|| Duration::from_millis(self.heartbeat_ms))
    }

    /// Length of the lease of the process that publishes; `None` if there is none.
    pub(crate) fn lease(&self) -> Option<Duration> {
        (self.lease_ms > 0).then(|| Duration::from_millis(self.lease_ms))
    }

    /// Length of the lease of the process that follows the primaries of a mirror. One of several
    /// always does, also if each publishes.
    pub(crate) fn mirror_lease(&self) -> Duration {
        self.lease().unwrap_or(Duration::from_millis(LEASE_MS))
    }

    pub(crate) const fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms)
    }

    pub(crate) const fn grace(&self) -> Duration {
        Duration::from_secs(self.grace_s)
    }

    pub(crate) const fn retry(&self) -> Duration {
        Duration::from_secs(self.retry_s)
    }
}

settings! {
    /// Notices of each published set ([fleets.md](../fleets.md#notices)).
    pub struct NoticeServerConfig where listeners_have_a_key {
        /// Set this when machines should fetch each set at once: TCP address at which
        /// `handle-fetch`, `handle-cache` and mirrors wait for notices; none if not set.
        restart listen: Option<SocketAddr> = None;
        /// Set this when `listen` is: file with the key that these machines have too, of at least
        /// 32 bytes.
        restart key_file: Option<PathBuf> = None;
        /// Set this when more machines wait for notices: most at a time; more are refused.
        live machines: usize = 4096, 1..=1 << 20;
    } constants {
        /// Connections that have not shown the key yet; more are refused. All machines come back
        /// within some seconds when this process was away.
        unproven: usize = 256;
        /// Most time for showing the key, which takes one round trip.
        proof_ms: u32 = 5000;
        /// Interval at which a notice is repeated, so that machines notice a lost connection.
        /// Machines wait for several times as long.
        repeat_ms: u32 = 10_000;
        /// Most time for a machine to take a notice, of some hundred bytes.
        write_ms: u32 = 5000;
        /// Most bytes of names of changed handles that are kept for machines that ask for them, as
        /// `handle-cache` does: some thousand names. When more has changed since its last notice, a
        /// machine is told that any handle may have changed.
        names_len: usize = NAMES_LEN;
    }
}

/// Bytes of names of changed handles that are kept.
const NAMES_LEN: usize = 256 << 10;
const _: () = assert!(NAMES_LEN <= CHANGED_LEN_MAX, "as machines accept");

fn listeners_have_a_key(config: &NoticeServerConfig) -> Result<(), SettingError> {
    if config.listen.is_some() && config.key_file.is_none() {
        let why = "`publish.notify.listen` needs `publish.notify.key_file`";
        return Err(SettingError::Together(why.to_owned()));
    }
    Ok(())
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
    fn the_pause_after_failed_attempts_doubles_up_to_a_limit() {
        let ship = ShipConfig { retry_ms: 500, retry_ms_max: 30_000, ..ShipConfig::default() };
        let pauses = [1, 2, 3, 7, 64, 65, u32::MAX].map(|failures| ship.pause(failures).as_millis());
        assert_eq!(pauses, [500, 1000, 2000, 30_000, 30_000, 30_000, 30_000]);
    }

    #[test]
    fn shipping_without_a_directory_is_refused() {
        let mut config = PublishConfig::default();
        config.ship.url = "file:///mnt/sets".to_owned();
        assert!(config.check().unwrap_err().to_string().contains("needs `publish.directory`"));
        config.directory = Some("/sets".into());
        assert!(config.check().is_ok());
    }
}
