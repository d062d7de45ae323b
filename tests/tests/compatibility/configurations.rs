//! Configurations of each version mean what they meant.

use crate::corpus::{VersionFiles, read_each};
use anyhow::{Context as _, ensure};
use handle_daemon::settings::SettingSection;
use handle_daemon::settings::file::to_table;
use toml::{Table, Value};

/// Reads a configuration, and writes it again.
type SettingsReader = fn(&Table) -> anyhow::Result<Table>;

/// The processes, and what reads the configuration of each.
const PROCESSES: [(&str, SettingsReader); 5] = [
    ("handled", reread::<handle_worker::config::Config>),
    ("handle-admin", reread::<handle_admin::config::Config>),
    ("handle-gateway", reread::<handle_gateway::Config>),
    ("handle-fetch", reread::<handle_fetch::Config>),
    ("handle-cache", reread::<handle_cache::Config>),
];

fn reread<C: SettingSection>(table: &Table) -> anyhow::Result<Table> {
    let config: C = table.clone().try_into()?;
    config.check().map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(to_table(&config)?)
}

/// All settings of a process with their defaults, as `--print-config` shows them.
pub(crate) fn defaults() -> Vec<(&'static str, String)> {
    fn of<C: SettingSection>() -> String {
        to_table(&C::default()).unwrap().to_string()
    }
    vec![
        ("handled", of::<handle_worker::config::Config>()),
        ("handle-admin", of::<handle_admin::config::Config>()),
        ("handle-gateway", of::<handle_gateway::Config>()),
        ("handle-fetch", of::<handle_fetch::Config>()),
        ("handle-cache", of::<handle_cache::Config>()),
    ]
}

/// Checks that `now` has every setting of `was` with its value.
fn ensure_kept(was: &Table, now: &Table, section: &str) -> anyhow::Result<()> {
    for (name, value) in was {
        let name_of = || format!("{section}{name}");
        let kept = now.get(name).with_context(|| format!("`{}` is gone", name_of()))?;
        match (value, kept) {
            (Value::Table(was), Value::Table(now)) => ensure_kept(was, now, &format!("{}.", name_of()))?,
            _ => ensure!(value == kept, "`{}` was {value} and is read as {kept}", name_of()),
        }
    }
    Ok(())
}

fn check(corpus: &VersionFiles, name: &str, reread: SettingsReader) -> anyhow::Result<()> {
    let was: Table = std::fs::read_to_string(corpus.path(name))?.parse()?;
    ensure!(!was.is_empty(), "no settings");
    ensure_kept(&was, &reread(&was)?, "")
}

/// All settings with their defaults, and the few that `hdl init` writes.
#[test]
fn settings_have_their_values() {
    for (process, reread) in PROCESSES {
        let name = format!("configurations/{process}.toml");
        read_each(&name, |corpus| check(corpus, &name, reread));
    }
    for (process, reread) in &PROCESSES[..3] {
        let name = format!("configurations/init/{process}.toml");
        read_each(&name, |corpus| check(corpus, &name, *reread));
    }
}
