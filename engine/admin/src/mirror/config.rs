//! The settings of mirrors.

use super::scope::PrefixFilter;
use handle_daemon::identity::{HandleIdentity, identities};
use handle_daemon::notice::listener::NotifyConfig;
use handle_daemon::settings;
use handle_daemon::settings::{DAY_MS, SettingRule, SettingSection as _, SettingType};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

settings! {
    /// Primaries whose records this server mirrors ([mirrors.md](../mirrors.md)). Without any, it
    /// is a primary, or its records are imported.
    pub struct MirrorConfig {
        /// Set this when changes should arrive sooner, or the primary should get fewer requests:
        /// time between two requests for its transactions while it has none.
        restart interval_ms: u32 = 1000, 50..=DAY_MS;
        /// Set this when memory is short, or dumps should be written faster: bytes of records of a
        /// dump in one commit. As many are received meanwhile, so a dump takes twice this memory.
        /// Transactions after a dump share a commit up to a quarter of it.
        restart dump_bytes: usize = 32 << 20, 4096..=1 << 30;
        /// Set this when this server mirrors others: the primaries, each in a table
        /// `[[mirror.primary]]`: `name` for status, metrics and the position that is kept; `site`,
        /// the site record as JSON, or `addresses` and `public_key`, the file with the server key;
        /// `identity` (`INDEX:HANDLE`) with `key_file` (and `passphrase_file`) or `secret_file`;
        /// `prefixes`, the only ones mirrored, with those derived from them; `interval_ms`, in
        /// place of that above; `notify_address` (`HOST:PORT`) and `notify_key_file`, for notices
        /// of the primary (`publish.notify` there); `allow_signed_streams`, for primaries without
        /// TLS.
        restart primary: Vec<MirrorPrimary> = Vec::new(), PRIMARIES;
    } constants {
        /// Time between two requests after transactions have arrived, until none has for
        /// `interval_ms`: more are likely to follow.
        busy_interval_ms: u32 = 50;
        /// Longest time until a primary is asked again that does not answer, or not as it should.
        /// The time doubles with each failure, beginning with `interval_ms`.
        retry_ms_max: u32 = 60_000;
        /// Timeout of connecting to a primary, of its answer, and of each read of a stream, which
        /// a primary begins after it has read its log.
        read_ms: u32 = 30_000;
        /// Most bytes of one item of a stream, several times the longest record that a server
        /// answers with. A longer record is left out and counted; a stream that is signed instead
        /// of encrypted is refused.
        item_bytes: usize = 4 << 20;
    }
}

impl MirrorConfig {
    /// Bytes of the records of transactions that share one commit: a quarter of those of a dump.
    pub(super) const fn batch_bytes(&self) -> usize {
        self.dump_bytes / 4
    }

    /// Transactions that share one commit, which then have 2 KiB on average.
    pub(super) const fn batch_items(&self) -> usize {
        self.batch_bytes().div_ceil(2048)
    }
}

/// One `[[mirror.primary]]` of the settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct MirrorPrimary {
    /// Name of the primary in status and metrics, and of the position in the store.
    pub name: String,
    /// Site record of the primary, as JSON.
    pub site: Option<PathBuf>,
    /// Addresses of its interface for administration, in place of those of the site record.
    pub addresses: Vec<SocketAddr>,
    /// File with the public key of the server, in place of that of the site record.
    pub public_key: Option<PathBuf>,
    /// The identity of this mirror at the primary.
    pub identity: String,
    /// File with its private key.
    pub key_file: Option<PathBuf>,
    /// File with the passphrase of this key.
    pub passphrase_file: Option<PathBuf>,
    /// File with its secret key.
    pub secret_file: Option<PathBuf>,
    /// Prefixes that are mirrored; all if empty.
    pub prefixes: Vec<String>,
    /// Time between two requests for transactions.
    pub interval_ms: Option<u32>,
    /// Address at which the primary reports that it has published changes; none if empty.
    pub notify_address: String,
    /// File with the key of these notices.
    pub notify_key_file: Option<PathBuf>,
    /// Whether streams are accepted that are signed instead of encrypted.
    pub allow_signed_streams: bool,
}

impl SettingType for MirrorPrimary {
    fn type_name() -> String {
        "table".to_owned()
    }

    fn resolve(&mut self, directory: &Path) {
        self.site.resolve(directory);
        self.public_key.resolve(directory);
        self.key_file.resolve(directory);
        self.passphrase_file.resolve(directory);
        self.secret_file.resolve(directory);
        self.notify_key_file.resolve(directory);
    }
}

/// The rule for `mirror.primary`.
pub const PRIMARIES: SettingRule<Vec<MirrorPrimary>> = SettingRule {
    words: "at most 64; if there are several, each with `prefixes` that no other one has",
    check: check_primaries,
};

/// Maximum number of primaries.
const PRIMARIES_MAX: usize = 64;
/// Maximum length of the name of a primary.
const NAME_LEN_MAX: usize = 64;

#[expect(clippy::ptr_arg, reason = "the type of the setting")]
fn check_primaries(primaries: &Vec<MirrorPrimary>) -> Result<(), String> {
    if primaries.len() > PRIMARIES_MAX {
        return Err(format!("has {} entries: it may have {PRIMARIES_MAX}", primaries.len()));
    }
    for (at, primary) in primaries.iter().enumerate() {
        primary.check().map_err(|why| format!("has an entry called {:?} that {why}", primary.name))?;
        if primaries[..at].iter().any(|other| other.name == primary.name) {
            return Err(format!("has two entries called {:?}", primary.name));
        }
        if primaries.len() > 1 && primary.prefixes.is_empty() {
            return Err(format!("has several entries, of which {:?} has no `prefixes`", primary.name));
        }
        let filter = primary.filter();
        if let Some(other) = primaries[..at].iter().find(|other| other.filter().overlaps(&filter)) {
            return Err(format!(
                "has entries {:?} and {:?} with the same prefix: a record has one primary",
                other.name, primary.name
            ));
        }
    }
    Ok(())
}

impl MirrorPrimary {
    /// The rest of a sentence about the entry, if it is invalid.
    fn check(&self) -> Result<(), String> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if self.name.is_empty() || self.name.len() > NAME_LEN_MAX || !self.name.bytes().all(is_plain) {
            return Err(format!("has no valid `name`: use 1 to {NAME_LEN_MAX} letters, digits and -_."));
        }
        if self.site.is_none() && (self.addresses.is_empty() || self.public_key.is_none()) {
            return Err("has no `site`: name the site record, or `addresses` and `public_key`".to_owned());
        }
        if self.key_file.is_some() == self.secret_file.is_some() {
            return Err("needs either `key_file` or `secret_file`".to_owned());
        }
        if self.passphrase_file.is_some() && self.key_file.is_none() {
            return Err("has a `passphrase_file` without `key_file`".to_owned());
        }
        if self.notify_address.is_empty() != self.notify_key_file.is_none() {
            return Err("needs both `notify_address` and `notify_key_file`, or neither".to_owned());
        }
        self.notify().check().map_err(|error| format!("has an invalid `notify_address`: {error}"))?;
        if let Some(interval_ms) = self.interval_ms.filter(|ms| !(50..=DAY_MS).contains(ms)) {
            return Err(format!("has `interval_ms` {interval_ms}: it must be from 50 to {DAY_MS}"));
        }
        if self.prefixes.iter().any(|prefix| prefix.is_empty() || prefix.contains('/')) {
            return Err("has an invalid prefix: write it as \"10.1045\"".to_owned());
        }
        self.identity().map(|_| ())
    }

    /// The settings of notices.
    pub(super) fn notify(&self) -> NotifyConfig {
        let (address, key_file) = (self.notify_address.clone(), self.notify_key_file.clone());
        NotifyConfig { address, key_file, ..NotifyConfig::default() }
    }

    /// The identity of this mirror.
    pub(super) fn identity(&self) -> Result<HandleIdentity, String> {
        if self.identity.is_empty() {
            return Err("has no `identity`".to_owned());
        }
        let parsed = identities(std::slice::from_ref(&self.identity));
        let parsed = parsed.map_err(|error| format!("in `identity` {error}"))?;
        parsed.into_iter().next().ok_or_else(|| "has no `identity`".to_owned())
    }

    /// The names that are mirrored.
    pub(super) fn filter(&self) -> PrefixFilter {
        PrefixFilter::new(&self.prefixes)
    }

    /// The time between two requests.
    pub(super) fn interval(&self, config: &MirrorConfig) -> Duration {
        Duration::from_millis(self.interval_ms.unwrap_or(config.interval_ms).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), String> {
        let config: MirrorConfig = toml::from_str(text).map_err(|error| error.to_string())?;
        config.check_within("mirror").map_err(|error| error.to_string())
    }

    fn primary(name: &str, more: &str) -> String {
        format!("[[primary]]\nname = '{name}'\nsite = 's'\nidentity = '300:10.1/M'\nkey_file = 'k'\n{more}\n")
    }

    /// Checks that something was refused, and for this reason.
    #[track_caller]
    fn refused(checked: Result<(), String>, expected: &str, what: &str) {
        let why = checked.expect_err(what);
        assert!(why.contains(expected), "{what}: {why}");
    }

    #[test]
    fn entries_are_complete_and_share_no_prefix() {
        assert_eq!(check(""), Ok(()));
        assert_eq!(check(&primary("a", "")), Ok(()));
        let two = |one: &str, other: &str| check(&(primary("a", one) + &primary("b", other)));
        assert_eq!(two("prefixes = ['10.1', '10.2']", "prefixes = ['10.10']"), Ok(()));
        for (one, other) in [
            ("", "prefixes = ['10.1']"),
            ("prefixes = ['10.1']", "prefixes = ['10.1.2']"),
            ("prefixes = ['10.1.2', '10.3']", "prefixes = ['10.1']"),
            ("prefixes = ['ab']", "prefixes = ['AB']"),
        ] {
            let expected = if one.is_empty() { "has no `prefixes`" } else { "with the same prefix" };
            refused(two(one, other), expected, &format!("{one} {other}"));
        }
        let same_name = primary("a", "prefixes = ['1']") + &primary("a", "prefixes = ['2']");
        refused(check(&same_name), "two entries called", &same_name);
        const PROVEN: &str = "identity = '300:10.1/M'\nkey_file = 'k'";
        for (bad, expected) in [
            ("[[primary]]".to_owned(), "no valid `name`"),
            (format!("[[primary]]\nname = 'a'\n{PROVEN}"), "no `site`"),
            (format!("[[primary]]\nname = 'a'\naddresses = ['127.0.0.1:1']\n{PROVEN}"), "no `site`"),
            ("[[primary]]\nname = 'a'\nsite = 's'\nidentity = '300:10.1/M'".to_owned(), "either `key_file`"),
            ("[[primary]]\nname = 'a'\nsite = 's'\nkey_file = 'k'".to_owned(), "no `identity`"),
            (format!("[[primary]]\nname = 'a b'\nsite = 's'\n{PROVEN}"), "no valid `name`"),
        ] {
            refused(check(&bad), expected, &bad);
        }
        let notify = "notify_address = 'admin.example:2643'\nnotify_key_file = 'n'";
        assert_eq!(check(&primary("a", notify)), Ok(()));
        let (address, key_file) = notify.split_once('\n').expect("two lines");
        for (bad, expected) in [
            (address, "needs both `notify_address`"),
            (key_file, "needs both `notify_address`"),
            ("notify_address = 'admin'\nnotify_key_file = 'n'", "invalid `notify_address`"),
            ("secret_file = 's'", "either `key_file`"),
            ("interval_ms = 49", "must be from 50"),
            ("prefixes = ['10.1/']", "invalid prefix"),
            ("unknown = 1", "unknown field"),
        ] {
            refused(check(&primary("a", bad)), expected, bad);
        }
        assert_eq!(check(&primary("a", "interval_ms = 50\nprefixes = ['10.1']")), Ok(()));
    }

    #[test]
    fn paths_are_relative_to_the_configuration() {
        let mut config: MirrorConfig = toml::from_str(&primary("a", "")).unwrap();
        config.resolve(Path::new("/etc/x"));
        assert_eq!(config.primary[0].site.as_deref(), Some(Path::new("/etc/x/s")));
        assert_eq!(config.primary[0].key_file.as_deref(), Some(Path::new("/etc/x/k")));
    }
}
